"""An event that any thread sets and any task, on any event loop, awaits; and what a forked child must forget."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import sniffio


def on_asyncio() -> bool:
    """Whether asyncio's loop runs this; trio may run inside of one."""
    return sniffio.thread_local.name is None and asyncio._get_running_loop() is not None


def moment() -> float:
    """anyio.current_time(), at a third of its price on asyncio; each call asks for it eight times."""
    if sniffio.thread_local.name is None and (loop := asyncio._get_running_loop()):
        return loop.time()
    return anyio.current_time()


def _loop() -> Any:
    """Trio's token or asyncio's loop, where one runs in this thread; else None."""
    with suppress(AttributeError, RuntimeError):  # trio is half imported, or does not run here
        if trio := sys.modules.get("trio"):
            return trio.lowlevel.current_trio_token()
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


class Signal:
    """One-shot: once set, it stays set. All that wait on one loop share an event there."""

    __slots__ = ("_waiting", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: dict[Any, anyio.Event] = {}

    def set(self) -> None:
        """Wake all that wait. On a waiter's own loop it is awake at once, elsewhere as soon as its loop turns."""
        self.is_set = True  # before the look: a wait enters itself first, and looks afterwards
        if not self._waiting:
            return
        here = _loop()
        for loop, event in self._waiting.copy().items():
            if loop is here:
                event.set()
            else:
                soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
                with suppress(RuntimeError):  # its loop is closed
                    soon(event.set)

    async def wait(self) -> None:
        """Return when it is set; at once, without a checkpoint, where it is."""
        if self.is_set:
            return
        loop = _loop()
        event = self._waiting.get(loop) or self._waiting.setdefault(loop, anyio.Event())
        if not self.is_set:
            await event.wait()


def after_fork(method: Callable[[], None]) -> None:
    """Have a bound method called in each forked child, for as long as its object lives."""
    if sys.platform != "win32":
        alive = weakref.WeakMethod(method)
        os.register_at_fork(after_in_child=lambda: (alive() or (lambda: None))())
