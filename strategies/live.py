"""Live: a strategy becomes an async function of one task, over anyio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
import numpy as np

from playcall.strategies.algebra import Strategy
from playcall.strategies.engine import interpret
from playcall.strategies.panel import FOREVER, PROMPTED, Panel, beside, microseconds
from playcall.strategies.recording import NANO, Reply
from playcall.strategies.rules import Prompt, Rule, Stop


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
    attempts: tuple[Attempt, ...]  # in the order in which they began

    @property
    def cost_usd(self) -> float:
        """USD of the task."""
        return self.cost / NANO

    @property
    def seconds(self) -> float:
        """From start to result."""
        return self.latency / 1e6


@dataclass
class _Task:
    """What one run shares: its clock, its answers' codes, its calls."""

    task: object
    began: float = field(default_factory=anyio.current_time)
    codes: dict[str, int] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    def now(self) -> int:
        return round((anyio.current_time() - self.began) * 1e6)

    def code(self, reply: Reply) -> int:
        return self.codes.setdefault(reply.key, len(self.codes))


Run = Callable[[_Task, int], Awaitable[Panel]]
"""(one run, its deadline in microseconds) -> one-row Panel."""


@dataclass(frozen=True)
class Live:
    """Engine[Run]. Live(provider)(strategy) is an async function of one task."""

    provider: Provider

    def __call__(self, strategy: Strategy) -> Callable[[object], Awaitable[Result]]:
        run = interpret(strategy, self)

        async def one(task: object) -> Result:
            context = _Task(task)
            panel = await run(context, int(FOREVER))
            best = int(panel.output[0])
            call = (panel.arm[best], panel.draw[best], panel.issued[0, best]) if best >= 0 else (None, 0, 0)
            reply = next((a.reply for a in context.attempts if (a.arm, a.draw, a.issued) == call), None)
            return Result(
                output=reply and (reply.key if reply.output is None else reply.output),
                arm=call[0],
                cost=sum(a.price for a in context.attempts),
                latency=int(panel.end[0]),
                panel=panel,
                attempts=tuple(context.attempts),
            )

        return one

    def ask(self, arm: str, draw: int) -> Run:
        return lambda task, deadline: self._call(task, deadline, arm, draw, None)

    async def _call(self, task: _Task, deadline: int, arm: str, draw: int, prompt: str | None) -> Panel:
        attempt = Attempt(task.task, arm, draw, prompt, task.now())
        begun = attempt.issued < deadline
        if begun:
            task.attempts.append(attempt)
            with anyio.move_on_after((deadline - attempt.issued) / 1e6):
                attempt.reply = await self.provider(attempt)
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

    def gather(self, parts: Sequence[Run], stop: Stop, gap: float) -> Run:
        wait = microseconds(gap) / 1e6

        async def run(task: _Task, deadline: int) -> Panel:
            done: dict[int, Panel] = {}
            flying = 0
            idle = anyio.Event()

            def known() -> Panel:
                return replace(beside([done[i] for i in sorted(done)]), end=np.array([task.now()]))

            async def one(i: int, part: Run) -> None:
                nonlocal flying
                done[i] = await part(task, deadline)
                flying -= 1
                if stop(known()).all() and task.now() < deadline:  # at the deadline all that runs arrives together
                    group.cancel_scope.cancel()
                elif not flying:
                    idle.set()

            async with anyio.create_task_group() as group:
                for i, part in enumerate(parts):
                    flying, idle = flying + 1, anyio.Event()
                    group.start_soon(one, i, part)
                    if wait and i < len(parts) - 1:
                        with anyio.move_on_after(wait):
                            await idle.wait()
            return known()

        return run

    def orelse(self, first: Run, then: Run) -> Run:
        async def run(task: _Task, deadline: int) -> Panel:
            tried = await first(task, deadline)
            return tried if tried.accepted.all() else beside([tried, await then(task, deadline)])

        return run

    def keep(self, source: Run, rule: Rule) -> Run:
        async def run(task: _Task, deadline: int) -> Panel:
            return (await source(task, deadline)).keep(rule)

        return run

    def then(self, source: Run, arm: str, prompt: Prompt) -> Run:
        async def run(task: _Task, deadline: int) -> Panel:
            panel = await source(task, deadline)
            if not panel.accepted.all():
                return panel
            texts = list(task.codes)
            kept = [texts[a] for a in panel.answer[panel.alive]]
            reply = await self._call(task, deadline, arm, PROMPTED, prompt(task.task, kept))
            return beside([replace(panel, alive=np.zeros_like(panel.alive)), reply])

        return run

    def within(self, source: Run, limit: float) -> Run:
        most = microseconds(limit)
        return lambda task, deadline: source(task, min(deadline, task.now() + most))
