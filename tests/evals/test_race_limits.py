"""`playcall race` on live agents: hard limits, and nothing paid twice however it was broken off."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from playcall.evals import journal as journalling
from playcall.evals.journal import Journal
from playcall.evals.race_live import LiveRace
from playcall.portfolio.race import Rules
from playcall.strategies import NANO, PlaycallError, Price

from ..serving import Server
from .races import (
    PRICES,
    Build,
    abuild_of,
    aclient_of,
    asking,
    build_of,
    client_of,
    ended,
    figures,
    paid,
    race,
    settled,
    tasks,
)

kinds = pytest.mark.parametrize("kind", [build_of, abuild_of], ids=["sync", "async"])


@pytest.fixture
def server(server: Server) -> Server:
    server.details = lambda body: (100, 15)  # so that a call costs about half of what it can
    return server


def parallel_of(url: str) -> Build:
    """Three calls side by side in threads, for each task."""

    def build(models: Mapping[str, str]) -> Any:
        client = client_of(url)

        def ask(prompt: str) -> str:
            body = asking("solver", prompt, max_tokens=20)
            return str(client.chat.completions.create(**body).choices[0].message.content)

        def agent(task: object) -> str:
            with ThreadPoolExecutor(3) as pool:
                first, *_ = pool.map(ask, [f"solve {task} by {how}" for how in ("good", "bad", "good luck")])
                return first

        return agent

    return build


def aparallel_of(url: str) -> Build:
    def build(models: Mapping[str, str]) -> Any:
        client = aclient_of(url)

        async def ask(prompt: str) -> str:
            body = asking("solver", prompt, max_tokens=20)
            return str((await client.chat.completions.create(**body)).choices[0].message.content)

        async def agent(task: object) -> str:
            told = [ask(f"solve {task} by {how}") for how in ("good", "bad", "good luck")]
            return (await asyncio.gather(*told))[0]

        return agent

    return build


def long_of(url: str) -> Build:
    """Five calls one after another, by a client that tries again and an agent that swallows what it can."""

    def build(models: Mapping[str, str]) -> Any:
        client = client_of(url, max_retries=3)

        def agent(task: object) -> str:
            said = "good"
            for _ in range(5):
                try:
                    body = asking("solver", f"solve {task} by {said}", max_tokens=20)
                    said = str(client.chat.completions.create(**body).choices[0].message.content)
                except Exception:
                    said = "swallowed"
            return said

        return agent

    return build


@pytest.mark.parametrize("kind", [build_of, abuild_of, parallel_of, aparallel_of])
def test_no_usd_is_spent_over_the_limit_and_a_larger_one_goes_on(kind: Any, tmp_path: Path, server: Server) -> None:
    server.delay = 0.001
    whole = ended(tmp_path, kind(server.url), output=tmp_path / "whole")
    bill, counted = settled(server).bill(), len(server.served)
    server.served.clear()
    limit = bill / 2 / NANO
    half = ended(tmp_path, kind(server.url), rules=Rules(method="brute-force", max_usd=limit))
    assert "max_usd is reached: a call of " in half.stopped
    assert "raise it and start again" in half.stopped
    assert half.spent == settled(server).bill() <= limit * NANO
    assert not server.gone()  # calls in flight came to their end
    assert 0 < half.raced().evaluations <= half.made < 48
    assert not half.failed
    more = ended(tmp_path, kind(server.url), rules=Rules(method="brute-force", max_usd=2 * bill / NANO))
    assert more.complete
    assert more.made + half.made == 48
    assert more.spent == settled(server).bill() == bill
    assert len(server.served) == counted
    assert set(paid(server).values()) == {1}
    assert figures(more) == figures(whole)


@pytest.mark.parametrize("kind", [build_of, abuild_of, parallel_of, aparallel_of])
def test_a_limit_that_all_worst_cases_together_exceed_is_no_end(kind: Any, tmp_path: Path, server: Server) -> None:
    """8 runs send at a time, and there is room for one call beyond what all of them cost."""
    server.delay = 0.001
    ended(tmp_path, kind(server.url), tasks=tasks(8))
    spent = settled(server).bill() / NANO
    server.served.clear()
    tight = spent + 0.0003
    made = ended(
        tmp_path, kind(server.url), tasks=tasks(8), output=tmp_path / "tight",
        rules=Rules(method="brute-force", max_usd=tight),
    )  # fmt: skip
    assert made.complete, made.stopped
    assert made.spent == settled(server).bill() == round(spent * NANO)
    assert set(paid(server).values()) == {1}
    assert not server.gone()


def test_a_run_that_waits_for_room_pays_nothing_twice_without_a_cache_file(tmp_path: Path, server: Server) -> None:
    server.delay = 0.001
    roles = {"planner": ["good"], "solver": ["bad"]}
    options: dict[str, Any] = {"roles": roles, "tasks": tasks(8), "cached": False}
    ended(tmp_path, aparallel_of(server.url), output=tmp_path / "first", **options)
    tight = settled(server).bill() / NANO + 0.0003
    server.served.clear()
    rules = Rules(method="brute-force", max_usd=tight)
    made = ended(tmp_path, aparallel_of(server.url), rules=rules, **options)
    assert made.complete, made.stopped
    assert set(paid(server).values()) == {1}
    assert not (tmp_path / "race.json.cache.db").exists()


@kinds
def test_no_model_call_is_made_over_the_limit(kind: Any, tmp_path: Path, server: Server) -> None:
    made = ended(tmp_path, kind(server.url), max_calls=31)
    assert "max_calls=31 model calls are made" in made.stopped
    assert made.calls == len(server.served) == 31
    assert all(s.finished for s in settled(server).served)
    again = ended(tmp_path, kind(server.url), max_calls=40)
    assert again.calls == len(server.served) == 40
    last = ended(tmp_path, kind(server.url), max_calls=72)
    assert last.complete
    assert set(paid(server).values()) == {1}


@kinds
def test_when_the_time_is_over_nothing_more_is_sent_and_nothing_thrown_away(
    kind: Any, tmp_path: Path, server: Server
) -> None:
    server.delay = 0.1
    rules = Rules(method="brute-force", max_seconds=0.7)
    made = ended(tmp_path, kind(server.url), rules=rules, concurrency=4)
    assert "max_seconds=0.7 is reached" in made.stopped
    sent = len(server.served)
    assert 4 <= sent < 72
    assert all(s.finished for s in settled(server).served)
    assert 0 < made.made < 48
    server.delay = 0.0
    assert ended(tmp_path, kind(server.url)).complete
    assert set(paid(server).values()) == {1}
    assert len(server.served) == 72


def test_an_agent_that_swallows_what_it_can_passes_no_limit(tmp_path: Path, server: Server) -> None:
    roles = {"solver": ["good"]}
    began = time.monotonic()
    made = ended(tmp_path, long_of(server.url), roles=roles, max_calls=7, concurrency=3)
    assert time.monotonic() - began < 1.0  # the client did not try again
    assert len(server.served) == made.calls == 7
    assert not made.failed


@pytest.mark.parametrize(
    ("models", "more", "says"),
    [
        ({}, {"max_tokens": None}, "what a call of 'good' can cost is not known: give its requests max_tokens"),
        ({"solver": "unheard of"}, {}, "nobody knows the price of 'unheard of', which max_usd needs: give prices="),
    ],
)
def test_what_a_call_can_cost_must_be_known_before_it_is_sent(
    models: Any, more: Any, says: str, tmp_path: Path, server: Server
) -> None:
    def build(given: Mapping[str, str]) -> Any:
        return build_of(server.url, names=True, **more)({**given, **models})

    roles = {"planner": ["good"], "solver": ["good"]}
    made = ended(tmp_path, build, roles=roles, rules=Rules(method="brute-force", max_usd=1.0))
    assert says in made.stopped
    assert made.raced().evaluations == 0
    assert not [s for s in server.served if "solve" in s.prompt]


def test_the_most_that_a_model_writes_bounds_a_call_without_max_tokens(tmp_path: Path, server: Server) -> None:
    prices = {name: Price(1.0, 2.0, most_output=50) for name in PRICES}
    rules = Rules(method="brute-force", max_usd=1.0)
    assert ended(tmp_path, build_of(server.url, max_tokens=None), prices=prices, rules=rules).complete


# broken off


async def cancelled(made: LiveRace, runs: int) -> None:
    """After so many runs."""
    with anyio.CancelScope() as scope:
        made.tell = lambda: scope.cancel() if made.made >= runs else None
        await made.run()


@kinds
def test_a_race_that_is_cancelled_keeps_what_is_finished(kind: Any, tmp_path: Path, server: Server) -> None:
    server.delay = 0.002
    whole = ended(tmp_path, kind(server.url), output=tmp_path / "whole")
    server.served.clear()
    made = race(tmp_path, kind(server.url))
    anyio.run(cancelled, made, 10)
    assert made.stopped == "interrupted"
    assert 10 <= made.made < 48
    assert 0 < made.raced().evaluations <= made.made
    again = ended(tmp_path, kind(server.url))
    assert again.complete
    assert again.made == 48 - made.made
    assert figures(again) == figures(whole)
    done = [s for s in server.served if s.finished]
    assert len(done) - len(paid(server)) <= 8  # a cancelled client leaves what is in flight
    if kind is build_of:
        assert set(paid(server).values()) == {1}  # a thread waits for it
        assert again.spent == settled(server).bill()


def test_an_agent_in_a_thread_sends_nothing_after_its_race_was_cancelled(tmp_path: Path, server: Server) -> None:
    server.delay = 0.005
    made = race(tmp_path, long_of(server.url), roles={"solver": ["good"]}, concurrency=4)
    anyio.run(cancelled, made, 2)
    sent = len(server.served)
    time.sleep(0.03)
    assert len(server.served) == sent < 12 * 5
    assert all(s.finished for s in settled(server).served)


# the journal


def test_a_last_line_that_was_torn_is_cut_off_and_asked_again(tmp_path: Path, server: Server) -> None:
    whole = ended(tmp_path, build_of(server.url))
    lines = whole.journal_path.read_bytes().splitlines(keepends=True)
    whole.journal_path.write_bytes(b"".join(lines[:-3]) + lines[-3][:30])
    again = ended(tmp_path, build_of(server.url))
    assert again.complete
    assert 1 <= again.made <= 3
    assert figures(again) == figures(whole)
    assert set(paid(server).values()) == {1}


def test_a_journal_of_another_race_is_refused(tmp_path: Path, server: Server) -> None:
    ended(tmp_path, build_of(server.url))
    sent = len(server.served)
    others: list[tuple[dict[str, Any], str]] = [
        ({"scoring": "number"}, "scoring was"),
        ({"prices": {**PRICES, "good": Price(3.0, 2.0)}}, "prices was"),
        ({"tasks": [*tasks(11), tasks(12)[11].__class__("q11", "another question", "1")]}, "'q11' was recorded with"),
        ({"tasks": [*tasks(11), tasks(12)[11].__class__("q11", "question 11", "4")]}, "'q11' was recorded with"),
    ]
    for options, says in others:
        with pytest.raises(PlaycallError, match=says):
            ended(tmp_path, build_of(server.url), **options)
    assert len(server.served) == sent
    assert ended(tmp_path, build_of(server.url), fresh=True, scoring="number").made == 48
    assert len(server.served) == sent


def test_more_tasks_and_models_ask_only_what_is_new(tmp_path: Path, server: Server) -> None:
    ended(tmp_path, build_of(server.url))
    roles = {"planner": ["good", "bad"], "solver": ["good", "bad", "worse"]}
    made = ended(tmp_path, build_of(server.url), tasks=tasks(13), roles=roles)
    assert made.complete
    assert made.made == 6 * 13 - 48
    assert set(paid(server).values()) == {1}


def test_a_race_that_runs_already_is_left_alone(tmp_path: Path, server: Server) -> None:
    made = race(tmp_path, build_of(server.url))
    with Journal(made.journal_path), pytest.raises(PlaycallError, match="another process"):
        anyio.run(made.run)
    assert server.served == []


def test_a_full_disk_stops_the_race_and_says_so(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, write = [20], os.write

    def short(fd: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        room[0] -= 1
        return write(fd, data) if room[0] else write(fd, data[:20])

    with monkeypatch.context() as patched:
        patched.setattr(journalling.os, "write", short)
        made = ended(tmp_path, build_of(server.url), concurrency=2)
    assert "No space left" in made.stopped
    assert "make room and start again" in made.stopped
    assert len(server.served) < 30
    again = ended(tmp_path, build_of(server.url))
    assert again.complete
    assert set(paid(server).values()) == {1}  # their replies were in the cache


def test_the_same_outcomes_come_to_the_same_end_whatever_comes_first(tmp_path: Path, server: Server) -> None:
    made = []
    for concurrency in (1, 16):
        server.fault = lambda body: f"delay:{hash(str(body)) % 4}"
        options = {"output": tmp_path / str(concurrency), "tasks": tasks(15), "concurrency": concurrency}
        made.append(ended(tmp_path, build_of(server.url), rules=Rules(first=4, batch=3), **options))
    first, second = (m.raced().to_dict() for m in made)
    for told in (first, second):
        for row in told["arms"]:
            del row["latency"]
    assert first == second


def test_how_it_stands_is_known_at_any_moment(tmp_path: Path, server: Server) -> None:
    made, seen = race(tmp_path, build_of(server.url)), list[tuple[int, float | None]]()
    made.tell = lambda: seen.append((made.raced().evaluations, made.eta))
    anyio.run(made.run)
    counts = [count for count, _ in seen]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert len(set(counts)) > 20
    assert seen[0][1] is None
    assert all(eta is not None and eta >= 0 for _, eta in seen[2:-1])
    assert seen[-1] == (48, None)


def test_an_agent_that_hangs_does_not_hold_a_race_whose_time_is_over(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two ways to hang, after a first call that is answered."""
    monkeypatch.setattr("playcall.evals.race_live.LATE", 0.1)
    monkeypatch.setattr("playcall.evals.race_live.GRACE", 0.1)
    leave = threading.Event()

    def hanging(models: Mapping[str, str]) -> Any:
        client = client_of(server.url)

        def agent(task: object) -> str:
            client.chat.completions.create(**asking("solver", f"solve {task} by good", max_tokens=20))
            leave.wait(30)
            return "late"

        return agent

    def ahanging(models: Mapping[str, str]) -> Any:
        client = aclient_of(server.url)

        async def agent(task: object) -> str:
            await client.chat.completions.create(**asking("solver", f"solve {task} by good", max_tokens=20))
            await anyio.sleep_forever()
            return "never"

        return agent

    try:
        for name, build in (("sync", hanging), ("async", ahanging)):
            (tmp_path / name).mkdir()
            live = race(tmp_path / name, build, rules=Rules(max_seconds=0.5))
            anyio.run(live.run)
            assert live.stopped.startswith("max_seconds=0.5 is reached")
            assert live.spent > 0
    finally:
        leave.set()
