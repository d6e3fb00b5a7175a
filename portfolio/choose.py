"""Choosing one play among many that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from playcall.portfolio.search import Swept, best_arm
from playcall.strategies import NANO, Misuse, Recording, Strategy, outcomes
from playcall.strategies.panel import Floats, Ints

_TIMED = 40  # so many plays are also tried in parallel and hedged, where time matters
_TYPICAL = 20  # the most typical of so many best plays is chosen
_ALIKE = 0.01  # but none that is worth a point of quality less than the best
_SLACK = 0.98  # of a limit, since the cost of other tasks differs a little
_PER_ARM = 0.001  # quality that a further arm must bring


@dataclass(frozen=True)
class Target:
    """What a policy is for. Without any limit or weight: the best quality at no more than the best single arm's cost.

    Costs are USD a task, latencies mean seconds a task, quality is 0 to 1; a weight is how much quality one USD, or
    one second, is worth. A minimum quality asks for the cheapest play that reaches it.
    """

    max_cost: float | None = None
    max_latency: float | None = None
    min_quality: float | None = None
    cost_weight: float = 0.0
    latency_weight: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (0 <= value < inf):
                raise Misuse(f"Target {name}={value!r}: give a number, zero or more.")
        if self.min_quality is not None and self.min_quality > 1:
            raise Misuse(f"Target min_quality={self.min_quality}: quality goes from 0 to 1.")

    @property
    def timely(self) -> bool:
        """Whether time matters."""
        return self.max_latency is not None or self.latency_weight > 0

    @property
    def open(self) -> bool:
        """Whether nothing at all is asked."""
        return self == Target()

    def excess(self, quality: Floats, cost: Floats, latency: Floats) -> Floats:
        """By what share of each limit it is missed, all added; 0 where all are kept. Cost in nano-dollars, time in µs."""
        over = np.zeros_like(quality)
        for most, have in ((self.max_cost, cost / NANO), (self.max_latency, latency / 1e6)):
            if most is not None:
                over = over + np.maximum(have - most, 0) / max(most, 1e-12)
        if self.min_quality is not None:
            over = over + np.maximum(self.min_quality - quality, 0)
        return over

    def value(self, quality: Floats, cost: Floats, latency: Floats, unit: float) -> Floats:
        """What a play is worth; -inf where it misses a limit. `unit` is the best single arm's cost in nano-dollars."""
        worth = quality - self.cost_weight * cost / NANO - self.latency_weight * latency / 1e6
        if self.min_quality is not None and not (self.cost_weight or self.latency_weight):
            worth = quality * 1e-3 - cost / max(unit, 1.0)
        # compared with the limits drawn in a little: what is chosen must hold on other tasks
        return np.where(self.excess(quality, cost / _SLACK, latency / _SLACK) > 0, -np.inf, worth)


@dataclass(frozen=True)
class Choice:
    """A chosen play, and its figures on the tasks it was chosen by."""

    strategy: Strategy
    feasible: bool  # False: nothing keeps all limits, and this comes nearest
    quality: float
    cost: float  # mean nano-dollars
    latency: float  # mean microseconds


class _Options(NamedTuple):
    """Every play at every threshold, in arrays of (options,)."""

    play: Ints
    at: Ints
    gap: Floats
    arms: Ints
    quality: Floats
    cost: Floats
    latency: Floats

    def best(self, value: Floats, most: int) -> list[int]:
        """The best option of each of the best plays, skipping the worthless."""
        chosen: dict[tuple[int, float], int] = {}
        for i in np.argsort(-value, kind="stable"):
            if value[i] == -np.inf or len(chosen) == most:
                break
            chosen.setdefault((int(self.play[i]), float(self.gap[i])), int(i))
        return list(chosen.values())


def choose(swept: Sequence[Swept], recording: Recording, target: Target) -> Choice:
    """The play to recommend, from a search on the same recording.

    With hundreds of plays, the one that looks best owes much to luck. What good plays share is skill: so of the twenty
    best, if they are alike, the most typical one is chosen, whose outcomes lie nearest to the mean of the twenty. Each further arm must
    bring a tenth of a point. Where time matters, the best plays are also tried with their stages in parallel and
    hedged. When a limit cannot be kept, the nearest play is the choice, marked as not feasible.
    """
    single = recording[best_arm(recording)]
    unit = float(single.price[:, 0].mean())
    if target.open:
        target = Target(max_cost=unit / NANO / _SLACK)
    options = _options(swept)
    if target.timely and recording.timed:
        patient = replace(target, max_latency=None, latency_weight=0.0)
        value = patient.value(options.quality, options.cost, options.latency, unit) - _PER_ARM * options.arms
        gaps = (0.0, round(float(np.median(single.latency[:, 0])) / 2e6, 3))
        options = _hurried(options, options.best(value, _TIMED), gaps, swept, recording)

    figures = (options.quality, options.cost, options.latency)
    value = target.value(*figures, unit) - _PER_ARM * options.arms
    few = [i for i in options.best(value, _TYPICAL) if value[i] >= value.max() - _ALIKE]
    feasible = bool(few)
    if not few:
        few = options.best(-target.excess(*figures), 1)
    strategies = [swept[options.play[i]].strategy(int(options.at[i]), float(options.gap[i])) for i in few]
    came = [outcomes(s, recording) for s in strategies]
    centre = np.mean([o.quality for o in came], axis=0)
    i = int(np.argmin([((o.quality - centre) ** 2).sum() for o in came]))
    o = came[i]
    return Choice(
        strategies[i], feasible, float(o.quality.mean()), float(o.cost.mean()), float(o.latency.mean())
    )


def _options(swept: Sequence[Swept]) -> _Options:
    size = [len(s.quality) for s in swept]
    return _Options(
        play=np.repeat(np.arange(len(swept)), size),
        at=np.concatenate([np.arange(n) for n in size]),
        gap=np.full(sum(size), inf),
        arms=np.repeat([len(s.arms) for s in swept], size),
        quality=np.concatenate([s.quality for s in swept]),
        cost=np.concatenate([s.cost for s in swept]),
        latency=np.concatenate([s.latency for s in swept]),
    )


def _hurried(
    options: _Options, chosen: Sequence[int], gaps: Sequence[float], swept: Sequence[Swept], recording: Recording
) -> _Options:
    """The options, and the chosen ones with other gaps between their stages."""
    staged = [i for i in chosen if len(swept[options.play[i]].stages) > 1]
    columns: list[tuple[float, ...]] = []
    for i in staged:
        for gap in gaps:
            o = outcomes(swept[options.play[i]].strategy(int(options.at[i]), gap), recording)
            means = (float(o.quality.mean()), float(o.cost.mean()), float(o.latency.mean()))
            columns.append((options.play[i], options.at[i], gap, options.arms[i], *means))
    more = zip(options, zip(*columns, strict=True), strict=True) if columns else ()
    return _Options(*(np.append(old, new).astype(old.dtype) for old, new in more)) if columns else options
