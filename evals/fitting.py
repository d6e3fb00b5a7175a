"""What `playcall fit` does with a table: a study, and where a guarantee is asked for, the play that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Unpack

from playcall.portfolio import Folding, HeldOut, Target, best_arm, priced
from playcall.portfolio.guarantee import BEST, Guarantee, certify, held_back
from playcall.portfolio.nested import unseen
from playcall.portfolio.policy import Expected, Policy, calibration_of
from playcall.portfolio.studies import Plain, Study, study
from playcall.strategies import NANO, Draws, Recording, Strategy, arms_of, outcomes

_HELD = 0.6  # share of the tasks that certify


@dataclass(frozen=True)
class Fitted:
    """A study, the policy to write (the study's, or the certified one), and the guarantee, if one was asked for."""

    study: Study
    policy: Policy
    guarantee: Guarantee | None = None

    def to_dict(self) -> dict[str, Plain]:
        """The study's document, and under `guarantee` what was proved and the figures of the play that was."""
        document = {**self.study.to_dict()}
        if (g := self.guarantee) is not None:
            kept: dict[str, Plain] = {"certified": g.strategy is not None, "words": g.words, "reference": g.reference}
            kept |= {"target": g.target, "delta": g.delta, "cost_per_task": g.cost_per_task}
            kept |= {"learned_on": g.learned_on, "certified_on": g.certified_on, "labels_needed": g.labels_needed}
            document["guarantee"] = kept | {"figures": asdict(self.policy.figures) if g.strategy is not None else None}
        return document


def fitted(
    recording: Recording,
    target: Target,
    *,
    labels: Sequence[int] = (),
    guarantee: float | None = None,
    delta: float = 0.1,
    reference: str | None = BEST,
    **folding: Unpack[Folding],
) -> Fitted:
    """Study a target, and certify a play if `guarantee` says how much quality it may lose; see `study`, `certify`.

    Raises Infeasible where nothing keeps the target. Where nothing can be certified the policy is the study's.
    """
    if guarantee is None:
        s = study(recording, target, labels=labels, **folding)
        return Fitted(s, s.policy)
    folding.get("progress", unseen)("certifying on tasks held back", 0, 1)
    seed = folding.get("seed", 0)
    g = certify(recording, target=guarantee, delta=delta, reference=reference, share=_HELD, seed=seed)  # refuses first
    s = study(recording, target, labels=labels, **folding)
    return Fitted(s, s.policy if g.strategy is None else _certified(recording, s.policy, g.strategy, g.words, seed), g)


def _certified(recording: Recording, ordinary: Policy, play: Strategy, words: str, seed: int) -> Policy:
    """The certified play as a policy: its figures are from the tasks that certified it, its apparent quality is from
    those that it was learned on."""
    usable = priced(recording)
    learn, test = held_back(usable, _HELD, seed)
    held, arms, single = usable.take(test), arms_of(play), best_arm(usable)
    o, alone = outcomes(play, held), held[single]
    came = HeldOut.of(o)
    expected = Expected(
        **vars(came.figures(recording.only(arms).take(test), alone.quality[:, 0])),
        single_arm=single,
        single_quality=float(alone.quality[:, 0].mean()),
        single_cost=_usd(recording[single].take(test)),
        apparent_quality=float(outcomes(play, usable.take(learn)).quality.mean()),
        tasks=len(held),
    )
    return replace(
        ordinary,
        strategy=play,
        figures=expected,
        target=Target(),
        prices={a: _usd(recording[a]) for a in arms},
        notes=(*recording.notes, words),
        calibration=calibration_of(recording.only(arms)),
    )


def _usd(d: Draws) -> float | None:
    return float(d.price.mean()) / NANO if d.priced else None
