"""Races on recorded outcomes: one, or many in orders of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np

from playcall.portfolio.board import Outcome, Worth
from playcall.portfolio.race import Cell, Race, Rules
from playcall.portfolio.raced import Raced, plain, result
from playcall.strategies import NANO, Recording
from playcall.strategies.panel import Floats, Ints

_ALIKE = 1e-12


@dataclass(frozen=True)
class Table:
    """Every arm's outcome on every item: arrays (items, arms) of scores, USD, seconds and whether it failed."""

    arms: tuple[str, ...]
    score: Floats
    cost: Floats
    seconds: Floats
    failed: Floats

    @classmethod
    def of(cls, recording: Recording) -> Table:
        """The first draw of each arm on each task. A failed call scored 0."""
        draws = list(recording.arms.values())
        columns = [[d.quality[:, 0], d.price[:, 0] / NANO, d.latency[:, 0] / 1e6, d.failed[:, 0]] for d in draws]
        score, cost, seconds, failed = (np.column_stack(told) for told in zip(*columns))
        return cls(tuple(recording.arms), score, cost, seconds, failed)

    def outcome(self, arm: int, item: int) -> Outcome:
        """Of one cell."""
        cell = item, arm
        return Outcome(
            float(self.score[cell]), float(self.cost[cell]), float(self.seconds[cell]), bool(self.failed[cell])
        )

    def worth(self, worth: Worth) -> Floats:
        """What an item of each arm is worth, on all items."""
        return (self.score - worth.cost_weight * self.cost - worth.latency_weight * self.seconds).mean(0)


def replay(table: Table, rules: Rules, roles: Sequence[Mapping[str, str]] | None = None) -> tuple[Race, Raced]:
    """Run a race on recorded outcomes. A cap on USD is kept to the cent: the cell that would pass it is not run."""
    race = Race(table.arms, len(table.score), rules, roles)
    cap, most = rules.max_usd, rules.max_calls
    while cells := race.wanted():
        spent, taken = race.board.spent, dict[Cell, Outcome]()
        for arm, item in cells:
            outcome = table.outcome(arm, item)
            if cap is not None and spent + outcome.cost > cap:
                race.stop(f"max_usd is reached: the next run would pass {cap:g} USD")
                break
            if most is not None and race.board.evaluations + len(taken) >= most:
                race.stop(f"max_calls is reached: {most}")
                break
            spent += outcome.cost
            taken[arm, item] = outcome
        race.take(taken)
    return race, result(race, float(table.cost.sum()))


@dataclass(frozen=True)
class Simulated:
    """Many races on one table, each in an order of its own. Regrets are in what an item is worth; dollars are means."""

    seeds: int
    evaluations: float
    found_best: float
    regret_mean: float
    regret_worst: float
    best_eliminated: float
    dollars: float
    brute_force_dollars: float
    brute_force_evaluations: int
    seconds_per_evaluation: float  # of choosing what to ask, not of asking

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return plain(asdict(self))


def simulate(
    table: Table,
    seeds: int,
    rules: Rules,
    roles: Sequence[Mapping[str, str]] | None = None,
    tell: Callable[[int, int], object] = lambda done, of: None,
) -> Simulated:
    """Replay a race in `seeds` orders, and compare with what the whole table says is best."""
    worth = table.worth(rules.worth)
    best = _best(table, worth, rules)
    regrets, evaluations, eliminated, dollars, seconds = [], [], [], [], 0.0
    for seed in range(seeds):
        race = Race(table.arms, len(table.score), replace(rules, seed=rules.seed + seed), roles)
        while True:
            began = time.perf_counter()
            cells = race.wanted()
            seconds += time.perf_counter() - began
            if not cells:
                break
            outcomes = {cell: table.outcome(*cell) for cell in cells}
            began = time.perf_counter()
            race.take(outcomes)
            seconds += time.perf_counter() - began
        board = race.board
        chosen = race.method.choice(board)
        regrets.append(_regret(table, worth, best, chosen, rules))
        evaluations.append(board.evaluations)
        eliminated.append(not race.method.survivors(board)[best].any())
        dollars.append(board.spent)
        tell(seed + 1, seeds)
    return Simulated(
        seeds,
        float(np.mean(evaluations)),
        float(np.mean(np.array(regrets) < _ALIKE)),
        float(np.mean(regrets)),
        float(np.max(regrets)),
        float(np.mean(eliminated)),
        float(np.mean(dollars)),
        float(table.cost.sum()),
        table.score.size,
        seconds / max(1, sum(evaluations)),
    )


def _best(table: Table, worth: Floats, rules: Rules) -> Ints:
    """The arms that the whole table says are best."""
    if (threshold := rules.threshold) is None or not rules.seeks_cheapest:
        return np.flatnonzero(worth >= worth.max() - _ALIKE)
    clear = table.score.mean(0) >= threshold
    if not clear.any():
        return np.flatnonzero(worth >= worth.max() - _ALIKE)
    cost = np.where(clear, table.cost.mean(0), inf)
    return np.flatnonzero(cost <= cost.min() + _ALIKE)


def _regret(table: Table, worth: Floats, best: Ints, chosen: int, rules: Rules) -> float:
    """What is lost: worth; for the cheapest arm that clears a threshold, the quality by which it does not."""
    if (threshold := rules.threshold) is None or not rules.seeks_cheapest:
        return float(worth.max() - worth[chosen])
    return 0.0 if chosen in best else max(0.0, float(threshold - table.score.mean(0)[chosen]))
