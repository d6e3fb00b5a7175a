"""The benchmark's rows as one table: what each learner came to, by table and number of labels, and over all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text
from scipy.stats import t as student

from playcall.evals import show as shown
from playcall.evals.baselines import POINTS
from playcall.evals.benchmark_tables import Bench

Value = str | int | float | None
Row = dict[str, Value]
ALL = "all tables"
PRICE = 0.1
"""Quality that the best single arm's cost is worth, in the utility of the closed gap."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A learner on one table at one number of labels, means over its splits; over all tables, means over these.

    `difference` to the best single arm, in points, and `cost_ratio` to its cost (in calls where none are recorded) are
    by point; `half_width` is that of a 95% t interval over the splits (which share tasks), or over the tables.
    `closed_gap` is (U - U_single) / (U_oracle - U_single) with U = quality - 0.1 cost / single's cost, over all points.
    `area` is that of its plays and the cheapest arm, see below; `brier` that of the probability a play states, if any.
    `coverage` is the share of rows whose expected interval holds the held-out quality, `optimism` expected - held out.
    """

    table: str
    labels: int
    learner: str
    splits: int  # tables, over all tables
    difference: Mapping[str, float]
    half_width: Mapping[str, float | None]
    cost_ratio: Mapping[str, float]
    area: float
    closed_gap: float | None
    brier: float | None
    coverage: float | None
    optimism: float | None  # points
    seconds: float


def area(plays: Iterable[tuple[float, float, float]], limit: float) -> float:
    """Mean quality over the budgets from 0 to `limit`, from (expected quality, cost, quality) of each play.

    At a budget the play of the highest expected quality among those that cost no more (held out) is run, and with less
    than the cheapest none, which has quality 0. What is run is never chosen by held-out quality, so neither more plays
    nor luck can raise it.
    """
    ordered = sorted(plays, key=lambda p: (p[1], -p[0]))
    total, best = 0.0, (-np.inf, 0.0)
    for i, (expected, cost, quality) in enumerate(ordered):
        best = max(best, (expected, quality), key=lambda b: b[0])
        until = ordered[i + 1][1] if i + 1 < len(ordered) else limit
        total += best[1] * max(0.0, min(until, limit) - min(cost, limit))
    return total / limit


def summarise(rows: Sequence[Row], learners: Sequence[str]) -> list[Summary]:
    """Each table, number of labels and learner; then the mean over the tables that all learners have."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((str(row["table"]), int(_number(row["labels"])), str(row["learner"])), []).append(row)
    order = {name: i for i, name in enumerate(learners)}
    keys = sorted(groups, key=lambda k: (k[0], k[1], order.get(k[2], len(order))))
    found = [_of(*key, groups[key]) for key in keys]
    for labels in sorted({key[1] for key in keys}):
        tables = sorted({key[0] for key in keys if key[1] == labels})
        whole = [t for t in tables if all((t, labels, name) in groups for name in learners)]
        if len(whole) > 1:
            found += [_over([s for s in found if (s.labels, s.learner) == (labels, name) and s.table in whole],
                            [r for t in whole for r in groups[t, labels, name]]) for name in learners]  # fmt: skip
    return found


def _of(table: str, labels: int, learner: str, rows: Sequence[Row]) -> Summary:
    points = {p: [r for r in rows if r["point"] == p] for p in POINTS}
    known = [r for r in rows if r["expected_low"] is not None and r["expected_high"] is not None]
    inside = [_number(r["expected_low"]) <= _number(r["quality"]) <= _number(r["expected_high"]) for r in known]
    stated = [r for r in rows if r["expected_quality"] is not None]
    difference = {p: [100 * (_number(r["quality"]) - _number(r["single_quality"])) for r in points[p]] for p in POINTS}
    return Summary(
        table=table,
        labels=labels,
        learner=learner,
        splits=len({r["split"] for r in rows}),
        difference={p: float(np.mean(d)) for p, d in difference.items()},
        half_width={p: _half(d) for p, d in difference.items()},
        cost_ratio={p: float(np.mean([_number(r["cost_ratio"]) for r in points[p]])) for p in POINTS},
        area=float(np.mean([_number(r["area"]) for r in points["best"]])),
        closed_gap=_gap(rows),
        brier=_mean(r["brier"] for r in rows),
        coverage=float(np.mean(inside)) if inside else None,
        optimism=_mean(100 * (_number(r["expected_quality"]) - _number(r["quality"])) for r in stated),
        seconds=float(np.mean([_number(r["seconds"]) for r in points["best"]])),
    )


def _over(each: Sequence[Summary], rows: Sequence[Row]) -> Summary:
    return Summary(
        table=ALL,
        labels=each[0].labels,
        learner=each[0].learner,
        splits=len(each),
        difference={p: float(np.mean([s.difference[p] for s in each])) for p in POINTS},
        half_width={p: _half([s.difference[p] for s in each]) for p in POINTS},
        cost_ratio={p: float(np.mean([s.cost_ratio[p] for s in each])) for p in POINTS},
        area=float(np.mean([s.area for s in each])),
        closed_gap=_gap(rows),
        brier=_mean(s.brier for s in each),
        coverage=_mean(s.coverage for s in each),
        optimism=_mean(s.optimism for s in each),
        seconds=float(np.mean([s.seconds for s in each])),
    )


def _gap(rows: Sequence[Row]) -> float | None:
    """A ratio of sums, so that tables where the oracle has little to win do not count for much."""
    single = [_number(r["single_quality"]) - PRICE for r in rows]
    gained = [_number(r["quality"]) - PRICE * _number(r["cost_ratio"]) - s for r, s in zip(rows, single)]
    most = [_number(r["oracle_quality"]) - PRICE * _number(r["oracle_ratio"]) - s for r, s in zip(rows, single)]
    return float(sum(gained) / sum(most)) if sum(most) > 1e-9 else None


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _mean(values: Iterable[Value]) -> float | None:
    known = [_number(v) for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _half(values: Sequence[float]) -> float | None:
    n = len(values)
    return float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else None


def document(found: Sequence[Summary], notes: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """The summary as plain data."""
    return {"summary": [asdict(s) for s in found], "notes": {name: list(lines) for name, lines in notes.items()}}


def show(found: Sequence[Summary], notes: Mapping[str, Sequence[str]]) -> None:
    """The summary for a person."""
    for name in dict.fromkeys([*(s.table for s in found), *notes]):
        mine = [s for s in found if s.table == name]
        if mine:
            shown.out.print(_table(name, mine))
        shown.notes(tuple(f"{name}: {line}" for line in notes.get(name, ())))
    if found:
        shown.out.print(
            "Points against the best single arm, and times its cost, held out: the cheapest play of equal expected "
            "quality (frugal), the best at half its cost (half) and to 1.5x (best). ± is half a 95% interval over the "
            "splits, which share tasks, or over the tables. area: mean quality over budgets to 1.5x. gap: share of the "
            f"way to the oracle, where the single arm's cost is worth {PRICE:g} of quality. holds: share of expected "
            "intervals that hold the held-out quality. optimism: expected - held out, points. s: seconds to learn."
        )


def _table(name: str, found: Sequence[Summary]) -> Table:
    table = Table(title=Text(name, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("n", "learner"):
        table.add_column(heading, no_wrap=True)
    figures: dict[str, Callable[[Summary], str]] = {}
    for point in POINTS:
        figures[f"{point},\npoints"] = lambda s, p=point: _difference(s.difference[p], s.half_width[p])  # type: ignore[misc]
        figures[f"x cost,\n{point}"] = lambda s, p=point: f"{s.cost_ratio[p]:.2f}"  # type: ignore[misc]
    figures |= {
        "\narea": lambda s: f"{s.area:.3f}",
        "\ngap": lambda s: _said(s.closed_gap, ".2f"),
        "\nBrier": lambda s: _said(s.brier, ".3f"),
        "\nholds": lambda s: _said(s.coverage, ".2f"),
        "opti-\nmism": lambda s: _said(s.optimism, "+.1f"),
        "\ns": lambda s: f"{s.seconds:.1f}",
    }
    for heading in figures:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for i, s in enumerate(found):
        if i and found[i - 1].labels != s.labels:
            table.add_section()
        table.add_row(str(s.labels), s.learner, *(figure(s) for figure in figures.values()))
    return table


def _difference(mean: float, half: float | None) -> str:
    return f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}")


def _said(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def notes_of(bench: Bench) -> list[str]:
    """What was done to a table, or why there are no figures of it."""
    return [f"refused: {bench.refused}"] if bench.refused else list(bench.notes)
