"""A server of models for tests and benchmarks: real sockets, scripted answers, every fault, and a bill.

Chat completions, Responses, Anthropic's Messages, Gemini, embeddings: scripts see them all as chat requests.

In a test: `with serve() as server: ... server.url`. By itself: `python tests/serving.py --port 8123 --bill b.jsonl`.

A request picks its faults by its model's name: `x+429:2` is model x, two 429s for each distinct request, then fine;
`x+delay:20+cut` waits 20 ms and cuts the answer. Or the server is given `fault=callable(body) -> "429:2"` or "".
Those with a count: 408 409 429 500 503 close cut hang garbage. Others: 400 401 403 404 quota html empty badjson refusal
filter length nousage badusage gzip trickle hangmid; in streams only: error nodone.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

if __package__:
    from .dialects import ERRORS, Body, Dialect, Frame, number, parts, spoken, words
else:
    from dialects import ERRORS, Body, Dialect, Frame, number, parts, spoken, words

MILLION = 1_000_000

TIMES = {"408", "409", "429", "500", "503", "close", "cut", "hang", "garbage"}  # fault:n is n times, then fine
PLACES = {"empty": "", "badjson": '{"answer": '}


@dataclass
class Served:
    """One request, and what became of it."""

    model: str  # without its faults
    body: Body
    headers: dict[str, str]  # names in lower case
    connection: int
    chat: Body  # the body as a chat request
    status: int = 0
    words: int = 0  # of the answer that were written
    input: int = 0  # tokens
    output: int = 0
    cached: int = 0  # of the input
    reasoning: int = 0  # of the output
    price: int = 0  # nano-dollars, if it is finished
    finished: bool = False  # written to its end
    wordless: bool = False  # an embedding
    gone: float | None = None  # time.monotonic() when the client left before that

    @property
    def prompt(self) -> str:
        """The last message."""
        return str(self.chat["messages"][-1].get("content"))


@dataclass
class Server:
    """What is served, and the books. A rate is nano-dollars per million tokens: input, output[, cached, reasoning]."""

    answer: Callable[[Body], str | Body] | None = None  # content, or a message, or with `choices` all of it
    fault: Callable[[Body], str] | None = None
    details: Callable[[Body], tuple[int, int]] | None = None  # cached and reasoning tokens, besides all words
    rates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rate: tuple[int, ...] = (1_000_000_000, 2_000_000_000)  # $1 and $2: of models without their own
    retry_after: str = "0"
    delay: float = 0.0  # seconds before every answer
    tls: ssl.SSLContext | None = None
    books: str | None = None  # file that a line is added to for each request that ended
    served: list[Served] = field(default_factory=list)
    alive: set[Connection] = field(default_factory=set)
    connections: int = 0  # ever
    port: int = 0
    _seen: Counter[str] = field(default_factory=Counter)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _book: int | None = None

    @property
    def open(self) -> int:
        """Connections now."""
        return len(self.alive)

    @property
    def url(self) -> str:
        """For `base_url` of OpenAI's clients."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """For `base_url` of Anthropic's and Google's."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def bill(self, model: str | None = None) -> int:
        """Nano-dollars of finished calls."""
        return sum(s.price for s in self.served if s.finished and model in (None, s.model))

    def gone(self) -> list[Served]:
        """Requests whose client left before their end."""
        return [s for s in self.served if s.gone is not None]

    def until(self, condition: Callable[[], object], seconds: float = 2.0) -> bool:
        """Wait until something holds; it is looked at after every event here."""
        with self._news:
            return bool(self._news.wait_for(condition, seconds))

    def tell(self) -> None:
        """Something happened."""
        with self._news:
            self._news.notify_all()

    def nth(self, kind: str, model: str, body: Body) -> int:
        """How often this very request came before."""
        key = f"{kind} {number(model, body.get('messages'), body.get('seed'))}"
        self._seen[key] += 1
        return self._seen[key] - 1

    def faults(self, body: Body, model: str, spec: str) -> dict[str, str]:
        """What this request meets: name -> argument."""
        found = dict(part.partition(":")[::2] for part in spec.split("+") if part)
        return {
            name: value
            for name, value in found.items()
            if name not in TIMES or not value or self.nth(name, model, body) < int(value)
        }

    def completion(self, body: Body, model: str, faults: Mapping[str, str]) -> Body:
        """The whole answer, as a body."""
        draw = body["seed"] if body.get("seed") is not None else self.nth("draw", model, body)
        if self.answer:
            said = self.answer(body)
        else:
            said = f"the answer is {number(model, body.get('messages'), draw) % 5}"
        if isinstance(said, dict) and "choices" in said:
            return said
        message: Body = {"role": "assistant", "content": None, **({"content": said} if isinstance(said, str) else said)}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        for name, text in PLACES.items():
            if name in faults:
                message = {"role": "assistant", "content": text}
        if "refusal" in faults:
            message, finish = {"role": "assistant", "content": None, "refusal": "I can't help with that."}, "stop"
        finish = "length" if "length" in faults else "content_filter" if "filter" in faults else finish
        text = message.get("content") or message.get("refusal") or json.dumps(message.get("tool_calls", ""))
        cached, reasoning = self.details(body) if self.details else (0, 0)
        counted = words([m.get("content") for m in body["messages"]]) + cached, words(text) + reasoning
        choice: Body = {"index": 0, "message": message, "finish_reason": finish}
        if body.get("logprobs"):
            choice["logprobs"] = {
                "content": [{"token": w, "logprob": -(number(w, draw) % 100) / 100} for w in str(text).split()]
            }
        usage: Body = {"prompt_tokens": counted[0], "completion_tokens": counted[1], "total_tokens": sum(counted)}
        if self.details:
            usage |= {"prompt_tokens_details": {"cached_tokens": cached}}
            usage |= {"completion_tokens_details": {"reasoning_tokens": reasoning}}
        return {
            "id": f"chatcmpl-{number(model, body.get('messages'), draw)}",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }

    def close_books(self, served: Served) -> None:
        """A request ended, one way or another."""
        if served.finished and (served.output or served.wordless):
            rate = self.rates.get(served.model, self.rate)
            input, output, cached, reasoning = rate if len(rate) == 4 else (*rate, *rate)
            total = (served.input - served.cached) * input + served.cached * cached
            total += (served.output - served.reasoning) * output + served.reasoning * reasoning
            served.price = total // MILLION
        if self.books is not None:
            if self._book is None:
                self._book = os.open(self.books, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            row = {k: getattr(served, k) for k in ("model", "status", "finished", "input", "output", "price", "words")}
            os.write(self._book, (json.dumps({**row, "messages": served.chat.get("messages")}) + "\n").encode())
        self.tell()


class Connection(asyncio.Protocol):
    """One connection: a request at a time; the client's leaving ends the one at work."""

    def __init__(self, server: Server) -> None:
        self.server, self.buffer = server, bytearray()
        self.served: Served | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.alive.add(self)
        self.server.connections += 1
        self.number = self.server.connections

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.alive.discard(self)
        if self.served is not None and not self.served.finished and self.task is not None and not self.task.done():
            self.served.gone = time.monotonic()
            self.task.cancel()
        self.server.tell()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.task is not None:
            return
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        body = json.loads(rest[:length] or b"{}")
        self.buffer = bytearray(rest[length:])
        self.task = asyncio.get_running_loop().create_task(self.serve(lines[0], headers, body))
        self.task.add_done_callback(self.done)

    def done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        assert self.served is not None
        self.server.close_books(self.served)
        if not task.cancelled() and task.exception():
            self.transport.abort()
            print(repr(task.exception()))
        if self.buffer:
            self.data_received(b"")

    def write(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        assert self.served is not None
        self.served.status = status
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def pieces(self, data: list[bytes], slowly: bool) -> None:
        """Chunked transfer; slowly is byte by byte, each in a write of its own."""
        for piece in data:
            parts = [piece[i : i + 1] for i in range(len(piece))] if slowly else [piece]
            for part in parts:
                self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
                await asyncio.sleep(0)

    async def serve(self, line: str, headers: dict[str, str], body: Body) -> None:
        server = self.server
        target = urlsplit(line.split(" ")[1])
        found = spoken(target.path, body)
        dialect, chat = found or (Dialect(), body)
        model, _, spec = str(chat.get("model", "")).partition("+")
        served = self.served = Served(model, body, headers, self.number, chat, wordless=dialect.wordless)
        server.served.append(served)
        server.tell()
        if server.fault:
            spec = f"{spec}+{server.fault(chat)}"
        faults = server.faults(chat, model, spec) if spec else {}
        if wait := server.delay + float(faults.get("delay", 0)) / 1000:
            await asyncio.sleep(wait)
        if found is None:
            faults = {"404": ""}
        if "close" in faults:
            self.transport.close()
            return
        if "hang" in faults:
            await asyncio.Event().wait()
        for name, (status, code) in ERRORS.items():
            if name in faults:
                extra = {"retry_after": server.retry_after} if status in (429, 503) else {}
                self.write(status, json.dumps(dialect.error(status, name, code)).encode(), **extra)
                served.finished = True
                return
        if "html" in faults or "garbage" in faults:
            text = b"<html><body>Sign in</body></html>" if "html" in faults else b'{"x": [1, 2'
            self.write(200, text, "text/html" if "html" in faults else "application/json")
            served.finished = True
            return
        whole = server.completion(chat, model, faults)
        usage = whole.get("usage") or {}
        served.input = usage.get("prompt_tokens", 0)
        if not dialect.wordless:
            served.output, (served.cached, served.reasoning) = usage.get("completion_tokens", 0), parts(usage)
        if "nousage" in faults:
            whole.pop("usage", None)
        if "badusage" in faults:
            whole["usage"] = {"prompt_tokens": -3, "completion_tokens": "many"}
        if body.get("stream") or "stream" in target.path:
            await self.stream(list(dialect.frames(whole, chat)), faults, dialect.broken())
        else:
            await self.plain(dialect.whole(whole, chat), faults)

    async def plain(self, whole: Body, faults: Mapping[str, str]) -> None:
        assert self.served is not None
        data = json.dumps(whole).encode()
        zipped = {"content_encoding": "gzip"} if "gzip" in faults else {}
        data = gzip.compress(data) if zipped else data
        if not faults.keys() & {"cut", "hangmid", "trickle"}:
            self.write(200, data, openai_processing_ms="7", **zipped)
        else:
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            self.served.status = 200
            self.transport.write(head.encode() + data[: len(data) // 2])
            if "hangmid" in faults:
                await asyncio.Event().wait()
            if "cut" in faults:
                self.transport.close()
                return
            for byte in data[len(data) // 2 :]:
                self.transport.write(bytes([byte]))
                await asyncio.sleep(0)
        self.served.words, self.served.finished = self.served.output, True

    async def stream(self, frames: list[Frame], faults: Mapping[str, str], broken: str) -> None:
        served = self.served
        assert served is not None
        served.status = 200
        zip = zlib.compressobj(wbits=31) if "gzip" in faults else None
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        self.transport.write((head + ("content-encoding: gzip\r\n" if zip else "") + "\r\n").encode())
        *rest, last = frames
        half = len(rest) // 2
        for i, (text, word) in enumerate(rest):
            data = (broken if i == half and "error" in faults else text).encode()
            data = zip.compress(data) + zip.flush(zlib.Z_SYNC_FLUSH) if zip else data
            if i == half and "cut" in faults:
                await self.pieces([data[: len(data) // 2]], False)
                self.transport.close()
                return
            await self.pieces([data], "trickle" in faults)
            served.words += word
            if i == half and faults.keys() & {"hangmid", "error"}:
                self.server.tell()
                if "hangmid" in faults:
                    await asyncio.Event().wait()
                break
        else:
            data = last[0].encode() if "nodone" not in faults else b""
            data = zip.compress(data) + zip.flush() if zip else data
            await self.pieces([data] if data else [], False)
            served.finished = True
        self.transport.write(b"0\r\n\r\n")


@contextmanager
def serve(**options: Any) -> Iterator[Server]:
    """Serve on a free port, from a thread of its own; options are Server's."""
    server, loop, ready, stop = Server(**options), asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    def run() -> None:
        loop.run_until_complete(listen(server, ready.set, stop))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def listen(server: Server, ready: Callable[[], object], stop: asyncio.Event) -> None:
    """Until `stop`."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: Connection(server), "127.0.0.1", server.port, backlog=1024, ssl=server.tls
    )
    server.port = listening.sockets[0].getsockname()[1]
    ready()
    await stop.wait()
    listening.close()
    while server.open:  # some may have been on their way in
        for one in list(server.alive):
            one.transport.abort()
        await asyncio.sleep(0)
    if server._book is not None:
        os.close(server._book)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bill", help="file to add a line of JSON to for each request that ended")
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds before every answer")
    given = parser.parse_args()
    alone = Server(port=given.port, books=given.bill, delay=given.delay / 1000)
    asyncio.run(listen(alone, lambda: print(alone.url, flush=True), asyncio.Event()))
