"""What every arm answered to every task: the table that strategies are replayed on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import overload

import numpy as np

from playcall.strategies.errors import Misuse, NotRecorded, some
from playcall.strategies.panel import Floats, Ints, Mask

NANO = 1_000_000_000
"""Nano-dollars in a dollar."""


@dataclass(frozen=True)
class Reply:
    """One call's answer as an engine sees it. `key` is the canonical text: equal keys are equal answers."""

    key: str
    score: float = float("nan")
    failed: bool = False
    price: int = 0  # nano-dollars
    latency: int = 1  # microseconds, at least 1
    output: object = None  # what the caller gets; the key where None
    error: str = ""  # why it failed: a Failure, and what was said of it


Cassette = Callable[[str, str], Reply]
"""(arm, prompt) -> the recorded reply to a prompt."""


def unrecorded(arm: str, prompt: str) -> Reply:
    """The cassette of a table: it holds no replies to prompts."""
    raise NotRecorded(
        f"{arm!r} was asked about other answers (prompt {prompt[:60]!r}), and a table holds no such calls. "
        "Record the judge or merger as an arm of its own, or give the Recording a cassette."
    )


@dataclass(frozen=True)
class Draws:
    """The recorded calls of one arm: arrays of (tasks, draws)."""

    answer: Ints  # codes into Recording.texts; equal codes are equal answers
    score: Floats  # raw confidence, NaN where there is none
    failed: Mask
    price: Ints  # nano-dollars; 0 if the arm is unpriced
    latency: Ints  # microseconds, at least 1; 1 if the arm is untimed
    quality: Floats  # the grade of each answer in [0, 1]; 0 where failed
    priced: bool = True
    timed: bool = True
    prompt: Ints | None = None  # nano-dollars of the price that the prompt takes, where recorded

    @property
    def depth(self) -> int:
        """How many draws each task has."""
        return self.answer.shape[1]

    def first(self, draws: int) -> Draws:
        """Only the first draws of each task."""
        columns = (self.answer, self.score, self.failed, self.price, self.latency, self.quality)
        prompt = None if self.prompt is None else self.prompt[:, :draws]
        return Draws(*(x[:, :draws] for x in columns), self.priced, self.timed, prompt)  # type: ignore[arg-type, call-arg]

    def take(self, rows: Ints | Mask) -> Draws:
        """Only these tasks."""
        columns = (self.answer, self.score, self.failed, self.price, self.latency, self.quality)
        prompt = None if self.prompt is None else self.prompt[rows]
        return Draws(*(x[rows] for x in columns), self.priced, self.timed, prompt)  # type: ignore[arg-type, call-arg]


@dataclass(frozen=True)
class Recording:
    """Recorded calls of several arms on the same tasks.

    `name` says where it came from; `notes` what was done to the table while it was read, in words
    for its owner (arms without a price, surplus draws, cells counted as failures).
    """

    items: tuple[str, ...]
    arms: Mapping[str, Draws]
    texts: tuple[str, ...]
    name: str = "recording"
    notes: tuple[str, ...] = ()
    graded_by_checker: bool = False  # scores are the grades themselves (--verifier score)
    canonical: str = "exact"  # when answers were taken to be equal: see `canonicaliser`
    together: frozenset[str] = frozenset()  # arms whose draws, where they start together, are one request
    groups: tuple[str, ...] = ()  # the group of each task, if told: tasks of one group are alike, and held out together
    cassette: Cassette = field(default=unrecorded, compare=False)

    def __post_init__(self) -> None:
        if self.groups and len(self.groups) != len(self.items):
            raise Misuse(f"{len(self.groups)} groups for {len(self.items)} items; give each item one.")
        for arm, draws in self.arms.items():
            if len(draws.answer) != len(self.items):
                raise Misuse(f"arm {arm!r} has {len(draws.answer)} rows for {len(self.items)} items.")
            if (draws.latency < 1).any():
                raise Misuse(f"arm {arm!r} has a call of under one microsecond; give latencies of at least 1.")

    def __len__(self) -> int:
        return len(self.items)

    @property
    def shape(self) -> tuple[int, int]:
        """(tasks, arms)."""
        return len(self.items), len(self.arms)

    @overload
    def __getitem__(self, key: str) -> Draws: ...

    @overload
    def __getitem__(self, key: tuple[Ints | Mask, EllipsisType]) -> Recording: ...

    def __getitem__(self, key: str | tuple[Ints | Mask, EllipsisType]) -> Draws | Recording:
        """The calls of an arm; or recording[rows, ...], only these tasks, as scikit-learn writes it."""
        if isinstance(key, tuple):
            return self.take(key[0])
        arm = key
        try:
            return self.arms[arm]
        except KeyError:
            raise NotRecorded(f"{arm!r} is not recorded in {self.name}; it holds {some(sorted(self.arms))}.") from None

    def column(self, arm: str, draw: int) -> tuple[Draws, int]:
        """The arm's calls and a draw that is known to be there."""
        draws = self[arm]
        if draw >= draws.depth:
            raise NotRecorded(
                f"{arm!r} has {draws.depth} recorded draw{'s' * (draws.depth > 1)} of each task in {self.name}; "
                f"this strategy needs {draw + 1}. Record more, or ask it less."
            )
        return draws, draw

    def take(self, rows: Ints | Mask) -> Recording:
        """Only these tasks."""
        index = np.arange(len(self))[rows]
        return replace(
            self,
            items=tuple(self.items[i] for i in index),
            groups=tuple(self.groups[i] for i in index) if self.groups else (),
            arms={a: d.take(index) for a, d in self.arms.items()},
        )

    def only(self, arms: Iterable[str]) -> Recording:
        """Only these arms, in this order."""
        return replace(self, arms={a: self[a] for a in arms})

    def reprice(self, usd: Mapping[str, float]) -> Recording:
        """The same calls at other prices: the new mean USD a call of some arms. Each call's price changes in step."""
        arms = dict(self.arms)
        for arm, price in usd.items():
            d, mean = self[arm], float(self[arm].price.mean())
            if not isinstance(price, int | float | np.number) or not 0 <= price <= 1e6:
                raise Misuse(f"reprice({{{arm!r}: {price!r}}}): give mean USD a call, from 0 to a million.")
            if d.priced and mean > 0:
                ratio = price * NANO / mean
                prompt = None if d.prompt is None else np.rint(d.prompt * ratio).astype(np.int64)
                arms[arm] = replace(d, price=np.rint(d.price * ratio).astype(np.int64), prompt=prompt)
            else:
                arms[arm] = replace(d, price=np.full_like(d.price, round(price * NANO)), priced=True, prompt=None)
        return replace(self, arms=arms)

    def join(self, other: Recording) -> Recording:
        """With the arms of another recording of the same tasks, found by their ids; nothing is asked anew."""
        if twice := sorted(set(self.arms) & set(other.arms)):
            raise Misuse(f"{some(twice)} is recorded in both {self.name} and {other.name}; leave it out of one.")
        if self.canonical != other.canonical:
            raise Misuse(
                f"answers are equal by {self.canonical!r} in {self.name}, by {other.canonical!r} in {other.name}."
            )
        place = {item: i for i, item in enumerate(other.items)}
        if lacking := [item for item in self.items if item not in place]:
            raise Misuse(f"{other.name} lacks {len(lacking)} tasks of {self.name}: {some(lacking)}; record them first.")
        known = {text: code for code, text in enumerate(self.texts)}
        code = np.array([*(known.setdefault(text, len(known)) for text in other.texts), -1])
        rows = np.array([place[item] for item in self.items])
        new = {a: replace(d.take(rows), answer=code[d.take(rows).answer]) for a, d in other.arms.items()}
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        return replace(self, arms={**self.arms, **new}, texts=tuple(known), notes=notes)

    def asked_together(self, *arms: str) -> Recording:
        """The same calls, priced as if draws of these arms that start side by side were one request for n answers,
        which pays for its prompt once. Their latencies stay those of calls apart."""
        if lacking := [a for a in arms if self[a].prompt is None]:
            raise NotRecorded(f"what prompts cost is not recorded of {some(lacking)}: add a column prompt_cost_usd.")
        return replace(self, together=frozenset(arms))

    @property
    def priced(self) -> bool:
        """Whether every arm has a recorded cost."""
        return all(d.priced for d in self.arms.values())

    @property
    def timed(self) -> bool:
        """Whether every arm has a recorded latency."""
        return all(d.timed for d in self.arms.values())

    @property
    def answered(self) -> bool:
        """Whether answers were recorded, so that agreement means something."""
        return bool(self.texts)

    @property
    def scored(self) -> bool:
        """Whether every arm has confidences."""
        return all(bool((~np.isnan(d.score)).any()) for d in self.arms.values())
