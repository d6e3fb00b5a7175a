"""The benchmark of live calls says what it promises to; how fast they are is for a quiet machine to say."""

from __future__ import annotations

import json
from math import isfinite

import pytest

from playcall.evals import benchmark_live

KEYS = {"scenario", "client", "concurrency", "calls_per_s", "p50_ms", "cpu_ms_per_call", "ratio_to_aiohttp"}


@pytest.fixture(scope="module")
def clients() -> list[str]:
    pytest.importorskip("aiohttp")
    return ["playcall", "aiohttp"]


def test_its_rows_have_the_figures_of_each_client_and_scenario(
    clients: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark_live.main(["--json", "--seconds", "0.1", "--concurrency", "2,4", "--clients", *clients])
    rows = json.loads(capsys.readouterr().out)
    told = [(row["scenario"], row["client"], row["concurrency"]) for row in rows]
    assert sorted(told) == sorted((s, c, n) for s in ("single", "best_of_8") for c in clients for n in (2, 4))
    assert all(row.keys() >= KEYS for row in rows)
    assert all(isfinite(row[key]) and row[key] > 0 for row in rows for key in KEYS - {"scenario", "client"})


def test_a_client_that_is_not_installed_is_skipped_and_named(
    clients: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(benchmark_live.CLIENTS, "httpx", (benchmark_live.bare_httpx, "no_such_package"))
    benchmark_live.main(["--seconds", "0.05", "--concurrency", "2", "--clients", "aiohttp", "httpx"])
    table, notes = capsys.readouterr()
    assert "skipped httpx: no_such_package is not installed" in notes
    assert "httpx" not in table
    assert "aiohttp" in table
