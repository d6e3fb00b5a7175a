"""`playcall run`: one task by a policy, from the command line."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from playcall.evals import show as shown
from playcall.evals.run_cli import run
from playcall.strategies import Agree, Ask, Misuse, Strategy, Template, Vote, dump
from playcall.strategies.ledger import Ledger
from playcall.strategies.spending import summary

from ..serving import Server, serve

app = typer.Typer()
app.command()(run)
INF = float("inf")
PLAY = (Ask("a") & Ask("b") & Ask("c")).until(Agree(2), gap=INF).keep(Vote())


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(answer=lambda body: f"{len(body['messages'])} to {body['messages'][0]['content']}") as s:
        yield s


def made(tmp_path: Path, play: Strategy, server: Server, **faults: str) -> str:
    """A policy with arms a, b and c beside it."""
    (tmp_path / "policy.json").write_text(json.dumps(dump(play)))
    price = {"input": 1, "output": 2}
    params = {"max_tokens": 100}
    arms: dict[str, Any] = {
        n: {"model": n + faults.get(n, ""), "price": price, "tries": 2, "params": params, "timeout": 9.5} for n in "abc"
    }
    text = json.dumps({"defaults": {"base_url": server.url}, "arms": arms})
    (tmp_path / "arms.yaml").write_text(text)
    return str(tmp_path / "policy.json")


def ran(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(app, list(args), **more)


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error, as no terminal."""
    text = io.StringIO()
    monkeypatch.setattr(shown, "errors", Console(file=text, highlight=False))
    return text


def test_a_task_is_answered_on_standard_output_and_its_cost_told_beside(
    server: Server, tmp_path: Path, said: io.StringIO
) -> None:
    done = ran(made(tmp_path, PLAY, server), "how", "many", "moons", "--ledger", str(tmp_path / "calls.db"))
    assert (done.exit_code, done.stdout) == (0, "1 to how many moons\n")
    line = said.getvalue()
    assert server.until(lambda: line.startswith(f"a: ${server.bill() / 1e9:.6g}, "))
    assert "2 calls; 2 answers agree." in line
    with Ledger(tmp_path / "calls.db"):
        [row] = summary(str(tmp_path / "calls.db"), "strategy")
    assert (row.name, row.calls, row.spent) == ("policy", 2, server.bill())


def test_a_task_may_come_from_a_file_or_from_standard_input(server: Server, tmp_path: Path) -> None:
    policy, text = made(tmp_path, Ask("a"), server), tmp_path / "task.txt"
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    (tmp_path / "task.json").write_text(json.dumps({"messages": messages, "seed": 7}))
    text.write_text("from a file")
    assert ran(policy, f"@{tmp_path / 'task.json'}").stdout == "2 to one\n"
    assert server.served[0].body["seed"] == 7
    assert ran(policy, f"@{text}").stdout == "1 to from a file\n"
    assert ran(policy, "-", input="from a pipe").stdout == "1 to from a pipe\n"
    refused = ran(policy, "@nowhere.json").exception
    assert isinstance(refused, Misuse)
    assert "nowhere.json" in str(refused)


def test_no_answer_is_status_4_with_every_cause(server: Server, tmp_path: Path, said: io.StringIO) -> None:  # PEERS 46
    done = ran(made(tmp_path, Ask("a") | Ask("b"), server, a="+401", b="+empty"), "hello")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "a: auth" in said.getvalue()
    assert "b: empty" in said.getvalue()


def test_all_is_told_as_json(server: Server, tmp_path: Path) -> None:
    done = ran(made(tmp_path, Ask("a") | Ask("b"), server, a="+429:9"), "hello", "--json", "--deadline", "9")
    told = json.loads(done.stdout)
    assert told["output"] == "1 to hello"
    assert told["arm"] == "b"
    assert told["cost_is"] == "exact"
    assert server.until(lambda: round(told["cost_usd"] * 1e9) == server.bill())
    assert [(c["arm"], c["tries"]) for c in told["calls"]] == [("a", ["rate_limited"] * 2), ("b", ["answered"])]


@pytest.mark.parametrize("fault", ["", "+cut:1"])
def test_an_answer_is_streamed_and_said_once(
    server: Server, tmp_path: Path, fault: str, said: io.StringIO
) -> None:  # PEERS 25
    done = ran(made(tmp_path, Ask("a"), server, a=fault), "hello", "--stream")
    assert done.exit_code == 0
    assert done.stdout.split("\n")[-2] == "1 to hello"
    assert done.stdout.count("1 to hello") == 1
    assert server.served[-1].body["stream"] is True
    assert ("begins again" in said.getvalue()) is bool(fault)


def test_the_stages_are_shown_live_on_a_terminal(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    monkeypatch.setattr(shown, "errors", Console(file=text, force_terminal=True, width=120))
    assert ran(made(tmp_path, PLAY, server, b="+400"), "hello").stdout == "1 to hello\n"
    for part in ("keep.gather.1.ask", "bad_request", "answered"):
        assert part in text.getvalue()


def test_the_worst_case_is_known_before_any_call_and_can_be_capped(server: Server, tmp_path: Path) -> None:  # PEERS 40
    policy = made(tmp_path, PLAY, server)
    told = ran(policy, "hello", "--dry").stdout
    assert "At worst 6 calls" in told
    assert f"{3 * (2 * 9.5 + 0.5):.4g} s" in told
    usd = float(told.split("$")[1].split(" ")[0])
    assert 6 * 100 * 2e-6 < usd < 6 * (100 * 2e-6 + 400e-6)
    refused = ran(policy, "hello", "--max-cost", f"{usd / 2}").exception
    assert isinstance(refused, Misuse)
    assert "--max-cost" in str(refused)
    assert server.served == []
    assert ran(policy, "hello", "--max-cost", f"{usd * 2}").exit_code == 0
    assert ran(policy, "hello", "--max-cost", "0.001", "--budget", "0.001").exit_code == 0
    assert server.bill() / 1e9 < 2 * usd


def test_what_reads_answers_is_counted_with_answers_as_long_as_they_may_be(
    server: Server, tmp_path: Path
) -> None:  # PEERS 10, 40
    dry = ran(made(tmp_path, (Ask("a") & Ask("b")) >> ("c", Template("Merge: {answers}")), server), "hello", "--dry")
    usd = float(dry.stdout.split("$")[1].split(" ")[0])
    assert usd > 6 * 100 * 2e-6 + 2 * 2 * 100 * 1e-6


def test_a_worst_case_that_nobody_knows_is_refused_by_the_arms_name(server: Server, tmp_path: Path) -> None:  # PEERS 40
    policy = made(tmp_path, PLAY, server)
    arms = json.loads((tmp_path / "arms.yaml").read_text())
    arms["arms"]["b"]["params"] = {}
    (tmp_path / "arms.yaml").write_text(json.dumps(arms))
    refused = ran(policy, "hello", "--dry").exception
    assert isinstance(refused, Misuse)
    assert "'b'" in str(refused)
    assert "max_tokens" in str(refused)


def test_calls_beyond_a_budget_are_not_made(server: Server, tmp_path: Path, said: io.StringIO) -> None:
    done = ran(made(tmp_path, Ask("a"), server), "hello", "--budget", "0.0001")
    assert done.exit_code == 4
    assert "budget" in said.getvalue()
    assert server.served == []


def test_what_is_said_on_the_command_line_goes_before_the_files(
    server: Server, tmp_path: Path, said: io.StringIO
) -> None:
    server.answer = lambda body: {"a": "yes", "b": "The answer is B", "c": "(b)"}[body["model"].partition("+")[0]]
    policy = made(tmp_path, (Ask("a") & Ask("b") & Ask("c")).keep(Vote()), server)
    assert ran(policy, "q").stdout == "yes\n"
    assert ran(policy, "q", "--canonical", "choice").stdout == "The answer is B\n"
    arms = json.loads((tmp_path / "arms.yaml").read_text())
    arms["arms"]["a"] |= {"price": None, "model": "a+delay:60"}
    (tmp_path / "arms.yaml").write_text(json.dumps(arms))
    (tmp_path / "policy.json").write_text(json.dumps(dump(Ask("a"))))
    assert isinstance(ran(policy, "q").exception, Misuse)
    (tmp_path / "p.yaml").write_text("a: {call: 0.5}")
    assert ran(policy, "q", "--prices", str(tmp_path / "p.yaml")).exit_code == 0
    assert said.getvalue().splitlines()[-1].startswith("a: $0.5, ")
    assert ran(policy, "q", "--unpriced", "free").exit_code == 0
    assert said.getvalue().splitlines()[-1].startswith("a: at least $0, ")
    assert ran(policy, "q", "--unpriced", "free", "--deadline", "0.02").exit_code == 4
    assert "the deadline came" in said.getvalue()


def test_a_file_may_begin_with_a_byte_order_mark_and_a_task_with_an_at_sign(server: Server, tmp_path: Path) -> None:
    policy = made(tmp_path, Ask("a"), server)
    (tmp_path / "task.json").write_text('\ufeff[{"role": "user", "content": "one"}]', encoding="utf-8")
    assert ran(policy, f"@{tmp_path / 'task.json'}").stdout == "1 to one\n"
    assert "begins with @ goes in on standard input, by -" in str(ran(policy, "@jo", "hello?").exception)
    assert ran(policy, "-", input="@jo hello?").stdout == "1 to @jo hello?\n"


def started(*args: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "playcall.evals.cli", "run", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_answer_that_no_terminal_can_show_is_printed_without_what_is_broken(server: Server, tmp_path: Path) -> None:
    server.answer = lambda body: "half \ud83d emoji"
    printed, said = started(made(tmp_path, Ask("a"), server), "hi").communicate(timeout=30)
    assert (printed, "Traceback" in said) == ("half ? emoji\n", False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_calls_in_flight_and_the_ledger_has_them(
    server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    policy, ledger = made(tmp_path, Ask("a"), server, a="+delay:60000"), str(tmp_path / "calls.db")
    with started(policy, "hi", "--ledger", ledger) as process:
        assert server.until(lambda: server.served, 30)
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
    assert (process.returncode, "Traceback" in said) == (130, False)
    assert "interrupted" in said
    [row] = summary(ledger)
    assert (row.calls, row.cancelled) == (1, 1)
