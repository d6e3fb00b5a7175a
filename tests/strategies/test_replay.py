"""What replay says of a recording, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Best,
    Draws,
    First,
    Gather,
    Misuse,
    NotRecorded,
    Recording,
    Replay,
    Reply,
    Strategy,
    Template,
    Vote,
    outcomes,
)

from .calls import Call, recorded

a, b = Ask("a"), Ask("b")
merge = ("merger", Template("Merge {answers}"))


def asked_for_nothing(arm: str, prompt: str) -> Reply:
    raise AssertionError("this prompt was looked up in vain")


@pytest.mark.parametrize(
    ("s", "says"),
    [
        (
            3 * a,
            r"'a' has 2 recorded draws of each task in recording; this strategy needs 3\. Record more, or ask it less",
        ),
        (2 * b, r"'b' has 1 recorded draw of each"),
        (Ask("mini"), r"'mini' is not recorded in recording; it holds 'a', 'b'"),
        (a >> merge, r"'merger' was asked about other answers .* Record the judge or merger as an arm"),
    ],
)
def test_a_call_that_was_not_recorded_is_refused_with_what_to_do(s: Strategy, says: str) -> None:
    with pytest.raises(NotRecorded, match=says):
        Replay(recorded(a=[Call("x"), Call("y")], b=[Call("x")]))(s)


def test_a_recording_without_answers_has_nothing_for_a_prompt_to_read() -> None:
    zero = np.zeros((1, 1))
    scores = Draws(zero.astype(int), zero, zero > 0, zero.astype(int), zero.astype(int) + 1, zero)
    with pytest.raises(NotRecorded, match="'merger' is asked about answers, and table holds none"):
        Replay(Recording(("q",), {"a": scores}, (), name="table"))(a >> merge)


@pytest.mark.parametrize(
    "draws", [np.ones((2, 1), dtype=int), np.zeros((1, 1), dtype=int)], ids=["a row too many", "no time"]
)
def test_a_recording_of_the_wrong_shape_or_of_calls_that_take_no_time_is_refused(draws: np.ndarray) -> None:
    with pytest.raises(Misuse, match="arm 'a' has"):
        Recording(("q",), {"a": Draws(draws, draws * 1.0, draws > 9, draws, draws, draws * 1.0)}, ("x",))


@pytest.mark.parametrize(
    ("s", "quality", "usd", "seconds", "calls"),
    [
        (a, 0, 1, 1, 1),
        (2 * a, 0, 2, 2, 2),
        ((2 * a).keep(Best()), 1, 2, 2, 2),
        ((2 * a & 2 * b).keep(Vote()), 1, 5, 4, 4),
        (b | a, 0, 2, 4, 2),
        (a.keep(AtLeast(0.9)), 0, 1, 1, 1),
        ((a & b).until(Agree(1)), 0, 2, 1, 2),
        (Gather((a, b), Agree(1), float("inf")), 0, 1, 1, 1),
        ((b | a).within(3.5), 0, 2, 3.5, 2),
    ],
)
def test_outcomes_grade_the_first_survivor_and_bill_every_call(
    s: Strategy, quality: float, usd: float, seconds: float, calls: int
) -> None:
    """Derived by hand; nothing left is graded 0."""
    table = recorded(
        a=[Call("wrong", 1.0, score=0.3), Call("right", 2.0, score=0.8)],
        b=[Call(None, 3.0), Call("right", 4.0, usd=2.0)],
    )
    o = outcomes(s, table)
    assert (o.quality[0], o.cost[0] / 1e9, o.latency[0] / 1e6, o.calls[0]) == (quality, usd, seconds, calls)


def test_a_reply_to_a_prompt_has_no_grade_and_is_refused_as_an_output() -> None:
    table = recorded(lambda arm, prompt: Reply("merged"), a=[Call("right"), Call("right")])
    with pytest.raises(NotRecorded, match="replies to prompts have no grades; record the judge"):
        outcomes(a >> merge, table)
    assert outcomes((a & (a >> merge)).keep(First()), table).quality == [1]


def test_at_one_moment_arrivals_come_before_starts_and_all_of_them_count() -> None:
    table = recorded(a=[Call("x", 1.0), Call("y", 1.0)], b=[Call("z", 1.0)])
    hedged = Replay(table)(Gather((a, b), Agree(1), 1.0))
    assert hedged.began.tolist() == [[True, False]]
    raced = Replay(table)((2 * a).until(Agree(1)))
    assert raced.alive.tolist() == [[True, True]]
    limited = Replay(table)((a | b).within(1.0))
    assert limited.alive.tolist() == [[True, False]]


def test_equal_replies_to_different_prompts_are_equal_answers_and_can_be_read_in_turn() -> None:
    prompts = []

    def cassette(arm: str, prompt: str) -> Reply:
        prompts.append(prompt)
        return Reply("same" if arm == "merger" else "other")

    table = recorded(cassette, a=[Call("x"), Call("y"), Call("other")])
    merged = Replay(table)((a >> merge) & (a >> merge) & (a >> ("mender", merge[1])))
    assert prompts == ["Merge 1. x", "Merge 1. y", "Merge 1. other"]
    kept = merged.answer[merged.alive]
    assert kept[0] == kept[1] != kept[2] == table.texts.index("other")
    Replay(table)(a >> merge >> ("mender", merge[1]))
    assert prompts[-1] == "Merge 1. same"


@pytest.mark.parametrize("s", [a | (b >> merge), (a >> merge).within(1.0), (b | a >> merge).within(0.5)])
def test_a_prompt_is_looked_up_only_where_it_is_reached(s: Strategy) -> None:
    Replay(recorded(asked_for_nothing, a=[Call("x", 1.0)], b=[Call("y", 1.0)]))(s)
