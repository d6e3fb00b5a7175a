"""Live: a strategy becomes an async function of one task, over anyio."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, Protocol

import anyio
import numpy as np

from playcall.strategies.algebra import Gather, Strategy, Then, Within
from playcall.strategies.budget import Account
from playcall.strategies.call import Call, CallFailed
from playcall.strategies.engine import interpret, places, walk
from playcall.strategies.errors import PlaycallError
from playcall.strategies.panel import FOREVER, PROMPTED, Panel, beside, microseconds
from playcall.strategies.recording import NANO, Reply
from playcall.strategies.requests import refuse_merging_tools
from playcall.strategies.rules import Never, Prompt, Rule, Stop
from playcall.strategies.signal import moment

_ids = Random()  # seeded by the system, which is not asked each time
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.seed)


@dataclass
class Run:
    """What the calls of one run share."""

    id: str = field(default_factory=lambda: f"{_ids.getrandbits(64):016x}")
    cancels: bool = False  # the strategy may cancel calls before they end
    account: Account = field(default_factory=lambda: Account("task"))
    refused: dict[str, CallFailed] = field(default_factory=dict)  # requests that are no use to send again
    listener: Listener | None = None
    batches: dict[str, Any] = field(default_factory=dict)  # draws that start together, while they start


class Listener(Protocol):
    """Hears the answers that nobody checks, as they come."""

    nodes: frozenset[str]  # whose answers those are

    def piece(self, attempt: Attempt, text: str, /) -> None: ...

    def broken(self, attempt: Attempt, error: CallFailed, /) -> None:
        """An answer of which pieces were heard has failed; may raise to end the run."""
        ...


@dataclass
class Attempt:
    """One call, from its start on. A provider sets `price` as soon as it is owed, so that a call
    which is cancelled is still counted."""

    task: object
    arm: str
    draw: int  # PROMPTED where there is a prompt
    prompt: str | None
    issued: int  # microseconds since the run began
    price: int = 0  # nano-dollars
    reply: Reply | None = None  # None while it runs, and for ever if it was cancelled
    run: Run = field(default_factory=Run)
    node: str = ""  # its place in the strategy: "keep.gather.0.ask"
    role: str = ""  # of an agent's own call
    deadline: float = inf  # anyio.current_time() at which it is cut off
    calls: list[Call] = field(default_factory=list)  # one for each try, and those of an agent
    last: Call | None = None  # of its own tries

    @property
    def exact(self) -> bool:
        """Whether its price is what was billed, and no estimate."""
        return not any(c.estimated or c.source == "unknown" for c in self.calls)

    def __str__(self) -> str:
        return f"{self.arm}: {'no answer in time' if self.reply is None else self.reply.error or 'no answer'}"


class Provider(Protocol):
    """Makes one call. An answer that did not come is a Reply with failed=True, never an exception."""

    async def __call__(self, attempt: Attempt, /) -> Reply: ...


@dataclass(frozen=True)
class Result:
    """What a strategy came to on one task."""

    output: object  # of the first survivor; None where nothing survived
    arm: str | None  # that gave it
    cost: int  # nano-dollars, failed and cancelled calls included
    latency: int  # microseconds
    panel: Panel  # one row
    attempts: tuple[Attempt, ...]  # as they began; at one moment in reading order
    task: object = None
    why: str = ""  # it stopped
    warning: str = ""  # what its owner must know, such as a ledger that cannot be written to

    @property
    def answered(self) -> bool:
        """Whether there is an output."""
        return self.arm is not None

    @property
    def exact(self) -> bool:
        """Whether the cost is what was billed; else it holds estimates, as of cancelled calls, or unpriced calls."""
        return all(a.exact for a in self.attempts)

    @property
    def stragglers(self) -> tuple[Attempt, ...]:
        """The calls that were cut off."""
        return tuple(a for a in self.attempts if a.reply is None)

    @property
    def failures(self) -> tuple[Attempt, ...]:
        """The calls that brought no answer, cut off or failed."""
        return tuple(a for a in self.attempts if a.reply is None or a.reply.failed)

    def unwrap(self) -> object:
        """The output; raises NoAnswer, with the cause of every failure, where there is none."""
        if not self.answered:
            raise NoAnswer(self)
        return self.output

    @property
    def cost_usd(self) -> float:
        """USD of the task."""
        return self.cost / NANO

    @property
    def seconds(self) -> float:
        """From start to result."""
        return self.latency / 1e6


def refused(task: object, error: Exception) -> Result:
    """The result of a task for which nothing could be asked."""
    none = np.zeros((1, 0), dtype=np.int64)
    panel = Panel((), (), none, np.zeros((1, 0)), none > 0, none, none, none > 0, np.zeros(1, dtype=np.int64))
    return Result(None, None, 0, 0, panel, (), task, why=f"refused: {error}")


class NoAnswer(PlaycallError):
    """No call of a run brought an answer that was kept; `result` holds them all, with what they cost."""

    def __init__(self, result: Result) -> None:
        causes = "; ".join(dict.fromkeys(map(str, result.failures))) or result.why
        n = len(result.attempts)
        super().__init__(f"no answer from {n} call{'s' * (n != 1)}: {causes}.")
        self.result = result


@dataclass
class _Task:
    """What one run shares: its clock, its answers' codes, its calls."""

    task: object
    run: Run
    began: float = field(default_factory=moment)
    codes: dict[str, int] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    why: str = ""

    def now(self) -> int:
        return round((moment() - self.began) * 1e6)

    def code(self, reply: Reply) -> int:
        return self.codes.setdefault(reply.key, len(self.codes))


def _reply(panel: Panel, column: int, task: _Task) -> Reply | None:
    """The reply of a column: of calls of one arm at one moment, which only prompts can be, any with its answer."""
    for a in task.attempts:
        is_it = (a.arm, a.draw, a.issued) == (panel.arm[column], panel.draw[column], panel.issued[0, column])
        if is_it and a.reply and task.codes.get(a.reply.key) == panel.answer[0, column]:
            return a.reply
    return None


Part = Callable[[_Task, int], Awaitable[Panel]]
"""(one run, its deadline in microseconds) -> one-row Panel."""


class Play(Protocol):
    """A strategy that runs: one task in, its result out. `run` tells what its calls share."""

    def __call__(self, task: object, run: Run | None = None, /) -> Awaitable[Result]: ...


@dataclass(frozen=True)
class Live:
    """Live(provider)(strategy) is an async function of one task; `watch` is told of calls as they begin and end."""

    provider: Provider
    watch: Callable[[Attempt], None] | None = None

    def __call__(self, strategy: Strategy) -> Play:
        order = {place: i for i, place in enumerate(places(strategy))}
        play = interpret(strategy, _Live(self.provider, self.watch, iter(order)))
        nodes = list(walk(strategy))
        merges = any(isinstance(s, Then) for s in nodes)
        races = (isinstance(s, Gather) and s.stop != Never() and s.gap < inf for s in nodes)
        cancels = any(races) or any(isinstance(s, Within) for s in nodes)

        async def one(task: object, run: Run | None = None) -> Result:
            if merges:
                refuse_merging_tools(task)
            context = _Task(task, run or Run())
            context.run.cancels = cancels
            panel = await play(context, int(FOREVER))
            alive = panel.alive[0].tolist()  # of one row, far faster than by Panel.output
            best = alive.index(True) if True in alive else -1
            reply = _reply(panel, best, context) if best >= 0 else None
            return Result(
                output=reply and (reply.key if reply.output is None else reply.output),
                arm=panel.arm[best] if best >= 0 else None,
                cost=sum(a.price for a in context.attempts),
                latency=int(panel.end[0]),
                panel=panel,
                attempts=tuple(sorted(context.attempts, key=lambda a: (a.issued, order[a.node]))),
                task=task,
                why=context.why or ("there is an answer" if best >= 0 else "no answer was kept"),
            )

        return one


@dataclass(frozen=True)
class _Live:
    """Engine[Part]."""

    provider: Provider
    watch: Callable[[Attempt], None] | None
    places: Iterator[str]

    def ask(self, arm: str, draw: int) -> Part:
        node = next(self.places)
        return lambda task, deadline: self._call(task, deadline, arm, draw, None, node)

    async def _call(self, task: _Task, deadline: int, arm: str, draw: int, prompt: str | None, node: str) -> Panel:
        attempt = Attempt(task.task, arm, draw, prompt, task.now(), run=task.run, node=node)
        begun = attempt.issued < deadline
        if begun:
            task.attempts.append(attempt)
            if self.watch:
                self.watch(attempt)
            if deadline < FOREVER:
                attempt.deadline = task.began + deadline / 1e6
                with anyio.CancelScope(deadline=attempt.deadline):
                    attempt.reply = await self.provider(attempt)
                if attempt.reply is None:
                    task.why = "the deadline came"
            else:
                attempt.reply = await self.provider(attempt)
            if self.watch:
                self.watch(attempt)
        reply = attempt.reply
        answered = reply is not None and not reply.failed
        return Panel(
            arm=(arm,),
            draw=(draw,),
            answer=np.array([[task.code(reply) if reply and answered else 0]]),
            score=np.array([[reply.score if reply else np.nan]]),
            alive=np.array([[answered]]),
            issued=np.array([[attempt.issued if begun else FOREVER]]),
            price=np.array([[attempt.price]]),
            failed=np.array([[begun and not answered]]),
            end=np.array([task.now()]),
        )

    def gather(self, parts: Sequence[Part], stop: Stop, gap: float) -> Part:
        wait, stops = microseconds(gap) / 1e6, stop != Never()

        async def run(task: _Task, deadline: int) -> Panel:
            done: dict[int, Panel] = {}
            flying = 0
            idle: anyio.Event | None = None

            def known() -> Panel:
                return beside([done[i] for i in sorted(done)], np.array([task.now()]))

            async def one(i: int, part: Part) -> None:
                nonlocal flying
                try:
                    done[i] = await part(task, deadline)
                except anyio.get_cancelled_exc_class():
                    if group.cancel_scope.cancel_called:
                        return  # raised on, its traceback would hold all of the call until the garbage collector comes
                    raise
                flying -= 1
                if stops and stop(known()).all() and task.now() < deadline:  # at which all that runs arrives together
                    task.why = str(stop)
                    group.cancel_scope.cancel()
                elif idle and not flying:
                    idle.set()

            async with anyio.create_task_group() as group:
                for i, part in enumerate(parts):
                    flying, idle = flying + 1, anyio.Event() if wait else None
                    group.start_soon(one, i, part)
                    if idle and i < len(parts) - 1:
                        with anyio.move_on_after(wait):
                            await idle.wait()
            return known()

        return run

    def orelse(self, first: Part, then: Part) -> Part:
        async def run(task: _Task, deadline: int) -> Panel:
            tried = await first(task, deadline)
            if tried.accepted.all():
                return tried
            task.why = "the first choice kept nothing"
            return beside([tried, await then(task, deadline)])

        return run

    def keep(self, source: Part, rule: Rule) -> Part:
        async def run(task: _Task, deadline: int) -> Panel:
            return (await source(task, deadline)).keep(rule)

        return run

    def then(self, source: Part, arm: str, prompt: Prompt) -> Part:
        node = next(self.places)

        async def run(task: _Task, deadline: int) -> Panel:
            panel = await source(task, deadline)
            if not panel.accepted.all():
                return panel
            texts = list(task.codes)
            kept = [texts[a] for a in panel.answer[panel.alive]]
            reply = await self._call(task, deadline, arm, PROMPTED, prompt(task.task, kept), node)
            return beside([replace(panel, alive=np.zeros_like(panel.alive)), reply])

        return run

    def within(self, source: Part, limit: float) -> Part:
        most = microseconds(limit)
        return lambda task, deadline: source(task, min(deadline, task.now() + most))
