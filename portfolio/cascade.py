"""Cascades alone as a scikit-learn estimator: one stop for all stages, or a threshold for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from playcall.calibration import fit_weight
from playcall.portfolio.belief import Stages
from playcall.portfolio.choice import Target, choose
from playcall.portfolio.estimators import LearnsStrategy
from playcall.portfolio.expect import chances, shrunk, toll
from playcall.portfolio.policy import Infeasible, nearest_words, usable_for
from playcall.portfolio.sweep import Fixed, Play, any_scored, best_arm, shortlist, staged
from playcall.strategies import NANO, Misuse, Recording, Strategy, arms_of, outcomes
from playcall.strategies.algebra import Ask, Gather, Keep, OrElse
from playcall.strategies.panel import Floats
from playcall.strategies.rules import AtLeast, Belief, Confident, Never, Vote

_LEVELS = np.linspace(0.05, 0.95, 7)  # quantiles of an arm's confidences that are tried as thresholds
_CALLS, _CHAIN = 4, 3  # most calls of a play in stages, and of a chain


class CascadeLearner(LearnsStrategy):
    """Which arms to ask one after another, and when to stop, learned from recorded calls.

    X is a `Recording` of (tasks, arms), which scikit-learn splits by tasks; there is no y, as grades are recorded. Or X
    is an array of (tasks, arms) grades from 0 to 1, of which a single arm is chosen, as nothing tells when to go on.

    Parameters
    ----------
    stops : "shared": stages of arms, the first of which may be a vote, keep all evidence and stop at one threshold on
        the posterior (`Swept`). "per_stage": a chain of up to three arms by rising cost, each stage with a threshold of
        its own on the arm's raw confidence, that forgets what it does not put out (FrugalGPT, Chen et al. 2023), from
        all combinations of seven quantiles of each arm's confidences; see `chains`.
    max_calls : most calls a task, 1 to 4; chains have 3 at most.
    gap : inf starts one stage after another, 0 all at once, stopping early; seconds between are a hedge. Other
        than inf, a limit on costs counts all calls, so that it is kept whichever are started. "shared" only.
    max_cost, max_share : most USD a task, or that as a share of the best single arm's cost.
    min_quality, max_drop : least quality (0 to 1), or how far it may lie below the best single arm's. The cheapest
        cascade that keeps it is chosen. Without any limit: the best quality at the best single arm's cost.
    random_state : not used, as nothing is drawn at random; held for a common interface.

    Attributes
    ----------
    strategy_ : the cascade as a play; a single call, or a vote of one stage, where that is the best.
    stages_ : tuple of stages, each a tuple of arm names that are asked together.
    thresholds_ : (1,) probability of the shared stop, or (stages - 1,) raw confidences; (0,) where there is one stage.
    belief_ : the `Belief` whose posterior is looked at; None per stage, and for a single call.
    arms_ : names of the arms of all stages, in order.
    quality_ : mean grade (0 to 1) on the tasks that it was chosen by, so rather too high; `score` new ones instead.
    cost_ : mean USD a task on them, None where not recorded.
    n_features_in_, feature_names_in_ : how many arms X has, their names ((arms,); of an array only where it has names).
    """

    def __init__(
        self, *, stops: Literal["shared", "per_stage"] = "shared", max_calls: int = 4, gap: float = inf,
        max_cost: float | None = None, max_share: float | None = None, min_quality: float | None = None,
        max_drop: float | None = None, random_state: int = 0,
    ) -> None:  # fmt: skip
        self.stops = stops
        self.max_calls = max_calls
        self.gap = gap
        self.max_cost = max_cost
        self.max_share = max_share
        self.min_quality = min_quality
        self.max_drop = max_drop
        self.random_state = random_state

    @property
    def target(self) -> Target:
        """What the parameters ask for."""
        limits = {k: getattr(self, k) for k in ("max_cost", "max_share", "min_quality", "max_drop")}
        return Target(**limits)

    def fit(self, X: Recording | ArrayLike, y: object = None) -> Self:
        """Learn from a Recording, or from (tasks, arms) grades; y is ignored.

        Raises Infeasible where nothing keeps the limits; Misuse where they are on what was not recorded, or where
        thresholds per stage have no confidences to go by.
        """
        self._checked()
        target, recording = self.target, self._recorded(X, reset=True)
        usable = usable_for(recording, target)
        if self.stops == "per_stage" and not any_scored(usable):
            raise Misuse(
                f"CascadeLearner(stops='per_stage'): {recording.name} has no confidences to put thresholds on; "
                "record them (a confidence column), or write stops='shared'."
            )
        tried = staged(usable) if self.stops == "shared" else chains(usable)
        tried = [p for p in tried if len(p.arms) <= self.max_calls]
        if self.gap != inf:
            tried = [_at_most(p, usable) for p in tried]
        choice = choose(tried, usable, target)
        if not choice.feasible:
            raise Infeasible(nearest_words(target, choice), choice)
        strategy = choice.strategy
        if isinstance(strategy, Keep) and isinstance(strategy.source, Gather) and not strategy.source.plain:
            strategy = replace(strategy, source=replace(strategy.source, gap=float(self.gap)))
        self.strategy_: Strategy = strategy
        self.stages_, thresholds, self.belief_ = _parts(strategy)
        self.thresholds_ = np.array(thresholds, dtype=np.float64)
        self.arms_ = tuple(a for stage in self.stages_ for a in stage)
        apparent = outcomes(strategy, usable)
        self.quality_ = float(apparent.quality.mean())
        self.cost_ = float(apparent.cost.mean()) / NANO if usable.priced else None
        return self

    def _checked(self) -> None:
        if self.stops not in ("shared", "per_stage"):
            raise Misuse(f"CascadeLearner(stops={self.stops!r}): write 'shared' or 'per_stage'.")
        whole = isinstance(self.max_calls, int | np.integer) and not isinstance(self.max_calls, bool)
        if not whole or not 1 <= self.max_calls <= _CALLS:
            raise Misuse(f"CascadeLearner(max_calls={self.max_calls!r}): give a whole number from 1 to {_CALLS}.")
        if not isinstance(self.gap, int | float) or isinstance(self.gap, bool) or not self.gap >= 0:
            raise Misuse(f"CascadeLearner(gap={self.gap!r}): give seconds, zero or more (math.inf for one by one).")
        if self.stops == "per_stage" and self.gap != inf:
            raise Misuse(
                f"CascadeLearner(stops='per_stage', gap={self.gap!r}): such a chain runs one stage after another; "
                "leave gap at math.inf, or write stops='shared'."
            )


@dataclass(frozen=True)
class Chain(Fixed):
    """Arms one after another at each combination of thresholds: figures are (combinations,)."""

    levels: tuple[tuple[float, ...], ...] = ()  # a threshold for each arm but the last

    def strategy(self, at: int = 0, gap: float = inf) -> Strategy:
        """The chain with one of its combinations; the gap is always inf."""
        out: Strategy = Ask(self.arms[-1])
        for arm, threshold in zip(self.arms[-2::-1], self.levels[at][::-1], strict=True):
            out = Ask(arm).keep(AtLeast(threshold)) | out
        return out


def chains(recording: Recording) -> list[Play]:
    """Every chain of up to three arms of the shortlist by rising cost, at all combinations of its thresholds.

    What each is expected to do on new tasks is shrunk as that of other plays is (`shrunk`), less `toll` for each
    further call. From 100 and 300 labels (cascade_mmlu, cascade_medmcqa; 16 splits, shares of 0.5, 1 and 1.5) that
    chose chains 0.3 points better held out, on average, than apparent quality less `toll`, which spent a tenth less. An
    arm without confidences comes last.
    """
    arms, best = shortlist(recording), best_arm(recording)
    first = {a: (recording[a].score[:, 0], ~recording[a].failed[:, 0]) for a in arms}
    told = {a: score[alive & np.isfinite(score)] for a, (score, alive) in first.items()}
    grid = {a: np.unique(np.quantile(s, _LEVELS)) for a, s in told.items() if len(s)}
    stop = {a: (first[a][1] & (first[a][0] >= t[:, None])).astype(np.float64) for a, t in grid.items()}
    calibrated = {a: fit_weight(a, recording[a].score.ravel(), recording[a].quality.ravel()) for a in arms}
    quality = np.stack([recording[a].quality[:, 0] for a in arms])
    modelled = chances(arms, recording, calibrated).T
    gain = modelled - modelled[arms.index(best)]
    residual = quality - quality[arms.index(best)] - gain
    spent = np.stack([np.stack([recording[a].price[:, 0], recording[a].latency[:, 0]]) for a in arms], axis=1)
    found, judged, near = list[Chain](), list[Floats](), list[Floats]()
    unit = 1.5 * recording[best].price[:, 0].mean()
    for m in range(1, _CHAIN + 1):
        for at in map(list, combinations(range(len(arms)), m)):
            chosen = tuple(arms[i] for i in at)
            if not all(a in grid for a in chosen[:-1]):
                continue
            values = np.stack(
                [quality[at], *np.cumsum(spent[:, at], axis=1), gain[at], residual[at], residual[at] ** 2]
            )
            q, cost, latency, g, r, square = _at_each([stop[a] for a in chosen[:-1]], values)
            levels = tuple(product(*(grid[a].tolist() for a in chosen[:-1])))
            found.append(Chain(Ask(chosen[-1]), chosen, q, q, cost, latency, tuple((a,) for a in chosen), levels))
            judged.append(np.stack([g, r, np.maximum(square - r**2, 0.0) / len(recording)]))
            near.append((cost <= unit) / len(q))
    g, r, variance = np.concatenate(judged, axis=1)
    level = recording[best].quality.mean() + shrunk(g, r, variance, np.concatenate(near))
    held = np.split(level, np.cumsum([len(c.levels) for c in found])[:-1])
    return [replace(c, expected=h - toll(len(c.arms))) for c, h in zip(found, held, strict=True)]


def _at_each(stop: Sequence[Floats], values: Floats) -> Floats:
    """(figures, combinations) means over tasks of (figures, stages, tasks) values, taken at the stage that stops.

    `stop` is (thresholds, tasks) for each stage but the last: 1 where it stops.
    """
    n = values.shape[2]
    going, total = np.ones((1, n)), np.zeros((1, len(values)))
    for i, now in enumerate(stop):
        total = (total[:, None] + (going[:, None] * now) @ values[:, i].T).reshape(-1, len(values))
        going = (going[:, None] * (1 - now)).reshape(-1, n)
    return np.asarray((total + going @ values[:, -1].T).T / n)


def _at_most(play: Play, recording: Recording) -> Play:
    """The play of stages at the cost of all its calls, any of which may be started before the others are in."""
    return replace(play, cost=play.cost * 0 + sum(float(recording[a].price[:, 0].mean()) for a in play.arms))


def _parts(strategy: Strategy) -> tuple[Stages, tuple[float, ...], Belief | None]:
    """The stages of a play of `staged` or `chains`, its thresholds and its belief."""
    match strategy:
        case OrElse(Keep(Ask(arm), AtLeast(threshold)), then):
            stages, thresholds, _ = _parts(then)
            return ((arm,), *stages), (threshold, *thresholds), None
        case Keep(Gather(_, Never()), Vote(belief)):
            return (arms_of(strategy),), (), belief
        case Keep(Gather(parts, Confident(threshold)), Vote(belief)):
            return tuple(arms_of(p) for p in parts), (threshold,), belief
    return (arms_of(strategy),), (), None
