"""The standard families of plays, each a way to choose one play from training tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from playcall import strategies as st
from playcall.portfolio.choice import Target, choose
from playcall.portfolio.nested import Chooser
from playcall.portfolio.policy import ALONE, alone
from playcall.portfolio.sweep import Play, best_arm
from playcall.strategies import Recording, Strategy

_EQUAL = 0.002  # quality that nobody would miss


def standard(recording: Recording) -> dict[str, Chooser]:
    """The families that apply to what was recorded, by name."""
    found: dict[str, Chooser] = {ALONE: alone}
    if repeated := [a for a, d in recording.arms.items() if d.depth > 1]:
        depth = recording[best_arm(recording.only(repeated))].depth
        deep, quorum = [a for a in repeated if recording[a].depth >= depth], min(3, depth // 2 + 1)

        def draws(known: Recording) -> list[str]:
            return [best_arm(known.only(deep))] * depth

        found[f"self-consistency of {depth}"] = lambda swept, known: st.vote(*draws(known))
        found[f"self-consistency, until {quorum} agree"] = lambda swept, known: st.cascade(
            *draws(known), stop=st.Agree(quorum)
        ).keep(st.Vote())
        if recording.only(deep).scored:
            found[f"best of {depth}"] = lambda swept, known: st.best_of(depth, draws(known)[0])
    if len(recording.arms) > 2:
        found["majority of the best three"] = _majority
        found["portfolio vote"] = _portfolio
    if len(recording.arms) > 1:
        for name, share in (("half the cost", 0.5), ("equal cost", 1.0), ("best", 1.5)):
            found[f"cascade, {name}"] = _cascade(share)
        found["cascade, equal quality"] = _frugal
        if recording.timed:
            found["parallel early stop"] = _parallel
            found["hedge"] = _hedge
    return found


def _cascade(share: float) -> Chooser:
    return lambda swept, known: choose(swept, known, Target(max_share=share)).strategy


def _frugal(swept: Sequence[Play], known: Recording) -> Strategy:
    return choose(swept, known, Target(max_drop=_EQUAL)).strategy


def _majority(swept: Sequence[Play], known: Recording) -> Strategy:
    ranked = sorted(known.arms, key=lambda a: -float(known[a].quality[:, 0].mean()))
    return st.vote(*ranked[:3])


def _portfolio(swept: Sequence[Play], known: Recording) -> Strategy:
    votes = [s for s in swept if len(s.stages) == 1 and len(s.arms) > 1]
    return choose(votes, known, Target(max_cost=1e6)).strategy if votes else _majority(swept, known)


def _parallel(swept: Sequence[Play], known: Recording) -> Strategy:
    """The best cascade with all its stages at once."""
    play = choose(swept, known, Target(max_share=1.5)).strategy
    if isinstance(play, st.Keep) and isinstance(play.source, st.Gather):
        return play.source.until(play.source.stop, gap=0.0).keep(play.rule)
    return play


def _hedge(swept: Sequence[Play], known: Recording) -> Strategy:
    """The best arm, and after its 95th percentile once more, or where it has one draw the next best arm."""
    first, *others = sorted(known.arms, key=lambda a: -float(known[a].quality[:, 0].mean()))
    after = float(np.quantile(known[first].latency[:, 0], 0.95)) / 1e6
    return st.hedge(first, first if known[first].depth > 1 or not others else others[0], after=round(after, 3))
