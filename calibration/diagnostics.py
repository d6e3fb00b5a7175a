"""How good probabilities are: reliability, Brier score, log loss, AUROC, and predictions on held-out answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, KFold

from playcall.calibration.calibrator import ConfidenceCalibrator
from playcall.calibration.intervals import mean_interval
from playcall.strategies.errors import Misuse
from playcall.strategies.panel import Floats

CERTAIN = 1e-6
"""Log loss takes no probability as nearer to 0 or 1 than this: a wrong certainty costs 13.8, not infinity."""


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: one entry for each bin, in rising order of the predicted probability."""

    predicted: tuple[float, ...]  # mean probability
    observed: tuple[float, ...]  # share right
    low: tuple[float, ...]  # of that share, 95% Wilson interval
    high: tuple[float, ...]
    count: tuple[int, ...]  # answers


def reliability(probability: ArrayLike, right: ArrayLike, *, bins: int = 10) -> Reliability:
    """Bins of about as many answers each, from (answers,) probabilities and grades in [0, 1].

    Equal probabilities share a bin, so there may be fewer bins than asked for. Give held-out probabilities, such as
    those of `out_of_fold`: on answers that they were fitted to, any curve looks good.
    """
    p, y = _checked(probability, right)
    if bins < 1:
        raise Misuse(f"reliability bins={bins}: give 1 or more.")
    _, value, often = np.unique(p, return_inverse=True, return_counts=True)
    middle = np.cumsum(often) - (often + 1) / 2  # mean rank of each value
    place = np.unique(np.floor(middle * bins / len(p)), return_inverse=True)[1][value]
    parts = [place == i for i in range(place.max() + 1)]
    observed, low, high = zip(*(mean_interval(y[part]) for part in parts))
    return Reliability(
        tuple(float(p[part].mean()) for part in parts), observed, low, high, tuple(int(part.sum()) for part in parts)
    )


def brier(probability: ArrayLike, right: ArrayLike) -> tuple[float, float, float]:
    """(mean, low, high) of the squared error (p - right)^2, with a 95% interval; 0 is best (Brier 1950)."""
    p, y = _checked(probability, right)
    return mean_interval((p - y) ** 2)


def log_loss(probability: ArrayLike, right: ArrayLike) -> tuple[float, float, float]:
    """(mean, low, high) of the negative log-likelihood in nats, with a 95% interval; 0 is best.

    A few wrong certainties make up most of it, so the interval is Student's on the logarithm of the mean: of simulated
    samples of 200 answers each tail missed 2 to 4%, where a plain one's upper tail missed up to 7%.
    """
    p, y = _checked(probability, right)
    p = np.clip(p, CERTAIN, 1 - CERTAIN)
    loss = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    n, mean = len(loss), float(loss.mean())
    if n == 1:
        return mean, 0.0, float(-np.log(CERTAIN))
    spread = float(student.ppf(0.975, n - 1) * loss.std(ddof=1) / np.sqrt(n) / mean)
    return mean, float(mean * np.exp(-spread)), float(mean * np.exp(spread))


def auroc(probability: ArrayLike, right: ArrayLike) -> float:
    """The chance that a right answer has the higher probability than a wrong one; 0.5 if all are one or the other."""
    p, y = _checked(probability, right)
    if y.max() == 0 or y.min() == 1:
        return 0.5
    return float(roc_auc_score(np.repeat([1, 0], len(p)), np.tile(p, 2), sample_weight=np.concatenate([y, 1 - y])))


def out_of_fold(
    calibrator: ConfidenceCalibrator,
    score: ArrayLike,
    right: ArrayLike,
    *,
    folds: int = 5,
    seed: int = 0,
    groups: ArrayLike | None = None,
) -> Floats:
    """(answers,) probabilities, each by a fresh copy of the calibrator fitted to the other folds.

    `groups` (answers,) names the task of each: answers to one task are held out together.
    """
    x, y = np.asarray(score, dtype=np.float64), np.asarray(right, dtype=np.float64)
    kind = KFold if groups is None else GroupKFold
    p = np.empty(len(x))
    for train, test in kind(folds, shuffle=True, random_state=seed).split(x, y, groups):
        p[test] = clone(calibrator).fit(x[train], y[train]).predict_proba(x[test])[:, 1]
    return p


def _checked(probability: ArrayLike, right: ArrayLike) -> tuple[Floats, Floats]:
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if p.ndim != 1 or p.shape != y.shape or not p.size:
        raise Misuse(f"probabilities {p.shape} and grades {y.shape}: give one of each for every answer, (answers,).")
    for name, values in (("probability", p), ("grade", y)):
        if not ((values >= 0) & (values <= 1)).all():
            bad = values[~((values >= 0) & (values <= 1))][0]
            raise Misuse(f"a {name} is {bad:g}; give numbers from 0 to 1 (predict_proba(scores)[:, 1] for answers).")
    return p, y
