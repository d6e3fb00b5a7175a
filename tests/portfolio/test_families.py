"""The standard families choose only what the recording holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from playcall.portfolio import best_arm, standard
from playcall.strategies import Draws, arms_of, outcomes

from .made import made


def test_where_another_arm_is_the_best_of_a_fold_only_arms_with_enough_draws_are_repeated() -> None:
    """`a` has three draws and is the best of all tasks; in these training tasks `b` is, which has one."""
    one = made({"a": 0.9, "b": 0.6}, tasks=200)
    fields = ("answer", "score", "failed", "price", "latency", "quality")
    deep = Draws(*(np.repeat(getattr(one["a"], f), 3, axis=1) for f in fields))
    recording = replace(one, arms={**one.arms, "a": deep})
    known = recording.take(one["b"].quality[:, 0] >= one["a"].quality[:, 0])
    known = known.take(np.argsort(known["a"].quality[:, 0] - known["b"].quality[:, 0], kind="stable")[:30])
    assert (best_arm(recording), best_arm(known)) == ("a", "b")
    families = standard(recording)
    for name in ("self-consistency of 3", "self-consistency, until 2 agree", "best of 3"):
        play = families[name]([], known)
        assert arms_of(play) == ("a",)
        assert outcomes(play, known).calls.max() > 1
