"""Bad tables: each is refused with file, row, column and what to do; no other exception ever comes out."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from playcall.evals.table import TableError, read_table, read_tables
from playcall.strategies import Recording

GOOD = [
    {"item": f"q{i}", "arm": arm, "sample": 0, "answer": f"x{i % 2}", "score": i % 2, "cost_usd": 0.1, "latency_s": 2.5}
    | {"confidence": 0.5, "dataset": "d"}
    for arm in ("a", "b")
    for i in range(3)
]
Rows = list[dict[str, Any]]


def as_csv(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row, default=str) + "\n" for row in rows).encode()


def as_parquet(rows: Rows) -> bytes:
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, ValueError, OverflowError):
            columns[name] = pa.array([None if v is None else ascii(v) for v in values])
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


FORMATS: dict[str, Callable[[Rows], bytes]] = {".csv": as_csv, ".jsonl": as_jsonl, ".parquet": as_parquet}


def refusal(path: Path, data: bytes, **options: Any) -> TableError:
    path.write_bytes(data)
    with pytest.raises(TableError) as caught:
        read_table(path, **options)
    error = caught.value
    assert str(error).startswith(path.name)
    assert str(error).endswith(".")
    assert (error.row is None) or f"row {error.row}" in str(error)
    assert (error.column is None) or repr(error.column) in str(error)
    return error


def but(at: int, **cells: Any) -> Rows:
    """The good table with some cells of one row changed."""
    return [{**row, **cells} if i == at else row for i, row in enumerate(GOOD)]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("score", v) for v in (NAN, -0.1, 1.1, INF, "right")),
        *(("cost_usd", v) for v in (NAN, -0.1, INF, 1e7, "free")),
        *(("latency_s", v) for v in (NAN, -0.1, INF, "fast")),
        *(("confidence", v) for v in (NAN, INF, -INF, "sure")),
        *(("sample", v) for v in (NAN, INF, "first")),
        ("item", ""),
        ("item", None),
        ("item", " "),
        ("arm", ""),
        ("arm", None),
    ],
)
def test_a_bad_cell_is_named_by_row_and_column(kind: str, column: str, value: object, tmp_path: Path) -> None:
    rows = but(4, **{column: value})
    if isinstance(value, str) and kind == ".parquet":
        rows = [{**row, column: None if row[column] is None else str(row[column])} for row in rows]
    error = refusal(tmp_path / f"runs{kind}", FORMATS[kind](rows))
    assert (error.file, error.row, error.column) == (f"runs{kind}", 5, column)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("column", ["confidence", "cost_usd", "latency_s", "answer", "sample", "dataset"])
def test_a_null_where_nothing_needs_to_be_recorded_is_fine(kind: str, column: str, tmp_path: Path) -> None:
    path = tmp_path / f"runs{kind}"
    path.write_bytes(FORMATS[kind](but(0, **{column: None})))
    assert len(read_table(path)) == 3


def test_a_row_keeps_its_number_after_a_filter(tmp_path: Path) -> None:
    error = refusal(tmp_path / "runs.csv", as_csv(but(4, cost_usd=-1)), where=["arm=b"])
    assert (error.row, error.file) == (5, "runs.csv [arm=b]")


def test_rows_that_are_filtered_out_may_be_bad(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(as_csv(but(4, cost_usd=-1, score="?")))
    assert list(read_table(path, where=["arm=a"]).arms) == ["a"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_draw_that_is_there_twice_names_both_rows(kind: str, tmp_path: Path) -> None:
    error = refusal(tmp_path / f"runs{kind}", FORMATS[kind]([*GOOD, GOOD[1]]))
    assert error.row == 7
    assert "draw 0 of arm 'a' and item 'q1' is in row 2 too" in str(error)
    assert "column `sample`" in str(error)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("column", ["item", "arm", "score"])
def test_a_needed_column_that_is_absent_is_named_with_those_there_are(kind: str, column: str, tmp_path: Path) -> None:
    rows = [{f"{column}s" if name == column else name: value for name, value in row.items()} for row in GOOD]
    text = str(refusal(tmp_path / f"runs{kind}", FORMATS[kind](rows)))
    assert f"there is no column {column!r}; the columns are " in text
    assert "'latency_s'" in text
    assert f"Say --columns {column}={column}s." in text


def test_what_others_call_our_columns_is_suggested(tmp_path: Path) -> None:
    rows = [{"instance_id": row["item"], "model": row["arm"], "resolved": row["score"]} for row in GOOD]
    columns: dict[str, str] = {}
    for ours, theirs in (("item", "instance_id"), ("arm", "model"), ("score", "resolved")):
        assert f"--columns {ours}={theirs}." in str(refusal(tmp_path / "runs.csv", as_csv(rows), columns=columns))
        columns[ours] = theirs
    assert len(read_table(tmp_path / "runs.csv", columns=columns)) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"where": ["split=test"]}, "there is no column 'split'; the columns are 'item', "),
        ({"where": ["arm=a", "arm=c"]}, "no row has 'c'. Pick from 'a', 'b'."),
        ({"where": ["arm"]}, "no row has ''. Pick from 'a', 'b'."),
        ({"columns": {"cost_usd": "price"}}, "there is no column 'price'"),
        ({"columns": {"score": ""}}, "there is no column ''"),
        ({"verifier": "judge"}, "there is no column 'judge'"),
        ({"verifier": "answer"}, "'x0' is not a finite number"),
        ({"group": "dataset"}, "all items are of one group, 'd'"),
        ({"group": "arm"}, "is in two groups, 'a' and 'b'. Give each item one group"),
    ],
)
def test_an_option_that_does_not_fit_the_file_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert says in str(refusal(tmp_path / "runs.csv", as_csv(GOOD), **options))


def test_to_take_apart_by_a_column_it_must_be_there_and_filled(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(as_csv(but(3, dataset=None)))
    with pytest.raises(TableError, match=r"row 4, column 'dataset'.*is empty"):
        read_tables(path, by="dataset")
    with pytest.raises(TableError, match=r"there is no column 'data'.*Say dataset"):
        read_tables(path, by="data")


def test_several_datasets_are_refused_with_two_ways_out(tmp_path: Path) -> None:
    error = refusal(tmp_path / "runs.csv", as_csv(but(3, dataset="e")))
    assert error.column == "dataset"
    assert "holds 2 datasets: 'd', 'e'. Pick one by --where dataset=..., " in str(error)
    assert "--by dataset" in str(error)


def test_a_single_item_is_refused_and_a_single_arm_is_fine(tmp_path: Path) -> None:
    assert "single item, 'q0'" in str(refusal(tmp_path / "runs.csv", as_csv([GOOD[0], GOOD[3]])))
    (tmp_path / "runs.csv").write_bytes(as_csv(GOOD[:3]))
    assert list(read_table(tmp_path / "runs.csv").arms) == ["a"]


@pytest.mark.parametrize("missing", ["refuse", "fail", "drop-items"])
def test_arms_without_a_common_item_are_refused(missing: str, tmp_path: Path) -> None:
    error = refusal(tmp_path / "runs.csv", as_csv([GOOD[0], GOOD[1], GOOD[5]]), missing=missing)
    assert "no overlap" in str(error)


def test_without_any_score_nothing_can_be_compared(tmp_path: Path) -> None:
    refusal(tmp_path / "runs.csv", as_csv([{**row, "score": None} for row in GOOD]))


def test_missing_calls_are_refused_with_counts_the_worst_arms_and_three_ways_out(tmp_path: Path) -> None:
    """Two of three calls of `b` have no score."""
    rows = [{**row, "score": None if row["arm"] == "b" and row["item"] != "q0" else row["score"]} for row in GOOD]
    rows += [{**row, "arm": "c"} for row in GOOD[:2]]
    text = str(refusal(tmp_path / "runs.csv", as_csv(rows)))
    assert "3 of 9 (item, arm) pairs have no scored draw: 2 of 3 items, 2 of 3 arms" in text
    assert "('b' lacks 2, 'c' lacks 1)" in text
    assert "--missing fail" in text
    assert "--where arm=..." in text
    assert "--missing drop-items" not in text  # one item would be left
    assert "items that every arm has: 1." in str(refusal(tmp_path / "runs.csv", as_csv(rows), missing="drop-items"))
    assert "--missing drop-items to keep the 2 items" in str(
        refusal(tmp_path / "runs.csv", as_csv(rows), where=["arm=a", "arm=c"])
    )


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("runs.txt", b"item", "no known kind"),
        ("runs", b"item", "no known kind"),
        ("runs.csv.bz2", b"item", "no known kind"),
        ("empty.csv", b"", "has no rows"),
        ("empty.jsonl", b"\n\n", "has no rows"),
        ("empty.parquet", b"", "cannot be read"),
        ("header.csv", b"item,arm,score\n", "has no rows"),
        ("header.parquet", as_parquet([{"item": "", "arm": "", "score": 0}])[:-9], "cannot be read"),
        ("text.parquet", b"item,arm,score\n1,a,1\n", "cannot be read"),
        ("latin.csv", "item,arm,score\nä,a,1\n".encode("latin-1"), "UTF-8"),
        ("wide.csv", "item,arm,score\nä,a,1\n".encode("utf-16"), "UTF-8"),
        ("zip.csv.gz", b"item,arm,score\n1,a,1\n", "cannot be read"),
        ("zip.csv.zst", b"item,arm,score\n1,a,1\n", "cannot be read"),
        ("twice.csv", b"item,arm,score,score\n1,a,1,1\n", "row 1: cannot be read: it has not one cell for each name"),
        ("short.csv", b"item,arm,score\n1,a,1\n2,a\n", "row 2: cannot be read: it has not one cell for each name"),
        ("long.csv", b"item,arm,score\n1,a,1,0\n", "row 1: cannot be read: it has not one cell for each name"),
        ("quote.csv", b'item,arm,score\n1,a,1\n2,"a,1\n3,a,1\n', "row 2: cannot be read: unexpected end of data"),
        ("list.jsonl", b'{"item": 1}\n\n[1]\n', "row 2: cannot be read: it is no object"),
        ("cut.jsonl", b'{"item": 1}\n{"item": ', "row 2: cannot be read: Expecting value"),
        ("half.jsonl", b'{"item": "\\ud800"}\n', "row 1: cannot be read"),
        ("deep.jsonl", b"[" * 100_000, "row 1: cannot be read"),
        ("long.jsonl", b'{"item": ' + b"9" * 5_000 + b"}", "row 1: cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(name: str, data: bytes, says: str, tmp_path: Path) -> None:
    assert says in str(refusal(tmp_path / name, data))


def test_no_file_and_a_folder_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "none.parquet", tmp_path / "folder.csv", tmp_path / "nul\0.csv"):
        with pytest.raises(TableError, match="there is no such file"):
            read_table(path)


def test_a_parquet_file_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table([[1, 2], [1, 0], [0, 1]], names=["item", "score", "score"]), sink)
    refusal(tmp_path / "runs.parquet", sink.getvalue())


def test_what_the_mangled_tables_once_brought_to_light(tmp_path: Path) -> None:
    """A nested column without any value in the rows kept, and a column of no name where one is to be ignored."""
    path = tmp_path / "runs.parquet"
    rows = [{**row, "confidence": [] if row["arm"] == "b" else None, "": "x"} for row in GOOD]
    path.write_bytes(as_parquet(rows))
    assert read_table(path, where=["arm=a"], columns={"sample": ""})["a"].depth == 1


CELLS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["", "nan", "NaN", "-1", "1e999", "1_0", "٣", "\ud800", "\0", "é\n\"'", "true", "x" * 200_000, b"\xff", 10**400]
    )
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=2), st.none() | st.booleans(), min_size=1, max_size=2)
)
NAMES = st.sampled_from([*GOOD[0], "trial", "split", "", "ITEM", "dataset "])
PLACES = st.integers(0, len(GOOD))
CHANGES = st.one_of(
    st.tuples(st.just("cell"), PLACES, NAMES, CELLS),
    st.tuples(st.just("column"), PLACES, NAMES, CELLS),
    st.tuples(st.just("drop row"), PLACES, NAMES, CELLS),
    st.tuples(st.just("drop column"), PLACES, NAMES, CELLS),
    st.tuples(st.just("repeat"), PLACES, NAMES, CELLS),
)
BYTES = st.none() | st.tuples(
    st.sampled_from(["cut", "flip", "insert", "only"]), st.integers(0, 10_000), st.binary(max_size=9)
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "missing": st.sampled_from(["refuse", "fail", "drop-items"]),
        "canonical": st.sampled_from(["number", "choice", "json", "function-call"]),
        "where": st.sampled_from([["arm=a"], ["dataset=d"], {"item": ["q0", "q1"]}]),
        "verifier": st.sampled_from(["score", "confidence", "answer", "item"]),
        "columns": st.sampled_from([{"sample": ""}, {"score": "confidence"}, {"answer": "arm"}]),
    },
)


def changed(rows: Rows, what: str, at: int, name: str, value: object) -> Rows:
    match what:
        case "cell":
            return [{**row, name: value} if i == at else row for i, row in enumerate(rows)]
        case "column":
            return [{**row, name: value} for row in rows]
        case "drop row":
            return [row for i, row in enumerate(rows) if i != at]
        case "drop column":
            return [{other: cell for other, cell in row.items() if other != name} for row in rows]
        case _:
            return rows + rows[at : at + 1]


def damaged(data: bytes, what: str, at: int, more: bytes) -> bytes:
    at %= len(data) + 1
    match what:
        case "cut":
            return data[:at]
        case "flip":
            return data[:at] + bytes(255 - byte for byte in data[at : at + 3]) + data[at + 3 :]
        case "insert":
            return data[:at] + more + data[at:]
        case _:
            return more


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=134)
@given(changes=st.lists(CHANGES, min_size=1, max_size=3), bytes_=BYTES, options=OPTIONS)
def test_a_mangled_table_is_read_or_refused_by_name(
    kind: str,
    changes: list[tuple[str, int, str, Any]],
    bytes_: tuple[str, int, bytes] | None,
    options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """402 tables in all: other types, blanks, repeats, absent columns, odd Unicode, cut and flipped bytes."""
    rows: Rows = list(GOOD)
    for change in changes:
        rows = changed(rows, *change)
    data = FORMATS[kind](rows or [{"item": None}])
    path = tmp_path_factory.getbasetemp() / f"mangled{kind}"
    path.write_bytes(damaged(data, *bytes_) if bytes_ else data)
    result: Recording | TableError
    try:
        result = read_table(path, **options)
    except TableError as error:
        result = error
    event(f"{kind}: {type(result).__name__}")
    if isinstance(result, TableError):
        assert result.file.startswith(path.name)
        assert str(result).startswith(result.file)
        return
    assert len(result) >= 2
    for draws in result.arms.values():
        assert draws.answer.shape == draws.quality.shape == draws.price.shape == (len(result), draws.depth)
        assert 0 <= draws.quality.min() <= draws.quality.max() <= 1
        assert draws.price.min() >= 0
        assert not result.texts or 0 <= draws.answer.min() <= draws.answer.max() < len(result.texts)
