"""The plays that are tried, and what each does at every threshold.

A play is stages of arms: those of a stage are asked together, stage after stage, until an answer is probable
enough; the weightiest answer of all so far is put out. One stage of one arm is a single call, one stage of
several a vote, the rest are cascades that keep their evidence and stop at one shared threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf

import numpy as np

from playcall.calibration import fit_weight
from playcall.portfolio.belief import Stages, fit_belief
from playcall.strategies import Ask, Belief, Confident, Gather, Recording, Replay, Strategy, Vote, Weight, vote
from playcall.strategies.panel import Floats, Ints

MOST_ARMS = 11
_STAGE, _STAGES, _CALLS = 4, 3, 4  # most arms of the first stage, most stages, most arms of all
_THRESHOLDS = 60
_PRICES = (0.02, 0.1, 0.3, 0.6)  # of the best arm's cost, in quality: from "money hardly counts" to "it does"


@dataclass(frozen=True)
class Swept:
    """A play over the tasks of a recording, at each of its thresholds: arrays of (thresholds,)."""

    stages: Stages
    belief: Belief
    threshold: Floats
    quality: Floats
    cost: Floats  # mean nano-dollars
    latency: Floats  # mean microseconds, one stage after another

    def strategy(self, at: int, gap: float = inf) -> Strategy:
        """The play with one of its thresholds."""
        groups = [vote(*s).source if len(s) > 1 else Ask(s[0]) for s in self.stages]
        if len(groups) > 1:
            stop = Confident(round(float(self.threshold[at]), 6), self.belief)
            return Gather(tuple(groups), stop, gap).keep(Vote(self.belief))
        return groups[0] if isinstance(groups[0], Ask) else groups[0].keep(Vote(self.belief))

    @property
    def arms(self) -> tuple[str, ...]:
        """All its arms, in the order in which they are asked."""
        return tuple(a for stage in self.stages for a in stage)


def priced(recording: Recording) -> Recording:
    """Only the arms whose cost was recorded; if none was, every call costs the same."""
    if known := [a for a, d in recording.arms.items() if d.priced]:
        return recording.only(known)
    return replace(recording, arms={a: replace(d, price=np.ones_like(d.price)) for a, d in recording.arms.items()})


def best_arm(recording: Recording) -> str:
    """The arm with the highest mean quality of its first draw, the cheaper of equals."""
    return max(recording.arms, key=lambda a: (recording[a].quality[:, 0].mean(), -recording[a].price[:, 0].mean()))


def shortlist(recording: Recording, most: int = MOST_ARMS) -> tuple[str, ...]:
    """The arms worth combining, cheapest first: the best at several prices of money, up to 1.5x the best arm's cost."""
    quality = {a: float(d.quality[:, 0].mean()) for a, d in recording.arms.items()}
    cost = {a: float(d.price[:, 0].mean()) for a, d in recording.arms.items()}
    best = best_arm(recording)
    unit = max(cost[best], 1.0)
    left = [a for a in recording.arms if a != best and cost[a] <= 1.5 * unit]
    kept = [best]
    while left and len(kept) < most:
        price = _PRICES[len(kept) % len(_PRICES) - 1]
        kept.append(max(left, key=lambda a: quality[a] - price * cost[a] / unit))
        left.remove(kept[-1])
    return tuple(sorted(kept, key=lambda a: (cost[a], a)))


def plays(arms: Sequence[str]) -> Iterator[Stages]:
    """Every play of up to four of these arms in the given order, whose first stage may be a group."""
    for m in range(1, _CALLS + 1):
        for chosen in combinations(arms, m):
            for group in range(max(1, m - _STAGES + 1), min(m, _STAGE) + 1):
                yield (chosen[:group], *((a,) for a in chosen[group:]))


def search(recording: Recording) -> list[Swept]:
    """Every play on the shortlist, fitted and replayed on these tasks."""
    arms = shortlist(recording)
    calibrated = {a: fit_weight(a, recording[a].score[:, 0], recording[a].quality[:, 0]) for a in arms}
    return [_swept(stages, recording, calibrated) for stages in plays(arms)]


def _swept(stages: Stages, recording: Recording, calibrated: Mapping[str, Weight]) -> Swept:
    belief = fit_belief(stages, recording, calibrated)
    states = _states(stages, belief, recording)
    sure = np.unique(np.concatenate([s[0] for s in states[:-1]])) if len(states) > 1 else np.zeros(2)
    threshold = (sure[1:] + sure[:-1]) / 2 if len(sure) > 1 else sure
    if len(threshold) > _THRESHOLDS:
        threshold = threshold[np.linspace(0, len(threshold) - 1, _THRESHOLDS).astype(int)]
    quality, cost, latency = _stopped(states, np.round(threshold, 6))
    return Swept(stages, belief, threshold, quality.mean(axis=1), cost.mean(axis=1), latency.mean(axis=1))


def _states(stages: Stages, belief: Belief, recording: Recording) -> list[tuple[Floats, Floats, Ints, Ints]]:
    """After each stage, per task: the best posterior; its answer's quality, the cost and the time so far."""
    out = []
    everything = Replay(recording)(vote(*(a for stage in stages for a in stage)).source)
    grades = np.column_stack([recording[a].quality[:, 0] for a in everything.arm] + [np.zeros(len(recording))])
    cost = latency = np.zeros(len(recording), dtype=np.int64)
    end = 0
    for stage in stages:
        start, end = end, end + len(stage)
        cost = cost + everything.price[:, start:end].sum(axis=1)
        latency = latency + np.max([recording[a].latency[:, 0] for a in stage], axis=0)
        seen = replace(
            everything,
            arm=everything.arm[:end],
            draw=everything.draw[:end],
            **{k: getattr(everything, k)[:, :end] for k in ("answer", "score", "alive", "issued", "price", "failed")},
        )
        pick = seen.keep(Vote(belief)).output
        sure = np.where(pick >= 0, belief.posterior(seen).max(axis=1), 0.0)
        out.append((sure, grades[np.arange(len(recording)), pick], cost, latency))
    return out


def _stopped(states: list[tuple[Floats, Floats, Ints, Ints]], threshold: Floats) -> tuple[Floats, Floats, Floats]:
    """(thresholds, tasks) quality, cost and time when stopping at the first stage that is sure enough."""
    shape = (len(threshold), len(states[0][0]))
    going = np.ones(shape, dtype=np.bool_)
    came = [np.zeros(shape) for _ in range(3)]
    for i, (sure, *values) in enumerate(states):
        now = going & ((sure >= threshold[:, None]) | (i == len(states) - 1))
        for total, value in zip(came, values, strict=True):
            np.copyto(total, value, where=now)
        going &= ~now
    return came[0], came[1], came[2]
