"""LiteLLM: calls to every vendor that litellm knows, for those that do not speak OpenAI's format."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio

from playcall.strategies.call import Answer, Call, CallFailed, Failure
from playcall.strategies.completion import Pieces, failure_of, read_completion, retry_after, tidy
from playcall.strategies.errors import Misuse
from playcall.strategies.openai import wanted
from playcall.strategies.transport import on_asyncio

COMPROMISED = {"1.107.0"}
_KINDS = {"APIConnectionError": Failure.CONNECTION, "ContentPolicyViolationError": Failure.REFUSED}


def _load() -> Any:
    from importlib import metadata

    try:
        version = metadata.version("litellm")
    except metadata.PackageNotFoundError:
        raise Misuse("LiteLLM needs litellm: pip install 'playcall[litellm]'") from None
    if version in COMPROMISED:
        raise Misuse(f"litellm {version} is a compromised release: pip install -U 'playcall[litellm]'")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import downloads prices
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True  # it would print to the user's terminal
    return litellm


class LiteLLM:
    """An Endpoint over `litellm.acompletion`, with its options (api_key, api_base, ...). A model is written as
    litellm does: "anthropic/claude-sonnet-4-5". On asyncio only: raises Misuse on trio, and where litellm is
    not installed."""

    def __init__(self, **options: object) -> None:
        self._options = options
        self._litellm: Any = None

    def __repr__(self) -> str:
        return f"LiteLLM({', '.join(f'{name}=...' for name in self._options)})"

    @property
    def name(self) -> str:
        """The library: it picks the vendor by the model's name."""
        return "litellm"

    @property
    def tenant(self) -> str:
        """A hash of the options; empty where litellm finds the key by itself."""
        return hashlib.sha256(repr(sorted(self._options.items())).encode()).hexdigest()[:16] if self._options else ""

    def _secrets(self, call: Call) -> set[str]:
        named = (value for name, value in os.environ.items() if any(w in name for w in ("KEY", "TOKEN", "SECRET")))
        given = (str(value) for name, value in self._options.items() if name not in ("api_base", "base_url"))
        return {value for value in (*named, *given, *call.headers.values()) if len(value) > 7}

    async def __call__(self, call: Call) -> Answer:
        """One completion, without litellm's own retries and cache. Raises CallFailed."""
        if not on_asyncio():
            raise Misuse("LiteLLM runs on asyncio, since litellm does: call anyio.run(..., backend='asyncio').")
        if self._litellm is None:
            self._litellm = await anyio.to_thread.run_sync(_load)
        try:
            return await self._ask(call)
        except CallFailed as error:
            raise tidy(error, self._secrets(call)) from None

    async def _ask(self, call: Call) -> Answer:
        ours = {"num_retries": 0, "max_retries": 0, "caching": False, "timeout": call.timeout}
        headers = {"extra_headers": dict(call.headers)} if call.headers else {}
        try:
            with anyio.fail_after(call.timeout):
                found = await self._litellm.acompletion(**wanted(call) | headers | self._options | ours)
                body = await _receive(call, found) if hasattr(found, "__aiter__") else found.model_dump(warnings=False)
        except CallFailed:
            raise
        except TimeoutError:
            raise CallFailed(Failure.TIMEOUT, f"no answer in {call.timeout:g} s") from None
        except Exception as error:
            raise _failed(error, call) from None
        return read_completion(call, body)


async def _receive(call: Call, stream: AsyncIterator[Any]) -> dict[str, Any]:
    pieces = Pieces(call)
    async with aclosing(stream):  # type: ignore[type-var]
        async for piece in stream:
            pieces.take(piece.model_dump(exclude_none=True, warnings=False))
    if not pieces.ended:
        raise CallFailed(Failure.CUT, "the stream ended without a finish_reason")
    return pieces.body


def _failed(error: Exception, call: Call) -> CallFailed:
    status = getattr(error, "status_code", None)
    failure = _KINDS.get(type(error).__name__) or Failure.RAISED
    if failure is Failure.RAISED and status:
        said = getattr(error, "body", None)
        failure = failure_of(int(status), *(said.get("code"), said.get("type")) if isinstance(said, dict) else ())
    if call.heard and failure in (Failure.CONNECTION, Failure.SERVER):
        failure = Failure.CUT
    sent = getattr(getattr(error, "response", None), "headers", None) or {}
    own = getattr(error, "litellm_response_headers", None) or {}
    return CallFailed(failure, f"{status or type(error).__name__} {error}", retry_after({**sent, **own}))
