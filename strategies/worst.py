"""What a task can cost at worst, before any call is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playcall.strategies.algebra import Ask, Strategy
from playcall.strategies.arm import Arm
from playcall.strategies.bounds import Bounds, Limits
from playcall.strategies.engine import arms_of, walk
from playcall.strategies.errors import Misuse
from playcall.strategies.panel import FOREVER
from playcall.strategies.prices import Price, most_tokens
from playcall.strategies.recording import NANO
from playcall.strategies.requests import request_of
from playcall.strategies.rules import Prompt

_PAUSE = 60.0  # seconds between two tries at most
_BYTES = 4  # of a token of an answer that is read again


@dataclass(frozen=True)
class Worst:
    """The most that one task can take, if every call fails as late and as dearly as it can, and is tried again."""

    calls: int  # on the wire, tries and all
    cost: int  # nano-dollars
    seconds: float  # the critical path, without the waits of limits and those that a server asks for

    @property
    def cost_usd(self) -> float:
        """USD."""
        return self.cost / NANO


def worst(strategy: Strategy, arms: Mapping[str, Arm], task: object, *, unknown_is_free: bool = False) -> Worst:
    """The worst case of a task. Raises Misuse, which names the arm, where its price or its token limits are unknown."""
    used = {name: arms[name] for name in arms_of(strategy)}
    usd = {name: (0, arm.tries * _dearest(name, arm, task, None, unknown_is_free)) for name, arm in used.items()}
    tries = {name: (1, arm.tries) for name, arm in used.items()}
    longest = max(arm.most_output(request_of(task, None, arm.model, arm.params)) or 0 for arm in used.values())
    answers = ["x" * (longest * _BYTES)] * sum(isinstance(s, Ask) for s in walk(strategy))
    latency = {name: (1, _microseconds(arm)) for name, arm in used.items()}
    most = _Reading(usd, latency, used, task, answers, unknown_is_free)(strategy)
    return Worst(Bounds(tries, latency)(strategy).cost[1], most.cost[1], most.latency[1] / 1e6)


@dataclass(frozen=True)
class _Reading(Bounds):
    """Bounds whose readers get answers as long as they may be."""

    arms: Mapping[str, Arm]
    task: object
    answers: list[str]
    unknown_is_free: bool

    def then(self, source: Limits, arm: str, prompt: Prompt) -> Limits:
        reader = self.arms[arm]
        price = reader.tries * _dearest(arm, reader, self.task, prompt(self.task, self.answers), self.unknown_is_free)
        return Bounds({arm: (0, price)}, self.latency).then(source, arm, prompt)


def _dearest(name: str, arm: Arm, task: object, prompt: str | None, unknown_is_free: bool) -> int:
    """Nano-dollars of one try."""
    price, request = arm.known_price, request_of(task, prompt, arm.model, arm.params)
    if price == "free" or (price is None and unknown_is_free):
        return 0
    if not isinstance(price, Price):
        why = "nobody knows its price" if price is None else f"its price is {price!r}, known once it is paid"
        raise Misuse(f"the worst case of {name!r} is unknown: {why}. Give it a price in USD.")
    inputs = most_tokens(request) if arm.most_input is None else arm.most_input
    outputs = arm.most_output(request)
    for known, rate, lacks in ((inputs, price.input, "most_input"), (outputs, price.output, "max_tokens")):
        if known is None and rate:
            raise Misuse(f"the worst case of {name!r} is unknown: give the arm {lacks}.")
    return price.worst(inputs or 0, outputs or 0)


def _microseconds(arm: Arm) -> int:
    pauses = sum(min(_PAUSE, arm.backoff * 2**i) for i in range(arm.tries - 1))
    return min(int(FOREVER) // 1000, round(1e6 * (arm.tries * arm.timeout + pauses)))
