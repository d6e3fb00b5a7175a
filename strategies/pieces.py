"""What vendors send, told as pieces of OpenAI's chat completions: events of a stream, whole answers and errors."""

from __future__ import annotations

import json
from typing import Any

from playcall.strategies import anthropic, gemini, responses
from playcall.strategies.call import CallFailed
from playcall.strategies.completion import failed

BROKEN = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
"""What reading JSON of another shape raises."""

_STATUS = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 408,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
}  # of errors that come in a stream, by their code or type; others are the server's
_KINDS = ("service_tier", "serviceTier", "trafficType", "inference_geo", "speed")  # what a token's price depends on
_USUAL = (None, "", "default", "standard", "auto", "on_demand", "global", "not_available")


def only_usage(data: bytes) -> bool:
    """Whether an event says no more than what a stream took."""
    try:
        said = json.loads(data)
        return said["choices"] == [] and bool(said["usage"])
    except BROKEN:
        return False


def error_of(said: Any) -> CallFailed | None:
    """The error that an event or a body is, whichever vendor's."""
    inner = said.get("response") if isinstance(said.get("response"), dict) else said
    told = inner.get("error") or (said if said.get("type") == "error" else None)
    if not told:
        return None
    names = [told.get(name) for name in ("code", "type")] if isinstance(told, dict) else []
    status = next((_STATUS[name] for name in names if isinstance(name, str) and name in _STATUS), 200)
    return failed(status, {"error": told})


def unusual(said: Any) -> bool:
    """Whether its tokens have another price than the usual: of another service tier, or kept for an hour in a cache."""
    inner = next((part for name in ("response", "message") if isinstance(part := said.get(name), dict)), said)
    for told in (inner, inner.get("usage"), inner.get("usageMetadata")):
        if isinstance(told, dict):
            kept = told.get("cache_creation")
            if isinstance(kept, dict) and kept.get("ephemeral_1h_input_tokens"):
                return True
            if any((str(kind).lower() if (kind := told.get(name)) else None) not in _USUAL for name in _KINDS):
                return True
    return False


def piece_of(dialect: str, said: Any, used: dict[str, Any], whole: bool) -> dict[str, Any] | None:
    """An event or a whole answer as a piece of a chat completion, None where it says nothing; `used` gathers what a
    stream tells of its tokens."""
    match dialect:
        case "gemini":
            return gemini.chunk_of(said)
        case "responses":
            return responses.completion_of(said) if whole else responses.chunk_of(said)
        case "anthropic":
            piece = anthropic.completion_of(said) if whole else anthropic.chunk_of(said, used)
            if piece is None and said.get("type") == "message_start":  # what went in is known from here on
                return {**(anthropic.chunk_of(_NO_MORE, used) or {}), "choices": []}
            return piece
        case "embeddings":
            tokens = {"usage": {"completion_tokens": 0, **said["usage"]}} if said.get("usage") else {}
            return {"choices": [{"finish_reason": "stop"}] if said["data"] else [], **tokens}
    choices = said.get("choices") or []
    if dialect == "completions":
        choices = [{**choice, "delta": {"content": choice.get("text")}} for choice in choices]
    return {**said, "choices": choices}


_NO_MORE: dict[str, Any] = {"type": "message_delta", "delta": {}}
