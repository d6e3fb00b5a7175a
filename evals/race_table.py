"""Recorded outcomes as a race replays them: arms and plays on the same items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Self

import numpy as np

from playcall.portfolio.effects import roles_of
from playcall.portfolio.race import Rules
from playcall.portfolio.raced import Raced
from playcall.portfolio.simulated import Grid, Simulated
from playcall.strategies import NANO, Misuse, Recording, Strategy, arms_of, outcomes
from playcall.strategies.errors import some


@dataclass(frozen=True)
class Recorded:
    """A table to race on. What was not recorded counts as 0 in it, and is told as unknown."""

    recording: Recording
    plays: Mapping[str, Strategy]
    table: Grid
    unpriced: frozenset[str]
    untimed: frozenset[str]
    calls: Mapping[str, float]  # of an item, by arm and play

    @classmethod
    def of(cls, recording: Recording, plays: Mapping[str, Strategy] | None = None) -> Self:
        """The arms of a recording, and plays replayed on it. Raises Misuse for fewer than two of them together."""
        plays, table = plays or {}, Grid.of(recording)
        if taken := [name for name in plays if name in recording.arms]:
            raise Misuse(f"your strategy {taken[0]!r} has the name of an arm; give it one of its own.")
        if len(recording.arms) + len(plays) < 2:
            raise Misuse(
                f"{recording.name} has a single arm, {next(iter(recording.arms))!r}: a race needs two, or a --strategy."
            )
        came = [outcomes(play, recording) for play in plays.values()]
        table = Grid(
            (*table.arms, *plays),
            np.column_stack([table.score, *(o.quality for o in came)]),
            np.column_stack([table.cost, *(o.cost / NANO for o in came)]),
            np.column_stack([table.seconds, *(o.latency / 1e6 for o in came)]),
            np.column_stack([table.failed, *(np.zeros(len(recording), bool) for _ in came)]),
        )
        used = {**{arm: (arm,) for arm in recording.arms}, **{name: arms_of(play) for name, play in plays.items()}}
        unpriced = frozenset(name for name, arms in used.items() if not all(recording[a].priced for a in arms))
        untimed = frozenset(name for name, arms in used.items() if not all(recording[a].timed for a in arms))
        calls = {**dict.fromkeys(recording.arms, 1.0), **{name: float(o.calls.mean()) for name, o in zip(plays, came)}}
        return cls(recording, plays, table, unpriced, untimed, calls)

    @property
    def roles(self) -> list[Mapping[str, str]]:
        """The models by role, by arm; a play has none."""
        return [{} if arm in self.plays else roles_of(arm) for arm in self.table.arms]

    def check(self, rules: Rules) -> None:
        """Raise Misuse where the rules need what was not recorded."""
        for needs, lacking, what, option in (
            (rules.cost_weight > 0, self.unpriced, "costs", "--weights cost=.."),
            (rules.seeks_cheapest, self.unpriced, "costs", "--threshold"),
            (rules.max_usd is not None, self.unpriced, "costs", "--budget"),
            (rules.latency_weight > 0, self.untimed, "latencies", "--weights latency=.."),
        ):
            if needs and lacking:
                lacks = f"{self.recording.name} has none, or too few, of {some(sorted(lacking))}"
                say = f"Record them, pick other arms by --where arm=.., or take {option} away"
                raise Misuse(f"{option} needs {what}, and {lacks}. {say}.")

    def raced(self, told: Raced) -> Raced:
        """With unknown costs and latencies as NaN, not as 0."""
        arms = told.arms
        arms = tuple(replace(r, cost=nan, cost_low=nan, cost_high=nan) if r.arm in self.unpriced else r for r in arms)
        arms = tuple(replace(r, latency=nan) if r.arm in self.untimed else r for r in arms)
        told = replace(told, arms=arms)
        return replace(told, dollars=nan, brute_force_dollars=nan) if self.unpriced else told

    def simulated(self, told: Simulated) -> Simulated:
        """The same."""
        return replace(told, dollars=nan, brute_force_dollars=nan) if self.unpriced else told
