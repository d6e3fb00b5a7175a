"""Raw scores become probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from playcall.calibration import fit_weight, scale_of


@pytest.mark.parametrize(
    ("scores", "scale"),
    [([-3.0, -0.1, 0.0], "logprob"), ([0.2, 0.9, 1.0], "probability"), ([1.0, 7.0], "raw"), ([np.nan], "raw")],
)
def test_the_scale_is_read_off_the_scores(scores: list[float], scale: str) -> None:
    assert scale_of(np.array(scores)) == scale


def test_a_logistic_truth_is_recovered() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.02, 0.98, 20_000)
    right = (rng.random(p.size) < expit(0.5 + 0.7 * logit(p))).astype(float)
    weight = fit_weight("a", p, right)
    assert weight.scale == "probability"
    assert (weight.bias, weight.slope) == (pytest.approx(0.5, abs=0.05), pytest.approx(0.7, abs=0.05))


@pytest.mark.parametrize("score", [np.full(100, np.nan), np.full(100, 0.5)])
def test_without_a_telling_score_the_accuracy_stands_in(score: np.ndarray) -> None:
    weight = fit_weight("a", score, np.repeat([1.0, 0.0], [79, 21]))
    assert weight.slope == 0
    assert expit(weight.bias) == pytest.approx(80 / 102)  # one right and one wrong answer are added


def test_a_missing_score_among_others_counts_as_the_accuracy() -> None:
    rng = np.random.default_rng(1)
    score = rng.random(200)
    right = (rng.random(200) < score).astype(float)
    weight = fit_weight("a", np.append(score, np.nan), np.append(right, 1.0))
    assert weight(np.array([np.nan]))[0] == weight.missing == pytest.approx(logit((right.sum() + 2) / 203))


def test_a_partial_grade_is_that_share_of_a_right_answer() -> None:
    score = np.linspace(0.05, 0.95, 100)
    halves = fit_weight("a", score, np.full(100, 0.5))
    assert halves(score) == pytest.approx(np.zeros(100), abs=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e6, 1e100, 1e299])
def test_huge_raw_scores_give_the_curve_of_the_same_scores_in_other_units(unit: float) -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(size=2_000)
    right = (rng.random(score.size) < expit(0.3 + 2 * score)).astype(float)
    weight = fit_weight("a", score * unit, right)
    assert weight.scale == "raw"
    assert (weight.bias, weight.slope * unit) == (pytest.approx(0.3, abs=0.15), pytest.approx(2, abs=0.2))
