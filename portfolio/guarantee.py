"""A play with a proof: its loss exceeds an arm's by no more than was asked, on tasks that did not choose it.

How much to hold back, in which order to test, and how many plays was measured: the mean cost of what was certified on
tasks of `cascade_mmlu`, as a share of the best arm's (1 where nothing was), over 15 draws of tasks, delta .1.

    tasks, target                              600: .02  .03  .05    1000: .02  .03  .05
    30% held back to certify                        .73  .64  .43          .62  .51  .37
    50%                                             .69  .58  .35          .62  .45  .29
    70%                                             .59  .47  .37          .57  .46  .26
    70%, dearest first, not surest first            .62  .49  .41          .56  .46  .26

Over 5 draws, the mean of all those cells was .51 with all plays, .56 with four of them and .63 with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from playcall.calibration import Certificate, control_risk
from playcall.portfolio.pool import search
from playcall.portfolio.sweep import best_arm, priced
from playcall.strategies import NANO, Ask, Misuse, Outcomes, Recording, Strategy, outcomes
from playcall.strategies.panel import Floats, Ints

BEST = "best"
"""The best single arm, in place of an arm's name."""

_SHARES = (2, 1.5, 1.25, 1, 0.9, 0.8, 0.75, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
_LEAST = 10  # tasks on either side


@dataclass(frozen=True)
class Guarantee:
    """A play, and what the tasks held back for that say of it. `strategy` is None where nothing was proved.

    Costs are means in USD a task on the certification tasks, None where none was recorded. The certificate's policies
    are `candidates`; where tasks come in groups its labels are groups, and its risk is drawn towards the target where
    these differ in size. It is None where no play was cheaper than the reference, which needs no proof.
    """

    strategy: Strategy | None
    reference: str | None  # the arm whose loss is the measure; None: the loss itself was limited
    target: float
    delta: float
    certificate: Certificate | None
    candidates: tuple[Strategy, ...]  # in the order of their tests, each cheaper than those before
    learned_on: int  # tasks
    certified_on: int
    cost_per_task: float | None  # of the strategy, or else of the reference
    reference_cost: float | None
    labels_needed: int | None  # tasks in all that should do; None: no number would, or the strategy is there

    @property
    def words(self) -> str:
        """The guarantee in a few sentences."""
        chance, points = f"{100 * (1 - self.delta):.4g}%", f"{100 * self.target:.3g} points"
        limit = f"above {self.reference}'s by at most {points}" if self.reference else f"at most {points}"
        if self.certificate is None:
            return f"On {self.learned_on:,} tasks no play was found that is cheaper than {self.reference}: call that."
        if self.strategy is None:
            had = self.learned_on + self.certified_on
            if self.labels_needed is None:
                more = "More tasks would hardly help: raise the target."
            elif self.labels_needed <= had:
                more = "The nearest stood behind one that failed; on fresh tasks it may well be certified."
            else:
                more = f"About {self.labels_needed:,} tasks in all should do, if the nearest play goes on as it did."
            back = f" Call {self.reference}, which needs no proof." if self.reference and self.target >= 0 else ""
            return (
                f"Nothing is certified: of {len(self.candidates)} plays learned on {self.learned_on:,} tasks, none was "
                f"proved on {self.certified_on:,} others, with probability {chance}, to have a loss {limit}. "
                f"{more}{back}"
            )
        cost = "" if self.cost_per_task is None else f" It costs ${self.cost_per_task:.4g} a task."
        if self.cost_per_task is not None and self.reference_cost:
            cost = f"{cost[:-1]}, {self.cost_per_task / self.reference_cost:.2f} of {self.reference}'s."
        return (
            f"Certified on {self.certified_on:,} tasks that chose nothing: with probability {chance} the play's loss "
            f"is {limit}, on tasks like these.{cost}"
        )

    def __str__(self) -> str:
        return self.words


def certify(
    recording: Recording,
    *,
    target: float,
    delta: float = 0.1,
    reference: str | None = BEST,
    share: float = 0.7,
    seed: int = 0,
) -> Guarantee:
    """The cheapest play whose loss, 1 - quality, is proved to exceed a reference arm's by at most `target`.

    Part of the tasks chooses the arm, if it is to be the best, and a play for each of a row of costs; the rest tests
    these, the surest first, until one fails (`control_risk`). With probability 1 - delta over the tasks that test, no
    certified play breaks the limit; nothing is assumed of how the plays were found. To try several seeds, targets or
    arms and keep what comes out is to choose by the tests, and proves nothing.

    Parameters
    ----------
    target : between -1 and 1, in quality: 0.02 is two points. Below zero it asks for a play that is better.
    delta : chance of certifying what is false.
    reference : an arm's name; "best": the best single arm of the learning part; None: the loss itself is limited.
    share : of the tasks that is held back to certify, between 0 and 1. Groups are kept whole.
    seed : of the split.

    An arm without a cost is left out. Nothing certified is a value with its reason in words. Raises Misuse for an
    unknown arm, a share that leaves fewer than 10 tasks (or, where there are groups, 2 groups) on a side, and limits
    that control_risk refuses.
    """
    base: list[float] | None = None if reference is None else []
    control_risk(np.empty((0, 1)), [0.0], target=target, delta=delta, reference=base)  # refuses limits before a search
    usable = priced(recording)
    if reference not in (None, BEST, *usable.arms):
        raise Misuse(
            f"certify reference={reference!r}; give {BEST!r}, None or an arm with a cost: {sorted(usable.arms)}."
        )
    learn, test = held_back(usable, share, seed)
    known, held = usable.take(learn), usable.take(test)
    arm = best_arm(known) if reference == BEST and BEST not in usable.arms else reference
    alone = None if arm is None else outcomes(Ask(arm), held)
    plays, costs = _candidates(known, arm, target)
    cost = None if alone is None else _usd(alone, recording)
    found = Guarantee(None, arm, target, delta, None, tuple(plays), len(learn), len(test), cost, cost, None)
    if not plays:
        return found
    graded = [outcomes(play, held) for play in plays]
    proof = _certificate(graded, costs, alone, held.groups, target, delta, _largest(usable))
    if proof.chosen is None:
        needed = proof.labels_needed and ceil(proof.labels_needed * len(test) / proof.labels / share)
        return replace(found, certificate=proof, labels_needed=needed)
    paid = _usd(graded[proof.chosen], recording)
    return replace(found, certificate=proof, strategy=plays[proof.chosen], cost_per_task=paid)


def _candidates(known: Recording, arm: str | None, target: float) -> tuple[list[Strategy], list[float]]:
    """(plays, their mean nano-dollars) in the order in which to test them, the surest first and each next one cheaper.

    They are the plays expected to be best at a row of costs, below the arm's own unless it must be improved on. Surest
    is whose expected distance from the limit is most standard errors.
    """
    swept = search(known)
    cost, expected = (np.concatenate([getattr(p, k) for p in swept]) for k in ("cost", "expected"))
    owner = np.repeat(np.arange(len(swept)), [len(p.cost) for p in swept])
    at = np.concatenate([np.arange(len(p.cost)) for p in swept])
    unit = float(outcomes(Ask(arm or best_arm(known)), known).cost.mean())
    room = [(cost <= share * unit) & ((cost < unit) | (arm is None) | (target < 0)) for share in _SHARES]
    best = dict.fromkeys(int(np.argmax(np.where(ok, expected, -np.inf))) for ok in room if ok.any())
    base = np.ones(len(known)) if arm is None else outcomes(Ask(arm), known).quality
    ranked = list[tuple[float, int, Strategy]]()
    for i in best:
        play = swept[owner[i]].strategy(int(at[i]))
        lost = base - outcomes(play, known).quality
        spread = max(float(lost.std()), len(known) ** -0.5)
        ranked.append(((target - float(base.mean() - expected[i])) / spread, i, play))
    kept: dict[Strategy, float] = {}
    for _, i, play in sorted(ranked, key=lambda r: (-r[0], cost[r[1]])):
        if cost[i] < min(kept.values(), default=np.inf):
            kept[play] = float(cost[i])
    return list(kept), list(kept.values())


def held_back(recording: Recording, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to learn from and rows to test on; whole groups, in random order, until the tests have their share."""
    if not 0 < share < 1:
        raise Misuse(f"certify share={share}; give a number between 0 and 1, neither included.")
    n = len(recording)
    names, of = np.unique(recording.groups or recording.items, return_inverse=True)
    place = np.random.default_rng(seed).permutation(len(names))
    before = np.cumsum(np.bincount(of)[np.argsort(place)])[place]  # tasks up to and with the group
    held = before[of] <= max(round(share * n), 1)
    few = min(held.sum(), n - held.sum())
    apart = min(len(set(of[held])), len(set(of[~held])))
    if few < _LEAST or apart < 2:
        raise Misuse(
            f"certify: {n} tasks in {len(names)} groups with share={share} leave {few} tasks on one side; give at "
            f"least {_LEAST} tasks and 2 groups on either."
        )
    return np.flatnonzero(~held), np.flatnonzero(held)


def _certificate(
    graded: Sequence[Outcomes],
    costs: Sequence[float],
    alone: Outcomes | None,
    groups: Sequence[str],
    target: float,
    delta: float,
    largest: int,
) -> Certificate:
    loss = 1 - np.stack([o.quality for o in graded], axis=1)
    base = None if alone is None else 1 - alone.quality
    if groups:
        loss = _together(loss, groups, largest, max(target, 0.0))
        base = None if base is None else _together(base[:, None], groups, largest, max(-target, 0.0))[:, 0]
    return control_risk(loss, costs, target=target, delta=delta, reference=base, order=np.arange(len(costs)))


def _together(loss: Floats, groups: Sequence[str], largest: int, rest: float) -> Floats:
    """(groups, policies) from (tasks, policies): mean losses, where the tasks that a group has too few lose `rest`.

    So the mean over groups is below the target where, and only where, that over tasks is; groups are what is drawn.
    """
    _, of = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.stack([np.bincount(of, weights=x) for x in loss.T], axis=1)
    return np.clip((sums + rest * (largest - np.bincount(of))[:, None]) / largest, 0, 1)


def _largest(recording: Recording) -> int:
    return int(np.unique(recording.groups, return_counts=True)[1].max()) if recording.groups else 1


def _usd(o: Outcomes, recording: Recording) -> float | None:
    return float(o.cost.mean()) / NANO if any(d.priced for d in recording.arms.values()) else None
