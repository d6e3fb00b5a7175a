"""`playcall race`: which arm is best, on recorded outcomes or live, without asking every arm everything."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import typer

from playcall.evals import options as taken
from playcall.evals import race_show
from playcall.evals import show as shown
from playcall.evals.options import Canonical, Columns, Verifier, Weights, Where, Yours, taking
from playcall.evals.race_table import Recorded
from playcall.evals.run_cli import INTERRUPTED, Prices, interruptible
from playcall.evals.scorers import NAMES
from playcall.evals.table import read_table
from playcall.evals.tasks import read_tasks
from playcall.evals.written import OURS, check_name, write_table
from playcall.portfolio.files import write_whole
from playcall.portfolio.race import METHODS, Rules
from playcall.portfolio.raced import Raced, plain
from playcall.portfolio.simulated import replay, simulate
from playcall.strategies import NANO, Misuse
from playcall.strategies.prices import load_prices

if TYPE_CHECKING:
    from playcall.evals.race_live import LiveRace

INFEASIBLE = 3
"""Exit status where no arm clears the threshold, and none may."""
TABLE, RUNS = Path("race.parquet"), 8
OUTCOMES = {name: OURS[name] for name in ("item", "arm", "score", "answer", "cost_usd", "latency_s", "error")}
CAPS = ("max_usd", "max_calls", "max_seconds")
"""How the reason begins where a race ended by a cap, as it was asked to."""


@dataclass(frozen=True)
class Agent:
    """What a live race takes."""

    roles: Path | None
    tasks: Path | None
    scorer: str | None
    output: Path
    concurrency: int
    failures: Literal["zero", "retry"]
    prices: Path | None
    no_cache: bool
    fresh: bool

    @property
    def given(self) -> list[str]:
        """The options that are not as they are by themselves."""
        usual = {"output": TABLE, "concurrency": RUNS, "failures": "zero"}
        told = [name for name, value in vars(self).items() if value != usual.get(name) and value not in (None, False)]
        return [f"--{name.replace('_', '-')}" for name in told]


@dataclass(frozen=True)
class Outputs:
    """Where the result goes beside the terminal."""

    router: Path | None
    policy: Path | None
    report: Path | None


def rules(
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = Rules.method,
    epsilon: Annotated[
        float | None, typer.Option(min=0, help="Quality that the best arm may be better by, proved; else no proof.")
    ] = Rules.epsilon,
    expected_regret: Annotated[
        float, typer.Option(min=0, help="Quality that the other arms may be expected to be better by together.")
    ] = Rules.regret,
    delta: Annotated[float, typer.Option(help="Chance that what is proved is false.")] = Rules.delta,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Seek the cheapest arm of this quality or more.")
    ] = Rules.threshold,
    weights: Weights = None,
    first: Annotated[int, typer.Option(min=2, help="Items of each arm before any is out.")] = Rules.first,
    batch: Annotated[int, typer.Option(min=1, help="Items of an arm at a time after that.")] = Rules.batch,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="USD that it may cost, earlier starts too; a kill -9 forgets what was in flight."),
    ] = None,
    max_calls: Annotated[
        int | None, typer.Option(min=1, help="Model calls of an agent; runs of an arm on an item of a table.")
    ] = None,
    max_time: Annotated[float | None, typer.Option(min=0, help="Seconds.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the items.")] = Rules.seed,
) -> Rules:
    """What the race is for and when it stops."""
    given = taken.weighted(weights or "")
    if threshold is not None and method not in ("paired", "threshold-elimination"):
        raise Misuse(f"--threshold says nothing to --method {method}: take paired or threshold-elimination.")
    return Rules(
        method=method,
        epsilon=epsilon,
        regret=expected_regret,
        delta=delta,
        first=first,
        batch=batch,
        threshold=threshold,
        cost_weight=given.get("cost", 0.0),
        latency_weight=given.get("latency", 0.0),
        max_usd=budget,
        max_calls=max_calls,
        max_seconds=max_time,
        seed=seed,
    )


def recorded(
    table: Annotated[
        Path | None, typer.Option(help="Race on recorded outcomes: .parquet, .csv or .jsonl, plain, .gz or .zst.")
    ] = None,
    columns: Columns = None,
    where: Where = None,
    missing: Annotated[
        Literal["refuse", "fail", "drop-items"], typer.Option(help="What to do where an arm lacks an item.")
    ] = "refuse",
    canonical: Canonical = "exact",
    verifier: Verifier = None,
    strategy: Yours = None,
) -> Recorded | None:
    """The outcomes to race on."""
    names = taken.renamed(columns, where)
    if table is None:
        if columns or where or strategy or verifier or (missing, canonical) != ("refuse", "exact"):
            named = "--columns, --where, --missing, --canonical, --verifier and --strategy"
            raise Misuse(f"{named} go with --table: name the recorded outcomes by it.")
        return None
    recording = read_table(
        table, where=where or [], columns=names, missing=missing, canonical=canonical, verifier=verifier
    )
    return Recorded.of(recording, taken.strategies(strategy))


def agent(
    roles: Annotated[Path | None, typer.Option(help="A list of models for each role: .yaml, .json or .toml.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="A line a task: id, task (or messages, ...), reference.")] = None,
    scorer: Annotated[str | None, typer.Option(help=f"{NAMES}.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The outcomes: .parquet, .csv or .jsonl; their journal is beside.")
    ] = TABLE,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = RUNS,
    failures: Annotated[
        Literal["zero", "retry"], typer.Option(help="What a failed run counts as: 0, or tried once more.")
    ] = "zero",
    prices: Prices = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Ask every call anew; else replies are kept.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever was run before.")] = False,
) -> Agent:
    """What is run live."""
    return Agent(roles, tasks, scorer, output, concurrency, failures, prices, no_cache, fresh)


def outputs(
    router: Annotated[Path | None, typer.Option(help="A LiteLLM configuration: each role asks its model.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A policy file: the chosen arm and its figures.")] = None,
    report: Annotated[Path | None, typer.Option(help="A self-contained HTML page with charts.")] = None,
) -> Outputs:
    """What is written."""
    for path in (router, policy, report):
        if path is not None and not path.absolute().parent.is_dir():
            raise Misuse(f"{path}: there is no folder {path.parent}; make it first, or write elsewhere.")
    return Outputs(router, policy, report)


@taking({"The race": rules, "On recorded outcomes": recorded, "Live": agent, "What is written": outputs})
def race(
    rules: Rules,
    recorded: Recorded | None,
    agent: Agent,
    outputs: Outputs,
    target: Annotated[
        str | None, typer.Argument(help="agent.py:build, a function of {role: model} that returns an agent.")
    ] = None,
    simulated: Annotated[
        int | None, typer.Option("--simulate", min=1, help="Replay the race in so many orders, and say how it does.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every arm in the table, not only the best.")] = False,
) -> None:
    """Find the best arm by racing: items are asked of fewer and fewer arms. Status 2: none was chosen, or it broke off;
    3: no arm clears the threshold."""
    if target is not None:
        if simulated is not None:
            raise Misuse("--simulate replays recorded outcomes: name them by --table, not an agent.")
        if recorded is not None:
            raise Misuse(f"race {target}, or --table: an agent is run, a table replayed. Give one of them.")
        _live(target, agent, rules, outputs, json_=json_, every=every)
        return
    if recorded is None:
        raise Misuse(
            "name an agent, such as agent.py:build with --roles, --tasks and --scorer, or --table of outcomes."
        )
    if agent.given:
        raise Misuse(f"{', '.join(agent.given)}: only for an agent, which --table is not.")
    recorded.check(rules)
    if simulated is not None:
        _simulated(recorded, simulated, rules, outputs, json_=json_)
        return
    raced = race_show.named(recorded.raced(replay(recorded.table, rules, recorded.roles)[1]))
    notes = [*recorded.recording.notes, *failing(raced)]
    _told(raced, rules, {"notes": notes}, json_=json_, every=every)
    _written(raced, rules, outputs, recorded.recording.name, recorded=recorded, notes=notes)
    raise typer.Exit(_status(raced, rules))


def _simulated(recorded: Recorded, seeds: int, rules: Rules, outputs: Outputs, *, json_: bool) -> None:
    if any(vars(outputs).values()):
        raise Misuse("--simulate says how good the method is, and recommends nothing to write: take it away.")
    with shown.bar("racing", seeds) as bar:
        found = simulate(recorded.table, seeds, rules, recorded.roles, lambda done, of: bar("racing", done, of))
    told = recorded.simulated(found)
    if json_:
        print(json.dumps(told.to_dict(), indent=2, allow_nan=False))
    else:
        race_show.simulated(told, rules)
        shown.notes(recorded.recording.notes)


def _told(
    raced: Raced,
    rules: Rules,
    document: Mapping[str, Any],
    more: Sequence[tuple[str, str]] = (),
    *,
    json_: bool,
    every: bool,
) -> None:
    if json_:
        print(json.dumps(plain({**raced.to_dict(), **document}), indent=2, allow_nan=False))
    else:
        race_show.show(raced, rules, more, every=every)
        shown.notes(tuple(document["notes"]))


def _written(
    raced: Raced,
    rules: Rules,
    outputs: Outputs,
    name: str,
    *,
    recorded: Recorded | None = None,
    more: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> None:
    """The files that were asked for: the page in any case, the others where an arm was chosen."""
    from playcall.evals import race_page, routers
    from playcall.portfolio.policy import fingerprint

    plays = recorded.plays if recorded else {}
    done, chosen = [], raced.chosen is not None and not failing(raced)
    if left := [str(path) for path in (outputs.router, outputs.policy) if path and not chosen]:
        told = f"Not written, since no arm is chosen that works: {', '.join(left)}."
        shown.errors.print(told, markup=False, soft_wrap=True)
    if chosen and outputs.router:
        write_whole(outputs.router, routers.router(raced, plays))
        done.append(outputs.router)
    if raced.chosen and chosen and outputs.policy:
        data = {"table": name} | ({"fingerprint": fingerprint(recorded.recording)} if recorded else {})
        play, calls = (plays.get(raced.chosen), recorded.calls[raced.chosen]) if recorded else (None, 1.0)
        routers.policy(raced, rules, data, play, calls).save(outputs.policy)
        done.append(outputs.policy)
    if outputs.report:
        write_whole(outputs.report, race_page.page(raced, rules, name=name, notes=notes, more=more))
        done.append(outputs.report)
    if done:
        shown.errors.print(f"Written: {', '.join(map(str, done))}.", markup=False, soft_wrap=True)


def failing(raced: Raced) -> list[str]:
    """What is said where all runs of the chosen arm failed."""
    told = "all {:,} runs of {}, the best arm that was found, failed: do not take it, but see why they did"
    return [told.format(r.asked, r.arm) for r in raced.arms if r.arm == raced.chosen and r.failures == r.asked > 0]


def _status(raced: Raced, rules: Rules) -> int:
    if raced.chosen is not None:
        return 2 if failing(raced) else 0
    return INFEASIBLE if rules.threshold is not None and raced.evaluations and not raced.survivors else 2


def _live(target: str, agent: Agent, rules: Rules, outputs: Outputs, *, json_: bool, every: bool) -> None:
    lacking = [f"--{name}" for name in ("roles", "tasks", "scorer") if getattr(agent, name) is None]
    if agent.roles is None or agent.tasks is None or agent.scorer is None:
        raise Misuse(
            f"race {target} needs {' and '.join(lacking)} too: which models, on what, and how answers are graded."
        )
    from playcall.evals.race_live import LiveRace, load_build, read_roles

    check_name(agent.output)
    with redirect_stdout(sys.stderr):  # what an agent prints is no result
        live = LiveRace(
            build=load_build(target),
            roles=read_roles(agent.roles),
            tasks=read_tasks(agent.tasks),
            scoring=agent.scorer,
            output=agent.output,
            rules=replace(rules, max_calls=None),
            max_calls=rules.max_calls,
            concurrency=agent.concurrency,
            failures=agent.failures,
            prices=load_prices(agent.prices) if agent.prices else None,
            cached=not agent.no_cache,
            fresh=agent.fresh,
        )
    if len(live.names) < 2:
        raise Misuse(f"{agent.roles} makes a single arm, {live.names[0]}: a race needs a role with two models.")
    if agent.output.exists() and not live.journal_path.exists():
        raise Misuse(f"{agent.output} is there and is of no race: name another table by -o.")
    with redirect_stdout(sys.stderr), race_show.watched(live):
        _, interrupted = anyio.run(interruptible, live.run)
    raced, more = race_show.named(live.raced()), tuple(race_show.live_facts(live))
    remarks = [*failing(raced), *(words for words in live.remarks() if not words.startswith("Stopped"))]
    document = {
        "notes": remarks,
        "spent_usd": live.spent / NANO,
        "calls": live.calls,
        "roles": asdict(live.facts)["roles"] if live.facts else {},
        "journal": str(live.journal_path),
    }
    _told(raced, rules, document, more, json_=json_, every=every)
    lines = [f"The finished runs are in {live.journal_path}, {live.made:,} of this start."]
    if rows := [*finished(live)]:
        write_table(agent.output, OUTCOMES, rows)
        lines.append(f"Written to {agent.output}: {len(rows):,} runs.")
    if not live.complete:
        lines.append(f"Go on by: playcall {shlex.join(a for a in sys.argv[1:] if a != '--fresh')}")
    for line in lines:
        shown.errors.print(line, markup=False, soft_wrap=True)
    _written(raced, rules, outputs, agent.output.name, more=more, notes=remarks)
    status = INTERRUPTED if interrupted else _status(raced, rules)
    if not status and not live.complete and not live.stopped.startswith(CAPS):
        status = 2
    if live.gate.threads:  # an agent that hangs, which nobody can stop, would hold the process for ever
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    raise typer.Exit(status)


def finished(live: LiveRace) -> Iterator[tuple[object, ...]]:
    """A row of the table for each finished run, arm by arm."""
    from playcall.evals.race_cells import RaceJournal

    with RaceJournal(live.journal_path) as journal:
        for arm in live.names:
            for key in [(task.id, arm, 0) for task in live.tasks if (task.id, arm, 0) in journal.calls]:
                told = journal.read(key)
                figures = told["score"], told["answer"], told["cost_nano"] / NANO, told["us"] / 1e6
                yield (*key[:2], *figures, told["error"] or None)
