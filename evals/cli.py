"""The command line: `playcall compare | fit | explain | show | report | demo`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from playcall.evals import show as shown
from playcall.strategies import NANO, Explain, Misuse, PlaycallError, Recording

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=__doc__)

File = Annotated[Path, typer.Argument(help="Recorded calls: .parquet, .csv or .jsonl, plain or as .gz or .zst.")]
PolicyFile = Annotated[Path, typer.Argument(help="A policy that `playcall fit` wrote.")]
Columns = Annotated[list[str] | None, typer.Option(help="ours=theirs, such as score=resolved; repeatable.")]
Where = Annotated[list[str] | None, typer.Option(help="column=value: only these rows; repeatable.")]
By = Annotated[str | None, typer.Option(help="Take each value of this column as a task of its own.")]
Missing = Annotated[
    Literal["refuse", "fail", "drop-items"], typer.Option(help="What to do where an arm lacks an item.")
]
Canonical = Annotated[
    str, typer.Option(help="When answers are equal: exact, number, choice, json, function-call, or module:function.")
]
Verifier = Annotated[
    str | None, typer.Option(help="A column to check answers by; `score` stands for a perfect checker.")
]
Folds = Annotated[int, typer.Option(min=2, help="Folds of the nested cross-validation.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often it is repeated with other folds.")]
Seed = Annotated[int, typer.Option(help="Of the folds.")]


def main() -> NoReturn:
    """Run the command line. Status 2 is a refusal that says what to do, 3 a target that cannot be kept."""
    try:
        app(standalone_mode=True)
    except PlaycallError as error:
        print(f"playcall: {error}", file=sys.stderr)
        sys.exit(3 if type(error).__name__ == "Infeasible" else 2)
    sys.exit(0)


@contextmanager
def _progress() -> Iterator[object]:
    """A bar on standard error, gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown.errors, transient=True) as bar:
        task = bar.add_task("searching", total=None)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)


def _read(
    file: Path,
    columns: list[str] | None,
    where: list[str] | None,
    by: str | None,
    missing: Literal["refuse", "fail", "drop-items"],
    canonical: str,
    verifier: str | None,
) -> dict[str, Recording]:
    from playcall.evals.table import Options, read_table, read_tables

    for option in [*(columns or []), *(where or [])]:
        if "=" not in option:
            raise Misuse(f"{option!r}: write name=value.")
    pairs = dict(option.split("=", 1) for option in columns or [])
    options = Options(columns=pairs, canonical=canonical, missing=missing, verifier=verifier)
    if by is None:
        return {"": read_table(file, where=where or [], **options)}
    return read_tables(file, by=by, where=where or [], **options)


@app.command()
def compare(
    file: File,
    columns: Columns = None,
    where: Where = None,
    by: By = None,
    missing: Missing = "refuse",
    canonical: Canonical = "exact",
    verifier: Verifier = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Yours: file.json or plays.py:name; repeatable.")] = None,
    folds: Folds = 10,
    repeats: Repeats = 1,
    seed: Seed = 0,
    json_: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="All figures as CSV.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Every arm, not only those on the frontier.")] = False,
) -> None:
    """Compare strategies on recorded calls: quality, cost and latency, held out, with 95% intervals."""
    from playcall.evals import compare as c

    yours = {name: s for text in strategy or [] for name, s in c.strategy_file(text).items()}
    tables = _read(file, columns, where, by, missing, canonical, verifier)
    with _progress() as progress:
        done = [
            c.compare(r, yours, folds=folds, repeats=repeats, seed=seed, progress=progress)  # type: ignore[arg-type]
            for r in tables.values()
        ]
    if json_:
        print(c.to_json(done))
    elif csv:
        import pandas as pd

        print(pd.concat([x.to_pandas().assign(table=x.name) for x in done]).to_csv(index=False), end="")
    else:
        for comparison in done:
            shown.comparison(comparison, every=all_)


@app.command()
def fit(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", help="The policy file to write.")] = Path("policy.json"),
    max_cost: Annotated[float | None, typer.Option(help="USD a task, on average.")] = None,
    max_latency: Annotated[float | None, typer.Option(help="Seconds a task, on average.")] = None,
    min_quality: Annotated[float | None, typer.Option(help="0 to 1: the cheapest play that reaches it.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="cost=..,latency=..: the quality that a USD, a second a task is worth.")
    ] = None,
    columns: Columns = None,
    where: Where = None,
    by: By = None,
    missing: Missing = "refuse",
    canonical: Canonical = "exact",
    verifier: Verifier = None,
    folds: Folds = 10,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> None:
    """Learn a policy. Without a target: the best quality at no more than the best single arm's cost."""
    from playcall import portfolio

    given = _weights(weights)
    target = portfolio.Target(max_cost, max_latency, min_quality, given.get("cost", 0.0), given.get("latency", 0.0))
    for value, recording in _read(file, columns, where, by, missing, canonical, verifier).items():
        with _progress() as progress:
            policy = portfolio.fit(recording, target, folds=folds, repeats=repeats, seed=seed, progress=progress)  # type: ignore[arg-type]
        path = output.with_name(f"{output.stem}-{value}{output.suffix}") if value else output
        policy.save(path)
        shown.policy(policy)
        shown.out.print(f"Written to {path}.")


def _weights(text: str | None) -> dict[str, float]:
    try:
        pairs = {k.strip(): float(v) for k, v in (pair.split("=") for pair in text.split(","))} if text else {}
    except ValueError:
        pairs = {"": 0.0}
    if strange := set(pairs) - {"cost", "latency"}:
        raise Misuse(f"--weights {text!r} has {sorted(strange)[0]!r}: write cost=NUMBER,latency=NUMBER.")
    return pairs


@app.command()
def explain(policy: PolicyFile) -> None:
    """A policy's or strategy's play in words."""
    from playcall.evals.compare import strategy_file

    for s in strategy_file(str(policy)).values():
        shown.out.print(Explain()(s), markup=False, highlight=False)


@app.command()
def show(policy: PolicyFile, json_: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False) -> None:
    """What to expect of a policy: its held-out figures."""
    from playcall.portfolio import Policy

    loaded = Policy.load(policy)
    if json_:
        print(json.dumps(asdict(loaded.figures), indent=2, allow_nan=False))
    else:
        shown.policy(loaded)


@app.command()
def report(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    columns: Columns = None,
    where: Where = None,
    by: By = None,
    missing: Missing = "refuse",
    canonical: Canonical = "exact",
    verifier: Verifier = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Yours: file.json or plays.py:name; repeatable.")] = None,
    folds: Folds = 10,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> None:
    """Compare, as one self-contained HTML page with charts."""
    from playcall.evals import compare as c
    from playcall.evals.report import report as page
    from playcall.portfolio.policy import write_whole

    yours = {name: s for text in strategy or [] for name, s in c.strategy_file(text).items()}
    tables = _read(file, columns, where, by, missing, canonical, verifier)
    with _progress() as progress:
        done = [
            c.compare(r, yours, folds=folds, repeats=repeats, seed=seed, progress=progress)  # type: ignore[arg-type]
            for r in tables.values()
        ]
    write_whole(output, page(done))
    shown.out.print(f"Written to {output}.")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("playcall-demo"),
) -> None:
    """Compare, fit and report on bundled recordings of real calls; no key, no network."""
    from playcall import portfolio
    from playcall.evals import compare as c
    from playcall.evals.report import report as page
    from playcall.evals.table import read_table, read_tables
    from playcall.portfolio.policy import write_whole

    with as_file(files("playcall.evals") / "data") as data:
        crux = read_table(data / "zeroeval_crux.parquet")
        tables = [crux, *read_tables(data / "llmdrift.parquet", by="dataset").values()]
    with _progress() as progress:
        done = [c.compare(r, folds=5, progress=progress) for r in tables]  # type: ignore[arg-type]
        for comparison in done:
            shown.comparison(comparison)
        single = portfolio.priced(crux)[done[0].single_arm].price.mean() / NANO
        policy = portfolio.fit(crux, portfolio.Target(max_cost=single / 2), folds=5, progress=progress)  # type: ignore[arg-type]
    shown.policy(policy)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaycallError(f"{output} cannot be made: {error.strerror}. Name another folder by -o.") from error
    policy.save(output / "policy.json")
    write_whole(output / "report.html", page(done))
    shown.out.print(f"Written: {output}/policy.json and {output}/report.html. Next, your own table: playcall fit FILE")


if __name__ == "__main__":
    main()
