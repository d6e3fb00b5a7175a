"""A learned policy: what to run, what to expect of it, and what it was learned from. A JSON file, never code."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from playcall.calibration import mean_interval
from playcall.portfolio.choice import Choice, Target, choose
from playcall.portfolio.nested import HeldOut, Progress, cross_fit, unseen
from playcall.portfolio.search import best_arm, priced, search
from playcall.strategies import NANO, Misuse, PlaycallError, Recording, Strategy, arms_of, dump, load


class Infeasible(PlaycallError):
    """No play keeps the target; `nearest` is the one that misses it least."""

    def __init__(self, text: str, nearest: Choice) -> None:
        super().__init__(text)
        self.nearest = nearest


@dataclass(frozen=True)
class Figures:
    """What to expect of a policy on new tasks, all held out; costs in USD a task, latencies in seconds.

    None where costs or latencies were not recorded. `difference` is quality minus the best single arm's, paired by
    task; intervals are 95%. `apparent_quality` is what the policy scored on the tasks it was chosen by.
    """

    quality: float
    quality_low: float
    quality_high: float
    cost_per_task: float | None
    latency_mean: float | None
    latency_p95: float | None
    calls: float
    single_arm: str
    single_quality: float
    single_cost: float | None
    difference: float
    difference_low: float
    difference_high: float
    apparent_quality: float
    tasks: int


@dataclass(frozen=True)
class Policy:
    """A strategy and its evidence. `prices` are mean USD a call of each arm it uses."""

    strategy: Strategy
    figures: Figures
    target: Target
    prices: Mapping[str, float | None]
    data: Mapping[str, str]  # the table's name and its fingerprint
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        document = {**dump(self.strategy), "kind": "policy", "made_by": f"playcall {version('playcall')}"}
        for name in ("figures", "target"):
            document[name] = asdict(getattr(self, name))
        document |= {"prices": dict(self.prices), "data": dict(self.data), "notes": list(self.notes)}
        write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """The policy of a file; runs no code."""
        document = read_json(path)
        if "figures" not in document:
            raise Misuse(f"{path} is a strategy without figures, not a policy; `playcall fit` writes policies.")
        try:
            return cls(
                load(document),
                TypeAdapter(Figures).validate_python(document["figures"]),
                TypeAdapter(Target).validate_python(document.get("target", {})),
                TypeAdapter(dict[str, float | None]).validate_python(document.get("prices", {})),
                TypeAdapter(dict[str, str]).validate_python(document.get("data", {})),
                tuple(TypeAdapter(list[str]).validate_python(document.get("notes", []))),
            )
        except (ValidationError, Misuse) as error:
            raise Misuse(f"{path} is not a policy that this playcall can read: {error}") from error


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise Misuse(f"{path} holds no JSON object; `playcall fit` writes one.")
    return document


def write_whole(path: str | Path, text: str) -> None:
    """Write a file beside its place and move it there, so that nobody ever sees half of it."""
    path = Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise PlaycallError(
            f"{path} cannot be written: {error.strerror}. Name a folder that exists and has room."
        ) from error


def fit(
    recording: Recording,
    target: Target | None = None,
    *,
    folds: int = 10,
    repeats: int = 1,
    seed: int = 0,
    progress: Progress = unseen,
) -> Policy:
    """Learn a policy from recorded calls: arms, order, weights, gap and threshold.

    Its figures come from nested cross-validation: on each fold by a policy learned without it. Raises Infeasible
    where nothing keeps the target.
    """
    target = target or Target()
    usable = priced(recording)
    choice = choose(search(usable), usable, target)
    has_cost = usable.priced
    if not has_cost and (target.max_cost is not None or target.cost_weight):
        raise Misuse(f"{recording.name} has no costs, so a limit or weight on them means nothing; add a cost column.")
    if not usable.timed and target.timely:
        raise Misuse(f"{recording.name} lacks latencies of some arm, so none can be kept; pick arms that have them.")
    if not choice.feasible:
        raise Infeasible(_nearest(target, choice), choice)
    held = cross_fit(
        usable,
        {"policy": lambda swept, known: choose(swept, known, target).strategy},
        folds=folds,
        repeats=repeats,
        seed=seed,
        progress=progress,
    )["policy"]
    means = {a: float(usable[a].price.mean()) / NANO if has_cost else None for a in arms_of(choice.strategy)}
    return Policy(
        choice.strategy,
        figures_of(held, usable, choice.quality),
        target,
        means,
        {"table": recording.name, "fingerprint": fingerprint(recording)},
        recording.notes,
    )


def figures_of(held: HeldOut, recording: Recording, apparent: float) -> Figures:
    """The figures of held-out outcomes beside the best single arm of the recording."""
    single = best_arm(recording)
    alone = recording[single].quality[:, 0]
    quality, low, high = mean_interval(held.quality)
    difference, worse, better = mean_interval(held.quality - alone, bounds=(-1, 1))
    costed, timed = recording.priced, recording.timed
    return Figures(
        quality=quality,
        quality_low=low,
        quality_high=high,
        cost_per_task=float(held.cost.mean()) / NANO if costed else None,
        latency_mean=float(held.latency.mean()) / 1e6 if timed else None,
        latency_p95=float(np.quantile(held.latency, 0.95)) / 1e6 if timed else None,
        calls=float(held.calls.mean()),
        single_arm=single,
        single_quality=float(alone.mean()),
        single_cost=float(recording[single].price[:, 0].mean()) / NANO if costed else None,
        difference=difference,
        difference_low=worse,
        difference_high=better,
        apparent_quality=apparent,
        tasks=len(recording),
    )


def fingerprint(recording: Recording) -> str:
    """SHA-256 of all that was recorded."""
    digest = hashlib.sha256("\0".join(recording.items).encode("utf-8", "surrogatepass"))
    for arm, d in recording.arms.items():
        digest.update(arm.encode("utf-8", "surrogatepass"))
        for values in (d.answer, d.quality, d.price, d.latency, d.failed, np.nan_to_num(d.score, nan=-1e308)):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _nearest(target: Target, choice: Choice) -> str:
    asked = ", ".join(f"{k} {v:g}" for k, v in asdict(target).items() if v)
    return (
        f"no play keeps the target ({asked}). The nearest one has quality {choice.quality:.4f}, costs "
        f"${choice.cost / NANO:.6g} and takes {choice.latency / 1e6:.3g} s a task: relax the target to that."
    )
