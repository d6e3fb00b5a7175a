"""Six nodes and four operators; a strategy is a tree of frozen data.

Laws (tests/laws): `&` and `|` are associative and flattened when built; `1 * a == a`; rules fuse;
a longer gap is never faster, and gap=inf is the cheapest. Not a law: `&` commutes only up to ties.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from math import inf, isnan
from operator import and_
from types import UnionType
from typing import Self

from playcall.strategies.errors import Misuse
from playcall.strategies.rules import (
    Agree,
    AtLeast,
    Best,
    Confident,
    Consistent,
    First,
    Never,
    Prompt,
    Rule,
    Stop,
    Vote,
)


class Strategy:
    """Base of the nodes; holds the operators and nothing else."""

    def __and__(self, other: Strategy) -> Gather:
        """Both, side by side."""
        return Gather((self, _node(other, "&")))

    def __or__(self, other: Strategy) -> OrElse:
        """The other where this one kept nothing."""
        return OrElse(self, _node(other, "|"))

    def __rshift__(self, ask: tuple[str, Prompt]) -> Then:
        """Ask a model about the survivors: strategy >> (arm, prompt)."""
        if not isinstance(ask, tuple) or len(ask) != 2:
            raise Misuse(f"strategy >> {ask!r}: write strategy >> (arm, Template('Merge these: {{answers}}')).")
        return Then(self, *ask)

    def __rmul__(self, n: int) -> Strategy:
        """n draws, side by side."""
        if not isinstance(n, int) or n < 1:
            raise Misuse(f"{n!r} * strategy: a strategy runs a whole number of times; write 1 or more.")
        return reduce(and_, [self] * n)

    def keep(self, rule: Rule) -> Keep:
        """Only the candidates that a rule lets live."""
        return Keep(self, rule)

    def within(self, seconds: float) -> Within:
        """Cut off after this many seconds."""
        return Within(self, seconds)


@dataclass(frozen=True)
class Ask(Strategy):
    """One call of an arm: a model with its settings, or a whole agent, by name."""

    arm: str

    def __post_init__(self) -> None:
        _name(self.arm, "Ask")


@dataclass(frozen=True)
class Gather(Strategy):
    """Run parts in order until enough is known.

    The next part starts `gap` seconds after the last one started, or as soon as nothing is in
    flight: 0 is parallel, inf is one after another, between is hedging. After each arrival the
    stop looks at everything so far; when it holds, what runs is cancelled, the rest never starts.
    """

    parts: tuple[Strategy, ...]
    stop: Stop = Never()
    gap: float = 0.0

    def __post_init__(self) -> None:
        if not self.parts:
            raise Misuse("Gather(()): there is nothing to run; give at least one part.")
        for part in self.parts:
            _node(part, "Gather")
        _decides(self.stop, "until", "a stop such as Agree(2)", AtLeast | Best | First | Vote)
        object.__setattr__(self, "gap", _seconds(self.gap, "Gather gap"))
        flat = self.plain  # is the normal form
        parts = (s.parts if flat and isinstance(s, Gather) and s.plain else (s,) for s in self.parts)
        object.__setattr__(self, "parts", tuple(chain.from_iterable(parts)))

    @property
    def plain(self) -> bool:
        """Nothing but side by side, so that it may be flattened into its surroundings."""
        return self.stop == Never() and self.gap == 0

    def until(self, stop: Stop, *, gap: float | None = None) -> Self:
        """The same parts with a stop; keeps its gap unless one is given."""
        return replace(self, stop=stop, gap=self.gap if gap is None else gap)


@dataclass(frozen=True)
class OrElse(Strategy):
    """`then` runs where `first` kept nothing: fallback, retry, escalation that forgets."""

    first: Strategy
    then: Strategy

    def __post_init__(self) -> None:
        _node(self.first, "|")
        _node(self.then, "|")
        if isinstance(self.first, OrElse):  # right-nested is the normal form
            inner = self.first
            object.__setattr__(self, "first", inner.first)
            object.__setattr__(self, "then", OrElse(inner.then, self.then))


@dataclass(frozen=True)
class Keep(Strategy):
    """The survivors of a rule."""

    source: Strategy
    rule: Rule

    def __post_init__(self) -> None:
        _node(self.source, "keep")
        _decides(self.rule, "keep", "a rule such as Best()", Agree | Confident | Consistent | Never)


@dataclass(frozen=True)
class Then(Strategy):
    """Ask an arm about the survivors: judge, merge, refine. It is not asked where there are none."""

    source: Strategy
    arm: str
    prompt: Prompt

    def __post_init__(self) -> None:
        _node(self.source, ">>")
        _name(self.arm, ">>")
        _decides(self.prompt, ">>", "a prompt such as Template('Merge these: {answers}')")


@dataclass(frozen=True)
class Within(Strategy):
    """At the limit, calls in flight fail and no new one starts; what is known stands."""

    source: Strategy
    limit: float  # seconds

    def __post_init__(self) -> None:
        _node(self.source, "within")
        object.__setattr__(self, "limit", _seconds(self.limit, "within"))
        if self.limit < 1e-6:
            raise Misuse(f"within({self.limit}): no call can finish; give a limit of at least one microsecond.")


def _name(arm: object, where: str) -> None:
    if not isinstance(arm, str) or not arm:
        raise Misuse(f"{where} was given the arm {arm!r}: an arm is a name; write 'gpt-4o'.")


def _decides(x: object, where: str, instead: str, wrong: UnionType | type = type) -> None:
    if not callable(x) or isinstance(x, type | wrong):
        raise Misuse(f"{where} was given {x!r}; give {instead}.")


def _seconds(x: float, where: str) -> float:
    if isinstance(x, bool) or not isinstance(x, int | float) or isnan(x) or x < 0:
        raise Misuse(f"{where}={x!r}: give seconds, zero or more (math.inf for never).")
    return inf if x > 1e12 else float(x)


def _node(s: object, where: str) -> Strategy:
    if not isinstance(s, Strategy):
        raise Misuse(f"{where} was given {s!r}, which is not a strategy; compose Ask('model'), &, |, n * and keep().")
    return s
