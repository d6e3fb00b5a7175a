"""The fake that ships: a provider that plays recorded calls back, and a clock that does not wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import anyio

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

    def reply(self, attempt: Attempt) -> Reply:
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


def on_virtual_clock(main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function with a clock that jumps to the next event; needs `trio` installed."""
    from trio.testing import MockClock

    return anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
