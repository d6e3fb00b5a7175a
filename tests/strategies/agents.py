"""Agents that ask one model once, each with another client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import requests

Agent = Callable[..., str]  # (server's root, model, prompt, stream) -> text


def body(model: str, prompt: str, stream: bool) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], **({"stream": True} if stream else {})}


def text_of(data: bytes, stream: bool) -> str:
    """Of a chat completion, or of its stream; a chunk without choices is one that nobody asked for."""
    if not stream:
        return str(json.loads(data)["choices"][0]["message"]["content"])
    events = [e[6:] for e in data.decode().split("\n\n") if e]
    assert events.pop() == "[DONE]"
    return "".join(json.loads(e)["choices"][0]["delta"].get("content", "") for e in events)


def by_openai(root: str, model: str, prompt: str, stream: bool = False) -> str:
    client = openai.OpenAI(base_url=f"{root}/v1", api_key="SECRET", max_retries=0)
    with client:
        got = client.chat.completions.create(**body(model, prompt, stream))
        if not stream:
            return str(got.choices[0].message.content)
        return "".join(chunk.choices[0].delta.content or "" for chunk in got)


def by_responses(root: str, model: str, prompt: str, stream: bool = False) -> str:
    with openai.OpenAI(base_url=f"{root}/v1", api_key="SECRET", max_retries=0) as client:
        if not stream:
            return client.responses.create(model=model, input=prompt).output_text
        events = client.responses.create(model=model, input=prompt, stream=True)
        return "".join(e.delta for e in events if e.type == "response.output_text.delta")


def by_anthropic(root: str, model: str, prompt: str, stream: bool = False) -> str:
    asked: Any = {"model": model, "max_tokens": 99, "messages": [{"role": "user", "content": prompt}]}
    with anthropic.Anthropic(base_url=root, api_key="SECRET", max_retries=0) as client:
        if not stream:
            return "".join(block.text for block in client.messages.create(**asked).content if block.type == "text")
        with client.messages.stream(**asked) as events:
            return "".join(events.text_stream)


def _url(root: str) -> str:
    return f"{root}/v1/chat/completions"


def by_httpx(root: str, model: str, prompt: str, stream: bool = False, module: Any = httpx) -> str:
    with module.Client() as client:
        if not stream:
            return text_of(client.post(_url(root), json=body(model, prompt, False)).raise_for_status().content, False)
        with client.stream("POST", _url(root), json=body(model, prompt, True)) as response:
            return text_of(b"".join(response.iter_bytes()), True)


def by_httpx2(root: str, model: str, prompt: str, stream: bool = False) -> str:
    return by_httpx(root, model, prompt, stream, httpx2)


def by_requests(root: str, model: str, prompt: str, stream: bool = False) -> str:
    with requests.Session() as session:
        response = session.post(_url(root), json=body(model, prompt, stream), stream=stream)
        response.raise_for_status()
        return text_of(b"".join(response.iter_content(7)) if stream else response.content, stream)


async def aopenai(root: str, model: str, prompt: str, stream: bool = False) -> str:
    async with openai.AsyncOpenAI(base_url=f"{root}/v1", api_key="SECRET", max_retries=0) as client:
        got = await client.chat.completions.create(**body(model, prompt, stream))
        if not stream:
            return str(got.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in got])


async def aanthropic(root: str, model: str, prompt: str, stream: bool = False) -> str:
    asked: Any = {"model": model, "max_tokens": 99, "messages": [{"role": "user", "content": prompt}]}
    async with anthropic.AsyncAnthropic(base_url=root, api_key="SECRET", max_retries=0) as client:
        if not stream:
            return "".join(b.text for b in (await client.messages.create(**asked)).content if b.type == "text")
        async with client.messages.stream(**asked) as events:
            return "".join([text async for text in events.text_stream])


async def ahttpx(root: str, model: str, prompt: str, stream: bool = False, module: Any = httpx) -> str:
    async with module.AsyncClient() as client:
        if not stream:
            response = await client.post(_url(root), json=body(model, prompt, False))
            return text_of(response.raise_for_status().content, False)
        async with client.stream("POST", _url(root), json=body(model, prompt, True)) as response:
            return text_of(b"".join([chunk async for chunk in response.aiter_bytes()]), True)


async def ahttpx2(root: str, model: str, prompt: str, stream: bool = False) -> str:
    return await ahttpx(root, model, prompt, stream, httpx2)


async def aaiohttp(root: str, model: str, prompt: str, stream: bool = False) -> str:
    asked = body(model, prompt, stream)
    async with aiohttp.ClientSession() as session, session.post(_url(root), json=asked) as response:
        response.raise_for_status()
        if not stream:
            return text_of(json.dumps(await response.json()).encode(), False)
        return text_of(b"".join([line async for line in response.content]), True)


def run(agent: Callable[..., Any]) -> Agent:
    """Of code that is not async."""
    return lambda *args, **more: asyncio.run(agent(*args, **more))


SYNC: dict[str, Agent] = {
    "openai": by_openai,
    "responses": by_responses,
    "anthropic": by_anthropic,
    "httpx": by_httpx,
    "httpx2": by_httpx2,
    "requests": by_requests,
}
ASYNC: dict[str, Callable[..., Any]] = {
    "aopenai": aopenai,
    "aanthropic": aanthropic,
    "ahttpx": ahttpx,
    "ahttpx2": ahttpx2,
    "aaiohttp": aaiohttp,
}
ALL: dict[str, Agent] = {**SYNC, **{name: run(agent) for name, agent in ASYNC.items()}}
