"""What a task looks like as a chat request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from playcall.strategies.errors import Misuse

_OURS = ("model", "stream", "stream_options")  # the arm and the endpoint say these


def messages_of(task: object) -> list[Any] | None:
    """The messages of a task that has some: a list of them, or a request with a field `messages`."""
    found = task.get("messages") if isinstance(task, Mapping) else task
    if isinstance(found, list | tuple) and found and all(isinstance(m, Mapping) and "role" in m for m in found):
        return list(found)
    return None


def text_of(task: object) -> str:
    """A task in words, for a prompt about its answers: its only message without a role, several with theirs."""
    if isinstance(task, str):
        return task
    if messages := messages_of(task):
        said = [(str(m["role"]), _words(m.get("content"))) for m in messages]
        return said[0][1] if len(said) == 1 else "\n\n".join(f"{role}: {words}" for role, words in said)
    return as_json(task)


def _words(content: object) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(p["text"]) if isinstance(p, Mapping) and "text" in p else as_json(p) for p in parts)


def as_json(x: object, *, sort_keys: bool = False) -> str:
    """As JSON where it can be, else in Python's words."""
    try:
        return json.dumps(x, ensure_ascii=False, sort_keys=sort_keys)
    except (TypeError, ValueError):
        return str(x)


def request_of(task: object, prompt: str | None, model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A chat request: what the task says, unchanged, under the settings of the arm.

    A text is one user message, a list of messages is sent as it is, a mapping with `messages` is a whole request
    (tools, response_format and whatever else the provider knows); anything else is sent as JSON. A prompt stands
    instead of all.
    """
    if prompt is not None:
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    elif isinstance(task, Mapping) and "messages" in task:
        fields = {k: v for k, v in task.items() if k not in _OURS}
    else:
        fields = {"messages": messages_of(task) or [{"role": "user", "content": text_of(task)}]}
    return {**fields, **params, "model": model}


def has_tools(task: object) -> bool:
    """Whether answers may be tool calls."""
    return isinstance(task, Mapping) and bool(task.get("tools") or task.get("functions"))


def refuse_merging_tools(task: object) -> None:
    """A prompt about answers cannot carry tool calls back to the caller."""
    if has_tools(task):
        raise Misuse(
            "this task has tools, and the strategy reads its answers with a prompt (>>), which would lose their tool "
            "calls. Take the >> out, keep answers by Vote or Best, or ask without tools."
        )
