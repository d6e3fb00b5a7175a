"""Choosing one play among many that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from playcall.portfolio.sweep import Play, best_arm
from playcall.strategies import NANO, Misuse, Outcomes, Recording, Strategy, outcomes
from playcall.strategies.panel import Floats

_TIMED = 40  # so many plays are also tried in parallel and hedged, where time matters


@dataclass(frozen=True)
class Target:
    """What a policy is for. Without any limit or weight: the best quality at no more than the best single arm's cost.

    Costs are USD a task, latencies seconds a task, quality is 0 to 1; a weight is how much quality one USD, or one
    second, is worth. A minimum quality, or a greatest drop, asks for the cheapest play that keeps it.
    """

    max_cost: float | None = None
    max_latency: float | None = None  # on average
    min_quality: float | None = None
    cost_weight: float = 0.0
    latency_weight: float = 0.0
    max_share: float | None = None  # of the best single arm's cost
    max_drop: float | None = None  # below the best single arm's quality
    max_latency_p95: float | None = None  # of 95 % of the tasks

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (isinstance(value, int | float | np.number) and 0 <= value < inf):
                raise Misuse(f"Target {name}={value!r}: give a number, zero or more.")
        for name, value in (("min_quality", self.min_quality), ("max_drop", self.max_drop)):
            if value is not None and value > 1:
                raise Misuse(f"Target {name}={value}: quality goes from 0 to 1.")
        for own, relative in (("min_quality", "max_drop"), ("max_cost", "max_share")):
            if None not in (both := (getattr(self, own), getattr(self, relative))):
                pair = f"{own}={both[0]:g}, {relative}={both[1]:g}"
                raise Misuse(f"Target {pair}: give a limit by itself or relative to the best single arm, not both.")

    @property
    def timely(self) -> bool:
        """Whether time matters."""
        return self.max_latency is not None or self.latency_weight > 0 or self.max_latency_p95 is not None

    @property
    def costly(self) -> bool:
        """Whether what things cost must be known."""
        return self.max_cost is not None or self.max_share is not None or self.cost_weight > 0

    def against(self, quality: float, cost: float) -> Target:
        """The target with limits of its own, where the best single arm has this quality and this cost in USD."""
        share = 1.0 if self == Target() else self.max_share
        most = self.max_cost if share is None else share * cost
        least = self.min_quality if self.max_drop is None else max(quality - self.max_drop, 0.0)
        return replace(self, max_cost=most, min_quality=least, max_share=None, max_drop=None)

    def excess(self, options: pd.DataFrame) -> Floats:
        """By what share of each limit an option misses it, all added; 0 where all are kept."""
        over = np.zeros(len(options))
        tail = options.get("tail", options.latency)
        for most, have in (
            (self.max_cost, options.cost / NANO),
            (self.max_latency, options.latency / 1e6),
            (self.max_latency_p95, tail / 1e6),
        ):
            if most is not None:
                over += np.maximum(have.to_numpy() / max(most, 1e-12) - 1 - 1e-9, 0)
        if self.min_quality is not None:
            over += np.maximum(self.min_quality - options.expected.to_numpy(), 0)
        return over

    def value(self, options: pd.DataFrame, unit: float) -> Floats:
        """What an option is worth; -inf where it misses a limit. `unit` is the best single arm's cost, nano-dollars."""
        worth = options.expected - self.cost_weight * options.cost / NANO - self.latency_weight * options.latency / 1e6
        if self.min_quality is not None and not (self.cost_weight or self.latency_weight):
            worth = options.expected * 1e-3 - options.cost / max(unit, 1.0)
        return np.where(self.excess(options) > 0, -np.inf, worth)


@dataclass(frozen=True)
class Choice:
    """A chosen play, and its figures on the tasks it was chosen by."""

    strategy: Strategy
    feasible: bool  # False: nothing keeps all limits, and this comes nearest
    quality: float
    cost: float  # mean nano-dollars
    latency: float  # mean microseconds
    tail: float  # microseconds, of 95 % of the tasks


def choose(swept: Sequence[Play], recording: Recording, target: Target) -> Choice:
    """The play to recommend, from a search on the same recording: the best by what it is expected to do on new tasks.

    Where time matters, the best plays are also tried with their stages in parallel and hedged. When a limit cannot be
    kept, the nearest play is the choice, marked as not feasible.
    """
    single = recording[best_arm(recording)]
    unit = float(single.price.mean())
    target = target.against(float(single.quality.mean()), unit / NANO)
    options = options_of(swept)
    if target.timely and recording.timed:
        patient = replace(target, max_latency=None, latency_weight=0.0, max_latency_p95=None)
        gaps = (inf, 0.0, round(float(np.median(single.latency[:, 0])) / 2e6, 3))
        few = pd.concat([best_options(options, t, unit, _TIMED) for t in (patient, target)]).drop_duplicates()
        options = pd.concat([few, options[options.calls == 1]]).drop_duplicates()
        options = _timed(options, gaps, swept, recording)
    best = best_options(options, target, unit, 1)
    feasible = not best.empty
    if not feasible:
        near = target.excess(options)
        best = options[near <= near.min() + 1e-9].sort_values("expected", ascending=False, kind="stable").head(1)
    strategy = _strategy(next(best.itertuples()), swept)
    return Choice(strategy, feasible, *_means(outcomes(strategy, recording)))


def options_of(swept: Sequence[Play]) -> pd.DataFrame:
    """Every play at every threshold: play and at say which, gap is in seconds, the rest are means over the tasks."""
    size = [len(s.quality) for s in swept]
    figures = {k: np.concatenate([getattr(s, k) for s in swept]) for k in ("expected", "cost", "latency")}
    play, at = np.repeat(np.arange(len(swept)), size), np.concatenate([np.arange(n) for n in size])
    return pd.DataFrame(
        {"play": play, "at": at, "gap": inf, "calls": np.repeat([len(s.arms) for s in swept], size), **figures}
    )


def best_options(options: pd.DataFrame, target: Target, unit: float, most: int) -> pd.DataFrame:
    """The best option of each of the best plays, leaving out those that miss a limit."""
    ranked = options.assign(value=target.value(options, unit)).sort_values("value", ascending=False, kind="stable")
    kept = ranked[ranked.value > -np.inf].drop_duplicates(["play", "gap"]).head(most)
    return kept.drop(columns="value")


def _strategy(option: Any, swept: Sequence[Play]) -> Strategy:
    return swept[option.play].strategy(option.at, option.gap)


def _timed(options: pd.DataFrame, gaps: Sequence[float], swept: Sequence[Play], recording: Recording) -> pd.DataFrame:
    """The options replayed, those of more than one stage with each gap between them: exact costs and times."""
    tried = [
        option._replace(gap=gap)
        for option in options.itertuples(index=False)
        for gap in (gaps if len(swept[option.play].stages) > 1 else gaps[:1])
    ]
    before = pd.DataFrame(tried, columns=options.columns)
    came = [_means(outcomes(_strategy(option, swept), recording)) for option in tried]
    quality, cost, latency, tail = np.array(came).T
    apparent = np.array([swept[o.play].quality[o.at] for o in tried])
    return before.assign(expected=before.expected + quality - apparent, cost=cost, latency=latency, tail=tail)


def _means(o: Outcomes) -> tuple[float, float, float, float]:
    tail = float(np.quantile(o.latency, 0.95))
    return float(o.quality.mean()), float(o.cost.mean()), float(o.latency.mean()), tail
