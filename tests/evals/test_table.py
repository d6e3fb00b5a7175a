"""Reading tables: what a Recording holds, and that every shared table loads or is refused with a way out."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from playcall.evals.table import TableError, read_table, read_tables
from playcall.strategies import Ask, Misuse, Recording, Replay, Vote, outcomes

Row = Mapping[str, Any]
KINDS = (".parquet", ".csv", ".jsonl", ".csv.gz", ".jsonl.gz", ".csv.zst", ".jsonl.zst")


def write(path: Path, rows: Sequence[Row]) -> Path:
    """Rows as a table file of the kind its name says; None is null, or an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
        return path
    plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    with plain.open("w", encoding="utf-8", newline="") as file:
        if plain.suffix == ".csv":
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if path != plain:
        data = plain.read_bytes()
        with pa.output_stream(str(path), compression={".gz": "gzip", ".zst": "zstd"}[path.suffix]) as stream:
            stream.write(data)
    return path


def calls(arms: Iterable[str] = ("a", "b"), items: int = 3, draws: int = 1, **more: Any) -> list[dict[str, Any]]:
    """A full table: arm `a` is right about even items, `b` about odd ones."""
    return [
        {
            "item": f"q{i}",
            "arm": arm,
            "sample": d,
            "answer": f"x{(i + (arm == 'b')) % 2}",
            "score": float((i + (arm == "b")) % 2 == 0),
            "cost_usd": 0.001 * (i + 1),
            "latency_s": 0.5,
            **more,
        }
        for arm in arms
        for i in range(items)
        for d in range(draws)
    ]


def noted(recording: Recording, text: str) -> bool:
    return any(text in note for note in recording.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_reads_the_same(kind: str, tmp_path: Path) -> None:
    r = read_table(write(tmp_path / f"runs{kind}", calls()))
    assert (r.items, list(r.arms), r.texts, r.name) == (("q0", "q1", "q2"), ["a", "b"], ("x0", "x1"), f"runs{kind}")
    assert r.notes == ()
    assert r["a"].answer.tolist() == [[0], [1], [0]]
    assert r["b"].quality.tolist() == [[0.0], [1.0], [0.0]]
    assert r["a"].price.tolist() == [[1_000_000], [2_000_000], [3_000_000]]
    assert r["a"].latency.tolist() == [[500_000]] * 3
    assert np.isnan(r["a"].score).all()
    assert r.priced
    assert r.timed
    assert not r.graded_by_checker


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", calls())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_table(path)) == 3


def test_rows_may_come_in_any_order_and_with_numbers_or_categories_as_names(tmp_path: Path) -> None:
    table = pa.table(
        {
            "item": pa.array([2, 1, 1, 2]),
            "arm": pa.array(["b", "a", "b", "a"]).dictionary_encode(),
            "score": pa.array([1, 0, 1, 0], pa.int8()),
            "answer": pa.array([7.0, 7.0, 7.5, None]),
            "sample": pa.array([3, 5, 9, 0]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    r = read_table(tmp_path / "t.parquet")
    assert (r.items, list(r.arms), r.texts[:2]) == (("2", "1"), ["b", "a"], ("7", "7.5"))
    assert r["b"].answer.tolist() == [[0], [1]]
    assert r["a"].failed.tolist() == [[True], [False]]


def test_draws_go_by_their_number_and_the_least_depth_of_an_arm_is_used(tmp_path: Path) -> None:
    rows = [
        {"item": i, "arm": "a", "trial": t, "score": t / 100}
        for i, trials in (("q0", [30, 10, 20]), ("q1", [7, 5]))
        for t in trials
    ]
    rows += [{"item": i, "arm": "b", "trial": 1, "score": 1} for i in ("q0", "q1")]
    r = read_table(write(tmp_path / "t.csv", rows))
    assert r["a"].quality.tolist() == [[0.1, 0.2], [0.05, 0.07]]
    assert r["b"].depth == 1
    assert noted(r, "arm 'a': 2 to 3 draws an item; the first 2 are used")


def test_our_names_may_stand_for_the_files(tmp_path: Path) -> None:
    rows = [{"task": row["item"], "model": row["arm"], "resolved": row["score"] == 1.0} for row in calls()]
    columns = {"item": "task", "arm": "model", "score": "resolved"}
    for kind in (".parquet", ".csv", ".jsonl"):  # true and True are 1
        path = write(tmp_path / f"t{kind}", rows)
        assert read_table(path, columns=columns)["a"].quality.tolist() == [[1.0], [0.0], [1.0]]
        for where in (["arm=b"], ["model=b"]):
            assert list(read_table(path, columns=columns, where=where).arms) == ["b"]
        assert list(read_tables(path, by="arm", columns=columns)) == ["a", "b"]


def test_an_optional_column_can_be_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", calls(cost_usd=-1))
    with pytest.raises(TableError, match="cost_usd"):
        read_table(path)
    assert not read_table(path, columns={"cost_usd": ""}).priced


def test_where_keeps_rows_and_two_values_of_a_column_mean_either(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [*calls("abc", split="x"), *calls("abc", split="y", item="z")])
    for where in (
        ["split=x", "arm=a", "arm=c"],
        {"split": ["x"], "arm": ["a", "c"]},
        {"split": "x", "arm": ["a", "c"]},
    ):
        r = read_table(path, where=where)
        assert list(r.arms) == ["a", "c"]
        assert r.name == "t.csv [split=x] [arm=a|c]"


def test_each_dataset_can_be_a_task_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [*calls(dataset="two", items=4), *calls("c", dataset="one")])
    tables = read_tables(path, by="dataset")
    assert {name: (len(r), list(r.arms)) for name, r in tables.items()} == {"two": (4, ["a", "b"]), "one": (3, ["c"])}
    assert list(tables) == ["two", "one"]
    assert tables["one"].name == "t.csv [dataset=one]"


def test_equal_canonical_answers_have_equal_codes(tmp_path: Path) -> None:
    rows = calls()
    for row, answer in zip(rows, ["1/2", "0.50", "2", ".5", "3", "2.0"]):
        row["answer"] = answer
    r = read_table(write(tmp_path / "t.jsonl", rows), canonical="number")
    assert r.texts == ("1/2", "2", "3")
    assert [r["a"].answer.ravel().tolist(), r["b"].answer.ravel().tolist()] == [[0, 0, 1], [0, 2, 1]]


def test_structured_answers_of_json_and_parquet_are_their_json_text(tmp_path: Path) -> None:
    rows = [{**row, "answer": [{"f": {"a": i % 2}}]} for i, row in enumerate(calls())]
    for kind in (".jsonl", ".parquet"):
        r = read_table(write(tmp_path / f"t{kind}", rows), canonical="function-call")
        assert r.texts == ('[{"f":{"a":0}}]', '[{"f":{"a":1}}]')


def test_without_answers_nothing_ever_agrees(tmp_path: Path) -> None:
    for answer in ({"answer": None}, {}):
        rows = [{k: v for k, v in row.items() if k != "answer"} | answer for row in calls(draws=2)]
        r = read_table(write(tmp_path / "t.csv", rows))
        assert r.texts == ()
        assert not r.answered
        codes = np.concatenate([d.answer.ravel() for d in r.arms.values()])
        assert len(set(codes.tolist())) == len(codes)
        assert not any(d.failed.any() for d in r.arms.values())


def test_a_wrong_call_without_an_answer_failed(tmp_path: Path) -> None:
    rows = calls()
    rows[1]["answer"] = None  # arm a, q1, score 0
    r = read_table(write(tmp_path / "t.csv", rows))
    assert r["a"].failed.tolist() == [[False], [True], [False]]
    assert noted(r, "calls without an answer, counted as failed: 1.")
    fallback = outcomes(Ask("a") | Ask("b"), r)
    assert fallback.quality.tolist() == [1.0, 1.0, 1.0]


def test_a_right_call_without_an_answer_is_unlike_any_other_and_its_arm_does_not_tell_wrong_ones(
    tmp_path: Path,
) -> None:
    rows = calls(items=4)
    for row in rows[:3]:  # arm a: right, wrong, right
        row["answer"] = None
    r = read_table(write(tmp_path / "t.csv", rows))
    assert not r["a"].failed.any()
    codes = r["a"].answer.ravel().tolist()
    assert len(set(codes)) == 4
    assert all(r.texts[code].startswith("\0null") for code in codes[:3])
    assert noted(r, "right answers of 'a' have no text")
    assert outcomes((Ask("a") & Ask("b")).keep(Vote()), r).quality.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_an_empty_text_is_an_answer_and_an_empty_csv_cell_is_none(tmp_path: Path) -> None:
    rows = calls()
    rows[1]["answer"] = ""
    assert not read_table(write(tmp_path / "t.jsonl", rows))["a"].failed.any()
    assert read_table(write(tmp_path / "t.csv", rows))["a"].failed.any()


def test_an_arm_without_costs_is_unpriced_and_named(tmp_path: Path) -> None:
    rows = [{**row, "cost_usd": None if row["arm"] == "a" else 0.5} for row in calls()]
    r = read_table(write(tmp_path / "t.csv", rows))
    assert (r["a"].priced, r["b"].priced, r["a"].price.max()) == (False, True, 0)
    assert noted(
        r, "no costs recorded, or of under 95% of calls: 'a'; listed, but `compare` and `fit` never recommend them."
    )


def test_a_few_missing_costs_are_filled_with_the_median_and_many_make_an_arm_unpriced(tmp_path: Path) -> None:
    rows = calls(items=40)
    for row in (*rows[:2], *rows[40:43]):  # 2 of 40 are 5%, 3 are more
        row["cost_usd"] = row["latency_s"] = None
    r = read_table(write(tmp_path / "t.csv", rows))
    assert (r["a"].priced, r["b"].priced) == (True, False)
    assert (r["a"].timed, r["b"].timed) == (True, False)
    median = round(1e9 * float(np.median([row["cost_usd"] for row in rows[2:40]])))
    assert r["a"].price[:3].ravel().tolist() == [median, median, 3_000_000]
    assert noted(r, "costs not recorded, taken to be the arm's median: 2.")
    assert noted(r, "latencies not recorded, taken to be the arm's median: 2.")


def test_without_any_cost_or_latency_there_is_one_note_on_each(tmp_path: Path) -> None:
    rows = [{k: row[k] for k in ("item", "arm", "score")} for row in calls()]
    r = read_table(write(tmp_path / "t.csv", rows))
    assert r.notes == ("no costs recorded.", "no latencies recorded.")
    assert r["a"].latency.tolist() == [[1]] * 3


def test_a_latency_of_nothing_is_a_microsecond(tmp_path: Path) -> None:
    r = read_table(write(tmp_path / "t.csv", calls(latency_s=0)))
    assert r["a"].latency.tolist() == [[1]] * 3
    assert r.timed


GAPS = [row for row in calls(("a", "b"), items=10) if not (row["arm"] == "b" and row["item"] in ("q1", "q4"))]


def test_missing_calls_count_as_failures_of_median_cost(tmp_path: Path) -> None:
    unscored = {"item": "q4", "arm": "b", "answer": "x1", "score": None, "cost_usd": 99}
    r = read_table(write(tmp_path / "t.csv", [*GAPS, unscored]), missing="fail")
    b = r["b"]
    assert np.flatnonzero(b.failed).tolist() == [1, 4]
    assert b.quality[[1, 4]].tolist() == [[0.0], [0.0]]
    median = round(1e9 * float(np.median([row["cost_usd"] for row in GAPS if row["arm"] == "b"])))
    assert b.price[[1, 4]].tolist() == [[median], [median]]
    assert b.latency[1].tolist() == [500_000]
    assert noted(r, "rows without a score, left out: 1.")
    assert noted(r, "2 of 20 (item, arm) pairs have no scored draw: 2 of 10 items, 1 of 2 arms ('b' lacks 2)")


def test_items_that_an_arm_lacks_can_be_dropped(tmp_path: Path) -> None:
    r = read_table(write(tmp_path / "t.csv", GAPS), missing="drop-items")
    assert r.items == ("q0", "q2", "q3", "q5", "q6", "q7", "q8", "q9")
    assert not r["b"].failed.any()
    assert noted(r, "only the 8 items that every arm has are kept")


def test_draws_are_counted_over_the_items_kept(tmp_path: Path) -> None:
    """Arm `a` has one draw of q1 and two of the others; `b` has none of q1."""
    rows = [r for r in calls(draws=2) if r["item"] != "q1" or (r["arm"] == "a" and r["sample"] == 0)]
    path = write(tmp_path / "t.csv", rows)
    assert read_table(path, missing="drop-items")["a"].depth == 2
    assert read_table(path, missing="fail")["a"].depth == 1


def test_confidence_is_the_score_and_null_is_nan(tmp_path: Path) -> None:
    rows = [{**row, "confidence": None if i == 0 else -0.5} for i, row in enumerate(calls())]
    r = read_table(write(tmp_path / "t.parquet", rows))
    assert math.isnan(r["a"].score[0, 0])
    assert r["a"].score[1:].tolist() == [[-0.5], [-0.5]]
    assert r.scored


def test_a_verifier_is_a_column_and_the_grade_itself_is_marked_loudly(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{**row, "judge": 7, "grade": row["score"]} for row in calls()])
    judged = read_table(path, verifier="judge")
    assert judged["a"].score.tolist() == [[7.0]] * 3
    assert not judged.graded_by_checker
    mapped = read_table(path, columns={"confidence": "judge"}, verifier="confidence")
    assert np.array_equal(mapped["a"].score, judged["a"].score)
    for graded in (read_table(path, verifier="score"), read_table(path, columns={"score": "grade"}, verifier="grade")):
        assert graded.graded_by_checker
        assert np.array_equal(graded["a"].score, graded["a"].quality)
        assert noted(graded, "THE SCORES ARE THE GRADES")


@pytest.mark.parametrize("bad", [{"missing": "drop"}, {"columns": {"scores": "x"}}, {"canonical": "exakt"}])
def test_options_that_mean_nothing_are_misuse(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"(?i)write"):
        read_table(write(tmp_path / "t.csv", calls()), **bad)


PUBLISHED = [  # README.md of the shared data: file, dataset, arm that starts with, mean score
    ("llmdrift.parquet", "llmdrift_prime", "gpt-4-0314", 0.840),
    ("llmdrift.parquet", "llmdrift_prime", "gpt-4-0613", 0.511),
    ("llmdrift.parquet", "llmdrift_happy", "gpt-4-0314", 0.836),
    ("llmdrift.parquet", "llmdrift_leetcode", "gpt-3.5-turbo-0613", 0.02),
    ("routellm.parquet", "routellm_mmlu", "gpt-4-1106", 0.806),
    ("routellm.parquet", "routellm_gsm8k", "gpt-4-1106", 0.857),
    ("zeroeval_crux.parquet", None, "o1-preview", 0.959),
    ("cascade_mmlu.parquet", None, "llama3.1-405b", 0.846),
    ("cascade_medmcqa.parquet", None, "llama3.1-405b", 0.793),
    ("bfcl_v1.parquet", None, "claude-3-5-sonnet-20240620", 0.905),
    ("mot_cascade.parquet", "mot_date", "gpt-3.5-turbo/cot2/t0.8", 0.641),
    ("gsm8k_openai2021.parquet", None, "175b_verification", 0.563),
    ("esc_samples.parquet", None, "gpt-3.5", 0.787),
    ("swebench_bash_only.parquet", None, "20260217_mini-v2.0.0_claude-4-5-opus-high", 0.768),
    ("swebench_verified_resolved.parquet", None, "20251205_sonar-foundation-agent_claude-opus-4-5", 0.792),
]


@pytest.mark.parametrize(("file", "dataset", "arm", "mean"), PUBLISHED)
def test_published_means_are_met(file: str, dataset: str | None, arm: str, mean: float, shared: Path) -> None:
    r = read_table(shared / file, where=[f"dataset={dataset}"] if dataset else [])
    name = next(name for name in r.arms if name.startswith(arm))
    assert float(r[name].quality.mean()) == pytest.approx(mean, abs=5e-4)


def test_published_costs_are_met(shared: Path) -> None:
    """The mean USD a call of README.md's overview."""
    prime = read_table(shared / "llmdrift.parquet", where=["dataset=llmdrift_prime"])
    assert prime["gpt-4-0314"].price.mean() / 1e9 == pytest.approx(0.0138, abs=5e-5)
    bfcl = read_table(shared / "bfcl_v1.parquet")
    assert bfcl["claude-3-5-sonnet-20240620"].price.mean() / 1e9 == pytest.approx(0.00221, abs=5e-6)
    assert not bfcl["firefunction-v1-FC"].priced


REFUSED = {  # the shared tables that are no table of calls as they are, and the way out
    "aider_swebench_lite_cascade.parquet": "Say --columns arm=model",
    "frugalgpt_summary.parquet": "Say --columns item=<its name>",
    "halueval_verifier_confidence.parquet": "Say --columns score=label",
    "bfcl_v4_multiturn_trajectories.jsonl.zst": "number the draws in a column `sample`",
    "tot_gpt4.parquet [dataset=tot_game24]": "leave it empty if it is not known",
    "tot_gpt4.parquet [dataset=tot_text]": "leave it empty if it is not known",
}


def check(r: Recording) -> None:
    assert len(r) > 1
    for draws in r.arms.values():
        assert draws.answer.shape == (len(r), draws.depth)
        assert 0 <= draws.quality.min() <= draws.quality.max() <= 1
        assert not r.texts or draws.answer.max() < len(r.texts)


def test_every_shared_table_loads_or_is_refused_with_a_way_out(shared: Path) -> None:
    refused: dict[str, str] = {}
    for path in sorted([*shared.glob("*.parquet"), *shared.glob("*.zst")]):
        sets: list[str | None] = [None]
        if path.suffix == ".parquet" and {"dataset", "item", "arm", "score"} <= set(pq.read_schema(path).names):
            sets = pq.read_table(path, columns=["dataset"])["dataset"].unique().to_pylist()
        for name in sets:
            where = [f"dataset={name}"] if name else []
            for missing in ("refuse", "fail"):
                try:
                    r = read_table(path, where=where, missing=missing)
                except TableError as error:
                    refused[error.file] = str(error)
                else:
                    refused.pop(r.name, None)
                    check(r)
                    break
    assert refused.keys() == REFUSED.keys()
    assert all(REFUSED[name] in text for name, text in refused.items())


def test_several_datasets_are_refused_with_their_list(shared: Path) -> None:
    with pytest.raises(TableError, match=r"'llmdrift_happy', 'llmdrift_leetcode', 'llmdrift_prime'.*--by dataset"):
        read_table(shared / "llmdrift.parquet")
    tables = read_tables(shared / "llmdrift.parquet", by="dataset")
    assert {name: len(r) for name, r in tables.items()} == {
        "llmdrift_happy": 500,
        "llmdrift_leetcode": 50,
        "llmdrift_prime": 1000,
    }


def test_draws_side_by_side_can_be_priced_as_one_request(tmp_path: Path) -> None:  # PEERS 48
    rows = [f"{item},{arm},{draw},1,yes,0.003,0.002" for item in ("x", "y") for arm in ("a", "b") for draw in range(3)]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["item,arm,sample,score,answer,cost_usd,prompt_cost_usd", *rows]))
    three = 3 * Ask("a")
    assert Replay(read_table(file))(three).cost.tolist() == [9_000_000] * 2
    assert Replay(read_table(file, samples="together"))(three).cost.tolist() == [5_000_000] * 2
