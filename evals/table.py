"""Recorded calls from a file: one row per call, in any order, checked before anything is computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypedDict, Unpack, get_args

import numpy as np

from playcall.evals.columns import Table, TableError, open_table
from playcall.strategies import NANO, Draws, Misuse, Recording
from playcall.strategies.canonical import canonicaliser
from playcall.strategies.errors import some
from playcall.strategies.panel import Floats, Ints, Mask

__all__ = ["Options", "TableError", "read_table", "read_tables"]

Missing = Literal["refuse", "fail", "drop-items"]
Samples = Literal["apart", "together"]
Names = Mapping[str, str]
Where = Mapping[str, str | Sequence[str]] | Iterable[str]

_UNIFORM = (
    "dataset", "item", "arm", "sample", "answer", "reference", "score", "cost_usd", "latency_s", "confidence",
    "prompt_cost_usd",
)  # fmt: skip
_NUMBERS = {
    "score": (0.0, 1.0, "a score from 0 to 1"),
    "sample": (-1e15, 1e15, "a draw's number"),
    "cost_usd": (0.0, 1e6, "a cost in US dollars from 0 to a million"),
    "latency_s": (0.0, 1e9, "a time in seconds from 0 to a billion"),
    "confidence": (-1e300, 1e300, "a finite number"),
    "prompt_cost_usd": (0.0, 1e6, "a cost in US dollars from 0 to a million"),
}
_NONE: Names = MappingProxyType({})
_FEW = 0.05  # at most this share of an arm's costs or latencies is filled in with its median


class Options(TypedDict, total=False):
    """How to read a table, where not as usual."""

    columns: Names  # ours -> the file's; "" to ignore an optional one
    canonical: str  # when answers are equal, "exact" unless told: see `canonicaliser`
    missing: Missing  # what to do where an arm has no scored draw of an item, "refuse" unless told
    verifier: str | None  # the column that is the confidence; "score" for the grade itself
    group: str | None  # the column of groups of items that are alike, such as documents: folds never split one
    samples: Samples  # "together" prices draws side by side as one request, "apart" (unless told) as one each


def read_table(path: str | Path, *, where: Where = (), **options: Unpack[Options]) -> Recording:
    """A table file as a Recording; its `notes` say whatever was done to the data.

    A row is a call: `item`, `arm` and `score` (its grade, 0 to 1); where recorded also `sample` (or `trial`, or
    `attempt`: any numbers, taken in order), `answer`, `cost_usd`, `latency_s`, `confidence`, `dataset`. Empty or null
    means not recorded. `where` keeps rows: {"split": ["test"]}, or texts "split=test", either of two on one column.
    Raises TableError for the file, Misuse for the options.
    """
    return _recording(_opened(path, where, options.get("columns", _NONE)), **options)


def read_tables(path: str | Path, *, by: str, where: Where = (), **options: Unpack[Options]) -> dict[str, Recording]:
    """Each value of the column `by` as a task of its own, in order of first appearance; else as `read_table`."""
    columns = options.get("columns", _NONE)
    table, by = _opened(path, where, columns), columns.get(by, by)
    return {value: _recording(table.where(by, [value]), **options) for value in table.keys(table.need(by))[1]}


def _opened(path: str | Path, where: Where, columns: Names) -> Table:
    table = open_table(path)
    if not isinstance(where, Mapping):
        pairs = [text.partition("=")[::2] for text in where]
        where = {name: [value for other, value in pairs if other == name] for name, _ in pairs}
    for name, values in where.items():
        table = table.where(columns.get(name, name), [values] if isinstance(values, str) else values)
    return table


def _recording(
    table: Table,
    columns: Names = _NONE,
    canonical: str = "exact",
    missing: str = "refuse",
    verifier: str | None = None,
    samples: str = "apart",
    group: str | None = None,
) -> Recording:
    for option, told, kinds in (("missing", missing, Missing), ("samples", samples, Samples)):
        if told not in get_args(kinds):
            raise Misuse(f"{option}={told!r} is unknown; write {', '.join(get_args(kinds))}.")
    names, read, notes = _names(table, columns, verifier), canonicaliser(canonical), list[str]()
    (item, items), (arm, arms) = table.keys(names["item"]), table.keys(names["arm"])
    item_of_row = item
    answer, found = table.texts(names["answer"]) if "answer" in names else (np.full(len(item), -1), [])
    texts = dict[str, int]()
    answer = np.array([*(texts.setdefault(read(text), len(texts)) for text in found), -1])[answer]
    score, sample, *measured = (
        table.numbers(names[ours], *bounds) if ours in names else np.full(len(item), np.nan)
        for ours, bounds in _NUMBERS.items()
    )
    order = _order(table, items, arms, np.stack([arm, item, np.nan_to_num(sample)]))
    order = order[~np.isnan(score[order])]
    if left := len(item) - len(order):
        notes.append(f"rows without a score, left out: {left:,}.")

    # From here on calls go by arm, item and draw. One more at the end, -1, stands for every call that was never made.
    item, arm, answer = item[order], arm[order], np.append(answer[order], -1)
    score, cost, latency, confidence, prompt = (np.append(values[order], np.nan) for values in (score, *measured))
    cell, shape = arm * len(items) + item, (len(arms), len(items))
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    draw, counts = np.arange(len(cell)) - (np.cumsum(counts) - counts)[cell], counts.reshape(shape)
    keep = _kept(table, counts, items, arms, missing, notes)
    # An arm whose nulls are right at times has no failures: to fail only its wrong answers would tell them.
    null = (answer[:-1] < 0) & bool(texts)
    odd = np.isin(arm, arm[null & (score[:-1] > 0)])
    failed = np.append(null & ~odd, True)
    if fails := (null & ~odd).sum():
        notes.append(f"calls without an answer, counted as failed: {fails:,}.")
    if odd.any():
        whose = some([arms[a] for a in np.unique(arm[odd])])
        notes.append(f"right answers of {whose} have no text, so all without one count as unlike any other.")

    draws, alone = {}, len(texts)  # answers from `alone` on are unlike any other
    for a, name in enumerate(arms):
        mine, held = np.flatnonzero(arm == a), counts[a, keep & (counts[a] > 0)]
        depth, most = (held.min(), held.max()) if len(held) else (1, 1)
        if most > depth:
            notes.append(f"arm {name!r}: {depth} to {most} draws an item; the first {depth} are used.")
        calls = np.full((len(items), max(1, counts[a].max())), -1)
        calls[item[mine], draw[mine]] = mine
        calls = calls[keep, :depth]
        codes = answer[calls]
        codes[codes < 0] = alone + np.arange((codes < 0).sum())
        alone = max(alone, codes.max() + 1)
        price, priced = _measured(cost, calls, mine, NANO, 0)
        wait, timed = _measured(latency, calls, mine, 1_000_000, 1)
        quality = np.where(failed[calls], 0.0, score[calls])
        asked, known = _measured(prompt, calls, mine, NANO, 0)
        share = np.minimum(asked, price) if priced and known else None
        draws[name] = Draws(codes, confidence[calls], failed[calls], price, wait, quality, priced, timed, share)

    for what, so, values, has in (
        (
            "costs",
            "listed, but `compare` and `fit` never recommend them",
            cost,
            np.array([d.priced for d in draws.values()]),
        ),
        ("latencies", "taken to answer at once", latency, np.array([d.timed for d in draws.values()])),
    ):
        if not has.all():
            whose = some([name for name, known in zip(arms, has) if not known])
            notes.append(f"no {what} recorded" + (f", or of under 95% of calls: {whose}; {so}." if has.any() else "."))
        if filled := (np.isnan(values[:-1]) & has[arm]).sum():
            notes.append(f"{what} not recorded, taken to be the arm's median: {filled:,}.")
    if graded := names.get("confidence") == names["score"]:
        notes.append("THE SCORES ARE THE GRADES: this holds only where a checker as good as the grader runs live.")
    alike = (*texts, *(f"\x00null {code}" for code in range(len(texts), alone))) if texts else ()
    kept = tuple(name for name, stays in zip(items, keep) if stays)
    groups = () if group is None else _groups(table, columns.get(group, group), item_of_row, items, keep)
    recording = Recording(kept, draws, alike, table.file, tuple(notes), graded, canonical, groups=groups)
    return recording if samples == "apart" else recording.asked_together(*arms)


def _names(table: Table, columns: Names, verifier: str | None) -> dict[str, str]:
    """The file's name for each of our columns that it has, all of one dataset."""
    if unknown := sorted(set(columns) - set(_UNIFORM)):
        raise Misuse(f"{unknown[0]!r} is none of our columns, {', '.join(_UNIFORM)}. Write ours=theirs.")
    sample = next((name for name in ("sample", "trial", "attempt") if name in table.columns), "sample")
    usual = {**dict(zip(_UNIFORM, _UNIFORM)), "sample": sample, **columns}
    asked = {"item", "arm", "score", *(ours for ours in columns if columns[ours])}
    names = {o: table.need(name, o) for o, name in usual.items() if o in asked or (name and name in table.columns)}
    if verifier is not None:
        names["confidence"] = table.need(usual.get(verifier, verifier))
    if "dataset" in names and len(sets := table.texts(names["dataset"])[1]) > 1:
        by = f"or where the command has --by, take each as a task by --by {names['dataset']}"
        say = f"Pick one by --where {names['dataset']}=..., {by}"
        raise table.error(f"holds {len(sets)} datasets: {some(sets, 30)}. {say}.", column=names["dataset"])
    return names


def _groups(table: Table, column: str, item: Ints, items: list[str], keep: Mask) -> tuple[str, ...]:
    """The group of each item that is kept; an item has one."""
    group, names = table.keys(table.need(column))
    of = np.zeros(len(items), dtype=np.int64)
    of[item] = group
    if (odd := of[item] != group).any():
        row = int(odd.argmax())
        raise table.error(
            f"item {items[item[row]]!r} is in two groups, {names[group[row]]!r} and {names[of[item[row]]]!r}. "
            "Give each item one group in all its rows.",
            row,
            column,
        )
    if len(np.unique(of[keep])) < 2:
        raise table.error(f"all items are of one group, {names[of[0]]!r}: none can be held out. Take --group away.")
    return tuple(names[g] for g in of[keep])


def _order(table: Table, items: list[str], arms: list[str], keys: Floats) -> Ints:
    """The rows by arm, item and draw, which are `keys`; no draw may be there twice."""
    order = np.lexsort(keys[::-1])
    twice = (np.diff(keys[:, order]) == 0).all(axis=0)
    if twice.any():
        first, again = order[twice.argmax()], order[twice.argmax() + 1]
        arm, item, draw = keys[:, again].astype(int)
        what = f"draw {draw} of arm {arms[arm]!r} and item {items[item]!r} is in row {table.rows[first] + 1} too"
        raise table.error(f"{what}. Take one out, or number the draws in a column `sample`.", again)
    return order


def _kept(table: Table, counts: Ints, items: list[str], arms: list[str], missing: str, notes: list[str]) -> Mask:
    """(items,) which are kept; `counts` is (arms, items) scored draws."""
    (m, n), has = counts.shape, counts > 0
    whole, lacks = np.asarray(has.all(axis=0)), n - has.sum(axis=1)
    if n < 2:
        raise table.error(f"holds a single item, {items[0]!r}. Record at least 2, better 100.")
    if has.sum(axis=0).max() < min(m, 2):
        raise table.error("no item has scores of two arms (no overlap). Give the arms the same items, spelt alike.")
    if whole.all():
        return whole
    worst = [f"{arms[a][:60]!r} lacks {lacks[a]:,}" for a in np.argsort(-lacks, kind="stable")[:4] if lacks[a]]
    gaps = f"{lacks.sum():,} of {m * n:,} (item, arm) pairs have no scored draw: {(~whole).sum():,} of {n:,} items, "
    gaps += f"{(lacks > 0).sum()} of {m} arms ({', '.join(worst)})"
    if missing == "fail":
        notes.append(f"{gaps}; they count as failed calls of the arm's median cost and latency.")
        return np.full(n, True)
    if missing == "refuse" or whole.sum() < 2:
        drop = f"--missing drop-items to keep the {whole.sum():,} items that every arm has, " if whole.sum() > 1 else ""
        say = f"Say --missing fail to count them as failures, {drop}or --where arm=... for each arm to keep."
        raise table.error(f"{gaps}; items that every arm has: {whole.sum():,}. {say}")
    notes.append(f"{gaps}; only the {whole.sum():,} items that every arm has are kept.")
    return whole


def _measured(values: Floats, calls: Ints, mine: Ints, unit: int, least: int) -> tuple[Ints, bool]:
    """The calls' values in whole units, a few gaps filled with the arm's median; False where there are too many."""
    gaps = np.isnan(values[mine])
    if gaps.all() or gaps.mean() > _FEW:
        return np.full(calls.shape, least), False
    held = np.where(np.isnan(values[calls]), np.nanmedian(values[mine]), values[calls])
    return np.maximum(np.rint(held * unit).astype(np.int64), least), True
