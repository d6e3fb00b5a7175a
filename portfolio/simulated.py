"""Races on recorded outcomes: one, or many in orders of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from playcall.portfolio.board import Outcome, Worth
from playcall.portfolio.race import Cell, Race, Rules
from playcall.portfolio.raced import Raced, plain, result
from playcall.strategies import NANO, Recording
from playcall.strategies.panel import Floats, Ints

_ALIKE = 1e-12


@dataclass(frozen=True)
class Grid:
    """Every arm's outcome on every item: arrays (items, arms) of scores, USD, seconds and whether it failed."""

    arms: tuple[str, ...]
    score: Floats
    cost: Floats
    seconds: Floats
    failed: Floats

    @classmethod
    def of(cls, recording: Recording) -> Grid:
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


def replay(table: Grid, rules: Rules, roles: Sequence[Mapping[str, str]] | None = None) -> tuple[Race, Raced]:
    """Run a race on recorded outcomes. A cap on USD is kept to the cent: the cell that would pass it is not run."""
    race = Race(table.arms, len(table.score), rules, roles)
    _run(race, table)
    return race, result(race, float(table.cost.sum()))


def _run(race: Race, table: Grid) -> float:
    """To its end; returns the seconds that choosing took."""
    cap, choosing, spent = race.rules.max_usd, 0.0, 0.0
    while True:
        began = time.perf_counter()
        cells = race.wanted()
        choosing += time.perf_counter() - began
        if not cells:
            return choosing
        taken = dict[Cell, Outcome]()
        for cell in cells:
            outcome = table.outcome(*cell)
            if cap is not None and spent + outcome.cost > cap:
                race.stop(f"max_usd is reached: the next run would pass {cap:g} USD")
                break
            spent += outcome.cost
            taken[cell] = outcome
        began = time.perf_counter()
        race.take(taken)
        choosing += time.perf_counter() - began


@dataclass(frozen=True)
class Simulated:
    """Many races on one table, each in an order of its own. Regrets are in what an item is worth, or with a threshold
    the quality by which it is missed; where no arm clears that, to choose none is to have found the best."""

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
    table: Grid,
    seeds: int,
    rules: Rules,
    roles: Sequence[Mapping[str, str]] | None = None,
    tell: Callable[[int, int], object] = lambda done, of: None,
) -> Simulated:
    """Replay a race in `seeds` orders, and compare with what the whole table says is best."""
    best = _best(table, rules)
    regrets, evaluations, found, eliminated, dollars, seconds = [], [], [], [], [], 0.0
    for seed in range(seeds):
        race = Race(table.arms, len(table.score), replace(rules, seed=rules.seed + seed), roles)
        seconds += _run(race, table)
        chosen = race.method.choice(race.board) if race.board.evaluations else None
        found.append(chosen in best if best.size else chosen is None)
        regrets.append(_regret(table, chosen, rules))
        evaluations.append(race.board.evaluations)
        eliminated.append(bool(best.size) and not race.method.survivors(race.board)[best].any())
        dollars.append(race.board.spent)
        tell(seed + 1, seeds)
    return Simulated(
        seeds,
        float(np.mean(evaluations)),
        float(np.mean(found)),
        float(np.mean(regrets)),
        float(np.max(regrets)),
        float(np.mean(eliminated)),
        float(np.mean(dollars)),
        float(table.cost.sum()),
        table.score.size,
        seconds / max(1, sum(evaluations)),
    )


def _best(table: Grid, rules: Rules) -> Ints:
    """The arms that the whole table says are best; none where none clears the threshold."""
    if rules.threshold is None:
        worth = table.worth(rules.worth)
        return np.flatnonzero(worth >= worth.max() - _ALIKE)
    clear = table.score.mean(0) >= rules.threshold - _ALIKE
    if not rules.seeks_cheapest:
        return np.flatnonzero(clear & (table.score.mean(0) >= table.score.mean(0).max() - _ALIKE))
    cost = np.where(clear, table.cost.mean(0), np.inf)
    return np.flatnonzero(clear & (cost <= cost.min() + _ALIKE))


def _regret(table: Grid, chosen: int | None, rules: Rules) -> float:
    """What is lost: worth, that of an arm at random where none was chosen; for the cheapest arm that clears a
    threshold, the quality by which it does not."""
    if rules.seeks_cheapest and rules.threshold is not None:
        return 0.0 if chosen is None else max(0.0, rules.threshold - float(table.score.mean(0)[chosen]))
    worth = table.worth(rules.worth)
    return float(worth.max() - (worth.mean() if chosen is None else worth[chosen]))
