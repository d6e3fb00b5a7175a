"""A LangGraph agent, unchanged: its roles are told apart, other models fill them, and runs never mix."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from playcall.strategies.trace import facts
from playcall.strategies.track import track

from ..serving import Server
from . import framework_agents as framework
from .agent_books import PLANNER, PRICES, QUESTION, SOLVER, Books, agree, looping, needed, offline, rows, run, scripted
from .client_agents import AGENTS

OTHERS = {PLANNER: "a", SOLVER: "b"}


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


@pytest.fixture
def graph(server: Server) -> Any:
    pytest.importorskip("langgraph")
    pytest.importorskip("langchain_openai")
    return framework.graph(server.root)


def test_langgraphs_roles_are_its_models_names(server: Server, graph: Any) -> None:
    with track(arm="here", item="q1", prices=PRICES) as trace:
        graph.invoke(framework.ask(QUESTION))
    assert [call.role for call in trace.calls] == [PLANNER, SOLVER, SOLVER]
    found = facts([trace], roles=(PLANNER, SOLVER))
    assert {role: (known.called_share, known.calls) for role, known in found.roles.items()} == {
        PLANNER: (1.0, 1),
        SOLVER: (1.0, 2),
    }
    assert found.warnings == ()


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream"])
def test_other_models_fill_langgraphs_roles(
    server: Server, graph: Any, loop: asyncio.AbstractEventLoop, way: str
) -> None:
    before = [message.content for message in graph.invoke(framework.ask(QUESTION))["messages"]]
    books = Books(server)

    async def tokens() -> list[Any]:
        return [part async for part in graph.astream(framework.ask(QUESTION), stream_mode="values")]

    with track(arm="here", item="q1", models=OTHERS, prices=PRICES) as trace:
        match way:
            case "invoke":
                after = graph.invoke(framework.ask(QUESTION))
            case "stream":
                after = list(graph.stream(framework.ask(QUESTION), stream_mode="values"))[-1]
            case "ainvoke":
                after = loop.run_until_complete(graph.ainvoke(framework.ask(QUESTION)))
            case _:
                after = loop.run_until_complete(tokens())[-1]
    assert books.models == ["a", "b", "b"]
    assert [(c.role, c.model) for c in trace.calls] == [(PLANNER, "a"), (SOLVER, "b"), (SOLVER, "b")]
    assert [message.content for message in after["messages"]] == before
    agree(trace, books)


def test_a_substituted_model_streams_its_tokens(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    known = AGENTS["langgraph_stream_tokens"]
    needed(known)
    before, books = run(known, server, loop), Books(server)
    with track(arm="here", item="q1", models=OTHERS, prices=PRICES) as trace:
        assert run(known, server, loop) == before
    assert books.models == ["a", "b", "b"]
    assert all(call.first_token is not None for call in trace.calls[:1])
    agree(trace, books)


def test_a_planner_that_answers_alone_is_told_of(server: Server, graph: Any) -> None:
    questions = ["easy one", "easy two", QUESTION]
    traces = []
    for i, question in enumerate(questions):
        with track(arm="here", item=f"q{i}", models=OTHERS, prices=PRICES) as trace:
            graph.invoke(framework.ask(question))
        traces.append(trace)
    alone = facts(traces[:2])
    assert list(alone.roles) == [PLANNER]
    assert any(SOLVER in warning and "none of 2 runs" in warning for warning in alone.warnings)
    rarely = facts(traces)
    assert rarely.roles[SOLVER].called_share == pytest.approx(1 / 3)
    assert any(SOLVER in warning and "1 of 3 runs" in warning for warning in rarely.warnings)


def asked_of(i: int) -> str:
    return f"question {i} of five" + i * " with more words"


def test_concurrent_langgraph_runs_never_mix(server: Server, graph: Any, loop: asyncio.AbstractEventLoop) -> None:
    books = Books(server)

    async def one(i: int) -> Any:
        with track(arm=f"arm{i}", item=f"q{i}", prices=PRICES) as trace:
            await graph.ainvoke(framework.ask(asked_of(i)))
        return trace

    async def all_() -> list[Any]:
        return await asyncio.gather(*(one(i) for i in range(5)))

    traces = loop.run_until_complete(all_())
    assert sum(books.rows().values()) == 15
    for i, trace in enumerate(traces):
        assert {(c.arm, c.run) for c in trace.calls} == {(f"arm{i}", f"q{i}")}
        assert rows(trace) == books.rows(asked_of(i))


def test_langgraph_runs_in_threads_never_mix(server: Server, graph: Any) -> None:
    books = Books(server)

    def one(i: int) -> Any:
        with track(arm=f"arm{i}", item=f"q{i}", prices=PRICES) as trace:
            graph.invoke(framework.ask(asked_of(i)))
        return trace

    with ThreadPoolExecutor(5) as pool:
        traces = list(pool.map(one, range(5)))
    assert sum(books.rows().values()) == 15
    for i, trace in enumerate(traces):
        assert {(c.arm, c.run) for c in trace.calls} == {(f"arm{i}", f"q{i}")}
        assert rows(trace) == books.rows(asked_of(i))


def test_parallel_branches_of_two_runs_stay_with_their_items(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    pytest.importorskip("langgraph")
    pytest.importorskip("langchain_openai")
    books, fan = Books(server), framework.fan(server.root)

    async def one(i: int) -> Any:
        async with track(arm="here", item=f"q{i}", prices=PRICES) as trace:
            await fan.ainvoke(framework.ask(asked_of(i)))
        return trace

    async def both() -> list[Any]:
        return await asyncio.gather(one(0), one(1))

    for i, trace in enumerate(loop.run_until_complete(both())):
        assert Counter(call.role for call in trace.calls) == {PLANNER: 1, SOLVER: 3}
        assert rows(trace) == books.rows(asked_of(i))
