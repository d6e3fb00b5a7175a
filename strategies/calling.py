"""One try on the wire: how it ends, and what is owed for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from playcall.strategies.arm import Arm
from playcall.strategies.call import Answer, Call, CallFailed, Endpoint, Failure, Usage
from playcall.strategies.errors import Misuse, PlaycallError
from playcall.strategies.prices import Price, estimate_tokens
from playcall.strategies.requests import as_json
from playcall.strategies.signal import on_asyncio

End = Callable[[CallFailed | None], None]

_UNBILLED = {Failure.RATE, Failure.SERVER, Failure.CONNECTION, Failure.AUTH}
_UNBILLED |= {Failure.NOT_FOUND, Failure.REQUEST, Failure.QUOTA}


async def called(endpoint: Endpoint, call: Call, end: End) -> Answer:
    """Make a call, and say how it ended."""
    try:
        answer = await endpoint(call)
    except CallFailed as failed:
        end(failed)
        raise
    except PlaycallError:
        end(CallFailed(Failure.RAISED))
        raise
    except Exception as error:  # one endpoint's fault must not end a run whose other calls were paid for
        raised = CallFailed(Failure.RAISED, f"{type(error).__name__}: {error}"[:300])
        end(raised)
        raise raised from error
    except SystemExit as error:  # as command lines raise it; it would end everybody's event loop
        raised = CallFailed(Failure.RAISED, f"SystemExit: {error}")
        end(raised)
        raise raised from error
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not _told_to_end():
            raised = CallFailed(Failure.RAISED, "it was cancelled from within")
            end(raised)
            raise raised from error
        call.cancelled = True
        end(None)
        raise
    end(None)
    return answer


def _told_to_end() -> bool:
    """Whether this task of asyncio's was cancelled; else what it awaits has cancelled itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


_drains: set[asyncio.Task[Answer]] = set()


async def drained(endpoint: Endpoint, call: Call, end: End) -> Answer:
    """The same, but a call that is cancelled is read to its end behind the caller's back, so that its bill is exact."""
    if not on_asyncio():
        raise Misuse("losers='drain' needs asyncio: a trio nursery waits for all that it started. Say losers='cancel'.")
    task = asyncio.get_running_loop().create_task(called(endpoint, call, end))
    _drains.add(task)
    task.add_done_callback(_drains.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        call.cancelled = call.estimated = True
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # what it brings is nobody's concern
        raise


async def drain() -> None:
    """Wait for the cancelled calls that are still read to their end."""
    here = [t for t in _drains if t.get_loop() is asyncio.get_running_loop()]
    await asyncio.gather(*here, return_exceptions=True)


def said(error: BaseException | None) -> tuple[str, str]:
    return (str(error.failure), error.detail) if isinstance(error, CallFailed) else ("", "")


def bill(call: Call, arm: Arm, error: CallFailed | None) -> None:
    """What a call that has ended is owed: the user's price, else what the provider reported, else the price map's."""
    price = arm.known_price
    if call.reported is not None and not (isinstance(price, Price) and price.source == "user"):
        call.price, call.source = call.reported, "provider"
    elif price in ("free", "calls"):
        call.source = str(price)
    elif error is not None and error.failure in _UNBILLED and call.usage is None and not call.heard:
        call.source = "unbilled"
    elif not isinstance(price, Price):
        call.source = "unknown"
    else:
        call.estimated = call.usage is None or price.source == "policy"  # a mean of recorded calls
        usage = call.usage or Usage(tokens_of(call.request), estimate_tokens(call.heard))
        call.price, call.source = price.bill(usage), price.source


def tokens_of(request: Mapping[str, Any]) -> int:
    return estimate_tokens(as_json(request.get("messages", "")))
