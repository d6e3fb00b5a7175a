"""A recipe is the composition that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from playcall.strategies import (
    Agree,
    Ask,
    Belief,
    Best,
    Confident,
    Gather,
    Misuse,
    Never,
    Strategy,
    Template,
    Then,
    Vote,
    best_of,
    cascade,
    confident_vote,
    fallback,
    hedge,
    hierarchy,
    race,
    self_consistency,
    vote,
)

a, b, c = map(Ask, "abc")
BELIEF = Belief.of(a=1.0, b=2.0)
SURE = Confident(0.9, BELIEF)
merge, judge = ("b", Template("Merge {answers}")), ("c", Template("Judge {answers}"))


@pytest.mark.parametrize(
    ("recipe", "composition"),
    [
        (best_of(3, "a"), (a & a & a).keep(Best())),
        (best_of(2, a & b), (a & b & a & b).keep(Best())),
        (self_consistency(3, a), (3 * a).keep(Vote())),
        (vote("a", 2 * b), (a & b & b).keep(Vote())),
        (vote("a", belief=BELIEF), a.keep(Vote(BELIEF))),
        (cascade("a", 2 * b, stop=Agree(2)), Gather((a, 2 * b), Agree(2), inf)),
        (race("a", "b", stop=Agree(1)), (a & b).until(Agree(1), gap=0)),
        (race(3 * a, b, stop=Agree(2)), (3 * a & b).until(Agree(2))),
        (confident_vote("a", "b", belief=BELIEF, threshold=0.9), Gather((a, b), SURE, inf).keep(Vote(BELIEF))),
        (confident_vote("a", belief=BELIEF, threshold=0.9, gap=0), race("a", stop=SURE).keep(Vote(BELIEF))),
        (hedge("a", after=0.3), Gather((a, a), Agree(1), 0.3)),
        (hedge("a", "b", "c", after=0.3), Gather((a, b, c), Agree(1), 0.3)),
        (fallback("a", a, "b"), a | a | b),
        (hierarchy(8 * a, merge, judge), Then(Then(8 * a, *merge), *judge)),
    ],
)
def test_a_recipe_is_its_composition(recipe: Strategy, composition: Strategy) -> None:
    assert recipe == composition


@pytest.mark.parametrize(
    "build",
    [
        lambda: best_of(0, "a"),
        lambda: vote(),
        lambda: fallback(),
        lambda: cascade(stop=Never()),
        lambda: race(stop=Never()),
        lambda: hedge(after=1.0),
        lambda: hedge("a", after=-1.0),
        lambda: self_consistency(3, ""),
    ],
)
def test_a_recipe_of_nothing_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(Misuse):
        build()
