"""LiteLLM: the same answers, tokens and failures as over HTTP itself, once it is asked for and not before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage
from playcall.strategies.errors import Misuse
from playcall.strategies.vendors import LiteLLM

from ..serving import Server, serve

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own are many
KEY = "sk-very-secret-key-0123456789"
streams = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@pytest.fixture
def server() -> Iterator[Server]:
    if find_spec("litellm") is None:
        pytest.skip("litellm is not installed")
    with serve() as running:
        yield running


def call(model: str = "x", **known: Any) -> Call:
    request = {"model": f"openai/{model}", "messages": [{"role": "user", "content": "one two three"}]}
    return Call("arm", model, None, None, 0, request, **{"timeout": 5.0, **known})


def ask(server: Server, one: Call) -> Answer:
    return anyio.run(LiteLLM(api_base=server.url, api_key=KEY), one)


@streams
def test_an_answer_comes_with_its_tokens_and_its_score(stream: bool, server: Server) -> None:
    told: list[str] = []
    one = call(stream=stream, confidence="mean_logprob", headers={"X-Run": "7"}, listen=told.append if stream else None)
    answer = ask(server, one)
    assert answer.text == answer.output
    assert answer.text.startswith("the answer is")
    assert "".join(told) == (answer.text if stream else "")
    assert one.heard == answer.text
    assert one.usage == Usage(3, 4)
    assert answer.score <= 0
    assert isinstance(one.response, dict)
    assert server.served[0].headers["x-run"] == "7"


@streams
@pytest.mark.parametrize(
    ("model", "failure"),
    [
        ("x+401", Failure.AUTH),
        ("x+404", Failure.NOT_FOUND),
        ("x+400", Failure.REQUEST),
        ("x+429", Failure.RATE),
        ("x+quota", Failure.QUOTA),
        ("x+500", Failure.SERVER),
        ("x+length", Failure.TRUNCATED),
        ("x+filter", Failure.REFUSED),
        ("x+empty", Failure.EMPTY),
    ],
)
def test_failures_are_told_apart_and_tried_once(stream: bool, model: str, failure: Failure, server: Server) -> None:
    with pytest.raises(CallFailed) as caught:
        ask(server, call(model, stream=stream))
    assert caught.value.failure is failure
    assert KEY not in str(caught.value)
    assert len(server.served) == 1
    assert caught.value.retry_after == (0 if "429" in model or "quota" in model else None)


def test_a_stream_that_is_cut_is_known_to_be(server: Server) -> None:
    one = call("x+cut", stream=True)
    with pytest.raises(CallFailed) as caught:
        ask(server, one)
    assert caught.value.failure is Failure.CUT
    assert one.heard == "the answer "


@streams
def test_a_try_ends_at_its_time_limit_and_so_does_its_connection(stream: bool, server: Server) -> None:
    with pytest.raises(CallFailed) as caught:
        ask(server, call("x+hangmid" if stream else "x+hang", stream=stream, timeout=0.05))
    assert caught.value.failure is Failure.TIMEOUT
    assert server.until(server.gone)


def test_cancelling_closes_the_stream_at_once(server: Server) -> None:
    one = call("x+hangmid", stream=True)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(LiteLLM(api_base=server.url, api_key=KEY), one)
            while one.heard != "the answer is ":
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(server.until, server.gone, 0.1)

    anyio.run(main)


def test_on_trio_it_says_to_use_asyncio() -> None:
    with pytest.raises(Misuse, match="backend='asyncio'"):
        anyio.run(LiteLLM(), call(), backend="trio")


@pytest.mark.parametrize(
    ("version", "says"), [(None, r"pip install 'playcall\[litellm\]'"), ("1.107.0", "compromised")]
)
def test_without_litellm_or_with_the_compromised_release_it_says_what_to_install(
    version: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(Misuse, match=says):
        anyio.run(LiteLLM(), call())


def test_options_are_the_tenant_and_never_shown() -> None:
    assert LiteLLM().tenant == ""
    assert LiteLLM(api_key="a").tenant == LiteLLM(api_key="a").tenant != LiteLLM(api_key="b").tenant
    assert repr(LiteLLM(api_key="secret")) == "LiteLLM(api_key=...)"


def test_nothing_heavy_is_imported_before_a_call() -> None:
    heavy = {"aiohttp", "httpx", "litellm", "jsonschema", "trio"}
    names = "playcall.strategies.openai, playcall.strategies.vendors, playcall.strategies.transport"
    script = f"import sys, {names}; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_litellm_neither_retries_nor_caches_by_itself_and_no_key_of_the_environment_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    sent: dict[str, object] = {}

    async def acompletion(**options: object) -> None:
        sent.update(options)
        raise ValueError(f"bad key {KEY}")

    endpoint = LiteLLM()
    endpoint._litellm = SimpleNamespace(acompletion=acompletion)
    with pytest.raises(CallFailed, match=r"bad key \*\*\*"):
        anyio.run(endpoint, call())
    assert (sent["num_retries"], sent["max_retries"], sent["caching"]) == (0, 0, False)
