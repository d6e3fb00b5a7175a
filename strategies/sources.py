"""What users bring by name: documents in files, and functions of their own."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playcall.strategies.errors import Misuse, PlaycallError


def read_document(path: Path, what: str) -> object:
    """The plain values of a file: .json, .toml, or else YAML. Raises PlaycallError where it can't be read, Misuse where
    it is none, or a name stands twice in a mapping."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise PlaycallError(
            f"{path} cannot be read: {getattr(error, 'strerror', error)}. Name a file of {what}."
        ) from error
    kind = path.suffix.lower()
    try:
        if kind == ".json":
            return json.loads(text, object_pairs_hook=_pairs)
        if kind == ".toml":
            import tomllib

            return tomllib.loads(text)
        return _yaml(text)
    except Exception as error:  # each format has errors of its own
        raise Misuse(f"{path} is not {kind[1:] or 'yaml'}: {' '.join(str(error).split())}") from error


def load_function(name: str, what: str) -> Callable[..., Any]:
    """A user's function by `module:function`, from the working folder or what is installed; Misuse if there is none."""
    module, _, function = name.partition(":")
    if not (module and function):
        raise Misuse(f"{what}: {name!r}; write module:function.")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:
        say = "Put its file into this folder, or its folder on PYTHONPATH"
        raise Misuse(f"{what}: {name!r} cannot be imported: {error!r}. {say}.") from error
    if not callable(found):
        raise Misuse(f"{what}: {name!r} is no function but {type(found).__name__}.")
    return found


def name_of(function: object) -> str:
    """As `load_function` takes it."""
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"


def is_async(function: Any) -> bool:
    """Whether it is `async def`, or wraps or is an object whose call is."""
    return any(map(inspect.iscoroutinefunction, (function, inspect.unwrap(function), type(function).__call__)))


def _pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    names = [name for name, _ in pairs]
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} is there twice")
    return dict(pairs)


def _as_written(key: Any) -> Any:
    """Names are texts: `no` and `1` too, which YAML takes for false and a number."""
    if isinstance(key.value, str):
        key.tag = "tag:yaml.org,2002:str"
    return key


def _yaml(text: str) -> object:
    yaml: Any = importlib.import_module("yaml")

    def mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if not key.tag.endswith(":merge")]
        _pairs([(loader.construct_object(_as_written(key)), None) for key in own])
        loader.flatten_mapping(node)
        for key, _ in node.value:
            _as_written(key)
        return yaml.SafeLoader.construct_mapping(loader, node, deep)

    return yaml.load(text, type("Loader", (yaml.SafeLoader,), {"construct_mapping": mapping}))
