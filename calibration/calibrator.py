"""Any raw confidence -> probability of being right, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from playcall.calibration.confidence import ENOUGH, platt, scale_of, smoothed
from playcall.calibration.intervals import wilson
from playcall.calibration.venn_abers import VennAbers, fit_venn_abers, merged
from playcall.strategies.errors import Misuse
from playcall.strategies.panel import Floats
from playcall.strategies.rules import Scale, Weight, stretch

if TYPE_CHECKING:
    from playcall.strategies.codec import Json

Labels: TypeAlias = NDArray[np.generic]

AVERAGED = 50
"""From so many scored answers on the estimate is the mean of Platt's and Venn-Abers'."""


class ConfidenceCalibrator(ClassifierMixin, BaseEstimator):
    """The probability that an answer is right, from the confidence it came with.

    Two estimates are averaged: a logistic curve over the stretched score (Platt 1999), and from 50 scored answers on
    the Venn-Abers predictor (Vovk & Petej 2014), p1 / (1 - p0 + p1). Below 20 scored answers, or where they or their
    grades are all alike, everything gets the mean grade with one right and one wrong answer added. An answer without
    a score (NaN) gets that mean over the answers without a score, or over all if they are fewer than 20.

    Parameters
    ----------
    scale : "auto", "raw", "probability" or "logprob"
        What the scores are; "auto" reads it off them (never positive: log-probabilities; 0 to 1: probabilities). When
        predicting, a score beyond its scale counts as the scale's end.
    C : inverse strength of the ridge on the logistic slope, as in scikit-learn's LogisticRegression.
    venn_abers : whether to average with Venn-Abers. `interval` uses it in any case.

    Attributes
    ----------
    classes_ : (2,) labels of wrong and right answers: 0 and 1, or the two labels that y had, in sorted order.
    scale_ : the scale in use.
    weight_ : the logistic part, as strategies weigh answers.
    venn_abers_ : the Venn-Abers part; None where there is no logistic curve.
    n_scored_ : the number of scored answers (their summed weight).
    rate_ : (3,) mean grade of all answers as probability, with its 95% Wilson interval: (estimate, low, high).
    unscored_ : (3,) the same for answers without a score.
    n_features_in_ : 1.

    >>> score, right = np.tile([0.9, 0.8, 0.6, 0.3], 25), np.tile([1, 1, 0, 0, 1, 1, 1, 0], 13)[:100]
    >>> ConfidenceCalibrator().fit(score, right).predict_proba([0.9, 0.6, 0.3, np.nan])[:, 1].round(2)
    array([0.99, 0.5 , 0.03, 0.62])
    """

    classes_: Labels
    scale_: Scale
    weight_: Weight
    venn_abers_: VennAbers | None
    n_scored_: float
    rate_: Floats
    unscored_: Floats

    def __init__(
        self,
        *,
        scale: Literal["auto", "raw", "probability", "logprob"] = "auto",
        C: float = 1.0,
        venn_abers: bool = True,
    ) -> None:
        self.scale = scale
        self.C = C
        self.venn_abers = venn_abers

    def __sklearn_tags__(self):  # type: ignore[no-untyped-def]
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to scores of shape (answers,) or (answers, 1), NaN where there is none, and their grades (answers,).

        Grades are numbers in [0, 1], where a fraction counts as that share of a right answer, or any two labels. A
        weight is how many answers a row stands for: weights of 2 are the same as every row twice. Raises Misuse (a
        ValueError) for infinite scores, scores off the stated scale, and grades that are neither.
        """
        if y is None:
            raise Misuse("ConfidenceCalibrator requires y to be passed, but the target y is None: give the grades.")
        score = self._scores(X, reset=True)
        grade, self.classes_ = _grades(y)
        if len(grade) != len(score):
            raise Misuse(
                f"ConfidenceCalibrator: {len(score)} scores for {len(grade)} grades; give one for each answer."
            )
        often = _check_sample_weight(sample_weight, score, dtype=np.float64, ensure_non_negative=True)
        counted = often > 0
        if not counted.any():
            raise Misuse("ConfidenceCalibrator: every sample_weight is 0; give at least one answer a weight.")
        score, grade, often = score[counted], grade[counted], often[counted]
        self.scale_ = self._scale(score)
        self.weight_ = platt("", score, grade, often, self.scale_, C=self.C)
        known = ~np.isnan(score)
        self.n_scored_ = float(often[known].sum())
        self.venn_abers_ = None
        if self.weight_.slope:
            x = np.sign(self.weight_.slope) * stretch(score[known], self.scale_)
            self.venn_abers_ = fit_venn_abers(x, grade[known], often[known])
        self.rate_ = _rate(grade, often)
        apart = often[~known].sum() >= ENOUGH
        self.unscored_ = _rate(grade[~known], often[~known]) if apart else self.rate_
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """(answers, 2) probabilities of being wrong and of being right."""
        score = self._scores(X)
        known = ~np.isnan(score)
        p = np.where(known, expit(self.weight_(score)), self.unscored_[0])
        if self.venn_abers and self.venn_abers_ is not None and self.n_scored_ >= AVERAGED:
            p[known] = (p[known] + merged(self._pair(score[known], self.venn_abers_))) / 2
        return np.stack([1 - p, p], axis=1)

    def predict(self, X: ArrayLike) -> Labels:
        """(answers,) the likelier class."""
        right = self.predict_proba(X)[:, 1] > 0.5
        return np.asarray(self.classes_[right.astype(int)])

    def interval(self, X: ArrayLike) -> Floats:
        """(answers, 2) Venn-Abers' [p0, p1]: one of the two is a calibrated probability, whatever the scores mean.

        The wider, the fewer labels stand behind it. The estimate of `predict_proba` is half Platt's and may lie beyond
        it. Where there is no score, or no curve, it is the 95% Wilson interval of the accuracy.
        """
        score = self._scores(X)
        known = ~np.isnan(score)
        pair = np.where(known[:, None], self.rate_[1:], self.unscored_[1:])
        if self.venn_abers_ is not None:
            pair[known] = self._pair(score[known], self.venn_abers_)
        return pair

    def to_weight(self, arm: str) -> Weight:
        """The logistic part alone as a strategy's weight; with scale="auto" and C=1 it is that of `fit_weight`."""
        check_is_fitted(self)
        w = self.weight_
        return Weight(arm, w.bias, w.slope, w.scale, w.missing)

    def to_dict(self) -> dict[str, Json]:
        """All that predicting needs, as JSON without NaN or infinity; `from_dict` reads it."""
        from playcall.calibration.saved import saved

        check_is_fitted(self)
        return saved(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Json]) -> Self:
        """The fitted calibrator that `to_dict` wrote; runs no code of the document. Raises Misuse, naming the field."""
        from playcall.calibration.saved import restore

        return restore(cls(), document)

    def _pair(self, score: Floats, table: VennAbers) -> Floats:
        return table(np.sign(self.weight_.slope) * stretch(score, self.scale_))

    def _scale(self, score: Floats) -> Scale:
        found = scale_of(score)
        if self.scale == "auto":
            return found
        if self.scale not in ("raw", "probability", "logprob"):
            raise Misuse(f'ConfidenceCalibrator scale={self.scale!r}: write "auto", "raw", "probability" or "logprob".')
        if (self.scale == "logprob" and np.nanmax(score, initial=-np.inf) > 0) or (
            self.scale == "probability" and not np.all((score >= 0) & (score <= 1) | np.isnan(score))
        ):
            raise Misuse(
                f"ConfidenceCalibrator scale={self.scale!r}: scores run from {np.nanmin(score):g} to "
                f'{np.nanmax(score):g}, which are none; write "raw" or "auto".'
            )
        return self.scale

    def _scores(self, X: ArrayLike, *, reset: bool = False) -> Floats:
        if not reset:
            check_is_fitted(self)
        score = validate_data(self, X, reset=reset, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan")
        if score.ndim > 1 and (score.ndim > 2 or score.shape[1] != 1):
            raise Misuse(
                f"ConfidenceCalibrator takes one score an answer, (answers,) or (answers, 1); these are {score.shape}. "
                "Fit one calibrator for each kind of score."
            )
        if reset:
            self.n_features_in_ = 1
        return np.asarray(score.ravel())


def _rate(grade: Floats, often: Floats) -> Floats:
    n = float(often.sum())
    return np.array([smoothed(grade, often), *wilson(float((grade * often).sum()) / n, n)])


def _grades(y: ArrayLike) -> tuple[Floats, Labels]:
    """Grades in [0, 1], and the labels that 0 and 1 stand for."""
    label = column_or_1d(y, warn=True)
    if label.dtype.kind in "biuf":
        grade = label.astype(np.float64)
        if not np.isfinite(grade).all():
            raise Misuse(
                "Input y contains NaN or infinity: grades are numbers from 0 to 1; leave out ungraded answers."
            )
        if grade.size and grade.min() >= 0 and grade.max() <= 1:
            return grade, np.array([0, 1])
    check_classification_targets(label)
    classes, code = np.unique(label, return_inverse=True)
    if len(classes) > 2:
        raise Misuse(
            f"Only binary classification is supported. The type of the target is {type_of_target(label)}: "
            "give grades from 0 (wrong) to 1 (right)."
        )
    if len(classes) < 2:
        raise Misuse(f"ConfidenceCalibrator: all labels are of one class, {classes[:1]}; give grades from 0 to 1.")
    return code.astype(np.float64), classes
