"""`playcall track`: the model calls that a command makes, and what they cost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.table import Table
from rich.text import Text

from playcall.evals import show as shown
from playcall.evals.run_cli import LedgerUrl, Prices
from playcall.portfolio import write_whole
from playcall.strategies import NANO, Misuse
from playcall.strategies.call import Call, Usage
from playcall.strategies.ledger import Ledger
from playcall.strategies.prices import load_prices
from playcall.strategies.reverse import Reverse
from playcall.strategies.store import iso

NO_CALL = 4
"""Exit status of a command that did well and made no call."""
SETTINGS = {"allow_interspersed_args": False}
"""For the command line: what comes after the command's name is the command's."""

TRACK_URL = "PLAYCALL_TRACK_URL"
VENDORS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("https://api.openai.com/v1", {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": ""}),
    ("https://api.anthropic.com", {"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_BASE": ""}),
    ("https://generativelanguage.googleapis.com", {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_API_BASE": "/v1beta"}),
    ("", {"AZURE_OPENAI_ENDPOINT": ""}),
    ("", {"AZURE_API_BASE": ""}),
    ("", {"LITELLM_PROXY_API_BASE": ""}),
)  # the vendor's own URL, and the variables that clients look in, with what they add to it
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_OF_THE_TERMINAL = ("SIGINT", "SIGQUIT")


def track(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    arm: Annotated[str, typer.Option(help="The arm that its calls belong to.")] = "",
    item: Annotated[str, typer.Option(help="The item that it works on.")] = "",
    model: Annotated[
        list[str] | None, typer.Option(help="role=model or asked=model: ask that model instead; repeatable.")
    ] = None,
    prices: Prices = None,
    ledger: LedgerUrl = None,
    json_: Annotated[bool, typer.Option("--json", help="The figures as JSON, on standard error too.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file for one line of JSON a call.")] = None,
) -> None:
    """Run a command, and tell on standard error what model calls it made. Its exit status is passed on; 4 is that it
    made no call."""
    models, priced = _models(model or []), load_prices(prices) if prices else {}
    if shutil.which(command[0]) is None:
        raise Misuse(f"{command[0]}: there is no such command.")
    if output is not None and not _writable(output.resolve()):
        raise Misuse(f"{output} cannot be written. Name a file, in a folder that is there and may be written to.")
    with Ledger(ledger) if ledger else nullcontext() as entered:
        proxy = Reverse(arm=arm, item=item, models=models, prices=priced, ledger=entered)
        began = time.monotonic()
        status, names, left = anyio.run(partial(_ran, proxy, command))
        wall = time.monotonic() - began
        for text in _remarks(proxy, models, names, left):
            shown.errors.print(Text(text, style="bold red"), soft_wrap=True)
        if json_:
            print(json.dumps({**document(proxy.calls), "wall_s": wall, "exit_status": status}), file=sys.stderr)
        elif proxy.calls:
            if not shown.errors.is_terminal:
                shown.errors.width = 132
            shown.errors.print(_table(proxy.calls))
        if output is not None:
            write_whole(output, "".join(json.dumps(line_of(call)) + "\n" for call in proxy.calls))
    if status or not proxy.calls:
        raise typer.Exit(status or NO_CALL)


def _writable(path: Path) -> bool:
    folder = path.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and (path.is_file() or not path.exists())


def _models(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=")[::2] for text in given]
    for text, (role, name) in zip(given, pairs):
        if not role or not name:
            raise Misuse(f"--model {text!r}: write role=model, such as planner=gpt-4o-mini.")
    return dict(pairs)


async def _ran(proxy: Reverse, command: list[str]) -> tuple[int, list[str], int]:
    """Its exit status, the variables that were set for it, and the connections that it has left open."""
    async with proxy:
        told = environment(proxy, os.environ)
        try:
            child = await asyncio.create_subprocess_exec(*command, env={**os.environ, **told})
        except OSError as error:
            why = error.strerror or error
            raise Misuse(f"{command[0]} cannot be started: {why}. If it is a script, see its first line.") from error
        loop, caught = asyncio.get_running_loop(), []
        for name in _SIGNALS:
            if number := getattr(signal, name, None):
                with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or no main thread
                    loop.add_signal_handler(number, _pass_on, child, number)
                    caught.append(number)
        try:
            status = await child.wait()
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
        await asyncio.sleep(0.01)  # the command's own are seen to be closed
        left = proxy.connections
    return 128 - status if status < 0 else status, sorted(told), left


def _pass_on(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """A signal; those that a terminal sends have come to the child already."""
    if number.name in _OF_THE_TERMINAL and sys.stdin is not None:
        with suppress(OSError, ValueError):
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                return
    with suppress(ProcessLookupError):
        child.send_signal(number)


def environment(proxy: Reverse, given: Mapping[str, str]) -> dict[str, str]:
    """The variables that lead clients to the proxy. Where one of a vendor's was set, its others follow."""
    told = {TRACK_URL: proxy.root}
    for default, names in VENDORS:
        base = next(
            (given[name].rstrip("/").removesuffix(more) for name, more in names.items() if given.get(name)), default
        )
        for name, more in names.items():
            if upstream := given.get(name) or (base and base + more):
                told[name] = proxy.url(upstream)
    direct = given.get("no_proxy") or given.get("NO_PROXY")
    around = f"{direct},127.0.0.1" if direct else "127.0.0.1"  # the way to the proxy is through no other
    return {**told, "NO_PROXY": around, "no_proxy": around}


def _remarks(proxy: Reverse, models: Mapping[str, str], names: Iterable[str], left: int) -> list[str]:
    behind = [
        f"playcall: {left} connection(s) were still open when the command ended. A process that it left behind "
        "gets no answers any more, and its calls are not told."
    ] * bool(left)
    if not proxy.calls:
        others = f" {proxy.others:,} other requests came through." if proxy.others else ""
        told = ", ".join(name for name in names if name.endswith(_LEADING))
        return [
            *behind,
            f"playcall: NO MODEL CALL WAS SEEN.{others} Set were {told}; "
            "a client whose base URL is written in its code goes past them. Give it "
            f'os.environ["{TRACK_URL}"] + "/https/HOST/PATH" for https://HOST/PATH.',
        ]
    unused = sorted(set(models) - {call.role for call in proxy.calls})
    return behind + [f"playcall: no call had the role or model {name!r} of --model." for name in unused]


_LEADING = ("_URL", "_BASE", "_ENDPOINT")


def line_of(call: Call) -> dict[str, Any]:
    """What is told of a call; never prompts, answers or keys."""
    used = call.usage or Usage()
    first = None if call.first_token is None else call.first_token - call.sent
    return {
        "began": iso(call.began),
        "arm": call.arm,
        "item": call.run,
        "role": call.role,
        "model": call.model,
        **_tokens([used]),
        "usd": call.price / NANO,
        "price_nano": call.price,
        "price_source": call.source,
        "estimated": call.estimated,
        "seconds": call.seconds,
        "first_token_s": first,
        "finish": call.finish,
        "cancelled": call.cancelled,
        "error": call.error,
        "detail": call.detail,
    }


def _tokens(used: list[Usage]) -> dict[str, int]:
    names = ("input", "cached", "written", "output", "reasoning")
    return {f"{name}_tokens": sum(getattr(u, name) for u in used) for name in names}


def document(calls: Iterable[Call]) -> dict[str, Any]:
    """The figures by role and model, and of all calls; `unpriced` calls count as nothing in usd."""
    groups: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.role, call.model].append(call)
    rows = [{"role": role, "model": model, **_figures(of)} for (role, model), of in groups.items()]
    return {"rows": rows, "total": _figures([call for of in groups.values() for call in of])}


def _figures(calls: list[Call]) -> dict[str, Any]:
    nano = sum(call.price for call in calls)
    return {
        "calls": len(calls),
        "failed": sum(bool(call.error) for call in calls),
        "cancelled": sum(call.cancelled for call in calls),
        **_tokens([call.usage or Usage() for call in calls]),
        "usd": nano / NANO,
        "price_nano": nano,
        "unpriced": sum(call.source == "unknown" for call in calls),
        "estimated": sum(call.estimated for call in calls),
        "seconds": sum(call.seconds for call in calls),
    }


def _table(calls: Iterable[Call]) -> Table:
    table, told = Table(), document(calls)
    for name in ("role", "model"):
        table.add_column(name, overflow="fold", min_width=8)
    names = ("calls", "failed", "cancel-\nled", "tokens\nin", "of it\ncached", "\nout", "of it\nthought", "USD", "s")
    for name in names:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in told["rows"]:
        table.add_row(Text(row["role"]), Text(row["model"]), *_cells(row))
    if len(told["rows"]) > 1:
        table.add_section()
        table.add_row("all", "", *_cells(told["total"]))
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    counts = ("calls", "failed", "cancelled", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    usd = f"{'at least ' * bool(row['unpriced'])}{'about ' * bool(row['estimated'])}{row['usd']:.6g}"
    if row["unpriced"] and not row["price_nano"]:
        usd = "unknown price"
    return [*(f"{row[name]:,}" for name in counts), usd, f"{row['seconds']:.3g}"]
