"""All that a user is told after a fit, from one search and one nested cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from playcall.portfolio.choice import Target
from playcall.portfolio.nested import Figures, Folding
from playcall.portfolio.policy import Policy
from playcall.strategies import Recording, Strategy

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A play of the frontier. Qualities are 0 to 1; `apparent` is on the tasks it was chosen by, `figures` are from
    nested cross-validation, `held_out` is on a test recording, where one was given."""

    name: str
    words: str
    strategy: Strategy
    max_share: float | None  # of the best single arm's cost; None: the target's own
    apparent: float
    figures: Figures
    held_out: float | None


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A simple way to choose, on the same folds."""

    name: str
    words: str
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class Earned:
    """What an arm of the chosen play brings: expected quality lost without it, and USD a task that it takes."""

    arm: str
    gain: float
    cost: float | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Redundant:
    """An arm that is not used and would bring nothing, and the used arms that fail where it fails."""

    arm: str
    alike: tuple[str, ...]
    words: str


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Held-out figures of what so many labels would have chosen; `words` is the most frequent choice."""

    labels: int
    runs: int
    words: str
    quality: float
    quality_low: float
    quality_high: float
    cost_per_task: float | None
    difference: float
    difference_low: float
    difference_high: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """A policy, and what stands beside it."""

    policy: Policy
    frontier: tuple[Point, ...]
    baselines: tuple[Baseline, ...]
    strongest: Baseline
    ceiling: float
    ceiling_low: float
    ceiling_high: float
    earned: tuple[Earned, ...]
    redundant: tuple[Redundant, ...]
    findings: tuple[str, ...]
    changes: tuple[str, ...]
    curve: tuple[CurvePoint, ...]
    optimism: float

    def to_dict(self) -> dict[str, Plain]:
        """Plain JSON values."""
        raise NotImplementedError


def study(
    recording: Recording,
    target: Target | None = None,
    *,
    labels: tuple[int, ...] = (),
    held_out: Recording | None = None,
    **folding: Unpack[Folding],
) -> Study:
    """To come."""
    raise NotImplementedError
