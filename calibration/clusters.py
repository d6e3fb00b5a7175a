"""How sure a mean is whose items come in groups of alike ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm, t

from playcall.calibration.intervals import mean_interval, wilson
from playcall.strategies.errors import Misuse
from playcall.strategies.panel import Floats


def grouped_interval(
    values: Floats,
    groups: Sequence[str],
    *,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (0.0, 1.0),
    inflation: float = 1.0,
) -> tuple[float, float, float]:
    """(mean, low, high) of values that lie within bounds; (items,) groups are independent, items of one are not.

    The mean is that over items, a ratio of group sums, and its variance the ratio estimator's (Cochran, "Sampling
    Techniques", 1977, 6.4), never less than if items were independent. The quantile is Student's. Its degrees of
    freedom are those of the variance's estimate, 2G / (kurtosis - 1) for the G groups' sums, and at most one less than
    the effective number of groups, (sum of sizes)^2 / sum of their squares (Kish 1965). Means between 0 and 1 get
    Wilson's interval at the effective number of items (Korn & Graubard 1998); with no variance seen, that is the number
    of groups. Paired differences get a normal one with a floor of one changed group. From one group nothing follows but
    the bounds; groups of one item each are independent items. `inflation` multiplies the variance: 1 for values that
    nothing else varies with. Raises Misuse where groups and values differ in number.

    >>> [round(x, 3) for x in grouped_interval(np.repeat([1.0, 1.0, 0.0, 1.0], 5), [*"aaaaabbbbbcccccddddd"])]
    [0.75, 0.131, 0.984]
    """
    if len(groups) != len(values) or not len(values):
        raise Misuse(f"grouped_interval: {len(groups)} groups for {len(values)} values; give each value its group.")
    _, of = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(of).astype(np.float64)
    if 1 < len(sizes) == len(values):
        return mean_interval(values, confidence=confidence, bounds=bounds, inflation=inflation)
    n, mean, (low, high) = len(values), float(values.mean()), bounds
    if not values.any() and low < 0:
        return 0.0, 0.0, 0.0
    count = float(n**2 / (sizes**2).sum())
    if len(sizes) == 1:
        return mean, low, high
    off = np.bincount(of, weights=values - mean)
    spread = (off**2).sum() * len(sizes) / (len(sizes) - 1)
    variance = inflation * max(float(spread), float(values.var(ddof=1)) * n) / n**2
    tails = len(sizes) * float((off**4).sum()) / max(float((off**2).sum()) ** 2, 1e-300)
    freedom = min(count - 1, 2 * len(sizes) / max(tails - 1, 1e-9))
    quantile = float(t.ppf(0.5 + confidence / 2, max(freedom, 1.0)))
    if low < 0:
        half = quantile * max(variance**0.5, 1 / count)
        return mean, max(low, mean - half), min(high, mean + half)
    alike = float(norm.ppf(0.5 + confidence / 2)) / quantile
    effective = mean * (1 - mean) / max(variance, 1e-12) if 0 < mean < 1 else count / inflation
    return mean, *wilson(mean, effective * alike**2, confidence=confidence)
