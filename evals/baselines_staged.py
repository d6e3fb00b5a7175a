"""Baselines that look before they ask on: FrugalGPT's chains, cascade routing, and a router by the nearest prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from playcall.calibration import fit_weight
from playcall.evals.baselines import SHARES, Graded, Play, by_point, in_sample, single, single_mix
from playcall.portfolio import shortlist
from playcall.strategies import Recording, Weight
from playcall.strategies.panel import Floats, Ints, Mask

_LEVELS = np.linspace(0.05, 0.95, 7)  # quantiles of the confidences that are tried as thresholds
_CHAIN = 3
_MOST = 8  # arms that cascade routing chooses from
_SAMPLES = 256  # draws of the quality estimates' errors
_GRID = np.linspace(0.0, 1.0, 101)
_SCALES, _HALVINGS = (1.0, 0.5, 0.0), 8
_PRICES = (0.0, *np.geomspace(1e-3, 10.0, 24))  # quality that the best single arm's cost is worth
_NEAREST, _SHRINK = 15, 10.0  # prompts that count, and how many of the arm's mean count beside them


# --- FrugalGPT --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chain:
    """Arms one after another; the answer of the first whose sign reaches its threshold."""

    arms: tuple[str, ...]
    weights: Mapping[str, Weight]
    thresholds: tuple[float, ...] = ()

    def __call__(self, recording: Recording) -> Graded:
        going = np.ones(len(recording), dtype=bool)
        quality, cost, latency, stated = (np.zeros(len(recording)) for _ in range(4))
        for i, arm in enumerate(self.arms):
            d = recording[arm]
            cost += np.where(going, d.price[:, 0], 0)
            latency += np.where(going, d.latency[:, 0], 0)
            last = i == len(self.arms) - 1
            now = going & (last | (_sign(recording, self.arms, i, self.weights) >= ((*self.thresholds, 0.0)[i])))
            quality = np.where(now, d.quality[:, 0], quality)
            stated = np.where(now, np.where(d.failed[:, 0], 0.0, expit(self.weights[arm](d.score[:, 0]))), stated)
            going &= ~now
        telling = all(self.weights[a].slope != 0 for a in self.arms)
        return Graded(quality, cost, latency, stated if telling else None)

    def __str__(self) -> str:
        said = [f"ask {self.arms[0]}"]
        for i, (arm, t) in enumerate(zip(self.arms[1:], self.thresholds)):
            if self.weights[self.arms[i]].slope:
                said.append(f"unless it is right with probability {t:.3g} or more, ask {arm}")
            else:
                said.append(f"unless it agrees with the one before, ask {arm}" if i else f"then {arm}")
        return "; ".join(said) + "."


def _sign(recording: Recording, arms: Sequence[str], at: int, weights: Mapping[str, Weight]) -> Floats:
    """(tasks,) how sure the answer of one stage is: its calibrated confidence, else 1 where it agrees with the last."""
    d = recording[arms[at]]
    if weights[arms[at]].slope:
        return np.where(d.failed[:, 0], -1.0, expit(weights[arms[at]](d.score[:, 0])))
    if not at or not recording.answered:
        return np.full(len(recording), -1.0)
    other = recording[arms[at - 1]]
    alike = (d.answer[:, 0] == other.answer[:, 0]) & ~d.failed[:, 0] & ~other.failed[:, 0]
    return np.where(alike, 1.0, -1.0)


def stage_grid(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """Chains of up to three arms by rising cost, each stage with its own threshold from a grid of seven.

    As FrugalGPT (Chen et al. 2023), whose scorer is here the calibrated confidence; an arm without one stops the chain
    where it agrees with the arm before it.
    """
    arms = shortlist(train)
    weights = {a: fit_weight(a, train[a].score[:, 0], train[a].quality[:, 0]) for a in arms}
    quality, cost, made = list[Floats](), list[Floats](), list[_Chain]()
    options = list[tuple[int, tuple[float, ...]]]()
    for length in range(1, min(_CHAIN, len(arms)) + 1):
        for chosen in combinations(arms, length):
            chain = _Chain(chosen, weights)
            signs = [_sign(train, chosen, i, weights) for i in range(length - 1)]
            levels = [np.unique(np.quantile(s, _LEVELS)) if s.max() > -1 else np.array([2.0]) for s in signs]
            levels = [np.array([0.5]) if set(np.unique(s)) == {-1.0, 1.0} else t for s, t in zip(signs, levels)]
            q, c = _swept(train, chosen, signs, levels)
            quality.append(q.ravel())
            cost.append(c.ravel())
            options += [(len(made), tuple(levels[i][k] for i, k in enumerate(at))) for at in np.ndindex(q.shape)]
            made.append(chain)

    def play(at: int) -> Play:
        which, thresholds = options[at]
        chain = replace(made[which], thresholds=thresholds)
        return in_sample(str(chain), chain.arms, chain, train)

    return by_point(train, np.concatenate(quality), np.concatenate(cost), play)


def _swept(
    train: Recording, arms: Sequence[str], signs: Sequence[Floats], levels: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """Mean quality and cost of a chain, an axis for each stage's thresholds."""
    n = len(train)
    last = train[arms[-1]]
    came = [np.asarray(x, dtype=float)[:, 0] for x in (last.quality, last.price)]  # from here on; (..., tasks)
    for i in range(len(arms) - 2, -1, -1):
        d, stop = train[arms[i]], signs[i] >= levels[i][:, None]
        stop = stop.reshape(len(levels[i]), *(1,) * (came[0].ndim - 1), n)
        came = [np.where(stop, d.quality[:, 0], came[0]), d.price[:, 0] + np.where(stop, 0.0, came[1])]
    return came[0].mean(axis=-1), came[1].mean(axis=-1)


# --- cascade routing --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """What the arms said to some tasks: (tasks, arms) and (tasks, arms, arms)."""

    sure: Floats  # log-odds of the calibrated confidence above those of the arm's accuracy
    agree: Floats  # 1 where two answers are equal
    failed: Mask

    @classmethod
    def of(cls, recording: Recording, weights: Sequence[Weight]) -> _Seen:
        calls = [recording[w.arm] for w in weights]
        sure = np.column_stack(
            [w(d.score[:, 0]) - w.missing if w.slope else np.zeros(len(d.score)) for w, d in zip(weights, calls)]
        )
        answer, failed = (np.column_stack([getattr(d, k)[:, 0] for d in calls]) for k in ("answer", "failed"))
        agree = (answer[:, :, None] == answer[:, None, :]) & ~failed[:, :, None] & ~failed[:, None, :]
        return cls(sure, agree.astype(float), failed)


@dataclass(frozen=True)
class CascadeRouter:
    """Cascade routing (Dekoninck et al., "A unified approach to routing and cascading for LLMs", 2025).

    A set of arms is worth E[max of their qualities] - price * their cost. As long as a superset of the arms that have
    run is worth more than these, the cheapest further arm of the best superset runs; then the arm with the greatest
    estimate answers. Estimates are an arm's accuracy before it has run, and a logistic curve over its calibrated
    confidence and its agreement with the others that have run after; their changes are Gaussian with the covariance
    of the training tasks, an arm that has run has none.
    """

    weights: tuple[Weight, ...]  # of the arms, cheapest first
    cost: Floats  # (arms,) in the best single arm's cost
    ante: Floats  # (arms,) accuracy
    usual: Floats  # (arms, arms) how often two agree
    curves: Floats  # (arms, 3) intercept, confidence, agreement
    spread: Floats  # (samples, arms) the estimates' changes

    @classmethod
    def fit(cls, train: Recording, seed: int) -> CascadeRouter:
        """Of the shortlist's eight arms."""
        arms, unit = shortlist(train, _MOST), single(train)[1]
        grades = np.column_stack([train[a].quality[:, 0] for a in arms])
        weights = tuple(fit_weight(a, train[a].score[:, 0], train[a].quality[:, 0]) for a in arms)
        cost = np.array([train[a].price[:, 0].mean() / unit for a in arms])
        seen = _Seen.of(train, weights)
        usual = seen.agree.mean(axis=0)
        curves = np.stack([_curve(seen, usual, grades[:, i], i) for i in range(len(arms))])
        router = cls(weights, cost, grades.mean(axis=0), usual, curves, np.zeros((1, len(arms))))
        change = router.after(seen, (1 << len(arms)) - 1) - router.ante
        value, vector = np.linalg.eigh(np.atleast_2d(np.cov(change, rowvar=False)))
        normal = np.random.default_rng(seed).standard_normal((_SAMPLES, len(arms)))
        spread = (normal * np.sqrt(np.maximum(value, 0))) @ (vector * np.sign(vector.sum(axis=0) + 1e-12)).T
        return replace(router, spread=spread)

    def after(self, seen: _Seen, ran: int) -> Floats:
        """(tasks, arms) quality estimates of the arms that ran, a bit each; -1 for the others."""
        mine = np.flatnonzero([ran >> i & 1 for i in range(len(self.cost))])
        out = np.full(seen.sure.shape, -1.0)
        extra = (seen.agree - self.usual)[:, mine][:, :, mine]
        extra = (extra.sum(axis=2) - np.einsum("nii->ni", extra)) / max(len(mine) - 1, 1)
        b = self.curves[mine]
        out[:, mine] = np.where(
            seen.failed[:, mine], 0.0, expit(b[:, 0] + b[:, 1] * seen.sure[:, mine] + b[:, 2] * extra)
        )
        return out

    @cached_property
    def gains(self) -> tuple[Floats, Floats]:
        """For every set of arms that have not run: E[max(r, their qualities)] at each r of the grid, and its cost."""
        drawn, m = self.ante + self.spread, len(self.cost)
        table, cost = np.tile(_GRID, (1 << m, 1)), np.zeros(1 << m)
        for s in range(1, 1 << m):
            chosen = [i for i in range(m) if s >> i & 1]
            top = np.sort(drawn[:, chosen].max(axis=1))
            above = np.append(np.cumsum(top[::-1])[::-1], 0.0)
            at = np.searchsorted(top, _GRID)
            table[s], cost[s] = (above[at] + at * _GRID) / len(top), self.cost[chosen].sum()
        return table, cost

    def route(self, seen: _Seen, price: float) -> tuple[Ints, Ints]:
        """Per task: which arms run, a bit each, and which answers."""
        n, m = seen.sure.shape
        (table, cost), every = self.gains, (1 << m) - 1
        worth = table - price * cost[:, None]
        ran, pick = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        first = 1 + int(worth[1:, 0].argmax())  # before anything has run: E[max(0, ...)]
        todo = {first & -first: np.arange(n)}
        while todo:
            mask = min(todo)
            rows = todo.pop(mask)
            now = self.after(
                replace(seen, sure=seen.sure[rows], agree=seen.agree[rows], failed=seen.failed[rows]), mask
            )
            best = now.max(axis=1)
            free = np.array([s for s in range(1 << m) if s & mask == 0 and s <= every])
            at = np.clip(best * (len(_GRID) - 1), 0, len(_GRID) - 1)
            low = np.minimum(at.astype(int), len(_GRID) - 2)
            options = worth[free][:, low] * (1 - at + low) + worth[free][:, low + 1] * (at - low)
            options[0] += 1e-9  # the empty set comes first: of equals, stop
            then = free[options.argmax(axis=0)]
            done = then == 0
            ran[rows[done]], pick[rows[done]] = mask, now[done].argmax(axis=1)
            for bit in np.unique(then[~done] & -then[~done]):
                more = rows[~done][(then[~done] & -then[~done]) == bit]
                todo[mask | int(bit)] = np.concatenate([todo.get(mask | int(bit), more[:0]), more])
        return ran, pick

    def grade(self, recording: Recording, price: float) -> Graded:
        """What it came to: arms one after another."""
        seen = _Seen.of(recording, self.weights)
        ran, pick = self.route(seen, price)
        calls = [recording[w.arm] for w in self.weights]
        made = (ran[:, None] >> np.arange(len(calls))) & 1
        quality, cost, latency = (
            np.column_stack([getattr(d, k)[:, 0] for d in calls]) for k in ("quality", "price", "latency")
        )
        rows, stated = np.arange(len(recording)), np.zeros(len(recording))
        for mask in np.unique(ran):
            stated[ran == mask] = self.after(seen, int(mask))[ran == mask].max(axis=1)
        return Graded(quality[rows, pick], (cost * made).sum(axis=1) * 1.0, (latency * made).sum(axis=1) * 1.0, stated)


def _curve(seen: _Seen, usual: Floats, grade: Floats, i: int) -> Floats:
    """(3,) of an arm alone, beside each other arm, and beside all, which count alike."""
    others = [j for j in range(seen.sure.shape[1]) if j != i]
    extra = seen.agree[:, i] - usual[i]
    beside, share = [np.zeros(len(grade))], [1.0]
    if others:
        beside += [*(extra[:, j] for j in others), extra[:, others].mean(axis=1)]
        share = [share / 3 for share in (1.0, *[1 / len(others)] * len(others), 1.0)]
    x = np.column_stack([np.tile(seen.sure[:, i], len(beside)), np.concatenate(beside)])
    y = np.tile(grade, len(beside))
    if y.min() == y.max():
        p = (grade.sum() + 1) / (len(grade) + 2)
        return np.array([np.log(p / (1 - p)), 0.0, 0.0])
    weight = np.concatenate([y, 1 - y]) * np.tile(np.repeat(share, len(grade)), 2)
    both = LogisticRegression(C=1.0).fit(np.tile(x, (2, 1)), np.repeat([1, 0], len(y)), sample_weight=weight)
    return np.array([both.intercept_[0], *both.coef_[0]])


def cascade_routing(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """`CascadeRouter` at the price of money, from a grid and by bisection, that serves each point in training.

    The changes that estimates are thought to undergo are taken whole, halved, and as none, which is its authors'
    ablation: whole ones alone do worse held out.
    """
    fitted, unit = CascadeRouter.fit(train, seed), single(train)[1]
    tried = list[tuple[CascadeRouter, float, Graded]]()

    for router in (replace(fitted, spread=fitted.spread * scale) for scale in _SCALES):
        came = [(router, float(price), router.grade(train, float(price))) for price in _PRICES]
        for share in SHARES.values():
            over = [price for _, price, g in came if g.cost.mean() > share * unit]
            within = [price for _, price, g in came if g.cost.mean() <= share * unit]
            if not over or not within or max(over) > min(within):
                continue
            low, high = max(over), min(within)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                came.append((router, middle, router.grade(train, middle)))
                low, high = (middle, high) if came[-1][2].cost.mean() > share * unit else (low, middle)
        tried += came

    def play(at: int) -> Play:
        router, price, _ = tried[at]
        arms = [w.arm for w in router.weights]
        words = (
            f"cascade routing over {', '.join(arms)}: ask the next as long as more quality is expected than its "
            f"cost at a price of {price:.3g} for the best arm's; the answer of the greatest estimate."
        )
        return in_sample(words, arms, lambda new: router.grade(new, price), train)

    return by_point(train, [g.quality.mean() for *_, g in tried], [g.cost.mean() for *_, g in tried], play)


# --- the nearest prompts ----------------------------------------------------------------------


def knn_router(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """The arm of the greatest quality - price * cost, where quality is the mean over the 15 nearest training prompts.

    Nearest by the cosine of TF-IDF vectors, shrunk by 10 tasks towards the arm's mean; on the training tasks each is
    left out of its own neighbours. Without prompts it is `single_mix`.
    """
    known = texts or {}
    prompts = [known.get(item, "") for item in train.items]
    if len({*prompts}) < max(_NEAREST, 0.5 * len(prompts)):
        return {
            point: replace(play, words=f"no prompts recorded, so a mix of single arms: {play.words}")
            for point, play in single_mix(train, seed).items()
        }
    arms = list(shortlist(train))
    grades = np.column_stack([train[a].quality[:, 0] for a in arms])
    cost = np.array([train[a].price[:, 0].mean() for a in arms])
    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b|[^\w\s]")
    table = words.fit_transform(prompts)

    def estimates(wanted: Sequence[str], self_too: bool) -> Floats:
        near = np.asarray((words.transform(wanted) @ table.T).todense())
        if not self_too:
            np.fill_diagonal(near, -1.0)
        top = np.argsort(-near, axis=1, kind="stable")[:, :_NEAREST]
        return np.asarray((grades[top].sum(axis=1) + _SHRINK * grades.mean(axis=0)) / (top.shape[1] + _SHRINK))

    def routed(recording: Recording, quality: Floats, price: float) -> Graded:
        at = (quality - price * cost / unit).argmax(axis=1)
        columns = (
            np.column_stack([getattr(recording[a], k)[:, 0] for a in arms]) for k in ("quality", "price", "latency")
        )
        return Graded(*(x[np.arange(len(at)), at] * 1.0 for x in columns))

    unit, own = single(train)[1], estimates(prompts, self_too=False)
    came = [routed(train, own, price) for price in _PRICES]

    def play(at: int) -> Play:
        price = float(_PRICES[at])

        def grade(new: Recording) -> Graded:
            if new.items == train.items:
                return came[at]
            return routed(new, estimates([known.get(item, "") for item in new.items], self_too=True), price)

        words = (
            f"for each task the one of {', '.join(arms)} that did best on the {_NEAREST} nearest prompts, at a price "
        )
        return in_sample(f"{words}of {price:.3g} for the best arm's cost.", arms, grade, train)

    return by_point(train, [g.quality.mean() for g in came], [g.cost.mean() for g in came], play)
