"""A raw confidence becomes an honest probability."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import binomtest
from sklearn.base import clone
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from playcall.calibration import ConfidenceCalibrator, brier, fit_weight, log_loss
from playcall.strategies import Misuse


class OneColumn(ConfidenceCalibrator):
    """Takes the first of many columns, because scikit-learn's checks bring tables of several."""

    def __sklearn_tags__(self):  # type: ignore[no-untyped-def]
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # one column does not tell their classes apart
        return tags

    def _scores(self, X, *, reset=False):  # type: ignore[no-untyped-def]
        if not reset:
            check_is_fitted(self)
        X = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        columns = self.n_features_in_
        score = super()._scores(X[:, :1], reset=reset)
        self.n_features_in_ = columns
        return score


@parametrize_with_checks([OneColumn(), OneColumn(venn_abers=False)])
def test_scikit_learns_checks_pass(estimator: OneColumn, check: Callable[[OneColumn], None]) -> None:
    check(estimator)


def scored(n: int, seed: int = 0, missing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities, and grades that follow them along a logistic curve of -log(-score)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(1, 2, n)
    right = (rng.random(n) < expit(0.3 + 0.6 * x)).astype(float)
    return np.where(rng.random(n) < missing, np.nan, -np.exp(-x)), right


def plain_venn_abers(x: np.ndarray, y: np.ndarray, at: float) -> list[float]:
    """By its definition: one isotonic fit with the answer taken as wrong, one with it as right."""
    both = []
    for label in (0.0, 1.0):
        fit = IsotonicRegression().fit(np.append(x, at), np.append(y, label))
        both.append(float(fit.predict([at])[0]))
    return both


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_is_venn_abers_by_definition(seed: int) -> None:
    score, right = scored(80, seed)
    score = np.round(score, 1)  # ties
    new = np.append(score[:30], np.random.default_rng(seed).choice(score, 30) - 0.03)
    pairs = ConfidenceCalibrator().fit(score, right).interval(new)
    x = -np.log(np.clip(-score, 1e-8, None))
    for pair, at in zip(pairs, -np.log(np.clip(-new, 1e-8, None))):
        assert pair.tolist() == pytest.approx(plain_venn_abers(x, right, at), abs=1e-9)


def test_the_estimate_is_the_mean_of_platt_and_venn_abers() -> None:
    score, right = scored(200)
    fitted = ConfidenceCalibrator().fit(score, right)
    low, high = fitted.interval(score).T
    platt = expit(fit_weight("a", score, right)(score))
    assert fitted.predict_proba(score)[:, 1] == pytest.approx((platt + high / (1 - low + high)) / 2)
    alone = ConfidenceCalibrator(venn_abers=False).fit(score, right)
    assert alone.predict_proba(score)[:, 1] == pytest.approx(platt)


def test_below_fifty_labels_it_is_platt_alone() -> None:
    score, right = scored(49)
    fitted = ConfidenceCalibrator().fit(score, right)
    assert fitted.predict_proba(score)[:, 1] == pytest.approx(expit(fit_weight("a", score, right)(score)))


def test_its_logistic_part_is_fit_weights() -> None:
    score, right = scored(300, missing=0.3)
    assert ConfidenceCalibrator().fit(score, right).to_weight("opus") == fit_weight("opus", score, right)


@pytest.mark.parametrize("scores", [np.full(12, 0.5), np.linspace(0, 1, 12), np.full(12, np.nan)])
def test_too_few_labels_give_the_base_rate_and_its_interval(scores: np.ndarray) -> None:
    right = np.repeat([1.0, 0.0], [9, 3])
    fitted = ConfidenceCalibrator().fit(scores, right)
    wilson = binomtest(9, 12).proportion_ci(method="wilson")
    assert fitted.predict_proba(scores)[:, 1] == pytest.approx(np.full(12, 10 / 14))
    assert fitted.interval(scores)[0] == pytest.approx([wilson.low, wilson.high])


def test_answers_without_a_score_have_an_accuracy_of_their_own_if_there_are_enough() -> None:
    score, right = scored(300)
    score[:60], right[:60] = np.nan, np.repeat([1.0, 0.0], [15, 45])
    p = ConfidenceCalibrator().fit(score, right).predict_proba([np.nan, score[-1]])[:, 1]
    assert p[0] == pytest.approx(16 / 62)
    few = ConfidenceCalibrator().fit(score[41:], right[41:])  # 19 of them
    assert few.predict_proba([np.nan])[0, 1] == pytest.approx((right[41:].sum() + 1) / (len(right) - 41 + 2))


def test_a_fraction_is_that_share_of_a_right_answer() -> None:
    score, right = scored(100)
    grade = np.where(np.arange(100) % 3 == 0, 0.25, right)
    whole = np.where(np.arange(100) % 3 == 0, 1.0, right)
    parts = ConfidenceCalibrator().fit(
        np.concatenate([score, score[::3]]),
        np.concatenate([whole, np.zeros(34)]),
        np.concatenate([np.where(np.arange(100) % 3 == 0, 0.25, 1.0), np.full(34, 0.75)]),
    )
    fitted = ConfidenceCalibrator().fit(score, grade)
    assert fitted.predict_proba(score) == pytest.approx(parts.predict_proba(score), abs=1e-3)
    assert fitted.interval(score) == pytest.approx(parts.interval(score))


def test_a_confidence_that_misleads_is_turned_round() -> None:
    score, right = scored(300)
    straight, turned = (ConfidenceCalibrator(scale="raw").fit(s, right) for s in (score, -score))
    assert turned.predict_proba(-score) == pytest.approx(straight.predict_proba(score), abs=1e-6)
    assert turned.interval(-score) == pytest.approx(straight.interval(score))


def test_one_column_is_as_good_as_none() -> None:
    score, right = scored(100)
    flat, table, frame = score, score[:, None], pd.DataFrame({"confidence": score})
    fits = [ConfidenceCalibrator().fit(X, right).predict_proba(X) for X in (flat, table, frame)]
    assert np.array_equal(fits[0], fits[1])
    assert np.array_equal(fits[0], fits[2])


def test_one_of_the_two_probabilities_is_calibrated() -> None:
    score, right = scored(4000, seed=5)
    width = []
    for n in (50, 500):
        low, high = ConfidenceCalibrator().fit(score[:n], right[:n]).interval(score[500:]).T
        assert low.mean() - 0.04 < right[500:].mean() < high.mean() + 0.04  # two standard errors of a base rate at 500
        width.append(np.mean(high - low))
    assert width[1] < width[0] / 2


def test_it_works_with_scikit_learns_model_selection() -> None:
    score, right = scored(200, missing=0.1)
    for scoring in ("neg_log_loss", "neg_brier_score", "roc_auc"):
        assert np.isfinite(cross_val_score(ConfidenceCalibrator(), score[:, None], right, scoring=scoring)).all()
    grid = {"C": [0.01, 1.0], "venn_abers": [True, False]}
    search = GridSearchCV(ConfidenceCalibrator(), grid, scoring="neg_log_loss").fit(score[:, None], right)
    assert search.best_params_["C"] == 1.0
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_it_survives_json() -> None:
    for n, missing in ((10, 0.0), (300, 0.2)):
        score, right = scored(n, missing=missing)
        fitted = ConfidenceCalibrator(C=0.5).fit(score, right)
        back = ConfidenceCalibrator.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False)))
        new = np.append(score, [0.0, -1e9, np.nan])
        assert np.array_equal(back.predict_proba(new), fitted.predict_proba(new))
        assert np.array_equal(back.interval(new), fitted.interval(new))
        assert np.array_equal(back.predict(new), fitted.predict(new))
        assert back.to_weight("a") == fitted.to_weight("a")
        assert back.get_params() == fitted.get_params()
        assert back.to_dict() == fitted.to_dict()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("classes", [0]),
        ("rate", [0.5, 0.4, float("nan")]),
        ("rate", [0.5, 0.4, 1.2]),
        ("steps", {"edge": [1.0, 0.0], "low": [0.1] * 5, "high": [0.2] * 5}),
        ("steps", {"edge": [0.0], "low": [0.1], "high": [0.2]}),
        ("steps", {"edge": [], "low": [0.3], "high": [0.2]}),
        ("platt", {"bias": float("inf"), "slope": 1.0, "missing": 0.0}),
        ("platt", {"bias": "0", "slope": 1.0, "missing": 0.0}),
        ("more", 1),
    ],
)
def test_a_document_that_is_none_is_refused_by_name(field: str, value: object) -> None:
    document = ConfidenceCalibrator().fit(*scored(60)).to_dict() | {field: value}
    with pytest.raises(Misuse, match=field):
        ConfidenceCalibrator.from_dict(document)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "score", "right", "says"),
    [
        ({}, [0.1, np.inf], [0, 1], "infinity"),
        ({}, [[0.1, 0.2], [0.3, 0.4]], [0, 1], "one score an answer"),
        ({}, [0.1, 0.2], [0, np.nan], "ungraded"),
        ({}, [0.1, 0.2, 0.3], [0, 1, 2], "Only binary"),
        ({}, [0.1, 0.2], [0.5, 1.5], "Unknown label type"),
        ({}, [0.1, 0.2], [0, 1, 1], "2 scores for 3 grades"),
        ({"scale": "probability"}, [0.1, 1.2], [0, 1], "run from 0.1 to 1.2"),
        ({"scale": "logprob"}, [-1.0, 0.2], [0, 1], "which are none"),
        ({"scale": "percent"}, [0.1, 0.2], [0, 1], "percent"),
    ],
)
def test_misuse_says_what_to_do(options: dict, score: object, right: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ConfidenceCalibrator(**options).fit(score, right)


def test_on_recorded_confidences_the_mean_is_as_good_as_platt_and_better_than_isotonic(shared: Path) -> None:
    gaps = []
    for name in ("cascade_mmlu", "cascade_medmcqa"):
        for _, rows in pd.read_parquet(shared / f"{name}.parquet").groupby("arm"):
            score, right = rows.confidence.to_numpy(float), rows.score.to_numpy(float)
            for seed in range(2):
                order = np.random.default_rng(seed).permutation(len(rows))
                known, new = order[:100], order[100:]
                fitted = ConfidenceCalibrator().fit(score[known], right[known])
                isotonic = IsotonicRegression(out_of_bounds="clip").fit(score[known], right[known])
                p = (
                    fitted.predict_proba(score[new])[:, 1],
                    expit(fitted.weight_(score[new])),
                    isotonic.predict(score[new]),
                )
                gaps.append([f(q, right[new])[0] for f in (brier, log_loss) for q in p])
    mean, platt, isotonic_, loss, platt_loss, isotonic_loss = np.mean(gaps, axis=0)
    assert mean < platt + 0.001
    assert loss < platt_loss + 0.003
    assert mean < isotonic_ - 0.004
    assert loss < isotonic_loss - 0.04
