"""What the wire owes: closed at once when left, used again when read, and gone with its event loop."""

from __future__ import annotations

import gc
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import anyio
import httpx
import pytest

from playcall.strategies import transport as transports
from playcall.strategies.call import CallFailed, Failure
from playcall.strategies.signal import on_asyncio
from playcall.strategies.transport import (
    CONNECT,
    AiohttpTransport,
    HttpxTransport,
    Transport,
    Wire,
    environment_proxy,
    transport,
)

from ..serving import Server, serve

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
MESSAGES = '"messages": [{"role": "user", "content": "one two"}]'
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


def body(model: str, more: str = "") -> bytes:
    return f'{{"model": "{model}", {MESSAGES}{more}}}'.encode()


async def post(sender: Transport, server: Server, content: bytes, timeout: float = 5.0) -> bytes:
    url = f"{server.url}/chat/completions"
    async with sender.send(url, headers={"Content-Type": "application/json"}, content=content, timeout=timeout) as got:
        return await got.read()


def run(backend: str, main: Callable[[], Awaitable[object]]) -> None:
    anyio.run(main, backend=backend)
    gc.collect()


@both
def test_asyncio_gets_aiohttp_and_trio_gets_httpx(backend: str) -> None:
    async def main() -> None:
        kind = type(await transport(Wire()))
        assert kind is (AiohttpTransport if on_asyncio() else HttpxTransport)
        assert on_asyncio() == (backend == "asyncio")

    run(backend, main)


@both
def test_connections_are_used_again_and_shared_by_equal_options_only(backend: str, server: Server) -> None:
    async def main() -> None:
        assert await transport(Wire()) is await transport(Wire())
        assert await transport(Wire()) is not await transport(Wire(verify=False))
        for _ in range(5):
            await post(await transport(Wire()), server, body("x"))
            await post(await transport(Wire()), server, body("x+400"))
        assert server.connections == 1

    run(backend, main)
    assert server.until(lambda: not server.open)


@both
def test_there_are_as_many_connections_as_calls(backend: str, server: Server) -> None:
    async def main() -> None:
        sender = await transport(Wire())
        async with anyio.create_task_group() as group:
            for _ in range(150):
                group.start_soon(post, sender, server, body("x+hang"))
            assert await anyio.to_thread.run_sync(server.until, lambda: server.open == 150)
            group.cancel_scope.cancel()

    run(backend, main)
    assert server.until(lambda: not server.open)
    assert len(server.gone()) == 150


@both
@pytest.mark.parametrize("streamed", ["", ', "stream": true'], ids=["plain", "stream"])
@pytest.mark.parametrize("leave", ["cancel", "exit", "error"])
def test_leaving_amid_the_body_closes_the_connection_at_once(
    backend: str, server: Server, streamed: str, leave: str
) -> None:
    async def main() -> None:
        sender = await transport(Wire())
        url = f"{server.url}/chat/completions"
        with anyio.CancelScope() as scope:
            try:
                async with sender.send(url, headers={}, content=body("x+hangmid", streamed), timeout=9) as got:
                    chunks = got.chunks()
                    assert await anext(chunks)
                    if leave == "error":
                        raise KeyError
                    if leave == "cancel":
                        scope.cancel()
                        await anext(chunks)
            except KeyError:
                pass
        assert await anyio.to_thread.run_sync(server.until, server.gone, 0.1)
        assert not server.open

    run(backend, main)


@both
@pytest.mark.parametrize(
    ("model", "failure"),
    [
        ("x+close", Failure.CONNECTION),
        ("x+cut", Failure.CUT),
        ("x+hang", Failure.TIMEOUT),
        ("x+hangmid", Failure.TIMEOUT),
    ],
)
def test_what_goes_wrong_on_the_wire_is_typed(backend: str, server: Server, model: str, failure: Failure) -> None:
    async def main() -> None:
        with pytest.raises(CallFailed) as caught:
            await post(await transport(Wire()), server, body(model), timeout=0.02 if "hang" in model else 5)
        assert caught.value.failure is failure
        assert caught.value.failure.passing

    run(backend, main)
    assert server.until(lambda: not server.open)


@both
def test_nobody_at_the_port_is_a_passing_connection_error(backend: str) -> None:
    with serve() as gone:
        pass

    async def main() -> None:
        with pytest.raises(CallFailed) as caught:
            await post(await transport(Wire()), gone, body("x"))
        assert caught.value.failure is Failure.CONNECTION

    run(backend, main)


@both
def test_a_kept_connection_that_the_server_closed_is_at_worst_a_passing_error(backend: str) -> None:
    async def main() -> None:
        sender = await transport(Wire())
        for _ in range(3):
            with serve() as server:
                await post(sender, server, body("x"))
                port = server.port
            with serve(port=port) as again:
                try:
                    assert await post(sender, again, body("x"))
                except CallFailed as error:
                    assert error.failure is Failure.CONNECTION  # noqa: PT017

    run(backend, main)


@both
def test_a_body_of_megabytes_goes_out_without_a_warning(backend: str, server: Server) -> None:
    async def main() -> None:
        sent = body("x", f', "pad": "{"p" * 3_000_000}"')
        assert b"the answer is" in await post(await transport(Wire()), server, sent)

    run(backend, main)


def test_a_client_of_the_users_keeps_its_options_and_stays_open(server: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(headers={"X-Mine": "1"}, timeout=0.02) as client:
            sender = HttpxTransport(client)
            await post(sender, server, body("x"))
            with pytest.raises(CallFailed) as caught:
                await post(sender, server, body("x+hang"))
            assert caught.value.failure is Failure.TIMEOUT
            assert not client.is_closed
        assert HttpxTransport(httpx.AsyncClient()).timeout == httpx.Timeout(None, connect=CONNECT)

    anyio.run(main)
    assert server.served[0].headers["x-mine"] == "1"


def test_socks_goes_through_httpx() -> None:
    async def main() -> None:
        with pytest.raises(ImportError, match="socks"):  # httpx[socks] is the user's to install
            await transport(Wire(proxy="socks5://127.0.0.1:1"))

    anyio.run(main)


@both
def test_requests_go_through_a_proxy(backend: str, server: Server) -> None:
    async def main() -> None:
        sender = await transport(Wire(proxy=f"http://127.0.0.1:{server.port}"))
        async with sender.send("http://far.invalid/v1/x", headers={}, content=body("x"), timeout=5) as got:
            assert got.status == 404  # the test server's word on a path that names another host
        assert server.served[0].headers["host"] == "far.invalid"

    run(backend, main)


def test_the_environments_proxies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("https_proxy", "http://p:1")
    monkeypatch.setenv("no_proxy", "near.example")
    assert environment_proxy("https", "far.example") == "http://p:1"
    assert environment_proxy("https", "near.example") is None
    assert environment_proxy("http", "far.example") is None


def test_certificates_are_loaded_once_for_equal_options() -> None:
    import certifi

    from playcall.strategies.transport import tls

    assert tls(Wire()) is tls(Wire())
    assert tls(Wire(verify=False)).verify_mode is ssl.CERT_NONE
    assert tls(Wire(verify=certifi.where())).verify_mode is ssl.CERT_REQUIRED
    mine = ssl.create_default_context()
    assert tls(Wire(verify=mine)) is mine


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a key, and a certificate of 127.0.0.1 that signs itself."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("needs openssl to make a certificate")
    file = str(tmp_path_factory.mktemp("tls") / "both.pem")
    how = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x -addext"
    command = [openssl, *how.split(), "subjectAltName=IP:127.0.0.1", "-keyout", file, "-out", file + "c"]
    subprocess.run(command, check=True, capture_output=True)
    Path(file).write_text(Path(file).read_text() + Path(file + "c").read_text())
    return file


@both
def test_certificates_are_checked_and_shown_as_asked(backend: str, pem: str) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    tls.load_verify_locations(pem)

    async def passes(wire: Wire) -> bool:
        try:
            return bool(await post(await transport(wire), server, body("x")))
        except CallFailed as error:
            assert error.failure in (Failure.CONNECTION, Failure.CUT)  # noqa: PT017
            return False

    async def main() -> None:
        assert not await passes(Wire())
        assert await passes(Wire(verify=pem)) == await passes(Wire(verify=False)) == (not strict)
        assert await passes(Wire(verify=pem, cert=pem))
        assert await passes(Wire(verify=pem, cert=(pem, pem)))

    for strict in (False, True):
        tls.verify_mode = ssl.CERT_REQUIRED if strict else ssl.CERT_NONE
        with serve(tls=tls) as server:
            run(backend, main)


@both
@pytest.mark.parametrize(("seconds", "comes"), [(0.0, False), (-1.0, False), (float("inf"), True)])
def test_no_time_left_is_a_time_out_and_all_time_is_none(
    backend: str, server: Server, seconds: float, comes: bool
) -> None:
    async def main() -> None:
        try:
            assert bool(await post(await transport(Wire()), server, body("x"), seconds)) == comes
        except CallFailed as error:
            assert (error.failure, comes) == (Failure.TIMEOUT, False)  # noqa: PT017

    run(backend, main)


@both
def test_loops_one_after_another_leave_nothing_open(backend: str, server: Server) -> None:
    """Under -W error and asyncio's debug mode; also after streams that were left or cancelled."""
    script = f"""
        import asyncio, gc, sys, weakref, anyio
        from playcall.strategies.transport import Wire, transport
        body = b'{{"model": "x+%s", {MESSAGES}, "stream": true}}'
        sys.unraisablehook = lambda found: (print("unraisable", found), sys.stdout.flush())
        loops = []
        async def main():
            if {backend!r} == "asyncio":
                asyncio.get_running_loop().set_exception_handler(lambda loop, found: print("loop", found))
                loops.append(weakref.ref(asyncio.get_running_loop()))
            sender = await transport(Wire())
            async def one(fault):
                url = "{server.url}/chat/completions"
                async with sender.send(url, headers={{}}, content=body % fault, timeout=9) as got:
                    async for chunk in got.chunks():
                        if b"answer" in chunk and fault == b"hangmid":
                            return
            for fault in (b"", b"trickle", b"hangmid"):
                await one(fault)
            with anyio.move_on_after(0.01):
                await one(b"hang")
        for _ in range(3):
            anyio.run(main, backend={backend!r})
        if {backend!r} == "asyncio":
            asyncio.run(main(), debug=True)
        gc.collect()
        print("alive", sum(loop() is not None for loop in loops))
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("alive 0\n", "")
    assert server.until(lambda: not server.open)


@pytest.fixture
def away() -> Iterator[int]:
    """The port of a host that answers no handshake: its queue of connections is full."""
    with closing(socket.socket()) as full, ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            one = held.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        last = held.enter_context(closing(socket.socket()))
        last.settimeout(0.05)
        try:
            last.connect(full.getsockname())
        except TimeoutError:
            yield full.getsockname()[1]
        else:
            pytest.skip("this system takes connections beyond a full queue")


@both
def test_a_host_that_is_away_is_a_failed_connection_long_before_the_time_out(
    backend: str, away: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "CONNECT", 0.05)

    async def main() -> None:
        sender, url = await transport(Wire()), f"http://127.0.0.1:{away}/v1?key=SECRET"
        for timeout, failure in ((600, Failure.CONNECTION), (0.01, Failure.TIMEOUT)):
            with anyio.fail_after(5), pytest.raises(CallFailed) as caught:
                async with sender.send(url, headers={}, content=b"{}", timeout=timeout):
                    pass
            assert caught.value.failure is failure
            assert "SECRET" not in str(caught.value)

    run(backend, main)
