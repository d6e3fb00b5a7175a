"""The ledger: one row for each call that was made, whatever came of it. Never prompts, answers or keys."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from itertools import count
from operator import attrgetter
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from playcall.strategies.call import Call, Usage
from playcall.strategies.errors import PlaycallError
from playcall.strategies.signal import Signal, after_fork
from playcall.strategies.store import MOST_ROWS, Row, Store, clean, dropped, iso, passing, said

LINGER = 0.05  # seconds that rows wait for more where nobody waits for them
PACE = 0.002  # between commits, so that a busy process makes fewer and larger ones
BACKOFF = 0.1, 30.0  # first and longest pause where the database refuses

_NONE = Usage(None, None, None, None)  # type: ignore[arg-type]
_WHAT = attrgetter("run", "strategy", "node", "role", "arm", "model")  # of a call, in the order of COLUMNS
_SENT = attrgetter("draw", "number", "began", "waited")
_TOOK = attrgetter("seconds", "original")
_USED = attrgetter("input", "cached", "output", "reasoning")
_CAME = attrgetter("price", "source", "estimated", "cancelled", "cached", "saved", "finish", "error", "detail")
_BEGAN = 9  # place in what `add` takes down


class _Batch:
    """What one write takes: set when all that was added before is committed, or could not be."""

    def __init__(self) -> None:
        self.signal, self.event, self.error = Signal(), threading.Event(), ""

    def check(self) -> None:
        if self.error:
            raise PlaycallError(self.error)


class Ledger:
    """Calls in a database: a file, or any SQLAlchemy URL. Threads, event loops and, on disk, processes may share it.

    Rows go through one writer thread. What the database refuses is kept in memory and tried again until it is written,
    once; meanwhile `flush` raises PlaycallError.
    """

    def __init__(self, url: str | Path = "sqlite:///playcall.db") -> None:
        self.store = Store(url)
        self.store.create()
        self._inherited: list[Store] = []
        self._begin()
        after_fork(self._forked)

    def _begin(self) -> None:
        self._queue: deque[Any] = deque()  # rows as they came
        self._batch = _Batch()  # the next one
        self._held: list[Row] = []  # taken from the queue, not yet committed
        self._busy = False  # _held is not empty, or about to be
        self._writing, self._starting = threading.Lock(), threading.Lock()
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._stop: threading.Event | None = None  # of the writer; None where there is none
        self._prefix, self._count = f"{time.time_ns() // 1000:x}-{token_hex(4)}-", count()

    def _forked(self) -> None:
        """The parent writes what it had; a connection must not be shared, nor closed here."""
        self._inherited.append(self.store)
        self.store = Store(self.store.url.render_as_string(hide_password=False))
        self._begin()

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        return self.store.place

    def add(self, call: Call, *, provider: str, prompt_hash: str) -> None:
        """Take down a finished call; it is written soon, or by `flush`."""
        first = None if call.first_token is None else call.first_token - call.sent
        took, used = _TOOK(call), _USED(call.usage or _NONE)
        self._queue.append((*_WHAT(call), provider, *_SENT(call), first, *took, *used, *_CAME(call), prompt_hash))
        if not self._wake.is_set():
            self._wake.set()
        if self._stop is None:
            self._start()

    async def flush(self) -> None:
        """Return when all that was added before is committed; raises PlaycallError where it cannot be."""
        if not self._queue and not self._busy:  # in this order: the writer is busy before it empties the queue
            return
        batch = self._next()
        await batch.signal.wait()
        batch.check()

    def flush_sync(self) -> None:
        """`flush` for code that is not async."""
        if not self._queue and not self._busy:
            return
        batch = self._next()
        batch.event.wait()
        batch.check()

    def _next(self) -> _Batch:
        batch = self._batch  # the writer takes it before it takes rows, so that all that was added is in it or written
        if not self._hurry.is_set():
            self._wake.set()
            self._hurry.set()
        if self._stop is None:
            self._start()
        return batch

    def close(self) -> None:
        """Flush, stop the writer and let the database go. A later `add` starts anew."""
        self.flush_sync()
        with self._starting:
            stop, self._stop = self._stop, None
            atexit.unregister(self.close)
        if stop:
            stop.set()
            self._wake.set()
            self._hurry.set()
        self.store.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._starting:
            if self._stop is None:
                stop = threading.Event()
                try:
                    threading.Thread(target=self._work, args=(stop,), name="playcall ledger", daemon=True).start()
                except RuntimeError:  # the interpreter is ending
                    self._write()
                else:
                    self._stop = stop
                    atexit.register(self.close)

    def _work(self, stop: threading.Event) -> None:
        pause = 0.0
        while not stop.is_set():
            if not pause:
                self._wake.wait()
            self._hurry.wait(pause or LINGER)
            self._wake.clear()
            self._hurry.clear()
            pause = min(max(2 * pause, BACKOFF[0]), BACKOFF[1]) if self._write() else 0.0
            time.sleep(PACE)

    def _write(self) -> str:
        """Commit all that is there, and wake who waits for it; returns what went wrong."""
        with self._writing:
            error, self._busy = "", True
            batch, self._batch = self._batch, _Batch()
            while self._queue:
                item = self._queue.popleft()
                id = f"{self._prefix}{next(self._count):010x}"
                self._held.append((id, *item[:_BEGAN], iso(item[_BEGAN]), *item[_BEGAN + 1 :]))
            try:
                if self._held and self.store.moved():
                    self.store.create()
                while rows := self._held[:MOST_ROWS]:
                    self._commit(rows)
                    del self._held[: len(rows)]
                self._busy = False
            except Exception as e:  # whatever a driver raises, no row may be lost
                why = str(e) if isinstance(e, PlaycallError) else f"ledger {self.place}: {said(e)}."
                error = (
                    f"{why} {len(self._held):,} calls are kept in memory and tried again; make room, give it leave to "
                    "write or bring it back before this process ends."
                )
            batch.error = error
            batch.event.set()
            batch.signal.set()
            return error

    def _commit(self, rows: list[Row]) -> None:
        try:
            self.store.write(rows)
        except Exception as error:
            if dropped(error):
                self.store.create()
            elif passing(error):
                raise
            self.store.write_missing([clean(row) for row in rows])
