"""Raw confidence -> log-odds of being right, one logistic curve per arm (Platt 1999)."""

from __future__ import annotations

import numpy as np
from scipy.special import logit
from sklearn.linear_model import LogisticRegression

from playcall.strategies import Weight
from playcall.strategies.panel import Floats
from playcall.strategies.rules import Scale, stretch

_WIDE = 100.0  # scores that go further are scaled to this for the fit
ENOUGH = 20
"""With fewer scored answers a curve is noise; the arm's accuracy stands in."""


def scale_of(score: Floats) -> Scale:
    """Which scale a raw confidence is on: never positive means log-probabilities, 0 to 1 probabilities."""
    known = score[~np.isnan(score)]
    if known.size and known.max() <= 0:
        return "logprob"
    return "probability" if known.size and known.min() >= 0 and known.max() <= 1 else "raw"


def fit_weight(arm: str, score: Floats, quality: Floats) -> Weight:
    """The calibrated log-odds of one arm's answers, from (answers,) scores and grades in [0, 1].

    A grade between 0 and 1 counts as that share of a right answer. An answer without a score, or an
    arm without enough of them, gets the arm's accuracy, with one right and one wrong answer added.
    """
    return platt(arm, score, quality, np.ones(len(score)), scale_of(score), C=1.0)


def smoothed(quality: Floats, often: Floats) -> float:
    """The mean grade with one right and one wrong answer added (Laplace); `often` (answers,) is how many each is."""
    return float(((quality * often).sum() + 1) / (often.sum() + 2))


def platt(arm: str, score: Floats, quality: Floats, often: Floats, scale: Scale, *, C: float) -> Weight:
    """As fit_weight, on a given scale: answer i counts `often[i]` times, and C is the inverse of the slope's ridge."""
    plain = float(np.clip(logit(smoothed(quality, often)), -6, 6))
    x = stretch(score, scale)
    known = ~np.isnan(x)
    x, y, n = x[known], quality[known], often[known]
    if n.sum() < ENOUGH or np.ptp(x) == 0 or (y == 0).all() or (y == 1).all():
        return Weight(arm, plain, missing=plain)
    unit = max(float(np.abs(x).max()) / _WIDE, 1.0)  # the same curve and ridge; lbfgs fails on huge numbers
    x = x / unit
    both = LogisticRegression(C=C if unit == 1 else C * min(unit, 1e100) ** 2).fit(
        np.concatenate([x, x])[:, None], np.repeat([1, 0], len(x)), sample_weight=np.concatenate([n * y, n * (1 - y)])
    )
    return Weight(arm, float(both.intercept_[0]), float(both.coef_[0, 0]) / unit, scale, plain)
