"""All plays that are tried on a recording."""

from __future__ import annotations

import numpy as np

from playcall.portfolio.draws import drawn
from playcall.portfolio.expect import toll
from playcall.portfolio.sweep import Fixed, Play, best_arm, single, staged
from playcall.strategies import Recording, arms_of, outcomes

_SPREAD = 0.03  # standard deviation of what a play of repeated draws brings, before any evidence


def search(recording: Recording) -> list[Play]:
    """Every play in stages, from repeated draws, and where a checker grades from its verdicts; fitted and replayed."""
    found = staged(recording)
    known = {s.arms[0] for s in found if len(s.arms) == 1}
    found += [single(a, recording) for a in recording.arms if a not in known]
    return found + _drawn(recording)


def _drawn(recording: Recording) -> list[Play]:
    plays = list[Play]()
    best = recording[best_arm(recording)].quality
    for strategy, gain in drawn(recording):
        o, arms = outcomes(strategy, recording), tuple(arms_of(strategy))
        variance = float((o.quality - best[:, 0]).var()) / len(recording)
        held = best.mean() + gain * _SPREAD**2 / (_SPREAD**2 + variance) - toll(len(arms) + 1)
        quality, expected, cost, latency = np.array([[o.quality.mean(), held, o.cost.mean(), o.latency.mean()]]).T
        plays.append(Fixed(strategy, arms, quality, expected, cost, latency))
    return plays
