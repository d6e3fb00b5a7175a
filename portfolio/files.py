"""Files that are read and written whole."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from playcall.strategies.errors import Misuse, PlaycallError


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise Misuse(f"{path} holds no JSON object; `playcall fit` writes one.")
    return document


def write_whole(path: str | Path, text: str) -> None:
    """Write a file beside its place and move it there, so that nobody ever sees half of it."""
    path, beside = Path(path), None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as file:
            beside = Path(file.name)
            file.write(text)
        beside.chmod(0o644)
        beside.replace(path)
    except OSError as error:
        if beside is not None:
            beside.unlink(missing_ok=True)
        say = "Name a folder that exists, may be written to and has room"
        raise PlaycallError(f"{path} cannot be written: {error.strerror}. {say}.") from error
