"""How held-out quality grows with the number of labelled tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, cpu_count, delayed
from scipy.stats import norm

from playcall.calibration.intervals import mean_interval
from playcall.portfolio.choice import Target
from playcall.portfolio.nested import Progress, unseen
from playcall.portfolio.policy import usable_for
from playcall.portfolio.pool import search
from playcall.portfolio.simplest import Fallback, settle
from playcall.portfolio.sweep import best_arm
from playcall.strategies import NANO, Ask, Explain, Misuse, Outcomes, Recording, Strategy, arms_of, outcomes
from playcall.strategies.panel import Floats, Mask

_CONFIDENCE = 0.95
FEWEST = 10  # labels


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Held-out figures of what so many labels would have chosen; `words` is the most frequent choice.

    Qualities are 0 to 1, `cost_per_task` is USD (None where not recorded); `difference` is to the best single arm of
    the whole recording, on the same tasks.
    """

    labels: int
    runs: int
    words: str
    quality: float
    quality_low: float
    quality_high: float
    cost_per_task: float | None
    difference: float
    difference_low: float
    difference_high: float


def learning_curve(
    recording: Recording,
    target: Target | None = None,
    labels: Sequence[int] = (50, 100, 300),
    *,
    runs: int = 10,
    seed: int = 0,
    fallback: Fallback = "none",
    progress: Progress = unseen,
) -> tuple[CurvePoint, ...]:
    """Plays chosen by random subsets of so many labelled tasks, `runs` of each size, graded on all other tasks.

    Sizes that leave no task to grade on are left out. Groups of tasks stay whole, so that a subset may be a little off
    its size. Where nothing keeps the target, the nearest play counts. See `spread` for the 95% intervals.
    """
    target = target or Target()
    if runs < 2 or any(n < FEWEST for n in labels):
        raise Misuse(
            f"learning_curve(labels={tuple(labels)}, runs={runs}): give {FEWEST} or more labels, 2 or more runs."
        )
    usable = usable_for(recording, target)
    sizes = sorted({int(n) for n in labels if n < len(usable)})
    rng = np.random.default_rng(seed)
    jobs = [(n, train) for n in sizes for train in subsets(usable, n, runs, rng) if not train.all()]
    workers = 1 if len(usable) * len(usable.arms) < 2_000 else min(cpu_count(), max(len(jobs), 1))
    work = (delayed(_run)(usable, target, train, fallback) for _, train in jobs)
    came = list[tuple[Strategy, Outcomes, Outcomes]]()
    for done, graded in enumerate(Parallel(n_jobs=workers, return_as="generator")(work), 1):
        progress("choosing by fewer labels", done, len(jobs))
        came.append(graded)
    found = []
    for n in sizes:
        mine = [(train, *c) for (size, train), c in zip(jobs, came, strict=True) if size == n]
        if mine:
            found.append(_point(usable, n, mine))
    return tuple(found)


def subsets(recording: Recording, labels: int, runs: int, rng: np.random.Generator) -> Iterator[Mask]:
    """(tasks,) random subsets of about so many tasks, of whole groups where there are any."""
    n = len(recording)
    group = np.unique(recording.groups, return_inverse=True)[1].reshape(-1) if recording.groups else np.arange(n)
    size = np.bincount(group)
    for _ in range(runs):
        order = rng.permutation(len(size))
        reached = np.cumsum(size[order])
        most = int(np.abs(reached - labels).argmin()) + 1
        yield np.isin(group, order[:most])


def spread(values: Floats, graded: Mask, groups: Sequence[str] = ()) -> tuple[float, float]:
    """(mean, its standard error) of (runs, tasks) values, of which `graded` were held out, over tasks and subsets.

    Two variances are added. That over tasks: of each task's mean over the runs, tasks of a group taken together. That
    over training subsets: the variance v of the runs' means, where each subset is a share f of the tasks, is
    v / (1 - f) * (f + (1 - f) / runs): subsets of one table share tasks, so v is too small by 1 - f, and more runs
    average away only what they do not share (Hoeffding's 1948 decomposition of a U-statistic, its linear part; Blom
    1976). Noise of grading that both contain is counted twice, so that it is rather too wide.
    """
    runs, n = values.shape
    held = np.where(graded, values, 0.0)
    by_run = held.sum(axis=1) / graded.sum(axis=1)
    seen = graded.any(axis=0)
    by_task = held.sum(axis=0)[seen] / graded.sum(axis=0)[seen]
    told = np.asarray(groups)[seen] if len(groups) else np.arange(len(by_task))
    cluster = np.unique(told, return_inverse=True)[1].reshape(-1)
    totals = np.bincount(cluster, weights=by_task - by_task.mean())
    few = len(totals) / max(len(totals) - 1, 1)
    tasks = few * float((totals**2).sum()) / len(by_task) ** 2
    share = 1 - float(graded.mean())
    subset = float(by_run.var(ddof=1)) / max(1 - share, 1 / n) * (share + (1 - share) / runs) if runs > 1 else 0.0
    return float(by_run.mean()), float(np.sqrt(tasks + subset))


def _run(recording: Recording, target: Target, train: Mask, fallback: Fallback) -> tuple[Strategy, Outcomes, Outcomes]:
    known = recording.take(train)
    strategy = settle(search(known), known, target, fallback).strategy
    return strategy, outcomes(strategy, recording), outcomes(Ask(best_arm(known)), recording)


def _point(recording: Recording, labels: int, runs: Sequence[tuple[Mask, Strategy, Outcomes, Outcomes]]) -> CurvePoint:
    graded = np.stack([~train for train, *_ in runs])
    quality = np.stack([o.quality for _, _, o, _ in runs])
    cost = np.stack([o.cost for _, _, o, _ in runs])
    alone = np.stack([single.quality for *_, single in runs])
    z = float(norm.ppf(0.5 + _CONFIDENCE / 2))
    mean, error = spread(quality, graded, recording.groups)
    difference, apart = spread(quality - alone, graded, recording.groups)
    low, high = mean - z * error, mean + z * error
    if not error:  # all alike, which of so few says little
        seen = graded.any(axis=0)
        count = len(set(np.asarray(recording.groups)[seen])) if recording.groups else int(seen.sum())
        _, low, high = mean_interval(np.full(count, mean))
    plays = Counter(arms_of(strategy) for _, strategy, *_ in runs)
    usual = next(s for _, s, *_ in runs if arms_of(s) == plays.most_common(1)[0][0])
    return CurvePoint(
        labels=labels,
        runs=len(runs),
        words=Explain()(usual),
        quality=mean,
        quality_low=max(0.0, low),
        quality_high=min(1.0, high),
        cost_per_task=float(cost[graded].mean()) / NANO if recording.priced else None,
        difference=difference,
        difference_low=max(-1.0, difference - z * apart),
        difference_high=min(1.0, difference + z * apart),
    )
