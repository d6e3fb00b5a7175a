"""Races to run in tests: an agent with a planner and a solver, the server that it asks, and a process that races."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import openai

from playcall.evals import race_live
from playcall.evals.race_live import LiveRace
from playcall.evals.tasks import Task
from playcall.portfolio.race import Rules
from playcall.strategies import Price

from ..serving import Server

race_live.PAUSE = 0.01
ROLES = {"planner": ["good", "bad"], "solver": ["good", "bad"]}
PRICES = {name: Price(1.0, 2.0) for name in ("good", "bad", "worse")}  # the server's
Build = Callable[[Mapping[str, str]], Any]


def tasks(count: int = 12) -> list[Task]:
    return [Task(f"q{i}", f"question {i}", str(i % 5)) for i in range(count)]


def answer(body: dict[str, Any]) -> str:
    """A solver is right where it is good, and on some tasks where its plan is."""
    prompt = str(body["messages"][-1]["content"])
    number = int(prompt.split()[2])
    if prompt.startswith("plan"):
        return body["model"]
    plan = prompt.split()[-1]
    right = body["model"] == "good" or (plan == "good" and number % 3 == 0)
    return str(number % 5) if right else "no idea"


def asking(model: str, prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], **more}


def client_of(url: str, **more: Any) -> openai.OpenAI:
    """Unverified, since it takes long to read the authorities' certificates."""
    client = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=url, api_key="SECRET-KEY", http_client=client, **{"max_retries": 0, **more})


def aclient_of(url: str, **more: Any) -> openai.AsyncOpenAI:
    client = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=url, api_key="SECRET-KEY", http_client=client, **{"max_retries": 0, **more})


def build_of(url: str, *, names: bool = False, **more: Any) -> Build:
    """A sync agent that asks a planner and then a solver, by their roles' names or the models'."""

    def build(models: Mapping[str, str]) -> Any:
        client = client_of(url)

        def ask(who: str, prompt: str) -> str:
            body = asking(models[who] if names else who, prompt, **{"max_tokens": 20, **more})
            return str(client.chat.completions.create(**body).choices[0].message.content)

        return lambda task: ask("solver", f"solve {task} by {ask('planner', f'plan {task}')}")

    return build


def abuild_of(url: str, *, names: bool = False) -> Build:
    """The same, async."""

    def build(models: Mapping[str, str]) -> Any:
        client = aclient_of(url)

        async def ask(who: str, prompt: str) -> str:
            body = asking(models[who] if names else who, prompt, max_tokens=20)
            return str((await client.chat.completions.create(**body)).choices[0].message.content)

        async def agent(task: object) -> str:
            return await ask("solver", f"solve {task} by {await ask('planner', f'plan {task}')}")

        return agent

    return build


def race(folder: Path, build: Build, **options: Any) -> LiveRace:
    given: dict[str, Any] = {
        "build": build, "roles": ROLES, "tasks": tasks(), "scoring": "exact", "output": folder / "race.json",
        "prices": PRICES, "rules": Rules(method="brute-force"),
    }  # fmt: skip
    return LiveRace(**{**given, **options})


def ended(folder: Path, build: Build, **options: Any) -> LiveRace:
    made = race(folder, build, **options)
    anyio.run(made.run)
    return made


def figures(made: LiveRace) -> Any:
    """What an interrupted race must bring to the same."""
    return [(r.arm, r.state, r.asked, r.failures, r.quality, r.cost) for r in made.raced().arms]


def settled(server: Server) -> Server:
    """Its books are closed a moment after the last byte is out."""
    assert server.until(lambda: all(s.price or s.gone is not None or s.status >= 300 for s in server.served))
    return server


def paid(server: Server) -> Counter[str]:
    settled(server)
    return Counter(json.dumps([s.model, s.body["messages"]]) for s in server.served if s.finished and s.price)


FORKS = """
import json, os, sys
from pathlib import Path
import anyio, openai
from playcall.evals.race_live import LiveRace, load_build
from playcall.evals.run_cli import interruptible
from playcall.evals.tasks import Task
from playcall.portfolio.race import Rules
from playcall.strategies import Price

build = load_build(sys.argv[1])
tasks = [Task(f"q{i}", f"question {i}", str(i % 5)) for i in range(int(sys.argv[2]))]
prices = {name: Price(1.0, 2.0) for name in ("good", "bad")}
for line in sys.stdin:
    output, concurrency = line.split()
    if not (pid := os.fork()):
        race = LiveRace(
            build=build, roles={"planner": ["good", "bad"], "solver": ["good", "bad"]}, tasks=tasks, scoring="exact",
            output=Path(output), prices=prices, rules=Rules(first=5, batch=5, max_usd=1.0),
            concurrency=int(concurrency),
        )
        anyio.run(interruptible, race.run)
        arms = [(r.arm, r.state, r.asked, r.failures, r.quality, r.cost) for r in race.raced().arms]
        roles = {name: (f.calls, f.usd) for name, f in race.facts.roles.items()}
        Path(output).write_text(json.dumps([race.stopped, race.spent, arms, roles]))
        os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""
"""Runs a race for each line of its input, in a process of its own."""
