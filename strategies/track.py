"""track: records every model call that an agent makes, whatever client it makes it with.

with track(arm="a", item="q1", models={"planner": "gpt-x", "solver": "claude-y"}) as trace:
    agent("...")
trace.calls, trace.usd, trace.seconds
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from playcall.strategies import patches
from playcall.strategies.cache import Cache
from playcall.strategies.errors import Misuse, some
from playcall.strategies.scope import HERE, Book, Limit, Scope, Trace, first_strand
from playcall.strategies.trace import Prices

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Trace", "UntrackedCalls", "role", "track"]


class UntrackedCalls(UserWarning):
    """Something went out of a track that recorded no call."""


class track:  # noqa: N801  # it is used as a function
    """Record the model calls of one run of an agent: `with track(...) as trace:`, or `async with`.

    It watches httpx, httpx2, aiohttp and requests, and so the vendors' clients, in this context and in the threads and
    tasks that are started from it. Nothing of the process is changed once the last track has closed.

    models: the model to send a call to, by its role. A call's role is its model's name if that is a key here, else that
        of the innermost `role(...)`, else its model's name.
    prices: by model, or "free"; others come from the provider or the price map.
    cache: answers that need not be paid twice. The n-th identical request of a track is draw n, counted from `draw`.
        `trace.seconds` counts a cached answer with the time that it took when it was fresh. Where a client adds keys or
        cookies of its own while it sends (`auth=`, a hook), the answer is not kept.
    ledger: has a row for each call, written by the end.
    limit: is called before each request that is sent, and may raise. Then every later call is refused by the same
        error, and the track raises it at its end if the agent swallowed it. Clients may try again after an Exception;
        after a BaseException that is none they do not.

    In a track inside another one, calls are recorded in both. What the inner one does not say it takes from the outer;
    limits of both hold.
    """

    def __init__(
        self,
        arm: str = "",
        item: str = "",
        *,
        role: str | None = None,
        models: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        cache: Cache | None = None,
        draw: int = 0,
        ledger: Book | None = None,
        limit: Limit | None = None,
    ) -> None:
        self._says = (arm, item, models, prices, cache, draw, ledger, limit)
        self._role, self._ledger = role, ledger
        self._trace: Trace | None = None
        self._token: Token[Scope | None] | None = None
        self._mixed = False

    def __enter__(self) -> Trace:
        if self._trace is not None:
            raise Misuse("this track was entered before; make a new one for each run.")
        outer = HERE.get()
        around = next(outer.trace.line, None) if outer else None
        self._trace = Trace(around, *self._says)
        role = self._role if self._role is not None or outer is None or around is None else outer.role
        patches.install()
        self._token = HERE.set(Scope(self._trace, role, first_strand(outer if around else None)))
        return self._trace

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        trace = self._close()
        if self._ledger is not None:
            with suppress(*([Exception] if error else [])):
                self._ledger.flush_sync()
        self._tell(trace, error)

    async def __aenter__(self) -> Trace:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        trace = self._close()
        if self._ledger is not None:
            with suppress(*([Exception] if error else [])):
                await self._ledger.flush()
        self._tell(trace, error)

    def _close(self) -> Trace:
        trace, token = self._trace, self._token
        assert trace is not None
        assert token is not None
        try:
            trace.close()
        finally:
            patches.remove()
            scope = HERE.get()
            self._mixed = scope is None or scope.trace is not trace
            if not self._mixed:
                with suppress(ValueError):  # it is left in another context than it was entered in
                    HERE.reset(token)
        return trace

    def _tell(self, trace: Trace, error: BaseException | None) -> None:
        if self._mixed:
            warnings.warn(
                UntrackedCalls(
                    f"the track{_of(trace)} ended where it does not hold: in a generator or a fixture, in turns with "
                    "another one. Its calls may be in the other one, or in none. Open and close it in one function."
                ),
                stacklevel=3,
            )
        if trace.unseen and not trace.calls:
            warnings.warn(
                UntrackedCalls(
                    f"no model call was recorded{_of(trace)}, but this went out: {some(trace.unseen)}. If an agent "
                    "calls models there, run it as `playcall track -- command`, which sees the calls of any program."
                ),
                stacklevel=3,
            )
        if trace.refusal is not None and error is None:  # the agent swallowed it
            raise trace.refusal


def _of(trace: Trace) -> str:
    return "".join(f" of {name} {value!r}" for name, value in (("arm", trace.arm), ("item", trace.item)) if value)


class role:  # noqa: N801  # it is used as a function
    """Name the role of the calls inside: `with role("critic"):`, or `@role("critic")` on a function, async or not.
    Without a track around it changes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tokens: list[Token[Scope | None]] = []

    def __enter__(self) -> None:
        scope = HERE.get()
        self._tokens.append(HERE.set(scope and replace(scope, role=self.name)))

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            HERE.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Misuse(
                f"@role({self.name!r}) on the generator {function.__name__}; write `with role(...)` inside it."
            )

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with role(self.name):
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with role(self.name):
                return function(*args, **kwargs)

        made: Any = awaited if inspect.iscoroutinefunction(function) else called
        return made
