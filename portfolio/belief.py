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


def fit_belief(
    stages: Stages, recording: Recording, calibrated: Mapping[str, Weight], *, ridge: float = _RIDGE[0]
) -> Belief:
    """The belief that fits what is known after each stage, on all items at once.

    Utility of an answer: the sum, over the calls that gave it, of shared + weight_m * plain_m + heed * (sure -
    plain_m), where plain_m is the log-odds of the arm's accuracy and sure those of this answer's calibrated
    confidence; of none of them: other + dissent * (answers - 1). Ridge towards weights and heed of 0.7; Newton's
    method with halved steps, since the likelihood is concave.
    """
    calls = [a for stage in stages for a in stage]
    arms, ends = list(dict.fromkeys(calls)), np.cumsum([len(stage) for stage in stages])
    seen = [_seen(calls[:end], arms, recording, calibrated) for end in ends]
    theta = _fit(seen, np.append(np.full(len(arms), _TRUST), [0.0, 0.0, 0.0, _TRUST]), ridge)
    shared, other, dissent, heed = (float(x) for x in theta[-4:])
    weights = []
    for arm, trust in zip(arms, theta, strict=False):
        w = calibrated[arm]
        plain = shared + float(trust) * w.missing
        weights.append(replace(w, bias=plain + heed * (w.bias - w.missing), slope=heed * w.slope, missing=plain))
    return Belief(tuple(weights), other, dissent)


def _seen(calls: Sequence[str], arms: Sequence[str], recording: Recording, calibrated: Mapping[str, Weight]) -> _Seen:
    drawn = [recording.column(a, calls[:i].count(a)) for i, a in enumerate(calls)]
    answer = np.stack([d.answer[:, k] for d, k in drawn], axis=1)
    alive = np.stack([~d.failed[:, k] for d, k in drawn], axis=1)
    plain = np.array([calibrated[a].missing for a in calls])
    worth = np.stack([calibrated[a](d.score[:, k]) for a, (d, k) in zip(calls, drawn, strict=True)], axis=1) - plain
    quality = np.stack([d.quality[:, k] for d, k in drawn], axis=1)
    n, m = answer.shape
    same = (answer[:, :, None] == answer[:, None, :]) & alive[:, :, None] & alive[:, None, :]
    first = alive & ~(same & np.tri(m, k=-1, dtype=bool)).any(axis=2)

    right = np.where(first, quality, 0.0)
    right /= np.maximum(right.sum(axis=1, keepdims=True), 1.0)
    target = np.column_stack([right, 1 - right.sum(axis=1)])
    if all(calibrated[a].slope == 0 for a in calls):  # items differ by who agrees with whom, and nothing else
        pattern = same.reshape(n, -1) @ (1 << np.arange(m * m, dtype=np.uint64)) if m * m < 64 else np.arange(n)
        _, row, group = np.unique(pattern, return_index=True, return_inverse=True)
        target = np.stack([np.bincount(group, t) for t in target.T], axis=1)
        same, first, worth, n = same[row], first[row], worth[row], len(row)
        count = np.bincount(group).astype(np.float64)
    else:
        count = np.ones(n)

    whose = np.array([arms.index(a) for a in calls])[:, None] == np.arange(len(arms))
    features, width = np.zeros((n, m + 1, len(arms) + 4)), len(arms)
    features[:, :m, :width] = (same * plain) @ whose
    features[:, :m, width + 3] = (same * worth[:, None, :]).sum(axis=2)
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

    def value(theta: Floats) -> float:
        fit = sum(float((s.target * np.log(np.maximum(_chances(s, theta), 1e-12))).sum()) for s in seen)
        return fit - 0.5 * float((ridge * (theta - prior) ** 2).sum())

    theta, now = prior, value(prior)
    for _ in range(steps):
        slope, curve = -ridge * (theta - prior), np.diag(ridge)
        for s in seen:
            p = _chances(s, theta)
            mean = np.einsum("nj,njk->nk", p, s.features)
            slope = slope + np.einsum("nj,njk->k", s.target - s.often[:, None] * p, s.features)
            spread = np.einsum("nj,njk->njk", p * s.often[:, None], s.features).reshape(-1, len(prior))
            curve = curve + spread.T @ s.features.reshape(-1, len(prior)) - (s.often[:, None] * mean).T @ mean
        step = np.linalg.solve(curve, slope)
        while (then := value(theta + step)) < now and np.abs(step).max() > 1e-6:
            step = step / 2
        theta = theta + step
        if then - now < 1e-4:
            break
        now = then
    return theta
