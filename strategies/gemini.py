"""Gemini's generateContent, whole or in pieces, told as OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_FINISH = {"STOP": "stop", "MAX_TOKENS": "length"} | dict.fromkeys(
    ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"), "content_filter"
)


def chunk_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """One piece of a stream; a whole answer looks the same."""
    choices = [_choice(at, candidate) for at, candidate in enumerate(said.get("candidates") or ())]
    if not choices and (said.get("promptFeedback") or {}).get("blockReason"):
        choices = [{"delta": {}, "finish_reason": "content_filter"}]
    used = said.get("usageMetadata")
    return {"choices": choices, **({"usage": _usage(used)} if used else {})}


def _choice(at: int, candidate: Mapping[str, Any]) -> dict[str, Any]:
    text = thought = ""
    for part in (candidate.get("content") or {}).get("parts") or ():
        if "functionCall" in part:
            thought += json.dumps(part["functionCall"].get("args") or {})
        elif part.get("thought"):
            thought += part.get("text") or ""
        else:
            text += part.get("text") or ""
    reason = candidate.get("finishReason")
    finish = _FINISH.get(reason, str(reason).lower()) if reason else None
    delta = {"content": text, "reasoning": thought}
    return {"index": candidate.get("index") or at, "delta": delta, "finish_reason": finish}


def _usage(used: Mapping[str, Any]) -> dict[str, Any]:
    """What is zero is left out there; thoughts are counted beside the answer, tools' results beside the prompt."""
    count = {name: used.get(f"{name}TokenCount") or 0 for name in _COUNTS}
    return {
        "prompt_tokens": count["prompt"] + count["toolUsePrompt"],
        "completion_tokens": count["candidates"] + count["thoughts"],
        "prompt_tokens_details": {"cached_tokens": count["cachedContent"]},
        "completion_tokens_details": {"reasoning_tokens": count["thoughts"]},
    }


_COUNTS = ("prompt", "toolUsePrompt", "candidates", "thoughts", "cachedContent")
