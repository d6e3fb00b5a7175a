"""Find the better play for your model calls: compare strategies on recorded calls, learn a policy, see what it does."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from errno import EDQUOT, EFBIG, ENOSPC
from importlib.resources import as_file, files
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from playcall import portfolio
from playcall.evals import comparison as comparing
from playcall.evals import options as taken
from playcall.evals import show as shown
from playcall.evals import study_show
from playcall.evals.diagrams import calibrations
from playcall.evals.fitting import Fitted, fitted
from playcall.evals.ledger_cli import ledger_app
from playcall.evals.options import Canonical, Columns, Verifier, Weights, Where, Yours, taking
from playcall.evals.page import Beside
from playcall.evals.page import report as page
from playcall.evals.race_cli import race
from playcall.evals.record_cli import record
from playcall.evals.run_cli import run
from playcall.evals.table import Options, read_table, read_tables
from playcall.evals.track_cli import SETTINGS, track
from playcall.portfolio import Folding
from playcall.portfolio.curve import FEWEST
from playcall.portfolio.guarantee import BEST
from playcall.portfolio.studies import study
from playcall.strategies import NANO, Explain, Misuse, PlaycallError, Recording

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=__doc__)
app.add_typer(ledger_app, name="ledger")
app.command()(race)
app.command()(record)
app.command()(run)
app.command(context_settings=SETTINGS)(track)
Tables = dict[str, Recording]
_DELTA = 0.1

PolicyFile = Annotated[Path, typer.Argument(help="A policy that `playcall fit` wrote, or a strategy file.")]
Labels = Annotated[
    str | None, typer.Option(help="50,100,300: also what so many labels would have chosen, and how it would have done.")
]


def main() -> NoReturn:
    """Run the command line. Status 2 is a refusal that says what to do, 3 a target that cannot be kept."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # answers may hold what no terminal or file can
    try:
        app()
    except PlaycallError as error:
        print(f"playcall: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, portfolio.Infeasible) else 2)
    except OSError as error:
        if error.errno not in (ENOSPC, EFBIG, EDQUOT):
            raise
        print(f"playcall: the output cannot be written: {error.strerror}. Make room for it.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it cannot be written at the exit either
        sys.exit(2)
    sys.exit(0)


def read(
    file: Annotated[Path, typer.Argument(help="Recorded calls: .parquet, .csv or .jsonl, plain or as .gz or .zst.")],
    columns: Columns = None,
    where: Where = None,
    by: Annotated[str | None, typer.Option(help="Take each value of this column as a task of its own.")] = None,
    missing: Annotated[
        Literal["refuse", "fail", "drop-items"], typer.Option(help="What to do where an arm lacks an item.")
    ] = "refuse",
    canonical: Canonical = "exact",
    verifier: Verifier = None,
    samples: Annotated[
        Literal["apart", "together"],
        typer.Option(help="together: price draws of an arm side by side as one request, which pays its prompt once."),
    ] = "apart",
    group: Annotated[
        str | None, typer.Option(help="A column of items that are alike, such as a document: held out together.")
    ] = None,
) -> Tables:
    """The tables of a file by the value of `by`, or one under the empty name."""
    pairs = taken.renamed(columns, where)
    options = Options(columns=pairs, canonical=canonical, missing=missing, verifier=verifier, samples=samples)
    options["group"] = group
    if by is None:
        return {"": read_table(file, where=where or [], **options)}
    return read_tables(file, by=by, where=where or [], **options)


def fold(
    folds: Annotated[
        int, typer.Option(min=2, help="Folds of the nested cross-validation; with 2 or 3 figures are too low.")
    ] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often it is repeated, with other folds.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the folds.")] = 0,
) -> Folding:
    """How tasks are held out."""
    return Folding(folds=folds, repeats=repeats, seed=seed)


on_tables = taking({"": read, "Held-out tasks": fold})
"""A command of (tables, folding, ...) that takes the arguments of `read` and `fold` for the first two."""


def _compared(tables: Tables, yours: list[str] | None, folding: Folding) -> list[comparing.Comparison]:
    strategies = taken.strategies(yours)
    with shown.bar("searching") as tell:
        told: Folding = {**folding, "progress": tell}
        return [comparing.compare(r, strategies, **told) for r in tables.values()]


@app.command()
@on_tables
def compare(
    tables: Tables,
    folding: Folding,
    strategy: Yours = None,
    json_: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="All figures as CSV.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every arm, not only the best and those on the frontier.")
    ] = False,
) -> None:
    """Compare strategies on recorded calls: quality, cost and latency, held out, with 95% intervals."""
    done = _compared(tables, strategy, folding)
    if json_:
        print(comparing.to_json(done))
    elif csv:
        print(comparing.to_csv(done), end="")
    else:
        for comparison in done:
            shown.comparison(comparison, every=every)


@app.command()
@on_tables
def report(
    tables: Tables,
    folding: Folding,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    strategy: Yours = None,
    labels: Labels = None,
) -> None:
    """Compare and fit, as one self-contained HTML page with charts."""
    counts, done = _counts(labels), _compared(tables, strategy, folding)
    portfolio.write_whole(output, page(done, [_beside(r, counts, folding) for r in tables.values()]))
    shown.out.print(f"Written to {output}.", markup=False)


@app.command()
@on_tables
def fit(
    tables: Tables,
    folding: Folding,
    output: Annotated[Path, typer.Option("--output", "-o", help="The policy file to write.")] = Path("policy.json"),
    max_cost: Annotated[float | None, typer.Option(help="USD a task, on average.")] = None,
    max_latency: Annotated[float | None, typer.Option(help="Seconds a task, on average.")] = None,
    min_quality: Annotated[float | None, typer.Option(help="0 to 1: the cheapest play that reaches it.")] = None,
    weights: Weights = None,
    max_share: Annotated[float | None, typer.Option(help="Of the best single arm's cost, on average.")] = None,
    max_drop: Annotated[float | None, typer.Option(help="Quality that may be lost to the best single arm.")] = None,
    max_latency_p95: Annotated[float | None, typer.Option(help="Seconds for 95% of the tasks.")] = None,
    labels: Labels = None,
    guarantee: Annotated[
        float | None, typer.Option(help="0.02: prove on tasks held back that the play loses at most so much quality.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Chance that what is proved is false.")] = _DELTA,
    reference: Annotated[str, typer.Option(help="The arm that the guarantee is against; best is the best one.")] = BEST,
    json_: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
) -> None:
    """Learn a policy and say what to expect. Without a target: the best quality at the best single arm's cost."""
    given = taken.weighted(weights or "")
    target = portfolio.Target(
        max_cost=max_cost,
        max_latency=max_latency,
        min_quality=min_quality,
        cost_weight=given.get("cost", 0.0),
        latency_weight=given.get("latency", 0.0),
        max_share=max_share,
        max_drop=max_drop,
        max_latency_p95=max_latency_p95,
    )
    if guarantee is not None and not -1 < guarantee < 1:
        raise Misuse(f"--guarantee {guarantee:g}: give quality between -1 and 1, such as 0.02 for two points.")
    if not 0 < delta < 1:
        raise Misuse(f"--delta {delta:g}: give a number between 0 and 1, such as 0.1.")
    if guarantee is None and (delta != _DELTA or reference != BEST):
        raise Misuse("--delta and --reference say how to prove a --guarantee; give that too, such as --guarantee 0.02.")
    if not output.parent.is_dir():
        raise Misuse(f"--output {output}: there is no folder {output.parent}; make it first, or write elsewhere.")
    counts, done = _counts(labels), list[Fitted]()
    for value, recording in tables.items():
        with shown.bar("searching") as tell:
            told: Folding = {**folding, "progress": tell}
            made = fitted(
                recording, target, labels=counts, guarantee=guarantee, delta=delta, reference=reference, **told
            )
        path = output.with_name(f"{output.stem}-{_in_a_name(value)}{output.suffix}") if value else output
        made.policy.save(path)
        done.append(made)
        if lacking := sorted(set(counts) - {c.labels for c in made.study.curve}):
            some = ",".join(map(str, lacking))
            n = made.study.policy.figures.tasks
            print(f"playcall: --labels {some}: left out, of {n:,} tasks that leaves none to grade on.", file=sys.stderr)
        if not json_:
            study_show.show(made)
            shown.out.print(f"Written to {path}.", markup=False)
    if json_:
        documents = [f.to_dict() for f in done]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, allow_nan=False))


def _counts(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if any(not part.isdecimal() or int(part) < FEWEST for part in parts):
        raise Misuse(f"--labels {text!r}: write whole numbers from {FEWEST} on, such as 50,100,300.")
    return tuple(map(int, parts))


def _in_a_name(value: str) -> str:
    """A text as a part of a file's name, apart from those of other texts."""
    return "".join(f"%{ord(c):02X}" if c in "%/\\\0" else c for c in value)


def _beside(recording: Recording, labels: tuple[int, ...], folding: Folding) -> Beside:
    with shown.bar("searching") as tell:
        told: Folding = {**folding, "progress": tell}
        return Beside(study(recording, labels=labels, **told), calibrations(recording))


@app.command()
def explain(policy: PolicyFile) -> None:
    """A policy's play in words."""
    for s in comparing.strategy_file(str(policy)).values():
        shown.out.print(Explain()(s), markup=False)


@app.command()
def show(
    policy: PolicyFile, json_: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False
) -> None:
    """What to expect of a policy: its held-out figures."""
    loaded = portfolio.Policy.load(policy)
    if json_:
        print(json.dumps(asdict(loaded.figures), indent=2, allow_nan=False))
    else:
        shown.policy(loaded)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("playcall-demo"),
) -> None:
    """Compare, fit and report on bundled recordings of real calls; no key, no network."""
    with as_file(files("playcall.evals") / "data") as data:
        crux = read_table(data / "zeroeval_crux.parquet")
        tables = {"crux": crux, **read_tables(data / "llmdrift.parquet", by="dataset")}
    done = _compared(tables, None, Folding())
    for comparison in done:
        shown.comparison(comparison)
    half = float(crux[done[0].single_arm].price.mean()) / NANO / 2
    shown.out.print(f"\nA policy for the first table at no more than half the cost, --max-cost {half:.6f}:")
    with shown.bar("searching") as tell:
        made = fitted(crux, portfolio.Target(max_cost=half), progress=tell)
    study_show.show(made)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaycallError(f"{output} cannot be made: {error.strerror}. Name another folder by -o.") from error
    made.policy.save(output / "policy.json")
    portfolio.write_whole(output / "report.html", page(done, [Beside(made.study)]))
    shown.out.print(
        f"Written: {output}/policy.json, {output}/report.html. Your own table: playcall fit FILE", markup=False
    )


if __name__ == "__main__":
    main()
