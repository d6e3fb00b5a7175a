"""One model call on its way through a client: what its traces note of it, and its answer from or for the cache."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio

from playcall.strategies.cache import Flight, Kept, key_of
from playcall.strategies.call import Answer, Call, Failure
from playcall.strategies.dialects import Asked, Reading, asked, billed
from playcall.strategies.prices import mapped
from playcall.strategies.scope import HERE, INSIDE, QUIET, Scope, Trace, here, strand, task, waited
from playcall.strategies.trace import Span

_LEFT_OUT = {"content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "set-cookie"}
_LIKELY = (b'"messages"', b'"prompt"', b'"contents"', b'"inputText"')
_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_SECRET = re.compile(r"cookie|key|token|auth|secret")
_TELLING = re.compile(r"anthropic-|openai-")  # of what is asked, beside the body
_ALWAYS_NEW = {"idempotency-key"}
_PLAIN = re.compile(r"[A-Za-z]{1,16}")
_PATIENCE = 600.0  # seconds that an equal call is waited for, where a client has no limit of its own


@contextmanager
def quiet(what: ContextVar[tuple[bool, ...] | list[bool]] = QUIET) -> Iterator[None]:
    """A client is sending. What it began (threads, tasks) is watched again as soon as it is done."""
    going = [True]
    token = what.set(going)
    try:
        yield
    finally:
        going.clear()
        what.reset(token)


def watched() -> bool:
    """Whether requests that are sent here are a track's."""
    return HERE.get() is not None and not INSIDE.get()


def sending(method: str, url: str, headers: Mapping[str, str], content: bytes) -> Sent | None:
    """What a request is, if it is a model call within a track."""
    if (found := here()) is None:
        return None
    trace, scope = found
    call = asked(method, url, headers, content)
    if call is not None:
        user = urlsplit(url).netloc.rpartition("@")[0]
        return Sent(trace, scope, call, {**headers, "userinfo-auth": user} if user else headers)
    if method.upper() == "POST" and any(word in content for word in _LIKELY):
        host, _, path = url.partition("?")[0].partition("//")[2].rpartition("@")[2].partition("/")
        last = path.rpartition("/")[2]
        for each in trace.line:
            each.miss(f"POST {host}" + (f"/.../{last}" if _PLAIN.fullmatch(last) else ""))
    return None


def _telling(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those that an answer may depend on: who asks, and for what beside the body."""
    given = sorted((name.lower(), str(value)) for name, value in headers.items())
    return [(k, v) for k, v in given if (_SECRET.search(k) or _TELLING.match(k)) and k not in _ALWAYS_NEW]


def _secrets(headers: Mapping[str, str]) -> set[str]:
    """What headers hold of keys, passwords and cookies."""
    named = [str(value) for name, value in headers.items() if _SECRET.search(name.lower())]
    pieces = [piece for value in named for piece in re.split(r"[\s;,]+", value)]
    pieces += [piece.partition(mark)[2] for piece in pieces for mark in "=:"]
    return {text for piece in (*named, *pieces) for text in (piece, unquote(piece)) if len(text) > 7}


def told(headers: Mapping[str, str]) -> bool:
    """Whether a body may be JSON, by its headers."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return "json" in kind or kind in ("", "application/octet-stream", "text/plain")


class Body:
    """That of a cached answer, as a stream: like one from the network it is there once."""

    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def __iter__(self) -> Iterator[bytes]:
        while self._left:
            yield self._left.pop()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()

    def stream(self, amt: int | None, decode_content: bool | None) -> Iterator[bytes]:
        return iter(self)

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class Sent:
    """A call in a track. Its client sends `asked`, and tells `begin`, `feed` and `end`, or `left`."""

    def __init__(self, trace: Trace, scope: Scope, call: Asked, headers: Mapping[str, str]) -> None:
        role = call.model if call.model in trace.models else scope.role or call.model
        self.asked = call.renamed(trace.models.get(role, call.model))
        self.moved = self.asked.target != call.target
        if self.asked.host in trace.refusing:
            self.asked = self.asked.unasked()
        self._trace, self._strand, self._lock = trace, strand(scope), threading.Lock()
        self._price = trace.prices.get(self.asked.model)
        if self._price is None and mapped(self.asked.model) is None:
            self._price = trace.prices.get(call.model)
        self.call = Call(trace.arm or self.asked.model, self.asked.model, None, None, trace.draw, {})
        self.call.run, self.call.role, self.call.node, self.call.stream = trace.item, role, "track", call.stream
        self.call.began, self.call.sent = time.time(), time.monotonic()
        self._hide(headers)
        self._over, self._given, self._seen = False, _telling(headers), True
        self._decoder: Any = None
        self._unread = False  # it is compressed in a way that is not known here
        self._status, self._headers, self._body = 0, dict[str, str](), bytearray()
        self._key, self._leads, self._request, self._draw = "", False, "", 0
        self.kept: Kept | None = None
        if trace.cache is not None:
            a = self.asked
            tenant = hashlib.sha256(repr(self._given).encode()).hexdigest()[:16] if self._given else ""
            tenant += a.tenant
            self._request = key_of(endpoint=a.host, tenant=tenant, request=a.body, draw=0, path=a.path)
            self._draw = trace.take(self._request)
            self.call.draw = trace.draw + self._draw
            self._key = f"{self._request}-{self.call.draw}"
        trace.open.add(self)

    def _hide(self, headers: Mapping[str, str]) -> None:
        """No detail of the call holds what these do."""
        self.asked = replace(self.asked, secrets=self.asked.secrets | _secrets(headers))
        self._reading = Reading(self.asked, self.call)

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """An answer from the cache, or leave to send."""
        try:
            self._trace.refuse()
            yield
            if self.kept is None:
                self._trace.ask(self.asked)
        except BaseException:
            with self._lock:
                self._over = True
            self._let_go(None)
            raise
        if self.kept is not None:
            self.call.cached, self.call.saved, self.call.original = True, self.kept.price, self.kept.seconds

    def _claim(self) -> Flight | None:
        """Whom to wait for."""
        cache, me = self._trace.cache, (threading.get_ident(), task())
        with self._lock:
            if cache is None or not self._key or self._over or self._trace.closed:
                return None
            found = cache.claim(self._key, me)
            if isinstance(found, Flight):
                return found
            self.kept, self._leads = found, found is None
        return None

    def claim(self, patience: float | None = None) -> None:
        """Set `kept` if the answer is cached, waiting at most so many seconds for an equal call; raises what a limit
        raises."""
        with self._claiming():
            while flight := self._claim():
                leader = flight.leader
                if isinstance(leader, tuple) and leader[0] == threading.get_ident():
                    break  # it would wait for itself
                flight.over.wait(_PATIENCE if patience is None else patience)
                if self._waited(flight):
                    break

    async def aclaim(self, patience: float | None = None) -> None:
        """The same, async."""
        with self._claiming():
            while (flight := self._claim()) and flight.leader != (threading.get_ident(), task()):
                with anyio.move_on_after(_PATIENCE if patience is None else patience):
                    await flight.landed.wait()
                if self._waited(flight):
                    break

    def _waited(self, flight: Flight) -> bool:
        """Whether that was all. Where the other failed this sends itself, and so do all that waited; where it was given
        up, one of them is the next that others wait for."""
        self.kept = flight.copy
        if self.kept is None:
            self.call.began, self.call.sent = time.time(), time.monotonic()
        return not flight.again

    def handed(self, stream: bool) -> None:
        """The reader of a stream may take any time over it: nobody waits for that."""
        if stream and self._leads and self._trace.cache is not None:
            self._trace.cache.release(self._key)

    @contextmanager
    def going(self) -> Iterator[None]:
        """Around the client's own sending."""
        with quiet(INSIDE):
            try:
                yield
            except BaseException as error:
                response = getattr(error, "response", None)
                status = getattr(error, "status", getattr(response, "status_code", None))
                if isinstance(status, int) and status >= 400:  # a client, or a hook of it, raises for a status
                    self.begin(status, {})
                    self.end()
                self.left(error)
                raise

    def doubtful(self, status: int) -> bool:
        """Whether to look at a body, since the server may have refused what the agent did not ask."""
        return self.asked.hides_usage and status in (400, 422)

    def refused(self, status: int, body: bytes) -> bool:
        """Whether it has, and the call is to be sent once more without."""
        if not self.doubtful(status) or b"stream_options" not in body:
            return False
        self.asked = self.asked.unasked()
        self._trace.refusing.add(self.asked.host)
        return True

    def begin(
        self, status: int, headers: Mapping[str, str], *, decode: bool = False, sent: Mapping[str, str] | None = None
    ) -> None:
        """The head of the response to what was sent with those headers. `decode` where the client would do it later."""
        self._status, self._headers = status, {name.lower(): value for name, value in headers.items()}
        if sent is not None:
            self._hide(sent)
            self._seen = _telling(sent) == self._given  # else its client signed in by itself: that is in no key
        encoding = self._headers.get("content-encoding", "").strip().lower()
        if decode and encoding in _WBITS:
            self._decoder = zlib.decompressobj(_WBITS[encoding])
        self._unread = encoding not in ("", "identity", *_WBITS)
        self._reading.begin(status, headers)

    @property
    def decoded(self) -> bool:
        """Whether `feed` returns what was compressed decompressed."""
        return self._decoder is not None and self.asked.hides_usage

    def replay(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a cached answer; it is then read like any other."""
        assert self.kept is not None
        told: Any = self.kept.answer.output  # as `_answer` stores it
        status, headers = int(told[0]), dict(told[1])
        self.begin(status, headers)
        return status, headers, self.kept.answer.text.encode(told[2] if len(told) > 2 else "latin-1")

    def feed(self, chunk: bytes) -> bytes:
        """A piece of the body; returns what the client is to see."""
        plain = self._plain(chunk)
        if self._key and self.kept is None:
            self._body += plain
        seen = self._reading.feed(plain) if plain else b""
        return seen if self._decoder is None or self.decoded else chunk

    def _plain(self, chunk: bytes | None) -> bytes:
        """It decompressed; what is left, for None. Where it is broken, its reader is told by the client."""
        if self._decoder is None:
            return chunk or b""
        if self._unread:
            return b""
        try:
            found: bytes = self._decoder.flush() if chunk is None else self._decoder.decompress(chunk)
        except zlib.error:
            self._unread, found = True, b""
        return found

    def end(self) -> bytes:
        """The body is at its end; returns what is left to be seen."""
        rest = self._plain(None)
        self._body += rest
        seen = (self._reading.feed(rest) if rest else b"") + self._reading.end()
        if self._unread and self._status < 300 and not self._reading.whole:
            self.call.error, self.call.detail, self.call.estimated = "", "", True
        self._finish(self.call)
        return seen if self._decoder is None or self.decoded else b""

    def left(self, error: BaseException | None = None) -> None:
        """It ended before that: by an error, or since the reader left."""
        if not self._over:
            self._reading.left(error)
        self._finish(replace(self.call))  # who goes on reading changes a call of their own

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """What the client is to see of a body."""
        try:
            for chunk in chunks:
                if seen := self.feed(chunk):
                    yield seen
            if seen := self.end():
                yield seen
        except BaseException as error:
            self.left(error)
            raise

    async def following(self, chunks: AsyncIterator[bytes]) -> bytes:
        """The same, piece by piece: trio warns of an async generator that is left."""
        try:
            async for chunk in chunks:
                if seen := self.feed(chunk):
                    return seen
            if seen := self.end():
                return seen
        except BaseException as error:
            self.left(error)
            raise
        raise StopAsyncIteration

    def _finish(self, call: Call) -> None:
        with self._lock:
            first, self._over = not self._over, True
        try:
            if first:
                end = time.monotonic()
                call.seconds = end - call.sent
                waited()
                if call.cached:
                    call.source = "cache"
                elif call.error == Failure.CONNECTION:
                    call.source = "unbilled"
                else:
                    billed(call, self.asked, self._price)
        finally:
            self._let_go(call if first else None)
        if first:
            self._note(call, Span(call.sent, end, self._strand, call.original))

    def _note(self, call: Call, span: Span) -> None:
        ledgers = {}
        for trace in self._trace.line:
            trace.note(call, span)
            if trace.ledger is not None:
                ledgers[id(trace.ledger)] = trace.ledger
        if ledgers:
            told = json.dumps([self.asked.path, self.asked.body], sort_keys=True)
            digest = hashlib.sha256(told.encode()).hexdigest()[:16]
            for ledger in ledgers.values():
                ledger.add(call, provider=self.asked.host, prompt_hash=digest)

    def _let_go(self, call: Call | None) -> None:
        """Of the number, the flight and the trace."""
        self._trace.open.discard(self)
        (key, leads), self._key, self._leads = (self._key, self._leads), "", False
        answered = self._reading.whole and 200 <= self._status < 300
        if key and not answered:
            self._trace.give_back(self._request, self._draw)
        if (cache := self._trace.cache) is None or self.kept is not None:
            return
        kept = self._answer(call) if call and answered and self._seen and not self._unread else None
        if leads:
            cache.land(key, kept, again=call is None or call.cancelled)
        elif key and kept:
            cache.keep(key, kept)

    def _answer(self, call: Call) -> Kept:
        body, headers = bytes(self._body), {k: v for k, v in self._headers.items() if k not in _LEFT_OUT}
        try:
            text, coding = body.decode(), "utf-8"
        except UnicodeDecodeError:
            text, coding = body.decode("latin-1"), "latin-1"
        return Kept(Answer(text, [self._status, headers, coding]), call.usage, call.price, call.seconds, call.finish)
