"""Ten thousand tasks through `map`, with one in a hundred meeting each kind of fault; server and client in processes of
their own."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TASKS = 10_000
KINDS = [
    "cut",
    "cut:1",
    "close",
    "close:1",
    "hang",
    "hangmid",
    "400",
    "401",
    "403",
    "404",
    "408:1",
    "409:1",
    "429",
    "429:1",
    "quota",
    "500",
    "500:1",
    "503:1",
    "garbage",
    "html",
    "empty",
    "refusal",
    "filter",
    "length",
    "nousage",
    "badusage",
    "trickle",
    "delay:5",
]
SPEC = f"""
KINDS = {KINDS!r}
def spec(i):
    return KINDS[i % 100] if i % 100 < len(KINDS) else ""
"""
SERVE = (
    SPEC
    + """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import serving
server = serving.Server(fault=lambda body: spec(int(body["messages"][0]["content"].split()[-1])), books=sys.argv[2])
server.answer = lambda body: "word " * 5
asyncio.run(serving.listen(server, lambda: print(server.url, flush=True), asyncio.Event()))
"""
)
CALL = (
    SPEC
    + """
import json, sys
from collections import Counter
import anyio
from playcall.strategies import Ask
from playcall.strategies.arm import Arm
from playcall.strategies.ledger import Ledger
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

def peak():  # getrusage would count what the parent had before exec
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

async def main():
    arms = {"a": Arm(OpenAICompatible(sys.argv[1]), "a", price=Price(1, 2), backoff=1e-3)}
    ledger = Ledger(sys.argv[2])
    runner = Runner(Ask("a"), arms, ledger=ledger, bench_after=None)
    seen, cost, errors, early = set(), 0, {}, 0.0
    async with runner.map((f"task number {i}" for i in range(TASKS)), concurrency=64, deadline=1) as results:
        async for i, result in results:
            seen.add(i)
            cost += result.cost
            said = "" if result.answered else str(result.failures[0]).split(": ")[1]
            errors.setdefault(spec(i), Counter())[said] += 1
            if len(seen) == TASKS // 4:
                early = peak()
    ledger.close()
    print(json.dumps({"seen": len(seen), "cost": cost, "errors": errors, "early": early, "peak": peak()}))

anyio.run(main)
"""
)
LATE = "no answer in time"
FAILS = {
    "cut": "cut",
    "close": "connection",
    "hang": LATE,
    "hangmid": LATE,
    "400": "bad_request",
    "401": "auth",
    "403": "auth",
    "404": "not_found",
    "429": "rate_limited",
    "quota": "quota",
    "500": "server",
    "garbage": "garbage",
    "html": "garbage",
    "empty": "empty",
    "refusal": "refused",
    "filter": "refused",
    "length": "truncated",
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_none_is_lost_and_every_cent_accounted_for(tmp_path: Path) -> None:
    books, ledger = tmp_path / "books.jsonl", tmp_path / "l.db"
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(TESTS), str(books)], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        code = CALL.replace("TASKS", str(TASKS))
        done = subprocess.run([sys.executable, "-c", code, url, str(ledger)], capture_output=True, text=True)
    finally:
        server.kill()
        server.wait()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["seen"] == TASKS
    for kind, errors in told["errors"].items():
        assert set(errors) <= {FAILS.get(kind, ""), "", "no answer in time"}, kind
        if kind in FAILS:
            assert "" not in errors
    assert told["peak"] < 300
    assert told["peak"] < 1.1 * told["early"]

    with sqlite3.connect(ledger) as db:
        rows, cost, exact = db.execute(
            "SELECT count(*), sum(price_nano), sum(price_nano * (1 - estimated)) FROM calls"
        ).fetchone()
    requests = [json.loads(line) for line in books.read_text().splitlines()]
    unread = {i for i in range(TASKS) if i % 100 < len(KINDS) and KINDS[i % 100] in ("nousage", "badusage")}
    owed = [
        r["price"] for r in requests if r["finished"] and int(r["messages"][0]["content"].split()[-1]) not in unread
    ]
    assert (rows, cost) == (len(requests), told["cost"])
    # Exact, unless a task that need not hang ran out of its second: the server may have finished what came too late.
    late = sum(n.get(LATE, 0) for kind, n in told["errors"].items() if FAILS.get(kind) != LATE)
    assert 0 <= sum(owed) - exact <= late * max(r["price"] for r in requests)
    print({"requests": rows, "usd": exact / 1e9, "MB": round(told["peak"])})
