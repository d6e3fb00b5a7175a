"""Simple ways to choose, which a learned policy must beat."""

from __future__ import annotations

from collections.abc import Sequence

from playcall import strategies as st
from playcall.portfolio.choice import Target, choose
from playcall.portfolio.families import standard
from playcall.portfolio.nested import Chooser
from playcall.portfolio.sweep import Play, single
from playcall.strategies import Ask, Belief, Recording, Strategy

_CHEAP = 1 / 3  # of the best arm's price


def simple(recording: Recording, target: Target) -> dict[str, Chooser]:
    """Those that apply to what was recorded, by name; the best single arm is the first."""
    standing = standard(recording)
    first = "best single arm, chosen"
    found: dict[str, Chooser] = {first: standing[first]}
    if len(recording.arms) > 1 and target != Target():
        found["best single arm that keeps the target"] = lambda swept, known: _keeping(swept, known, target)
    if len(recording.arms) > 1 and recording.priced:
        found["cheapest arm"] = _cheapest
    if recording.answered:
        votes = ("majority of the best three", "self-consistency", "best of ")
        found |= {name: chooser for name, chooser in standing.items() if name.startswith(votes)}
        if len(recording.arms) > 2 and recording.priced:
            found["two cheap arms, the best one where they differ"] = _checked
    return found


def _keeping(swept: Sequence[Play], known: Recording, target: Target) -> Strategy:
    return choose([single(a, known) for a in known.arms], known, target).strategy


def _cheapest(swept: Sequence[Play], known: Recording) -> Strategy:
    return Ask(min(known.arms, key=lambda a: (known[a].price.mean(), -known[a].quality.mean())))


def _checked(swept: Sequence[Play], known: Recording) -> Strategy:
    """The two best arms at no more than a third of the best arm's price, or else the two cheapest; then the best arm,
    whose answer counts where the two differ."""
    *others, best = sorted(known.arms, key=lambda a: (known[a].quality.mean(), -known[a].price.mean()))
    cheap = [a for a in others if known[a].price.mean() <= _CHEAP * known[best].price.mean()][-2:]
    if len(cheap) < 2:
        cheap = sorted(others, key=lambda a: (known[a].price.mean(), -known[a].quality.mean()))[:2]
    belief = Belief.of(**{best: 1.5}, **dict.fromkeys(cheap, 1.0))
    return st.cascade(*reversed(cheap), best, stop=st.Agree(2)).keep(st.Vote(belief))
