"""The learning curve: honest about tasks, and about which of them were labelled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from playcall.portfolio import Target, choose, search
from playcall.portfolio.curve import learning_curve, spread, subsets
from playcall.strategies import Explain, Misuse, outcomes

from .made import made

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}
RECORDING = made(ARMS, tasks=120)
TARGET = Target(max_share=0.6)


def test_a_point_is_the_mean_of_what_subsets_choose_on_the_tasks_that_they_lack() -> None:
    (point,) = learning_curve(RECORDING, TARGET, [30], runs=3, seed=5)
    qualities, costs, words = [], [], []
    for train in subsets(RECORDING, 30, 3, np.random.default_rng(5)):
        known, rest = RECORDING.take(train), RECORDING.take(~train)
        assert (len(known), len(rest)) == (30, 90)
        strategy = choose(search(known), known, TARGET).strategy
        came = outcomes(strategy, rest)
        qualities.append(came.quality.mean())
        costs.append(came.cost.mean() / 1e9)
        words.append(Explain()(strategy))
    assert point.quality == pytest.approx(np.mean(qualities))
    assert point.cost_per_task == pytest.approx(np.mean(costs))
    assert point.words in words
    assert (point.labels, point.runs) == (30, 3)
    assert point.quality_low < point.quality < point.quality_high
    assert point.difference_low < point.difference < point.difference_high


def test_it_is_the_same_for_the_same_seed_and_leaves_out_sizes_above_the_data() -> None:
    first, again = (learning_curve(RECORDING, TARGET, [40, 20, 120, 500], runs=2) for _ in range(2))
    assert first == again
    assert [p.labels for p in first] == [20, 40]
    assert learning_curve(RECORDING, TARGET, [120]) == ()


def test_groups_stay_whole() -> None:
    grouped = replace(RECORDING, groups=tuple(f"g{i // 8}" for i in range(120)))
    for train in subsets(grouped, 40, 5, np.random.default_rng(0)):
        assert train.sum() == 40
        assert all(part.all() or not part.any() for part in train.reshape(15, 8))
    (point,) = learning_curve(grouped, TARGET, [40], runs=2)
    assert point.labels == 40


def test_without_labelled_subsets_that_differ_the_error_is_that_of_a_mean_over_tasks() -> None:
    task = np.random.default_rng(0).random(50)
    graded = np.ones((4, 50), bool)
    mean, error = spread(np.tile(task, (4, 1)), graded)
    assert mean == pytest.approx(task.mean())
    assert error == pytest.approx(task.std(ddof=1) / np.sqrt(50))


def test_copies_of_a_task_in_one_group_make_nothing_surer() -> None:
    task = np.random.default_rng(0).random(50)
    _, error = spread(np.tile(task, (4, 1)), np.ones((4, 50), bool))
    _, doubled = spread(
        np.tile(np.repeat(task, 2), (4, 1)), np.ones((4, 100), bool), np.repeat(np.arange(50), 2).astype(str)
    )
    assert doubled == pytest.approx(error)


def test_the_error_is_that_of_tables_drawn_anew() -> None:
    """Play quality = mean of a trait of the labelled tasks + ease of the graded task; both are drawn with the table."""
    rng = np.random.default_rng(0)
    came = []
    for _ in range(400):
        trait, ease = rng.normal(0, 0.5, 60), rng.normal(0, 0.3, 60)
        trains = np.stack([np.isin(np.arange(60), rng.permutation(60)[:30]) for _ in range(5)])
        values = (trains * trait).sum(axis=1, keepdims=True) / 30 + ease
        came.append(spread(values, ~trains))
    means, errors = np.array(came).T
    assert 0.9 < np.sqrt((errors**2).mean()) / means.std() < 1.25


def test_too_few_labels_or_runs_are_refused() -> None:
    with pytest.raises(Misuse, match="10 or more labels"):
        learning_curve(RECORDING, TARGET, [5])
    with pytest.raises(Misuse, match="2 or more runs"):
        learning_curve(RECORDING, TARGET, [50], runs=1)


def test_progress_is_told() -> None:
    told = list[tuple[str, int, int]]()
    learning_curve(RECORDING, TARGET, [20], runs=2, progress=lambda *step: told.append(step))
    assert [step[1:] for step in told] == [(1, 2), (2, 2)]


def test_what_is_always_right_on_few_tasks_is_not_sure_to_be() -> None:
    easy = made({"small": 1.0, "large": 1.0}, tasks=24)
    (point,) = learning_curve(easy, labels=[20], runs=3, seed=0)
    assert (point.quality, point.quality_high) == (1, 1)
    assert 0.3 < point.quality_low < 0.8  # of the 4 to 12 tasks that were graded: Wilson's .51 to .76, as rows of ones
