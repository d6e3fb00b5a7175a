"""What a search says of a play is what running the play does."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from playcall.calibration import fit_weight
from playcall.portfolio import best_arm, plays, priced, search, shortlist
from playcall.portfolio.belief import fit_belief
from playcall.strategies import Belief, Vote, Weight, outcomes, vote
from playcall.strategies.replay import Replay

from .made import made


@pytest.mark.parametrize("telling", [True, False])
def test_every_figure_of_a_search_is_that_of_the_replayed_play(telling: bool) -> None:
    recording = made(
        {"a": 0.6, "b": 0.65, "c": 0.7, "d": 0.8}, telling=telling, tasks=120, cost=dict.fromkeys("abcd", 0.01)
    )
    swept = search(recording)
    assert {len(s.stages) for s in swept} == {1, 2, 3}
    for s in random.Random(0).sample(swept, 25):
        for at in range(0, len(s.threshold), 9):
            o = outcomes(s.strategy(at), recording)
            assert (o.quality.mean(), o.cost.mean(), o.latency.mean()) == pytest.approx(
                (s.quality[at], s.cost[at], s.latency[at]), abs=1e-9
            )


def test_plays_are_stages_of_up_to_four_arms_and_each_occurs_once() -> None:
    found = list(plays("abcd"))
    assert len(found) == len(set(found)) == 4 + 2 * 6 + 3 * 4 + 2
    assert (("a", "b"), ("c",)) in found
    assert (("a", "b", "c"), ("d",)) in found


def test_the_shortlist_keeps_the_best_arm_and_none_that_costs_far_more() -> None:
    recording = made({"a": 0.5, "b": 0.7, "c": 0.9, "d": 0.8}, cost={"a": 1, "b": 2, "c": 3, "d": 5})
    assert shortlist(recording) == ("a", "b", "c")
    assert shortlist(recording, most=2)[-1] == "c"


def test_arms_without_a_price_are_never_combined_and_without_any_price_calls_count() -> None:
    recording = made({"a": 0.5, "b": 0.9})
    half = replace(recording, arms={**recording.arms, "b": replace(recording["b"], priced=False)})
    assert list(priced(half).arms) == ["a"]
    none = replace(recording, arms={a: replace(d, priced=False) for a, d in recording.arms.items()})
    assert best_arm(priced(none)) == "b"
    assert (priced(none)["a"].price == 1).all()


def test_a_clone_adds_nothing_to_a_vote() -> None:
    """Three copies of a weak arm must not outvote a strong one, as log-odds weights would let them."""
    recording = made({"weak": 0.6, "strong": 0.75}, tasks=2000, telling=False)
    cloned = replace(recording, arms={**recording.arms, "copy": recording["weak"], "third": recording["weak"]})
    arms = ("weak", "copy", "third", "strong")
    calibrated = {a: fit_weight(a, cloned[a].score[:, 0], cloned[a].quality[:, 0]) for a in arms}
    belief = fit_belief((arms,), cloned, calibrated)
    learned = outcomes(vote(*arms, belief=belief), cloned).quality.mean()
    log_odds = Belief(tuple(Weight(a, calibrated[a].bias) for a in arms))
    assert learned >= outcomes(vote("weak", "strong", belief=belief), cloned).quality.mean() - 1e-9
    assert learned > outcomes(vote(*arms, belief=log_odds), cloned).quality.mean()


def test_a_belief_is_calibrated_on_new_tasks() -> None:
    arms = {"a": 0.55, "b": 0.6, "c": 0.7}
    known, new = made(arms, tasks=600), made(arms, tasks=4000, seed=1)
    calibrated = {a: fit_weight(a, known[a].score[:, 0], known[a].quality[:, 0]) for a in arms}
    belief = fit_belief((("a",), ("b",), ("c",)), known, calibrated)
    panel = Replay(new)(vote(*arms).source)
    sure = belief.posterior(panel).max(axis=1)
    right = outcomes(vote(*arms, belief=belief), new).quality
    for low, high in ((0.0, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.0)):
        these = (sure >= low) & (sure < high)
        assert these.sum() > 50
        assert right[these].mean() == pytest.approx(sure[these].mean(), abs=0.07)
    assert panel.keep(Vote(belief)).alive.sum(axis=1).max() == 1


def test_grades_between_right_and_wrong_are_learned_from() -> None:
    recording = made({"a": 0.6, "b": 0.7})
    softened = {a: replace(d, quality=0.2 + 0.6 * d.quality) for a, d in recording.arms.items()}
    swept = search(replace(recording, arms=softened))
    assert all(np.isfinite(s.quality).all() and (s.quality <= 0.8).all() for s in swept)
