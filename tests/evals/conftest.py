"""The server that live races ask; a test module with another has a fixture of its own by this name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..serving import Server, serve


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serve() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """As new for each test; it answers as `races.answer`."""
    from .races import answer

    running.served.clear()
    running._seen.clear()
    running.answer, running.fault, running.delay = answer, None, 0.0
    return running
