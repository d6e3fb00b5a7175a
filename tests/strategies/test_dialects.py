"""What is read of requests and responses in the formats of OpenAI, Anthropic, Gemini and those that speak alike."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playcall.strategies.anthropic import completion_of
from playcall.strategies.call import Call, Usage
from playcall.strategies.completion import read_usage
from playcall.strategies.dialects import Asked, Reading, asked, billed, likely
from playcall.strategies.prices import Price, price_map

KEY = "sk-very-secret-key-0123456789"
EVENTS = "text/event-stream"
PATHS = {
    "openai": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}
HELLO = {"messages": [{"role": "user", "content": "one two three"}]}
Body = dict[str, Any]


def ask(path: str, body: Body | None = None, host: str = "api.example", **headers: str) -> Asked:
    sent = json.dumps({"model": "m", **HELLO, **(body or {})}).encode()
    found = asked("POST", f"https://{host}{path}", headers or {"Authorization": f"Bearer {KEY}"}, sent)
    assert found is not None
    return found


def streamed(dialect: str, **body: Any) -> Asked:
    path = PATHS[dialect].replace("generate", "streamGenerate") + ("?alt=sse" if dialect == "gemini" else "")
    return ask(path, {"stream": True, "stream_options": {"include_usage": True}, **body})


def a_call(model: str = "m") -> Call:
    return Call("a", model, None, None, 0, {})


def read(
    one: Asked, chunks: Iterable[bytes], kind: str = "application/json", status: int = 200
) -> tuple[Call, Reading, bytes]:
    call = a_call(one.model)
    reading = Reading(one, call)
    reading.begin(status, {"Content-Type": kind})
    seen = b"".join([reading.feed(chunk) for chunk in chunks])
    return call, reading, seen + reading.end()


def whole(dialect: str, body: object) -> tuple[Call, Reading]:
    return read(ask(PATHS[dialect]), [json.dumps(body).encode()])[:2]


def sse(*events: object, end: str = "\n\n", done: bool = True) -> bytes:
    told = [json.dumps(event, ensure_ascii=False) for event in events] + ["[DONE]"] * done
    return "".join(f"data: {event}{end}" for event in told).encode()


USED = {"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
USED["completion_tokens_details"] = {"reasoning_tokens": 3}
READ = Usage(12, 5, cached=4, reasoning=3)
DELTAS: list[Body] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "grün "}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": "tea"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
LAST = {"choices": [], "usage": USED}
MESSAGE_IN = {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3}
MESSAGE_OUT = {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}}
MESSAGE_USE: Body = {**MESSAGE_IN, **MESSAGE_OUT}
GEMINI_USE = {"promptTokenCount": 10, "toolUsePromptTokenCount": 2, "candidatesTokenCount": 2}
GEMINI_USE |= {"thoughtsTokenCount": 3, "cachedContentTokenCount": 4, "totalTokenCount": 17}
RESPONSE_USE = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}
RESPONSE_MORE = {"input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 3}}
RESPONSE = {
    "status": "completed",
    "error": None,
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": ""}]},
        {"type": "message", "content": [{"type": "output_text", "text": "grün tea"}]},
    ],
    "usage": {**RESPONSE_USE, **RESPONSE_MORE},
}
WHOLE: dict[str, tuple[Body, Usage]] = {
    "openai": ({"choices": [{"message": {"content": "grün tea"}, "finish_reason": "stop"}], "usage": USED}, READ),
    "completions": ({"choices": [{"index": 0, "text": "grün tea", "finish_reason": "stop"}], "usage": USED}, READ),
    "responses": (RESPONSE, READ),
    "anthropic": (
        {"content": [{"type": "text", "text": "grün tea"}], "stop_reason": "stop", "usage": MESSAGE_USE},
        Usage(12, 5, cached=4, reasoning=3, written=3),
    ),
    "gemini": (
        {
            "candidates": [{"content": {"parts": [{"text": "grün "}, {"text": "tea"}]}, "finishReason": "STOP"}],
            "usageMetadata": GEMINI_USE,
        },
        READ,
    ),
}
STREAMS: dict[str, tuple[bytes, Usage]] = {
    "openai": (sse(*DELTAS, LAST), READ),
    "completions": (
        sse({"choices": [{"index": 0, "text": "grün tea", "finish_reason": "stop"}]}, {"choices": [], "usage": USED}),
        READ,
    ),
    "responses": (
        sse(
            {"type": "response.created", "response": {"status": "in_progress", "error": None, "usage": None}},
            {"type": "response.output_text.delta", "delta": "grün "},
            {"type": "response.output_text.delta", "delta": "tea"},
            {"type": "response.completed", "response": RESPONSE},
            done=False,
        ),
        READ,
    ),
    "anthropic": (
        sse(
            {"type": "message_start", "message": {"usage": {**MESSAGE_IN, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "grün "}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "tea"}},
            {"type": "message_delta", "delta": {"stop_reason": "stop"}, "usage": MESSAGE_OUT},
            {"type": "message_stop"},
            done=False,
        ),
        Usage(12, 5, cached=4, reasoning=3, written=3),
    ),
    "gemini": (
        sse(
            {"candidates": [{"content": {"parts": [{"text": "grün "}]}}], "usageMetadata": {"promptTokenCount": 10}},
            {
                "candidates": [{"content": {"parts": [{"text": "tea"}]}, "finishReason": "STOP"}],
                "usageMetadata": GEMINI_USE,
            },
            done=False,
        ),
        READ,
    ),
}


def test_a_model_call_is_known_by_the_end_of_its_path_whatever_the_host() -> None:
    for dialect, path in PATHS.items():
        assert ask(path).dialect == dialect
        assert ask(f"/some/gateway{path}", host="127.0.0.1:8000").dialect == dialect
    found = ask(PATHS["openai"], host="API.Example:8443")
    assert (found.host, found.path, found.model, found.stream) == ("api.example:8443", PATHS["openai"], "m", False)


@pytest.mark.parametrize(
    ("method", "url", "content"),
    [
        ("GET", "https://x/v1/chat/completions", b'{"model": "m"}'),
        ("POST", "https://x/v1/files", b'{"model": "m"}'),
        ("POST", "https://[x/v1/chat/completions", b'{"model": "m"}'),
        ("POST", "https://x/v1/chat/completions", b"no json"),
        ("POST", "https://x/v1/chat/completions", b'["model"]'),
        ("POST", "https://x/v1/threads/t/messages", b'{"role": "user"}'),
        ("POST", "https://x/v1/chat/completions", b'{"model": ["m"]}'),
        ("POST", "https://x/v1/chat/completions", b"[" * 100_000),
    ],
)
def test_what_is_no_model_call_is_none(method: str, url: str, content: bytes) -> None:
    assert asked(method, url, {}, content) is None


def test_a_request_may_be_a_model_call_by_its_method_and_path() -> None:
    for path in PATHS.values():
        assert likely("post", f"https://x{path}?a=1")
        assert not likely("GET", f"https://x{path}")
    assert not likely("POST", "https://x/v1/files?a=/v1/messages")
    assert not likely("POST", "https://[x/v1/messages")


def test_behind_a_proxy_of_ours_a_call_has_the_host_and_path_that_it_has_without() -> None:
    direct = ask(PATHS["openai"], host="vllm:8000")
    for start in ("/~token-1/http/vllm:8000", "/%7Eanother_2/http/VLLM:8000/role=judge"):
        one = ask(f"{start}{PATHS['openai']}", host="127.0.0.1:4321")
        assert (one.host, one.path, one.tenant) == (direct.host, direct.path, direct.tenant)
        assert one.target == f"{start}{PATHS['openai']}"
    for start in ("/~token./http/vllm:8000", "/~token/0", "/~token"):  # another model may answer; or nobody knows who
        assert ask(f"{start}{PATHS['openai']}", host="127.0.0.1:4321").path.startswith("/~token")
    assert ask(f"/~me/http/vllm{PATHS['openai']}", host="elsewhere:80").host == "elsewhere:80"


def test_no_credential_shows_and_tenants_differ_by_it() -> None:
    gemini = ask(f"/v1beta/models/g:generateContent?key={KEY}&alt=sse", x="y")
    assert gemini.path == "/v1beta/models/g:generateContent?alt=sse"
    assert gemini.target == f"/v1beta/models/g:generateContent?key={KEY}&alt=sse"
    assert KEY not in repr(gemini)
    tenants = {ask(PATHS["openai"], **{name: KEY}).tenant for name in ("authorization", "x-api-key", "api-key")}
    assert len(tenants | {gemini.tenant, ask(PATHS["openai"], authorization="other").tenant}) == 5
    assert ask(PATHS["openai"], accept="*/*").tenant == ""


def test_a_call_that_is_not_changed_is_sent_byte_by_byte() -> None:
    content = b'{ "model":"m" , "n" : 1.0 }'
    found = asked("POST", "https://x/v1/chat/completions", {}, content)
    assert found is not None
    assert found.content is content
    assert found.renamed("m").content is content


def test_a_renamed_call_is_the_same_call_of_another_model() -> None:
    one = ask(PATHS["openai"], {"temperature": 0})
    assert json.loads(one.renamed("n").content) == {"model": "n", **HELLO, "temperature": 0}
    assert one.renamed("n").model == "n"
    assert one.renamed("n").target == one.target
    gemini = ask(f"/v1beta/models/old:streamGenerateContent?key={KEY}", {"contents": []})
    assert gemini.renamed("a/b").target == f"/v1beta/models/a%2Fb:streamGenerateContent?key={KEY}"
    assert gemini.renamed("b").path == "/v1beta/models/b:streamGenerateContent"
    assert gemini.stream


def test_azure_names_its_model_in_the_path() -> None:
    url = "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=2025-01-01"
    found = asked("POST", url, {"api-key": KEY}, json.dumps(HELLO).encode())
    assert found is not None
    assert (found.dialect, found.model) == ("openai", "d")
    other = found.renamed("e")
    assert other.target == "/openai/deployments/e/chat/completions?api-version=2025-01-01"
    assert json.loads(other.content) == HELLO
    both = ask("/openai/deployments/d/chat/completions", {"model": "d"}).renamed("e")
    assert both.target == "/openai/deployments/e/chat/completions"
    assert both.body["model"] == "e"


@pytest.mark.parametrize("dialect", WHOLE)
def test_a_whole_answer_is_read(dialect: str) -> None:
    body, usage = WHOLE[dialect]
    call, reading = whole(dialect, body)
    assert (call.usage, call.heard, call.finish, call.error) == (usage, "grün tea", "stop", "")
    assert reading.whole
    assert call.first_token is None


@pytest.mark.parametrize("dialect", STREAMS)
@given(cuts=st.lists(st.integers(0, 900), max_size=12), crlf=st.booleans())
def test_a_stream_is_read_wherever_it_is_cut(dialect: str, cuts: list[int], crlf: bool) -> None:
    data, usage = STREAMS[dialect]
    data = data.replace(b"\n", b"\r\n") if crlf else data
    at = [0, *sorted(cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(at)]
    call, reading, seen = read(streamed(dialect), chunks, "text/event-stream")
    assert (call.usage, call.heard, call.finish, call.error) == (usage, "grün tea", "stop", "")
    assert reading.whole
    assert call.first_token is not None
    assert seen == data


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_geminis_array_is_read_as_it_comes(cuts: list[int]) -> None:
    pieces = [json.loads(line[6:]) for line in STREAMS["gemini"][0].decode().split("\n\n") if line]
    data = ("[" + "\n,\r\n".join(json.dumps(piece, indent=1, ensure_ascii=False) for piece in pieces) + "]\n").encode()
    at = [0, *sorted(cuts), len(data)]
    one = ask("/v1beta/models/m:streamGenerateContent")
    call, reading, seen = read(one, [data[a:b] for a, b in itertools.pairwise(at)])
    assert (call.usage, call.heard, call.finish) == (READ, "grün tea", "stop")
    assert reading.whole
    assert seen == data
    assert call.first_token is not None


@given(cuts=st.lists(st.integers(0, 600), max_size=8), end=st.sampled_from(["\n\n", "\r\n\r\n"]), closed=st.booleans())
def test_only_the_usage_that_a_client_did_not_ask_for_is_left_out(cuts: list[int], end: str, closed: bool) -> None:
    one = ask(PATHS["openai"], {"stream": True})
    assert one.hides_usage
    assert json.loads(one.content)["stream_options"] == {"include_usage": True}
    azure = {"choices": [], "prompt_filter_results": [], "usage": None}
    before, last = b": hello" + end.encode() + sse(azure, *DELTAS, end=end, done=False), sse(LAST, end=end, done=False)
    done = sse(end=end) if closed else b""
    data = before + last + done
    if not closed:
        data = data.removesuffix(end.encode())  # the last event is ended by the body's end
    at = [0, *sorted(cuts), len(data)]
    call, reading, seen = read(one, [data[a:b] for a, b in itertools.pairwise(at)], "text/event-stream")
    assert seen == before + done
    assert call.usage == READ
    assert reading.whole


def test_a_long_event_takes_no_longer_where_usage_is_left_out() -> None:
    choice = {"index": 0, "delta": {"content": "x" * 2_000_000}, "finish_reason": "stop"}
    shown = sse({"choices": [choice]}, done=False)
    data = shown + sse(LAST)
    chunks = [data[at : at + 1400] for at in range(0, len(data), 1400)]

    def took(one: Asked) -> float:
        start = time.process_time()
        call, _, seen = read(one, chunks, "text/event-stream")
        assert (len(call.heard), call.usage) == (2_000_000, READ)
        assert seen == (shown + sse() if one.hides_usage else data)
        return time.process_time() - start

    asking = min(took(streamed("openai")) for _ in range(3))
    assert min(took(ask(PATHS["openai"], {"stream": True})) for _ in range(3)) < 5 * asking


def test_a_server_may_be_asked_without_asking_for_usage() -> None:
    one = ask(PATHS["openai"], {"stream": True})
    assert not one.unasked().hides_usage
    assert one.unasked().content == one.original


def test_a_client_that_asks_for_usage_sees_it() -> None:
    one = streamed("openai")
    assert not one.hides_usage
    assert not ask(PATHS["openai"]).hides_usage
    assert not streamed("anthropic").hides_usage
    assert read(one, [STREAMS["openai"][0]], "text/event-stream")[2] == STREAMS["openai"][0]


def test_what_servers_add_to_usage_is_read() -> None:
    def usage(**told: Any) -> Call:
        return whole("openai", {**WHOLE["openai"][0], "usage": {**USED, **told}})[0]

    assert usage(cost=0.0125).reported == 12_500_000  # OpenRouter
    wrote = usage(prompt_tokens_details={"cached_tokens": 4, "cache_write_tokens": 6})
    assert wrote.usage == Usage(12, 5, cached=4, reasoning=3, written=6)
    assert usage(prompt_tokens_details=None, prompt_cache_hit_tokens=7).usage == Usage(12, 5, cached=7, reasoning=3)
    assert usage(total_tokens=20).usage == Usage(12, 8, cached=4, reasoning=3)  # xAI: reasoning beside the output
    body = {**RESPONSE, "usage": {**RESPONSE_USE, "input_tokens_details": {"cache_write_tokens": 2}, "cost": 1}}
    call, _ = whole("responses", body)
    assert call.usage == Usage(12, 5, written=2)
    assert call.reported == 1_000_000_000


def test_google_counts_thoughts_of_chat_completions_in_the_total_alone() -> None:
    used = {"prompt_tokens": 758, "completion_tokens": 102, "total_tokens": 1725}
    body = {**WHOLE["openai"][0], "usage": used}
    for host, usage in (("generativelanguage.googleapis.com", Usage(758, 967, reasoning=865)), ("x", Usage(758, 102))):
        one = ask("/v1beta/openai/chat/completions", host=host)
        assert read(one, [json.dumps(body).encode()])[0].usage == usage


def test_an_embedding_has_input_alone() -> None:
    call, reading = whole("embeddings", {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 7}})
    assert call.usage == Usage(7)
    assert reading.whole
    assert not call.error


def test_tools_refusals_and_limits_are_finishes_and_no_errors() -> None:
    tool = {"type": "function_call", "name": "f", "arguments": '{"x": 1}'}
    call, reading = whole("responses", {**RESPONSE, "output": [tool]})
    assert (call.finish, call.heard, reading.whole) == ("tool_calls", '{"x": 1}', True)
    short = {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert whole("responses", short)[0].finish == "length"
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    call, reading = whole("gemini", blocked)
    assert (call.finish, call.usage, reading.whole) == ("content_filter", Usage(3), True)
    use = {"type": "tool_use", "name": "f", "input": {"x": 1}}
    call, _ = whole("anthropic", {"content": [use], "stop_reason": "tool_use", "usage": MESSAGE_USE})
    assert (call.finish, call.error) == ("tool_calls", "")


def test_a_response_that_goes_on_in_the_background_is_not_whole() -> None:
    call, reading = whole("responses", {**RESPONSE, "status": "queued", "output": [], "usage": None})
    assert (call.finish, call.error, reading.whole) == ("queued", "", False)
    billed(call, ask(PATHS["responses"], {"input": "one two three"}), Price(1, 1))
    assert call.estimated


@pytest.mark.parametrize(
    ("dialect", "status", "body", "error"),
    [
        ("openai", 429, {"error": {"message": "slow", "code": "rate_limit_exceeded"}}, "rate_limited"),
        ("openai", 429, {"error": {"message": "poor", "code": "insufficient_quota"}}, "quota"),
        ("openai", 401, {"error": {"message": f"wrong key {KEY}"}}, "auth"),
        ("anthropic", 529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "server"),
        ("gemini", 400, [{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}], "bad_request"),
        ("responses", 404, "<html>nowhere</html>", "not_found"),
    ],
)
def test_an_error_is_told_without_secrets(dialect: str, status: int, body: object, error: str) -> None:
    one = ask(PATHS[dialect])
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    call, reading, seen = read(one, [content], status=status)
    assert (call.error, reading.whole, seen) == (error, False, content)
    assert call.detail.startswith(str(status))
    assert KEY not in call.detail
    billed(call, one, Price(1, 1))
    assert (call.price, call.source) == (0, "unbilled")


@pytest.mark.parametrize(
    ("dialect", "event", "error"),
    [
        ("openai", {"error": {"message": "busy", "code": 503}}, "server"),
        ("openai", {"choices": [{"error": {"message": "slow", "code": 429}}]}, "rate_limited"),
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, "server"),
        ("anthropic", {"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, "rate_limited"),
        ("responses", {"type": "error", "code": "insufficient_quota", "message": "x"}, "quota"),
        ("responses", {"type": "response.failed", "response": {"error": {"code": "server_error"}}}, "server"),
        ("gemini", {"error": {"code": 503, "message": "x"}}, "server"),
    ],
)
def test_an_error_amid_a_stream_is_an_error(dialect: str, event: Body, error: str) -> None:
    begun = STREAMS[dialect][0].partition(b"tea")[0].rpartition(b"data:")[0]
    call, reading, _ = read(streamed(dialect), [begun, sse(event, done=False)], "text/event-stream")
    assert (call.error, reading.whole) == (error, False)


@given(st.binary(max_size=80), st.sampled_from(list(PATHS)), st.sampled_from(["application/json", "text/event-stream"]))
def test_garbage_never_raises_and_is_passed_on(garbage: bytes, dialect: str, kind: str) -> None:
    for one in (streamed(dialect), ask(PATHS[dialect])):
        call, reading, seen = read(one, [garbage, b"data: " + garbage + b"\n\n"], kind)
        assert seen.startswith(garbage)
        assert not reading.whole
        assert call.error


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted({
        "choices", "delta", "message", "content", "usage", "error", "response", "type", "output", "candidates", "parts",
        "usageMetadata", "data", "index", "prompt_tokens", "prompt_tokens_details", "text", "finish_reason", "summary",
    })), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values, st.sampled_from(list(PATHS)))
def test_json_of_any_other_shape_never_raises(value: object, dialect: str) -> None:
    whole(dialect, value)
    read(ask(PATHS[dialect]), [json.dumps(value).encode()], status=500)
    data = sse(value, value, done=False)
    assert read(streamed(dialect), [data], "text/event-stream")[2] == data


def test_a_stream_that_breaks_is_cut_and_one_whose_reader_leaves_is_cancelled() -> None:
    def broken(error: BaseException | None, data: bytes = sse(*DELTAS[:2], done=False)) -> tuple[Call, Reading]:
        call = a_call()
        reading = Reading(streamed("openai"), call)
        reading.begin(200, {"content-type": "text/event-stream"})
        reading.feed(data)
        reading.left(error)
        return call, reading

    call, reading = broken(ConnectionResetError("gone"))
    assert (call.error, call.cancelled, call.heard, reading.whole) == ("cut", False, "grün tea", False)
    assert broken(TimeoutError())[0].error == "timeout"
    call, reading = broken(None)
    assert (call.error, call.cancelled, reading.whole) == ("", True, False)
    call, reading = broken(None, STREAMS["openai"][0])  # as openai's client does after [DONE]
    assert (call.error, call.cancelled, reading.whole, call.usage) == ("", False, True, READ)
    assert read(streamed("openai"), [sse(*DELTAS[:2], done=False)], "text/event-stream")[0].error == "cut"


def test_a_connection_that_never_came_about_costs_nothing() -> None:
    one, call = ask(PATHS["openai"]), a_call()
    Reading(one, call).left(ConnectionRefusedError("nobody there"))
    billed(call, one, Price(1, 1))
    assert (call.error, call.price, call.source) == ("connection", 0, "unbilled")


def test_a_cancelled_call_is_billed_by_what_is_known_of_it() -> None:
    one = streamed("anthropic")
    call = a_call()
    reading = Reading(one, call)
    reading.begin(200, {"content-type": "text/event-stream"})
    reading.feed(STREAMS["anthropic"][0].partition(b"data: {\"type\": \"message_delta\"")[0])  # fmt: skip
    reading.left()
    billed(call, one, Price(1, 10))
    assert call.cancelled
    assert call.estimated
    assert call.usage == Usage(12, 3, cached=4, written=3)
    assert call.price == 12_000 + 3 * 10_000


def test_a_call_without_usage_is_estimated_from_what_was_sent_and_heard() -> None:
    one = ask(PATHS["openai"], {"messages": [{"role": "user", "content": "x" * 40 + "A" * 9000}]})
    call, _, _ = read(one, [json.dumps({"choices": [{"message": {"content": "y" * 40}}]}).encode()])
    billed(call, one, Price(1, 1000))
    assert call.estimated
    assert call.source == "user"
    assert 10_000_000 < call.price < 10_000_000 + 100_000  # the run of 9,040 letters is taken for an image


def billed_as(price: Price | Literal["free"] | None, model: str = "m", **used: Any) -> tuple[int, str, bool]:
    call, _ = whole("openai", {**WHOLE["openai"][0], "usage": {**USED, **used}})
    call.model = model
    billed(call, ask(PATHS["openai"]), price)
    return call.price, call.source, call.estimated


def test_the_price_is_the_users_else_the_reported_else_the_maps_else_unknown() -> None:
    if not price_map():
        pytest.skip("litellm is not installed")
    mine = Price(1, 10, cached=0.5)
    assert billed_as(mine, cost=0.5) == (8_000 + 4 * 500 + 50_000, "user", False)
    assert billed_as(None, cost=0.5) == (500_000_000, "provider", False)
    assert billed_as("free") == (0, "free", False)
    assert billed_as(None, "gpt-4o-mini") == (8 * 150 + 4 * 75 + 5 * 600, "map", False)
    assert billed_as(None, "nobodys-model") == (0, "unknown", False)


def test_an_embedding_has_the_maps_price() -> None:
    if not price_map():
        pytest.skip("litellm is not installed")
    call, _ = whole("embeddings", {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 700}})
    call.model = "text-embedding-3-small"
    billed(call, ask(PATHS["embeddings"]), None)
    assert (call.price, call.source, call.estimated) == (700 * 20, "map", False)


HOUR = {"cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 3}}


@pytest.mark.parametrize(
    ("dialect", "where", "told", "unsure"),
    [
        ("openai", "", {"service_tier": "flex"}, True),
        ("openai", "", {"service_tier": "default"}, False),
        ("openai", "", {"service_tier": None}, False),
        ("responses", "", {"service_tier": "priority"}, True),
        ("responses", "", {"service_tier": "default"}, False),
        ("anthropic", "usage", {"service_tier": "batch"}, True),
        ("anthropic", "usage", {"service_tier": "standard", "inference_geo": "global"}, False),
        ("anthropic", "usage", {"inference_geo": "us"}, True),
        ("anthropic", "usage", HOUR, True),
        ("anthropic", "usage", {"cache_creation": {"ephemeral_5m_input_tokens": 3}}, False),
        ("gemini", "usageMetadata", {"trafficType": "ON_DEMAND_PRIORITY"}, True),
        ("gemini", "usageMetadata", {"trafficType": "ON_DEMAND"}, False),
    ],
)
def test_tokens_of_another_price_than_the_usual_are_never_told_as_exact(
    dialect: str, where: str, told: Body, unsure: bool
) -> None:
    body, usage = WHOLE[dialect]
    body = {**body, where: {**body[where], **told}} if where else {**body, **told}
    calls = [whole(dialect, body)[0]]
    if dialect == "responses":
        calls.append(read(streamed(dialect), [sse({"type": "response.completed", "response": body})], EVENTS)[0])
    elif dialect == "anthropic":
        data = STREAMS[dialect][0].replace(
            b'"input_tokens": 5', json.dumps(told)[1:-1].encode() + b', "input_tokens": 5'
        )
        calls.append(read(streamed(dialect), [data], EVENTS)[0])
    for call in calls:
        billed(call, ask(PATHS[dialect]), Price(1, 1))
        assert (call.usage, call.estimated) == (usage, unsure)


def test_what_a_provider_says_it_charged_is_exact_whatever_the_tier() -> None:
    call, _ = whole("openai", {**WHOLE["openai"][0], "service_tier": "flex", "usage": {**USED, "cost": 0.5}})
    billed(call, ask(PATHS["openai"]), None)
    assert (call.price, call.source, call.estimated) == (500_000_000, "provider", False)


def test_usage_is_read_alike_where_playcall_makes_the_call() -> None:
    wrote = {**USED, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 6}}
    assert read_usage(wrote) == Usage(12, 5, cached=4, reasoning=3, written=6)
    message, usage = WHOLE["anthropic"]
    assert read_usage(completion_of(message)["usage"]) == usage


def test_it_is_read_in_a_thread_without_an_event_loop() -> None:
    found: list[Call] = []
    one = streamed("openai")
    thread = threading.Thread(target=lambda: found.append(read(one, [STREAMS["openai"][0]], "text/event-stream")[0]))
    thread.start()
    thread.join()
    assert found[0].heard == "grün tea"
    assert found[0].first_token is not None
