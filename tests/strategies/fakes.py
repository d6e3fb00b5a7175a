"""Arms made of small functions on the virtual clock, for tests of what surrounds a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from playcall.strategies.arm import Arm
from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage
from playcall.strategies.prices import Price

CENT = Price(input=0, output=10_000)  # a cent for each token of output


class Fake:
    """An Endpoint: `script` makes the answer to each call, which takes `seconds` and is billed one cent."""

    def __init__(
        self, script: Callable[[Call], str | CallFailed] = lambda call: "yes", *, seconds: float = 1.0, name: str = ""
    ) -> None:
        self.script, self.seconds, self.calls = script, seconds, list[Call]()
        self.name, self.tenant = name or f"fake-{id(self):x}", ""
        self.begun = list[float]()  # the moments
        self.flying = self.most_flying = self.cancelled = 0

    async def __call__(self, call: Call) -> Answer:
        self.calls.append(call)
        self.begun.append(anyio.current_time())
        self.flying += 1
        self.most_flying = max(self.flying, self.most_flying)
        try:
            await anyio.sleep(self.seconds)
        except BaseException:
            self.cancelled += 1
            raise
        finally:
            self.flying -= 1
        made = self.script(call)
        if isinstance(made, CallFailed):
            raise made
        call.usage = call.usage or Usage(1, 1)
        return Answer(made)


def fails_first(times: int, failure: Failure = Failure.SERVER, retry_after: float | None = None) -> Any:
    """A script that fails some times, then answers."""
    left = [times]

    def script(call: Call) -> str | CallFailed:
        left[0] -= 1
        return CallFailed(failure, "as scripted", retry_after) if left[0] >= 0 else "yes"

    return script


def arm(endpoint: Fake, **settings: Any) -> Arm:
    """An arm of a fake, at a cent a call."""
    return Arm(endpoint, "m", **{"params": {"max_tokens": 1}, "price": CENT, **settings})


Main = Callable[[], Awaitable[None]]


class Speaking(Fake):
    """Says its answer word by word, a second each; a CallFailed amid the words breaks it off."""

    def __init__(self, *words: str | CallFailed, name: str = "") -> None:
        super().__init__(name=name)
        self.words = words

    async def __call__(self, call: Call) -> Answer:
        self.calls.append(call)
        for word in self.words:
            await anyio.sleep(1)
            if isinstance(word, CallFailed):
                raise word
            call.heard += word
            if call.listen:
                call.listen(word)
        call.usage = Usage(1, len(self.words))
        return Answer(call.heard)
