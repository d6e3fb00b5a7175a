"""What tests of tracked agents share: a scripted server with its books, an event loop, and no network."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from playcall.strategies.prices import Price
from playcall.strategies.track import Trace

from ..serving import Body, Served, Server, serve
from .client_agents import Known
from .framework_agents import call

PRICE = Price(input=1, output=2, cached=0.25, reasoning=4)
RATE = (1_000_000_000, 2_000_000_000, 250_000_000, 4_000_000_000)  # the same in nano-dollars
PLANNER, SOLVER = "planner-model", "solver-model"
PRICES = dict.fromkeys(("m", PLANNER, SOLVER, "a", "b"), PRICE)
QUESTION = "add one and two"


def script(body: Body) -> str | Body:
    """Plans, calls the tool once where there is one, and else says the last message again."""
    first, last = body["messages"][0], body["messages"][-1]
    said = str(last["content"])
    if body.get("response_format") or "schema" in (body.get("text") or {}).get("format", {}):
        return '{"n": 3}'
    if first["content"] == "You plan.":
        return f"done: {said}" if said.startswith("easy") else f"the plan is to {said}"
    if last["role"] == "tool":
        return f"so it is {said}"
    if body.get("tools"):
        return {"tool_calls": [call("add", {"a": 1, "b": 2})]}
    return f"fine: {said}"


def details(body: Body) -> tuple[int, int]:
    """Cached and reasoning tokens, which differ by request."""
    size = len(json.dumps(body["messages"]))
    return size % 5, size % 7


@contextmanager
def scripted(fault: str = "") -> Iterator[Server]:
    with serve(answer=script, details=details, rate=RATE, fault=lambda body: fault) as server:
        yield server


@contextmanager
def offline() -> Iterator[None]:
    """Nothing may look up another host than this one: no package reports home."""
    asked: list[str] = []
    lookup = socket.getaddrinfo

    def local(host: Any, *args: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1", "localhost"):
            asked.append(str(host))
            raise socket.gaierror(socket.EAI_NONAME, "no network in tests")
        return lookup(host, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "LANGCHAIN_TRACING"):
            patch.setenv(name, "false")
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ALL_PROXY", "HTTP_PROXY", "http_proxy", "all_proxy"):
            patch.delenv(name, raising=False)
        patch.setattr(socket, "getaddrinfo", local)
        yield
    assert asked == []


@contextmanager
def looping() -> Iterator[asyncio.AbstractEventLoop]:
    """One event loop for all tests, since litellm and langchain keep their clients."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    for task in (left := asyncio.all_tasks(loop)):  # litellm's worker waits for ever
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    asyncio.set_event_loop(None)
    loop.close()


class Books:
    """What the server served from here on."""

    def __init__(self, server: Server) -> None:
        self.server, self.first = server, len(server.served)

    @property
    def served(self) -> list[Served]:
        return self.server.served[self.first :]

    @property
    def models(self) -> list[str]:
        return [s.model for s in self.served]

    def rows(self, said: str = "") -> Counter[tuple[object, ...]]:
        """Of each call, or of each whose messages hold a text: model, tokens, and price."""
        assert self.server.until(lambda: all(s.finished and s.price for s in self.served))
        found = [s for s in self.served if said in json.dumps(s.chat["messages"])]
        return Counter((s.model, s.input, s.output, s.cached, s.reasoning, s.price) for s in found)


def rows(trace: Trace) -> Counter[tuple[object, ...]]:
    """The same of a trace's calls, each of which must be whole."""
    found: Counter[tuple[object, ...]] = Counter()
    for made in trace.calls:
        used = made.usage
        assert used is not None
        assert (made.error, made.cancelled, made.cached, made.estimated, made.source) == (
            "",
            False,
            False,
            False,
            "user",
        )
        assert made.seconds > 0
        found[made.model, used.input, used.output, used.cached, used.reasoning, made.price] += 1
    return found


def agree(trace: Trace, books: Books) -> None:
    """The trace says what the server's own books say."""
    assert rows(trace) == books.rows()
    assert trace.price == sum(s.price for s in books.served) > 0
    assert trace.usd == pytest.approx(trace.price / 1e9)
    for name in ("input", "output", "cached", "reasoning"):
        assert getattr(trace.usage, name) == sum(getattr(s, name) for s in books.served)
    assert not trace.unseen
    assert trace.seconds > 0


def needed(known: Known) -> None:
    for name in known.needs:
        pytest.importorskip(name)


def run(known: Known, server: Server, loop: asyncio.AbstractEventLoop, question: str = QUESTION) -> Any:
    """An agent to its end."""
    made = known.run(server.root, question)
    return loop.run_until_complete(made) if inspect.isawaitable(made) else made
