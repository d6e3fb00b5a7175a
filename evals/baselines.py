"""What a learned play is measured against: single arms, votes and the oracle; `baselines_staged` has those with stages.

A learner sees training tasks alone and returns a play for each operating point. Every baseline picks by its own figures
on the training tasks, as its authors do, and takes the single arm where nothing of its kind does better there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from playcall import strategies as st
from playcall.calibration import mean_interval
from playcall.portfolio import best_arm, shortlist
from playcall.strategies import Ask, Belief, Explain, Recording, Strategy, Weight, arms_of, outcomes
from playcall.strategies.panel import Floats

POINTS = ("frugal", "half", "best")
"""Cheapest whose expected quality is at least best single - 0.2 points; best at no more than 0.5x and 1.5x its cost."""

SHARES = {"half": 0.5, "best": 1.5}
DROP = 0.002
_DRAWS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40)
_SUBSETS = 8  # arms of which every subset is weighed


@dataclass(frozen=True)
class Graded:
    """What a play came to: arrays of (tasks,), or of (kinds x tasks,) with weights where a task is drawn by lot."""

    quality: Floats
    cost: Floats  # nano-dollars
    latency: Floats  # microseconds
    stated: Floats | None = None  # the probability it gives its answer, where it gives one
    weight: Floats | None = None

    def mean(self, values: Floats) -> float:
        """The mean over the tasks."""
        return float(np.average(values, weights=self.weight))

    @property
    def brier(self) -> float | None:
        """Mean squared error of the stated probability."""
        return None if self.stated is None else self.mean((self.stated - self.quality) ** 2)

    @property
    def latency_p95(self) -> float:
        """Microseconds."""
        if self.weight is None:
            return float(np.quantile(self.latency, 0.95))
        return float(np.quantile(self.latency, 0.95, method="inverted_cdf", weights=self.weight))


@dataclass(frozen=True)
class Play:
    """What to run, in words and as a function of new tasks. Its figures are those the learner states from training."""

    words: str
    arms: tuple[str, ...]
    grade: Callable[[Recording], Graded]
    cost: float  # nano-dollars a task
    quality: float | None = None
    low: float | None = None
    high: float | None = None


Plays = Mapping[str, Play]
Learner = Callable[[Recording, int, Mapping[str, str]], Plays]
"""(training tasks, seed, prompts by item) -> a play for each point."""


def single(train: Recording) -> tuple[float, float]:
    """Quality and cost (nano-dollars, at least 1) of the best arm on the training tasks."""
    best = train[best_arm(train)]
    return float(best.quality[:, 0].mean()), max(float(best.price[:, 0].mean()), 1.0)


def pick(point: str, quality: ArrayLike, cost: ArrayLike, train: Recording) -> int | None:
    """Which option serves a point, by its training quality and cost (nano-dollars), each (options,); None if none."""
    q, c = np.asarray(quality, dtype=float), np.asarray(cost, dtype=float)
    enough, unit = single(train)
    allowed = q >= enough - DROP - 1e-12 if point == "frugal" else c <= SHARES[point] * unit * (1 + 1e-9)
    order = np.lexsort((-q, c) if point == "frugal" else (c, -q))
    order = order[allowed[order]]
    return int(order[0]) if len(order) else None


def by_point(train: Recording, quality: ArrayLike, cost: ArrayLike, play: Callable[[int], Play]) -> dict[str, Play]:
    """The option that serves each point best on the training tasks; the single arm that does, where none is better."""
    alone = best_single(train)
    plays = {}
    for point in POINTS:
        mine, other = pick(point, quality, cost, train), alone[point]
        option = other if mine is None else play(mine)
        two = pick(point, [p.quality or 0.0 for p in (other, option)], [other.cost, option.cost], train)
        plays[point] = option if two == 1 else other
    return plays


def in_sample(words: str, arms: Sequence[str], grade: Callable[[Recording], Graded], train: Recording) -> Play:
    """A play that states what it came to on the training tasks."""
    g = grade(train)
    q = g.quality if g.weight is None else (g.quality * g.weight).reshape(-1, len(train)).sum(axis=0)
    return Play(words, tuple(arms), grade, g.mean(g.cost), *mean_interval(q))


def replayed(strategy: Strategy) -> Callable[[Recording], Graded]:
    """The grade of a strategy."""

    def grade(recording: Recording) -> Graded:
        o = outcomes(strategy, recording)
        return Graded(o.quality, o.cost.astype(float), o.latency.astype(float))

    return grade


def of_strategies(train: Recording, options: Sequence[Strategy]) -> dict[str, Play]:
    """The strategy that serves each point, all replayed on the training tasks."""
    came = [outcomes(s, train) for s in options]

    def play(at: int) -> Play:
        return in_sample(Explain()(options[at]), arms_of(options[at]), replayed(options[at]), train)

    return by_point(train, [o.quality.mean() for o in came], [o.cost.mean() for o in came], play)


def best_single(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """The single arm that serves each point; nearest where none does: the best for frugal, the cheapest for half."""
    arms = list(train.arms)
    quality, cost = _means(train, arms)
    play = {a: in_sample(Explain()(Ask(a)), (a,), replayed(Ask(a)), train) for a in arms}
    picked = {point: pick(point, quality, cost, train) for point in POINTS}
    nearest = {"frugal": best_arm(train), "best": best_arm(train), "half": cheapest(train).arms[0]}
    return {point: play[nearest[point] if at is None else arms[at]] for point, at in picked.items()}


def cheapest(train: Recording) -> Play:
    """The cheapest arm, the better of equals: what anyone can run, and the floor of every learner's area."""
    arms = list(train.arms)
    quality, cost = _means(train, arms)
    arm = arms[int(np.lexsort((-quality, cost))[0])]
    return in_sample(Explain()(Ask(arm)), (arm,), replayed(Ask(arm)), train)


def single_mix(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """Two arms by lot, neighbours on the hull of (cost, quality), so that a budget is hit exactly; graded as expected.

    With a linear budget that is optimal among routers that see nothing of the task (Dekoninck et al. 2025, theorem 1).
    """
    arms = list(train.arms)
    quality, cost = _means(train, arms)
    hull = _hull(quality, cost)
    alone, (enough, unit) = best_single(train), single(train)

    def mix(values: Floats, wanted: float) -> Play | None:
        """The mix whose `values` is the one wanted, or the last of the hull."""
        along = values[hull]
        if wanted < along[0] - 1e-12:
            return None
        at = min(int(np.searchsorted(along, wanted, side="right")) - 1, len(hull) - 1)
        if at == len(hull) - 1 or along[at] == wanted:
            return in_sample(Explain()(Ask(arms[hull[at]])), (arms[hull[at]],), replayed(Ask(arms[hull[at]])), train)
        share = (wanted - along[at]) / (along[at + 1] - along[at])
        a, b = arms[hull[at]], arms[hull[at + 1]]
        return in_sample(
            f"ask {b} for {share:.1%} of tasks by lot, {a} for the others.", (a, b), _lot(a, b, share), train
        )

    first = quality[hull[0]]
    plays = {
        "frugal": mix(quality, max(enough - DROP, first)),
        "half": mix(cost, SHARES["half"] * unit),
        "best": mix(cost, SHARES["best"] * unit),
    }
    return {point: play or alone[point] for point, play in plays.items()}


def _lot(a: str, b: str, share: float) -> Callable[[Recording], Graded]:
    def grade(recording: Recording) -> Graded:
        both = [replayed(Ask(x))(recording) for x in (a, b)]
        columns = (np.concatenate([getattr(g, k) for g in both]) for k in ("quality", "cost", "latency"))
        return replace(Graded(*columns), weight=np.repeat([1 - share, share], len(recording)))

    return grade


def _hull(quality: Floats, cost: Floats) -> list[int]:
    """The options on the concave hull, from the cheapest to the best."""
    hull = [int(np.lexsort((-quality, cost))[0])]
    while True:
        here = hull[-1]
        better = np.flatnonzero((quality > quality[here]) & (cost > cost[here]))
        if not len(better):
            return hull
        slope = (quality[better] - quality[here]) / (cost[better] - cost[here])
        hull.append(int(better[np.lexsort((-cost[better], -slope))[0]]))


def self_consistency(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """The most frequent of k draws of one arm (Wang et al. 2023): the best arm, and those that serve a point alone."""
    arms = {best_arm(train), *(play.arms[0] for play in best_single(train).values())}
    if deep := [a for a, d in train.arms.items() if d.depth > 1]:
        arms.add(best_arm(train.only(deep)))
    most = 1.5 * single(train)[1]
    options: list[Strategy] = []
    for a in sorted(arms):
        depth, cost = train[a].depth, max(float(train[a].price.mean()), 1e-9)
        options += [st.self_consistency(k, a) if k > 1 else Ask(a) for k in _DRAWS if k <= depth and k * cost <= most]
    options += [Ask(a) for a in sorted(arms) if Ask(a) not in options]
    return of_strategies(train, options if train.answered else [s for s in options if isinstance(s, Ask)])


def top_distinct(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """The majority of the best B different arms that one can afford, for every B (ties to the better arm)."""
    ranks = [r for cap in (inf, 0.5, 0.25) if (r := _ranked(train, cap))]
    return of_strategies(train, _votes(train, [r[:b] for r in ranks for b in range(1, len(r) + 1)]))


def majority(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """The majority of the best three, five or all arms, or of all that one can afford."""
    every = sorted(train.arms, key=lambda a: -float(train[a].quality[:, 0].mean()))
    ranks = [r for r in (every, _ranked(train, 0.5)) if r]
    return of_strategies(train, _votes(train, [r[:b] for r in ranks for b in (3, 5, len(r)) if b <= len(r)]))


def log_odds(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """Votes weighted by log((K - 1) p / (1 - p)), p an arm's accuracy with one right and one wrong answer added.

    Optimal for independent errors that spread evenly over K - 1 wrong answers (Nitzan & Paroush 1982); K is the most
    different answers that a training task got. Every subset of eight arms is tried.
    """
    arms = shortlist(train, _SUBSETS)
    answers = np.sort(np.column_stack([train[a].answer[:, 0] for a in arms]), axis=1)
    k = max(2, 1 + int((np.diff(answers, axis=1) != 0).sum(axis=1).max(initial=0)))
    share = {a: (train[a].quality[:, 0].sum() + 1) / (len(train) + 2) for a in arms}
    belief = Belief(tuple(Weight(a, float(np.log((k - 1) * p / (1 - p)))) for a, p in share.items()))
    ranked = sorted(arms, key=lambda a: -share[a])
    subsets = [s for size in range(1, len(arms) + 1) for s in combinations(ranked, size)]
    return of_strategies(train, _votes(train, subsets, belief))


def _votes(train: Recording, groups: Sequence[Sequence[str]], belief: Belief | None = None) -> list[Strategy]:
    """A vote of each group, a call of each single arm; where no answers are recorded calls alone."""
    sizes = [g for g in dict.fromkeys(map(tuple, groups)) if len(g) == 1 or train.answered]
    return [Ask(g[0]) if len(g) == 1 else st.vote(*g, belief=belief) for g in sizes]


def _ranked(train: Recording, cap: float) -> list[str]:
    """The shortlist's arms that cost at most `cap` of the best one, best first."""
    most = cap * single(train)[1]
    arms = [a for a in train.arms if train[a].price[:, 0].mean() <= most]
    arms = list(shortlist(train.only(arms))) if arms else []
    return sorted(arms, key=lambda a: -float(train[a].quality[:, 0].mean()))


def _means(train: Recording, arms: Sequence[str]) -> tuple[Floats, Floats]:
    quality = np.array([train[a].quality[:, 0].mean() for a in arms])
    return quality, np.array([train[a].price[:, 0].mean() for a in arms], dtype=float)


def oracle(train: Recording, seed: int = 0, texts: Mapping[str, str] | None = None) -> dict[str, Play]:
    """The cheapest of the best answers of each task, by its grade: a bound that no router can pass, not a play."""
    words = "BOUND, sees the grades: the cheapest of the arms that are right, else the cheapest arm."
    play = Play(words, tuple(train.arms), _oracle, 0.0)
    return {point: replace(play, cost=float(_oracle(train).cost.mean())) for point in POINTS}


def _oracle(recording: Recording) -> Graded:
    arms = recording.arms.values()
    quality, cost, latency = (
        np.column_stack([getattr(d, k)[:, 0] for d in arms]).astype(float) for k in ("quality", "price", "latency")
    )
    at = np.lexsort((latency, cost, -quality), axis=1)[:, 0]
    return Graded(*(x[np.arange(len(recording)), at] for x in (quality, cost, latency)))
