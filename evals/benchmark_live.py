"""How fast live calls are: python -m playcall.evals.benchmark_live [--json] [--seconds 4] [--concurrency 50,200].

One local server, in a process of its own, answers after 20 ms. Two scenarios: a single call, and best of 8 that stops
at the third equal answer and cancels the rest (5 of the 8 would take 60 ms). playcall keeps its ledger on disk and
knows its prices; its best of 8 is a strategy, that of the others is asyncio.wait by hand. Clients take turns in short
rounds, so that a noisy machine hits all alike; a ratio is the median of those of the rounds. `at once` counts single
calls or whole best-of-8 runs; `decided` is from the deciding answer to the result.

Targets: playcall at least 0.50 of bare aiohttp and 5 times the openai client, at most 0.4 ms of CPU a call above bare
aiohttp, decided within 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from playcall.strategies import Agree, Ask, Gather, Strategy, Vote
from playcall.strategies.arm import Arm
from playcall.strategies.call import Answer, Call
from playcall.strategies.ledger import Ledger
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

DELAYS = {"fast": 0.020, "slow": 0.060}  # seconds, by model
QUORUM, DRAWS = 3, 8
MODELS = ("fast",) * QUORUM + ("slow",) * (DRAWS - QUORUM)
ROUNDS = 8
BODY = b"""{"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fast",
 "choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}],
 "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}}"""

One = Callable[[str, str], Awaitable[str]]
"""(model, task) -> its answer."""
Play = Callable[[str], Awaitable[float]]
"""One run on a task -> seconds from the deciding answer to the result."""
Client = Callable[[str], AbstractAsyncContextManager[Mapping[str, Play]]]
"""The server's base_url -> how it plays each scenario."""


# --- the server -------------------------------------------------------------------------------


class Answering(asyncio.Protocol):
    """Keep-alive HTTP, one request at a time, always the same answer."""

    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.data, self.later = transport, b"", asyncio.get_running_loop().call_later
        self.timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            slow, self.data = b'"slow"' in body, b""
            self.timer = self.later(DELAYS["slow" if slow else "fast"], self.transport.write, self.reply)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer:
            self.timer.cancel()


def serve(parent: Connection) -> None:
    """Tell the parent the port, and answer until it goes."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=4096)
        gone = asyncio.Event()
        loop.add_reader(parent.fileno(), gone.set)
        parent.send(server.sockets[0].getsockname()[1])
        await gone.wait()

    asyncio.run(run())


@contextmanager
def serving() -> Iterator[str]:
    """The base_url of a server of our own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        ours.close()
        process.join()


# --- the clients ------------------------------------------------------------------------------


def by_hand(one: One) -> Mapping[str, Play]:
    """Both scenarios of a client that makes one call."""

    async def timed(model: str, task: str) -> tuple[str, float]:
        return await one(model, task), perf_counter()

    async def single(task: str) -> float:
        _, moment = await timed("fast", task)
        return perf_counter() - moment

    async def best_of_8(task: str) -> float:
        votes: Counter[str] = Counter()
        flying = {asyncio.create_task(timed(model, task)) for model in MODELS}
        moment = 0.0
        while flying and max(votes.values(), default=0) < QUORUM:
            done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                answer, moment = call.result()
                votes[answer] += 1
        for call in flying:
            call.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
        return perf_counter() - moment

    return {"single": single, "best_of_8": best_of_8}


def asked(model: str, task: str) -> dict[str, Any]:
    """The body of a request."""
    return {"model": model, "messages": [{"role": "user", "content": task}]}


def read(body: Any) -> str:
    """The answer in a body; its usage must be there."""
    assert body["usage"]["completion_tokens"] == 1
    return str(body["choices"][0]["message"]["content"])


@asynccontextmanager
async def bare_aiohttp(url: str) -> AsyncIterator[Mapping[str, Play]]:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(model: str, task: str) -> str:
            async with session.post(f"{url}/chat/completions", json=asked(model, task)) as response:
                return read(await response.json())

        yield by_hand(one)


@asynccontextmanager
async def bare_httpx(url: str) -> AsyncIterator[Mapping[str, Play]]:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60.0) as client:

        async def one(model: str, task: str) -> str:
            return read((await client.post(f"{url}/chat/completions", json=asked(model, task))).json())

        yield by_hand(one)


@asynccontextmanager
async def openai_client(url: str) -> AsyncIterator[Mapping[str, Play]]:
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def one(model: str, task: str) -> str:
            return read((await client.chat.completions.create(**asked(model, task))).model_dump())

        yield by_hand(one)


@asynccontextmanager
async def litellm_router(url: str) -> AsyncIterator[Mapping[str, Play]]:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
    from litellm.router import Router

    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)

    def deployed(model: str) -> Any:
        return {"model_name": model, "litellm_params": {"model": f"openai/{model}", "api_base": url, "api_key": "none"}}

    router = Router(model_list=[deployed(model) for model in DELAYS], num_retries=0)

    async def one(model: str, task: str) -> str:
        return read((await router.acompletion(**asked(model, task))).model_dump())

    yield by_hand(one)


@dataclass
class Stamped:
    """An endpoint that notes when answers came, by run."""

    endpoint: OpenAICompatible
    came: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.name, self.tenant = self.endpoint.name, self.endpoint.tenant

    async def __call__(self, call: Call) -> Answer:
        answer = await self.endpoint(call)
        self.came[call.run].append(perf_counter())
        return answer


@asynccontextmanager
async def playcall(url: str) -> AsyncIterator[Mapping[str, Play]]:
    endpoint = Stamped(OpenAICompatible(url))
    arms = {model: Arm(endpoint, model, price=Price(2.5, 10.0), stream=False) for model in DELAYS}
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.db") as ledger:

        def plays(strategy: Strategy, quorum: int) -> Play:
            runner = Runner(strategy, arms, ledger=ledger)

            async def play(task: str) -> float:
                result = await runner.run(task)
                took = perf_counter() - endpoint.came.pop(result.attempts[0].run.id)[quorum - 1]
                assert result.output == "42"
                assert result.cost >= quorum * 40_000  # nano-dollars
                return took

            return play

        best_of_8 = Gather(tuple(map(Ask, MODELS)), Agree(QUORUM)).keep(Vote())
        yield {"single": plays(Ask("fast"), 1), "best_of_8": plays(best_of_8, QUORUM)}


CLIENTS: dict[str, tuple[Client, str]] = {  # and the package that it needs
    "playcall": (playcall, "aiohttp"),
    "aiohttp": (bare_aiohttp, "aiohttp"),
    "httpx": (bare_httpx, "httpx"),
    "openai": (openai_client, "openai"),
    "litellm_router": (litellm_router, "litellm"),
}


# --- measuring --------------------------------------------------------------------------------


@dataclass
class Round:
    """What one client did in one turn."""

    seconds: float
    cpu: float  # seconds of this process, all threads
    latencies: list[float]  # seconds of each run
    decided: list[float]

    @property
    def pace(self) -> float:
        """Runs a second."""
        return len(self.latencies) / self.seconds


async def turn(play: Play, concurrency: int, seconds: float) -> Round:
    """So many workers, for so long, each until its last run has ended."""
    latencies, decided = list[float](), list[float]()
    cpu, began = process_time(), perf_counter()

    async def work(name: int) -> None:
        while (start := perf_counter()) < began + seconds:
            decided.append(await play(f"task {name}.{len(decided)}"))
            latencies.append(perf_counter() - start)

    await asyncio.gather(*map(work, range(concurrency)))
    return Round(perf_counter() - began, process_time() - cpu, latencies, decided)


async def measure(url: str, names: Sequence[str], concurrencies: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """The rows of the table."""
    rows = []
    async with AsyncExitStack() as stack:
        plays = {name: await stack.enter_async_context(CLIENTS[name][0](url)) for name in names}
        gc.freeze()  # no client pays for collecting among what the others imported
        stack.callback(gc.unfreeze)
        for scenario, calls in (("single", 1), ("best_of_8", DRAWS)):
            for concurrency in concurrencies:
                rounds: dict[str, list[Round]] = {name: [] for name in names}
                for name in names:
                    await turn(plays[name][scenario], min(concurrency, 8), 0.0)
                    await turn(plays[name][scenario], concurrency, seconds / ROUNDS)  # opens the connections
                for _ in range(ROUNDS):
                    for name in names:
                        if sum(r.seconds for r in rounds[name]) < seconds:  # a slow client has fewer rounds
                            rounds[name].append(await turn(plays[name][scenario], concurrency, seconds / ROUNDS))
                rows += [row(scenario, name, concurrency, calls, rounds) for name in names]
    return rows


def row(scenario: str, name: str, concurrency: int, calls: int, rounds: Mapping[str, list[Round]]) -> dict[str, Any]:
    """Figures of one client; those a call count what was asked, cancelled ones too."""
    ours = rounds[name]
    runs = sum(len(r.latencies) for r in ours)
    ratios = [mine.pace / theirs.pace for mine, theirs in zip(ours, rounds.get("aiohttp", ()))]
    wait = 1e3 * np.concatenate([r.decided for r in ours])
    return {
        "scenario": scenario,
        "client": name,
        "concurrency": concurrency,
        "calls_per_s": calls * runs / sum(r.seconds for r in ours),
        "p50_ms": 1e3 * float(np.median(np.concatenate([r.latencies for r in ours]))),
        "cpu_ms_per_call": 1e3 * sum(r.cpu for r in ours) / (calls * runs),
        "ratio_to_aiohttp": float(np.median(ratios)) if ratios else None,
        "decided_p50_ms": float(np.median(wait)),
        "decided_p99_ms": float(np.quantile(wait, 0.99)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each client, scenario and concurrency")
    parser.add_argument("--concurrency", default="50,200")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    told = parser.parse_args(arguments)
    names = [name for name in told.clients if find_spec(CLIENTS[name][1])]
    for name in set(told.clients) - set(names):
        print(f"skipped {name}: {CLIENTS[name][1]} is not installed", file=sys.stderr)
    with serving() as url:
        rows = asyncio.run(measure(url, names, [int(n) for n in told.concurrency.split(",")], told.seconds))
    if told.json:
        print(json.dumps(rows, indent=2))
        return
    print("scenario   client          at once  calls/s  p50 ms  CPU ms/call  of aiohttp  decided ms p50      p99")
    for r in rows:
        ratio = "" if r["ratio_to_aiohttp"] is None else f"{r['ratio_to_aiohttp']:.2f}"
        print(
            f"{r['scenario']:11}{r['client']:16}{r['concurrency']:7}{r['calls_per_s']:9,.0f}{r['p50_ms']:8.1f}"
            f"{r['cpu_ms_per_call']:13.3f}{ratio:>12}{r['decided_p50_ms']:16.2f}{r['decided_p99_ms']:9.2f}"
        )


if __name__ == "__main__":
    main()
