"""Arms from a file: arms.yaml, .json or .toml, checked whole before anything is called.

A file names environment variables for keys and never holds one. It is its owner's code: the functions that it names are
imported, from the working folder too.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_type_hints
from urllib.parse import urlsplit

from playcall.strategies.arm import Arm, Pricing
from playcall.strategies.call import Endpoint
from playcall.strategies.errors import Misuse
from playcall.strategies.prices import Price, load_prices, price_of, prices_of
from playcall.strategies.recording import Recording
from playcall.strategies.sources import load_function, read_document
from playcall.strategies.transport import Wire, tls

Entry = Mapping[str, Any]
Tables = Callable[[Path], Recording]

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_CREDENTIAL = re.compile(r"api[-_]?key|.*authorization|.*[-_]token|.*secret.*", re.IGNORECASE)
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")
_PROXIES = ("http", "https", "socks4", "socks5", "socks5h")
_WORDS = ("reported", "calls", "free")
_LOCAL = (".localhost", ".local", ".internal", ".lan", ".svc")
_OPTIONS: dict[str, dict[str, Any]] = {
    "openai": {
        "base_url": (str, "https://api.openai.com/v1"),
        "api_key_env": (str | None, None),
        "proxy": (str | None, None),
        "verify": (bool | str, True),
        "cert": (str | tuple[str, str] | tuple[str, str, str] | None, None),
        "trust_env": (bool, False),
        "path": (str, "/chat/completions"),
    },
    "litellm": {"base_url": (str | None, None), "api_key_env": (str | None, None)},
    "agent": {"function": (str, ...), "models": (dict[str, str], {})},
    "scripted": {"table": (str, ...), "arm": (str | None, None)},
}


class MissingKey(Misuse):
    """An arm whose key is not in the environment."""


def read_arms(
    path: str | Path,
    *,
    only: Collection[str] | None = None,
    prices: str | Path | None = None,
    tables: Tables | None = None,
) -> dict[str, Arm]:
    """The arms of a file by name: {arms: {name: {provider, model, ...}}, defaults: {...}, prices: {...} or a file}.

    The fields of an entry are those of `Arm` and its provider's: openai (base_url, api_key_env, proxy, verify, ...),
    litellm, agent (function, models), scripted (table, arm; `tables` reads it). `only` builds these arms and the
    models of agents among them. `prices` is a file that goes before the file's own and the map's, not before an arm's
    `price`. Raises Misuse that names the file, the arm and the field; MissingKey where an arm's key is not there.
    """
    path = Path(path)
    told = read_document(path, "arms")
    if not isinstance(told, dict) or not isinstance(told.get("arms"), dict) or not told["arms"]:
        raise Misuse(f"{path}: write arms: with a mapping of names to arms, such as mini: {{model: gpt-4o-mini}}.")
    if strange := sorted(map(str, set(told) - {"arms", "defaults", "prices"})):
        raise Misuse(f"{path}: {strange[0]!r} is unknown here; there are arms, defaults and prices.")
    defaults = told.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise Misuse(f"{path}: defaults: {defaults!r}; write a mapping of fields to values.")
    entries = {str(name): _entry(f"{path}: arm {str(name)!r}", entry, defaults) for name, entry in told["arms"].items()}
    wanted = _closed(path, entries, entries if only is None else only)
    known = _known_prices(path, told.get("prices"), prices)
    return {name: _arm(path, name, entries[name], known, tables) for name in entries if name in wanted}


def _entry(where: str, entry: object, defaults: Entry) -> dict[str, Any]:
    """The checked fields of an arm, each there."""
    from pydantic import ValidationError

    if not isinstance(entry, dict):
        raise Misuse(f"{where}: {entry!r}; write a mapping of fields to values.")
    provider = entry.get("provider", defaults.get("provider", "openai"))
    if not isinstance(provider, str) or provider not in _OPTIONS:
        raise Misuse(f"{where}: provider: {provider!r}; write one of {', '.join(_OPTIONS)}.")
    mine, every = _form(provider).model_fields, {n for p in _OPTIONS for n in _form(p).model_fields}
    usual = {name: value for name, value in defaults.items() if name in mine or name not in every}
    both = {n for n in ("params", "headers") if isinstance(usual.get(n), dict) and isinstance(entry.get(n), dict)}
    merged = {**usual, **entry, **{name: {**usual[name], **entry[name]} for name in both}}
    if "api_key_env" in merged:
        merged["api_key_env"] = merged["api_key_env"] or ""  # null: it needs none
    for place in (merged, merged.get("params"), merged.get("headers")):
        for name, value in place.items() if isinstance(place, dict) else ():
            if _CREDENTIAL.fullmatch(str(name)) and not _VARIABLE.search(str(value)):
                how = "api_key_env: NAME of a variable (a header can hold ${NAME})"
                raise Misuse(f"{where}: {name}: a file holds no keys: write {how} and take it out.")
    try:
        entry = dict(_form(provider).model_validate(merged))
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False)
        wrong = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        field, say = ".".join(map(str, wrong["loc"])), wrong["msg"]
        if field.startswith("price"):
            field, say = "price", f"write {{input: USD, output: USD}} per million tokens, {', '.join(_WORDS)}"
        elif wrong["type"] == "extra_forbidden":
            near = difflib.get_close_matches(field, mine, 1)
            say = f"unknown; did you mean {near[0]}?" if near else f"unknown; there are {', '.join(mine)}"
        raise Misuse(f"{where}: {field}: {say}{'' if say.endswith('?') else '.'}") from None
    if "messages" in entry["params"]:
        raise Misuse(f"{where}: params.messages: these would be sent instead of every task; take them out.")
    for name in _COUNTS:
        value = entry["params"].get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise Misuse(f"{where}: params.{name}: {value!r}; write a whole number, one or more.")
    return entry


@cache
def _form(provider: str) -> Any:
    """What an entry of this provider may hold: the fields of Arm and its own."""
    from pydantic import ConfigDict, create_model

    from playcall.strategies.completion import CONFIDENCES

    config, hints = ConfigDict(extra="forbid"), get_type_hints(Arm)
    mine = {f.name: (hints[f.name], f.default) for f in fields(Arm) if f.name not in ("endpoint", "price")}
    mine |= {"params": (dict[str, Any], {}), "headers": (dict[str, str], {})}
    mine["model"] = (str, ... if provider in ("openai", "litellm") else "")
    mine["confidence"] = (Literal[(None, *CONFIDENCES)], None)
    mine["price"] = (dict[str, Any] | Literal[_WORDS] | None, None)
    more: Any = {"provider": (str, provider), **_OPTIONS[provider], **mine}
    return create_model(provider, __config__=config, **more)


def _closed(path: Path, entries: Mapping[str, Entry], only: Collection[str]) -> set[str]:
    """The arms, and the models of agents among them whose calls go through playcall."""
    wanted, todo = set[str](), list(only)
    while todo:
        if (name := todo.pop()) not in entries:
            raise Misuse(f"{path}: there is no arm {name!r}; there are {', '.join(entries)}.")
        if name in wanted:
            continue
        wanted.add(name)
        for role, model in entries[name].get("models", {}).items():
            if model in entries:
                todo.append(model)
            elif entries[name]["price"] in (None, "calls"):
                say = "an agent with a client of its own says price: reported or free"
                raise Misuse(f"{path}: arm {name!r}: models.{role}: {model!r} is no arm of this file; {say}.")
    return wanted


def _known_prices(path: Path, section: object, file: str | Path | None) -> dict[str, Price]:
    own = (
        load_prices(path.parent / section) if isinstance(section, str) else prices_of(f"{path}: prices", section or {})
    )
    return own | (load_prices(file) if file else {})


def _arm(path: Path, name: str, entry: dict[str, Any], known: Mapping[str, Price], tables: Tables | None) -> Arm:
    where = f"{path}: arm {name!r}"
    entry = dict(entry)
    provider = entry.pop("provider")
    options = {key: entry.pop(key) for key in _OPTIONS[provider]}
    for place, field in ((options, "base_url"), (options, "proxy"), *((entry["headers"], h) for h in entry["headers"])):
        if place.get(field):
            place[field] = _expanded(f"{where}: {field}", place[field])
    _check_wire(where, provider, options, entry["headers"])
    price: Pricing = entry.pop("price")
    if price is not None and not isinstance(price, str):
        price = price_of(f"{where}: price", price)
    if price is None:
        usual: Pricing = "reported" if provider == "scripted" else "calls" if options.get("models") else None
        price = known.get(name) or known.get(entry["model"]) or usual
    try:
        endpoint = _endpoint(where, name, provider, options, entry, path.parent, tables)
        entry["model"] = entry["model"] or options.get("function") or options.get("arm") or name
        return Arm(endpoint, price=price, **entry)
    except Misuse as error:
        raise error if str(error).startswith(str(path)) else type(error)(f"{where}: {error}") from None


def _check_wire(where: str, provider: str, options: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Refuse what no call could be sent by, and show no value: it may hold a key."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            say = "a header has a name of letters, digits and -, and a value of printable ASCII on one line"
            raise Misuse(f"{where}: headers: {name!r}: {say}.")
    if provider != "openai":
        return
    _check_url(f"{where}: base_url", options["base_url"], ("http", "https"))
    if options["path"] and urlsplit(options["base_url"]).path.rstrip("/").endswith(options["path"]):
        raise Misuse(f"{where}: base_url: leave out {options['path']} at its end; it is added to each call.")
    if options["proxy"]:
        _check_url(f"{where}: proxy", options["proxy"], _PROXIES)
    for field in ("verify", "cert"):
        if options[field] not in (None, True, False):
            try:
                tls(Wire(**{field: options[field]}))
            except OSError as error:
                raise Misuse(
                    f"{where}: {field}: {error.strerror or error}; name a file of PEM that is there."
                ) from None


def _check_url(where: str, url: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        well = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:  # of a bracket, or a port
        well = False
    if not well:
        raise Misuse(f"{where}: write {schemes[0]}://host[:port], a port from 1 to 65535.")


def _endpoint(
    where: str, name: str, provider: str, options: dict[str, Any], entry: Entry, folder: Path, tables: Tables | None
) -> Endpoint:
    if provider == "agent":
        from playcall.strategies.agent import Agent

        return Agent(load_function(options["function"], f"{where}: function"), options["models"])
    if provider == "scripted":
        from playcall.strategies.scripted import Played

        if tables is None:
            raise Misuse(f"{where}: recorded arms need a reader of tables: read_arms(..., tables=read_table).")
        recording = tables(folder / options["table"])
        options["arm"] = options["arm"] or name
        return Played(recording.only([options["arm"]]), options["arm"])
    key = _key(where, options, entry) if provider == "openai" else _named(where, options.pop("api_key_env"))
    if provider == "litellm":
        from playcall.strategies.vendors import LiteLLM

        given = {"api_key": key, "base_url": options["base_url"]}
        return LiteLLM(**{option: value for option, value in given.items() if value})
    from playcall.strategies.openai import OpenAICompatible

    return OpenAICompatible(**options, api_key=key)


def _key(where: str, options: dict[str, Any], entry: Entry) -> str | None:
    """The key of an endpoint over HTTP; None where it needs none."""
    variable, host = options.pop("api_key_env"), urlsplit(options["base_url"]).hostname or ""
    if variable is not None or any(_CREDENTIAL.fullmatch(header) for header in entry["headers"]) or _private(host):
        return _named(where, variable)
    if host == "api.openai.com":
        return _named(where, "OPENAI_API_KEY")
    say = "write api_key_env: NAME of the variable that holds it, or null if it needs none"
    raise MissingKey(f"{where}: api_key_env: {host} needs a key: {say}.")


def _named(where: str, variable: str | None) -> str | None:
    if not variable:
        return None
    if not _NAME.fullmatch(variable):  # a key that was put here by mistake must not be shown
        raise Misuse(f"{where}: api_key_env: write the name of a variable in CAPITALS, and no key.")
    if key := os.environ.get(variable, "").strip():
        return key
    raise MissingKey(f"{where}: its key is not there: set the environment variable {variable}.")


def _private(host: str) -> bool:
    """Whether a host is this machine or of a network of one's own."""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith(_LOCAL)


def _expanded(where: str, text: str) -> str:
    """The text with ${NAME} replaced by that environment variable."""
    for variable in _VARIABLE.findall(text):
        if variable not in os.environ:
            raise MissingKey(f"{where}: set the environment variable {variable}.")
    return _VARIABLE.sub(lambda found: os.environ[found[1]], text)
