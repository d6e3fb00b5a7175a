"""Choosing one play among many that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from playcall.portfolio.sweep import Swept, best_arm
from playcall.strategies import NANO, Misuse, Outcomes, Recording, Strategy, outcomes
from playcall.strategies.panel import Floats

_TIMED = 40  # so many plays are also tried in parallel and hedged, where time matters
_PER_ARM = 0.004  # quality that a further arm must bring


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

    def excess(self, options: pd.DataFrame) -> Floats:
        """By what share of each limit an option misses it, all added; 0 where all are kept."""
        over = np.zeros(len(options))
        for most, have in ((self.max_cost, options.cost / NANO), (self.max_latency, options.latency / 1e6)):
            if most is not None:
                over += np.maximum(have.to_numpy() / max(most, 1e-12) - 1 - 1e-9, 0)
        if self.min_quality is not None:
            over += np.maximum(self.min_quality - options.quality.to_numpy(), 0)
        return over

    def value(self, options: pd.DataFrame, unit: float) -> Floats:
        """What an option is worth; -inf where it misses a limit. `unit` is the best single arm's cost, nano-dollars."""
        worth = options.quality - self.cost_weight * options.cost / NANO - self.latency_weight * options.latency / 1e6
        if self.min_quality is not None and not (self.cost_weight or self.latency_weight):
            worth = options.quality * 1e-3 - options.cost / max(unit, 1.0)
        return np.where(self.excess(options) > 0, -np.inf, worth)


@dataclass(frozen=True)
class Choice:
    """A chosen play, and its figures on the tasks it was chosen by."""

    strategy: Strategy
    feasible: bool  # False: nothing keeps all limits, and this comes nearest
    quality: float
    cost: float  # mean nano-dollars
    latency: float  # mean microseconds


def choose(swept: Sequence[Swept], recording: Recording, target: Target) -> Choice:
    """The play to recommend, from a search on the same recording.

    Each further arm must bring 0.4 points of quality, and a play is credited with that much less: of hundreds of
    plays the longer ones win by luck more often than by merit (measured on held-out folds). Where time matters, the
    best plays are also tried with their stages in parallel and hedged. When a limit cannot be kept, the nearest play
    is the choice, marked as not feasible.
    """
    single = recording[best_arm(recording)]
    unit = float(single.price[:, 0].mean())
    if target.open:
        target = Target(max_cost=unit / NANO)
    options = _options(swept)
    if target.timely and recording.timed:
        patient = replace(target, max_latency=None, latency_weight=0.0)
        gaps = (0.0, round(float(np.median(single.latency[:, 0])) / 2e6, 3))
        few = _best(_credited(options), patient, unit, _TIMED)
        options = pd.concat([options, _hurried(few, gaps, swept, recording)], ignore_index=True)
    best = _best(_credited(options), target, unit, 1)
    if best.empty:  # a quality that no play is credited with may still have been seen
        best = _best(options, target, unit, 1)
    feasible = not best.empty
    if not feasible:
        best = options.iloc[[int(target.excess(options).argmin())]]
    strategy = _strategy(next(best.itertuples()), swept)
    return Choice(strategy, feasible, *_means(outcomes(strategy, recording)))


def _credited(options: pd.DataFrame) -> pd.DataFrame:
    return options.assign(quality=options.quality - _PER_ARM * (options.arms - 1))


def _options(swept: Sequence[Swept]) -> pd.DataFrame:
    """Every play at every threshold: play and at say which, gap is in seconds, the rest are means over the tasks."""
    size = [len(s.quality) for s in swept]
    figures = {k: np.concatenate([getattr(s, k) for s in swept]) for k in ("quality", "cost", "latency")}
    play, at = np.repeat(np.arange(len(swept)), size), np.concatenate([np.arange(n) for n in size])
    return pd.DataFrame(
        {"play": play, "at": at, "gap": inf, "arms": np.repeat([len(s.arms) for s in swept], size), **figures}
    )


def _best(options: pd.DataFrame, target: Target, unit: float, most: int) -> pd.DataFrame:
    """The best option of each of the best plays, leaving out those that miss a limit."""
    ranked = options.assign(value=target.value(options, unit)).sort_values("value", ascending=False, kind="stable")
    return ranked[ranked.value > -np.inf].drop_duplicates(["play", "gap"]).head(most)


def _strategy(option: Any, swept: Sequence[Swept]) -> Strategy:
    return swept[option.play].strategy(option.at, option.gap)


def _hurried(
    options: pd.DataFrame, gaps: Sequence[float], swept: Sequence[Swept], recording: Recording
) -> pd.DataFrame:
    """The options of more than one stage, with other gaps between their stages."""
    staged = options[[len(swept[play].stages) > 1 for play in options.play]]
    hurried = [option._replace(gap=gap) for option in staged.itertuples(index=False) for gap in gaps]
    came = [_means(outcomes(_strategy(option, swept), recording)) for option in hurried]
    figures = pd.DataFrame(came, columns=["quality", "cost", "latency"], dtype=np.float64)
    return pd.DataFrame(hurried, columns=staged.columns).assign(**figures)


def _means(o: Outcomes) -> tuple[float, float, float]:
    return float(o.quality.mean()), float(o.cost.mean()), float(o.latency.mean())
