"""A table file as columns of texts and numbers; the first bad cell is named by row and column."""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from playcall.strategies import PlaycallError
from playcall.strategies.errors import some
from playcall.strategies.panel import Floats, Ints

_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, RecursionError, csv.Error)
_ALSO = {"item": ("task_id", "instance_id", "id"), "arm": ("model", "agent"), "score": ("resolved", "correct", "label")}


class TableError(PlaycallError):
    """A table that cannot be read as recorded calls: the file, the data row from 1, the column, and what to do."""

    def __init__(self, text: str, file: str, row: int | None = None, column: str | None = None) -> None:
        place = file + (f", row {row}" if row else "") + (f", column {column!r}" if column is not None else "")
        super().__init__(f"{place}: {text}")
        self.file, self.row, self.column = file, row, column


@dataclass(frozen=True)
class Table:
    """Some rows of a table file."""

    file: str  # its name, and which rows of it: "runs.csv [split=test]"
    columns: Mapping[str, pa.Array]  # all of the file
    rows: Ints  # which rows of it, from 0

    def error(self, text: str, at: int | None = None, column: str | None = None) -> TableError:
        """An error in the row at a position, and a column."""
        return TableError(text, self.file, None if at is None else int(self.rows[at]) + 1, column)

    def need(self, name: str, ours: str = "") -> str:
        """The name, if the file has such a column; `ours` is what we call it."""
        if name in self.columns:
            return name
        near = difflib.get_close_matches(name, self.columns) + [n for n in _ALSO.get(ours, ()) if n in self.columns]
        say = f"--columns {ours}={[*near, '<its name>'][0]}" if ours else [*near, "one of these"][0]
        raise self.error(f"there is no column {name!r}; the columns are {some(self.columns, 30)}. Say {say}.")

    def texts(self, name: str) -> tuple[Ints, list[str]]:
        """(each row's code, -1 where null; the texts in order of first appearance)."""
        try:
            column = self.columns[name].take(pa.array(self.rows))
            texts = _array(column.to_pylist()) if pa.types.is_nested(column.type) else column.cast(pa.large_string())
            encoded = texts.dictionary_encode()
            return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
        except _BROKEN as error:
            raise self.error(f"cannot be read: {str(error).rstrip('.')}. Write the file anew.", column=name) from error

    def keys(self, name: str) -> tuple[Ints, list[str]]:
        """The same for a column that must say something in every row."""
        codes, texts = self.texts(name)
        blank = np.array([text.strip().lower() in ("", "nan") for text in texts] + [True])[codes]
        if blank.any():
            raise self.error("is empty. Fill it in, or take the row out.", int(blank.argmax()), name)
        return codes, texts

    def numbers(self, name: str, low: float, high: float, what: str) -> Floats:
        """Each row's number, NaN only where null: a recorded NaN, or one out of bounds, is an error."""
        codes, texts = self.texts(name)
        read = np.array([_number(text) for text in texts] + [np.nan])
        wrong = np.append(~((read[:-1] >= low) & (read[:-1] <= high)), False)[codes]
        if wrong.any():
            text = f"{texts[codes[wrong.argmax()]][:60]!r} is not {what}. Mend it; leave it empty if it is not known."
            raise self.error(text, int(wrong.argmax()), name)
        return read[codes]

    def where(self, name: str, wanted: Collection[str]) -> Table:
        """The rows that have one of the wanted texts."""
        codes, texts = self.texts(self.need(name))
        if {*texts} <= {"true", "false"}:  # as Python writes them
            wanted = [value.lower() for value in wanted]
        if absent := [value for value in wanted if value not in texts]:
            raise self.error(f"no row has {absent[0]!r}. Pick from {some(texts, 30)}.", column=name)
        keep = np.isin(codes, [texts.index(value) for value in wanted])
        return replace(self, rows=self.rows[keep], file=f"{self.file} [{name}={'|'.join(wanted)}]")


def open_table(path: str | Path) -> Table:
    """A .parquet, .csv or .jsonl file, the latter two also packed as .gz or .zst."""
    path = Path(path)
    packing = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    kind = Path(path.stem if packing else path.name).suffix.lower()
    if kind not in (".csv", ".jsonl", ".parquet"):
        raise TableError("is of no known kind. Give .parquet, .csv or .jsonl, plain or as .gz or .zst.", path.name)
    if not path.is_file():
        raise TableError(f"there is no such file at {path}. Give the path of a table file.", path.name)
    records: list[dict[str, Any]] = []
    text = ""
    try:
        with pa.input_stream(str(path), compression=packing) as stream:
            data = stream.read_buffer()
        if kind == ".parquet":
            table = pq.read_table(pa.BufferReader(data))
            table.validate(full=True)
            columns = {name: table[name].combine_chunks() for name in table.column_names}
        else:
            text = data.to_pybytes().decode("utf-8-sig")
            records.extend(_csv(text) if kind == ".csv" else _jsonl(text))
            names = dict.fromkeys(name for record in records for name in record)
            columns = {name: _array([record.get(name) for record in records]) for name in names}
    except _BROKEN as error:
        why = f"cannot be read: {str(error).rstrip('.')}. Write it anew: whole, in UTF-8, as what its name says."
        raise TableError(why, path.name, len(records) + 1 if text else None) from error
    rows = np.arange(len(next(iter(columns.values()), ())))
    if not len(rows):
        raise TableError("has no rows. Give a file with recorded calls in it, one a row.", path.name)
    return Table(path.name, columns, rows)


def _csv(text: str) -> Iterator[dict[str, Any]]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    for row in rows:
        if len(row) != len(rows.fieldnames or ()) or None in row.values():
            raise ValueError("it has not one cell for each name in the header; quote cells that hold commas")
        yield {name: cell or None for name, cell in row.items()}


def _jsonl(text: str) -> Iterator[dict[str, Any]]:
    for line in filter(str.strip, text.split("\n")):
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError('it is no object like {"item": "q1", "arm": "a", "score": 1}')
        json.dumps(record if "\\u" in line else "", ensure_ascii=False).encode()  # half a surrogate pair is no text
        yield record


def _array(values: list[Any]) -> pa.Array:
    texts = (v if isinstance(v, str | None) else json.dumps(v, sort_keys=True, default=str) for v in values)
    return pa.array(texts, pa.large_string())


def _number(text: str) -> float:
    try:
        return float({"true": 1, "false": 0}.get(text.lower(), text))
    except ValueError:
        return np.nan
