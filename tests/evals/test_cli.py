"""The command line on bundled and bad data."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from playcall.evals.cli import main
from playcall.strategies import Ask

DATA = Path(str(files("playcall.evals") / "data"))
DRIFT = str(DATA / "llmdrift.parquet")
PRIME = [DRIFT, "--where", "dataset=llmdrift_prime", "--folds", "3"]
TWICE = Ask("gpt-4-0314")
KEYS = [
    "quality",
    "quality_low",
    "quality_high",
    "cost_per_task",
    "latency_mean",
    "latency_p95",
    "single_arm",
    "single_quality",
    "single_cost",
    "difference",
    "difference_low",
    "difference_high",
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    """(arguments) -> (status, standard output, standard error), in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def go(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["playcall", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    return go


def test_compare_prints_a_table_and_its_figures_as_json_and_csv(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("compare", *PRIME)
    assert status == 0
    assert "cascade, equal cost" in out
    assert "gpt-4-0314" in out
    status, out, _ = run("compare", *PRIME, "--json")
    rows = json.loads(out)["rows"]
    single = next(r for r in rows if r["strategy"] == "gpt-4-0314")
    assert single["quality"] == pytest.approx(0.840)
    assert single["cost_per_1000"] == pytest.approx(13.827, abs=0.01)
    status, out, _ = run("compare", *PRIME, "--csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == len(rows)


def test_fit_show_and_explain_a_policy(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("fit", *PRIME, "--max-cost", "0.013", "-o", "p.json")
    assert (status, Path("p.json").exists()) == (0, True)
    assert "Play:" in out
    status, out, _ = run("show", "p.json", "--json")
    figures = json.loads(out)
    assert set(KEYS) <= set(figures)
    assert figures["cost_per_task"] <= 0.0135
    assert run("show", "p.json")[0] == 0
    status, out, _ = run("explain", "p.json")
    assert (status, out.startswith(("one after", "at the same", "ask"))) == (0, True)
    status, out, _ = run("compare", *PRIME, "--strategy", "p.json", "--json")
    assert "p" in {r["strategy"] for r in json.loads(out)["rows"]}


def test_by_makes_a_policy_per_task(run) -> None:  # type: ignore[no-untyped-def]
    assert run("fit", DRIFT, "--by", "dataset", "--folds", "2", "-o", "p.json")[0] == 0
    assert {p.name for p in Path().iterdir()} == {"p-llmdrift_prime.json", "p-llmdrift_happy.json"}


def test_an_infeasible_target_exits_with_3_and_names_the_nearest_point(run) -> None:  # type: ignore[no-untyped-def]
    status, _, err = run("fit", *PRIME, "--min-quality", "0.999")
    assert status == 3
    assert "nearest" in err
    assert "quality 0.8" in err
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "nowhere.csv"], "no such file"),
        (["compare", DRIFT], "--by dataset"),
        (["compare", DRIFT, "--where", "dataset"], "name=value"),
        (["compare", *PRIME, "--columns", "score=grade"], "grade"),
        (["compare", *PRIME, "--canonical", "numbr"], "number"),
        (["compare", *PRIME, "--strategy", "none.json"], "none.json"),
        (["compare", *PRIME, *2 * ["--strategy", f"{__file__}:TWICE"]], "same name"),
        (["fit", *PRIME, "--weights", "speed=1"], "speed"),
        (["fit", *PRIME, "--max-cost", "-1"], "zero or more"),
        (["fit", *PRIME, "-o", "nowhere/p.json"], "cannot be written"),
        (["show", "nowhere.json"], "nowhere.json"),
        (["explain", "nowhere.json"], "nowhere.json"),
    ],
)
def test_a_refusal_exits_with_2_and_says_what_to_do(run, arguments: list[str], said: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = run(*arguments)
    assert (status, "Traceback" in out + err) == (2, False)
    assert said in err


def test_report_is_one_page(run) -> None:  # type: ignore[no-untyped-def]
    assert run("report", *PRIME, "-o", "r.html")[0] == 0
    assert "llmdrift" in Path("r.html").read_text(encoding="utf-8")


def test_the_command_works_as_a_module_and_prints_only_json_to_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "playcall.evals.cli", "compare", *PRIME, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["tasks"] == 1000


@pytest.mark.parametrize(("table", "tasks", "arms"), [("zeroeval_crux", 800, 51), ("llmdrift", 1500, 4)])
def test_the_bundled_tables_are_whole_and_hold_no_prompts(table: str, tasks: int, arms: int) -> None:
    import pyarrow.parquet as pq

    held = pq.read_table(DATA / f"{table}.parquet")
    assert held.num_rows == tasks * arms
    assert "prompt" not in held.schema.names
