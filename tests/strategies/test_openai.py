"""What OpenAICompatible sends, reads and recognises, against a real server; and its parsers against everything."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage
from playcall.strategies.completion import (
    Events,
    Pieces,
    failed,
    failure_of,
    read_completion,
    read_usage,
    retry_after,
    tidy,
)
from playcall.strategies.errors import Misuse
from playcall.strategies.openai import OpenAICompatible

from ..serving import Server, serve

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
streams = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
KEY = "sk-very-secret-key-0123456789"


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


def call(model: str = "x", *, request: dict[str, Any] | None = None, **known: Any) -> Call:
    asked = {"model": model, "messages": [{"role": "user", "content": "one two three"}], **(request or {})}
    return Call("arm", model, None, None, 0, asked, **{"timeout": 5.0, **known})


def ask(server: Server, one: Call, backend: str = "asyncio", **options: Any) -> Answer:
    endpoint = OpenAICompatible(server.url, KEY, **options)
    return anyio.run(endpoint, one, backend=backend)


def fails(server: Server, one: Call, backend: str = "asyncio", **options: Any) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        ask(server, one, backend, **options)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    return caught.value


def whole(message: dict[str, Any] | None = None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "yes", **(message or {})}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}], **more}


@both
@streams
def test_an_answer_comes_with_its_tokens_finish_and_times(backend: str, stream: bool, server: Server) -> None:
    one = call(stream=stream)
    answer = ask(server, one, backend)
    assert answer.text == answer.output
    assert answer.text.startswith("the answer is")
    assert one.usage == Usage(input=3, output=4)
    assert one.finish == "stop"
    assert math.isnan(answer.score)
    assert isinstance(one.response, dict)
    assert one.response["choices"][0]["message"] == {"role": "assistant", "content": answer.text}
    assert one.served_ms == (None if stream else 7.0)
    assert server.until(lambda: server.bill("x") == 3 * 1000 + 4 * 2000)


@both
def test_the_request_goes_out_unchanged(backend: str, server: Server) -> None:
    extra = {"temperature": 0.5, "made_up": {"deep": [1, None, "ü\ud83d"]}, "stop": ["\n"]}
    one = call(request=extra, headers={"X-Run": "7"})
    before = json.dumps(one.request)
    ask(server, one, backend, headers={"X-Team": "blue"})
    assert server.served[0].body == one.request == json.loads(before)
    sent = server.served[0].headers
    assert (sent["x-run"], sent["x-team"], sent["authorization"]) == ("7", "blue", f"Bearer {KEY}")


@both
def test_each_piece_of_a_stream_is_told_as_it_comes(backend: str, server: Server) -> None:
    told: list[str] = []
    one = call("x+trickle", listen=told.append, request={"stream_options": {"x": 1}})
    answer = ask(server, one, backend)
    assert "".join(told) == one.heard == answer.text
    assert len(told) == 4
    assert one.first_token is not None
    assert server.served[0].body["stream_options"] == {"x": 1, "include_usage": True}


def test_a_listener_hears_an_answer_that_the_server_would_not_stream(server: Server) -> None:
    told: list[str] = []
    server.fault = lambda body: body.pop("stream") and ""
    assert ask(server, call(listen=told.append)).text == "".join(told)


@both
@streams
@pytest.mark.parametrize(
    ("model", "failure", "paid"),
    [
        ("x+empty", Failure.EMPTY, False),
        ("x+refusal", Failure.REFUSED, True),
        ("x+filter", Failure.REFUSED, True),
        ("x+length", Failure.TRUNCATED, True),
        ("x+cut", Failure.CUT, False),
        ("x+close", Failure.CONNECTION, False),
        ("x+garbage", Failure.GARBAGE, False),
        ("x+html", Failure.GARBAGE, False),
        ("x+400", Failure.REQUEST, False),
        ("x+401", Failure.AUTH, False),
        ("x+403", Failure.AUTH, False),
        ("x+404", Failure.NOT_FOUND, False),
        ("x+408", Failure.TIMEOUT, False),
        ("x+409", Failure.SERVER, False),
        ("x+429", Failure.RATE, False),
        ("x+quota", Failure.QUOTA, False),
        ("x+500", Failure.SERVER, False),
        ("x+503", Failure.SERVER, False),
    ],
)
def test_every_fault_is_a_typed_failure_and_what_was_paid_is_known(
    backend: str, stream: bool, model: str, failure: Failure, paid: bool, server: Server
) -> None:
    one = call(model, stream=stream)
    error = fails(server, one, backend)
    assert error.failure is failure
    assert bool(one.usage and one.usage.output > 1) == paid
    if model[2:5].isdigit():
        assert error.detail == f"{model[2:]} scripted {model[2:]}"


@streams
@pytest.mark.parametrize("fault", ["nousage", "badusage"])
def test_usage_that_is_missing_or_nonsense_is_left_to_be_estimated(stream: bool, fault: str, server: Server) -> None:
    one = call(f"x+{fault}", stream=stream)
    assert ask(server, one).text
    assert one.usage is None


@both
def test_an_error_inside_a_stream_is_that_error(backend: str, server: Server) -> None:
    one = call("x+error", stream=True)
    error = fails(server, one, backend)
    assert (error.failure, error.detail) == (Failure.SERVER, "503 scripted error")
    assert one.heard == "the answer "


@both
def test_a_stream_without_done_is_whole_if_it_gave_a_reason_to_finish(backend: str, server: Server) -> None:
    assert ask(server, call("x+nodone", stream=True), backend).text.startswith("the answer")


@both
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_cancelling_closes_the_connection_within_100_ms_and_keeps_what_was_heard(
    backend: str, stream: bool, server: Server
) -> None:
    one = call("x+hangmid" if stream else "x+hang", stream=stream)
    endpoint = OpenAICompatible(server.url, KEY)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(endpoint, one)
            begun: Callable[[], object] = lambda: server.served and (not stream or server.served[0].words >= 2)  # noqa: E731
            assert await anyio.to_thread.run_sync(server.until, begun)
            while stream and one.heard != "the answer is ":
                await anyio.sleep(0)
            group.cancel_scope.cancel()
        left = time.monotonic()
        assert await anyio.to_thread.run_sync(server.until, server.gone, 1.0)
        assert server.gone()[0].gone - left < 0.1  # type: ignore[operator]

    anyio.run(main, backend=backend)
    assert one.usage is None
    assert server.bill() == 0


@both
def test_a_try_ends_at_its_time_limit(backend: str, server: Server) -> None:
    assert fails(server, call("x+hang", timeout=0.02), backend).failure is Failure.TIMEOUT
    assert server.until(server.gone)


@both
def test_200_calls_at_once_share_the_pool(backend: str, server: Server) -> None:
    endpoint = OpenAICompatible(server.url, KEY)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for i in range(200):
                group.start_soon(endpoint, call(request={"seed": i}))

    anyio.run(main, backend=backend)
    assert sum(s.finished for s in server.served) == 200
    assert server.until(lambda: not server.open)


TOOLS = [
    {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"b": [1, 2], "a": "ü"}'}},
    {"id": "2", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
]


@streams
def test_tool_calls_come_as_the_message_and_compare_by_what_they_ask(stream: bool) -> None:
    with serve(answer=lambda body: {"tool_calls": TOOLS}) as server:
        answer = ask(server, call(stream=stream))
    assert answer.text == '[{"arguments":{"a":"ü","b":[1,2]},"name":"find"},{"arguments":{},"name":"stop"}]'
    assert isinstance(answer.output, dict)
    assert answer.output["tool_calls"] == TOOLS


def test_tool_calls_without_numbers_are_told_apart_by_their_ids() -> None:
    pieces = Pieces(call(first_token=0.0))
    for index, name, arguments in [
        (0, "a", '{"x":'),
        (0, None, "1}"),
        (0, "b", "{}"),
        (None, "c", '{"y"'),
        (None, None, ":2}"),
    ]:
        tool: dict[str, Any] = {"function": {"arguments": arguments} | ({"name": name} if name else {})}
        tool |= ({"id": name} if name else {}) | ({"index": index} if index is not None else {})
        pieces.take({"choices": [{"index": 0, "delta": {"tool_calls": [tool]}}]})
    found = pieces.body["choices"][0]["message"]["tool_calls"]
    assert [(t["id"], t["function"]["arguments"]) for t in found] == [("a", '{"x":1}'), ("b", "{}"), ("c", '{"y":2}')]


def test_broken_arguments_of_a_tool_are_invalid() -> None:
    broken = [{"id": "1", "function": {"name": "find", "arguments": "{"}}]
    with pytest.raises(CallFailed, match="arguments of find") as caught:
        read_completion(call(), whole({"content": None, "tool_calls": broken}))
    assert caught.value.failure is Failure.INVALID


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ASKED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("form", "said", "detail"),
    [
        ({"type": "json_object"}, '{"a": 1}', None),
        ({"type": "json_object"}, "[1]", "no JSON object but list"),
        ({"type": "json_object"}, '{"a": NaN}', "NaN is no JSON"),
        ({"type": "json_object"}, "[" * 100_000, "no JSON"),
        (ASKED, '{"n": 3}', None),
        (ASKED, '{"n": "3"}', r"\$\.n: '3' is not of type 'integer'"),
        (ASKED, '{"n": ', "no JSON"),
        ({"type": "text"}, "no JSON at all", None),
    ],
)
def test_json_that_was_asked_for_is_checked(form: dict[str, Any], said: str, detail: str | None) -> None:
    one = call(request={"response_format": form})
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    if detail is None:
        assert read_completion(one, whole({"content": said})).text == said
        return
    with pytest.raises(CallFailed, match=detail) as caught:
        read_completion(one, whole({"content": said}, usage=usage))
    assert caught.value.failure is Failure.INVALID
    assert one.usage == Usage(3, 5)


def test_a_schema_that_is_none_or_refers_elsewhere_is_a_bad_request_and_fetches_nothing() -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "http://127.0.0.1:1/schema.json"}):
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        with pytest.raises(CallFailed, match="schema") as caught:
            read_completion(call(request={"response_format": form}), whole({"content": "1"}))
        assert caught.value.failure is Failure.REQUEST


def test_invalid_json_moves_on_with_what_it_cost(server: Server) -> None:
    one = call("x+badjson", request={"response_format": ASKED})
    assert fails(server, one).failure is Failure.INVALID
    assert one.usage == Usage(3, 1)


@pytest.mark.parametrize(
    ("kind", "score"),
    [
        ("mean_logprob", -0.2),
        ("min_logprob", -0.3),
        ("sum_logprob", -0.4),
        ("probability", math.exp(-0.2)),
        ("x", None),
    ],
)
@pytest.mark.parametrize("logs", [[-0.1, -0.3], [-0.1, 0.1], [math.nan], [-math.inf], [], ["no"], [None]])
def test_confidence_is_what_was_asked_for_and_nan_where_it_makes_no_sense(
    kind: str, score: float | None, logs: list[object]
) -> None:
    body = whole()
    body["choices"][0]["logprobs"] = {"content": [{"token": "t", "logprob": log} for log in logs]}
    found = read_completion(call(confidence=kind), body).score
    if logs == [-0.1, -0.3] and score is not None:
        assert found == pytest.approx(score)
    else:
        assert math.isnan(found)


@streams
def test_confidence_asks_for_logprobs(stream: bool, server: Server) -> None:
    answer = ask(server, call(confidence="probability", stream=stream))
    assert server.served[0].body["logprobs"] is True
    assert 0 < answer.score <= 1
    ask(server, call(stream=stream))
    assert "logprobs" not in server.served[1].body


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 3}, Usage(5, 3)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(5, 3, 4, 2),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_cache_hit_tokens": 4}, Usage(5, 3, 4)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "total_tokens": 18,
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
            Usage(5, 13, 0, 10),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": None}, Usage(5, 3)),
        ({"prompt_tokens": -5, "completion_tokens": 3}, None),
        ({"prompt_tokens": 5.0, "completion_tokens": 3}, None),
        ({"prompt_tokens": True, "completion_tokens": 3}, None),
        ({"prompt_tokens": 10**30, "completion_tokens": 3}, None),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}}, None),
        ({"prompt_tokens": 5, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 4}}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 5}, None),
        ("5", None),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": [1]}, None),
    ],
)
def test_usage_is_read_as_billed_or_not_at_all(raw: object, usage: Usage | None) -> None:
    assert read_usage(raw) == usage


@pytest.mark.parametrize(
    ("cost", "nano"), [(0.0000015, 1500), (0.1, 100_000_000), (0, 0), (-1, None), ("1", None), (math.nan, None)]
)
def test_a_cost_that_the_provider_reports_is_exact_in_nano_dollars(cost: object, nano: int | None) -> None:
    one = call()
    read_completion(one, whole(usage={"prompt_tokens": 1, "completion_tokens": 1, "cost": cost}))
    assert one.reported == nano


def test_llama_cpps_timings_are_its_own_time() -> None:
    one = call()
    read_completion(one, whole(timings={"prompt_ms": 2.5, "predicted_ms": 10}))
    assert one.served_ms == 12.5


def test_audio_comes_as_the_message_and_parts_of_text_as_one() -> None:
    spoken = read_completion(call(), whole({"content": None, "audio": {"id": "a", "transcript": "hello"}}))
    assert spoken.text == "hello"
    assert isinstance(spoken.output, dict)
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_completion(call(), whole({"content": parts})).output == "ab"


@pytest.mark.parametrize(
    ("body", "failure", "detail"),
    [
        ({"error": {"message": "slow down", "code": 429}}, Failure.RATE, "429 slow down"),
        ({"error": "plain words"}, Failure.SERVER, "500 plain words"),
        ({"choices": []}, Failure.GARBAGE, "no chat completion"),
        ({"choices": [{"message": {"content": 7}}]}, Failure.GARBAGE, "no chat completion"),
        ({"choices": [{"error": {"code": 502, "message": "upstream"}}]}, Failure.SERVER, "502 upstream"),
        ([1], Failure.GARBAGE, "no chat completion"),
        (None, Failure.GARBAGE, "no chat completion"),
    ],
)
def test_a_body_that_is_no_answer_is_said_to_be_none(body: object, failure: Failure, detail: str) -> None:
    with pytest.raises(CallFailed, match=detail) as caught:
        read_completion(call(), body)
    assert caught.value.failure is failure


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"error": {"message": "m"}}', "418 m"),
        (b'{"error": "m"}', "418 m"),
        (b'{"object": "error", "message": "m"}', "418 m"),
        (b'{"detail": "m"}', "418 m"),
        (b'[{"error": {"message": "m"}}]', "418 m"),
        (b"<p>m\n\n  n</p>", "418 <p>m n</p>"),
        (b"\xff", "418 �"),
        (b"", "418"),
    ],
)
def test_every_servers_way_to_say_an_error_is_read(body: bytes, detail: str) -> None:
    assert failed(418, body).detail == detail


def test_codes_decide_where_the_status_does_not() -> None:
    assert failure_of(429, "insufficient_quota") is Failure.QUOTA
    assert failure_of(400, "content_filter") is Failure.REFUSED
    assert failure_of(402) is Failure.QUOTA
    assert failure_of(302) is Failure.REQUEST
    assert failure_of(529) is Failure.SERVER


def test_the_servers_wait_is_read_in_all_its_forms() -> None:
    def wait(**headers: str) -> float | None:
        return retry_after({name.replace("_", "-"): value for name, value in headers.items()})

    assert wait(retry_after="1.5") == 1.5
    assert wait(retry_after_ms="20", retry_after="9") == pytest.approx(0.02)
    assert wait(retry_after=formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert wait(retry_after=formatdate(time.time() - 60, usegmt=True)) == 0
    assert [wait(retry_after=text) for text in ("soon", "-1", "nan", "inf", "")] == [None] * 5
    assert wait() is None


def test_a_429_tells_when_to_come_back_and_then_it_works() -> None:
    with serve(retry_after="0.25") as server:
        assert fails(server, call("x+429:1")).retry_after == 0.25
        assert ask(server, call("x+429:1")).text


@both
def test_the_key_and_other_secrets_never_show(backend: str) -> None:
    echo = f"Bad key {KEY}, team team-secret-1, proxy pass-word-9 " + "z" * 290 + KEY

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": None, "error": {"message": echo, "code": 401}}

    with serve(answer=answer) as server:
        proxy = f"http://user:pass-word-9@127.0.0.1:{server.port}"
        endpoint = OpenAICompatible(server.url, KEY, headers={"X-Team": "team-secret-1"}, proxy=proxy)
        with pytest.raises(CallFailed) as caught:
            anyio.run(endpoint, call(), backend=backend)
    shown = f"{caught.value} {caught.value.detail} {endpoint!r}"
    assert caught.value.failure is Failure.AUTH
    assert caught.value.detail.startswith("401 Bad key ***, team ***, proxy *** zz")
    assert len(caught.value.detail) == 300
    for secret in (KEY, KEY[:20], "team-secret-1", "pass-word-9"):
        assert secret not in shown
    assert repr(endpoint).startswith("OpenAICompatible(base_url='http://127.0.0.1:")


def test_a_tenant_is_its_key_and_no_key_is_none() -> None:
    a, b = OpenAICompatible("http://h/v1", "key-a"), OpenAICompatible("http://h/v1", "key-b")
    assert a.tenant == OpenAICompatible("http://h/v1", "key-a", headers={"X-Title": "t"}).tenant != b.tenant
    assert OpenAICompatible("http://h/v1").tenant == ""
    header = OpenAICompatible("http://h/v1", headers={"api-key": "key-a"}).tenant
    client = OpenAICompatible("http://h/v1", http_client=httpx.AsyncClient(headers={"api-key": "key-b"})).tenant
    assert len({header, client, a.tenant, ""}) == 4
    assert len(a.tenant) == 16
    assert (a.name, OpenAICompatible("http://H:8000/v1").name) == ("h", "h:8000")


def test_keys_come_from_the_environment_and_go_to_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "open")
    monkeypatch.setenv("OTHER", "other\n")
    assert OpenAICompatible().tenant == OpenAICompatible(api_key="open").tenant
    assert OpenAICompatible("http://h/v1").tenant == ""
    assert OpenAICompatible("http://h/v1", api_key_env="OTHER").tenant == OpenAICompatible("http://h", "other").tenant
    monkeypatch.delenv("OPENAI_API_KEY")
    for key in (None, ""):
        with pytest.raises(Misuse, match="set OPENAI_API_KEY, or give api_key"):
            OpenAICompatible(api_key=key)
    with pytest.raises(Misuse, match="set NONE_SUCH"):
        OpenAICompatible("http://h/v1", api_key_env="NONE_SUCH")


@pytest.mark.parametrize("url", ["h/v1", "ftp://h", "http://", "http://user:secret-pass@h/v1"])
def test_a_base_url_that_can_not_work_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match="base_url") as caught:
        OpenAICompatible(url, "k")
    assert "secret-pass" not in str(caught.value)


def test_a_key_that_no_header_can_hold_is_refused_and_not_shown() -> None:
    for key in ("secret\nkey", "secret kéy"):
        with pytest.raises(Misuse, match="Authorization") as caught:
            OpenAICompatible("http://h/v1", key)
        assert "secret" not in str(caught.value)
    with pytest.raises(Misuse, match="http_client"):
        OpenAICompatible("http://h/v1", verify=False, http_client=httpx.AsyncClient())


def test_base_urls_path_and_query_stay() -> None:
    assert OpenAICompatible("http://h:1/a/v1/?api-version=3")._url == "http://h:1/a/v1/chat/completions?api-version=3"
    assert OpenAICompatible("http://h", path="/x")._url == "http://h/x"


@both
def test_a_client_of_the_users_is_used_and_left_open(backend: str, server: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(headers={"X-Mine": "1"}) as client:
            endpoint = OpenAICompatible(server.url, KEY, http_client=client)
            assert (await endpoint(call(stream=True))).text
            assert not client.is_closed

    anyio.run(main, backend=backend)
    assert server.served[0].headers["x-mine"] == "1"


def test_a_request_that_is_no_json_is_a_bad_request(server: Server) -> None:
    for bad in (math.nan, object()):
        assert fails(server, call(request={"temperature": bad})).failure is Failure.REQUEST
    assert not server.served


EVENTS = [b'{"a": "\xc3\xbc\xe2\x82\xac"}', b"one\ntwo", b"", b"[DONE]"]
WIRE = (
    b": comment\r\nevent: x\r\nid: 7\r\ndata: " + EVENTS[0] + b"\r\n\r\n"  # CRLF
    b"data:one\ndata: two\n\n\n: ping\n\n"  # LF, data in lines, no space
    b"data\r\rretry: 5\rdata: [DONE]\r\r"  # CR, a field without a value
)


@given(st.lists(st.integers(0, len(WIRE)), max_size=30))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    marks = [0, *sorted(cuts), len(WIRE)]
    events = Events()
    found = [data for a, b in pairwise(marks) for data in events.feed(WIRE[a:b])]
    assert found + events.end() == EVENTS


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")), min_size=1)), st.data())
def test_events_say_what_was_put_into_them(said: list[list[str]], data: st.DataObject) -> None:
    wire, want = b"", []
    for lines in said:
        end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        wire += b"".join(b"data: " + line.encode() + end for line in lines) + end
        want.append("\n".join(lines).encode())
    size = data.draw(st.integers(1, 9))
    events = Events()
    found = [one for i in range(0, len(wire), size) for one in events.feed(wire[i : i + size])]
    assert found + events.end() == want


NAMES = ["choices", "message", "delta", "content", "usage", "error", "refusal", "tool_calls", "function", "id", "index"]
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(json_like)
def test_whatever_a_server_sends_is_an_answer_or_a_typed_failure(body: Any) -> None:
    shapes = [body, {"choices": [body]}, {"choices": [{"message": body}]}, {"choices": [{"delta": body}]}]
    for shape in shapes:
        with suppress(CallFailed):
            assert isinstance(read_completion(call(confidence="probability"), shape), Answer)
        pieces = Pieces(call(first_token=0.0))
        with suppress(CallFailed):
            for _ in range(2):
                pieces.add(json.dumps(shape).encode())
            assert isinstance(read_completion(call(), pieces.body), Answer)


# --- what a server sends byte by byte


@contextmanager
def saying(*replies: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection with the next of these bytes; its URL, and what it was sent."""
    heard: list[bytes] = []

    def answer() -> None:
        for reply in replies:
            connection, _ = listening.accept()
            with connection:
                data = b""
                while b"\r\n\r\n" not in data or not data.rstrip().endswith(b"}"):
                    data += connection.recv(65536)
                heard.append(data)
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://localhost:{listening.getsockname()[1]}/v1", heard
        listening.close()
        thread.join(5)


def streamed(*events: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + end


SAYS = b'data: {"choices": [{"index": 0, "delta": {"content": "yes"}}]}\n\n'


@both
def test_an_answer_whose_connection_breaks_after_done_is_whole(backend: str) -> None:
    with saying(streamed(SAYS, b"data: [DONE]\n\n", end=b"5\r\n")) as (url, _):
        assert anyio.run(OpenAICompatible(url, KEY), call(stream=True), backend=backend).text == "yes"


@both
@pytest.mark.parametrize("last", [b"", b'data: {"choices": [{"ind'])
def test_a_stream_that_stops_without_a_word_is_cut(backend: str, last: bytes) -> None:
    with saying(streamed(SAYS, *([last] if last else []))) as (url, _), pytest.raises(CallFailed) as caught:
        anyio.run(OpenAICompatible(url, KEY), call(stream=True), backend=backend)
    assert caught.value.failure is Failure.CUT


@both
def test_no_redirect_is_followed_with_the_key(backend: str, server: Server) -> None:
    moved = f"HTTP/1.1 307 X\r\nlocation: {server.url}/chat/completions\r\ncontent-length: 0\r\n\r\n".encode()
    with saying(moved) as (url, _), pytest.raises(CallFailed) as caught:
        anyio.run(OpenAICompatible(url, KEY), call(), backend=backend)
    assert (caught.value.failure, server.served) == (Failure.REQUEST, [])


@both
def test_a_cookie_of_one_tenant_never_comes_back_from_another(backend: str) -> None:
    body = json.dumps(whole()).encode()
    head = "HTTP/1.1 200 OK\r\nset-cookie: who=alice; Path=/\r\nconnection: close\r\ncontent-type: application/json\r\n"
    reply = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    async def main() -> None:
        for key in ("alice's", "bob's"):
            await OpenAICompatible(url, key)(call())

    with saying(reply, reply) as (url, heard):
        anyio.run(main, backend=backend)
    assert len(heard) == 2
    assert b"alice;" not in heard[1].lower()
    assert b"cookie" not in heard[1].lower()


@both
def test_the_environments_proxy_is_used_where_asked_alone(
    backend: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert ask(server, call(), backend).text


@both
def test_the_connection_of_a_stream_is_used_again(backend: str, server: Server) -> None:
    async def main() -> None:
        for _ in range(5):
            await OpenAICompatible(server.url, KEY)(call(stream=True))

    anyio.run(main, backend=backend)
    assert server.connections == 1


def test_headers_of_an_arm_do_not_show_in_errors() -> None:
    with serve(answer=lambda body: {"choices": None, "error": {"message": "no arm-secret-1", "code": 401}}) as server:
        assert fails(server, call(headers={"X-Arm": "arm-secret-1"})).detail == "401 no ***"


def test_of_secrets_that_hold_each_other_no_part_shows() -> None:
    error = CallFailed(Failure.AUTH, "bad secret-key-of-bob")
    assert tidy(error, ["secret-key", "secret-key-of-bob"]).detail == "bad ***"


def test_a_listener_does_not_hear_the_calls_of_tools(server: Server) -> None:
    told: list[str] = []
    server.fault = lambda body: body.pop("stream") and ""
    server.answer = lambda body: {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    assert ask(server, call(listen=told.append)).text
    assert told == []


def test_logprobs_that_the_request_asks_for_itself_stay(server: Server) -> None:
    ask(server, call(confidence="mean_logprob", request={"logprobs": False}))
    assert server.served[0].body["logprobs"] is False


def test_a_stream_says_what_it_cost_at_its_end_and_what_was_thought_is_paid_but_not_said() -> None:
    told: list[str] = []
    one = call(listen=told.append, first_token=0.0)
    pieces, usage = Pieces(one), {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.5}
    pieces.take({"choices": [{"index": 0, "delta": {"reasoning_content": "hmm "}}], "usage": usage})
    pieces.take({"choices": [{"index": 1, "delta": {"content": "other"}}]})
    assert (one.usage, one.reported, one.heard) == (None, None, "hmm ")
    pieces.take({"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}], "usage": usage})
    assert (one.usage, one.reported) == (Usage(3, 2), 500_000_000)
    assert (told, one.heard) == (["yes"], "hmm yes")


def test_what_follows_done_is_read_so_that_the_connection_can_be_used_again() -> None:
    class Body(httpx.AsyncByteStream):
        read = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield SAYS
            yield b"data: [DONE]\n\n"
            await anyio.sleep(0)
            self.read = True

    body = Body()
    reply = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: reply))
    assert anyio.run(OpenAICompatible("http://host/v1", KEY, http_client=client), call(stream=True)).text == "yes"
    assert body.read
