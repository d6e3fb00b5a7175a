"""A strategy in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf

from playcall.strategies.algebra import Strategy
from playcall.strategies.engine import interpret
from playcall.strategies.rules import Never, Prompt, Rule, Stop


@dataclass(frozen=True)
class Explain:
    """Engine[str]. Explain()(strategy) is a sentence for a person."""

    def __call__(self, strategy: Strategy) -> str:
        return interpret(strategy, self) + "."

    def ask(self, arm: str, draw: int) -> str:
        return f"ask {arm}"

    def gather(self, parts: Sequence[str], stop: Stop, gap: float) -> str:
        if len(parts) == 1 and stop == Never():
            return parts[0]
        what = _listed(parts)
        if gap == inf:
            how = f"one after another, {what}"
        elif gap == 0:
            how = f"at the same time, {what}"
        else:
            how = f"{what}, each next one {gap:g} s after the last or when nothing runs"
        return how if stop == Never() else f"{how}, until {stop}"

    def orelse(self, first: str, then: str) -> str:
        last = f"({then})" if "; keep" in then or "; then" in then else then
        return f"{first}; where that leaves no answer, {last}"

    def keep(self, source: str, rule: Rule) -> str:
        return f"{source}; keep {rule}"

    def then(self, source: str, arm: str, prompt: Prompt) -> str:
        return f"{source}; then ask {arm} about what is left with the prompt {prompt}"

    def within(self, source: str, limit: float) -> str:
        return f"within {limit:g} s ({source})"


def _listed(parts: Sequence[str]) -> str:
    runs = [(p, len(list(run))) for p, run in groupby(f"({p})" if "," in p or ";" in p else p for p in parts)]
    first, *rest = [f"{p} {n} times" if n > 1 else p for p, n in runs]
    if all(p.startswith("ask ") for p in (first, *rest)):
        rest = [p.removeprefix("ask ") for p in rest]
    return " and ".join(filter(None, [", ".join([first, *rest[:-1]]), *rest[-1:]]))
