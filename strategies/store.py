"""The table that a ledger writes, in SQLite or any database that SQLAlchemy speaks to."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playcall.strategies.errors import Misuse, PlaycallError

if TYPE_CHECKING:
    import sqlalchemy as sa

VERSION = 1  # of the table
MOST_ROWS = 250  # in one statement
Row = tuple[Any, ...]
"""The values of COLUMNS, in their order."""

COLUMNS: dict[str, type] = {
    "id": str,  # sorts as the calls of one process ended
    "run": str,
    "strategy": str,
    "node": str,
    "role": str,
    "arm": str,
    "model": str,
    "provider": str,
    "draw": int,
    "number": int,  # of the try
    "began": str,  # UTC, ISO 8601, to the microsecond
    "waited_s": float,
    "first_token_s": float,  # since it was sent
    "seconds": float,
    "original_s": float,  # that a cached answer took when it was fresh
    "input_tokens": int,
    "cached_tokens": int,
    "output_tokens": int,
    "reasoning_tokens": int,
    "price_nano": int,
    "price_source": str,
    "estimated": bool,
    "cancelled": bool,
    "cached": bool,
    "saved_nano": int,
    "finish": str,
    "error": str,
    "detail": str,
    "prompt_hash": str,
}


def iso(began: float) -> str:
    """Unix time as UTC text of a fixed width, so that it sorts; empty where it is none."""
    try:
        return datetime.fromtimestamp(began, UTC).isoformat(timespec="microseconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def clean(row: Row) -> Row:
    """The row with what no database refuses: no NUL or lone surrogates in texts, no number past 64 bits."""
    return tuple(None if x is None else _clean(x, kind) for x, kind in zip(row, COLUMNS.values(), strict=True))


def _clean(value: Any, kind: type) -> Any:
    try:
        if kind is str:
            return str(value).replace("\0", "").encode("utf-8", "replace").decode()
        return max(-(2**63), min(int(value), 2**63 - 1)) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError):
        return None


@cache
def calls() -> sa.Table:
    """The table of calls."""
    import sqlalchemy as sa

    kinds: dict[type, Any] = {str: sa.Text, int: sa.BigInteger, float: sa.Double, bool: sa.Boolean}
    columns = [sa.Column(name, kinds[kind], primary_key=name == "id") for name, kind in COLUMNS.items()]
    return sa.Table("calls", sa.MetaData(), *columns)


class Store:
    """A database and its table `calls`; one thread writes at a time."""

    def __init__(self, url: str | Path) -> None:
        import sqlalchemy as sa

        if not isinstance(url, str | os.PathLike) or not str(url).strip():
            raise Misuse(f"Ledger({url!r}): name a file, or write a URL such as sqlite:///file.db.")
        try:
            self.url = sa.make_url(str(url)) if "://" in str(url) else sa.URL.create("sqlite", database=str(url))
        except (sa.exc.ArgumentError, ValueError):
            raise PlaycallError(
                "the ledger's URL cannot be read; write sqlite:///file.db or postgresql://user@host/name."
            ) from None  # it may hold a password
        if self.url.drivername in ("postgres", "postgresql"):
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.file: Path | None = None
        if self._sqlite and self.url.database and not self.url.database.startswith((":memory:", "file:")):
            self.file = Path(self.url.database).absolute()
            self.url = self.url.set(database=str(self.file))
        self._made: object = None  # the file that `create` was done in
        self.place = self.url.render_as_string(hide_password=True)
        self.engine = self._engine()

    @property
    def _sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def _engine(self) -> sa.Engine:
        import sqlalchemy as sa

        options: dict[str, Any] = {"hide_parameters": True}
        if self._sqlite and self.file is None:  # in memory: one connection is the database
            options |= {"poolclass": sa.StaticPool, "connect_args": {"check_same_thread": False}}
        elif self.url.get_backend_name() == "postgresql" and "connect_timeout" not in self.url.query:
            options |= {"connect_args": {"connect_timeout": 10}}
        try:
            engine = sa.create_engine(self.url, **options)
        except (ImportError, sa.exc.ArgumentError) as error:
            raise PlaycallError(f"ledger {self.place}: {error}; install its driver, or name another.") from error
        if self._sqlite:
            sa.event.listen(engine, "connect", _pragmas)
        return engine

    def create(self) -> None:
        """Make the table where there is none, and check it; raises PlaycallError."""
        import sqlalchemy as sa

        meta = sa.MetaData()
        version = sa.Table("calls_meta", meta, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))
        calls().to_metadata(meta)
        for last in (False, False, False, True):  # another process may be making it
            try:
                with self.engine.begin() as connection:
                    meta.create_all(connection)
                    if connection.scalar(sa.select(sa.func.count()).select_from(version)) == 0:
                        connection.execute(version.insert(), {"key": "version", "value": str(VERSION)})
                break
            except sa.exc.DBAPIError as error:
                away = isinstance(error, sa.exc.OperationalError) and not re.search("exists|locked", said(error))
                if last or away:
                    raise PlaycallError(f"ledger {self.place} cannot be opened: {said(error)}.") from error
                time.sleep(0.1)
        self.check()
        self._made = self._inode()

    def _inode(self) -> object:
        try:
            found = os.stat(self.file or "")
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def moved(self) -> bool:
        """Whether the file was deleted or replaced: open connections would write to what nobody can find."""
        if self.file is None or (self._made and self._made == self._inode()):
            return False
        self.engine.dispose()
        return True

    def check(self) -> None:
        """Raise PlaycallError where there is no ledger, or another version's."""
        import sqlalchemy as sa

        if self.file is not None and not self.file.is_file():
            raise PlaycallError(f"there is no ledger {self.file}; name one, or set PLAYCALL_LEDGER.")
        with self.reading() as connection:
            tables = sa.inspect(connection).get_table_names()
            if "calls" not in tables:
                raise PlaycallError(f"{self.place} is no ledger: it has no table `calls`.")
            have = {column["name"] for column in sa.inspect(connection).get_columns("calls")}
            told = "SELECT value FROM calls_meta WHERE key = 'version'"
            version = connection.scalar(sa.text(told)) if "calls_meta" in tables else "none"
        if (lacks := [c for c in COLUMNS if c not in have]) or version != str(VERSION):
            raise PlaycallError(
                f"ledger {self.place} was made by another version of playcall (its version is {version}, ours {VERSION}"
                f"{'; `calls` lacks ' + ', '.join(lacks) if lacks else ''}). Keep it, and name a new one."
            )

    def write(self, rows: Sequence[Row]) -> None:
        """Insert at most MOST_ROWS, in one statement: each would wait anew for the interpreter's lock."""
        with self.engine.begin() as connection:
            self._insert(connection, rows)

    def write_missing(self, rows: Sequence[Row]) -> None:
        """Insert those that are not there: a commit may have held although it was said to fail."""
        import sqlalchemy as sa

        id = calls().c.id
        with self.engine.begin() as connection:
            there = set(connection.scalars(sa.select(id).where(id.in_([row[0] for row in rows]))))
            self._insert(connection, [row for row in rows if row[0] not in there])

    def _insert(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        if rows:
            dialect = self.engine.dialect
            columns, qmark = ", ".join(map(dialect.identifier_preparer.quote, COLUMNS)), dialect.paramstyle == "qmark"
            connection.exec_driver_sql(_insert(columns, qmark, len(rows)), tuple(x for row in rows for x in row))

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection to read from; its errors are PlaycallErrors."""
        import sqlalchemy as sa

        try:
            with self.engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise PlaycallError(f"ledger {self.place} cannot be read: {said(error)}.") from error


@cache
def _insert(columns: str, qmark: bool, rows: int) -> str:
    row = f"({', '.join(('?' if qmark else '%s',) * len(COLUMNS))})"
    return f"INSERT INTO calls ({columns}) VALUES {', '.join([row] * rows)}"


def _pragmas(connection: Any, _: object) -> None:
    for pragma in ("busy_timeout = 5000", "journal_mode = WAL", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def passing(error: Exception) -> bool:
    """Whether the database is at fault (full, locked, away), and not the row."""
    import sqlalchemy as sa

    return isinstance(error, sa.exc.OperationalError) and not error.connection_invalidated


def dropped(error: Exception) -> bool:
    """Whether the database has lost the table."""
    return bool(re.search(r"no such table|calls\b.* (does not|doesn't) exist", said(error)))


def said(error: BaseException) -> str:
    """A database's own words, on one line, without the statement."""
    return " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
