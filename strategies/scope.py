"""Where a call is attributed: the innermost open trace, its role, and the strand that it runs in."""

from __future__ import annotations

import asyncio
import heapq
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from playcall.strategies.cache import Cache
from playcall.strategies.call import Call, Usage
from playcall.strategies.dialects import Asked
from playcall.strategies.recording import NANO
from playcall.strategies.trace import Prices, Span, Strand, latency

Limit = Callable[[Asked], None]


class Book(Protocol):
    """What is told of each call as it ends: a Ledger, or whoever does as it does."""

    def add(self, call: Call, *, provider: str, prompt_hash: str) -> None: ...
    def flush_sync(self) -> None: ...
    async def flush(self) -> None: ...


class Open(Protocol):
    """A call that has not ended."""

    def left(self) -> None: ...


class Trace:
    """The model calls of one item, as they end. Threads and tasks may share it. Made by `track`."""

    def __init__(
        self,
        outer: Trace | None,
        arm: str,
        item: str,
        models: Mapping[str, str] | None,
        prices: Prices | None,
        cache: Cache | None,
        draw: int,
        ledger: Book | None,
        limit: Limit | None,
    ) -> None:
        self.outer = outer
        self.arm: str = arm or (outer.arm if outer else "")
        self.item: str = item or (outer.item if outer else "")
        self.models: Mapping[str, str] = dict(outer.models if models is None and outer else models or {})
        self.prices: Prices = dict(outer.prices if prices is None and outer else prices or {})
        self.cache: Cache | None = outer.cache if cache is None and outer else cache
        self.draw: int = draw or (outer.draw if outer else 0)
        self.ledger: Book | None = outer.ledger if ledger is None and outer else ledger
        self.limit = limit
        self.open: set[Open] = set()
        self.refusing: set[str] = set()  # hosts that refuse to be asked for usage
        self.refusal: BaseException | None = None  # what the limit raised
        self.closed = False
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self._spans: list[Span] = []
        self._unseen: dict[str, None] = {}
        self._draws: dict[str, list[int]] = defaultdict(lambda: [0])  # numbers that are free, by request
        self._began, self._ended = time.monotonic(), 0.0

    def __repr__(self) -> str:
        least = f"at least (the price of {self.unpriced} is unknown) " if self.unpriced else ""
        return f"<Trace {self.arm!r} {self.item!r}: {len(self._calls)} calls, {least}${self.usd:.6f}>"

    @property
    def calls(self) -> tuple[Call, ...]:
        """Those that have ended, in that order."""
        return tuple(self._calls)

    @property
    def price(self) -> int:
        """Nano-dollars of all calls."""
        return sum(call.price for call in self.calls)

    @property
    def usd(self) -> float:
        """The same in dollars."""
        return self.price / NANO

    @property
    def unpriced(self) -> int:
        """Calls whose price nobody knows: they count as free."""
        return sum(call.source == "unknown" for call in self.calls)

    @property
    def usage(self) -> Usage:
        """Tokens of all calls, those from the cache too."""
        used = [call.usage for call in self.calls if call.usage]
        return Usage(*(sum(getattr(u, name) for u in used) for name in Usage.__dataclass_fields__))

    @property
    def seconds(self) -> float:
        """Wall time, with every cached call at its original time along the critical path: see `trace.latency`."""
        return latency((self._ended or time.monotonic()) - self._began, tuple(self._spans))

    @property
    def unseen(self) -> tuple[str, ...]:
        """What went out and was not recognised as a model call, each once: subprocesses, connections of clients that
        are not watched, and requests that look like a model call but have an unknown path."""
        return tuple(self._unseen)

    @property
    def line(self) -> Iterator[Trace]:
        """This and the outer traces that are open."""
        trace: Trace | None = self
        while trace is not None:
            if not trace.closed:
                yield trace
            trace = trace.outer

    def refuse(self) -> None:
        """Raise what a limit of this or of an outer trace raised before."""
        if error := next((trace.refusal for trace in self.line if trace.refusal), None):
            raise error

    def ask(self, asked: Asked) -> None:
        """Ask each limit once; what one raises is kept."""
        for limit, trace in {trace.limit: trace for trace in self.line if trace.limit}.items():
            try:
                limit(asked)
            except BaseException as error:
                trace.refusal = error
                raise

    def note(self, call: Call, span: Span) -> None:
        """A call has ended."""
        with self._lock:
            self._calls.append(call)
            self._spans.append(span)

    def miss(self, what: str) -> None:
        """Something went out that is no call."""
        self._unseen[what] = None

    def take(self, request: str) -> int:
        """The number of the next identical request, from 0."""
        with self._lock:
            free = self._draws[request]
            draw = heapq.heappop(free)
            if not free:
                free.append(draw + 1)
            return draw

    def give_back(self, request: str, draw: int) -> None:
        """It brought no answer: the next identical request has its number."""
        with self._lock:
            heapq.heappush(self._draws[request], draw)

    def close(self) -> None:
        """End what is still open."""
        for call in list(self.open):
            call.left()
        self._ended, self.closed = time.monotonic(), True


@dataclass(frozen=True)
class Scope:
    trace: Trace
    role: str | None
    strand: Strand


HERE: ContextVar[Scope | None] = ContextVar("playcall track", default=None)
INSIDE: ContextVar[tuple[bool, ...] | list[bool]] = ContextVar("playcall inside a call", default=())
"""Not empty while a watched client sends a model call: what it sends by is its own concern."""
QUIET: ContextVar[tuple[bool, ...] | list[bool]] = ContextVar("playcall inside a request", default=())
"""The same of any other request: its connections are known, but whoever answers it here may call models."""

_threads = threading.local()
_tasks: WeakKeyDictionary[Any, Strand] = WeakKeyDictionary()


def here() -> tuple[Trace, Scope] | None:
    """The innermost open trace, and what holds here."""
    scope = HERE.get()
    trace = next(scope.trace.line, None) if scope else None
    return (trace, scope) if scope and trace else None


def task() -> object | None:
    """The asyncio or trio task that runs."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    if trio := sys.modules.get("trio"):
        with suppress(RuntimeError, AttributeError):
            return trio.lowlevel.current_task()
    return None


def strand(scope: Scope) -> Strand:
    """Of what runs: where nobody saw its task begin, it may have run beside all else."""
    if (running := task()) is not None:
        return _of(running, scope)
    noted: Strand | None = getattr(_threads, "strand", None)
    return noted if noted is not None and scope.strand in noted.line else scope.strand


def _of(task: Any, scope: Scope) -> Strand:
    """A task's; trio tells whose child it is."""
    if (found := _tasks.get(task)) is None:
        nursery = getattr(task, "parent_nursery", None)
        parent = scope.strand if nursery is None else _of(nursery.parent_task, scope)
        found = _tasks.setdefault(task, Strand(parent))
    return found


def runs(strand: Strand, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it as a strand of this thread, whatever context it brings along."""
    outer = getattr(_threads, "strand", None)
    _threads.strand = strand
    try:
        return function(*args, **kwargs)
    finally:
        _threads.strand = outer


def waited(when: float | None = None) -> None:
    """This thread has waited for a thread, a future or a call."""
    _threads.waited = time.monotonic() if when is None else when


def since() -> float:
    """From when on this thread has waited for nothing: what others did meanwhile delayed nothing that it begins now."""
    return time.monotonic() if task() is not None else getattr(_threads, "waited", 0.0)


def began(running: object, strand: Strand) -> None:
    """A task was seen to begin, or to open a trace."""
    _tasks[running] = strand


def first_strand(outer: Scope | None) -> Strand:
    """For a trace that opens here."""
    if outer is not None:
        return strand(outer)
    running = task()
    found = Strand(None, time.monotonic())
    return found if running is None else _tasks.setdefault(running, found)
