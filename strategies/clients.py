"""How each HTTP client sends, so that a track sees it: httpx and httpx2, aiohttp, requests."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from io import BytesIO
from types import ModuleType
from typing import Any

from playcall.strategies.dialects import likely
from playcall.strategies.replies import Body, Sent, quiet, sending, told, watched

Function = Callable[..., Any]


class _Tap:
    """The stream of an httpx response, as its client is to see it."""

    def __init__(self, sent: Sent, inner: Any) -> None:
        self._sent, self._inner = sent, inner
        self._chunks: Any = None

    def __iter__(self) -> Iterator[bytes]:
        return self._sent.through(self._inner)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._inner)
        return self

    async def __anext__(self) -> bytes:
        return await self._sent.following(self._chunks)

    def close(self) -> None:
        self._sent.left()
        self._inner.close()

    async def aclose(self) -> None:
        self._sent.left()
        await self._inner.aclose()

    @property
    def elapsed(self) -> timedelta | None:
        found: timedelta | None = getattr(self._inner, "elapsed", None)
        return found


class _Httpx:
    """Client.send and AsyncClient.send of httpx, or of httpx2."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        bases = (_Tap, module.SyncByteStream, module.AsyncByteStream)
        self.tap: Function = type("Tap", bases, {})

    def may(self, request: Any, stream: type) -> bool:
        """Whether it can be a model call whose body can be read, as far as can be told without: a stream of the right
        kind is read where its path is one of model calls, and nowhere else."""
        if not watched() or request.method != "POST" or not told(request.headers):
            return False
        with suppress(self.module.RequestNotRead):
            return request.content is not None
        return isinstance(request.stream, stream) and likely(request.method, str(request.url))

    def sent(self, request: Any) -> Sent | None:
        return sending(request.method, str(request.url), request.headers, request.content)

    def changed(self, request: Any, sent: Sent) -> Any:
        """The request as it is to be sent."""
        content, headers, url = sent.asked.content, request.headers.copy(), request.url
        headers.pop("transfer-encoding", None)
        headers.update({"accept-encoding": "identity", "content-length": str(len(content))})
        if sent.moved:
            url = url.copy_with(raw_path=sent.asked.target.encode())
        return self.module.Request(request.method, url, headers=headers, content=content, extensions=request.extensions)

    def replayed(self, request: Any, sent: Sent) -> Any:
        status, headers, body = sent.replay()
        response = self.module.Response(status, headers=headers, stream=self.tap(sent, Body(body)), request=request)
        response.elapsed = timedelta(seconds=sent.call.original or 0.0)
        return response

    def tapped(self, response: Any, sent: Sent, stream: bool) -> Any:
        body = None
        with suppress(self.module.ResponseNotRead):
            body = response.content
        sent.begin(response.status_code, response.headers, decode=body is None, sent=response.request.headers)
        if body is not None:  # a hook has read it, or it was never a stream
            sent.feed(body)
            sent.end()
        elif response.is_stream_consumed:
            sent.left()
        else:
            for name in ("content-encoding", "content-length") if sent.decoded else ():
                response.headers.pop(name, None)
            response.stream = self.tap(sent, response.stream)
            sent.handed(stream)
        return response

    def send(self, original: Function) -> Function:
        @functools.wraps(original)
        def send(client: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            sent = None
            if self.may(request, self.module.SyncByteStream):
                request.read()
                sent = self.sent(request)
            if sent is None:
                with quiet():
                    return original(client, request, stream=stream, **options)
            sent.claim(request.extensions.get("timeout", {}).get("read"))
            if sent.kept is None:
                with sent.going():
                    response = original(client, self.changed(request, sent), stream=True, **options)
                    if sent.doubtful(response.status_code) and sent.refused(response.status_code, response.read()):
                        response = original(client, self.changed(request, sent), stream=True, **options)
                response = self.tapped(response, sent, stream)
            else:
                response = self.replayed(request, sent)
            if not stream:
                try:
                    response.read()
                except BaseException:
                    response.close()
                    raise
            return response

        return send

    def asend(self, original: Function) -> Function:
        @functools.wraps(original)
        async def send(client: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            sent = None
            if self.may(request, self.module.AsyncByteStream):
                await request.aread()
                sent = self.sent(request)
            if sent is None:
                with quiet():
                    return await original(client, request, stream=stream, **options)
            await sent.aclaim(request.extensions.get("timeout", {}).get("read"))
            if sent.kept is None:
                with sent.going():
                    response = await original(client, self.changed(request, sent), stream=True, **options)
                    status = response.status_code
                    if sent.doubtful(status) and sent.refused(status, await response.aread()):
                        response = await original(client, self.changed(request, sent), stream=True, **options)
                response = self.tapped(response, sent, stream)
            else:
                response = self.replayed(request, sent)
            if not stream:
                try:
                    await response.aread()
                except BaseException:
                    await response.aclose()
                    raise
            return response

        return send


class _Aiohttp:
    """ClientSession._request."""

    def __init__(self, module: ModuleType) -> None:
        self.module: Any = module

        class Tapped(self.module.StreamReader):  # type: ignore[misc,name-defined]
            """Fed from another reader, as its reader asks."""

            def __init__(self, sent: Sent, source: Any, loop: Any) -> None:
                super().__init__(module.client_proto.ResponseHandler(loop), 2**30, loop=loop)
                self._sent, self._source = sent, source

            async def _wait(self, func_name: str) -> None:
                try:
                    chunk = await self._source.readany()
                except Exception as error:  # who cancels a read may read on
                    self._sent.left(error)
                    raise
                if chunk:
                    self.feed_data(self._sent.feed(chunk))
                else:
                    self.feed_data(self._sent.end())
                    self.feed_eof()

            def set_exception(self, *args: Any) -> None:
                self._sent.left()
                super().set_exception(*args)

        self.tapped = Tapped

    def content(self, session: Any, data: Any, json: Any) -> bytes | None:
        """The body, where it is one that can be JSON."""
        if json is not None and data is None:
            data = (getattr(session, "_json_serialize_bytes", None) or session._json_serialize)(json)
        if isinstance(data, BytesIO):
            data = data.getvalue()
        data = data.encode() if isinstance(data, str) else data
        return bytes(data) if isinstance(data, bytes | bytearray) else None

    def replayed(self, session: Any, method: str, url: Any, headers: Any, sent: Sent) -> Any:
        """A response of aiohttp's own class."""
        from inspect import signature
        from types import SimpleNamespace

        from multidict import CIMultiDict, CIMultiDictProxy

        made, client = self.module.ClientResponse, self.module.client_reqrep
        given: dict[str, Any] = {
            "writer": None,
            "continue100": None,
            "timer": self.module.helpers.TimerNoop(),
            "request_info": client.RequestInfo(url, method, CIMultiDictProxy(headers), url),
            "traces": [],
            "loop": session._loop,
            "session": session,
            "stream_writer": SimpleNamespace(output_size=0),
        }
        response = session._response_class(
            method, url, **{k: v for k, v in given.items() if k in signature(made.__init__).parameters}
        )
        status, told_, body = sent.replay()
        response.status, response.reason, response.version = status, "OK", self.module.HttpVersion11
        response._headers = CIMultiDictProxy(CIMultiDict(told_))
        response._raw_headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in told_.items())
        return self.given(response, body, sent, session)

    def given(self, response: Any, body: bytes, sent: Sent, session: Any) -> Any:
        """A response whose body is there already."""
        source = self.module.StreamReader(self.module.client_proto.ResponseHandler(session._loop), 2**30)
        source.feed_data(body)
        source.feed_eof()
        response._body, response.content = None, self.tapped(sent, source, session._loop)
        return response

    def patience(self, session: Any, options: dict[str, Any]) -> float | None:
        given = options.get("timeout") or session.timeout
        limits = (getattr(given, "total", given), getattr(given, "sock_read", None))
        return min((each for each in limits if isinstance(each, int | float) and each), default=None)

    def request(self, original: Function) -> Function:
        @functools.wraps(original)
        async def _request(session: Any, method: str, str_or_url: Any, **options: Any) -> Any:
            from multidict import CIMultiDict
            from yarl import URL

            given, sent = CIMultiDict(options.get("headers") or {}), None
            if watched() and (content := self.content(session, options.get("data"), options.get("json"))):
                with suppress(ValueError):  # no URL: the client says so
                    url = session._build_url(str_or_url).extend_query(options.get("params") or {})
                    sent = sending(method, str(url), {**session.headers, **given}, content)
            if sent is None:
                with quiet():
                    return await original(session, method, str_or_url, **options)
            await sent.aclaim(self.patience(session, options))
            if sent.kept is not None:
                return self.replayed(session, method.upper(), url, given, sent)
            if options.pop("json", None) is not None:
                given.setdefault("Content-Type", "application/json")
            given.popall("Content-Length", None)
            given["Accept-Encoding"] = "identity"
            if sent.moved:
                options.pop("params", None)
                str_or_url = URL(f"{url.scheme}://{url.raw_authority}{sent.asked.target}", encoded=True)
            body = None
            with sent.going():
                options = {**options, "data": sent.asked.content, "headers": given}
                response = await original(session, method, str_or_url, **options)
                if sent.doubtful(response.status):
                    body = await response.read()
                    if sent.refused(response.status, body):
                        options["data"], body = sent.asked.content, None
                        response = await original(session, method, str_or_url, **options)
            plain = session.auto_decompress or body is not None
            sent.begin(response.status, response.headers, decode=not plain, sent=response.request_info.headers)
            if body is not None:
                return self.given(response, body, sent, session)
            response.content = self.tapped(sent, response.content, session._loop)
            sent.handed(sent.asked.stream)
            return response

        return _request


class _Raw:
    """The raw body of a requests response, decompressed."""

    def __init__(self, sent: Sent, inner: Any) -> None:
        self._sent, self._inner = sent, inner
        self._chunks: Iterator[bytes] | None = None
        self._left = b""

    def stream(self, amt: int | None = 65536, decode_content: bool | None = None) -> Iterator[bytes]:
        return self._sent.through(self._inner.stream(amt, decode_content=True))

    def read(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        if self._chunks is None:
            self._chunks = self.stream()
        while amt is None or len(self._left) < amt:
            if (chunk := next(self._chunks, None)) is None:
                break
            self._left += chunk
        found, self._left = (self._left, b"") if amt is None else (self._left[:amt], self._left[amt:])
        return found

    def close(self) -> None:
        self._sent.left()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Requests:
    """Session.send."""

    def __init__(self, module: ModuleType) -> None:
        self.module: Any = module

    def sent(self, request: Any) -> Sent | None:
        body = getattr(request, "body", None)
        content = body.encode() if isinstance(body, str) else body
        if not watched() or not isinstance(content, bytes):
            return None
        headers = {name: v.decode("latin-1") if isinstance(v, bytes) else v for name, v in request.headers.items()}
        return sending(request.method or "", request.url or "", headers, content)

    def replayed(self, session: Any, request: Any, sent: Sent) -> Any:
        status, headers, body = sent.replay()
        raw = self.module.packages.urllib3.HTTPResponse(
            BytesIO(b""), headers=headers, status=status, reason="OK", preload_content=False
        )
        response = session.get_adapter(url=request.url).build_response(request, raw)
        response.raw = _Raw(sent, Body(body))
        response.elapsed = timedelta(seconds=sent.call.original or 0.0)
        return response

    def changed(self, request: Any, sent: Sent) -> Any:
        changed = request.copy()
        changed.body = sent.asked.content
        changed.headers.update({"Content-Length": str(len(changed.body)), "Accept-Encoding": "identity"})
        if sent.moved:
            changed.url = self.module.compat.urljoin(request.url, sent.asked.target)
        return changed

    def send(self, original: Function) -> Function:
        @functools.wraps(original)
        def send(session: Any, request: Any, **options: Any) -> Any:
            if (sent := self.sent(request)) is None:
                with quiet():
                    return original(session, request, **options)
            stream, patience = options.get("stream", session.stream), options.get("timeout")
            patience = patience[1] if isinstance(patience, tuple) else patience
            sent.claim(patience if isinstance(patience, int | float) else None)
            if sent.kept is None:
                with sent.going():
                    response = original(session, self.changed(request, sent), **{**options, "stream": True})
                    if sent.doubtful(response.status_code) and sent.refused(response.status_code, response.content):
                        response = original(session, self.changed(request, sent), **{**options, "stream": True})
                sent.begin(response.status_code, response.headers, sent=response.request.headers)
                if response._content_consumed:  # by a hook of the user's
                    sent.feed(response.content or b"")
                    sent.end()
                else:
                    response.raw = _Raw(sent, response.raw)
                    sent.handed(stream)
            else:
                response = self.replayed(session, request, sent)
            if not stream:
                _ = response.content
            return response

        return send


Patch = tuple[type, str, Callable[[Function], Function]]  # a class, its attribute, and what stands in for it


def patches(name: str, module: ModuleType) -> list[Patch]:
    """Of a client that is imported whole; none if it is not."""
    try:
        if name == "aiohttp":
            return [(module.ClientSession, "_request", _Aiohttp(module).request)]
        if name == "requests":
            return [(module.Session, "send", _Requests(module).send)]
        made = _Httpx(module)
        return [(module.Client, "send", made.send), (module.AsyncClient, "send", made.asend)]
    except AttributeError:
        return []


CLIENTS = ("httpx", "httpx2", "aiohttp", "requests")
