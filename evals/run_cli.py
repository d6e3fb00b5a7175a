"""`playcall run`: one task by a policy, live."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from playcall.evals import show as shown
from playcall.evals.table import read_table
from playcall.portfolio.files import read_json
from playcall.portfolio.serve import ARMS, Served, Serving, load
from playcall.strategies import NANO, Misuse, arms_of
from playcall.strategies import load as strategy_of
from playcall.strategies.budget import Budget
from playcall.strategies.config import read_arms
from playcall.strategies.dispatch import Unpriced
from playcall.strategies.errors import only as only_error
from playcall.strategies.ledger import Ledger
from playcall.strategies.live import Attempt, NoAnswer, Result

NO_ANSWER, INTERRUPTED = 4, 130
"""Exit statuses."""
T = TypeVar("T")
LedgerUrl = Annotated[str | None, typer.Option(envvar="PLAYCALL_LEDGER", help="A file or URL to enter every call in.")]
Prices = Annotated[Path | None, typer.Option(help="Your prices: a file of name: {input, output}.")]


def run(
    policy: Annotated[Path, typer.Argument(help="A policy that `playcall fit` wrote, or a strategy file.")],
    task: Annotated[list[str], typer.Argument(help="Its text, @file (.json: messages or a request), or - for stdin.")],
    arms: Annotated[Path | None, typer.Option(help="The arms; else arms.yaml beside the policy.")] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds for all of it.")] = inf,
    budget: Annotated[float | None, typer.Option(min=0, help="USD that it may cost; calls beyond fail.")] = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Refuse before any call if it can cost more USD at worst.")
    ] = None,
    dry: Annotated[bool, typer.Option("--dry", help="Only tell what it can take at worst; call nothing.")] = False,
    ledger: LedgerUrl = None,
    unpriced: Annotated[Unpriced, typer.Option(help="An arm of unknown price: error, free, or refuse its calls.")] = (
        "error"
    ),
    prices: Prices = None,
    canonical: Annotated[
        str | None, typer.Option(help="When answers are equal; else as the policy was fitted.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="The result with all its calls as JSON.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it comes, where it can.")] = False,
) -> None:
    """Run one task by a policy. Status 4 is that no answer came; the causes are on standard error."""
    told = _task(task)
    with Ledger(ledger) if ledger else nullcontext() as entered:
        options = Serving(ledger=entered, unpriced=unpriced, budget=Budget(task=budget), deadline=deadline)
        if canonical is not None:
            options["canonical"] = canonical
        names, path = arms_of(strategy_of(read_json(policy))), arms or policy.with_name(ARMS)
        served = load(policy, read_arms(path, only=names, prices=prices, tables=read_table), **options)
        if (dry or max_cost is not None) and _worst(served, told, budget, max_cost, dry):
            return
        play = partial(_streamed if stream and not json_ else _watched, served, told)
        result, _ = anyio.run(interruptible, play)
    if result is None:
        shown.errors.print("playcall: interrupted; calls in flight were cancelled.")
        raise typer.Exit(INTERRUPTED)
    if json_:
        print(json.dumps(_document(result), indent=2, default=str))
    elif result.answered and not stream:
        print(result.output if isinstance(result.output, str) else json.dumps(result.output, indent=2, default=str))
    shown.errors.print(Text(_line(result)), soft_wrap=True)
    if not result.answered:
        raise typer.Exit(NO_ANSWER)


def _task(words: list[str]) -> object:
    """Its text, or what a file holds."""
    text = " ".join(words)
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        held = path.read_text(encoding="utf-8-sig")
        return json.loads(held) if path.suffix == ".json" else held
    except (OSError, ValueError) as error:
        raise Misuse(
            f"{path} cannot be read: {error}. @file is a text, or with .json messages or a request; a task that itself "
            "begins with @ goes in on standard input, by -."
        ) from error


def _worst(served: Served, task: object, budget: float | None, most: float | None, dry: bool) -> bool:
    """Tell the worst case, or refuse it; whether that is all."""
    worst = served.worst(task)
    usd = worst.cost_usd if budget is None else min(budget, worst.cost_usd)
    if dry:
        print(f"At worst {worst.calls:,} calls, ${usd:.6g} and {worst.seconds:,.4g} s.")
    if most is not None and usd > most:
        raise Misuse(
            f"this task can cost ${usd:.6g} at worst, over --max-cost {most:g}. Give its arms a smaller max_tokens or "
            "fewer tries, or say --budget, which stops it on the way."
        )
    return dry


async def interruptible(work: Callable[[], Awaitable[T]]) -> tuple[T | None, bool]:
    """What it returns, and whether SIGINT or SIGTERM ended it: cancelled, so that all is written down."""
    caught, done = False, None

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal caught
        with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:  # on Windows there are none
                caught = True
                scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            done = await work()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as error:
        raise only_error(error) from None
    return done, caught


async def _watched(served: Served, task: object) -> Result:
    """Its stages on standard error as they go, where that is a terminal."""
    stages = _Stages()
    if not shown.errors.is_terminal:
        return await served.run(task)
    with Live(get_renderable=stages.table, console=shown.errors, refresh_per_second=8):
        return await served.run(task, watch=stages)


async def _streamed(served: Served, task: object) -> Result:
    """The answer on standard output as it comes."""

    def anew() -> None:
        print(flush=True)
        shown.errors.print("It broke off, and begins again:")

    try:
        async with served.stream(task, on_restart=anew) as pieces:
            async for piece in pieces:
                print(piece, end="", flush=True)
        print()
    except NoAnswer as error:
        return error.result
    assert pieces.result is not None
    return pieces.result


class _Stages:
    """What is known of each call."""

    def __init__(self) -> None:
        self.began: dict[int, float] = {}
        self.attempts: list[Attempt] = []

    def __call__(self, attempt: Attempt) -> None:
        if id(attempt) not in self.began:
            self.attempts.append(attempt)
            self.began[id(attempt)] = time.monotonic()

    def table(self) -> Table:
        table = Table()
        for name in ("call", "place", "state"):
            table.add_column(name, overflow="fold")
        for name in ("s", "USD"):
            table.add_column(name, justify="right")
        for a in self.attempts:
            reply = a.reply
            seconds = time.monotonic() - self.began[id(a)] if reply is None else reply.latency / 1e6
            cells = (a.arm, a.node, _state(a) or "...", f"{seconds:.1f}", f"{a.price / NANO:.6f}")
            table.add_row(*map(Text, cells))
        return table


def _state(attempt: Attempt) -> str:
    """How a call ended; empty while it runs, or if it was cut off."""
    reply = attempt.reply
    return "" if reply is None else (reply.error or "failed") if reply.failed else "answered"


def _certain(result: Result) -> str:
    """How far its cost is certain."""
    sources = {call.source for a in result.attempts for call in a.calls}
    return "at least" if "unknown" in sources else "exact" if result.exact else "about"


def _line(result: Result) -> str:
    certain = _certain(result)
    cost = f"{'' if certain == 'exact' else certain + ' '}${result.cost_usd:.6g}"
    made = sum(len(a.calls) for a in result.attempts)
    spent = f"{cost}, {result.seconds:.3g} s, {made} call{'s' * (made != 1)}"
    if result.answered:
        return f"{result.arm}: {spent}; {result.why}."
    return f"playcall: {NoAnswer(result)} It took {spent}; {result.why}."


def _document(result: Result) -> dict[str, Any]:
    calls = [
        {
            "arm": a.arm,
            "place": a.node,
            "draw": a.draw,
            "state": _state(a) or "cancelled",
            "seconds": sum(call.seconds for call in a.calls),
            "cost_usd": a.price / NANO,
            "tries": ["cancelled" if call.cancelled else call.error or "answered" for call in a.calls],
        }
        for a in result.attempts
    ]
    return {
        "output": result.output,
        "arm": result.arm,
        "cost_usd": result.cost_usd,
        "cost_is": _certain(result),
        "seconds": result.seconds,
        "why": result.why,
        "calls": calls,
    }
