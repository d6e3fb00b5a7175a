"""`playcall race` on agents that cannot work: it stops, says why, and nothing counts that shows nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from playcall.evals.race_live import LiveRace, load_build
from playcall.portfolio.race import Rules
from playcall.strategies import PlaycallError

from ..serving import Server
from .races import abuild_of, asking, build_of, client_of, ended, figures, paid, race, tasks

kinds = pytest.mark.parametrize("kind", [build_of, abuild_of], ids=["sync", "async"])


def counted(made: LiveRace) -> int:
    """Runs that the race was told of."""
    return made.raced().evaluations


def breaking(url: str, only: str = "") -> Any:
    """Its agents fail after their calls, those of a solver only if one is named."""

    def build(models: Mapping[str, str]) -> Any:
        agent = build_of(url)(models)

        def broken(task: object) -> object:
            found = agent(task)
            if only in ("", models["solver"]):
                raise ValueError("no such tool")
            return found

        return broken

    return build


def test_an_agent_whose_every_run_fails_stops_the_race_after_the_first(tmp_path: Path, server: Server) -> None:
    made = ended(tmp_path, breaking(server.url), tasks=tasks(40), concurrency=2)
    assert "all of the first 10 runs failed, most by ValueError: no such tool; mend it" in made.stopped
    assert (made.complete, made.made, counted(made)) == (False, 0, 0)
    assert len(server.served) < 30
    mended = ended(tmp_path, build_of(server.url), tasks=tasks(12))
    assert mended.complete
    assert set(paid(server).values()) == {1}


def test_arms_that_fail_while_others_work_count_as_0(tmp_path: Path, server: Server) -> None:
    made = ended(tmp_path, breaking(server.url, "bad"), concurrency=1)
    assert (made.complete, made.failed.total()) == (True, 24)


@kinds
@pytest.mark.parametrize("swallow", [False, True])
def test_a_model_that_refuses_every_request_stops_the_race_and_puts_no_arm_out(
    kind: Any, swallow: bool, tmp_path: Path, server: Server
) -> None:
    def build(models: Mapping[str, str]) -> Any:
        agent = build_of(server.url)(models)

        def calm(task: object) -> str:
            try:
                return str(agent(task))
            except Exception:
                return "sorry"

        return calm if swallow else kind(server.url)(models)

    server.fault = lambda body: "400" if body["model"] == "bad" else ""
    made = ended(tmp_path, build)
    assert "model 'bad': bad_request: " in made.stopped
    assert "in each of its first 3 runs; mend it, or leave the model out" in made.stopped
    assert made.failed.total() == 0
    assert all(r.failures == 0 for r in made.raced().arms)
    server.fault = None
    assert ended(tmp_path, build).complete
    assert set(paid(server).values()) == {1}


def test_a_task_that_a_model_refuses_is_a_failure(tmp_path: Path, server: Server) -> None:
    server.fault = lambda body: "400" if "solve question 3 " in str(body["messages"]) else ""
    made = ended(tmp_path, build_of(server.url))
    assert (made.complete, set(made.failed.values())) == (True, {1})


@kinds
def test_a_rate_limit_never_counts_and_the_next_start_goes_on(kind: Any, tmp_path: Path, server: Server) -> None:
    whole = ended(tmp_path, kind(server.url), output=tmp_path / "whole")
    server.served.clear()
    server.fault = lambda body: "429" if body["model"] == "bad" and "question 7" in str(body["messages"]) else ""
    for _ in range(3):
        made = ended(tmp_path, kind(server.url))
        assert "failed twice by rate_limited: " in made.stopped
        assert "no run counts as failed by it; start again to go on" in made.stopped
        assert made.failed.total() == 0
    server.fault = None
    made = ended(tmp_path, kind(server.url))
    assert made.complete
    assert figures(made) == figures(whole)
    assert set(paid(server).values()) == {1}


def test_an_outage_counts_for_nothing_if_it_is_over_at_the_next_start(tmp_path: Path, server: Server) -> None:
    whole = ended(tmp_path, build_of(server.url), output=tmp_path / "whole")
    server.served.clear()
    server.fault = lambda body: "503" if len(server.served) > 30 else ""
    made = ended(tmp_path, build_of(server.url))
    assert "runs failed twice, the last one of " in made.stopped
    assert made.failed.total() == 0
    server.fault = None
    made = ended(tmp_path, build_of(server.url))
    assert made.complete
    assert figures(made) == figures(whole)


def test_a_second_try_waits_for_a_moment(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, sleep = list[float](), anyio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("playcall.evals.race_live.PAUSE", 5.0)
    monkeypatch.setattr("playcall.evals.race_live.anyio.sleep", noted)
    server.fault = lambda body: "429:1" if "solve question 3 " in str(body["messages"]) else ""
    assert ended(tmp_path, build_of(server.url)).complete
    assert waits == [5.0]


def one_state(url: str, state: dict[str, str]) -> Any:
    """All its agents ask the models that were given last."""

    def build(models: Mapping[str, str]) -> Any:
        state.update(models)
        client = client_of(url)

        def ask(who: str, prompt: str) -> str:
            body = asking(state[who], prompt, max_tokens=20)
            return str(client.chat.completions.create(**body).choices[0].message.content)

        return lambda task: ask("solver", f"solve {task} by {ask('planner', f'plan {task}')}")

    return build


def test_agents_that_share_the_models_of_a_global_race_nothing(tmp_path: Path, server: Server) -> None:
    made = ended(tmp_path, one_state(server.url, {}), tasks=tasks(40))
    sent = len(server.served)
    again = ended(tmp_path, one_state(server.url, {}), tasks=tasks(40))
    assert (again.stopped, len(server.served)) == (made.stopped, sent)
    assert "arm 'planner=good + solver=good': 10 runs in a row asked 'bad' and none of its own models" in made.stopped
    assert "a role of its own" in made.stopped
    told = [text for text in made.remarks() if "asked 'bad', which it has not, and left a role of it out" in text]
    assert any("planner=good + solver=good" in text for text in told)


def test_a_helper_that_every_arm_asks_is_no_fault(tmp_path: Path, server: Server) -> None:
    def build(models: Mapping[str, str]) -> Any:
        agent, client = build_of(server.url, names=True)(models), client_of(server.url)

        def helped(task: object) -> object:
            client.chat.completions.create(**asking("helper", f"solve {task} by good", max_tokens=20))
            return agent(task)

        return helped

    made = ended(tmp_path, build)
    assert made.complete
    assert not [text for text in made.remarks() if "which it has not" in text]


@pytest.mark.parametrize("limit", [None, 1.0])
def test_what_goes_out_beside_the_calls_is_told(limit: float | None, tmp_path: Path, server: Server) -> None:
    def build(models: Mapping[str, str]) -> Any:
        agent = build_of(server.url)(models)

        def beside(task: object) -> object:
            subprocess.run([sys.executable, "-S", "-E", "-c", ""], check=True)
            return agent(task)

        return beside

    roles = {"planner": ["good"], "solver": ["good", "bad"]}
    rules = Rules(method="brute-force", max_usd=limit)
    made = ended(tmp_path, build, roles=roles, tasks=tasks(3), rules=rules)
    assert made.complete
    told = [text for text in made.remarks() if "in 6 runs or more this went out beside the calls: 'subprocess " in text]
    assert told
    assert "no budget holds it" in told[0]
    again = ended(tmp_path, build, roles=roles, tasks=tasks(3), rules=rules)
    assert [*again.remarks()] == [*made.remarks()]


AGENT = """
import httpx
def build(models):
    client = httpx.Client(base_url={url!r}, verify=False)
    def agent(task):
        message = {{"role": "user", "content": f"solve {{task}} by good"}}
        body = {{"model": "solver", "max_tokens": 20, "messages": [message]}}
        return client.post("/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    return agent
"""


def test_changed_code_is_another_race_and_its_replies_are_kept(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, grader = tmp_path / "agent_d1.py", tmp_path / "grader_d1.py"
    text = AGENT.format(url=server.url)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file.write_text(text)
    grader.write_text("def grade(answer, task):\n    return 1.0\n")
    options: dict[str, Any] = {"roles": {"solver": ["good", "bad"]}, "scoring": "python:grader_d1:grade"}
    whole = ended(tmp_path, load_build(f"{file}:build"), **options)
    assert whole.complete
    for path, said in ((file, "code of the agent was "), (grader, "code of the scorer was ")):
        old = path.read_text()
        path.write_text(f"{old}\n# changed\n")
        with pytest.raises(PlaycallError, match=f"(?s){said}.*--fresh.*not paid again"):
            ended(tmp_path, load_build(f"{file}:build"), **options)
        path.write_text(old)
    assert ended(tmp_path, load_build(f"{file}:build"), **options).made == 0
    file.write_text(f"{text}\n# changed\n")
    sent = len(server.served)
    assert ended(tmp_path, load_build(f"{file}:build"), fresh=True, **options).made == 24
    assert len(server.served) == sent


def test_code_may_be_mended_while_nothing_was_entered(tmp_path: Path, server: Server) -> None:
    file = tmp_path / "agent_d2.py"
    text = AGENT.format(url=server.url)
    file.write_text(text.replace("return client", "1 / 0\n        return client"))
    options: dict[str, Any] = {"roles": {"solver": ["good", "bad"]}}
    assert "ZeroDivisionError" in ended(tmp_path, load_build(f"{file}:build"), **options).stopped
    file.write_text(text)
    assert ended(tmp_path, load_build(f"{file}:build"), **options).complete


def test_an_output_may_be_named_by_a_text(tmp_path: Path, server: Server) -> None:
    made = race(tmp_path, build_of(server.url), output=str(tmp_path / "out.csv"))
    assert made.journal_path == tmp_path / "out.csv.journal.jsonl"
