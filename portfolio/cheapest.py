"""The cheapest arm whose quality clears a threshold, cheap arms first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

import numpy as np

from playcall.calibration.sequences import evidence
from playcall.portfolio.board import Board
from playcall.strategies.panel import Mask


@dataclass
class Cheapest:
    """Asks the cheapest arm in doubt until it is known to be on one side of the threshold; an arm that clears it makes
    all dearer ones needless. With probability 1 - delta no arm is put on the wrong side by more than `epsilon`. What is
    cheap goes by mean costs so far."""

    threshold: float
    epsilon: float = 0.02
    delta: float = 0.1
    first: int = 15
    batch: int = 10
    _told: dict[int, tuple[int, bool, bool]] = field(default_factory=dict, repr=False)  # by arm: items, clears, fails

    def sides(self, board: Board) -> tuple[Mask, Mask]:
        """(clears, fails), by arm; neither for one in doubt. Exact for scores in [0, 1], at every moment."""
        found = [self._side(board, k) for k in range(len(board.arms))]
        return np.array([clears for clears, _ in found]), np.array([fails for _, fails in found])

    def _side(self, board: Board, arm: int) -> tuple[bool, bool]:
        n = int(board.asked[arm])
        told = self._told.get(arm)
        if told is None or told[0] != n:
            values = board.values[:n, arm]
            if n < board.items:
                level = log(len(board.arms) / self.delta)
                clears = evidence(values, self.threshold - self.epsilon, board.items, above=True) > level
                fails = not clears and evidence(values, self.threshold, board.items, above=False) > level
            else:
                clears = float(values.mean()) >= self.threshold - 1e-12
                fails = not clears
            told = self._told[arm] = n, clears, fails
        return told[1], told[2]

    def ask(self, board: Board) -> Mapping[int, int]:
        """The first items of all, then a batch of the cheapest arm in doubt."""
        first = min(self.first, board.items)
        if (board.asked < first).any():
            return {int(k): first for k in np.flatnonzero(board.asked < first)}
        clears, fails = self.sides(board)
        cost = board.mean_of(1)
        doubt = ~clears & ~fails & (cost < cost[clears].min(initial=np.inf)) & (board.asked < board.items)
        if not doubt.any():
            return {}
        arm = int(np.argmin(np.where(doubt, cost, np.inf)))
        return {arm: min(board.items, int(board.asked[arm]) + self.batch)}

    def survivors(self, board: Board) -> Mask:
        """Those that may be the answer: not known to fail, and no dearer than one that clears."""
        clears, fails = self.sides(board)
        cost = board.mean_of(1)
        return ~fails & ((board.asked == 0) | (cost <= cost[clears].min(initial=np.inf)))

    def choice(self, board: Board) -> int | None:
        """The cheapest that clears, None where none does."""
        clears, _ = self.sides(board)
        return int(np.argmin(np.where(clears, board.mean_of(1), np.inf))) if clears.any() else None
