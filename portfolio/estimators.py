"""What the estimators that learn a strategy share: samples are tasks of a Recording, or rows of grades."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from playcall.strategies import Draws, Misuse, Recording, Replay, Strategy, outcomes
from playcall.strategies.panel import Floats

_NULL = "\x00"  # texts that stand for answers without one begin with it


class LearnsStrategy(BaseEstimator):
    """Learns `strategy_` from a Recording of (tasks, arms), or from an array of (tasks, arms) grades, 0 to 1."""

    strategy_: Strategy

    def predict(self, X: Recording | ArrayLike) -> NDArray[np.object_] | NDArray[np.int64]:
        """(tasks,) the answer that the policy puts out, as text, None where there is none.

        Of grades: (tasks,) the column of the arm whose answer it is.
        """
        check_is_fitted(self)
        recording = self._recorded(X, reset=False)
        panel = Replay(recording)(self.strategy_)
        if not isinstance(X, Recording):
            column = {arm: i for i, arm in enumerate(recording.arms)}
            return np.array([column[a] for a in panel.arm], dtype=np.int64)[panel.output]
        if not recording.answered:
            raise Misuse(f"{recording.name} holds no answers, only grades; use score.")
        codes = np.take_along_axis(panel.answer, np.maximum(panel.output, 0)[:, None], axis=1)[:, 0]
        texts = np.array([*(None if t.startswith(_NULL) else t for t in recording.texts), None], dtype=object)
        return texts[np.where(panel.output >= 0, codes, -1)]

    def score(self, X: Recording | ArrayLike, y: object = None) -> float:
        """Mean quality (0 to 1) of the strategy on these tasks; held out if they are none that it was fitted on."""
        check_is_fitted(self)
        return float(outcomes(self.strategy_, self._recorded(X, reset=False)).quality.mean())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags

    def _recorded(self, X: Recording | ArrayLike, *, reset: bool) -> Recording:
        if not isinstance(X, Recording):
            scores = self._grades(X, reset=reset)
            names = getattr(self, "feature_names_in_", range(scores.shape[1]))
            return graded(scores, [str(a) for a in names])
        if reset:
            self.n_features_in_ = len(X.arms)
            self.feature_names_in_ = np.array(list(X.arms), dtype=object)
        return X

    def _grades(self, X: ArrayLike, *, reset: bool) -> Floats:
        scores = validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)
        if scores.min() < 0 or scores.max() > 1:
            what = f"grades run from {scores.min():.3g} to {scores.max():.3g} and are clipped to 0..1"
            warnings.warn(f"{type(self).__name__}: {what}; divide by the best possible grade first.", stacklevel=4)
        return np.asarray(np.clip(scores, 0.0, 1.0))


def graded(scores: Floats, names: list[str]) -> Recording:
    """(tasks, arms) grades as a Recording without answers, costs and latencies."""
    n = len(scores)
    blank, whole = np.full((n, 1), np.nan), np.zeros((n, 1), dtype=np.int64)
    arms = {
        arm: Draws(whole, blank, whole > 0, whole, whole + 1, scores[:, [i]], priced=False, timed=False)
        for i, arm in enumerate(names)
    }
    return Recording(tuple(map(str, range(n))), arms, (), "X")
