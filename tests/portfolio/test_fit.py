"""A learned policy: what it promises, what it keeps, what it refuses."""

from __future__ import annotations

import gc
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from playcall.portfolio import Infeasible, Policy, Target, choose, cross_fit, fit, search, standard
from playcall.strategies import Ask, Gather, Keep, Misuse, PlaycallError, arms_of, outcomes

from .made import made

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}


def test_the_held_out_figures_of_a_policy_are_those_of_new_tasks() -> None:
    """Averaged over tables, nested quality is within a point and a half of the truth, and not above it by more."""
    gaps = []
    for seed in range(4):
        policy = fit(made(ARMS, seed=seed, tasks=250), Target(max_cost=0.012), folds=4)
        truth = outcomes(policy.strategy, made(ARMS, seed=100 + seed, tasks=20_000)).quality.mean()
        gaps.append(policy.figures.quality - truth)
    assert abs(np.mean(gaps)) < 0.015


def test_a_cascade_halves_the_cost_at_equal_quality_where_confidence_tells() -> None:
    recording = made(ARMS, tasks=600)
    policy = fit(recording, Target(max_cost=0.008), folds=5)
    f = policy.figures
    assert f.single_arm == "large"
    assert f.cost_per_task is not None
    assert f.single_cost is not None
    assert f.cost_per_task <= 0.5 * f.single_cost
    assert f.difference > 0
    assert f.difference_low <= f.difference <= f.difference_high


def test_on_equal_and_independent_noise_no_gain_is_claimed() -> None:
    recording = made({"a": 0.5, "b": 0.5, "c": 0.5}, telling=False, tasks=200)
    random = {
        a: replace(d, answer=np.arange(200)[:, None] + 1000 * i) for i, (a, d) in enumerate(recording.arms.items())
    }
    policy = fit(replace(recording, arms=random, texts=tuple(map(str, range(3000)))), folds=5)
    assert policy.figures.difference_low <= 0


@pytest.mark.parametrize(
    ("target", "named"),
    [(Target(min_quality=0.999), "quality"), (Target(max_cost=1e-9), "costs"), (Target(max_latency=1e-6), "takes")],
)
def test_a_target_that_nothing_keeps_is_refused_with_the_nearest_point(target: Target, named: str) -> None:
    with pytest.raises(Infeasible, match=named) as refused:
        fit(made(ARMS), target)
    assert refused.value.nearest.quality > 0.5


def test_a_minimum_quality_gets_the_cheapest_play_that_reaches_it() -> None:
    recording = made(ARMS, tasks=500)
    swept = search(recording)
    cheap = choose(swept, recording, Target(min_quality=0.7))
    dear = choose(swept, recording, Target(min_quality=0.9))
    assert cheap.quality >= 0.7
    assert dear.quality >= 0.9
    assert cheap.cost < dear.cost


def test_with_time_to_keep_stages_run_at_once() -> None:
    recording = made(ARMS, tasks=400, seconds={"small": 1.0, "medium": 1.0, "large": 1.0})
    swept = search(recording)
    patient = choose(swept, recording, Target(max_cost=0.05))
    hurried = choose(swept, recording, Target(max_cost=0.05, max_latency=1.6))
    assert hurried.latency <= 1.6e6 < patient.latency
    assert hurried.quality > outcomes(Ask("large"), recording).quality.mean()
    assert isinstance(hurried.strategy, Keep)
    assert isinstance(hurried.strategy.source, Gather)
    assert hurried.strategy.source.gap < 1


def test_weights_trade_quality_for_money() -> None:
    recording = made(ARMS, tasks=400)
    swept = search(recording)
    rich, poor = (choose(swept, recording, Target(cost_weight=w, max_cost=1.0)) for w in (0.1, 50.0))
    assert poor.cost < rich.cost
    assert poor.quality < rich.quality


def test_the_default_is_the_best_quality_at_the_best_arms_cost() -> None:
    recording = made(ARMS, tasks=400)
    chosen = choose(search(recording), recording, Target())
    assert chosen.cost <= recording["large"].price.mean()
    assert chosen.quality > recording["large"].quality.mean()


@pytest.mark.parametrize("bad", [{"max_cost": -1}, {"min_quality": 1.5}, {"max_latency": float("nan")}])
def test_a_target_that_means_nothing_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(Misuse, match=next(iter(bad))):
        Target(**bad)


def test_limits_on_what_was_not_recorded_are_refused() -> None:
    recording = made(ARMS, tasks=60)
    blind = replace(recording, arms={a: replace(d, priced=False, timed=False) for a, d in recording.arms.items()})
    with pytest.raises(Misuse, match="no costs"):
        fit(blind, Target(max_cost=1))
    with pytest.raises(Misuse, match="latencies"):
        fit(blind, Target(max_latency=1))
    assert fit(blind, folds=3).figures.cost_per_task is None


def test_where_time_matters_arms_without_latencies_are_left_out() -> None:
    recording = made(ARMS, tasks=60)
    arms = {**recording.arms, "large": replace(recording["large"], timed=False)}
    policy = fit(replace(recording, arms=arms), Target(max_latency=9), folds=3)
    assert "large" not in arms_of(policy.strategy)
    assert policy.figures.latency_mean is not None


def test_a_policy_survives_its_file_and_names_its_evidence(tmp_path: Path) -> None:
    recording = made(ARMS, tasks=100)
    policy = fit(recording, folds=3)
    policy.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json") == policy
    document = json.loads((tmp_path / "policy.json").read_text())
    assert set(document["prices"]) == set(arms_of(policy.strategy))
    assert document["figures"]["tasks"] == 100
    assert len(document["data"]["fingerprint"]) == 64
    assert [p.name for p in tmp_path.iterdir()] == ["policy.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(playcall=99), "version 99"),
        (lambda d: d["figures"].pop("quality"), "quality"),
        (lambda d: d["figures"].update(quality="high"), "quality"),
        (lambda d: d.update(strategy={"Exec": {}}), "Exec"),
        (lambda d: d.pop("figures"), "not a policy"),
    ],
)
def test_a_policy_file_that_is_not_one_is_refused_by_name(tmp_path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "policy.json"
    fit(made(ARMS, tasks=60), folds=3).save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(Misuse, match=said):
        Policy.load(path)


def test_a_policy_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    policy = fit(made(ARMS, tasks=60), folds=3)
    with pytest.raises(PlaycallError, match="cannot be written"):
        policy.save(tmp_path / "nowhere" / "policy.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlaycallError, match="cannot be written"):
        policy.save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_folds_are_the_same_for_the_same_seed_and_each_task_is_graded_once_a_repeat() -> None:
    recording = made(ARMS, tasks=83)
    choosers = standard(recording)
    first, again = (cross_fit(recording, choosers, folds=3, repeats=2, seed=7) for _ in range(2))
    assert first.keys() == choosers.keys()
    for name, held in first.items():
        assert held.quality.shape == (83,)
        assert np.array_equal(held.cost, again[name].cost)
    single = first["best single arm, chosen"]
    assert single.quality.tolist() == recording["large"].quality[:, 0].tolist()
    assert single.figures(recording, recording["large"].quality[:, 0]).difference == 0.0


def test_no_choice_sees_the_tasks_that_it_is_graded_on() -> None:
    seen: list[set[str]] = []

    def spy(swept, known):  # type: ignore[no-untyped-def]
        seen.append(set(known.items))
        return Ask("small")

    recording = made(ARMS, tasks=40)
    cross_fit(recording, {"spy": spy}, folds=4)
    assert [len(s) for s in seen] == [30] * 4
    assert set.intersection(*seen) == set()


@pytest.mark.filterwarnings("error")
def test_an_infeasible_target_stops_the_folds_that_were_begun_without_a_word() -> None:
    """Large enough to be begun on other processes."""
    with warnings.catch_warnings():  # of what earlier tests in this process left open
        warnings.simplefilter("ignore")
        gc.collect()
    recording = made({f"arm{i}": 0.6 for i in range(4)}, cost={f"arm{i}": 0.001 for i in range(4)}, tasks=800)
    with pytest.raises(Infeasible):
        fit(recording, Target(max_cost=1e-9), folds=4)
    gc.collect()
