"""Several answers to one request: billed once for the prompt, live and replayed (PEERS 48)."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import anyio
import numpy as np
import pytest

from playcall.strategies import Agree, Ask, Gather, NotRecorded, Replay, Vote
from playcall.strategies.arm import Arm
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.recording import Draws, Recording
from playcall.strategies.runner import Runner

from ..serving import Body, Server, serve

PROMPT, WORD = 10, 1  # tokens
PRICE = Price(1, 2)  # 1,000 and 2,000 nano-dollars a token


def several(body: Body) -> Body:
    n = body.get("n", 1)
    choices = [
        {"index": i, "message": {"role": "assistant", "content": f"a{i % 2}"}, "finish_reason": "stop"}
        for i in range(n)
    ]
    return {"choices": choices, "usage": {"prompt_tokens": PROMPT, "completion_tokens": n * WORD}}


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(answer=several) as server:
        yield server


def arms(server: Server, **settings: object) -> dict[str, Arm]:
    return {"a": Arm(OpenAICompatible(server.url), "m", price=PRICE, together=True, **settings)}  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("stream", [False, True])
def test_draws_that_start_together_are_one_request_and_pay_for_the_prompt_once(
    server: Server, backend: str, stream: bool
) -> None:
    if stream:
        server.answer = None  # the server streams a single choice: the others ask by themselves
    runner = Runner((5 * Ask("a")).keep(Vote()), arms(server, stream=stream))
    result = anyio.run(runner.run, "q", backend=backend)
    assert result.answered
    assert server.until(lambda: not server.open)
    if not stream:
        assert [s.body["n"] for s in server.served] == [5]
        assert result.cost == PROMPT * 1_000 + 5 * WORD * 2_000
        assert sorted(a.reply.key for a in result.attempts if a.reply) == ["a0", "a0", "a0", "a1", "a1"]
    assert result.exact


def test_draws_one_after_another_are_requests_of_their_own(server: Server) -> None:
    Runner(Gather((Ask("a"),) * 3, Agree(9), inf), arms(server)).run_sync("q")
    assert ["n" in s.body for s in server.served] == [False] * 3


def test_one_bad_choice_fails_alone(server: Server) -> None:  # PEERS 47
    def answer(body: Body) -> Body:
        whole = several(body)
        whole["choices"][3]["finish_reason"] = "length"
        whole["choices"][0]["message"]["content"] = ""
        return whole

    server.answer = answer
    result = Runner((5 * Ask("a")).keep(Vote()), arms(server)).run_sync("q")
    assert sorted(str(a).split(": ")[1] for a in result.failures) == ["empty", "truncated"]
    assert (result.output, result.exact, len(server.served)) == ("a0", True, 1)


def recording(**how: object) -> Recording:
    shape = (2, 4)
    ones = np.ones(shape, dtype=np.int64)
    price = ones * (PROMPT * 1_000 + WORD * 2_000)
    draws = Draws(ones * 0, ones * np.nan, ones < 0, price, ones, ones * 1.0, prompt=ones * PROMPT * 1_000, **how)
    return Recording(("x", "y"), {"a": draws}, ("yes",))


def test_replay_prices_both_forms() -> None:
    side_by_side, in_turn = 3 * Ask("a"), Gather((Ask("a"),) * 3, Agree(9), inf)
    apart, together = recording(), recording().asked_together("a")
    full, once = 3 * (10_000 + 2_000), 10_000 + 3 * 2_000
    assert Replay(apart)(side_by_side).cost.tolist() == [full] * 2
    assert Replay(together)(side_by_side).cost.tolist() == [once] * 2
    assert Replay(together)(in_turn).cost.tolist() == [full] * 2
    assert Replay(together)(Ask("a") | side_by_side).cost.tolist() == [12_000] * 2


def test_a_recording_without_the_cost_of_prompts_says_so() -> None:
    draws = recording().arms["a"]
    with pytest.raises(NotRecorded, match="prompt_cost_usd"):
        Recording(("x", "y"), {"a": replace(draws, prompt=None)}, ("yes",)).asked_together("a")
