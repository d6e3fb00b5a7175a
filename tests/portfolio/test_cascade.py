"""CascadeLearner: cascades that stop by one posterior, or by a threshold for each stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from playcall.portfolio import Infeasible, Target, choose
from playcall.portfolio.cascade import CascadeLearner, Chain, _parts, chains
from playcall.portfolio.sweep import staged
from playcall.strategies import (
    Ask,
    AtLeast,
    Belief,
    Draws,
    Gather,
    Keep,
    Misuse,
    OrElse,
    Recording,
    Replay,
    outcomes,
    vote,
)

from .made import made

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}
RECORDING = made(ARMS, tasks=150)


@pytest.mark.filterwarnings("ignore:CascadeLearner.*clipped")
@parametrize_with_checks([CascadeLearner()])
def test_it_keeps_scikit_learns_contract(estimator: CascadeLearner, check) -> None:  # type: ignore[no-untyped-def]
    """No check is expected to fail."""
    check(estimator)


@pytest.mark.parametrize("limits", [{}, {"max_share": 0.5}, {"max_cost": 0.02}, {"max_drop": 0.05}])
def test_with_a_shared_stop_it_chooses_among_the_plays_in_stages(limits: dict[str, float]) -> None:
    learner = CascadeLearner(**limits).fit(RECORDING)
    chosen = choose(staged(RECORDING), RECORDING, Target(**limits))
    assert learner.strategy_ == chosen.strategy
    assert learner.quality_ == chosen.quality
    assert learner.cost_ == pytest.approx(chosen.cost / 1e9)


def test_its_attributes_describe_the_play() -> None:
    learner = CascadeLearner(max_share=0.5).fit(RECORDING)
    play = learner.strategy_
    assert isinstance(play, Keep)
    assert isinstance(play.source, Gather)
    assert play.source.gap == inf
    assert len(learner.stages_) == len(play.source.parts) > 1
    assert learner.arms_ == tuple(a for stage in learner.stages_ for a in stage)
    assert learner.thresholds_.tolist() == [play.source.stop.threshold]  # type: ignore[attr-defined]
    assert learner.belief_ == play.source.stop.belief == play.rule.belief  # type: ignore[attr-defined]
    assert (learner.n_features_in_, list(learner.feature_names_in_)) == (3, list(ARMS))


def test_a_single_call_and_a_vote_have_one_stage_and_no_threshold() -> None:
    single = CascadeLearner(max_calls=1).fit(RECORDING)
    assert (single.strategy_, single.stages_, single.belief_) == (Ask("large"), (("large",),), None)
    assert single.thresholds_.shape == (0,)
    belief = Belief.of(a=1.0, b=2.0)
    assert _parts(vote("a", "b", belief=belief)) == ((("a", "b"),), (), belief)


@pytest.mark.parametrize("stops", ["shared", "per_stage"])
def test_it_makes_no_more_calls_than_it_may(stops: str) -> None:
    for most in (1, 2):
        learner = CascadeLearner(stops=stops, max_calls=most, max_share=3.0).fit(RECORDING)  # type: ignore[arg-type]
        assert len(learner.arms_) == most == outcomes(learner.strategy_, RECORDING).calls.max()


@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_with_a_gap_it_keeps_its_limits_and_is_sooner_done(gap: float) -> None:
    """At 1.9 of the best arm's cost, stages of arms that cost 1/16, 1/4 and 1 can all be started at once."""
    patient = CascadeLearner(max_share=1.9).fit(RECORDING)
    hedged = CascadeLearner(max_share=1.9, gap=gap).fit(RECORDING)
    assert hedged.strategy_.source.gap == gap  # type: ignore[attr-defined]
    slow, fast = (outcomes(x.strategy_, RECORDING) for x in (patient, hedged))
    assert fast.latency.mean() < slow.latency.mean()
    assert hedged.cost_ == fast.cost.mean() / 1e9 <= 1.9 * RECORDING["large"].price.mean() / 1e9
    tight = CascadeLearner(max_share=1.1, gap=gap).fit(RECORDING)
    assert tight.cost_ is not None
    assert tight.cost_ <= 1.1 * RECORDING["large"].price.mean() / 1e9


def test_a_chain_figures_are_those_of_its_replay() -> None:
    """For every chain at every combination; some calls failed, some have no confidence."""
    failed, mute = np.random.default_rng(5).random((2, 150, 1)) < 0.1
    d = RECORDING["small"]
    d = replace(d, failed=failed, quality=np.where(failed, 0.0, d.quality), score=np.where(mute, np.nan, d.score))
    recording = replace(RECORDING.take(np.arange(150)), arms={**RECORDING.arms, "small": d})
    found = [p for p in chains(recording) if isinstance(p, Chain)]
    assert [p.arms for p in found if len(p.arms) == 3] == [("small", "medium", "large")]
    assert len(found) == 7
    for play in found:
        for at in range(0, len(play.levels), 3):
            o = outcomes(play.strategy(at), recording)
            means = (o.quality.mean(), o.cost.mean(), o.latency.mean())
            assert (play.quality[at], play.cost[at], play.latency[at]) == pytest.approx(means)


def test_all_combinations_of_thresholds_are_tried_and_each_further_call_is_charged() -> None:
    found = {p.arms: p for p in chains(RECORDING) if isinstance(p, Chain)}
    whole = found["small", "medium", "large"]
    firsts, seconds = (sorted({t[i] for t in whole.levels}) for i in range(2))
    assert list(whole.levels) == list(product(firsts, seconds))
    assert len(whole.levels) == 49
    dear = made({"a": 1.0, "b": 1.0}, cost={"a": 1e-3, "b": 1e-3}, tasks=60)
    right = {p.arms: p for p in chains(dear)}
    assert right["a", "b"].expected == pytest.approx(right["a",].expected[0] - 0.002)


@pytest.mark.parametrize("seed", range(4))
def test_of_the_luckiest_chain_less_is_expected_than_it_did(seed: int) -> None:
    found = chains(made({"a": 0.7, "b": 0.7, "c": 0.7}, cost=dict.fromkeys("abc", 1e-3), tasks=40, seed=seed))
    luckiest = max(found, key=lambda p: p.quality.max())
    at = int(luckiest.quality.argmax())
    assert luckiest.expected[at] + 0.002 * (len(luckiest.arms) - 1) < luckiest.quality[at] - 0.001


def test_per_stage_it_is_a_chain_with_a_threshold_for_each_stage_but_the_last() -> None:
    learner = CascadeLearner(stops="per_stage", max_share=0.6).fit(RECORDING)
    assert isinstance(learner.strategy_, OrElse)
    assert len(learner.thresholds_) == len(learner.stages_) - 1 > 0
    assert learner.belief_ is None
    assert learner.strategy_.first.rule.threshold == learner.thresholds_[0]  # type: ignore[attr-defined]
    o = outcomes(learner.strategy_, RECORDING)
    assert (learner.quality_, learner.cost_) == (o.quality.mean(), o.cost.mean() / 1e9)
    assert learner.strategy_ == choose(chains(RECORDING), RECORDING, Target(max_share=0.6)).strategy


def boastful(seed: int, tasks: int = 400) -> Recording:
    """Two cheap arms that are right with scores above .3 (the modest one) and above .8 (the boastful one)."""
    rng = np.random.default_rng(seed)
    arms = {}
    for arm, cut, price in (("modest", 0.3, 1), ("boastful", 0.8, 2), ("large", -1.0, 10)):
        score = rng.random(tasks) * (0.6 if arm == "modest" else 0.4) + (0.6 if arm == "boastful" else 0.0)
        right = score >= cut
        columns = (
            right.astype(np.int64),
            score,
            right & False,
            np.full(tasks, price),
            np.ones(tasks, int),
            right * 1.0,
        )
        arms[arm] = Draws(*(np.asarray(c)[:, None] for c in columns))
    return Recording(tuple(map(str, range(tasks))), arms, ("wrong", "right"), name="boastful")


def test_thresholds_per_stage_beat_one_threshold_on_raw_scores_of_different_scales() -> None:
    """At half the large arm's cost, the own thresholds .3 and .8 lose nothing; one for both loses a quarter or more.

    Up to .6 it lets every boast out, half of them wrong; above that no modest answer, and there is money for a fifth of
    the boasts to be asked again.
    """
    known, new = boastful(0), boastful(1)
    learner = CascadeLearner(stops="per_stage", max_share=0.5).fit(known)
    assert learner.arms_ == ("modest", "boastful", "large")
    own = outcomes(learner.strategy_, new)
    unit = new["large"].price.mean()
    quality = []
    for t in np.linspace(0, 1, 101):
        play = (Ask("modest").keep(AtLeast(t)) | Ask("boastful").keep(AtLeast(t))) | Ask("large")
        o = outcomes(play, new)
        if o.cost.mean() <= max(0.5 * unit, own.cost.mean()):
            quality.append(o.quality.mean())
    assert own.quality.mean() > max(quality) + 0.15


@pytest.mark.parametrize("stops", ["shared", "per_stage"])
def test_it_predicts_what_the_cascade_puts_out_and_scores_its_quality(stops: str) -> None:
    learner = CascadeLearner(stops=stops, max_share=0.6).fit(RECORDING)  # type: ignore[arg-type]
    new = made(ARMS, tasks=50, seed=4)
    panel = Replay(new)(learner.strategy_)
    assert learner.predict(new).tolist() == [new.texts[panel.answer[i, panel.output[i]]] for i in range(50)]
    assert learner.score(new) == outcomes(learner.strategy_, new).quality.mean()
    mute = {a: replace(d, failed=np.ones((50, 1), bool), quality=d.quality * 0) for a, d in new.arms.items()}
    assert learner.predict(replace(new, arms=mute)).tolist() == [None] * 50
    with pytest.raises(Misuse, match="no answers"):
        learner.predict(replace(new, texts=()))


def test_recordings_go_through_cross_validation_and_grid_search() -> None:
    few = RECORDING.take(np.arange(60))
    thirds = np.array_split(np.arange(60), 3)
    by_hand = [CascadeLearner().fit(few.take(np.setdiff1d(np.arange(60), t))).score(few.take(t)) for t in thirds]
    assert cross_val_score(CascadeLearner(), few, cv=3).tolist() == by_hand
    grid = {"stops": ["shared", "per_stage"], "max_share": [0.01, 0.6]}
    search = GridSearchCV(CascadeLearner(), grid, cv=2, error_score=-1.0)
    with pytest.warns(match="fits failed"):  # .01 is less than any arm costs
        search.fit(few)
    assert search.best_params_["max_share"] == 0.6
    assert search.predict(few).shape == (60,)


def test_it_is_the_same_each_time_and_a_clone_has_its_parameters() -> None:
    learner = CascadeLearner(stops="per_stage", max_calls=2, max_share=0.5, random_state=3).fit(RECORDING)
    again = clone(learner)
    assert again.get_params() == learner.get_params()
    assert again.fit(RECORDING).strategy_ == learner.strategy_
    assert again.target == Target(max_share=0.5)


def test_of_grades_it_chooses_the_best_arm() -> None:
    grades = np.column_stack([d.quality[:, 0] for d in RECORDING.arms.values()])
    table = CascadeLearner().fit(pd.DataFrame(grades, columns=list(ARMS)))
    assert (table.strategy_, table.cost_, list(table.feature_names_in_)) == (Ask("large"), None, list(ARMS))
    assert CascadeLearner().fit(grades).predict(grades).tolist() == [2] * 150
    with pytest.raises(Misuse, match=r"no confidences.*stops='shared'"):
        CascadeLearner(stops="per_stage").fit(grades)
    with pytest.warns(UserWarning, match="clipped"):
        CascadeLearner().fit(np.array([[1.0, 2.0], [0.0, 5.0]]))


def test_grades_with_confidences_but_no_answers_make_chains() -> None:
    learner = CascadeLearner(stops="per_stage", max_share=0.6).fit(replace(RECORDING, texts=()))
    assert len(learner.stages_) > 1


def test_arms_without_confidences_come_last_in_a_chain() -> None:
    d = RECORDING["medium"]
    half = replace(RECORDING, arms={**RECORDING.arms, "medium": replace(d, score=d.score * np.nan)})
    assert {p.arms for p in chains(half) if "medium" in p.arms} == {("medium",), ("small", "medium")}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"stops": "each"}, r"stops='each'.*'per_stage'"),
        ({"max_calls": 0}, r"max_calls=0.*1 to 4"),
        ({"max_calls": 5}, r"max_calls=5.*1 to 4"),
        ({"max_calls": 2.5}, r"max_calls=2.5.*whole"),
        ({"gap": -1.0}, r"gap=-1.0.*seconds"),
        ({"gap": float("nan")}, r"gap=nan.*seconds"),
        ({"stops": "per_stage", "gap": 0.0}, r"gap=0.0.*one stage after another"),
        ({"min_quality": 2.0}, "min_quality=2.0"),
        ({"max_cost": 1.0, "max_share": 1.0}, "not both"),
    ],
)
def test_parameters_that_mean_nothing_are_refused_in_words(bad: dict[str, object], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        CascadeLearner(**bad).fit(RECORDING)  # type: ignore[arg-type]


def test_limits_that_nothing_keeps_or_that_were_not_recorded_are_refused() -> None:
    with pytest.raises(Infeasible, match="nearest"):
        CascadeLearner(min_quality=0.9999).fit(RECORDING)
    free = replace(RECORDING, arms={a: replace(d, priced=False) for a, d in RECORDING.arms.items()})
    with pytest.raises(Misuse, match="no costs"):
        CascadeLearner(max_share=0.5).fit(free)
    with pytest.raises(NotFittedError):
        CascadeLearner().predict(RECORDING)
