"""Reads OpenAI's chat-completion format: whole bodies, streams of pieces, and errors."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage
from playcall.strategies.recording import NANO
from playcall.strategies.signal import moment

LONGEST = 300  # characters of an error's detail
DONE = b"[DONE]"

CONFIDENCES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean_logprob": lambda logs: math.fsum(logs) / len(logs),
    "min_logprob": min,
    "sum_logprob": math.fsum,
    "probability": lambda logs: math.exp(math.fsum(logs) / len(logs)),  # the tokens' geometric mean
}
"""Score of an answer from its tokens' log-probabilities."""

_STATUS = {401: Failure.AUTH, 402: Failure.QUOTA, 403: Failure.AUTH, 404: Failure.NOT_FOUND}
_STATUS |= {408: Failure.TIMEOUT, 409: Failure.SERVER, 429: Failure.RATE}
_SPENT = {"insufficient_quota", "billing_hard_limit_reached"}  # a 429 that waiting does not mend
_FILTERED = {"content_filter", "content_policy_violation"}
# In a stream each of these replaces what came before; other strings go on.
_LATEST = {"id", "type", "role", "name", "index", "finish_reason"}


def failure_of(status: int, *codes: object) -> Failure:
    """What an HTTP status means, with the codes or types that the error's body gives."""
    named = {code for code in codes if isinstance(code, str)}
    if named & _SPENT:
        return Failure.QUOTA
    if named & _FILTERED and status < 500:
        return Failure.REFUSED
    return _STATUS.get(status, Failure.SERVER if status >= 500 else Failure.REQUEST)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, from `retry-after-ms` or `retry-after`: seconds or a date."""
    from email.utils import parsedate_to_datetime

    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        if text := headers.get(name):
            try:
                seconds = float(text) * unit
            except ValueError:
                try:
                    seconds = max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
                except (ValueError, OverflowError):
                    continue
            if 0 <= seconds < math.inf:
                return seconds
    return None


def failed(status: int, body: object, headers: Mapping[str, str] | None = None) -> CallFailed:
    """The failure that an error's body describes, whichever server wrote it."""
    if isinstance(body, bytes):
        try:
            body = json.loads(text := body.decode(errors="replace"))
        except (ValueError, RecursionError):
            body = text
    if isinstance(body, list) and body:
        body = body[0]
    said = body if isinstance(body, dict) else {"message": body}
    if isinstance(inner := said.get("error"), dict):
        said = inner
    code = said.get("code")
    if status < 300:  # an error in a 200 carries its own status
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
    message = said.get("message") or said.get("error") or said.get("detail") or body
    detail = " ".join(f"{status} {message or ''}".split())
    return CallFailed(failure_of(status, code, said.get("type")), detail, retry_after(headers or {}))


_KINDS = {
    **dict.fromkeys(("APITimeoutError", "Timeout", "TimeoutException", "TimeoutError"), Failure.TIMEOUT),
    **dict.fromkeys(("APIConnectionError", "TransportError", "ConnectionError"), Failure.CONNECTION),
    **dict.fromkeys(("ContentPolicyViolationError", "ContentFilterFinishReasonError"), Failure.REFUSED),
    "APIResponseValidationError": Failure.GARBAGE,
    "LengthFinishReasonError": Failure.TRUNCATED,
    "ValidationError": Failure.INVALID,  # pydantic's, where a client parses the answer
}  # by the name of an error's class, whichever vendor's


def failed_client(error: Exception) -> CallFailed:
    """What an error of a vendor's own client means."""
    names, status = [c.__name__ for c in type(error).__mro__], getattr(error, "status_code", None)
    kind = next((_KINDS[name] for name in names if name in _KINDS), None)
    if kind is None and (isinstance(status, int) or "APIError" in names):
        sent = getattr(getattr(error, "response", None), "headers", None) or {}
        sent = {**sent, **(getattr(error, "litellm_response_headers", None) or {})}
        return failed(status or 200, getattr(error, "body", None) or str(error), sent)
    return CallFailed(kind or Failure.RAISED, f"{type(error).__name__}: {error}")


def tidy(error: CallFailed, secrets: Iterable[str]) -> CallFailed:
    """The same, short and without the secrets."""
    detail = error.detail
    for secret in sorted(secrets, key=len, reverse=True):
        detail = detail.replace(secret, "***")
    most = LONGEST // 4 if error.failure is Failure.GARBAGE else LONGEST  # garbage may be part of an answer
    if len(detail) > most:
        detail = detail[: most - 1] + "…"
    return CallFailed(error.failure, detail, error.retry_after)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def read_usage(raw: object) -> Usage | None:
    """Tokens as reported; None where the report makes no sense."""
    if not isinstance(raw, dict):
        return None
    took = raw.get("prompt_tokens_details") or {}
    gave = raw.get("completion_tokens_details") or {}
    if not (isinstance(took, dict) and isinstance(gave, dict)):
        return None
    input, output = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    cached = _count(took.get("cached_tokens") or raw.get("prompt_cache_hit_tokens") or 0)  # the latter is DeepSeek's
    reasoning = _count(gave.get("reasoning_tokens") or 0)
    wrote = took.get("cache_write_tokens") or took.get("cache_creation_tokens")
    written = _count(wrote or raw.get("cache_creation_input_tokens") or 0)  # the latter is Anthropic's
    if input is None or output is None or cached is None or reasoning is None or written is None:
        return None
    if reasoning and raw.get("total_tokens") == input + output + reasoning:  # xAI counts it beside the output
        output += reasoning
    if not input + output or cached + written > input or reasoning > output:
        return None
    return Usage(input, output, cached, reasoning, written)


def _charged(raw: object) -> int | None:
    cost = raw.get("cost") if isinstance(raw, dict) else None
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e9:
        return None
    return round(Decimal(str(cost)) * NANO)


def _score(call: Call, choice: dict[str, Any]) -> float:
    measure = CONFIDENCES.get(call.confidence or "")
    tokens = (choice.get("logprobs") or {}).get("content") if measure else None
    try:
        logs = [float(token["logprob"]) for token in tokens or []]
    except (TypeError, KeyError, ValueError):
        return math.nan
    return measure(logs) if measure and logs and all(-math.inf < log <= 0 for log in logs) else math.nan


def _unreal(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


@lru_cache(64)
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    read = json.loads(schema)
    kind = validator_for(read)
    kind.check_schema(read)
    return kind(read, registry=Registry())  # a $ref elsewhere is an error, not a download


def _check(text: str, form: object) -> None:
    """Raise INVALID unless the text is what `response_format` asks for."""
    if not isinstance(form, dict) or (kind := form.get("type")) not in ("json_object", "json_schema"):
        return
    try:
        value = json.loads(text, parse_constant=_unreal)
    except (ValueError, RecursionError) as error:
        raise CallFailed(Failure.INVALID, f"no JSON: {error}") from None
    if kind == "json_object":
        if not isinstance(value, dict):
            raise CallFailed(Failure.INVALID, f"no JSON object but {type(value).__name__}")
        return
    schema = (form.get("json_schema") or {}).get("schema")
    if schema is None:
        return
    from jsonschema import SchemaError, ValidationError
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        wrong: ValidationError | None = best_match(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value))
    except (SchemaError, Unresolvable) as error:
        raise CallFailed(Failure.REQUEST, f"response_format's schema: {error}".split("\n")[0]) from None
    if wrong:
        raise CallFailed(Failure.INVALID, f"{wrong.json_path}: {wrong.message}")


def _calls(message: dict[str, Any]) -> str:
    """Tool calls as canonical JSON, so that equal ones are equal answers."""
    found = []
    for call in message["tool_calls"]:
        if function := call.get("function"):
            try:
                arguments = json.loads(function.get("arguments") or "{}", parse_constant=_unreal)
            except (ValueError, RecursionError) as error:
                raise CallFailed(Failure.INVALID, f"arguments of {function.get('name')}: {error}") from None
            found.append({"name": function.get("name"), "arguments": arguments})
        else:
            custom = call.get("custom") or {}
            found.append({"name": custom.get("name"), "arguments": custom.get("input")})
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise TypeError("content")
    return content


def read_completion(call: Call, body: object) -> Answer:
    """The answer in a whole chat completion. Notes in `call` what it cost before it looks whether it is any good;
    raises CallFailed: REFUSED, TRUNCATED, EMPTY, INVALID, GARBAGE, or the error that the body is."""
    if isinstance(body, dict):
        call.response = body
        if (usage := body.get("usage")) is not None:
            call.usage, call.reported = read_usage(usage), _charged(usage)
        if body.get("error"):
            raise failed(200, body)
    try:
        if not isinstance(body, dict):
            raise TypeError
        choice = body["choices"][0]
        if choice.get("error"):
            raise failed(200, choice)
        if isinstance(timings := body.get("timings"), dict) and call.served_ms is None:  # llama.cpp
            call.served_ms = float(timings["prompt_ms"] + timings["predicted_ms"])
        call.finish = choice.get("finish_reason") or call.finish
        message = choice["message"]
        text, score = _content(message), _score(call, choice)
        call.heard = call.heard or text
        if message.get("refusal") or call.finish == "content_filter":
            raise CallFailed(Failure.REFUSED, str(message.get("refusal") or call.finish))
        if call.finish == "length":
            raise CallFailed(Failure.TRUNCATED, f"after {call.usage.output if call.usage else 'all its'} tokens")
        if message.get("tool_calls"):
            return Answer(_calls(message), message, score)
        if other := message.get("audio") or message.get("images") or message.get("function_call"):
            spoken = other.get("transcript") if isinstance(other, dict) else None
            return Answer(text or spoken or json.dumps(other, sort_keys=True), message, score)
    except (AttributeError, IndexError, KeyError, TypeError):
        raise CallFailed(Failure.GARBAGE, f"no chat completion: {str(body)[:1000]}") from None
    if not text.strip():
        raise CallFailed(Failure.EMPTY, f"finish_reason {call.finish}")
    _check(text, call.request.get("response_format"))
    return Answer(text, text, score)


class Events:
    """Server-sent events, by WHATWG's rules: takes bytes cut anywhere, gives the data of each event now complete."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # of the line still open
        self._data: list[bytes] = []  # of the event still open
        self._cr = False  # the last byte was one: a newline right after it ends no second line

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._cr = False
        self._cr = self._cr or chunk.endswith(b"\r")
        first, *more = re.split(rb"\r\n|\r|\n", chunk)
        self._line.append(first)
        if not more:
            return []
        lines = [b"".join(self._line), *more[:-1]]
        self._line = more[-1:]
        return [data for line in lines if (data := self._take(line)) is not None]

    def end(self) -> list[bytes]:
        """An event whose blank line never came."""
        self._cr = False
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None


def _slot(calls: list[dict[str, Any]], piece: dict[str, Any]) -> dict[str, Any]:
    """The tool call that a piece goes on with; servers differ in whether they number them."""
    at, name = piece.get("index"), piece.get("id")
    found = [c for c in calls if c.get("index") == at] if at is not None else calls if not name else []
    if not found or (name and found[-1].get("id", name) != name):
        calls.append({})
        return calls[-1]
    return found[-1]


def _merge(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        old = whole.get(name)
        if name == "tool_calls":
            for call in value or ():
                _merge(_slot(whole.setdefault(name, []), call), call)
        elif isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif old is not None and type(old) is type(value) and isinstance(value, str | list) and name not in _LATEST:
            whole[name] = old + value
        elif value is not None or name not in whole:
            whole[name] = value


def _unreadable(text: str) -> CallFailed:
    return CallFailed(Failure.GARBAGE, f"in a stream: {text[:1000]}")


class Pieces:
    """A completion that comes piece by piece; what it says goes to the call at once."""

    def __init__(self, call: Call) -> None:
        self.call, self.done = call, False
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    @property
    def ended(self) -> bool:
        """Whether what has come is a whole answer."""
        return self.done or any(choice.get("finish_reason") for choice in self._choices.values())

    @property
    def body(self) -> dict[str, Any]:
        """What has come, as if it had come whole."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            for tool in choice["message"].get("tool_calls") or ():
                tool.pop("index", None)
        return {**self._head, "object": "chat.completion", "choices": choices}

    def add(self, data: bytes) -> None:
        """Take one event's data. Raises CallFailed: GARBAGE, or the error that it tells of."""
        if data == DONE:
            self.done = True
            return
        try:
            piece = json.loads(data)
        except (ValueError, RecursionError):
            raise _unreadable(data.decode(errors="replace")) from None
        self.take(piece)

    def take(self, piece: dict[str, Any]) -> None:
        """Take one event."""
        call = self.call
        try:
            aloud, silent = self._text(piece)
        except (AttributeError, TypeError):
            raise _unreadable(json.dumps(piece)) from None
        if aloud or silent:
            call.heard += aloud + silent
            if call.first_token is None:
                call.first_token = moment()
        if aloud and call.listen:
            call.listen(aloud)

    def _text(self, piece: dict[str, Any]) -> tuple[str, str]:
        """Text of the answer, and text that is paid like it: thoughts, refusals, arguments of tools."""
        if piece.get("error"):
            raise failed(200, piece)
        aloud = silent = ""
        for part in piece.pop("choices", None) or ():
            if part.get("error"):
                raise failed(200, part)
            message, index = part.pop("message", None), part.get("index") or 0
            delta = part.pop("delta", None) or message or {}
            choice = self._choices.setdefault(index, {"index": index, "message": {"role": "assistant"}})
            _merge(choice, part)
            _merge(choice["message"], delta)
            if index == 0 and delta:
                aloud += _content(delta)
                silent += delta.get("reasoning_content") or delta.get("reasoning") or delta.get("refusal") or ""
                for tool in delta.get("tool_calls") or ():
                    silent += (tool.get("function") or {}).get("arguments") or ""
        self._head.update((name, value) for name, value in piece.items() if value is not None)
        if self.ended and (usage := piece.get("usage")):
            self.call.usage, self.call.reported = read_usage(usage), _charged(usage)
        return aloud, silent
