"""What the page draws beside a comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.portfolio.made import made

from playcall.calibration import ConfidenceCalibrator, brier, log_loss, out_of_fold
from playcall.evals.diagrams import calibrations, clusters
from playcall.strategies import Draws


def test_confidences_are_judged_out_of_fold() -> None:
    recording = made({"a": 0.7, "b": 0.8}, tasks=120)
    found = calibrations(recording)
    assert [c.arm for c in found] == ["a", "b"]
    d = recording["a"]
    p = out_of_fold(ConfidenceCalibrator(), d.score.ravel(), d.quality.ravel(), groups=np.arange(120))
    assert found[0].brier == brier(p, d.quality.ravel())
    assert found[0].log_loss == log_loss(p, d.quality.ravel())
    assert found[0].answers == sum(found[0].diagram.count) == 120


def test_all_draws_of_a_task_and_all_tasks_of_a_group_are_held_out_together() -> None:
    rng = np.random.default_rng(0)
    d = made({"a": 0.5}, tasks=40, telling=False)["a"]
    right = np.repeat(rng.integers(0, 2, (40, 1)).astype(float), 10, axis=1)
    score = np.repeat(rng.random((40, 1)), 10, axis=1)  # tells the task, and so the grade, but only of tasks seen
    other = (np.repeat(x, 10, axis=1) for x in (d.failed, d.price, d.latency))
    alike = {"a": Draws(np.repeat(d.answer, 10, axis=1), score, *other, right)}
    recording = replace(made({"a": 0.5}, tasks=40), arms=alike)
    for groups, task in (((), np.arange(40)), (tuple("abcdefgh" * 5), np.tile(np.arange(8), 5))):
        (found,) = calibrations(replace(recording, groups=groups))
        p = out_of_fold(ConfidenceCalibrator(), score.ravel(), right.ravel(), groups=np.repeat(task, 10))
        assert found.brier == brier(p, right.ravel())


def test_arms_with_few_or_no_confidences_are_left_out() -> None:
    assert calibrations(made({"a": 0.7, "b": 0.8}, telling=False)) == ()
    assert calibrations(made({"a": 0.7}, tasks=49)) == ()
    assert len(calibrations(made({"a": 0.7}, tasks=50))) == 1
    grouped = replace(made({"a": 0.7}, tasks=60), groups=("one", "two", "three", "four") * 15)
    assert calibrations(grouped) == ()  # four groups make no five folds


def test_clusters_hold_what_fails_together_on_average() -> None:
    def alike(r: float) -> dict[str, dict[str, float]]:
        return {a: {b: 1.0 if a == b else r if {a, b} == {"a", "c"} else 0.1 for b in "abc"} for a in "abc"}

    assert sorted(map(sorted, clusters(alike(0.51), "abc"))) == [["a", "c"], ["b"]]
    assert sorted(map(sorted, clusters(alike(0.49), "abc"))) == [["a"], ["b"], ["c"]]
    assert clusters({"a": {"a": 1.0}}, ["a"]) == (("a",),)
    assert clusters({}, []) == ()


def test_the_arms_asked_for_are_judged_alone() -> None:
    recording = made({"a": 0.7, "b": 0.8}, tasks=60)
    assert [c.arm for c in calibrations(recording, ["b"])] == ["b"]
    with pytest.raises(Exception, match="not recorded"):
        calibrations(recording, ["z"])
