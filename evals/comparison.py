"""Strategies side by side on one recording: quality, cost and latency, held out, with intervals."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from playcall.portfolio import Figures, Folding, HeldOut, best_arm, cross_fit, priced, search, standard
from playcall.portfolio.arms import independent
from playcall.portfolio.files import read_json
from playcall.portfolio.policy import ALONE
from playcall.strategies import Ask, Explain, Misuse, PlaycallError, Recording, Strategy, arms_of, load, outcomes
from playcall.strategies.panel import Floats


@dataclass(frozen=True, kw_only=True)
class Row(Figures):
    """One strategy's figures.

    `kind` is "arm" (one call, nothing chosen), "family" (chosen on training folds, graded on the others), "yours"
    (given, nothing chosen) or "bound" (no strategy can know this). `words` say the play; a family's is the one that
    it chooses on all tasks.
    """

    strategy: str
    kind: str
    words: str
    cost_per_1000: float | None
    frontier: bool = False


@dataclass(frozen=True)
class Comparison:
    """All rows of a comparison, and what was done to the data."""

    name: str
    tasks: int
    single_arm: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    error_correlation: Mapping[str, Mapping[str, float]]  # arm -> arm -> correlation of being wrong

    def to_dict(self) -> dict[str, object]:
        """Plain values, as `--json` prints them."""
        return asdict(self)

    def to_pandas(self) -> pd.DataFrame:
        """One row per strategy."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    def _repr_html_(self) -> str:
        shown = self.to_pandas().drop(columns="words").to_html(index=False, float_format="%.4g", border=0)
        return f"<h4>{escape(self.name)}: {self.tasks:,} tasks</h4>{shown}<p>{escape(' '.join(self.notes))}</p>"


def compare(
    recording: Recording, strategies: Mapping[str, Strategy] | None = None, **folding: Unpack[Folding]
) -> Comparison:
    """The standard families, every single arm, the user's strategies and the oracle on one recording.

    What a family tunes is tuned on training folds and graded on the fold left out, and so is the single arm that it is
    compared with, so that `single_arm`, the best on all tasks, is a little better than it. `folding` goes to
    `cross_fit`.
    """
    usable = independent(priced(recording))
    single = best_arm(usable)
    families, strategies = standard(usable), strategies or {}
    if taken := [name for name in strategies if name in families or name in recording.arms]:
        raise Misuse(f"your strategy {taken[0]!r} has the name of an arm or of a family; give it one of its own.")
    held, swept = cross_fit(usable, families, **folding), search(usable)
    chosen = held[ALONE].quality
    rows = [_row(n, "family", h, chosen, usable, Explain()(families[n](swept, usable))) for n, h in held.items()]
    rows += [_graded(arm, "arm", Ask(arm), chosen, recording) for arm in recording.arms]
    rows += [_graded(name, "yours", s, chosen, recording) for name, s in strategies.items()]
    rows.append(_row("oracle: any call right", "bound", _oracle(usable), chosen, usable, "The cheapest right call."))
    on = _frontier([r for r in rows if r.kind != "bound"])
    rows = [replace(r, frontier=r.strategy in on) for r in rows]
    order = {"family": 0, "yours": 1, "arm": 2, "bound": 3}
    rows.sort(key=lambda r: (order[r.kind], -r.quality))
    wrong = pd.DataFrame({a: d.quality[:, 0] < 0.5 for a, d in recording.arms.items()}, dtype=np.float64)
    alike = wrong.corr().fillna(0.0).round(4).to_dict()  # an arm that is never or always right correlates with none
    return Comparison(recording.name, len(recording), single, tuple(rows), usable.notes, alike)


def _graded(name: str, kind: str, s: Strategy, alone: Floats, recording: Recording) -> Row:
    """A row of a strategy that needs no choosing."""
    o = outcomes(s, recording)
    return _row(name, kind, HeldOut.of(o), alone, recording.only(arms_of(s)), Explain()(s))


def _row(name: str, kind: str, h: HeldOut, alone: Floats, recording: Recording, words: str) -> Row:
    figures = h.figures(recording, alone)
    cost = None if figures.cost_per_task is None else 1000 * figures.cost_per_task
    return Row(strategy=name, kind=kind, words=words, cost_per_1000=cost, **vars(figures))


def _oracle(recording: Recording) -> HeldOut:
    """The best answer in any recorded call of each task, at the price of the cheapest call that gave it."""
    quality, cost, latency = (
        np.concatenate([getattr(d, field) for d in recording.arms.values()], axis=1).astype(np.float64)
        for field in ("quality", "price", "latency")
    )
    pick = np.where(quality == quality.max(axis=1, keepdims=True), cost, np.inf).argmin(axis=1)
    at = np.arange(len(recording)), pick
    return HeldOut(quality[at], cost[at], latency[at], np.ones(len(recording)))


def _frontier(rows: list[Row]) -> set[str]:
    """Those that no other strategy beats in quality at no more cost (calls, where costs were not recorded)."""
    costed = all(r.cost_per_1000 is not None for r in rows if r.kind == "family")
    price = {r.strategy: r.cost_per_1000 if costed else r.calls for r in rows}
    best, kept = -np.inf, set[str]()
    for r in sorted((r for r in rows if price[r.strategy] is not None), key=lambda r: (price[r.strategy], -r.quality)):
        if r.quality > best:
            best = r.quality
            kept.add(r.strategy)
    return kept


def strategy_file(name: str) -> dict[str, Strategy]:
    """The user's strategy: a JSON file of a strategy or policy, or `plays.py:name` of a strategy or of a function."""
    path, _, attribute = name.partition(".py:")
    if not attribute:
        return {Path(name).stem: load(read_json(name))}
    try:
        found = runpy.run_path(path + ".py")[attribute]
        found = found if isinstance(found, Strategy) else found()
    except PlaycallError:
        raise
    except Exception as error:
        say = "write file.py:name of a strategy, or of a function that makes one"
        raise Misuse(f"--strategy {name}: {error!r}; {say}.") from error
    if not isinstance(found, Strategy):
        raise Misuse(f"--strategy {name} is {found!r}, not a strategy; compose Ask('model'), &, |, n * and keep().")
    return {attribute: found}


def to_csv(comparisons: list[Comparison]) -> str:
    """All rows, with the table that each belongs to."""
    return pd.concat([c.to_pandas().assign(table=c.name) for c in comparisons]).to_csv(index=False)


def to_json(comparisons: list[Comparison]) -> str:
    """One object, or a list of them where a table was split by a column."""
    documents = [c.to_dict() for c in comparisons]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, allow_nan=False)
