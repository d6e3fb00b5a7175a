"""Every model call that an agent makes is recorded, with the server's own count, and nothing else is changed."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import multiprocessing
import multiprocessing.process
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
import trio

from playcall.strategies import Ledger, Misuse, Price, Usage
from playcall.strategies.dialects import Asked
from playcall.strategies.trace import facts
from playcall.strategies.track import Trace, UntrackedCalls, role, track

from ..serving import Server, serve
from .agents import ALL, ASYNC, SYNC, ahttpx, ahttpx2, body, by_httpx, by_openai, text_of

PRICES = {"m": Price(1.0, 2.0), "n": Price(1.0, 2.0), "x": Price(1.0, 2.0)}  # the server's rate
PATCHED = [
    *((module.Client, "send") for module in (httpx, httpx2)),
    *((module.AsyncClient, "send") for module in (httpx, httpx2)),
    (aiohttp.ClientSession, "_request"),
    (requests.Session, "send"),
    (threading.Thread, "start"),
    (threading.Thread, "join"),
    (Future, "result"),
    (Future, "exception"),
    (Future, "add_done_callback"),
    (ThreadPoolExecutor, "submit"),
    (multiprocessing.process.BaseProcess, "start"),
    (asyncio.base_events.BaseEventLoop, "create_task"),
]
ORIGINALS = [owner.__dict__[name] for owner, name in PATCHED]

agents = pytest.mark.parametrize("agent", ALL.values(), ids=ALL)
streams = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """After every test here all that was patched is what it was."""
    yield
    assert all(owner.__dict__[name] is original for (owner, name), original in zip(PATCHED, ORIGINALS))
    assert [type(f).__name__ for f in sys.meta_path].count("_Later") == 0


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serve() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.served.clear()
    running._seen.clear()
    running.answer = None
    return running


def agrees(trace: Trace, server: Server) -> None:
    """Calls, tokens and money are the server's."""
    assert server.until(lambda: trace.price == server.bill())
    served = [s for s in server.served if s.finished and s.output]
    assert len(trace.calls) == len(server.served)
    assert sorted((c.usage.input, c.usage.output) for c in trace.calls if c.usage) == sorted(
        (s.input, s.output) for s in served
    )
    assert trace.unseen == ()


@streams
@agents
def test_a_call_is_recorded_with_the_servers_count(agent: Callable[..., str], stream: bool, server: Server) -> None:
    with track("a", "q1", prices=PRICES) as trace:
        text = agent(server.root, "m", "one two", stream)
    assert text.startswith("the answer is")
    agrees(trace, server)
    (call,) = trace.calls
    assert (call.arm, call.run, call.model, call.role, call.node) == ("a", "q1", "m", "m", "track")
    assert call.heard == text
    assert not call.error
    assert not call.estimated
    assert 0 < call.seconds <= trace.seconds
    assert (call.first_token is not None) == stream


def test_an_async_with_is_the_same(server: Server) -> None:
    async def main() -> Trace:
        async with track(prices=PRICES) as trace:
            await asyncio.gather(*(agent(server.root, "m", "hi") for agent in ASYNC.values()))
        return trace

    trace = asyncio.run(main())
    assert len(trace.calls) == len(ASYNC)
    agrees(trace, server)


def test_calls_on_trio_are_recorded(server: Server) -> None:
    async def main() -> Trace:
        async with track(prices=PRICES) as trace, trio.open_nursery() as nursery:
            for agent in (ahttpx, ahttpx2):
                nursery.start_soon(agent, server.root, "m", "hi", True)
        return trace

    agrees(trio.run(main), server)


def test_calls_in_threads_and_pools_are_recorded(server: Server) -> None:
    pool = ThreadPoolExecutor(2)
    pool.submit(int).result()  # its thread is older than the track
    with track(prices=PRICES) as trace, pool:
        threads = [threading.Thread(target=by_httpx, args=(server.root, "m", "t")) for _ in range(3)]
        for thread in threads:
            thread.start()
        list(pool.map(lambda prompt: by_httpx(server.root, "m", prompt), "abcd"))
        asyncio.run(asyncio.to_thread(by_httpx, server.root, "m", "hi"))
        for thread in threads:
            thread.join()
    assert len(trace.calls) == 8
    agrees(trace, server)


def test_a_pools_thread_that_a_track_started_takes_no_calls_of_others_into_it(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool, track(prices=PRICES) as trace:
        pool.submit(int).result()
        elsewhere = Context().run(pool.submit, by_httpx, server.root, "m", "other")
        assert elsewhere.result().startswith("the answer is")
    assert trace.calls == ()


def test_raw_and_streaming_responses_are_recorded(server: Server) -> None:
    with track(prices=PRICES) as trace, openai.OpenAI(base_url=server.url, api_key="SECRET") as client:
        raw: Any = client.chat.completions.with_raw_response.create(**body("m", "hi", False))
        assert raw.parse().choices[0].message.content.startswith("the answer")
        assert raw.headers["content-type"] == "application/json"
        assert raw.elapsed.total_seconds() > 0
        streaming: Any = client.chat.completions.with_streaming_response
        with streaming.create(**body("m", "hi", True)) as response:
            assert sum(line.startswith("data: {") for line in response.iter_lines()) == 6
    agrees(trace, server)


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_stream_that_did_not_ask_for_usage_does_not_see_it(module: Any, server: Server) -> None:
    def read() -> bytes:
        with module.stream(
            "POST", f"{server.url}/chat/completions", json={**body("m+trickle", "hi", True), "seed": 1}
        ) as response:
            return b"".join(response.iter_raw())

    untracked = read()
    server.served.clear()
    with track(prices={"m+trickle": PRICES["m"]}) as trace:
        assert read() == untracked
    assert b"usage" not in untracked
    agrees(trace, server)


def test_a_stream_that_was_left_early_is_cancelled_and_estimated(server: Server) -> None:
    server.answer = lambda body: "one two three"
    with (
        track(prices={"m+hangmid": Price(1.0, 2.0)}) as trace,
        openai.OpenAI(base_url=server.url, api_key="S") as client,
    ):
        stream = client.chat.completions.create(**body("m+hangmid", "hi", True))
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.close()
    (call,) = trace.calls
    assert (call.cancelled, call.estimated, call.heard.strip(), call.error) == (True, True, "one", "")
    assert call.price > 0
    assert server.until(server.gone)


@pytest.mark.parametrize("kind", ["httpx", "aiohttp", "requests"])
def test_a_stream_that_is_open_at_the_end_is_ended_and_can_be_read_on(kind: str, server: Server) -> None:
    url, asked = f"{server.url}/chat/completions", body("m", "hi", True)

    async def by_aiohttp() -> tuple[Trace, bytes]:
        async with aiohttp.ClientSession() as session:
            async with track(prices=PRICES) as trace:
                response = await session.post(url, json=asked)
            return trace, await response.read()

    if kind == "aiohttp":
        trace, rest = asyncio.run(by_aiohttp())
    elif kind == "httpx":
        with httpx.Client() as client:
            with track(prices=PRICES) as trace:
                response = client.send(client.build_request("POST", url, json=asked), stream=True)
            rest = response.read()
    else:
        with requests.Session() as session:
            with track(prices=PRICES) as trace:
                raw = session.post(url, json=asked, stream=True)
            rest = raw.content
    (call,) = trace.calls
    assert (call.cancelled, call.estimated, call.usage) == (True, True, None)
    assert text_of(rest, True).startswith("the answer is")


def test_tries_of_a_client_are_calls_of_their_own(server: Server) -> None:
    name, server.retry_after = "m+429:1", "0.001"
    with track(prices={name: PRICES["m"]}) as trace, openai.OpenAI(base_url=server.url, api_key="S") as client:
        client.chat.completions.create(**body(name, "hi", False))
    assert [(call.error, call.source, call.price > 0) for call in trace.calls] == [
        ("rate_limited", "unbilled", False),
        ("", "user", True),
    ]
    agrees(trace, server)


@pytest.mark.parametrize(("fault", "error"), [("401", "auth"), ("400", "bad_request"), ("404", "not_found")])
@pytest.mark.parametrize("agent", [by_httpx, ALL["aaiohttp"], ALL["requests"]], ids=["httpx", "aiohttp", "requests"])
def test_a_refused_call_costs_nothing(agent: Callable[..., str], fault: str, error: str, server: Server) -> None:
    with track(prices={f"m+{fault}": PRICES["m"]}) as trace, pytest.raises(Exception, match=r"40|42"):
        agent(server.root, f"m+{fault}", "hi")
    (call,) = trace.calls
    assert (call.error, call.price, call.source) == (error, 0, "unbilled")


def test_a_hook_may_raise_for_a_status(server: Server) -> None:
    def check(response: httpx.Response) -> None:
        response.raise_for_status()

    with (
        httpx.Client(event_hooks={"response": [check]}) as client,
        track() as trace,
        pytest.raises(httpx.HTTPStatusError),
    ):
        client.post(f"{server.url}/chat/completions", json=body("m+429", "hi", False))
    assert [call.error for call in trace.calls] == ["rate_limited"]


def test_aiohttp_may_raise_for_a_status(server: Server) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            await session.post(f"{server.url}/chat/completions", json=body("m+429", "hi", False))

    with track() as trace, pytest.raises(aiohttp.ClientResponseError):
        asyncio.run(main())
    assert [call.error for call in trace.calls] == ["rate_limited"]


@agents
def test_a_refused_connection_is_a_failed_call(agent: Callable[..., str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        root = f"http://127.0.0.1:{free.getsockname()[1]}"
    with track(prices=PRICES) as trace, pytest.raises(Exception, match=r"(?i)connect"):
        agent(root, "m", "hi")
    assert {(call.error, call.price, call.source) for call in trace.calls} == {("connection", 0, "unbilled")}


@pytest.mark.parametrize("agent", [by_httpx, ALL["aaiohttp"], ALL["requests"]], ids=["httpx", "aiohttp", "requests"])
def test_an_answer_that_is_cut_is_a_failed_call(agent: Callable[..., str], server: Server) -> None:
    with track(prices={"m+cut": PRICES["m"]}) as trace, pytest.raises(Exception, match=r"(?i)complete|payload|read"):
        agent(server.root, "m+cut", "hi")
    assert [call.error for call in trace.calls] == ["cut"]


class Odd(BaseHTTPRequestHandler):
    """Redirects /old/..., compresses without being asked, and keeps what it was sent."""

    protocol_version = "HTTP/1.1"
    got: list[dict[str, str]]

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.path.startswith("/old"):
            self.send_response(307)
            self.send_header("location", self.path[4:])
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.got.append({k.lower(): v for k, v in self.headers.items()})
        message = {"choices": [{"message": {"content": f"said {json.loads(data)['model']}"}, "finish_reason": "stop"}]}
        whole = json.dumps({**message, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()
        packed = gzip.compress(whole) if "gzip" in self.path else zlib.compress(whole)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-encoding", "gzip" if "gzip" in self.path else "deflate")
        self.send_header("content-length", str(len(packed)))
        self.end_headers()
        self.wfile.write(packed)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *args: object) -> None: ...


@contextmanager
def odd() -> Iterator[tuple[str, list[dict[str, str]]]]:
    handler = type("Handler", (Odd,), {"got": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", handler.got  # type: ignore[attr-defined]
        http.shutdown()


def test_compressed_answers_and_redirects_are_read() -> None:
    async def of_aiohttp(root: str) -> str:
        async with aiohttp.ClientSession() as session, session.post(root, json=body("m", "hi", False)) as response:
            return text_of(await response.read(), False)

    def of_httpx(url: str) -> str:
        return text_of(httpx.post(url, json=body("m", "hi", False), follow_redirects=True).content, False)

    def of_httpx2(url: str) -> str:
        with httpx2.stream("POST", url, json=body("m", "hi", False), follow_redirects=True) as response:
            return text_of(b"".join(response.iter_bytes()), False)

    def of_requests(url: str) -> str:
        return text_of(requests.post(url, json=body("m", "hi", False)).content, False)

    asks = [of_httpx, of_httpx2, of_requests, lambda url: asyncio.run(of_aiohttp(url))]
    with odd() as (root, got), track(prices=PRICES) as trace:
        texts = [ask(f"{root}/old/{how}/chat/completions") for ask in asks for how in ("gzip", "deflate")]
    assert texts == ["said m"] * 8
    assert [call.usage for call in trace.calls] == [Usage(3, 4)] * 8
    assert trace.price == 8 * 11_000
    assert {headers["accept-encoding"] for headers in got} == {"identity"}


def test_a_request_that_is_no_model_call_passes_untouched(server: Server) -> None:
    with odd() as (root, got), track() as trace:
        httpx.post(f"{root}/tools/gzip", json={"model": "a weather model"})
        requests.post(f"{root}/tools/gzip", data=b'{"model": 1}')
        httpx.request("GET", f"{root}/chat/completions", content=b'{"model": "m"}')
        with httpx.Client() as client:
            client.post(f"{root}/chat/completions/feedback", json={"model": "m", "stars": 5})
    assert trace.calls == ()
    assert all("gzip" in headers["accept-encoding"] for headers in got)


def test_one_request_is_one_call_where_a_client_runs_over_another(server: Server) -> None:
    async def main() -> str:
        async with openai.AsyncOpenAI(
            base_url=server.url, api_key="S", http_client=openai.DefaultAioHttpClient()
        ) as one:
            got = await one.chat.completions.create(**body("m", "hi", True))
            return "".join([chunk.choices[0].delta.content or "" async for chunk in got])

    pytest.importorskip("aiohttp")
    with track(prices=PRICES) as trace:
        assert asyncio.run(main()).startswith("the answer is")
    assert len(trace.calls) == 1
    agrees(trace, server)


def test_a_role_is_given_its_model(server: Server) -> None:
    models = {"planner": "m", "solver": "n", "idle": "x"}
    with track("a", prices=PRICES, models=models) as trace:
        by_openai(server.root, "planner", "plan")
        by_httpx(server.root, "solver", "solve")
        with role("planner"):
            by_httpx(server.root, "gpt-whatever", "more")
        with role("critic"):
            by_httpx(server.root, "x", "so")
            by_httpx(server.root, "solver", "again")
    assert [(c.role, c.model) for c in trace.calls] == [
        ("planner", "m"),
        ("solver", "n"),
        ("planner", "m"),
        ("critic", "x"),
        ("solver", "n"),
    ]
    assert [s.model for s in server.served] == ["m", "n", "m", "x", "n"]
    agrees(trace, server)
    found = facts([trace])
    assert {name: role.calls for name, role in found.roles.items()} == {"planner": 2, "solver": 2, "critic": 1}
    assert found.warnings[0].startswith("arm 'a': role 'idle' was called in none of 1 runs")


@pytest.mark.parametrize("agent", ["httpx", "httpx2", "requests", "aiohttp"])
def test_a_model_in_the_path_is_given_too(agent: str, server: Server) -> None:
    asked = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}

    async def by_aiohttp(url: str, sent: Any) -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=sent, params={"api-version": "1"}) as got:
            assert (await got.json()) is not None

    def post(url: str, sent: Any) -> None:
        if agent == "aiohttp":
            asyncio.run(by_aiohttp(url, sent))
        else:
            {"httpx": httpx, "httpx2": httpx2, "requests": requests}[agent].post(url, json=sent).raise_for_status()  # type: ignore[attr-defined]

    with track(models={"planner": "m"}, prices=PRICES) as trace:
        post(f"{server.root}/v1beta/models/planner:generateContent?key=SECRET", asked)
    assert [(c.role, c.model) for c in trace.calls] == [("planner", "m")]
    agrees(trace, server)
    with track(models={"planner": "m"}) as trace:
        post(
            f"{server.root}/openai/deployments/planner/chat/completions",
            {"messages": body("", "hi", False)["messages"]},
        )
    assert [(c.role, c.model) for c in trace.calls] == [("planner", "m")]


def test_a_hundred_runs_at_once_never_mix(server: Server) -> None:
    url = f"{server.url}/chat/completions"

    async def run(i: int, session: aiohttp.ClientSession, client: httpx.AsyncClient, sync: httpx.Client) -> Trace:
        async def ask(stream: bool) -> None:
            asked = body("solver", f"item{i}", stream)
            if i % 2:
                async with session.post(url, json=asked) as response:
                    await response.read()
            else:
                await client.post(url, json=asked)

        async with track(f"arm{i % 3}", f"item{i}", prices=PRICES, models={"solver": "mn"[i % 2]}) as trace:
            await asyncio.gather(ask(False), ask(True))
            await asyncio.to_thread(sync.post, url, json=body("solver", f"item{i}", False))
        return trace

    async def main() -> list[Trace]:
        async with aiohttp.ClientSession() as session, httpx.AsyncClient() as client:
            with httpx.Client() as sync:
                return await asyncio.gather(*(run(i, session, client, sync) for i in range(100)))

    traces = asyncio.run(main())
    for i, trace in enumerate(traces):
        assert {(c.arm, c.run, c.model) for c in trace.calls} == {(f"arm{i % 3}", f"item{i}", "mn"[i % 2])}
        assert len(trace.calls) == 3
    assert server.until(lambda: sum(trace.price for trace in traces) == server.bill())


def test_overlapping_tracks_in_threads_put_all_back(server: Server) -> None:
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]
    traces: dict[int, Trace] = {}

    def run(i: int) -> None:
        with track(item=str(i), prices=PRICES) as traces[i]:
            inside.wait(5)
            leave[i].wait(5)
            by_httpx(server.root, "m", "hi")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(5)
    for event, thread in zip(leave, threads):
        event.set()
        thread.join()
    assert [[c.run for c in traces[i].calls] for i in range(2)] == [["0"], ["1"]]


def test_an_inner_track_takes_what_it_does_not_say_from_the_outer_one(server: Server, tmp_path: Path) -> None:
    seen: list[Asked] = []
    with Ledger(tmp_path / "c.db") as ledger:
        with track("a", "q", models={"solver": "m"}, prices=PRICES, ledger=ledger, limit=seen.append) as outer:
            with role("critic"), track(item="q2", limit=seen.append) as inner:
                by_httpx(server.root, "n", "hi")
            with track("b") as second:
                by_httpx(server.root, "solver", "hi")
        assert [(c.arm, c.run, c.role, c.model) for c in outer.calls] == [
            ("a", "q2", "critic", "n"),
            ("b", "q", "solver", "m"),
        ]
    assert (*inner.calls, *second.calls) == outer.calls
    assert len(seen) == 2
    with sqlite3.connect(tmp_path / "c.db") as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (2,)


def test_an_exception_ends_a_track_like_any_other_end(server: Server) -> None:
    def fails() -> None:
        by_httpx(server.root, "m", "hi")
        raise LookupError

    with pytest.raises(LookupError), track(prices=PRICES) as trace:
        fails()
    agrees(trace, server)
    again = track()
    with again:
        pass
    with pytest.raises(Misuse, match="entered before"), again:
        pass


def test_calls_after_the_end_are_not_recorded(server: Server) -> None:
    go = threading.Event()
    with track(prices=PRICES) as outer:
        with track() as trace:
            thread = threading.Thread(target=lambda: (go.wait(5), by_httpx(server.root, "m", "late")))
            thread.start()
        go.set()
        thread.join()
    assert (len(trace.calls), len(outer.calls)) == (0, 1)


def test_a_class_of_the_users_own_is_watched_and_left_alone(server: Server) -> None:
    class Mine(httpx.Client):
        sent = 0

        def send(self, *args: Any, **options: Any) -> httpx.Response:
            self.sent += 1
            return super().send(*args, **options)

    own = Mine.__dict__["send"]
    with track(prices=PRICES) as trace, Mine() as client:
        client.post(f"{server.url}/chat/completions", json=body("m", "hi", False))
        assert Mine.__dict__["send"] is own
    assert client.sent == 1
    agrees(trace, server)


def test_a_limit_may_stop_a_call_before_it_is_sent(server: Server) -> None:
    def limit(asked: Asked) -> None:
        raise PermissionError(f"no more {asked.model}")

    for agent in (by_httpx, ALL["aaiohttp"], ALL["requests"]):
        with pytest.raises(PermissionError, match="no more m"), track(limit=limit) as trace:
            agent(server.root, "m", "hi")
        assert trace.calls == ()
    assert not server.served


def test_the_ledger_has_a_row_for_each_call_and_no_key(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "calls.db"
    with track("a", "q", prices=PRICES, ledger=Ledger(file)) as trace:
        for agent in SYNC.values():
            agent(server.root, "m", "my prompt")
    with sqlite3.connect(file) as db:
        rows = db.execute("SELECT run, arm, node, provider, price_nano FROM calls").fetchall()
        told = "\n".join(db.iterdump())
    assert {row[:4] for row in rows} == {("q", "a", "track", server.root[7:])}
    assert server.until(lambda: sum(row[4] for row in rows) == server.bill() == trace.price)
    assert "SECRET" not in told
    assert "my prompt" not in told
    assert "SECRET" not in repr(trace) + repr(trace.calls)


def test_what_went_out_unseen_is_told(server: Server) -> None:
    import urllib.request

    said = r"arm 'a'.*subprocess python.*playcall track -- command"
    with pytest.warns(UntrackedCalls, match=said) as caught, track("a") as trace:
        subprocess.run([sys.executable, "-c", "'SECRET'"], check=True)
    assert "SECRET" not in str(caught[0].message)
    assert trace.unseen == (f"subprocess {Path(sys.executable).name}",)
    port = f"127.0.0.1:{server.port}"
    with pytest.warns(UntrackedCalls, match=f"connection to {port}"), track() as trace:
        urllib.request.urlopen(f"{server.url}/chat/completions", json.dumps(body("m", "hi", False)).encode())
    assert trace.unseen == (f"connection to {port}",)
    for path, shown in (("/api/sk-SECRET/chat?key=SECRET", "/.../chat"), ("/bot1:SECRET", "")):
        with pytest.warns(UntrackedCalls, match=rf"POST {port}{shown}"), track() as trace:
            httpx.post(f"{server.root}{path}", json={"model": "m", "messages": []})
        assert trace.unseen == (f"POST {port}{shown}",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told() -> None:
    def fork() -> None:
        if not (pid := os.fork()):
            os._exit(0)
        os.waitpid(pid, 0)

    with pytest.warns(UntrackedCalls, match="subprocess fork"), track():
        fork()


def test_a_process_of_multiprocessing_is_told() -> None:
    process = multiprocessing.get_context("spawn").Process(target=int)
    with pytest.warns(UntrackedCalls, match="subprocess of multiprocessing"), track():
        process.start()
    process.join()


def test_a_run_that_calls_nothing_or_whose_calls_are_seen_is_silent(server: Server, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with track():
            asyncio.run(asyncio.sleep(0))
            (tmp_path / "x").write_text("x")
            sqlite3.connect(":memory:").close()
        with track(prices=PRICES) as trace:
            by_httpx(server.root, "m", "hi")
            subprocess.run([sys.executable, "-c", ""], check=True)
    assert trace.unseen


def test_a_client_that_is_imported_inside_a_track_is_watched(server: Server) -> None:
    code = f"""
import sys
from playcall.strategies.trace import facts
from playcall.strategies.track import track
assert not {{"httpx", "httpx2", "aiohttp", "requests"}} & set(sys.modules)
with track(prices={{}}) as trace:
    import httpx, requests
    for client in httpx, requests:
        client.post("{server.url}/chat/completions", json={body("m", "hi", False)!r})
print(len(trace.calls), httpx.Client.send.__module__, requests.Session.send.__module__)
"""
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert got.stdout.split() == ["2", "httpx._client", "requests.sessions"], got.stderr


def test_a_server_that_refuses_to_be_asked_for_usage_is_asked_without(server: Server) -> None:
    class Strict(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            refused = b"stream_options" in self.rfile.read(int(self.headers["content-length"]))
            told = b'{"error": {"message": "unknown field: stream_options"}}'
            piece = b'{"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]}'
            told = told if refused else b"data: " + piece + b"\n\ndata: [DONE]\n\n"
            self.send_response(422 if refused else 200)
            self.send_header("content-type", "application/json" if refused else "text/event-stream")
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Strict) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        root = f"http://127.0.0.1:{http.server_port}"
        for name in ("openai", "httpx", "httpx2", "requests", "ahttpx", "ahttpx2", "aaiohttp"):
            with track(prices=PRICES) as trace:
                assert [ALL[name](root, "m", "hi", True) for _ in range(2)] == ["hello"] * 2
            assert [(call.error, call.heard, call.estimated) for call in trace.calls] == [("", "hello", True)] * 2
        http.shutdown()
    with track() as trace, pytest.raises(aiohttp.ClientResponseError):  # for another reason: nothing changes
        ALL["aaiohttp"](server.root, "m+400", "hi", True)
    assert [call.error for call in trace.calls] == ["bad_request"]
    assert len(server.served) == 1


def test_an_agent_that_is_served_in_this_process_is_tracked(server: Server) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ahttpx(server.root, "m", "asgi")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            await client.post("/run", json={"q": 1})

    def wsgi(environ: Any, start: Any) -> list[bytes]:
        by_httpx(server.root, "m", "wsgi")
        start("200 OK", [])
        return [b"{}"]

    def hook(response: httpx.Response) -> None:
        threads.append(threading.Thread(target=lambda: (go.wait(5), by_httpx(server.root, "m", "thread"))))
        threads[0].start()

    go, threads = threading.Event(), list[threading.Thread]()
    with track(prices=PRICES) as trace:
        asyncio.run(main())
        httpx.Client(transport=httpx.WSGITransport(wsgi)).get("http://app/run")
        httpx.Client(event_hooks={"response": [hook]}).post(
            f"{server.url}/chat/completions", json=body("m", "hook", False)
        )
        go.set()  # the thread lives longer than the call that it began in
        threads[0].join()
    assert [served.prompt for served in server.served] == ["asgi", "wsgi", "hook", "thread"]
    agrees(trace, server)


def test_a_model_that_stands_in_for_another_has_its_own_price(server: Server) -> None:
    def paid(model: str, **prices: Price) -> list[tuple[str, int]]:
        with track(models={"gpt-4o": model}, prices=prices) as trace:
            by_httpx(server.root, "gpt-4o", "hi")
        return [(call.source, call.price) for call in trace.calls]

    dear = Price(100.0, 100.0)
    assert paid("gpt-4o-mini", **{"gpt-4o": dear}) == [("map", 150 + 4 * 600)]
    assert paid("unheard-of", **{"gpt-4o": dear}) == [("user", 500_000)]
    assert paid("m", **{"gpt-4o": dear, "m": PRICES["m"]}) == [("user", 9_000)]


def test_what_has_no_known_price_is_told(server: Server) -> None:
    with track(prices=PRICES) as trace:
        by_httpx(server.root, "m", "hi")
        assert "at least" not in repr(trace)
        by_httpx(server.root, "unheard-of", "hi")
    assert trace.unpriced == 1
    assert "at least" in repr(trace)


def test_an_upload_to_another_path_is_not_read(server: Server) -> None:
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        for _ in range(3):
            read += 1
            yield b"{}"

    class Transport(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.SyncByteStream)
            return httpx.Response(200, json=[read for _ in request.stream])

    with track(), httpx.Client(transport=Transport()) as client:
        assert client.post("http://x/upload", content=pieces()).json() == [1, 2, 3]

    async def main() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(f"{server.url}/chat/completions", content=pieces())

    with track(), pytest.raises(RuntimeError, match="sync request with an AsyncClient"):
        asyncio.run(main())
    asked = iter([json.dumps(body("m", "hi", False)).encode()])
    with track(prices=PRICES) as trace:
        httpx.post(f"{server.url}/chat/completions", content=asked)
    agrees(trace, server)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_swallows_what_a_limit_raises_ends_with_it(kind: type[BaseException], server: Server) -> None:
    asked: list[str] = []

    def limit(call: Asked) -> None:
        asked.append(call.model)
        if len(asked) == 2:
            raise kind("no more")

    def run() -> None:
        with track(limit=limit):
            by_httpx(server.root, "m", "one")
            for _ in range(2):
                with pytest.raises(kind, match="no more"):
                    by_httpx(server.root, "m", "two")

    with pytest.raises(kind, match="no more"):
        run()
    assert len(asked) == 2
    assert len(server.served) == 1

    def fail() -> None:
        with track(limit=limit):
            asked[:] = ["m"]
            with pytest.raises(kind):
                by_httpx(server.root, "m", "two")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize("client", ["httpx", "requests", "aiohttp"])
@pytest.mark.parametrize("encoding", ["zstd", "gzip", "deflate"])
def test_a_body_that_cannot_be_decompressed_is_an_estimate_and_raises_what_it_would(
    encoding: str, client: str, server: Server
) -> None:
    raw = b"\x00\x01 not at all \xff"

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-encoding", encoding)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: object) -> None: ...

    async def of_aiohttp(url: str) -> bytes:
        async with aiohttp.ClientSession() as session, session.post(url, json=body("m", "hi", False)) as response:
            return await response.read()

    def told(url: str) -> object:
        try:
            if client == "aiohttp":
                return asyncio.run(of_aiohttp(url))
            return (httpx if client == "httpx" else requests).post(url, json=body("m", "hi", False)).content
        except Exception as error:
            return type(error)

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/chat/completions"
        expected = told(url)
        with track(prices=PRICES) as trace:
            assert told(url) == expected
        http.shutdown()
    (call,) = trace.calls
    if (client, encoding) != ("aiohttp", "zstd"):  # that one gives no response
        assert (call.estimated, call.price > 0) == (True, True)
    if expected == raw:
        assert call.error == ""


def test_tracks_that_end_in_turns_are_told(server: Server) -> None:
    def agent(name: str) -> Iterator[Trace]:
        with track(name, prices=PRICES) as trace:
            yield trace
            by_httpx(server.root, "m", name)

    one, two = agent("one"), agent("two")
    next(one)
    trace = next(two)
    with pytest.warns(UntrackedCalls, match="arm 'one' ended where it does not hold"):
        list(one)
    list(two)
    assert [call.arm for call in trace.calls] == ["two", "two"]  # it is where they ran that counts
    assert len(server.served) == 2


def test_a_role_decorates_functions_of_both_kinds(server: Server) -> None:
    @role("critic")
    async def aask() -> None:
        await ahttpx(server.root, "m", "hi")

    @role("writer")
    def ask() -> str:
        return by_httpx(server.root, "m", "hi")

    async def main() -> None:
        await asyncio.gather(aask(), aask())

    with track(prices=PRICES) as trace:
        asyncio.run(main())
        assert ask().startswith("the answer")
        by_httpx(server.root, "m", "hi")
    assert [call.role for call in trace.calls] == ["critic", "critic", "writer", "m"]
    with pytest.raises(Misuse, match="inside it"):

        @role("x")
        def steps() -> Iterator[int]:
            yield 1


def test_another_import_finder_is_asked_too() -> None:
    code = """
import sys
from importlib.machinery import PathFinder
from playcall.strategies.track import track
seen = []
class Mine:
    def find_spec(self, name, path=None, target=None):
        seen.append(name)
        return PathFinder.find_spec(name, path, target) if name == "requests" else None
sys.meta_path.insert(0, Mine())
with track():
    import requests
    assert requests.Session.send.__wrapped__
print("requests" in seen, hasattr(requests.Session.send, "__wrapped__"))
"""
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert got.stdout.split() == ["True", "False"], got.stderr


def test_a_thread_that_has_run_is_freed_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        with track():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            gone = weakref.ref(thread)
            del thread
            assert gone() is None
    finally:
        gc.enable()


def test_no_detail_holds_what_a_client_signs_in_with() -> None:
    class Signs(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            request.headers["authorization"] = "Bearer sk-added-later"
            yield request

    def echo(request: httpx.Request) -> httpx.Response:
        told = " ".join([request.headers["authorization"], request.headers["cookie"], request.headers["x-my-token"]])
        return httpx.Response(401, json={"error": {"message": f"unknown: {told}"}})

    given = {"cookies": {"session": "cookie-of-alice"}, "headers": {"x-my-token": "token-of-alice"}}
    with track() as trace, httpx.Client(auth=Signs(), transport=httpx.MockTransport(echo), **given) as client:
        client.post("http://x/v1/chat/completions", json=body("m", "hi", False))
    (call,) = trace.calls
    assert (call.error, call.detail.count("***")) == ("auth", 3)
    assert not any(secret in call.detail for secret in ("sk-added-later", "cookie-of-alice", "token-of-alice"))
