"""All that a user is told after a fit, from one search and one nested cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Unpack

import numpy as np

from playcall.portfolio.choice import Choice, Target
from playcall.portfolio.curve import CurvePoint, learning_curve
from playcall.portfolio.nested import Figures, Folding, cross_fitting, sure, unseen
from playcall.portfolio.policy import ALONE, Infeasible, Policy, alone, nearest_words, policy_of, usable_for
from playcall.portfolio.pool import search
from playcall.portfolio.remarks import Chosen, Earned, Redundant, ceiling, changes, earned, findings, redundant
from playcall.portfolio.simple import simple
from playcall.portfolio.simplest import Fallback, settle, settler
from playcall.strategies import Explain, Recording, Strategy, dump, outcomes

__all__ = ["Baseline", "CurvePoint", "Earned", "Point", "Redundant", "Study", "study"]

SHARES = (0.1, 0.2, 0.33, 0.5, 0.75, 1.0, 1.5, 2.5)
"""Of the best single arm's cost: where the frontier is looked at."""

Plain = None | bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"]

_POLICY = "policy"
_SLACK, _UNSEEN = 0.02, 0.002  # share of a limit, and quality, by which held-out figures may miss it


@dataclass(frozen=True, kw_only=True)
class Point:
    """A play of the frontier. Qualities are 0 to 1; `apparent` is on the tasks it was chosen by, `figures` are from
    nested cross-validation, `held_out` is on a test recording, where one was given."""

    name: str
    words: str
    strategy: Strategy
    max_share: float | None  # of the best single arm's cost; None: the target's own point
    apparent: float
    figures: Figures
    held_out: float | None


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A simple way to choose, on the same folds; `words` is what it chooses by all tasks."""

    name: str
    words: str
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class Study:
    """A policy, and what to hold beside it.

    `frontier` is by rising held-out cost, the policy's own point among it; dominated points are kept. `strongest` is
    the best baseline, by held-out quality, of those that keep the target's limits to within 2% (0.2 points of quality)
    there, else of all. `ceiling` is the share of tasks that some recorded call gets right. `optimism` is the policy's
    quality on the tasks it was chosen by, less that by nested cross-validation.
    """

    policy: Policy
    frontier: tuple[Point, ...]
    baselines: tuple[Baseline, ...]
    strongest: Baseline
    gain: float  # the policy's held-out quality less the strongest baseline's, paired by task, with its 95% interval
    gain_low: float
    gain_high: float
    ceiling: float
    ceiling_low: float
    ceiling_high: float
    earned: tuple[Earned, ...]
    redundant: tuple[Redundant, ...]
    findings: tuple[str, ...]
    changes: tuple[str, ...]
    curve: tuple[CurvePoint, ...]
    optimism: float

    def to_dict(self) -> dict[str, Plain]:
        """Plain JSON values; strategies as `dump` writes them."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def study(
    recording: Recording,
    target: Target | None = None,
    *,
    labels: Sequence[int] = (),
    held_out: Recording | None = None,
    fallback: Fallback = "none",
    **folding: Unpack[Folding],
) -> Study:
    """Learn a policy as `fit` does, and study it: `folding` goes to `cross_fit`, `labels` to `learning_curve`.

    `held_out` is a recording of other tasks, on which the plays of the frontier are graded. Raises Infeasible where
    nothing keeps the target.
    """
    target = target or Target()
    usable = usable_for(recording, target)
    tried, naive = _tried(usable, target), simple(usable, target)
    choosers = {name: settler(t, fallback) for name, (_, t) in tried.items()} | naive | {ALONE: alone}
    begun = cross_fitting(usable, choosers, **folding)
    swept = search(usable)
    choice = settle(swept, usable, target, fallback)
    if not choice.feasible:
        raise Infeasible(nearest_words(target, choice), choice)
    chosen = Chosen(choice, swept, usable, target, fallback)

    picked = {name: settle(swept, usable, t, fallback) for name, (_, t) in tried.items()}
    plays = {name: c for name, c in picked.items() if c.feasible}
    held = begun()
    figures = {name: held[name].figures(usable, held[ALONE].quality) for name in choosers}

    policy = policy_of(recording, usable, target, choice, held[_POLICY], held[ALONE])
    baselines = tuple(
        Baseline(name=name, words=Explain()(c(swept, usable)), figures=figures[name]) for name, c in naive.items()
    )
    frontier = _frontier(plays, {name: share for name, (share, _) in tried.items()}, figures, held_out)
    keeping = [b for b in baselines if _keeps(b.figures, chosen.limits)] or baselines
    strongest = max(keeping, key=lambda b: b.figures.quality)
    gained = sure(held[_POLICY].quality - held[strongest.name].quality, usable.groups, bounds=(-1, 1))
    most, low, high = ceiling(usable)
    progress, seed = folding.get("progress", unseen), folding.get("seed", 0)
    curve = learning_curve(recording, target, labels, seed=seed, fallback=fallback, progress=progress) if labels else ()
    return Study(
        policy=policy,
        frontier=frontier,
        baselines=baselines,
        strongest=strongest,
        gain=gained[0],
        gain_low=gained[1],
        gain_high=gained[2],
        ceiling=most,
        ceiling_low=low,
        ceiling_high=high,
        earned=earned(chosen),
        redundant=redundant(chosen, [p.strategy for p in frontier]),
        findings=findings(recording, usable),
        changes=changes(chosen),
        curve=curve,
        optimism=policy.figures.apparent_quality - policy.figures.quality,
    )


def _tried(usable: Recording, target: Target) -> dict[str, tuple[float | None, Target]]:
    """By name, the share and the target of the policy and of each point: limits on time are kept, all others not."""
    free = replace(target, max_cost=None, max_share=None, min_quality=None, max_drop=None, cost_weight=0.0)
    found: dict[str, tuple[float | None, Target]] = {_POLICY: (None, target)}
    if usable.priced:
        found |= {f"{share:g}x": (share, replace(free, max_share=share)) for share in SHARES}
    return found


def _frontier(
    plays: Mapping[str, Choice],
    shares: Mapping[str, float | None],
    figures: Mapping[str, Figures],
    held_out: Recording | None,
) -> tuple[Point, ...]:
    """A point for each play; of equal plays the first is kept, which is the policy's or that of the smallest share."""
    first = dict[Strategy, str]()
    for name, choice in plays.items():
        first.setdefault(choice.strategy, name)
    points = [
        Point(
            name=name,
            words=Explain()(strategy),
            strategy=strategy,
            max_share=shares[name],
            apparent=plays[name].quality,
            figures=figures[name],
            held_out=None if held_out is None else float(outcomes(strategy, held_out).quality.mean()),
        )
        for strategy, name in first.items()
    ]
    return tuple(sorted(points, key=lambda p: (p.figures.cost_per_task or p.figures.calls, p.apparent)))


def _keeps(f: Figures, limits: Target) -> bool:
    """Whether held-out figures keep a target's limits, but for what nobody would miss."""
    pairs = (
        (limits.max_cost, f.cost_per_task),
        (limits.max_latency, f.latency_mean),
        (limits.max_latency_p95, f.latency_p95),
    )
    most = all(limit is None or have is None or have <= limit * (1 + _SLACK) for limit, have in pairs)
    return most and f.quality >= (limits.min_quality or 0.0) - _UNSEEN


def _plain(value: object) -> Plain:
    match value:
        case Strategy():
            return _plain(dump(value))
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return _plain(value.item())
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        case _:
            raise TypeError(f"{value!r} has no plain form.")
