"""A cached answer is the same answer, paid once."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playcall.strategies import Misuse, PlaycallError
from playcall.strategies.cache import Cache, Kept, key_of
from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
REQUEST = {"model": "m", "temperature": 1, "messages": [{"role": "user", "content": "hi"}], "tools": None}
NAMED: dict[str, Any] = {"endpoint": "e", "tenant": "t", "request": REQUEST, "draw": 0}
Make = Callable[[], Awaitable[tuple[Answer, Call]]]


def making(text: str = "x", output: object = None, **fields: Any) -> tuple[Make, list[str]]:
    """A function that makes an answer, and what it made."""
    made: list[str] = []

    async def make() -> tuple[Answer, Call]:
        await anyio.sleep(0)
        made.append(text)
        call = Call(
            "a", "m", None, None, 0, {}, usage=Usage(3, 2, 1, 0), price=77, source="user", seconds=1.5, finish="stop"
        )
        return Answer(text, output, **fields), call

    return make, made


def fetched(cache: Cache, key: str, make: Make) -> Kept:
    return anyio.run(cache.fetch, key, make)


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "f"},
        {"tenant": "u"},
        {"draw": 1},
        {"confidence": "logprobs"},
        *(
            {"request": {**REQUEST, **field}}
            for field in ({"model": "n"}, {"temperature": 1.0}, {"temperature": True}, {"n": 1})
        ),
        {"request": {**REQUEST, "messages": [{"role": "user", "content": "hi "}]}},
        {"request": {k: v for k, v in REQUEST.items() if k != "tools"}},
    ],
    ids=str,
)
def test_whatever_differs_is_another_answer(change: dict[str, Any]) -> None:
    assert key_of(**{**NAMED, **change}) != key_of(**NAMED)


def test_the_order_of_fields_does_not_matter() -> None:
    assert key_of(**{**NAMED, "request": dict(reversed(REQUEST.items()))}) == key_of(**NAMED)


def test_what_is_not_json_has_no_key() -> None:
    with pytest.raises(Misuse, match=r"cannot be cached.*bytes"):
        key_of(**{**NAMED, "request": {"x": b"y"}})


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(json, st.text(), st.floats())
def test_an_answer_comes_back_as_it_was(output: object, text: str, score: float) -> None:
    cache, (make, made) = Cache(), making(text, output, score=score)
    first, second = fetched(cache, "k", make), fetched(cache, "k", make)
    assert len(made) == 1
    assert repr(first) == repr(second)
    assert (second.price, second.seconds, second.usage) == (77, 1.5, Usage(3, 2, 1, 0))


@pytest.mark.parametrize("output", [(1, 2), {1: 2}, {"a": {3}}, object(), [float("nan")], b"x"])
def test_an_output_that_json_would_change_is_not_kept(output: object) -> None:
    cache, (make, made) = Cache(), making(output=output)
    assert fetched(cache, "k", make).answer.output is output
    assert fetched(cache, "k", make).answer.output is output
    assert len(made) == 2


def test_each_gets_an_output_of_its_own() -> None:
    cache, (make, _) = Cache(), making(output=["a"])
    fetched(cache, "k", make)
    taken = fetched(cache, "k", make).answer.output
    assert isinstance(taken, list)
    taken.append("b")
    assert fetched(cache, "k", make).answer.output == ["a"]


def test_a_file_is_shared_and_outlives_its_cache(tmp_path: Path) -> None:
    first, second, (make, made) = Cache(tmp_path / "c.db"), Cache(tmp_path / "c.db"), making("é\ud800")
    assert fetched(first, "k", make) is not fetched(second, "k", make)
    first.close()
    second.close()
    assert fetched(Cache(tmp_path / "c.db"), "k", make).answer.text == "é\ud800"
    assert len(made) == 1


@pytest.mark.parametrize("disk", [False, True])
def test_the_least_recently_used_go_first(disk: bool, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.db" if disk else None, max_bytes=20_000)
    made: dict[str, list[str]] = {}

    def use(key: str) -> None:
        make, made_ = making("x" * 1000)
        fetched(cache, key, make)
        made.setdefault(key, []).extend(made_)

    for i in range(100):
        use(f"k{i}")
        use("often")
        assert cache._db.execute("SELECT sum(length(value)) FROM answers").fetchone()[0] <= 20_000
    assert len(made["often"]) == 1
    use("k99")
    use("k0")
    assert (len(made["k99"]), len(made["k0"])) == (1, 2)


def test_an_answer_that_is_too_large_is_not_kept() -> None:
    cache, (make, made) = Cache(max_bytes=500), making("x" * 1000)
    fetched(cache, "k", make)
    fetched(cache, "k", make)
    assert len(made) == 2


@both
def test_equal_calls_in_flight_are_one(backend: str) -> None:
    cache, (make, made) = Cache(), making(output={"a": 1})
    got = []

    async def one(key: str) -> None:
        got.append((await cache.fetch(key, make)).answer.output)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for i in range(20):
                group.start_soon(one, f"k{i % 2}")

    anyio.run(main, backend=backend)
    assert len(made) == 2
    assert got == [{"a": 1}] * 20
    assert not cache._flights


@both
def test_where_the_first_fails_or_is_cancelled_the_next_makes_it_and_no_failure_is_kept(backend: str) -> None:
    cache, (make, made) = Cache(), making()
    ended: list[str] = []

    async def fails() -> tuple[Answer, Call]:
        await anyio.sleep(0)
        raise CallFailed(Failure.SERVER)

    async def hangs() -> tuple[Answer, Call]:
        await anyio.sleep_forever()
        raise AssertionError

    async def one(name: str, make: Make) -> None:
        try:
            ended.append(f"{name}: {(await cache.fetch('k', make)).answer.text}")
        except CallFailed as failed:
            ended.append(f"{name}: {failed}")

    async def main() -> None:
        async with anyio.create_task_group() as waiters, anyio.create_task_group() as first:
            first.start_soon(one, "first", hangs)
            await anyio.wait_all_tasks_blocked()
            for name in "abc":
                waiters.start_soon(one, name, fails if name == "a" else make)
                await anyio.wait_all_tasks_blocked()
            first.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    assert len(made) == 1
    assert len(ended) == 3
    assert set(ended) <= {"a: server", "a: x", "b: x", "c: x"}  # trio wakes in no order
    assert not cache._flights


def test_a_failure_is_tried_anew() -> None:
    cache, (make, made) = Cache(), making()

    async def fails() -> tuple[Answer, Call]:
        raise CallFailed(Failure.SERVER)

    with pytest.raises(CallFailed):
        fetched(cache, "k", fails)
    assert fetched(cache, "k", make).answer.text == "x"
    assert len(made) == 1


def test_threads_with_loops_of_their_own_share_one_call() -> None:
    cache, made, together, leading = Cache(), [], threading.Barrier(6), threading.Event()

    async def make() -> tuple[Answer, Call]:
        made.append(1)
        leading.set()
        await anyio.to_thread.run_sync(asked.wait)
        return Answer("x"), Call("a", "m", None, None, 0, {})

    asked, got = threading.Event(), []

    async def main() -> None:
        together.wait()
        got.append((await cache.fetch("k", make)).answer.text)

    threads = [threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": b}) for b in ["asyncio", "trio"] * 3]
    for thread in threads:
        thread.start()
    leading.wait(5)
    asked.set()
    for thread in threads:
        thread.join(5)
    assert (got, made) == (["x"] * 6, [1])


def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, (make, made) = Cache(tmp_path / "c.db"), making("x" * 10_000)
    cache._db.execute("PRAGMA max_page_count = 4")
    assert fetched(cache, "k", make).answer.text == fetched(cache, "k", make).answer.text
    assert len(made) == 2
    assert "full; answers are paid for anew" in caplog.text
    cache._db.execute("PRAGMA max_page_count = 100")
    fetched(cache, "k", make)
    fetched(cache, "k", make)
    assert len(made) == 3


def test_what_is_no_cache_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.db").write_text("text " * 500)
    with pytest.raises(PlaycallError, match=r"t\.db cannot be opened: file is not a database"):
        Cache(tmp_path / "t.db")
    with pytest.raises(Misuse, match="max_bytes=0"):
        Cache(max_bytes=0)


def test_no_message_is_stored(tmp_path: Path) -> None:
    cache, (make, _) = Cache(tmp_path / "c.db"), making("answer")
    fetched(cache, key_of(**{**NAMED, "tenant": "SECRET", "request": {"messages": "SECRET"}}), make)
    with sqlite3.connect(tmp_path / "c.db") as connection:
        assert "SECRET" not in "\n".join(connection.iterdump())


def test_each_of_equal_calls_in_flight_gets_an_output_of_its_own() -> None:
    cache, (make, _) = Cache(), making(output=["a"])
    got: list[Any] = []

    async def one() -> None:
        got.append((await cache.fetch("k", make)).answer.output)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(one)

    anyio.run(main)
    got[0].append("b")
    assert got[1:] == [["a"], ["a"]]


def test_a_file_that_is_opened_again_keeps_its_limit(tmp_path: Path) -> None:
    for run in range(3):
        cache = Cache(tmp_path / "c.db", max_bytes=20_000)
        for i in range(10):
            fetched(cache, f"{run} {i}", making("x" * 1000)[0])
        cache.close()
    with sqlite3.connect(tmp_path / "c.db") as connection:
        assert connection.execute("SELECT sum(length(value)) FROM answers").fetchone()[0] <= 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_connection_of_its_own(tmp_path: Path) -> None:
    cache, (make, made) = Cache(tmp_path / "c.db"), making()
    fetched(cache, "k", make)
    parents = cache._db
    if not (pid := os.fork()):
        fetched(cache, "k", make)
        os._exit(cache._db is parents or len(made) != 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    "value", ["{}", "[]", "3", "no json", '{"answer": {"text": "x"}}', '{"answer": 1, "usage": 2}', b"\xff"]
)
def test_a_stored_row_of_another_form_is_no_answer(tmp_path: Path, value: object) -> None:
    cache, (make, made) = Cache(tmp_path / "c.db"), making("x")
    fetched(cache, "k", make)
    with sqlite3.connect(tmp_path / "c.db") as connection:
        connection.execute("UPDATE answers SET value = ?", (value,))
    assert fetched(cache, "k", make).answer.text == fetched(cache, "k", make).answer.text == "x"
    assert len(made) == 2


def test_a_locked_file_holds_the_event_loop_for_a_moment_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, (make, _) = Cache(tmp_path / "c.db"), making("x")
    other = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    assert fetched(cache, "k", make).answer.text == "x"
    assert time.monotonic() - began < 0.5
    assert "locked; answers are paid for anew" in caplog.text
