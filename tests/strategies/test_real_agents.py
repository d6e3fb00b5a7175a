"""Agents of real clients and frameworks, unchanged, are tracked to the token and the nano-dollar."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from playcall.strategies.cache import Cache
from playcall.strategies.track import role, track

from ..serving import Server
from .agent_books import PRICES, QUESTION, Books, agree, looping, needed, offline, run, scripted
from .client_agents import AGENTS, anthropic, aopenai, openai, user

ASYNC = [name for name, known in AGENTS.items() if inspect.iscoroutinefunction(known.run)]


@pytest.fixture(scope="module", autouse=True)
def no_network() -> Iterator[None]:
    with offline():
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with scripted() as made:
        yield made


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with looping() as made:
        yield made


@pytest.fixture(scope="module")
def zipping() -> Iterator[Server]:
    with scripted("gzip") as made:
        yield made


@pytest.mark.parametrize("name", AGENTS)
def test_an_unchanged_agent_is_tracked_as_its_server_counts(
    name: str, server: Server, loop: asyncio.AbstractEventLoop
) -> None:
    known = AGENTS[name]
    needed(known)
    books = Books(server)
    without = run(known, server, loop)
    asked = books.rows()
    assert sum(asked.values()) == known.calls
    books = Books(server)
    with track(arm="here", item="q1", prices=PRICES) as trace:
        answer = run(known, server, loop)
    assert answer == without
    assert len(trace.calls) == known.calls
    assert books.rows() == asked  # the same as without
    agree(trace, books)
    assert {(c.arm, c.run, c.node) for c in trace.calls} == {("here", "q1", "track")}
    assert all(c.role == c.model for c in trace.calls)
    last = trace.calls[-1]
    assert (last.first_token is not None) == last.stream


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_agent_is_tracked_from_inside_its_loop(
    name: str, server: Server, loop: asyncio.AbstractEventLoop
) -> None:
    known, books = AGENTS[name], Books(server)
    needed(known)

    async def tracked() -> Any:
        async with track(arm="here", item="q1", prices=PRICES) as trace:
            await known.run(server.root, QUESTION)
        return trace

    trace = loop.run_until_complete(tracked())
    assert len(trace.calls) == known.calls
    agree(trace, books)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_that_runs_again_is_answered_from_the_cache(
    name: str, zipping: Server, loop: asyncio.AbstractEventLoop
) -> None:
    known, cache, books = AGENTS[name], Cache(), Books(zipping)
    needed(known)
    with track(arm="here", item="q1", prices=PRICES, cache=cache) as first:
        fresh = run(known, zipping, loop)
    agree(first, books)
    books = Books(zipping)
    with track(arm="here", item="q1", prices=PRICES, cache=cache) as second:
        assert run(known, zipping, loop) == fresh
    assert books.served == []
    assert (second.price, sum(call.saved for call in second.calls)) == (0, first.price)
    assert all(call.cached for call in second.calls)
    assert Counter(call.usage for call in second.calls) == Counter(call.usage for call in first.calls)
    assert not second.unseen
    cache.close()


SPOKEN = [
    "openai_chat",
    "openai_chat_stream",
    "openai_responses",
    "openai_embeddings",
    "anthropic_stream_helper",
    "httpx_gemini",
    "httpx_gemini_stream",
    "requests_chat",
    "aiohttp_stream",
    "litellm_openai_whole_async",
    "litellm_gemini_whole",
    "pydantic_ai_anthropic_run_stream",
    "thread_pool",
]


@pytest.mark.parametrize("name", SPOKEN)
def test_another_model_answers_in_every_dialect(name: str, server: Server, loop: asyncio.AbstractEventLoop) -> None:
    known, books = AGENTS[name], Books(server)
    needed(known)
    with track(arm="here", item="q1", models={"m": "a"}, prices=PRICES) as trace:
        run(known, server, loop)
    assert books.models == ["a"] * known.calls
    assert {(call.role, call.model) for call in trace.calls} == {("m", "a")}
    agree(trace, books)


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_a_stream_that_the_agent_leaves_is_estimated_by_what_it_heard(vendor: str, server: Server) -> None:
    pytest.importorskip(vendor)
    question: Any = user("many " * 50)
    with track(arm="here", item="q1", prices=PRICES) as trace:
        if vendor == "openai":
            with openai(server.root) as client:
                left = client.chat.completions.create(model="m", messages=question, stream=True)
                next(iter(left))
                left.close()
        else:
            with anthropic(server.root) as client:
                left = client.messages.create(model="m", max_tokens=9, messages=question, stream=True)
                next(iter(left))
                left.close()
    (call,) = trace.calls
    assert (call.error, call.cancelled, call.estimated, call.source) == ("", True, True, "user")
    assert call.price > 0


def test_roles_named_inside_threads_and_tasks_stay_apart(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    pytest.importorskip("openai")
    client, aclient = openai(server.root), aopenai(server.root)

    def sync(name: str) -> None:
        with role(name):
            client.chat.completions.create(model="m", messages=user(name))

    async def one(name: str) -> None:
        with role(name):
            await aclient.chat.completions.create(model="m", messages=user(name))

    async def all_() -> None:
        async with aclient:
            await asyncio.gather(*map(one, "abc"))
            await asyncio.to_thread(sync, "d")

    books = Books(server)
    with ThreadPoolExecutor(3) as pool, client:
        pool.submit(int).result()  # its first thread is older than the track
        with track(arm="here", item="q1", models={"b": "a"}, prices=PRICES) as trace:
            list(pool.map(sync, "abc"))
            loop.run_until_complete(all_())
    assert Counter((call.role, call.model) for call in trace.calls) == {
        ("a", "m"): 2,
        ("b", "a"): 2,
        ("c", "m"): 2,
        ("d", "m"): 1,
    }
    agree(trace, books)


def test_nothing_is_recorded_once_the_track_is_closed(server: Server) -> None:
    pytest.importorskip("openai")
    with openai(server.root) as client:
        with track(arm="here", item="q1", prices=PRICES) as trace:
            client.chat.completions.create(model="m", messages=user("one"))
        client.chat.completions.create(model="m", messages=user("two"))
        assert len(trace.calls) == 1


def test_a_client_made_before_the_track_and_used_in_two_is_counted_in_each(server: Server) -> None:
    pytest.importorskip("openai")
    with openai(server.root) as client:
        for item in ("q1", "q2"):
            books = Books(server)
            with track(arm="here", item=item, prices=PRICES) as trace:
                client.chat.completions.create(model="m", messages=user(item))
            agree(trace, books)
            assert [call.run for call in trace.calls] == [item]


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_a_try_that_the_client_repeats_is_a_call_of_its_own_and_free(vendor: str, server: Server) -> None:
    pytest.importorskip(vendor)
    client = (openai if vendor == "openai" else anthropic)(server.root).with_options(max_retries=2)
    question: Any = user(f"once more, {vendor}")
    books = Books(server)
    with pytest.MonkeyPatch.context() as patch, client:
        patch.setattr(server, "fault", lambda body: "503:2")
        patch.setattr(server, "retry_after", "0.001")
        with track(arm="here", item="q1", prices=PRICES) as trace:
            if vendor == "openai":
                client.chat.completions.create(model="m", messages=question)
            else:
                client.messages.create(model="m", max_tokens=9, messages=question)
    assert server.until(lambda: books.served[-1].price)
    assert [s.status for s in books.served] == [503, 503, 200]
    assert [(c.error, c.price, c.source) for c in trace.calls[:2]] == [("server", 0, "unbilled")] * 2
    assert trace.calls[2].error == ""
    assert trace.price == trace.calls[2].price == books.served[2].price > 0


def test_the_vendors_clients_report_what_the_server_counts(server: Server) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    books, question = Books(server), user(QUESTION)
    with openai(server.root) as client:
        chat = client.chat.completions.create(model="m", messages=question).usage
        answer = client.responses.create(model="m", input=QUESTION).usage
    with anthropic(server.root) as client:
        message = client.messages.create(model="m", max_tokens=9, messages=question).usage
    (served,) = {(s.input, s.output, s.cached, s.reasoning) for s in books.served}
    cached, reasoning = chat.prompt_tokens_details.cached_tokens, chat.completion_tokens_details.reasoning_tokens
    assert (chat.prompt_tokens, chat.completion_tokens, cached, reasoning) == served
    cached, reasoning = answer.input_tokens_details.cached_tokens, answer.output_tokens_details.reasoning_tokens
    assert (answer.input_tokens, answer.output_tokens, cached, reasoning) == served
    cached, reasoning = message.cache_read_input_tokens, message.output_tokens_details.thinking_tokens
    assert (message.input_tokens + cached, message.output_tokens, cached, reasoning) == served
    assert min(served) > 0


def test_an_agent_in_another_context_is_not_recorded(server: Server) -> None:
    pytest.importorskip("openai")
    outside = contextvars.copy_context()
    with track(arm="here", item="q1", prices=PRICES) as trace:
        outside.run(AGENTS["openai_chat"].run, server.root, QUESTION)
    assert trace.calls == ()
