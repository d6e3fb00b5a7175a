"""The fake that ships: a provider that plays recorded calls back, and a clock that does not wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import anyio

from playcall.strategies.call import Answer, Call, CallFailed, Failure
from playcall.strategies.errors import Misuse
from playcall.strategies.live import Attempt
from playcall.strategies.recording import Recording, Reply

T = TypeVar("T")


@dataclass(frozen=True)
class Scripted:
    """A Provider that answers from a recording: a task is an item's id, and each call takes its recorded time."""

    recording: Recording

    @cached_property
    def _row(self) -> dict[str, int]:
        return {item: row for row, item in enumerate(self.recording.items)}

    def reply(self, attempt: Attempt | Call) -> Reply:
        """What the recording holds for this call."""
        if attempt.prompt is not None:
            return self.recording.cassette(attempt.arm, attempt.prompt)
        if attempt.task not in self._row:
            raise Misuse(f"Scripted has no item {attempt.task!r}; a task is the id of a recorded item.")
        row = self._row[str(attempt.task)]
        d, k = self.recording.column(attempt.arm, attempt.draw)
        code = int(d.answer[row, k])
        return Reply(
            key=self.recording.texts[code] if self.recording.texts else f"{attempt.arm}#{k}",
            score=float(d.score[row, k]),
            failed=bool(d.failed[row, k]),
            price=int(d.price[row, k]),
            latency=int(d.latency[row, k]),
        )

    async def __call__(self, attempt: Attempt) -> Reply:
        reply = self.reply(attempt)
        attempt.price = reply.price
        await anyio.sleep(reply.latency / 1e6)
        return reply


@dataclass(frozen=True)
class Played:
    """An Endpoint that answers as one arm of a recording: a task is an item's id. Its arm's price is "reported"."""

    recording: Recording
    arm: str  # in the recording
    tenant = ""  # there are no keys

    @cached_property
    def _scripted(self) -> Scripted:
        return Scripted(self.recording)

    @property
    def name(self) -> str:
        """The recording's."""
        return self.recording.name

    async def __call__(self, call: Call) -> Answer:
        reply = self._scripted.reply(replace(call, arm=self.arm))
        call.reported = reply.price
        await anyio.sleep(reply.latency / 1e6)
        if reply.failed:
            raise CallFailed(Failure.EMPTY, "recorded as failed")
        return Answer(reply.key, reply.output, reply.score)


def on_virtual_clock(main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function with a clock that jumps to the next event; needs `trio` installed."""
    from trio.testing import MockClock

    return anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
