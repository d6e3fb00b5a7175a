"""`playcall ledger`: what was spent, and where it went."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from playcall.evals import show as shown
from playcall.strategies import NANO
from playcall.strategies.spending import By, SummaryRow, summary

ledger_app = typer.Typer(no_args_is_help=True, help="The calls that were made, and what they cost.")


@ledger_app.callback()
def _ledger() -> None:
    """The calls that were made, and what they cost."""


@ledger_app.command("summary")
def summarise(
    url: Annotated[
        str, typer.Argument(envvar="PLAYCALL_LEDGER", help="A file, or any SQLAlchemy URL.", show_envvar=True)
    ] = "playcall.db",
    by: Annotated[By, typer.Option(help="arm, strategy, role, or day (UTC).")] = "arm",
    json_: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
) -> None:
    """Spend and where it went; failed and cancelled calls apart."""
    rows = summary(url, by)
    if json_:
        print(json.dumps({"by": by, "rows": [_figures(r) for r in rows], "total": _total(rows)}, indent=2))
    else:
        _show(rows, by)


_MONEY = ("spent", "failed_spent", "cancelled_spent", "saved")


def _figures(row: SummaryRow) -> dict[str, object]:
    nano = {f"{name}_nano": getattr(row, name) for name in (*_MONEY, "total")}
    return {**{k: v for k, v in asdict(row).items() if k not in _MONEY}, **nano, "total_usd": row.total / NANO}


def _total(rows: list[SummaryRow]) -> dict[str, Any]:
    sums = {name: sum(getattr(r, name) for r in rows) for name in ("calls", "failed", "cancelled", "cached")}
    nano = {f"{name}_nano": sum(getattr(r, name) for r in rows) for name in (*_MONEY, "total")}
    certain = {"about": any(r.about for r in rows), "at_least": any(r.at_least for r in rows)}
    return {**sums, **nano, "total_usd": nano["total_nano"] / NANO, **certain}


def _usd(nano: int) -> str:
    return "-" if not nano else f"{nano / NANO:,.4f}" if nano >= NANO // 100 else f"{nano / NANO:.3g}"


def _show(rows: list[SummaryRow], by: str) -> None:
    table = Table()
    longest = max([len(r.name) for r in rows], default=0)
    table.add_column(by, overflow="ellipsis", no_wrap=True, min_width=max(6, min(24, longest)))
    money = ("answers\nUSD", "failed\nUSD", "cancelled\nUSD", "cache saved\nUSD", "share, %")
    for name in ("calls", *money, "tokens\nin", "tokens\nout", "mean s", "p50 s", "p95 s", "p99 s"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for r in rows:
        mark = ">" * r.at_least + "~" * r.about
        usd = [mark + _usd(r.spent), *map(_usd, (r.failed_spent, r.cancelled_spent, r.saved))]
        seconds = ["-" if s is None else f"{s:.3g}" for s in (r.mean_s, r.p50_s, r.p95_s, r.p99_s)]
        figures = [f"{r.calls:,}", *usd, f"{100 * r.share:.1f}", f"{r.input_tokens:,}", f"{r.output_tokens:,}"]
        table.add_row(*map(Text, (r.name or "(none)", *figures, *seconds)))
    shown.out.print(table)
    total = _total(rows)
    spent = {what: total[f"{what}_spent_nano"] for what in ("failed", "cancelled")}
    parts = " and ".join(f"${_usd(nano)} for {what}" for what, nano in spent.items() if nano)
    of = f", of that {parts} calls" if parts else ""
    kept = f"; the cache saved ${_usd(total['saved_nano'])}" if total["saved_nano"] else ""
    sum_ = "at least " * total["at_least"] + "about " * total["about"]
    sum_ += f"${_usd(total['total_nano'])}" if total["total_nano"] else "$0"
    lines = [f"Total: {sum_} for {total['calls']:,} calls{of}{kept}."]
    lines += ["At least (>): some calls have no known price, and count as nothing."] * total["at_least"]
    lines += ["About (~): some prices are estimates, as of cancelled calls."] * total["about"]
    for line in lines:
        shown.out.print(Text(line))
