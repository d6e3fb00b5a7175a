"""`playcall race` in processes that are killed: what is paid is paid once, those calls in flight aside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..serving import Server, serve
from .races import FORKS, answer, paid, settled

KILLS, FLYING = 8, 4
AGENT = """
import openai

def build(models):
    client = openai.OpenAI(base_url="URL", api_key="SECRET", http_client=openai.DefaultHttpxClient(verify=False))

    def ask(who, prompt):
        body = {"model": who, "max_tokens": 20, "messages": [{"role": "user", "content": prompt}]}
        return client.chat.completions.create(**body).choices[0].message.content

    return lambda task: ask("solver", f"solve {task} by {ask('planner', f'plan {task}')}")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(answer=answer, delay=0.002) as server:
        yield server


@pytest.fixture(scope="module")
def process(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts races."""
    agent = tmp_path_factory.mktemp("agent") / "agent.py"
    agent.write_text(AGENT.replace("URL", server.url))
    command = [sys.executable, "-c", FORKS, f"{agent}:build", "30"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def started(process: Any, output: Path) -> int:
    """The process of a race."""
    process.stdin.write(f"{output} {FLYING}\n")
    process.stdin.flush()
    return read(process)


def read(process: Any) -> int:
    return int(process.stdout.readline())


def test_random_kills_cost_no_more_than_the_calls_in_flight_and_change_no_figure(
    tmp_path: Path, server: Server, process: Any
) -> None:
    server.served.clear()
    started(process, tmp_path / "whole")
    assert read(process) == 0
    stopped, bill, *whole = json.loads((tmp_path / "whole").read_text())
    assert (stopped, bill) == ("done", settled(server).bill())
    requests = len(server.served)
    server.served.clear()
    for number, moment in enumerate(sorted(random.Random(0).sample(range(requests - FLYING), KILLS))):
        pid = started(process, tmp_path / "race")
        assert server.until(lambda moment=moment + number: len(server.served) >= moment, 10.0)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        assert read(process) == signal.SIGKILL  # it was amid its work
    started(process, tmp_path / "race")
    assert read(process) == 0
    stopped, spent, *figures = json.loads((tmp_path / "race").read_text())
    assert (stopped, figures) == ("done", whole)
    counts = paid(server)
    assert len(counts) == requests
    assert requests <= len(server.served) <= requests + KILLS * FLYING
    assert bill - KILLS * FLYING * max(s.price for s in server.served) <= spent <= settled(server).bill()


def test_ctrl_c_ends_a_race_cleanly(tmp_path: Path, server: Server, process: Any) -> None:
    server.served.clear()
    pid = started(process, tmp_path / "race")
    assert server.until(lambda: len(server.served) > 30, 10.0)
    os.kill(pid, signal.SIGINT)
    assert read(process) == 0
    stopped, spent, arms, _ = json.loads((tmp_path / "race").read_text())
    assert stopped == "interrupted"
    assert sum(arm[2] for arm in arms) > 0
    assert spent == settled(server).bill() > 0
    assert all(s.finished for s in settled(server).served)
