"""Files that are read and written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playcall.strategies.errors import Misuse, PlaycallError


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise Misuse(f"{path} holds no JSON object; `playcall fit` writes one.")
    return document


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside the path, whose file is moved there at the end, so that nobody ever sees half of it.

    A link is kept, what it points to is replaced; devices, pipes and folders are refused.
    """
    if path.exists() and not path.is_file():
        raise PlaycallError(f"{path} cannot be written: it is no regular file. Name a file to write.")
    path = path.resolve()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        say = "Name a folder that exists, may be written to and has room"
        raise PlaycallError(f"{path} cannot be written: {error.strerror or error}. {say}.") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def write_whole(path: str | Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with whole(Path(path)) as beside:
        beside.write_text(text, encoding="utf-8")
