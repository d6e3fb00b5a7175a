"""`playcall race` on live agents: real clients, a real server, every limit, and no request paid twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from playcall.evals.race_live import arms_of
from playcall.evals.scorers import ScoreError
from playcall.evals.tasks import Task
from playcall.portfolio.race import Rules
from playcall.strategies import NANO, Misuse
from playcall.strategies.track import role

from ..serving import Server
from .races import ROLES, abuild_of, asking, build_of, client_of, ended, figures, paid, race, settled, tasks


def plain(build: Any) -> Any:
    """Its agents are plain functions that return coroutines."""

    def built(models: Mapping[str, str]) -> Any:
        agent = build(models)
        return lambda task: agent(task)

    return built


BUILDS = {
    "sync": build_of,
    "async": abuild_of,
    "sync-names": lambda url: build_of(url, names=True),
    "async-names": lambda url: abuild_of(url, names=True),
    "coroutine": lambda url: plain(abuild_of(url)),
    "own-loop": lambda url: lambda models: lambda task: asyncio.run(abuild_of(url)(models)(task)),
}


@pytest.mark.parametrize("kind", BUILDS)
def test_every_arm_runs_with_its_models_and_is_scored_and_billed(kind: str, tmp_path: Path, server: Server) -> None:
    told: list[int] = []
    made = race(tmp_path, BUILDS[kind](server.url))
    made.tell = lambda: told.append(made.made)
    anyio.run(made.run)
    assert (made.stopped, made.complete, made.made) == ("done", True, 48)
    assert set(told) == set(range(49))
    quality = {r.arm: r.quality for r in made.raced().arms}
    assert quality == {
        "planner=good + solver=good": 1.0,
        "planner=bad + solver=good": 1.0,
        "planner=good + solver=bad": pytest.approx(1 / 3),
        "planner=bad + solver=bad": 0.0,
    }
    # a plan is asked of each model once, and shared by the arms that have it
    assert made.calls == len(server.served) == 24 + 48
    assert made.spent == settled(server).bill()
    assert set(paid(server).values()) == {1}
    # but each arm counts with what it costs
    each = {r.arm: round(r.cost * 12 * NANO) for r in made.raced().arms}
    plans = {m: sum(s.price for s in server.served if s.model == m and "plan" in s.prompt[:4]) for m in ("good", "bad")}
    solved = Counter[str]()
    for s in server.served:
        if s.prompt.startswith("solve"):
            solved[f"planner={s.prompt.split()[-1]} + solver={s.model}"] += s.price
    assert each == {arm: solved[arm] + plans[arm.split("=")[1].split()[0]] for arm in each}
    assert made.facts is not None
    if "names" not in kind:
        roles = {name: (f.called_share, f.calls) for name, f in made.facts.roles.items()}
        assert roles == {"planner": (1.0, 48), "solver": (1.0, 48)}


def test_an_agent_that_names_models_has_the_roles_that_they_tell(tmp_path: Path, server: Server) -> None:
    roles = {"planner": ["good"], "solver": ["bad", "worse"]}
    made = ended(tmp_path, build_of(server.url, names=True), roles=roles)
    assert made.facts is not None
    assert {name: f.calls for name, f in made.facts.roles.items()} == {"planner": 24, "solver": 24}
    assert made.facts.warnings == ()


def test_roles_of_one_model_are_not_told_apart_and_not_said_to_be_uncalled(tmp_path: Path, server: Server) -> None:
    made = ended(tmp_path, build_of(server.url, names=True), roles={"planner": ["good"], "solver": ["good"]})
    assert made.facts is not None
    assert {name: f.calls for name, f in made.facts.roles.items()} == {"planner/solver": 24}
    assert made.facts.warnings == ()


def test_a_role_that_is_never_called_is_told_with_its_arm_after_a_resume_too(tmp_path: Path, server: Server) -> None:
    def build(models: Mapping[str, str]) -> Any:
        client = client_of(server.url)

        def agent(task: object) -> str:
            with role("solver"):
                body = asking("any", f"solve {task} by good")
                return str(client.chat.completions.create(**body).choices[0].message.content)

        return agent

    first = ended(tmp_path, build)
    again = ended(tmp_path, build)
    assert again.made == 0
    for made in (first, again):
        assert made.facts is not None
        told = [w for w in made.facts.warnings if "'planner' was called in none of 12 runs" in w]
        assert [w.split(": ")[0] for w in told] == [f"arm {arm!r}" for arm in arms_of(ROLES)]
    assert again.facts == first.facts
    assert figures(again) == figures(first)


def test_runs_are_made_some_at_a_time(tmp_path: Path, server: Server) -> None:
    for kind in (build_of, abuild_of):
        server.served.clear()
        most = 0

        def look() -> str:
            nonlocal most
            most = max(most, sum(not s.finished and s.gone is None for s in server.served))
            return "delay:2"

        server.fault = lambda body: look()
        made = ended(tmp_path, kind(server.url), concurrency=3, output=tmp_path / kind.__name__)
        assert made.complete
        assert 1 < most <= 3


def test_a_race_asks_only_what_it_must(tmp_path: Path, server: Server) -> None:
    rules = Rules(first=5, batch=5)
    made = ended(tmp_path, build_of(server.url), tasks=tasks(60), rules=rules)
    raced = made.raced()
    assert raced.chosen in ("planner=good + solver=good", "planner=bad + solver=good")
    assert raced.evaluations == made.made < raced.brute_force_evaluations
    assert raced.stopped == "done"


# what a user can get wrong


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scoring": "judge:gpt"}, "judge:gpt.*a race has none"),
        ({"scoring": "nonsense"}, "no scorer 'nonsense'"),
        ({"tasks": [Task("a", "x", "1")] * 2}, "two tasks have the id 'a'"),
        ({"tasks": [Task("a", "x")]}, "'a' has no reference"),
        ({"tasks": []}, "needs items"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"failures": "drop"}, "write zero or retry"),
        ({"rules": Rules(max_usd=1.0), "prices": None}, r"price of 'good', 'bad': give prices="),
    ],
)
def test_what_can_be_known_before_a_call_is_refused_before_it(
    options: Any, says: str, tmp_path: Path, server: Server
) -> None:
    with pytest.raises(Misuse, match=says):
        race(tmp_path, build_of(server.url), **options)
    assert server.served == []


# failures


def test_runs_that_fail_count_as_0_and_are_told_without_keys(tmp_path: Path, server: Server) -> None:
    def build(models: Mapping[str, str]) -> Any:
        agent = build_of(server.url)(models)

        def bad(task: object) -> object:
            found = agent(task)
            if models["solver"] == "good":
                return found
            if str(task)[-1] == "1":
                return None
            raise ValueError("my key is SECRET-KEY")

        return bad

    made = ended(tmp_path, build)
    assert made.complete
    assert made.failed == {"planner=good + solver=bad": 12, "planner=bad + solver=bad": 12}
    row = next(r for r in made.raced().arms if r.arm == "planner=bad + solver=bad")
    assert (row.asked, row.failures, row.quality) == (12, 12, 0.0)
    assert row.cost > 0
    told = [text for text in made.remarks() if "failed" in text]
    assert told[0] == (
        "12 of 12 runs of planner=good + solver=bad failed and count as 0, most by ValueError: my key is ***"
    )
    assert "SECRET" not in made.journal_path.read_text()
    assert {r.quality for r in made.raced().arms if "solver=good" in r.arm} == {1.0}


@pytest.mark.parametrize("build", [build_of, abuild_of], ids=["sync", "async"])
@pytest.mark.parametrize("error", [SystemExit("bye"), asyncio.CancelledError("mine")], ids=repr)
def test_an_agent_that_exits_or_cancels_itself_fails_and_ends_no_race(
    build: Any, error: BaseException, tmp_path: Path, server: Server
) -> None:
    def leaving(models: Mapping[str, str]) -> Any:
        agent = build(server.url)(models)

        def left(task: object) -> Any:
            found = agent(task)
            if task == "question 2" and build is build_of:
                raise error
            return found

        async def aleft(task: object) -> Any:
            found = await agent(task)
            if task == "question 2":
                raise error
            return found

        return left if build is build_of else aleft

    made = ended(tmp_path, leaving)
    assert made.complete
    assert set(made.failed.values()) == {1}


def test_a_run_that_failed_is_made_once_more_with_answers_of_its_own_if_told(tmp_path: Path, server: Server) -> None:
    tried = Counter[str]()

    def build(models: Mapping[str, str]) -> Any:
        agent = build_of(server.url)(models)

        def flaky(task: object) -> object:
            found = agent(task)
            tried[str(task)] += 1
            if tried[str(task)] == 1:
                raise ValueError("what a mess")
            return found

        return flaky

    roles = {"planner": ["good"], "solver": ["good"]}
    made = ended(tmp_path, build, roles=roles, failures="retry")
    assert (made.complete, made.made, made.failed.total()) == (True, 12, 0)
    assert made.raced().arms[0].quality == 1.0
    assert set(tried.values()) == {2}
    assert set(paid(server).values()) == {2}
    assert made.spent == settled(server).bill()


@pytest.mark.parametrize("fault", ["429:1", "503:1", "cut:1", "close:1"])
def test_a_limit_or_a_server_that_fails_once_costs_an_arm_nothing(fault: str, tmp_path: Path, server: Server) -> None:
    server.fault = lambda body: fault if "solve question 3" in str(body["messages"]) else ""
    made = ended(tmp_path, build_of(server.url))
    assert (made.complete, made.failed.total()) == (True, 0)
    assert {r.quality for r in made.raced().arms if "solver=good" in r.arm} == {1.0}


def test_a_server_that_goes_on_failing_counts_and_is_told(tmp_path: Path, server: Server) -> None:
    server.fault = lambda body: "500" if "solve question 3 " in str(body["messages"]) else ""
    first = ended(tmp_path, build_of(server.url))
    assert (first.complete, first.made, first.failed.total()) == (False, 44, 0)
    assert "4 runs failed twice, the last one of " in first.stopped
    assert "server: " in first.stopped
    assert "start again when the server answers: what fails by it once more counts as 0" in first.stopped
    made = ended(tmp_path, build_of(server.url))
    assert (made.complete, made.made, set(made.failed.values())) == (True, 4, {1})
    assert all("by server: " in text for text in made.remarks() if "failed" in text)
    assert len([text for text in made.remarks() if "failed" in text]) == 4


@pytest.mark.parametrize(
    ("fault", "says"), [("401", "'bad': auth: "), ("404", "'bad': not_found: "), ("quota", "'bad': quota: ")]
)
@pytest.mark.parametrize("swallow", [False, True])
def test_what_no_run_can_get_past_stops_the_race_and_eliminates_no_arm(
    fault: str, says: str, swallow: bool, tmp_path: Path, server: Server
) -> None:
    def build(models: Mapping[str, str]) -> Any:
        agent = build_of(server.url)(models)

        def calm(task: object) -> str:
            try:
                return str(agent(task))
            except Exception:
                return "sorry"

        return calm if swallow else agent

    server.fault = lambda body: fault if body["model"] == "bad" else ""
    made = ended(tmp_path, build)
    assert f"model {says}" in made.stopped
    assert "start again" in made.stopped
    assert not made.complete
    assert not made.failed
    assert all(r.failures == 0 for r in made.raced().arms)
    assert "SECRET" not in made.stopped
    server.fault = None
    again = ended(tmp_path, build)
    assert again.complete
    assert set(paid(server).values()) == {1}


def test_an_agent_whose_calls_nobody_sees_stops_the_race(tmp_path: Path, server: Server) -> None:
    import http.client

    def build(models: Mapping[str, str]) -> Any:
        def agent(task: object) -> str:
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request("POST", "/v1/chat/completions", json.dumps(asking("good", f"solve {task} by good")))
            return str(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"])

        return agent

    with pytest.warns(UserWarning, match="no model call was recorded"):
        made = ended(tmp_path, build)
    assert f"went out: 'connection to 127.0.0.1:{server.port}'" in made.stopped
    assert "httpx" in made.stopped
    assert made.raced().evaluations == 0
    assert made.made == 0


def test_an_agent_that_fails_before_any_call_stops_the_race_with_its_error(tmp_path: Path) -> None:
    def build(models: Mapping[str, str]) -> Any:
        return lambda task: {}["plan"]

    made = ended(tmp_path, build)
    assert "the agent failed before: KeyError: 'plan'" in made.stopped
    assert made.raced().evaluations == 0


def test_a_server_that_answers_nothing_at_all_stops_the_race(tmp_path: Path, server: Server) -> None:
    server.fault = lambda body: "503"
    made = ended(tmp_path, build_of(server.url), concurrency=2)
    assert "no model call was answered" in made.stopped
    assert "server: " in made.stopped
    assert made.raced().evaluations == 0


def test_a_race_about_cost_stops_where_nobody_knows_what_a_model_costs(tmp_path: Path, server: Server) -> None:
    made = ended(tmp_path, build_of(server.url), prices=None, rules=Rules(cost_weight=1.0))
    assert "about cost, and nobody knows the price of " in made.stopped
    assert made.raced().evaluations == 0


def test_a_scorer_that_fails_is_an_error_and_its_answers_are_not_paid_again(tmp_path: Path, server: Server) -> None:
    one = {"roles": {"planner": ["good"], "solver": ["good"]}}
    made = race(tmp_path, build_of(server.url), **one)

    class Bad:
        async def __call__(self, task: Task, answer: str) -> float:
            raise ScoreError("mend me")

        def check(self, task: Task) -> None: ...

    made.scorer = Bad()
    with pytest.raises(ScoreError, match="mend me"):
        anyio.run(made.run)
    again = ended(tmp_path, build_of(server.url), **one)
    assert again.complete
    assert set(paid(server).values()) == {1}
    assert again.spent == settled(server).bill()
