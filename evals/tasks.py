"""Tasks to record, from a JSONL file: one object a line, checked before anything is paid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from playcall.evals.written import is_text
from playcall.strategies import Misuse, PlaycallError

IDS = ("id", "item", "task_id")
INPUTS = ("task", "input", "prompt", "question", "messages")
REFERENCES = ("reference", "answer", "target", "expected")
_REQUEST = ("tools", "tool_choice", "functions", "response_format")  # go with messages


@dataclass(frozen=True)
class Task:
    """A line of the file."""

    id: str
    task: object  # what arms are asked
    reference: object = None  # None where there is none
    record: Mapping[str, Any] = field(default_factory=dict)  # the whole line
    columns: Mapping[str, Any] = field(default_factory=dict)  # what else it holds: goes into the table

    def __post_init__(self) -> None:
        for name in (self.id, *self.columns):
            if not is_text(name):
                raise Misuse(f"{name!r} holds half a surrogate pair, which no table can: name it otherwise.")

    @cached_property
    def digest(self) -> str:
        """The same for what is asked in the same way."""
        return hashlib.sha256(json.dumps(self.task, sort_keys=True).encode()).hexdigest()[:16]


def read_tasks(path: str | Path) -> list[Task]:
    """Each line is an object: an id (`id`, `item` or `task_id`), what is asked (`task`, `input`, `prompt`, `question`
    or `messages`, the first that is there), where there is one a reference (`reference`, `answer`, `target` or
    `expected`), and whatever else should be in the table. Raises Misuse that names the line.
    """
    path, tasks, seen = Path(path), list[Task](), dict[str, int]()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise PlaycallError(f"{path} cannot be read: {why}. Name a JSONL file of tasks.") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            task = task_of(json.loads(line))
        except (ValueError, RecursionError) as error:  # of JSON, or Misuse
            raise Misuse(f"{path}, line {number}: {str(error).rstrip('.')}.") from error
        if (first := seen.setdefault(task.id, number)) != number:
            say = "Give each task an id of its own"
            raise Misuse(f"{path}, line {number}: the id {task.id!r} is in line {first} too. {say}.")
        tasks.append(task)
    if not tasks:
        raise Misuse(f'{path} holds no tasks: write one object a line, such as {{"id": "q1", "task": "1 + 1?"}}.')
    return tasks


def task_of(record: object) -> Task:
    """The task that an object of the file is."""
    if not isinstance(record, dict):
        raise Misuse('it is no object such as {"id": "q1", "task": "1 + 1?", "reference": "2"}.')
    name, asked = (_first(record, names, what) for names, what in ((IDS, "id"), (INPUTS, "task")))
    id_, task = record[name], record[asked]
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
        raise Misuse(f"{name} is {id_!r}; write a text or a whole number.")
    if task is None or task in ("", []):
        raise Misuse(f"{asked} is empty.")
    used = {name, asked}
    if asked == "messages":
        more = {key: record[key] for key in _REQUEST if key in record}
        task, used = {"messages": task, **more}, used | set(more)
    reference = next((key for key in REFERENCES if record.get(key) is not None and key not in used), None)
    used |= {reference} if reference else set()
    rest = {key: value for key, value in record.items() if key not in used}
    return Task(str(id_), task, record[reference] if reference else None, record, rest)


def _first(record: Mapping[str, Any], names: tuple[str, ...], what: str) -> str:
    for name in names:
        if name in record:
            return name
    raise Misuse(f"it has no {what}: write one of {', '.join(names)}.")
