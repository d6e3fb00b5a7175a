"""What goes through the reverse proxy: unchanged to both ends, as it comes, and seen for what it is."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from playcall.strategies.cache import Cache
from playcall.strategies.call import Usage
from playcall.strategies.errors import Misuse
from playcall.strategies.ledger import Ledger
from playcall.strategies.prices import Price
from playcall.strategies.reverse import Reverse
from playcall.strategies.spending import summary
from playcall.strategies.track import track
from playcall.strategies.transport import tls

from ..serving import Server, serve

KEY = "sk-very-secret-key-0123456789"
ONE = Price(1, 2)  # as the server's rate
MESSAGES = [{"role": "user", "content": "one two three"}]


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


def through(
    work: Callable[[Reverse, httpx.AsyncClient], Awaitable[object]], price: Price = ONE, **options: Any
) -> Reverse:
    """Do something with a proxy and a client."""
    proxy = Reverse(prices=dict.fromkeys(("x", "x+hangmid"), price), **options)

    async def run() -> None:
        async with proxy, httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            await work(proxy, client)

    asyncio.run(run())
    return proxy


def body(model: str = "x", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, **more}


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", body()),
    "openai stream": ("/v1/chat/completions", body(stream=True)),
    "openai stream with usage": ("/v1/chat/completions", body(stream=True, stream_options={"include_usage": True})),
    "responses": ("/v1/responses", {"model": "x", "input": "one two three"}),
    "responses stream": ("/v1/responses", {"model": "x", "input": "one two three", "stream": True}),
    "anthropic": ("/v1/messages", body(max_tokens=9)),
    "anthropic stream": ("/v1/messages", body(max_tokens=9, stream=True)),
    "gemini": ("/v1beta/models/x:generateContent", {"contents": [{"role": "user", "parts": [{"text": "one two"}]}]}),
    "gemini stream": (
        "/v1beta/models/x:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "one two"}]}]},
    ),
    "embeddings": ("/v1/embeddings", {"model": "x", "input": "one two three"}),
}


@pytest.mark.parametrize("kind", ASKED)
def test_a_call_brings_what_it_brings_without_the_proxy_and_is_counted_as_the_server_does(kind: str) -> None:
    path, sent = ASKED[kind]
    rate = (1_000_000_000, 2_000_000_000, 500_000_000, 3_000_000_000)
    price = Price(1, 2, cached=0.5, reasoning=3)
    answers: list[httpx.Response] = []
    with serve(answer=lambda _: "four five six", details=lambda _: (2, 1), rate=rate) as server:

        async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
            urls = [url + path for url in (server.root, proxy.url(server.root))]
            answers.extend([await client.post(url, json=sent) for url in urls])

        proxy = through(work, price)
        direct, watched = answers
        texts = [re.sub(r"chatcmpl-\d+", "its id", answer.text) for answer in answers]
        assert (watched.status_code, texts[1]) == (direct.status_code, texts[0])
        assert watched.headers["content-type"] == direct.headers["content-type"]
        (call,), served = proxy.calls, server.served[1]
        assert call.usage == Usage(served.input, served.output, served.cached, served.reasoning)
        assert server.until(lambda: call.price == served.price > 0)
        assert (call.source, call.estimated, call.error) == ("user", False, "")
        assert call.seconds > 0
        assert (call.first_token is not None) == ("stream" in kind)


def test_no_one_without_the_token_gets_through(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        url = proxy.url(server.url)
        port = httpx.URL(url).port
        for path in ("", "/", "/v1/chat/completions", "/~/0/v1/chat/completions", "/~guess/0/v1/chat/completions"):
            answer = await client.post(f"http://127.0.0.1:{port}{path}", json=body())
            assert (answer.status_code, server.served) == (403, [])
        for nowhere in ("7", "https/[x", "https/:80"):
            answer = await client.post(f"{proxy.root}/{nowhere}/v1/chat/completions", json=body())
            assert answer.status_code == 404
        encoded = url.replace("~", "%7E")
        answer = await client.send(client.build_request("POST", f"{encoded}/chat/completions", json=body()))
        assert answer.status_code == 200

    assert len(through(work).calls) == 1


def test_attribution_is_in_the_path_or_in_headers_that_are_not_sent_on(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        url = proxy.url(server.url, item="q/1; two", role="judge")
        await client.post(f"{url}/chat/completions", json=body())
        headers = {"x-playcall-arm": "b", "x-playcall-role": "planner"}
        await client.post(f"{url}/chat/completions", json=body(), headers=headers)
        await client.post(f"{proxy.url(server.url)}/chat/completions", json=body())

    calls = through(work, arm="a", item="i").calls
    assert [(c.arm, c.run, c.role) for c in calls] == [
        ("a", "q/1; two", "judge"),
        ("b", "q/1; two", "planner"),
        ("a", "i", "x"),
    ]
    assert not any(name.startswith("x-playcall") for served in server.served for name in served.headers)


def test_a_role_is_played_by_another_model(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        path, sent = ASKED["gemini"]
        await client.post(f"{proxy.url(server.url)}/chat/completions", json=body("planner"))
        await client.post(f"{proxy.url(server.url, role='solver')}/chat/completions", json=body("x"))
        await client.post(proxy.url(server.root) + path.replace("models/x", "models/planner"), json=sent)

    calls = through(work, models={"planner": "big", "solver": "small"}).calls
    assert [(c.role, c.model) for c in calls] == [("planner", "big"), ("solver", "small"), ("planner", "big")]
    assert [served.model for served in server.served] == ["big", "small", "big"]


def test_headers_of_the_client_go_on_but_those_of_its_connection(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        headers = {"authorization": KEY, "x-mine": "1", "te": "trailers", "connection": "x-hop, close", "x-hop": "1"}
        answer = await client.post(f"{proxy.url(server.url)}/chat/completions", json=body(), headers=headers)
        assert answer.headers["openai-processing-ms"] == "7"

    through(work)
    sent = server.served[0].headers
    assert (sent["authorization"], sent["x-mine"], sent["accept-encoding"]) == (KEY, "1", "identity")
    assert not {"te", "x-hop"} & sent.keys()
    assert sent["host"] == f"127.0.0.1:{server.port}"
    assert sent["user-agent"].startswith("python-httpx")


def test_a_stream_is_passed_on_as_it_comes_and_a_client_that_leaves_cancels_it(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        sent = body("x+hangmid", stream=True)
        async with client.stream("POST", f"{proxy.url(server.url)}/chat/completions", json=sent) as answer:
            async for chunk in answer.aiter_raw():  # the server hangs: it comes while the rest is yet to be sent
                if b"answer" in chunk:
                    break
        await asyncio.to_thread(server.until, server.gone)
        while not proxy.calls:
            await asyncio.sleep(0.001)

    (call,) = through(work).calls
    assert call.cancelled
    assert call.estimated
    assert (call.error, call.price > 0) == ("", True)
    assert server.gone()


def test_an_answer_read_to_its_end_is_not_cancelled_by_the_client_that_leaves_then(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        url = f"{proxy.url(server.url)}/chat/completions"
        async with client.stream("POST", url, json=body(stream=True)) as answer:
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    break

    (call,) = through(work).calls
    assert (call.cancelled, call.estimated, call.error) == (False, False, "")
    assert server.until(lambda: call.price == server.bill())


def test_errors_are_passed_on_and_cost_nothing(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        for fault, status in (("429", 429), ("401", 401), ("500", 500)):
            answer = await client.post(f"{proxy.url(server.url)}/chat/completions", json=body(f"x+{fault}"))
            assert (answer.status_code, answer.json()["error"]["message"]) == (status, f"scripted {fault}")

    calls = through(work).calls
    assert [(c.error, c.price, c.source) for c in calls] == [
        (error, 0, "unbilled") for error in ("rate_limited", "auth", "server")
    ]


def test_a_broken_stream_breaks_for_the_client_too(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        for stream in (True, False):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(f"{proxy.url(server.url)}/chat/completions", json=body("x+cut", stream=stream))

    calls = through(work).calls
    assert [c.error for c in calls] == ["cut", "cut"]


def test_an_upstream_that_is_away_is_a_502_that_clients_retry() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens

        async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
            url = proxy.url(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
            answer = await client.post(f"{url}/chat/completions", json=body())
            assert answer.status_code == 502
            assert "127.0.0.1" in answer.json()["error"]["message"]

        (call,) = through(work).calls
    assert (call.error, call.price, call.source) == ("connection", 0, "unbilled")


@asynccontextmanager
async def site(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server of any kind; its URL."""
    runner = web.ServerRunner(web.Server(answer))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def test_what_is_no_model_call_passes_unseen_and_hosts_may_be_named_by_hand() -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        text = f"{request.method} {request.raw_path} {await request.text()}"
        return web.Response(text=text, status=207, headers={"set-cookie": "a=1"})

    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        async with site(echo) as url:
            base = f"{proxy.root}/{url.replace('://', '/')}"
            answer = await client.get(f"{base}/v1/models?limit=2&after=%2F")
            assert (answer.status_code, answer.text) == (207, "GET /v1/models?limit=2&after=%2F ")
            assert answer.headers["set-cookie"] == "a=1"
            assert (await client.put(f"{base}/role=me/x%20y", content="z")).text == "PUT /x%20y z"
            assert (await client.head(base)).status_code == 207

    proxy = through(work)
    assert (proxy.calls, proxy.others) == ([], 3)


def test_a_compressed_answer_is_read_and_passed_on_in_plain() -> None:
    told = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    told |= {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}

    async def squeezed(request: web.Request) -> web.StreamResponse:
        kind = {"content-encoding": "gzip", "content-type": "application/json"}
        return web.Response(body=gzip.compress(json.dumps(told).encode()), headers=kind)

    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        async with site(squeezed) as url:
            answer = await client.post(f"{proxy.url(url)}/chat/completions", json=body())
            assert answer.json() == told
            assert "content-encoding" not in answer.headers

    (call,) = through(work).calls
    assert call.usage == Usage(3, 1)


@pytest.mark.parametrize("word", ["stream_options", "other"])
def test_a_server_that_refuses_to_be_asked_for_usage_is_asked_as_the_client_did(word: str) -> None:
    asked: list[Any] = []

    async def old(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if "stream_options" in asked[-1]:
            return web.json_response({"error": {"message": f"unknown field {word}"}}, status=400)
        event = {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}
        return web.Response(text=f"data: {json.dumps(event)}\n\n", content_type="text/event-stream")

    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        async with site(old) as url:
            answer = await client.post(f"{proxy.url(url)}/chat/completions", json=body(stream=True))
            assert answer.status_code == (200 if word == "stream_options" else 400)
            assert ("hi" if word == "stream_options" else "unknown field other") in answer.text

    (call,) = through(work).calls
    told = (call.error, call.cancelled, call.estimated, call.heard)
    assert told == (("", False, True, "hi") if word == "stream_options" else ("bad_request", False, False, ""))
    assert asked[-1] == body(stream=True) or len(asked) == 1


def test_large_requests_pass(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        sent = body(messages=[{"role": "user", "content": "word " * 499_999 + "word"}])
        assert (await client.post(f"{proxy.url(server.url)}/chat/completions", json=sent)).status_code == 200

    (call,) = through(work).calls
    assert call.usage is not None
    assert call.usage.input == 500_000


def test_fifty_calls_at_once_are_all_counted(server: Server) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        url = f"{proxy.url(server.url)}/chat/completions"
        await asyncio.gather(*(client.post(url, json=body(stream=bool(i % 2), n_=i)) for i in range(50)))

    calls = through(work).calls
    assert len(calls) == 50
    assert server.until(lambda: sum(c.price for c in calls) == server.bill())


def test_calls_are_entered_in_the_ledger_without_keys(server: Server, tmp_path: Path) -> None:
    async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        await client.post(f"{proxy.url(server.url)}/chat/completions", json=body(), headers=headers)

    path = tmp_path / "calls.db"
    with Ledger(path) as ledger:
        through(work, arm="a", ledger=ledger)
    (row,) = summary(path)
    assert (row.name, row.calls) == ("a", 1)
    assert server.until(lambda: row.total == server.bill())
    assert KEY.encode() not in path.read_bytes()


def test_an_upstream_that_is_no_url_is_refused_without_telling_its_secrets() -> None:
    with pytest.raises(Misuse, match="base URL") as caught:
        Reverse().url(f"ftp://user:{KEY}@host/x")
    assert KEY not in str(caught.value)


def test_a_url_names_its_upstream_and_keeps_the_query_but_no_password() -> None:
    proxy = Reverse()
    assert proxy.url("http://vllm:8000/v1/?api-version=3", role="x") == (
        f"{proxy.root}/http/vllm:8000/role=x/v1?api-version=3"
    )
    assert proxy.url(f"https://user:{KEY}@host/v1") == f"{proxy.root}/0/v1"
    assert Reverse(models={"x": "big"}).root.endswith(".")  # a client's cache cannot know who answers there


def test_an_answer_that_a_client_has_cached_is_found_through_the_next_proxy(server: Server, tmp_path: Path) -> None:
    def ran(**options: Any) -> Reverse:
        async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
            with track(cache=Cache(tmp_path / "cache.db")):
                await client.post(f"{proxy.url(server.url)}/chat/completions", json=body())

        return through(work, **options)

    assert [len(ran().calls) for _ in range(2)] == [1, 0]
    assert [len(ran(models={"x": name}).calls) for name in ("big", "small")] == [1, 1]


def test_of_an_upstream_that_signs_itself_is_told_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (openssl := shutil.which("openssl")):
        pytest.skip("needs openssl to make a certificate")
    key, certificate = str(tmp_path / "key"), str(tmp_path / "certificate")
    how = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x -addext"
    command = [openssl, *how.split(), "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    answers: list[httpx.Response] = []
    with serve(tls=context) as server:

        async def work(proxy: Reverse, client: httpx.AsyncClient) -> None:
            url = proxy.url(f"https://127.0.0.1:{server.port}/v1")
            answers.append(await client.post(f"{url}/chat/completions", json=body()))

        through(work)
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        tls.cache_clear()
        through(work)
        tls.cache_clear()
    assert [answer.status_code for answer in answers] == [502, 200]
    assert "SSL_CERT_FILE" in answers[0].json()["error"]["message"]
