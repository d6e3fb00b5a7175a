"""Races: sums that are right, bounds that hold, the best arm found for a part of the bill, failures and ties told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from playcall.calibration.sequences import effective_size, evidence, half_width, mean_bounds
from playcall.evals.table import read_table
from playcall.portfolio import Grid, Outcome, Race, Rules, replay, result, simulate
from playcall.portfolio.board import Board, Worth
from playcall.portfolio.effects import role_effects, roles_of
from playcall.portfolio.race import METHODS
from playcall.portfolio.racing import Paired
from playcall.strategies import Misuse


def made(p: list[float], items: int, seed: int = 0, rho: float = 0.0, cost: float = 0.01) -> Grid:
    """Arms of these qualities, their errors correlated by rho."""
    rng = np.random.default_rng(seed)
    hard = np.sqrt(rho) * rng.standard_normal((items, 1)) + np.sqrt(1 - rho) * rng.standard_normal((items, len(p)))
    score = (hard < norm.ppf(p)).astype(float)
    costs = np.full_like(score, cost) * np.arange(1, len(p) + 1)
    names = tuple(f"a{i}" for i in range(len(p)))
    return Grid(names, score, costs, np.ones_like(score), np.zeros(score.shape, bool))


def ran(table: Grid, **rules: object) -> tuple[Race, float]:
    """A replayed race, and what its choice loses on the whole table."""
    race, told = replay(table, Rules(**rules))  # type: ignore[arg-type]
    worth = table.worth(race.rules.worth)
    assert told.chosen is not None
    return race, float(worth.max() - worth[table.arms.index(told.chosen)])


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_the_boards_sums_are_those_of_what_was_added(seed: int, steps: list[tuple[int, int]]) -> None:
    values = np.random.default_rng(seed).random((40, 4))
    board = Board("abcd", 40)
    for arm, more in steps:
        start = int(board.asked[arm])
        board.add(arm, [Outcome(v) for v in values[start : min(40, start + more), arm]])
    for leader in range(4):
        mean, variance, both = board.differences(leader)
        for k in range(4):
            n = min(board.asked[k], board.asked[leader])
            assert both[k] == n
            if n:
                apart = values[:n, k] - values[:n, leader]
                assert mean[k] == pytest.approx(apart.mean(), abs=1e-9)
                assert variance[k] == pytest.approx(apart.var(), abs=1e-9)


def test_utility_counts_cost_and_latency_item_by_item() -> None:
    worth = Worth(cost_weight=2.0, latency_weight=0.1)
    board = Board("ab", 3, worth)
    board.add(0, [Outcome(1.0, 0.1, 2.0), Outcome(0.0, 0.3, 1.0)])
    assert board.means()[0] == pytest.approx(((1 - 0.2 - 0.2) + (0 - 0.6 - 0.1)) / 2)
    assert board.spent == pytest.approx(0.4)


def test_a_confidence_sequence_holds_at_all_moments_together() -> None:
    """Means of 2,000 runs of 400 draws, looked at after each from the 15th: at most alpha of them ever stray."""
    rng = np.random.default_rng(0)
    for draws in (rng.standard_normal((2000, 400)), (rng.random((2000, 400)) < 0.3) - 0.3):
        n = np.arange(1, 401)
        mean = np.cumsum(draws, 1) / n
        deviation = np.sqrt(np.maximum((np.cumsum(draws**2, 1) / n) - mean**2, 0.02))
        strays = (mean > deviation * half_width(n.astype(float), 0.1))[:, 15:].any(1)
        assert strays.mean() <= 0.1


def test_the_last_of_all_items_leaves_no_doubt() -> None:
    assert effective_size(np.array([50.0, 100.0]), 100).tolist() == [100.0, np.inf]
    assert half_width(np.array([np.inf]), 0.1).tolist() == [0.0]
    assert effective_size(np.array([50.0]), None).tolist() == [50.0]


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_best_arm_is_put_out_in_at_most_delta_of_a_thousand_races(rho: float) -> None:
    lost = broken = 0
    for seed in range(500):
        table = made([0.6, 0.58, 0.55, 0.5], 100, seed, rho)
        _, told = replay(table, Rules(delta=0.1, batch=20, regret=0.0005))
        worth = table.worth(Worth())
        best = {a for a, w in zip(table.arms, worth) if w >= worth.max() - 1e-12}
        lost += not best & set(told.survivors)
        assert told.chosen is not None
        assert told.regret_bound is not None
        broken += worth.max() - worth[table.arms.index(told.chosen)] > told.regret_bound + 1e-9
    assert lost / 500 <= 0.1
    assert broken / 500 <= 0.1


def test_pairing_costs_no_more_than_unpaired_elimination_on_independent_arms() -> None:
    """Arms without anything in common: no more runs, and no more regret."""
    unpaired, paired = list[tuple[float, float]](), list[tuple[float, float]]()
    for seed in range(120):
        table = made([0.75, 0.7, 0.65, 0.6, 0.5, 0.4], 300, seed)
        for told, rules in ((unpaired, {"method": "arm-elimination"}), (paired, {"regret": 0.001})):
            race, lost = ran(table, **rules)
            told.append((race.board.evaluations, lost))
    more, less = np.mean(unpaired, axis=0), np.mean(paired, axis=0)
    assert less[0] <= more[0]
    assert less[1] <= more[1]


def test_pairing_pays_where_arms_fail_on_the_same_items() -> None:
    apart, together = (
        np.mean([ran(made([0.7, 0.6, 0.5], 300, s, rho))[0].board.evaluations for s in range(30)]) for rho in (0.0, 0.8)
    )
    assert together < 0.8 * apart


def test_a_proof_of_epsilon_is_given_when_it_is_asked_for() -> None:
    for seed in range(20):
        _, told = replay(made([0.7, 0.68, 0.5, 0.3], 400, seed, 0.5), Rules(epsilon=0.05, seed=seed))
        assert told.regret_bound is not None
        assert told.regret_bound <= 0.05
        assert told.regret_bound_new is not None
        assert told.regret_bound_new >= told.regret_bound  # what holds for these items holds less for new ones
        assert told.chosen in told.survivors


def test_the_chosen_arms_figure_is_corrected_for_having_been_chosen() -> None:
    """Equal arms: the best mean is luck. The corrected one is nearer to the truth, and the interval holds it."""
    raw, corrected, held = [], [], []
    for seed in range(100):
        _, told = replay(made([0.6] * 12, 60, seed), Rules(batch=10))
        first = told.arms[0]
        raw.append(first.quality - 0.6)
        corrected.append(first.corrected - 0.6)
        held.append(first.low <= 0.6 <= first.high)
    assert abs(np.mean(corrected)) < abs(np.mean(raw)) / 3
    assert np.mean(held) >= 0.9


def test_ties_are_told_as_ties() -> None:
    table = made([0.7, 0.5, 0.3], 100)
    twins = replace(table, arms=(*table.arms, "twin"), score=np.c_[table.score, table.score[:, 0]],
                    cost=np.c_[table.cost, table.cost[:, 0]], seconds=np.c_[table.seconds, table.seconds[:, 0]],
                    failed=np.c_[table.failed, table.failed[:, 0]])  # fmt: skip
    _, told = replay(twins, Rules(regret=0.0))
    assert {told.chosen, *told.ties} == {"a0", "twin"}
    assert [r.state for r in told.arms[:2]] == ["chosen", "tied"]


def test_a_utility_race_finds_the_arm_that_is_worth_most() -> None:
    table = made([0.70, 0.69, 0.30], 300, rho=0.6)
    table = replace(table, cost=table.cost * np.array([20.0, 0.5, 0.1]))  # $0.20, $0.01 and $0.003
    race, _ = replay(table, Rules(cost_weight=0.5))
    assert race.board.arms[race.method.choice(race.board)] == "a1"
    assert result(race).objective == "quality less 0.5 a USD"
    slow = replace(table, cost=table.cost * 0, seconds=np.tile([30.0, 1.0, 1.0], (300, 1)))
    assert replay(slow, Rules(latency_weight=0.01))[1].chosen == "a1"


def test_the_cheapest_arm_that_clears_a_threshold_is_found_without_asking_the_dear_ones_much() -> None:
    table = made([0.5, 0.62, 0.8, 0.85, 0.9], 300, rho=0.3)
    race, told = replay(table, Rules(threshold=0.75))
    assert told.chosen == "a2"
    assert told.survivors == ("a2",)
    assert race.board.asked[3:].max() == race.rules.first
    assert told.dollars < 0.25 * told.brute_force_dollars
    nobody = replay(table, Rules(threshold=0.99))[1]
    assert nobody.chosen is None


def test_caps_are_hard() -> None:
    table = made([0.6, 0.55, 0.5], 200)
    _, told = replay(table, Rules(max_usd=0.5))
    assert told.dollars <= 0.5
    assert told.dollars > 0.5 - float(table.cost.max())
    assert "max_usd" in told.stopped
    assert replay(table, Rules(max_calls=37))[1].evaluations == 37
    late = Race(table.arms, 200, Rules(max_seconds=0.0))
    assert late.wanted() == []
    assert "max_seconds" in late.stopped
    nothing = result(late)
    assert (nothing.chosen, nothing.evaluations) == (None, 0)
    json.dumps(nothing.to_dict(), allow_nan=False)


def test_what_comes_late_or_in_pieces_leads_to_the_same_end() -> None:
    """Each cell alone and in any order, or some lost and asked again: as the whole batch at once."""
    table = made([0.7, 0.6, 0.5, 0.4], 80, rho=0.3)
    _, whole = replay(table, Rules())
    rng, race = np.random.default_rng(1), Race(table.arms, 80, Rules())
    while cells := race.wanted():
        some = [cells[i] for i in rng.permutation(len(cells))[: max(1, len(cells) // 2)]]
        race.take({cell: table.outcome(*cell) for cell in some})
    assert set(result(race).survivors) == set(whole.survivors)
    assert result(race).chosen == whole.chosen


def test_failures_count_as_nothing_and_are_told() -> None:
    table = made([0.7, 0.6], 50)
    failed = table.failed.copy()
    failed[:, 0] = np.arange(50) % 2 == 0
    table = replace(table, failed=failed, score=np.where(failed, 0.0, table.score))
    _, told = replay(table, Rules(method="brute-force"))
    assert {r.arm: r.failures for r in told.arms} == {"a0": 25, "a1": 0}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_in_the_same_interface(method: str) -> None:
    roles = [{"planner": p, "solver": s} for p in "xyz" for s in "uvw"]
    table = made([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], 60, rho=0.5)
    race, told = replay(table, Rules(method=method, seed=3), roles)
    assert told.chosen in told.survivors  # none returns an arm that it put out
    assert told.evaluations <= told.brute_force_evaluations
    assert race.stopped == "done"
    if method not in ("random", "hill-climbing", "bayesian-optimisation", "threshold-elimination"):
        assert told.chosen == "a0"
    json.dumps(told.to_dict(), allow_nan=False)
    assert simulate(table, 2, Rules(method=method), roles).regret_worst < 0.9


def test_role_effects_tell_which_roles_model_matters() -> None:
    rng, roles = np.random.default_rng(0), [{"planner": p, "solver": s} for p in "abc" for s in "xyz"]
    quality = np.array([[0.5 + 0.3 * (ord(r["solver"]) - ord("y")) for r in roles]])
    board = Board([" + ".join(f"{k}={v}" for k, v in r.items()) for r in roles], 200)
    for k in range(9):
        board.add(k, [Outcome(float(x)) for x in rng.random(200 if k % 2 else 60) < quality[0, k]])
    planner, solver = role_effects(board, [roles_of(arm) for arm in board.arms])
    assert (planner.role, solver.role) == ("planner", "solver")
    assert solver.low > planner.high
    assert solver.share > 0.9
    assert solver.models["z"] == pytest.approx(0.3, abs=0.08)
    assert roles_of("gpt-4") == {"model": "gpt-4"}


@pytest.mark.parametrize(
    "rules",
    [
        {"method": "guess"}, {"delta": 0.0}, {"delta": 1.5}, {"epsilon": -0.1}, {"max_usd": float("nan")},
        {"first": 1}, {"batch": 0}, {"threshold": 1.5}, {"threshold": 0.5, "cost_weight": 1.0},
    ],
)  # fmt: skip
def test_rules_that_mean_nothing_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        Race(["a", "b"], 5, Rules(**rules))  # type: ignore[arg-type]


def test_a_race_needs_arms_and_items() -> None:
    for arms, items in ((["a", "a"], 3), ([], 3), (["a"], 0)):
        with pytest.raises(Misuse):
            Race(arms, items)
    assert replay(made([0.5], 10), Rules())[1].chosen == "a0"
    assert replay(made([0.9, 0.1], 3), Rules())[1].evaluations == 6  # fewer items than the first batch


def shared_table(shared: Path, name: str, *where: str) -> Grid:
    return Grid.of(read_table(shared / f"{name}.parquet", where=where))


@pytest.mark.parametrize(
    ("name", "where", "most", "regret", "rules"),
    [
        ("agentopt_combos", ("dataset=agentopt_hotpotqa", "aligned=True"), 3000, 0.001, Rules()),
        ("agentopt_combos", ("dataset=agentopt_gpqa",), 550, 0.0065, Rules()),
        ("agentopt_combos", ("dataset=agentopt_bfcl",), 650, 0.0063, Rules()),
        ("cascade_mmlu", (), 1797, 0.05, Rules(epsilon=0.05)),
    ],
    ids=["hotpotqa", "gpqa", "bfcl", "mmlu"],
)
def test_recorded_agents_are_told_apart_for_a_part_of_the_bill(
    shared: Path, name: str, where: tuple[str, ...], most: int, regret: float, rules: Rules
) -> None:
    """Fewer orders than docs/racing.md reports, so that it is quick."""
    table = shared_table(shared, name, *where)
    told = simulate(table, 20 if table.score.size > 2000 else 100, rules)
    assert told.evaluations <= most
    assert told.regret_mean <= regret
    assert told.best_eliminated <= 0.1
    assert told.seconds_per_evaluation < 0.0002
    assert told.dollars < told.brute_force_dollars


def test_a_paired_race_shows_no_more_than_it_was_told() -> None:
    """Scores that it did not ask for do not matter."""
    table = made([0.7, 0.6, 0.5], 60)
    race, told = replay(table, Rules())
    hidden = table.score.copy()
    for k in range(3):
        hidden[race.order[race.board.asked[k] :], k] = 1 - hidden[race.order[race.board.asked[k] :], k]
    assert replay(replace(table, score=hidden), Rules())[1].to_dict() | {"brute_force_dollars": 0} == (
        told.to_dict() | {"brute_force_dollars": 0}
    )
    assert isinstance(race.method, Paired)


def test_the_interval_for_new_tasks_holds_at_every_moment_near_the_ends_too() -> None:
    rng = np.random.default_rng(0)
    for p in (0.02, 0.5, 0.97):
        total = np.cumsum(rng.random((500, 300)) < p, 1).astype(float)
        low, high = mean_bounds(total, np.broadcast_to(np.arange(1.0, 301), total.shape), 0.1)
        assert ((low > p) | (high < p)).any(1).mean() <= 0.1
    low, high = mean_bounds(np.array([0.0, 8.0, 0.0]), np.array([8.0, 8.0, 0.0]), 0.05)
    assert high[0] > 0.45  # none right of eight proves little
    assert low[1] == pytest.approx(1 - high[0])
    assert (low[2], high[2]) == (0, 1)


def test_an_arm_is_on_the_wrong_side_of_a_threshold_in_at_most_delta_of_races() -> None:
    """Of 20 arms, just below it, and all at once."""
    wrong = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        score = np.column_stack([rng.permutation(np.arange(300) < 234) for _ in range(20)]).astype(float)  # 0.78 each
        table = replace(made([0.5] * 20, 300), score=score)
        _, told = replay(table, Rules(threshold=0.82, seed=seed))
        wrong.append(told.chosen is not None)
    assert np.mean(wrong) <= 0.1


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 5), st.floats(0.05, 0.95))
def test_evidence_against_what_is_true_of_a_population_ends_small(x: list[float], more: int, mean: float) -> None:
    """Over all orders its end is worth 1 on average at most, so that it is rarely large; for what is false it grows."""
    values = np.array(x + [x[-1]] * more)
    rng = np.random.default_rng(0)
    for above in (True, False):
        level = min(1.0, values.mean() + 1e-6) if above else max(0.0, values.mean() - 1e-6)
        told = [evidence(rng.permutation(values), level, len(values), above=above) for _ in range(60)]
        assert np.mean(np.array(told) > np.log(10)) <= 0.3
    ones = np.ones(50)
    assert evidence(ones, mean, 1000, above=True) > 0
    assert evidence(ones, mean, 1000, above=False) == 0


def test_a_role_that_does_not_matter_is_told_so() -> None:
    rng, roles = np.random.default_rng(1), [{"planner": p, "solver": s} for p in "abcd" for s in "wxyz"]
    held, spreads = [], []
    for _ in range(30):
        hard = rng.random(200)
        board = Board([f"planner={r['planner']} + solver={r['solver']}" for r in roles], 200)
        for k, r in enumerate(roles):
            quality = 0.3 + 0.1 * "wxyz".index(r["solver"])
            board.add(k, [Outcome(float(x)) for x in rng.random(200) * 0.5 + hard * 0.5 < quality])
        planner, solver = role_effects(board, roles)
        held.append(planner.low == 0)
        spreads.append(planner.spread)
        assert solver.low > 0.02
        assert 0 <= planner.share + solver.share <= 1 + 1e-9
    assert np.mean(held) > 0.8
    assert np.mean(spreads) < 0.012


def test_a_simulation_keeps_the_caps_and_knows_where_nothing_clears() -> None:
    table = made([0.6, 0.55, 0.5], 200)
    assert simulate(table, 3, Rules(method="brute-force", max_calls=50)).evaluations == 50
    assert simulate(table, 3, Rules(method="brute-force", max_usd=0.5)).dollars <= 0.5
    nothing = simulate(table, 3, Rules(max_usd=0.0))
    assert (nothing.evaluations, nothing.found_best) == (0, 0)
    never = simulate(table, 3, Rules(threshold=0.95))
    assert (never.found_best, never.best_eliminated, never.regret_worst) == (1, 0, 0)
    assert Race(table.arms, 200, Rules(method="brute-force", max_calls=10)).wanted()[10:] == []
    assert replay(table, Rules(method="threshold-elimination", threshold=0.99))[1].chosen is None


def test_a_race_takes_nothing_that_it_cannot_use() -> None:
    race = Race(["a", "b"], 5)
    cells = race.wanted()
    for bad in ({(0, 9): Outcome(1.0)}, {(7, 0): Outcome(1.0)}, {(0, 0): Outcome(float("nan"))}):
        with pytest.raises(Misuse):
            race.take(bad)
    race.take({cell: Outcome(1.0) for cell in cells})
    assert race.board.evaluations == len(cells)


def test_odd_shapes_are_raced_too() -> None:
    one = made([0.5], 10)
    for method in METHODS:
        assert replay(one, Rules(method=method), [{}])[1].chosen == "a0"
    plays = made([0.5, 0.6, 0.7, 0.8], 20)
    assert replay(plays, Rules(method="bayesian-optimisation"), [{}] * 4)[1].chosen
    cut = replay(plays, Rules(max_calls=1))[1]
    assert cut.to_dict()["expected_regret"] is None  # arms were never asked
    sure = replay(replace(plays, score=np.tile([1.0, 0.0, 0.0, 0.0], (20, 1))), Rules())[1]
    assert sure.regret_bound_new == 0  # the leader is no rival of its own
