"""The end of a race: who leads, by how much, how sure, and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np
from scipy.stats import t

from playcall.calibration.sequences import mean_bounds
from playcall.portfolio.board import Board, Worth
from playcall.portfolio.effects import RoleEffect, role_effects
from playcall.portfolio.race import Race
from playcall.portfolio.racing import Paired
from playcall.portfolio.rivals import best_of
from playcall.strategies.panel import Floats, Mask

_ALIKE = 1e-12
MANY = 6  # arms: the spread of fewer tells too little of what luck does


@dataclass(frozen=True)
class Racer:
    """What the race found out about one arm.

    `quality` is the mean score on its items and `low` to `high` its interval for new tasks, which holds for all arms
    and at all moments together, so for the chosen one too; `corrected` is that mean drawn to the mean of all arms by
    empirical Bayes, since the best of many is partly luck (of fewer than MANY arms it is the mean itself). `behind` is
    what the chosen arm is better by, with `ahead` the most that this arm may be better by. Costs are USD an item, with
    95% intervals by Student's t; latencies seconds.
    """

    arm: str
    state: str  # chosen, tied, in the set, out, not asked
    asked: int
    failures: int
    quality: float
    low: float
    high: float
    corrected: float
    cost: float
    cost_low: float
    cost_high: float
    latency: float
    behind: float
    ahead: float


@dataclass(frozen=True)
class Raced:
    """The end of a race, or how it stands. With probability 1 - delta the arm that is best on all the items is among
    `survivors`, and the chosen one loses at most `regret_bound` to it (None where the method proves nothing)."""

    chosen: str | None  # None where no arm clears the threshold, or none was asked
    survivors: tuple[str, ...]
    ties: tuple[str, ...]  # other arms that did exactly as well on the same items
    arms: tuple[Racer, ...]  # the best first
    effects: tuple[RoleEffect, ...]
    regret_bound: float | None
    regret_bound_new: float | None  # on new tasks of the kind
    expected_regret: float | None
    delta: float
    method: str
    objective: str
    evaluations: int
    brute_force_evaluations: int
    dollars: float
    brute_force_dollars: float  # estimated from what was seen, unless all of it is known
    items: int
    stopped: str  # why it ended

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; None where there is no number."""
        return plain(asdict(self))


def result(race: Race, brute_force_dollars: float | None = None) -> Raced:
    """How a race stands; what all of it would cost is estimated unless told."""
    board, method, rules = race.board, race.method, race.rules
    asked = board.asked > 0
    chosen = method.choice(board) if asked.any() else None
    survivors = method.survivors(board) if asked.any() else ~asked
    now = method.standing(board) if isinstance(method, Paired) and chosen is not None else None
    most = 1.0 if rules.worth == Worth() else np.inf  # that scores can differ by
    racers, ties = _racers(race, best_of(board) if chosen is None and asked.any() else chosen, survivors)
    cost = board.mean_of(1)
    whole = float(np.where(asked, cost, cost[asked].mean()).sum() * board.items) if asked.any() else np.nan
    return Raced(
        chosen=None if chosen is None else board.arms[chosen],
        survivors=tuple(board.arms[k] for k in np.flatnonzero(survivors)),
        ties=ties,
        arms=racers,
        effects=role_effects(board, race.roles),
        regret_bound=None if now is None else min(most, max(0.0, float(now.upper.max()))),
        regret_bound_new=None if now is None else min(most, max(0.0, float(now.beyond.max()))),
        expected_regret=None if now is None else float(now.regret[survivors].sum()),
        delta=rules.delta,
        method=rules.method,
        objective=rules.objective,
        evaluations=board.evaluations,
        brute_force_evaluations=board.items * len(board.arms),
        dollars=board.spent,
        brute_force_dollars=whole if brute_force_dollars is None else brute_force_dollars,
        items=board.items,
        stopped=race.stopped or "not ended",
    )


def _racers(race: Race, chosen: int | None, survivors: Mask) -> tuple[tuple[Racer, ...], tuple[str, ...]]:
    """(arms, the best first; those that are tied with the chosen one)."""
    board, method, n = race.board, race.method, len(race.board.arms)
    behind, upper, common = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64)
    if chosen is not None:
        difference, _, common = board.differences(chosen)
        behind = np.where(common > 0, -difference, np.nan)
        upper = method.standing(board).upper if isinstance(method, Paired) else upper
    tied = survivors & (common == board.items) & (abs(behind) < _ALIKE) & (np.arange(n) != chosen)
    states = np.where(board.asked == 0, "not asked", np.where(tied, "tied", np.where(survivors, "in the set", "out")))
    if chosen is not None:
        states[chosen] = "chosen"
    quality, low, high, corrected = _qualities(board, race.rules.delta)
    cost, off, latency = board.mean_of(1), _spread(board, 1), board.mean_of(2)
    racers = [
        Racer(
            arm=board.arms[k],
            state=str(states[k]),
            asked=int(board.asked[k]),
            failures=int(board.failures[k]),
            quality=float(quality[k]),
            low=float(low[k]),
            high=float(high[k]),
            corrected=float(corrected[k]),
            cost=float(cost[k]),
            cost_low=float(np.maximum(0.0, cost[k] - off[k])),
            cost_high=float(cost[k] + off[k]),
            latency=float(latency[k]),
            behind=float(behind[k]),
            ahead=float(upper[k]),
        )
        for k in range(n)
    ]
    order = ("chosen", "tied", "in the set", "out", "not asked")
    racers.sort(key=lambda r: (order.index(r.state), -r.quality if r.asked else 0.0))
    return tuple(racers), tuple(board.arms[k] for k in np.flatnonzero(tied))


def _qualities(board: Board, delta: float) -> tuple[Floats, Floats, Floats, Floats]:
    """(mean score, low, high, corrected) by arm, NaN where it was not asked."""
    there, n = board.asked > 0, np.maximum(board.asked, 1)
    mean = board.mean_of(0)
    low, high = mean_bounds(board.totals[0], board.asked.astype(float), delta / len(board.arms))
    corrected = mean.copy()
    if there.sum() >= MANY:
        pooled = float((board.squares[0] - board.totals[0] ** 2 / n)[there].sum() / board.evaluations)
        error = max(pooled, 0.25 / board.evaluations) / n[there]
        centre, between = float(mean[there].mean()), 0.0
        for _ in range(30):  # Paule and Mandel 1982
            weight = 1 / (error + between)
            centre = float((weight * mean[there]).sum() / weight.sum())
            excess = float((weight * (mean[there] - centre) ** 2).sum()) - (there.sum() - 1)
            slope = float((weight**2 * (mean[there] - centre) ** 2).sum())
            between = max(0.0, between + excess / slope) if slope else 0.0
        keep = between / (between + error)
        corrected[there] = keep * mean[there] + (1 - keep) * centre
    return mean, np.where(there, low, np.nan), np.where(there, high, np.nan), corrected


def _spread(board: Board, what: int) -> Floats:
    """Half a 95% interval of a mean, by Student's t."""
    n = np.maximum(board.asked, 2)
    variance = np.maximum(board.squares[what] / n - (board.totals[what] / n) ** 2, 0.0) * n / (n - 1)
    return np.where(board.asked > 1, t.ppf(0.975, n - 1) * np.sqrt(variance / n), np.nan)


def plain(told: Any) -> Any:
    """As JSON takes it: None where there is no number."""
    if isinstance(told, dict):
        return {key: plain(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [plain(value) for value in told]
    if isinstance(told, float | np.floating):
        return float(told) if isfinite(told) else None
    return told
