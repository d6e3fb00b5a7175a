"""`playcall record`: no call is paid twice, and the table is the same however often it was interrupted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from playcall.evals import journal as journalling
from playcall.evals import read_table
from playcall.evals.cli import app
from playcall.evals.journal import Journal, settings_of
from playcall.evals.recorder import record
from playcall.evals.scorers import ScoreError
from playcall.evals.tasks import Task, read_tasks
from playcall.evals.written import write_table
from playcall.strategies import NANO, Draws, PlaycallError, Recording, on_virtual_clock
from playcall.strategies.agent import Agent
from playcall.strategies.arm import Arm
from playcall.strategies.call import Answer, Usage
from playcall.strategies.config import read_arms
from playcall.strategies.ledger import Ledger
from playcall.strategies.prices import Price, most_tokens
from playcall.strategies.scripted import Played
from playcall.strategies.spending import summary

from ..serving import serve
from . import recording as made


def asked(server: Any) -> int:
    return len(server.served)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_table_has_a_row_for_each_call_and_fit_and_compare_read_it(tmp_path: Path, backend: str) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 30, dataset="d", weight=1.5)
        made.write_arms(tmp_path / "arms.json", server.url, {"mini": "mini", "big": "big"})
        done = made.recorded(tmp_path, n=2, seed=0, on=backend)
        assert (done.complete, done.done, done.spent) == (True, 120, server.bill())
    rows = pd.read_parquet(tmp_path / "t.parquet")
    assert list(rows[:4]["arm"]) == ["mini", "mini", "big", "big"]
    assert list(rows["item"][::4]) == [f"q{i}" for i in range(30)]
    assert set(rows["dataset"]) == {"d"}
    assert set(rows["weight"]) == {1.5}
    assert set(rows["latency_s"]) == {0.007}
    assert rows["cost_nano"].sum() == done.spent
    assert (rows["score"] == (rows["answer"].str[-1] == rows["reference"])).all()
    for command in (["compare"], ["fit", "-o", str(tmp_path / "p.json")]):
        run = CliRunner().invoke(app, [command[0], str(tmp_path / "t.parquet"), "--canonical", "number", *command[1:]])
        assert run.exit_code == 0, run.output


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".jsonl"])
def test_costs_read_back_to_the_nano_dollar_from_every_kind_of_table(tmp_path: Path, kind: str) -> None:
    with serve(rate=(123_457_000, 987_654_321_000), answer=lambda body: ' "a,\n\r" ☃ \ud800') as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(
            tmp_path / "arms.json", server.url, {"a": "a", "b": "b"}, price={"input": 0.123457, "output": 987.654321}
        )
        done = made.recorded(tmp_path, output=f"t{kind}", scorer="exact")
    read = read_table(tmp_path / f"t{kind}")
    assert sum(int(d.price.sum()) for d in read.arms.values()) == done.spent > 0
    assert read.texts == (' "a,\n\r" ☃ ?',)


BAD: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "id twice": ('{"id": 1, "task": "x"}\n{"id": "1", "task": "y"}', {}, [], "line 2: the id '1' is in line 1 too"),
    "bad line": ('{"id": 1, "task": "x"}\n{"id": 2, "task": ', {}, [], "line 2: "),
    "no id": ('{"task": "x"}', {}, [], "line 1: it has no id"),
    "no task": ('{"id": 1}', {}, [], "line 1: it has no task"),
    "empty file": ("\n", {}, [], "holds no tasks"),
    "no scorer": ("", {}, ["--scorer", "bleu"], "no scorer 'bleu'"),
    "no function": ("", {}, ["--scorer", "python:os:nope"], "cannot be imported"),
    "no judge": ("", {}, ["--scorer", "judge:nope"], "no arm 'nope'"),
    "no reference": ('{"id": 1, "task": "x"}', {}, [], "task '1' has no reference"),
    "odd reference": ('{"id": 1, "task": "x", "reference": "x"}', {}, [], "the reference 'x' is no number"),
    "no key": ("", {"api_key_env": "PLAYCALL_NO_SUCH_KEY"}, [], "arm 'b': its key is not there: set the environment"),
    "no price": ("", {"price": None}, [], "nobody knows what 'b'"),
    "no bound": ("", {"params": {"max_tokens": None}}, ["--budget", "1"], "max_tokens"),
    "no kind": ("", {}, ["-o", "t.xlsx"], "a table is .parquet, .csv, .jsonl"),
    "no folder": ("", {}, ["-o", "nowhere/t.csv"], "there is no folder nowhere"),
    "our column": ('{"id": 1, "task": "x", "reference": 1, "score": 3}', {}, [], "a column 'score' of its own"),
    "no arm": ("", {}, ["--only", "c"], "there is no arm 'c'"),
    "odd id": ('{"id": "q\\ud83d", "task": "x", "reference": 1}', {}, [], "line 1: 'q\\ud83d' holds half a surrogate"),
    "odd column": ('{"id": 1, "task": "x", "reference": 1, "\\ud83d": 2}', {}, [], "holds half a surrogate pair"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_recorded_is_refused_before_the_first_call(tmp_path: Path, case: str) -> None:
    tasks, arm, more, says = BAD[case]
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        if tasks:
            (tmp_path / "tasks.jsonl").write_text(tasks)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": {"model": "b", **arm}})
        run = in_process(tmp_path, *more)
        assert says in str(run.exception), run.output
        assert asked(server) == 0


def in_process(folder: Path, *more: str, scorer: str = "number") -> Any:
    from typer import Typer

    from playcall.evals.record_cli import record as command

    alone = Typer()
    alone.command()(command)
    return CliRunner().invoke(alone, [*made.command(folder, scorer=scorer)[4:], *more])


def played() -> tuple[list[Task], dict[str, Arm]]:
    """40 tasks and two arms of recorded calls, a tenth of them failed."""
    rng, shape = np.random.default_rng(0), (40, 3)

    def draws() -> Draws:
        return Draws(
            answer=rng.integers(0, 4, shape),
            score=rng.random(shape),
            failed=rng.random(shape) < 0.1,
            price=rng.integers(1, 10**7, shape),
            latency=rng.integers(1, 10**7, shape),
            quality=np.zeros(shape),
        )

    items = tuple(f"q{i}" for i in range(40))
    recording = Recording(items, {"a": draws(), "b": draws()}, ("0", "1", "2", "3"))
    tasks = [Task(item, item, str(i % 4)) for i, item in enumerate(items)]
    return tasks, {arm: Arm(Played(recording, arm), arm, price="reported") for arm in ("a", "b")}


def test_a_recording_that_is_cancelled_at_random_moments_comes_to_the_same_table(tmp_path: Path) -> None:
    tasks, arms = played()

    def once(output: str, most: float = float("inf")) -> bool:
        async def main() -> bool:
            with anyio.move_on_after(most):
                done = await record(tasks, arms, scorer="exact", output=tmp_path / output, n=3, concurrency=7)
                return done.complete
            return False

        return on_virtual_clock(main)

    assert once("whole.parquet")
    random_ = random.Random(0)
    starts = 1
    while not once("parts.parquet", random_.uniform(0, 40)):
        starts += 1
    assert starts > 4
    assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    read = read_table(tmp_path / "parts.parquet")
    for arm, endpoint in arms.items():
        assert isinstance(endpoint.endpoint, Played)
        d = endpoint.endpoint.recording[arm]
        assert (read[arm].latency == d.latency).all()
        assert (read[arm].failed == d.failed).all()
        assert (read[arm].price == d.price).all()
        assert np.array_equal(read[arm].score[~d.failed], d.score[~d.failed])


def test_a_killed_recording_goes_on_and_pays_no_finished_call_twice(tmp_path: Path) -> None:
    books = tmp_path / "bill.jsonl"
    with made.served_apart(books, 15) as url:
        made.write_tasks(tmp_path / "tasks.jsonl", 40)
        made.write_arms(tmp_path / "arms.json", url, {"a": "a", "b": "b", "no": "no+refusal"})
        start = [sys.executable, "-c", made.CORE, f"{tmp_path}/tasks.jsonl", f"{tmp_path}/arms.json"]
        again = [*start, f"{tmp_path}/t.parquet", "1", "4"]
        for paid in (0, 20, 45):
            with subprocess.Popen(again, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                while made.paid(books).total() < paid:
                    time.sleep(0.002)
                process.kill()
            with (tmp_path / "t.parquet.journal.jsonl").open("a") as journal:
                journal.write('{"call": ["q1", "a"')  # as if the disk had taken half a line
        assert subprocess.run(again, stdout=subprocess.PIPE).returncode == 0
        counts = made.paid(books)
        assert len(counts) == 120
        assert counts.total() <= 120 + 3 * 4
        assert set(counts.values()) <= {1, 2}
        finished = counts.total()
        assert subprocess.run(again, stdout=subprocess.PIPE).returncode == 0
        assert made.paid(books).total() == finished
        assert subprocess.run([*start, f"{tmp_path}/whole.parquet", "1", "8"], stdout=subprocess.PIPE).returncode == 0
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_ctrl_c_closes_the_calls_in_flight_and_says_what_is_safe_and_how_to_go_on(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 20)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "slow": "slow+delay:60000"})
        start = made.command(tmp_path, "--concurrency", "4", "--only", "a", "--only", "slow")
        with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
            assert server.until(lambda: sum(s.model == "slow" for s in server.served) == 4, 20)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=10)
        assert process.returncode == 130
        assert server.until(lambda: len(server.gone()) == 4 and server.open == 0)
    assert "4 of 40 calls are safe" in said
    assert "Go on by: playcall record" in said
    assert "Traceback" not in said
    assert not (tmp_path / "t.parquet").exists()
    with serve() as server:  # goes on where it was
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        with pytest.raises(PlaycallError, match="endpoint was"):
            made.recorded(tmp_path)


def test_a_budget_stops_it_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 10)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b"})
        request = {"messages": [{"role": "user", "content": "question 0"}], "max_tokens": 50, "model": "a"}
        worst = (most_tokens(request) or 0) + 2 * 50  # micro-dollars
        limit = (worst + 8 * (2 + 2 * 4)) / 1e6  # room for 8 calls and a worst case
        done = made.recorded(tmp_path, budget=limit, concurrency=3)
        assert "budget" in done.stopped
        assert "raise --budget" in done.stopped
        assert not done.complete
        assert 0 < done.done < 20
        assert done.spent == server.bill() <= limit * NANO
        assert done.written == len(read_table(tmp_path / "t.parquet")) < 10
        before = done.done
        assert made.recorded(tmp_path, budget=limit).made < 8  # what was spent counts
        done = made.recorded(tmp_path, budget=1.0)
        assert done.complete
        assert done.made < 20 - before + 8
        assert asked(server) == 20
        assert done.spent == server.bill()


def test_tasks_arms_and_draws_can_be_added_and_others_are_refused(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        assert made.recorded(tmp_path).made == 3
        made.write_tasks(tmp_path / "tasks.jsonl", 4)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b"}, timeout=5)
        assert made.recorded(tmp_path, n=2).made == 16 - 3
        assert made.recorded(tmp_path, n=2, scorer="exact").made == 0
        made.write_arms(tmp_path / "arms.json", server.url, {"a": {"model": "a", "params": {"temperature": 1}}})
        with pytest.raises(PlaycallError, match=r"arm 'a' was recorded otherwise: params was .*temperature.*--fresh"):
            made.recorded(tmp_path)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        (tmp_path / "tasks.jsonl").write_text('{"id": "q1", "task": "another question", "reference": 1}')
        with pytest.raises(PlaycallError, match="task 'q1' was recorded with another text"):
            made.recorded(tmp_path)
        (tmp_path / "tasks.jsonl").write_text('{"id": "z", "task": "z", "reference": 1}')
        with pytest.raises(PlaycallError, match="is of other tasks, such as 'q0'"):
            made.recorded(tmp_path)
        assert asked(server) == 16
        assert made.recorded(tmp_path, fresh=True).made == 1
        assert len((tmp_path / "t.parquet.journal.jsonl.old").read_text().splitlines()) > 16


def test_a_table_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("mine")
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        with pytest.raises(PlaycallError, match="was not recorded"):
            made.recorded(tmp_path, output="t.csv")
        assert asked(server) == 0


def test_two_recordings_into_one_table_are_refused(tmp_path: Path) -> None:
    made.write_tasks(tmp_path / "tasks.jsonl", 3)
    made.write_arms(tmp_path / "arms.json", "http://127.0.0.1:9/v1", {"a": "a"})
    with Journal(tmp_path / "t.parquet.journal.jsonl"), pytest.raises(PlaycallError, match="another process records"):
        made.recorded(tmp_path)


def test_a_wrong_key_stops_at_once_and_loses_nothing(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 50)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b+401"})
        done = made.recorded(tmp_path, concurrency=2)
        assert "arm 'b': auth" in done.stopped
        assert asked(server) < 6
        assert done.written == 0
        server.fault = lambda body: "quota" if body["model"] == "c" else ""
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "c": "c"})
        done = made.recorded(tmp_path, concurrency=2)
        assert "arm 'c': quota: 429" in done.stopped
        assert asked(server) < 12


def test_bad_stretches_are_sat_out_and_lasting_failures_are_tried_again_next_time(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 8)
        arms = {"a": "a+500:4", "no": "no+length", "down": "down+503"}
        made.write_arms(tmp_path / "arms.json", server.url, arms)
        done = made.recorded(tmp_path)  # 3 tries, twice
        rows = pd.read_parquet(tmp_path / "t.parquet")
        assert not done.complete
        assert done.written == 8
        assert done.failed == {"a": 0, "no": 8}
        assert list(rows[rows["arm"] == "a"]["error"].dropna()) == []
        assert set(rows[rows["arm"] == "no"]["error"]) == {"truncated"}
        assert set(rows[rows["arm"] == "down"]["error"]) == {"server"}
        assert not rows[rows["arm"] == "down"]["score"].any()
        assert "8 calls of down failed (server); they are made again by the next start." in list(done.remarks())
        asked_before = asked(server)
        made.recorded(tmp_path)
        assert asked(server) - asked_before == 8 * 6


def test_a_full_disk_stops_the_calls_and_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, write = [3], os.write

    def short(fd: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        room[0] -= 1
        return write(fd, data) if room[0] else write(fd, data[:20])

    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 20)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        monkeypatch.setattr(journalling.os, "write", short)
        done = made.recorded(tmp_path, concurrency=2)
        assert "No space left" in done.stopped
        assert "answers are lost" in done.stopped
        lines = (tmp_path / "t.parquet.journal.jsonl").read_text().splitlines()
        assert done.done == done.made == sum('"call"' in line for line in lines) < asked(server)
        assert not done.complete
        assert 2 <= asked(server) <= 4
        monkeypatch.setattr(journalling.os, "write", write)
        assert made.recorded(tmp_path).complete
        room[0] = 5
        made.write_tasks(tmp_path / "tasks.jsonl", 40)
        monkeypatch.setattr(journalling.os, "write", short)
        save = Journal.save

        def roomy(self: Journal) -> bool:
            room[0] = 1000
            return save(self)

        monkeypatch.setattr(Journal, "save", roomy)
        done = made.recorded(tmp_path, concurrency=2)
        assert "all is saved now" in done.stopped
        monkeypatch.setattr(journalling.os, "write", write)
        before = asked(server)
        assert made.recorded(tmp_path).complete
        assert asked(server) - before == 40 - done.done


def judging(body: Any) -> str:
    text = body["messages"][0]["content"]
    if not text.startswith("Grade"):
        return "answer (a)" if body["model"] == "a" else "The answer is A."
    return "No idea." if "question 1\n" in text else "Good.\n**SCORE: 0.75**"


def test_a_judge_is_asked_once_for_equal_answers_and_paid_apart(tmp_path: Path) -> None:  # PEERS 33
    with serve(answer=judging) as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b", "j": "j"})
        with Ledger(tmp_path / "l.db") as ledger:
            done = made.recorded(tmp_path, scorer="judge:j", n=2, canonical="choice", ledger=ledger)
        assert (done.complete, done.judged, asked(server)) == (True, 3, 12 + 3)
        rows = pd.read_parquet(tmp_path / "t.parquet")
        assert set(rows["arm"]) == {"a", "b"}
        assert rows["score"][rows["item"] == "q1"].isna().all()  # unscored, never a number
        assert set(rows["score"][rows["item"] != "q1"]) == {0.75}
        assert rows["cost_nano"].sum() == server.bill("a") + server.bill("b")
        roles = {row.name: row.spent for row in summary(str(tmp_path / "l.db"), "role")}
        assert roles == {"answer": server.bill("a") + server.bill("b"), "judge": server.bill("j")}
        assert done.spent == server.bill()
        again = made.recorded(tmp_path, scorer="judge:j", n=2, canonical="choice")
        assert (again.judged, asked(server), again.spent) == (0, 15, done.spent)


def test_a_failing_judge_is_not_charged_to_the_candidate(tmp_path: Path) -> None:  # PEERS 32
    with serve(answer=judging) as server:
        server.fault = lambda body: "500" if body["model"] == "j" and "question 2\n" in str(body) else ""
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b", "j": "j"})
        server.fault = lambda body: "500" if body["model"] == "j" and "question 2\\n" in json.dumps(body) else ""
        done = made.recorded(tmp_path, scorer="judge:j")
        assert (done.complete, done.unjudged, done.written) == (False, 2, 2)
        server.fault = None
        before = asked(server)
        assert made.recorded(tmp_path, scorer="judge:j").complete
        assert asked(server) - before == 2


def test_a_scorer_that_gives_no_score_is_an_error_and_the_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_odd_scores.py").write_text("def nan(answer, task):\n    return float('nan')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        with pytest.raises(ScoreError, match="nan is no score"):
            made.recorded(tmp_path, scorer="python:my_odd_scores:nan")
        assert made.recorded(tmp_path).made == 0
        assert asked(server) == 3


def test_messages_go_out_unchanged_and_arms_without_prices_can_be_left_out(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with serve(answer=lambda body: "7") as server:
        line = {"task_id": 1, "messages": said, "tools": [tool], "target": ["7", "seven"]}
        (tmp_path / "tasks.jsonl").write_text(json.dumps(line))
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": {"model": "b", "price": None}})
        done = made.recorded(tmp_path, scorer="exact", unpriced="refuse", seed=3)
        assert done.left_out == ["b"]
        assert asked(server) == 1
        body = server.served[0].body
        assert (body["messages"], body["tools"], body["seed"]) == (said, [tool], 3)
        assert pd.read_parquet(tmp_path / "t.parquet")["score"].tolist() == [1.0]


def test_a_recorded_arm_is_named_in_the_arms_file(tmp_path: Path) -> None:
    tasks, arms = played()
    on_virtual_clock(lambda: record(tasks, arms, scorer="exact", output=tmp_path / "old.csv", n=3))
    told = {"arms": {"again": {"provider": "scripted", "table": "old.csv", "arm": "b"}}}
    (tmp_path / "arms.json").write_text(json.dumps(told))
    read = read_arms(tmp_path / "arms.json", tables=read_table)
    done = on_virtual_clock(lambda: record(tasks, read, scorer="exact", output=tmp_path / "new.csv", n=3))
    assert done.complete
    old, new = pd.read_csv(tmp_path / "old.csv"), pd.read_csv(tmp_path / "new.csv")
    old = old[old["arm"] == "b"].reset_index(drop=True)
    assert old.drop(columns="arm").equals(new.drop(columns="arm"))


def test_the_command_says_what_it_did_and_its_status_says_if_anything_is_left(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 5)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b"})
        run = in_process(tmp_path, "-n", "2", "--budget", "1", "--ledger", str(tmp_path / "l.db"))
        assert run.exit_code == 0, run.output
        assert "20 of 20 calls are safe" in run.output
        assert "5 tasks" in run.output
        assert summary(str(tmp_path / "l.db"), "strategy")[0].calls == 20
        server.fault = lambda body: "500"
        run = in_process(tmp_path, "-n", "3")
        assert run.exit_code == 2
        assert "5 calls of a failed (server)" in run.output
        assert "Go on by: " in run.output


def test_tasks_given_in_code_have_ids_of_their_own_too(tmp_path: Path) -> None:
    tasks, arms = played()
    with pytest.raises(PlaycallError, match="two tasks have the id 'q0'"):
        anyio.run(lambda: record([*tasks, tasks[0]], arms, scorer="exact", output=tmp_path / "t.csv"))


def test_each_draw_has_a_seed_of_its_own(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 1)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        made.recorded(tmp_path, n=3, seed=7)
        assert sorted(s.body["seed"] for s in server.served) == [7, 8, 9]


def test_what_was_paid_for_calls_that_are_made_again_counts_in_later_starts(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 2)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a+cut:3"})  # a first pass of 3 tries, then fine
        done = made.recorded(tmp_path)
        assert (done.complete, done.spent > server.bill()) == (True, True)
        assert made.recorded(tmp_path).spent == done.spent


def test_what_was_paid_for_calls_that_were_cancelled_counts_in_later_starts(tmp_path: Path) -> None:
    tasks, arms = played()

    async def main() -> None:
        with anyio.move_on_after(0.5):
            await record(tasks, arms, scorer="exact", output=tmp_path / "t.csv", concurrency=7)

    on_virtual_clock(main)
    lines = [json.loads(line) for line in (tmp_path / "t.csv.journal.jsonl").read_text().splitlines()]
    assert [line["nano"] > 0 for line in lines if "lost" in line] == [True] * 7


def test_a_rate_limit_that_lasts_is_no_answer_for_good(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 2)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"}, tries=1)
        server.fault = lambda body: "429"
        assert not made.recorded(tmp_path).complete
        server.fault = None
        done = made.recorded(tmp_path)
        assert (done.complete, done.made) == (True, 2)


@pytest.mark.parametrize("change", ["judge", "reference"])
def test_a_verdict_holds_for_its_judge_and_its_reference_alone(tmp_path: Path, change: str) -> None:
    with serve(answer=judging) as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 1)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "j": "j"})
        made.recorded(tmp_path, scorer="judge:j")
        if change == "judge":
            made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "j": "another"})
        else:
            (tmp_path / "tasks.jsonl").write_text('{"id": "q0", "task": "question 0", "reference": "other"}')
        again = made.recorded(tmp_path, scorer="judge:j")
        assert (again.made, again.judged) == (0, 1)


def test_a_judges_own_failure_that_will_not_pass_leaves_it_unscored_for_good(tmp_path: Path) -> None:
    with serve(answer=judging, fault=lambda body: "length" * (body["model"] == "j")) as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 2)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "j": "j"})
        assert made.recorded(tmp_path, scorer="judge:j").complete
        before = asked(server)
        assert made.recorded(tmp_path, scorer="judge:j").complete
        assert (asked(server) - before, before) == (0, 4)
    assert pd.read_parquet(tmp_path / "t.parquet")["score"].isna().all()


def test_a_judge_is_not_asked_once_the_recording_has_stopped(tmp_path: Path) -> None:
    with serve(answer=judging) as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 4)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a", "b": "b+401", "j": "j"})
        assert "auth" in made.recorded(tmp_path, scorer="judge:j", concurrency=1).stopped
        assert {s.model for s in server.served} == {"a", "b"}


def test_a_later_start_tells_the_failures_of_the_earlier_ones_and_has_its_ledger_written(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"no": "no+length"})
        ledger = Ledger(tmp_path / "l.db")
        first = made.recorded(tmp_path, ledger=ledger)
        assert summary(str(tmp_path / "l.db"))[0].calls == 3
        ledger.close()
        assert made.recorded(tmp_path).failed == first.failed == {"no": 3}


def recorded_agents(folder: Path, functions: dict[str, Any], others: dict[str, Arm], **options: Any) -> pd.DataFrame:
    """The table of agents that are asked one task on the virtual clock."""
    arms = {n: Arm(Agent(f, {"solver": "x"}), n, price="calls") for n, f in functions.items()} | others
    tasks = [Task("q", "one plus one", "2")]
    on_virtual_clock(
        lambda: record(tasks, arms, scorer="exact", output=folder / "t.csv", only=list(functions), **options)
    )
    return pd.read_csv(folder / "t.csv")


class Solver:
    name, tenant = "solver", ""

    async def __call__(self, call: Any) -> Answer:
        call.usage = Usage(3, 1)
        return Answer("2")


def test_an_agent_is_asked_as_it_is_and_its_row_counts_all_its_calls(tmp_path: Path) -> None:
    async def twice(task: str, models: Any) -> str:
        assert task == "one plus one"
        return str([await models.ask("solver", task) for _ in range(2)][-1])

    solver = {"x": Arm(Solver(), "m", price=Price(1000, 2000))}
    [row] = recorded_agents(tmp_path, {"twice": twice}, solver, seed=7).to_dict("records")
    assert (row["score"], row["input_tokens"], row["output_tokens"]) == (1, 6, 2)
    assert row["cost_nano"] == 10_000_000


def test_a_misuse_of_one_call_loses_none_of_those_in_flight(tmp_path: Path) -> None:
    async def slow(task: str, models: Any) -> str:
        await anyio.sleep(5)
        return "2"

    async def wrong(task: str, models: Any) -> str:
        return models["critic"]  # type: ignore[no-any-return]

    with pytest.raises(PlaycallError, match="critic"):
        recorded_agents(tmp_path, {"slow": slow, "wrong": wrong}, {"x": Arm(Solver(), "m", price="free")})
    assert '["q", "slow", 0]' in (tmp_path / "t.csv.journal.jsonl").read_text()


def test_a_latency_is_that_of_the_call_and_not_of_the_queue_before_it(tmp_path: Path) -> None:
    tasks, arms = played()
    narrow = {name: replace(arm, concurrency=1) for name, arm in arms.items()}
    on_virtual_clock(lambda: record(tasks, narrow, scorer="exact", output=tmp_path / "t.parquet", n=3))
    for arm, endpoint in arms.items():
        assert isinstance(endpoint.endpoint, Played)
        assert (read_table(tmp_path / "t.parquet")[arm].latency == endpoint.endpoint.recording[arm].latency).all()


def test_the_price_of_the_prompt_is_told_apart(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 2)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        made.recorded(tmp_path)
    rows = pd.read_parquet(tmp_path / "t.parquet")
    assert rows["prompt_cost_usd"].tolist() == pytest.approx((rows["input_tokens"] / 1e6).tolist())


def test_no_key_is_among_the_settings_of_a_journal() -> None:
    assert "SECRET" not in str(settings_of(Arm(Solver(), "m", {"api_key": "SECRET"}, headers={"x-key": "SECRET"})))


def test_a_file_of_tasks_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1, "task": "x", "reference": 0}', encoding="utf-8-sig")
    [task] = read_tasks(tmp_path / "tasks.jsonl")
    assert (task.id, task.reference) == ("1", 0)


def test_the_commands_options_reach_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.yaml").write_text("b: {call: 0.5}")
    options = ["--only", "b", "--seed", "7", "--canonical", "choice", "--prices", f"{tmp_path}/p.yaml", "--fresh"]
    monkeypatch.setattr(sys, "argv", ["playcall", "record", *options])
    with serve(answer=judging) as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 1)
        arms = {"a": {"model": "a", "api_key_env": "NOT_THERE"}, "b": {"model": "b", "price": None}, "j": "j"}
        made.write_arms(tmp_path / "arms.json", server.url, arms)
        server.answer = lambda body: (
            "SCORE: 1" if body["model"] == "j" else "(a)" if body["seed"] == 7 else "The answer is A."
        )
        run = in_process(tmp_path, "-n", "2", *options, scorer="judge:j")
        assert run.exit_code == 0, run.output
        assert sorted(s.body["seed"] for s in server.served if s.model == "b") == [7, 8]
        assert [s.model for s in server.served].count("j") == 1  # for one choice
        assert "$1.0" in run.output  # by the prices of the file
        server.fault = lambda body: "500"
        run = in_process(tmp_path, "-n", "2", *options, scorer="judge:j")
        assert run.exit_code == 2
        assert "Go on by: playcall record --only b --seed 7" in run.output
        assert "--fresh" not in run.output.partition("Go on by")[2]


def test_a_separator_of_lines_inside_a_task_ends_none_and_the_order_of_its_fields_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1, "task": {"a": "x\u2028y", "b": 1}}\n', encoding="utf-8")
    [one] = read_tasks(tmp_path / "tasks.jsonl")
    assert one.task == {"a": "x\u2028y", "b": 1}
    assert one.digest == Task("1", {"b": 1, "a": "x\u2028y"}).digest


def test_a_table_that_cannot_be_finished_leaves_the_old_one_and_no_part_of_itself(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    write_table(table, {"x": bool}, [(True,), (None,)])
    assert table.read_text().split() == ["x", "true", '""']

    def rows() -> Any:
        yield (False,)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(table, {"x": bool}, rows())
    assert "true" in table.read_text()
    assert list(tmp_path.iterdir()) == [table]


def test_half_a_line_at_the_end_of_a_journal_is_cut_off(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 2)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        made.recorded(tmp_path)
        journal = tmp_path / "t.parquet.journal.jsonl"
        journal.write_text(journal.read_text()[:-9])
        assert [made.recorded(tmp_path).made for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".jsonl"])
def test_texts_that_no_file_can_hold_are_written_without_what_is_broken(tmp_path: Path, kind: str) -> None:
    with serve(answer=lambda body: "4 \ud83d") as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 2, note="n\ud83d", more=["\ud83d"])
        made.write_arms(tmp_path / "arms.json", server.url, {"a\ud83d": "a"})
        assert made.recorded(tmp_path, output=f"t{kind}").complete
    assert "n?" in (tmp_path / f"t{kind}").read_bytes().decode(errors="replace")
    assert list(read_table(tmp_path / f"t{kind}").arms) == ["a?"]


def test_an_arm_that_was_priced_otherwise_is_remarked_on(tmp_path: Path) -> None:
    def recorded(count: int, price: object) -> str:
        made.write_tasks(tmp_path / "tasks.jsonl", count)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": {"model": "a", "price": price}, "b": "b"})
        return " ".join(made.recorded(tmp_path).remarks())

    with serve() as server:
        assert recorded(2, {"input": 1, "output": 2}) == ""
        assert recorded(3, {"input": 1.0, "output": 2}) == ""
        for count in (4, 5):
            told = recorded(count, {"input": 10, "output": 20})
            assert "Calls of a were made at input 1, output 2, then at input 10, output 20: each is in" in told
            assert "of b" not in told


def test_a_journal_from_before_prices_were_kept_is_gone_on_with(tmp_path: Path) -> None:
    with serve() as server:
        made.write_tasks(tmp_path / "tasks.jsonl", 3)
        made.write_arms(tmp_path / "arms.json", server.url, {"a": "a"})
        made.recorded(tmp_path)
        path = tmp_path / "t.parquet.journal.jsonl"
        head, *calls = path.read_text().splitlines(keepends=True)
        told = json.loads(head)
        del told["head"]["prices"]
        path.write_text("".join([json.dumps(told) + "\n", *calls]))
        assert (made.recorded(tmp_path).made, asked(server)) == (0, 3)
