"""Tasks of one group are alike, and an interval that takes them for independent is too sure."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from playcall.calibration import mean_interval
from playcall.calibration.clusters import grouped_interval
from playcall.strategies import Misuse

NAMES = [str(g) for g in np.repeat(np.arange(30), 10)]


@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
def test_it_covers_the_truth_with_30_groups_of_10_alike_items_where_the_plain_one_fails(p: float) -> None:
    """Groups' rates are beta with a correlation of 0.5 between items of a group."""
    rng = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(600):
        values = (rng.random(300) < np.repeat(rng.beta(p, 1 - p, 30), 10)).astype(float)
        for i, (_, low, high) in enumerate((grouped_interval(values, NAMES), mean_interval(values))):
            covered[i] += low <= p <= high
    assert covered[0] / 600 > 0.925
    assert covered[1] / 600 < 0.7


def test_it_covers_a_paired_difference_of_alike_items_where_the_plain_one_fails() -> None:
    rng = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(600):
        values = np.repeat(rng.choice([-1.0, 0.0, 1.0], 30, p=[0.15, 0.7, 0.15]), 10) * (rng.random(300) < 0.8)
        grouped, plain = grouped_interval(values, NAMES, bounds=(-1, 1)), mean_interval(values, bounds=(-1, 1))
        for i, (_, low, high) in enumerate((grouped, plain)):
            covered[i] += low <= 0 <= high
    assert 0.925 < covered[0] / 600 < 0.985
    assert covered[1] / 600 < 0.7


def test_groups_of_one_item_give_nearly_the_interval_of_independent_items() -> None:
    values = np.repeat([1.0, 0.0], [210, 90])
    alone = [str(i) for i in range(300)]
    assert grouped_interval(values, alone) == pytest.approx(mean_interval(values), abs=1e-3)
    differences = np.repeat([1.0, 0.0, -1.0], [30, 250, 20])
    got = grouped_interval(differences, alone, bounds=(-1, 1))
    assert got == pytest.approx(mean_interval(differences, bounds=(-1, 1)), abs=2e-3)


def test_whole_groups_that_differ_have_the_interval_of_as_many_items() -> None:
    """20 groups of 7, each all +1 or all -1: the ratio estimator is the mean of 20 values, and Student's is exact."""
    each = np.repeat([1.0, -1.0], [11, 9])
    mean, low, high = grouped_interval(
        np.repeat(each, 7), [str(g) for g in np.repeat(np.arange(20), 7)], bounds=(-1, 1)
    )
    half = t.ppf(0.975, 19) * each.std(ddof=1) / np.sqrt(20)
    assert (mean, low, high) == (pytest.approx(0.1), pytest.approx(0.1 - half), pytest.approx(0.1 + half))


def test_all_right_in_few_groups_is_less_sure_than_in_many() -> None:
    few, many = (grouped_interval(np.ones(300), [str(i % g) for i in range(300)])[1] for g in (10, 150))
    assert few < 0.72 < 0.97 < many < 1


def test_one_group_says_nothing_and_no_difference_is_none() -> None:
    assert grouped_interval(np.array([1.0, 0.0]), ["a", "a"]) == (0.5, 0.0, 1.0)
    assert grouped_interval(np.zeros(9), [*"aaabbbccc"], bounds=(-1, 1)) == (0.0, 0.0, 0.0)


def test_every_value_needs_a_group() -> None:
    with pytest.raises(Misuse, match="2 groups for 3 values"):
        grouped_interval(np.ones(3), ["a", "b"])


def test_twice_the_variance_is_half_the_groups() -> None:
    each = np.repeat([1.0, 0.0, -1.0], [6, 8, 6])
    names = [str(g) for g in np.repeat(np.arange(20), 5)]
    (_, low, high), (_, least, most) = (
        grouped_interval(np.repeat(each, 5), names, bounds=(-1, 1), inflation=i) for i in (1.0, 2.0)
    )
    assert (most - least) / (high - low) == pytest.approx(2**0.5)
    low, least = (grouped_interval(np.ones(100), names, inflation=i)[1] for i in (1.0, 2.0))
    assert least < low < 1


@pytest.mark.parametrize("wrong", [0, 1, 7])
def test_groups_of_one_item_are_no_groups(wrong: int) -> None:
    values = np.repeat([0.0, 1.0], [wrong, 60 - wrong])
    assert grouped_interval(values, [str(i) for i in range(60)], inflation=1.4) == mean_interval(values, inflation=1.4)
