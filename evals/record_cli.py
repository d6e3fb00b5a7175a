"""`playcall record`: make the table that `fit` and `compare` read."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import anyio
import typer

from playcall.evals import show as shown
from playcall.evals.recorder import Options, Recorder, Unpriced
from playcall.evals.run_cli import LedgerUrl, Prices, interruptible
from playcall.evals.scorers import NAMES
from playcall.evals.table import read_table
from playcall.evals.tasks import read_tasks
from playcall.strategies import NANO
from playcall.strategies.config import read_arms
from playcall.strategies.ledger import Ledger


def record(
    tasks: Annotated[Path, typer.Argument(help="A line a task: id, task (or messages, ...), reference, any columns.")],
    arms: Annotated[Path, typer.Option(help="The arms to ask: .yaml, .json or .toml.")],
    scorer: Annotated[str, typer.Option(help=f"{NAMES}.")],
    n: Annotated[int, typer.Option("-n", min=1, help="How often each arm is asked each task.")] = 1,
    budget: Annotated[
        float | None, typer.Option(help="USD that all of it may cost, judge and earlier runs too.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The table: .parquet, .csv or .jsonl; its journal is beside it.")
    ] = Path("table.parquet"),
    concurrency: Annotated[int, typer.Option(min=1, help="Calls at a time.")] = 64,
    only: Annotated[list[str] | None, typer.Option(help="Record this arm; repeatable. Else all but a judge.")] = None,
    canonical: Annotated[str, typer.Option(help="Which answers a judge takes for the same: see `compare`.")] = "exact",
    unpriced: Annotated[Unpriced, typer.Option(help="An arm of unknown price: error, free, or left out.")] = "error",
    prices: Prices = None,
    ledger: LedgerUrl = None,
    seed: Annotated[int | None, typer.Option(help="Sent to arms with each call, plus the number of its draw.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever was recorded before.")] = False,
) -> None:
    """Ask every arm every task, and score the answers. Start it again to go on: nothing is paid twice."""
    judge = scorer.partition(":")[2] if scorer.startswith("judge:") else ""
    wanted = [*only, *([judge] if judge else [])] if only else None
    given, read = read_tasks(tasks), read_arms(arms, only=wanted, prices=prices, tables=read_table)
    with Ledger(ledger) if ledger else nullcontext() as entered:
        options = Options(n=n, budget=budget, concurrency=concurrency, canonical=canonical, unpriced=unpriced)
        more = Options(seed=seed, only=only or (), fresh=fresh, ledger=entered)
        recorder = Recorder(given, read, scorer, output, {**options, **more})
        with shown.bar("", recorder.total) as bar:
            recorder.tell = lambda: bar(
                f"{recorder.failing:,} failed, ${recorder.spent / NANO:.4f}", recorder.done, recorder.total
            )
            _, interrupted = anyio.run(interruptible, recorder.run)
    _told(recorder, interrupted)
    if interrupted or not recorder.complete:
        raise typer.Exit(130 if interrupted else 2)


def _told(recorder: Recorder, interrupted: bool) -> None:
    """What is there, what is not, and how to go on."""
    lines = [
        f"{recorder.done:,} of {recorder.total:,} calls are safe in {recorder.journal_path}, {recorder.made:,} of this "
        f"run; ${recorder.spent / NANO:.6f} spent in all.",
        *recorder.remarks(),
    ]
    if recorder.written and not interrupted:
        part = "" if recorder.written == len(recorder.tasks) else f" of {len(recorder.tasks):,}"
        lines.append(f"Written to {recorder.output}: {recorder.written:,}{part} tasks.")
    if interrupted or not recorder.complete:
        lines.append(f"Go on by: playcall {shlex.join(a for a in sys.argv[1:] if a != '--fresh')}")
    for line in lines:
        shown.errors.print(line, markup=False, soft_wrap=True)
