"""The ledger holds each call once, whatever happens to the process, the disk or the database."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from playcall.strategies import Misuse, PlaycallError
from playcall.strategies.call import Usage
from playcall.strategies.ledger import Ledger
from playcall.strategies.spending import summary
from playcall.strategies.store import COLUMNS

from .ledgers import add, call, draws

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


@pytest.fixture
def ledger(file: Path) -> Iterator[Ledger]:
    with Ledger(file) as opened:
        yield opened


@both
def test_a_flushed_call_is_on_disk_with_all_its_figures_and_no_secret(backend: str, ledger: Ledger, file: Path) -> None:
    async def main() -> None:
        add(ledger, call(3, detail="why", finish="stop", original=0.1))
        await ledger.flush()

    anyio.run(main, backend=backend)
    with sqlite3.connect(file) as connection:
        connection.row_factory = sqlite3.Row
        (row,) = map(dict, connection.execute("SELECT * FROM calls"))
        assert "SECRET" not in "\n".join(connection.iterdump())
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert list(row) == list(COLUMNS)
    assert {k: row[k] for k in ("began", "waited_s", "first_token_s", "seconds", "original_s")} == {
        "began": "2026-01-01T12:00:00.000000+00:00",
        "waited_s": 0.0,
        "first_token_s": 0.25,
        "seconds": 0.5,
        "original_s": 0.1,
    }
    assert [row[f"{kind}_tokens"] for kind in ("input", "output", "cached", "reasoning")] == [10, 5, 4, 3]
    assert [row[k] for k in ("arm", "provider", "draw", "number", "price_nano", "finish", "detail", "prompt_hash")] == [
        *("arm", "vendor", 3, 1, 1000, "stop", "why", "hash")
    ]


def test_calls_that_threads_add_are_there_once_and_in_order(ledger: Ledger, file: Path) -> None:
    def work(first: int) -> None:
        for i in range(1000):
            add(ledger, call(first + i))

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.flush_sync()
    rows = draws(file)
    assert sorted(rows) == list(range(8000))
    assert all([r for r in rows if r // 1000 == i] == list(range(1000 * i, 1000 * (i + 1))) for i in range(8))


def test_tasks_of_several_loops_flush_at_a_time(ledger: Ledger, file: Path) -> None:
    seen = []

    def loop(backend: str, first: int) -> None:
        async def one(i: int) -> None:
            add(ledger, call(i))
            await ledger.flush()
            seen.append(i in draws(file))

        async def main() -> None:
            async with anyio.create_task_group() as group:
                for i in range(first, first + 20):
                    group.start_soon(one, i)

        anyio.run(main, backend=backend)

    threads = [threading.Thread(target=loop, args=(b, 100 * i)) for i, b in enumerate(["asyncio", "trio", "asyncio"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 60


@both
def test_a_flush_that_is_cancelled_leaves_the_ledger_well(backend: str, ledger: Ledger, file: Path) -> None:
    async def main() -> None:
        add(ledger, call(1))
        with anyio.move_on_after(0):
            await ledger.flush()
        add(ledger, call(2))
        await ledger.flush()

    anyio.run(main, backend=backend)
    assert draws(file) == [1, 2]


def test_calls_that_nobody_flushes_are_written_soon_and_on_closing(file: Path) -> None:
    ledger = Ledger(f"sqlite:///{file}")
    add(ledger, call(1))
    for _ in range(200):
        if draws(file):
            break
        time.sleep(0.01)
    assert draws(file) == [1]
    add(ledger, call(2))
    ledger.close()
    ledger.close()
    assert draws(file) == [1, 2]
    add(ledger, call(3))
    ledger.close()
    assert draws(file) == [1, 2, 3]


FILL = """
import os, sys, time
from playcall.strategies.call import Call
from playcall.strategies.ledger import Ledger
ledger = Ledger(sys.argv[1])
def add(first, many):
    for i in range(first, first + many):
        ledger.add(Call("a", "m", None, None, i, {}), provider="p", prompt_hash="")
"""


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FILL + text, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_a_killed_process_loses_nothing_that_was_flushed(file: Path) -> None:
    child = script(
        "add(0, 500); ledger.flush_sync(); print('flushed', flush=True); add(500, 10**6); time.sleep(60)", file
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "flushed\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    rows = draws(file)
    assert rows[:500] == list(range(500))
    assert rows == list(range(len(rows)))


def test_processes_share_a_file_and_one_that_ends_writes_what_it_has(file: Path) -> None:
    children = [script("add(int(sys.argv[2]), 1000)", file, 1000 * i) for i in range(3)]
    for child in children:
        child.communicate()
    assert sorted(draws(file)) == list(range(3000))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_its_own_calls_by_its_own_connection(file: Path) -> None:
    forks = "add(0, 9); pid = os.fork(); add(100 if pid else 200, 9); pid and os.waitpid(pid, 0); ledger.close()"
    assert script(f"{forks}; pid or os._exit(0)", file).communicate()[0] == ""
    assert sorted(draws(file)) == [*range(9), *range(100, 109), *range(200, 209)]


def pragma(ledger: Ledger, text: str) -> None:
    """On the connection that the writer takes next."""
    with ledger.store.engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA {text}")


@both
def test_a_full_disk_loses_nothing_and_says_what_to_do(backend: str, ledger: Ledger, file: Path) -> None:
    pragma(ledger, "max_page_count = 20")

    async def main() -> None:
        add(ledger, *(call(i) for i in range(2000)))
        with pytest.raises(PlaycallError, match=r"calls\.db: database or disk is full\. [\d,]+ calls are kept") as full:
            await ledger.flush()
        assert "make room" in str(full.value)
        add(ledger, call(2000))
        with pytest.raises(PlaycallError, match=r"calls are kept"):
            await ledger.flush()
        pragma(ledger, "max_page_count = 1000000")
        await ledger.flush()

    anyio.run(main, backend=backend)
    assert draws(file) == list(range(2001))


def test_a_full_disk_that_gets_room_is_written_without_being_asked(ledger: Ledger, file: Path) -> None:
    pragma(ledger, "max_page_count = 8")
    add(ledger, *(call(i) for i in range(500)))
    with pytest.raises(PlaycallError, match="kept in memory"):
        ledger.flush_sync()
    pragma(ledger, "max_page_count = 1000000")
    for _ in range(300):
        if len(draws(file)) == 500:
            break
        time.sleep(0.01)
    assert draws(file) == list(range(500))


def test_a_file_that_another_holds_is_waited_for(ledger: Ledger, file: Path) -> None:
    pragma(ledger, "busy_timeout = 20")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    add(ledger, call(1))
    with pytest.raises(PlaycallError, match="database is locked"):
        ledger.flush_sync()
    other.execute("COMMIT")
    other.close()
    ledger.flush_sync()
    assert draws(file) == [1]


def test_a_commit_that_held_but_was_said_to_fail_is_not_made_twice(
    ledger: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ledger.store.write

    def breaks(rows: Any) -> None:
        write(rows)
        raise sa.exc.OperationalError("INSERT", None, Exception("connection lost"), connection_invalidated=lost)

    monkeypatch.setattr(ledger.store, "write", breaks)
    for lost in (True, False):
        add(ledger, call(1), call(2))
        try:
            ledger.flush_sync()
        except PlaycallError:
            assert not lost
            ledger.flush_sync()
    assert draws(file) == [1, 2, 1, 2]


def test_figures_that_no_database_takes_do_not_block_the_rest(ledger: Ledger, file: Path) -> None:
    odd = call(1, detail="a\ud800b\0c", usage=Usage(10**30, -(10**30)), began=float("nan"), seconds=float("nan"))
    add(ledger, call(0), odd, call(2, finish=["strange"]), call(3))
    ledger.flush_sync()
    assert draws(file) == [0, 1, 2, 3]
    with sqlite3.connect(file) as connection:
        told = connection.execute(
            "SELECT detail, input_tokens, output_tokens, began FROM calls WHERE draw = 1"
        ).fetchone()
    assert told == ("a?bc", 2**63 - 1, -(2**63), "")


def test_a_ledger_of_another_version_is_refused(file: Path) -> None:
    Ledger(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute("ALTER TABLE calls DROP COLUMN saved_nano")
    with pytest.raises(
        PlaycallError, match=r"another version of playcall .*lacks saved_nano\)\. Keep it, and name a new"
    ):
        Ledger(file)
    with sqlite3.connect(file) as connection:
        connection.execute("ALTER TABLE calls ADD COLUMN saved_nano BIGINT")
        connection.execute("UPDATE calls_meta SET value = '99'")
    with pytest.raises(PlaycallError, match="its version is 99, ours 1"):
        summary(file)


def test_what_cannot_be_opened_is_named_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to be taken for one" * 20)
    for place, said in [
        (tmp_path / "no" / "x.db", r"x\.db cannot be opened: unable to open database file"),
        (tmp_path / "text.db", r"text\.db cannot be opened: file is not a database"),
        ("postgresql://me:SECRET@127.0.0.1:1/x", "cannot be opened: .*refused"),
        ("nonsense://me:SECRET@host/x", "install its driver"),
        ("a://SECRET:b:c:d", "URL cannot be read"),
    ]:
        with pytest.raises(PlaycallError, match=said) as refused:
            Ledger(place)
        assert "SECRET" not in str(refused.value)


def test_a_ledger_may_be_in_memory() -> None:
    with Ledger("sqlite://") as ledger:
        add(ledger, *(call(i) for i in range(600)))
        assert [r.calls for r in summary(ledger)] == [600]


def test_the_ledger_costs_no_import_before_it_is_used() -> None:
    code = "import sys, playcall.strategies.spending; print('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_it_costs_to_add_and_to_flush_is_printed(ledger: Ledger) -> None:
    one, times = call(), []

    async def main() -> None:
        for _ in range(50):
            add(ledger, one)
            began = time.perf_counter()
            await ledger.flush()
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    for _ in range(5000):
        ledger.add(one, provider="vendor", prompt_hash="hash")
    print(f"\nadd: {(time.perf_counter() - began) / 5000 * 1e6:.2f} us")
    ledger.flush_sync()
    anyio.run(main)
    print(f"flush: {sorted(times)[25] * 1e3:.2f} ms")


@pytest.mark.parametrize("loss", ["deleted", "replaced", "dropped"])
def test_a_file_that_is_lost_while_calls_are_made_is_made_anew(ledger: Ledger, file: Path, loss: str) -> None:
    add(ledger, call(1))
    ledger.flush_sync()
    if loss == "dropped":
        with sqlite3.connect(file) as connection:
            connection.execute("DROP TABLE calls")
    else:
        for path in file.parent.glob("calls.db*"):
            path.unlink()
    if loss == "replaced":
        Ledger(file).close()
    add(ledger, call(2))
    ledger.flush_sync()
    add(ledger, call(3))
    ledger.flush_sync()
    assert draws(file) == [2, 3]


def test_calls_wait_in_memory_for_a_folder_to_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    with Ledger(folder / "calls.db") as ledger:
        folder.rename(tmp_path / "away")
        add(ledger, call(1))
        with pytest.raises(PlaycallError, match=r"cannot be opened: .*\. 1 calls are kept in memory"):
            ledger.flush_sync()
        (tmp_path / "away").rename(folder)
        ledger.flush_sync()
    assert draws(folder / "calls.db") == [1]


@pytest.mark.parametrize("place", [None, "", " ", 3])
def test_a_ledger_without_a_name_is_refused(place: Any) -> None:
    with pytest.raises(Misuse, match="name a file"):
        Ledger(place)
