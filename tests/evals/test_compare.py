"""A comparison: every figure is what replaying gives, and choices are held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.portfolio.made import made

from playcall.evals import compare, read_table
from playcall.evals.comparison import strategy_file, to_csv, to_json
from playcall.strategies import Agree, Ask, Draws, Misuse, Recording, best_of, dump, outcomes

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}


def test_every_arm_every_family_the_users_play_and_the_oracle_have_a_row() -> None:
    recording = made(ARMS, tasks=120)
    mine = (Ask("small") & Ask("medium")).until(Agree(2)).keep(best_of(1, "small").rule)
    c = compare(recording, {"mine": mine}, folds=3)
    rows = {r.strategy: r for r in c.rows}
    assert {"small", "medium", "large", "mine", "portfolio vote", "cascade, best", "hedge"} <= set(rows)
    o = outcomes(mine, recording)
    assert rows["mine"].quality == o.quality.mean()
    assert rows["mine"].cost_per_1000 == pytest.approx(o.cost.mean() / 1e6)
    assert rows["mine"].latency_p95 == pytest.approx(np.quantile(o.latency, 0.95) / 1e6)
    right = np.stack([d.quality[:, 0] for d in recording.arms.values()])
    assert rows["oracle: any call right"].quality == right.max(axis=0).mean()
    assert rows[c.single_arm].difference == 0
    assert all(r.quality_low <= r.quality <= r.quality_high for r in c.rows)


def test_the_frontier_holds_just_what_nothing_beats_at_no_more_cost() -> None:
    rows = [r for r in compare(made(ARMS, tasks=120), folds=3).rows if r.kind != "bound"]
    for r in rows:
        beaten = any(
            o.quality >= r.quality
            and o.cost_per_task <= r.cost_per_task
            and (o.quality, -o.cost_per_task) != (r.quality, -r.cost_per_task)
            for o in rows
        )
        assert not (r.frontier and beaten)
    assert max(rows, key=lambda r: r.quality).quality == max(r.quality for r in rows if r.frontier)


def test_where_draws_repeat_self_consistency_and_best_of_n_join() -> None:
    one = made({"a": 0.6, "b": 0.55}, tasks=100)
    more = [made({"a": 0.6, "b": 0.55}, tasks=100, seed=s) for s in range(3)]
    arms = {
        a: Draws(
            *(
                np.concatenate([getattr(m[a], f) for m in more], axis=1)
                for f in ("answer", "score", "failed", "price", "latency", "quality")
            )
        )
        for a in one.arms
    }
    names = {r.strategy for r in compare(replace(one, arms=arms), folds=3).rows}
    assert {"self-consistency of 3", "self-consistency, until 2 agree", "best of 3"} <= names


def test_a_play_with_the_name_of_an_arm_or_family_is_refused() -> None:
    for name in ("small", "portfolio vote"):
        with pytest.raises(Misuse, match=name):
            compare(made(ARMS, tasks=30), {name: Ask("small")}, folds=2)


def test_the_oracle_bounds_what_repeated_draws_can_do(shared: Path) -> None:
    c = compare(read_table(shared / "esc_samples.parquet"), folds=2)
    rows = {r.strategy: r for r in c.rows}
    assert rows["oracle: any call right"].quality == pytest.approx(0.920)  # published with the table
    assert rows["self-consistency of 40"].quality == pytest.approx(0.816)


def test_what_was_not_recorded_is_missing_and_never_zero() -> None:
    recording = made(ARMS, tasks=60)
    blind = replace(recording, arms={a: replace(d, priced=False, timed=False) for a, d in recording.arms.items()})
    c = compare(blind, folds=3)
    assert {(r.cost_per_1000, r.latency_mean, r.latency_p95) for r in c.rows} == {(None, None, None)}
    assert "hedge" not in {r.strategy for r in c.rows}
    assert any(r.frontier for r in c.rows)


def test_a_comparison_is_a_frame_a_page_json_and_csv() -> None:
    recording = replace(made(ARMS, tasks=60), name="<b>runs</b>")
    c = compare(recording, folds=3)
    frame = c.to_pandas()
    assert len(frame) == len(c.rows)
    assert "<b>runs" not in c._repr_html_()
    assert json.loads(to_json([c]))["rows"][0]["strategy"] == c.rows[0].strategy
    assert isinstance(json.loads(to_json([c, c])), list)
    assert len(to_csv([c, c]).splitlines()) == 1 + 2 * len(c.rows)
    assert c.error_correlation["small"]["small"] == 1


def test_the_same_seed_gives_the_same_comparison() -> None:
    recording = made(ARMS, tasks=60)
    assert compare(recording, folds=3, seed=5) == compare(recording, folds=3, seed=5)


def test_one_arm_can_be_compared_with_nothing_but_itself() -> None:
    c = compare(made({"only": 0.8}, tasks=30), folds=3)
    assert {r.strategy for r in c.rows} == {"only", "best single arm, chosen", "oracle: any call right"}


def test_a_users_play_comes_from_json_or_from_python(tmp_path: Path) -> None:
    (tmp_path / "play.json").write_text(json.dumps(dump(Ask("a") & Ask("b"))))
    (tmp_path / "plays.py").write_text(
        "from playcall.strategies import Ask\nmine = Ask('a')\ndef made():\n    return 3 * mine\nbad = 7\n"
    )
    assert strategy_file(str(tmp_path / "play.json")) == {"play": Ask("a") & Ask("b")}
    assert strategy_file(f"{tmp_path}/plays.py:mine") == {"mine": Ask("a")}
    assert strategy_file(f"{tmp_path}/plays.py:made") == {"made": 3 * Ask("a")}
    for bad in ("plays.py:bad", "plays.py:nothing", "nowhere.py:mine", "nowhere.json"):
        with pytest.raises(Misuse):
            strategy_file(f"{tmp_path}/{bad}")


def test_a_perfect_checker_is_said_loudly_and_lets_a_cheap_arm_go_first(shared: Path) -> None:
    recording = read_table(shared / "agentopt_combos.parquet", where=["dataset=agentopt_gpqa"], verifier="score")
    assert recording.graded_by_checker
    c = compare(recording, folds=5)
    assert any("THE SCORES ARE THE GRADES" in note for note in c.notes)
    rows = {r.strategy: r for r in c.rows}
    assert rows["cascade, half the cost"].difference_low > 0  # published: 0.854 at 39.5% of Opus's cost


def test_recordings_are_typed() -> None:
    assert isinstance(made(ARMS, tasks=10), Recording)
