"""A reverse proxy on this machine that watches the calls of clients in other processes, and passes on what they say."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from secrets import compare_digest, token_urlsafe
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote, unquote, urlsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from playcall.strategies.call import Call
from playcall.strategies.dialects import Asked, Reading, asked, billed
from playcall.strategies.errors import Misuse
from playcall.strategies.ledger import Ledger
from playcall.strategies.prices import Price
from playcall.strategies.transport import LARGE, Wire, environment_proxy, tls

GRACE = 1.0  # seconds at the end for requests that are still on their way
HEADER = "x-playcall-"
_LONGEST = 1 << 16  # bytes of a request's first line, and of each header
_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
_HOP |= {"transfer-encoding", "upgrade"}
_ASKING = {"host", "content-length", "accept-encoding", "content-encoding", "expect"}
_PLAIN = re.compile(r"[\w.:-]+", re.ASCII)
_PATH = re.compile(
    r"/(?:~|%7[Ee])(?P<token>[^/]*)/(?P<n>https?/[^/?]+|\d+)(?:/(?P<of>(?:arm|item|role)=[^/?]*))?(?P<rest>[/?].*)?"
)


@dataclass(frozen=True)
class Attribution:
    """Whose calls these are."""

    arm: str = ""
    item: str = ""
    role: str = ""

    def told(self, pairs: Mapping[str, str]) -> Attribution:
        """The same where nothing else is said."""
        return replace(self, **{name: value for name in ("arm", "item", "role") if (value := pairs.get(name))})


class Reverse:
    """Stands for vendors' base URLs while it is open: `async with Reverse() as proxy: proxy.url("https://api...")`.

    What clients send to such a URL goes to the vendor, and what comes back goes to them as it comes; `calls` are the
    model calls among it that have ended. `models` are the models to be asked instead, by role or by the name that is
    asked for. `prices` are by model; others are the price map's. `first_token` and `sent` are of `time.monotonic`.
    Only who knows a URL of it can use it. Raises Misuse where an upstream is no URL.
    """

    def __init__(
        self,
        *,
        arm: str = "",
        item: str = "",
        models: Mapping[str, str] | None = None,
        prices: Mapping[str, Price | Literal["free"]] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.whose, self.models, self.prices, self.ledger = Attribution(arm, item), models or {}, prices or {}, ledger
        self.calls: list[Call] = []  # those that have ended, in that order
        self.others = 0  # requests that were no model calls
        self._token, self._upstreams, self._port = token_urlsafe(18), list[str](), 0
        if self.models:
            self._token += "."  # what is asked here may be answered by another model: clients' caches are not to know

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=0)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=GRACE,
            max_line_size=_LONGEST,
            max_field_size=_LONGEST,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls(Wire(trust_env=True))),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            max_line_size=_LONGEST,
            max_field_size=_LONGEST,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    @property
    def root(self) -> str:
        """For clients set by hand: `{root}/https/host/path` stands for `https://host/path`."""
        return f"http://127.0.0.1:{self._port}/~{self._token}"

    def url(self, upstream: str, *, arm: str = "", item: str = "", role: str = "") -> str:
        """The base URL that stands for an upstream's, for calls of this arm, item and role."""
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misuse(f"a base URL is http(s)://host[:port]/path; there is {parts.hostname!r}.")
        origin, named = f"{parts.scheme}://{parts.netloc}", f"{parts.scheme}/{parts.netloc}"
        if not _PLAIN.fullmatch(parts.netloc):  # it may hold a password
            if origin not in self._upstreams:
                self._upstreams.append(origin)
            named = str(self._upstreams.index(origin))
        pairs = {"arm": arm, "item": item, "role": role}
        whose = ";".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items() if value)
        query = f"?{parts.query}" if parts.query else ""
        return f"{self.root}/{named}{f'/{whose}' if whose else ''}{parts.path.rstrip('/')}{query}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._runner.server.connections) if self._runner.server else 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """One request: refused, passed on, or watched."""
        found = _PATH.fullmatch(request.raw_path)
        if found is None or not compare_digest(found["token"].encode(), self._token.encode()):
            return _refusal(403, "this is playcall's proxy of another session; use the base URLs of its environment.")
        if not (origin := self._origin(found["n"])):
            return _refusal(404, f"there is no upstream {found['n']}.")
        pairs = [pair.partition("=") for pair in (found["of"] or "").split(";")]
        whose = self.whose.told({name: unquote(value) for name, _, value in pairs})
        headers = {name: request.headers.get(f"{HEADER}{name}", "") for name in ("arm", "item", "role")}
        content, target = await request.read(), found["rest"] or "/"
        one = asked(request.method, origin + target, request.headers, content)
        if one is None:
            self.others += 1
            return await _Passing(self._session, request, origin + target, content).passed()
        return await self._watched(request, origin, one, whose.told(headers))

    def _origin(self, n: str) -> str:
        if n.isdecimal():
            return self._upstreams[int(n)] if int(n) < len(self._upstreams) else ""
        try:
            return origin if URL(origin := n.replace("/", "://", 1)).host else ""
        except ValueError:
            return ""

    async def _watched(self, request: web.Request, origin: str, one: Asked, whose: Attribution) -> web.StreamResponse:
        role = one.model if one.model in self.models else whose.role or one.model
        one = one.renamed(self.models.get(role, one.model))
        call = Call(whose.arm, one.model, None, None, 0, {}, stream=one.stream)
        call.run, call.node, call.role, call.began, call.sent = whose.item, "track", role, time.time(), time.monotonic()
        try:
            try:
                return await self._asked(request, origin, one, call)
            except _Unasked:
                return await self._asked(request, origin, one.unasked(), call)
        finally:
            call.seconds = time.monotonic() - call.sent
            billed(call, one, self.prices.get(call.model))
            self.calls.append(call)
            if self.ledger is not None:
                self.ledger.add(call, provider=one.host, prompt_hash=hashlib.sha256(one.content).hexdigest())

    async def _asked(self, request: web.Request, origin: str, one: Asked, call: Call) -> web.StreamResponse:
        return await _Passing(self._session, request, origin + one.target, one.content, Reading(one, call)).passed()


class _Unasked(Exception):
    """The server does not let itself be asked for usage."""


class _Left(Exception):
    """The client has gone."""


class _Passing:
    """A request on its way to an upstream, and what comes back."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        request: web.Request,
        url: str,
        content: bytes,
        reading: Reading | None = None,
    ) -> None:
        self.session, self.request, self.url, self.content, self.reading = session, request, url, content, reading
        self.response: web.StreamResponse | None = None

    async def passed(self) -> web.StreamResponse:
        error: BaseException | None = None
        try:
            return await self._pass()
        except _Left:
            return self.response or web.Response()
        except (aiohttp.ClientError, OSError) as broken:
            error = broken
            if self.response is None:
                host = urlsplit(self.url).netloc.rpartition("@")[2]
                why = f"the connection to {host} failed: {type(broken).__name__}."
                if isinstance(broken, aiohttp.ClientConnectorCertificateError):
                    why += " If you trust it, set SSL_CERT_FILE to a file with its certificate, before playcall starts."
                return _refusal(502, why)
            if self.request.transport is not None:
                self.request.transport.close()  # without an end, so that the client sees that it broke
            return self.response
        except BaseException as broken:
            error = broken
            raise
        finally:
            if self.reading is not None:
                self.reading.left(error)  # means nothing if it has come to its end

    async def _pass(self) -> web.StreamResponse:
        url, reading = URL(self.url, encoded=True), self.reading
        headers = _passed_on(self.request.headers, _ASKING)
        headers["Accept-Encoding"] = "identity"
        url = url.with_user(None) if "Authorization" in headers else url
        data = BytesIO(self.content) if len(self.content) >= LARGE else self.content
        proxy = environment_proxy(url.scheme, url.host or "")
        async with self.session.request(
            self.request.method, url, headers=headers, data=data or None, proxy=proxy, allow_redirects=False
        ) as got:
            hiding = reading is not None and reading.asked.hides_usage
            refused = await got.read() if hiding and got.status in (400, 422) else b""
            if b"stream_options" in refused:
                self.reading = None
                raise _Unasked
            changed = hiding or "content-encoding" in got.headers
            drop = {"content-encoding", "content-length"} if changed else set()
            self.response = web.StreamResponse(
                status=got.status, reason=got.reason, headers=_passed_on(got.headers, drop)
            )
            if reading is not None:
                reading.begin(got.status, got.headers)
            with _leaving():
                await self.response.prepare(self.request)
            await self._write(reading.feed(refused) if reading is not None else b"")
            async for chunk in got.content.iter_any():
                await self._write(reading.feed(chunk) if reading is not None else chunk)
        if reading is not None:
            await self._write(reading.end())
        with _leaving():
            await self.response.write_eof()
        return self.response

    async def _write(self, seen: bytes) -> None:
        if seen and self.response is not None:
            with _leaving():
                await self.response.write(seen)


@contextmanager
def _leaving() -> Iterator[None]:
    """A client that cannot be written to has left."""
    try:
        yield
    except (OSError, aiohttp.ClientError) as error:
        raise _Left from error


def _passed_on(headers: Mapping[str, str], drop: Collection[str]) -> CIMultiDict[str]:
    """The headers that are for the other end."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    gone = {*_HOP, *named, *drop}
    kept = ((name, value) for name, value in headers.items() if name.lower() not in gone)
    return CIMultiDict((name, value) for name, value in kept if not name.lower().startswith(HEADER))


def _refusal(status: int, why: str) -> web.Response:
    return web.json_response({"error": {"message": f"playcall: {why}", "type": "playcall_proxy"}}, status=status)
