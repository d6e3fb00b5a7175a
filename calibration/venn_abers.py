"""Venn-Abers predictors: two probabilities for each score, one of which is calibrated (Vovk & Petej 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from playcall.strategies.panel import Floats

_SAME = 1e-12


@dataclass(frozen=True, eq=False)
class VennAbers:
    """A pair of step functions of a score that rises with the chance of being right.

    Between two edges, and at each edge, both are constant: entry 2j is for scores between edge j - 1 and edge j,
    entry 2j + 1 for a score equal to edge j.
    """

    edge: Floats  # (edges,) ascending
    low: Floats  # (2 * edges + 1,) p0: the probability if the new answer were wrong
    high: Floats  # (2 * edges + 1,) p1: the probability if it were right

    def __call__(self, x: Floats) -> Floats:
        """(n, 2) the probabilities [p0, p1] at (n,) scores, none of them NaN."""
        left = np.searchsorted(self.edge, x, side="left")
        at = left + np.searchsorted(self.edge, x, side="right")
        return np.stack([self.low[at], self.high[at]], axis=1)


def merged(pair: Floats) -> Floats:
    """(n,) the one probability with least regret in log loss, p1 / (1 - p0 + p1), of (n, 2) pairs."""
    return np.asarray(pair[:, 1] / (1 - pair[:, 0] + pair[:, 1]))


def fit_venn_abers(x: Floats, quality: Floats, often: Floats) -> VennAbers:
    """From (answers,) scores, grades in [0, 1], and how many answers each row stands for (more than 0).

    Both functions are monotone, so their steps are found by bisection: one isotonic fit for each of them and for
    the halvings between, not one for each possible score.
    """
    edge, group = np.unique(x, return_inverse=True)
    weight, total = (np.bincount(group, each).astype(np.float64) for each in (often, often * quality))
    low, high = (_steps(weight, total, label) for label in (0.0, 1.0))
    changes = np.zeros(len(edge), dtype=bool)
    for p in (low, high):
        changes |= p[2::2] - p[:-2:2] > _SAME
    kept = np.concatenate(
        [[0], np.stack([2 * np.flatnonzero(changes) + 1, 2 * np.flatnonzero(changes) + 2], 1).ravel()]
    )
    return VennAbers(edge[changes], low[kept], high[kept])


def _steps(weight: Floats, total: Floats, label: float) -> Floats:
    p = np.empty(2 * len(weight) + 1)
    p[0], p[-1] = _added(weight, total, label, 0), _added(weight, total, label, len(p) - 1)
    todo = [(0, len(p) - 1)]
    while todo:
        a, b = todo.pop()
        if p[b] - p[a] <= _SAME:
            p[a:b] = p[a]
        elif b - a > 1:
            middle = (a + b) // 2
            p[middle] = _added(weight, total, label, middle)
            todo += [(a, middle), (middle, b)]
    return p


def _added(weight: Floats, total: Floats, label: float, at: int) -> float:
    """The isotonic fit of one more answer with this grade, at a place numbered as in VennAbers."""
    j, tied = divmod(at, 2)
    if tied:
        weight, total = weight.copy(), total.copy()
        weight[j] += 1
        total[j] += label
    else:
        weight, total = np.insert(weight, j, 1.0), np.insert(total, j, label)
    return float(isotonic_regression(total / weight, weights=weight).x[j])
