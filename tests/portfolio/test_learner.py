"""PortfolioLearner: an estimator like any other, whose samples are tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks

from playcall.portfolio import Infeasible, Policy, Target, fit
from playcall.portfolio.learner import PortfolioLearner
from playcall.strategies import Ask, Misuse, Replay, arms_of, outcomes

from .made import made

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}
RECORDING = made(ARMS, tasks=120)


@pytest.mark.filterwarnings("ignore:PortfolioLearner.*clipped")
@parametrize_with_checks([PortfolioLearner(folds=2), PortfolioLearner(folds=2, fallback="one_se")])
def test_it_keeps_scikit_learns_contract(estimator: PortfolioLearner, check) -> None:  # type: ignore[no-untyped-def]
    """No check is expected to fail."""
    check(estimator)


@pytest.fixture(scope="module")
def learner() -> PortfolioLearner:
    return PortfolioLearner(max_share=0.6, folds=2).fit(RECORDING)


def test_its_policy_is_the_one_that_fit_learns(learner: PortfolioLearner) -> None:
    assert learner.best_policy_ == fit(RECORDING, Target(max_share=0.6), folds=2)
    assert learner.optimism_ == learner.study_.optimism
    assert list(learner.feature_names_in_) == list(ARMS)
    assert learner.n_features_in_ == 3


def test_its_parameters_are_the_targets_and_survive_a_clone(learner: PortfolioLearner) -> None:
    asked = {"max_cost": 1.0, "min_quality": 0.5, "max_latency": 9.0, "max_latency_p95": 20.0}
    other = {"max_share": 0.5, "max_drop": 0.1, "cost_weight": 2.0, "latency_weight": 3.0}
    for parameters in (asked, other):
        assert clone(PortfolioLearner(**parameters, folds=3)).target == Target(**parameters)
    assert clone(learner).get_params() == learner.get_params()
    assert set(vars(Target())) <= set(learner.get_params())


def test_it_predicts_the_answers_that_the_policy_puts_out(learner: PortfolioLearner) -> None:
    new = made(ARMS, tasks=50, seed=4)
    panel = Replay(new)(learner.best_policy_.strategy)
    said = [new.texts[panel.answer[i, panel.output[i]]] for i in range(50)]
    assert learner.predict(new).tolist() == said
    assert learner.score(new) == outcomes(learner.best_policy_.strategy, new).quality.mean()


def test_no_answer_is_none() -> None:
    learner = PortfolioLearner(folds=2).fit(RECORDING.only(["large"]))
    d = RECORDING["large"]
    mute = replace(RECORDING, arms={"large": replace(d, failed=np.arange(120)[:, None] < 3, quality=d.quality * 0)})
    assert [x is None for x in learner.predict(mute)[:5]] == [True] * 3 + [False] * 2
    with pytest.raises(Misuse, match="no answers"):
        learner.predict(replace(mute, texts=()))


def test_with_weights_the_score_is_the_utility() -> None:
    learner = PortfolioLearner(cost_weight=10.0, latency_weight=0.01, folds=2).fit(RECORDING.take(np.arange(50)))
    o = outcomes(learner.best_policy_.strategy, RECORDING)
    assert learner.score(RECORDING) == pytest.approx(
        o.quality.mean() - 10 * o.cost.mean() / 1e9 - 0.01 * o.latency.mean() / 1e6
    )


def test_the_frontier_and_the_candidates_are_tables(learner: PortfolioLearner) -> None:
    points = learner.study_.frontier
    assert isinstance(learner.frontier_, pd.DataFrame)
    assert learner.frontier_.quality.tolist() == [p.figures.quality for p in points]
    assert learner.frontier_.words.tolist() == [p.words for p in points]
    results = learner.cv_results_
    assert {len(column) for column in results.values()} == {len(points) + len(learner.study_.baselines)}
    best = results["rank_test_quality"] == 1
    assert results["mean_test_quality"][best] == pytest.approx(results["mean_test_quality"].max())
    assert results["mean_test_quality"][results["kind"] == "policy"] == [learner.best_policy_.figures.quality]


def test_recordings_go_through_cross_validation_and_grid_search() -> None:
    learner, few = PortfolioLearner(max_share=0.6, folds=2), RECORDING.only(["small", "large"]).take(np.arange(60))
    by_hand = [
        clone(learner).fit(few.take(train)).score(few.take(test)) for train, test in KFold(2).split(np.arange(60))
    ]
    assert cross_val_score(learner, few, cv=2).tolist() == by_hand
    grouped = GroupKFold(2).split(few, groups=np.arange(60) // 5)
    assert all(len(few[train, ...]) == 30 for train, _ in grouped)
    search = GridSearchCV(learner, {"max_share": [0.1, 0.6]}, cv=2).fit(few)
    assert search.best_params_ == {"max_share": 0.6}
    assert search.predict(few).shape == (60,)
    assert search.n_features_in_ == 2
    assert [len(part) for part in train_test_split(RECORDING, test_size=30, random_state=0)] == [90, 30]


def test_of_grades_it_chooses_the_best_arm_as_it_does_of_a_recording() -> None:
    grades = np.column_stack([d.quality[:, 0] for d in RECORDING.arms.values()])
    bare = replace(
        RECORDING,
        texts=(),
        arms={a: replace(d, priced=False, score=d.score * np.nan) for a, d in RECORDING.arms.items()},
    )
    table = PortfolioLearner(folds=3).fit(grades)
    assert table.best_policy_.strategy == Ask("2")
    assert table.predict(grades).tolist() == [2] * 120
    assert table.score(grades) == grades[:, 2].mean()
    named = PortfolioLearner(folds=3).fit(pd.DataFrame(grades, columns=list(ARMS)))
    recorded = PortfolioLearner(folds=3).fit(bare)
    assert named.best_policy_.strategy == recorded.best_policy_.strategy == Ask("large")
    assert named.best_policy_.figures.quality == recorded.best_policy_.figures.quality
    assert list(named.feature_names_in_) == list(ARMS)


def test_grades_beyond_their_range_are_clipped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="clipped"):
        PortfolioLearner(folds=2).fit(np.array([[1.0, 2.0], [0.0, 5.0], [1.0, 3.0]]))


def test_other_prices_and_new_arms_need_no_new_calls(learner: PortfolioLearner) -> None:
    few = RECORDING.only(["small", "large"]).take(np.arange(60))
    other = clone(learner).fit(few).reprice({"large": 0.1})
    assert other.recording_["large"].price.mean() == pytest.approx(1e8)
    assert other.best_policy_ == clone(learner).fit(few.reprice({"large": 0.1})).best_policy_
    better = made({"giant": 0.99}, cost={"giant": 0.0005}, tasks=120, seed=0)
    joined = PortfolioLearner(folds=2).fit(few).add_arm(better)
    assert list(joined.feature_names_in_) == ["small", "large", "giant"]
    assert arms_of(joined.best_policy_.strategy) == ("giant",)


def test_the_policy_is_kept_as_json(learner: PortfolioLearner, tmp_path: Path) -> None:
    learner.best_policy_.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json") == learner.best_policy_
    assert json.loads((tmp_path / "policy.json").read_text())["kind"] == "policy"


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(NotFittedError):
        PortfolioLearner().predict(RECORDING)
    with pytest.raises(Misuse, match="fallback='two'"):
        PortfolioLearner(fallback="two").fit(RECORDING)  # type: ignore[arg-type]
    with pytest.raises(Infeasible):
        PortfolioLearner(min_quality=0.9999).fit(RECORDING)
    with pytest.raises(Misuse, match="min_quality"):
        PortfolioLearner(min_quality=2.0).fit(RECORDING)
    with pytest.raises(Misuse, match=r"max_share='0\.5'"):
        PortfolioLearner(max_share="0.5").fit(RECORDING)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="random_state=-1"):
        PortfolioLearner(random_state=-1).fit(RECORDING)


def test_only_a_recording_adds_arms(learner: PortfolioLearner) -> None:
    with pytest.raises(Misuse, match="not ndarray"):
        learner.add_arm(np.ones((9, 1)))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_figures(learner: PortfolioLearner) -> None:
    again = clone(learner).fit(RECORDING)
    assert again.best_policy_ == learner.best_policy_
    pd.testing.assert_frame_equal(again.frontier_, learner.frontier_)
