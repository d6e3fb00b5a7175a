"""What is odd about arms is found, and what is not odd is left alone: on made-up arms, and on recorded ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from playcall.evals.table import read_table, read_tables
from playcall.portfolio import fit
from playcall.portfolio.arms import Finding, diagnose, independent, positions_differ, redundant
from playcall.strategies import Ask, Draws, Recording
from playcall.strategies.panel import Floats, Ints

from .made import made

PLAIN = {"a": 0.6, "b": 0.7, "c": 0.8}


def deep(answer: Ints, quality: Floats) -> Draws:
    """An arm of (items, draws) answers and grades."""
    one = np.ones(answer.shape, dtype=np.int64)
    return Draws(answer, np.full(answer.shape, np.nan), np.zeros(answer.shape, bool), one, one, quality)


def kinds(recording: Recording) -> list[tuple[str, tuple[str, ...]]]:
    return [(f.kind, f.arms) for f in diagnose(recording)]


def only(recording: Recording, kind: str) -> Finding:
    (found,) = [f for f in diagnose(recording) if f.kind == kind]
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("quality", [PLAIN, {"a": 0.95, "b": 0.97, "c": 0.99}, {"a": 0.02, "b": 0.05, "c": 0.1}])
def test_of_independent_arms_there_is_nothing_to_say(quality: dict[str, float], seed: int) -> None:
    assert kinds(made(quality, seed=seed)) == []


def test_of_a_handful_of_items_nothing_is_said() -> None:
    recording = made(PLAIN, tasks=19)
    assert kinds(recording.only("a").take([0] * 19)) == []  # type: ignore[arg-type]


def test_an_arm_under_two_names_is_a_clone() -> None:
    recording = made(PLAIN)
    again = replace(recording, arms={**recording.arms, "d": recording["a"], "e": recording["a"]})
    assert kinds(again) == [("clone", ("a", "d", "e"))]
    assert only(again, "clone").figure == 1.0


def test_strong_arms_that_are_both_right_are_no_clones() -> None:
    assert kinds(made({"a": 0.99, "b": 0.99}, tasks=200)) == []


def test_by_grades_alone_copies_are_found_and_hopeless_arms_are_not() -> None:
    recording = replace(made({"a": 0.5, "b": 0.5, "c": 0.01, "d": 0.01}), texts=())
    assert kinds(recording) == []
    copied = replace(recording, arms={**recording.arms, "b": recording["a"]})
    assert kinds(copied) == [("clone", ("a", "b"))]


def yes_or_no(*arms: tuple[str, Ints], truth: Ints) -> Recording:
    made_of = {a: deep(x[:, None], (x == truth)[:, None] * 1.0) for a, x in arms}
    return Recording(tuple(map(str, range(len(truth)))), made_of, ("no", "yes"))


def test_two_fixed_answers_make_a_perfect_pair_and_no_skill() -> None:
    truth = np.random.default_rng(0).integers(0, 2, 200)
    recording = yes_or_no(("pessimist", np.zeros(200, int)), ("optimist", np.ones(200, int)), truth=truth)
    found = diagnose(recording)
    assert [f.kind for f in found] == ["constant", "constant", "opposite"]
    assert found[2].figure == pytest.approx(-1)
    assert all(f.inflates for f in found)
    assert "right in 1.000" in found[2].words


def test_a_constant_answer_that_is_right_or_that_all_give_is_fine() -> None:
    truth = (np.arange(200) % 50 == 0).astype(int)  # 2% are "yes"
    recording = yes_or_no(("a", np.zeros(200, int)), ("b", np.where(np.arange(200) < 5, 1, 0)), truth=truth)
    assert kinds(recording) == []


def test_a_constant_answer_that_all_give_though_it_is_wrong_is_no_trait_of_an_arm() -> None:
    recording = yes_or_no(("a", np.zeros(200, int)), ("b", np.zeros(200, int)), truth=np.arange(200) % 2)
    assert "constant" not in [kind for kind, _ in kinds(recording)]


def test_a_constant_answer_that_is_nearly_always_right_is_skill_beside_a_careless_arm() -> None:
    truth = (np.arange(200) % 20 == 0).astype(int)
    careless = np.where(np.random.default_rng(0).random(200) < 0.3, 1, 0)
    assert kinds(yes_or_no(("a", np.zeros(200, int)), ("b", careless), truth=truth)) == []


def test_few_items_show_no_copies_and_no_opposites() -> None:
    item = np.arange(30)
    one, two = (item < 6) * 1.0, ((item >= 6) & (item < 12)) * 1.0  # correlation -1/4 of 30 items
    weak = {
        a: deep(np.where(right > 0, item, item + odd)[:, None], right[:, None])
        for a, right, odd in (("a", one, 30), ("b", two, 60))
    }
    assert kinds(Recording(tuple(map(str, item)), weak, tuple(map(str, range(90))))) == []
    right = (np.arange(100) > 0)[:, None] * 1.0  # both fail the same single item, with the same answer
    strong = {a: deep((np.arange(100) % 5)[:, None], right) for a in "ab"}
    assert kinds(Recording(tuple(map(str, range(100))), strong, tuple("abcde"))) == []


def test_specialists_with_skill_are_no_lucky_opposites() -> None:
    rng, half = np.random.default_rng(0), np.arange(400) < 200
    truth = rng.integers(0, 5, 400)
    answers = {a: np.where(half == first, truth, rng.integers(0, 5, 400)) for a, first in (("x", True), ("y", False))}
    arms = {a: deep(v[:, None], (v == truth)[:, None] * 1.0) for a, v in answers.items()}
    assert kinds(Recording(tuple(map(str, range(400))), arms, tuple("abcde"))) == []


def test_equal_answers_with_unequal_grades_are_told_with_the_arm_that_pays() -> None:
    recording = made(PLAIN)
    strict = replace(recording["c"], quality=recording["c"].quality * (np.arange(300) % 2)[:, None])
    found = only(replace(recording, arms={**recording.arms, "c": strict}), "format")
    assert found.arms == ("c",)
    assert found.figure > 0.2


def test_steps_of_one_run_are_no_draws() -> None:
    rng = np.random.default_rng(0)
    answer, chance = np.arange(800).reshape(200, 4), np.array([0.3, 0.5, 0.6, 0.7])
    steps = deep(answer, (rng.random((200, 4)) < chance) * 1.0)
    draws = deep(answer, (rng.random((200, 4)) < rng.random((200, 1))) * 1.0)
    items, texts = tuple(map(str, range(200))), tuple(map(str, range(800)))
    assert kinds(Recording(items, {"steps": steps}, texts)) == [("dependent draws", ("steps",))]
    assert kinds(Recording(items, {"draws": draws}, texts)) == []


def test_draws_that_never_differ_are_one() -> None:
    right = np.random.default_rng(0).random(100) < 0.5
    same = deep(np.repeat(np.arange(100)[:, None] % 5, 3, axis=1), np.repeat(right[:, None] * 1.0, 3, axis=1))
    found = only(Recording(tuple(map(str, range(100))), {"cached": same}, tuple("abcde")), "dependent draws")
    assert found.figure == 1.0


def test_the_test_of_positions_keeps_its_level() -> None:
    rng = np.random.default_rng(0)
    p = [positions_differ((rng.random((80, 5)) < rng.random((80, 1))) * 1.0) for _ in range(400)]
    assert np.mean(np.array(p) < 0.1) == pytest.approx(0.1, abs=0.04)
    assert positions_differ(np.ones((10, 3))) == 1.0


def test_silence_and_gaps_are_told_apart() -> None:
    recording = made(PLAIN)
    failed = {"a": np.ones((300, 1), bool), "b": (np.arange(300) % 3 == 0)[:, None]}
    arms = {a: replace(d, failed=failed.get(a, d.failed)) for a, d in recording.arms.items()}
    assert kinds(replace(recording, arms=arms)) == [("silent", ("a",)), ("partial", ("b",))]


def test_a_copy_adds_nothing_and_a_specialist_does() -> None:
    recording = made(PLAIN)
    table = redundant(replace(recording, arms={**recording.arms, "d": recording["c"]}))
    assert table.gain[["c", "d"]].tolist() == [0, 0]
    assert table.like[["c", "d"]].tolist() == ["d", "c"]
    assert table.loc["c", ["correlation", "equal"]].tolist() == pytest.approx([1, 1])
    a, b, c = (recording[x].quality[:, 0] for x in "abc")
    assert redundant(recording).gain["a"] == pytest.approx((a * (1 - b) * (1 - c)).mean())
    assert redundant(recording.only("a")).columns.tolist() == ["accuracy", "gain"]


# --- the traps of the recorded tables, as data/README.md tells them -----------------------------------------------


def test_llmdrift_prime_one_model_says_no_to_all_and_pairs_gain_by_it(shared: Path) -> None:
    found = diagnose(read_table(shared / "llmdrift.parquet", where={"dataset": "llmdrift_prime"}))
    constant, first, *_ = found
    assert (constant.kind, constant.arms, round(constant.figure, 2)) == ("constant", ("gpt-4-0613",), 0.99)
    assert (first.kind, set(first.arms), round(first.figure, 2)) == ("opposite", {"gpt-4-0314", "gpt-4-0613"}, -0.36)
    assert "right in 0.987" in first.words


def test_mot_cascade_date_n40_repeats_the_samples_of_default(shared: Path) -> None:
    names = [f"gpt-3.5-turbo/{x}" for x in ("cot1/default", "cot1/n40", "cot1/t0.8", "cot2/default", "pot1/default")]
    recording = read_table(shared / "mot_cascade.parquet", where={"dataset": "mot_date", "arm": names})
    assert kinds(recording) == [("clone", tuple(names[:2]))]
    assert only(recording, "clone").figure == 1.0


def test_mot_cascade_date_pot_draws_of_llama2_moved_up_over_lost_ones(shared: Path) -> None:
    where = {"dataset": "mot_date", "arm": ["llama2-13b/cot2", "llama2-13b/pot1", "llama2-13b/pot2"]}
    found = kinds(read_table(shared / "mot_cascade.parquet", where=where))
    assert [arms for kind, arms in found if kind == "dependent draws"] == [("llama2-13b/pot1",), ("llama2-13b/pot2",)]


def test_agentopt_hotpotqa_opus_as_planner_is_one_arm_nine_times(shared: Path) -> None:
    recording = read_table(shared / "agentopt_combos.parquet", where={"dataset": "agentopt_hotpotqa"}, missing="fail")
    found = only(recording, "clone")
    assert len(found.arms) == 9
    assert all("planner=Claude Opus" in a for a in found.arms)
    assert found.figure == pytest.approx(0.91, abs=0.005)


def test_swebench_verified_two_pairs_of_versions_are_copies(shared: Path) -> None:
    names = pd.read_parquet(shared / "swebench_verified_resolved.parquet", columns=["arm"]).arm.unique()
    some = [a for a in names if any(x in a for x in ("Prometheus", "SWE-Fixer", "rag_", "mini-v1"))]
    found = diagnose(read_table(shared / "swebench_verified_resolved.parquet", where={"arm": some}))
    assert [f.kind for f in found] == ["clone", "clone"]
    assert sorted({a.split("_")[1] for f in found for a in f.arms}) == ["Prometheus", "SWE-Fixer"]
    assert [round(f.figure, 2) for f in found] == [0.97, 0.97]


def test_bfcl_some_models_fail_on_format(shared: Path) -> None:
    names = ["gpt-4o-2024-08-06", "mistral-large-2407", "gpt-4o-mini-2024-07-18", "claude-3-5-sonnet-20240620-FC"]
    known = pd.read_parquet(shared / "bfcl_v1.parquet", columns=["arm"]).arm.unique()
    recording = read_table(shared / "bfcl_v1.parquet", where={"arm": [a for a in names if a in known]})
    assert set(only(recording, "format").arms) == set(names[:2])


def test_tot_gpt4_beams_of_one_search_are_no_draws(shared: Path, tmp_path: Path) -> None:
    table = pd.read_parquet(shared / "tot_gpt4.parquet")
    table = table[(table.dataset == "tot_game24") & (table.arm.str.contains("tot-b5") | (table["sample"] < 5))]
    table.drop(columns="cost_usd").to_parquet(tmp_path / "game24.parquet")
    found = [
        f for f in diagnose(read_table(tmp_path / "game24.parquet", missing="fail")) if f.kind == "dependent draws"
    ]
    assert [f.arms[0].split("/")[-1] for f in found] == ["tot-b5"]


def test_planbench_repair_rounds_are_no_draws(shared: Path, tmp_path: Path) -> None:
    table = pd.read_parquet(shared / "planbench.parquet")
    table = table[(table.dataset == "planbench_bwhard_refine") & table.arm.str.contains("o1-preview")]
    rounds = table.groupby("item")["sample"].transform("nunique")
    table[rounds >= 2].drop(columns="cost_usd").to_parquet(tmp_path / "rounds.parquet")  # others stopped at the first
    assert [f.kind for f in diagnose(read_table(tmp_path / "rounds.parquet"))] == ["dependent draws"]


def test_planbench_mystery_blocked_models_never_answer_and_one_broke_off(shared: Path) -> None:
    recordings = read_tables(
        shared / "planbench.parquet", by="dataset", where={"dataset": ["planbench_mystery"]}, missing="fail"
    )
    found = kinds(recordings["planbench_mystery"])
    assert {a for kind, (a, *_) in found if kind == "silent"} == {
        f"gemini-1.5-{size}/{shots}_shot" for size in ("flash", "pro") for shots in ("zero", "one")
    }
    assert ("partial", ("deepseek-r1-api/zero_shot",)) in found


@pytest.mark.parametrize("name", ["cascade_mmlu", "swebench_bash_only"])
def test_tables_without_traps_are_left_alone(shared: Path, name: str) -> None:
    assert kinds(read_table(shared / f"{name}.parquet")) == []


def test_draws_that_are_ranks_of_one_run_are_never_voted_on() -> None:
    """As in tot_gpt4's beams: the first is the best, the others are what it beat."""
    rng = np.random.default_rng(0)
    right = rng.random((300, 3)) < np.array([0.7, 0.5, 0.3])
    answer = np.where(right, 0, rng.integers(1, 5, (300, 3)))
    shape, nan = (300, 3), np.full((300, 3), np.nan)
    beams = Draws(answer, nan, np.zeros(shape, bool), np.full(shape, 10), np.ones(shape, int), right.astype(float))
    recording = Recording(tuple(map(str, range(300))), {"beams": beams}, tuple("abcde"))
    assert independent(recording)["beams"].depth == 1
    policy = fit(recording, folds=2)
    assert policy.strategy == Ask("beams")
    assert policy.figures.quality == pytest.approx(right[:, 0].mean())
    assert any("not independent" in note for note in policy.notes)
    assert independent(replace(recording, graded_by_checker=True))["beams"].depth == 3  # a checker asks them in order
