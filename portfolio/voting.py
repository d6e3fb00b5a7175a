"""How much each arm's vote counts, learned jointly, so that arms that err together do not count twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from playcall.calibration import fit_weight
from playcall.portfolio.belief import fit_belief
from playcall.strategies import Belief, Draws, Misuse, Recording, Replay, Strategy, Weight, outcomes, vote
from playcall.strategies.panel import Floats, Ints, Mask, Panel

_LEAST_GAIN = 0.002  # nats an item that one more arm must bring


class VotePortfolio(BaseEstimator):
    """A weighted vote over answers: a conditional logit over the answers given, and none of them (McFadden 1974).

    The answer with the greatest sum of log-odds wins. With weights log((K - 1) p / (1 - p)) that would be Nitzan and
    Paroush's (1982) vote, optimal where errors are independent; here all arms enter one likelihood, so that what two
    arms say alike is counted once. The fit is `fit_belief` with one stage. Each arm's first draw counts.

    Parameters
    ----------
    ridge : pulls every arm's weight towards 0.7 of its own log-odds. Held out on nine arms 9 did better by 0.2 points
        with 50 labels, and 3 as well or better from 100.
    calibrated : True: an answer counts by its calibrated confidence where one was recorded; False: by its arm alone.
    select : True: arms are added one at a time, while that raises the cross-validated log-likelihood; False: all vote.
        On nine arms (cascade_mmlu, cascade_medmcqa) it kept three or four, gained 0.5 points of quality at 300 labels,
        none at 100, and lost 0.7 at 50.
    folds, random_state : of that cross-validation.

    Attributes
    ----------
    arms_ : names of the arms that vote (numbers as text where X was an array), in the order they were added.
    weights_ : (arms,) log-odds that an answer of each of `arms_` lends, mean over its answers.
    belief_ : the `Belief`, for `Vote(belief)` and `Confident(threshold, belief)`.
    strategy_ : the vote as a play.
    """

    def __init__(
        self,
        *,
        ridge: float = 3.0,
        calibrated: bool = True,
        select: bool = False,
        folds: int = 5,
        random_state: int = 0,
    ) -> None:
        self.ridge = ridge
        self.calibrated = calibrated
        self.select = select
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: Recording | ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from a Recording, whose grades say what was right; or from (items, arms) answer codes and y.

        As codes: equal numbers are equal answers, a negative one is no answer, y (items,) is the right one.
        """
        if not 0 < self.ridge < np.inf:
            raise Misuse(f"VotePortfolio(ridge={self.ridge!r}): give a number above zero.")
        if self.select and not (isinstance(self.folds, int | np.integer) and self.folds >= 2):
            raise Misuse(f"VotePortfolio(folds={self.folds!r}): give a whole number of 2 or more.")
        recording = self._recorded(X, y, reset=True)
        arms = self._chosen(recording) if self.select else tuple(recording.arms)
        self.arms_, self.belief_ = arms, fit_vote(arms, recording, calibrated=self.calibrated, ridge=self.ridge)
        self.strategy_: Strategy = vote(*arms, belief=self.belief_)
        given = [recording[a].score[~recording[a].failed[:, 0], 0] for a in arms]
        known = {w.arm: w for w in self.belief_.weights}
        self.weights_ = np.array([known[a](s).mean() if len(s) else 0.0 for a, s in zip(arms, given)])
        return self

    def predict(self, X: Recording | ArrayLike) -> Ints:
        """(items,) code of the chosen answer, as in Recording.texts or in X; -1 where no arm that votes answered."""
        check_is_fitted(self)
        recording = self._recorded(X, None, reset=False)
        panel = Replay(recording)(self.strategy_)
        answer = np.take_along_axis(panel.answer, np.maximum(panel.output, 0)[:, None], axis=1)[:, 0]
        return np.where(panel.output >= 0, answer, -1) if isinstance(X, Recording) else self._codes(X, panel)

    def score(self, X: Recording | ArrayLike, y: ArrayLike | None = None) -> float:
        """Mean grade of the chosen answers."""
        check_is_fitted(self)
        if y is None and not isinstance(X, Recording):
            raise Misuse("VotePortfolio.score: give the right codes, y, beside answer codes.")
        return float(outcomes(self.strategy_, self._recorded(X, y, reset=False)).quality.mean())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _codes(self, X: ArrayLike, panel: Panel) -> Ints:
        given = np.asarray(X)
        column = np.array([int(a) for a in self.arms_])[np.maximum(panel.output, 0)]
        return np.where(panel.output >= 0, given[np.arange(len(given)), column], -1)

    def _recorded(self, X: Recording | ArrayLike, y: ArrayLike | None, *, reset: bool) -> Recording:
        if isinstance(X, Recording):
            if not X.answered:
                raise Misuse(f"{X.name} holds no answers, only grades; a vote needs answers that can agree.")
            return X
        if y is None and reset:
            raise Misuse("VotePortfolio.fit: requires y to be passed, but the target y is None; give the right codes.")
        if y is None:
            codes, right = validate_data(self, X, reset=reset), None
        else:
            codes, right = validate_data(self, X, y, reset=reset, ensure_min_samples=2 if reset else 1)
        texts, flat = np.unique(codes, return_inverse=True)
        answer, failed = flat.reshape(codes.shape).astype(np.int64), np.asarray(codes) < 0
        quality = np.zeros(codes.shape) if right is None else ((codes == np.asarray(right)[:, None]) & ~failed) * 1.0
        n, m = codes.shape
        blank, free, quick = np.full((n, 1), np.nan), np.zeros((n, 1), np.int64), np.ones((n, 1), np.int64)
        arms = {
            str(a): Draws(answer[:, [a]], blank, failed[:, [a]], free, quick, quality[:, [a]], False, False)
            for a in range(m)
        }
        return Recording(tuple(map(str, range(n))), arms, tuple(map(str, texts)), "X")

    def _chosen(self, recording: Recording) -> tuple[str, ...]:
        """Forward selection."""
        arms: tuple[str, ...] = ()
        best = -np.inf
        while left := [a for a in recording.arms if a not in arms]:
            gains = [self._fitness((*arms, a), recording) for a in left]
            if max(gains) < best + (_LEAST_GAIN if arms else 0):
                break
            best = max(gains)
            arms = (*arms, left[gains.index(best)])
        return arms

    def _fitness(self, arms: Sequence[str], recording: Recording) -> float:
        n = len(recording)
        order = np.random.default_rng(self.random_state).permutation(n)
        parts = np.array_split(order, min(self.folds, n))
        total = 0.0
        for part in parts:
            known = recording.take(np.setdiff1d(np.arange(n), part))
            belief = fit_vote(arms, known, calibrated=self.calibrated, ridge=self.ridge)
            total += float(log_likelihood(arms, belief, recording.take(part)).sum())
        return total / n


def fit_vote(arms: Sequence[str], recording: Recording, *, calibrated: bool = True, ridge: float = 3.0) -> Belief:
    """The belief of a vote of these arms; see `fit_belief`."""
    weights: dict[str, Weight] = {}
    for a in arms:
        d = recording[a]
        score = d.score[:, 0] if calibrated else np.full(len(recording), np.nan)
        weights[a] = fit_weight(a, score, d.quality[:, 0])
    return fit_belief((tuple(arms),), recording, weights, ridge=ridge)


def log_likelihood(arms: Sequence[str], belief: Belief, recording: Recording) -> Floats:
    """(items,) log-probability, in nats, of which answer of all the recording's arms is right, or that none is.

    A belief about few arms leaves the answers that they did not give to "none of these", which is spread evenly over
    them, so that beliefs about different arms are told apart by one and the same event. Several right answers share
    the item.
    """
    every = Replay(recording)(vote(*recording.arms).source)
    own = Replay(recording)(vote(*arms).source)
    sure = belief.posterior(own)
    quality = np.stack([recording[a].quality[:, 0] for a in every.arm], axis=1)
    first = every.alive & ~_repeats(every)
    chance, seen = np.zeros(first.shape), np.zeros(first.shape, dtype=bool)
    for k in range(len(own.arm)):
        same = (every.answer == own.answer[:, [k]]) & own.alive[:, [k]] & every.alive
        chance, seen = np.where(same, sure[:, [k]], chance), seen | same
    unseen = (first & ~seen).sum(axis=1)
    other = np.maximum(1 - np.where(first, chance, 0).sum(axis=1), 1e-6) / (1 + unseen)
    chance = np.where(seen, chance, other[:, None])
    right = np.where(first, quality, 0.0)
    right = right / np.maximum(right.sum(axis=1, keepdims=True), 1.0)
    none = 1 - right.sum(axis=1)
    return np.asarray((right * np.log(np.maximum(chance, 1e-6))).sum(axis=1) + none * np.log(other))


def _repeats(panel: Panel) -> Mask:
    same = (panel.answer[:, :, None] == panel.answer[:, None, :]) & panel.alive[:, :, None] & panel.alive[:, None, :]
    return (same & np.tri(len(panel.arm), k=-1, dtype=bool)).any(axis=2)
