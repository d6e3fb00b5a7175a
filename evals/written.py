"""Writing a table file: row by row, and seen by nobody until it is whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from playcall.portfolio.files import whole
from playcall.strategies import Misuse

Types = Mapping[str, type]
Write = Callable[[list[tuple[Any, ...]]], None]
BATCH = 10_000  # rows
_ARROW = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

OURS: Mapping[str, type] = {
    "item": str,
    "arm": str,
    "sample": int,
    "score": float,
    "answer": str,
    "reference": str,
    "cost_usd": float,
    "latency_s": float,
    "confidence": float,
    "prompt_cost_usd": float,
    "cost_nano": int,
    "input_tokens": int,
    "output_tokens": int,
    "finish": str,
    "error": str,
    "estimated": bool,
}
"""The table's own columns; those of the tasks follow."""


def write_table(path: Path, types: Types, rows: Iterable[tuple[Any, ...]]) -> None:
    """Rows as .parquet, .csv or .jsonl, the same bytes for the same rows; halves of surrogate pairs become "?". Raises
    PlaycallError if there is no room."""
    rows = iter(rows)
    with whole(path) as beside, _writer(path)(beside, types) as write:
        while batch := list(islice(rows, BATCH)):
            write([tuple(map(_clean, row)) for row in batch])


def check_name(path: Path) -> None:
    """Raise Misuse for a table of no kind, or in no folder."""
    _writer(path)
    if not path.parent.is_dir():
        raise Misuse(f"{path}: there is no folder {path.parent}. Make it, or name another by -o.")


def _writer(path: Path) -> Callable[[Path, Types], AbstractContextManager[Write]]:
    if (kind := path.suffix.lower()) not in _WRITERS:
        raise Misuse(f"{path}: a table is {', '.join(_WRITERS)}; name one of these by -o.")
    return _WRITERS[kind]


def is_text(text: str) -> bool:
    """Whether it has no halves of surrogate pairs, which no file can hold."""
    return _clean(text) == text


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if type(value) is str and not value.isascii() else value


def type_of(values: Iterable[object]) -> type:
    """What a column of these is."""
    found = {type(value) for value in values if value is not None}
    return next(
        (kind for kind in (bool, int, str) if found == {kind}), float if found and found <= {int, float} else str
    )


def as_type(value: object, kind: type) -> object:
    """A value as such a column holds it: what is no text goes as JSON into a column of texts."""
    if value is None or kind is not str:
        return value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


@contextmanager
def _parquet(path: Path, types: Types) -> Iterator[Write]:
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in types.items()])
    with pq.ParquetWriter(path, schema) as writer:

        def write(rows: list[tuple[Any, ...]]) -> None:
            arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows), schema)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield write


@contextmanager
def _csv(path: Path, types: Types) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(types)
        yield lambda rows: writer.writerows(
            [str(value).lower() if isinstance(value, bool) else value for value in row] for row in rows
        )


@contextmanager
def _jsonl(path: Path, types: Types) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(rows: list[tuple[Any, ...]]) -> None:
            for row in rows:
                file.write(json.dumps(dict(zip(types, row)), ensure_ascii=False, allow_nan=False) + "\n")

        yield write


_WRITERS = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
