"""What a race knows so far: what each arm was worth on the first so many items of one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playcall.strategies.panel import Floats, Ints


@dataclass(frozen=True)
class Outcome:
    """What one arm did on one item."""

    score: float  # 0 to 1; 0 where it failed
    cost: float = 0.0  # USD
    seconds: float = 0.0
    failed: bool = False


@dataclass(frozen=True)
class Worth:
    """What an outcome is worth: quality, less what its cost and its latency take from it."""

    cost_weight: float = 0.0  # quality that one USD is worth
    latency_weight: float = 0.0  # quality that one second is worth

    def of(self, outcome: Outcome) -> float:
        """Its utility. Since it is taken item by item, the variance and covariance of all three are counted."""
        return outcome.score - self.cost_weight * outcome.cost - self.latency_weight * outcome.seconds


class Board:
    """Sums that make each step of a race cost the same, however long it has run.

    `asked[k]` items, in the race's order, were asked of arm k; `sums[t, k]` is what its first t are worth together,
    `squared[t, k]` the sum of their squares, and `products[j, k]` that of products over the items that both have.
    """

    def __init__(self, arms: Sequence[str], items: int, worth: Worth | None = None) -> None:
        self.arms, self.items, self.worth = tuple(arms), items, worth or Worth()
        k = len(self.arms)
        self.asked: Ints = np.zeros(k, np.int64)
        self.values: Floats = np.zeros((items, k))  # 0 where it was not asked
        self.sums: Floats = np.zeros((items + 1, k))
        self.squared: Floats = np.zeros((items + 1, k))
        self.products: Floats = np.zeros((k, k))
        self.totals: Floats = np.zeros((3, k))  # of scores, USD, seconds
        self.squares: Floats = np.zeros((3, k))
        self.failures: Ints = np.zeros(k, np.int64)

    def add(self, arm: int, outcomes: Sequence[Outcome]) -> None:
        """What an arm did on the next items of the order."""
        if not outcomes:
            return
        start = int(self.asked[arm])
        rows = slice(start, start + len(outcomes))
        new = np.array([self.worth.of(o) for o in outcomes])
        told = np.array([(o.score, o.cost, o.seconds) for o in outcomes])
        self.values[rows, arm] = new
        self.sums[start + 1 : rows.stop + 1, arm] = self.sums[start, arm] + np.cumsum(new)
        self.squared[start + 1 : rows.stop + 1, arm] = self.squared[start, arm] + np.cumsum(new**2)
        self.products[arm] += new @ self.values[rows]
        self.products[:, arm] = self.products[arm]
        self.totals[:, arm] += told.sum(0)
        self.squares[:, arm] += (told**2).sum(0)
        self.failures[arm] += sum(o.failed for o in outcomes)
        self.asked[arm] = rows.stop

    @property
    def evaluations(self) -> int:
        """Runs of an arm on an item."""
        return int(self.asked.sum())

    @property
    def spent(self) -> float:
        """USD."""
        return float(self.totals[1].sum())

    def means(self) -> Floats:
        """What an item of each arm is worth, NaN where none was asked."""
        with np.errstate(invalid="ignore"):
            return self.sums[self.asked, np.arange(len(self.arms))] / self.asked

    def variances(self) -> Floats:
        """Of what an item of each arm is worth."""
        with np.errstate(invalid="ignore"):
            return np.maximum(np.diag(self.products) / self.asked - self.means() ** 2, 0.0)

    def mean_of(self, what: int) -> Floats:
        """Of 0 scores, 1 USD or 2 seconds, by arm; NaN where none was asked."""
        with np.errstate(invalid="ignore"):
            return self.totals[what] / self.asked

    def standing(self) -> Floats:
        """The means, made comparable: each arm's lead over the arm asked most, on the items that both have.

        -inf where an arm was asked nothing.
        """
        most = int(self.asked.max())
        if not most:
            return np.full(len(self.arms), -np.inf)
        ahead = np.flatnonzero(self.asked == most)
        reference = ahead[np.argmax(self.sums[most, ahead])]
        with np.errstate(invalid="ignore"):
            lead = self.means() - self.sums[self.asked, reference] / self.asked
        return np.where(self.asked > 0, lead, -np.inf)

    def differences(self, leader: int) -> tuple[Floats, Floats, Ints]:
        """(mean, variance, items) of each arm minus the leader, on the items that both have."""
        both = np.minimum(self.asked, self.asked[leader])
        theirs, own = self.sums[both, np.arange(len(self.arms))], self.sums[both, leader]
        squares = self.squared[both, np.arange(len(self.arms))] + self.squared[both, leader]
        square = squares - 2 * self.products[:, leader]
        with np.errstate(invalid="ignore"):
            mean = (theirs - own) / both
            variance = np.maximum(square / both - mean**2, 0.0)
        return mean, variance, both
