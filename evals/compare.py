"""Strategies side by side on one recording: quality, cost and latency, held out, with intervals."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from playcall.calibration import mean_interval
from playcall.portfolio import HeldOut, Progress, best_arm, cross_fit, priced, standard
from playcall.portfolio.nested import unseen
from playcall.portfolio.policy import read_json
from playcall.strategies import NANO, Ask, Explain, Misuse, PlaycallError, Recording, Strategy, arms_of, load, outcomes
from playcall.strategies.panel import Floats, Mask

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Row:
    """One strategy's figures; costs in USD per 1,000 tasks, times in seconds; None where nothing was recorded.

    `kind` is "arm" (one call, nothing chosen), "family" (chosen on training folds, graded on the others), "yours"
    (given, nothing chosen) or "bound" (no strategy can know this). Intervals are 95%; the difference to the best
    single arm is paired by task.
    """

    strategy: str
    kind: str
    quality: float
    quality_low: float
    quality_high: float
    cost_per_1000: float | None
    latency_mean: float | None
    latency_p95: float | None
    calls: float
    difference: float
    difference_low: float
    difference_high: float
    frontier: bool
    words: str


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
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def _repr_html_(self) -> str:
        shown = self.to_pandas().drop(columns="words").to_html(index=False, float_format="%.4g", border=0)
        return f"<h4>{escape(self.name)}: {self.tasks:,} tasks</h4>{shown}<p>{escape(' '.join(self.notes))}</p>"


def compare(
    recording: Recording,
    strategies: Mapping[str, Strategy] | None = None,
    *,
    folds: int = 10,
    repeats: int = 1,
    seed: int = 0,
    progress: Progress = unseen,
) -> Comparison:
    """The standard families, every single arm, the user's strategies and the oracle on one recording.

    What a family tunes is tuned on training folds and graded on the fold left out. `single_arm` is the arm with the
    best mean on all tasks, which favours it a little: differences to it are, if anything, too small.
    """
    usable = priced(recording)
    single = best_arm(usable)
    alone = usable[single].quality[:, 0]
    held = cross_fit(usable, standard(usable), folds=folds, repeats=repeats, seed=seed, progress=progress)
    rows = [_row(name, "family", h, alone, usable, _FAMILIES.get(name.split(",")[0], name)) for name, h in held.items()]
    rows += [_graded(arm, "arm", Ask(arm), alone, recording) for arm in recording.arms]
    rows += [_graded(name, "yours", s, alone, recording) for name, s in (strategies or {}).items()]
    rows.append(
        _row("oracle: any arm right", "bound", _oracle(usable), alone, usable, "the cheapest arm that is right")
    )
    on = _frontier([r for r in rows if r.kind != "bound"])
    rows = [Row(**{**vars(r), "frontier": r.strategy in on}) for r in rows]
    order = {"family": 0, "yours": 1, "arm": 2, "bound": 3}
    rows.sort(key=lambda r: (order[r.kind], -r.quality))
    failures = {a: d.quality[:, 0] < 0.5 for a, d in recording.arms.items()}
    return Comparison(recording.name, len(recording), single, tuple(rows), recording.notes, _correlation(failures))


_FAMILIES = {
    "best single arm": "the arm that is best on the training tasks",
    "majority of the best three": "the three best arms at once; the answer with most votes",
    "portfolio vote": "up to four arms at once; votes weighed by a conditional logit",
    "cascade": "arms in stages until the probability of an answer reaches a learned threshold; weighed votes",
    "parallel early stop": "the best cascade with all its calls at once; cancelled when sure",
    "hedge": "the best arm, and a second call after its 95th percentile",
}


def _graded(name: str, kind: str, s: Strategy, alone: Floats, recording: Recording) -> Row:
    """A row of a strategy that needs no choosing."""
    o = outcomes(s, recording)
    as_floats = (x.astype(np.float64) for x in (o.quality, o.cost, o.latency, o.calls))
    return _row(name, kind, HeldOut(*as_floats), alone, recording.only(arms_of(s)), Explain()(s))


def _row(name: str, kind: str, h: HeldOut, alone: Floats, recording: Recording, words: str) -> Row:
    quality, low, high = mean_interval(h.quality)
    difference, worse, better = mean_interval(h.quality - alone, bounds=(-1, 1))
    timed = recording.timed
    return Row(
        strategy=name,
        kind=kind,
        quality=quality,
        quality_low=low,
        quality_high=high,
        cost_per_1000=float(h.cost.mean()) / NANO * 1000 if recording.priced else None,
        latency_mean=float(h.latency.mean()) / 1e6 if timed else None,
        latency_p95=float(np.quantile(h.latency, 0.95)) / 1e6 if timed else None,
        calls=float(h.calls.mean()),
        difference=difference,
        difference_low=worse,
        difference_high=better,
        frontier=False,
        words=words,
    )


def _oracle(recording: Recording) -> HeldOut:
    """The best answer that any arm's first draw gave to each task, at the price of the cheapest that gave it."""
    quality, cost, latency = (
        np.stack([getattr(d, field)[:, 0] for d in recording.arms.values()], axis=1).astype(np.float64)
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


def _correlation(failures: Mapping[str, Mask]) -> dict[str, dict[str, float]]:
    wrong = np.stack(list(failures.values())).astype(np.float64)
    varied = wrong - wrong.mean(axis=1, keepdims=True)
    spread = np.sqrt((varied**2).sum(axis=1))
    matrix = varied @ varied.T / np.maximum(np.outer(spread, spread), 1e-12)
    return {
        a: {b: round(float(x), 4) for b, x in zip(failures, row, strict=True)}
        for a, row in zip(failures, matrix, strict=True)
    }


def strategy_file(name: str) -> dict[str, Strategy]:
    """The user's strategy: a JSON file of a strategy or policy, or `plays.py:name` of a strategy or of a function."""
    path, _, attribute = name.partition(".py:")
    if not attribute:
        document = read_json(name)
        return {Path(name).stem: load({k: document[k] for k in ("playcall", "strategy") if k in document})}  # type: ignore[dict-item]
    try:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path + ".py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = getattr(module, attribute)
        found = found if isinstance(found, Strategy) else found()
    except PlaycallError:
        raise
    except Exception as error:
        raise Misuse(
            f"--strategy {name}: {error!r}; write file.py:name of a strategy or of a function that makes one."
        ) from error
    if not isinstance(found, Strategy):
        raise Misuse(f"--strategy {name} is {found!r}, not a strategy; compose Ask('model'), &, |, n * and keep().")
    return {attribute: found}


def to_csv(comparisons: list[Comparison]) -> str:
    """All rows, with the table that each belongs to."""
    import pandas as pd

    return pd.concat([c.to_pandas().assign(table=c.name) for c in comparisons]).to_csv(index=False)


def to_json(comparisons: list[Comparison]) -> str:
    """One object, or a list of them where a table was split by a column."""
    documents = [c.to_dict() for c in comparisons]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, allow_nan=False)
