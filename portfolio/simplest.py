"""The simplest play that is as good as the best one, as far as the tasks can tell."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, get_args

import numpy as np

from playcall.portfolio.choice import Choice, Target, choose
from playcall.portfolio.nested import Chooser
from playcall.portfolio.sweep import Play, best_arm
from playcall.strategies import NANO, Gather, Keep, Misuse, Recording, Strategy, arms_of, outcomes
from playcall.strategies.panel import Floats

Fallback = Literal["none", "one_se"]
"""Whether a play of fewer calls is taken where it is within one standard error of the best."""


def settle(swept: Sequence[Play], recording: Recording, target: Target, fallback: Fallback = "one_se") -> Choice:
    """`choose`, and with "one_se" the best play of the fewest calls that is within one standard error of that choice.

    The rule of Breiman et al. (1984, section 3.4.3); the standard error is that of the paired difference between what
    the two plays are worth on the recording's tasks. With "none" this is `choose`.
    """
    if fallback not in get_args(Fallback):
        raise Misuse(f"fallback={fallback!r} is unknown; write {' or '.join(map(repr, get_args(Fallback)))}.")
    best = choose(swept, recording, target)
    if fallback == "none" or not best.feasible:
        return best
    worth = _worth(best.strategy, swept, recording, target)
    for calls in range(1, _calls(best.strategy, swept)):
        other = choose([s for s in swept if len(s.arms) <= calls], recording, target)
        lost = worth - _worth(other.strategy, swept, recording, target)
        if other.feasible and lost.mean() <= standard_error(lost) + 1e-12:
            return other
    return best


def settler(target: Target, fallback: Fallback = "none") -> Chooser:
    """`settle` as `cross_fit` wants it."""
    return lambda swept, known: settle(swept, known, target, fallback).strategy


def expectation(strategy: Strategy, swept: Sequence[Play], recording: Recording) -> float:
    """What a play of a search is expected to be graded on new tasks; its mean grade where the search has no such play.

    `swept` is the search on this recording, in which it may have been put at other thresholds or gaps.
    """
    graded = float(outcomes(strategy, recording).quality.mean())
    if found := located(strategy, swept):
        play, at = found
        return graded + float(play.expected[at] - play.quality[at])
    return graded


def standard_error(values: Floats) -> float:
    """Of the mean of independent (tasks,) values."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else inf


def located(strategy: Strategy, swept: Sequence[Play]) -> tuple[Play, int] | None:
    """Which play of a search it is, and at which threshold."""
    inside = strategy.source if isinstance(strategy, Keep) else strategy
    gap, arms = inside.gap if isinstance(inside, Gather) else inf, set(arms_of(strategy))
    alike = [s for s in swept if set(s.arms) == arms]
    return next(((s, at) for s in alike for at in range(len(s.expected)) if s.strategy(at, gap) == strategy), None)


def _calls(strategy: Strategy, swept: Sequence[Play]) -> int:
    """How many calls the play may make, as its search counts them."""
    found = located(strategy, swept)
    return len(found[0].arms) if found else len(arms_of(strategy))


def _worth(strategy: Strategy, swept: Sequence[Play], recording: Recording, target: Target) -> Floats:
    """(tasks,) what the target counts: quality, moved so that its mean is the expected one, less cost and time."""
    o = outcomes(strategy, recording)
    quality = o.quality + expectation(strategy, swept, recording) - o.quality.mean()
    weighed = target.cost_weight > 0 or target.latency_weight > 0
    if not weighed and (target.min_quality is not None or target.max_drop is not None):
        unit = float(recording[best_arm(recording)].price.mean())
        return quality * 1e-3 - o.cost / max(unit, 1.0)
    return quality - target.cost_weight * o.cost / NANO - target.latency_weight * o.latency / 1e6
