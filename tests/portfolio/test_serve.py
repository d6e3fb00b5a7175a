"""A policy file, served."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from playcall.evals import read_table
from playcall.portfolio import Policy, fit, load
from playcall.strategies import Agree, Ask, Misuse, Strategy, arms_of, dump
from playcall.strategies.agent import Agent
from playcall.strategies.arm import Arm

from .made import made

INF = float("inf")


def says(**texts: str) -> dict[str, Arm]:
    """Arms that answer this."""
    return {name: Arm(Agent(lambda task, models, text=text: text), name, price="free") for name, text in texts.items()}


def written(path: Path, play: Strategy, **more: object) -> Path:
    path.write_text(json.dumps({**dump(play), **more}))
    return path


ARMS = "arms:\n  x: {provider: agent, function: 'builtins:max', price: free}\n"


def test_what_fit_wrote_runs_live_in_two_lines(tmp_path: Path) -> None:
    policy = fit(replace(made({"small": 0.7, "large": 0.85}, tasks=80), canonical="number"), folds=3)
    policy.save(tmp_path / "policy.json")
    served = load(tmp_path / "policy.json", says(small="it is 1/2", large="0.5"))
    assert served.run_sync("how much").answered
    assert served.policy == policy
    assert served.policy.canonical == "number"
    assert served.options["name"] == "policy"
    assert set(served.prices) == set(arms_of(policy.strategy))


def test_answers_are_equal_by_the_rule_that_the_policy_was_fitted_with(tmp_path: Path) -> None:
    play = (Ask("x") & Ask("y") & Ask("z")).until(Agree(2), gap=INF)
    arms = says(x="about 0.5", y="it is 1/2", z="2")
    fitted = written(tmp_path / "a.json", play, canonical="number")
    assert len(load(fitted, arms).run_sync("q").attempts) == 2
    assert len(load(fitted, arms, canonical="exact").run_sync("q").attempts) == 3
    assert len(load(written(tmp_path / "b.json", play), arms).run_sync("q").attempts) == 3


def test_a_policy_names_a_function_of_its_owner_and_never_imports_it(tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", Ask("x"), canonical="no.such.module:key")
    with pytest.raises(Misuse, match=r"no\.such\.module:key"):
        load(path, says(x="A"))
    assert load(path, says(x="A"), canonical=str.lower).run_sync("q").output == "A"


def test_files_of_policies_from_before_are_read(tmp_path: Path) -> None:
    policy = fit(made({"small": 0.7, "large": 0.85}, tasks=80), folds=3)
    policy.save(path := tmp_path / "policy.json")
    document = json.loads(path.read_text())
    assert document.pop("canonical") == "exact"
    path.write_text(json.dumps(document))
    assert Policy.load(path) == policy


def test_arms_are_read_from_a_file_and_from_the_one_beside_the_policy(tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", Ask("x"))
    with pytest.raises(Misuse, match="no arms"):
        load(path).run_sync("q")
    (tmp_path / "arms.yaml").write_text(ARMS)
    assert load(path).arms is not None
    (tmp_path / "other.yaml").write_text(ARMS.replace("x:", "y:"))
    with pytest.raises(Misuse, match=r"other\.yaml.*'x'"):
        load(path, tmp_path / "other.yaml")


def test_without_arms_a_policy_is_wrapped_around_calls_at_the_prices_it_recorded(tmp_path: Path) -> None:
    play = Ask("my-own-x") | Ask("my-own-y")
    policy = load(written(tmp_path / "p.json", play, prices={"my-own-x": 0.001, "my-own-y": 0.002}))

    @policy.call
    def ask(question: str, model: str = "") -> str:
        return f"{model} says {question}"

    assert ask("hello") == "my-own-x says hello"
    unknown = load(written(tmp_path / "q.json", play, prices={"my-own-x": 0.001, "my-own-y": None}))
    with pytest.raises(Misuse, match="my-own-y"):
        unknown.call(lambda question, model: "")
    with pytest.raises(Misuse, match="without figures"):
        _ = policy.policy


def test_all_ways_to_run_are_there(tmp_path: Path) -> None:
    policy = load(written(tmp_path / "p.json", Ask("x")), says(x="yes"), deadline=5.0)
    assert [r.output for _, r in policy.map_sync(["a", "b"])] == ["yes", "yes"]

    async def main() -> None:
        assert [r.output for r in await policy.map(["a"])] == ["yes"]
        assert (await policy.run("a")).output == "yes"
        assert [piece async for piece in policy.stream("a")] == ["yes"]

    anyio.run(main)
    assert policy.deadline == 5.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"playcall": 9}, "version 9"),
        ({"strategy": {"Exec": {}}}, "Exec"),
        ({"canonical": 3}, "canonical"),
        ({"prices": {"x": "dear"}}, "prices"),
        ({"prices": {"x": -1}}, "prices"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_by_its_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = written(tmp_path / "mine.json", Ask("x"), **change)
    with pytest.raises(Misuse, match=rf"mine\.json.*{said}"):
        load(path)


def test_serving_imports_no_learners_and_no_clients() -> None:  # PEERS 39
    code = "import sys; from playcall.portfolio import load; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    heavy = {"sklearn", "pandas", "scipy", "pydantic", "litellm", "openai", "aiohttp", "httpx", "sqlalchemy", "yaml"}
    assert "playcall.portfolio.serve" in loaded
    assert not loaded & heavy


def test_a_table_says_when_its_answers_were_equal(tmp_path: Path) -> None:
    rows = [f"t{i},{arm},0.5,1" for i in range(3) for arm in "xy"]
    (tmp_path / "t.csv").write_text("\n".join(["item,arm,answer,score", *rows]))
    assert read_table(tmp_path / "t.csv", canonical="number").only(["x"]).canonical == "number"
