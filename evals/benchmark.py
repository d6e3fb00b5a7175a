"""How good learned plays are on tables they have not seen: python -m playcall.evals.benchmark DIR.

Every table in DIR is split at random; each learner sees so many labelled tasks of it, says what to run and what to
expect at three operating points, and is graded on all other tasks. Rows go to -o as they come, and a rerun goes on
from them: name a new file once the tables or a learner have changed.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import IO, Annotated

import numpy as np
import typer
from joblib import Parallel, cpu_count, delayed, parallel_config
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from playcall.evals import baselines, baselines_staged
from playcall.evals import show as shown
from playcall.evals.baselines import DROP, POINTS, SHARES, Graded, Learner, Play, replayed
from playcall.evals.benchmark_summary import Row, area, document, notes_of, show, summarise
from playcall.evals.benchmark_tables import Bench, read_folder
from playcall.portfolio import Target, best_arm, fit_points, write_whole
from playcall.strategies import (
    NANO,
    Ask,
    Explain,
    Keep,
    Misuse,
    PlaycallError,
    Recording,
    Replay,
    Strategy,
    Vote,
    arms_of,
)
from playcall.strategies.errors import some

_BETWEEN = (0.05, 0.1, 0.2, 0.33, 0.75, 1.0)  # of the best single arm's cost
SPARE = 50  # tasks that must be left to grade on
Key = tuple[object, ...]
_KEYS = ("table", "labels", "split", "learner")


# --- the learner that is measured -------------------------------------------------------------


def portfolio(train: Recording, seed: int, texts: Mapping[str, str]) -> dict[str, Play]:
    """What `playcall.portfolio` learns, with the figures that it states: at the points, and for the area between."""
    shares = SHARES | {f"{share:g}x": share for share in _BETWEEN}
    targets = {"frugal": Target(max_drop=DROP), **{point: Target(max_share=share) for point, share in shares.items()}}
    plays = {}
    for point, policy in fit_points(train, targets, seed=seed).items():
        grade, f = _Believed(policy.strategy), policy.figures
        cost = grade(train).cost.mean() if f.cost_per_task is None else f.cost_per_task * NANO
        figures = float(cost), f.quality, f.quality_low, f.quality_high
        plays[point] = Play(Explain()(policy.strategy), arms_of(policy.strategy), grade, *figures)
    return plays


@dataclass(frozen=True)
class _Believed:
    """The grade of a strategy, with the probability that it states where it weighs votes by a belief."""

    strategy: Strategy

    def __call__(self, recording: Recording) -> Graded:
        g = replayed(self.strategy)(recording)
        match self.strategy:
            case Keep(source, Vote(belief)) if belief is not None:
                stated = belief.posterior(Replay(recording)(source)).max(axis=1, initial=0.0)
                return Graded(g.quality, g.cost, g.latency, stated)
        return g


LEARNERS: dict[str, Learner] = {
    "portfolio": portfolio,
    "best_single": baselines.best_single,
    "single_mix": baselines.single_mix,
    "self_consistency": baselines.self_consistency,
    "top_distinct": baselines.top_distinct,
    "majority": baselines.majority,
    "log_odds": baselines.log_odds,
    "stage_grid": baselines_staged.stage_grid,
    "cascade_routing": baselines_staged.cascade_routing,
    "knn_router": baselines_staged.knn_router,
    "oracle": baselines.oracle,
}


# --- one unit of work -------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A learner on one split of a table."""

    table: str
    labels: int
    split: int
    learner: str

    @property
    def key(self) -> Key:
        """As its rows have it."""
        return self.table, self.labels, self.split, self.learner

    def parts(self, recording: Recording) -> tuple[Recording, Recording]:
        """The training tasks and the rest; those of fewer labels are among those of more."""
        order = np.random.default_rng([zlib.crc32(self.table.encode()), self.split]).permutation(len(recording))
        return recording.take(order[: self.labels]), recording.take(order[self.labels :])

    def rows(self, bench: Bench) -> list[Row] | str:
        """A row for each point, or why there are none. Runs on one thread, and so does all inside."""
        with parallel_config("sequential"), threadpool_limits(1):
            try:
                return self._rows(bench)
            except Exception as error:  # one learner's failure must not end a run of hours
                return f"{type(error).__name__}: {error}"

    def _rows(self, bench: Bench) -> list[Row]:
        assert bench.recording is not None
        train, test = self.parts(bench.recording)
        begun = perf_counter()
        plays = LEARNERS[self.learner](train, self.split, bench.texts)
        graded = {id(play): play.grade(test) for play in plays.values()}
        seconds = perf_counter() - begun
        arm = best_arm(train)
        alone, ideal = replayed(Ask(arm))(test), baselines.oracle(train)["best"].grade(test)
        unit = max(alone.mean(alone.cost), 1.0)
        floor = baselines.cheapest(train)
        tested = [(floor, floor.grade(test)), *((p, graded[id(p)]) for p in plays.values())]
        stated = [(1.0 if p.quality is None else p.quality, g.mean(g.cost), g.mean(g.quality)) for p, g in tested]
        rows = list[Row]()
        for point in POINTS:
            play = plays[point]
            g = graded[id(play)]
            timed = all(test[a].timed for a in play.arms)
            rows.append(
                {
                    "table": self.table,
                    "labels": self.labels,
                    "split": self.split,
                    "learner": self.learner,
                    "point": point,
                    "policy": play.words,
                    "quality": g.mean(g.quality),
                    "cost": g.mean(g.cost) / NANO if bench.costs else None,
                    "latency_mean": g.mean(g.latency) / 1e6 if timed else None,
                    "latency_p95": g.latency_p95 / 1e6 if timed else None,
                    "single_arm": arm,
                    "single_quality": alone.mean(alone.quality),
                    "single_cost": alone.mean(alone.cost) / NANO if bench.costs else None,
                    "expected_quality": play.quality,
                    "expected_low": play.low,
                    "expected_high": play.high,
                    "seconds": seconds,
                    "cost_ratio": g.mean(g.cost) / unit,
                    "brier": g.brier,
                    "area": area(stated, 1.5 * unit),
                    "oracle_quality": ideal.mean(ideal.quality),
                    "oracle_ratio": ideal.mean(ideal.cost) / unit,
                }
            )
        return rows


# --- all of them ------------------------------------------------------------------------------


def kept(file: Path) -> list[Row]:
    """The rows of whole units in a file of rows; whatever a stopped run left of others is taken out of it."""
    if not file.exists():
        return []
    if not file.is_file():
        raise Misuse(f"{file} is no regular file. Name a file to write to.")
    rows = list[Row]()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Misuse(f"{file} cannot be read as rows: {error}. Name another file to write to.") from error
    for i, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            row = json.loads(line) if line.endswith("\n") else None
        except ValueError as error:
            raise Misuse(f"{file}, line {i} is no row: {error}. Take it out, or name another file.") from error
        if row is not None:
            if not isinstance(row, dict) or not {*_KEYS, "point"} <= set(row):
                raise Misuse(f"{file}, line {i} is no row of a benchmark. Name another file to write to.")
            rows.append(row)
    points: dict[Key, set[object]] = {}
    for row in rows:
        points.setdefault(_key(row), set()).add(row["point"])
    rows = [row for row in rows if points[_key(row)] >= set(POINTS)]
    if (whole := "".join(map(_line, rows))) != text:
        write_whole(file, whole)
    return rows


def _key(row: Row) -> Key:
    return tuple(row[key] for key in _KEYS)


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def run(
    benches: Sequence[Bench],
    *,
    labels: Sequence[int],
    splits: int,
    learners: Sequence[str],
    jobs: int,
    out: Path | None = None,
) -> tuple[list[Row], dict[str, list[str]]]:
    """All rows that are wanted, in order, and notes by table. Rows of `out` are not computed again."""
    notes = {b.name: notes_of(b) for b in benches}
    units = list[tuple[Unit, Bench]]()
    for bench in benches:
        n = 0 if bench.recording is None else len(bench.recording)
        few = [k for k in labels if n < k + SPARE]
        if few and bench.recording is not None:
            notes[bench.name].append(f"too few tasks ({n:,}) for {', '.join(map(str, few))} labels and {SPARE} more.")
        for k in (k for k in labels if k not in few):
            units += [(Unit(bench.name, k, s, learner), bench) for s in range(splits) for learner in learners]
    wanted = {unit.key: i for i, (unit, _) in enumerate(units)}
    rows = [row for row in (kept(out) if out else []) if _key(row) in wanted]
    if out:
        with _writable(out):  # before hours of work
            pass
    done = {_key(row) for row in rows}
    left = [(unit, bench) for unit, bench in units if unit.key not in done]
    for unit, came in _computed(left, jobs):
        if isinstance(came, str):
            notes[unit.table].append(f"{unit.learner}, {unit.labels} labels, split {unit.split} FAILED: {came}")
            continue
        rows += came
        if out:
            with _writable(out) as file:
                file.write("".join(map(_line, came)))
    return sorted(rows, key=lambda row: (wanted[_key(row)], POINTS.index(str(row["point"])))), notes


@contextmanager
def _writable(out: Path) -> Iterator[IO[str]]:
    try:
        with out.open("a", encoding="utf-8") as file:
            yield file
    except OSError as error:
        say = "Name a file in a folder that exists, may be written to and has room; a rerun goes on"
        raise PlaycallError(f"{out} cannot be written: {error.strerror or error}. {say}.") from error


def _computed(units: Sequence[tuple[Unit, Bench]], jobs: int) -> Iterator[tuple[Unit, list[Row] | str]]:
    """Units as they are done, with a bar."""
    if not units:
        return
    work = (delayed(_one)(unit, bench) for unit, bench in units)
    with shown.bar("learning", len(units)) as progress:
        for i, (unit, came) in enumerate(Parallel(n_jobs=jobs, return_as="generator_unordered")(work), 1):
            progress(f"{unit.table}, {unit.labels} labels, {unit.learner}", i, len(units))
            yield unit, came


def _one(unit: Unit, bench: Bench) -> tuple[Unit, list[Row] | str]:
    return unit, unit.rows(bench)


def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of recorded tables, .parquet, .csv or .jsonl; or one of them.")
    ],
    tables: Annotated[str, typer.Option(help="Only these: stem or stem/dataset, with commas between.")] = "",
    labels: Annotated[str, typer.Option(help="How many labelled tasks are seen.")] = "50,100,300",
    splits: Annotated[int, typer.Option(min=1, help="How many random splits.")] = 10,
    learners: Annotated[str, typer.Option(help=f"Of {', '.join(LEARNERS)}; all of them unless told.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes; 0 for one a core.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Rows, as JSON lines; a rerun goes on.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Measure learners on every table of a folder, held out, at three operating points."""
    names = [*dict.fromkeys(name for name in learners.split(",") if name)] or list(LEARNERS)
    if strange := [name for name in names if name not in LEARNERS]:
        raise Misuse(f"there is no learner {strange[0]!r}; pick from {some(LEARNERS, 20)}.")
    sizes = [*dict.fromkeys(int(k) if k.strip().isdecimal() else 0 for k in labels.split(","))]
    if min(sizes) < 10:
        raise Misuse(f"--labels {labels}: write numbers of at least 10, with commas between.")
    benches = list(read_folder(folder, [name for name in tables.split(",") if name]))
    rows, notes = run(benches, labels=sizes, splits=splits, learners=names, jobs=jobs or cpu_count(), out=output)
    found = summarise(rows, names)
    if as_json:
        print(json.dumps(document(found, notes), indent=2))
    else:
        show(found, notes)


@cache
def app() -> typer.Typer:
    """The command line."""
    made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    made.command(help=__doc__)(command)
    return made


def main() -> None:
    """Run it; status 2 is a refusal that says what to do."""
    try:
        app()()
    except PlaycallError as error:
        print(f"playcall: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    from playcall.evals import benchmark  # by its own name, so that other processes find its functions

    benchmark.main()
