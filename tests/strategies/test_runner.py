"""A strategy as a service: one task, many, streamed."""

import asyncio
import gc
import os
import signal
import sys
import threading
import warnings
from dataclasses import replace
from math import inf
from pathlib import Path

import anyio
import pytest

from playcall.strategies import (
    Agent,
    Agree,
    Arm,
    Ask,
    AtLeast,
    Budget,
    Gather,
    Ledger,
    Misuse,
    Template,
    Vote,
    on_virtual_clock,
    summary,
)
from playcall.strategies.call import Call, CallFailed, Failure
from playcall.strategies.live import NoAnswer, Result
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner, StreamCut
from playcall.strategies.worst import Worst

from .fakes import Fake, Speaking, arm, fails_first

BACKENDS = ("asyncio", "trio")
CUT = CallFailed(Failure.CUT, "as scripted")


def echo(call: Call) -> str:
    return str(call.task)


def runner_of(script=echo, seconds: float = 0.0, **options) -> Runner:
    return Runner(Ask("a"), {"a": arm(Fake(script, seconds=seconds))}, **options)


# --- one task


def test_a_result_says_why_it_stopped() -> None:
    arms = {"a": arm(Fake()), "b": arm(Fake(seconds=2)), "bad": arm(Fake(fails_first(99), seconds=0.1), tries=1)}
    plays = {
        "2 answers agree": Gather((Ask("a"), Ask("b"), Ask("b")), Agree(2)).keep(Vote()),
        "the first choice kept nothing": Ask("bad") | Ask("a"),
        "there is an answer": Ask("a"),
        "no answer was kept": Ask("a").keep(AtLeast(1)),
        "the deadline came": Ask("b").within(1),
    }

    async def main() -> dict[str, str]:
        return {why: (await Runner(play, arms).run("q")).why for why, play in plays.items()}

    assert on_virtual_clock(main) == {why: why for why in plays}


def test_who_watches_is_told_of_each_call_when_it_begins_and_when_it_ends() -> None:
    told: list[tuple[str, bool]] = []
    runner = Runner(
        Ask("bad") | Ask("a"), {"bad": arm(Fake(fails_first(9), seconds=0), tries=1), "a": arm(Fake(seconds=0))}
    )
    for deadline in (None, 5):
        runner.run_sync("q", deadline=deadline, watch=lambda a: told.append((a.arm, a.reply is not None)))
    assert told == [("bad", False), ("bad", True), ("a", False), ("a", True)] * 2


def test_no_answer_is_a_value_and_unwrap_raises_it_with_every_cause() -> None:  # PEERS 22, 26, 46
    arms = {"a": arm(Fake(fails_first(99, Failure.EMPTY))), "b": arm(Fake(fails_first(99, Failure.REFUSED)))}

    async def main() -> Result:
        return await Runner(Ask("a") | Ask("b"), arms).run("q")

    result = on_virtual_clock(main)
    assert (result.answered, result.output) == (False, None)
    with pytest.raises(NoAnswer, match=r"from 2 calls: a: empty: as scripted; b: refused: as scripted") as raised:
        result.unwrap()
    assert raised.value.result is result


def test_a_quorum_stands_at_the_deadline_and_the_stragglers_are_listed() -> None:  # PEERS 16, 17
    arms = {"a": arm(Fake()), "slow": arm(Fake(seconds=60)), "bad": arm(Fake(fails_first(9)), tries=1)}
    play = (2 * Ask("a") & Ask("bad") & Ask("slow")).keep(Vote())
    result = on_virtual_clock(lambda: Runner(play, arms).run("q", deadline=5))
    assert (result.output, result.seconds, [a.arm for a in result.stragglers]) == ("yes", 5, ["slow"])
    assert [a.arm for a in result.failures] == ["bad", "slow"]


def test_call_100_behaves_like_call_1() -> None:  # PEERS 26
    async def main() -> set[tuple[object, int, int]]:
        runner = runner_of(seconds=1)
        return {(r.output, r.cost, r.latency) for r in [await runner.run("q") for _ in range(100)]}

    assert on_virtual_clock(main) == {("q", 10_000_000, 1_000_000)}


@pytest.mark.parametrize("task", ["text", [{"role": "user", "content": "hi"}], {"x": [1, None]}, 7])
def test_a_task_may_be_any_json(task: object) -> None:
    assert runner_of(lambda call: repr(call.task)).run_sync(task).output == repr(task)


def test_an_arm_has_its_own_model_and_settings_whatever_a_request_says() -> None:
    fake = Fake(seconds=0)
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    task = {"model": "gpt", "stream": True, "temperature": 1, "seed": 7, "messages": said}
    arms = {"a": arm(fake, params={"temperature": 0})}
    Runner(Ask("a") >> ("a", Template("{task} / {answers}")), arms).run_sync(task)
    assert fake.calls[0].request == {"model": "m", "temperature": 0, "seed": 7, "messages": said}
    assert str(fake.calls[1].prompt).startswith("system: s\n\nuser: u / ")


def test_the_worst_case_counts_every_try_and_readers_of_the_longest_answers() -> None:
    def worst(most: int) -> Worst:
        a = arm(Fake(), price=Price(1, 0), params={"max_tokens": most})
        arms = {"a": a, "reader": replace(a, params={"max_tokens": 1}), "paid": arm(Fake(), price=Price(call=0.01))}
        return Runner(Ask("a") >> ("reader", Template("{answers}")), arms).worst("q")

    assert Runner(Ask("a"), {"a": arm(Fake(), price=Price(call=0.01), tries=3)}).worst("q").cost_usd == 0.03
    assert worst(1010).cost - worst(1000).cost >= 3 * 10 * 4 * 1000  # tries, tokens, bytes, nano-dollars


def test_tools_and_a_merge_are_refused_before_any_call() -> None:  # PEERS 43
    fake = Fake()
    runner = Runner(Ask("a") >> ("a", Template("Merge {answers}")), {"a": arm(fake)})
    with pytest.raises(Misuse, match="tools"):
        runner.run_sync({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]})
    assert fake.calls == []


def test_a_misuse_inside_a_gather_comes_out_bare() -> None:
    class Broken(Fake):
        async def __call__(self, call: Call) -> None:
            raise Misuse("install it")

    with pytest.raises(Misuse, match="install it"):
        Runner(2 * Ask("a"), {"a": arm(Broken())}).run_sync("q")


# --- not async


def test_sync_and_async_give_the_same_trace() -> None:  # PEERS 27
    def trace(result: Result) -> object:
        return [(a.arm, a.node, a.draw, a.price, repr(a.reply), [c.error for c in a.calls]) for a in result.attempts]

    def script(call: Call) -> str:
        return f"{call.arm}{call.draw}"

    def runner() -> Runner:
        arms = {"a": arm(Fake(script, seconds=0)), "bad": arm(Fake(fails_first(99), seconds=0), tries=1)}
        return Runner(Ask("bad") | (3 * Ask("a")).keep(Vote()), arms)

    results = [runner().run_sync("q"), anyio.run(lambda: runner().run("q"))]
    for result in results:
        for attempt in result.attempts:
            object.__setattr__(attempt.reply, "latency", 1)
    assert trace(results[0]) == trace(results[1])


def test_run_sync_works_inside_a_running_loop_and_from_many_threads() -> None:
    runner = runner_of()

    async def main() -> object:
        return runner.run_sync("q").output

    assert anyio.run(main) == "q"
    found: list[object] = []
    threads = [threading.Thread(target=lambda i=i: found.append(runner.run_sync(i).output)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == [str(i) for i in range(8)]


# --- many


@pytest.mark.parametrize("backend", BACKENDS)
def test_awaiting_map_gives_all_results_in_order(backend: str) -> None:
    async def main() -> list[Result]:
        return await runner_of().map(range(50), concurrency=7)

    assert [r.output for r in anyio.run(main, backend=backend)] == [str(i) for i in range(50)]


def test_map_runs_as_many_at_a_time_as_told_and_no_more() -> None:
    fake = Fake()
    runner = Runner(Ask("a"), {"a": arm(fake)})

    async def main() -> float:
        began = anyio.current_time()
        await runner.map(range(100), concurrency=20)
        return anyio.current_time() - began

    assert (on_virtual_clock(main), fake.most_flying) == (pytest.approx(5), 20)


@pytest.mark.parametrize("backend", BACKENDS)
def test_iterating_over_map_gives_results_as_they_come(backend: str) -> None:
    async def tasks():
        for i in range(20):
            yield i

    async def main() -> set[tuple[int, object]]:
        async with runner_of().map(tasks(), concurrency=4) as results:
            return {(i, r.output) async for i, r in results}

    assert anyio.run(main, backend=backend) == {(i, str(i)) for i in range(20)}


def test_leaving_map_early_cancels_what_runs() -> None:
    fake = Fake(echo, seconds=0.001)
    runner = Runner(Ask("a"), {"a": arm(fake)})

    async def main() -> None:
        async for _ in runner.map(range(10_000), concurrency=4):
            fake.seconds = 60
            break
        gc.collect()
        await anyio.sleep(0.05)
        assert fake.flying == 0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anyio.run(main)


def test_on_trio_a_bare_loop_says_what_to_write() -> None:
    async def main() -> None:
        async for _ in runner_of().map([1]):
            pass

    with pytest.raises(Misuse, match="async with"):
        anyio.run(main, backend="trio")


def test_map_sync_gives_every_result() -> None:
    assert {(i, r.output) for i, r in runner_of().map_sync(range(30), concurrency=3)} == {
        (i, str(i)) for i in range(30)
    }


def test_an_error_among_the_tasks_ends_map_and_is_told() -> None:
    def tasks():
        yield 1
        raise OSError("the file ended")

    async def main() -> None:
        await runner_of().map(tasks())

    with pytest.raises(OSError, match="the file ended"):
        anyio.run(main)


def test_tasks_may_come_slowly_from_an_async_generator() -> None:
    async def tasks():
        for i in range(6):
            await anyio.sleep(0.001)
            yield i

    async def main() -> list[Result]:
        return await runner_of().map(tasks(), concurrency=3)

    assert [r.output for r in anyio.run(main)] == list("012345")


# --- streamed


def stream(play, arms, **how) -> tuple[list[tuple[float, str]], object]:
    """(seconds, piece) of all pieces, and what was raised."""
    heard = list[tuple[float, str]]()

    async def main() -> object:
        began = anyio.current_time()
        try:
            async with Runner(play, arms).stream("q", **how) as pieces:
                async for piece in pieces:
                    heard.append((round(anyio.current_time() - began, 6), piece))
        except Exception as error:
            return error
        return pieces.result

    return heard, on_virtual_clock(main)


def test_the_last_stage_really_streams() -> None:  # PEERS 25
    arms = {"a": arm(Fake(lambda call: "draft")), "writer": arm(Speaking("one ", "two"))}
    heard, result = stream(Ask("a") >> ("writer", Template("{answers}")), arms)
    assert heard == [(2, "one "), (3, "two")]
    assert isinstance(result, Result)
    assert result.output == "one two"


def test_what_must_be_checked_comes_in_one_piece_at_the_end() -> None:
    heard, _ = stream((2 * Ask("a")).keep(Vote()), {"a": arm(Speaking("one ", "two"))})
    assert heard == [(2, "one two")]


def test_a_failure_before_the_first_piece_falls_back_unseen() -> None:  # PEERS 23
    heard, _ = stream(Ask("bad") | Ask("a"), {"bad": arm(Speaking(CUT), tries=1), "a": arm(Speaking("fine"))})
    assert heard == [(2, "fine")]


def test_no_text_comes_twice_after_the_first_piece() -> None:  # PEERS 24
    spare = Speaking("one ", "two")
    heard, error = stream(Ask("bad") | Ask("a"), {"bad": arm(Speaking("one ", CUT)), "a": arm(spare)})
    assert ("".join(t for _, t in heard), spare.calls) == ("one ", [])
    assert isinstance(error, StreamCut)
    assert error.failure is Failure.CUT


def test_who_can_begin_again_gets_the_configured_fallback() -> None:  # PEERS 23
    restarts = []
    arms = {"bad": arm(Speaking("one ", CUT), tries=1), "a": arm(Speaking("fine"))}
    heard, result = stream(Ask("bad") | Ask("a"), arms, on_restart=lambda: restarts.append(True))
    assert ([t for _, t in heard], restarts, result.output) == (["one ", "fine"], [True], "fine")


def test_a_fallback_that_does_not_stream_is_given_whole_after_a_restart() -> None:
    arms = {"bad": arm(Speaking("one ", CUT), tries=1), "a": arm(Fake())}
    heard, _ = stream(Ask("bad") | Ask("a"), arms, on_restart=lambda: None)
    assert [t for _, t in heard] == ["one ", "yes"]


def test_a_stream_keeps_its_deadline() -> None:
    heard, error = stream(Ask("a"), {"a": arm(Fake(seconds=9))}, deadline=1)
    assert (heard, type(error)) == ([], NoAnswer)


def test_a_stream_without_an_answer_raises() -> None:
    _, error = stream(Ask("bad"), {"bad": arm(Fake(fails_first(99, Failure.EMPTY)))})
    assert isinstance(error, NoAnswer)


def test_a_stream_that_is_left_cancels_its_call() -> None:
    fake = Fake(seconds=60)

    async def main() -> None:
        async with Runner(Ask("a"), {"a": arm(fake)}).stream("q"):
            await anyio.sleep(0.01)

    for backend in BACKENDS:
        anyio.run(main, backend=backend)
    assert (fake.cancelled, fake.flying) == (2, 0)


# --- cancelled from outside


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("play", [Ask("a"), 3 * Ask("a"), Gather((Ask("a"),) * 3, Agree(1), 0.01), Ask("a") | Ask("a")])
def test_cancelling_from_outside_leaves_nothing_running(play, backend: str) -> None:
    fake = Fake(seconds=60)
    runner = Runner(play, {"a": arm(fake)})

    async def main() -> None:
        with anyio.move_on_after(0.03):
            await runner.run("q")
        assert fake.flying == 0
        assert runner.dispatch.budget.session.held == 0

    anyio.run(main, backend=backend)
    assert fake.cancelled == len(fake.calls) > 0


def test_a_run_may_take_for_ever() -> None:
    assert runner_of(deadline=inf).run_sync("q").answered


# --- in a forked child


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_runs_on_a_loop_of_its_own_and_its_runs_have_ids_of_their_own() -> None:
    runner = runner_of()
    assert runner.run_sync("q").answered
    reads, writes = os.pipe()
    if not (pid := os.fork()):
        signal.alarm(5)
        ran = runner.run_sync("q")
        os.write(writes, ran.attempts[0].run.id.encode())
        os._exit(not ran.answered)
    mine = runner.run_sync("q").attempts[0].run.id
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert os.read(reads, 99).decode() not in ("", mine)
    os.close(reads)
    os.close(writes)


# --- what a user's function may do


def leaves(call: Call) -> str:
    raise SystemExit(3)


def cancels_itself(call: Call) -> str:
    raise asyncio.CancelledError


@pytest.mark.parametrize("script", [leaves, cancels_itself])
def test_a_call_that_would_end_the_event_loop_fails_alone(script) -> None:
    arms = {"bad": arm(Fake(script, seconds=0)), "good": arm(Fake(seconds=0))}
    for play in (Ask("bad") | Ask("good"), (Ask("bad") & Ask("good")).keep(Vote())):
        result = Runner(play, arms).run_sync("q")
        assert (result.output, [a.arm for a in result.failures]) == ("yes", ["bad"])
        assert "raised" in str(result.failures[0])


def test_a_function_in_a_thread_that_would_end_the_process_fails_alone() -> None:
    agent = Arm(Agent(lambda task, models: sys.exit(3)), "agent", price="free")
    runner = Runner(Ask("agent") | Ask("a"), {"agent": agent, "a": arm(Fake(seconds=0))})
    assert [runner.run_sync("q").output for _ in range(2)] == ["yes", "yes"]


def test_a_task_that_is_refused_fails_alone_among_many() -> None:
    play = Ask("a") >> ("a", Template("{answers}"))
    tools = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}

    async def main() -> list[Result]:
        return await Runner(play, {"a": arm(Fake(seconds=0))}).map(["q", tools, "q"])

    results = anyio.run(main)
    assert [r.answered for r in results] == [True, False, True]
    assert results[1].why.startswith("refused: this task has tools")
    with pytest.raises(NoAnswer, match="this task has tools"):
        results[1].unwrap()


@pytest.mark.parametrize("task", [[{"role": "user", "content": "x", 1: 2}], {1: {2, 3}}, "\ud800"])
def test_an_odd_task_loses_no_row(task: object, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    for script in (lambda call: "yes", fails_first(1, Failure.RAISED)):  # with a usage to bill by, and without
        runner_of(script, ledger=ledger, budget=Budget(task=1)).run_sync(task)
    ledger.close()
    assert sum(row.calls for row in summary(tmp_path / "l.db")) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bugdet": 3}, "did you mean 'budget'"),
        ({"budget": 3.0}, r"Budget\(session=5\)"),
        ({"ledger": "calls.db"}, r"Ledger\('calls.db'\)"),
        ({"cache": "answers.db"}, r"Cache\(\)"),
        ({"unpriced": "no"}, "error, free, refuse"),
    ],
)
def test_an_option_that_is_none_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        runner_of(**options)


@pytest.mark.parametrize("deadline", [0, -1.0])
def test_a_deadline_that_has_passed_is_a_failure_and_no_error(deadline: float) -> None:
    result = runner_of(seconds=9).run_sync("q", deadline=deadline)
    assert (result.answered, result.seconds < 1) == (False, True)
