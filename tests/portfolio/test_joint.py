"""The joint model of failures: what it must be on data whose law is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri
from scipy.stats import beta, multivariate_normal
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from playcall.portfolio.joint import JointFailure, bivariate, orthant, rate_interval, tetrachoric
from playcall.strategies import Misuse
from playcall.strategies.panel import Floats

from .made import made


@pytest.mark.filterwarnings("ignore:.*clipped")
@parametrize_with_checks([JointFailure()])
def test_it_is_a_scikit_learn_estimator(estimator: JointFailure, check: Any) -> None:
    check(estimator)


def normals(rho: float, n: int, arms: int = 5, fail: float = 0.3, seed: int = 0) -> Floats:
    """Grades whose failures follow a Gaussian copula with one correlation."""
    rng = np.random.default_rng(seed)
    z = np.sqrt(rho) * rng.normal(size=(n, 1)) + np.sqrt(1 - rho) * rng.normal(size=(n, arms))
    return np.asarray(z >= ndtri(fail), dtype=float)


@pytest.mark.parametrize("rho", [-0.95, -0.5, 0.0, 0.4, 0.9])
def test_the_bivariate_normal_agrees_with_scipy(rho: float) -> None:
    h, k = np.array([-1.5, 0.3, 2.0]), np.array([-0.2, 0.3, -1.0])
    theirs = [multivariate_normal([0, 0], [[1, rho], [rho, 1]]).cdf(x) for x in np.stack([h, k], axis=1)]
    assert bivariate(h, k, np.full(3, rho)) == pytest.approx(theirs, abs=1e-6)


def test_three_arms_at_chance_have_the_closed_form_orthant() -> None:
    r = np.array([[1, 0.5, 0.2], [0.5, 1, -0.1], [0.2, -0.1, 1]])
    exact = 1 / 8 + np.arcsin([0.5, 0.2, -0.1]).sum() / (4 * np.pi)  # Sheppard 1899
    assert orthant(np.zeros(3), r) == pytest.approx(exact, abs=2e-4)


def test_equicorrelated_arms_all_fail_in_one_of_k_plus_one() -> None:
    for k in (4, 9):  # correlation 1/2 and thresholds 0: k + 1 exchangeable normals, of which one is the greatest
        assert orthant(np.zeros(k), np.full((k, k), 0.5) + 0.5 * np.eye(k)) == pytest.approx(1 / (k + 1), abs=1e-3)


def test_the_tetrachoric_correlation_is_recovered() -> None:
    R = tetrachoric(1 - normals(0.4, 20_000))
    assert R[np.triu_indices(5, 1)].mean() == pytest.approx(0.4, abs=0.02)


def test_shared_failures_are_not_priced_as_independent() -> None:
    scores = normals(0.6, 400)
    new = 1 - normals(0.6, 20_000, seed=1)
    model, truth = JointFailure().fit(scores), new.prod(axis=1).mean()
    assert model.joint_prob(range(5)) == pytest.approx(truth, abs=0.03)
    assert np.prod(model.location_) < truth / 10


def test_the_blend_lies_between_what_was_seen_and_the_copula() -> None:
    scores = normals(0.5, 60)
    seen = (1 - scores)[:, :3].prod(axis=1).mean()
    copula = JointFailure(kappa=1e9).fit(scores).joint_prob([0, 1, 2])
    assert JointFailure(kappa=0).fit(scores).joint_prob([0, 1, 2]) == pytest.approx(seen)
    assert JointFailure(kappa=60).fit(scores).joint_prob([0, 1, 2]) == pytest.approx((seen + copula) / 2)


def test_a_larger_set_fails_together_no_more_often() -> None:
    model = JointFailure().fit(normals(0.3, 100))
    chances = [model.joint_prob(range(k)) for k in range(6)]
    assert chances[0] == 1
    assert all(a >= b - 1e-3 for a, b in pairwise(chances))


def test_full_shrinkage_leaves_one_correlation() -> None:
    R = JointFailure(shrink=1e12).fit(normals(0.4, 80)).correlation_
    assert np.ptp(R[np.triu_indices(5, 1)]) < 1e-6


def test_a_clone_neither_raises_the_ceiling_nor_breaks_the_correlations() -> None:
    scores = normals(0.4, 100)
    twice = np.column_stack([scores, scores[:, 0]])
    model = JointFailure().fit(twice)
    assert model.ceiling_ == JointFailure().fit(scores).ceiling_
    assert np.linalg.eigvalsh(model.correlation_).min() > 0
    assert model.correlation_[0, 5] > 0.75


def test_the_ceiling_comes_with_clopper_and_pearsons_interval() -> None:
    scores = np.ones((50, 3))
    scores[:2] = 0
    model = JointFailure().fit(scores)
    assert model.all_fail_ == pytest.approx(0.04)
    assert model.ceiling_ == pytest.approx(0.96)
    assert model.all_fail_interval_ == pytest.approx((beta.ppf(0.025, 2, 49), beta.ppf(0.975, 3, 48)))


def test_with_no_failure_at_all_nothing_is_certain() -> None:
    model = JointFailure().fit(np.ones((30, 2)))
    assert model.all_fail_interval_[1] == pytest.approx(1 - 0.025 ** (1 / 30))
    assert np.isfinite(model.score(np.ones((5, 2))))


def test_the_interval_of_shares_covers_and_is_wider_than_that_of_whole_failures() -> None:
    rng = np.random.default_rng(0)
    hits = [low <= 0.2 <= high for low, high in (rate_interval(rng.beta(1, 4, 60)) for _ in range(200))]
    assert np.mean(hits) >= 0.95
    shares = rate_interval(np.append(np.zeros(49), 0.999))
    whole = rate_interval(np.append(np.zeros(49), 1.0))
    assert shares[1] > whole[1]


def test_the_score_prefers_the_right_correlations() -> None:
    train, test = normals(0.6, 300), normals(0.6, 300, seed=1)
    shuffled = np.column_stack([np.random.default_rng(i).permutation(x) for i, x in enumerate(train.T)])
    assert JointFailure().fit(train).score(test) > JointFailure().fit(shuffled).score(test) + 0.05


def test_kappa_can_be_chosen_by_cross_validation() -> None:
    found = GridSearchCV(JointFailure(), {"kappa": [0.0, 100.0]}, cv=3).fit(normals(0.5, 60))
    assert found.best_params_["kappa"] == 100.0


def test_arms_may_be_named() -> None:
    scores = pd.DataFrame(normals(0.5, 40, arms=3), columns=["a", "b", "c"])
    model = JointFailure().fit(scores)
    assert model.joint_prob(["a", "c"]) == model.joint_prob([0, 2])
    with pytest.raises(Misuse, match="'d'"):
        model.joint_prob(["d"])
    with pytest.raises(Misuse, match="twice"):
        model.joint_prob(["a", 0])


def test_percentages_are_not_taken_for_shares_in_silence() -> None:
    with pytest.warns(UserWarning, match=r"0 to 87\.5"):
        JointFailure().fit([[87.5, 0.0], [12.0, 50.0], [3.0, 4.0]])


def test_parameters_are_checked_when_fitting() -> None:
    with pytest.raises(Misuse, match="kappa=-1"):
        JointFailure(kappa=-1).fit(normals(0.5, 20))
    with pytest.raises(Misuse, match=r"not a Recording; give np\.stack"):
        JointFailure().fit(made({"a": 0.5, "b": 0.6}, tasks=9))  # type: ignore[arg-type]
