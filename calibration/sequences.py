"""Confidence sequences: bounds on a mean that hold at every moment at once, so that one may stop when one likes."""

from __future__ import annotations

from math import inf, log

import numpy as np
from scipy.special import betaln, xlog1py, xlogy

from playcall.strategies.panel import Floats


def effective_size(drawn: Floats, population: int | None) -> Floats:
    """How many independent draws tell as much as `drawn` of `population` items without replacement; inf for all of
    them.

    The deviation of the running mean, times N / (N - t), is a martingale (Waudby-Smith and Ramdas 2020, section 2)
    whose variance is that of t N / (N - t) independent draws.
    """
    drawn = np.asarray(drawn, float)
    if population is None:
        return drawn
    with np.errstate(divide="ignore"):
        return np.where(drawn < population, drawn / (1 - drawn / population), np.inf)


def half_width(size: Floats, alpha: float, *, tuned: float = 50.0) -> Floats:
    """Of a one-sided asymptotic confidence sequence for a mean, in standard deviations; 0 for an infinite size.

    The chance that a running mean of independent draws ever lies this far above its expectation is at most alpha, in
    the limit of many draws: the normal mixture of Waudby-Smith et al. (2021, arXiv:2103.06476, appendix B.2), tightest
    at about `tuned` draws. `size` is the number of draws, one or more.
    """
    told = 2 * log(1 / alpha)
    rho = (told + log(1 + told)) / tuned  # the square of theirs
    size = np.asarray(size, float)
    finite = np.where(np.isinf(size), 1.0, size)
    scaled = finite * rho + 1
    wide = np.sqrt(2 * scaled / (finite**2 * rho) * np.log(1 + np.sqrt(scaled) / (2 * alpha)))
    return np.where(np.isinf(size), 0.0, wide)


def mean_bounds(total: Floats, size: Floats, alpha: float) -> tuple[Floats, Floats]:
    """(low, high) for means of independent values in [0, 1] that sum to `total`: the chance that a mean ever lies
    outside, at any size, is at most alpha, exactly. Robbins' (1970) mixture of Bernoulli likelihood ratios under a
    uniform prior; for values between 0 and 1 it is conservative, since each ratio is convex in the value.
    """
    size = np.asarray(size, float)
    total = np.clip(total, 0.0, size)
    mixed = betaln(total + 1, size - total + 1) - log(1 / alpha)

    def inside(mean: Floats) -> Floats:
        told: Floats = xlogy(total, mean) + xlog1py(size - total, -mean) >= mixed
        return told

    centre = np.divide(total, size, out=np.full_like(size, 0.5), where=size > 0)
    ends = []
    for far in (np.zeros_like(centre), np.ones_like(centre)):
        near, away = centre, far
        for _ in range(40):
            middle = (near + away) / 2
            holds = inside(middle)
            near, away = np.where(holds, middle, near), np.where(holds, away, middle)
        ends.append(np.where(inside(far), far, away))
    return ends[0], ends[1]


def evidence(values: Floats, mean: float, population: int, *, above: bool) -> float:
    """Logarithm of the most that a bet against "the population's mean is at most `mean`" (`above`), or "at least",
    has ever been worth while values in [0, 1] were drawn without replacement. It exceeds log(1 / alpha) with
    probability at most alpha where that is true (Waudby-Smith and Ramdas 2020, section 4; it bets on the mean so far).
    """
    n = len(values)
    if not n:
        return 0.0
    before = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    drawn = np.arange(n)
    expected = (population * mean - before) / (population - drawn)  # of the next value, if that is just true
    if (expected < -1e-9).any() if above else (expected > 1 + 1e-9).any():
        return inf  # it cannot be true any more
    sure = (expected >= 1) if above else (expected <= 0)  # it is true whatever comes
    null = np.clip(expected, 1e-9, 1 - 1e-9)
    guess = (before + 0.5) / (drawn + 1)
    guess = np.clip(np.maximum(guess, null) if above else np.minimum(guess, null), 1e-9, 1 - 1e-9)
    gains = values * np.log(guess / null) + (1 - values) * np.log((1 - guess) / (1 - null))
    return max(0.0, float(np.cumsum(np.where(sure, 0.0, gains)).max()))
