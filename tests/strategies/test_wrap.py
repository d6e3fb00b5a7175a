"""A strategy in the place of a vendor's call: real clients, a real server, and a function of one's own."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import openai
import pytest

from playcall.strategies import Agree, Ask, Misuse, PlaycallError, Strategy, Template, Vote
from playcall.strategies.arm import Arm
from playcall.strategies.budget import Budget
from playcall.strategies.cache import Cache
from playcall.strategies.call import Call
from playcall.strategies.live import NoAnswer
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

from ..serving import Server, serve

INF = float("inf")
SAID = [{"role": "user", "content": "how many moons has Mars"}]
BACKENDS = ["asyncio", "trio"]
PRICE = Price(1.0, 2.0)  # as the server bills


class Spy:
    """A ledger that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.flushed = 0
        self.news = threading.Event()

    def add(self, call: Call, **_: object) -> None:
        self.calls.append(call)
        self.news.set()

    async def flush(self) -> None:
        self.flushed = len(self.calls)

    @property
    def trace(self) -> list[tuple[Any, ...]]:
        return [(c.node, c.arm, c.draw, c.number, c.error, c.price, c.usage, c.cancelled) for c in self.calls]


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as s:
        yield s


class Nowhere:
    name, tenant = "nowhere", ""

    async def __call__(self, call: Call) -> Any:
        raise AssertionError("wrapped calls go to the client that was given")


def runner(strategy: Strategy, *names: str, ledger: Any = None, **options: Any) -> Runner:
    """Arms of these models, priced as the server bills them."""
    arms = {name: Arm(Nowhere(), name, price=PRICE) for name in names}
    return Runner(strategy, arms, ledger=ledger or Spy(), **options)


def sync_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="sk-secret-1234", max_retries=5)


def async_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key="sk-secret-1234", max_retries=5)


def test_a_wrapped_client_gives_the_vendors_own_response_of_the_call_that_won(server: Server) -> None:
    spy = Spy()
    arms = {n: Arm(Nowhere(), n, price=PRICE, tries=1) for n in ("a+500", "b")}
    create = Runner(Ask("a+500") | Ask("b"), arms, ledger=spy).wrap(sync_client(server).chat.completions.create)  # type: ignore[arg-type]
    made = create(model="any", messages=SAID, temperature=0.5, extra_body={"top_k": 4}, extra_headers={"x-mine": "1"})
    assert isinstance(made, openai.types.chat.ChatCompletion)
    assert made.model == "b"
    assert [s.model for s in server.served] == ["a", "b"]
    # PEERS 38
    assert server.served[0].body == {"messages": SAID, "model": "a+500", "temperature": 0.5, "top_k": 4}
    assert server.served[1].headers["x-mine"] == "1"
    assert [c.error for c in spy.calls] == ["server", ""]
    assert spy.flushed == 2
    assert server.until(lambda: sum(c.price for c in spy.calls) == server.bill())


@pytest.mark.parametrize("backend", BACKENDS)
def test_sync_and_async_give_the_same_trace(server: Server, backend: str) -> None:  # PEERS 27
    play = (Ask("a+400") & Ask("b+badusage") & 2 * Ask("c")).until(Agree(2), gap=INF).keep(Vote())
    names = ("a+400", "b+badusage", "c")
    spies = Spy(), Spy()
    said = {"messages": SAID, "seed": 3}
    first = runner(play, *names, ledger=spies[0]).wrap(sync_client(server).chat.completions.create)(model="", **said)

    async def main() -> Any:
        async with async_client(server) as client:
            return await runner(play, *names, ledger=spies[1]).wrap(client.chat.completions.create)(model="", **said)

    second = anyio.run(main, backend=backend)
    assert first.model_dump(warnings=False) == second.model_dump(warnings=False)
    assert spies[0].trace == spies[1].trace
    assert [c.error for c in spies[0].calls] == ["bad_request", "", ""]


@pytest.mark.parametrize("fault", ["429", "500", "close", "401", "html", "garbage", "empty", "refusal", "length"])
def test_where_no_answer_comes_the_causes_are_raised_and_no_response_is_made_up(
    server: Server, fault: str
) -> None:  # PEERS 46
    spy, model = Spy(), f"a+{fault}"
    arms = {model: Arm(Nowhere(), model, price=PRICE, tries=1)}
    create = Runner(Ask(model), arms, ledger=spy).wrap(sync_client(server).chat.completions.create)  # type: ignore[arg-type]
    expected = {"429": "rate_limited", "500": "server", "close": "connection", "401": "auth", "html": "garbage"}
    expected |= {"refusal": "refused", "length": "truncated"}
    with pytest.raises(NoAnswer, match=expected.get(fault, fault)) as raised:
        create(model="", messages=SAID)
    assert len(server.served) == 1, "the client's own retries are off"
    assert raised.value.result.attempts[0].calls[0].error == expected.get(fault, fault)
    if fault == "429":
        assert isinstance(raised.value.__cause__, openai.RateLimitError)
    assert "sk-secret" not in str(raised.value)


def test_a_429_is_tried_again_as_the_server_asks_and_billed_once(server: Server) -> None:
    spy = Spy()
    made = runner(Ask("a+429:2"), "a+429:2", ledger=spy).wrap(sync_client(server).chat.completions.create)(
        model="", messages=SAID
    )
    assert made.model == "a"
    assert [c.number for c in spy.calls] == [1, 2, 3]
    assert server.until(lambda: [c.price for c in spy.calls] == [0, 0, server.bill()])


def tool(arguments: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"tool_calls": [{"id": "x", "type": "function", "function": function}]}


TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_equal_tool_calls_are_equal_answers() -> None:
    said = {"a": '{"x": 1, "y": 2}', "b": '{"y": 3}', "c": '{"y":2,"x":1}'}
    play = (Ask("a") & Ask("b") & Ask("c") & Ask("a")).until(Agree(2), gap=INF).keep(Vote())
    with serve(answer=lambda body: tool(said[body["model"]])) as server:
        made = runner(play, "a", "b", "c").wrap(sync_client(server).chat.completions.create)(
            model="", messages=SAID, tools=TOOLS
        )
        assert [s.model for s in server.served] == ["a", "b", "c"]
        assert made.choices[0].message.tool_calls
        assert made.choices[0].message.tool_calls[0].function.arguments == said["a"]  # type: ignore[union-attr]


def test_tools_with_a_merge_are_refused_before_any_call(server: Server) -> None:  # PEERS 43
    play = (Ask("a") & Ask("b")) >> ("c", Template("Merge: {answers}"))
    create = runner(play, "a", "b", "c").wrap(sync_client(server).chat.completions.create)
    with pytest.raises(Misuse, match="tools"):
        create(model="", messages=SAID, tools=TOOLS)
    assert server.served == []
    assert create(model="", messages=SAID, max_tokens=50).model == "c"
    merged = server.served[-1].body
    assert "Merge" in merged["messages"][0]["content"]
    assert merged["max_tokens"] == 50, "what the caller asked of the answer holds for the one that it gets"


def test_a_misspelt_argument_is_the_callers_error_as_ever(server: Server) -> None:
    create = runner(Ask("a"), "a").wrap(sync_client(server).chat.completions.create)
    with pytest.raises(TypeError, match="mesages"):
        create(model="", mesages=SAID)  # type: ignore[call-overload]
    assert server.served == []


def test_a_message_of_the_vendors_own_goes_back_to_it_unchanged(server: Server) -> None:
    create = runner(Ask("a"), "a").wrap(sync_client(server).chat.completions.create)
    first = create(model="", messages=SAID)
    said: Any = [*SAID, first.choices[0].message, *SAID]
    assert create(model="", messages=said, stop=openai.omit).model == "a"
    assert server.served[1].body["messages"][1]["content"] == first.choices[0].message.content


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_of_an_async_client_are_cancelled_on_the_wire_when_the_answer_is_known(backend: str) -> None:  # PEERS 13
    spy = Spy()
    play = (Ask("a") & Ask("b+delay:50") & Ask("slow+hang")).until(Agree(2), gap=0).keep(Vote())
    with serve(answer=lambda _: "two") as server:

        async def main() -> Any:
            async with async_client(server) as client:
                return await runner(play, "a", "b+delay:50", "slow+hang", ledger=spy).wrap(
                    client.chat.completions.create
                )(model="", messages=SAID)

        assert anyio.run(main, backend=backend).model in ("a", "b")
        assert server.until(lambda: len(server.gone()) == 1)
    cancelled = [c for c in spy.calls if c.cancelled]
    assert [(c.arm, c.estimated) for c in cancelled] == [("slow+hang", True)]


def test_calls_of_a_sync_client_do_not_hold_up_the_answer() -> None:
    spy = Spy()
    play = (Ask("a") & Ask("b") & Ask("slow+hang")).until(Agree(2), gap=0).keep(Vote())
    with serve(answer=lambda _: "two") as server:
        create = runner(play, "a", "b", "slow+hang", ledger=spy).wrap(sync_client(server).chat.completions.create)
        assert create(model="", messages=SAID).model in ("a", "b")
        assert [(c.arm, c.estimated) for c in spy.calls if c.cancelled] == [("slow+hang", True)]


def test_a_model_without_a_price_is_refused_when_it_is_wrapped_unless_the_policy_recorded_one(
    server: Server,
) -> None:  # PEERS 6
    create = sync_client(server).chat.completions.create
    with pytest.raises(Misuse, match="costs"):
        Runner(Ask("a")).wrap(create)
    spy: Any = Spy()
    known = Runner(Ask("a"), ledger=spy)
    known.prices = {"a": 0.002}
    known.wrap(create)(model="", messages=SAID)
    [call] = spy.calls
    assert (call.price, call.source, call.estimated) == (2_000_000, "policy", True)
    Runner(Ask("a"), ledger=spy, unpriced="free").wrap(create)(model="", messages=SAID)
    assert spy.calls[1].source == "unknown"


def test_a_budget_holds_for_wrapped_calls_by_the_requests_own_token_limit() -> None:
    budget, model = Budget(session=0.005), "gpt-4o-mini"  # $0.15 and $0.60, and 16,384 tokens at most
    with serve(rates={model: (150_000_000, 600_000_000)}) as server:
        create = Runner(Ask(model), budget=budget).wrap(sync_client(server).chat.completions.create)
        with pytest.raises(NoAnswer, match="budget"):
            create(model="", messages=SAID)
        assert create(model="", messages=SAID, max_tokens=100).model == model
        assert len(server.served) == 1
        assert server.until(lambda: budget.session.spent == server.bill())


@pytest.mark.parametrize("stored", [False, True])
def test_a_cached_answer_is_the_vendors_object_again_and_costs_nothing(  # PEERS 12
    server: Server, stored: bool, tmp_path: Any
) -> None:
    cache, spy = Cache(tmp_path / "answers.db" if stored else None), Spy()
    create = runner(Ask("a"), "a", ledger=spy, cache=cache).wrap(sync_client(server).chat.completions.create)
    first, again, other = (create(model="", messages=SAID, temperature=t) for t in (0, 0, 1))
    assert type(again) is type(first)
    assert type(again.choices[0].message) is type(first.choices[0].message)
    assert again.model_dump() == first.model_dump()
    assert len(server.served) == 2
    assert other.model == "a"
    assert [(c.cached, c.price > 0, c.saved > 0) for c in spy.calls] == [(0, 1, 0), (1, 0, 1), (0, 1, 0)]


def test_clients_of_other_hosts_and_keys_share_no_cached_answer(server: Server) -> None:  # PEERS 37
    policy, other = runner(Ask("a"), "a", cache=Cache()), sync_client(server).with_options(api_key="sk-other-5678")
    with serve() as elsewhere:
        for client in (sync_client(server), sync_client(server), other, sync_client(elsewhere)):
            policy.wrap(client.chat.completions.create)(model="", messages=SAID)
        assert (len(server.served), len(elsewhere.served)) == (2, 1)


def test_a_stream_is_the_vendors_own_and_errors_before_its_first_piece_fall_back(
    server: Server,
) -> None:  # PEERS 24, 25
    spy = Spy()
    play = Ask("a+400") | Ask("b+429:1")
    create = runner(play, "a+400", "b+429:1", ledger=spy).wrap(sync_client(server).chat.completions.create)
    stream = create(model="", messages=SAID, stream=True)
    assert isinstance(stream, openai.Stream)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text.startswith("the answer is")
    assert {c.model for c in chunks} == {"b"}
    assert all(c.usage is None for c in chunks)
    assert [(c.arm, c.error) for c in spy.calls] == [
        ("a+400", "bad_request"),
        ("b+429:1", "rate_limited"),
        ("b+429:1", ""),
    ]
    assert server.until(lambda: spy.calls[2].price == server.bill() > 0)
    assert not spy.calls[2].estimated
    assert spy.flushed == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_async_stream_is_passed_on_and_billed_when_it_is_read(server: Server, backend: str) -> None:
    spy = Spy()

    async def main() -> None:
        async with async_client(server) as client:
            arms = {n: Arm(Nowhere(), n, price=PRICE, tries=1) for n in ("a+503", "b")}
            create = Runner(Ask("a+503") | Ask("b"), arms, ledger=spy).wrap(client.chat.completions.create)  # type: ignore[arg-type]
            stream = await create(model="", messages=SAID, stream=True, stream_options={"include_usage": True})
            assert isinstance(stream, openai.AsyncStream)
            assert [c.arm for c in spy.calls] == ["a+503"], "the other is not over yet"
            chunks = [c async for c in stream]
            assert chunks[-1].usage is not None
            assert spy.flushed == 2
            assert server.until(lambda: spy.calls[1].price == server.bill())

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_that_its_reader_leaves_is_closed_on_the_wire_and_billed_by_what_had_come(
    server: Server, backend: str
) -> None:
    spy = Spy()

    async def main() -> None:
        async with async_client(server) as client:
            create = runner(Ask("a+hangmid"), "a+hangmid", ledger=spy).wrap(client.chat.completions.create)
            async with await create(model="", messages=SAID, stream=True) as stream:
                await anext(aiter(stream))
                await anext(aiter(stream))
            with anyio.fail_after(2):
                while not spy.flushed:
                    await anyio.sleep(0)

    anyio.run(main, backend=backend)
    assert server.until(lambda: len(server.gone()) == 1)
    [call] = spy.calls
    assert call.cancelled
    assert call.estimated
    assert call.price > 0


def test_a_sync_stream_that_is_left_is_closed_and_billed(server: Server) -> None:
    spy = Spy()
    create = runner(Ask("a+hangmid"), "a+hangmid", ledger=spy).wrap(sync_client(server).chat.completions.create)
    with create(model="", messages=SAID, stream=True) as stream:
        next(stream)
        next(stream)
    assert server.until(lambda: len(server.gone()) == 1)
    assert spy.news.wait(2)
    assert spy.calls[0].cancelled


@pytest.mark.parametrize("fault", ["cut", "error"])
def test_a_cut_stream_raises_the_vendors_error_and_nothing_is_said_twice(
    server: Server, fault: str
) -> None:  # PEERS 23
    spy, model = Spy(), f"a+{fault}"
    create = runner(Ask(model) | Ask("b"), model, "b", ledger=spy).wrap(sync_client(server).chat.completions.create)
    heard = []
    with pytest.raises(openai.APIError):
        heard.extend(create(model="", messages=SAID, stream=True))
    assert spy.news.wait(2)
    assert [(c.arm, c.error) for c in spy.calls] == [(model, "cut")]
    assert [s.model for s in server.served] == ["a"]


def test_a_stream_that_has_to_be_looked_at_whole_is_refused_before_any_call(server: Server) -> None:
    create = runner((Ask("a") & Ask("b")).keep(Vote()), "a", "b").wrap(sync_client(server).chat.completions.create)
    with pytest.raises(Misuse, match=r"policy\.stream"):
        create(model="", messages=SAID, stream=True)
    assert server.served == []


def test_a_stream_of_which_no_call_begins_raises_the_causes(server: Server) -> None:
    create = runner(Ask("a+401") | Ask("b+400"), "a+401", "b+400").wrap(sync_client(server).chat.completions.create)
    with pytest.raises(NoAnswer, match=r"auth.*bad_request"):
        create(model="", messages=SAID, stream=True)


def test_any_function_of_a_model_and_messages_can_be_wrapped_with_the_models_of_the_policy() -> None:
    def complete(model: str, messages: list[Any], **more: Any) -> dict[str, Any]:
        """Says it."""
        text = {"x": "no", "y": "yes", "z": "yes"}[model] + more.get("end", "")
        return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}

    play = (Ask("x") & Ask("y") & Ask("z")).keep(Vote())
    create = Runner(play, unpriced="free").wrap(complete)
    assert create("", SAID, end="!")["choices"][0]["message"]["content"] == "yes!"
    assert create.__doc__ == "Says it."
    assert inspect.signature(create) == inspect.signature(complete)


def test_a_message_of_anthropics_is_understood() -> None:
    def create(*, model: str, messages: list[Any]) -> dict[str, Any]:
        usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 7}
        reason = "max_tokens" if model == "short" else "end_turn"
        return {"content": [{"type": "text", "text": model}], "stop_reason": reason, "usage": usage}

    spy = Spy()
    made = runner(Ask("short") | Ask("long"), "short", "long", ledger=spy).wrap(create)(model="", messages=SAID)
    assert made["content"][0]["text"] == "long"
    assert [c.error for c in spy.calls] == ["truncated", ""]
    assert spy.calls[1].price == 15 * 1000 + 7 * 2000


def test_a_decorated_function_is_called_with_each_arms_model_and_returns_what_the_winner_returned() -> None:
    spy: Any = Spy()
    policy = Runner((Ask("x") & Ask("y") & Ask("z")).until(Agree(2), gap=INF), ledger=spy, unpriced="free")
    threads = []

    @policy.call
    def ask(question: str, model: str = "gpt", *, plus: int = 0) -> list[int]:
        threads.append(threading.current_thread())
        if model == "y":
            raise KeyError("no such thing")
        return [len(question) + plus]

    assert ask("four", plus=1) == [5]
    assert threading.main_thread() not in threads
    assert [(c.model, c.error) for c in spy.calls] == [("x", ""), ("y", "raised"), ("z", "")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0, False, [], 1.5, {"a": None}])
def test_an_async_function_runs_on_the_callers_loop_and_falsy_results_are_results(backend: str, value: Any) -> None:
    policy = Runner(Ask("x") | Ask("y"), unpriced="free")

    @policy.call
    async def ask(question: str, model: str) -> Any:
        await anyio.sleep(0)
        return None if model == "x" else value

    async def main() -> Any:
        return await ask("q", model="")

    assert inspect.iscoroutinefunction(ask)
    assert anyio.run(main, backend=backend) == value


def test_a_method_may_be_decorated_and_a_prompt_takes_its_one_arguments_place() -> None:
    policy = Runner((Ask("x") & Ask("y")) >> ("z", Template("Merge: {answers}")), unpriced="free")

    class Bot:
        name = "bot"

        @policy.call
        def ask(self, question: str, model: str = "") -> str:
            return f"{self.name} {model}: {question}"

    assert Bot().ask("why").startswith("bot z: Merge: ")

    @policy.call
    def two(a: str, b: str, model: str = "") -> str:
        return a

    with pytest.raises(Misuse, match="several arguments"):
        two("a", "b")


def test_settings_of_an_arm_reach_a_function_that_takes_them() -> None:
    arms = {"hot": Arm(Nowhere(), "m", {"temperature": 2}, price="free")}

    @Runner(Ask("hot"), arms).call
    def ask(question: str, model: str = "", temperature: float = 0) -> str:
        return f"{model} {temperature}"

    assert ask("q") == "m 2"
    with pytest.raises(Misuse, match="temperature"):
        Runner(Ask("hot"), arms).call(lambda question, model: "")


class Awaited:
    def __await__(self) -> Any:
        yield


def test_what_cannot_be_wrapped_is_refused_where_it_is_wrapped() -> None:
    policy = Runner(Ask("x"), unpriced="free")
    with pytest.raises(Misuse, match="`model`"):
        policy.call(lambda question: question)
    with pytest.raises(Misuse, match="`messages`"):
        policy.wrap(lambda model: model)
    with pytest.raises(Misuse, match="takes model"):
        policy.wrap("gpt")  # type: ignore[type-var]

    async def yields(model: str) -> Any:
        yield model

    with pytest.raises(Misuse, match="yields"):
        policy.call(yields)
    with pytest.raises(Misuse, match="async def"):
        policy.call(functools.partial(lambda q, model: Awaited(), "q"))()


# --- what reaches the vendor's function


def test_settings_that_the_client_has_no_name_for_go_into_its_extra_body_beside_the_callers(server: Server) -> None:
    arms = {"a": Arm(Nowhere(), "a", {"top_k": 5}, price=PRICE, headers={"x-arm": "1", "x-mine": "arm"})}
    create = Runner(Ask("a"), arms).wrap(sync_client(server).chat.completions.create)
    create(model="", messages=SAID, extra_body={"mine": 1}, extra_headers={"x-mine": "caller"})
    sent = server.served[0]
    assert (sent.body["top_k"], sent.body["mine"]) == (5, 1)
    assert (sent.headers["x-arm"], sent.headers["x-mine"]) == ("1", "caller")


def test_what_is_not_given_is_no_part_of_a_request(server: Server) -> None:
    create = runner(Ask("a"), "a", cache=Cache()).wrap(sync_client(server).chat.completions.create)
    create(model="", messages=SAID)
    create(model="", messages=SAID, temperature=openai.NOT_GIVEN)  # type: ignore[arg-type]
    assert len(server.served) == 1


def test_clients_of_other_organisations_share_no_cached_answer(server: Server) -> None:
    cache = Cache()
    for organization in ("one", "two"):
        client = openai.OpenAI(base_url=server.url, api_key="sk-secret-1234", organization=organization)
        runner(Ask("a"), "a", cache=cache).wrap(client.chat.completions.create)(model="", messages=SAID)
    assert len(server.served) == 2


def test_an_object_of_the_callers_reaches_the_function_as_it_is() -> None:
    class Message:
        def model_dump(self) -> dict[str, str]:
            return {"role": "user", "content": "q"}

    got, message = [], Message()

    def create(model: str, messages: list[Any], **more: Any) -> Any:
        got.append((messages, more))
        return {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}

    create.__module__ = "litellm.main"
    arms = {"x": Arm(Nowhere(), "x", price="free", confidence="mean_logprob")}
    Runner(Ask("x"), arms).wrap(create)("", [message])
    [(messages, more)] = got
    assert messages[0] is message
    assert more == {"logprobs": True, "num_retries": 0, "max_retries": 0}  # litellm's own would multiply with ours


def test_a_prompt_takes_the_place_of_messages_as_a_message() -> None:
    @Runner(Ask("x") >> ("z", Template("Merge: {answers}")), unpriced="free").call
    def ask(messages: list[dict[str, str]], model: str = "") -> str:
        return f"{model}: {messages[0]['role']} {messages[0]['content']}"

    assert ask(SAID).startswith("z: user Merge: ")


@pytest.mark.parametrize("settings", [{"deadline": 0.05}, {"timeout": 0.05}], ids=str)
def test_a_wrapped_call_keeps_the_deadline_of_its_policy_and_the_time_limit_of_its_arm(settings: Any) -> None:
    arms = {"x": Arm(Nowhere(), "x", price="free", tries=1, timeout=settings.get("timeout", 600))}

    @Runner(Ask("x"), arms, deadline=settings.get("deadline", INF)).call
    async def ask(question: str, model: str = "") -> str:
        await anyio.sleep(9)
        return "late"

    with pytest.raises(NoAnswer):
        anyio.run(ask, "q")


def test_an_answer_without_usage_is_billed_by_an_estimate_of_its_text() -> None:
    def create(model: str, messages: list[Any]) -> Any:
        return {"choices": [{"message": {"content": "y" * 40}, "finish_reason": "stop"}]}

    spy: Any = Spy()
    Runner(Ask("x"), {"x": Arm(Nowhere(), "x", price=Price(0, 1))}, ledger=spy).wrap(create)("", SAID)
    Runner(Ask("x"), {"x": Arm(Nowhere(), "x", price=Price(0, 1))}, ledger=spy).call(lambda q, model="": "y" * 40)("q")
    assert [(c.price, c.estimated) for c in spy.calls] == [(10 * 1000, True)] * 2


def test_the_clients_key_does_not_show_in_the_causes() -> None:
    class Client:
        api_key, base_url = "sk-secret-1234", "http://host/v1"

        def with_options(self, **_: object) -> Client:
            return self

    class Completions:
        def __init__(self, client: Client) -> None:
            self._client = client

        def create(self, *, model: str, messages: list[Any]) -> Any:
            raise RuntimeError(f"bad key {self._client.api_key}")

    create = runner(Ask("a"), "a").wrap(Completions(Client()).create)
    with pytest.raises(NoAnswer, match=r"bad key \*\*\*"):
        create(model="", messages=SAID)


# --- streams


def test_a_stream_is_never_taken_from_the_cache_and_keeps_the_callers_options(server: Server) -> None:
    create = runner(Ask("a"), "a", cache=Cache()).wrap(sync_client(server).chat.completions.create)
    for _ in range(2):
        assert list(create(model="", messages=SAID, stream=True, stream_options={"include_obfuscation": False}))
    assert [s.body["stream_options"] for s in server.served] == [
        {"include_obfuscation": False, "include_usage": True}
    ] * 2


def test_a_truncated_stream_is_entered_as_such(server: Server) -> None:
    spy = Spy()
    create = runner(Ask("a+length"), "a+length", ledger=spy).wrap(sync_client(server).chat.completions.create)
    assert list(create(model="", messages=SAID, stream=True))
    assert spy.news.wait(2)
    assert [c.error for c in spy.calls] == ["truncated"]


class Source:
    """A vendor's stream of pieces that are no chat chunks: some, then what `then` does."""

    def __init__(self, then: Any) -> None:
        self.left, self.then, self.closed = 2, then, False

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> dict[str, str]:
        self.left -= 1
        return {"type": "piece"} if self.left >= 0 else await self.then()

    async def aclose(self) -> None:
        self.closed = True


def streaming(source: Any, **options: Any) -> tuple[Any, list[str]]:
    """A wrapped function that streams a source, and the models that it was called with."""
    called: list[str] = []

    async def create(model: str, messages: list[Any], stream: bool = False) -> Any:
        called.append(model)
        return source

    arms = {name: Arm(Nowhere(), name, price="free", backoff=1e-4) for name in "xy"}
    return Runner(Ask("x") | Ask("y"), arms, **options).wrap(create), called


def test_a_stream_that_breaks_after_its_first_piece_is_not_paid_again_behind_the_readers_back() -> None:
    async def breaks() -> Any:
        raise ConnectionError("gone")

    spy: Any = Spy()
    create, called = streaming(Source(breaks), ledger=spy)

    async def main() -> None:
        stream = await create("", SAID, stream=True)
        with pytest.raises(ConnectionError, match="gone"):
            async for _ in stream:
                pass
        with anyio.fail_after(2):
            while not spy.calls:
                await anyio.sleep(0)
        await anyio.sleep(0.02)  # retries would have come

    anyio.run(main)
    assert (called, [c.error for c in spy.calls]) == (["x"], ["cut"])


def test_a_stream_that_is_left_closes_its_source() -> None:
    source = Source(anyio.sleep_forever)
    create, _ = streaming(source)

    async def main() -> None:
        async with await create("", SAID, stream=True) as stream:
            await anext(stream)

    anyio.run(main)
    assert source.closed


def test_a_sync_stream_that_is_left_closes_its_source_too() -> None:
    class Sync:
        closed = False

        def __iter__(self) -> Sync:
            return self

        def __next__(self) -> dict[str, str]:
            return {"type": "piece"}

        def close(self) -> None:
            self.closed = True

    source = Sync()
    create = Runner(Ask("x"), unpriced="free").wrap(lambda model, messages, stream=False: source)
    with create("", SAID, stream=True) as stream:
        next(stream)
    assert source.closed


def test_a_deadline_that_comes_amid_a_stream_ends_it_with_its_reason() -> None:
    async def later() -> dict[str, str]:
        await anyio.sleep(0.1)
        return {"type": "late"}

    create, _ = streaming(Source(later), deadline=0.05)

    async def main() -> None:
        async for piece in await create("", SAID, stream=True):
            assert piece == {"type": "piece"}

    with pytest.raises(PlaycallError, match="deadline came while the answer was being streamed"):
        anyio.run(main)


def test_a_stream_that_is_cancelled_before_its_first_piece_cancels_its_call() -> None:
    source = Source(anyio.sleep_forever)
    source.left = 0
    create, called = streaming(source)

    async def main() -> None:
        with anyio.move_on_after(0.02):
            await create("", SAID, stream=True)

    anyio.run(main)
    assert (called, source.closed) == (["x"], True)


def test_a_stream_of_anthropics_is_billed_by_what_it_says() -> None:
    def create(*, model: str, messages: list[Any], stream: bool = False) -> Iterator[dict[str, Any]]:
        yield from (
            {"type": "message_start", "message": {"usage": {"input_tokens": 10, "cache_creation_input_tokens": 4}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "two "}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "moons"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        )

    def opened(**given: Any) -> Any:
        return create(**given)

    opened.__signature__ = inspect.signature(create)  # type: ignore[attr-defined]
    spy = Spy()
    events = list(runner(Ask("a"), "a", ledger=spy).wrap(opened)(model="", messages=SAID, stream=True))
    assert [e["type"] for e in events][::6] == ["message_start", "message_stop"]
    assert spy.news.wait(5)
    (call,) = spy.calls
    assert (call.heard.strip(), call.price, call.estimated, call.error) == (
        "two moons",
        14 * 1000 + 7 * 2000,
        False,
        "",
    )


def test_a_cached_message_of_anthropics_comes_back_as_its_class() -> None:
    from pydantic import BaseModel

    class Message(BaseModel):
        content: list[dict[str, Any]]
        stop_reason: str
        usage: dict[str, int]

    asked = []

    def create(*, model: str, messages: list[Any]) -> Message:
        asked.append(model)
        usage = {"input_tokens": 10, "output_tokens": 7}
        return Message(content=[{"type": "text", "text": "two"}], stop_reason="end_turn", usage=usage)

    create.__annotations__["return"] = Message
    wrapped = runner(Ask("a"), "a", cache=Cache()).wrap(create)
    made = [wrapped(model="", messages=SAID) for _ in range(2)]
    assert made[0] == made[1]
    assert len(asked) == 1


def test_raw_responses_are_read_and_come_back_raw(server: Server) -> None:
    policy, client = runner(Ask("a+500:2") | Ask("b"), "a+500:2", "b"), sync_client(server)
    made = policy.wrap(client.chat.completions.with_raw_response.create)(model="", messages=SAID)
    assert made.headers["openai-processing-ms"] == "7"
    assert made.parse().choices[0].message.content.startswith("the answer is")
    assert [s.status for s in server.served] == [500, 500, 200]  # our tries alone


@pytest.mark.parametrize("of", ["with_streaming_response", "stream"])
def test_what_gives_a_context_manager_is_refused(server: Server, of: str) -> None:
    completions = sync_client(server).chat.completions
    create = completions.stream if of == "stream" else completions.with_streaming_response.create
    with pytest.raises(Misuse, match="context manager"):
        runner(Ask("a"), "a").wrap(create)(model="", messages=SAID)
    assert server.served == []


def test_a_partial_of_a_clients_method_does_not_multiply_retries(server: Server) -> None:
    arms = {"a+500": Arm(Nowhere(), "a+500", price=PRICE, tries=3, backoff=1e-4)}
    half = functools.partial(sync_client(server).chat.completions.create, temperature=0.5)
    with pytest.raises(NoAnswer):
        Runner(Ask("a+500"), arms, ledger=Spy()).wrap(half)(model="", messages=SAID)  # type: ignore[arg-type]
    assert len(server.served) == 3
    assert server.served[0].body["temperature"] == 0.5


def test_a_parsed_answer_that_does_not_fit_is_invalid_and_counts_at_its_worst(server: Server) -> None:
    from pydantic import BaseModel

    class Number(BaseModel):
        value: int

    server.answer = lambda body: '{"value": "many"}'
    spy, budget = Spy(), Budget(session=0.0009)
    arms = {"a": Arm(Nowhere(), "a", params={"max_tokens": 200}, price=PRICE)}
    policy = Runner(Ask("a"), arms, ledger=spy, budget=budget)  # type: ignore[arg-type]
    parse = policy.wrap(sync_client(server).chat.completions.parse)
    for _ in range(5):
        with pytest.raises(NoAnswer):
            parse(model="", messages=SAID, response_format=Number)
    assert {c.error for c in spy.calls} == {"invalid"}
    assert len(server.served) < 5
    assert budget.session.spent <= 900_000


def test_a_parsed_answer_is_not_taken_from_the_cache_as_something_else(server: Server) -> None:
    from pydantic import BaseModel

    class Number(BaseModel):
        value: int

    server.answer = lambda body: '{"value": 3}'
    parse = runner(Ask("a"), "a", cache=Cache()).wrap(sync_client(server).chat.completions.parse)
    for _ in range(2):
        assert parse(model="", messages=SAID, response_format=Number).choices[0].message.parsed == Number(value=3)


def test_a_function_may_return_what_cannot_be_compared() -> None:
    import numpy as np

    @Runner(Ask("x"), unpriced="free").call
    def ask(question: str, model: str) -> Any:
        return np.arange(3)

    assert ask("q", model="").tolist() == [0, 1, 2]


def test_an_error_in_the_body_does_not_show_the_key() -> None:
    echo = {"choices": None, "error": {"message": "bad key sk-secret-1234", "code": 401}}
    with serve(answer=lambda body: echo) as server:
        create = runner(Ask("a"), "a").wrap(sync_client(server).chat.completions.create)
        with pytest.raises(NoAnswer, match=r"bad key \*\*\*"):
            create(model="", messages=SAID)


def test_a_model_that_cannot_be_given_by_name_is_refused_at_decoration() -> None:
    def ask(model: str, /) -> str:
        return model

    with pytest.raises(Misuse, match="no parameter `model` to give by name"):
        Runner(Ask("x"), unpriced="free").call(ask)
