"""What can go wrong, by who can mend it."""


class PlaycallError(Exception):
    """Root of every error that playcall raises on purpose; its text says what to do."""


class Misuse(PlaycallError, ValueError):
    """A strategy or call that cannot mean anything; raised where it is built."""


class NotRecorded(PlaycallError, LookupError):
    """A strategy asks for a call that the recording does not hold."""
