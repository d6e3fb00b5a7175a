"""OpenAI's Responses, whole or in pieces, told as chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PENDING = {"queued", "in_progress"}
"""Finish of a response that goes on in the background."""

_ENDS = {"completed", "incomplete", "failed", "cancelled"}


def completion_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """A whole response."""
    text, silent = "", ""
    for item in response["output"]:
        for part in (*(item.get("content") or ()), *(item.get("summary") or ())):
            said = part.get("text") or part.get("refusal") or ""
            if part.get("type") == "output_text":
                text += said
            else:
                silent += said
        silent += item.get("arguments") or item.get("input") or ""
    delta = {"content": text, "reasoning": silent}
    return {"choices": [{"delta": delta, "finish_reason": _finish(response)}], **_used(response)}


def chunk_of(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """One event of a stream, None where it says nothing."""
    kind = str(event.get("type"))
    if kind.endswith(".delta") and "audio" not in kind and isinstance(event.get("delta"), str):
        return {"choices": [{"delta": {"content" if "output_text" in kind else "reasoning": event["delta"]}}]}
    if kind.removeprefix("response.") in _ENDS:
        response = event["response"]
        return {"choices": [{"delta": {}, "finish_reason": _finish(response)}], **_used(response)}
    return None


def _finish(response: Mapping[str, Any]) -> str:
    status = str(response.get("status") or "completed")
    if status == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    if status == "completed":
        called = any("call" in str(item.get("type")) for item in response.get("output") or ())
        return "tool_calls" if called else "stop"
    return status


def _used(response: Mapping[str, Any]) -> dict[str, Any]:
    """Its usage, with all else that it holds, such as a cost."""
    if not (used := response.get("usage")):
        return {}
    told = {
        "prompt_tokens": used.get("input_tokens"),
        "completion_tokens": used.get("output_tokens"),
        "prompt_tokens_details": used.get("input_tokens_details"),
        "completion_tokens_details": used.get("output_tokens_details"),
    }
    return {"usage": {**used, **told}}
