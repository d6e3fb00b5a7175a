"""Calls for a ledger, and what it holds of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from playcall.strategies.call import Call, Usage
from playcall.strategies.ledger import Ledger

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


def call(draw: int = 0, **fields: Any) -> Call:
    done = Call("arm", "model", "SECRET task", "SECRET prompt", draw, {"key": "SECRET"}, {"Authorization": "SECRET"})
    done.usage, done.began, done.sent, done.first_token, done.seconds = Usage(10, 5, 4, 3), NOON, 7.0, 7.25, 0.5
    done.run, done.price, done.source, done.heard, done.response = "r", 1000, "user", "SECRET answer", "SECRET"
    for name, value in fields.items():
        setattr(done, name, value)
    return done


def add(ledger: Ledger, *calls: Call) -> None:
    for each in calls:
        ledger.add(each, provider="vendor", prompt_hash="hash")


def draws(place: Path | Ledger) -> list[int]:
    """Of the rows, in the order in which they were inserted."""
    if isinstance(place, Ledger):
        with place.store.reading() as connection:
            return list(connection.scalars(sa.text("SELECT draw FROM calls ORDER BY id")))
    with sqlite3.connect(place) as connection_:
        return [d for (d,) in connection_.execute("SELECT draw FROM calls ORDER BY rowid")]
