"""What is changed in this process while a track is open, and put back exactly when the last one closes."""

from __future__ import annotations

import functools
import sys
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from socket import AF_INET, AF_INET6, SOCK_STREAM
from types import ModuleType
from typing import Any

from playcall.strategies.clients import CLIENTS, Patch, patches
from playcall.strategies.scope import HERE, INSIDE, QUIET, Scope, began, here, runs, since, strand, waited
from playcall.strategies.trace import Strand

_lock = threading.RLock()
_open = 0
_put: dict[tuple[type, str], tuple[Any, Any]] = {}  # class and attribute: the original, and ours
_placed: set[str] = set()  # modules
_WATCHED = (*CLIENTS, "multiprocessing.process")


def install() -> None:
    """A track opens."""
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            sys.meta_path.insert(0, _LATER)
            _audit()
            _place(_CARRY)
        for name in _WATCHED:
            if (module := sys.modules.get(name)) is not None:
                _place_in(name, module)


def remove() -> None:
    """A track closed."""
    global _open
    with _lock:
        _open -= 1
        if _open:
            return
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _LATER]
        for (owner, name), (original, ours) in _put.items():
            if owner.__dict__.get(name) is ours:  # else somebody patched it after us, and calls ours
                setattr(owner, name, original)
        _put.clear()
        _placed.clear()


def _place(them: Sequence[Patch]) -> None:
    for owner, name, around in them:
        if (owner, name) not in _put:
            original = owner.__dict__[name]
            _put[owner, name] = original, (ours := around(original))
            setattr(owner, name, ours)


def _place_in(name: str, module: ModuleType) -> None:
    with _lock:
        if _open and name not in _placed:
            process: type | None = getattr(module, "BaseProcess", None)
            found = [(process, "start", _process)] if process is not None else patches(name, module)
            _place(found)
            _placed.update([name] if found else [])


class _Later:
    """Watches clients that are imported while a track is open."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, of: ModuleType | None = None) -> Any:
        if name not in _WATCHED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            if find is not None and (spec := find(name, path, of)) is not None:
                return self._wrapped(name, spec)
        return None

    def _wrapped(self, name: str, spec: ModuleSpec) -> ModuleSpec:
        loader: Any = spec.loader
        if run := getattr(loader, "exec_module", None):

            def exec_module(module: ModuleType) -> None:
                run(module)
                if module.__spec__ is spec:  # the loader may have others to load
                    _place_in(name, module)

            with suppress(AttributeError):
                loader.exec_module = exec_module
        return spec


_LATER: Any = _Later()


def _carried(since: Callable[[], float] = time.monotonic) -> tuple[Context, Strand, Scope] | None:
    """A copy of the context with a strand of its own, for what is about to begin here."""
    if (found := here()) is None:
        return None
    _, scope = found
    context, new = copy_context(), Strand(strand(scope), since())
    context.run(HERE.set, replace(scope, strand=new))
    return context, new, scope


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        if (carried := _carried()) is not None:
            context, new, _ = carried
            own = vars(thread).get("run")

            def run() -> None:
                vars(thread).pop("run")  # it holds the thread, and this holds it
                if own is not None:
                    thread.run = own  # type: ignore[method-assign]
                runs(new, context.run, thread.run)

            thread.run = run  # type: ignore[method-assign]
        original(thread)

    return start


def _process(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(process: Any) -> None:
        _missed("subprocess of multiprocessing")
        original(process)

    return start


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if (carried := _carried(since)) is None:
            return original(pool, fn, *args, **kwargs)
        token = HERE.set(None)  # a thread of the pool outlives this, and serves others
        try:
            return original(pool, runs, carried[1], carried[0].run, fn, *args, **kwargs)
        finally:
            HERE.reset(token)

    return submit


def _join(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def join(it: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(it, *args, **kwargs)
        finally:
            waited()

    return join


def _callback(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_done_callback(future: Any, fn: Any) -> None:
        before = since()
        original(future, fn)
        waited(before)  # whatever it asked of a future that is done

    return add_done_callback


def _create_task(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_task(loop: Any, coro: Any, **options: Any) -> Any:
        if (carried := _carried()) is None:
            return original(loop, coro, **options)
        context, new, _ = carried
        if options.get("context") is None and loop.get_task_factory() is None:
            options["context"] = context
        task = original(loop, coro, **options)
        began(task, new)
        return task

    return create_task


_CARRY: list[Patch] = [
    (threading.Thread, "start", _start),
    (ThreadPoolExecutor, "submit", _submit),
    (threading.Thread, "join", _join),
    (Future, "result", _join),
    (Future, "exception", _join),
    (Future, "add_done_callback", _callback),
    (BaseEventLoop, "create_task", _create_task),
]

_EVENTS = {
    "subprocess.Popen",
    "os.system",
    "os.posix_spawn",
    "os.exec",
    "os.fork",
    "http.client.send",
    "socket.connect",
}
_PROBES = {"uname", "lsb_release", "ldconfig"}  # what clients ask the system for, to say it in their headers
_audited = False


def _audit() -> None:
    """Once in a process: a hook cannot be taken off again."""
    global _audited
    if not _audited:
        _audited = True
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS or not _open or HERE.get() is None or INSIDE.get() or QUIET.get():
        return
    try:
        if what := _what(event, args):
            _missed(what)
    except Exception:  # it would be raised from the user's call
        return


def _missed(what: str) -> None:
    if (found := here()) is not None:
        for trace in found[0].line:
            trace.miss(what)


def _what(event: str, args: tuple[Any, ...]) -> str:
    """What went out, without arguments: they may hold keys."""
    if event == "http.client.send":
        return f"connection to {args[0].host}:{args[0].port}"
    if event == "socket.connect":
        sock, address = args
        return f"connection to {address[0]}:{address[1]}" if _outward(sock) else ""
    if event == "os.fork":
        return "subprocess fork"
    command = args[0] if isinstance(args[0], str | bytes) else args[1][0] if len(args) > 1 and args[1] else "?"
    first = (command.decode(errors="replace") if isinstance(command, bytes) else str(command)).split(None, 1)
    name = PurePath(first[0]).name if first else "?"
    return "" if name in _PROBES else f"subprocess {name}"


def _outward(sock: Any) -> bool:
    return sock.family in (AF_INET, AF_INET6) and bool(sock.type & SOCK_STREAM)
