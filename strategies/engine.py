"""One fold, many meanings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from playcall.strategies.algebra import Ask, Gather, Keep, OrElse, Strategy, Then, Within
from playcall.strategies.errors import Misuse
from playcall.strategies.rules import Prompt, Rule, Stop

R = TypeVar("R")


class Engine(Protocol[R]):
    """What each node means to one engine; times are seconds."""

    def ask(self, arm: str, draw: int) -> R: ...
    def gather(self, parts: Sequence[R], stop: Stop, gap: float) -> R: ...
    def orelse(self, first: R, then: R) -> R: ...
    def keep(self, source: R, rule: Rule) -> R: ...
    def then(self, source: R, arm: str, prompt: Prompt) -> R: ...
    def within(self, source: R, limit: float) -> R: ...


def interpret(strategy: Strategy, engine: Engine[R]) -> R:
    """Fold a strategy into whatever the engine speaks.

    The nth Ask of an arm, in reading order, takes its nth draw: so live and replayed runs, and any
    two strategies, see the same samples.
    """
    draws: Counter[str] = Counter()

    def go(s: Strategy) -> R:
        match s:
            case Ask(arm):
                draws[arm] += 1
                return engine.ask(arm, draws[arm] - 1)
            case Gather(parts, stop, gap):
                return engine.gather([go(p) for p in parts], stop, gap)
            case OrElse(first, then):
                return engine.orelse(go(first), go(then))
            case Keep(source, rule):
                return engine.keep(go(source), rule)
            case Then(source, arm, prompt):
                return engine.then(go(source), arm, prompt)
            case Within(source, limit):
                return engine.within(go(source), limit)
            case _:
                raise Misuse(f"{s!r} is not a strategy; compose Ask('model'), &, |, n * and keep().")

    return go(strategy)


def walk(strategy: Strategy) -> Iterator[Strategy]:
    """Every node, in reading order."""
    yield strategy
    for s in _parts(strategy):
        yield from walk(s)


def _parts(strategy: Strategy) -> tuple[Strategy, ...]:
    match strategy:
        case Gather(parts):
            return parts
        case OrElse(first, then):
            return (first, then)
        case Keep(source) | Then(source) | Within(source):
            return (source,)
    return ()


def places(strategy: Strategy) -> list[str]:
    """Where each call of a strategy stands, in the order in which `interpret` meets them: "keep.gather.1.ask"."""
    found: list[str] = []

    def go(s: Strategy, path: str) -> None:
        path += type(s).__name__.lower()
        for i, part in enumerate(inner := _parts(s)):
            go(part, f"{path}.{i}." if len(inner) > 1 else f"{path}.")
        if isinstance(s, Ask | Then):
            found.append(path)

    go(strategy, "")
    return found


def unchecked(strategy: Strategy) -> frozenset[str]:
    """The places of calls whose answer, when there is one, is the result as it stands."""

    def go(s: Strategy, path: str) -> Iterator[str]:
        path += type(s).__name__.lower()
        match s:
            case Ask() | Then():
                yield path
            case OrElse(first, then):
                yield from go(first, f"{path}.0.")
                yield from go(then, f"{path}.1.")
            case Within(source):
                yield from go(source, f"{path}.")

    return frozenset(go(strategy, ""))


def arms_of(strategy: Strategy) -> tuple[str, ...]:
    """The arms that a strategy may call, each once, in reading order."""
    return tuple(dict.fromkeys(s.arm for s in walk(strategy) if isinstance(s, Ask | Then)))
