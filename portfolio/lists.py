"""Lists of calls, what they come to, and the search for good ones: the part of coverage that is no estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog
from scipy.special import gammaln

from playcall.strategies import Misuse
from playcall.strategies.panel import Floats, Ints

Order = tuple[int, ...]
"""Arms by number, in the order in which they are called; an arm may come again."""

_EPS = 1e-12
_ROUNDS = 60  # of swaps; of cuts
_POLISHED = 12  # lists of the frontier that are improved by swaps


class Frontier(NamedTuple):
    """The lists that no other beats on the items they were learned from: arrays of (lists,), cheapest first."""

    cost: Floats
    coverage: Floats
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class Lists:
    """What lists of calls come to on (items, arms): `right` and `accepted` are probabilities per call.

    Calls are made in order until one is accepted; the list succeeds if that one is right. With a sound checker
    accepted is right. `sequential`: only calls that are made are paid.
    """

    right: Floats
    accepted: Floats
    cost: Floats
    sequential: bool

    def figures(self, order: Order) -> tuple[float, float]:
        """(coverage, mean cost per item)."""
        alive, covered, cost = np.ones(len(self.right)), 0.0, 0.0
        for m in order:
            covered += float((alive * self.right[:, m]).mean())
            cost += float(((alive if self.sequential else 1.0) * self.cost[:, m]).mean())
            alive = alive * (1 - self.accepted[:, m])
        return covered, cost

    def greedy(self, prices: Floats, limits: Ints, calls: int, *, start: Sequence[int] = ()) -> list[Order]:
        """For each price of money a list that takes, while that pays, the call of greatest gain - price * cost.

        A price of nan means the call of greatest gain per cost, as long as there is any. One list for each `start` and
        price; all lists grow together.
        """
        n = len(self.right)
        price = np.repeat(prices, max(len(start), 1))[:, None]
        orders: list[list[int]] = [[] for _ in price]
        alive, left = np.ones((len(price), n)), np.tile(limits, (len(price), 1))
        going = np.ones(len(price), dtype=bool)
        for step in range(calls):
            gain, cost = alive @ self.right / n, (alive if self.sequential else np.ones_like(alive)) @ self.cost / n
            with np.errstate(invalid="ignore", divide="ignore"):
                worth = np.where(np.isnan(price), gain / np.maximum(cost, _EPS), gain - np.nan_to_num(price) * cost)
            worth = np.where((left > 0) & (gain > _EPS), worth, -np.inf)
            pick = worth.argmax(axis=1)
            if step == 0 and start:
                pick = np.tile(np.asarray(start), len(prices))
            rows = np.arange(len(price))
            going &= (worth[rows, pick] > 0) | (step == 0 and bool(start))
            if not going.any():
                break
            for row in np.flatnonzero(going):
                orders[row].append(int(pick[row]))
            alive = alive * (1 - self.accepted[:, pick].T)
            left[rows, pick] -= 1
        return [tuple(o) for o in orders]

    def swapped(self, order: Order, budget: float, limits: Ints, calls: int, weight: float = 0.0) -> Order:
        """The list of greatest coverage - weight * cost that single changes lead to, the cheaper of equals.

        From a list within the budget; a change is another arm, a call more or less, or two neighbours in other order.
        """
        for _ in range(_ROUNDS):
            better = self._change(order, budget, limits, calls, weight)
            if better is None:
                break
            order = better
        return order

    def _change(self, order: Order, budget: float, limits: Ints, calls: int, weight: float) -> Order | None:
        n, (items, arms) = len(order), self.right.shape
        sound = 1 - self.accepted
        before = [np.ones(items)]  # that nothing was accepted by then
        for m in order:
            before.append(before[-1] * sound[:, m])
        gain, cost = np.zeros((items, n + 1)), np.zeros((items, n + 1))  # of the calls from k on, had they come first
        for k in reversed(range(n)):
            m, go = order[k], (sound[:, order[k]] if self.sequential else 1.0)
            gain[:, k] = self.right[:, m] + sound[:, m] * gain[:, k + 1]
            cost[:, k] = self.cost[:, m] + go * cost[:, k + 1]
        so_far = [self.figures(order[:k]) for k in range(n + 1)]
        S = np.stack(before)  # (n + 1, items)
        left = limits - np.bincount(order, minlength=arms)
        options: list[tuple[Order, float, float]] = []
        for k in range(n + 1):
            for skip in (0, 1) if k < n else (0,):  # put in before k, or in its place
                reach = S[k] if self.sequential else np.ones(items)
                after = reach @ (sound * cost[:, [k + skip]]) if self.sequential else cost[:, k + skip].sum()
                covered = so_far[k][0] + S[k] @ (self.right + sound * gain[:, [k + skip]]) / items
                paid = so_far[k][1] + (reach @ self.cost + after) / items
                free = (left > 0) | (np.arange(arms) == order[k] if skip else False)
                value = np.where(free & (paid <= budget * (1 + 1e-9) + _EPS), covered - weight * paid, -np.inf)
                m = int(np.lexsort((paid, -value.round(10)))[0])
                if np.isfinite(value[m]):
                    options.append(((*order[:k], m, *order[k + skip :]), float(covered[m]), float(paid[m])))
        shorter = [order[:k] + order[k + 1 :] for k in range(n)]
        turned = [(*order[:k], order[k + 1], order[k], *order[k + 2 :]) for k in range(n - 1)]
        options += [(o, *self.figures(o)) for o in shorter + turned]
        options = [x for x in options if x[2] <= budget * (1 + 1e-9) + _EPS and len(x[0]) <= calls]
        worth, now = [covered - weight * paid for _, covered, paid in options], so_far[n]
        least, dear = now[0] - weight * now[1], now[1] * (1 - 1e-9)
        better = [
            (round(w, 10), -x[2], x[0])
            for w, x in zip(worth, options)
            if w > least + 1e-9 or (w > least - _EPS and x[2] < dear)
        ]
        return max(better)[2] if better else None


def coverage(p: Floats, allocation: Ints) -> float:
    """1 - mean of prod (1 - p)^n over (items, arms): the chance that some call is right."""
    return float(1 - ((1 - p) ** allocation).prod(axis=1).mean())


def pass_at(right: Ints, draws: int | Ints, allocation: Ints) -> float:
    """Coverage of an allocation by (items, arms) counts of right draws out of `draws`, without replacement.

    1 - mean of prod_m C(N - c, n) / C(N, n), unbiased (Chen et al. 2021 for one arm). Raises Misuse where an arm is
    called more often than it was drawn.
    """
    N = np.broadcast_to(np.asarray(draws), right.shape)
    if (allocation > N).any():
        arm = int((allocation > N).any(axis=0).argmax())
        raise Misuse(f"arm {arm} is called {allocation[arm]} times and has {N[:, arm].min()} draws; record more.")
    wrong = N - right
    enough = wrong >= allocation
    safe = np.where(enough, wrong, allocation)
    fail = gammaln(safe + 1) - gammaln(safe - allocation + 1) - gammaln(N + 1) + gammaln(N - allocation + 1)
    return float(1 - np.where(enough, np.exp(fail), 0.0).prod(axis=1).mean())


def costs(cost: ArrayLike | None, shape: tuple[int, int]) -> Floats:
    """(items, arms) costs of a call from what was given."""
    try:
        given = np.asarray(1.0 if cost is None else cost, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise Misuse(f"cost holds no numbers: {error}; give USD per call, (arms,) or (items, arms).") from None
    try:
        full = np.broadcast_to(given, shape)
    except ValueError:
        raise Misuse(f"cost has shape {given.shape}; give (arms,) or (items, arms), here {shape}.") from None
    if not (np.isfinite(full).all() and (full >= 0).all()):
        raise Misuse("cost holds a negative or missing value; give USD per call, or leave out arms without a cost.")
    return full


def relaxed(p: Floats, cost: Floats, budget: float, limits: Ints, calls: int) -> float:
    """An upper bound on coverage of (items, arms) p over whole n <= limits with cost @ n <= budget, sum n <= calls."""
    items, m = p.shape
    own, often = np.unique(p, axis=0, return_counts=True)
    inner = np.clip(own, 0.0, 1 - 1e-9)
    rate = -np.log1p(-inner)
    k = len(own)
    weight = np.concatenate([np.zeros(m), -often / items])
    eye = np.eye(k)
    rows, ends = np.hstack([-own, eye]), np.zeros(k)
    rows = np.vstack([rows, np.append(cost, np.zeros(k)), np.append(np.ones(m), np.zeros(k))])
    ends = np.append(ends, [budget, calls])
    bounds = [(0.0, float(most)) for most in limits] + [(0.0, 1.0)] * k
    curved = (own > 0) & (own < 1)
    best = 1.0
    for _ in range(_ROUNDS):
        found = linprog(weight, rows, ends, bounds=bounds, method="highs")
        if not found.success:
            break
        best = min(best, -float(found.fun))
        n, z = found.x[:m], found.x[m:]
        miss = np.exp(-rate @ n)
        cut = np.flatnonzero(curved.any(axis=1) & (z > 1 - miss + 1e-6))
        if best - float(often @ np.minimum(z, 1 - miss)) / items < 1e-5 or not len(cut):
            break
        slope = rate[cut] * miss[cut, None]
        rows = np.vstack([rows, np.hstack([-slope, eye[cut]])])
        ends = np.append(ends, 1 - miss[cut] - slope @ n)
    return best


def grown(lists: Lists, limits: Ints, calls: int, prices: int) -> list[Order]:
    gain, cost = lists.right.mean(axis=0), lists.cost.mean(axis=0)
    useful = np.flatnonzero(gain > 0)
    rate = gain[useful] / np.maximum(cost[useful], _EPS)
    if not len(useful):
        return []
    high = float(rate.max())
    grid = np.geomspace(high, max(high, 1.0) * 1e-5, max(prices, 1))
    gone = 1 - lists.accepted
    second = gone.T @ lists.right / len(gone), (gone if lists.sequential else np.ones_like(gone)).T @ lists.cost
    two = gain[:, None] + second[0], cost[:, None] + second[1] / len(gone)
    pairs = [divmod(int(x), len(gain)) for x in undominated(two[0].ravel(), two[1].ravel())]
    return [
        *((a, b) for a, b in pairs if calls > 1 and (a != b or limits[a] > 1)),
        *lists.greedy(np.array([np.nan]), limits, calls, start=[int(m) for m in useful]),
        *lists.greedy(grid, limits, calls),
    ]


def frontier(orders: Sequence[Order], lists: Lists) -> Frontier:
    found = [(), *sorted({o[:k] for o in orders for k in range(1, len(o) + 1)})]
    covered, cost = np.array([lists.figures(o) for o in found]).T
    kept = undominated(covered, cost)
    return Frontier(cost[kept], covered[kept], tuple(found[i] for i in kept))


def undominated(covered: Floats, cost: Floats) -> Ints:
    """Which lists cover more than every cheaper one, cheapest first."""
    order = np.lexsort((-covered, cost))
    best = np.maximum.accumulate(covered[order])
    return order[np.append(True, covered[order][1:] > best[:-1] + 1e-9)]


def polished(known: Frontier, lists: Lists, limits: Ints, calls: int, budget: float) -> Frontier:
    """Some of the lists within the budget improved at their own cost."""
    within = np.flatnonzero(known.cost <= budget)
    some = np.unique(np.linspace(0, len(within) - 1, _POLISHED).astype(int))
    better = [lists.swapped(known.orders[i], float(known.cost[i]), limits, calls) for i in within[some]]
    return frontier([*known.orders, *better], lists)
