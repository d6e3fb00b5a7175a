"""The tables of a folder as recordings to benchmark on, whatever their shape; what cannot be read says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from playcall.evals.columns import Table, open_table
from playcall.evals.table import read_table
from playcall.portfolio import priced
from playcall.strategies import Misuse, PlaycallError, Recording
from playcall.strategies.errors import some
from playcall.strategies.panel import Ints, Mask

KINDS = (".parquet", ".csv", ".jsonl")
_PACKED = ("", ".gz", ".zst")
_NUMBERS = ("score", "cost_usd", "latency_s", "confidence", "prompt_cost_usd")
_AMOUNTS = ("cost_usd", "latency_s", "prompt_cost_usd")  # a negative one is a counter that was set back: not known
_DRAWS = ("sample", "trial", "attempt")
_ALSO_DRAWS = ("build", "builds", "run", "runs", "trials", "attempts", "draw", "seed", "repeat")
_MOST = 0.95  # an arm on fewer of the usual items is left out


@dataclass(frozen=True)
class Bench:
    """A table: its priced arms, or why it was refused. `texts` are the prompts by item, where there are any."""

    name: str
    recording: Recording | None = None
    costs: bool = True  # False: none was recorded, every call costs 1
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refused: str = ""


def read_folder(folder: Path, wanted: Sequence[str] = ()) -> Iterator[Bench]:
    """Every table in a folder (or in one file), those named alone where names are given.

    A file is named by its stem, each of several datasets in it stem/dataset; a stem names all its datasets. Arms are
    kept that have a score on 95% of the usual items (those that half of the arms have), then the items that every kept
    arm has. Raises Misuse where a wanted table is not there.
    """
    files = sorted(p for p in ([folder] if folder.is_file() else folder.glob("*")) if _stem(p) is not None)
    if not files:
        raise Misuse(f"{folder} holds no {', '.join(KINDS)} file; name a folder of recorded tables.")
    stems = [_stem(p) or "" for p in files]
    names = [p.name if stems.count(stem) > 1 else stem for p, stem in zip(files, stems)]
    left = list(dict.fromkeys(wanted))
    for path, name in zip(files, names):
        if wanted and not any(w == name or w.startswith(f"{name}/") for w in wanted):
            continue
        for bench in _file(path, name):
            if not wanted or name in wanted or bench.name in wanted or bench.refused:
                left = [w for w in left if w not in (name, bench.name)]
                yield bench
    if left:
        raise Misuse(f"there is no table {left[0]!r} in {folder}. Pick from {some(names, 40)}, or stem/dataset of one.")


def _stem(path: Path) -> str | None:
    for kind in KINDS:
        for packing in _PACKED:
            if path.name.lower().endswith(kind + packing):
                return path.name[: -len(kind + packing)]
    return None


def _file(path: Path, name: str) -> Iterator[Bench]:
    try:
        table = open_table(path)
        for column in ("item", "arm", "score"):
            table.need(column)
        sets = table.keys("dataset")[1] if "dataset" in table.columns else []
    except PlaycallError as error:
        yield Bench(name, refused=str(error))
        return
    several = len(sets) > 1
    for value in sets if several else [""]:
        part = f"{name}/{value}" if several else name
        try:
            yield _bench(table.where("dataset", [value]) if several else table, part)
        except PlaycallError as error:
            yield Bench(part, refused=str(error))


def _bench(table: Table, name: str) -> Bench:
    notes = list[str]()
    rows = _usual(table, notes)
    table = replace(table, rows=table.rows[rows])
    columns = {c: _mended(table, c, notes) for c in ("item", "arm", "answer", *_NUMBERS, *_DRAWS) if c in table.columns}
    pairs = {*zip(table.keys("item")[0].tolist(), table.keys("arm")[0].tolist())}
    other = next((c for c in _ALSO_DRAWS if c in table.columns), None)
    if len(pairs) < len(table.rows) and other and not set(_DRAWS) & set(columns):
        columns["sample"] = pa.array(table.texts(other)[0])
        notes.append(f"draws are numbered by the column {other!r}.")
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{name.replace('/', ' ')}.parquet"
        pq.write_table(pa.table(columns), file)
        recording = read_table(file, missing="drop-items")
    usable = priced(recording)
    if unpriced := [a for a in recording.arms if a not in usable.arms]:
        notes.append(f"arms without a cost, left out: {len(unpriced)} of {len(recording.arms)} ({some(unpriced)}).")
    if not (costs := usable.priced):
        notes.append("no costs recorded: every call costs 1, costs are calls.")
    if not usable.answered:
        notes.append("no answers recorded: no votes and no agreement.")
    notes += [n for n in recording.notes if not n.startswith("no costs")]
    texts = _prompts(table)
    if not costs:  # none has a cost, so that the flag would only say so again
        usable = replace(usable, arms={a: replace(d, priced=True) for a, d in usable.arms.items()})
    return Bench(name, replace(usable, name=name), costs, texts, tuple(notes))


def _usual(table: Table, notes: list[str]) -> Mask:
    """(rows,) whether it is of a kept arm and a usual item."""
    (item, items), (arm, arms) = table.keys("item"), table.keys("arm")
    codes, texts = table.texts("score")
    scored = np.append([t.strip().lower() not in ("", "nan") for t in texts], False).astype(bool)[codes]
    has = np.zeros((len(arms), len(items)), dtype=bool)
    has[arm[scored], item[scored]] = True
    usual = has.mean(axis=0) >= 0.5
    if not usual.any():
        raise table.error("no item has scores of half of the arms (no overlap). Give the arms the same items.")
    keep = has[:, usual].mean(axis=1) >= _MOST
    if not keep.any():
        raise table.error(f"no arm has scores of {_MOST:.0%} of the {usual.sum():,} usual items.")
    if not keep.all():
        gone = [arms[a] for a in np.flatnonzero(~keep)]
        notes.append(f"arms with under {_MOST:.0%} of the items, left out: {len(gone)} of {len(arms)} ({some(gone)}).")
    whole = usual & has[keep].all(axis=0)
    if not whole.all():
        notes.append(f"items that a kept arm lacks, left out: {(~whole).sum():,} of {len(items):,}.")
    return np.asarray(keep[arm] & whole[item])


def _mended(table: Table, name: str, notes: list[str]) -> pa.Array:
    """A column where NaN, or an amount under zero, is null."""
    column = table.columns[name].take(pa.array(table.rows))
    if name not in _NUMBERS:
        return column
    codes, texts = table.texts(name)
    wrong = np.append([_unknown(t, name in _AMOUNTS) for t in texts], False).astype(bool)[codes]
    if not wrong.any():
        return column
    if under := int((wrong & _negative(codes, texts)).sum()):
        notes.append(f"{name} under zero, taken as not recorded: {under:,}.")
    return pc.if_else(pa.array(wrong), pa.scalar(None, column.type), column)


def _unknown(text: str, amount: bool) -> bool:
    return text.strip().lower() == "nan" or (amount and text.strip().startswith("-"))


def _negative(codes: Ints, texts: Sequence[str]) -> Mask:
    return np.append([t.strip().startswith("-") for t in texts], False).astype(bool)[codes]


def _prompts(table: Table) -> dict[str, str]:
    """The first prompt of each item."""
    if "prompt" not in table.columns:
        return {}
    (item, items), (prompt, texts) = table.keys("item"), table.texts("prompt")
    known = np.flatnonzero(prompt >= 0)
    _, first = np.unique(item[known], return_index=True)
    return {items[item[i]]: texts[prompt[i]] for i in known[first]}
