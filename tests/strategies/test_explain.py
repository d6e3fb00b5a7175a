"""A strategy in words: exact for the common plays, and never the same for two plays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf

import pytest

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Belief,
    Best,
    Confident,
    Explain,
    First,
    Gather,
    Never,
    Strategy,
    Template,
    best_of,
    cascade,
    fallback,
    hedge,
    hierarchy,
    race,
    vote,
)

a, b = Ask("a"), Ask("b")


@pytest.mark.parametrize(
    ("s", "words"),
    [
        (a, "ask a."),
        (best_of(3, "a"), "at the same time, ask a 3 times; keep the answer with the best score."),
        (vote("a", "b", "b"), "at the same time, ask a and b 2 times; keep the answer with most votes."),
        (
            vote("a", "b", belief=Belief.of(a=1, b=2)),
            "at the same time, ask a and b; keep the answer with the greatest weight of votes.",
        ),
        (cascade("a", "b", "a", stop=Agree(2)), "one after another, ask a, b and a, until 2 answers agree."),
        (
            race("a", "b", stop=Confident(0.9, Belief.of(a=1, b=1))),
            "at the same time, ask a and b, until an answer is right with probability 0.9 or more.",
        ),
        (
            hedge("a", after=0.25),
            "ask a 2 times, each next one 0.25 s after the last or when nothing runs, until there is an answer.",
        ),
        (fallback("a", "a", "b"), "ask a; where that leaves no answer, ask a; where that leaves no answer, ask b."),
        (
            a.keep(AtLeast(0.5)) | b.keep(AtLeast(0.7)),
            "ask a; keep answers with a score of at least 0.5; where that leaves no answer, "
            "(ask b; keep answers with a score of at least 0.7).",
        ),
        (
            2 * a.keep(First()) & b.within(1800),
            "at the same time, (ask a; keep the first answer) 2 times and within 1800 s (ask b).",
        ),
        (
            hierarchy(2 * a, ("b", Template("merge")), ("c", Template("judge"))),
            "at the same time, ask a 2 times; then ask b about what is left with the prompt “merge”; "
            "then ask c about what is left with the prompt “judge”.",
        ),
    ],
)
def test_the_common_plays_read_like_this(s: Strategy, words: str) -> None:
    assert Explain()(s) == words


def grown(plays: list[Strategy]) -> Iterator[Strategy]:
    """Every strategy of one more node."""
    for s in plays:
        yield from (s.keep(Best()), s.keep(AtLeast(0.5)), s.within(0.4), s >> ("haiku", Template("judge {answers}")))
    for s, t in product(plays, plays):
        yield from (s & t, s | t, Gather((s, t), Agree(1)), Gather((s, t), Never(), inf))
        yield from (Gather((s, t, s), Agree(2), 0.1), Gather((s, s, t), Agree(2), 0.1))


def test_no_two_plays_are_told_in_the_same_words() -> None:
    """Over the 6,226 strategies with up to two nodes above the calls."""
    calls: list[Strategy] = [Ask("haiku"), Ask("opus")]
    once = calls + list(grown(calls))
    plays = {*once, *grown(once)}
    assert len({Explain()(s) for s in plays}) == len(plays) == 6226
