"""`playcall ledger summary` shows spend, and where it went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from playcall.evals.ledger_cli import ledger_app
from playcall.strategies import NANO, PlaycallError
from playcall.strategies.call import Call, Usage
from playcall.strategies.ledger import Ledger


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `playcall ledger` prints; its PlaycallErrors are raised."""
    result = CliRunner().invoke(ledger_app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output + capfd.readouterr().out


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two arms: a dear one, and one whose price nobody knows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAYCALL_LEDGER", raising=False)
    with Ledger("playcall.db") as opened:

        def add(arm: str, usd: float, **fields: Any) -> None:
            call = Call(arm, "m", None, None, 0, {}, usage=Usage(1000, 10), price=round(usd * NANO), began=1.8e9)
            for name, value in fields.items():
                setattr(call, name, value)
            opened.add(call, provider="p", prompt_hash="")

        for _ in range(10):
            add("opus", 1.5, source="user", seconds=2.0)
        add("opus", 0.25, error="cut")
        add("opus", 0.125, cancelled=True, estimated=True)
        add("local", 0, source="unknown", seconds=1.0)
    return tmp_path / "playcall.db"


def test_it_tells_answers_failures_and_cancelled_calls_apart(ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = told(capfd, "summary")
    opus = next(line for line in shown.splitlines() if "opus" in line)
    assert [cell.strip() for cell in opus.split("│")[1:-1]] == [
        *("opus", "12", "~15.0000", "0.2500", "0.1250", "-", "100.0", "12,000", "120", "2", "2", "2", "2")
    ]
    total = "Total: at least about $15.3750 for 13 calls, of that $0.2500 for failed and $0.1250 for cancelled calls."
    assert total in shown
    assert "no known price" in shown


def test_figures_are_exact_as_json(ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(told(capfd, "summary", str(ledger), "--by", "day", "--json"))
    assert figures["by"] == "day"
    assert [row["name"] for row in figures["rows"]] == ["2027-01-15"]
    assert figures["total"] == {
        **{
            "calls": 13,
            "failed": 1,
            "cancelled": 1,
            "cached": 0,
            "spent_nano": 15 * NANO,
            "failed_spent_nano": NANO // 4,
        },
        **{"cancelled_spent_nano": NANO // 8, "saved_nano": 0, "total_nano": 15_375_000_000, "total_usd": 15.375},
        **{"about": True, "at_least": True},
    }


def test_the_environment_names_the_ledger(
    ledger: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ledger.with_name("other.db")
    Ledger(other).close()
    monkeypatch.setenv("PLAYCALL_LEDGER", f"sqlite:///{other}")
    assert "Total: $0 for 0 calls." in told(capfd, "summary")


def test_a_ledger_that_is_not_there_is_not_made(ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlaycallError, match=r"there is no ledger .*no\.db; name one, or set PLAYCALL_LEDGER"):
        told(capfd, "summary", "no.db")
    assert not ledger.with_name("no.db").exists()
