"""A tracked run that is answered from a cache costs nothing, gets the same bytes, and is told at its original time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import httpx
import httpx2
import openai
import pytest
import requests
import trio

from playcall.strategies import Cache, Misuse, Price, Usage
from playcall.strategies.track import Trace, track

from ..serving import Server, serve
from .agents import ALL, body, by_anthropic, by_httpx, by_requests

PRICES = {"m": Price(1.0, 2.0)}
agents = pytest.mark.parametrize("agent", ALL.values(), ids=ALL)
streams = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serve() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.served.clear()
    running._seen.clear()
    running.delay, running.answer = 0.0, None
    return running


@streams
@agents
def test_a_second_run_of_an_item_is_paid_once(agent: Callable[..., str], stream: bool, server: Server) -> None:
    cache = Cache()
    with track("a", "q", prices=PRICES, cache=cache) as first:
        text = agent(server.root, "m", "hi", stream)
    with track("a", "q", prices=PRICES, cache=cache) as second:
        assert agent(server.root, "m", "hi", stream) == text
    (paid,), (call,) = first.calls, second.calls
    assert len(server.served) == 1
    assert (call.cached, call.source, call.price, call.saved) == (True, "cache", 0, paid.price)
    assert (call.usage, call.heard, call.finish, call.original) == (paid.usage, text, paid.finish, paid.seconds)
    assert second.seconds >= paid.seconds
    assert second.unseen == ()


def test_the_nth_identical_request_of_a_run_is_draw_n(server: Server) -> None:
    cache = Cache()

    def run(draw: int = 0) -> list[str]:
        with track(prices=PRICES, cache=cache, draw=draw):
            return [by_httpx(server.root, "m", "hi") for _ in range(3)]

    texts = run()
    assert run() == texts
    assert run(1)[:2] == texts[1:]
    assert len(server.served) == 4
    assert len(set(texts)) > 1  # draws differ


def test_draws_are_counted_for_each_inner_track(server: Server) -> None:
    with track(prices=PRICES, cache=Cache()) as outer:
        for item in "ab":
            with track(item=item):
                by_httpx(server.root, "m", "hi")
    assert [call.cached for call in outer.calls] == [False, True]


@pytest.mark.parametrize("change", ["tenant", "body", "host", "path"])
def test_whatever_differs_is_asked_anew(change: str, server: Server) -> None:
    cache, url, asked = Cache(), f"{server.url}/chat/completions", body("m", "hi", False)

    def ask(key: str = "k", url: str = url, **more: Any) -> None:
        with track(cache=cache):
            httpx.post(url, json={**asked, **more}, headers={"authorization": f"Bearer {key}"})

    ask()
    ask()
    assert len(server.served) == 1
    if change == "tenant":
        ask(key="l")
    elif change == "body":
        ask(temperature=1)
    elif change == "host":
        ask(url=url.replace("127.0.0.1", "localhost"))
    else:
        ask(url=f"{url}?api-version=2")
    assert len(server.served) == 2


@pytest.mark.parametrize("fault", ["500", "cut", "close"])
def test_no_failure_is_kept_and_another_try_has_its_draw(fault: str, server: Server) -> None:
    cache, name = Cache(), f"m+{fault}:1"
    failed = 0
    for _ in range(3):
        with track(cache=cache):
            try:
                by_httpx(server.root, name, "hi")
            except httpx.HTTPError:
                failed += 1
                by_httpx(server.root, name, "hi")
    assert (failed, len(server.served)) == (1, 2)


def test_a_stream_that_was_left_early_is_not_kept(server: Server) -> None:
    server.answer = lambda body: "one two three " * 300
    cache, client = Cache(), openai.OpenAI(base_url=server.url, api_key="S")
    for _ in range(2):
        with track(cache=cache) as trace, client.chat.completions.create(**body("m", "hi", True)) as stream:
            next(iter(stream))
        assert [(call.cached, call.cancelled) for call in trace.calls] == [(False, True)]
    with track(cache=cache), client.chat.completions.create(**body("m", "hi", True)) as stream:
        assert sum(1 for _ in stream) > 900
    with track(cache=cache) as trace, client.chat.completions.create(**body("m", "hi", True)) as stream:
        assert sum(1 for _ in stream) > 900
    assert [call.cached for call in trace.calls] == [True]


def reads(kind: str, url: str) -> tuple[int, str, bytes]:
    """Status, content type and the bytes of a stream, as a library gives them."""
    asked = {**body("m", "hi", True), "seed": 1}

    async def of_aiohttp() -> tuple[int, str, bytes]:
        async with aiohttp.ClientSession() as session, session.post(url, json=asked) as got:
            return got.status, got.headers["Content-Type"], b"".join([c async for c, _ in got.content.iter_chunks()])

    if kind == "aiohttp":
        return asyncio.run(of_aiohttp())
    if kind == "requests":
        with requests.post(url, json=asked, stream=True) as response:
            assert type(response) is requests.Response
            return response.status_code, response.headers["Content-Type"], response.raw.read()
    module: Any = {"httpx": httpx, "httpx2": httpx2}[kind]
    with module.stream("POST", url, json=asked) as got:
        assert type(got) is module.Response
        return got.status_code, got.headers["Content-Type"], b"".join(got.iter_raw())


def test_a_cached_stream_is_byte_equal_and_one_library_has_what_another_asked(server: Server) -> None:
    cache, url = Cache(), f"{server.url}/chat/completions"
    fresh = reads("httpx", url)
    for kind in ("httpx", "httpx2", "aiohttp", "requests"):
        with track(cache=cache):
            assert reads(kind, url) == fresh
    assert len(server.served) == 2


def test_equal_calls_of_runs_at_once_are_one(server: Server) -> None:
    server.delay = 0.03
    cache, ready = Cache(), threading.Barrier(7)
    traces: list[Trace] = []

    def run(agent: Callable[..., object], backend: str = "") -> None:
        ready.wait(5)
        with track(prices=PRICES, cache=cache) as trace:
            anyio.run(agent, backend=backend) if backend else agent(server.root, "m", "hi")
        traces.append(trace)

    async def several() -> None:
        async with anyio.create_task_group() as group, httpx.AsyncClient() as client:
            for _ in range(2):
                group.start_soon(alone, client)

    async def alone(client: httpx.AsyncClient) -> None:
        with track():
            await client.post(f"{server.url}/chat/completions", json=body("m", "hi", False))

    given: list[tuple[Any, ...]] = [(by_httpx,), (by_requests,), (by_httpx,), (several, "asyncio"), (several, "trio")]
    threads = [threading.Thread(target=run, args=args) for args in given]
    for thread in threads:
        thread.start()
    for _ in range(2):
        Context().run(lambda: threading.Thread(target=ready.wait).start())
    for thread in threads:
        thread.join(5)
    calls = [call for trace in traces for call in trace.calls]
    assert len(server.served) == 1
    assert sorted(call.cached for call in calls) == [False] + [True] * 6


def test_a_run_does_not_wait_for_itself(server: Server) -> None:
    cache, url = Cache(), f"{server.url}/chat/completions"
    asked = body("m", "hi", True)
    with (
        track(cache=cache),
        httpx.stream("POST", url, json=asked),
        track(),
        httpx.stream("POST", url, json=asked) as two,
    ):
        assert two.read()
    assert len(server.served) == 2


def test_a_limit_holds_for_what_is_sent_only(server: Server) -> None:
    cache = Cache()
    seen: list[str] = []
    for _ in range(2):
        with track(cache=cache, limit=lambda asked: seen.append(asked.model)):
            by_httpx(server.root, "m", "hi")
    assert seen == ["m"]

    def never(asked: object) -> None:
        raise Misuse("no")

    with pytest.raises(Misuse), track(cache=cache, limit=never):
        by_httpx(server.root, "m", "else")
    with track(cache=cache):
        by_httpx(server.root, "m", "else")
    assert len(server.served) == 2


def test_a_cache_in_a_file_has_no_key_and_no_prompt(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        cache = Cache(tmp_path / "c.db")
        with track(cache=cache):
            by_anthropic(server.root, "m", "my prompt", True)
        cache.close()
    with sqlite3.connect(tmp_path / "c.db") as db:
        told = "\n".join(db.iterdump())
    assert len(server.served) == 1
    assert "SECRET" not in told
    assert "my prompt" not in told


Ask = Callable[[str], Awaitable[None]]


async def one_after_another(ask: Ask) -> None:
    for prompt in "abc":
        await ask(prompt)


async def side_by_side(ask: Ask) -> None:
    await asyncio.gather(*map(ask, "abc"))


async def in_a_group(ask: Ask) -> None:
    async with asyncio.TaskGroup() as group:
        for prompt in "abc":
            group.create_task(ask(prompt))


async def spawned_after(ask: Ask) -> None:
    await ask("a")
    await asyncio.create_task(ask("b"))


async def fanned_out_and_joined(ask: Ask) -> None:
    await ask("a")
    await asyncio.gather(ask("b"), ask("c"))
    await ask("d")


async def nested(ask: Ask) -> None:
    async def inner(prompts: str) -> None:
        await asyncio.gather(*map(ask, prompts))
        await ask(prompts * 2)

    await asyncio.gather(inner("ab"), inner("cd"), ask("e"))


async def in_threads(ask: Ask) -> None:
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, ask(prompt)) for prompt in "abc"))  # type: ignore[arg-type]


async def in_the_executor(ask: Ask) -> None:
    loop, begun = asyncio.get_running_loop(), threading.Barrier(3)

    def work(prompt: str) -> None:
        begun.wait(5)  # a thread that has ended before the next one began may have been waited for
        asyncio.run(ask(prompt))  # type: ignore[arg-type]

    await asyncio.gather(*(loop.run_in_executor(None, work, prompt) for prompt in "abc"))


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        (one_after_another, lambda d: d["a"] + d["b"] + d["c"]),
        (side_by_side, lambda d: max(d.values())),
        (in_a_group, lambda d: max(d.values())),
        (spawned_after, lambda d: d["a"] + d["b"]),
        (fanned_out_and_joined, lambda d: d["a"] + max(d["b"], d["c"]) + d["d"]),
        (nested, lambda d: max(max(d["a"], d["b"]) + d["abab"], max(d["c"], d["d"]) + d["cdcd"], d["e"])),
        (in_threads, lambda d: max(d.values())),
        (in_the_executor, lambda d: max(d.values())),
    ],
)
def test_a_cached_run_is_told_at_its_original_time(
    agent: Callable[[Ask], Awaitable[None]], path: Callable[[dict[str, float]], float], server: Server
) -> None:
    server.delay = 0.005
    cache = Cache()
    server.answer = lambda body: str(body["messages"][-1]["content"])

    async def ask(prompt: str) -> None:
        async with httpx.AsyncClient(verify=False) as client:
            await client.post(f"{server.url}/chat/completions", json=body("m", prompt, False))

    def run() -> Trace:
        with track(cache=cache) as trace:
            asyncio.run(agent(ask))  # type: ignore[arg-type]
        return trace

    run()
    trace = run()
    assert all(call.cached for call in trace.calls)
    delays = {call.heard: (call.original or 0.0) - call.seconds for call in trace.calls}
    wall = trace._ended - trace._began
    assert all(delay > 0 for delay in delays.values())
    assert trace.seconds - wall == pytest.approx(path(delays), abs=1e-9)


def test_threads_and_pools_of_a_cached_run_are_told_side_by_side(server: Server) -> None:
    server.delay = 0.005
    server.answer = lambda body: str(body["messages"][-1]["content"])
    cache, begun = Cache(), threading.Barrier(2)

    def ask(prompt: str) -> None:
        begun.wait(5)
        by_httpx(server.root, "m", prompt)

    def run() -> Trace:
        with track(cache=cache) as trace:
            threads = [threading.Thread(target=ask, args=(p,)) for p in "ab"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(ask, "cd"))
            by_httpx(server.root, "m", "e")
        return trace

    run()
    trace = run()
    d = {call.heard: (call.original or 0.0) - call.seconds for call in trace.calls}
    expected = max(d["a"], d["b"]) + max(d["c"], d["d"]) + d["e"]
    assert trace.seconds - (trace._ended - trace._began) == pytest.approx(expected, abs=1e-9)


def test_a_follower_whose_track_has_closed_leaves_no_flight(server: Server) -> None:
    cache, url, asked = Cache(), f"{server.url}/chat/completions", body("m+500:1+delay:60", "hi", False)

    def lead() -> None:
        with track(cache=cache):
            httpx.post(url, json=asked)

    with track(cache=cache):
        first = Context().run(lambda: threading.Thread(target=lead))
        first.start()
        assert server.until(lambda: server.served)
        with track() as inner:
            second = threading.Thread(target=httpx.post, args=(url,), kwargs={"json": asked})
            second.start()
            while not inner.open:
                time.sleep(0)
    first.join(5)
    second.join(5)
    assert not cache._flights
    with track(cache=cache) as trace:
        assert httpx.post(url, json=asked, timeout=2).status_code == 200
    assert len(trace.calls) == 1


class Bearer(httpx.Auth):
    def __init__(self, key: str) -> None:
        self.key = key

    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["authorization"] = f"Bearer {self.key}"
        yield request


def signed(how: str, url: str, user: str) -> str:
    """The same question, by users whom only their client tells apart."""
    asked = body("m", "hi", False)
    if how in ("aiohttp auth", "aiohttp cookies"):

        async def ask() -> Any:
            given: Any = {"cookies": {"session": user}} if how == "aiohttp cookies" else {}
            more = {} if given else {"auth": aiohttp.BasicAuth(user, "pw")}
            async with aiohttp.ClientSession(**given) as session, session.post(url, json=asked, **more) as response:
                return await response.json()

        got = asyncio.run(ask())
    elif how == "requests":
        got = requests.post(url, json=asked, auth=(user, "pw")).json()
    else:

        def hook(request: httpx.Request) -> None:
            request.headers["x-api-key"] = user

        given = {
            "auth": {"auth": (user, "pw")},
            "flow": {"auth": Bearer(user)},
            "hook": {"event_hooks": {"request": [hook]}},
            "userinfo": {},
            "anthropic": {"headers": {"anthropic-beta": user}},
            "cookie": {"cookies": {"session": user}},
            "gateway": {"headers": {"Ocp-Apim-Subscription-Key": user}},
        }[how]
        with httpx.Client(**given) as client:  # type: ignore[arg-type]
            got = client.post(url.replace("//", f"//{user}:pw@") if how == "userinfo" else url, json=asked).json()
    return str(got["choices"][0]["message"]["content"])


HOWS = ["auth", "flow", "hook", "userinfo", "anthropic", "cookie", "gateway", "requests"]


@pytest.mark.filterwarnings("ignore:.*auth:DeprecationWarning")
@pytest.mark.parametrize("how", [*HOWS, "aiohttp auth", "aiohttp cookies"])
def test_nobody_gets_the_answer_of_another(how: str, server: Server) -> None:
    cache = Cache()
    server.answer = lambda body: f"secret {len(server.served)}"
    answers = []
    for user in ("alice", "bob"):
        with track(cache=cache):
            answers.append(signed(how, f"{server.url}/chat/completions", user))
    assert answers == ["secret 1", "secret 2"]


def test_a_hook_that_adds_nothing_does_not_keep_an_answer_from_being_kept(server: Server) -> None:
    cache, seen = Cache(), []
    for _ in range(2):
        with track(cache=cache), httpx.Client(event_hooks={"request": [seen.append]}) as client:
            client.post(f"{server.url}/chat/completions", json=body("m", "hi", False))
    assert len(server.served) == len(seen) == 1


async def aread(response: httpx.Response) -> None:
    await response.aread()


@pytest.mark.parametrize("kind", ["hook", "async hook", "transport"])
def test_a_response_that_was_read_before_is_a_whole_call_and_kept(kind: str, server: Server) -> None:
    cache, url, asked = Cache(), f"{server.url}/chat/completions", body("m", "hi", False)

    def once(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=httpx.HTTPTransport().handle_request(request).read())

    async def ask() -> None:
        async with httpx.AsyncClient(event_hooks={"response": [aread]}) as client:
            await client.post(url, json=asked)

    for cached in (False, True):
        with track(prices=PRICES, cache=cache) as trace:
            if kind == "async hook":
                asyncio.run(ask())
            else:
                given: Any = {"event_hooks": {"response": [httpx.Response.read]}}
                with httpx.Client(**given if kind == "hook" else {"transport": httpx.MockTransport(once)}) as client:
                    client.post(url, json=asked)
            (call,) = trace.calls
        assert (call.cached, call.cancelled, call.estimated, call.usage) == (cached, False, False, Usage(1, 4))
    assert len(server.served) == 1


def test_one_does_not_wait_longer_than_its_own_timeout_nor_behind_a_stream_that_somebody_reads(server: Server) -> None:
    cache, url = Cache(), f"{server.url}/chat/completions"
    slow, ready, done = body("m+delay:300", "hi", False), threading.Barrier(2), []

    def lead() -> None:
        with track(cache=cache):
            httpx.post(url, json=slow)

    def cross(one: str, other: str) -> None:
        with track(cache=cache), httpx.stream("POST", url, json=body("m", one, True)):
            ready.wait(5)
            done.append(httpx.post(url, json=body("m", other, True)).status_code)

    leader = threading.Thread(target=lead)
    leader.start()
    assert server.until(lambda: server.served)
    with pytest.raises(httpx.ReadTimeout), track(cache=cache) as trace:
        httpx.post(url, json=slow, timeout=0.02)
    assert not trace.calls[0].cached
    crossing = [threading.Thread(target=cross, args=args, daemon=True) for args in ("pq", "qp")]
    for thread in (*crossing, leader):
        thread.join(5) if thread.ident else thread.start()
    for thread in crossing:
        thread.join(5)
    assert done == [200, 200]


def test_all_that_waited_for_a_failed_call_send_at_once(server: Server) -> None:
    cache, url, asked = Cache(), f"{server.url}/chat/completions", body("m+500+delay:80", "hi", False)

    async def one(client: httpx.AsyncClient) -> None:
        async with track(cache=cache):
            await client.post(url, json=asked)

    async def main() -> float:
        async with httpx.AsyncClient() as client:
            began = asyncio.get_running_loop().time()
            await asyncio.gather(*(one(client) for _ in range(8)))
            return asyncio.get_running_loop().time() - began

    assert asyncio.run(main()) < 0.5  # one after another they take 0.64
    assert len(server.served) == 8


def test_where_a_limit_refuses_one_another_makes_the_call_for_all(server: Server) -> None:
    server.delay = 0.01
    cache, url, asked = Cache(), f"{server.url}/chat/completions", body("m", "hi", False)
    waiting, told = threading.Event(), list[bool]()

    def never(asked: object) -> None:
        waiting.wait(5)
        raise Misuse("no")

    def lead() -> None:
        with pytest.raises(Misuse), track(cache=cache, limit=never):
            httpx.post(url, json=asked)

    async def one(client: httpx.AsyncClient) -> None:
        async with track(cache=cache) as trace:
            await client.post(url, json=asked)
        told.append(trace.calls[0].cached)

    async def main() -> None:
        async with httpx.AsyncClient() as client, asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(one(client))
            await asyncio.sleep(0.01)
            waiting.set()

    leader = threading.Thread(target=lead)
    leader.start()
    while not cache._flights:
        time.sleep(0)
    asyncio.run(main())
    leader.join()
    assert sorted(told) == [False, True, True, True]
    assert len(server.served) == 1


def test_bodies_are_kept_as_text_and_old_ones_are_read(server: Server, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.db")
    answer = json.dumps({"choices": [{"message": {"content": "答案"}, "finish_reason": "stop"}]}, ensure_ascii=False)

    def ask() -> bytes:
        with track(cache=cache), httpx.Client(transport=httpx.MockTransport(lambda _: made)) as client:
            return client.post("http://x/v1/chat/completions", json=body("m", "hi", False)).content

    made = httpx.Response(200, content=answer.encode())
    assert ask() == ask() == answer.encode()
    with sqlite3.connect(tmp_path / "c.db") as db:
        (value,) = db.execute("SELECT value FROM answers").fetchone()
        told = json.loads(value)
        assert told["answer"]["text"] == answer
        told["answer"] = {**told["answer"], "text": answer.encode().decode("latin-1"), "output": [200, {}]}
        db.execute("UPDATE answers SET value = ?", (json.dumps(told),))
    assert ask() == answer.encode()


def test_calls_of_a_library_that_carries_the_context_are_told_side_by_side(server: Server) -> None:
    server.delay = 0.005
    server.answer = lambda body: str(body["messages"][-1]["content"])
    cache, begun = Cache(), threading.Barrier(2)

    def ask(prompt: str) -> None:
        begun.wait(5)
        by_httpx(server.root, "m", prompt)

    def run() -> Trace:
        async def in_executor() -> None:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(None, copy_context().run, ask, p) for p in "ef"))

        with track(cache=cache) as trace:
            with ThreadPoolExecutor(2) as pool:
                for future in [pool.submit(copy_context().run, ask, p) for p in "ab"]:
                    future.result()
            threads = [threading.Thread(target=copy_context().run, args=(ask, p)) for p in "cd"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            asyncio.run(in_executor())
        return trace

    run()
    trace = run()
    d = {call.heard: (call.original or 0.0) - call.seconds for call in trace.calls}
    expected = max(d["a"], d["b"]) + max(d["c"], d["d"]) + max(d["e"], d["f"])
    assert trace.seconds - (trace._ended - trace._began) == pytest.approx(expected, abs=1e-9)


def test_items_of_a_pool_are_told_side_by_side_unless_they_were_waited_for(server: Server) -> None:
    server.delay = 0.005
    server.answer = lambda body: str(body["messages"][-1]["content"])
    cache, seen = Cache(), list[str]()

    def run() -> Trace:
        def ask(prompt: str) -> str:
            return by_httpx(server.root, "m", prompt)

        with track(cache=cache) as trace:
            with ThreadPoolExecutor(2) as pool:
                for prompt in "ab":  # an answer from the cache is there before the next item begins
                    item = pool.submit(ask, prompt)
                    while not item.done():
                        time.sleep(0)
                    item.add_done_callback(lambda item: seen.append(item.result()))  # as LangGraph does
            with ThreadPoolExecutor(2) as pool:
                pool.submit(ask, "c").result()
                list(pool.map(ask, "d"))
        return trace

    run()
    trace = run()
    d = {call.heard: (call.original or 0.0) - call.seconds for call in trace.calls}
    expected = max(d["a"], d["b"]) + d["c"] + d["d"]
    assert trace.seconds - (trace._ended - trace._began) == pytest.approx(expected, abs=1e-9)


def test_children_of_a_nursery_are_told_as_their_parents(server: Server) -> None:
    server.delay = 0.005
    server.answer = lambda body: str(body["messages"][-1]["content"])
    cache = Cache()

    async def main() -> Trace:
        async with httpx.AsyncClient() as client:

            async def ask(prompt: str) -> None:
                await client.post(f"{server.url}/chat/completions", json=body("m", prompt, False))

            async def work(prompt: str) -> None:
                async with trio.open_nursery() as inner:
                    inner.start_soon(ask, prompt)
                await ask(prompt * 2)

            async with track(cache=cache) as trace, trio.open_nursery() as nursery:
                for prompt in "ab":
                    nursery.start_soon(work, prompt)
            return trace

    trio.run(main)
    trace = trio.run(main)
    d = {call.heard: (call.original or 0.0) - call.seconds for call in trace.calls}
    expected = max(d["a"] + d["aa"], d["b"] + d["bb"])
    assert trace.seconds - (trace._ended - trace._began) == pytest.approx(expected, abs=1e-9)
