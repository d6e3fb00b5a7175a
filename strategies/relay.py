"""A vendor's own stream, passed on as it comes: its call lasts until its reader has done with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Self

import anyio

from playcall.strategies.anthropic import chunk_of
from playcall.strategies.call import Answer, Call, CallFailed, Failure
from playcall.strategies.completion import Pieces, read_completion
from playcall.strategies.errors import PlaycallError
from playcall.strategies.feed import in_portal
from playcall.strategies.live import Attempt, NoAnswer, Result, Run
from playcall.strategies.runner import StreamCut
from playcall.strategies.signal import Signal, on_asyncio

Failed = Callable[[Exception], CallFailed]
Thread = Callable[[Callable[[], Any]], Awaitable[Any]]
_tasks: set[asyncio.Task[None]] = set()


class Relay:
    """Listener of one run. Calls that fail before their first piece are retried and fall back as ever; from there on
    the stream is the reader's, on whatever thread, and its errors are the vendor's own. A deadline that comes amid it
    ends it at its next piece.
    """

    def __init__(self, nodes: frozenset[str], *, hides_usage: bool) -> None:
        self.nodes, self.hides_usage = nodes, hides_usage  # a last piece that the reader did not ask for
        self.opened, self.ended = Signal(), Signal()
        self.stream: Any = None
        self.error: BaseException | None = None

    def piece(self, attempt: Attempt, text: str) -> None:
        """The reader has it."""

    def broken(self, attempt: Attempt, error: CallFailed) -> None:
        """Nothing can follow what the reader has."""
        raise StreamCut(attempt, error)

    async def passed(self, work: Callable[[Run], Awaitable[Result]]) -> Any:
        """The stream of a run that goes on behind it."""

        async def whole() -> None:
            try:
                result = await work(Run(listener=self))
                if not result.answered:
                    raise NoAnswer(result)
            except Exception as error:
                self.error = error
            finally:
                self.ended.set()
                self.opened.set()

        cancel = _detached(whole)
        try:
            await self.opened.wait()
        except BaseException:
            cancel()
            with anyio.CancelScope(shield=True):
                await self.ended.wait()
            raise
        if self.stream is None:
            raise self.error or PlaycallError("the stream was cancelled before its first piece.")
        return self.stream


class Reading:
    """One call's stream."""

    def __init__(self, relay: Relay, call: Call, failed: Failed) -> None:
        self.relay, self.call, self.failed = relay, call, failed
        self.whole, self.read, self.used = Pieces(call), Signal(), dict[str, Any]()
        self.failure: CallFailed | None = None
        self.handed = self.late = self.left = False

    async def begin(self, stream: Any, thread: Thread | None) -> Any:
        """Wait for the first piece, in a thread where one is given; returns the stream for the reader. Raises what the
        vendor raises."""
        source = getattr(stream, "_iterator", stream)
        if thread is None:
            later = self._later(aiter(source))
            first = await anext(later, None)
            passed = _with_pieces(stream, _resumed(first, later), later)
        else:
            now = self._now(iter(source))
            first = await thread(partial(next, now, None))
            passed = _with_pieces(stream, chain([first], now), now)
        if first is None:
            raise CallFailed(Failure.EMPTY, "the stream ended before it began")
        return passed

    async def end(self, stream: Any) -> Answer:
        """Hand the stream to the reader, and wait until it is read."""
        self.call.heard = self.call.heard or " "  # what has been passed on cannot be taken back: see `Relay.broken`
        self.relay.stream, self.handed = stream, True
        self.relay.opened.set()
        try:
            await self.read.wait()
        except BaseException:
            self.late = True
            raise
        if self.failure is not None:
            raise self.failure
        self.call.cancelled = self.left
        return Answer(self.call.heard)

    def _now(self, source: Iterator[Any]) -> Iterator[Any]:
        with self._reading():
            try:
                for piece in source:
                    self.call.first_token = self.call.first_token or time.monotonic()  # the clock of asyncio
                    if self._shows(piece):
                        yield piece
            finally:
                if hasattr(source, "close"):
                    source.close()
        if self.handed:
            in_portal(self.relay.ended.wait)

    async def _later(self, source: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        try:
            with self._reading():
                async for piece in source:
                    if self._shows(piece):
                        yield piece
        finally:
            if hasattr(source, "aclose"):
                with anyio.CancelScope(shield=True):
                    await source.aclose()
        if self.handed:
            await self.relay.ended.wait()

    def _shows(self, piece: Any) -> bool:
        """Take note of a piece; whether the reader is to see it."""
        if self.late:
            raise PlaycallError("the deadline came while the answer was being streamed.")
        said = piece.model_dump(exclude_none=True, warnings=False) if hasattr(piece, "model_dump") else piece
        if isinstance(said, dict) and "choices" not in said:  # Anthropic's: the reader sees every event
            if chunk := chunk_of(said, self.used):
                self.whole.take(chunk)
            return True
        if not isinstance(said, dict):
            return True
        self.whole.take({**said, "choices": [dict(choice) for choice in said["choices"]]})
        return bool(said["choices"]) or not self.relay.hides_usage or "usage" not in said

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Take down how it ends."""
        try:
            yield
            if self.whole.body["choices"]:
                try:
                    read_completion(self.call, self.whole.body)
                except CallFailed as failure:  # the reader has seen for itself
                    self.failure = failure
        except PlaycallError:
            raise
        except Exception as error:
            found = error if isinstance(error, CallFailed) else self.failed(error)
            cut = self.handed and found.failure in (Failure.CONNECTION, Failure.SERVER, Failure.RAISED)
            self.failure = CallFailed(Failure.CUT, found.detail) if cut else found
            raise
        except BaseException:
            self.left = True
            raise
        finally:
            self.read.set()


def _detached(work: Callable[[], Any]) -> Callable[[], object]:
    """Run work that outlives its caller; returns what cancels it."""
    if on_asyncio():
        task = asyncio.get_running_loop().create_task(work())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return task.cancel
    import trio

    scope = anyio.CancelScope()

    async def inside() -> None:
        with scope:
            await work()

    trio.lowlevel.spawn_system_task(inside)
    return scope.cancel


async def _resumed(first: Any, pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for piece in pieces:
        yield piece


def _with_pieces(stream: Any, rest: Any, pieces: Any) -> Any:
    """The vendor's stream, giving these pieces; one that stands for it where it cannot be made to."""
    if not hasattr(stream, "_iterator"):
        return _Passed(stream, rest, pieces)
    stream._iterator, close = rest, stream.close

    def closed() -> Any:
        pieces.close()
        return close()

    async def closed_later() -> Any:
        await pieces.aclose()
        return await close()

    stream.close = closed_later if hasattr(pieces, "aclose") else closed
    return stream


class _Passed:
    """Stands for a vendor's stream."""

    def __init__(self, stream: Any, rest: Any, pieces: Any) -> None:
        self._stream, self._rest, self._pieces = stream, rest, pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Self:
        return self

    __aiter__ = __enter__ = __iter__

    def __next__(self) -> Any:
        return next(self._rest)

    async def __anext__(self) -> Any:
        return await anext(self._rest)

    async def __aenter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Leave it."""
        self._pieces.close()

    async def aclose(self) -> None:
        """Leave it."""
        await self._pieces.aclose()
