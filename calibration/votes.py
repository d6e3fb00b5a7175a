"""How far the answers to a task agree, as a raw score of each: what is left where no arm states a confidence."""

from __future__ import annotations

import numpy as np

from playcall.strategies.errors import Misuse
from playcall.strategies.panel import Floats, Ints, Mask


def agreement(answer: Ints, failed: Mask) -> Floats:
    """(tasks, calls) how many other live calls give this call's answer; NaN where the call failed.

    `answer` (tasks, calls) holds codes, equal codes being equal answers, and `failed` (tasks, calls) which calls
    brought none: for draws of one arm, those of `recording[arm]`; for several, their columns side by side.
    """
    same, alive = _same(answer, failed)
    return np.where(alive, same - 1.0, np.nan)


def vote_share(answer: Ints, failed: Mask) -> Floats:
    """(tasks, calls) the share of the other live calls that give this call's answer, 0 to 1.

    NaN where the call failed, or where no other call lives to agree with it. A ConfidenceCalibrator takes it for a
    probability. Shares of 0 and 1 are fine there. Arguments as for `agreement`.

    >>> vote_share(np.array([[7, 7, 8]]), np.zeros((1, 3), bool))
    array([[0.5, 0.5, 0. ]])
    """
    same, alive = _same(answer, failed)
    others = alive.sum(axis=1, keepdims=True) - 1
    return np.where(alive & (others > 0), (same - 1.0) / np.maximum(others, 1), np.nan)


def _same(answer: Ints, failed: Mask) -> tuple[Ints, Mask]:
    """How many live calls give this answer, itself included; and which live."""
    answer, failed = np.asarray(answer), np.asarray(failed, dtype=np.bool_)
    if answer.ndim != 2 or answer.shape != failed.shape:
        raise Misuse(
            f"answers {answer.shape} and failures {failed.shape}: give two arrays of one shape, (tasks, calls), "
            "such as recording[arm].answer and recording[arm].failed."
        )
    alive = ~failed
    same = np.zeros(answer.shape, dtype=np.int64)
    for i in range(answer.shape[1]):  # one call at a time: memory stays (tasks, calls)
        same[:, i] = ((answer == answer[:, i : i + 1]) & alive).sum(axis=1)
    return same, alive
