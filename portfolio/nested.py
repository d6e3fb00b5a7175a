"""Held-out figures: every choice is made on training folds and graded on the fold that it has not seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from joblib import Parallel, cpu_count, delayed

from playcall.calibration import mean_interval
from playcall.calibration.clusters import grouped_interval
from playcall.calibration.intervals import quantile_interval, spread_interval
from playcall.portfolio.pool import search
from playcall.portfolio.sweep import Play
from playcall.strategies import NANO, Misuse, Outcomes, Recording, Strategy, outcomes
from playcall.strategies.panel import Floats, Ints

Chooser = Callable[[Sequence[Play], Recording], Strategy]
"""(all plays fitted on the training tasks, those tasks) -> the play to grade."""

Progress = Callable[[str, int, int], None]
"""(what is done, steps done, steps in all)."""


def unseen(text: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


class Folding(TypedDict, total=False):
    """How tasks are held out, where not as usual: see `cross_fit`."""

    folds: int
    repeats: int
    seed: int
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Means and 95% intervals; costs in USD a task, latencies in seconds, None where some arm's were not recorded."""

    quality: float
    quality_low: float
    quality_high: float
    cost_per_task: float | None
    latency_mean: float | None
    latency_p95: float | None
    calls: float
    difference: float
    difference_low: float
    difference_high: float
    cost_low: float | None = None
    cost_high: float | None = None
    latency_low: float | None = None
    latency_high: float | None = None
    latency_p95_low: float | None = None
    latency_p95_high: float | None = None


@dataclass(frozen=True)
class HeldOut:
    """What a way of choosing came to on tasks that it had not seen: arrays of (tasks,), means over the repeats."""

    quality: Floats
    cost: Floats  # nano-dollars
    latency: Floats  # microseconds
    calls: Floats
    learned: bool = True  # False: the play was given, not chosen on other folds

    @classmethod
    def of(cls, o: Outcomes) -> HeldOut:
        """What came of a given play."""
        quality, cost, latency, calls = (x.astype(np.float64) for x in (o.quality, o.cost, o.latency, o.calls))
        return cls(quality, cost, latency, calls, learned=False)

    def figures(self, recording: Recording, alone: Floats) -> Figures:
        """The figures, beside the (tasks,) qualities of the best single arm, which is chosen on training folds too if
        the play is; the difference is paired by task."""
        wider = (_QUALITY, _DIFFERENCE) if self.learned else (1.0, 1.0)
        quality, low, high = sure(self.quality, recording.groups, inflation=wider[0])
        difference, worse, better = sure(self.quality - alone, recording.groups, (-1, 1), wider[1])
        figures = Figures(
            quality=quality,
            quality_low=low,
            quality_high=high,
            cost_per_task=None,
            latency_mean=None,
            latency_p95=None,
            calls=float(self.calls.mean()),
            difference=difference,
            difference_low=worse,
            difference_high=better,
        )
        if recording.priced:
            cost, low, high = spread_interval(self.cost / NANO, recording.groups)
            figures = replace(figures, cost_per_task=cost, cost_low=low, cost_high=high)
        if recording.timed:
            mean, low, high = spread_interval(self.latency / 1e6, recording.groups)
            figures = replace(figures, latency_mean=mean, latency_low=low, latency_high=high)
            tail, low, high = quantile_interval(self.latency / 1e6, 0.95)
            figures = replace(figures, latency_p95=tail, latency_p95_low=low, latency_p95_high=high)
        return figures


_QUALITY, _DIFFERENCE = 1.4, 1.6
"""Variance of the error of one learned policy's figures over that of the held-out mean: which play is chosen
varies too. Measured at 100 and 300 labels on real and synthetic tables: 95% intervals cover 93 to 97% so, and
82 to 94% without it."""


def sure(
    values: Floats, groups: Sequence[str], bounds: tuple[float, float] = (0.0, 1.0), inflation: float = 1.0
) -> tuple[float, float, float]:
    """(mean, low, high) of (tasks,) values, whose groups, if any, are what is independent."""
    if groups:
        return grouped_interval(values, groups, bounds=bounds, inflation=inflation)
    return mean_interval(values, bounds=bounds, inflation=inflation)


def cross_fit(
    recording: Recording,
    choosers: Mapping[str, Chooser],
    *,
    folds: int = 5,
    repeats: int = 1,
    seed: int = 0,
    progress: Progress = unseen,
) -> dict[str, HeldOut]:
    """Nested cross-validation of several ways to choose, on shared folds and one search per fold.

    Each task is graded once per repeat, by a play chosen without it; where tasks have groups, without its group.
    """
    return cross_fitting(recording, choosers, folds=folds, repeats=repeats, seed=seed, progress=progress)()


def cross_fitting(
    recording: Recording,
    choosers: Mapping[str, Chooser],
    *,
    folds: int = 5,
    repeats: int = 1,
    seed: int = 0,
    progress: Progress = unseen,
) -> Callable[[], dict[str, HeldOut]]:
    """The same, begun on other processes where it is worth that: call what is returned to wait for it."""
    n = len(recording)
    most = len(set(recording.groups)) if recording.groups else n
    folds = min(folds, most)
    if folds < 2 or repeats < 1:
        what = "groups" if recording.groups else "tasks"
        raise Misuse(f"folds={folds}, repeats={repeats}: give at least 2 folds and 1 repeat (and 2 {what}).")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise Misuse(f"seed={seed!r}: give a whole number, zero or more.")
    rng = np.random.default_rng(seed)
    parts = [part for _ in range(repeats) for part in _parts(recording, folds, rng)]
    jobs = (delayed(_fold)(recording, choosers, np.setdiff1d(np.arange(n), part), part) for part in parts)
    workers = 1 if n * len(recording.arms) < 3_000 else min(cpu_count(), len(parts))
    coming = _Coming(Parallel(n_jobs=workers, return_as="generator")(jobs))
    order = np.argsort(np.concatenate(parts), kind="stable")

    def mean(of: list[Outcomes], field: str) -> Floats:
        graded = np.concatenate([getattr(o, field) for o in of])[order]
        return np.asarray(graded.reshape(n, repeats).mean(axis=1))

    def collect() -> dict[str, HeldOut]:
        came: dict[str, list[Outcomes]] = {name: [] for name in choosers}
        for done, graded in enumerate(coming.folds, 1):
            progress("choosing on training folds, grading on the fold left out", done, len(parts))
            for name, o in graded.items():
                came[name].append(o)
        fields = ("quality", "cost", "latency", "calls")
        return {name: HeldOut(**{f: mean(of, f) for f in fields}) for name, of in came.items()}  # type: ignore[arg-type]

    return collect


@dataclass(frozen=True)
class _Coming:
    """Folds that are worked on; where nobody waits for them any more, they are stopped without a word."""

    folds: Generator[dict[str, Outcomes], None, None]

    def __del__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib's, that it stops work
            self.folds.close()


def _parts(recording: Recording, folds: int, rng: np.random.Generator) -> list[Ints]:
    """The tasks of each fold; whole groups, each in turn to the smallest fold."""
    if not recording.groups:
        return np.array_split(rng.permutation(len(recording)), folds)
    _, group, size = np.unique(np.array(recording.groups), return_inverse=True, return_counts=True)
    held, fold = np.zeros(folds, dtype=np.int64), np.zeros(len(size), dtype=np.int64)
    for g in rng.permutation(len(size)):
        fold[g] = held.argmin()
        held[fold[g]] += size[g]
    return [np.flatnonzero(fold[group] == k) for k in range(folds)]


def _fold(recording: Recording, choosers: Mapping[str, Chooser], train: Ints, test: Ints) -> dict[str, Outcomes]:
    known, new = recording.take(train), recording.take(test)
    swept = search(known)
    return {name: outcomes(choose(swept, known), new) for name, choose in choosers.items()}
