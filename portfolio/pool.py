"""All plays that are tried on a recording."""

from __future__ import annotations

import numpy as np

from playcall.portfolio.coverage import checked_plays
from playcall.portfolio.draws import drawn
from playcall.portfolio.expect import toll
from playcall.portfolio.sweep import Fixed, Play, best_arm, single, staged
from playcall.strategies import Recording, Strategy, arms_of, outcomes

_SPREAD = 0.03  # standard deviation of what such a play brings, before any evidence


def search(recording: Recording) -> list[Play]:
    """Every play in stages, from repeated draws, and where a checker grades from its verdicts; fitted and replayed."""
    found = staged(recording)
    known = {s.arms[0] for s in found if len(s.arms) == 1}
    found += [single(a, recording) for a in recording.arms if a not in known]
    found += [_fixed(play.strategy, play.gain, recording) for play in drawn(recording)]
    if recording.graded_by_checker:
        best = float(recording[best_arm(recording)].quality.mean())
        checked = [play for play in checked_plays(recording) if len(play.arms) > 1]
        found += [_fixed(play.strategy, play.quality - best, recording) for play in checked]
    return found


def _fixed(strategy: Strategy, gain: float, recording: Recording) -> Play:
    """A play that was found to exceed the best single arm by so much; credited with the share that this deserves."""
    best = recording[best_arm(recording)].quality
    o, arms = outcomes(strategy, recording), tuple(arms_of(strategy))
    variance = float((o.quality - best[:, 0]).var()) / len(recording)
    held = best.mean() + gain * _SPREAD**2 / (_SPREAD**2 + variance) - toll(len(arms) + 1)
    quality, expected, cost, latency = np.array([[o.quality.mean(), held, o.cost.mean(), o.latency.mean()]]).T
    return Fixed(strategy, arms, quality, expected, cost, latency)
