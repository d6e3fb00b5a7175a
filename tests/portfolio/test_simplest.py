"""The one-standard-error rule: fewer calls where nothing is lost, as far as the tasks can tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from playcall.portfolio import Target, choose, search
from playcall.portfolio.simplest import expectation, settle, standard_error
from playcall.strategies import Ask, Misuse, Recording, Strategy, arms_of, outcomes

from .made import made

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85}


def noise(seed: int, tasks: int = 60) -> Recording:
    """Arms of equal quality and price, whose answers are never equal and whose confidences tell nothing."""
    even = made(dict.fromkeys("abcde", 0.6), cost=dict.fromkeys("abcde", 0.001), tasks=tasks, seed=seed)
    rng = np.random.default_rng(seed)
    arms = {
        a: replace(d, answer=np.arange(tasks)[:, None] + tasks * i, score=rng.random((tasks, 1)))
        for i, (a, d) in enumerate(even.arms.items())
    }
    return replace(even, arms=arms, texts=tuple(map(str, range(5 * tasks))))


def test_without_a_fallback_it_is_choose() -> None:
    for target in (
        Target(),
        Target(max_share=1.5),
        Target(max_drop=0.02),
        Target(max_latency=2.0),
        Target(cost_weight=5),
    ):
        recording = made(ARMS, tasks=80)
        swept = search(recording)
        assert settle(swept, recording, target, "none") == choose(swept, recording, target)


def test_on_noise_a_single_arm_is_chosen_nine_times_in_ten() -> None:
    target, single, before = Target(max_share=1.5), 0, 0
    for seed in range(10):
        recording = noise(seed)
        swept = search(recording)
        single += isinstance(settle(swept, recording, target).strategy, Ask)
        before += isinstance(choose(swept, recording, target).strategy, Ask)
    assert single >= 9
    assert before < 9


@pytest.mark.parametrize("target", [Target(max_share=1.5), Target(max_share=0.5), Target(max_drop=0.0)])
def test_a_cascade_that_is_better_by_more_than_noise_stays(target: Target) -> None:
    recording = made(ARMS, tasks=400)
    assert len(arms_of(settle(search(recording), recording, target).strategy)) > 1


def test_what_is_given_up_is_within_one_standard_error_and_the_limits_are_kept() -> None:
    target = Target(max_share=1.5)
    tried = ((recording, search(recording)) for recording in map(noise, range(9)))
    recording, swept = next((r, s) for r, s in tried if len(arms_of(choose(s, r, target).strategy)) > 1)
    best, simple = choose(swept, recording, target), settle(swept, recording, target)
    assert best.strategy != simple.strategy
    lost = outcomes(best.strategy, recording).quality - outcomes(simple.strategy, recording).quality
    given = expectation(best.strategy, swept, recording) - expectation(simple.strategy, swept, recording)
    assert 0 <= given <= standard_error(lost)
    assert simple.cost <= 1.5 * 1e6


def test_a_target_that_nothing_keeps_stays_so() -> None:
    recording = made(ARMS, tasks=80)
    assert not settle(search(recording), recording, Target(min_quality=0.9999)).feasible


def test_what_a_play_is_expected_to_do_is_what_the_search_says_at_every_threshold() -> None:
    recording = made(ARMS, tasks=80)
    swept = search(recording)
    plays: dict[Strategy, float] = {
        s.strategy(at): s.expected[at] for s in swept for at in range(0, len(s.expected), 9)
    }
    for strategy, expected in plays.items():
        assert expectation(strategy, swept, recording) == pytest.approx(expected, abs=0.03)
    assert expectation(Ask("large"), [], recording) == recording["large"].quality.mean()


def test_an_unknown_fallback_is_refused() -> None:
    recording = made(ARMS, tasks=40)
    with pytest.raises(Misuse, match="'none' or 'one_se'"):
        settle([], recording, Target(), "two_se")  # type: ignore[arg-type]
