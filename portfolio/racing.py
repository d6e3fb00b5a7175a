"""The paired race: which arms to ask next, and which are out, by differences to the leader on shared items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.stats import norm

from playcall.calibration.sequences import effective_size, half_width
from playcall.portfolio.board import Board
from playcall.strategies.panel import Floats, Ints, Mask

_PRIOR = 3.0  # items' worth of the arms' mean variance, in each arm's own: a few equal scores prove nothing
_LEAST = 0.02  # variance of a difference
_SHARE = 0.3  # of the greatest expected regret: arms with more are asked further


class Method(Protocol):
    """Chooses what a race asks next. It sees the board and nothing else, so that a race can be replayed."""

    def ask(self, board: Board) -> Mapping[int, int]:
        """The number of items that arms should have next; nothing more when the race is over."""
        ...

    def survivors(self, board: Board) -> Mask:
        """The arms that may yet be the best."""
        ...

    def choice(self, board: Board) -> int | None:
        """The arm it recommends; None where none will do."""
        ...


@dataclass(frozen=True)
class Standing:
    """How far each arm is from the leader, in what an item is worth. Arrays by arm; the leader's own are 0, bounds of
    arms that were asked nothing infinite."""

    leader: int
    difference: Floats  # mean of the arm minus the leader
    upper: Floats  # on these items no difference is greater, with probability 1 - delta, at any moment of the race
    beyond: Floats  # the same on new items of the kind
    regret: Floats  # expected loss on these items by taking the leader where the arm is better, under normal errors
    common: Ints  # items that both have


@dataclass
class Paired:
    """Race by paired differences (Maron and Moore 1994, with anytime-valid bounds).

    An arm is out when the upper end of the confidence sequence of its difference to the leader is below zero: the arm
    that is best on all the items is out with probability at most delta, whenever one looks. The race is over when the
    arms that are left can beat the leader by no more than `epsilon` (None: ask for no proof) and are expected to beat
    it by no more than `regret` together. Arms that may still be worth much are asked first.
    """

    epsilon: float | None = None
    regret: float = 0.0025
    delta: float = 0.1
    first: int = 15  # items of each arm before it can be out
    batch: int = 5
    _out: Mask | None = field(default=None, repr=False)

    def standing(self, board: Board) -> Standing:
        """Differences to the leader, among the arms that are not out."""
        out = self._mask(board)
        score = np.where(out, -np.inf, board.standing())
        leader = int(np.argmax(score))
        mean, variance, both = board.differences(leader)
        others = ~out & (np.arange(len(out)) != leader) & (both > 0)
        pooled = variance[others].mean() if others.any() else 0.0
        spread = np.maximum((variance * both + _PRIOR * pooled) / (both + _PRIOR), _LEAST)
        size = effective_size(np.maximum(both, 1.0), board.items)
        alpha = self.delta / max(1, len(out) - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.sqrt(spread / size)
            upper = mean + np.sqrt(spread) * half_width(size, alpha)
            beyond = mean + np.sqrt(spread) * half_width(np.maximum(both, 1.0), alpha)
            z = np.where(error > 0, mean / error, 0.0)
            regret = np.where(error > 0, error * (norm.pdf(z) + z * norm.cdf(z)), np.maximum(mean, 0.0))
        rivals = np.arange(len(out)) != leader
        unknown = np.where(rivals & (both == 0), np.inf, 0.0)
        return Standing(
            leader,
            np.where(both > 0, mean, 0.0),
            np.where(others, upper, unknown),
            np.where(rivals & (both > 0), beyond, unknown),
            np.where(others, regret, unknown),
            both,
        )

    def ask(self, board: Board) -> Mapping[int, int]:
        """The first items of all arms, then a batch for each arm that may still be worth something."""
        first = min(self.first, board.items)
        if (board.asked < first).any():
            return {int(k): first for k in np.flatnonzero(board.asked < first)}
        behind = int(np.argmax(np.where(self._mask(board), -np.inf, board.standing())))
        most = int(board.asked[~self._mask(board)].max())
        if board.asked[behind] < most:
            return {behind: most}
        now = self.standing(board)
        self._mask(board)[:] |= now.upper < 0
        left = ~self._mask(board) & (now.common < board.items)
        left[now.leader] = False
        total = float(now.regret[left].sum())
        unproved = left & (now.upper > (np.inf if self.epsilon is None else self.epsilon))
        if not left.any() or (total <= self.regret and not unproved.any()):
            return {}
        wanted = unproved
        if total > self.regret:
            wanted = wanted | (left & (now.regret >= _SHARE * now.regret[left].max()))
        told = {int(k): min(board.items, int(board.asked[k]) + self.batch) for k in np.flatnonzero(wanted)}
        return {**told, now.leader: max(int(board.asked[now.leader]), *told.values())}

    def survivors(self, board: Board) -> Mask:
        """The confidence set: with probability 1 - delta it holds the best arm."""
        return ~self._mask(board)

    def choice(self, board: Board) -> int:
        """The arm in the lead."""
        return self.standing(board).leader

    def _mask(self, board: Board) -> Mask:
        if self._out is None or len(self._out) != len(board.arms):
            self._out = np.zeros(len(board.arms), bool)
        return self._out
