"""Answers that need not be paid twice: by provider, tenant, every field of the request, and draw."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playcall.strategies.call import Answer, Call, Usage
from playcall.strategies.errors import Misuse, PlaycallError
from playcall.strategies.signal import Signal, after_fork

_VERSION = 1  # of what is stored
_ROW = 200  # bytes of a row beside its value
_BUSY = 50  # ms that a locked file is waited for: the event loop waits too
_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, used INTEGER NOT NULL, value TEXT NOT NULL)"
_PUT = (
    "INSERT INTO answers VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET used = excluded.used, value = excluded.value"
)
_SIZE = f"SELECT coalesce(sum(length(value) + {_ROW}), 0) FROM answers"
_EVICT = f"""DELETE FROM answers WHERE key IN (SELECT key FROM (
    SELECT key, sum(length(value) + {_ROW}) OVER (ORDER BY used DESC) AS upto FROM answers) WHERE upto > ?)"""


def key_of(*, endpoint: str, tenant: str, request: Mapping[str, Any], draw: int, **also: object) -> str:
    """A name for a call's answer. Whatever differs is another answer (1, 1.0 and True too), save the order of fields.

    `also` is what else the answer depends on. Raises Misuse for what is not JSON.
    """
    told = [_VERSION, endpoint, tenant, draw, also, request]
    try:
        return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    except (TypeError, ValueError) as error:
        raise Misuse(f"this request cannot be cached: {error}. Give JSON values, or switch the cache off.") from error


@dataclass(frozen=True)
class Kept:
    """An answer and what it took when it was fresh."""

    answer: Answer
    usage: Usage | None
    price: int  # nano-dollars
    seconds: float
    finish: str | None


@dataclass
class Flight:
    """A call that others wait for."""

    leader: object = None  # who makes it
    landed: Signal = field(default_factory=Signal)
    over: threading.Event = field(default_factory=threading.Event)  # the same for code that is not async
    kept: Kept | None = None  # None where it failed
    again: bool = False  # it was given up: another may make it

    def end(self, kept: Kept | None) -> None:
        """Wake all that wait."""
        self.kept = kept
        self.over.set()
        self.landed.set()

    @property
    def copy(self) -> Kept | None:
        """What it brought: one of its own for each caller, where it can be."""
        text = self.kept and _dump(self.kept)
        return _load(text) if text else self.kept


class Cache:
    """Answers in memory, or in an SQLite file that processes may share; beyond `max_bytes` the least recently used go.

    Only answers whose output is the same after a turn through JSON are stored. A file that cannot be written to costs
    no answer: it is a warning.
    """

    def __init__(self, path: str | Path | None = None, *, max_bytes: int = 256 * 2**20) -> None:
        if not max_bytes > 0:
            raise Misuse(f"Cache(max_bytes={max_bytes!r}); give a number above zero.")
        self.path, self.max_bytes = None if path is None else Path(path).absolute(), max_bytes
        self._inherited: list[sqlite3.Connection] = []
        self._open()
        after_fork(self._forked)

    def _open(self) -> None:
        self._lock, self._flights = threading.Lock(), dict[str, Flight]()
        self._touched: dict[str, int] = {}  # when each was last used, to be written with the next answer
        self._now = 0
        try:
            self._db = sqlite3.connect(self.path or ":memory:", timeout=1.0, check_same_thread=False)
            for statement in (
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = NORMAL",
                _TABLE,
                f"PRAGMA busy_timeout = {_BUSY}",
            ):
                self._db.execute(statement)
            self._bytes: int = self._db.execute(_SIZE).fetchone()[0]
        except sqlite3.Error as error:
            raise PlaycallError(f"cache {self.path} cannot be opened: {error}. Name another file.") from error

    def _forked(self) -> None:
        self._inherited.append(self._db)  # the parent's: neither used nor closed here
        self._open()

    def close(self) -> None:
        """Let the file go."""
        with self._lock:
            self._db.close()

    async def fetch(self, key: str, make: Callable[[], Awaitable[tuple[Answer, Call]]]) -> Kept:
        """What is kept under the key, else what `make` brings. One of equal calls in flight makes it, the others wait;
        where it fails or is cancelled the next of them makes it. They may be on any thread and event loop.
        """
        while True:
            found = self.claim(key)
            if isinstance(found, Kept):
                return found
            if found is None:
                return await self._lead(key, make)
            await found.landed.wait()
            if (kept := found.copy) is not None:
                return kept

    def claim(self, key: str, leader: object = None) -> Kept | Flight | None:
        """What is kept under the key, else the call in flight that will bring it; None to who makes that call, and must
        `land` it."""
        with self._lock:
            if (kept := self._get(key)) is not None:
                return kept
            if key in self._flights:
                return self._flights[key]
            self._flights[key] = Flight(leader)
            return None

    def land(self, key: str, kept: Kept | None, *, again: bool = False) -> None:
        """A call that was claimed has ended, with an answer to keep or without; `again` if it was given up."""
        with self._lock:
            flight = self._flights.pop(key, None)
            try:
                if kept is not None:
                    self._put(key, kept)
            finally:
                if flight is not None:
                    flight.again = again
                    flight.end(kept)

    def keep(self, key: str, kept: Kept) -> None:
        """The answer of a call that was not claimed."""
        with self._lock:
            self._put(key, kept)

    def release(self, key: str) -> None:
        """Nobody is to wait any longer for a call that was claimed, and has not ended."""
        with self._lock:
            if flight := self._flights.get(key):
                flight.end(None)

    async def _lead(self, key: str, make: Callable[[], Awaitable[tuple[Answer, Call]]]) -> Kept:
        kept = None
        try:
            answer, call = await make()
            kept = Kept(answer, call.usage, call.price, call.seconds, call.finish)
            return kept
        finally:
            self.land(key, kept)

    def _get(self, key: str) -> Kept | None:
        try:
            row = self._db.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._warn(error)
            return None
        try:
            kept = None if row is None else _load(row[0])
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):  # of another program, or torn
            return None
        if kept:
            self._touched[key] = self._tick()
        return kept

    def _put(self, key: str, kept: Kept) -> None:
        text = _dump(kept)
        if text is None or len(text) + _ROW > self.max_bytes:
            return
        try:
            with self._db:
                used = [(when, k) for k, when in self._touched.items()]
                self._db.executemany("UPDATE answers SET used = ? WHERE key = ?", used)
                self._db.execute(_PUT, (key, self._tick(), text))
                self._bytes += len(text) + _ROW
                if self._bytes > self.max_bytes:
                    self._db.execute(_EVICT, (max(len(text) + _ROW, self.max_bytes * 9 // 10),))
                    self._bytes = self._db.execute(_SIZE).fetchone()[0]
            self._touched.clear()
        except sqlite3.Error as error:
            self._warn(error)

    def _tick(self) -> int:
        self._now = max(self._now + 1, time.time_ns())
        return self._now

    def _warn(self, error: sqlite3.Error) -> None:
        logging.getLogger("playcall").warning("cache %s: %s; answers are paid for anew.", self.path or "", error)


def _dump(kept: Kept) -> str | None:
    told = {**vars(kept), "answer": vars(kept.answer), "usage": kept.usage and vars(kept.usage)}
    try:
        text = json.dumps(told)
        return text if json.loads(text)["answer"]["output"] == kept.answer.output else None
    except (TypeError, ValueError, RecursionError):
        return None


def _load(text: str) -> Kept:
    told = json.loads(text)
    return Kept(**{**told, "answer": Answer(**told["answer"]), "usage": told["usage"] and Usage(**told["usage"])})
