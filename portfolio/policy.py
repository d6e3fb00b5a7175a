"""A learned policy: what to run, what to expect of it, and what it was learned from. A JSON file, never code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Unpack, cast

import numpy as np
from pydantic import JsonValue, TypeAdapter, ValidationError

from playcall.calibration import ConfidenceCalibrator
from playcall.portfolio.arms import independent
from playcall.portfolio.choice import Choice, Target, choose
from playcall.portfolio.files import read_json, write_whole
from playcall.portfolio.nested import Chooser, Figures, Folding, HeldOut, cross_fitting
from playcall.portfolio.pool import search
from playcall.portfolio.sweep import Play, best_arm, priced
from playcall.strategies import NANO, Ask, Misuse, PlaycallError, Recording, Strategy, arms_of, dump
from playcall.strategies.codec import Json, load

Maps = Mapping[str, Mapping[str, Json]]


class Infeasible(PlaycallError):
    """No play keeps the target; `nearest` is the one that misses it least."""

    def __init__(self, text: str, nearest: Choice) -> None:
        super().__init__(text)
        self.nearest = nearest


@dataclass(frozen=True, kw_only=True)
class Expected(Figures):
    """What to expect of a policy on new tasks, held out; `apparent_quality` is that on the tasks it was chosen by.

    `single_arm` is best on all tasks, `single_quality` that of the arm chosen on training folds, held out.
    """

    single_arm: str
    single_quality: float
    single_cost: float | None
    apparent_quality: float
    tasks: int


@dataclass(frozen=True)
class Policy:
    """A strategy and its evidence. `prices` are mean USD a call of each arm it uses; `canonical` is when answers were
    equal; `calibration` maps each arm it uses that has confidences to a ConfidenceCalibrator, as its `to_dict` is."""

    strategy: Strategy
    figures: Expected
    target: Target
    prices: Mapping[str, float | None]
    data: Mapping[str, str]  # the table's name and its fingerprint
    notes: tuple[str, ...] = ()
    canonical: str = "exact"
    calibration: Maps = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        document = {**dump(self.strategy), "kind": "policy", "made_by": f"playcall {version('playcall')}"}
        document |= {"figures": asdict(self.figures), "target": asdict(self.target), "canonical": self.canonical}
        document |= {"prices": dict(self.prices), "data": dict(self.data), "notes": list(self.notes)}
        document |= {"calibration": dict(self.calibration)}
        write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """The policy of a file; runs no code."""
        document = read_json(path)
        if "figures" not in document:
            raise Misuse(f"{path} is a strategy without figures, not a policy; `playcall fit` writes policies.")
        try:
            return cls(
                load(document),
                TypeAdapter(Expected).validate_python(document["figures"]),
                TypeAdapter(Target).validate_python(document.get("target", {})),
                TypeAdapter(dict[str, float | None]).validate_python(document.get("prices", {})),
                TypeAdapter(dict[str, str]).validate_python(document.get("data", {})),
                tuple(TypeAdapter(list[str]).validate_python(document.get("notes", []))),
                TypeAdapter(str).validate_python(document.get("canonical", "exact")),
                cast(
                    Maps, TypeAdapter(dict[str, dict[str, JsonValue]]).validate_python(document.get("calibration", {}))
                ),
            )
        except (ValidationError, Misuse) as error:
            raise Misuse(f"{path} is not a policy that this playcall can read: {error}") from error


def fit(recording: Recording, target: Target | None = None, **folding: Unpack[Folding]) -> Policy:
    """Learn a policy from recorded calls: arms, order, weights, gap and threshold; `folding` goes to `cross_fit`.

    Its figures come from nested cross-validation: on each fold by a policy learned without it. Arms without a cost,
    or where time matters without latencies, are left out. Raises Infeasible where nothing keeps the target.
    """
    target = target or Target()
    return _fitted(recording, {"policy": target}, folding, strict=True)["policy"]


def fit_points(recording: Recording, targets: Mapping[str, Target], **folding: Unpack[Folding]) -> dict[str, Policy]:
    """A policy for each of several targets, from one search and shared folds.

    Where nothing keeps a target, its policy is the play that comes nearest, and its notes say so.
    """
    return _fitted(recording, targets, folding, strict=False)


def usable_for(recording: Recording, *targets: Target) -> Recording:
    """Only the arms that have what the targets limit; Misuse where none has."""
    usable = independent(priced(recording))
    if not usable.priced and any(t.costly for t in targets):
        raise Misuse(f"{recording.name} has no costs, so a limit or weight on them means nothing; add a cost column.")
    if any(t.timely for t in targets):
        usable = usable.only(a for a, d in usable.arms.items() if d.timed)
        if not usable.arms:
            raise Misuse(f"{recording.name} has no latencies, so a limit or weight on them means nothing; add them.")
    return usable


def _fitted(
    recording: Recording, targets: Mapping[str, Target], folding: Folding, *, strict: bool
) -> dict[str, Policy]:
    def chooser(target: Target) -> Chooser:
        return lambda swept, known: choose(swept, known, target).strategy

    usable = usable_for(recording, *targets.values())
    begun = cross_fitting(usable, {name: chooser(t) for name, t in targets.items()} | {ALONE: alone}, **folding)
    swept = search(usable)
    chosen = {name: choose(swept, usable, target) for name, target in targets.items()}
    for name, choice in chosen.items():
        if strict and not choice.feasible:
            raise Infeasible(nearest_words(targets[name], choice), choice)
    held = begun()
    return {n: policy_of(recording, usable, targets[n], c, held[n], held[ALONE]) for n, c in chosen.items()}


ALONE = "best single arm, chosen"
"""The arm to compare with is chosen inside the folds as well: the best on all tasks is partly lucky."""


def alone(swept: Sequence[Play], known: Recording) -> Strategy:
    """The best single arm."""
    return Ask(best_arm(known))


def policy_of(
    recording: Recording, usable: Recording, target: Target, choice: Choice, held: HeldOut, single: HeldOut
) -> Policy:
    """The policy of a choice among the `usable` arms of a recording, with what came of it on held-out tasks."""
    prices = {a: float(d.price.mean()) / NANO if d.priced else None for a, d in usable.arms.items()}
    arm = best_arm(usable)
    expected = Expected(
        **vars(held.figures(usable, single.quality)),
        single_arm=arm,
        single_quality=float(single.quality.mean()),
        single_cost=prices[arm],
        apparent_quality=choice.quality,
        tasks=len(usable),
    )
    data = {"table": recording.name, "fingerprint": fingerprint(recording)}
    used = {a: prices[a] for a in arms_of(choice.strategy)}
    notes = usable.notes if choice.feasible else (*usable.notes, nearest_words(target, choice))
    calibration = calibration_of(usable.only(used))
    return Policy(choice.strategy, expected, target, used, data, notes, recording.canonical, calibration)


def calibration_of(recording: Recording) -> dict[str, dict[str, Json]]:
    """By arm that has confidences: the map from them to the probability of being right, as plain JSON."""
    return {
        arm: ConfidenceCalibrator().fit(d.score.ravel(), d.quality.ravel()).to_dict()
        for arm, d in recording.arms.items()
        if np.isfinite(d.score).any()
    }


def fingerprint(recording: Recording) -> str:
    """SHA-256 of all that was recorded."""
    digest = hashlib.sha256(repr((recording.items, list(recording.arms))).encode())
    for d in recording.arms.values():
        for values in (d.answer, d.quality, d.price, d.latency, d.failed, d.score):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def nearest_words(target: Target, choice: Choice) -> str:
    """What misses a target least."""
    weights = ("cost_weight", "latency_weight")
    asked = ", ".join(f"{k} {v:g}" for k, v in asdict(target).items() if v or (v is not None and k not in weights))
    tail = "" if target.max_latency_p95 is None else f" ({choice.tail / 1e6:.3g} s for 95% of them)"
    return (
        f"no play keeps the target ({asked}). The nearest one has quality {choice.quality:.4f}, costs "
        f"${choice.cost / NANO:.6g} and takes {choice.latency / 1e6:.3g} s a task{tail}: relax the target to that."
    )
