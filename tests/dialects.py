"""What the test server speaks besides chat completions: each dialect's request as a chat request, and a chat
completion as that dialect's answer, whole or as the frames of a stream."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import unquote

Body = dict[str, Any]
Frame = tuple[str, bool]  # text of a stream, and whether it tells a word of the answer


ERRORS: dict[str, tuple[int, str | None]] = {  # fault -> status, code
    **{str(status): (status, None) for status in (403, 408, 409, 500, 503)},
    "400": (400, "invalid_value"),
    "401": (401, "invalid_api_key"),
    "404": (404, "model_not_found"),
    "429": (429, "rate_limit_exceeded"),
    "quota": (429, "insufficient_quota"),
}


def words(text: object) -> int:
    """Tokens, as this server counts them."""
    return len(str(text or "").split())


def number(*parts: object) -> int:
    """The same for the same parts, everywhere."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()[:6], "big")


def spoken(path: str, body: Body) -> tuple[Dialect, Body] | None:
    """How a request is to be answered, and what it is as a chat request; None for what this server does not serve."""
    for end, dialect in DIALECTS.items():
        if found := re.fullmatch(end, path):
            named = {"model": unquote(name)} if (name := found.groupdict().get("model")) else {}
            if dialect.asks not in body:
                return None
            return dialect, dialect.chat(named | body)
    return None


class Dialect:
    """Chat completions; the others say what they do otherwise."""

    asks = "messages"  # what a request must have
    wordless = False  # whether its answers have no tokens

    def chat(self, body: Body) -> Body:
        return body

    def whole(self, completion: Body, chat: Body) -> Body:
        return completion

    def frames(self, completion: Body, chat: Body) -> Iterator[Frame]:
        """The last one says that the answer is whole."""
        for chunk in chunks(completion, bool((chat.get("stream_options") or {}).get("include_usage"))):
            yield data(chunk), any(c.get("delta", {}).get("content") for c in chunk["choices"])
        yield "data: [DONE]\n\n", False

    def error(self, status: int, name: str, code: str | None) -> Body:
        return {"error": {"message": f"scripted {name}", "type": "scripted", "code": code}}

    def broken(self) -> str:
        """An error amid a stream."""
        return data({"error": {"message": "scripted error", "code": 503}})


def data(body: Body, event: str | None = None) -> str:
    """A server-sent event."""
    return (f"event: {event}\n" if event else "") + f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def pieces(text: str) -> list[str]:
    """Its words, which together are the text."""
    return re.findall(r"[^ ]+ ?| ", text)


def chunks(whole: Body, usage: bool) -> Iterator[Body]:
    """A completion as stream chunks, one word each."""
    base = {k: v for k, v in whole.items() if k not in ("choices", "usage")} | {"object": "chat.completion.chunk"}
    choice = whole["choices"][0]
    message = choice["message"]

    def chunk(delta: Body, **more: object) -> Body:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}

    yield chunk({"role": "assistant", "content": ""})
    tokens = ((choice.get("logprobs") or {}).get("content") or []) if choice.get("logprobs") else []
    for name in ("content", "refusal"):
        for i, text in enumerate(pieces(str(message.get(name) or ""))):
            more = {"logprobs": {"content": [tokens[i]]}} if name == "content" and i < len(tokens) else {}
            yield chunk({name: text}, **more)
    for index, call in enumerate(message.get("tool_calls") or []):
        arguments = call["function"]["arguments"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]})
        for i in range(0, len(arguments), 5):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[i : i + 5]}}]})
    yield chunk({}, finish_reason=choice.get("finish_reason"))
    if usage and "usage" in whole:
        yield {**base, "choices": [], "usage": whole["usage"]}


def text_of(content: object) -> str:
    """A string, or the text of its parts."""
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content)
    return str(content or "")


def called(id: str, name: str, arguments: str) -> Body:
    """A tool call of a chat message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(completion: Body) -> tuple[str, list[Body], str]:
    """Text, tool calls and finish of a completion."""
    choice = completion["choices"][0]
    message = choice["message"]
    text = message.get("content") or message.get("refusal") or ""
    return text, message.get("tool_calls") or [], "refusal" if message.get("refusal") else choice["finish_reason"]


def parts(usage: Body) -> tuple[int, int]:
    """Cached and reasoning tokens."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return cached, (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)


def function(tool: Body, schema: str) -> Body:
    """A tool as chat completions have it."""
    return {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get(schema)}}


class Anthropic(Dialect):
    stops: ClassVar[dict[str, str]] = {
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "refusal": "refusal",
        "content_filter": "refusal",
    }
    kinds: ClassVar[dict[int, str]] = {
        400: "invalid_request",
        401: "authentication",
        403: "permission",
        404: "not_found",
        429: "rate_limit",
    }

    def chat(self, body: Body) -> Body:
        messages = [{"role": "system", "content": text_of(body["system"])}] if body.get("system") else []
        for message in body["messages"]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for block in blocks:
                if block["type"] == "tool_result":
                    told = {"tool_call_id": block["tool_use_id"], "content": text_of(block.get("content"))}
                    messages.append({"role": "tool", **told})
            calls = [called(b["id"], b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"]
            if calls or any(b["type"] == "text" for b in blocks):
                turn = {"role": message["role"], "content": text_of([b for b in blocks if b["type"] == "text"])}
                messages.append(turn | ({"tool_calls": calls} if calls else {}))
        return {**body, "messages": messages, "tools": [function(t, "input_schema") for t in body.get("tools") or []]}

    def usage(self, completion: Body) -> Body:
        if (counted := completion.get("usage")) is None:
            return {}
        cached, reasoning = parts(counted)
        found = {"input_tokens": counted["prompt_tokens"] - cached, "output_tokens": counted["completion_tokens"]}
        found |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
        return found | ({"output_tokens_details": {"thinking_tokens": reasoning}} if reasoning else {})

    def whole(self, completion: Body, chat: Body) -> Body:
        text, calls, finish = said(completion)
        content: list[Body] = [{"type": "text", "text": text}] if text else []
        for call in calls:
            made = {"name": call["function"]["name"], "input": json.loads(call["function"]["arguments"])}
            content.append({"type": "tool_use", "id": call["id"], **made})
        head = {"id": completion["id"], "type": "message", "role": "assistant", "model": completion["model"]}
        stop = {"stop_reason": self.stops.get(finish, "end_turn"), "stop_sequence": None}
        return {**head, "content": content, **stop, "usage": self.usage(completion)}

    def frames(self, completion: Body, chat: Body) -> Iterator[Frame]:
        whole = self.whole(completion, chat)
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
        begun["usage"].pop("output_tokens_details", None)
        yield self.event("message_start", message=begun), False
        for index, block in enumerate(whole["content"]):
            empty: Body = {"text": ""} if block["type"] == "text" else {"input": {}}
            yield self.event("content_block_start", index=index, content_block={**block, **empty}), False
            yield self.event("ping"), False
            if block["type"] == "text":
                for text in pieces(block["text"]):
                    delta = {"type": "text_delta", "text": text}
                    yield self.event("content_block_delta", index=index, delta=delta), True
            else:
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
                yield self.event("content_block_delta", index=index, delta=delta), False
            yield self.event("content_block_stop", index=index), False
        stop = {k: whole[k] for k in ("stop_reason", "stop_sequence")}
        yield self.event("message_delta", delta=stop, usage=whole["usage"]), False
        yield self.event("message_stop"), False

    def event(self, kind: str, **more: object) -> str:
        return data({"type": kind, **more}, kind)

    def error(self, status: int, name: str, code: str | None) -> Body:
        error = {"type": f"{self.kinds.get(status, 'api')}_error", "message": f"scripted {name}"}
        return {"type": "error", "error": error}

    def broken(self) -> str:
        return self.event("error", error={"type": "overloaded_error", "message": "scripted error"})


class Responses(Dialect):
    """POST /v1/responses."""

    asks = "input"

    def chat(self, body: Body) -> Body:
        messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        given = body["input"]
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
            if item.get("type") == "function_call":
                call = called(item["call_id"], item["name"], item["arguments"])
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            elif item.get("type") == "function_call_output":
                told = {"tool_call_id": item["call_id"], "content": text_of(item["output"])}
                messages.append({"role": "tool", **told})
            elif "role" in item:
                messages.append({"role": item["role"], "content": text_of(item["content"])})
        tools = [function(t, "parameters") for t in body.get("tools") or []]
        return {**body, "messages": messages, "tools": tools}

    def usage(self, completion: Body) -> Body | None:
        if (counted := completion.get("usage")) is None:
            return None
        cached, reasoning = parts(counted)
        found = {"input_tokens": counted["prompt_tokens"], "output_tokens": counted["completion_tokens"]}
        found |= {"input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0}}
        found |= {"output_tokens_details": {"reasoning_tokens": reasoning}}
        return found | {"total_tokens": counted.get("total_tokens", 0)}

    def whole(self, completion: Body, chat: Body) -> Body:
        text, calls, finish = said(completion)
        id = completion["id"]
        output: list[Body] = []
        if text:
            told = {"refusal": text} if finish == "refusal" else {"text": text, "annotations": [], "logprobs": []}
            content = {"type": "refusal" if finish == "refusal" else "output_text", **told}
            output.append({"type": "message", "id": f"msg_{id}", "role": "assistant", "content": [content]})
        output += [{"type": "function_call", "id": f"fc_{c['id']}", "call_id": c["id"], **c["function"]} for c in calls]
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
        status = "incomplete" if reason else "completed"
        for item in output:
            item["status"] = status
        head = {"id": id, "object": "response", "created_at": 0, "model": completion["model"], "status": status}
        head |= {"error": None, "incomplete_details": {"reason": reason} if reason else None}
        options = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**head, **options, "output": output, "usage": self.usage(completion)}

    def frames(self, completion: Body, chat: Body) -> Iterator[Frame]:
        for number, (kind, word, more) in enumerate(self.events(self.whole(completion, chat))):
            yield data({"type": f"response.{kind}", "sequence_number": number, **more}, f"response.{kind}"), word

    def events(self, whole: Body) -> Iterator[tuple[str, bool, Body]]:
        begun = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        yield "created", False, {"response": begun}
        yield "in_progress", False, {"response": begun}
        for index, item in enumerate(whole["output"]):
            at: Body = {"output_index": index, "item_id": item["id"]}
            empty: Body = {"content": []} if item["type"] == "message" else {"arguments": ""}
            new = {**item, **empty, "status": "in_progress"}
            yield "output_item.added", False, {"output_index": index, "item": new}
            if item["type"] == "message":
                (part,) = item["content"]
                name = "text" if part["type"] == "output_text" else "refusal"
                at["content_index"] = 0
                more: Body = {"logprobs": []} if name == "text" else {}
                yield "content_part.added", False, {**at, "part": {**part, name: ""}}
                for text in pieces(part[name]):
                    yield f"{part['type']}.delta", True, {**at, "delta": text, **more}
                yield f"{part['type']}.done", False, {**at, name: part[name], **more}
                yield "content_part.done", False, {**at, "part": part}
            else:
                yield "function_call_arguments.delta", False, {**at, "delta": item["arguments"]}
                yield "function_call_arguments.done", False, {**at, **{k: item[k] for k in ("arguments", "name")}}
            yield "output_item.done", False, {"output_index": index, "item": item}
        yield whole["status"], False, {"response": whole}

    def broken(self) -> str:
        return data(
            {"type": "error", "sequence_number": 0, "code": "server_error", "message": "scripted error"}, "error"
        )


class Gemini(Dialect):
    """POST /v1beta/models/X:generateContent, and :streamGenerateContent?alt=sse."""

    asks = "contents"
    finishes: ClassVar[dict[str, str]] = {"length": "MAX_TOKENS", "content_filter": "SAFETY", "refusal": "SAFETY"}
    statuses: ClassVar[dict[int, str]] = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
    }

    def chat(self, body: Body) -> Body:
        messages: list[Body] = []
        if system := body.get("systemInstruction"):
            messages.append({"role": "system", "content": text_of(system["parts"])})
        for turn in [body["contents"]] if isinstance(body["contents"], dict) else body["contents"]:
            role = "assistant" if turn.get("role") == "model" else "user"
            calls = [p["functionCall"] for p in turn["parts"] if "functionCall" in p]
            results = [p["functionResponse"] for p in turn["parts"] if "functionResponse" in p]
            for result in results:
                told = {"tool_call_id": result["name"], "content": json.dumps(result["response"])}
                messages.append({"role": "tool", **told})
            if calls or not results:
                asked = [called(c["name"], c["name"], json.dumps(c.get("args") or {})) for c in calls]
                message = {"role": role, "content": text_of(turn["parts"])}
                messages.append(message | ({"tool_calls": asked} if asked else {}))
        declared = [d for tool in body.get("tools") or [] for d in tool.get("functionDeclarations") or []]
        return {**body, "messages": messages, "tools": [function(d, "parameters") for d in declared]}

    def usage(self, completion: Body) -> Body:
        if (counted := completion.get("usage")) is None:
            return {}
        cached, reasoning = parts(counted)
        found = {"promptTokenCount": counted["prompt_tokens"], "totalTokenCount": counted.get("total_tokens", 0)}
        wrote = counted["completion_tokens"]
        found["candidatesTokenCount"] = wrote - reasoning if reasoning else wrote
        found |= {"cachedContentTokenCount": cached} if cached else {}
        return {"usageMetadata": found | ({"thoughtsTokenCount": reasoning} if reasoning else {})}

    def answer(self, completion: Body, found: list[Body], **more: object) -> Body:
        candidate = {"index": 0, "content": {"role": "model", "parts": found}, **more}
        head = {"modelVersion": completion["model"], "responseId": completion["id"]}
        return {"candidates": [candidate], **head, **self.usage(completion)}

    def whole(self, completion: Body, chat: Body) -> Body:
        text, calls, finish = said(completion)
        found: list[Body] = [{"text": text}] if text else []
        for call in calls:
            made = {"name": call["function"]["name"], "args": json.loads(call["function"]["arguments"])}
            found.append({"functionCall": made})
        return self.answer(completion, found, finishReason=self.finishes.get(finish, "STOP"))

    def frames(self, completion: Body, chat: Body) -> Iterator[Frame]:
        whole = self.whole(completion, chat)["candidates"][0]
        for part in whole["content"]["parts"]:
            for piece in [{"text": text} for text in pieces(part["text"])] if "text" in part else [part]:
                yield data(self.answer(completion, [piece])), "text" in piece
        yield data(self.answer(completion, [{"text": ""}], finishReason=whole["finishReason"])), False

    def error(self, status: int, name: str, code: str | None) -> Body:
        named = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", **self.statuses}
        return {"error": {"code": status, "message": f"scripted {name}", "status": named.get(status, "UNKNOWN")}}


class Embeddings(Dialect):
    """POST /v1/embeddings: of each text two numbers, its words and its characters."""

    asks, wordless = "input", True

    def chat(self, body: Body) -> Body:
        given = body["input"]
        texts = [given] if isinstance(given, str) else given
        return {**body, "messages": [{"role": "user", "content": text} for text in texts]}

    def whole(self, completion: Body, chat: Body) -> Body:
        rows: list[Body] = []
        for index, message in enumerate(chat["messages"]):
            text = str(message["content"])
            vector: list[float] | str = [float(len(text.split())), float(len(text))]
            if chat.get("encoding_format") == "base64":
                vector = base64.b64encode(struct.pack("<2f", *vector)).decode()
            rows.append({"object": "embedding", "index": index, "embedding": vector})
        counted = completion.get("usage") or {}
        tokens = counted.get("prompt_tokens", 0)
        usage = {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}} if counted else {}
        return {"object": "list", "model": completion["model"], "data": rows, **usage}


DIALECTS: dict[str, Dialect] = {  # of a path
    r".*/v1/chat/completions": Dialect(),
    r".*/deployments/(?P<model>[^/]+)/chat/completions": Dialect(),
    r".*/v1/messages": Anthropic(),
    r".*/v1/responses": Responses(),
    r".*/v1beta/models/(?P<model>[^/:]+):(stream)?[gG]enerateContent": Gemini(),
    r".*/v1/embeddings": Embeddings(),
}
