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
from playcall.strategies.completion import Pieces, failed_client, read_completion, tidy
from playcall.strategies.errors import Misuse
from playcall.strategies.openai import wanted
from playcall.strategies.signal import on_asyncio

COMPROMISED = {"1.107.0"}


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

    name = "litellm"  # which picks the vendor by the model's name

    def __init__(self, **options: object) -> None:
        self._options = options
        told = repr(sorted(options.items()))
        self.tenant = hashlib.sha256(told.encode()).hexdigest()[:16] if options else ""  # it finds keys by itself too
        self._litellm: Any = None

    def __repr__(self) -> str:
        return f"LiteLLM({', '.join(f'{name}=...' for name in self._options)})"

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
            found = failed_client(error)
            cut = call.heard and found.failure in (Failure.CONNECTION, Failure.SERVER)
            raise CallFailed(Failure.CUT, found.detail) if cut else found from None
        return read_completion(call, body)


async def _receive(call: Call, stream: AsyncIterator[Any]) -> dict[str, Any]:
    pieces = Pieces(call)
    async with aclosing(stream):  # type: ignore[type-var]
        async for piece in stream:
            pieces.take(piece.model_dump(exclude_none=True, warnings=False))
    if not pieces.ended:
        raise CallFailed(Failure.CUT, "the stream ended without a finish_reason")
    return pieces.body
