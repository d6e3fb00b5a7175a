"""An arm: a model with its settings, at an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from playcall.strategies.call import Endpoint
from playcall.strategies.errors import Misuse
from playcall.strategies.prices import Price, mapped

_ABOVE_ZERO = ["tries", "backoff", "timeout", "concurrency", "requests_per_minute", "tokens_per_minute", "most_input"]
Pricing = Price | Literal["reported", "calls", "free"] | None


@dataclass(frozen=True)
class Arm:
    """What a name in a strategy stands for.

    `price` is what calls cost: your own figures, "reported" where the provider says it with each answer, "calls" for
    an agent whose calls go through playcall, "free", or None to look the model up in litellm's price map. Limits are
    shared by all arms of this model and key in the process.
    """

    endpoint: Endpoint
    model: str
    params: Mapping[str, Any] = field(default_factory=dict)  # sent with every request
    price: Pricing = None
    tries: int = 3  # in all, on errors that may pass
    backoff: float = 0.5  # seconds of the first pause between tries at most; doubles, unless the server says how long
    timeout: float = 600.0  # seconds a try
    concurrency: int | None = None  # calls at a time
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    confidence: str | None = None  # what an answer's score is: see `completion.CONFIDENCES`
    stream: bool | None = None  # ask piece by piece; None: where a strategy may cancel it
    cache: bool = True  # where there is a cache
    together: bool = False  # draws that start side by side are one request for n answers; such an arm is not cached
    losers: Literal["cancel", "drain"] = "cancel"  # drain: read cancelled answers to the end, for their exact bill
    clock: Literal["ours", "provider"] = "ours"  # whose latency counts: provider's is free of our queues and network
    most_input: int | None = None  # tokens; needed under a budget where a task has images or sound
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise Misuse(f"arm of {self.model!r}: {name}={value!r}; give a number above zero.")

    @cached_property
    def known_price(self) -> Pricing:
        """The user's price, else that of the price map, else None."""
        return mapped(self.model) if self.price is None else self.price

    def most_output(self, request: Mapping[str, Any]) -> int | None:
        """Tokens that an answer can have at most."""
        price = self.known_price
        told = request.get("max_completion_tokens") or request.get("max_tokens") or request.get("max_output_tokens")
        most = told or (price.most_output if isinstance(price, Price) else None)
        return None if most is None else int(most) * int(request.get("n") or 1)
