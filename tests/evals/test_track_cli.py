"""`playcall track`: what a command's model calls were, from the command line."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from playcall.evals import show as shown
from playcall.evals.track_cli import NO_CALL, SETTINGS, environment, track
from playcall.strategies import Misuse
from playcall.strategies.reverse import Reverse
from playcall.strategies.spending import summary

from ..serving import Server, serve

app = typer.Typer()
app.command(context_settings=SETTINGS)(track)
KEY = "sk-very-secret-key-0123456789"

CALL = """
    import json, os, sys, urllib.request
    base = sys.argv[1] if len(sys.argv) > 1 else os.environ["OPENAI_BASE_URL"]
    body = {"model": "x", "messages": [{"role": "user", "content": "one two three"}]}
    request = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode())
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    print(json.loads(urllib.request.urlopen(request).read())["choices"][0]["message"]["content"])
"""  # by hand, since a vendor's client takes long to import


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serve(answer=lambda _: "four five") as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield running


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error, as no terminal."""
    text = io.StringIO()
    monkeypatch.setattr(shown, "errors", Console(file=text, highlight=False, width=140))
    return text


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"x": {"input": 1, "output": 2}, "big": {"input": 1, "output": 2}}))
    return str(path)


def ran(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def script(text: str) -> list[str]:
    return ["--", sys.executable, "-c", textwrap.dedent(text)]


def test_the_vendors_clients_are_tracked_without_a_change(
    server: Server, prices: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], said: io.StringIO
) -> None:
    agent = """
        from openai import OpenAI
        client, messages = OpenAI(), [{"role": "user", "content": "one two three"}]
        print(client.chat.completions.create(model="x", messages=messages).choices[0].message.content)
        for chunk in client.chat.completions.create(model="x", messages=messages, stream=True):
            print(chunk.choices[0].delta.content or "")
        print(client.responses.create(model="x", input="one two three").output_text)
    """
    output, ledger = tmp_path / "trace.jsonl", tmp_path / "calls.db"
    options = ["--arm", "a", "--item", "q1", "--prices", prices, "-o", str(output), "--ledger", str(ledger)]
    result = ran(*options, *script(agent))
    assert result.exit_code == 0, result.output
    assert capfd.readouterr().out.split() == ["four", "five", "four", "five", "four", "five"]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert server.until(lambda: [line["price_nano"] for line in lines] == [served.price for served in server.served])
    assert [(line["input_tokens"], line["output_tokens"]) for line in lines] == [(3, 2)] * 3
    assert {(line["arm"], line["item"], line["role"], line["price_source"]) for line in lines} == {
        ("a", "q1", "x", "user")
    }
    assert summary(ledger)[0].total == server.bill() == 3 * (3 * 1_000 + 2 * 2_000)
    (row,) = (line for line in said.getvalue().splitlines() if line.startswith("│"))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:-1] == ["x", "x", "3", "0", "0", "9", "0", "6", "0", "2.1e-05"]
    assert server.served[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in said.getvalue() + output.read_text()


def test_models_are_swapped_from_outside_and_a_role_that_nobody_played_is_told(
    server: Server, prices: str, said: io.StringIO
) -> None:
    result = ran("--model", "x=big", "--model", "judge=small", "--prices", prices, "--json", *script(CALL))
    told = json.loads(result.stderr)
    assert [(row["role"], row["model"], row["calls"]) for row in told["rows"]] == [("x", "big", 1)]
    assert server.until(lambda: told["total"]["price_nano"] == server.bill() > 0)
    assert (server.served[0].model, told["exit_status"]) == ("big", 0)
    assert "'judge'" in said.getvalue()
    assert "'x'" not in said.getvalue()


def test_a_model_of_unknown_price_is_not_told_as_free(server: Server, said: io.StringIO) -> None:
    assert ran(*script(CALL)).exit_code == 0
    assert "unknown price" in said.getvalue()


def test_a_command_that_makes_no_call_is_told_loudly(server: Server, said: io.StringIO, tmp_path: Path) -> None:
    output = tmp_path / "trace.jsonl"
    output.write_text("old")
    result = ran("-o", str(output), "--", "true")
    assert (result.exit_code, output.read_text()) == (NO_CALL, "")
    for name in ("NO MODEL CALL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "PLAYCALL_TRACK_URL"):
        assert name in said.getvalue()


def test_a_client_of_another_host_uses_the_track_url(server: Server, prices: str) -> None:
    by_hand = CALL.replace(
        'os.environ["OPENAI_BASE_URL"]', f'os.environ["PLAYCALL_TRACK_URL"] + "/http/127.0.0.1:{server.port}/v1"'
    )
    assert ran("--prices", prices, *script(by_hand)).exit_code == 0
    assert server.until(server.bill)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_commands_own_failure_is_passed_on(code: str, status: int) -> None:
    assert ran(*script(code)).exit_code == status


def test_arguments_of_the_command_are_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    ran(sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "-o", "x")
    assert capfd.readouterr().out == "['--json', '-o', 'x']\n"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--model", "planner", "--", "true"], "role=model"),
        (["--", "no-such-command-anywhere"], "no such command"),
        (["-o", "/no/such/folder/x", "--", "touch", "started"], "folder"),
        (["-o", ".", "--", "touch", "started"], "Name a file"),
        (["-o", "/dev/null", "--", "touch", "started"], "Name a file"),
        (["--", "./lost"], "lost cannot be started"),
    ],
)
def test_what_cannot_work_is_refused_before_the_command_starts(
    args: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lost").write_text("#!/no/such/interpreter\n")
    Path("lost").chmod(0o700)
    result = ran(*args)
    assert isinstance(result.exception, Misuse)
    assert why in str(result.exception)
    assert not Path("started").exists()


def test_the_figures_are_told_even_if_their_file_can_no_longer_be_written(
    server: Server, tmp_path: Path, said: io.StringIO, prices: str
) -> None:
    output = tmp_path / "trace.jsonl"
    result = ran("--prices", prices, "-o", str(output), *script(CALL + f"\n    os.mkdir({str(output)!r})\n"))
    assert str(output) in str(result.exception)
    assert "7e-06" in said.getvalue()


def test_a_process_that_is_left_behind_is_told(server: Server, said: io.StringIO) -> None:
    agent = """
        import http.client, os, urllib.parse
        url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
        connection = http.client.HTTPConnection(url.netloc)
        connection.request("GET", url.path + "/models")
        connection.getresponse().read()
        if os.fork() == 0:
            connection.sock.recv(1)  # until the proxy is gone
    """
    assert ran(*script(agent)).exit_code == NO_CALL
    assert "1 connection(s)" in said.getvalue()
    said.truncate(0)
    assert ran(*script(CALL)).exit_code == 0
    assert "connection(s)" not in said.getvalue()


def test_a_signal_reaches_the_command_and_what_was_spent_is_still_told(server: Server, tmp_path: Path) -> None:
    agent = f"""
        import os, signal, sys, time, urllib.request
        sys.argv = ["agent"]
        exec({textwrap.dedent(CALL)!r})
        def stop(*_):
            sys.exit(9)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        body["model"] = "x+hang"
        request.data = json.dumps(body).encode()
        urllib.request.urlopen(request)
    """
    output = tmp_path / "trace.jsonl"
    main = (
        "import typer; from playcall.evals.track_cli import SETTINGS, track;"
        "app = typer.Typer(); app.command(context_settings=SETTINGS)(track); app()"
    )
    command = [sys.executable, "-c", main, "-o", str(output), *script(agent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["four five\n", "ready\n"]
        assert server.until(lambda: len(server.served) == 2)
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 9
    calls = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(call["model"], call["cancelled"]) for call in calls] == [("x", False), ("x+hang", True)]


def told(given: dict[str, str]) -> dict[str, str]:
    """Which upstream each variable leads to."""
    proxy = Reverse()
    start = f"{proxy.root}/"
    found = {name: value.removeprefix(start) for name, value in environment(proxy, given).items() if start in value}
    return {name: rest.replace("/", "://", 1) for name, rest in found.items()}


def test_each_vendors_variables_lead_to_what_was_set_or_to_the_vendor() -> None:
    openai, anthropic = "https://api.openai.com/v1", "https://api.anthropic.com"
    google = "https://generativelanguage.googleapis.com"
    usual = {"OPENAI_BASE_URL": openai, "OPENAI_API_BASE": openai, "ANTHROPIC_BASE_URL": anthropic}
    usual |= {"ANTHROPIC_API_BASE": anthropic, "GOOGLE_GEMINI_BASE_URL": google, "GEMINI_API_BASE": f"{google}/v1beta"}
    assert told({}) == usual
    mine = {"OPENAI_API_BASE": "http://vllm:8000/v1", "AZURE_OPENAI_ENDPOINT": "https://x.openai.azure.com"}
    assert told(mine) == usual | mine | {"OPENAI_BASE_URL": "http://vllm:8000/v1"}


def test_the_way_to_the_proxy_goes_through_no_other_proxy() -> None:
    assert environment(Reverse(), {"NO_PROXY": "a.b"})["no_proxy"] == "a.b,127.0.0.1"
