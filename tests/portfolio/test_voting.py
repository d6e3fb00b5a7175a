"""Learned votes: what they must do with clones, strong minorities, silent arms and several forms of data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from playcall.evals.table import read_table
from playcall.portfolio.voting import VotePortfolio, fit_vote, log_likelihood
from playcall.strategies import Belief, Confident, Misuse, NotRecorded, Weight, outcomes, vote
from playcall.strategies.panel import Ints

from .made import made


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([VotePortfolio(), VotePortfolio(select=True)])
def test_it_is_a_scikit_learn_estimator(estimator: VotePortfolio, check: Any) -> None:
    check(estimator)


def codes(*accuracy: float, items: int = 400, seed: int = 0, answers: int = 4) -> tuple[Ints, Ints]:
    """Answer codes of arms that err independently, and the right ones."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, answers, items)
    wrong = (y[:, None] + rng.integers(1, answers, (items, len(accuracy)))) % answers
    return np.where(rng.random((items, len(accuracy))) < accuracy, y[:, None], wrong), y


def test_an_arm_counts_by_what_it_knows() -> None:
    X, y = codes(0.9, 0.7, 0.5)
    model = VotePortfolio().fit(X, y)
    assert model.weights_[0] > model.weights_[1] > model.weights_[2] > 0
    new, right = codes(0.9, 0.55, 0.55, seed=1)
    assert VotePortfolio().fit(*codes(0.9, 0.55, 0.55)).score(new, right) > (np.where(
        new[:, 1] == new[:, 2], new[:, 1], new[:, 0]) == right).mean()  # fmt: skip


def test_three_copies_of_an_arm_do_not_outvote_two_better_ones() -> None:
    X, y = codes(0.75, 0.8, 0.8)
    copies, (new, right) = [0, 0, 0, 1, 2], codes(0.75, 0.8, 0.8, seed=1)
    model = VotePortfolio().fit(X[:, copies], y)
    worth = [float(np.log(3 * p / (1 - p))) for p in (0.75, 0.75, 0.75, 0.8, 0.8)]  # Nitzan and Paroush's
    independent = Belief(tuple(Weight(str(i), w) for i, w in enumerate(worth)))
    naive = outcomes(vote(*"01234", belief=independent), model._recorded(new[:, copies], right, reset=False))
    assert model.score(new[:, copies], right) > naive.quality.mean() + 0.02
    assert model.weights_[:3].sum() < 2 * model.weights_[3]


def test_codes_and_a_recording_of_them_give_one_and_the_same_vote() -> None:
    recording = made({"a": 0.6, "b": 0.7, "c": 0.8}, telling=False)
    X = np.column_stack([d.answer[:, 0] for d in recording.arms.values()])
    right = np.column_stack([d.quality[:, 0] for d in recording.arms.values()]) > 0
    y = np.where(right.any(axis=1), X[np.arange(len(X)), right.argmax(axis=1)], 99)
    ours, theirs = VotePortfolio().fit(recording), VotePortfolio().fit(X, y)
    assert ours.weights_ == pytest.approx(theirs.weights_)
    assert (ours.predict(recording) == theirs.predict(X)).all()
    assert ours.score(recording) == pytest.approx(theirs.score(X, y))


def test_what_it_predicts_is_what_its_play_puts_out() -> None:
    recording = made({"a": 0.6, "b": 0.7, "c": 0.8})
    model = VotePortfolio().fit(recording)
    truth = np.select(
        [d.quality[:, 0] > 0 for d in recording.arms.values()], [d.answer[:, 0] for d in recording.arms.values()], -2
    )
    assert (model.predict(recording) == truth).mean() == pytest.approx(model.score(recording))
    assert outcomes(model.strategy_, recording).quality.mean() == model.score(recording)


def test_confidence_that_tells_is_used_unless_told_not_to() -> None:
    recording, new = made({"a": 0.6, "b": 0.6, "c": 0.6}), made({"a": 0.6, "b": 0.6, "c": 0.6}, seed=1)
    plain = VotePortfolio(calibrated=False).fit(recording)
    assert VotePortfolio().fit(recording).score(new) > plain.score(new) + 0.05
    assert all(w.slope == 0 for w in plain.belief_.weights)


def test_a_great_ridge_leaves_each_arm_its_own_log_odds() -> None:
    X, y = codes(0.9, 0.7, 0.7)
    X = X[:, [0, 1, 1, 2]]
    free, held = VotePortfolio(ridge=0.1).fit(X, y).weights_, VotePortfolio(ridge=1e6).fit(X, y).weights_
    assert held[1] == pytest.approx(held[2])
    assert np.ptp(held[1:]) < np.ptp(free[1:])
    with pytest.raises(Misuse, match="ridge=0"):
        VotePortfolio(ridge=0).fit(X, y)
    with pytest.raises(Misuse, match="folds=0"):
        VotePortfolio(select=True, folds=0).fit(X, y)


def test_silence_is_no_vote() -> None:
    X, y = codes(0.9, 0.6, 0.6)
    X[:50] = -1
    X[50:60, 0] = -1
    model = VotePortfolio().fit(X, y)
    assert (model.predict(X)[:50] == -1).all()
    assert (model.predict(X)[50:] >= 0).all()
    assert model.score(X[:50], y[:50]) == 0


def test_selection_leaves_out_copies_and_guesses() -> None:
    X, y = codes(0.8, 0.7, 0.75, 0.25)
    X = X[:, [0, 0, 1, 2, 3]]
    arms = VotePortfolio(select=True).fit(X, y).arms_
    assert {"2", "3"} < set(arms)
    assert len({"0", "1"} & set(arms)) == 1
    assert "4" not in arms


def test_the_likelihood_is_of_one_event_whoever_votes() -> None:
    recording = made({"a": 0.6, "b": 0.7, "c": 0.5}, telling=False, tasks=60)
    for arms in (("a",), ("a", "b"), ("a", "b", "c")):
        belief = fit_vote(arms, recording)
        # whichever answer of all arms is right, or none: the chances of the events add up to 1
        answers = np.column_stack([d.answer[:, 0] for d in recording.arms.values()])
        total = np.zeros(len(recording))
        for k in range(-1, 5):
            right = {a: replace(d, quality=(d.answer == k) * 1.0) for a, d in recording.arms.items()}
            chance = np.exp(log_likelihood(arms, belief, replace(recording, arms=right)))
            total += np.where((answers == k).any(axis=1) | (k == -1), chance, 0)
        assert total == pytest.approx(np.ones(len(recording)), abs=1e-6)


def test_the_belief_serves_as_a_stop_too() -> None:
    recording = made({"a": 0.6, "b": 0.7, "c": 0.8})
    belief = VotePortfolio().fit(recording).belief_
    early = outcomes(vote("a", "b", "c").source.until(Confident(0.8, belief), gap=np.inf), recording)
    assert 1 < early.calls.mean() < 3


def test_it_refuses_what_it_cannot_learn_from() -> None:
    X, y = codes(0.9, 0.6)
    with pytest.raises(Misuse, match="no answers"):
        VotePortfolio().fit(replace(made({"a": 0.5, "b": 0.6}), texts=()))
    with pytest.raises(Misuse, match="right codes"):
        VotePortfolio().fit(X)
    with pytest.raises(Misuse, match="right codes"):
        VotePortfolio().fit(X, y).score(X)
    with pytest.raises(NotRecorded, match="'a'"):
        VotePortfolio().fit(made({"a": 0.5, "b": 0.6})).predict(made({"c": 0.5}))


def test_on_nine_models_it_beats_the_best_of_them_and_the_majority(shared: Path) -> None:
    recording = read_table(shared / "cascade_mmlu.parquet")
    order = np.random.default_rng(0).permutation(len(recording))
    known, new = recording.take(order[:300]), recording.take(order[300:])
    best = max(known.arms, key=lambda a: known[a].quality.mean())
    majority = outcomes(vote(*recording.arms), new).quality.mean()
    assert VotePortfolio().fit(known).score(new) > max(new[best].quality.mean(), majority) + 0.01
