"""Plays from repeated draws: votes of one arm or of many, stopped early, and cheap draws before a strong arm.

A play is a queue of calls, read in order. What its first calls agree on is worked out once for all of its prefixes
and thresholds, on several orders of the recorded draws: draws of a task are exchangeable, so each order is another
sample of the same play. On DATE, votes chosen on ten orders are half a point better than on three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import inf
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from playcall.portfolio.sweep import best_arm, priced, shortlist
from playcall.strategies import (
    Agree,
    Ask,
    Belief,
    Best,
    Confident,
    Consistent,
    Draws,
    Gather,
    Recording,
    Strategy,
    Vote,
    best_of,
    vote,
)
from playcall.strategies.panel import Floats, Ints, Mask
from playcall.strategies.rules import ahead

MOST_ARMS = 20
_DEPTH = 16  # most calls of a queue
_ROWS, _ORDERS = 4000, 10  # most tasks times orders; most orders
_SURE = (0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
_PRICES = (0.0, 0.03, 0.2)  # of the best arm's cost, in quality, while a queue grows
_SIZES = (3, 4, 5, 6, 8, 10, 12, 16)
_CHEAP = 0.3  # of the strong arm's cost, at most, where a call is to spare it
_SPARED_FEE = 0.05  # of a strong call's cost, in quality, while the arms to spare it are found
_KEPT = 12  # most plays of a family

Queue = tuple[str, ...]
N = TypeVar("N", bound=np.generic)


class _Play(NamedTuple):
    """A play that may be worth its price, and its means over tasks and orders."""

    quality: float
    cost: float  # nano-dollars
    make: Callable[[], Strategy]


class Drawn(NamedTuple):
    """A play, and by how much its quality exceeds the best single arm's, over several orders of the draws."""

    strategy: Strategy
    gain: float


def drawn(recording: Recording, seed: int = 0) -> list[Drawn]:
    """Candidate plays for arms with several recorded draws a task; none where there are no such arms.

    Of each family - votes side by side, votes until an answer is ahead for good, cheap draws before a strong arm, and
    the best score of several - those that no cheaper play of the family and no single call equals, cheapest first.
    """
    recording = priced(recording)
    few = recording.only(shortlist(_averaged(recording), MOST_ARMS))
    if all(d.depth < 2 for d in few.arms.values()):
        return []
    calls = _Calls.of(few, seed)
    families: list[list[_Play]] = [[], [], [], []]
    if recording.answered:
        for queue in _queues(calls):
            run = _along(calls, queue)
            families[0] += _votes(run, queue)
            families[1] += _adaptive(run, queue)
        families[2] += _spared(calls)
    families[3] += _scored(calls)
    singles = [_Play(float(calls.quality[a].mean()), calls.cost[a], partial(Ask, a)) for a in few.arms]
    found = [(play.make(), play) for family in families for play in _front(family, singles)]
    return [Drawn(strategy, p.quality - float(calls.quality[calls.best].mean())) for strategy, p in dict(found).items()]


def _averaged(recording: Recording) -> Recording:
    """Each arm's draws as one, of mean quality and price."""
    arms = dict[str, Draws]()
    for arm, d in recording.arms.items():
        price = np.rint(d.price.mean(axis=1, keepdims=True)).astype(np.int64)
        arms[arm] = replace(d, quality=d.quality.mean(axis=1, keepdims=True), price=price)
    return replace(recording, arms=arms)


def _front(plays: Sequence[_Play], singles: Sequence[_Play]) -> list[_Play]:
    """The plays that are better than all that cost no more, single calls among them; at most _KEPT, evenly."""
    best, kept = -inf, []
    for play in sorted([*singles, *plays], key=lambda p: (p.cost, -p.quality)):
        if play.quality > best + 1e-9:
            best = play.quality
            kept.append(play)
    kept = [play for play in kept if play not in singles]
    at = np.unique(np.linspace(0, len(kept) - 1, min(len(kept), _KEPT)).round().astype(int))
    return [kept[i] for i in at]


# --- recorded draws -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Calls:
    """By arm: arrays of (rows, draws), rows being tasks times orders of the draws."""

    code: Mapping[str, Ints]  # equal codes are equal answers; -1 where the call failed
    quality: Mapping[str, Floats]
    price: Mapping[str, Ints]
    prompt: Mapping[str, Ints]  # the part of the price that a further draw side by side saves
    score: Mapping[str, Floats]
    cost: Mapping[str, float]  # mean nano-dollars of a call
    best: str

    @classmethod
    def of(cls, recording: Recording, seed: int) -> _Calls:
        """The draws in as many orders as there is room for, the recorded one first."""
        rng = np.random.default_rng(seed)
        orders = int(np.clip(_ROWS // len(recording), 1, _ORDERS))
        code, price, prompt = dict[str, Ints](), dict[str, Ints](), dict[str, Ints]()
        quality, score = dict[str, Floats](), dict[str, Floats]()
        for arm, d in recording.arms.items():
            order = rng.random((orders, *d.answer.shape)).argsort(axis=2)
            order[0] = np.arange(d.depth)
            code[arm] = _several(order, np.where(d.failed, -1, d.answer))
            score[arm] = _several(order, np.where(d.failed, -inf, d.score))
            quality[arm], price[arm] = _several(order, d.quality), _several(order, d.price)
            shared = d.prompt if d.prompt is not None and arm in recording.together else np.zeros_like(d.price)
            prompt[arm] = _several(order, shared)
        cost = {a: float(d.price.mean()) for a, d in recording.arms.items()}
        return cls(code, quality, price, prompt, score, cost, best_arm(_averaged(recording)))

    def depth(self, arm: str) -> int:
        return self.code[arm].shape[1]

    def ranked(self) -> list[str]:
        """Best first, the cheaper of equals."""
        return sorted(self.code, key=lambda a: (-self.quality[a].mean(), self.cost[a]))


def _several(order: Ints, x: NDArray[N]) -> NDArray[N]:
    """(rows, draws) of (tasks, draws), for each of the (orders, tasks, draws) once."""
    return np.concatenate([np.take_along_axis(x, o, axis=1) for o in order])[:, :_DEPTH]


def _of(table: Mapping[str, NDArray[N]], queue: Queue) -> NDArray[N]:
    """(rows, calls): the nth naming of an arm is its nth draw."""
    return np.stack([table[a][:, queue[:i].count(a)] for i, a in enumerate(queue)], axis=1)


class _Run(NamedTuple):
    """What is known after each call of a queue: arrays of (rows, calls)."""

    quality: Floats  # of the answer with most votes, the first of equals
    most: Ints  # its votes
    next: Ints  # those of the runner-up
    spent: Ints  # nano-dollars
    saved: Ints  # of them, where all calls so far start side by side


def _along(calls: _Calls, queue: Queue, weight: Sequence[int] = ()) -> _Run:
    """As votes come in; a call of weight w is w votes."""
    code, quality, rows = _of(calls.code, queue), _of(calls.quality, queue), np.arange(len(calls.code[queue[0]]))
    votes, run = np.zeros(code.shape, dtype=np.int64), (np.zeros(code.shape), np.zeros_like(code), np.zeros_like(code))
    for b, w in enumerate(weight or [1] * len(queue)):
        same = (code[:, : b + 1] == code[:, b : b + 1]) & (code[:, b : b + 1] >= 0)
        votes[:, b] = votes[rows, same.argmax(axis=1)] * same[:, b]  # of the first that gave this answer
        votes[:, : b + 1] += w * same
        top = votes[:, : b + 1].argmax(axis=1)
        others = np.where(code[:, : b + 1] == code[rows, top][:, None], 0, votes[:, : b + 1])
        for column, value in zip(run, (quality[rows, top], votes[rows, top], others.max(axis=1)), strict=True):
            column[:, b] = value
    again = np.array([a in queue[:i] for i, a in enumerate(queue)])
    saved = (_of(calls.prompt, queue) * again).cumsum(axis=1)
    return _Run(*run, _of(calls.price, queue).cumsum(axis=1), saved)


def _sure(run: _Run) -> Floats:
    """(rows, calls) the probability that Consistent compares with its threshold."""
    size = int(run.most.max()) + 1
    table = np.array([[ahead(a, b) for b in range(size)] for a in range(size)])
    return np.asarray(table[run.most, run.next])


# --- queues -------------------------------------------------------------------------------------------------------


def _queues(calls: _Calls) -> Iterator[Queue]:
    """The best arms again and again, the best arms in turn, and votes grown at several prices of money."""
    ranked = [a for a in calls.ranked() if calls.depth(a) > 1]
    cheapest = min(ranked, key=lambda a: calls.cost[a])
    lists = [ranked[:1], ranked[1:2], [cheapest], ranked[:2], ranked[:3], ranked[:4]]
    found = [tuple(_turns(calls, arms)) for arms in lists]
    found += [_grown(calls, calls.ranked(), price) for price in _PRICES]
    yield from (q for q in dict.fromkeys(found) if len(q) > 2)


def _turns(calls: _Calls, arms: Sequence[str]) -> Iterator[str]:
    left = _DEPTH
    for i in range(_DEPTH):
        for arm in arms:
            if i < calls.depth(arm) and left:
                left -= 1
                yield arm


def _grown(calls: _Calls, arms: Sequence[str], price: float, most: int = _DEPTH) -> Queue:
    """The best arm, the best pair to vote with it, then call after call what raises quality less price most."""
    unit = max(1.0, calls.cost[calls.best])
    fee = {a: price * calls.cost[a] / unit for a in arms}
    start = max(arms, key=lambda a: calls.quality[a].mean() - fee[a])
    queue: Queue = (start,)
    while len(queue) < most:
        open_ = [a for a in arms if queue.count(a) < calls.depth(a)]
        if not open_:
            break
        if len(queue) == 1:  # two answers that differ are a tie, so the second call alone tells nothing
            pairs = [(a, *_further(calls, (*queue, a), open_, fee)) for a in open_]
            second, third, _ = max(((a, b, v - fee[a]) for a, b, v in pairs), key=lambda x: x[2])
            if not third:
                break
            queue = (*queue, second, third)
        else:
            queue = (*queue, _further(calls, queue, open_, fee)[0])
    return queue


def _further(calls: _Calls, queue: Queue, arms: Sequence[str], fee: Mapping[str, float]) -> tuple[str, float]:
    """The arm to ask next, of those with draws left (else ""), and the quality of the vote with it less its fee."""
    arms = [a for a in arms if queue.count(a) < calls.depth(a)]
    if not arms:
        return "", -inf
    code, quality = _of(calls.code, queue), _of(calls.quality, queue)
    new, good = (
        np.stack([t[a][:, min(queue.count(a), calls.depth(a) - 1)] for a in arms], axis=1)
        for t in (calls.code, calls.quality)
    )
    votes = np.stack([(code == c[:, None]).sum(axis=1) for c in code.T], axis=1) * (code >= 0)
    same = (code[:, :, None] == new[:, None]) & (new >= 0)[:, None]
    votes = np.concatenate([votes[:, :, None] + same, (same.sum(axis=1) + (new >= 0))[:, None]], axis=1)
    top = votes.argmax(axis=1)
    came = np.where(top == len(queue), good, np.take_along_axis(quality, np.minimum(top, len(queue) - 1), axis=1))
    value = came.mean(axis=0) - [fee[a] for a in arms]
    return arms[int(value.argmax())], float(value.max())


# --- families -----------------------------------------------------------------------------------------------------


def _votes(run: _Run, queue: Queue) -> list[_Play]:
    """The first calls of a queue, side by side."""
    quality, cost = run.quality.mean(axis=0), (run.spent - run.saved).mean(axis=0)
    return [_Play(quality[n - 1], cost[n - 1], partial(vote, *queue[:n])) for n in _SIZES if n <= len(queue)]


def _adaptive(run: _Run, queue: Queue) -> list[_Play]:
    """One after another until an answer is ahead for good."""
    sure, rows = _sure(run), np.arange(len(run.quality))
    plays = []
    for n in (n for n in _SIZES if n <= len(queue)):
        for threshold in (t for t in _SURE if _least(t) < n):
            last = _first(sure[:, :n] >= threshold)
            quality, cost = run.quality[rows, last], run.spent[rows, last] - run.saved[:, _least(threshold) - 1]
            make = partial(_until_ahead, queue[:n], threshold)
            plays.append(_Play(float(quality.mean()), float(cost.mean()), make))
    return plays


def _first(enough: Mask) -> Ints:
    """(rows,) the first column that is enough, or the last."""
    return np.where(enough.any(axis=1), enough.argmax(axis=1), enough.shape[1] - 1)


def _patient(queue: Queue, threshold: float) -> Gather:
    """A queue until an answer is ahead for good. The calls that it cannot do without start side by side."""
    first: Strategy = Ask(queue[0])
    rest = [Ask(a) for a in queue[1:]]
    for _ in range(_least(threshold) - 1):
        first &= rest.pop(0)
    return Gather((first, *rest), Consistent(threshold), inf)


def _least(threshold: float) -> int:
    """How many answers must agree, if none differs, for one to be ahead for good."""
    return next(n for n in range(1, 64) if ahead(n, 0) >= threshold)


def _until_ahead(queue: Queue, threshold: float) -> Strategy:
    return _patient(queue, threshold).keep(Vote())


def _spared(calls: _Calls) -> list[_Play]:
    """Cheap draws, and where they disagree a strong arm that overrules them (mixture of thoughts, Yue et al. 2024)."""
    plays = []
    for strong in calls.ranked()[:3]:
        cheap = [a for a in calls.ranked() if calls.cost[a] <= _CHEAP * calls.cost[strong]]
        if not cheap:
            continue
        lists = {_unlike(calls, cheap, strong, n) for n in (2, 3, 4)} | {tuple(cheap[:4]), tuple(cheap[:1])}
        queues = {tuple(_turns(calls, arms))[:10] for arms in lists} | {_grown(calls, cheap, 0.0, 10)}
        for queue in sorted(queues):
            for n in (n for n in range(2, 11) if n <= len(queue)):
                for last in {1, min(3, calls.depth(strong))}:
                    plays += _sparing(calls, queue[:n], (strong,) * last)
    return plays


def _unlike(calls: _Calls, cheap: Sequence[str], strong: str, size: int) -> Queue:
    """Cheap arms that, where all of them agree, are seldom wrong and often agree: grown, from the best first pair."""
    good, fee = calls.quality[strong][:, 0], _SPARED_FEE / calls.cost[strong]

    def value(arms: Queue) -> float:
        agree = (code[arms[0]] >= 0) & np.all([code[a] == code[arms[0]] for a in arms[1:]], axis=0)
        spent = sum(calls.cost[a] for a in arms) + (1 - agree.mean()) * calls.cost[strong]
        return float(np.where(agree, calls.quality[arms[0]][:, 0], good).mean() - fee * spent)

    code = {a: calls.code[a][:, 0] for a in cheap}
    queue = max(combinations(cheap, 2), key=value, default=tuple(cheap[:1]))
    while len(queue) < min(size, len(cheap)):
        queue = (*queue, max((a for a in cheap if a not in queue), key=lambda a: value((*queue, a))))
    return queue


def _sparing(calls: _Calls, queue: Queue, strong: Queue) -> list[_Play]:
    n, rows = len(queue), np.arange(len(calls.code[queue[0]]))
    run = _along(calls, queue + strong, [1] * n + [n] * len(strong))
    paid = run.spent - run.saved
    extra = paid[:, -1] - paid[:, n - 1]
    sure = _sure(run)
    most, fixed, quality = run.most[:, n - 1], paid[:, n - 1], run.quality[:, n - 1]
    stops = [(most >= q, fixed, quality, partial(_agreeing, queue, strong, q)) for q in range(n // 2 + 1, n + 1)]
    for threshold in (t for t in _SURE if _least(t) <= n):
        last = _first(sure[:, :n] >= threshold)
        cost = run.spent[rows, last] - run.saved[:, _least(threshold) - 1]
        make = partial(_sure_enough, queue, strong, threshold)
        stops.append((sure[rows, last] >= threshold, cost, run.quality[rows, last], make))
    return [
        _Play(
            float(np.where(enough, quality, run.quality[:, -1]).mean()),
            float((cost + np.where(enough, 0, extra)).mean()),
            make,
        )
        for enough, cost, quality, make in stops
    ]


def _agreeing(queue: Queue, strong: Queue, quorum: int) -> Strategy:
    return _then(Gather(tuple(map(Ask, queue))), Agree(quorum), queue, strong)


def _sure_enough(queue: Queue, strong: Queue, threshold: float) -> Strategy:
    return _then(_patient(queue, threshold), Consistent(threshold), queue, strong)


def _then(first: Gather, stop: Agree | Consistent, queue: Queue, strong: Queue) -> Strategy:
    says = Belief.of(**dict.fromkeys(queue, 1.0), **{strong[0]: float(len(queue))})
    second = Gather(tuple(map(Ask, strong))) if len(strong) > 1 else Ask(strong[0])
    return Gather((first, second), stop, inf).keep(Vote(says))


def _scored(calls: _Calls) -> list[_Play]:
    """The best score of several draws of one arm, all at once or until one is good enough."""
    plays = []
    for arm in [a for a in calls.ranked() if calls.depth(a) > 1][:3]:
        score, quality, spent = calls.score[arm], calls.quality[arm], calls.price[arm].cumsum(axis=1)
        paid = spent - calls.prompt[arm].cumsum(axis=1) + calls.prompt[arm][:, :1]  # side by side
        known = score[np.isfinite(score)]
        if not known.size:
            continue
        rank, rows = np.where(np.isnan(score), -1e308, score), np.arange(len(score))
        for n in (n for n in (2, *_SIZES) if n <= score.shape[1]):
            best = rank[:, :n].argmax(axis=1)
            plays.append(
                _Play(float(quality[rows, best].mean()), float(paid[:, n - 1].mean()), partial(best_of, n, arm))
            )
            for threshold in sorted({float(f"{t:.6g}") for t in np.quantile(known, (0.3, 0.5, 0.7, 0.9))}):
                last = _first(rank[:, :n] >= threshold)
                best = np.where(np.arange(n) <= last[:, None], rank[:, :n], -inf).argmax(axis=1)
                make = partial(_good_enough, arm, n, threshold)
                plays.append(_Play(float(quality[rows, best].mean()), float(spent[rows, last].mean()), make))
    return plays


def _good_enough(arm: str, n: int, threshold: float) -> Strategy:
    return Gather((Ask(arm),) * n, Confident(threshold), inf).keep(Best())
