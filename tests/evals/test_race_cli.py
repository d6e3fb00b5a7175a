"""`playcall race` from the command line: on recorded outcomes, on live agents, and what it writes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from playcall.evals import read_table
from playcall.evals import show as shown
from playcall.evals.race_table import Recorded
from playcall.portfolio import Policy
from playcall.portfolio.race import Rules
from playcall.portfolio.simulated import Simulated, replay
from playcall.strategies import Ask

from ..serving import Server, serve
from .races import settled
from .test_cli import DATA, run  # noqa: F401

RATES = {
    "planner=a + solver=x": 0.9,
    "planner=a + solver=y": 0.6,
    "planner=b + solver=x": 0.8,
    "planner=b + solver=y": 0.2,
}
CHOSEN = "planner=a + solver=x"
CRUX = ["race", "--table", str(DATA / "zeroeval_crux.parquet")]
LITTLE = ["race", "--table", "t.jsonl", "--expected-regret", "0.02"]
AGENT = """
import os, signal
import httpx

def build(models):
    client = httpx.Client(base_url=os.environ["RACED"])

    def ask(who, prompt):
        body = {"model": who, "max_tokens": 5, "messages": [{"role": "user", "content": prompt}]}
        return client.post("/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]["content"]

    def agent(task):
        if task == os.environ.get("STOP_AT"):
            os.kill(os.getpid(), signal.SIGINT)
        return ask("solver", ask("planner", task) + " " + task)

    return agent
"""


def outcomes(**changed: Any) -> list[dict[str, Any]]:
    """Sixty items by four arms, each right on its share of them; an arm's item costs a cent for each letter x."""
    rng = np.random.default_rng(1)
    luck = {arm: rng.permutation(60) / 60 for arm in RATES}
    return [
        {"item": f"q{i}", "arm": arm, "score": float(luck[arm][i] < rate), "cost_usd": 0.01 + 0.02 * arm.count("x")}
        | {"latency_s": 1.0, "answer": "yes"}
        | changed
        for arm, rate in RATES.items()
        for i in range(60)
    ]


def write(rows: list[dict[str, Any]], path: str = "t.jsonl") -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_race_on_a_table_says_what_to_take_how_sure_it_is_and_what_it_took(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write(outcomes())
    status, out, _ = run(*LITTLE)
    assert status == 0
    expected = replay(Recorded.of(read_table("t.jsonl")).table, Rules(regret=0.02))[1]
    said = words(out)
    assert f"Take {CHOSEN} for quality: quality " in said
    assert f"{expected.evaluations} of the 240 runs of brute force" in said
    assert f"${expected.dollars:.4g} of $4.8" in said
    assert "with 90% confidence it loses at most" in said
    assert "Roles planner: its models differ by" in said
    assert max(map(len, out.splitlines())) <= 132
    status, out, _ = run(*LITTLE, "--json")
    document = json.loads(out)
    assert document.pop("notes") == []
    assert document == expected.to_dict()


def test_the_same_items_in_another_order_are_another_race(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write(outcomes())
    orders = [json.loads(run(*LITTLE, "--seed", seed, "--json")[1])["dollars"] for seed in "01012"]
    assert orders[:2] == orders[2:4]
    assert len(set(orders)) > 1


def test_simulated_races_print_exactly_the_fields_of_their_summary(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write(outcomes())
    status, out, _ = run(*LITTLE, "--simulate", "5", "--json")
    document = json.loads(out)
    assert status == 0
    assert [*document] == [field.name for field in fields(Simulated)]
    assert (document["seeds"], document["brute_force_evaluations"]) == (5, 240)
    assert document["evaluations"] < 240
    assert document["brute_force_dollars"] == pytest.approx(4.8)
    out = words(run(*LITTLE, "--simulate", "5")[1])
    assert "5 races by paired" in out
    assert f"{document['evaluations']:,.0f} │ 240" in out


def test_a_play_of_ones_own_races_on_the_same_items(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    rows = [  # three that are wrong on a third of the items each, no two on the same
        {"item": f"q{i}", "arm": f"m{k}", "answer": f"wrong {k}" if i % 3 == k else "right", "score": float(i % 3 != k)}
        | {"cost_usd": 0.01}
        for i in range(90)
        for k in range(3)
    ]
    write(rows)
    Path("plays.py").write_text("from playcall.strategies import *\nmine = vote('m0', 'm1', 'm2')\n")
    given = [*LITTLE, "--strategy", "plays.py:mine"]
    status, out, _ = run(*given, "--json", "--policy", "p.json")
    document = json.loads(out)
    assert (status, document["chosen"]) == (0, "mine")
    best = document["arms"][0]
    assert (best["quality"], best["cost"]) == (1.0, pytest.approx(0.03))
    assert "m0, m1 and m2" in run("explain", "p.json")[1]
    assert Policy.load("p.json").figures.calls == 3
    status, _, err = run(*given, "--router", "r.yaml")
    assert (status, "'mine' won" in err) == (2, True)


def test_a_threshold_takes_the_cheapest_arm_that_clears_it(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write([row | ({"cost_usd": 0.001} if row["arm"] == "planner=b + solver=x" else {}) for row in outcomes()])
    status, out, _ = run(*LITTLE, "--threshold", "0.6")
    assert status == 0
    assert "Take planner=b + solver=x for the cheapest arm of quality 0.6 or more" in words(out)
    assert "no arm is on the wrong side of 60.0 % by more than 2.0 points" in words(out)


def test_a_threshold_that_no_arm_clears_has_a_status_of_its_own_and_names_the_nearest(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write(outcomes())
    status, out, _ = run(*LITTLE, "--threshold", "1", "--policy", "p.json", "--router", "r.yaml")
    assert status == 3
    assert f"Take nothing: no arm clears 100.0 %; the nearest is {CHOSEN}" in words(out)
    assert not Path("p.json").exists()
    assert not Path("r.yaml").exists()
    status, out, _ = run(*LITTLE, "--threshold", "0.9", "--max-calls", "8", "--json")
    assert (status, json.loads(out)["chosen"]) == (2, None)  # some still may
    assert {arm["state"] for arm in json.loads(out)["arms"]} >= {"nearest", "in the set"}


def test_a_cheaper_arm_that_is_hardly_behind_is_named(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Two of 200 items behind, at a tenth of the cost."""
    right = {"dear": 160, "cheap": 158, "poor": 60}
    costs = {"dear": 0.1, "cheap": 0.01, "poor": 0.001}
    write([
        {"item": f"q{i:03}", "arm": arm, "score": float(i * 7 % 200 < n), "cost_usd": costs[arm]}
        for i in range(200) for arm, n in right.items()
    ])  # fmt: skip
    out = words(run(*LITTLE, "--expected-regret", "0")[1])
    assert "Take dear for quality" in out
    assert "Cheaper cheap is 1.1 points behind on the same 180 items, at 10.0% of the cost" in out


def test_arms_that_did_exactly_as_well_are_ties_and_the_cheapest_is_named(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    rows = outcomes()
    write([*rows, *(row | {"arm": "twin", "cost_usd": 0.005} for row in rows if row["arm"] == CHOSEN)])
    said = words(run(*LITTLE, "--epsilon", "0")[1])
    assert f"Ties '{CHOSEN}'" in said or "Ties 'twin'" in said
    assert "did exactly as well on the same 60 items; the cheapest of these is twin, at $0.005 an item" in said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--budget", "0.5"], "before its end: the budget is reached: the next run would pass 0.5 USD"),
        (["--max-calls", "12"], "before its end: --max-calls is reached"),
        (["--max-time", "0"], "before its end: --max-time is reached"),
    ],
)
def test_a_cap_that_ended_the_race_is_said(run, option: list[str], said: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write(outcomes())
    status, out, _ = run(*LITTLE, *option)
    assert said in words(out)
    assert status == (2 if option[0] == "--max-time" else 0)  # no time at all: nothing to take


def test_failures_are_said_arm_by_arm(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    worst = "planner=b + solver=y"
    write([row | ({"answer": None, "score": 0.0} if row["arm"] == worst else {}) for row in outcomes()])
    out = run(*LITTLE, "--json")[1]
    asked = next(arm["asked"] for arm in json.loads(out)["arms"] if arm["arm"] == worst)
    assert f"{asked} runs, counted as 0: {worst} {asked} of {asked}" in words(run(*LITTLE)[1])


def test_what_was_not_recorded_is_unknown_and_not_free(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write([row | ({"cost_usd": None} if row["arm"] == CHOSEN else {}) for row in outcomes(latency_s=None)])
    status, out, _ = run(*LITTLE, "--json", "--policy", "p.json")
    best = json.loads(out)["arms"][0]
    assert (status, best["arm"], best["cost"], best["latency"]) == (0, CHOSEN, None, None)
    assert json.loads(out)["dollars"] is None
    assert "$" not in run(*LITTLE)[1]
    assert Policy.load("p.json").figures.cost_per_task is None
    assert json.loads(run(*LITTLE, "--simulate", "1", "--json")[1])["brute_force_dollars"] is None
    for option in (["--weights", "cost=1"], ["--threshold", "0.5"], ["--budget", "1"], ["--weights", "latency=1"]):
        status, _, err = run(*LITTLE, *option)
        assert (status, "Traceback" in err) == (2, False)
        assert f"{option[0]}" in err
        assert f"t.jsonl has none, or too few, of '{CHOSEN}'" in err


def test_a_recommendation_becomes_a_router_that_litellm_takes(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it is fetched
    names = {"=a": "=openai/a", "=b": "=gpt-4o", "=x": "=anthropic/x", "=y": "=mistral/y"}
    rows = outcomes()
    for row in rows:
        for old, new in names.items():
            row["arm"] = row["arm"].replace(old, new)
    write(rows)
    assert run(*LITTLE, "--router", "router.yaml", "--first", "4")[0] == 0
    told = yaml.safe_load(Path("router.yaml").read_text())
    asked = {model["model_name"]: model["litellm_params"]["model"] for model in told["model_list"]}
    assert asked == {
        "planner": "openai/a",
        "solver": "anthropic/x",
        "planner-fallback": "gpt-4o",
        "solver-fallback": "mistral/y",
    }
    assert told["router_settings"] == {
        "fallbacks": [{"planner": ["planner-fallback"]}, {"solver": ["solver-fallback"]}]
    }
    import litellm

    router = litellm.Router(model_list=told["model_list"], **told["router_settings"])
    message = [{"role": "user", "content": "hello"}]
    replies = [
        router.completion("planner", message, mock_response="hi", mock_testing_fallbacks=fails).model
        for fails in (False, True)
    ]
    assert replies == ["a", "gpt-4o"]  # where the first fails, the other is asked


def test_a_recommendation_becomes_a_policy_and_a_page(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    write(outcomes())
    status, out, err = run(*LITTLE, "--policy", "p.json", "--report", "r.html", "--json")
    best = json.loads(out)["arms"][0]
    policy = Policy.load("p.json")
    figures = policy.figures
    assert (status, policy.strategy, policy.prices) == (0, Ask(CHOSEN), {CHOSEN: best["cost"]})
    assert (figures.quality, figures.quality_low, figures.quality_high) == (
        best["corrected"],
        best["low"],
        best["high"],
    )
    assert (figures.apparent_quality, figures.tasks) == (best["quality"], best["asked"])
    assert policy.notes[0].startswith("From a race for quality")
    assert "The arm is a whole agent: build it with a as planner, x as solver." in policy.notes
    assert any("loses at most" in note for note in policy.notes)
    assert f"{100 * best['corrected']:.1f} [" in run("show", "p.json")[1]
    assert "Written: p.json, r.html." in err
    page = json.loads(Path("r.html").read_text("utf-8").split("application/json>")[1].split("</script>")[0])
    assert (page["chosen"], page["name"]) == (CHOSEN, "t.jsonl")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["race"], "agent.py:build"),
        ([*CRUX, "--method", "hyperband"], "successive-halving"),
        ([*CRUX, "--method", "random", "--threshold", "0.5"], "--threshold says nothing to --method random"),
        ([*CRUX, "--where", "arm=nobody"], "'nobody'"),
        ([*CRUX, "--columns", "score"], "name=value"),
        (["race", "--table", "nowhere.csv"], "no such file"),
        (["race", "--where", "a=b"], "go with --table"),
        ([*CRUX, "--where", "arm=gpt-4o-2024-05-13"], "a single arm, 'gpt-4o-2024-05-13'"),
        ([*CRUX, "--weights", "cost=1"], "--weights cost=.. needs costs"),
        ([*CRUX, "--weights", "latency=1"], "needs latencies"),
        ([*CRUX, "--weights", "speed=1"], "speed"),
        ([*CRUX, "--weights", "latency=1", "--threshold", "0.5"], "a threshold wants the cheapest arm"),
        ([*CRUX, "--delta", "1"], "delta=1.0"),
        ([*CRUX, "--roles", "r.yaml"], "only for an agent"),
        ([*CRUX, "-o", "mine.csv", "--fresh", "--no-cache"], "--output, --no-cache, --fresh: only for an agent"),
        ([*CRUX, "--concurrency", "3", "--failures", "retry"], "--concurrency, --failures: only for an agent"),
        (["race", "agent.py:build", "--missing", "fail"], "--missing, --canonical, --verifier and --strategy go with"),
        (["race", "agent.py:build", "--canonical", "number"], "go with --table"),
        (["race", "agent.py:build", "--verifier", "score"], "go with --table"),
        ([*CRUX, "--simulate", "2", "--report", "r.html"], "take it away"),
        ([*CRUX, "--router", "none/r.yaml"], "there is no folder none"),
        (["race", "agent.py:build"], "--roles and --tasks and --scorer too"),
        (["race", "agent.py:build", "--simulate", "3"], "--simulate replays recorded outcomes"),
        (["race", "agent.py:build", *CRUX[1:]], "Give one of them"),
    ],
)
def test_a_refusal_says_what_to_do(run, arguments: list[str], said: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    status, out, err = run(*arguments)
    assert (status, "Traceback" in out + err) == (2, False)
    assert said in words(err)


def answer(body: dict[str, Any]) -> str:
    """A solver is right where it is good, and on every other task else."""
    prompt = str(body["messages"][-1]["content"]).split()
    if len(prompt) == 1:
        return "plan"
    number = int(prompt[-1].removeprefix("q"))
    return str(number) if body["model"] == "good" or number % 2 else "?"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Server, list[str]]]:
    """A server, and the arguments of a race of four agents on ten tasks."""
    with serve(answer=answer) as server:
        monkeypatch.setenv("RACED", server.url)
        (tmp_path / "agent.py").write_text(AGENT)
        (tmp_path / "roles.yaml").write_text("planner: [good, fair]\nsolver: [good, fair]\n")
        (tmp_path / "prices.yaml").write_text("good: {input: 1, output: 2}\nfair: {input: 1, output: 2}\n")
        tasks = [{"id": f"q{i}", "task": f"q{i}", "reference": str(i)} for i in range(10)]
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        given = ["--roles", "roles.yaml", "--tasks", "tasks.jsonl", "--scorer", "exact", "--prices", "prices.yaml"]
        yield server, ["race", "agent.py:build", *given, "--budget", "1", "--first", "4"]


def test_a_live_race_tells_what_was_paid_and_who_did_it_and_leaves_a_table(run, live) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    server, given = live
    status, out, _ = run(*given, "--report", "r.html", "--router", "router.yaml", "--policy", "p.json")
    said = words(out)
    assert status == 0
    assert "solver=good for quality" in said
    assert f"${settled(server).bill() / 1e9:.6f} for {len(server.served)} model calls" in said
    assert "Calls planner: in 100% of the runs" in said
    assert "solver: in 100% of the runs" in said
    status, out, err = run(*given, "--json")
    document = json.loads(out)
    assert (document["spent_usd"], document["calls"]) == (
        pytest.approx(settled(server).bill() / 1e9),
        len(server.served),
    )
    assert document["roles"]["solver"]["calls"] == document["evaluations"]
    assert "race.parquet.journal.jsonl, 0 of this start" in err  # nothing is paid twice
    recording = read_table("race.parquet", missing="drop-items")
    assert len(recording.arms) == 4
    assert len(recording) == min(arm["asked"] for arm in document["arms"])  # what was not run is not there
    status, _, err = run(*given[:-4], "--scorer", "python:nowhere:grade")
    assert (status, "nowhere" in err) == (2, True)
    for roles, told in (("planner: 3", "roles.yaml: planner"), ("planner: good", "a role with two models")):
        Path("roles.yaml").write_text(roles)
        status, _, err = run(*given)
        assert (status, told in err) == (2, True)


def test_what_an_agent_or_its_file_prints_is_not_in_the_json(run, live) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    Path("agent.py").write_text(
        AGENT.replace("        return ask(", "        print('noise')\n        return ask(") + "print(1)"
    )
    status, out, err = run(*live[1], "--json")
    assert (status, json.loads(out)["stopped"], "noise" in err) == (0, "done", True)


def test_an_interrupt_before_the_race_has_its_status_and_no_traceback(run, live) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    Path("agent.py").write_text("raise KeyboardInterrupt")
    status, _, err = run(*live[1])
    assert (status, "Traceback" in err) == (130, False)


def test_an_arm_whose_every_run_failed_is_not_recommended(run) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    rows = [row | {"answer": None, "score": 0.0} for row in outcomes()]
    write([*rows, *(rows[0] | {"item": "q99", "arm": arm, "answer": "no"} for arm in RATES)])
    given = [*LITTLE, "--policy", "p.json", "--router", "r.yaml"]
    status, out, err = run(*given)
    assert (status, Path("p.json").exists(), Path("r.yaml").exists()) == (2, False, False)
    assert "the best arm that was found, failed: do not take it" in words(out + err)
    assert "Not written, since no arm is chosen that works: r.yaml, p.json." in words(err)


def test_an_interrupted_race_keeps_everything_and_says_how_to_go_on(run, live, monkeypatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    server, given = live
    monkeypatch.setenv("STOP_AT", "q3")
    monkeypatch.setattr("playcall.evals.race_show._EVERY", 0.0)  # a line on standard error after each run
    given = [*given, "--method", "brute-force", "--concurrency", "1", "-o", "mine.csv"]
    status, _, err = run(*given)
    assert status == 130
    assert f"Go on by: playcall {' '.join(given)}" in err
    assert re.search(
        r"4 of 4 arms left, \d+ runs \(0 failed\), \d+ calls, \$0\.0000, \d+ s left at most; planner=", err
    )
    assert len(server.served) < 80
    monkeypatch.delenv("STOP_AT")
    status, out, _ = run(*given, "--json")
    assert (status, json.loads(out)["evaluations"], json.loads(out)["stopped"]) == (0, 40, "done")
    assert len(read_table("mine.csv")) == 10
    prompts = [(s.model, s.prompt, json.dumps(s.body)) for s in server.served if s.finished]
    assert len(prompts) == len(set(prompts))


def test_a_table_that_is_of_no_race_is_not_overwritten(run, live) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    Path("mine.csv").write_text("precious")
    status, _, err = run(*live[1], "-o", "mine.csv")
    assert (status, "mine.csv is there and is of no race" in err) == (2, True)
    assert Path("mine.csv").read_text() == "precious"
    assert live[0].served == []


def test_a_race_is_watched_on_a_terminal_and_a_budget_that_ends_it_is_said(run, live, monkeypatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    text = io.StringIO()
    monkeypatch.setattr(shown, "errors", Console(file=text, force_terminal=True, highlight=False, width=140))
    monkeypatch.setattr("playcall.evals.race_show._SOON", 0.0)
    status, out, _ = run(*live[1], "--budget", "0.00028")
    assert status == 0
    assert "before its end: the budget is reached" in words(out)
    assert "4 of 4 arms left" in text.getvalue()
    assert "behind, points" in text.getvalue()
    assert "Go on by" in text.getvalue()
