"""What a task in the background produces, as an async iterator; and a loop in a thread for code that is not async."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.lowlevel import RunVar

from playcall.strategies.errors import Misuse, only
from playcall.strategies.signal import on_asyncio

T = TypeVar("T")
Send = Callable[[T], Awaitable[None]]


@asynccontextmanager
async def background(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run work beside the body, cancelled when the body ends. On asyncio the body may end in another task, as that of a
    generator which nobody finished does."""
    if not on_asyncio():
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                yield
                group.cancel_scope.cancel()
        except BaseExceptionGroup as raised:
            raise only(raised) from None
        return
    task = asyncio.get_running_loop().create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # it was told to the reader


class Feed(Generic[T]):
    """Iterate it with `async for`, on trio inside `async with feed:`. Leaving it early cancels the work and closes its
    connections."""

    def __init__(self, produce: Callable[[Send[T]], Coroutine[Any, Any, None]], room: float = 0) -> None:
        self._produce, self._room, self._stack = produce, room, AsyncExitStack()
        self._items: AsyncIterator[T] | None = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        send, receive = anyio.create_memory_object_stream[T](self._room)
        self.send_nowait = send.send_nowait

        async def work() -> None:
            with send:
                try:
                    await self._produce(send.send)
                except Exception as error:
                    self._error = only(error)

        async def items() -> AsyncIterator[T]:
            with receive:
                async for item in receive:
                    yield item
            if self._error is not None:
                raise self._error

        self._stack.callback(receive.close)
        await self._stack.enter_async_context(background(work))
        self._items = items()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stack.__aexit__(*error)

    def __aiter__(self) -> AsyncIterator[T]:
        if self._items is not None:
            return self._items
        if not on_asyncio():
            raise Misuse("on trio write `async with feed: async for item in feed`, so that its tasks have an owner.")
        return self._alone()

    async def _alone(self) -> AsyncIterator[T]:
        async with self:
            async for item in self:
                yield item


MOST_THREADS = 512
"""Calls of functions that are not async, at a time: anyio's own limit is 40, which agents that wait would use up."""

_threads: RunVar[anyio.CapacityLimiter | None] = RunVar("playcall threads")


async def in_thread(work: Callable[[], T]) -> T:
    """Run in a thread, which is left to itself if this is cancelled."""
    limiter = _threads.get(None)
    if limiter is None:
        _threads.set(limiter := anyio.CapacityLimiter(MOST_THREADS))

    def guarded() -> T:
        try:
            return work()
        except (SystemExit, KeyboardInterrupt) as error:  # it would end the event loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return await anyio.to_thread.run_sync(guarded, abandon_on_cancel=True, limiter=limiter)


_lock = threading.Lock()
_portals: dict[int, BlockingPortal] = {}


def portal() -> BlockingPortal:
    """This process's event loop in a thread, started on first use, and anew if something has ended it."""
    with _lock:
        pid = os.getpid()  # a fork has no threads of its parent
        if pid in _portals and not _runs(_portals[pid]):
            del _portals[pid]
        if pid not in _portals:
            manager = start_blocking_portal("asyncio")
            _portals[pid] = manager.__enter__()
            atexit.register(lambda: manager.__exit__(None, None, None) if os.getpid() == pid else None)
        return _portals[pid]


def _runs(portal: BlockingPortal) -> bool:
    try:
        portal.start_task_soon(int)
    except RuntimeError:
        return False
    return True


def in_portal(work: Callable[[], Awaitable[T]]) -> T:
    """The result of async work, from code that is not; Ctrl-C cancels it and waits until it has gone."""
    gone = threading.Event()

    async def whole() -> T:
        try:
            return await work()
        finally:
            gone.set()

    future = portal().start_task_soon(whole)
    try:
        return future.result()
    except BaseException:
        if not future.done() and future.cancel():
            gone.wait()
        raise
