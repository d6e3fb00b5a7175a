"""Strategies as JSON: {"Kind": {field: value}}, defaults left out. Loading one runs no code."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from math import inf
from typing import Any, TypeVar

from playcall.strategies import algebra, rules
from playcall.strategies.algebra import Strategy
from playcall.strategies.errors import Misuse

VERSION = 1
Json = Mapping[str, "Json"] | list["Json"] | str | int | float | bool | None
K = TypeVar("K", bound=type)

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for module in (algebra, rules)
    for kind in vars(module).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
}


def register(kind: K) -> K:
    """Class decorator: let a frozen dataclass of yours (a rule, a stop, a prompt) stand in a strategy file."""
    frozen = is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen
    if not frozen or _KINDS.get(kind.__name__, kind) is not kind:
        raise Misuse(f"register({kind.__name__}): give a frozen dataclass whose name is not taken.")
    _KINDS[kind.__name__] = kind
    return kind


def dump(strategy: Strategy) -> dict[str, Json]:
    """A strategy as a JSON document with its version."""
    return {"playcall": VERSION, "strategy": encode(strategy)}


def load(document: Json) -> Strategy:
    """The strategy of a document that `dump` made; refuses what it does not know, by name."""
    if not isinstance(document, Mapping) or "playcall" not in document or "strategy" not in document:
        raise Misuse('this is not a strategy file: it needs {"playcall": 1, "strategy": {...}}.')
    if document["playcall"] != VERSION:
        raise Misuse(f"strategy file of version {document['playcall']!r}; this playcall reads version {VERSION}.")
    decoded = decode(document["strategy"])
    if not isinstance(decoded, Strategy):
        raise Misuse(f"the file's strategy is a {type(decoded).__name__}, which is not a node such as Ask or Gather.")
    return decoded


def encode(x: object) -> Json:
    """Any registered frozen dataclass, tuple or plain value, as JSON."""
    if is_dataclass(x) and not isinstance(x, type):
        if _KINDS.get(type(x).__name__) is not type(x):
            raise Misuse(f"{type(x).__name__} is not a known kind; decorate it with @register to save it.")
        values = {f.name: (getattr(x, f.name), f.default) for f in fields(x)}
        return {type(x).__name__: {k: encode(v) for k, (v, default) in values.items() if v != default}}
    if isinstance(x, tuple):
        return [encode(v) for v in x]
    if isinstance(x, float) and abs(x) == inf:
        return "inf" if x > 0 else "-inf"  # JSON has no infinity
    if x is None or (isinstance(x, str | int | float) and x == x):  # NaN is not, and JSON has none
        return x
    raise Misuse(f"{x!r} cannot be saved in a strategy file; use numbers, text, tuples and registered dataclasses.")


def decode(x: Json, where: str = "strategy") -> Any:
    """The value that `encode` wrote."""
    if isinstance(x, list):
        return tuple(decode(v, f"{where}[{i}]") for i, v in enumerate(x))
    if not isinstance(x, Mapping):
        return x
    if len(x) != 1:
        raise Misuse(f'{where}: expected {{"Kind": {{...}}}}, found the keys {sorted(x)}.')
    [(name, values)] = x.items()
    if name not in _KINDS:
        raise Misuse(f"{where}: unknown kind {name!r}; this playcall knows {', '.join(sorted(_KINDS))}.")
    kind = _KINDS[name]
    known = {f.name: f for f in fields(kind)}
    if not isinstance(values, Mapping) or (strange := sorted(set(values) - set(known))):
        found = repr(values) if not isinstance(values, Mapping) else f"the unknown field {strange[0]!r}"
        raise Misuse(f"{where}: {name} has {found}; its fields are {', '.join(known)}.")
    if absent := [f for f in known if f not in values and known[f].default is MISSING]:
        raise Misuse(f"{where}: {name} lacks its field {absent[0]!r}.")
    hints = typing.get_type_hints(kind)
    given = {k: _checked(decode(v, f"{where}.{k}"), hints[k], f"{where}.{k}") for k, v in values.items()}
    return kind(**given)


def _checked(value: object, hint: Any, where: str) -> object:
    """The value as the type that its field is declared with."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is float and (value in ("inf", "-inf") or type(value) is int):
        return float(value)
    if origin is tuple and isinstance(value, tuple) and args[-1] is ...:
        return tuple(_checked(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
    if origin in (typing.Union, types.UnionType):
        for alternative in args:
            with suppress(Misuse):
                return _checked(value, alternative, where)
    elif (hint is bool or not isinstance(value, bool)) and (
        value in args if origin is typing.Literal else isinstance(value, origin or hint)
    ):
        return value
    raise Misuse(f"{where}: {value!r} does not fit; expected {hint.__name__ if isinstance(hint, type) else hint}.")
