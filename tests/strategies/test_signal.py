"""A signal wakes every task that waits for it, wherever it runs."""

from __future__ import annotations

import threading

import anyio
import pytest

from playcall.strategies.signal import Signal

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@both
def test_a_task_of_the_same_loop_wakes_them_all_in_order(backend: str) -> None:
    woken = []

    async def main() -> None:
        signal = Signal()

        async def waiter(i: int) -> None:
            await signal.wait()
            woken.append(i)

        async with anyio.create_task_group() as group:
            for i in range(5):
                group.start_soon(waiter, i)
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            signal.set()

    anyio.run(main, backend=backend)
    assert sorted(woken) == list(range(5))


@both
def test_one_that_is_set_is_not_waited_for(backend: str) -> None:
    async def main() -> None:
        signal = Signal()
        signal.set()
        signal.set()
        await signal.wait()
        assert signal.is_set

    anyio.run(main, backend=backend)


@both
def test_cancelled_waits_do_not_pile_up(backend: str) -> None:
    async def main() -> None:
        signal = Signal()
        for _ in range(100):
            with anyio.move_on_after(0):
                await signal.wait()
        assert len(signal._waiting) == 1  # one event a loop
        signal.set()

    anyio.run(main, backend=backend)


def test_a_thread_wakes_tasks_of_asyncio_and_trio_at_once() -> None:
    signal, woken, ready = Signal(), [], threading.Barrier(4)

    def loop(backend: str) -> None:
        async def main() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(waiter)
                await anyio.wait_all_tasks_blocked()
                await anyio.to_thread.run_sync(ready.wait)

        async def waiter() -> None:
            await signal.wait()
            woken.append(backend)

        anyio.run(main, backend=backend)

    threads = [threading.Thread(target=loop, args=(b,)) for b in ("asyncio", "trio", "asyncio")]
    for thread in threads:
        thread.start()
    ready.wait(5)
    signal.set()
    for thread in threads:
        thread.join(5)
    assert sorted(woken) == ["asyncio", "asyncio", "trio"]


def test_no_wake_up_is_lost_between_threads() -> None:
    async def main() -> None:
        for _ in range(300):
            signal = Signal()
            thread = threading.Thread(target=signal.set)
            thread.start()
            with anyio.fail_after(5):
                await signal.wait()
            thread.join()

    anyio.run(main)
    anyio.run(main, backend="trio")


def test_a_loop_that_has_ended_is_passed_over() -> None:
    class Ended:
        def call_soon_threadsafe(self, _: object) -> None:
            raise RuntimeError("Event loop is closed")

    async def main() -> None:
        signal = Signal()
        signal._waiting[Ended()] = anyio.Event()
        signal.set()

    anyio.run(main)


def test_one_that_is_set_while_a_task_begins_to_wait_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    signal = Signal()

    def loop() -> None:
        signal.set()

    monkeypatch.setattr("playcall.strategies.signal._loop", loop)

    async def main() -> None:
        with anyio.fail_after(1):
            await signal.wait()

    anyio.run(main)
