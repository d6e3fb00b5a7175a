"""One model call on its way through a client: what its traces note of it, and its answer from or for the cache."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from playcall.strategies.cache import Flight, Kept, key_of
from playcall.strategies.call import Answer, Call, Failure
from playcall.strategies.dialects import Asked, Reading, asked, billed
from playcall.strategies.scope import HERE, INSIDE, Scope, Trace, here, strand, task
from playcall.strategies.trace import Span

_LEFT_OUT = {"content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "set-cookie"}
_LIKELY = (b'"messages"', b'"prompt"', b'"contents"', b'"inputText"')
_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


@contextmanager
def quiet() -> Iterator[None]:
    """A client is sending: the clients below it, and its connections, are its own concern."""
    token = INSIDE.set(True)
    try:
        yield
    finally:
        INSIDE.reset(token)


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
        return Sent(trace, scope, call)
    if method.upper() == "POST" and any(word in content for word in _LIKELY):
        where = url.partition("?")[0].partition("//")[2].rpartition("@")[2]
        for each in trace.line:
            each.miss(f"POST {where}")
    return None


def told(headers: Mapping[str, str]) -> bool:
    """Whether a body may be JSON, by its headers."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return "json" in kind or kind in ("", "application/octet-stream", "text/plain")


class Sent:
    """A call in a track. Its client sends `asked`, and tells `begin`, `feed` and `end`, or `left`."""

    def __init__(self, trace: Trace, scope: Scope, call: Asked) -> None:
        role = call.model if call.model in trace.models else scope.role or call.model
        self.asked = call.renamed(trace.models.get(role, call.model))
        self.moved = self.asked.target != call.target
        self._trace, self._strand, self._lock = trace, strand(scope), threading.Lock()
        self._price = trace.prices.get(self.asked.model, trace.prices.get(call.model))
        self.call = Call(trace.arm or self.asked.model, self.asked.model, None, None, trace.draw, {})
        self.call.run, self.call.role, self.call.node, self.call.stream = trace.item, role, "track", call.stream
        self.call.began, self.call.sent = time.time(), time.monotonic()
        self._reading = Reading(self.asked, self.call)
        self._over = False
        self._decoder: Any = None
        self._status, self._headers, self._body = 0, dict[str, str](), bytearray()
        self._key, self._leads, self._request, self._draw = "", False, "", 0
        self.kept: Kept | None = None
        if trace.cache is not None:
            a = self.asked
            self._request = key_of(endpoint=a.host, tenant=a.tenant, request=a.body, draw=0, path=a.path)
            self._draw = trace.take(self._request)
            self.call.draw = trace.draw + self._draw
            self._key = f"{self._request}-{self.call.draw}"
        trace.open.add(self)

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """An answer from the cache, or leave to send."""
        try:
            yield
            if self.kept is None:
                for limit in dict.fromkeys(each.limit for each in self._trace.line if each.limit):
                    limit(self.asked)
        except BaseException:
            with self._lock:
                self._over = True
            self._let_go(None)
            raise
        if self.kept is not None:
            self.call.cached, self.call.saved, self.call.original = True, self.kept.price, self.kept.seconds

    def _claim(self) -> Flight | None:
        """Whom to wait for."""
        cache = self._trace.cache
        if cache is None or not self._key or self.kept is not None:
            return None
        me = threading.get_ident(), task()
        found = cache.claim(self._key, me)
        if isinstance(found, Kept):
            self.kept = found
        elif found is None:
            self._leads = True
        else:
            return found
        return None

    def claim(self) -> None:
        """Set `kept` if the answer is cached; raises what a limit raises."""
        with self._claiming():
            while flight := self._claim():
                leader = flight.leader
                if isinstance(leader, tuple) and leader[0] == threading.get_ident():
                    break  # it would wait for itself
                flight.over.wait()
                self.kept = flight.copy

    async def aclaim(self) -> None:
        """The same, async."""
        with self._claiming():
            while flight := self._claim():
                if flight.leader == (threading.get_ident(), task()):
                    break
                await flight.landed.wait()
                self.kept = flight.copy

    @contextmanager
    def going(self) -> Iterator[None]:
        """Around the client's own sending."""
        with quiet():
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

    def begin(self, status: int, headers: Mapping[str, str], *, decode: bool = False) -> None:
        """The head of the response. `decode` where the client would do it later."""
        self._status, self._headers = status, {name.lower(): value for name, value in headers.items()}
        if decode and (wbits := _WBITS.get(self._headers.get("content-encoding", "").strip().lower())):
            self._decoder = zlib.decompressobj(wbits)
        self._reading.begin(status, headers)

    @property
    def decoded(self) -> bool:
        """Whether `feed` returns what was compressed decompressed."""
        return self._decoder is not None

    def replay(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a cached answer; it is then read like any other."""
        assert self.kept is not None
        told: Any = self.kept.answer.output  # as `_answer` stores it
        status, headers = int(told[0]), dict(told[1])
        self.begin(status, headers)
        return status, headers, self.kept.answer.text.encode("latin-1")

    def feed(self, chunk: bytes) -> bytes:
        """A piece of the body; returns what the client is to see."""
        if self._decoder is not None:
            chunk = self._decoder.decompress(chunk)
        if self._leads:
            self._body += chunk
        return self._reading.feed(chunk) if chunk else b""

    def end(self) -> bytes:
        """The body is at its end; returns what is left to be seen."""
        seen = b""
        if self._decoder is not None and (rest := self._decoder.flush()):
            self._decoder, seen = None, self.feed(rest)
        seen += self._reading.end()
        self._finish(self.call)
        return seen

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
            if self._over:
                return
            self._over = True
        end = time.monotonic()
        call.seconds = end - call.sent
        if call.cached:
            call.source = "cache"
        elif call.error == Failure.CONNECTION:
            call.source = "unbilled"
        else:
            billed(call, self.asked, self._price)
        self._let_go(call)
        span = Span(call.sent, end, self._strand, call.original)
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
        answered = self._reading.whole and 200 <= self._status < 300
        if self._key and not answered:
            self._trace.give_back(self._request, self._draw)
        if self._leads and self._trace.cache is not None:
            self._trace.cache.land(self._key, self._answer(call) if call and answered else None)
            self._leads = False

    def _answer(self, call: Call) -> Kept:
        headers = {name: value for name, value in self._headers.items() if name not in _LEFT_OUT}
        answer = Answer(bytes(self._body).decode("latin-1"), [self._status, headers])
        return Kept(answer, call.usage, call.price, call.seconds, call.finish)
