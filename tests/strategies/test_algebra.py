"""Operators build normal forms, and misuse is refused where it is built, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Belief,
    Best,
    Confident,
    First,
    Gather,
    Misuse,
    Never,
    OrElse,
    PlaycallError,
    Strategy,
    Template,
    Then,
    Vote,
    Weight,
    interpret,
)

a, b, c = map(Ask, "abc")
judge = ("judge", Template("Which is right? {answers}"))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: 0 * a, r"0 \* strategy.*write 1 or more"),
        (lambda: -1 * a, r"-1 \* strategy.*write 1 or more"),
        (lambda: 2.5 * a, r"2\.5 \* strategy.*whole number"),
        (lambda: "3" * a, r"'3' \* strategy.*whole number"),
        (lambda: Ask(""), r"Ask was given the arm ''.*write 'gpt-4o'"),
        (lambda: Ask(a), r"Ask was given the arm Ask\(arm='a'\)"),
        (lambda: Gather(()), "give at least one part"),
        (lambda: Gather(("a", "b")), r"'a', which is not a strategy; compose Ask"),
        (lambda: Gather((a, b), gap=-0.5), r"gap=-0\.5: give seconds, zero or more"),
        (lambda: Gather((a, b), gap=nan), "gap=nan: give seconds"),
        (lambda: (a & b).until(Agree(2), gap="1 s"), "gap='1 s': give seconds"),
        (lambda: (a & b).until(Agree(2), gap=True), "gap=True: give seconds"),
        (lambda: (a & b).until(Agree), r"until was given <class .*Agree'>; give a stop such as Agree\(2\)"),
        (lambda: (a & b).until(AtLeast(0.9)), r"AtLeast\(threshold=0\.9\); give a stop"),
        (lambda: (a & b).until(2), r"until was given 2; give a stop"),
        (lambda: a.within(0), r"within\(0\.0\): no call can finish"),
        (lambda: a.within(-1), "within=-1: give seconds"),
        (lambda: a.within(nan), "within=nan: give seconds"),
        (lambda: a & "b", r"& was given 'b', which is not a strategy; compose Ask"),
        (lambda: a | None, r"\| was given None, which is not a strategy"),
        (lambda: a.keep(Best), r"keep was given <class .*Best'>; give a rule such as Best\(\)"),
        (lambda: a.keep(Agree(2)), r"Agree\(quorum=2\); give a rule"),
        (lambda: a.keep(0.9), r"keep was given 0\.9; give a rule"),
        (lambda: a >> "judge", r">> 'judge': write strategy >> \(arm, Template\('.*\{answers\}'\)\)"),
        (lambda: a >> ("judge", "Which one?"), r"'Which one\?'; give a prompt such as Template"),
        (lambda: a >> (b, judge[1]), r">> was given the arm Ask\(arm='b'\)"),
        (lambda: Agree(0), r"Agree\(quorum=0\).*write 1 or more"),
        (lambda: Belief((Weight("a", 1.0), Weight("a", 2.0))), "weighs 'a' twice; give each arm one Weight"),
        (lambda: interpret("a", None), r"'a' is not a strategy; compose Ask"),
    ],
)
def test_misuse_is_refused_when_built_with_the_value_and_what_to_write(build: Callable[[], object], says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        build()
    assert isinstance(caught.value, PlaycallError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("built", "normal"),
    [
        (a & b & c, Gather((a, b, c))),
        (a & (b & c), Gather((a, b, c))),
        (3 * a, Gather((a, a, a))),
        (2 * (a & b), Gather((a, b, a, b))),
        (a | b | c, OrElse(a, OrElse(b, c))),
        (a & (b & c).until(Agree(1)), Gather((a, Gather((b, c), Agree(1))))),
        (Gather((a & b, c), gap=1.0), Gather((Gather((a, b)), c), gap=1)),
        (Gather([a, b], Agree(2)), Gather((a, b), Agree(2))),
        ((a & b).until(Agree(2), gap=1e13), Gather((a, b), Agree(2), inf)),
        ((a & b).until(Agree(2), gap=1).until(Never()), Gather((a, b), gap=1.0)),
        (a >> judge, Then(a, *judge)),
    ],
)
def test_what_means_the_same_is_built_the_same(built: Strategy, normal: Strategy) -> None:
    assert built == normal
    assert hash(built) == hash(normal)


def test_a_composite_with_a_stop_or_a_gap_is_one_part_of_what_is_around_it() -> None:
    assert len((a & Gather((b, c), gap=1.0) & b).parts) == 3
    assert len((a & (b & c).until(Confident(0.9))).keep(First()).keep(Vote()).source.source.parts) == 2
