"""Figures as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from playcall.evals.comparison import Comparison, Row
from playcall.portfolio import Policy, Target
from playcall.strategies import Explain

out, errors = Console(highlight=False), Console(stderr=True, highlight=False)
if not out.is_terminal:
    out = Console(highlight=False, width=132)


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error, gone when done; takes what is done now, how much of it and of how much."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)


def percent(mean: float, low: float, high: float, sign: str = "") -> str:
    """A mean and its interval in points: 87.8 [85.3, 89.8]."""
    return f"{100 * mean:{sign}.1f} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def number(x: float | None) -> str:
    """Three digits, or a dash for what was not recorded."""
    return "-" if x is None else f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def comparison(c: Comparison, *, every: bool = False) -> None:
    """The table of a comparison; of the arms those on the frontier and the best three, unless every one is wanted."""
    best = {r.strategy for r in [r for r in c.rows if r.kind == "arm"][:3]} | {c.single_arm}
    rows = [r for r in c.rows if every or r.kind != "arm" or r.frontier or r.strategy in best]
    table = Table(title=Text(f"{c.name}: {c.tasks:,} tasks, held out, 95% intervals"), title_justify="left")
    table.add_column("strategy", overflow="fold")
    for name in ("quality, %", "USD per\n1,000", "mean s", "p95 s", "calls", "points against the\nbest arm, chosen"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column("frontier", justify="center")
    for before, r in zip([None, *rows], rows, strict=False):
        if before is not None and before.kind != r.kind:
            table.add_section()
        table.add_row(*_cells(r))
    out.print(table)
    out.print(
        Text(f"The best arm is chosen on training folds, as the families are; on all tasks it is {c.single_arm}.")
    )
    if hidden := len(c.rows) - len(rows):
        out.print(f"and {hidden} more arm{'s' * (hidden > 1)}: --all shows them.")
    notes(c.notes)


def _cells(r: Row) -> list[Text]:
    difference = percent(r.difference, r.difference_low, r.difference_high, "+")
    quality = percent(r.quality, r.quality_low, r.quality_high)
    figures = (r.cost_per_1000, r.latency_mean, r.latency_p95, r.calls)
    style = "bold" if r.frontier and r.kind != "bound" else ""
    cells = [r.strategy, quality, *map(number, figures), difference, "●" if r.frontier else ""]
    return [Text(cell, style=style) for cell in cells]


def notes(lines: tuple[str, ...]) -> None:
    """What was done to the data."""
    for line in lines:
        out.print(Text(f"note: {line}", style="bold red" if line.isupper() or "THE SCORES" in line else "yellow"))


def policy(p: Policy) -> None:
    """A policy's play and figures in words."""
    f = p.figures
    cost, single = f.cost_per_task, f.single_cost
    share = f" at {cost / single:.2f}x its cost" if cost is not None and single else ""
    lines = [
        f"Play: {Explain()(p.strategy)}",
        f"Quality on held-out tasks: {percent(f.quality, f.quality_low, f.quality_high)} % of {f.tasks:,} tasks "
        f"(on the tasks it was chosen by: {100 * f.apparent_quality:.1f}).",
        f"Against the best arm, chosen without the task too ({f.single_arm}; {100 * f.single_quality:.1f} %): "
        f"{percent(f.difference, f.difference_low, f.difference_high, '+')} points{share}.",
    ]
    if cost is not None and single is not None:
        lines.append(f"Cost: ${cost:.6f} a task; {f.single_arm} costs ${single:.6f}.")
    if f.latency_mean is not None and f.latency_p95 is not None:
        lines.append(f"Latency: mean {f.latency_mean:.2f} s, 95th percentile {f.latency_p95:.2f} s.")
    lines += misses(p)
    for line in lines:
        out.print(Text(line))
    notes(p.notes)


def misses(p: Policy) -> list[str]:
    """Which limits of the target the held-out figures do not keep, in words."""
    f, lines = p.figures, list[str]()
    given = p.target == Target()  # at no more than the best single arm's cost, which nobody asked for in so many words
    target = p.target if given else p.target.against(f.single_quality, f.single_cost or 0.0)
    if target.min_quality is not None and f.quality < target.min_quality:
        lines.append(f"The held-out quality is under the target of {100 * target.min_quality:.1f} %.")
    for what, have, most, unit in (
        ("cost", f.cost_per_task, target.max_cost, "$"),
        ("mean latency", f.latency_mean, target.max_latency, ""),
        ("95th percentile of the latency", f.latency_p95, target.max_latency_p95, ""),
    ):
        if have is not None and most is not None and have > most * 1.005:
            lines.append(f"The held-out {what} is over the limit of {unit}{most:.3g}{'' if unit else ' s'} a task.")
    return lines
