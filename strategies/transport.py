"""The wire: one method that sends one request, on aiohttp (asyncio) or httpx (trio, or a client of the user's own)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.lowlevel import RunVar

from playcall.strategies.call import CallFailed, Failure
from playcall.strategies.signal import on_asyncio

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

FOREVER = 1e9  # seconds
CONNECT = 10.0  # seconds that a connection and its handshake may take: a host that is away says nothing at all
LARGE = 1 << 20  # bytes; aiohttp warns of a larger body, unless it reads it from a file


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: the head at once, the body when it is asked for, once."""

    status: int
    headers: Mapping[str, str]  # by name, in whatever case
    read: Callable[[], Awaitable[bytes]]
    chunks: Callable[[], AsyncIterator[bytes]]  # the body as it comes, cut anywhere


class Transport(Protocol):
    """Sends one POST. To leave the context before the body's end closes the connection at once; after it, the
    connection is used again. Raises CallFailed: CONNECTION before the answer's head, CUT after it, TIMEOUT."""

    def send(
        self, url: str, *, headers: Mapping[str, str], content: bytes, timeout: float
    ) -> AbstractAsyncContextManager[Response]:
        """`timeout` is in seconds, from here to the end of the body."""
        ...


@dataclass(frozen=True)
class Wire:
    """How to connect, in httpx's terms; equal ones share their connections."""

    proxy: str | None = None
    verify: SSLContext | str | bool = True  # a string is a file or folder of certificates to trust
    cert: str | tuple[str, str] | tuple[str, str, str] | None = None  # the client's: file, key file, password
    trust_env: bool = False  # SSL_CERT_FILE and SSL_CERT_DIR


@lru_cache(64)
def tls(wire: Wire) -> SSLContext:
    """Its certificates; raises OSError where they cannot be read."""
    import ssl

    import httpx

    if isinstance(wire.verify, str):
        file, folder = (None, wire.verify) if Path(wire.verify).is_dir() else (wire.verify, None)
        context = ssl.create_default_context(cafile=file, capath=folder)
    else:
        context = httpx.create_ssl_context(wire.verify, trust_env=wire.trust_env)
    if wire.cert:
        context.load_cert_chain(*((wire.cert,) if isinstance(wire.cert, str) else wire.cert))
    return context


def environment_proxy(scheme: str, host: str) -> str | None:
    """What HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say of a host."""
    from urllib.request import getproxies, proxy_bypass

    found = getproxies()
    return None if proxy_bypass(host) else found.get(scheme) or found.get("all")


_AWAY = ConnectionError("the host does not answer")


def _failed(error: Exception, head: object) -> CallFailed:
    failure = Failure.TIMEOUT if isinstance(error, TimeoutError) else Failure.CUT if head else Failure.CONNECTION
    return CallFailed(failure, f"{type(error).__name__}: {error}".split(": <")[0].rstrip(": "))


class AiohttpTransport:
    """On asyncio, by far the cheapest a call."""

    def __init__(self, wire: Wire) -> None:
        import aiohttp

        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls(wire)),
            cookie_jar=aiohttp.DummyCookieJar(),  # tenants share the connections
            proxy=wire.proxy,
        )
        self.errors, self.timeout = (aiohttp.ClientError, TimeoutError), lru_cache(64)(aiohttp.ClientTimeout)
        self.away = aiohttp.ServerTimeoutError  # of CONNECT, not of the whole

    @asynccontextmanager
    async def send(
        self, url: str, *, headers: Mapping[str, str], content: bytes, timeout: float
    ) -> AsyncGenerator[Response]:
        raw = None
        try:
            data = content if len(content) < LARGE else BytesIO(content)
            total = max(timeout, 1e-6) if timeout < FOREVER else None  # 0 would be none
            limit = self.timeout(total=total, sock_connect=CONNECT)
            raw = await self.session.post(url, headers=headers, data=data, timeout=limit, allow_redirects=False)
            yield Response(raw.status, raw.headers, raw.read, raw.content.iter_any)
        except self.away as error:
            raise _failed(_AWAY, raw) from error
        except self.errors as error:
            raise _failed(error, raw) from error
        finally:
            if raw:
                raw.close()  # after the body's end the connection is no longer its own

    async def aclose(self) -> None:
        await self.session.close()


class HttpxTransport:
    """On trio, through SOCKS, and with a client that the user brings: that one keeps its own time-outs too."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        import httpx

        class Body(httpx.AsyncByteStream):
            """Not an async generator: trio warns of those that a failed write leaves behind."""

            def __init__(self, content: bytes) -> None:
                self.content = content

            def __aiter__(self) -> AsyncIterator[bytes]:
                self.left = [self.content]
                return self

            async def __anext__(self) -> bytes:
                if not self.left:
                    raise StopAsyncIteration
                return self.left.pop()

        self.client, self.body = client, Body
        self.errors = (httpx.TransportError, httpx.DecodingError, httpx.StreamError)
        self.slow, self.away = httpx.TimeoutException, httpx.ConnectTimeout
        usual = httpx.Timeout(None, connect=CONNECT)
        self.timeout = usual if client.timeout == httpx.Timeout(5.0) else client.timeout  # 5 s is nobody's choice

    @asynccontextmanager
    async def send(
        self, url: str, *, headers: Mapping[str, str], content: bytes, timeout: float
    ) -> AsyncGenerator[Response]:
        raw = None
        try:
            with anyio.fail_after(timeout):
                request = self.client.build_request("POST", url, headers=headers, content=content, timeout=self.timeout)
                request.stream = self.body(content)
                raw = await self.client.send(request, stream=True, follow_redirects=False)
                body = raw.aiter_bytes()
                try:
                    yield Response(raw.status_code, raw.headers, raw.aread, lambda: body)
                finally:
                    # It nests async generators, which trio wants ended, not dropped: cancelling the next read ends all.
                    with suppress(*self.errors), anyio.CancelScope() as scope:
                        scope.cancel()
                        async for _ in body:
                            pass
                    await raw.aclose()
        except self.away as error:
            raise _failed(_AWAY, raw) from error
        except (self.slow, TimeoutError) as error:
            raise _failed(TimeoutError(str(error)), raw) from error
        except self.errors as error:
            raise _failed(error, raw) from error

    async def aclose(self) -> None:
        await self.client.aclose()


def _httpx(wire: Wire) -> HttpxTransport:
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=15.0)
    none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # tenants share the connections
    return HttpxTransport(
        httpx.AsyncClient(verify=tls(wire), proxy=wire.proxy, limits=limits, cookies=none, trust_env=False)
    )


Pooled = AiohttpTransport | HttpxTransport
_POOLS: RunVar[dict[Wire, tuple[AsyncGenerator[Pooled], Pooled]]] = RunVar("playcall_pools")


async def _owner(wire: Wire, pools: dict[Wire, tuple[AsyncGenerator[Pooled], Pooled]]) -> AsyncGenerator[Pooled]:
    """Event loops finalise what async generators are left when they end: that closes the connections."""
    socks = (wire.proxy or "").startswith("socks")
    pool: Pooled = AiohttpTransport(wire) if on_asyncio() and not socks else _httpx(wire)
    try:
        yield pool
    finally:
        pools.pop(wire, None)  # it would keep the loop itself alive
        await pool.aclose()


async def transport(wire: Wire) -> Transport:
    """What all with the same options on this event loop share; it is closed when the loop ends."""
    pools = _POOLS.get(None)
    if pools is None:
        _POOLS.set(pools := {})
    if (found := pools.get(wire)) is None:
        owner = _owner(wire, pools)
        pools[wire] = found = owner, await anext(owner)
    return found[1]
