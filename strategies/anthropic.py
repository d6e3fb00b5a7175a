"""Anthropic's messages, whole or in pieces, told as OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_FINISH = {"max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_calls"}


def is_message(body: object) -> bool:
    """Whether it is a message of theirs."""
    return isinstance(body, dict) and "choices" not in body and isinstance(body.get("content"), list)


def completion_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A whole message."""
    blocks = message["content"]
    tools = [{"function": {"name": b["name"], "arguments": json.dumps(b["input"])}} for b in blocks if "input" in b]
    text = "".join(b.get("text") or "" for b in blocks)
    choice = {
        "message": {"content": text, **({"tool_calls": tools} if tools else {})},
        "finish_reason": _finish(message.get("stop_reason")),
    }
    return {"choices": [choice], "usage": _usage(message.get("usage") or {})}


def chunk_of(event: Mapping[str, Any], used: dict[str, Any]) -> dict[str, Any] | None:
    """One event of a stream, None where it says nothing; `used` gathers what the stream tells of its tokens."""
    match event.get("type"):
        case "message_start":
            used |= event["message"].get("usage") or {}
        case "content_block_start" if event["content_block"].get("name"):
            tool = {"index": event["index"], "function": {"name": event["content_block"]["name"], "arguments": ""}}
            return {"choices": [{"delta": {"tool_calls": [tool]}}]}
        case "content_block_delta":
            delta = event["delta"]
            if part := delta.get("partial_json"):
                tool = {"index": event["index"], "function": {"arguments": part}}
                return {"choices": [{"delta": {"tool_calls": [tool]}}]}
            return {"choices": [{"delta": {"content": delta.get("text"), "reasoning": delta.get("thinking")}}]}
        case "message_delta":
            used |= {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            finish = _finish(event["delta"].get("stop_reason"))
            return {"choices": [{"delta": {}, "finish_reason": finish}], "usage": _usage(used)}
    return None


def _finish(reason: object) -> str:
    return _FINISH.get(str(reason), str(reason))


def _usage(used: Mapping[str, Any]) -> dict[str, Any]:
    read, wrote = (used.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    thought = (used.get("output_tokens_details") or {}).get("thinking_tokens") or 0
    return {
        "prompt_tokens": (used.get("input_tokens") or 0) + read + wrote,
        "completion_tokens": used.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": read, "cache_creation_tokens": wrote},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
