"""Plays in stages, and what each does at every threshold.

Such a play is stages of arms: those of a stage are asked together, stage after stage, until an answer is probable
enough; the weightiest answer of all so far is put out. One stage of one arm is a single call, one stage of
several a vote, the rest are cascades that keep their evidence and stop at one shared threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from typing import NamedTuple

import numpy as np

from playcall.calibration import fit_weight
from playcall.portfolio.belief import Evidence, Stages, fit_belief
from playcall.portfolio.expect import chances, shrunk, toll
from playcall.strategies import Ask, Belief, Confident, Gather, Recording, Replay, Strategy, Vote, Weight, vote
from playcall.strategies.panel import Floats, Ints, Panel

MOST_ARMS = 11
_CALLS = 4  # most calls of a play
_THRESHOLDS = 40
_PRICES = (0.02, 0.1, 0.3, 0.6)  # of the best arm's cost, in quality: from "money hardly counts" to "it does"


@dataclass(frozen=True)
class Swept:
    """A play over the tasks of a recording, at each of its thresholds: arrays of (thresholds,)."""

    stages: Stages
    belief: Belief
    threshold: Floats
    quality: Floats
    expected: Floats  # quality on new tasks, less what each further call must bring
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
        """All its calls, in the order in which they are made."""
        return tuple(a for stage in self.stages for a in stage)


@dataclass(frozen=True)
class Fixed:
    """A play with nothing to set: as Swept, with one threshold."""

    play: Strategy
    arms: tuple[str, ...]
    quality: Floats
    expected: Floats
    cost: Floats
    latency: Floats
    stages: Stages = ()

    def strategy(self, at: int = 0, gap: float = inf) -> Strategy:
        """The play."""
        return self.play


Play = Swept | Fixed


def priced(recording: Recording) -> Recording:
    """Only the arms whose cost was recorded; if none was, every call costs the same."""
    if known := [a for a, d in recording.arms.items() if d.priced]:
        return recording.only(known)
    return replace(recording, arms={a: replace(d, price=np.ones_like(d.price)) for a, d in recording.arms.items()})


def best_arm(recording: Recording) -> str:
    """The arm with the highest mean quality, over all draws, the cheaper of equals."""
    return max(recording.arms, key=lambda a: (recording[a].quality.mean(), -recording[a].price.mean()))


def shortlist(recording: Recording, most: int = MOST_ARMS) -> tuple[str, ...]:
    """The arms worth combining, cheapest first: the best at several prices of money, up to 1.5x the best arm's cost."""
    quality = {a: float(d.quality.mean()) for a, d in recording.arms.items()}
    cost = {a: float(d.price.mean()) for a, d in recording.arms.items()}
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
    """Every play of up to four of these arms in the given order, whose first stage may be a group.

    Plays of four have two stages: with three they do no better on held-out tasks, and cost a fifth of the time.
    """
    for m in range(1, _CALLS + 1):
        for chosen in combinations(arms, m):
            for group in range(1 if m < _CALLS else _CALLS - 1, m + 1):
                yield (chosen[:group], *((a,) for a in chosen[group:]))


def staged(recording: Recording) -> list[Play]:
    """Every play of stages on the shortlist, fitted and replayed on these tasks; single arms alone if nothing tells."""
    best = best_arm(recording)
    if not recording.answered and not any_scored(recording):
        return [single(a, recording) for a in recording.arms]
    arms = shortlist(recording)
    calibrated = {a: fit_weight(a, recording[a].score.ravel(), recording[a].quality.ravel()) for a in arms}
    modelled = chances(arms, recording, calibrated)
    known = _Known(
        recording,
        calibrated,
        Evidence.of(arms, recording, calibrated),
        Replay(recording)(vote(*arms).source),
        np.column_stack([*(recording[a].quality[:, 0] for a in arms), np.zeros(len(recording))]),
        np.column_stack([modelled, np.zeros(len(recording))]),
        arms.index(best),
    )
    tried = [_swept(stages, known) for stages in plays(arms)]
    unit = 1.5 * recording[best].price[:, 0].mean()
    sizes = [len(t.cost) for t, _ in tried]
    m, r, v = np.concatenate([d for _, d in tried], axis=1)
    near = np.concatenate([(t.cost <= unit) / n for (t, _), n in zip(tried, sizes, strict=True)])
    gain = np.split(shrunk(m, r, v, near), np.cumsum(sizes)[:-1])
    level = recording[best].quality.mean()
    return [replace(t, expected=level + g - toll(len(t.arms))) for (t, _), g in zip(tried, gain, strict=True)]


def any_scored(recording: Recording) -> bool:
    """Whether some arm has confidences."""
    return any(bool((~np.isnan(d.score)).any()) for d in recording.arms.values())


def single(arm: str, recording: Recording) -> Fixed:
    """One call of an arm."""
    d = recording[arm]
    quality, cost, latency = (np.atleast_1d(x.mean()) for x in (d.quality, d.price, d.latency))
    return Fixed(Ask(arm), (arm,), quality, quality, cost, latency, ((arm,),))


class _Known(NamedTuple):
    """The calls of the shortlist, a column each, and what is worked out of them once for all plays."""

    recording: Recording
    calibrated: Mapping[str, Weight]
    evidence: Evidence
    panel: Panel
    graded: Floats  # (tasks, arms + 1) the grade of each answer, and 0 for none
    modelled: Floats  # the same, as the model of all arms expects it
    single: int  # the column of the best arm


def _swept(stages: Stages, known: _Known) -> tuple[Swept, Floats]:
    """The play at its thresholds, and (3, thresholds): its modelled difference, the residual, and its variance."""
    belief = fit_belief(stages, known.recording, known.calibrated, known=known.evidence)
    states = _states(stages, belief, known)
    sure = np.unique(np.concatenate([s[0] for s in states[:-1]])) if len(states) > 1 else np.zeros(2)
    threshold = (sure[1:] + sure[:-1]) / 2 if len(sure) > 1 else sure
    if len(threshold) > _THRESHOLDS:
        threshold = threshold[np.linspace(0, len(threshold) - 1, _THRESHOLDS).astype(int)]
    quality, modelled, cost, latency = _stopped(states, np.round(threshold, 6))
    graded, expected = known.graded[:, known.single], known.modelled[:, known.single]
    residual = (quality - graded) - (modelled - expected)
    gain = modelled.mean(axis=1) - expected.mean()
    judged = np.stack([gain, residual.mean(axis=1), residual.var(axis=1) / len(graded)])
    means = (x.mean(axis=1) for x in (quality, quality, cost, latency))
    return Swept(stages, belief, threshold, *means), judged


State = tuple[Floats, Floats, Floats, Ints, Ints]


def _states(stages: Stages, belief: Belief, known: _Known) -> list[State]:
    """After each stage, per task: the best posterior; its answer's grade, recorded and modelled; cost and time."""
    out, panel, at, rows = list[State](), known.panel, list[int](), np.arange(len(known.graded))
    cost = latency = np.zeros(len(rows), dtype=np.int64)
    for stage in stages:
        new = [panel.arm.index(a) for a in stage]
        at += new
        cost = cost + panel.price[:, new].sum(axis=1)
        latency = latency + np.max([known.recording[a].latency[:, 0] for a in stage], axis=0)
        seen = replace(
            panel,
            arm=tuple(panel.arm[i] for i in at),
            draw=tuple(panel.draw[i] for i in at),
            **{k: getattr(panel, k)[:, at] for k in ("answer", "score", "alive", "issued", "price", "failed")},
        )
        pick = seen.keep(Vote(belief)).output
        sure = np.where(pick >= 0, belief.posterior(seen).max(axis=1), 0.0)
        column = np.append(at, -1)[pick]
        out.append((sure, known.graded[rows, column], known.modelled[rows, column], cost, latency))
    return out


def _stopped(states: list[State], threshold: Floats) -> list[Floats]:
    """(thresholds, tasks) grade, modelled grade, cost and time when stopping at the first stage that is sure enough."""
    shape = (len(threshold), len(states[0][0]))
    going = np.ones(shape, dtype=np.bool_)
    came = [np.zeros(shape) for _ in range(4)]
    for i, (sure, *values) in enumerate(states):
        now = going & ((sure >= threshold[:, None]) | (i == len(states) - 1))
        for total, value in zip(came, values, strict=True):
            np.copyto(total, value, where=now)
        going &= ~now
    return came
