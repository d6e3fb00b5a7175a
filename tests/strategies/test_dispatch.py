"""What a call owes its user: retries, limits, budgets, bills. On the virtual clock."""

import asyncio
from dataclasses import replace
from math import inf

import anyio
import pytest

from playcall.strategies import Agree, Ask, Gather, Misuse, Vote, on_virtual_clock
from playcall.strategies.budget import Budget
from playcall.strategies.cache import Cache
from playcall.strategies.call import Answer, Call, CallFailed, Failure, Usage
from playcall.strategies.calling import tokens_of
from playcall.strategies.limits import BENCH_AFTER, Gate
from playcall.strategies.live import Result
from playcall.strategies.prices import Price
from playcall.strategies.runner import Runner

from .fakes import Fake, arm, fails_first

CENT = 10_000_000  # nano-dollars


def play(runner: Runner, task: object = "q", **how: float) -> Result:
    async def main() -> Result:
        return await runner.run(task, **how)

    return on_virtual_clock(main)


@pytest.mark.parametrize("failure", [f for f in Failure if f.passing])
def test_what_may_pass_is_tried_again(failure: Failure) -> None:
    fake = Fake(fails_first(2, failure))
    result = play(Runner(Ask("a"), {"a": arm(fake)}))
    assert result.output == "yes"
    assert [c.error for c in result.attempts[0].calls] == [failure, failure, ""]
    assert [c.number for c in fake.calls] == [1, 2, 3]


@pytest.mark.parametrize("failure", [f for f in Failure if not f.passing])
def test_what_will_not_pass_is_not_tried_again(failure: Failure) -> None:
    fake = Fake(fails_first(1, failure))
    result = play(Runner(Ask("a"), {"a": arm(fake)}))
    assert not result.answered
    assert len(fake.calls) == 1
    assert str(failure) in str(result.attempts[0])


def test_a_call_is_tried_no_more_often_than_told() -> None:
    fake = Fake(fails_first(9))
    assert not play(Runner(Ask("a"), {"a": arm(fake, tries=4)})).answered
    assert len(fake.calls) == 4


def test_the_server_says_how_long_to_wait() -> None:
    fake = Fake(fails_first(1, Failure.RATE, retry_after=7))
    play(Runner(Ask("a"), {"a": arm(fake)}))
    assert fake.begun[1] - fake.begun[0] == pytest.approx(1 + 7)


def test_a_retry_that_cannot_finish_in_time_is_not_started() -> None:  # and the failure is told at once
    fake = Fake(fails_first(1, Failure.RATE, retry_after=7))
    result = play(Runner(Ask("a"), {"a": arm(fake)}), deadline=5)
    assert len(fake.calls) == 1
    assert result.seconds == pytest.approx(1)
    assert "rate_limited" in str(result.failures[0])


def test_a_retry_is_not_started_if_no_answer_has_ever_come_so_fast() -> None:
    fake = Fake(lambda call: "yes")
    runner = Runner(Ask("a"), {"a": arm(fake)})

    async def main() -> None:
        await runner.run("q")  # takes a second
        fake.script = fails_first(1, Failure.RATE, retry_after=1.5)
        result = await runner.run("q", deadline=3.4)  # the retry would end at 3.5
        assert (len(fake.calls), result.seconds) == (2, pytest.approx(1))

    on_virtual_clock(main)


def test_one_deadline_bounds_queue_retries_and_branches() -> None:  # PEERS 15
    slow = Fake(fails_first(99), seconds=2)
    arms = {"a": arm(slow, concurrency=1, tries=50)}
    result = play(Runner(3 * Ask("a"), arms), deadline=10)
    assert result.seconds <= 10
    assert not result.answered
    assert slow.flying == 0


def test_no_more_calls_at_a_time_than_the_arm_allows_whoever_makes_them() -> None:
    fake = Fake(name="shared by two runners")
    one, two = (Runner(4 * Ask("a"), {"a": arm(fake, concurrency=3)}) for _ in range(2))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(one.run, "q")
            group.start_soon(two.run, "q")

    on_virtual_clock(main)
    assert (len(fake.calls), fake.most_flying) == (8, 3)


def test_requests_a_minute() -> None:
    fake = Fake(seconds=0.001)
    play(Runner(12 * Ask("a"), {"a": arm(fake, requests_per_minute=6)}))
    begun = [t - fake.begun[0] for t in fake.begun]
    assert begun[5] == pytest.approx(0)  # a minute's allowance at once
    assert begun[6:] == pytest.approx([10, 20, 30, 40, 50, 60])


def test_tokens_a_minute_count_what_was_used() -> None:
    fake = Fake(seconds=0.001)
    params = {"max_tokens": 1000}  # reserved, but one was used, and is given back
    play(Runner(Gather((Ask("a"),) * 5, gap=inf), {"a": arm(fake, tokens_per_minute=1200, params=params)}))
    assert fake.begun[-1] - fake.begun[0] < 1


def test_concurrency_recovers_after_429s() -> None:  # PEERS 19
    fake = Fake(fails_first(4, Failure.RATE, retry_after=0.1))
    runner = Runner(Ask("a"), {"a": arm(fake, concurrency=8, tries=20)})

    async def main() -> None:
        await runner.map(range(8), concurrency=8)
        fake.most_flying = 0
        await runner.map(range(100), concurrency=20)

    on_virtual_clock(main)
    assert fake.most_flying == 8


def test_an_arm_that_is_down_is_benched_and_the_next_one_answers_at_once() -> None:  # PEERS 18
    down, up = Fake(fails_first(99)), Fake(seconds=0.5)
    runner = Runner(Ask("down") | Ask("up"), {"down": arm(down, tries=1), "up": arm(up)})

    async def main() -> None:
        for _ in range(BENCH_AFTER):
            assert (await runner.run("q")).seconds == pytest.approx(1.5)
        result = await runner.run("q")
        assert (result.seconds, len(down.calls)) == (pytest.approx(0.5), BENCH_AFTER)
        assert "benched" in str(result.attempts[0])
        await anyio.sleep(15)
        down.script = lambda call: "back"
        assert (await runner.run("q")).output == "back"

    on_virtual_clock(main)


def test_a_bad_request_is_not_sent_again_in_the_same_run() -> None:  # PEERS 14: a hedge never fires on a 4xx
    fake = Fake(fails_first(1, Failure.REQUEST))
    result = play(Runner(Gather((Ask("a"), Ask("a")), Agree(1), 5), {"a": arm(fake)}))
    assert len(fake.calls) == 1
    assert [str(a) for a in result.attempts] == ["a: bad_request: as scripted"] * 2


def test_an_endpoint_with_a_bug_fails_its_call_and_not_the_run() -> None:  # PEERS 47
    def script(call: Call) -> str:
        if call.draw == 3:
            raise ZeroDivisionError("oops")
        return "yes"

    result = play(Runner((8 * Ask("a")).keep(Vote()), {"a": arm(Fake(script))}))
    assert result.output == "yes"
    assert [str(a) for a in result.failures] == ["a: raised: ZeroDivisionError: oops"]


def test_a_users_canonicaliser_may_refuse_an_answer() -> None:  # PEERS 21
    def letters(text: str) -> str:
        if not text.isalpha():
            raise ValueError("letters only")
        return text.lower()

    arms = {"a": arm(Fake(lambda c: "12")), "b": arm(Fake(lambda c: "Yes"))}
    result = play(Runner(Ask("a") | Ask("b"), arms, canonical=letters))
    assert (result.output, result.arm, result.cost) == ("Yes", "b", 2 * CENT)
    assert "letters only" in str(result.failures[0])


def test_what_may_pass_is_asked_again_by_a_later_call_of_the_same_run() -> None:
    fake = Fake(fails_first(1))
    result = play(Runner(Ask("a") | Ask("a"), {"a": arm(fake, tries=1)}))
    assert (result.output, len(fake.calls)) == ("yes", 2)


def test_a_call_says_how_long_it_waited_for_its_turn() -> None:
    result = play(Runner(2 * Ask("a"), {"a": arm(Fake(), concurrency=1)}))
    assert sorted(a.calls[0].waited for a in result.attempts) == pytest.approx([0, 1])


def test_a_cancelled_call_says_nothing_of_an_arms_health() -> None:
    fake = Fake(fails_first(99))
    runner = Runner(Ask("a"), {"a": arm(fake, tries=1)}, bench_after=2)

    async def main() -> None:
        await runner.run("q")
        await runner.run("q", deadline=0.5)  # cancelled
        await runner.run("q")
        assert "benched" in str((await runner.run("q")).failures[0])

    on_virtual_clock(main)


def test_a_turn_that_comes_as_its_call_is_cancelled_goes_to_the_next() -> None:
    gate = Gate()
    gate.configure(arm(Fake(), concurrency=1))

    async def main() -> None:
        await gate.enter(0)
        waits = asyncio.create_task(gate.enter(0))
        await anyio.wait_all_tasks_blocked()
        gate.leave()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        with anyio.fail_after(1):
            await gate.enter(0)

    anyio.run(main)


def at_once(runner: Runner, *tasks: object) -> list[Result]:
    async def main() -> list[Result]:
        return await runner.map(tasks, concurrency=len(tasks))

    return on_virtual_clock(main)


def test_a_call_that_is_cancelled_in_the_queue_leaves_its_place_to_the_next() -> None:
    runner = Runner(Ask("a"), {"a": arm(Fake(seconds=10), concurrency=1)})

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, "q")
            await anyio.wait_all_tasks_blocked()
            left = await runner.run("q", deadline=1)
        assert left.attempts[0].calls[0].cancelled
        assert (await runner.run("q", deadline=11)).answered

    on_virtual_clock(main)


def test_one_call_tries_an_arm_that_was_benched() -> None:
    fake = Fake(fails_first(99))
    runner = Runner(Ask("a"), {"a": arm(fake, tries=1)}, bench_after=2)

    async def main() -> None:
        await runner.map("qq", concurrency=1)
        await anyio.sleep(15)
        await runner.map("qqqq", concurrency=4)

    on_virtual_clock(main)
    assert len(fake.calls) == 2 + 1


@pytest.mark.parametrize("between", [Failure.REFUSED, None])
def test_only_failures_in_a_row_bench_an_arm_and_a_refusal_is_none(between: Failure | None) -> None:
    fake = Fake(lambda call: CallFailed(between or Failure.SERVER) if len(fake.calls) % 2 else "yes")
    if between:
        fake.script = lambda call: CallFailed(between if len(fake.calls) % 2 else Failure.SERVER)
    runner = Runner(Ask("a"), {"a": arm(fake, tries=1)}, bench_after=2)

    async def main() -> None:
        await runner.map("q" * 8, concurrency=1)

    on_virtual_clock(main)
    assert len(fake.calls) == 8


def test_a_burst_of_429s_halves_what_is_sent_at_a_time_once() -> None:
    fake = Fake(fails_first(8, Failure.RATE, retry_after=2))
    at_once(Runner(Ask("a"), {"a": arm(fake, concurrency=8)}), *range(8))
    assert 1 < fake.begun.count(fake.begun[8]) <= 4


def test_where_a_server_asks_for_quiet_no_call_of_the_arm_is_sent() -> None:
    fake = Fake(fails_first(1, Failure.RATE, retry_after=7))
    runner = Runner(Ask("a"), {"a": arm(fake)})

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run, "q")
            await anyio.sleep(2)
            group.start_soon(runner.run, "another")

    on_virtual_clock(main)
    assert fake.begun[1] - fake.begun[0] == pytest.approx(8)


def test_a_call_that_is_cancelled_before_it_is_sent_gives_its_allowance_back() -> None:
    fake = Fake()
    runner = Runner(Ask("a"), {"a": arm(fake, requests_per_minute=1)})

    async def main() -> None:
        await runner.run("q")
        await runner.run("q", deadline=1)
        await runner.run("q")

    on_virtual_clock(main)
    assert fake.begun[1] - fake.begun[0] == pytest.approx(60)


def test_an_idle_hour_saves_up_one_minutes_allowance() -> None:
    fake = Fake(seconds=0.001)
    runner = Runner(12 * Ask("a"), {"a": arm(fake, requests_per_minute=6)})

    async def main() -> None:
        await runner.run("q")
        await anyio.sleep(3600)
        await runner.run("q")

    on_virtual_clock(main)
    assert fake.begun[18] - fake.begun[12] == pytest.approx(10)


def test_a_call_that_may_take_more_than_a_minutes_tokens_is_sent() -> None:
    fake = Fake()
    arms = {"a": arm(fake, tokens_per_minute=10, params={"max_tokens": 1000})}
    assert play(Runner(Ask("a"), arms)).seconds == pytest.approx(1)


def test_limits_are_for_each_model_and_key() -> None:
    one, other = Fake(name="host"), Fake(name="host")
    other.tenant = "another key"
    mine = arm(one, concurrency=1)
    arms = {"a": mine, "b": replace(mine, model="another"), "c": replace(mine, endpoint=other)}
    assert play(Runner(Ask("a") & Ask("b") & Ask("c"), arms)).seconds == pytest.approx(1)


@pytest.mark.parametrize("first", ["tight", "loose"])
def test_of_two_limits_on_a_model_the_tighter_holds(first: str) -> None:
    last = "loose" if first == "tight" else "tight"

    async def main() -> None:
        await Runner(Ask(first), arms).run("q")
        await Runner(Ask(last), arms).map("q" * 30, concurrency=10)

    fake = Fake()
    arms = {"tight": arm(fake, concurrency=2), "loose": arm(fake, concurrency=5)}
    on_virtual_clock(main)
    assert fake.most_flying == 2
    fake = Fake()
    arms = {"tight": arm(fake, requests_per_minute=3), "loose": arm(fake, requests_per_minute=60)}
    on_virtual_clock(main)
    assert fake.begun[5] - fake.begun[0] > 19


def test_the_latency_of_a_reply_is_by_the_arms_clock_and_that_of_a_cached_one_as_it_was() -> None:
    def script(call: Call) -> str:
        call.served_ms = 7.0
        return "yes"

    latency = {}
    for clock in ("ours", "provider"):
        runner = Runner(Ask("a"), {"a": arm(Fake(script), clock=clock)}, cache=Cache())
        latency[clock] = [r.latency for r in (play(runner).attempts[0].reply for _ in range(2)) if r]
    assert latency["ours"] == pytest.approx([1e6, 1e6])
    assert latency["provider"][0] == 7000


def test_an_arm_streams_where_the_strategy_may_cut_it_off() -> None:
    fake = Fake()
    runner = Runner(Ask("a"), {"a": arm(fake)})
    play(runner)
    play(runner, deadline=9)
    assert [c.stream for c in fake.calls] == [False, True]


# --- money


def test_the_cost_is_the_sum_of_all_tries_also_after_a_fallback() -> None:  # PEERS 1, 2, 3
    paid_failures = Fake(fails_first(9, Failure.EMPTY))
    paid_failures.script = lambda call: _after_paying(call, Failure.EMPTY)
    arms = {"a": arm(paid_failures), "b": arm(Fake())}
    result = play(Runner(Ask("a") | Ask("b"), arms))
    assert (result.output, result.cost) == ("yes", 2 * CENT)
    assert result.exact


def _after_paying(call: Call, failure: Failure) -> CallFailed:
    call.usage = Usage(1, 1)
    return CallFailed(failure)


def test_a_task_never_passes_its_budget_however_many_branches_run() -> None:  # PEERS 4, 5
    fake = Fake()
    result = play(Runner(8 * Ask("a"), {"a": arm(fake)}, budget=Budget(task=0.03)))
    assert (result.cost, len(fake.calls)) == (3 * CENT, 3)
    assert all("budget" in str(a) for a in result.failures)
    assert len(result.failures) == 5


def test_a_session_never_passes_its_budget() -> None:
    fake, budget = Fake(), Budget(session=0.10)
    runner = Runner(2 * Ask("a"), {"a": arm(fake)}, budget=budget)

    async def main() -> list[Result]:
        return await runner.map(range(20), concurrency=7)

    results = on_virtual_clock(main)
    assert budget.session.spent == sum(r.cost for r in results) == 10 * CENT
    assert len(fake.calls) == 10


def test_an_arm_never_passes_its_budget_and_the_next_takes_over() -> None:
    big, small = Fake(lambda c: "big"), Fake(lambda c: "small")
    runner = Runner(
        Ask("big") | Ask("small"), {"big": arm(big), "small": arm(small)}, budget=Budget(arms={"big": 0.02})
    )

    async def main() -> list[Result]:
        return await runner.map(range(5), concurrency=1)

    assert [r.output for r in on_virtual_clock(main)] == ["big", "big", "small", "small", "small"]


def test_a_call_waits_where_calls_in_flight_may_leave_room() -> None:
    fake = Fake()  # may write two tokens, and writes one
    runner = Runner(3 * Ask("a"), {"a": arm(fake, params={"max_tokens": 2})}, budget=Budget(task=0.04))
    result = play(runner)
    assert (result.cost, len(fake.calls)) == (3 * CENT, 3)
    assert fake.begun[2] > fake.begun[0]


def test_a_waiting_call_that_is_cancelled_leaves_no_money_set_aside() -> None:
    fake, budget = Fake(seconds=10), Budget(session=0.02)
    runner = Runner(4 * Ask("a"), {"a": arm(fake, concurrency=1)}, budget=budget)
    play(runner, deadline=1)
    assert (budget.session.held, fake.flying) == (0, 0)


def test_an_unpriced_model_is_an_error_unless_told_otherwise() -> None:  # PEERS 6
    arms = {"a": arm(Fake(), price=None)}
    with pytest.raises(Misuse, match="nobody knows what 'a'"):
        Runner(Ask("a"), arms)
    with pytest.raises(Misuse, match="budget cannot be kept"):
        Runner(Ask("a"), arms, unpriced="free", budget=Budget(task=1))
    refused = play(Runner(Ask("a"), arms, unpriced="refuse"))
    assert "unpriced" in str(refused.failures[0])


def test_a_partly_priced_total_is_not_called_exact() -> None:  # PEERS 7
    arms = {"a": arm(Fake(), price=None), "b": arm(Fake())}
    result = play(Runner(Ask("a") & Ask("b"), arms, unpriced="free"))
    assert (result.cost, result.exact) == (CENT, False)
    assert {c.source for a in result.attempts for c in a.calls} == {"unknown", "user"}


def test_cancelled_losers_are_billed_as_an_estimate() -> None:  # PEERS 8
    def slow(call: Call) -> str:
        call.heard = "some words"
        return "no"

    fast, loser = Fake(), Fake(seconds=5)
    result = play(Runner(Gather((Ask("fast"), Ask("slow")), Agree(1)), {"fast": arm(fast), "slow": arm(loser)}))
    assert (result.output, result.seconds, loser.cancelled) == ("yes", pytest.approx(1), 1)
    assert not result.exact
    cancelled = result.attempts[1].calls[0]
    assert (cancelled.cancelled, cancelled.estimated) == (True, True)
    assert result.stragglers == (result.attempts[1],)


def test_worst_cases_must_be_known_under_a_budget() -> None:
    arms = {"a": arm(Fake(), params={})}
    with pytest.raises(Misuse, match="max_tokens"):
        Runner(Ask("a"), arms, budget=Budget(session=1))


@pytest.mark.parametrize("usd", [-1.0, float("nan"), inf])
def test_a_budget_is_a_number(usd: float) -> None:
    with pytest.raises(Misuse, match="USD"):
        Budget(task=usd)


def test_a_strategy_of_unknown_arms_is_refused_before_any_call() -> None:
    with pytest.raises(Misuse, match="'b'"):
        Runner(Ask("b"), {"a": arm(Fake())})


def test_each_try_that_was_paid_counts_once() -> None:  # PEERS 1
    fake = Fake()
    fake.script = lambda call: _after_paying(call, Failure.CUT) if call.number < 3 else "yes"
    result = play(Runner(Ask("a"), {"a": arm(fake)}))
    assert (result.output, result.cost, result.exact) == ("yes", 3 * CENT, True)


TOKENS = Price(input=1000, output=1000)


@pytest.mark.parametrize(
    "failure", ["rate_limited", "server", "connection", "auth", "not_found", "bad_request", "quota"]
)
def test_what_a_provider_turns_away_is_free_unless_some_of_an_answer_came(failure: str) -> None:
    def script(call: Call) -> CallFailed:
        call.heard = "some words" * (call.task == "heard")
        return CallFailed(Failure(failure))

    runner = Runner(Ask("a"), {"a": arm(Fake(script), tries=1, price=TOKENS)})
    free, owed = play(runner), play(runner, "heard")
    assert (free.cost, free.exact, owed.exact) == (0, True, False)
    assert owed.cost == TOKENS.bill(Usage(tokens_of(owed.attempts[0].calls[0].request), 3))


def test_a_call_that_took_too_long_is_billed_by_an_estimate_of_its_input() -> None:
    result = play(Runner(Ask("a"), {"a": arm(Fake(fails_first(1, Failure.TIMEOUT)), tries=1, price=TOKENS)}))
    assert (result.cost > 0, result.exact) == (True, False)


def test_your_own_price_goes_before_what_the_provider_says_it_charged() -> None:
    def script(call: Call) -> str:
        call.reported = 7
        return "yes"

    for price, cost in ((TOKENS, 2_000_000), ("reported", 7)):
        assert play(Runner(Ask("a"), {"a": arm(Fake(script), price=price)})).cost == cost


def test_a_misuse_that_an_endpoint_raises_holds_neither_money_nor_a_place() -> None:
    class Wrong(Fake):
        async def __call__(self, call: Call) -> Answer:
            raise Misuse("on asyncio only")

    budget = Budget(session=1)
    runner = Runner(Ask("a"), {"a": arm(Wrong(), concurrency=1)}, budget=budget)
    for _ in range(2):
        with pytest.raises(Misuse, match="on asyncio only"):
            play(runner)
    assert budget.session.held == 0


@pytest.mark.parametrize(("n", "calls"), [(2, 1), (3, 0)])
def test_a_request_for_several_answers_is_held_for_all_of_them(n: int, calls: int) -> None:
    fake = Fake()
    task = {"messages": [{"role": "user", "content": "q"}], "n": n}
    play(Runner(Ask("a"), {"a": arm(fake)}, budget=Budget(task=0.02)), task)
    assert len(fake.calls) == calls


def test_a_task_with_an_image_keeps_its_budget_where_the_arm_says_most_input() -> None:
    task = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}]
    for most, said in ((None, "most_input"), (100, "")):
        arms = {"a": arm(Fake(), price=TOKENS, most_input=most)}
        result = play(Runner(Ask("a"), arms, budget=Budget(task=1)), task)
        assert (result.answered, said in str(result.attempts[0])) == (most is not None, True)


def test_a_price_that_is_known_once_it_is_paid_keeps_no_budget() -> None:
    with pytest.raises(Misuse, match="budget cannot be kept"):
        Runner(Ask("a"), {"a": arm(Fake(), price="reported")}, budget=Budget(session=1))


def test_a_cached_answer_saves_what_all_its_tries_cost() -> None:
    fake = Fake()
    fake.script = lambda call: _after_paying(call, Failure.CUT) if call.number == 1 else "yes"
    runner = Runner(Ask("a"), {"a": arm(fake)}, cache=Cache())
    assert play(runner).cost == 2 * CENT
    assert play(runner).attempts[0].calls[0].saved == 2 * CENT


def test_a_budget_without_limits_counts_what_is_spent() -> None:
    budget = Budget()
    play(Runner(Ask("a"), {"a": arm(Fake())}, budget=budget))
    assert budget.spent_usd == 0.01


def test_what_a_cancelled_call_owes_is_part_of_the_cost() -> None:
    arms = {"fast": arm(Fake()), "slow": arm(Fake(seconds=5), price=TOKENS)}
    result = play(Runner(Gather((Ask("fast"), Ask("slow")), Agree(1)), arms))
    assert result.cost == CENT + result.attempts[1].price > CENT


def test_a_budget_of_a_task_is_for_each_task_of_many() -> None:
    fake = Fake()
    assert all(r.answered for r in at_once(Runner(Ask("a"), {"a": arm(fake)}, budget=Budget(task=0.01)), *range(5)))


def test_what_a_failed_call_may_have_cost_counts_against_the_budget_at_its_worst() -> None:
    fake = Fake(fails_first(99, Failure.RAISED))  # sent, and nobody knows what it was billed
    runner = Runner(8 * Ask("a"), {"a": arm(fake, params={"max_tokens": 2})}, budget=Budget(task=0.05))
    result = play(runner)
    assert len(fake.calls) == 2  # of at most two cents each
    assert not result.exact


def test_tokens_a_minute_hold_where_a_call_may_take_more_than_a_minutes_allowance() -> None:
    fake = Fake()
    limits = {"tokens_per_minute": 2000, "params": {"max_tokens": 5000}}

    def uses_half(call: Call) -> str:
        call.usage = Usage(0, 1000)
        return "yes"

    fake.script = uses_half
    play(Runner(Gather((Ask("a"),) * 4, Agree(9), inf), {"a": arm(fake, **limits)}))
    assert [round(t - fake.begun[0]) for t in fake.begun] == [0, 30, 60, 90]
