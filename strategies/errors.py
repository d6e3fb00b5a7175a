"""What can go wrong, by who can mend it."""

from collections.abc import Collection


class PlaycallError(Exception):
    """Root of every error that playcall raises on purpose; its text says what to do."""


class Misuse(PlaycallError, ValueError):
    """A strategy or call that cannot mean anything; raised where it is built."""


class NotRecorded(PlaycallError, LookupError):
    """A strategy asks for a call that the recording does not hold."""


def some(names: Collection[str], most: int = 4) -> str:
    """The first names, and how many more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(repr(name[:60]) for name in list(names)[:most]) + more


def only(error: BaseException) -> BaseException:
    """The error of a group whose errors are one, or all of them ours: task groups wrap what their tasks raise."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [only(e) for e in error.exceptions]
    return inner[0] if len(inner) == 1 or all(isinstance(e, PlaycallError) for e in inner) else error
