"""Agents as arms: any function of yours, with its roles filled by name."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from math import inf
from typing import Any, Protocol

import anyio
import anyio.from_thread

from playcall.strategies.call import Answer, Call, CallFailed, Failure
from playcall.strategies.errors import Misuse
from playcall.strategies.feed import in_thread
from playcall.strategies.recording import NANO
from playcall.strategies.requests import as_json
from playcall.strategies.sources import is_async, name_of


class Asking(Protocol):
    """Makes a call of an agent's, by arm: what `Call.agent` is."""

    def __call__(self, role: str, arm: str, task: object, draw: int, /) -> Awaitable[object]: ...


class Models(Mapping[str, str]):
    """The models of an agent by role. They are names, for a client of your own; `ask` and `ask_sync` call them through
    playcall, so that retries, limits, budgets and the ledger hold for them too."""

    def __init__(self, names: Mapping[str, str], asking: Asking | None = None) -> None:
        self._names, self._asking, self._asked = dict(names), asking, Counter[str]()

    def __getitem__(self, role: str) -> str:
        if role not in self._names:
            raise Misuse(f"the agent asks for the role {role!r}; it was given {sorted(self._names)}.")
        return self._names[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    async def ask(self, role: str, task: object) -> Any:
        """What the role's model answers to a text, messages or request; raises CallFailed where there is no answer."""
        if self._asking is None:
            raise Misuse("this agent runs outside playcall: use the names of its models with a client of your own.")
        again = repr((role, task))
        self._asked[again] += 1  # the same question again is another draw
        return await self._asking(role, self[role], task, self._asked[again] - 1)

    def ask_sync(self, role: str, task: object) -> Any:
        """The same for an agent that is no coroutine; such an agent runs in a thread."""
        return anyio.from_thread.run(self.ask, role, task)


class Agent:
    """Endpoint: a sync or async function (task, models) -> output.

    It returns an output, or an Answer with a score; where it knows what it spent besides `models.ask`, a pair (output,
    USD). What it raises is that call's failure. A sync function runs in a thread, which cannot be stopped: if it is
    cancelled it is left to itself.
    """

    def __init__(self, function: Callable[[Any, Models], Any], models: Mapping[str, str] | None = None) -> None:
        if not callable(function):
            raise Misuse(f"Agent was given {function!r}; give a function of (task, models).")
        self.function, self.models = function, dict(models or {})
        self.name, self.tenant = name_of(function), f"{id(function):x}"  # apart from others of the same name

    def __repr__(self) -> str:
        return f"Agent({self.name}, {self.models})"

    async def __call__(self, call: Call) -> Answer:
        models = Models(self.models, call.agent)
        told = call.task if call.prompt is None else call.prompt
        try:
            with anyio.fail_after(call.timeout):
                if is_async(self.function):
                    made = await self.function(told, models)
                else:
                    made = await in_thread(lambda: self.function(told, models))
                    made = await made if inspect.isawaitable(made) else made
        except TimeoutError as error:
            raise CallFailed(Failure.TIMEOUT, f"the agent took over {call.timeout:g} s") from error
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], int | float):
            made, spent = made
            if not 0 <= spent < inf:
                raise CallFailed(Failure.RAISED, f"the agent says that it spent {spent!r}: USD are zero or more")
            call.reported = round(spent * NANO)
        if isinstance(made, Answer):
            return made
        if made is None or (isinstance(made, str) and not made):
            raise CallFailed(Failure.EMPTY, "the agent returned nothing")
        return Answer(made if isinstance(made, str) else as_json(made, sort_keys=True), made)
