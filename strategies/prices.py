"""What calls cost: exact sums in nano-dollars, from a user's figures or from litellm's price map."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from playcall.strategies.call import Usage
from playcall.strategies.errors import Misuse
from playcall.strategies.sources import read_document

MILLION = 1_000_000


@dataclass(frozen=True)
class Price:
    """USD per million tokens, and per call. Cached and written input is priced as input, reasoning as output, where not
    told apart. `tiers` are (input tokens, price of a whole call that has more of them), fewest first.
    """

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    reasoning: float | None = None
    call: float = 0.0
    source: str = "user"
    most_output: int | None = None  # tokens that the model can write at most, where known
    written: float | None = None  # input that is put into the provider's cache; counts in the worst case
    tiers: tuple[tuple[int, Price], ...] = ()
    _rates: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        rates = []
        for name, instead in _RATES.items():
            usd = getattr(self, name)
            if usd is None and instead:
                usd = getattr(self, instead)
            if isinstance(usd, bool) or not isinstance(usd, int | float | Decimal) or not isfinite(usd) or usd < 0:
                raise Misuse(f"price {name}={usd!r}; give USD {_UNIT[name == 'call']}, zero or more.")
            rates.append(Decimal(str(usd)).scaleb(9 if name == "call" else 3))  # nano-dollars
        if self.most_output is not None and not (isinstance(self.most_output, int) and self.most_output > 0):
            raise Misuse(f"price most_output={self.most_output!r}; give a whole number of tokens, one or more.")
        digits = max(0, *(-int(r.as_tuple().exponent) for r in rates))
        object.__setattr__(self, "_rates", (*(int(r.scaleb(digits)) for r in rates), 10**digits))

    def bill(self, usage: Usage) -> int:
        """Nano-dollars of a finished call; half a nano-dollar is rounded up."""
        tokens, wrote = max(usage.input, 0), max(usage.output, 0)
        cached, thought = min(max(usage.cached, 0), tokens), min(max(usage.reasoning, 0), wrote)
        kept = min(max(usage.written, 0), tokens - cached)
        input, output, cached_, reasoning, written, call, unit = self._at(tokens)._rates
        total = (tokens - cached - kept) * input + cached * cached_ + kept * written
        total += (wrote - thought) * output + thought * reasoning + call
        return (2 * total + unit) // (2 * unit)

    def worst(self, input_tokens: int, output_tokens: int) -> int:
        """Nano-dollars that no call with at most these tokens exceeds, however they divide."""
        dearest = 0
        for price in (self, *(p for above, p in self.tiers if input_tokens > above)):
            input, output, cached, reasoning, written, call, unit = price._rates
            total = input_tokens * max(input, cached, written) + output_tokens * max(output, reasoning) + call
            dearest = max(dearest, -(-total // unit))
        return dearest

    def _at(self, tokens: int) -> Price:
        price = self
        for above, tier in self.tiers:
            if tokens > above:
                price = tier
        return price


_RATES = {"input": "", "output": "", "cached": "input", "reasoning": "output", "written": "input", "call": ""}
_UNIT = ("per million tokens", "per call")

_MAP = "model_prices_and_context_window_backup.json"
_KEYS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached": "cache_read_input_token_cost",
    "written": "cache_creation_input_token_cost",
    "reasoning": "output_cost_per_reasoning_token",
}
_ABOVE = re.compile(rf"({'|'.join(_KEYS.values())})_above_(\d+)k_tokens")
_BESIDE = {"output_cost_per_audio_token", "output_cost_per_image_token"}  # not told apart in Usage, and far dearer


_MODES = ("chat", "completion", "responses", "embedding")
_WORDS = ("input_cost_per_token", "input_cost_per_request")  # others are of pictures and sound, told apart in no usage


@cache
def price_map() -> Mapping[str, Mapping[str, Any]]:
    """litellm's price map, read from its package without importing it; empty where it is not installed."""
    spec = find_spec("litellm")
    paths = [Path(folder) / _MAP for folder in (spec and spec.submodule_search_locations) or ()]
    found: dict[str, dict[str, Any]] = next((json.loads(p.read_bytes()) for p in paths if p.is_file()), {})
    return found


@cache
def mapped(model: str) -> Price | None:
    """The price of a model in litellm's map, None where it has none that holds for tokens alone.

    It is asked for the whole name, then, for `vendor/name`, for a `name` that it says is that vendor's. A bare name is
    never looked up under a host's (`groq/...`), since hosts differ in price. Prices for batches and priority, audio
    and images are not used; zero means unknown there, and Perplexity bills searches that no usage tells of.
    """
    vendor, _, name = model.partition("/")
    entry = price_map().get(model)
    if entry is None and name and (bare := price_map().get(name)) and bare.get("litellm_provider") == vendor:
        entry = bare
    if entry is None or entry.get("mode") not in _MODES or _BESIDE & entry.keys():
        return None
    if entry["mode"] == "embedding":
        if any(key.startswith("input_cost_per_") and not key.startswith(_WORDS) for key in entry):
            return None
        entry = {**entry, "output_cost_per_token": entry.get("output_cost_per_token") or 0}
    if entry.get("litellm_provider") == "perplexity" and "search_context_cost_per_query" in entry:
        return None
    base, tiers = _tiers(entry)
    if base.get("input_cost_per_token") is None or base.get("output_cost_per_token") is None:
        return None
    price = _price(base, tuple((above, _price(tier, ())) for above, tier in tiers))
    return price if price.input or price.output or price.call else None


def _tiers(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[tuple[int, Mapping[str, Any]]]]:
    """The base tier, and those above: written as ranges, or as `..._above_200k_tokens`."""
    if ranges := [r for r in entry.get("tiered_pricing", ()) if "range" in r]:
        first, *rest = sorted(ranges, key=lambda r: r["range"][0])
        return {**entry, **first}, [(int(r["range"][0]), {**entry, **r}) for r in rest]
    changes: dict[int, dict[str, Any]] = {}
    for key, usd in entry.items():
        if told := _ABOVE.fullmatch(key):
            changes.setdefault(int(told[2]) * 1000, {})[told[1]] = usd
    tiers: list[tuple[int, Mapping[str, Any]]] = []
    below = entry
    for above in sorted(changes):
        below = {**below, **changes[above]}
        tiers.append((above, below))
    return entry, tiers


def _price(entry: Mapping[str, Any], tiers: tuple[tuple[int, Price], ...]) -> Price:
    usd = {ours: _millions(entry[theirs]) for ours, theirs in _KEYS.items() if entry.get(theirs) is not None}
    most = entry.get("max_output_tokens") or entry.get("max_tokens")
    per_call = float(entry.get("input_cost_per_request") or 0.0)
    return Price(**usd, call=per_call, source="map", most_output=int(most) if most else None, tiers=tiers)


def _millions(usd_per_token: float) -> float:
    return float(Decimal(str(usd_per_token)) * MILLION)


def load_prices(path: str | Path) -> dict[str, Price]:
    """Prices by model or arm from a YAML, JSON or TOML file: {name: {input, output, cached, reasoning, written, call,
    most_output}}, in USD per million tokens, `call` in USD per call. Raises Misuse that names the file and the entry.
    """
    return prices_of(str(path), read_document(Path(path), "prices"))


def prices_of(where: str, told: object) -> dict[str, Price]:
    """The same from what a file holds."""
    if not isinstance(told, dict):
        raise Misuse(f"{where}: write a mapping of names to prices, such as gpt-4o: {{input: 2.5, output: 10}}.")
    return {str(name): price_of(f"{where}: {name}", entry) for name, entry in told.items()}


def price_of(where: str, told: Any) -> Price:
    """One of them. No rate is left at zero by silence."""
    keys = set(told) if isinstance(told, dict) else set()
    if keys - _USABLE or keys & {"input", "output", "call"} not in _WHOLE:
        known = ", ".join(sorted(_USABLE))
        raise Misuse(f"{where}: give input and output, or call, and no more than {known}; it has {told!r}.")
    try:
        return Price(**{key: _figure(value) for key, value in told.items()})
    except Misuse as error:
        raise Misuse(f"{where}: {error}") from error


_USABLE = {f.name for f in fields(Price)} - {"source", "tiers", "_rates"}
_WHOLE = ({"input", "output"}, {"input", "output", "call"}, {"call"})


def _figure(value: object) -> Any:
    """YAML takes 1e-7 for a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: one for each 4 bytes, begun ones counted."""
    return -(-(len(text) if text.isascii() else len(text.encode("utf-8", "replace"))) // 4)


_TEXT = {"text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "tool_use", "tool_result"}
_TEXT |= {"message", "function_call", "function_call_output"}
# These bring tokens that the request does not show.
_ELSEWHERE = ("previous_response_id", "conversation", "web_search_options")
_TURN, _REQUEST, _TOOLS = 16, 128, 1024  # tokens that templates add; vendors put a text of their own before tools


def most_tokens(request: Mapping[str, Any]) -> int | None:
    """Input tokens that a chat request has at most: no token is shorter than a byte. None where it holds images, sound
    or files, or has the provider look things up, since no bytes bound those.
    """
    messages, read = request.get("messages") or (), (request.get("messages"), request.get("input"))
    tools = request.get("tools") or request.get("functions") or ()
    if any(request.get(key) is not None for key in _ELSEWHERE) or not all(map(_plain, read)):
        return None
    try:
        if any(tool.get("type", "function") not in ("function", "custom") for tool in tools):
            return None
        size = len(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None
    return size + _TURN * len(messages) + _REQUEST + (_TOOLS if tools else 0)


def _plain(content: object) -> bool:
    """Whether messages, or the content of one, are text through and through."""
    if isinstance(content, list | tuple):
        return all(map(_plain, content))
    if isinstance(content, Mapping):
        return content.get("type", "text") in _TEXT and "audio" not in content and _plain(content.get("content"))
    return content is None or isinstance(content, str)
