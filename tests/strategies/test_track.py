"""Every model call that an agent makes is recorded, with the server's own count, and nothing else is changed."""

from __future__ import annotations

import asyncio
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
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
        with track(limit=limit) as trace, pytest.raises(PermissionError, match="no more m"):
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
    with pytest.warns(UntrackedCalls, match=rf"POST {port}/api/chat"), track() as trace:
        httpx.post(f"{server.root}/api/chat?key=SECRET", json={"model": "m", "messages": []})
    assert trace.unseen == (f"POST {port}/api/chat",)


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
