"""Agents as arms: any function, its roles filled by name, its calls accounted for."""

import threading
import time
from functools import partial

import anyio
import pytest

from playcall.strategies import Ask, Misuse, Vote, on_virtual_clock
from playcall.strategies.agent import Agent, Models
from playcall.strategies.arm import Arm
from playcall.strategies.budget import Budget
from playcall.strategies.cache import Cache
from playcall.strategies.call import Answer, Failure
from playcall.strategies.runner import Runner

from .fakes import Fake, arm, fails_first

CENT = 10_000_000
AGENT = Ask("agent")


def run(function, *, models=None, task: object = "q", others=None, play=AGENT, **settings):
    arms = {"agent": Arm(Agent(function, models), "agent", **{"price": "free", **settings}), **(others or {})}
    return Runner(play, arms).run_sync(task)


async def later(task: str, models: Models) -> str:
    await anyio.sleep(0)
    return f"{task} by {models['solver']}"


def now(task: str, models: Models) -> str:
    return f"{task} by {models['solver']}"


class Later:
    async def __call__(self, task: str, models: Models) -> str:
        return f"{task} by {models['solver']}"


@pytest.mark.parametrize("function", [later, now, Later(), lambda task, models: later(task, models)])
def test_any_function_is_an_arm(function) -> None:
    assert run(function, models={"solver": "mini"}).output == "q by mini"


def test_its_output_may_be_any_json_and_equal_ones_agree() -> None:
    draws = iter([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 3}])
    result = run(lambda task, models: next(draws), play=(3 * Ask("agent")).keep(Vote()))
    assert result.output in ({"a": 1, "b": 2},)


def test_it_may_say_how_sure_it_is_and_what_it_spent() -> None:
    result = run(lambda task, models: (Answer("yes", score=0.75), 0.02), price="reported")
    assert (result.output, result.panel.score[0, 0], result.cost) == ("yes", 0.75, 2 * CENT)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda task, models: 1 / 0, "raised: ZeroDivisionError"),
        (lambda task, models: None, "empty"),
        (lambda task, models: "", "empty"),
        (lambda task, models: models["critic"], "the agent asks for the role 'critic'"),
    ],
)
def test_what_it_raises_is_the_failure_of_that_call(function, said: str) -> None:
    if "role" in said:
        with pytest.raises(Misuse, match=said):
            run(function)
    else:
        result = run(function)
        assert said in str(result.failures[0])


def test_its_calls_may_go_through_playcall_by_role() -> None:
    async def agent(task: str, models: Models) -> str:
        plan = await models.ask("planner", f"plan {task}")
        return str(await models.ask("solver", plan))

    roles = {"big": arm(Fake(lambda c: "a plan", seconds=0)), "mini": arm(Fake(lambda c: f"did {c.task}", seconds=0))}
    result = run(agent, models={"planner": "big", "solver": "mini"}, others=roles, price="calls")
    assert (result.output, result.cost, result.exact) == ("did a plan", 2 * CENT, True)
    assert {(c.role, c.arm) for a in result.attempts for c in a.calls} == {
        ("answer", "agent"),
        ("planner", "big"),
        ("solver", "mini"),
    }


def test_also_from_a_function_that_is_not_async() -> None:
    def agent(task: str, models: Models) -> str:
        return str(models.ask_sync("solver", task))

    result = run(agent, models={"solver": "mini"}, others={"mini": arm(Fake(seconds=0))}, price="calls")
    assert (result.output, result.cost) == ("yes", CENT)


def test_the_same_question_again_is_another_draw() -> None:
    draws = []

    async def agent(task: str, models: Models) -> str:
        return "".join([str(await models.ask("solver", task)) for _ in range(3)])

    def script(call) -> str:
        draws.append(call.draw)
        return "x"

    run(agent, models={"solver": "mini"}, others={"mini": arm(Fake(script, seconds=0))}, price="calls")
    assert draws == [0, 1, 2]


def test_budgets_hold_inside_an_agent() -> None:
    async def agent(task: str, models: Models) -> str:
        return "".join([str(await models.ask("solver", task)) for _ in range(9)])

    fake = Fake(seconds=0)
    arms = {"agent": Arm(Agent(agent, {"solver": "mini"}), "agent", price="calls"), "mini": arm(fake)}
    result = Runner(Ask("agent"), arms, budget=Budget(task=0.03)).run_sync("q")
    assert (result.answered, result.cost, len(fake.calls)) == (False, 3 * CENT, 3)
    assert "budget" in str(result.failures[0])


def test_an_agent_that_takes_too_long_is_cut_off() -> None:
    async def slow(task: str, models: Models) -> str:
        await anyio.sleep(60)
        return "late"

    assert "timeout" in str(run(slow, timeout=0.01, tries=1).failures[0])
    began = time.monotonic()
    assert "timeout" in str(run(lambda task, models: time.sleep(0.3), timeout=0.01, tries=1).failures[0])
    assert time.monotonic() - began < 0.3


def test_outside_playcall_models_are_names_only() -> None:
    models = Models({"solver": "mini"})
    assert dict(models) == {"solver": "mini"}
    with pytest.raises(Misuse, match="outside playcall"):
        anyio.run(models.ask, "solver", "q")


def test_a_cached_agent_tells_what_it_cost_with_all_its_calls() -> None:
    async def agent(task: str, models: Models) -> list[str]:
        return [str(await models.ask("solver", task)) for _ in range(2)]

    arms = {"agent": Arm(Agent(agent, {"solver": "mini"}), "agent", price="calls"), "mini": arm(Fake(seconds=0))}
    runner = Runner(Ask("agent"), arms, cache=Cache())
    fresh, again = runner.run_sync("q"), runner.run_sync("q")
    assert (fresh.cost, again.cost, again.output) == (2 * CENT, 0, ["yes", "yes"])
    assert again.attempts[0].calls[0].saved == 2 * CENT


@pytest.mark.parametrize("output", [0, False, [], {}])
def test_an_output_may_be_falsy(output: object) -> None:
    assert run(lambda task, models: output).output == output


def test_draws_of_an_agent_ask_its_models_for_draws_of_their_own() -> None:
    async def agent(task: str, models: Models) -> str:
        return str(await models.ask("solver", task))

    fake = Fake(seconds=0)
    arms = {"agent": Arm(Agent(agent, {"solver": "mini"}), "agent", price="calls"), "mini": arm(fake)}
    Runner(2 * Ask("agent"), arms, cache=Cache()).run_sync("q")
    assert len(fake.calls) == 2


def test_a_retry_inside_an_agent_that_cannot_finish_in_time_is_not_started() -> None:
    async def agent(task: str, models: Models) -> str:
        return str(await models.ask("solver", task))

    fake = Fake(fails_first(1, Failure.RATE, retry_after=7))
    arms = {"agent": Arm(Agent(agent, {"solver": "mini"}), "agent", price="calls", tries=1), "mini": arm(fake)}
    result = on_virtual_clock(partial(Runner(Ask("agent"), arms).run, "q", deadline=5))
    assert result.seconds == pytest.approx(1)
    assert "rate_limited" in str(result.failures[0])


def test_functions_of_one_name_share_no_cached_answer() -> None:
    cache = Cache()
    for text in "xy":
        arms = {"agent": Arm(Agent(lambda task, models, text=text: text), "agent", price="free")}
        assert Runner(Ask("agent"), arms, cache=cache).run_sync("q").output == text


def test_sixty_agents_that_wait_for_each_other_run_at_once() -> None:
    together = threading.Barrier(60)
    result = run(lambda task, models: str(together.wait(5)), play=60 * Ask("agent"))
    assert not result.failures


def test_the_models_of_an_agent_must_be_priced_before_any_call() -> None:
    arms = {
        "agent": Arm(Agent(later, {"solver": "mini"}), "agent", price="calls"),
        "mini": arm(Fake(seconds=0), price=None),
    }
    with pytest.raises(Misuse, match="nobody knows what 'mini'"):
        Runner(Ask("agent"), arms)
