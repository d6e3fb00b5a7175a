"""A race: arms on shared items, until one is shown to be the best, or as good as."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from playcall.portfolio.board import Board, Outcome, Worth
from playcall.portfolio.cheapest import Cheapest
from playcall.portfolio.effects import roles_of
from playcall.portfolio.racing import Method, Paired
from playcall.portfolio.rivals import (
    ArmElimination,
    BayesianOptimisation,
    BruteForce,
    EpsilonLUCB,
    HillClimbing,
    Random,
    SuccessiveHalving,
    ThresholdElimination,
)
from playcall.strategies import Misuse
from playcall.strategies.panel import Ints

METHODS = (
    *("paired", "brute-force", "successive-halving", "arm-elimination", "epsilon-lucb", "threshold-elimination"),
    *("hill-climbing", "bayesian-optimisation", "random"),
)
Cell = tuple[int, int]
"""(arm, item)."""


@dataclass(frozen=True)
class Rules:
    """What a race is for, how it is run, and when it stops.

    `epsilon` is what the best arm may be better by, proved; None asks for no proof. `regret` is what it may be better
    by in expectation, `delta` the chance that the confidence set lacks the best arm. With a `threshold` the paired
    race looks for the cheapest arm of at least this quality.
    """

    method: str = "paired"  # one of METHODS
    epsilon: float | None = None
    regret: float = 0.0025
    delta: float = 0.1
    first: int = 15  # items of each arm before any is out
    batch: int = 5
    threshold: float | None = None
    cost_weight: float = 0.0  # quality that one USD is worth
    latency_weight: float = 0.0  # quality that one second is worth
    max_usd: float | None = None
    max_calls: int | None = None  # runs of an arm on an item
    max_seconds: float | None = None
    seed: int = 0  # of the order of the items

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise Misuse(f"method {self.method!r}: write one of {', '.join(METHODS)}.")
        for name in ("max_usd", "max_calls", "max_seconds", "cost_weight", "latency_weight", "regret", "epsilon"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value < inf):
                raise Misuse(f"{name}={value!r}: give a number, zero or more.")
        if not 0 < self.delta < 1:
            raise Misuse(f"delta={self.delta!r}: give a chance between 0 and 1, such as 0.1.")
        if self.first < 2 or self.batch < 1:
            raise Misuse(f"first={self.first}, batch={self.batch}: give 2 or more, and 1 or more.")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise Misuse(f"threshold={self.threshold!r}: give a quality above 0 and at most 1.")
        if self.threshold is not None and self.method not in ("paired", "threshold-elimination"):
            raise Misuse(f"a threshold says nothing to method {self.method!r}: take paired or threshold-elimination.")
        if self.threshold is not None and (self.cost_weight or self.latency_weight):
            raise Misuse("a threshold wants the cheapest arm, weights a trade-off: give one of them.")

    @property
    def seeks_cheapest(self) -> bool:
        """Whether the cheapest arm that clears the threshold is wanted."""
        return self.threshold is not None and self.method == "paired"

    @property
    def worth(self) -> Worth:
        """What outcomes are worth."""
        return Worth(self.cost_weight, self.latency_weight)

    @property
    def objective(self) -> str:
        """What is wanted, in words."""
        if self.seeks_cheapest:
            return f"the cheapest arm of quality {self.threshold:g} or more"
        weights = (self.cost_weight, "USD"), (self.latency_weight, "second")
        told = " and ".join(f"{weight:g} a {unit}" for weight, unit in weights if weight)
        return f"quality less {told}" if told else "quality"


class Race:
    """Arms on items. `wanted` tells what to run next, `take` is told what came of it; `raced.result` says who leads.

    It depends on nothing but the outcomes, so that a race that was broken off comes to the same end when it is told
    the same outcomes again.
    """

    def __init__(
        self,
        arms: Sequence[str],
        items: int,
        rules: Rules | None = None,
        roles: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        if not arms or len(set(arms)) < len(arms):
            raise Misuse(f"a race needs arms, each once; it was given {list(arms)[:5]}.")
        if items < 1:
            raise Misuse("a race needs items; it was given none.")
        self.rules = rules or Rules()
        self.board = Board(arms, items, self.rules.worth)
        self.roles = tuple(roles) if roles is not None else tuple(map(roles_of, arms))
        self.order: Ints = np.random.default_rng(self.rules.seed).permutation(items)
        self.method = method_of(self.rules, self.roles)
        self.stopped = ""  # why it ended
        self._row = {int(item): row for row, item in enumerate(self.order)}
        self._ahead: dict[Cell, Outcome] = {}  # by (arm, row): beyond a cell that is still missing
        self._began = time.monotonic()

    def wanted(self) -> list[Cell]:
        """What to run now, in this order or together; nothing when the race is over."""
        while not self.stopped:
            upto = {k: n for k, n in self.method.ask(self.board).items() if n > self.board.asked[k]}
            if not upto:
                self.stopped = "done"
                break
            rows = [(row, k) for k, n in upto.items() for row in range(int(self.board.asked[k]), n)]
            cells = [(k, int(self.order[row])) for row, k in sorted(rows) if (k, row) not in self._ahead]
            if self._capped():
                break
            if cells:
                most = self.rules.max_calls
                return cells if most is None else cells[: most - self.board.evaluations - len(self._ahead)]
            self._settle()
        return []

    def take(self, outcomes: Mapping[Cell, Outcome]) -> None:
        """What came of cells. Those that are missing are wanted again. Raises Misuse, and takes nothing, where a cell
        is none of this race's or an outcome is no number."""
        for (arm, item), outcome in outcomes.items():
            if not 0 <= arm < len(self.board.arms) or item not in self._row:
                raise Misuse(
                    f"cell ({arm}, {item}): there are {len(self.board.arms)} arms and {self.board.items} items."
                )
            if not all(map(isfinite, (outcome.score, outcome.cost, outcome.seconds))):
                raise Misuse(
                    f"arm {self.board.arms[arm]!r}, item {item}: {outcome} is no outcome; a failed run scores 0."
                )
        self._ahead |= {(k, self._row[item]): outcome for (k, item), outcome in outcomes.items()}
        self._settle()

    def stop(self, why: str) -> None:
        """End it here."""
        self.stopped = self.stopped or why

    def _settle(self) -> None:
        for k in {k for k, _ in self._ahead}:
            found, row = list[Outcome](), int(self.board.asked[k])
            while (outcome := self._ahead.pop((k, row), None)) is not None:
                found.append(outcome)
                row += 1
            self.board.add(k, found)

    def _capped(self) -> bool:
        rules, board = self.rules, self.board
        for name, used, unit in (
            ("max_usd", board.spent, "USD"),
            ("max_calls", board.evaluations + len(self._ahead), "runs"),
            ("max_seconds", time.monotonic() - self._began, "seconds"),
        ):
            if (cap := getattr(rules, name)) is not None and used >= cap:
                self.stop(f"{name} is reached: {used:.6g} of {cap:g} {unit}")
        return bool(self.stopped)


def method_of(rules: Rules, roles: Sequence[Mapping[str, str]]) -> Method:
    """The method that some rules name."""
    if rules.seeks_cheapest and rules.threshold is not None:
        margin = 0.02 if rules.epsilon is None else rules.epsilon
        return Cheapest(rules.threshold, margin, rules.delta, rules.first, rules.batch)
    proof = 0.05 if rules.epsilon is None else rules.epsilon
    made: dict[str, Callable[[], Method]] = {
        "paired": lambda: Paired(rules.epsilon, rules.regret, rules.delta, rules.first, rules.batch),
        "brute-force": BruteForce,
        "successive-halving": SuccessiveHalving,
        "arm-elimination": ArmElimination,
        "epsilon-lucb": lambda: EpsilonLUCB(proof, rules.delta, rules.first, rules.batch),
        "threshold-elimination": lambda: ThresholdElimination(0.5 if rules.threshold is None else rules.threshold),
        "hill-climbing": lambda: HillClimbing(seed=rules.seed, roles=roles),
        "bayesian-optimisation": lambda: BayesianOptimisation(seed=rules.seed, roles=roles),
        "random": lambda: Random(seed=rules.seed),
    }
    return made[rules.method]()
