"""The command line on bundled and bad data."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from playcall.evals import fitting, read_table
from playcall.evals.cli import main
from playcall.evals.fitting import fitted
from playcall.portfolio import Target
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
    assert out.startswith("Play ")
    assert max(map(len, out.splitlines())) <= 132
    status, shown, _ = run("show", "p.json", "--json")
    figures = json.loads(shown)
    assert set(KEYS) <= set(figures)
    assert figures["cost_per_task"] <= 0.0135
    quality = f"{100 * figures['quality']:.1f} [{100 * figures['quality_low']:.1f}"
    assert quality in out
    assert quality in run("show", "p.json")[1]
    status, out, _ = run("explain", "p.json")
    assert (status, out.startswith(("one after", "at the same", "ask"))) == (0, True)
    status, out, _ = run("compare", *PRIME, "--strategy", "p.json", "--json")
    assert "p" in {r["strategy"] for r in json.loads(out)["rows"]}


def test_fit_as_json_with_labels_a_share_and_a_guarantee(run) -> None:  # type: ignore[no-untyped-def]
    given = ["--max-share", "0.9", "--labels", "30", "--guarantee", "-0.05", "--delta", "0.2", "--folds", "2"]
    status, out, _ = run("fit", *PRIME, *given, "--reference", "gpt-4-0314", "--json")
    document = json.loads(out)
    assert status == 0
    assert document["policy"]["target"]["max_share"] == 0.9
    assert [point["labels"] for point in document["curve"]] == [30]
    proof = document["guarantee"]
    assert (proof["certified"], proof["reference"], proof["delta"]) == (False, "gpt-4-0314", 0.2)
    assert "Nothing is certified" in proof["words"]
    saved = json.loads(Path("policy.json").read_text())
    assert saved["figures"] == document["policy"]["figures"]
    assert saved["calibration"] == {}  # no confidences in this table


def test_by_makes_a_policy_per_task_and_a_list_of_json(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("fit", DRIFT, "--by", "dataset", "--folds", "2", "-o", "p.json", "--json")
    assert (status, len(json.loads(out))) == (0, 2)
    assert {p.name for p in Path().iterdir()} == {"p-llmdrift_prime.json", "p-llmdrift_happy.json"}


def test_tasks_of_a_group_are_held_out_together(run) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    right = {(d, arm): rng.integers(0, 2) for d in range(8) for arm in "ab"}
    rows = [("item", "arm", "score", "cost_usd", "document")]
    rows += [(f"{d}.{i}", arm, value, 1, f"d{d}") for (d, arm), value in right.items() for i in range(5)]
    Path("t.csv").write_text("\n".join(",".join(map(str, r)) for r in rows))
    figures = []
    for group in ([], ["--group", "document"]):
        status, out, _ = run("fit", "t.csv", *group, "--folds", "8", "--json")
        assert status == 0
        figures.append(json.loads(out)["policy"]["figures"])
    told = fitted(read_table("t.csv", group="document"), Target(), folds=8).policy.figures
    assert figures[1] == asdict(told)
    assert figures[0] != figures[1]
    status, _, err = run("fit", "t.csv", "--group", "chapter")
    assert (status, "chapter" in err) == (2, True)


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
        (["fit", *PRIME, "--max-cost", "1", "--max-share", "1"], "not both"),
        (["fit", *PRIME, "--labels", "50;100"], "50,100,300"),
        (["report", *PRIME, "--labels", "many"], "50,100,300"),
        (["fit", *PRIME, "--labels", "0"], "--labels '0'"),
        (["fit", *PRIME, "--weights", "cost"], "--weights 'cost'"),
        (["fit", *PRIME, "--weights", "cost=1,cost=2"], "cost=NUMBER"),
        (["fit", *PRIME, "--max-drop", "0", "--min-quality", ".5"], "Target min_quality=0.5, max_drop=0:"),
        (["fit", *PRIME, "--guarantee", "1"], "--guarantee 1"),
        (["fit", *PRIME, "--guarantee", ".1", "--delta", "0"], "--delta 0"),
        (["fit", *PRIME, "--guarantee", ".1", "--reference", "nobody"], "'nobody'"),
        (["fit", *PRIME, "--reference", "gpt-4-0314"], "--guarantee 0.02"),
        (["fit", *PRIME, "-o", "nowhere/p.json"], "there is no folder nowhere"),
        (["fit", *PRIME, "-o", ""], "no regular file"),
        (["show", "nowhere.json"], "nowhere.json"),
        (["explain", "nowhere.json"], "nowhere.json"),
    ],
)
def test_a_refusal_exits_with_2_and_says_what_to_do(run, arguments: list[str], said: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = run(*arguments)
    assert (status, "Traceback" in out + err) == (2, False)
    assert said in err


def test_report_is_one_page_with_the_frontier_and_the_learning_curve(run) -> None:  # type: ignore[no-untyped-def]
    assert run("report", *PRIME, "--folds", "2", "--labels", "30", "-o", "r.html")[0] == 0
    page = Path("r.html").read_text(encoding="utf-8")
    (data,) = json.loads(page.split("application/json>")[1].split("</script>")[0])
    assert "llmdrift" in data["name"]
    assert data["study"]["frontier"]
    assert [point["labels"] for point in data["study"]["curve"]] == [30]
    assert data["calibrations"] == []  # no confidences in this table


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


def test_a_task_named_like_a_path_gets_a_file_of_its_own_beside_the_others(run) -> None:  # type: ignore[no-untyped-def]
    calls = [
        {"item": f"q{i}", "arm": arm, "score": i % 2, "of": of}
        for of in ("../a/b", "../a%2Fb")
        for i in range(10)
        for arm in "xy"
    ]
    Path("t.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    assert run("fit", "t.jsonl", "--by", "of", "--folds", "2")[0] == 0
    written = {path.name for path in Path().iterdir()} - {"t.jsonl"}
    assert written == {"policy-..%2Fa%2Fb.json", "policy-..%2Fa%252Fb.json"}


def test_labels_that_the_table_does_not_have_are_said_to_be_left_out(run) -> None:  # type: ignore[no-untyped-def]
    status, out, err = run("fit", *PRIME, "--folds", "2", "--labels", "5000", "--json")
    assert (status, json.loads(out)["curve"]) == (0, [])
    assert "--labels 5000: left out, of 1,000 tasks" in err


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize("form", ["--csv", "--all"])
def test_a_full_disk_under_the_standard_output_is_no_traceback(tmp_path: Path, form: str) -> None:
    command = [sys.executable, "-m", "playcall.evals.cli", "compare", *PRIME, "--folds", "2", form]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "Traceback" in done.stderr, "ignored" in done.stderr) == (2, False, False)
    assert "output cannot be written: No space left" in done.stderr


def test_what_cannot_be_certified_at_all_is_refused_before_anything_is_learned(
    run,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "study", lambda *_, **__: pytest.fail("learned first"))
    status, _, err = run("fit", *PRIME, "--guarantee", "0.1", "--reference", "nobody")
    assert (status, "reference='nobody'" in err) == (2, True)


def test_the_best_arms_figure_is_said_to_be_of_an_arm_chosen_on_other_tasks(run) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = run("fit", *PRIME)
    figures = json.loads(Path("policy.json").read_text())["figures"]
    assert f"({100 * figures['single_quality']:.1f} % where the arm too is chosen without the task)" in " ".join(
        out.split()
    )
