"""Scorers: 0 to 1, or unscored; what cannot score is refused before it is needed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from playcall.evals.scorers import Judge, ScoreError, Scorer, scorer, verdict
from playcall.evals.tasks import Task
from playcall.strategies import Misuse


def scored(name: str, answer: str, reference: Any) -> float | None:
    found = scorer(name)
    assert not isinstance(found, Judge)
    task = Task("q", "question", reference, {"id": "q", "hint": 3})
    found.check(task)
    return anyio.run(found, task, answer)


@pytest.mark.parametrize(
    ("name", "answer", "reference", "score"),
    [
        ("exact", " yes\n", "yes", 1),
        ("exact", "yes", "no", 0),
        ("exact", "b", ["a", "b"], 1),
        ("number", "So it is $1,250.50.", 1250.5, 1),
        ("number", "one half: 1/2", "0.5", 1),
        ("number", "no idea", "0.5", 0),
        ("choice", "The answer is (b).", "B", 1),
        ("json", '```json\n{"b": 1.0, "a": [1, 2]}\n```', {"a": [1, 2], "b": 1}, 1),
        ("json", "[1, 2]", [1, 2], 1),
        ("json", "1", [1, 2], 0),
        ("regex", "It was in 1969, I think", r"\b19[67]9\b", 1),
        ("regex", "never", ["^a", "r$"], 1),
        ("regex", "never", "^a", 0),
    ],
)
def test_answers_are_compared_with_the_reference(name: str, answer: str, reference: Any, score: float) -> None:
    assert scored(name, answer, reference) == score


@pytest.mark.parametrize(
    ("name", "reference", "says"),
    [
        ("number", None, "task 'q' has no reference"),
        ("exact", [], "task 'q' has no reference"),
        ("number", "about a third", "is no number"),
        ("json", "{", "is no json"),
        ("regex", "(", "no regular expression"),
    ],
)
def test_tasks_that_cannot_be_scored_are_refused(name: str, reference: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        scored(name, "", reference)


@pytest.mark.parametrize("name", ["bleu", "python:", "judge:", "python:os", "python:os:no", "python:os:sep", "judge:j"])
def test_scorers_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(Misuse):
        scorer(name, arms=["a"])


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes my_scores_N.py into the working folder, and makes the scorer of its function f."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, body: str) -> Scorer:
        Path(f"{name}.py").write_text(f"import threading, time\ndef f(answer, task):\n    {body}\n")
        found = scorer(f"python:{name}:f")
        assert not isinstance(found, Judge)
        return found

    return write


TASK = Task("q7", "question", None, {"id": "q7", "hint": 3})


def test_a_function_of_the_working_folder_scores(function: Any) -> None:
    assert anyio.run(function("scores_hint", "return task['hint'] == 3 and answer == 'x'"), TASK, "x") == 1.0
    assert anyio.run(function("scores_half", "return 0.5"), TASK, "x") == 0.5


@pytest.mark.parametrize("value", ["float('nan')", "2", "-0.1", "None", "'good'"])
def test_what_is_no_score_is_an_error_that_names_the_item(function: Any, value: str) -> None:  # PEERS 31
    with pytest.raises(ScoreError, match=r"item 'q7'.* is no score; return 0 to 1"):
        anyio.run(function(f"scores_odd_{abs(hash(value))}", f"return {value}"), TASK, "x")


def test_a_function_that_raises_is_an_error_that_names_the_item(function: Any) -> None:
    with pytest.raises(ScoreError, match=r"item 'q7', answer 'x': KeyError\('no'\)"):
        anyio.run(function("scores_raises", "return task['no']"), TASK, "x")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_slow_function_does_not_block_the_loop(function: Any, backend: str) -> None:  # PEERS 20
    slow = function("scores_slow", "time.sleep(0.2); return threading.current_thread().name != 'MainThread'")
    longest, found = 0.0, list[float]()

    async def tick() -> None:
        nonlocal longest
        while not found:
            began = time.perf_counter()
            await anyio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            found.append(await slow(TASK, "x"))

    assert threading.current_thread() is threading.main_thread()
    anyio.run(main, backend=backend)
    assert found == [1.0]
    assert longest < 0.05


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Right.\nSCORE: 1", 1.0),
        ("SCORE: 0.25\n\n", 0.25),
        ("**Score:** .5", 0.5),
        ('It is fine.\n{"score": 0}', 0.0),
        ("```\nSCORE: 1\n```", 1.0),
        ("SCORE: 1\nor maybe not", None),
        ("I give it SCORE: 1 of 2", None),
        ("SCORE: 7", None),
        ("SCORE: -1", None),
        ("SCORE: nan", None),
        ('{"score": true}', None),
        ('{"score": NaN}', None),
        ("[1]", None),
        ("8/10", None),
        ("", None),
    ],
)
def test_a_verdict_in_another_form_is_unscored(text: str, score: float | None) -> None:  # PEERS 30
    assert verdict(text) == score


def test_a_judge_reads_the_question_the_reference_and_the_answer() -> None:
    judge = scorer("judge:j", arms=["j"])
    assert isinstance(judge, Judge)
    told = judge.prompt(Task("q", {"messages": [{"role": "user", "content": "why?"}]}, ["since", "as"]), "so {x}")
    assert all(part in told for part in ("<question>\nwhy?\n", "since\nas", "<answer>\nso {x}\n", "SCORE: "))
    assert "<reference>" not in judge.prompt(Task("q", "why?"), "so")
