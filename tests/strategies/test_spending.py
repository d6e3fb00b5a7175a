"""What a ledger says was spent; and that it says the same on a real PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from playcall.strategies import Misuse, PlaycallError
from playcall.strategies.call import Usage
from playcall.strategies.ledger import Ledger
from playcall.strategies.spending import SummaryRow, summary

from .ledgers import NOON, add, call, draws


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """URL of a real server, of its own, on a socket in a folder of its own."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), *filter(None, [shutil.which("pg_ctl")])]
    if not found or not (bin := Path(found[-1]).resolve().parent / "initdb").exists():
        pytest.skip("no PostgreSQL server (initdb, pg_ctl) is installed")
    pytest.importorskip("psycopg")
    nobody = pwd.getpwnam("nobody")  # it refuses to run as root
    other: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        if other:
            shutil.chown(folder, **other)
        here: dict[str, Any] = {"check": True, "cwd": folder, "stdout": subprocess.DEVNULL, **other}
        data, control = f"{folder}/data", [str(bin.parent / "pg_ctl"), "-D", f"{folder}/data", "-w"]
        subprocess.run([bin, "-D", data, "-U", "playcall", "-A", "trust", "--no-sync", "-E", "UTF8"], **here)
        options = f"-F -k {folder} -c listen_addresses= -c shared_buffers=1MB"
        subprocess.run([*control, "-l", f"{folder}/log", "-o", options, "start"], **here)
        try:
            yield f"postgresql://playcall@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **here)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "calls.db") as opened:
        yield opened


def test_a_summary_tells_answers_failures_and_cancelled_calls_apart(ledger: Ledger) -> None:  # PEERS 44
    add(ledger, *(call(i, price=10, seconds=float(i)) for i in range(1, 101)))
    add(ledger, call(price=7, error="timeout", seconds=99.0), call(price=5, cancelled=True, estimated=True))
    add(
        ledger,
        call(price=0, cached=True, saved=10, source="cache", seconds=0.0),
        call(arm="b", price=0, source="unknown"),
    )
    a, b = summary(ledger)
    assert a == SummaryRow(
        *("arm", 103, 1, 1, 1, 1000, 7, 5, 10, 1030, 515, 50.5, 50.0, 95.0, 99.0), share=1.0, about=True, at_least=False
    )
    assert (a.total, b.name, b.total, b.share, b.about, b.at_least) == (1012, "b", 0, 0.0, False, True)


def test_a_summary_is_by_strategy_role_or_day(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "calls.db"
    add(ledger, call(strategy="s", role="reader"), call(began=NOON + 86400, price=9), call(usage=None))
    ledger.flush_sync()
    assert [(r.name, r.total) for r in summary(file, "day")] == [("2026-01-01", 2000), ("2026-01-02", 9)]
    assert [(r.name, r.calls) for r in summary(file, "role")] == [("answer", 2), ("reader", 1)]
    assert {r.name: r.input_tokens for r in summary(file, "strategy")} == {"": 10, "s": 10}
    with pytest.raises(Misuse, match="write arm, strategy, role, day"):
        summary(file, "moon")  # type: ignore[arg-type]
    with pytest.raises(PlaycallError, match=r"there is no ledger .*none\.db"):
        summary(file.with_name("none.db"))


def test_postgres_holds_calls_as_sqlite_does_and_outlives_a_lost_connection(postgres: str) -> None:
    async def main() -> None:
        add(ledger, *(call(i, price=2**40, usage=None if i % 2 else Usage(1, 2)) for i in range(600)))
        await ledger.flush()
        with sa.create_engine(ledger.store.url).connect() as other:
            other.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            )
        add(ledger, call(600, detail="a\0b"), call(601, cancelled=True, estimated=True))
        await ledger.flush()

    with Ledger(postgres) as ledger:
        anyio.run(main)
        assert draws(ledger) == list(range(602))
        (row,) = summary(ledger, "day")
        assert (row.name, row.calls, row.total, row.p99_s) == ("2026-01-01", 602, 600 * 2**40 + 2000, 0.5)
    assert [r.about for r in summary(postgres)] == [True]
    with sa.create_engine(ledger.store.url).begin() as other:
        other.exec_driver_sql("ALTER TABLE calls DROP COLUMN finish")
    with pytest.raises(PlaycallError, match="lacks finish"):
        Ledger(postgres)


def test_percentiles_are_of_answers_that_no_cache_gave_by_nearest_rank(ledger: Ledger) -> None:
    add(ledger, *(call(seconds=s) for s in (1.0, 2.0, 3.0)), *(call(seconds=0.0, cached=True) for _ in range(9)))
    (row,) = summary(ledger)
    assert (row.mean_s, row.p50_s, row.p95_s) == (2.0, 2.0, 3.0)


def test_a_cancelled_call_that_failed_counts_once(ledger: Ledger) -> None:
    add(ledger, call(price=5, error="cut", cancelled=True))
    (row,) = summary(ledger)
    assert (row.failed, row.cancelled, row.failed_spent, row.cancelled_spent, row.total) == (0, 1, 0, 5, 5)
