"""One run of an agent in a race: what it may send, what came of it, and the line that is kept of it."""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import anyio
import anyio.lowlevel

from playcall.evals.journal import Journal, Key, Line
from playcall.portfolio.board import Outcome
from playcall.strategies import NANO, Answer, Budget, Cache, CallFailed, Failure, Price
from playcall.strategies.budget import Account, Hold
from playcall.strategies.call import Call, Usage
from playcall.strategies.completion import tidy
from playcall.strategies.dialects import Asked
from playcall.strategies.feed import in_thread
from playcall.strategies.prices import mapped, most_tokens
from playcall.strategies.requests import as_json
from playcall.strategies.scope import Trace
from playcall.strategies.sources import is_async
from playcall.strategies.trace import Prices
from playcall.strategies.track import track

FATAL = {Failure.AUTH, Failure.NOT_FOUND, Failure.QUOTA}
PASSING = {Failure.RATE, Failure.SERVER, Failure.CONNECTION, Failure.CUT, Failure.TIMEOUT}
_DRAIN = 30.0  # seconds that calls beside a refused one may take to come to their end
_LOOK = 0.003


class Refused(BaseException):
    """A request that must not be sent. It is no Exception: clients would try again, and agents answer without it."""


class RaceJournal(Journal):
    """That of a race. It has a line {"paid": [item, arm], "nano": ...} too, for each request when it is answered, so
    that what an unfinished run has cost is known; not what was in flight when a process was killed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.paid = 0  # requests
        self.lost = set[Key]()  # runs that failed twice at an earlier start, by what may pass
        super().__init__(*args, **options)

    def _take(self, told: Line, length: int) -> None:
        if "paid" in told:
            self.spent, self.paid = self.spent + told["nano"], self.paid + 1
        else:
            super()._take(told, length)
            self.lost |= {tuple(told["lost"])} if "lost" in told else set()


class Purse(Budget):
    """A budget that can be asked without waiting."""

    def take(self, worst: int) -> Hold | None:
        """Set a worst case aside; None where calls in flight may yet leave room. CallFailed says that it never fits."""
        account = self.session
        with self._lock:
            if account.refuses(worst):
                raise CallFailed(Failure.BUDGET)
            if account.full(worst):
                return None
            account.held += worst
            return Hold(worst, (account,))

    def left(self) -> float:
        """USD."""
        return ((self.session.limit or 0) - self.session.spent) / NANO


class Gate:
    """What a race may still send: the hard limits of all its runs. Threads share it."""

    def __init__(self, prices: Prices, max_usd: float | None, max_calls: int | None, max_seconds: float | None) -> None:
        self.prices, self.purse = prices, Purse(session=max_usd)
        self.max_calls, self.max_seconds = max_calls, max_seconds
        self.calls = 0  # requests that were sent
        self.threads = 0  # runs of agents that are not async
        self.stopped = ""  # why nothing more is begun
        self.closed = False  # not even by runs that have begun
        self.began = time.monotonic()
        self._lock = threading.Lock()

    def stop(self, why: str) -> None:
        """Begin nothing more."""
        self.stopped = self.stopped or why

    def price(self, model: str) -> Price | Literal["free"] | None:
        """That of a model, None if nobody knows it."""
        return self.prices.get(model) or mapped(model)

    def close(self, why: str) -> None:
        """Send nothing more."""
        self.stop(why)
        self.closed = True

    @property
    def late(self) -> bool:
        """Whether nothing may be sent, whatever it costs."""
        if self.max_seconds is not None and time.monotonic() - self.began >= self.max_seconds:
            self.close(f"max_seconds={self.max_seconds:g} is reached; start again to go on")
        return self.closed

    def worst(self, asked: Asked) -> int:
        """Nano-dollars that a request can cost. Raises Refused, and stops the race, where nobody can say."""
        if self.purse.session.limit is None:
            return 0
        price, body = self.price(asked.model), asked.body
        if price == "free":
            return 0
        if price is None:
            raise self._refused(f"nobody knows the price of {asked.model!r}, which max_usd needs: {GIVE}")
        inputs, outputs = most_tokens(body), 0 if asked.dialect == "embeddings" else _most_output(body, price)
        if inputs is None and price.input:
            say = "its request holds images, sound or files, whose tokens cannot be bounded: race without max_usd"
            raise self._refused(f"what a call of {asked.model!r} can cost is not known: {say}")
        if outputs is None and price.output:
            say = "give its requests max_tokens, or its price most_output"
            raise self._refused(f"what a call of {asked.model!r} can cost is not known: {say}, and start again")
        return price.worst(inputs or 0, outputs or 0)

    def over_budget(self, model: str, worst: int) -> Refused:
        """Stops the race."""
        told = f"a call of {model!r} can cost ${worst / NANO:.6g}, and ${self.purse.left():.6g} are left"
        return self._refused(f"max_usd is reached: {told}; raise it and start again: what is paid is not paid twice")

    def count(self) -> None:
        """One more request is sent. Raises Refused where it must not be."""
        with self._lock:
            if self.max_calls is not None and self.calls >= self.max_calls:
                say = "raise it and start again: what is paid is not paid twice"
                raise self._refused(f"max_calls={self.max_calls} model calls are made; {say}")
            self.calls += 1

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Around a run that nobody can cancel."""
        with self._lock:
            self.threads += 1
        try:
            yield
        finally:
            with self._lock:
                self.threads -= 1

    def _refused(self, why: str) -> Refused:
        self.stop(why)
        return Refused(why)


GIVE = 'give prices={"model": Price(input=USD, output=USD)} (per million tokens), or --prices file'


def _most_output(body: Mapping[str, Any], price: Price) -> int | None:
    """Tokens that an answer can have."""
    own = body.get("generationConfig")
    gemini = own.get("maxOutputTokens") if isinstance(own, Mapping) else None
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    told = next((body[name] for name in names if body.get(name)), gemini) or price.most_output
    return None if not isinstance(told, int) else told * int(body.get("n") or 1)


@dataclass
class Run:
    """An agent on a task, by one arm. Its calls are held against the gate and settled as they end."""

    arm: str
    item: str
    models: Mapping[str, str]
    gate: Gate
    cache: Cache
    paid: Callable[[str, str, int], None]  # arm, item, nano-dollars of a request that has ended
    draw: int = 0
    wants: tuple[str, int] | None = None  # model and worst case of a request that waits for room
    refused: bool = False
    answer: str = ""
    error: str = ""  # why there is no answer
    passing: bool = False  # whether it may pass
    limited: bool = False  # whether it failed by a rate limit
    refusal: str = ""  # what a model refused as a bad request
    fatal: str = ""  # why no run of this arm can work
    traces: list[Trace] = field(default_factory=list)  # one, or two where a plain function returned a coroutine
    secrets: set[str] = field(default_factory=set)
    _held: dict[str, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    _room: Hold | None = None  # set aside for what waited
    _lock: Any = field(default_factory=threading.Lock)

    async def __call__(self, agent: Callable[[object], object], task: object) -> None:
        """Run it, as often as it has to wait for room: answers that have come are in the cache. Afterwards it is either
        `refused`, or has an answer or an error."""
        while True:
            self.refused, self.wants, self.error, self.traces = False, None, "", []
            try:
                await self._once(agent, task)
            finally:
                self._release()
            if self.wants is None or self.gate.stopped:
                break
            model, worst = self.wants
            try:
                self._room = await self.gate.purse.hold(Account("run"), "", worst)
            except CallFailed:
                self.gate.over_budget(model, worst)
                break
        if not self.refused:
            self._judge()

    async def _once(self, agent: Callable[[object], object], task: object) -> None:
        made: object = None
        try:
            if is_async(agent):
                made = await self._awaited(cast(Any, agent(task)))
            elif inspect.isawaitable(made := await in_thread(lambda: self._called(agent, task))):
                made = await self._awaited(made)
        except anyio.get_cancelled_exc_class() as error:
            await anyio.lowlevel.checkpoint_if_cancelled()
            self.error = repr(error)  # its own
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        except BaseException as error:
            if not self.refused and not isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            self.error = repr(error)
        else:
            made = made.text if isinstance(made, Answer) else made
            self.answer = made if isinstance(made, str) else "" if made is None else as_json(made, sort_keys=True)
            self.error = "" if self.answer else "the agent returned nothing"

    def _track(self) -> track:
        return track(
            self.arm,
            self.item,
            models=self.models,
            prices=self.gate.prices,
            cache=self.cache,
            draw=self.draw,
            ledger=self,
            limit=self._limit,
        )

    def _called(self, agent: Callable[[object], object], task: object) -> object:
        """In a thread, which has its track to itself: a cancelled race leaves it, and it sends nothing more."""
        with self.gate.thread(), self._track() as trace:
            self.traces.append(trace)
            try:
                return agent(task)
            except BaseException:
                end = time.monotonic() + _DRAIN
                while self.refused and trace.open and time.monotonic() < end:
                    time.sleep(_LOOK)
                raise

    async def _awaited(self, made: Any) -> object:
        async with self._track() as trace:
            self.traces.append(trace)
            try:
                return await made
            except BaseException:
                if self.refused:
                    with anyio.move_on_after(_DRAIN):
                        while trace.open:
                            await anyio.sleep(_LOOK)
                raise

    def _limit(self, asked: Asked) -> None:
        """Set aside what a request can cost. Raises Refused where it must not be sent, or not yet."""
        self.secrets |= asked.secrets
        hold: Hold | None = None
        try:
            if self.gate.late or self.refused:
                raise Refused(self.gate.stopped)
            worst = self.gate.worst(asked)
            with self._lock:
                if self._room is not None and self._room.worst >= worst:
                    hold, self._room = self._room, None
            try:
                hold = hold or self.gate.purse.take(worst)
            except CallFailed:
                raise self.gate.over_budget(asked.model, worst) from None
            if hold is None:
                self.wants = asked.model, worst
                raise Refused("it waits until there is room in max_usd")
            self.gate.count()
        except Refused:
            self.refused = True
            if hold is not None:
                self.gate.purse.settle(hold, 0)
            raise
        told = json.dumps([asked.path, asked.body], sort_keys=True)
        with self._lock:
            self._held[hashlib.sha256(told.encode()).hexdigest()[:16]].append(hold)

    def add(self, call: Call, *, provider: str, prompt_hash: str) -> None:
        """A call has ended: a track tells its ledger."""
        if call.cached:
            return
        with self._lock:
            waiting = self._held.get(prompt_hash)
            hold = waiting.pop() if waiting else Hold(0, (self.gate.purse.session,))
        self.gate.purse.settle(hold, call.price)
        self.paid(self.arm, self.item, call.price)

    def flush_sync(self) -> None:
        """Nothing waits to be written."""

    async def flush(self) -> None:
        """Nothing waits to be written."""

    def _release(self) -> None:
        with self._lock:
            holds = [*([self._room] if self._room else []), *(h for of in self._held.values() for h in of)]
            self._room, self._held = None, defaultdict(list)
        for hold in holds:
            self.gate.purse.settle(hold, 0)

    @property
    def calls(self) -> Sequence[Call]:
        """Those of the run."""
        return [call for trace in self.traces for call in trace.calls]

    @property
    def unseen(self) -> Sequence[str]:
        """What went out beside them."""
        return list(dict.fromkeys(what for trace in self.traces for what in trace.unseen))

    def _judge(self) -> None:
        """What its failed calls say: the last one of each role counts, since clients try again."""
        last = {call.role: call for call in self.calls if not call.cancelled}
        broken = [call for call in last.values() if call.error]
        own = set(self.models.values())
        for call in broken if self.error else [call for call in broken if call.model in own]:
            told = f"model {call.model!r}: {call.error}: {call.detail}".rstrip(": ")
            self.fatal = told if call.error in FATAL else self.fatal
            self.refusal = told if call.error == Failure.REQUEST else self.refusal
        if self.error and broken:
            self.passing = any(call.error in PASSING for call in broken)
            self.limited = any(call.error == Failure.RATE for call in broken)
            self.error = f"{broken[-1].error}: {broken[-1].detail}".rstrip(": ")
        self.error = " ".join(tidy(CallFailed(Failure.RAISED, self.error), self.secrets).detail.split())

    def line(self, score: float) -> Line:
        """What the journal keeps of it. Cached calls count with what they cost when they were fresh."""
        return {
            "call": (self.item, self.arm, 0),
            "score": score,
            "answer": None if self.error else self.answer,
            "cost_nano": sum(call.price + call.saved for call in self.calls),
            "us": max(1, round(sum(trace.seconds for trace in self.traces) * 1e6)),
            "failed": bool(self.error),
            "error": self.error,
            "calls": [_told(call, self.models) for call in self.calls],
            "unseen": self.unseen,
        }


def outcome_of(line: Line) -> Outcome:
    """What a race is told of a finished run."""
    return Outcome(line["score"], line["cost_nano"] / NANO, line["us"] / 1e6, line["failed"])


def _told(call: Call, models: Mapping[str, str]) -> list[Any]:
    """A call as the journal keeps it. An agent that names the models themselves, and no roles, has the roles of its
    models; where several roles have one model they are not told apart."""
    role, used = call.role, call.usage or Usage()
    if role not in models and role == call.model:
        role = "/".join(role for role, model in models.items() if model == call.model) or role
    unknown = call.source == "unknown"
    return [role, call.model, used.input, used.output, used.reasoning, call.price + call.saved, unknown]


@dataclass(frozen=True)
class Ran:
    """A finished run, as `trace.facts` reads it."""

    arm: str
    calls: Sequence[Call]
    models: Mapping[str, str]  # without roles that are not told apart


def ran(line: Line, models: Mapping[str, str]) -> Ran:
    """From its line."""
    calls, merged = [], set[str]()
    for role, model, input, output, reasoning, nano, unknown in line["calls"]:
        call = Call(line["call"][1], model, None, None, 0, {}, usage=Usage(input, output, reasoning=reasoning))
        call.role, call.price, call.source = role, nano, "unknown" if unknown else "user"
        merged |= set(role.split("/")) if role not in models else set()
        calls.append(call)
    return Ran(line["call"][1], calls, {role: model for role, model in models.items() if role not in merged})
