"""Named strategies are plain functions that return compositions."""

from __future__ import annotations

from functools import reduce
from math import inf
from operator import and_, or_

from playcall.strategies.algebra import Ask, Gather, Keep, Strategy, Then
from playcall.strategies.errors import Misuse
from playcall.strategies.rules import Agree, Belief, Best, Confident, Prompt, Stop, Vote


def play(s: Strategy | str) -> Strategy:
    """A strategy, or the single call of a named arm."""
    return Ask(s) if isinstance(s, str) else s


def best_of(n: int, s: Strategy | str) -> Keep:
    """n draws; the one with the best score."""
    return (n * play(s)).keep(Best())


def self_consistency(n: int, s: Strategy | str) -> Keep:
    """n draws; the most frequent answer (Wang et al. 2023)."""
    return (n * play(s)).keep(Vote())


def vote(*parts: Strategy | str, belief: Belief | None = None) -> Keep:
    """A portfolio: all parts at once; the answer with most votes, or with most weight."""
    return reduce(and_, map(play, _some(parts, "vote"))).keep(Vote(belief))


def cascade(*stages: Strategy | str, stop: Stop) -> Gather:
    """One stage after another until enough is known; keeps all evidence."""
    return Gather(tuple(map(play, stages)), stop, inf)


def race(*parts: Strategy | str, stop: Stop) -> Gather:
    """All at once until enough is known; the rest is cancelled."""
    return Gather(tuple(map(play, parts))).until(stop)


def confident_vote(*parts: Strategy | str, belief: Belief, threshold: float, gap: float = inf) -> Keep:
    """Ask parts until an answer is right with this probability; the weightiest answer so far."""
    return Gather(tuple(map(play, parts)), Confident(threshold, belief), gap).keep(Vote(belief))


def hedge(*parts: Strategy | str, after: float) -> Gather:
    """The next part starts when no answer has come for `after` seconds; the first answer wins.

    One part is asked twice (Dean & Barroso, "The tail at scale", 2013).
    """
    both = parts * 2 if len(parts) == 1 else parts
    return Gather(tuple(map(play, both)), Agree(1), after)


def fallback(*stages: Strategy | str) -> Strategy:
    """The next stage where all before it failed or kept nothing."""
    return reduce(or_, map(play, _some(stages, "fallback")))


def hierarchy(interns: Strategy, associate: tuple[str, Prompt], partner: tuple[str, Prompt]) -> Then:
    """Many cheap answers, one arm that condenses them, one that has the last word."""
    return interns >> associate >> partner


def _some(parts: tuple[Strategy | str, ...], name: str) -> tuple[Strategy | str, ...]:
    if not parts:
        raise Misuse(f"{name}(): give at least one strategy or arm.")
    return parts
