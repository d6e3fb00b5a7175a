"""The cheapest arm whose quality clears a threshold, cheap arms first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from playcall.calibration.sequences import effective_size, half_width
from playcall.portfolio.board import Board
from playcall.strategies import Misuse
from playcall.strategies.panel import Mask

_PRIOR, _LEAST = 3.0, 0.02  # as in the paired race


@dataclass
class Cheapest:
    """Asks the cheapest arm in doubt until it is known to be on one side of the threshold; an arm that clears it makes
    all dearer ones needless. With probability 1 - delta no arm is put on the wrong side by more than `epsilon`."""

    threshold: float
    epsilon: float = 0.02
    delta: float = 0.1
    first: int = 15
    batch: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise Misuse(f"threshold={self.threshold!r}: give a quality above 0 and at most 1.")

    def sides(self, board: Board) -> tuple[Mask, Mask]:
        """(clears, fails), by arm; neither for one in doubt."""
        size = effective_size(np.maximum(board.asked, 1).astype(float), board.items)
        variance = np.maximum(board.variances() * board.asked / (board.asked + _PRIOR), _LEAST)
        wide = np.sqrt(variance) * half_width(size, self.delta / len(board.arms))
        known, mean = board.asked >= min(self.first, board.items), board.means()
        margin = np.where(board.asked < board.items, self.epsilon, 0.0)
        return known & (mean - wide >= self.threshold - margin), known & (mean + wide < self.threshold)

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

    def choice(self, board: Board) -> int:
        """The cheapest that clears; where none does, the best mean."""
        clears, _ = self.sides(board)
        if clears.any():
            return int(np.argmin(np.where(clears, board.mean_of(1), np.inf)))
        return int(np.argmax(np.where(board.asked > 0, board.means(), -np.inf)))
