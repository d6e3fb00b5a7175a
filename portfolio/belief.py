"""Learning how much each arm's answer counts: a conditional logit over the answers seen, and none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from playcall.strategies import Belief, Recording, Weight
from playcall.strategies.panel import Floats, Mask

Stages = tuple[tuple[str, ...], ...]
"""Arms that are asked together, stage after stage; the nth naming of an arm is its nth draw."""

_TRUST = 0.7  # each arm's weight before any evidence: errors are shared, so less than 1
_RIDGE = (3.0, 0.3)  # of the arms' weights; of the four parameters that they share


class _Seen(NamedTuple):
    """What was known at one moment, in as many rows as differ."""

    features: Floats  # (rows, choices, parameters); the last choice is "none of these"
    open: Mask  # (rows, choices)
    target: Floats  # (rows, choices) how often each was right
    often: Floats  # (rows,) how many items are alike


class Evidence(NamedTuple):
    """What calls told, a column each; the nth column of an arm is its nth draw."""

    arms: tuple[str, ...]
    plain: Floats  # (calls,) log-odds of the arm's accuracy
    worth: Floats  # (tasks, calls) log-odds of this answer's confidence, less the plain ones
    quality: Floats  # (tasks, calls)
    alive: Mask  # (tasks, calls)
    same: Mask  # (tasks, calls, calls) both alive, with equal answers
    sure: bool  # whether any arm's confidence tells anything

    @classmethod
    def of(cls, calls: Sequence[str], recording: Recording, calibrated: Mapping[str, Weight]) -> Evidence:
        """Of these calls."""
        drawn = [recording.column(a, calls[:i].count(a)) for i, a in enumerate(calls)]
        plain = np.array([calibrated[a].missing for a in calls])
        told = [calibrated[a](d.score[:, k]) for a, (d, k) in zip(calls, drawn, strict=True)]
        answer, failed, quality = (
            np.stack([getattr(d, field)[:, k] for d, k in drawn], axis=1) for field in ("answer", "failed", "quality")
        )
        same = (answer[:, :, None] == answer[:, None, :]) & ~failed[:, :, None] & ~failed[:, None, :]
        sure = any(calibrated[a].slope != 0 for a in calls)
        return cls(tuple(calls), plain, np.stack(told, axis=1) - plain, quality, ~failed, same, sure)

    def take(self, at: Sequence[int]) -> Evidence:
        """Of these columns."""
        i = list(at)
        return Evidence(
            tuple(self.arms[j] for j in i),
            self.plain[i],
            self.worth[:, i],
            self.quality[:, i],
            self.alive[:, i],
            self.same[:, i][:, :, i],
            self.sure and bool(self.worth[:, i].any()),
        )


def fit_belief(
    stages: Stages,
    recording: Recording,
    calibrated: Mapping[str, Weight],
    *,
    ridge: float = _RIDGE[0],
    known: Evidence | None = None,
) -> Belief:
    """The belief that fits what is known after each stage, on all items at once.

    Utility of an answer: the sum, over the calls that gave it, of shared + weight_m * plain_m + heed * (sure -
    plain_m), where plain_m is the log-odds of the arm's accuracy and sure those of this answer's calibrated
    confidence; of none of them: other + dissent * (answers - 1). Ridge towards weights and heed of 0.7; Newton's
    method with halved steps, since the likelihood is concave. `known` holds these calls among others, to save time.
    """
    calls = [a for stage in stages for a in stage]
    arms, ends = list(dict.fromkeys(calls)), np.cumsum([len(stage) for stage in stages])
    if known is None:
        known = Evidence.of(calls, recording, calibrated)
    else:
        known = known.take([known.arms.index(a) for a in calls])
    seen = [_seen(known.take(range(end)) if end < len(calls) else known, arms) for end in ends]
    theta = _fit(seen, np.append(np.full(len(arms), _TRUST), [0.0, 0.0, 0.0, _TRUST]), ridge)
    shared, other, dissent, heed = (float(x) for x in theta[-4:])
    weights = []
    for arm, trust in zip(arms, theta, strict=False):
        w = calibrated[arm]
        plain = shared + float(trust) * w.missing
        weights.append(replace(w, bias=plain + heed * (w.bias - w.missing), slope=heed * w.slope, missing=plain))
    return Belief(tuple(weights), other, dissent)


def _seen(e: Evidence, arms: Sequence[str]) -> _Seen:
    same, worth, (n, m) = e.same, e.worth, e.alive.shape
    first = e.alive & ~(same & np.tri(m, k=-1, dtype=bool)).any(axis=2)

    right = np.where(first, e.quality, 0.0)
    right /= np.maximum(right.sum(axis=1, keepdims=True), 1.0)
    target = np.column_stack([right, 1 - right.sum(axis=1)])
    count = np.ones(n)
    if not e.sure and m * m < 64:  # items differ by who agrees with whom, and nothing else
        pattern = same.reshape(n, -1) @ (1 << np.arange(m * m, dtype=np.uint64))
        _, row, group = np.unique(pattern, return_index=True, return_inverse=True)
        target = np.stack([np.bincount(group, t) for t in target.T], axis=1)
        same, first, worth, n = same[row], first[row], worth[row], len(row)
        count = np.bincount(group).astype(np.float64)

    whose = np.array([arms.index(a) for a in e.arms])[:, None] == np.arange(len(arms))
    features, width = np.zeros((n, m + 1, len(arms) + 4)), len(arms)
    features[:, :m, :width] = same @ (e.plain[:, None] * whose)
    features[:, :m, width + 3] = (same @ worth[:, :, None])[:, :, 0]
    features[:, :m, width] = same.sum(axis=2)
    features[:, m, width + 1] = 1
    features[:, m, width + 2] = np.maximum(first.sum(axis=1) - 1, 0)
    return _Seen(features, np.column_stack([first, np.ones(n, dtype=bool)]), target, count)


def _chances(s: _Seen, theta: Floats) -> Floats:
    u = np.where(s.open, s.features @ theta, -np.inf)
    e = np.exp(u - u.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _fit(seen: Sequence[_Seen], prior: Floats, own: float, steps: int = 25) -> Floats:
    ridge = np.full(len(prior), own)
    ridge[-4:] = _RIDGE[1]
    width = len(prior)

    def value(theta: Floats) -> tuple[float, list[Floats]]:
        p = [_chances(s, theta) for s in seen]
        fit = sum(float((s.target * np.log(np.maximum(q, 1e-12))).sum()) for s, q in zip(seen, p, strict=True))
        return fit - 0.5 * float((ridge * (theta - prior) ** 2).sum()), p

    theta, (now, p) = prior, value(prior)
    for _ in range(steps):
        slope, curve = -ridge * (theta - prior), np.diag(ridge)
        for s, q in zip(seen, p, strict=True):
            mean = (q[:, None, :] @ s.features)[:, 0]
            slope = slope + (s.target - s.often[:, None] * q).reshape(-1) @ s.features.reshape(-1, width)
            spread = ((q * s.often[:, None])[:, :, None] * s.features).reshape(-1, width)
            curve = curve + spread.T @ s.features.reshape(-1, width) - (s.often[:, None] * mean).T @ mean
        step = np.linalg.solve(curve, slope)
        then, p = value(theta + step)
        while then < now and np.abs(step).max() > 1e-6:
            step = step / 2
            then, p = value(theta + step)
        theta = theta + step
        if then - now < 1e-2:
            break
        now = then
    return theta
