"""What a strategy can cost before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from playcall.strategies.algebra import Strategy
from playcall.strategies.engine import interpret
from playcall.strategies.errors import Misuse
from playcall.strategies.panel import FOREVER, microseconds
from playcall.strategies.recording import Recording
from playcall.strategies.rules import Never, Prompt, Rule, Stop

Span = tuple[int, int]
"""Least and most."""


@dataclass(frozen=True)
class Limits:
    """Least and most of each quantity; `sure` is what is owed the moment it starts, even if cancelled."""

    calls: Span
    cost: Span  # nano-dollars
    latency: Span  # microseconds
    sure: Span  # calls, nano-dollars


@dataclass(frozen=True)
class Bounds:
    """Engine[Limits]. Bounds.of(recording)(strategy), or give each arm's (least, most) price and latency."""

    price: Mapping[str, Span]  # nano-dollars a call
    latency: Mapping[str, Span]  # microseconds a call

    @classmethod
    def of(cls, recording: Recording) -> Bounds:
        """The least and most that was recorded of each arm; replies to prompts are not in a recording."""
        return cls(
            price={a: (int(d.price.min()), int(d.price.max())) for a, d in recording.arms.items()},
            latency={a: (int(d.latency.min()), int(d.latency.max())) for a, d in recording.arms.items()},
        )

    def __call__(self, strategy: Strategy) -> Limits:
        return interpret(strategy, self)

    def ask(self, arm: str, draw: int) -> Limits:
        if arm not in self.price or arm not in self.latency:
            raise Misuse(f"Bounds knows no price or latency of {arm!r}; it knows {sorted(self.price)}.")
        return Limits((1, 1), self.price[arm], self.latency[arm], (1, self.price[arm][0]))

    def gather(self, parts: Sequence[Limits], stop: Stop, gap: float) -> Limits:
        started = parts if gap == 0 else parts[:1]  # before anything can have arrived
        sure = (sum(p.sure[0] for p in started), sum(p.sure[1] for p in started))
        most = (sum(p.calls[1] for p in parts), sum(p.cost[1] for p in parts))
        earliest, last, arrivals = _schedule(parts, microseconds(gap), 0), _schedule(parts, microseconds(gap), 1), 0
        if stop == Never():
            least = (sum(p.calls[0] for p in parts), sum(p.cost[0] for p in parts))
            arrivals = max(earliest)
        else:
            least, arrivals = sure, min(earliest)
        return Limits((least[0], most[0]), (least[1], most[1]), (arrivals, max(last)), sure)

    def orelse(self, first: Limits, then: Limits) -> Limits:
        return _further(first, then)

    def keep(self, source: Limits, rule: Rule) -> Limits:
        return source

    def then(self, source: Limits, arm: str, prompt: Prompt) -> Limits:
        return _further(source, self.ask(arm, 0))

    def within(self, source: Limits, limit: float) -> Limits:
        most = microseconds(limit)
        if source.latency[1] <= most:
            return source
        return Limits(
            (source.sure[0], source.calls[1]),
            (source.sure[1], source.cost[1]),
            (min(source.latency[0], most), min(source.latency[1], most)),
            source.sure,
        )


def _schedule(parts: Sequence[Limits], gap: int, side: int) -> list[int]:
    """When each part ends if all take their least (0) or most (1) time."""
    begin = idle = 0
    ends = []
    for p in parts:
        ends.append(begin + p.latency[side])
        idle = max(idle, ends[-1])
        begin = min(begin + gap, int(FOREVER), idle)
    return ends


def _further(first: Limits, then: Limits) -> Limits:
    """`then` may follow `first`, and may not."""
    return Limits(
        (first.calls[0], first.calls[1] + then.calls[1]),
        (first.cost[0], first.cost[1] + then.cost[1]),
        (first.latency[0], first.latency[1] + then.latency[1]),
        first.sure,
    )
