"""What a fit found, as a person reads it in a terminal: about a screen, and every figure is a field of the study."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from playcall.evals import show as shown
from playcall.evals.fitting import Fitted
from playcall.portfolio.nested import Figures
from playcall.portfolio.studies import CurvePoint, Redundant, Study
from playcall.strategies import Ask, Explain

_WIDTH, _FEW, _LONG = 100, 3, 150  # longest line, however wide the terminal; lines of a list; characters of one of them


def show(f: Fitted) -> None:
    """Print the play, what to expect of it, what it rests on, what is proved, and the table's notes."""
    width = min(shown.out.width, _WIDTH)
    shown.out.print(render(f.study), width=width)
    if (g := f.guarantee) is not None:
        wrote = "The play above is written."
        if g.strategy is not None:
            wrote = f"Not the play above but the certified one is written: {Explain()(g.strategy)}"
        shown.out.print(Text(f"\nGuarantee: {g.words} {wrote}"), width=width)
    shown.notes(f.study.policy.notes)


def render(s: Study) -> RenderableType:
    """Everything but the notes."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", width=9)
    grid.add_column(overflow="fold")
    last = ""
    for name, words in facts(s, brief=_LONG):
        grid.add_row(Text(name if name != last else ""), Text(words))
        last = name
    return Group(grid, Text(), _frontier(s), *([Text(), _curve(s.curve)] if s.curve else []))


def facts(s: Study, *, brief: int | None = None) -> Iterator[tuple[str, str]]:
    """(what, words) line by line; several lines may be of one name. With `brief` of each list a few, cut at so many
    characters; else all of it."""
    p, f, b = s.policy, s.policy.figures, s.strongest.figures
    yield "Play", Explain()(p.strategy)
    yield "Quality", f"{_quality(f)} % of {f.tasks:,} tasks, each by a play chosen without it"
    if f.cost_per_task is not None:
        yield "Cost", f"${f.cost_per_task:.3g}{_interval(f, 'cost')} a task"
    if f.latency_mean is not None and f.latency_p95 is not None:
        late = f"95th percentile {f.latency_p95:.3g}{_interval(f, 'latency_p95')} s"
        yield "Latency", f"mean {f.latency_mean:.3g}{_interval(f, 'latency')} s, {late}"
    share = f" at {f.cost_per_task / f.single_cost:.2f}x its cost" if f.cost_per_task and f.single_cost else ""
    chosen = f"{100 * f.single_quality:.1f} % where the arm too is chosen without the task"
    alone = f"{f.single_arm}, the best arm alone ({chosen})"
    yield "Against", f"{alone}: {_difference(f)} points{share}"
    if s.strongest.words != Explain()(Ask(f.single_arm)):
        paid = "" if b.cost_per_task is None else f" at ${b.cost_per_task:.3g}"
        gain = shown.percent(s.gain, s.gain_low, s.gain_high, "+")
        yield "Against", f"{s.strongest.name}, the strongest simple choice ({_quality(b)} %{paid}): {gain} points"
    ceiling = shown.percent(s.ceiling, s.ceiling_low, s.ceiling_high)
    yield "Ceiling", f"{ceiling} %: on so many tasks some arm is right, and no play of these arms gets further"
    for e in s.earned:
        cost = "" if e.cost is None else f" for ${e.cost:.3g} a task"
        yield "Earns", f"{e.arm}: {100 * e.gain:+.1f} points of expected quality{cost}"
    yield from (("Redundant", line) for line in _redundant(s.redundant, brief))
    for name, lines in {"Found": s.findings, "What if": s.changes}.items():
        yield from ((name, line) for line in _brief(lines, brief))
    yield from (("Misses", line) for line in shown.misses(p))


def _redundant(arms: Sequence[Redundant], brief: int | None) -> Iterator[str]:
    """Those that fail where the same arms fail on one line."""
    like = defaultdict[tuple[str, ...], list[str]](list)
    for r in arms:
        like[tuple(sorted(r.alike))].append(r.arm)
    groups = sorted(like.items(), key=lambda pair: -len(pair[1]))
    few = groups if brief is None or len(groups) <= _FEW else groups[: _FEW - 1]
    for alike, names in few:
        one = len(names) == 1
        why = f"where {_some(alike)} fail{'s' * (len(alike) == 1)}"
        why = f"fail{'s' * one} {why}" if alike else f"bring{'s' * one} nothing of {'its' if one else 'their'} own"
        yield f"{len(names)} {why}: {_some(names, len(names) if brief is None else _FEW)}"
    if rest := sum(len(names) for _, names in groups[len(few) :]):
        yield f"and {rest} more: --json has all of it"


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join(names[:most]) + more


def _brief(lines: Sequence[str], most: int | None) -> list[str]:
    """The first few, each without its middle where it is long: how its last sentence puts it is kept."""
    if most is None:
        return [*lines]
    few = lines if len(lines) <= _FEW + 1 else lines[:_FEW]
    more = [] if len(few) == len(lines) else [f"and {len(lines) - _FEW} more: --json has all of it"]
    return [*(_cut(line, most) for line in few), *more]


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    _, whole, end = line.rpartition(". ")
    end = end if whole and len(end) <= most // 2 else ""
    return f"{line[: most - len(end) - 3].rstrip()} … {end}".rstrip()


def _interval(f: Figures, what: str) -> str:
    low, high = getattr(f, f"{what}_low", None), getattr(f, f"{what}_high", None)
    return "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"


def _quality(f: Figures | CurvePoint) -> str:
    return shown.percent(f.quality, f.quality_low, f.quality_high)


def _difference(f: Figures | CurvePoint) -> str:
    return shown.percent(f.difference, f.difference_low, f.difference_high, "+")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(names):
        table.add_column(Text(name), justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    return table


def _frontier(s: Study) -> RenderableType:
    held = any(p.held_out is not None for p in s.frontier)
    table = _table("cost limit", "apparent, %", "nested, %", *["held out, %"] * held, "USD/1,000", "against best arm")
    for p in s.frontier:
        test = ["-" if p.held_out is None else f"{100 * p.held_out:.1f}"] * held
        cost = None if p.figures.cost_per_task is None else 1000 * p.figures.cost_per_task
        cells = [p.name, f"{100 * p.apparent:.1f}", _quality(p.figures), *test, shown.number(cost)]
        table.add_row(*map(Text, [*cells, _difference(p.figures)]))
    say = "Brackets are 95% intervals. Apparent is on the tasks that chose, nested is held out: the policy's differ by "
    return Group(table, Text(f"{say}{100 * s.optimism:+.1f} points (optimism).", style="dim"))


def _curve(points: Sequence[CurvePoint]) -> RenderableType:
    table = _table("labels", "nested, %", "USD/1,000", "against best arm", "most frequent choice")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for c in points:
        cost = None if c.cost_per_task is None else 1000 * c.cost_per_task
        words = _cut(c.words, 60)
        table.add_row(*map(Text, [f"{c.labels:,}", _quality(c), shown.number(cost), _difference(c), words]))
    return table
