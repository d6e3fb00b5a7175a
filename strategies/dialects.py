"""Model calls as HTTP requests and responses, in every format that agents' own clients speak."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from playcall.strategies import responses
from playcall.strategies.call import Call, CallFailed, Failure, Usage
from playcall.strategies.completion import Events, Pieces, failed, failed_client, read_usage, tidy
from playcall.strategies.pieces import BROKEN, error_of, only_usage, piece_of, unusual
from playcall.strategies.prices import Price, estimate_tokens, mapped
from playcall.strategies.requests import as_json

_ENDINGS = {
    "/chat/completions": "openai",
    "/completions": "completions",
    "/responses": "responses",
    "/embeddings": "embeddings",
    "/messages": "anthropic",
}  # the first that fits
_GEMINI = re.compile(r"(.*/(?:models|tunedModels)/)([^/:]+)(:(?:streamG|g)enerateContent)")
_DEPLOYMENT = re.compile(r"(.*/deployments/)([^/]+)(/.*)")
_PROXIED = re.compile(r"/(?:~|%7[Ee])[^/.]*/https?/([^/?]+)(?:/(?:arm|item|role)=[^/?]*)?(/.*)")
_CREDENTIALS = {"authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key"}
_QUERY = {"key", "api_key", "api-key", "access_token"}
_SPOKEN = ("system", "instructions", "messages", "input", "prompt", "tools", "functions")
_SPOKEN_BY_GEMINI = ("systemInstruction", "contents", "tools")
_END = rb"(?:\r\n|\n|\r(?!\n|\Z))"
_BLANK = re.compile(_END + _END)  # what ends an event
_json = json.JSONDecoder()
_BINARY = re.compile(r"[\w+/=-]{2000,}")  # images, sound and files have no tokens that their bytes tell


@dataclass(frozen=True)
class Asked:
    """A model call as an HTTP request. Nothing that it shows holds a credential, but `target` and `content`."""

    dialect: str  # "openai" (chat/completions), "responses", "completions", "embeddings", "anthropic", "gemini"
    host: str  # with its port, lower case; the upstream's where it goes through a `Reverse`, as is the path
    path: str  # path and query, without credentials
    tenant: str  # a hash of the credentials; empty if there is none
    model: str
    body: dict[str, Any]
    stream: bool
    target: str = field(repr=False)  # path and query as they are to be sent
    original: bytes | None = field(default=None, repr=False, compare=False)  # the body, where nothing was changed
    secrets: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    asks: bool = True  # for usage, where the client does not

    def renamed(self, model: str) -> Asked:
        """The same call of another model."""
        if model == self.model:
            return self
        path, target = (_renamed(text, model) for text in (self.path, self.target))
        body = {**self.body, "model": model} if "model" in self.body or path == self.path else self.body
        return replace(self, model=model, path=path, target=target, body=body, original=None)

    def unasked(self) -> Asked:
        """The same without asking for usage, for servers that refuse a request with stream_options."""
        return replace(self, asks=False)

    @property
    def hides_usage(self) -> bool:
        """Whether it streams without asking what that takes; `content` then asks."""
        options = self.body.get("stream_options") or {}
        spoken = self.dialect in ("openai", "completions") and isinstance(options, dict)
        return self.asks and self.stream and spoken and not options.get("include_usage")

    @cached_property
    def content(self) -> bytes:
        """The body to be sent: the original bytes if nothing was changed."""
        if self.hides_usage:
            options = {**(self.body.get("stream_options") or {}), "include_usage": True}
            return json.dumps({**self.body, "stream_options": options}).encode()
        return json.dumps(self.body).encode() if self.original is None else self.original


def likely(method: str, url: str) -> bool:
    """Whether a request may be a model call, by its method and path alone."""
    try:
        return method.upper() == "POST" and bool(_dialect(urlsplit(url).path))
    except ValueError:
        return False


def _dialect(path: str) -> str:
    if _GEMINI.fullmatch(path):
        return "gemini"
    return next((dialect for end, dialect in _ENDINGS.items() if path.rstrip("/").endswith(end)), "")


def asked(method: str, url: str, headers: Mapping[str, str], content: bytes) -> Asked | None:
    """The model call that a request is; None for any other. It is known by the end of its path, whatever the host, and
    names a model: in its body, or in its path as Gemini's and Azure's do."""
    try:
        parts = urlsplit(url)
        named, there = _GEMINI.fullmatch(parts.path), _DEPLOYMENT.fullmatch(parts.path)
        dialect = _dialect(parts.path)
        body = json.loads(content) if dialect and method.upper() == "POST" else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    place = named or there  # Azure serves the deployment in the path, whatever the body says
    model = unquote(place[2]) if place else body.get("model")
    if not isinstance(model, str) or not model:
        return None
    pairs = [pair for pair in parts.query.split("&") if pair]
    shown = [pair for pair in pairs if pair.partition("=")[0].lower() not in _QUERY]
    given = {name.lower(): value for name, value in headers.items() if name.lower() in _CREDENTIALS}
    secret = [f"{name}:{given[name]}" for name in sorted(given)] + [pair for pair in pairs if pair not in shown]
    host, shown_path = _upstream(parts.netloc.rpartition("@")[2].lower(), parts.path)
    values = [*given.values(), *(unquote(pair.partition("=")[2]) for pair in pairs if pair not in shown)]
    return Asked(
        dialect,
        host,
        _joined(shown_path, shown),
        hashlib.sha256("\n".join(secret).encode()).hexdigest()[:16] if secret else "",
        model,
        body,
        "stream" in named[3] if named else bool(body.get("stream")),
        _joined(parts.path, pairs),
        content,
        frozenset(value for text in values if len(value := text.rpartition(" ")[2]) > 7),
    )


def _upstream(host: str, path: str) -> tuple[str, str]:
    """Host and path behind a `Reverse` on this machine, whose port and token differ from run to run."""
    found = _PROXIED.fullmatch(path) if host.startswith("127.0.0.1:") else None
    return (found[1].lower(), found[2]) if found else (host, path)


def _joined(path: str, pairs: list[str]) -> str:
    return f"{path}?{'&'.join(pairs)}" if pairs else path


def _renamed(target: str, model: str) -> str:
    path, mark, query = target.partition("?")
    found = _GEMINI.fullmatch(path) or _DEPLOYMENT.fullmatch(path)
    return f"{found[1]}{quote(model, safe='')}{found[3]}{mark}{query}" if found else target


class Reading:
    """One response being read; notes on its call what it learns as soon as it learns it: usage, reported, heard,
    first_token (of `time.monotonic`), finish, error (a Failure's value) and detail. It never raises."""

    def __init__(self, asked: Asked, call: Call) -> None:
        self.asked, self.call, self.whole = asked, call, False
        self._pieces, self._events, self._answered = Pieces(call), Events(), False
        self._status, self._kind, self._over = 0, "body", False
        self._headers: Mapping[str, str] = {}
        self._body, self._held, self._scanned = bytearray(), bytearray(), 0
        self._text, self._decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        self._used = dict[str, Any]()  # what a stream tells of its tokens, in the vendor's names
        self._known: dict[str, Any] | None = None  # the same in OpenAI's, before the end too

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head has come."""
        self._status, self._headers = status, {name.lower(): value for name, value in headers.items()}
        kind = self._headers.get("content-type", "")
        if status >= 300:
            self.call.source = "unbilled"
        elif "event-stream" in kind or (self.asked.stream and (not kind or "text/plain" in kind)):
            self._kind = "events"
        elif self.asked.stream and self.asked.dialect == "gemini":
            self._kind = "array"
        with suppress(ValueError):
            self.call.served_ms = float(self._headers.get("openai-processing-ms", ""))

    def feed(self, chunk: bytes) -> bytes:
        """Bytes of the body as they come, decompressed; returns what the client is to see."""
        if self._kind == "body":
            self._body += chunk
        elif self._kind == "array":
            self._text += self._decoder.decode(chunk)
            if b"}" in chunk:
                self._elements()
        elif self.asked.hides_usage:
            self._held += chunk
            return self._without_usage()
        else:
            self._take_all(self._events.feed(chunk))
        return chunk

    def end(self) -> bytes:
        """The body is at its end; returns what is left to be seen."""
        if not self._over and not self._settle():
            self._estimate()
            if not self.call.error:
                self._fail(CallFailed(Failure.GARBAGE if self._kind == "body" else Failure.CUT, "no whole answer came"))
        left, self._held = bytes(self._held), bytearray()
        return left

    def left(self, error: BaseException | None = None) -> None:
        """It ended before: the reader left, or by an error of the connection."""
        if self._over or self._settle():
            return
        self._estimate()
        if self.call.error:
            return
        if not isinstance(error, Exception):
            self.call.cancelled = True
            return
        slow = failed_client(error).failure is Failure.TIMEOUT
        failure = Failure.TIMEOUT if slow else Failure.CUT if self._status else Failure.CONNECTION
        self._fail(CallFailed(failure, f"{type(error).__name__}: {error}"))

    def _estimate(self) -> None:
        """What a stream that broke off has told of its tokens, and an estimate of the output."""
        call = self.call
        if self._known and call.usage is None and (usage := read_usage(self._known)):
            call.usage = replace(usage, output=max(usage.output, estimate_tokens(call.heard)))
            call.estimated = True

    def _settle(self) -> bool:
        """Read what is still there; whether the answer has come to its end."""
        self._over = True
        if self._status >= 300:
            self._fail(failed(self._status, bytes(self._body), self._headers))
        elif self._kind == "body":
            with suppress(ValueError, RecursionError):
                self._take(json.loads(self._body), whole=True)
        elif self._kind == "events":
            told = self._events.feed(bytes(self._held)) + self._events.end()
            self._take_all(told, cut=True)
            if any(map(only_usage, told)):
                self._held.clear()
        ended = self._pieces.ended and self._answered
        self.whole = ended and not self.call.error and self.call.finish not in responses.PENDING
        return ended

    def _without_usage(self) -> bytes:
        """The events that are complete, byte by byte, but one that says only what the client did not ask for."""
        seen, at = [], 0
        while found := _BLANK.search(self._held, max(at, self._scanned)):
            raw, at = bytes(self._held[at : found.end()]), found.end()
            told = self._events.feed(raw)
            self._take_all(told)
            if not any(map(only_usage, told)):
                seen.append(raw)
        del self._held[:at]
        self._scanned = max(0, len(self._held) - 3)  # a blank line is 4 bytes at most
        return b"".join(seen)

    def _elements(self) -> None:
        """Those of a JSON array that are complete."""
        while start := self._text.lstrip("[, \t\r\n"):
            self._text = start
            try:
                element, end = _json.raw_decode(start)
            except (ValueError, RecursionError):
                return
            self._text = start[end:]
            self._take(element)

    def _take_all(self, events: list[bytes], *, cut: bool = False) -> None:
        """Events, the last of which may be cut off."""
        for data in events:
            if data.strip() == b"[DONE]":
                self._pieces.done = True
                continue
            try:
                self._take(json.loads(data))
            except (ValueError, RecursionError):
                if not cut:
                    self._fail(CallFailed(Failure.GARBAGE, f"in a stream: {data[:1000].decode(errors='replace')}"))

    def _take(self, said: Any, *, whole: bool = False) -> None:
        """One event, or a whole answer."""
        call, heard, first = self.call, len(self.call.heard), self.call.first_token
        call.first_token = first or time.monotonic()  # Pieces would ask an event loop, and there may be none
        try:
            if error := error_of(said):
                self._fail(error)
            piece = piece_of(self.asked.dialect, said, self._used, whole)
            if piece is not None:
                answered = bool(piece["choices"])
                self._pieces.done = self._pieces.done or (whole and answered)
                self._note(piece)
                call.estimated = call.estimated or (bool(piece.get("usage")) and unusual(said))
                self._pieces.take(piece)
                self._answered = self._answered or answered
        except CallFailed as error:
            self._fail(error)
        except BROKEN:
            self._fail(CallFailed(Failure.GARBAGE, f"no answer: {as_json(said)[:1000]}"))
        if whole or len(call.heard) == heard:
            call.first_token = first

    def _note(self, piece: dict[str, Any]) -> None:
        for choice in piece["choices"]:
            if isinstance(reason := choice.get("finish_reason"), str):
                self.call.finish = reason
        if used := piece.get("usage"):
            if thought := self._beside(used):
                used = piece["usage"] = {**used, "completion_tokens_details": {"reasoning_tokens": thought}}
            self._known = used

    def _beside(self, used: Mapping[str, Any]) -> int:
        """Thoughts that Google's chat completions count in the total alone; `read_usage` adds such to the output."""
        if not self.asked.host.endswith("googleapis.com") or used.get("completion_tokens_details"):
            return 0
        input, output, total = (used.get(f"{name}_tokens") or 0 for name in ("prompt", "completion", "total"))
        return max(0, total - input - output)

    def _fail(self, error: CallFailed) -> None:
        """The first failure is the cause."""
        if not self.call.error:
            short = tidy(error, self.asked.secrets)
            self.call.error, self.call.detail = str(short.failure), short.detail


_PERHAPS = {Failure.TIMEOUT, Failure.CUT, Failure.GARBAGE}  # the provider may have done the work


def billed(call: Call, asked: Asked, price: Price | Literal["free"] | None) -> None:
    """Set a finished call's price, source and estimated: by the price if a user gave it, else what the provider
    reported, else the price (the map's where None). A call without usage is estimated from what was sent and heard;
    what failed before an answer is unbilled; where nobody knows the price, the source is 'unknown'. A response in the
    background has no usage yet, and what later requests tell of it is not read: it stays estimated."""
    price = mapped(call.model) if price is None else price
    barren = call.usage is None and not call.heard
    call.price = 0
    if call.reported is not None and not (isinstance(price, Price) and price.source == "user"):
        call.price, call.source, call.estimated = call.reported, "provider", False
    elif price == "free":
        call.source = "free"
    elif call.source == "unbilled" or (call.error and barren and call.error not in _PERHAPS):
        call.source = "unbilled"
    elif not isinstance(price, Price):
        call.source = "unknown"
    else:
        call.estimated = call.estimated or call.usage is None or price.source == "policy"
        call.price = price.bill(call.usage or Usage(_sent(asked.body), estimate_tokens(call.heard)))
        call.source = price.source


def _sent(body: Mapping[str, Any]) -> int:
    """About how many tokens a request has, images, sound and files left out."""
    spoken = _SPOKEN_BY_GEMINI if "contents" in body else _SPOKEN
    return estimate_tokens(_BINARY.sub("", as_json([body[name] for name in spoken if name in body])))
