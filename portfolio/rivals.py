"""Other ways to find the best arm, in the race's interface: to compare with, and because people ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log, log2

import numpy as np

from playcall.portfolio.board import Board
from playcall.strategies.panel import Floats, Ints, Mask

Roles = Sequence[Mapping[str, str]]
"""The model of each role, by arm."""


def best_of(board: Board, among: Mask | None = None) -> int:
    """The arm with the best mean of those asked; the one asked most among equals."""
    means = np.where(board.asked > 0, board.means(), -np.inf)
    if among is not None and among.any():
        means = np.where(among, means, -np.inf)
    return int(np.lexsort((board.asked, means))[-1])


@dataclass
class _Rival:
    """What they share: the best mean is chosen, and every arm that was asked everything it will be survives."""

    def survivors(self, board: Board) -> Mask:
        """The arms that it has not given up."""
        return board.asked == board.asked.max()

    def choice(self, board: Board) -> int | None:
        """The best mean of its survivors."""
        there = self.survivors(board)
        return best_of(board, there) if there.any() else None


@dataclass
class BruteForce(_Rival):
    """Every arm on every item."""

    def ask(self, board: Board) -> Mapping[int, int]:
        """All, at once."""
        return dict.fromkeys(range(len(board.arms)), board.items) if not board.asked.any() else {}


@dataclass
class SuccessiveHalving(_Rival):
    """The better half goes on, with twice the items each time (Karnin et al. 2013); the last rounds ask all of them."""

    def ask(self, board: Board) -> Mapping[int, int]:
        """The next round's arms."""
        rounds = max(1, ceil(log2(len(board.arms))))
        told = [ceil(board.items / 2 ** (rounds - 1 - r)) for r in range(rounds)]
        done = int(board.asked.max())
        if done >= board.items:
            return {}
        following = next(n for n in told if n > done)
        there = np.flatnonzero(board.asked == done)
        keep = there if not done else there[np.argsort(-board.means()[there], kind="stable")][: ceil(len(there) / 2)]
        return dict.fromkeys(map(int, keep), following) if len(keep) > 1 or not done else {}


@dataclass
class ArmElimination(_Rival):
    """Out when the mean plus its standard error is below another's mean minus its own; batches double. Unpaired.

    As AgentOpt does it (`arm_elimination`, one standard error, a tenth of the items first), save that an arm that is
    out is not chosen.
    """

    errors: float = 1.0  # standard errors to each side
    _out: Mask | None = field(default=None, repr=False)

    def ask(self, board: Board) -> Mapping[int, int]:
        """A batch, twice the last, of all that are left."""
        if self._out is None:
            self._out = np.zeros(len(board.arms), bool)
        done, first = int(board.asked.max()), max(1, board.items // 10)
        if not done:
            return dict.fromkeys(range(len(board.arms)), first)
        error = self.errors * np.sqrt(board.variances() / board.asked)
        low = np.where(self._out, -np.inf, board.means() - error)
        self._out |= board.means() + error < low.max()
        left = np.flatnonzero(~self._out)
        if len(left) <= 1 or done >= board.items:
            return {}
        return dict.fromkeys(map(int, left), min(board.items, 2 * done + first))

    def survivors(self, board: Board) -> Mask:
        """Those that are not out."""
        return np.ones(len(board.arms), bool) if self._out is None else ~self._out


@dataclass
class EpsilonLUCB(_Rival):
    """The leader and its strongest challenger are asked until they differ by less than epsilon at most (Kalyanakrishnan
    et al. 2012), with bounds from empirical variances. Unpaired."""

    epsilon: float = 0.05
    delta: float = 0.1
    first: int = 10
    batch: int = 5

    def _bounds(self, board: Board) -> Floats:
        rate = log(5 * len(board.arms) * max(2, board.evaluations) ** 2 / (4 * self.delta))
        return np.sqrt(2 * np.maximum(board.variances(), 0.01) * rate / board.asked)

    def ask(self, board: Board) -> Mapping[int, int]:
        """More items of two arms."""
        first = min(self.first, board.items)
        if (board.asked < first).any():
            return {int(k): first for k in np.flatnonzero(board.asked < first)}
        bound = np.where(board.asked < board.items, self._bounds(board), 0.0)
        means, leader = board.means(), best_of(board)
        upper = np.where(np.arange(len(means)) == leader, -np.inf, means + bound)
        if len(means) == 1:
            return {}
        challenger = int(np.argmax(upper))
        if upper[challenger] - (means[leader] - bound[leader]) <= self.epsilon:
            return {}
        pair = [k for k in (leader, challenger) if board.asked[k] < board.items]
        return {k: min(board.items, int(board.asked[k]) + self.batch) for k in pair}

    def survivors(self, board: Board) -> Mask:
        """Those that may be better than the leader by epsilon."""
        if not board.asked.all():
            return np.ones(len(board.arms), bool)
        bound, leader = self._bounds(board), best_of(board)
        return board.means() + bound >= board.means()[leader] - bound[leader]


@dataclass
class ThresholdElimination(_Rival):
    """Asks each arm until it is known to be above or below a threshold, one standard error to each side; batches
    double. The best mean above it is chosen."""

    threshold: float = 0.5
    errors: float = 1.0
    _open: Mask | None = field(default=None, repr=False)

    def ask(self, board: Board) -> Mapping[int, int]:
        """More items of the arms in doubt."""
        done, first = int(board.asked.max()), max(1, board.items // 10)
        if not done:
            return dict.fromkeys(range(len(board.arms)), first)
        error = self.errors * np.sqrt(board.variances() / board.asked)
        if self._open is None:
            self._open = np.ones(len(board.arms), bool)
        self._open &= (abs(board.means() - self.threshold) <= error) & (board.asked < board.items)
        return dict.fromkeys(map(int, np.flatnonzero(self._open)), min(board.items, 2 * done + first))

    def survivors(self, board: Board) -> Mask:
        """Those above the threshold."""
        return board.means() >= self.threshold


@dataclass
class Searching(_Rival):
    """Asks one arm after another everything, up to a share of all arms; how the next is chosen is its subclasses'."""

    share: float = 0.25
    seed: int = 0

    def ask(self, board: Board) -> Mapping[int, int]:
        """The next arm, all of its items."""
        tried = np.flatnonzero(board.asked == board.items)
        if len(tried) >= max(1, round(self.share * len(board.arms))):
            return {}
        rng = np.random.default_rng([self.seed, len(tried)])
        fresh = np.flatnonzero(board.asked < board.items)
        following = int(rng.choice(fresh)) if not len(tried) else self._next(board, tried, fresh, rng)
        return {} if following < 0 else {following: board.items}

    def _next(self, board: Board, tried: Ints, fresh: Ints, rng: np.random.Generator) -> int:
        return int(rng.choice(fresh))


@dataclass
class Random(Searching):
    """Arms at random."""


@dataclass
class HillClimbing(Searching):
    """Arms that differ from the best so far in one role; from a new start when all of them were tried."""

    roles: Roles = ()

    def _next(self, board: Board, tried: Ints, fresh: Ints, rng: np.random.Generator) -> int:
        best = self.roles[best_of(board)]
        near = [k for k in fresh if sum(best[r] != self.roles[k].get(r) for r in best) == 1]
        return int(rng.choice(near or fresh))


@dataclass
class BayesianOptimisation(Searching):
    """Arms of the greatest expected improvement, by a Gaussian process over the roles' models (scikit-learn's)."""

    roles: Roles = ()

    def _next(self, board: Board, tried: Ints, fresh: Ints, rng: np.random.Generator) -> int:
        from scipy.stats import norm
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, WhiteKernel

        columns = sorted({(role, model) for told in self.roles for role, model in told.items()})
        coded = np.array([[float(told.get(role) == model) for role, model in columns] for told in self.roles])
        if not columns:  # no roles to tell arms apart by
            return int(rng.choice(fresh))
        means = board.means()[tried]
        process = GaussianProcessRegressor(RBF(1.0) + WhiteKernel(0.01), normalize_y=True, optimizer=None)
        process.fit(coded[tried], means)
        mean, deviation = process.predict(coded[fresh], return_std=True)
        z = (mean - means.max()) / np.maximum(deviation, 1e-9)
        gain = deviation * (norm.pdf(z) + z * norm.cdf(z))
        return int(fresh[np.lexsort((rng.random(len(fresh)), gain))[-1]])
