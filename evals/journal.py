"""The journal of a recording: a line for each call as soon as it is answered, so that no paid answer is ever lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Self

from playcall.strategies import Attempt, PlaycallError
from playcall.strategies.agent import Agent
from playcall.strategies.arm import Arm
from playcall.strategies.prices import Price

Key = tuple[str, str, int]
"""(item, arm, sample)."""
Line = dict[str, Any]


_SECRET = ("api_key", "extra_headers")


class Journal:
    """An append-only file that one process has at a time.

    Its lines are {"head": ...}: what was asked of whom; {"call": key, ...}: a finished call; {"lost": key, ...}: one
    that was paid and will be made again; {"verdict": digest, ...}: a judge's. Each is one write, so that a killed
    process tears at most the last, which is cut off when the file is opened. Raises PlaycallError where it can't be
    used.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        if fresh and path.exists():
            os.close(_locked(path))
            path.replace(path.with_name(f"{path.name}.old"))
        self._fd = _locked(path)
        self.calls: dict[Key, tuple[int, int]] = {}  # where its line is
        self.verdicts: dict[str, float | None] = {}
        self.spent = 0  # nano-dollars
        self.heads: dict[str, dict[str, Any]] = {"tasks": {}, "arms": {}, "prices": {}}
        self.unsaved: list[bytes] = []
        self.full = ""  # why lines cannot be written
        self._size = 0
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have it."""
        os.close(self._fd)

    def _read(self) -> None:
        with open(self._fd, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._fd, self._size)
                    break
                try:
                    told = json.loads(line)
                    self._take(told, len(line))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    say = "Take the line out, or name another table by -o"
                    raise PlaycallError(f"{self.path}, line {number}: this is no line of a journal. {say}.") from error
                self._size += len(line)

    def _take(self, told: Line, length: int) -> None:
        self.spent += told.get("nano", 0)
        if "call" in told:
            item, arm, sample = told["call"]
            self.calls.setdefault((item, arm, sample), (self._size, length))
        elif "verdict" in told:
            self.verdicts[told["verdict"]] = told["score"]
        elif "head" in told:
            for kind, known in self.heads.items():
                known.update(told["head"].get(kind, {}))
        elif "lost" not in told:
            raise KeyError("kind")

    def begin(self, tasks: Mapping[str, str], arms: Mapping[str, Mapping[str, Any]], prices: Mapping[str, Any]) -> None:
        """Say what is recorded: digests by task, settings and price by arm. Raises PlaycallError where it is of others.
        An arm that was priced otherwise is not: `heads` holds all prices of its calls, in their order."""
        known = self.heads
        anew = f"Name another table by -o, or say --fresh to begin anew (the journal is kept as {self.path.name}.old)"
        for name, settings in arms.items():
            if (old := known["arms"].get(name, settings)) != settings:
                changed = [k for k in {**old, **settings} if old.get(k) != settings.get(k)]
                how = "; ".join(f"{k} was {_short(old.get(k))}, is {_short(settings.get(k))}" for k in changed)
                raise PlaycallError(f"{self.path}: arm {name!r} was recorded otherwise: {how}. Rename it, or: {anew}.")
        if other := [item for item, digest in tasks.items() if known["tasks"].get(item, digest) != digest]:
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            raise PlaycallError(f"{self.path}: task {other[0]!r}{more} was recorded with another text. {anew}.")
        if known["tasks"] and not known["tasks"].keys() & tasks.keys():
            raise PlaycallError(f"{self.path} is of other tasks, such as {next(iter(known['tasks']))!r}. {anew}.")
        told = {"tasks": tasks, "arms": arms}
        new: dict[str, dict[str, Any]]
        new = {kind: {k: v for k, v in of.items() if k not in known[kind]} for kind, of in told.items()}
        asked = {arm for _, arm, _ in self.calls}
        olds = {arm: known["prices"].get(arm, []) if arm in asked else [] for arm in prices}
        new["prices"] = {arm: [*olds[arm], price] for arm, price in prices.items() if price not in olds[arm]}
        if any(new.values()) and not self.add({"head": {"playcall": 1, **new}}):
            raise PlaycallError(f"{self.path} cannot be written: {self.full}. Make room; nothing was paid.")

    def add(self, told: Line) -> bool:
        """Write a line, at once; where it can't be written it is kept for `save`."""
        line = json.dumps(told).encode() + b"\n"
        if self.full or not self._write(line):
            self.unsaved.append(line)
            return False
        self._take(told, len(line))
        self._size += len(line)
        return True

    def _write(self, line: bytes) -> bool:
        try:
            if (wrote := os.write(self._fd, line)) < len(line):
                wrote += os.write(self._fd, line[wrote:])  # says why
            if wrote == len(line):
                return True
            self.full = "it was cut short"
        except OSError as error:
            self.full = error.strerror or str(error)
        with suppress(OSError):
            os.ftruncate(self._fd, self._size)
        return False

    def save(self) -> bool:
        """Try once more to write what could not be written."""
        self.full, lines, self.unsaved = "", self.unsaved, []
        for line in lines:
            self.add(json.loads(line))
        return not self.unsaved

    def read(self, key: Key) -> Line:
        """A finished call."""
        offset, length = self.calls[key]
        os.lseek(self._fd, offset, os.SEEK_SET)
        told: Line = json.loads(os.read(self._fd, length))
        return told


def plain(x: float) -> float | None:
    """A number for a line: None for NaN."""
    return x if isfinite(x) else None


def line_of(attempt: Attempt, arm: Arm) -> Line:
    """What the journal keeps of a call. Its time is that of its tries, without queues and pauses."""
    reply, tries = attempt.reply, [call for call in attempt.calls if call.node == attempt.node]
    seconds = sum(call.seconds for call in tries)
    if arm.clock == "provider" and tries and tries[-1].served_ms:
        seconds = tries[-1].served_ms / 1e3
    used = [call.usage for call in attempt.calls if call.usage]
    failed = reply is None or reply.failed
    price = arm.known_price
    asking = [price.bill(replace(u, output=0, reasoning=0)) for u in used] if isinstance(price, Price) else []
    return {
        "answer": None if reply is None or failed else reply.key,
        "confidence": None if reply is None or failed else plain(reply.score),
        "nano": attempt.price,
        "prompt_nano": sum(asking) if asking else None,
        "us": max(1, round(seconds * 1e6)),
        "input_tokens": sum(u.input for u in used) if used else None,
        "output_tokens": sum(u.output for u in used) if used else None,
        "finish": tries[-1].finish if tries else None,
        "error": reply.error.partition(": ")[0] if reply else "",
        "estimated": not attempt.exact,
    }


def settings_of(arm: Arm) -> dict[str, Any]:
    """What an arm's answers depend on, without keys."""
    found = {
        "endpoint": arm.endpoint.name,
        "model": arm.model,
        "params": {name: value for name, value in arm.params.items() if name not in _SECRET},
        "confidence": arm.confidence,
        "clock": arm.clock,
        "models": arm.endpoint.models if isinstance(arm.endpoint, Agent) else None,
    }
    return json.loads(json.dumps({name: value for name, value in found.items() if value}, default=str))


def price_of(arm: Arm) -> Any:
    """What an arm's calls cost, as a journal keeps it."""
    price = arm.known_price
    return _rates(price) if isinstance(price, Price) else price


def _rates(price: Price) -> dict[str, Any]:
    told = {name: getattr(price, name) for name in ("input", "output", "cached", "reasoning", "written", "call")}
    tiers = [[above, _rates(tier)] for above, tier in price.tiers]
    return {name: value for name, value in {**told, "tiers": tiers}.items() if value}


def price_said(told: Any) -> str:
    """Such a price in words."""
    return ", ".join(f"{k} {v}" for k, v in told.items()) if isinstance(told, dict) else f"price {told}"


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 100 else f"{text[:99]}…"


def _locked(path: Path) -> int:
    """The open file, which no other process has; a killed one leaves no lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        say = "Name a table in a folder that exists and may be written to"
        raise PlaycallError(f"{path} cannot be opened: {error.strerror}. {say}.") from error
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        say = "Wait until it has ended, or name another table by -o"
        raise PlaycallError(f"{path}: another process records into it. {say}.") from error
    return fd
