"""Intervals cover as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from playcall.calibration import mean_interval
from playcall.calibration.intervals import quantile_interval, spread_interval, wilson


@pytest.mark.parametrize(("k", "n"), [(0, 10), (7, 10), (10, 10), (3, 400), (399, 400)])
def test_for_right_and_wrong_it_is_wilsons(k: int, n: int) -> None:
    expected = binomtest(k, n).proportion_ci(method="wilson")
    assert mean_interval(np.repeat([1.0, 0.0], [k, n - k]))[1:] == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_it_covers_the_truth_in_about_95_percent_of_samples(p: float) -> None:
    rng = np.random.default_rng(0)
    draws = (rng.random((2000, 200)) < p).astype(float)
    covered = [low <= p <= high for _, low, high in map(mean_interval, draws)]
    assert 0.93 <= np.mean(covered) <= 0.98


def test_a_paired_difference_has_the_variance_of_the_disagreements() -> None:
    values = np.repeat([1.0, 0.0, -1.0], [30, 150, 20])
    mean, low, high = mean_interval(values, bounds=(-1, 1))
    half = 1.959964 * np.sqrt((0.25 - 0.05**2) * 200 / 199 / 200)
    assert (mean, low, high) == (pytest.approx(0.05), pytest.approx(0.05 - half), pytest.approx(0.05 + half))


def test_a_strategy_compared_with_itself_differs_by_nothing() -> None:
    assert mean_interval(np.zeros(50), bounds=(-1, 1)) == (0.0, 0.0, 0.0)


def test_one_changed_item_is_no_certainty() -> None:
    _, low, high = mean_interval(np.eye(1, 50)[0], bounds=(-1, 1))
    assert low < 0 < high


def test_a_cost_is_known_to_two_standard_errors_and_never_below_zero() -> None:
    mean, low, high = spread_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    half = 3.1824 * np.std([1, 2, 3, 4], ddof=1) / 2  # Student's quantile at 3 degrees of freedom
    assert (mean, low, high) == pytest.approx((2.5, max(0, 2.5 - half), 2.5 + half), abs=1e-3)
    assert spread_interval(np.array([0.0, 0.0, 9.0]))[1] == 0


def test_alike_costs_of_a_group_count_once() -> None:
    once = spread_interval(np.array([1.0, 2.0, 4.0]))
    thrice = spread_interval(np.repeat([1.0, 2.0, 4.0], 5), np.repeat(list("abc"), 5).tolist())
    assert thrice == pytest.approx(once)


def test_the_interval_of_a_quantile_holds_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    truth = -np.log(0.05)
    ends = [quantile_interval(rng.exponential(1, 200), 0.95)[1:] for _ in range(1000)]
    assert 0.93 <= np.mean([low <= truth <= high for low, high in ends]) <= 0.98


def test_an_interval_holds_its_mean_whatever_is_rounded() -> None:
    for n in range(1, 400):
        for value in (0.0, 1.0):
            mean, low, high = mean_interval(np.full(n, value), inflation=1.4)
            assert low <= mean <= high
            low, high = wilson(value, n)
            assert low <= value <= high
