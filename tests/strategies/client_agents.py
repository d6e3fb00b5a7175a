"""Agents as users write them, with the vendors' own clients: none of them knows of playcall.

Each is a function, sync or async, of (root of a server, question) that returns its answer; `AGENTS` holds them by name.
What is slow to import is imported when an agent runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

KEY = {"api_key": "k", "max_retries": 0}


class Number(BaseModel):
    n: int


@dataclass(frozen=True)
class Known:
    """An agent, the packages that it needs, and how many calls it makes."""

    run: Callable[[str, str], Any]
    needs: tuple[str, ...]
    calls: int


AGENTS: dict[str, Known] = {}


def agent(*needs: str, calls: int = 1) -> Callable[[Callable[[str, str], Any]], Callable[[str, str], Any]]:
    def keep(function: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
        AGENTS[function.__name__] = Known(function, needs, calls)
        return function

    return keep


def user(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


# openai


def openai(root: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{root}/v1", **KEY)


def aopenai(root: str) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{root}/v1", **KEY)


def seen(events: list[Any]) -> list[Any]:
    """All that a client was shown, but for what differs by call."""
    return [json.loads(event.model_dump_json(exclude={"id", "response", "item", "item_id"})) for event in events]


@agent("openai")
def openai_chat(root: str, question: str) -> Any:
    with openai(root) as client:
        return client.chat.completions.create(model="m", messages=user(question)).choices[0].message.content


@agent("openai")
def openai_chat_stream(root: str, question: str) -> Any:
    with openai(root) as client:
        return seen(list(client.chat.completions.create(model="m", messages=user(question), stream=True)))


@agent("openai")
def openai_chat_stream_with_usage(root: str, question: str) -> Any:
    with openai(root) as client:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        return seen(list(client.chat.completions.create(model="m", messages=user(question), **options)))


@agent("openai")
def openai_chat_stream_helper(root: str, question: str) -> Any:
    with openai(root) as client, client.chat.completions.stream(model="m", messages=user(question)) as stream:
        return stream.get_final_completion().choices[0].message.content


@agent("openai")
def openai_chat_parse(root: str, question: str) -> Any:
    with openai(root) as client:
        made = client.chat.completions.parse(model="m", messages=user(question), response_format=Number)
        return made.choices[0].message.parsed.n


@agent("openai")
def openai_chat_raw(root: str, question: str) -> Any:
    with openai(root) as client:
        made = client.chat.completions.with_raw_response.create(model="m", messages=user(question))
        return made.status_code, made.parse().choices[0].message.content


@agent("openai")
def openai_chat_streaming_response(root: str, question: str) -> Any:
    with openai(root) as client:
        asking = client.chat.completions.with_streaming_response
        with asking.create(model="m", messages=user(question)) as response:
            return json.loads(b"".join(response.iter_bytes()))["choices"]


@agent("openai")
def openai_embeddings(root: str, question: str) -> Any:
    with openai(root) as client:
        return client.embeddings.create(model="m", input=[question, "and more"]).data[0].embedding


@agent("openai")
def openai_responses(root: str, question: str) -> Any:
    with openai(root) as client:
        return client.responses.create(model="m", input=question, instructions="Be brief.").output_text


@agent("openai")
def openai_responses_stream(root: str, question: str) -> Any:
    with openai(root) as client:
        return seen(list(client.responses.create(model="m", input=question, stream=True)))


@agent("openai")
def openai_responses_stream_helper(root: str, question: str) -> Any:
    with openai(root) as client, client.responses.stream(model="m", input=question) as stream:
        return stream.get_final_response().output_text


@agent("openai")
def openai_responses_parse(root: str, question: str) -> Any:
    with openai(root) as client:
        return client.responses.parse(model="m", input=question, text_format=Number).output_parsed.n


@agent("openai")
async def openai_chat_async(root: str, question: str) -> Any:
    async with aopenai(root) as client:
        made = await client.chat.completions.create(model="m", messages=user(question))
        return made.choices[0].message.content


@agent("openai")
async def openai_chat_stream_async(root: str, question: str) -> Any:
    async with aopenai(root) as client:
        made = await client.chat.completions.create(model="m", messages=user(question), stream=True)
        return seen([chunk async for chunk in made])


@agent("openai")
async def openai_chat_stream_helper_async(root: str, question: str) -> Any:
    async with aopenai(root) as client, client.chat.completions.stream(model="m", messages=user(question)) as stream:
        return (await stream.get_final_completion()).choices[0].message.content


@agent("openai")
async def openai_chat_parse_async(root: str, question: str) -> Any:
    async with aopenai(root) as client:
        made = await client.chat.completions.parse(model="m", messages=user(question), response_format=Number)
        return made.choices[0].message.parsed.n


@agent("openai")
async def openai_responses_async(root: str, question: str) -> Any:
    async with aopenai(root) as client:
        return (await client.responses.create(model="m", input=question)).output_text


@agent("openai")
async def openai_responses_stream_async(root: str, question: str) -> Any:
    async with aopenai(root) as client:
        return seen([e async for e in await client.responses.create(model="m", input=question, stream=True)])


@agent("openai", "aiohttp")
async def openai_over_aiohttp(root: str, question: str) -> Any:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    async with AsyncOpenAI(base_url=f"{root}/v1", http_client=DefaultAioHttpClient(), **KEY) as client:
        made = await client.chat.completions.create(model="m", messages=user(question))
        return made.choices[0].message.content


@agent("openai", "aiohttp")
async def openai_stream_over_aiohttp(root: str, question: str) -> Any:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    async with AsyncOpenAI(base_url=f"{root}/v1", http_client=DefaultAioHttpClient(), **KEY) as client:
        made = await client.chat.completions.create(model="m", messages=user(question), stream=True)
        return seen([chunk async for chunk in made])


# anthropic


def anthropic(root: str) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=root, **KEY)


def aanthropic(root: str) -> Any:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=root, **KEY)


def message(question: str) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "system": "Be brief.", "messages": user(question)}


@agent("anthropic")
def anthropic_create(root: str, question: str) -> Any:
    with anthropic(root) as client:
        return client.messages.create(**message(question)).content[0].text


@agent("anthropic")
def anthropic_stream(root: str, question: str) -> Any:
    with anthropic(root) as client:
        return "".join(e.delta.text for e in client.messages.create(**message(question), stream=True) if e.type == TEXT)


@agent("anthropic")
def anthropic_stream_helper(root: str, question: str) -> Any:
    with anthropic(root) as client, client.messages.stream(**message(question)) as stream:
        return "".join(stream.text_stream), stream.get_final_message().usage.output_tokens


@agent("anthropic")
async def anthropic_create_async(root: str, question: str) -> Any:
    async with aanthropic(root) as client:
        return (await client.messages.create(**message(question))).content[0].text


@agent("anthropic")
async def anthropic_stream_async(root: str, question: str) -> Any:
    async with aanthropic(root) as client:
        events = await client.messages.create(**message(question), stream=True)
        return "".join([e.delta.text async for e in events if e.type == TEXT])


@agent("anthropic")
async def anthropic_stream_helper_async(root: str, question: str) -> Any:
    async with aanthropic(root) as client, client.messages.stream(**message(question)) as stream:
        said = "".join([text async for text in stream.text_stream])
        return said, (await stream.get_final_message()).usage.output_tokens


@agent("anthropic", "aiohttp")
async def anthropic_over_aiohttp(root: str, question: str) -> Any:
    from anthropic import AsyncAnthropic, DefaultAioHttpClient

    async with AsyncAnthropic(base_url=root, http_client=DefaultAioHttpClient(), **KEY) as client:
        return (await client.messages.create(**message(question))).content[0].text


TEXT = "content_block_delta"


# by hand


def gemini(question: str) -> Any:
    return {"contents": [{"role": "user", "parts": [{"text": question}]}]}


@agent("requests")
def requests_chat(root: str, question: str) -> Any:
    import requests

    body = {"model": "m", "messages": user(question)}
    return requests.post(f"{root}/v1/chat/completions", json=body, timeout=5).json()["choices"]


@agent("requests")
def requests_session_stream(root: str, question: str) -> Any:
    import requests

    body = {"model": "m", "messages": user(question), "stream": True, "seed": 1}
    asking = {"json": body, "timeout": 5, "stream": True}
    with requests.Session() as session, session.post(f"{root}/v1/chat/completions", **asking) as response:
        return list(response.iter_lines())


@agent("httpx")
def httpx_gemini(root: str, question: str) -> Any:
    import httpx

    made = httpx.post(f"{root}/v1beta/models/m:generateContent?key=k", json=gemini(question)).json()
    return made["candidates"]


@agent("httpx")
def httpx_gemini_stream(root: str, question: str) -> Any:
    import httpx

    target = f"{root}/v1beta/models/m:streamGenerateContent?alt=sse"
    with httpx.stream("POST", target, json=gemini(question), headers={"x-goog-api-key": "k"}) as response:
        events = [json.loads(line[5:]) for line in response.iter_lines() if line]
        return [event["candidates"] for event in events]


@agent("httpx2")
async def httpx2_chat(root: str, question: str) -> Any:
    import httpx2

    async with httpx2.AsyncClient() as client:
        made = await client.post(f"{root}/v1/chat/completions", json={"model": "m", "messages": user(question)})
        return made.json()["choices"]


@agent("aiohttp")
async def aiohttp_chat(root: str, question: str) -> Any:
    import aiohttp

    body = {"model": "m", "messages": user(question)}
    async with aiohttp.ClientSession(f"{root}/v1/") as session, session.post("chat/completions", json=body) as made:
        return (await made.json())["choices"]


@agent("aiohttp")
async def aiohttp_stream(root: str, question: str) -> Any:
    import aiohttp

    body = {"model": "m", "messages": user(question), "stream": True, "seed": 1}
    async with aiohttp.ClientSession() as session, session.post(f"{root}/v1/chat/completions", json=body) as made:
        return [line async for line in made.content]


@agent("openai", calls=6)
def thread_pool(root: str, question: str) -> Any:
    with openai(root) as client, ThreadPoolExecutor(3) as pool:

        def one(i: int) -> Any:
            made = client.chat.completions.create(model="m", messages=user(f"{question} {i * 'again '}"))
            return made.choices[0].message.content

        return list(pool.map(one, range(6)))


@agent("openai", calls=6)
async def gather(root: str, question: str) -> Any:
    async with aopenai(root) as client:

        async def one(i: int) -> Any:
            made = await client.chat.completions.create(model="m", messages=user(f"{question} {i * 'again '}"))
            return made.choices[0].message.content

        return await asyncio.gather(*(one(i) for i in range(6)))
