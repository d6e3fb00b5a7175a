"""The roles of a race and the function that builds its agents, from files; what cannot be used says why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from playcall.evals.race_live import arms_of, load_build, read_roles
from playcall.strategies import Misuse

from .races import race


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: "agent", "no plain function of the models"),
        (lambda task, models: "", "no plain function of the models"),
        (lambda models: "not an agent", "returned str, which is no function of a task"),
        (lambda models: lambda: "", "is no function of a task"),
        (lambda models: models["plannr"], r"raised KeyError\('plannr'\)"),
    ],
)
def test_a_build_that_cannot_be_used_is_told_how_to_look(build: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=f"(?s){says}.*def build\\(models\\)"):
        race(tmp_path, build)


def test_an_async_build_is_told_how_to_look(tmp_path: Path) -> None:
    async def build(models: Mapping[str, str]) -> Any:
        return lambda task: ""

    with pytest.raises(Misuse, match="def build"):
        race(tmp_path, build)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("planner: []", "planner: .*one model or more"),
        ("planner: [a, a]", "planner: 'a' is there twice"),
        ("planner: [4]", "planner: 4 is no model's name"),
        ("[a, b]", r"write planner: \[gpt-4o"),
        ("a=b: [c]", "a=b: a role's name is a text without ="),
        ("planner: {a: b}", "planner: .*one model or more"),
    ],
)
def test_a_roles_file_that_makes_no_sense_is_named_with_its_entry(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "roles.yaml").write_text(text)
    with pytest.raises(Misuse, match=f"roles.yaml: {says}"):
        read_roles(tmp_path / "roles.yaml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("roles.yaml", "planner: [a, b]\nsolver: c"),
        ("roles.json", '{"planner": ["a", "b"], "solver": ["c"]}'),
        ("roles.toml", 'planner = ["a", "b"]\nsolver = ["c"]'),
    ],
)
def test_roles_are_read_from_every_kind_of_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert arms_of(read_roles(tmp_path / name)) == {
        "planner=a + solver=c": {"planner": "a", "solver": "c"},
        "planner=b + solver=c": {"planner": "b", "solver": "c"},
    }


def test_a_build_is_loaded_from_its_file_with_what_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it_l1.py").write_text("ANSWER = 'yes'")
    (tmp_path / "agent_l1.py").write_text(
        "from beside_it_l1 import ANSWER\ndef build(models):\n    return lambda task: ANSWER\nother = 3"
    )
    assert load_build(f"{tmp_path}/agent_l1.py:build")({})("task") == "yes"
    with pytest.raises(Misuse, match="no function but int"):
        load_build(f"{tmp_path}/agent_l1.py:other")
    for bad in ("agent_l1.py:nothing", "none.py:build"):
        with pytest.raises(Misuse, match="cannot be loaded"):
            load_build(f"{tmp_path}/{bad}")
