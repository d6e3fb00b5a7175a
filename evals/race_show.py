"""What a race found, as a person reads it in a terminal, at its end and while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from playcall.evals import show as shown
from playcall.portfolio.effects import RoleEffect
from playcall.portfolio.race import Rules
from playcall.portfolio.raced import MANY, Raced, Racer
from playcall.portfolio.simulated import Simulated
from playcall.strategies import NANO
from playcall.strategies.errors import some

if TYPE_CHECKING:
    from playcall.evals.race_live import LiveRace

IN_DOUBT = ("tied", "in the set")
"""States of arms that may be as good as the chosen one."""
NEAR, LESS = 0.02, 0.8  # quality behind the chosen arm and share of its cost for another to be worth a word
_FEW, _LIVE, _NAMED = 12, 8, 4  # arms in the table, in the live one, in a sentence
_SOON, _EVERY = 0.25, 10.0  # seconds between looks on a terminal, between lines elsewhere
_OPTIONS = {"max_usd": "the budget", "max_calls": "--max-calls", "max_seconds": "--max-time"}


def show(raced: Raced, rules: Rules, more: Sequence[tuple[str, str]] = (), *, every: bool = False) -> None:
    """The arms, what is recommended, and `more` lines of words."""
    shown.out.print(arms(raced, every=every))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", width=9)
    grid.add_column(overflow="fold")
    last = ""
    for name, words in (*facts(raced, rules), *more):
        grid.add_row(Text(name if name != last else ""), Text(words))
        last = name
    shown.out.print(grid, width=min(shown.out.width, 120))


def arms(raced: Raced, *, every: bool = False) -> Table:
    """One line an arm; of many, the best and how many more there are of each state."""
    title = f"A race of {len(raced.arms)} arms on {raced.items:,} items, by {raced.method}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("arm", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("asked", "quality, %", "corrected,\n%", "USD an item", "mean s", "behind,\npoints"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    few = raced.arms if every or len(raced.arms) <= _FEW + 2 else raced.arms[:_FEW]
    for r in few:
        table.add_row(*(Text(cell, style="bold" if r.state == "chosen" else "") for cell in _cells(r)))
    if rest := raced.arms[len(few) :]:
        counts = ", ".join(
            f"{n} {state}" for state in dict.fromkeys(r.state for r in rest) if (n := _count(rest, state))
        )
        table.caption = Text(f"and {len(rest)} more ({counts}): --all shows them")
        table.caption_justify = "left"
    return table


def _count(racers: tuple[Racer, ...], state: str) -> int:
    return sum(r.state == state for r in racers)


def _cells(r: Racer) -> list[str]:
    cost = _interval(r.cost, r.cost_low, r.cost_high)
    quality = shown.percent(r.quality, r.low, r.high) if r.asked else "-"
    behind = "" if r.state == "chosen" else _points(r.behind)
    return [r.arm, r.state, f"{r.asked:,}", quality, _points(r.corrected), cost, _number(r.latency), behind]


def _interval(mean: float, low: float, high: float) -> str:
    bounds = f" [{low:.3g}, {high:.3g}]" if isfinite(low) and isfinite(high) else ""
    return _number(mean) + bounds


def _number(x: float) -> str:
    return shown.number(x if isfinite(x) else None)


def _points(x: float) -> str:
    return f"{100 * x + 0.0:.1f}" if isfinite(x) else "-"


def named_effects(raced: Raced) -> tuple[RoleEffect, ...]:
    """The effects of roles; those of a single one say no more than the arms themselves."""
    return raced.effects if len(raced.effects) > 1 else ()


def named(raced: Raced) -> Raced:
    """Where no arm is chosen, the one that would be is the nearest."""
    if raced.chosen is not None:
        return raced
    return replace(raced, arms=tuple(replace(r, state="nearest") if r.state == "chosen" else r for r in raced.arms))


def facts(raced: Raced, rules: Rules) -> Iterator[tuple[str, str]]:
    """(what, words) line by line: what to take, how sure that is, what it took, why it ended."""
    best = next((r for r in raced.arms if r.arm == raced.chosen), None)
    sure = f"{1 - raced.delta:.0%}"
    if best is not None:
        cost = f", ${best.cost:.3g} an item" if isfinite(best.cost) else ""
        quality = f"quality {shown.percent(best.quality, best.low, best.high)} % on {best.asked:,} items"
        fair = (
            ""
            if len(raced.arms) < MANY
            else f", {_points(best.corrected)} % once it is corrected for having been chosen"
        )
        take = (
            f"{best.arm} for {raced.objective}" if best.failures < best.asked else f"nothing: {best.arm} always failed"
        )
        yield "Take", f"{take}: {quality}{fair}{cost}"
    else:
        yield from _none(raced, rules)
    if best is not None and raced.regret_bound is not None:
        yield "Sure", f"{_bounded(raced)}{_expected(raced)}"
        if rules.cost_weight or rules.latency_weight:
            yield "Sure", "as long as no arm has rare runs, not seen yet, that cost or take far more than all others"
        yield "Sure", f"with {sure} confidence the best arm is among {_these(raced)}"
    elif best is not None and rules.seeks_cheapest:
        margin = 100 * (0.02 if rules.epsilon is None else rules.epsilon)
        yield (
            "Sure",
            f"with {sure} confidence no arm is on the wrong side of {_points(rules.threshold or 0)} % by more than "
            f"{margin:.1f} points",
        )
    elif raced.evaluations == raced.brute_force_evaluations:
        yield "Sure", f"no arm is better on these {raced.items:,} items, since all were asked all of them"
    elif best is not None:
        yield "Sure", f"no bound is known for {raced.method}; it ended with {_these(raced)}"
    if raced.ties:
        same = f"{some(raced.ties)} did exactly as well on the same {raced.items:,} items"
        yield "Ties", f"{same}{_cheapest(raced)}"
    yield from _cheaper(raced, best)
    for e in named_effects(raced):
        most, least = max(e.models, key=e.models.__getitem__), min(e.models, key=e.models.__getitem__)
        spread = f"{100 * e.spread:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}] points"
        yield (
            "Roles",
            f"{e.role}: its models differ by {spread} (standard deviation, 95% interval), {e.share:.0%} of the arms' "
            f"variance; {most} {100 * e.models[most]:+.1f}, {least} {100 * e.models[least]:+.1f}",
        )
    yield from _taken(raced, rules)


def _bounded(raced: Raced) -> str:
    here, new = raced.regret_bound, raced.regret_bound_new
    if here is None or not isfinite(here):
        return "what it may lose to the best arm is not known yet"
    beyond = f", and {_points(new)} on new ones" if new is not None and isfinite(new) else ""
    loses = f"it loses at most {_points(here)} points to the best arm on these {raced.items:,} items{beyond}"
    return f"with {1 - raced.delta:.0%} confidence {loses}"


def _expected(raced: Raced) -> str:
    told = raced.expected_regret
    if told is None or not isfinite(told):
        return ""
    return f"; it is expected to lose {100 * told:.2f}, or rather more: a race ends once this is small"


def _none(raced: Raced, rules: Rules) -> Iterator[tuple[str, str]]:
    if rules.threshold is None or not raced.evaluations:
        yield "Take", "nothing: no arm was asked"
        return
    asked = [r for r in raced.arms if r.asked]
    nearest = max(asked, key=lambda r: r.quality)
    at = f"{_points(rules.threshold)} %"
    near = f"the nearest is {nearest.arm} with {shown.percent(nearest.quality, nearest.low, nearest.high)} %"
    if raced.survivors:
        yield "Take", f"nothing yet: no arm is shown to clear {at}, and {_these(raced)} still may; {near}"
    else:
        yield "Take", f"nothing: no arm clears {at}; {near}"


def _these(raced: Raced) -> str:
    n, of = len(raced.survivors), len(raced.arms)
    return f"{n} of {of} arms" if n > _NAMED or n == 0 else some(raced.survivors)


def _cheapest(raced: Raced) -> str:
    alike = sorted((r for r in raced.arms if r.arm in (raced.chosen, *raced.ties)), key=lambda r: r.cost)
    if not all(isfinite(r.cost) for r in alike) or alike[0].cost == alike[-1].cost:
        return ""
    return f"; the cheapest of these is {alike[0].arm}, at ${alike[0].cost:.3g} an item"


def _cheaper(raced: Raced, best: Racer | None) -> Iterator[tuple[str, str]]:
    """The cheapest arm that is not far behind."""
    if best is None or raced.regret_bound is None or not isfinite(best.cost):
        return
    near = [r for r in raced.arms if r is not best and r.behind <= NEAR and r.cost < LESS * best.cost]
    if near:
        r = min(near, key=lambda r: r.cost)
        cost = f"at {_share(r.cost, best.cost)} of the cost; --weights or --threshold race for such an arm"
        yield "Cheaper", f"{r.arm} is {_points(r.behind)} points behind on the same {r.asked:,} items, {cost}"


def _taken(raced: Raced, rules: Rules) -> Iterator[tuple[str, str]]:
    runs, every = raced.evaluations, raced.brute_force_evaluations
    usd, of = raced.dollars, raced.brute_force_dollars
    paid = f", worth ${usd:.4g} of ${of:.4g} ({_share(usd, of)})" if isfinite(usd) and isfinite(of) and of > 0 else ""
    yield "Spent", f"{runs:,} of the {every:,} runs of brute force ({_share(runs, every)}){paid}"
    yield "Stopped", _why(raced, rules)
    if failing := [r for r in raced.arms if r.failures]:
        most = sorted(failing, key=lambda r: -r.failures)[:_NAMED]
        told = ", ".join(f"{r.arm} {r.failures:,} of {r.asked:,}" for r in most)
        more = f", and {len(failing) - _NAMED} more arms" if len(failing) > _NAMED else ""
        yield "Failed", f"{sum(r.failures for r in failing):,} runs, counted as 0: {told}{more}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}"


def _why(raced: Raced, rules: Rules) -> str:
    """Why it ended."""
    if raced.stopped != "done":
        told = raced.stopped
        for name, option in _OPTIONS.items():
            told = told.replace(name, option)
        return f"before its end: {told}"
    if raced.evaluations == raced.brute_force_evaluations:
        return "every arm was asked every item"
    if raced.regret_bound is None:
        return "there is nothing left in doubt" if rules.seeks_cheapest else f"{raced.method} asks no more"
    if max((r.asked for r in raced.arms), default=0) == raced.items and not raced.expected_regret:
        return "the arms that are left were asked every item"
    proof = (
        ""
        if rules.epsilon is None
        else f", and by at most {_points(rules.epsilon)} with {1 - raced.delta:.0%} confidence"
    )
    return f"no other arm is expected to be better by more than {100 * rules.regret:.2f} points together{proof}"


def simulated(s: Simulated, rules: Rules) -> None:
    """Many races in a few lines."""
    table = Table(title=Text(f"{s.seeds} races by {rules.method}, each in an order of its own"), title_justify="left")
    for name in ("what", "a race", "brute force"):
        table.add_column(name, justify="left" if name == "what" else "right", overflow="fold")
    lines = [
        ("found the best arm", f"{s.found_best:.1%}", "100%"),
        ("lost to the best arm, points, mean", f"{100 * s.regret_mean:.2f}", "0"),
        ("at worst", f"{100 * s.regret_worst:.2f}", "0"),
        ("gave the best arm up", f"{s.best_eliminated:.1%}", "0%"),
        ("runs of an arm on an item", f"{s.evaluations:,.0f}", f"{s.brute_force_evaluations:,}"),
        ("USD", _number(s.dollars), _number(s.brute_force_dollars)),
        ("microseconds of choosing, a run", f"{1e6 * s.seconds_per_evaluation:.1f}", ""),
    ]
    for line in lines:
        table.add_row(*map(Text, line))
    shown.out.print(table)


@contextmanager
def watched(race: LiveRace) -> Iterator[None]:
    """The race while it runs, on standard error: a table on a terminal, else a line now and then."""
    terminal, last = shown.errors.is_terminal, time.monotonic()
    with Live(console=shown.errors, auto_refresh=False, transient=True) if terminal else nullcontext() as live:

        def tell() -> None:
            nonlocal last
            if time.monotonic() - last >= (_SOON if terminal else _EVERY):
                last, raced = time.monotonic(), race.raced()
                if live is None:
                    shown.errors.print(line(race, raced), markup=False, soft_wrap=True)
                else:
                    live.update(now(race, raced), refresh=True)

        race.tell = tell
        yield


def now(race: LiveRace, raced: Raced) -> Table:
    """The best arms as they stand, and what is spent."""
    table = Table(title=Text(line(race, raced)), title_justify="left")
    table.add_column("arm", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("asked", "mean, %", "behind, points", "USD an item", "failed"):
        table.add_column(name, justify="right")
    for r in raced.arms[:_LIVE]:
        cells = (f"{r.asked:,}", _points(r.quality), _points(r.behind), _number(r.cost), f"{r.failures:,}")
        table.add_row(*map(Text, (r.arm, r.state, *cells)))
    if (rest := len(raced.arms) - _LIVE) > 0:
        table.caption = f"and {rest} more"
    return table


def line(race: LiveRace, raced: Raced) -> str:
    """How a race stands."""
    leader = next((r for r in raced.arms if r.state == "chosen"), None)
    lead = "" if leader is None else f"; {leader.arm} leads with {_points(leader.quality)} %"
    wait = "" if race.eta is None else f", {race.eta:,.0f} s left at most"
    return (
        f"{len(raced.survivors)} of {len(raced.arms)} arms left, {raced.evaluations:,} runs "
        f"({sum(race.failed.values()):,} failed), {race.calls:,} calls, ${race.spent / NANO:.4f}{wait}{lead}"
    )


def live_facts(race: LiveRace) -> Iterator[tuple[str, str]]:
    """(what, words) of what was really called and paid, and what each role did."""
    yield (
        "Paid",
        f"${race.spent / NANO:.6f} for {race.calls:,} model calls, earlier starts of this race too; above, replies "
        "from the cache count as if they were paid",
    )
    for name, role in (race.facts.roles if race.facts else {}).items():
        if "/" in name:
            yield "Calls", f"{name}: one model in some arms, so not told apart there; {role.calls:,} calls"
            continue
        yield (
            "Calls",
            f"{name}: in {role.called_share:.0%} of the runs, {role.calls:,} calls, {role.output:,} tokens of output "
            f"({role.output_share:.0%}), {role.cost_share:.0%} of the cost",
        )
