"""Confidence sequences: bounds on a mean that hold at every moment at once, so that one may stop when one likes."""

from __future__ import annotations

from math import log

import numpy as np

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
