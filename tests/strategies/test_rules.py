"""What a user may rely on when a rule or a stop decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log, nan

import numpy as np
import pytest
from scipy.stats import beta

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Belief,
    Best,
    Confident,
    Consistent,
    Explain,
    First,
    Gather,
    Misuse,
    Never,
    Panel,
    Rule,
    Stop,
    Template,
    Vote,
    Weight,
    dump,
    load,
)

BELIEF = Belief((Weight("a", 0.5, 2.0), Weight("b", 1.0), Weight("c", -1.0)), other=0.3, dissent=0.2)


def panel(answers: str, scores: Sequence[float] = (), arms: str = "", alive: Sequence[bool] = ()) -> Panel:
    """One task: a call for each letter of `answers`."""
    n = len(answers)
    return Panel(
        arm=tuple(arms or "a" * n),
        draw=tuple(range(n)),
        answer=np.array([[ord(x) for x in answers]], dtype=np.int64).reshape(1, n),
        score=np.array([scores or [nan] * n], dtype=np.float64),
        alive=np.array([alive or [True] * n], dtype=np.bool_),
        issued=np.zeros((1, n), dtype=np.int64),
        price=np.zeros((1, n), dtype=np.int64),
        failed=np.zeros((1, n), dtype=np.bool_),
        end=np.ones(1, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("rule", "of", "kept"),
    [
        (AtLeast(0.5), panel("xyz", [0.5, 0.4, nan]), [0]),
        (AtLeast(-inf), panel("xy", [-inf, nan]), [0]),
        (Best(), panel("xyz", [0.2, 0.9, 0.9]), [1]),
        (Best(), panel("xyz", [nan, -7.0, nan]), [1]),
        (Best(), panel("xy", [nan, -inf]), [1]),
        (Best(), panel("xy", [nan, nan]), [0]),
        (Best(), panel("xy", [0.9, 0.1], alive=[False, True]), [1]),
        (First(), panel("xyz", alive=[False, True, True]), [1]),
        (Vote(), panel("xyyx"), [0]),
        (Vote(), panel("xyy"), [1]),
        (Vote(), panel("xxy", alive=[True, False, True]), [0]),
        (Vote(Belief.of(small=0.9, big=2.0)), panel("xxy", arms=["small", "small", "big"]), [2]),
        (Vote(Belief.of(small=1.1, big=2.0)), panel("xxy", arms=["small", "small", "big"]), [0]),
        (Vote(Belief.of(small=1.0, big=2.0)), panel("yxx", arms=["big", "small", "small"]), [0]),
        (Vote(Belief.of(a=-2.0, b=-1.0)), panel("xy", arms="ab"), [1]),
        (Vote(Belief((Weight("a", 0.0, 1.0),))), panel("xxy", [0.3, 0.3, 0.7]), [2]),
        (Vote(Belief((Weight("a", 0.0, 1.0, missing=5.0),))), panel("xy", [nan, 4.0]), [0]),
        (Vote(Belief((Weight("a", 0.0, 1.0),))), panel("xy", [0.5, inf]), [1]),
    ],
)
def test_a_rule_keeps_what_its_name_says_and_the_first_of_equals(rule: Rule, of: Panel, kept: list[int]) -> None:
    assert np.flatnonzero(of.keep(rule).alive).tolist() == kept


@pytest.mark.parametrize(
    ("stop", "of", "enough"),
    [
        (Never(), panel("xx", [1.0, 1.0]), False),
        (Agree(1), panel("x"), True),
        (Agree(2), panel("xyx"), True),
        (Agree(2), panel("xx", alive=[True, False]), False),
        (Confident(0.9), panel("xy", [0.89, 0.9]), True),
        (Confident(0.9), panel("xy", [0.89, 0.9], alive=[True, False]), False),
        (Confident(0.0), panel("x"), False),
        (Confident(0.5, Belief.of(a=0.0)), panel("x"), True),
        (Confident(0.5, Belief.of(a=0.0)), panel("xy"), False),
        (Consistent(0.95), panel("xxxx"), True),
        (Consistent(0.95), panel("xxx"), False),
        (Consistent(0.95), panel("xyxxxxx"), True),
        (Consistent(0.95), panel("xyxxxx"), False),
        (Consistent(0.95), panel("xyzxxxx" + "xvw"), True),
        (Consistent(0.95), panel("xxxx", alive=[True, True, True, False]), False),
        (Consistent(0.51), panel("xyxy"), False),
    ],
)
def test_a_stop_holds_when_its_name_says(stop: Stop, of: Panel, enough: bool) -> None:
    assert stop(of).tolist() == [enough]


@pytest.mark.parametrize(
    "of", [panel(""), panel("xy", [1.0, 1.0], alive=[False, False])], ids=["no call", "all failed"]
)
@pytest.mark.parametrize("belief", [None, BELIEF, Belief(BELIEF.weights, other=-inf)])
def test_where_nothing_survived_nothing_is_kept_and_nothing_is_enough(of: Panel, belief: Belief | None) -> None:
    with np.errstate(all="raise"):
        for rule in (AtLeast(-inf), Best(), First(), Vote(belief)):
            assert not of.keep(rule).accepted.any()
        for stop in (Agree(1), Confident(0.0, belief), Consistent(0.51), Never()):
            assert stop(of).tolist() == [False]


@pytest.mark.parametrize("threshold", [0.6, 0.75, 0.9, 0.95, 0.99, 0.9999])
def test_consistent_is_the_beta_rule_at_all_counts(threshold: float) -> None:
    """P(p > 1/2) for p ~ Beta(a + 1, b + 1); Aggarwal et al. 2023, equation 2."""
    for b in range(8):
        for a in range(b, 30):
            enough = beta.sf(0.5, a + 1, b + 1) >= threshold
            assert Consistent(threshold)(panel("x" * a + "y" * b)).tolist() == [enough], (a, b)


def test_consistent_judges_each_row_by_its_own_votes() -> None:
    both = panel("xxxxy")
    both = replace(
        both,
        answer=np.array([[1, 1, 1, 1, 2], [3, 3, 3, 3, 3]]),
        **{k: np.repeat(getattr(both, k), 2, axis=0) for k in ("score", "alive", "issued", "price", "failed", "end")},
    )
    assert Consistent(0.95)(both).tolist() == [False, True]


@pytest.mark.parametrize("threshold", [0.5, 1.0, 95, -0.1, nan])
def test_consistent_refuses_what_is_no_probability_between_a_half_and_one(threshold: float) -> None:
    with pytest.raises(Misuse, match=r"above 0\.5, such as 0\.95, and below 1"):
        Consistent(threshold)


def test_consistent_is_saved_loaded_and_said_in_words() -> None:
    play = Gather((Ask("a"),) * 6, Consistent(0.9), inf).keep(Vote())
    assert load(dump(play)) == play
    assert Explain()(play) == (
        "one after another, ask a 6 times, until the leading answer is ahead for good with probability 0.9 or more; "
        "keep the answer with most votes."
    )


@pytest.mark.parametrize("score", [0.02, 0.7, 0.999])
@pytest.mark.parametrize(
    ("scale", "line"),
    [("raw", lambda s: s), ("probability", lambda s: log(s / (1 - s))), ("logprob", lambda s: -log(s))],
)
def test_a_belief_in_one_candidate_is_the_logistic_curve(scale: str, line: object, score: float) -> None:
    belief = Belief((Weight("a", -0.4, 1.7, scale),), other=0.2)
    raw = -score if scale == "logprob" else score
    logistic = 1 / (1 + exp(-(-0.4 + 1.7 * line(score) - 0.2)))
    assert belief.posterior(panel("x", [raw]))[0, 0] == pytest.approx(logistic, abs=1e-6)


def test_beliefs_in_the_answers_and_in_none_of_them_add_up_to_one() -> None:
    """Answer x has log-odds (0.5 + 2 * 0.4) + 1.0, answer y -1.0, none of them 0.3 and 0.2 for the second answer."""
    p = BELIEF.posterior(panel("xyxz", [0.4, nan, nan, nan], arms="acbc", alive=[True, True, True, False]))[0]
    odds = np.exp([2.3, -1.0, 0.5])
    assert p == pytest.approx([*(odds / odds.sum())[[0, 1, 0]], 0.0], abs=1e-6)


def test_a_belief_refuses_an_arm_that_it_has_no_weight_for_by_name() -> None:
    with pytest.raises(Misuse, match=r"no weight for the arm 'mini'; it knows \['big', 'small'\]"):
        Vote(Belief.of(small=1.0, big=2.0))(panel("xy", arms=["small", "mini"]))


def test_a_template_fills_in_the_task_and_numbered_answers_and_nothing_that_they_say() -> None:
    text = Template("{task}: {answers}")("add {answers}", ["{task}", "2"])
    assert text == "add {answers}: 1. {task}\n2. 2"
