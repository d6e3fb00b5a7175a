"""How good probabilities are, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest
from sklearn import metrics

from playcall.calibration import ConfidenceCalibrator, auroc, brier, log_loss, out_of_fold, reliability
from playcall.strategies import Misuse


def calibrated(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(4, 1, n)
    return p, (rng.random(n) < p).astype(float)


def test_they_are_scikit_learns_figures() -> None:
    p, y = calibrated(500)
    assert brier(p, y)[0] == pytest.approx(metrics.brier_score_loss(y, p))
    assert log_loss(p, y)[0] == pytest.approx(metrics.log_loss(y, p))
    assert auroc(p, y) == pytest.approx(metrics.roc_auc_score(y, p))


def test_a_fraction_is_that_share_of_a_right_answer() -> None:
    p = np.array([0.2, 0.7, 0.9])
    y = np.array([0.5, 0.5, 1.0])
    twice, both = np.repeat(p, 2), np.array([0.0, 1, 0, 1, 1, 1])
    assert log_loss(p, y)[0] == pytest.approx(log_loss(twice, both)[0])
    assert auroc(p, y) == pytest.approx(auroc(twice, both))


def test_a_reliability_diagram_has_bins_of_equal_mass() -> None:
    p, y = calibrated(1000)
    table = reliability(p, y)
    assert table.count == (100,) * 10
    assert np.all(np.diff(table.predicted) > 0)
    last = p >= np.sort(p)[-100]
    wilson = binomtest(int(y[last].sum()), 100).proportion_ci(method="wilson")
    assert (table.low[-1], table.high[-1]) == (pytest.approx(wilson.low), pytest.approx(wilson.high))
    inside = [low <= q <= high for low, q, high in zip(table.low, table.predicted, table.high)]
    assert sum(inside) >= 8  # P(Bin(10, .95) < 8) is 1%


def test_equal_probabilities_share_a_bin() -> None:
    p = np.repeat([0.3, 0.9], [25, 75])
    table = reliability(p, np.ones(100))
    assert (table.predicted, table.count) == (pytest.approx((0.3, 0.9)), (25, 75))


def test_the_interval_of_log_loss_misses_no_more_above_than_below() -> None:
    def sharp(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        p = rng.beta(8, 0.5, n)  # nearly certain, and now and then wrong
        return p, (rng.random(n) < p).astype(float)

    truth = log_loss(*sharp(1_000_000, seed=0))[0]
    _, low, high = np.array([log_loss(*sharp(200, seed)) for seed in range(1, 1001)]).T
    assert np.mean(truth < low) <= 0.045  # 2.5%, and four standard errors
    assert np.mean(truth > high) <= 0.045


def test_one_wrong_certainty_is_not_infinite() -> None:
    mean, low, high = log_loss([1.0, 0.9], [0.0, 1.0])
    assert mean == pytest.approx((-np.log(1e-6) - np.log(0.9)) / 2)
    assert 0 < low < mean < high < np.inf


def test_held_out_predictions_do_not_know_their_own_grades() -> None:
    rng = np.random.default_rng(0)
    score, right = rng.random(60), np.tile([0.0, 1.0], 30)
    p = out_of_fold(ConfidenceCalibrator(), score, right)
    flipped = out_of_fold(ConfidenceCalibrator(), score, np.where(np.arange(60) == 7, 1 - right, right))
    assert p[7] == flipped[7]
    assert not np.array_equal(p, flipped)
    assert np.array_equal(p, out_of_fold(ConfidenceCalibrator(), score, right))


def test_answers_to_one_task_are_held_out_together() -> None:
    rng = np.random.default_rng(0)
    score, right, task = rng.random(60), np.repeat(rng.random(20) < 0.5, 3).astype(float), np.repeat(np.arange(20), 3)
    p = out_of_fold(ConfidenceCalibrator(), score, right, groups=task)
    flipped = out_of_fold(ConfidenceCalibrator(), score, np.where(task == 5, 1 - right, right), groups=task)
    assert np.array_equal(p[task == 5], flipped[task == 5])


def test_a_fitted_curve_is_reliable_where_the_raw_score_is_not() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(1, 1, 600)
    score, right = expit(3 * x), (rng.random(600) < expit(x)).astype(float)  # three times too sure
    p = out_of_fold(ConfidenceCalibrator(), score, right)
    assert log_loss(p, right)[2] < log_loss(score, right)[1]


@pytest.mark.parametrize(
    ("probability", "right", "says"),
    [([0.5, 1.2], [0, 1], "probability is 1.2"), ([0.5], [np.nan], "grade is nan"), ([], [], "one of each")],
)
def test_misuse_says_what_to_do(probability: list[float], right: list[float], says: str) -> None:
    for figure in (brier, log_loss, auroc, reliability):
        with pytest.raises(Misuse, match=says):
            figure(probability, right)
