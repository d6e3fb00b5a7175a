"""How fast an arm may be called: calls at a time, requests and tokens a minute, and a bench for one that is down."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import anyio

from playcall.strategies.arm import Arm
from playcall.strategies.call import CallFailed, Failure
from playcall.strategies.signal import Signal, moment, on_asyncio

_DOWN = {Failure.SERVER, Failure.CONNECTION, Failure.TIMEOUT, Failure.CUT, Failure.GARBAGE, Failure.AUTH}
BENCH_AFTER, BENCH_FOR = 8, 15.0
"""An arm that fails so often in a row is not called for so many seconds; then one call tries it."""


@dataclass
class Rate:
    """A token bucket of one minute's allowance."""

    a_minute: float
    left: float
    at: float = -inf

    def take(self, n: float, now: float) -> float:
        """Take n; returns the seconds to wait before it is there."""
        n = min(n, self.a_minute)  # one that is larger than a minute's allowance takes all of it
        if self.at > -inf:
            self.left = min(self.a_minute, self.left + (now - self.at) * self.a_minute / 60)
        self.at = now
        self.left -= n
        return max(0.0, -self.left * 60 / self.a_minute)


class Gate:
    """What stands before one model at one endpoint; shared by all that call it in this process."""

    def __init__(self) -> None:
        self.most = inf  # calls at a time
        self.now = inf  # of those allowed now: halved at a 429, and grown back by answers
        self.flying = 0
        self.requests: Rate | None = None
        self.tokens: Rate | None = None
        self.resume = -inf  # the server asked for quiet until then
        self.shrunk = -inf
        self.failures = 0  # in a row
        self.benched, self.bench_for = -inf, BENCH_FOR  # until then; seconds
        self.fastest = inf  # seconds of the fastest answer so far
        self._waiting: deque[Signal] = deque()
        self._lock = threading.Lock()

    def configure(self, arm: Arm) -> None:
        """The tightest limits that any arm of it gave."""
        if arm.concurrency and arm.concurrency < self.most:
            self.most = arm.concurrency
            self.now = min(self.now, self.most)
        for name, a_minute in (("requests", arm.requests_per_minute), ("tokens", arm.tokens_per_minute)):
            rate: Rate | None = getattr(self, name)
            if a_minute and (rate is None or a_minute < rate.a_minute):
                setattr(self, name, Rate(a_minute, a_minute))

    def check(self, bench_after: int | None) -> None:
        """Raise CallFailed(BENCHED) while the arm is on the bench; the first call after that is let through alone."""
        if bench_after is not None and self.failures >= bench_after:
            now = moment()
            if now < self.benched:
                say = f"{self.failures} failures in a row; tried again in {self.benched - now:.3g} s"
                raise CallFailed(Failure.BENCHED, say)
            self.benched = now + self.bench_for

    async def enter(self, tokens: int) -> None:
        """Wait for a turn; each must `leave`."""
        if self.requests or self.tokens or self.resume > -inf:  # most arms have no such limits
            await self._pace(tokens)
        with self._lock:
            if self.flying + 1 <= self.now and not self._waiting:
                self.flying += 1
                return
            self._waiting.append(turn := Signal())
        try:
            await turn.wait()
        except BaseException:
            with self._lock:
                given = turn not in self._waiting
                if not given:
                    self._waiting.remove(turn)
            if given:
                self.leave()
            raise

    async def _pace(self, tokens: int) -> None:
        now, takes = moment(), [(r, n) for r, n in ((self.requests, 1), (self.tokens, tokens)) if r]
        with self._lock:
            wait = max([rate.take(n, now) for rate, n in takes], default=0.0)
        try:
            await anyio.sleep(wait)
            while (quiet := self.resume - moment()) > 0:
                await anyio.sleep(quiet)
        except BaseException:
            with self._lock:
                for rate, n in takes:
                    rate.left += min(n, rate.a_minute)
            raise

    def leave(self, said: int = 0, took: int = 0) -> None:
        """A call has ended: the tokens that it said it would take, and those that it took."""
        turns = []
        with self._lock:
            self.flying -= 1
            if self.tokens:
                self.tokens.left += min(said, self.tokens.a_minute) - took
            while self._waiting and self.flying + 1 <= self.now:  # the place is handed over, so that nobody slips in
                self.flying += 1
                turns.append(self._waiting.popleft())
        for turn in turns:
            turn.set()

    def answered(self, seconds: float) -> None:
        """The arm works."""
        self.failures = 0
        self.fastest = min(self.fastest, seconds)
        if self.now < self.most:
            self.now = min(self.most, self.now + 1 / self.now)

    def failed(self, error: CallFailed, bench_for: float) -> None:
        """The arm failed; a 429 makes it narrower, other failures in a row bench it."""
        now = moment()
        if error.failure is Failure.RATE:
            if error.retry_after:
                self.resume = max(self.resume, now + error.retry_after)
            if now > self.shrunk + 1:  # one burst of them counts once
                self.shrunk, self.now = now, max(1.0, min(self.now, self.flying) // 2)
        elif error.failure in _DOWN:
            self.failures, self.bench_for, self.benched = self.failures + 1, bench_for, now + bench_for
        else:
            self.failures = 0  # it is there, and said no


_gates: dict[tuple[object, ...], Gate] = {}
_lock = threading.Lock()


def domain() -> object:
    """Where moments can be compared: all of asyncio, but each run of trio, whose clocks have origins of their own."""
    return None if on_asyncio() else anyio.lowlevel.current_token()


def gates_of(arms: Mapping[str, Arm], where: object) -> dict[str, Gate]:
    """The gate of each arm: that of its model and key in this process. All are set before any is entered, so that the
    tightest limits hold from the first call on."""
    with _lock:
        gates = {
            name: _gates.setdefault((where, arm.endpoint.name, arm.endpoint.tenant, arm.model), Gate())
            for name, arm in arms.items()
        }
        for name, arm in arms.items():
            gates[name].configure(arm)
    return gates
