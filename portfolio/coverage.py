"""Which arms to call, how often and in what order, where a checker tells right answers: coverage for money.

Everything here holds only where a checker runs live. Without one nobody knows which of the answers is right, and a
share of items that some answer gets right is not the quality of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from playcall.portfolio.joint import grades
from playcall.portfolio.lists import Frontier, Lists, costs, coverage, frontier, grown, polished, relaxed, undominated
from playcall.portfolio.sweep import priced
from playcall.strategies import NANO, Ask, Best, Confident, Misuse, Recording, Strategy, cascade, outcomes
from playcall.strategies.panel import Floats, Ints


class CoveragePortfolio(BaseEstimator):
    """How many calls of which arm, in which order, so that at least one is right, within a budget.

    With a checker the only thing that can have happened so far is that every answer was turned down, so the best
    adaptive play is a fixed list with a stopping point. Its coverage is F(n) = 1 - E_i prod_m (1 - p_im)^n_m, monotone
    and submodular. Learned from counts as they are: shrinking each arm's p by itself loses what the arms share and
    overstates coverage by 4 to 5 points (own measurements). Lists are grown greedily, by gain per cost from every
    first arm, by gain - price * cost at `prices` prices of money, and from all pairs; the best are improved by
    single changes (Nemhauser, Wolsey & Fisher 1978; Sviridenko 2004).

    Parameters
    ----------
    budget : mean USD per item (calls per item where no cost is given). None: no limit.
    cost_weight : how much coverage one USD is worth; the list of greatest coverage - cost_weight * cost is taken. It
        chooses more steadily than a budget, whose best list may cost a hair too much on one set of items.
    max_calls : most calls of an item.
    max_draws : most calls of one arm, one number for all or (arms,). A recording replays no more draws than it has.
    sequential : True: calls are made one after another until one is accepted, and the budget is for the calls that are
        made, on average. False: all calls are made and paid, as where they run at once.
    prices : how many prices of money are tried.

    Attributes
    ----------
    order_, allocation_ : the calls in order, and (arms,) how many of each.
    coverage_, cost_ : its figures on the training items: apparent, at 100 items too good by one to three points.
    frontier_ : `Frontier` of all lists that were grown.
    gap_ : see there.
    """

    def __init__(
        self, *, budget: float | None = None, cost_weight: float = 0.0, max_calls: int = 16,
        max_draws: int | Sequence[int] = 10, sequential: bool = True, prices: int = 50,
    ) -> None:  # fmt: skip
        self.budget = budget
        self.cost_weight = cost_weight
        self.max_calls = max_calls
        self.max_draws = max_draws
        self.sequential = sequential
        self.prices = prices

    def fit(
        self, X: ArrayLike, y: object = None, *, cost: ArrayLike | None = None, accepted: ArrayLike | None = None
    ) -> Self:
        """Learn from (items, arms) shares of right calls, 0 to 1; the plain counts c / N.

        `cost`: USD per call, (arms,) or (items, arms); None: every call costs 1. `accepted`: (items, arms) probability
        that the checker accepts a call, at least X, for a checker that errs (a list then succeeds if the first answer
        that is accepted is right); None: it accepts right answers and no others.
        """
        self.lists_ = lists = self._lists(X, cost, accepted, reset=True)
        limits = self._limits(lists.right)
        budget = np.inf if self.budget is None else float(self.budget)
        if not (budget >= 0 and 0 <= self.cost_weight < np.inf and self.max_calls >= 1):
            say = f"budget={self.budget!r}, cost_weight={self.cost_weight!r}, max_calls={self.max_calls!r}"
            raise Misuse(f"CoveragePortfolio({say}): give amounts of zero or more, and at least one call.")
        known = frontier(grown(lists, limits, self.max_calls, self.prices), lists)
        self.frontier_: Frontier = polished(known, lists, limits, self.max_calls, budget)
        known = self.frontier_
        worth = np.where(known.cost <= budget * (1 + 1e-9), known.coverage - self.cost_weight * known.cost, -np.inf)
        start = known.orders[int(worth.argmax())]
        self.limits_, self.order_ = limits, lists.swapped(start, budget, limits, self.max_calls, self.cost_weight)
        self.allocation_ = np.bincount(np.array(self.order_, dtype=np.int64), minlength=len(limits))
        self.coverage_, self.cost_ = lists.figures(self.order_)
        return self

    def figures(
        self, X: ArrayLike, *, cost: ArrayLike | None = None, accepted: ArrayLike | None = None
    ) -> tuple[float, float]:
        """(coverage, mean cost per item) of the learned list on other items, given as to `fit`.

        Where the list repeats an arm, X of few draws understates it; `pass_at` counts draws without replacement.
        """
        check_is_fitted(self)
        return self._lists(X, cost, accepted, reset=False).figures(self.order_)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Coverage of the learned list on (items, arms) shares of right calls, with a sound checker."""
        return self.figures(X)[0]

    @property
    def gap_(self) -> float:
        """Coverage that could still be missing on the training items: an upper bound, from a concave relaxation.

        It holds for the problem in which all calls are paid: of all allocations within `max_draws` and `max_calls`
        whose calls together cost no more than this one's together (with sequential=False: than the budget), none covers
        more than coverage_ + gap_. It says nothing of lists that cost more in the worst case and less on average, of
        checkers that err, or of new items. Bound: mean over items of min(1, sum p n, 1 - prod (1 - p)^n), concave in
        n and exact at whole n, maximised by cutting planes (Kelley 1960); it is what Frank-Wolfe duality gives at the
        optimum. Computed when asked for, about a second.
        """
        check_is_fitted(self)
        lists, paid = self.lists_, self.lists_.cost.mean(axis=0)
        budget = float(paid @ self.allocation_)
        if not self.sequential and self.budget is not None:
            budget = float(self.budget)
        bound = relaxed(lists.right, paid, budget, self.limits_, self.max_calls)
        return max(0.0, bound - coverage(lists.right, self.allocation_))

    def _lists(self, X: ArrayLike, cost: ArrayLike | None, accepted: ArrayLike | None, *, reset: bool) -> Lists:
        right = grades(self, X, reset=reset)
        passed = right if accepted is None else np.asarray(accepted, dtype=np.float64)
        if passed.shape != right.shape or not ((passed >= right - 1e-9) & (passed <= 1 + 1e-9)).all():
            raise Misuse("CoveragePortfolio: `accepted` must have X's shape, and lie between X and 1.")
        return Lists(right, passed, costs(cost, right.shape), self.sequential)

    def _limits(self, right: Floats) -> Ints:
        try:
            limits = np.broadcast_to(np.asarray(self.max_draws, dtype=np.int64), right.shape[1])
        except ValueError:
            limits = np.zeros(1, dtype=np.int64)
        if (limits < 1).any():
            raise Misuse(f"CoveragePortfolio(max_draws={self.max_draws!r}): give 1 or more, or one such per arm.")
        return limits


@dataclass(frozen=True)
class Checked:
    """A play that stops at the first answer its checker accepts, and its replayed means on the recording."""

    arms: tuple[str, ...]  # in order; an arm may come again
    quality: float
    cost: float  # nano-dollars
    latency: float  # microseconds
    strategy: Strategy


def checked_plays(recording: Recording, *, threshold: float = 1.0, max_calls: int = 8) -> list[Checked]:
    """The frontier of plays that ask until the checker's score reaches `threshold`, cheapest first.

    For recordings whose confidence is a checker's verdict (`graded_by_checker`, or a checker of its own that may err:
    an answer that is accepted and wrong counts as wrong). Figures are replayed on the same tasks: apparent. An arm
    is asked at most as often as it was drawn; arms without a cost are left out, or where none has one all cost the
    same. Raises Misuse where an arm has no confidences.
    """
    if not recording.scored:
        raise Misuse(f"{recording.name} has no verdicts for some arms; read it with verifier=..., or leave them out.")
    recording = priced(recording)
    arms = list(recording.arms)
    draws = [recording[a] for a in arms]
    passed = [(d.score >= threshold) & ~d.failed for d in draws]
    accepted = np.stack([x.mean(axis=1) for x in passed], axis=1)
    right = np.stack([(x * d.quality).mean(axis=1) for x, d in zip(passed, draws)], axis=1)
    cost = np.stack([d.price.mean(axis=1) for d in draws], axis=1) / NANO
    model = CoveragePortfolio(max_draws=[d.depth for d in draws], max_calls=max_calls)
    model.fit(right, cost=cost, accepted=np.maximum(accepted, right))
    plays = [checked_play(recording, [arms[m] for m in o], threshold=threshold) for o in model.frontier_.orders if o]
    kept = undominated(np.array([p.quality for p in plays]), np.array([p.cost for p in plays])) if plays else ()
    return [plays[i] for i in kept]


def checked_play(recording: Recording, arms: Sequence[str], *, threshold: float = 1.0) -> Checked:
    """Ask these arms in order until the checker's score reaches the threshold; the answer of the best score."""
    strategy = cascade(*arms, stop=Confident(threshold)).keep(Best()) if len(arms) > 1 else Ask(arms[0])
    came = outcomes(strategy, recording)
    quality, cost, latency = (float(x.mean()) for x in (came.quality, came.cost, came.latency))
    return Checked(tuple(arms), quality, cost, latency, strategy)
