"""Runner: a strategy over real arms, as a service: one task, many, or streamed; wrapped around a call in wrap.py."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import anyio

from playcall.strategies.algebra import Strategy, Within
from playcall.strategies.arm import Arm
from playcall.strategies.call import CallFailed
from playcall.strategies.dispatch import Dispatch, Options
from playcall.strategies.engine import arms_of, unchecked
from playcall.strategies.errors import Misuse, PlaycallError, only
from playcall.strategies.feed import Feed, Send, in_portal, portal
from playcall.strategies.live import Attempt, Live, NoAnswer, Play, Result, Run, refused

if TYPE_CHECKING:
    from playcall.strategies.worst import Worst

Watch = Callable[[Attempt], None]
F = TypeVar("F", bound=Callable[..., Any])


class Runner:
    """Runs a strategy over arms by name. Without arms it can only be wrapped around calls of yours.

    `deadline` is seconds a task, for all that is done for it: queues, retries and every branch. The options are those
    of Dispatch: budget, ledger, cache, canonical, unpriced, ...
    """

    prices: Mapping[str, float | None] = MappingProxyType({})  # mean USD a call, for `wrap` where nobody knows better

    def __init__(
        self,
        strategy: Strategy,
        arms: Mapping[str, Arm] | None = None,
        *,
        deadline: float = inf,
        **options: Unpack[Options],
    ) -> None:
        self.strategy, self.arms, self.deadline, self.options = strategy, arms, deadline, options
        self.dispatch = None if arms is None else Dispatch(arms, **options)
        if self.dispatch is not None:
            self.dispatch.check(arms_of(strategy))

    def _within(self, deadline: float | None) -> Strategy:
        limit = max(1e-6, self.deadline if deadline is None else deadline)  # what is late already ends at once
        return self.strategy if limit == inf else Within(self.strategy, limit)

    def _live(self, strategy: Strategy, watch: Watch | None = None) -> Play:
        if self.dispatch is None:
            raise Misuse("this policy has no arms to call: load it with arms=..., or wrap it around a call of yours.")
        return Live(self.dispatch, watch)(strategy)

    @cached_property
    def _usual(self) -> Play:
        return self._live(self._within(None))

    async def run(self, task: object, *, deadline: float | None = None, watch: Watch | None = None) -> Result:
        """One task: a text, a list of messages, a request with `messages`, or any JSON.

        That no answer came is no exception: see `Result.answered`, `failures` and `unwrap`. The ledger has every call
        before the result is returned; where it cannot be written to, `Result.warning` says so. `watch` is told of each
        call when it begins and when it ends.
        """
        usual = deadline is None and watch is None
        return await self._run(self._usual if usual else self._live(self._within(deadline), watch), task, Run())

    async def _run(self, play: Play, task: object, run: Run) -> Result:
        try:
            result = await play(task, run)
        except BaseExceptionGroup as group:
            raise only(group) from None
        if (ledger := self.options.get("ledger")) is not None:
            try:
                await ledger.flush()
            except PlaycallError as error:  # the answer is paid for, and the ledger keeps its rows and tries again
                logging.getLogger("playcall").warning("%s", error)
                return replace(result, warning=str(error))
        return result

    def run_sync(self, task: object, *, deadline: float | None = None, watch: Watch | None = None) -> Result:
        """The same for code that is not async, also inside a running event loop: it runs in a thread's own loop."""
        return in_portal(partial(self.run, task, deadline=deadline, watch=watch))

    def map(
        self, tasks: Iterable[object] | AsyncIterable[object], *, concurrency: int = 32, deadline: float | None = None
    ) -> Mapped:
        """Many tasks: `await` it for all results in order, or iterate over (index, result) as they come, which keeps
        nothing in memory."""
        if concurrency < 1:
            raise Misuse(f"concurrency={concurrency}: give 1 or more.")
        play = self._live(self._within(deadline))

        async def produce(send: Send[tuple[int, Result]]) -> None:
            source = _numbered(tasks)
            turn = anyio.Lock()

            async def work() -> None:
                while True:
                    async with turn:
                        numbered = await anext(source, None)
                    if numbered is None:
                        return
                    await send((numbered[0], await self._one(play, numbered[1])))

            async with anyio.create_task_group() as group:
                for _ in range(concurrency):
                    group.start_soon(work)

        return Mapped(produce)

    async def _one(self, play: Play, task: object) -> Result:
        """A task that is refused is a result without an answer: others among many are paid for."""
        try:
            return await self._run(play, task, Run())
        except Misuse as error:
            return refused(task, error)

    def map_sync(
        self, tasks: Iterable[object], *, concurrency: int = 32, deadline: float | None = None
    ) -> Iterator[tuple[int, Result]]:
        """The same for code that is not async: (index, result) as they come."""
        feed = self.map(tasks, concurrency=concurrency, deadline=deadline)
        with portal().wrap_async_context_manager(feed):
            items = aiter(feed)
            while (item := portal().call(_next, items)) is not None:
                yield item

    def stream(
        self,
        task: object,
        *,
        deadline: float | None = None,
        on_restart: Callable[[], None] | None = None,
        watch: Watch | None = None,
    ) -> Streamed:
        """The answer piece by piece, where nothing has to look at all of it first; else in one piece at the end.

        Where an answer breaks off amid its pieces the stream raises StreamCut; give `on_restart` to go on with the
        strategy's own retries and fallbacks instead: it is called when what was heard so far no longer counts.
        Raises NoAnswer where no answer came.
        """
        strategy = self._within(deadline)
        return Streamed(strategy, partial(self._run, self._live(strategy, watch), task), on_restart)

    def worst(self, task: object) -> Worst:
        """The most calls, dollars and seconds that a task can take, known before it runs; a budget may be tighter.

        Raises Misuse, which names the arm, where nobody knows what its calls can cost.
        """
        from playcall.strategies.worst import worst

        if self.arms is None:
            raise Misuse("this policy has no arms, whose prices and limits tell its worst case: load it with arms=....")
        free = self.options.get("unpriced", "error") != "error"
        return worst(self._within(None), self.arms, task, unknown_is_free=free)

    def wrap(self, create: F) -> F:
        """A vendor's `create`, such as `client.chat.completions.create`, sync or async, run by this strategy: the same
        signature, and the vendor's own response of the call that won.

        Each call has the model of its arm in place of `model=`, the arm's settings, and all else as it was given; a
        call about answers (>>) has its prompt in place of the messages. Raises NoAnswer where no answer came. Retries
        are ours: those of an openai or anthropic client are off. Where a strategy cancels a call, that of an async
        client is closed; that of a sync one runs to its end in a thread, billed by an estimate.

        stream=True passes the vendor's stream on, where nothing has to look at all of an answer first; what fails
        before the first piece falls back. `response.model` tells which model won.
        """
        from playcall.strategies.wrap import wrap

        return wrap(self, create)

    def call(self, function: F) -> F:
        """Decorator: your function, sync or async, is called with `model` set to the model of each arm, and what the
        winner returned is returned. Answers are compared as text, or as JSON; an exception is that call's failure.
        """
        from playcall.strategies.wrap import call

        return call(self, function)


class Mapped(Feed[tuple[int, Result]]):
    """The results of `map`."""

    def __await__(self) -> Generator[Any, None, list[Result]]:
        return self._all().__await__()

    async def _all(self) -> list[Result]:
        async with self:
            found = dict([pair async for pair in self])
        return [found[i] for i in sorted(found)]


class StreamCut(PlaycallError):
    """An answer broke off after some of it had been passed on."""

    def __init__(self, attempt: Attempt, error: CallFailed) -> None:
        super().__init__(f"{attempt.arm} broke off amid its answer: {error}. Give on_restart= to begin again.")
        self.attempt, self.failure = attempt, error.failure


class Streamed(Feed[str]):
    """The pieces of an answer; `result` is there once they have all come."""

    def __init__(
        self, strategy: Strategy, run: Callable[[Run], Awaitable[Result]], on_restart: Callable[[], None] | None
    ) -> None:
        super().__init__(self._said, room=inf)
        self.result: Result | None = None
        self.nodes = unchecked(strategy)
        self._run, self._on_restart = run, on_restart

    def piece(self, attempt: Attempt, text: str) -> None:
        """Pass it on."""
        self.heard = True
        self.send_nowait(text)

    def broken(self, attempt: Attempt, error: CallFailed) -> None:
        """Begin again, or end."""
        if not self.heard:
            return
        if self._on_restart is None:
            raise StreamCut(attempt, error)
        self._on_restart()
        self.heard = False

    async def _said(self, send: Send[str]) -> None:
        self.heard = False
        self.result = await self._run(Run(listener=self))
        if not self.result.answered:
            raise NoAnswer(self.result)
        if not self.heard:
            await send(str(self.result.output))


async def _numbered(tasks: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[tuple[int, object]]:
    if isinstance(tasks, AsyncIterable):
        i = 0
        async for task in tasks:
            yield i, task
            i += 1
    else:
        for pair in enumerate(tasks):
            yield pair


async def _next(items: AsyncIterator[tuple[int, Result]]) -> tuple[int, Result] | None:
    return await anext(items, None)
