"""What a call owes its user: retries, limits, budgets, bills. On the virtual clock."""

from math import inf

import anyio
import pytest

from playcall.strategies import Agree, Ask, Gather, Misuse, Vote, on_virtual_clock
from playcall.strategies.budget import Budget
from playcall.strategies.call import Call, CallFailed, Failure
from playcall.strategies.limits import BENCH_AFTER
from playcall.strategies.live import Result
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


# --- money


def test_the_cost_is_the_sum_of_all_tries_also_after_a_fallback() -> None:  # PEERS 1, 2, 3
    paid_failures = Fake(fails_first(9, Failure.EMPTY))
    paid_failures.script = lambda call: _after_paying(call, Failure.EMPTY)
    arms = {"a": arm(paid_failures), "b": arm(Fake())}
    result = play(Runner(Ask("a") | Ask("b"), arms))
    assert (result.output, result.cost) == ("yes", 2 * CENT)
    assert result.exact


def _after_paying(call: Call, failure: Failure) -> CallFailed:
    from playcall.strategies.call import Usage

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
