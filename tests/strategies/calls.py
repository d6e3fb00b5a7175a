"""A recording of one task, written out call by call."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np

from playcall.strategies import NANO, Draws, Live, Recording, Result, Scripted, Strategy, on_virtual_clock
from playcall.strategies.recording import Cassette, unrecorded


@dataclass(frozen=True)
class Call:
    answer: str | None  # None: it fails
    seconds: float = 1.0
    score: float = nan
    usd: float = 1.0


def recorded(cassette: Cassette = unrecorded, **arms: list[Call]) -> Recording:
    """Item "q"; an answer of "right" has quality 1, any other 0."""
    texts = tuple(dict.fromkeys(c.answer for calls in arms.values() for c in calls if c.answer))

    def draws(calls: list[Call]) -> Draws:
        return Draws(
            answer=np.array([[texts.index(c.answer) if c.answer else 0 for c in calls]]),
            score=np.array([[c.score for c in calls]]),
            failed=np.array([[c.answer is None for c in calls]]),
            price=np.array([[round(c.usd * NANO) for c in calls]]),
            latency=np.array([[round(c.seconds * 1e6) for c in calls]]),
            quality=np.array([[float(c.answer == "right") for c in calls]]),
        )

    return Recording(("q",), {arm: draws(calls) for arm, calls in arms.items()}, texts, cassette=cassette)


def run(s: Strategy, recording: Recording) -> Result:
    """The strategy's result on the task, on the virtual clock."""

    async def main() -> Result:
        return await Live(Scripted(recording))(s)("q")

    return on_virtual_clock(main)
