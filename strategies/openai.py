"""OpenAICompatible: calls to OpenAI, vLLM, llama.cpp, Ollama, OpenRouter and all others that speak their format."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import anyio

from playcall.strategies.call import Answer, Call, CallFailed, Failure
from playcall.strategies.completion import CONFIDENCES, Events, Pieces, failed, read_completion, tidy
from playcall.strategies.errors import Misuse
from playcall.strategies.transport import HttpxTransport, Response, Wire, environment_proxy, transport

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

OPENAI = "https://api.openai.com/v1"
LINGER = 0.05  # seconds after [DONE] for the body's end, so that its connection can be used again
_CREDENTIALS = {"authorization", "api-key", "x-api-key", "proxy-authorization"}


@dataclass(frozen=True, eq=False)
class OpenAICompatible:
    """An Endpoint over HTTP. The key is `api_key`, or the environment's `api_key_env`; OpenAI's own needs one, and
    finds it in OPENAI_API_KEY. `proxy`, `verify`, `cert` and `trust_env` are httpx's options; `http_client` is a
    client of your own, with all its options, which you close. Raises Misuse where that can't work."""

    base_url: str = OPENAI
    api_key: str | None = field(default=None, repr=False)
    _: KW_ONLY
    api_key_env: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)
    verify: SSLContext | str | bool = True
    cert: str | tuple[str, str] | tuple[str, str, str] | None = field(default=None, repr=False)
    trust_env: bool = False
    http_client: httpx.AsyncClient | None = field(default=None, repr=False)
    path: str = "/chat/completions"

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise Misuse(f"base_url at {parts.hostname!r}: write http(s)://host[:port]/v1; a key goes into api_key.")
        if self.http_client is not None and (self.proxy, self.verify, self.cert) != (None, True, None):
            raise Misuse("http_client has its own proxy, verify and cert: give them to it, not here too.")
        for name, value in self._headers.items():
            if not (value.isascii() and value.isprintable()):
                raise Misuse(f"header {name}: a value (or an api_key) of HTTP is printable ASCII.")

    @cached_property
    def _parts(self) -> SplitResult:
        return urlsplit(self.base_url)

    @cached_property
    def name(self) -> str:
        """The host, and its port where one is given."""
        return self._parts.netloc.lower()

    @cached_property
    def _key(self) -> str:
        variable = self.api_key_env or ("OPENAI_API_KEY" if self.name == "api.openai.com" else "")
        if self.api_key or not variable or self._own_credentials():
            return (self.api_key or "").strip()
        if key := os.environ.get(variable, "").strip():
            return key
        raise Misuse(f"{self.name} needs a key: set {variable}, or give api_key.")

    def _own_credentials(self) -> list[tuple[str, str]]:
        """Those that come by another way than `api_key`."""
        client = self.http_client.headers if self.http_client is not None else {}
        found = {name.lower(): value for name, value in {**client, **(self.headers or {})}.items()}
        return sorted((name, found[name]) for name in _CREDENTIALS & found.keys())

    @cached_property
    def tenant(self) -> str:
        """A hash of the key."""
        parts = [self._key, *(f"{name}:{value}" for name, value in self._own_credentials())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if any(parts) else ""

    @cached_property
    def _headers(self) -> dict[str, str]:
        bearer = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return {"Content-Type": "application/json", **bearer, **(self.headers or {})}

    @cached_property
    def _url(self) -> str:
        return self._parts._replace(path=self._parts.path.rstrip("/") + self.path).geturl()

    @cached_property
    def _wire(self) -> Wire | HttpxTransport:
        if self.http_client is not None:
            return HttpxTransport(self.http_client)
        found = environment_proxy(self._parts.scheme, self._parts.hostname or "") if self.trust_env else None
        return Wire(self.proxy or found, self.verify, self.cert, self.trust_env)

    def _secrets(self, call: Call) -> set[str]:
        proxy = self._wire.proxy if isinstance(self._wire, Wire) else None
        values = {self._key, *self._headers.values(), *call.headers.values(), proxy, urlsplit(proxy or "").password}
        return {value for value in values if value and len(value) > 7} - {"application/json"}

    async def __call__(self, call: Call) -> Answer:
        """One POST. Sets on the call what it learns; raises CallFailed."""
        try:
            return await self._ask(call)
        except CallFailed as error:
            raise tidy(error, self._secrets(call)) from None

    async def _ask(self, call: Call) -> Answer:
        sender = await transport(self._wire) if isinstance(self._wire, Wire) else self._wire
        content, headers = _encode(wanted(call)), {**self._headers, **call.headers}
        pieces = None
        try:
            async with sender.send(self._url, headers=headers, content=content, timeout=call.timeout) as response:
                body: object = None
                if not 200 <= response.status < 300:
                    raise failed(response.status, await response.read(), response.headers)
                with suppress(ValueError):
                    call.served_ms = float(response.headers.get("openai-processing-ms", ""))
                if "event-stream" in response.headers.get("content-type", ""):
                    pieces = Pieces(call)
                    await _receive(pieces, response)
                else:
                    body = _decode(await response.read())
        except CallFailed as error:
            if pieces is None or not pieces.done or error.failure not in (Failure.CUT, Failure.TIMEOUT):
                raise
        answer = read_completion(call, body if pieces is None else pieces.body)
        if pieces is None and call.listen and answer.output is answer.text:
            call.listen(answer.text)
        return answer


def wanted(call: Call) -> dict[str, Any]:
    """The request, and what it takes to stream it and to score it."""
    request, more = call.request, {}
    if call.stream or call.listen:
        more = {"stream": True, "stream_options": {**(request.get("stream_options") or {}), "include_usage": True}}
    if call.confidence in CONFIDENCES and "logprobs" not in request:
        more["logprobs"] = True
    return {**request, **more} if more else request


_to_json = json.JSONEncoder(allow_nan=False).encode


def _encode(request: Mapping[str, object]) -> bytes:
    try:
        return _to_json(request).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CallFailed(Failure.REQUEST, f"the request can't be sent as JSON: {error}") from None


def _decode(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise CallFailed(Failure.GARBAGE, f"no JSON: {data[:1000].decode(errors='replace')}") from None


async def _receive(pieces: Pieces, response: Response) -> None:
    """Read a stream to its end; raises CUT where it has none."""
    events, chunks = Events(), response.chunks()
    async for chunk in chunks:
        for data in events.feed(chunk):
            pieces.add(data)
            if pieces.done:
                with anyio.move_on_after(LINGER):
                    async for _ in chunks:
                        pass
                return
    for data in events.end():  # a last event without its blank line: whole, or cut
        try:
            pieces.add(data)
        except CallFailed as error:
            if error.failure is Failure.GARBAGE:
                raise CallFailed(Failure.CUT, "the stream ended amid an event") from None
            raise
    if not pieces.ended:
        raise CallFailed(Failure.CUT, "the stream ended without [DONE] or a finish_reason")
