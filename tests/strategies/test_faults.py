"""The fault matrix: whatever a server does, and wherever in a strategy, nothing is lost, leaked or miscounted."""

import asyncio
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

import anyio
import pytest

from playcall.strategies import Agree, Ask, AtLeast, Best, First, Gather, Strategy, Template, Vote
from playcall.strategies.arm import Arm
from playcall.strategies.call import Failure
from playcall.strategies.ledger import Ledger
from playcall.strategies.live import Result
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

from ..serving import Server, serve

FAULTS = {  # what the server does -> what the call's failures may be; fault:1 is once, then fine
    "": set(),
    "delay:5": set(),
    "trickle": set(),
    "cut": {"cut"},
    "cut:1": {"cut"},
    "close": {"connection"},
    "close:1": {"connection"},
    "hang": set(),
    "hangmid": set(),
    "400": {"bad_request"},
    "401": {"auth"},
    "403": {"auth"},
    "404": {"not_found"},
    "408:1": {"timeout"},
    "409:1": {"server"},
    "429": {"rate_limited"},
    "429:1": {"rate_limited"},
    "quota": {"quota"},
    "500": {"server"},
    "500:1": {"server"},
    "503:1": {"server"},
    "garbage": {"garbage"},
    "html": {"garbage"},
    "empty": {"empty"},
    "refusal": {"refused"},
    "filter": {"refused"},
    "length": {"truncated"},
    "badjson": {"invalid"},
    "nousage": set(),
    "badusage": set(),
    "nodone": set(),
    "error": {"server"},
}
ONLY_STREAMED = {"nodone", "error"}
ENDLESS = {"hang", "hangmid"}
a, b = Ask("a"), Ask("b")
NODES: dict[str, Strategy] = {
    "ask": a,
    "gather": 3 * a & b,
    "early stop": Gather((a, a, b), Agree(2)).keep(Vote()),
    "hedge": Gather((a, b), Agree(1), 0.01).keep(First()),
    "one after another": Gather((a, b), Agree(1), inf),
    "or else": a | a | b,
    "keep": (2 * a & b).keep(Best()),
    "keep none": a.keep(AtLeast(2)) | b,
    "then": (a & b) >> ("a", Template("Merge {answers}")),
    "within": (a & b).within(0.05).keep(First()),
}
CASES = [
    (fault, node, how)
    for fault in FAULTS
    for node in NODES
    for how in (["streamed"] if fault in ONLY_STREAMED else ["whole", "streamed"])
]
SCHEMA = {"type": "json_object"}


@dataclass
class Rig:
    server: Server
    ledger: Ledger
    path: Path

    def rows(self, run: str) -> list[sqlite3.Row]:
        with sqlite3.connect(self.path) as db:
            db.row_factory = sqlite3.Row
            return db.execute("SELECT * FROM calls WHERE run = ?", (run,)).fetchall()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    path = tmp_path_factory.mktemp("ledger") / "l.db"
    with (
        serve(rates={"a": (150_000_000, 601_000_000), "b": (2_500_000_000, 10_003_000_000)}) as server,
        Ledger(path) as ledger,
    ):
        yield Rig(server, ledger, path)


PRICES = {"a": Price(0.15, 0.601), "b": Price(2.5, 10.003)}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("fault", "node", "how"), CASES, ids=["-".join(c) for c in CASES])
def test_a_fault_anywhere(rig: Rig, fault: str, node: str, how: str, backend: str) -> None:
    server = rig.server
    endpoint = OpenAICompatible(server.url, f"key of {fault} {node} {how} {backend}")  # benches are apart by key
    form = {"response_format": SCHEMA} if fault == "badjson" else {}
    stream = how == "streamed"
    arms = {
        "a": Arm(endpoint, f"a+{fault}", form, PRICES["a"], tries=2, backoff=1e-4, stream=stream),
        "b": Arm(endpoint, "b", {}, PRICES["b"], tries=2, backoff=1e-4, stream=stream),
    }
    before, deadline = len(server.served), 0.15 if fault in ENDLESS else 5.0

    async def main() -> Result:
        result = await Runner(NODES[node], arms, ledger=rig.ledger).run(
            f"{fault} {node} {how} {backend}", deadline=deadline
        )
        if backend == "asyncio":
            assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    result = anyio.run(main, backend=backend)
    served = server.served[before:]
    assert server.until(lambda: not server.open), "a socket is left open"
    assert result.seconds < deadline + 0.1
    assert result.answered or result.failures or node == "keep none"

    calls = [c for attempt in result.attempts for c in attempt.calls]
    sent = [c for c in calls if c.sent]
    errors = {c.error for c in sent if c.arm == "a" and not c.cancelled} - {""}
    assert errors <= FAULTS[fault], errors
    assert all(Failure(c.error) for c in calls if c.error)

    rows = rig.rows(calls[0].run)
    assert len(rows) == len(sent)
    assert sum(row["price_nano"] for row in rows) == result.cost
    exact = sum(row["price_nano"] for row in rows if not row["estimated"])
    told = [s for s in served if s.finished and not (s.model == "a" and fault in ("nousage", "badusage"))]
    missed = sum(
        1 for row in rows if row["cancelled"] and row["estimated"]
    )  # the server may have finished them before it saw
    owed = sorted(s.price for s in told)
    assert sum(owed[: len(owed) - missed]) <= exact <= sum(owed)
    if not missed:
        assert exact == sum(owed)
        assert exact > 0 or fault
