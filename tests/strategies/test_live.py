"""What a live run does and owes, on the virtual clock; and that it does so on asyncio and trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import pytest

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Attempt,
    Best,
    Confident,
    First,
    Gather,
    Live,
    Misuse,
    Replay,
    Reply,
    Result,
    Scripted,
    Strategy,
    Template,
    Vote,
    hedge,
    on_virtual_clock,
)

from .calls import Call, recorded, run

a, b, c = map(Ask, "abc")
both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def begun(result: Result) -> list[tuple[str, float]]:
    """Which arms were called, and when."""
    return [(attempt.arm, attempt.issued / 1e6) for attempt in result.attempts]


@pytest.mark.parametrize(
    ("first", "calls", "seconds"),
    [
        (Call("x", 0.2), [("a", 0.0)], 0.2),
        (Call("x", 0.5), [("a", 0.0), ("a", 0.3)], 0.5),
        (Call("x", 9.0), [("a", 0.0), ("a", 0.3)], 1.3),
        (Call(None, 0.1), [("a", 0.0), ("a", 0.1)], 1.1),
    ],
    ids=["quick", "slow", "too slow", "failed"],
)
def test_a_hedge_fires_after_its_delay_or_a_failure_and_not_before(
    first: Call, calls: list[tuple[str, float]], seconds: float
) -> None:
    result = run(hedge("a", after=0.3), recorded(a=[first, Call("y", 1.0)]))
    assert begun(result) == calls
    assert result.seconds == seconds


def test_the_loser_of_a_race_is_cancelled_and_its_money_is_counted() -> None:
    result = run((a & b).until(Agree(1)), recorded(a=[Call("x", 1.0, usd=0.25)], b=[Call("y", 2.0, usd=0.5)]))
    assert (result.output, result.arm, result.seconds, result.cost_usd) == ("x", "a", 1.0, 0.75)
    assert {attempt.arm: attempt.reply is None for attempt in result.attempts} == {"a": False, "b": True}
    assert result.panel.arm == ("a",)


def test_an_early_stop_leaves_the_rest_unasked() -> None:
    cascade = Gather((a, b, c), Confident(0.9), float("inf"))
    result = run(cascade.keep(Best()), recorded(a=[Call("x", score=0.5)], b=[Call("y", score=0.95)], c=[Call("z")]))
    assert begun(result) == [("a", 0.0), ("b", 1.0)]
    assert result.output == "y"


def test_a_failed_call_moves_a_fallback_on_and_is_paid_for() -> None:
    result = run(a | a | b, recorded(a=[Call(None, usd=1.0), Call(None, usd=2.0)], b=[Call("x", usd=4.0)]))
    assert (result.output, result.arm, result.seconds, result.cost_usd) == ("x", "b", 3.0, 7.0)
    assert result.panel.failed.tolist() == [[True, True, False]]


def test_where_nothing_survives_the_output_is_none_and_the_bill_stands() -> None:
    result = run(a.keep(AtLeast(0.5)), recorded(a=[Call("x", score=0.1)]))
    assert (result.output, result.arm, result.cost_usd) == (None, None, 1.0)


def test_at_a_limit_what_is_known_stands_and_the_rest_has_failed() -> None:
    result = run((a & b & c).within(2.5), recorded(a=[Call("x", 1.0)], b=[Call("y", 4.0)], c=[Call("z", 2.0)]))
    assert result.seconds == 2.5
    assert result.panel.alive.tolist() == [[True, False, True]]
    assert result.panel.failed.tolist() == [[False, True, False]]
    assert result.cost_usd == 3.0


def test_no_call_starts_at_or_after_a_limit() -> None:
    result = run((a | b).within(1.0), recorded(a=[Call(None, 5.0)], b=[Call("x")]))
    assert begun(result) == [("a", 0.0)]
    assert (result.output, result.seconds) == (None, 1.0)


def test_all_answers_that_a_limit_brings_count_however_deep_they_are() -> None:
    """Both parts of the race come in at its limit, as each still waits for b: the first must not cut off the deeper."""
    deep = Gather((Gather((a & b,), gap=1.0), a), gap=1.5)
    race = Gather(((a & b).keep(First()), deep), Agree(1)).within(3.0)
    result = run(race, recorded(a=[Call("x"), Call("y"), Call("z")], b=[Call("w", 9.0), Call("w", 9.0)]))
    assert result.panel.alive.sum() == 3


@dataclass
class Notes:
    """A prompt that keeps what it was given."""

    given: list[object] = field(default_factory=list)

    def __call__(self, task: object, answers: object) -> str:
        self.given.append((task, answers))
        return "which?"


def test_a_judge_reads_the_survivors_in_reading_order_and_has_the_last_word() -> None:
    notes = Notes()
    recording = recorded(
        lambda arm, prompt: Reply(f"{arm}: {prompt}"), a=[Call("x", 3.0), Call("y"), Call(None)], b=[Call("x")]
    )
    result = run((3 * a & b) >> ("judge", notes), recording)
    assert notes.given == [("q", ["x", "y", "x"])]
    assert (result.output, result.arm) == ("judge: which?", "judge")
    assert result.panel.alive.sum() == 1


def test_a_judge_is_not_asked_about_nothing() -> None:
    result = run(a >> ("judge", Template("{answers}")), recorded(a=[Call(None)]))
    assert (result.output, begun(result)) == (None, [("a", 0.0)])


def test_a_gap_of_a_fraction_of_a_microsecond_is_the_same_in_both_engines() -> None:
    s, recording = Gather((a, b, c), gap=0.0000014), recorded(a=[Call("x")], b=[Call("y")], c=[Call("z")])
    assert begun(run(s, recording)) == [("a", 0.0), ("b", 1e-6), ("c", 2e-6)]
    assert Replay(recording)(s).issued.tolist() == [[0, 1, 2]]


def test_the_caller_gets_the_survivors_own_words() -> None:
    """Not those of another call whose answer is equal."""

    async def provider(attempt: Attempt) -> Reply:
        return Reply("42", score=float(attempt.draw), output=f"draw {attempt.draw} says 42")

    async def main() -> Result:
        return await Live(provider)((2 * a).keep(Best()))("q")

    assert on_virtual_clock(main).output == "draw 1 says 42"


def test_scripted_refuses_a_task_that_is_not_recorded() -> None:
    async def main() -> Result:
        return await Live(Scripted(recorded(a=[Call("x")])))(a)("another")

    with pytest.raises(Misuse, match="no item 'another'; a task is the id of a recorded item"):
        on_virtual_clock(main)


@dataclass
class Arms:
    """A provider of arms that answer at once, wait for ever or break; it notes who was cut off."""

    cut: list[str] = field(default_factory=list)

    async def __call__(self, attempt: Attempt) -> Reply:
        attempt.price = 7
        if attempt.arm == "stuck":
            try:
                await anyio.sleep_forever()
            finally:
                self.cut.append(attempt.arm)
        if attempt.arm == "broken":
            raise ConnectionError("the line is dead")
        return Reply(attempt.arm, failed=attempt.arm == "failing")


def on(backend: str, main: Callable[[], Awaitable[Result]]) -> Result:
    """Its result; no task may be left."""

    async def alone() -> Result:
        before = len(anyio.get_running_tasks())
        try:
            return await main()
        finally:
            assert len(anyio.get_running_tasks()) == before

    return anyio.run(alone, backend=backend)


stuck, quick = Ask("stuck"), Ask("quick")


@both
@pytest.mark.parametrize(
    ("s", "output", "calls", "cut"),
    [
        (quick, "quick", 1, 0),
        ((stuck & quick & stuck).until(Agree(1)), "quick", 3, 2),
        (Gather((Ask("failing"), quick, stuck), Agree(1), float("inf")), "quick", 2, 0),
        ((2 * quick & Ask("failing")).keep(Vote()), "quick", 3, 0),
        (Ask("failing") | quick, "quick", 2, 0),
        (stuck.within(0.02) | quick, "quick", 2, 1),
        ((quick & (quick >> ("last", Template("{answers}")))).keep(First()), "quick", 3, 0),
    ],
)
def test_it_runs_on_asyncio_and_trio(backend: str, s: Strategy, output: str, calls: int, cut: int) -> None:
    arms = Arms()
    result = on(backend, lambda: Live(arms)(s)("q"))
    assert (result.output, len(result.attempts), result.cost, len(arms.cut)) == (output, calls, 7 * calls, cut)


@both
@pytest.mark.parametrize(
    ("s", "cut"),
    [
        (Ask("broken"), 0),
        ((stuck & Ask("broken")).keep(First()), 1),
        (Gather((stuck, stuck & (quick >> ("broken", Template("?")))), Agree(2), gap=1e-6), 2),
    ],
)
def test_a_providers_own_error_comes_out_and_leaves_no_call_running(backend: str, s: Strategy, cut: int) -> None:
    arms, said = Arms(), []
    try:
        on(backend, lambda: Live(arms)(s)("q"))
    except* ConnectionError:
        said.append("the line is dead")
    assert said == ["the line is dead"]
    assert len(arms.cut) == cut
