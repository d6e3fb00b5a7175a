"""What a type checker knows of wrapped calls: the vendor's signature, its overloads and what it returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..conftest import ROOT

CODE = """
from typing import Any, assert_type

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from playcall.strategies.live import Result
from playcall.strategies.runner import Runner


def with_a_sync_client(policy: Runner, client: openai.OpenAI) -> None:
    create = policy.wrap(client.chat.completions.create)
    assert_type(create(model="m", messages=[{"role": "user", "content": "hi"}]), ChatCompletion)
    assert_type(create(model="m", messages=[], stream=True), openai.Stream[ChatCompletionChunk])
    create(model="m", mesages=[])  # WRONG
    create(model="m", messages=[], temperature="hot")  # WRONG


async def with_an_async_client(policy: Runner, client: openai.AsyncOpenAI) -> None:
    create = policy.wrap(client.chat.completions.create)
    assert_type(await create(model="m", messages=[]), ChatCompletion)
    assert_type(await create(model="m", messages=[], stream=True), openai.AsyncStream[ChatCompletionChunk])


async def with_functions(policy: Runner) -> None:
    @policy.call
    def one(question: str, model: str = "m") -> list[int]:
        return [len(question)]

    @policy.call
    async def other(question: str, *, model: str) -> bytes:
        return question.encode()

    assert_type(one("q"), list[int])
    assert_type(await other("q", model=""), bytes)
    one(1)  # WRONG


async def with_tasks(policy: Runner) -> None:
    assert_type(await policy.run("q"), Result)
    assert_type(policy.run_sync([{"role": "user", "content": "hi"}]), Result)
    assert_type(await policy.map(["q"], concurrency=2), list[Result])
    async for i, result in policy.map(["q"]):
        assert_type(i, int)
        assert_type(result, Result)
    async for piece in policy.stream("q"):
        assert_type(piece, str)
"""


def test_wrapped_calls_keep_their_signatures_overloads_and_return_types(tmp_path: Path) -> None:
    path = tmp_path / "uses.py"
    path.write_text(CODE)
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={ROOT / '.mypy_cache'}"]
    options += ["--config-file", str(ROOT / "pyproject.toml"), str(path)]
    found = subprocess.run([sys.executable, "-m", "mypy", *options], cwd=ROOT, capture_output=True, text=True)
    wrong = [str(i) for i, line in enumerate(CODE.split("\n"), 1) if "# WRONG" in line]
    errors = [line.split(":")[1] for line in found.stdout.splitlines() if ": error:" in line and "uses.py" in line]
    assert sorted(set(errors)) == sorted(wrong), found.stdout + found.stderr
