"""What users of such systems ask for, on a real server; the number is that of the request in our list of them."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from playcall.strategies import Agree, Ask, First, Gather, Misuse, Template, Vote, on_virtual_clock
from playcall.strategies.arm import Arm
from playcall.strategies.budget import Budget
from playcall.strategies.cache import Cache
from playcall.strategies.calling import drain
from playcall.strategies.ledger import Ledger
from playcall.strategies.live import Result
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

from ..serving import Body, Server, serve
from .fakes import Fake, arm, fails_first

BACKENDS = ("asyncio", "trio")
DOLLARS = Price(1, 2)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as server:
        yield server


def arm_of(server: Server, model: str = "m", **settings: object) -> Arm:
    return Arm(OpenAICompatible(server.url), model, **{"price": DOLLARS, "backoff": 1e-4, **settings})  # type: ignore[arg-type]


def test_drained_losers_are_billed_exactly(server: Server, tmp_path: Path) -> None:  # PEERS 9
    arms = {"fast": arm_of(server, "fast"), "slow": arm_of(server, "slow+delay:30", losers="drain")}
    ledger = Ledger(tmp_path / "l.db")

    async def main() -> Result:
        result = await Runner(Gather((Ask("fast"), Ask("slow")), Agree(1)).keep(First()), arms, ledger=ledger).run("q")
        assert not result.exact
        await drain()
        return result

    result = anyio.run(main)
    ledger.close()
    assert result.arm == "fast"
    with sqlite3.connect(tmp_path / "l.db") as db:
        rows = db.execute("SELECT arm, cancelled, estimated, price_nano FROM calls ORDER BY arm").fetchall()
    assert rows == [("fast", 0, 0, server.bill("fast")), ("slow", 1, 0, server.bill("slow"))]
    assert server.bill("slow") > 0


def test_draining_on_trio_is_refused_with_a_reason(server: Server) -> None:
    runner = Runner(Ask("a"), {"a": arm_of(server, losers="drain")})
    with pytest.raises(Misuse, match="asyncio"):
        anyio.run(runner.run, "q", backend="trio")


def test_the_ledger_is_the_same_at_concurrency_1_and_64(server: Server, tmp_path: Path) -> None:  # PEERS 11
    totals = []
    for concurrency in (1, 64):
        runner = Runner(
            (2 * Ask("a")).keep(Vote()), {"a": arm_of(server)}, ledger=Ledger(tmp_path / f"{concurrency}.db")
        )
        results = [r for _, r in runner.map_sync([f"task {i}" for i in range(100)], concurrency=concurrency)]
        with sqlite3.connect(tmp_path / f"{concurrency}.db") as db:
            totals.append(db.execute("SELECT count(*), sum(price_nano), sum(input_tokens) FROM calls").fetchone())
        assert sum(r.cost for r in results) == totals[-1][1]
    assert totals[0] == totals[1]
    assert server.bill() == 2 * totals[0][1]


def test_a_row_tells_the_strategy_the_role_and_which_prompts_were_equal(server: Server, tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db") as ledger:
        play = (2 * Ask("a")) >> ("a", Template("Merge: {answers}"))
        runner = Runner(play, {"a": arm_of(server)}, ledger=ledger, name="merged")
        for task in ("one", "two"):
            runner.run_sync(task)
    with sqlite3.connect(tmp_path / "l.db") as db:
        rows = db.execute("SELECT strategy, role, count(*), count(DISTINCT prompt_hash) FROM calls GROUP BY 1, 2")
        assert rows.fetchall() == [("merged", "answer", 4, 2), ("merged", "reader", 2, 2)]


def test_a_cached_call_costs_nothing_and_says_what_it_would_have(server: Server) -> None:  # PEERS 12
    runner = Runner(Ask("a"), {"a": arm_of(server, "m+delay:20")}, cache=Cache())
    fresh, again = runner.run_sync("q"), runner.run_sync("q")
    assert (again.output, again.cost, len(server.served)) == (fresh.output, 0, 1)
    call = again.attempts[0].calls[0]
    assert (call.cached, call.price, call.saved) == (True, 0, fresh.cost)
    assert call.usage == fresh.attempts[0].calls[0].usage
    assert call.original > 0.02 > call.seconds  # the original latency beside the real one
    assert again.exact


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", ["hang", "hangmid"])
@pytest.mark.parametrize("stream", [True, False])
def test_cancelling_aborts_all_upstream_calls_within_100_ms(  # PEERS 13
    server: Server, backend: str, fault: str, stream: bool
) -> None:
    runner = Runner(4 * Ask("a"), {"a": arm_of(server, f"m+{fault}", stream=stream)})
    at: list[float] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, "one two three four five six")
            while sum(s.status == 200 or fault == "hang" for s in server.served) < 4:
                await anyio.sleep(0.001)
            await anyio.sleep(0.01)
            at.append(time.monotonic())
            group.cancel_scope.cancel()
        assert server.until(lambda: len(server.gone()) == 4)

    anyio.run(main, backend=backend)
    assert max(s.gone or 0 for s in server.served) - at[0] < 0.1
    assert server.until(lambda: not server.open)


def test_a_hedge_fires_after_its_delay_and_returns_at_the_winners_latency() -> None:  # PEERS 14
    slow, spare = Fake(seconds=10), Fake(lambda call: "spare", seconds=1)
    play = Gather((Ask("slow"), Ask("spare")), Agree(1), 2).keep(First())
    arms = {"slow": arm(slow), "spare": arm(spare)}

    async def main() -> list[Result]:
        late = await Runner(play, arms).run("q")
        slow.seconds = 1.5
        return [late, await Runner(play, arms).run("q")]

    late, early = on_virtual_clock(main)
    assert (late.output, late.seconds) == ("spare", pytest.approx(3))
    assert (early.output, early.seconds, len(spare.calls)) == ("yes", pytest.approx(1.5), 1)


def test_the_trace_keeps_the_error_of_every_try() -> None:  # PEERS 22
    result = on_virtual_clock(lambda: Runner(Ask("a"), {"a": arm(Fake(fails_first(2)))}).run("q"))
    assert [(c.number, c.error, c.detail) for c in result.attempts[0].calls] == [
        (1, "server", "as scripted"),
        (2, "server", "as scripted"),
        (3, "", ""),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cut_stream_is_tried_again_and_falls_back(server: Server, backend: str) -> None:  # PEERS 23
    arms = {"bad": arm_of(server, "bad+cut", stream=True, tries=2), "good": arm_of(server, "good", stream=True)}
    result = anyio.run(Runner(Ask("bad") | Ask("good"), arms).run, "q", backend=backend)
    assert (result.arm, [c.error for c in result.attempts[0].calls]) == ("good", ["cut", "cut"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_stage_streams_over_the_wire(server: Server, backend: str) -> None:  # PEERS 25
    server.answer = lambda body: "one two three four"
    pieces: list[str] = []

    async def main() -> Result | None:
        stream = Runner(Ask("a") >> ("a", Template("{answers}")), {"a": arm_of(server)}).stream("q")
        async with stream:
            pieces.extend([piece async for piece in stream])
        return stream.result

    result = anyio.run(main, backend=backend)
    assert pieces == ["one ", "two ", "three ", "four"]
    assert result is not None
    assert (result.output, result.exact) == ("one two three four", True)


def test_the_answer_a_counts_as_a_vote(server: Server) -> None:  # PEERS 28
    answers = iter(["A", "B", "A"])
    server.answer = lambda body: next(answers)
    runner = Runner((3 * Ask("a")).keep(Vote()), {"a": arm_of(server)}, canonical="choice")
    assert runner.run_sync("q").output == "A"


def test_equivalent_answers_share_a_key(server: Server) -> None:  # PEERS 29
    answers = iter(["0.7", "0.5", "1/2", r"\boxed{\frac{1}{2}}"])
    server.answer = lambda body: next(answers)
    result = Runner((4 * Ask("a")).keep(Vote()), {"a": arm_of(server)}, canonical="number").run_sync("q")
    assert sum(a.reply.key == "1/2" for a in result.attempts if a.reply) == 3
    assert result.output in ("0.5", "1/2", r"\boxed{\frac{1}{2}}")


def test_five_draws_are_five_cached_answers(server: Server) -> None:  # PEERS 34
    cache = Cache()
    runs = [Runner(5 * Ask("a"), {"a": arm_of(server)}, cache=cache).run_sync("q") for _ in range(2)]
    keys = [[a.reply.key for a in sorted(r.attempts, key=lambda a: a.draw) if a.reply] for r in runs]
    assert keys[0] == keys[1]
    assert len(server.served) == 5
    assert [c.cached for a in runs[1].attempts for c in a.calls] == [True] * 5


@pytest.mark.parametrize("field", ["temperature", "seed", "top_p", "unheard_of", "max_tokens"])
def test_any_changed_field_of_a_request_is_a_miss(server: Server, field: str) -> None:  # PEERS 35
    cache = Cache()
    for value in (1, 2, 2):
        Runner(Ask("a"), {"a": arm_of(server, params={field: value})}, cache=cache).run_sync("q")
    assert len(server.served) == 2


@pytest.mark.parametrize("settings", [{"headers": {"x-beta": "1"}}, {"confidence": "mean_logprob"}], ids=str)
def test_an_arm_of_other_headers_or_another_score_is_a_miss(server: Server, settings: dict[str, object]) -> None:
    cache = Cache()
    for more in ({}, settings, settings):
        Runner(Ask("a"), {"a": arm_of(server, **more)}, cache=cache).run_sync("q")
    assert len(server.served) == 2


def test_each_node_has_its_own_cache_policy(server: Server) -> None:  # PEERS 36: an arm is a model with its settings
    arms = {"kept": arm_of(server), "fresh": arm_of(server, cache=False)}
    runner = Runner((Ask("kept") & Ask("fresh")).keep(First()), arms, cache=Cache())
    for _ in range(3):
        runner.run_sync("q")
    assert len(server.served) == 1 + 3


def test_hosts_and_tenants_never_share_a_cached_answer() -> None:  # PEERS 37
    cache = Cache()
    with serve() as one, serve() as two:
        for server in (one, two):
            for key in ("alice", "bob"):
                for _ in range(2):
                    a = Arm(OpenAICompatible(server.url, key), "m", price=DOLLARS)
                    Runner(Ask("a"), {"a": a}, cache=cache).run_sync("q")
        assert (len(one.served), len(two.served)) == (2, 2)


def test_unknown_parameters_reach_the_provider_unchanged(server: Server) -> None:  # PEERS 38
    extra = {"provider": {"order": ["x"], "deep": [1, None, {"é": 0.1}]}, "seed": 7}
    task = {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "brand_new": True,
    }
    Runner(Ask("a"), {"a": arm_of(server, params=extra)}).run_sync(task)
    assert server.served[0].body == {**task, **extra, "model": "m"}


def test_import_is_light_and_without_litellm() -> None:  # PEERS 39: under 0.3 s
    def seconds(imports: str, check: str = "") -> float:
        code = f"import sys, time; t = time.process_time(); import {imports}; print(time.process_time() - t); {check}"
        runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
        assert [r.stderr for r in runs] == [""] * 3
        return min(float(r.stdout) for r in runs)

    heavy = (
        "{'litellm', 'openai', 'aiohttp', 'httpx', 'sqlalchemy', 'pandas', 'sklearn', 'pyarrow', 'yaml', 'pydantic'}"
    )
    ours = seconds("playcall.strategies", f"assert not {heavy} & set(sys.modules)")
    assert ours < 4 * seconds("numpy, anyio, asyncio")  # what it cannot do without; about twice that


def test_escalation_counts_the_lost_prompt_cache(server: Server) -> None:  # PEERS 45
    def answer(body: Body) -> Body:
        warm = {"cached_tokens": 90} if body["model"] == "small" else {}
        return {
            "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": warm},
        }

    server.answer = answer
    price = Price(10, 0, cached=1)  # 10,000 nano-dollars a token, 1,000 where cached
    arms = {name: arm_of(server, name, price=price) for name in ("small", "big")}
    result = Runner(Gather((Ask("small"), Ask("big")), Agree(2), float("inf")), arms).run_sync("q")
    assert [a.price for a in result.attempts] == [10 * 10_000 + 90 * 1_000, 100 * 10_000]


def test_a_budget_is_looked_at_before_every_paid_hop(server: Server) -> None:  # PEERS 4: retries, judges, fallbacks
    server.answer = lambda body: "w " * 10
    arms = {
        "a": arm_of(server, "a+empty", params={"max_tokens": 10}),
        "b": arm_of(server, "b", params={"max_tokens": 10}),
    }
    worst = 0.00009  # fits one call, and not two
    play = Ask("a") | Ask("b") >> ("b", Template("{answers}"))
    result = Runner(play, arms, budget=Budget(task=worst)).run_sync("q")
    assert result.cost <= worst * 1e9
    assert any("budget" in str(a) for a in result.failures)


def test_ctrl_c_leaves_no_connection_and_no_row_open(server: Server, tmp_path: Path) -> None:
    code = f"""
import anyio
from playcall.strategies import Ask
from playcall.strategies.arm import Arm
from playcall.strategies.ledger import Ledger
from playcall.strategies.openai import OpenAICompatible
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner
arms = {{"a": Arm(OpenAICompatible({server.url!r}), "m+hangmid", price=Price(1, 2), stream=True)}}
runner = Runner(3 * Ask("a"), arms, ledger=Ledger({str(tmp_path / "l.db")!r}))
RUN
"""
    for run in ("runner.run_sync('a b c d')", "anyio.run(runner.run, 'a b c d')"):
        server.served.clear()
        process = subprocess.Popen([sys.executable, "-c", code.replace("RUN", run)], stderr=subprocess.PIPE, text=True)
        assert server.until(lambda: sum(s.words > 0 for s in server.served) == 3, 20)
        process.send_signal(2)
        _, told = process.communicate(timeout=10)
        assert "KeyboardInterrupt" in told
        assert "never" not in told  # awaited, or retrieved
        assert server.until(lambda: not server.open)
    with sqlite3.connect(tmp_path / "l.db") as db:
        rows = db.execute("SELECT cancelled, estimated, price_nano > 0 FROM calls").fetchall()
    assert rows == [(1, 1, 1)] * 6


def test_keys_are_nowhere(server: Server, tmp_path: Path) -> None:
    key = "sk-very-secret-0123456789"
    server.fault = lambda body: "401" if "bad" in json.dumps(body) else ""
    a = Arm(OpenAICompatible(server.url, key), "m", price=DOLLARS)
    runner = Runner(2 * Ask("a"), {"a": a}, ledger=Ledger(tmp_path / "l.db"), cache=Cache(tmp_path / "c.db"))
    told = [repr(runner.run_sync(task)) for task in ("good", f"bad {key}")]
    assert key not in repr(a) + repr(runner.arms) + told[0]
    runner.dispatch.ledger.close()  # type: ignore[union-attr]
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes(), file


def test_a_paid_answer_is_given_even_where_the_ledger_cannot_be_written_to(server: Server, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    runner = Runner(Ask("a"), {"a": arm_of(server)}, ledger=ledger)
    with ledger.store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = 1")
    result = runner.run_sync("q")
    assert result.answered
    assert "1 calls are kept in memory" in result.warning
    with ledger.store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = 0")
    ledger.close()
    with sqlite3.connect(tmp_path / "l.db") as db:
        assert db.execute("SELECT count(*), sum(price_nano) FROM calls").fetchone() == (1, server.bill())
