"""A study: what is said of a policy holds."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from playcall.portfolio import Infeasible, Target, choose, cross_fit, fit, search
from playcall.portfolio.joint import JointFailure
from playcall.portfolio.remarks import ceiling
from playcall.portfolio.simple import simple
from playcall.portfolio.studies import Study, study
from playcall.strategies import Ask, Draws, Misuse, Recording, Strategy, arms_of, outcomes

from .made import made

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}
RECORDING = made(ARMS, tasks=120)
TARGET = Target(max_share=0.6)


@pytest.fixture(scope="module")
def found() -> Study:
    return study(RECORDING, TARGET, folds=2, held_out=made(ARMS, tasks=200, seed=9), labels=(50, 900))


def test_the_policy_of_a_study_is_the_one_that_fit_learns(found: Study) -> None:
    assert found.policy == fit(RECORDING, TARGET, folds=2)
    assert found.optimism == found.policy.figures.apparent_quality - found.policy.figures.quality


def test_everything_comes_from_one_search_and_one_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    module = import_module("playcall.portfolio.studies")

    def counted(name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (calls.append(name), real(*a, **k))[1])

    counted("search")
    counted("cross_fitting")
    study(RECORDING, TARGET, folds=2)
    assert sorted(calls) == ["cross_fitting", "search"]


def test_points_of_the_frontier_are_different_plays_by_rising_cost_and_the_policy_is_one(found: Study) -> None:
    plays = [p.strategy for p in found.frontier]
    costs = [p.figures.cost_per_task or 0.0 for p in found.frontier]
    assert len(set(plays)) == len(plays)
    assert costs == sorted(costs)
    assert [p.strategy for p in found.frontier if p.max_share is None] == [found.policy.strategy]


def test_a_points_figures_are_those_of_its_way_to_choose_on_tasks_that_it_has_not_seen(found: Study) -> None:
    point = next(p for p in found.frontier if p.max_share is not None)
    target = Target(max_share=point.max_share)
    held = cross_fit(RECORDING, {"it": lambda swept, known: choose(swept, known, target).strategy}, folds=2)["it"]
    assert point.figures == held.figures(RECORDING, RECORDING["large"].quality[:, 0])
    assert point.apparent == outcomes(point.strategy, RECORDING).quality.mean()
    assert point.held_out == outcomes(point.strategy, made(ARMS, tasks=200, seed=9)).quality.mean()


def test_the_strongest_baseline_is_the_best_of_those_that_keep_the_target(found: Study) -> None:
    assert found.strongest.name == "best single arm that keeps the target"  # medium: the others cost more than 0.6x
    assert found.strongest.words == "ask medium."
    free = study(RECORDING, Target(max_cost=1.0), folds=2)
    assert free.strongest.figures.quality == max(b.figures.quality for b in free.baselines)


def test_the_ceiling_is_that_of_the_joint_failures() -> None:
    grades = np.column_stack([d.quality[:, 0] for d in RECORDING.arms.values()])
    joint = JointFailure().fit(grades)
    low, high = joint.all_fail_interval_
    assert ceiling(RECORDING) == pytest.approx((joint.ceiling_, 1 - high, 1 - low))


def test_no_play_is_above_the_ceiling_where_grades_are_fractions() -> None:
    half = {a: replace(d, quality=d.quality * 0.5) for a, d in RECORDING.arms.items()}
    assert ceiling(replace(RECORDING, arms=half))[0] <= 0.5


def test_what_arms_cost_adds_up_to_what_the_play_costs_and_none_brings_less_than_nothing(found: Study) -> None:
    assert {e.arm for e in found.earned} == set(arms_of(found.policy.strategy))
    cost = outcomes(found.policy.strategy, RECORDING).cost.mean() / 1e9
    assert sum(e.cost or 0.0 for e in found.earned) == pytest.approx(cost)
    assert all(e.gain >= -1e-12 for e in found.earned)


def test_what_an_arm_earned_is_lost_in_the_best_play_without_it(found: Study) -> None:
    swept, arm = search(RECORDING), found.earned[0]
    limit = Target(max_cost=0.6 * 0.016)  # of large
    best, other = (choose(plays, RECORDING, limit) for plays in (swept, [s for s in swept if arm.arm not in s.arms]))
    expected = {s.strategy(at): s.expected[at] for s in swept for at in range(len(s.expected))}
    assert arm.gain == pytest.approx(expected[best.strategy] - expected[other.strategy], abs=1e-3)


def test_a_dear_copy_of_a_used_arm_is_redundant_and_like_it() -> None:
    large = RECORDING["large"]
    arms = {**RECORDING.arms, "copy": replace(large, price=large.price + 1_000_000)}
    found = study(replace(RECORDING, arms=arms), folds=2)
    assert "large" in arms_of(found.policy.strategy)
    copy = next(r for r in found.redundant if r.arm == "copy")
    assert copy.alike[0] == "large"
    assert any("several names" in words for words in found.findings)


def test_a_ceiling_that_rests_on_a_constant_answer_is_said_to() -> None:
    constant = replace(RECORDING["small"], answer=np.zeros((120, 1), np.int64))
    right = (RECORDING["small"].answer == 0) & (RECORDING["small"].quality > 0)
    arms = {**RECORDING.arms, "mute": replace(constant, quality=right.astype(float))}
    found = study(replace(RECORDING, arms=arms), folds=2)
    assert any("ceiling" in words and "'mute'" in words for words in found.findings)


def test_changes_tell_what_other_limits_would_choose(found: Study) -> None:
    twice = choose(search(RECORDING), RECORDING, Target(max_share=1.2))
    told = [words for words in found.changes if words.startswith("With max_share") and "1.2" in words]
    assert len(told) == 1
    assert f"${twice.cost / 1e9:.3g} a task" in told[0] or twice.strategy == found.policy.strategy


def test_a_price_at_which_a_cheaper_twin_takes_over_is_told() -> None:
    one = made({"a": 0.8}, cost={"a": 0.001}, tasks=100)
    twin = replace(one["a"], price=one["a"].price * 110 // 100)
    found = study(replace(one, arms={"a": one["a"], "b": twin}), folds=2)
    assert found.policy.strategy == Ask("a")
    assert any("With a at $0.00125 a call (1.25x): ask b." in words for words in found.changes)


def test_labels_beyond_the_data_are_left_out_of_the_curve(found: Study) -> None:
    assert [c.labels for c in found.curve] == [50]


def test_a_study_is_plain_json(found: Study) -> None:
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["policy"]["figures"]["quality"] == found.policy.figures.quality
    assert document["frontier"][0]["strategy"]["playcall"] == 1
    assert set(document) == set(vars(found))


def test_a_target_that_nothing_keeps_is_refused() -> None:
    with pytest.raises(Infeasible, match="nearest"):
        study(RECORDING, Target(min_quality=0.9999))


def test_without_costs_or_answers_there_is_still_a_study() -> None:
    blind = {a: replace(d, priced=False, timed=False) for a, d in RECORDING.arms.items()}
    bare = study(replace(RECORDING, arms=blind, texts=()), folds=2)
    assert [p.name for p in bare.frontier] == ["policy"]
    assert bare.policy.figures.cost_per_task is None
    assert all(e.cost is None for e in bare.earned)


def test_one_arm_is_studied_too() -> None:
    found = study(RECORDING.only(["medium"]), folds=2)
    assert found.policy.strategy == Ask("medium")
    assert [b.name for b in found.baselines] == ["best single arm, chosen"]
    assert found.redundant == ()


def test_repeated_draws_bring_their_baselines() -> None:
    def thrice(d: Draws) -> Draws:
        columns = ("answer", "score", "failed", "quality", "price", "latency")
        return replace(d, **{k: np.hstack([np.roll(getattr(d, k), i, axis=0) for i in range(3)]) for k in columns})

    deep: Recording = replace(RECORDING, arms={a: thrice(d) for a, d in RECORDING.arms.items()})
    names = {b.name for b in study(deep.take(np.arange(60)), folds=2).baselines}
    assert {"self-consistency of 3", "best of 3", "majority of the best three", "cheapest arm"} <= names


def test_time_limits_stay_on_the_frontier() -> None:
    slow = made(ARMS, tasks=60, seconds={"small": 0.2, "medium": 0.2, "large": 2.0})
    found = study(slow, Target(max_latency=0.7), folds=2)
    assert all(outcomes(p.strategy, slow).latency.mean() <= 0.7e6 for p in found.frontier)


def test_limits_on_what_was_not_recorded_are_refused() -> None:
    blind = {a: replace(d, priced=False) for a, d in RECORDING.arms.items()}
    with pytest.raises(Misuse, match="no costs"):
        study(replace(RECORDING, arms=blind), Target(max_cost=1))


def test_the_words_of_a_baseline_are_its_choice_by_all_tasks(found: Study) -> None:
    said = {b.name: b.words for b in found.baselines}
    assert said["best single arm, chosen"] == "ask large."
    assert said["cheapest arm"] == "ask small."
    play: Strategy = Ask("large")
    assert found.policy.figures.single_quality == outcomes(play, RECORDING).quality.mean()


def test_where_two_cheap_arms_differ_the_best_ones_answer_counts() -> None:
    play = simple(RECORDING, Target())["two cheap arms, the best one where they differ"](search(RECORDING), RECORDING)
    small, medium, large = (RECORDING[a] for a in ARMS)
    agree = small.answer == medium.answer
    came = outcomes(play, RECORDING)
    assert came.quality.tolist() == np.where(agree, medium.quality, large.quality)[:, 0].tolist()
    assert came.calls.tolist() == np.where(agree, 2, 3)[:, 0].tolist()
