"""What to say of a choice: what each of its arms brings, which arms bring nothing, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from joblib import Parallel, cpu_count, delayed

from playcall.portfolio.arms import diagnose, failure_correlations
from playcall.portfolio.choice import Choice, Target, best_options, choose, options_of
from playcall.portfolio.joint import rate_interval
from playcall.portfolio.pool import search
from playcall.portfolio.simplest import Fallback, expectation, located, settle, standard_error
from playcall.portfolio.sweep import Fixed, Play, best_arm
from playcall.strategies import NANO, Explain, Recording, Replay, Strategy, arms_of, outcomes
from playcall.strategies.errors import some

_FACTORS = (0.5, 0.75, 1.25, 2.0)  # of a limit
_POINT = 0.01  # of quality
_DEARER, _CHEAPER = (1.25, 1.5, 2.0, 3.0), (0.75, 0.5, 0.33)  # of an arm's price
_NEAR = 30  # plays at each budget that are looked at under other prices
_ALIKE = 0.3  # correlation of failures of arms that fail together


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


@dataclass(frozen=True)
class Chosen:
    """A choice and what it was made from; `recording` holds the usable arms, `limits` is the target in its own USD."""

    choice: Choice
    swept: Sequence[Play]
    recording: Recording
    target: Target
    fallback: Fallback

    @property
    def limits(self) -> Target:
        """The target without limits relative to the best single arm."""
        single = self.recording[best_arm(self.recording)]
        return self.target.against(float(single.quality.mean()), float(single.price.mean()) / NANO)

    def expected(self, strategy: Strategy) -> float:
        """Quality on new tasks."""
        return expectation(strategy, self.swept, self.recording)

    def said(self, choice: Choice) -> str:
        """A choice in words, with what it is expected to do."""
        price = f", ${choice.cost / NANO:.3g} a task" if self.recording.priced else ""
        return f"{Explain()(choice.strategy)} Expected quality {self.expected(choice.strategy):.3f}{price}."

    def beside(self, other: Choice, loss: float) -> str:
        """Another choice in words, by what it differs from this one; `loss` is in expected quality."""
        quality = f"{100 * abs(loss):.1f} points {'less' if loss >= 0 else 'more'} quality"
        extra = (other.cost - self.choice.cost) / NANO
        price = f", ${abs(extra):.3g} {'more' if extra >= 0 else 'less'} a task" if self.recording.priced else ""
        return f"the best is {quality}{price}: {Explain()(other.strategy)}"


def earned(chosen: Chosen) -> tuple[Earned, ...]:
    """For each arm of the chosen play, against the best play that does without it.

    Of the same search, which tries all plays in stages; where the choice is a play of repeated draws, of which few are
    tried, also of a search without the arm. Then a gain may be a little below zero.
    """
    recording = chosen.recording
    panel, used = Replay(recording)(chosen.choice.strategy), arms_of(chosen.choice.strategy)
    paid, called = np.where(panel.began, panel.price, 0).sum(axis=0), panel.began.mean(axis=0)
    others = [recording.only(a for a in recording.arms if a != arm) for arm in used]
    found, plays = list[Earned](), [[s for s in chosen.swept if arm not in s.arms] for arm in used]
    same = located(chosen.choice.strategy, chosen.swept)
    if len(recording.arms) > 1 and not (same and same[0].stages):
        anew = Parallel(n_jobs=min(cpu_count(), len(used)))(delayed(search)(other) for other in others)
        plays = [old + new for old, new in zip(plays, anew)]
    whole = chosen.expected(chosen.choice.strategy)
    for arm, rest in zip(used, plays):
        mine = np.array([a == arm for a in panel.arm])
        cost = float(paid[mine].sum()) / len(recording) / NANO if recording.priced else None
        words = f"{arm} is called {called[mine].sum():.2f} times a task{'' if cost is None else f' for ${cost:.3g}'}"
        if not rest:
            found.append(Earned(arm=arm, gain=whole, cost=cost, words=f"{words}; there is no other arm."))
            continue
        other = settle(rest, recording, chosen.limits, chosen.fallback)
        gain = whole - expectation(other.strategy, rest, recording)
        instead = f"without it{'' if other.feasible else ' nothing keeps the target, and'} {chosen.beside(other, gain)}"
        found.append(Earned(arm=arm, gain=gain, cost=cost, words=f"{words}; {instead}"))
    return tuple(found)


def redundant(chosen: Chosen, frontier: Sequence[Strategy]) -> tuple[Redundant, ...]:
    """The arms that no play of the frontier uses."""
    used = {arm for play in (chosen.choice.strategy, *frontier) for arm in arms_of(play)}
    recording, arms = chosen.recording, list(chosen.recording.arms)
    R, wrong = failure_correlations(recording), 1 - outcomes(chosen.choice.strategy, recording).quality
    mine, found = arms_of(chosen.choice.strategy), []
    for i, arm in enumerate(arms):
        if arm in used:
            continue
        near = sorted(((float(R[i, arms.index(a)]), a) for a in mine), reverse=True)
        alike = tuple(a for r, a in near if r >= _ALIKE)
        right = float((recording[arm].quality[:, 0] * wrong).sum() / max(wrong.sum(), 1e-12))
        together = f"it fails where {some(alike)} do{'es' * (len(alike) == 1)} (correlation up to {near[0][0]:.2f})"
        why = together if alike else "nothing tells when to believe it" if recording.answered else "one arm is chosen"
        words = (
            f"{arm} ({recording[arm].quality.mean():.3f}) is in no play of the frontier: {why}. "
            f"Of what the policy gets wrong it gets {right:.0%} right."
        )
        found.append(Redundant(arm=arm, alike=alike, words=words))
    return tuple(found)


def ceiling(recording: Recording) -> tuple[float, float, float]:
    """(share of tasks that some recorded call gets right, low, high): no play of these calls can do better.

    With one 0/1 call an arm this is JointFailure's ceiling, with Clopper and Pearson's interval; a task whose best
    grade is in between counts by that grade, with Chernoff's (see `rate_interval`).
    """
    best = np.max([d.quality.max(axis=1) for d in recording.arms.values()], axis=0)
    low, high = rate_interval(1 - best)
    return float(best.mean()), 1 - high, 1 - low


def findings(recording: Recording, usable: Recording) -> tuple[str, ...]:
    """What is odd about the arms, and about the ceiling because of them."""
    found = diagnose(recording)
    lucky = {a for f in found if f.inflates for a in f.arms if a in usable.arms}
    words = tuple(f.words for f in found)
    if lucky and (rest := [a for a in usable.arms if a not in lucky]):
        most, less = ceiling(usable)[0], ceiling(usable.only(rest))[0]
        words += (
            f"The ceiling of {most:.3f} counts lucky or misgraded answers of {some(sorted(lucky))}; "
            f"without these arms it is {less:.3f}.",
        )
    return words


def changes(chosen: Chosen) -> tuple[str, ...]:
    """What would change the choice: other limits, a little more or less of anything, other prices."""
    return (*_limits(chosen), *_runner_up(chosen), *_prices(chosen))


def _limits(chosen: Chosen) -> Iterator[str]:
    target = replace(chosen.target, max_share=1.0) if chosen.target == Target() else chosen.target
    for field in ("max_cost", "max_share", "max_latency", "max_latency_p95", "min_quality", "max_drop"):
        now = getattr(target, field)
        if now is None or (field == "max_share" and not chosen.recording.priced):
            continue
        if field in ("min_quality", "max_drop"):
            tried = [round(now + d, 6) for d in (-_POINT, _POINT) if 0 <= now + d <= 1]
        else:
            tried = [now * f for f in _FACTORS] if now > 0 else []
        other = [settle(chosen.swept, chosen.recording, replace(target, **{field: x}), chosen.fallback) for x in tried]
        for _, same in groupby(zip(tried, other), key=lambda pair: (pair[1].strategy, pair[1].feasible)):
            values, choices = zip(*same)
            at = f"With {field} {' or '.join(f'{x:.4g}' for x in values)} in place of {now:.4g}"
            if not choices[0].feasible:
                yield f"{at} nothing keeps the target."
            elif choices[0].strategy == chosen.choice.strategy:
                yield f"{at} the choice stays."
            else:
                yield f"{at}: {chosen.said(choices[0])}"


def _runner_up(chosen: Chosen) -> Iterator[str]:
    mine = set(arms_of(chosen.choice.strategy))
    rest = [s for s in chosen.swept if set(s.arms) != mine]
    if not rest:
        return
    second = choose(rest, chosen.recording, chosen.target)
    if not second.feasible:
        yield "No play of other arms keeps the target."
        return
    loss = chosen.expected(chosen.choice.strategy) - chosen.expected(second.strategy)
    one, two = (outcomes(c.strategy, chosen.recording).quality for c in (chosen.choice, second))
    error = f"{100 * standard_error(one - two):.1f} points"
    yield f"Of plays of other arms {chosen.beside(second, loss)} The standard error of the difference is {error}."


def _prices(chosen: Chosen) -> Iterator[str]:
    """From which price of an arm on the choice would use other arms, of the plays that come near it at some budget."""
    recording = chosen.recording
    if not recording.priced or chosen.limits.timely:
        return
    pool, kept = _near(chosen), list[str]()
    panels = [Replay(recording)(play.strategy()) for play in pool]
    paid = [(p.arm, np.where(p.began, p.price, 0).mean(axis=0)) for p in panels]
    used = arms_of(chosen.choice.strategy)
    for arm in used:
        now, stays = float(recording[arm].price.mean()) / NANO, True
        for factors in (_DEARER, _CHEAPER) if now > 0 else ():
            for factor in factors:
                costs = [sum(c * (factor if a == arm else 1) for a, c in zip(*calls)) for calls in paid]
                plays = [replace(play, cost=np.array([cost])) for play, cost in zip(pool, costs)]
                other = settle(plays, recording.reprice({arm: now * factor}), chosen.target, chosen.fallback)
                if set(arms_of(other.strategy)) != set(used):
                    stays = False
                    at = f"With {arm} at ${now * factor:.3g} a call ({factor:g}x)"
                    yield f"{at}: {Explain()(other.strategy)}" if other.feasible else f"{at} nothing keeps the target."
                    break
        if stays:
            kept.append(arm)
    if kept:
        low, high = min(_CHEAPER), max(_DEARER)
        yield f"With {some(kept)} at {low:g}x to {high:g}x {'its' if len(kept) == 1 else 'their'} price the arms stay."


def _near(chosen: Chosen) -> list[Fixed]:
    """The best plays of the search at several budgets, or prices of money, around the target's own."""
    limits, options = chosen.limits, options_of(chosen.swept)
    unit = float(chosen.recording[best_arm(chosen.recording)].price.mean())
    tried = [
        replace(limits, max_cost=limits.max_cost and limits.max_cost * f, cost_weight=limits.cost_weight * f)
        for f in (0.25, *_FACTORS, 1.0, 4.0)
    ]
    best = [best_options(options, t, unit, _NEAR) for t in tried]
    found = dict[tuple[int, int], Fixed]()
    for o in (o for few in best for o in few.itertuples()):
        play, at = chosen.swept[o.play], slice(o.at, o.at + 1)
        figures = (play.quality[at], play.expected[at], play.cost[at], play.latency[at])
        found[o.play, o.at] = Fixed(play.strategy(o.at), play.arms, *figures)
    return list(found.values())
