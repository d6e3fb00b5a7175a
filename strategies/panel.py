"""What every strategy produces: the candidate answers of its calls, and what they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FOREVER = np.int64(2**61)
"""A moment that never comes, in microseconds; two of them add up without overflow."""


def microseconds(seconds: float) -> int:
    """Seconds in the engines' unit of time; inf becomes FOREVER."""
    return int(FOREVER) if seconds > 1e12 else round(seconds * 1e6)


PROMPTED = -1
"""The draw of a reply to a prompt: it has no number, its prompt tells it apart."""


@dataclass(frozen=True)
class Panel:
    """The calls of many tasks at once: one row per task, one column per call.

    Money is integer nano-dollars and time integer microseconds since the run began, so that
    sums are exact and live and replayed runs agree to the last digit.
    """

    arm: tuple[str, ...]  # of each column
    draw: tuple[int, ...]  # of each column; PROMPTED where the call read other answers
    answer: Ints  # (rows, calls) equal numbers are equal answers
    score: Floats  # (rows, calls) raw confidence, NaN where there is none
    alive: Mask  # (rows, calls) the answer is still in the running
    issued: Ints  # (rows, calls) when each call began; FOREVER if it never did
    price: Ints  # (rows, calls) what it costs once it has begun
    failed: Mask  # (rows, calls) it began and brought no answer
    end: Ints  # (rows,) when this result was known

    @property
    def accepted(self) -> Mask:
        """(rows,) whether any candidate survives."""
        return np.any(self.alive, axis=1)

    @property
    def began(self) -> Mask:
        """(rows, calls) whether the call was made."""
        return self.issued < FOREVER

    @property
    def cost(self) -> Ints:
        """(rows,) nano-dollars of all calls that began, failed and cancelled ones too."""
        return np.where(self.began, self.price, 0).sum(axis=1)

    @property
    def output(self) -> Ints:
        """(rows,) the column of the first survivor; -1 where none is left."""
        return np.where(self.accepted, self.alive.argmax(axis=1), -1)

    def keep(self, rule: Callable[[Panel], Mask]) -> Panel:
        """Only the candidates that the rule lets live."""
        return replace(self, alive=self.alive & rule(self))

    def where(self, rows: Mask, otherwise: Ints) -> Panel:
        """As if only run on `rows`; elsewhere nothing was called and it ended at `otherwise`."""
        here = rows[:, None]
        return replace(
            self,
            alive=self.alive & here,
            issued=np.where(here, self.issued, FOREVER),
            failed=self.failed & here,
            end=np.where(rows, self.end, otherwise),
        )

    def seen_at(self, moment: Ints, known: Ints) -> Panel:
        """What an onlooker knows at a moment: answers that are in by then, and calls begun before it.

        `known` is (rows, calls) when each answer comes in.
        """
        done = known <= moment[:, None]
        return replace(
            self,
            alive=self.alive & done,
            issued=np.where(done | (self.issued < moment[:, None]), self.issued, FOREVER),
            failed=self.failed & done,
            end=moment,
        )


def beside(panels: Sequence[Panel], end: Ints | None = None) -> Panel:
    """Panels side by side; known when the last of them is, or at `end`."""
    if len(panels) == 1:
        return panels[0] if end is None else replace(panels[0], end=end)
    return Panel(
        arm=tuple(a for p in panels for a in p.arm),
        draw=tuple(d for p in panels for d in p.draw),
        answer=np.concatenate([p.answer for p in panels], axis=1),
        score=np.concatenate([p.score for p in panels], axis=1),
        alive=np.concatenate([p.alive for p in panels], axis=1),
        issued=np.concatenate([p.issued for p in panels], axis=1),
        price=np.concatenate([p.price for p in panels], axis=1),
        failed=np.concatenate([p.failed for p in panels], axis=1),
        end=np.stack([p.end for p in panels]).max(axis=0) if end is None else end,
    )
