"""One try at one call: what is asked, what is known of it so far, and how it can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Failure(StrEnum):
    """Why a call brought no answer."""

    REFUSED = "refused"  # the model declined
    EMPTY = "empty"
    TRUNCATED = "truncated"  # it ran into its token limit
    INVALID = "invalid"  # not the JSON or schema that was asked for
    RATE = "rate_limited"
    SERVER = "server"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    CUT = "cut"  # the connection ended amid the answer
    GARBAGE = "garbage"  # what came is no answer at all
    AUTH = "auth"
    NOT_FOUND = "not_found"
    REQUEST = "bad_request"
    QUOTA = "quota"  # the provider's account is out of money
    RAISED = "raised"  # a user's function raised
    BUDGET = "budget"  # from here on nothing was sent
    BENCHED = "benched"  # too many failures of late
    UNPRICED = "unpriced"
    DEADLINE = "deadline"

    @property
    def passing(self) -> bool:
        """Whether another try may bring an answer: 408, 409, 429, 5xx and connection errors."""
        return self in _PASSING


_PASSING = {Failure.RATE, Failure.SERVER, Failure.CONNECTION, Failure.TIMEOUT, Failure.CUT}


class CallFailed(Exception):
    """Raised by an endpoint, and caught where it was called: inside a strategy it is a failed Reply."""

    def __init__(self, failure: Failure, detail: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{failure}: {detail}" if detail else str(failure))
        self.failure, self.detail = failure, detail
        self.retry_after = retry_after  # seconds that the server asked to wait


@dataclass(frozen=True)
class Answer:
    """What an endpoint brought back."""

    text: str  # what answers are compared by, before canonicalisation
    output: object = None  # what the caller gets; the text where None
    score: float = float("nan")  # raw confidence


@dataclass(frozen=True)
class Usage:
    """Tokens of a call, counted as OpenAI does: cached and written are parts of input, reasoning a part of output."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    written: int = 0  # to the provider's cache


@dataclass(slots=True)
class Call:
    """One try on the wire; becomes one row of the ledger.

    Its endpoint sets what it learns as soon as it learns it, so that a call which is cancelled or cut
    is billed by what had come.
    """

    arm: str
    model: str
    task: object
    prompt: str | None
    draw: int
    request: dict[str, Any]  # model, messages and parameters, to be sent unchanged
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: bool = False  # ask for it piece by piece
    timeout: float = 600.0  # seconds for this try
    confidence: str | None = None  # what the score is to be: see `completion.CONFIDENCES`
    listen: Callable[[str], None] | None = None  # is told each piece of text as it comes
    agent: Any = None  # what an agent makes its own calls with

    # what the endpoint learns
    usage: Usage | None = None  # as the provider reported it
    reported: int | None = None  # nano-dollars that the provider says it charged
    heard: str = ""  # the text that has come so far
    first_token: float | None = None  # anyio.current_time() of the first piece
    finish: str | None = None
    served_ms: float | None = None  # the provider's own time, where it says
    response: object = None  # the vendor's own object, where there is one

    # what the runner notes
    run: str = ""
    strategy: str = ""
    node: str = ""
    role: str = "answer"
    number: int = 1  # of the try
    began: float = 0.0  # Unix time, seconds
    sent: float = 0.0  # anyio.current_time()
    waited: float = 0.0  # seconds in queues and between tries
    seconds: float = 0.0
    price: int = 0  # nano-dollars
    source: str = ""  # of the price: user, provider, map, policy; free, calls, cache, unbilled; unknown
    estimated: bool = False
    cancelled: bool = False
    cached: bool = False
    saved: int = 0  # nano-dollars that a cached answer would have cost
    original: float | None = None  # seconds that a cached answer took when it was fresh
    error: str = ""
    detail: str = ""


class Endpoint(Protocol):
    """Where calls go. Raises CallFailed where no answer came; anything else it raises is a bug."""

    @property
    def name(self) -> str:
        """Whose it is, for the ledger: a host or a vendor."""
        ...

    @property
    def tenant(self) -> str:
        """A hash of the credential, so that tenants never share a cached answer or a limit; empty if there is none."""
        ...

    async def __call__(self, call: Call, /) -> Answer: ...
