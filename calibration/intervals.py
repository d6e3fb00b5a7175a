"""How sure a mean is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom, norm, t

from playcall.strategies.panel import Floats


def mean_interval(
    values: Floats, *, confidence: float = 0.95, bounds: tuple[float, float] = (0.0, 1.0), inflation: float = 1.0
) -> tuple[float, float, float]:
    """(mean, low, high) of independent values that lie within bounds.

    Wilson's score interval (1927) with the values' own variance in place of p(1 - p): for 0/1 values it is
    Wilson's, and close to a bound it never claims certainty. A difference that is zero on every item is zero.
    `inflation` multiplies the variance: 1 for values that nothing else varies with.

    >>> [round(x, 3) for x in mean_interval(np.array([1.0, 1.0, 1.0, 0.0]))]
    [0.75, 0.301, 0.954]
    """
    n, mean, z = len(values), float(values.mean()), float(norm.ppf(0.5 + confidence / 2))
    low, high = bounds
    if not values.any() and low < 0:
        return 0.0, 0.0, 0.0
    if low < 0:  # a paired difference: normal, with a floor of one changed item
        half = z * float(np.sqrt(inflation * max(values.var(ddof=1), 1 / n) / n)) if n > 1 else high - low
        return mean, max(low, mean - half), min(high, mean + half)
    share = float(values.var()) / max(mean * (1 - mean), 1e-12) if 0 < mean < 1 else 1.0
    z2 = z * z * inflation * min(max(share, 1e-6), 1.0)
    centre, half = (mean + z2 / (2 * n)) / (1 + z2 / n), np.sqrt(z2 * (mean * (1 - mean) / n + z2 / (4 * n * n)))
    half /= 1 + z2 / n
    return mean, max(low, min(mean, float(centre - half))), min(high, max(mean, float(centre + half)))  # rounding


def wilson(mean: float, n: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """(low, high) of a share seen in n answers, Wilson's (1927); a mean of fractions is treated as one of 0 and 1."""
    z2 = float(norm.ppf(0.5 + confidence / 2)) ** 2
    half = float(np.sqrt(z2 * (mean * (1 - mean) / n + z2 / (4 * n * n))))
    low, high = (mean + z2 / (2 * n) - half) / (1 + z2 / n), (mean + z2 / (2 * n) + half) / (1 + z2 / n)
    return max(0.0, min(mean, low)), min(1.0, max(mean, high))  # rounding


def spread_interval(
    values: Floats, groups: Sequence[str] = (), *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """(mean, low, high) of a cost or a time, never below zero: Student's interval, over groups where there are any."""
    mean, n = float(values.mean()), len(values)
    _, of = np.unique(np.asarray(groups), return_inverse=True) if len(groups) else (None, np.arange(n))
    off = np.bincount(of, weights=values - mean)
    if len(off) < 2:
        return mean, 0.0, float("inf")
    half = float(t.ppf(0.5 + confidence / 2, len(off) - 1) * np.sqrt((off**2).sum() * len(off) / (len(off) - 1)) / n)
    return mean, max(0.0, mean - half), mean + half


def quantile_interval(values: Floats, share: float, *, confidence: float = 0.95) -> tuple[float, float, float]:
    """(quantile, low, high) of independent values; the ends are values themselves, by binomial ranks (Conover 1971).

    Where there are too few values for an upper end, it is the greatest of them, which promises less.
    """
    ordered, n = np.sort(values), len(values)
    low, high = (int(binom.ppf(tail, n, share)) for tail in ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(np.quantile(values, share)), float(ordered[max(low - 1, 0)]), float(ordered[min(high, n - 1)])
