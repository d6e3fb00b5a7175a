"""Recordings to make in tests: tasks and arms in files, a server to ask, and a process that records."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from playcall.evals.recorder import Options, Recorder, record
from playcall.evals.tasks import read_tasks
from playcall.strategies.config import read_arms

SERVER = Path(__file__).parents[1] / "serving.py"
CLI = """
from playcall.evals import cli
from playcall.evals.record_cli import record
if not any(c.callback is record for c in cli.app.registered_commands):
    cli.app.command()(record)
cli.main()
"""
CORE = """
import anyio, sys
from playcall.evals.recorder import record
from playcall.evals.tasks import read_tasks
from playcall.strategies.config import read_arms
tasks, arms, output, n, concurrency = sys.argv[1:]
options = dict(scorer="number", output=output, n=int(n), concurrency=int(concurrency), seed=0)
print("begun", flush=True)
done = anyio.run(lambda: record(read_tasks(tasks), read_arms(arms), **options))
sys.exit(0 if done.complete else 1)
"""


@contextmanager
def served_apart(books: Path, delay_ms: float = 0) -> Iterator[str]:
    """The server in a process of its own, which keeps books; its URL."""
    command = [sys.executable, str(SERVER), "--bill", str(books), "--delay", str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def paid(books: Path) -> Counter[str]:
    """How often each request was answered and paid."""
    lines = map(json.loads, books.read_text().splitlines()) if books.exists() else []
    return Counter(json.dumps([b["model"], b["messages"]]) for b in lines if b["finished"] and b["price"])


def write_tasks(path: Path, count: int = 6, **more: Any) -> Path:
    """Questions with references 0 to 4."""
    tasks = [{"id": f"q{i}", "task": f"question {i}", "reference": i % 5, **more} for i in range(count)]
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def write_arms(path: Path, url: str, arms: Mapping[str, Any], **defaults: Any) -> Path:
    """Arms at a server; a text is the model of one."""
    usual = {"base_url": url, "price": {"input": 1, "output": 2}, "clock": "provider", "params": {"max_tokens": 50}}
    entries = {name: {"model": arm} if isinstance(arm, str) else arm for name, arm in arms.items()}
    path.write_text(json.dumps({"defaults": {**usual, "backoff": 0.001, **defaults}, "arms": entries}))
    return path


def recorded(
    folder: Path, *, scorer: str = "number", output: str = "t.parquet", on: str = "asyncio", **options: Any
) -> Recorder:
    """Record tasks.jsonl by arms.json of a folder."""
    given: Options = options  # type: ignore[assignment]
    tasks, arms = read_tasks(folder / "tasks.jsonl"), read_arms(folder / "arms.json")
    return anyio.run(partial(record, tasks, arms, scorer=scorer, output=folder / output, **given), backend=on)


def command(folder: Path, *more: str, output: str = "t.parquet", scorer: str = "number") -> list[str]:
    """A process that records the same by the command line."""
    given = ["record", f"{folder}/tasks.jsonl", "--arms", f"{folder}/arms.json", "-o", f"{folder}/{output}"]
    return [sys.executable, "-c", CLI, *given, "--scorer", scorer, *more]
