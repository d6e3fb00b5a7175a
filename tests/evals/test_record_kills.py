"""kill -9 at 20 random moments of a recording of 2,000 calls: each is paid once, those in flight aside."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import recording as made

KILLS, FLYING = 20, 8


def test_twenty_kills_cost_no_more_than_the_calls_in_flight_and_change_no_byte(tmp_path: Path) -> None:
    books = tmp_path / "bill.jsonl"
    moments = sorted(random.Random(0).sample(range(1850), KILLS))  # requests answered by then
    with made.served_apart(books, 10) as url:
        made.write_tasks(tmp_path / "tasks.jsonl", 250)
        made.write_arms(tmp_path / "arms.json", url, {"a": "a", "b": "b", "c": "c+refusal", "d": "d"})
        start = [sys.executable, "-c", made.CORE, f"{tmp_path}/tasks.jsonl", f"{tmp_path}/arms.json"]
        again = [*start, f"{tmp_path}/t.parquet", "2", str(FLYING)]
        for moment in moments:
            with subprocess.Popen(again, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                while (books.read_bytes().count(b"\n") if books.exists() else 0) < moment:
                    time.sleep(0.002)
                process.kill()
            assert process.returncode == -signal.SIGKILL  # it was amid its work
        assert subprocess.run(again, stdout=subprocess.PIPE).returncode == 0
        counts = made.paid(books)  # by task and arm: two draws of each
        assert len(counts) == 1000
        assert 2000 <= counts.total() <= 2000 + KILLS * FLYING
        assert min(counts.values()) == 2
        whole = [*start, f"{tmp_path}/whole.parquet", "2", "64"]
        assert subprocess.run(whole, stdout=subprocess.PIPE).returncode == 0
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
