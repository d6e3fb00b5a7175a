"""The learner of portfolios as a scikit-learn estimator, whose samples are tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from playcall.portfolio.choice import Target
from playcall.portfolio.estimators import LearnsStrategy
from playcall.portfolio.nested import Figures
from playcall.portfolio.policy import Policy
from playcall.portfolio.simplest import Fallback
from playcall.portfolio.studies import Study, study
from playcall.strategies import NANO, Misuse, Recording, outcomes


class PortfolioLearner(LearnsStrategy):
    """Which calls to make, in which order, and when to stop, learned from recorded calls.

    X is a `Recording` of (tasks, arms), which scikit-learn splits by tasks; there is no y, as grades are recorded. Or X
    is an array of (tasks, arms) grades from 0 to 1, of which a single arm is chosen by the same search. Without any
    limit or weight: the best quality at no more than the best single arm's cost.

    Parameters
    ----------
    max_cost, max_share : most USD a task, or that as a share of the best single arm's cost.
    max_latency, max_latency_p95 : most seconds a task, on average and for 95% of the tasks.
    min_quality, max_drop : least quality (0 to 1), or how far it may lie below the best single arm's. The cheapest play
        that keeps it is chosen.
    cost_weight, latency_weight : how much quality one USD, and one second, is worth.
    fallback : "one_se" takes the best play of the fewest calls that is within one standard error of the best one,
        "none" the best one.
    folds, repeats, random_state : of the nested cross-validation that all figures come from.

    Attributes
    ----------
    best_policy_ : `Policy`, with its figures; `save` writes it as JSON.
    strategy_ : its strategy.
    frontier_ : pandas DataFrame, a row for each `Point` by rising cost: name, words, max_share; apparent, held_out
        (None: see `study`), quality, quality_low, quality_high (0 to 1); cost_per_task (USD), latency_mean,
        latency_p95 (seconds), calls; difference, difference_low, difference_high (to the best single arm). None or NaN
        where not recorded.
    cv_results_ : dict of arrays, (candidates,) each, of the frontier's plays and then the simple baselines: name,
        words, kind ("policy", "frontier" or "baseline"), mean_test_quality, mean_test_quality_low and _high,
        mean_cost (USD), mean_latency (seconds), mean_calls, mean_difference; rank_test_quality, 1 is best.
    optimism_ : quality of the policy on all tasks, less that by nested cross-validation.
    study_ : `Study`, all that there is to say of it.
    recording_ : the Recording that was learned from; an array becomes one.
    n_features_in_, feature_names_in_ : how many arms, and their names ((arms,); of an array only where it has names).
    """

    def __init__(
        self, *, max_cost: float | None = None, max_share: float | None = None, max_latency: float | None = None,
        max_latency_p95: float | None = None, min_quality: float | None = None, max_drop: float | None = None,
        cost_weight: float = 0.0, latency_weight: float = 0.0, fallback: Fallback = "none", folds: int = 5,
        repeats: int = 1, random_state: int = 0,
    ) -> None:  # fmt: skip
        self.max_cost = max_cost
        self.max_share = max_share
        self.max_latency = max_latency
        self.max_latency_p95 = max_latency_p95
        self.min_quality = min_quality
        self.max_drop = max_drop
        self.cost_weight = cost_weight
        self.latency_weight = latency_weight
        self.fallback = fallback
        self.folds = folds
        self.repeats = repeats
        self.random_state = random_state

    @property
    def target(self) -> Target:
        """What the parameters ask for."""
        return Target(
            max_cost=self.max_cost,
            max_share=self.max_share,
            max_latency=self.max_latency,
            max_latency_p95=self.max_latency_p95,
            min_quality=self.min_quality,
            max_drop=self.max_drop,
            cost_weight=self.cost_weight,
            latency_weight=self.latency_weight,
        )

    def fit(self, X: Recording | ArrayLike, y: object = None) -> Self:
        """Learn from a Recording, or from (tasks, arms) grades; y is ignored.

        Raises Infeasible where nothing keeps the target, Misuse where it limits what was not recorded.
        """
        target, fallback = self.target, self.fallback
        if isinstance(self.random_state, int | np.integer) and self.random_state < 0:
            raise Misuse(f"PortfolioLearner random_state={self.random_state}: give a whole number from 0 on.")
        recording = self._recorded(X, reset=True)
        folding = {"folds": self.folds, "repeats": self.repeats, "seed": self.random_state}
        found = study(recording, target, fallback=fallback, **folding)  # type: ignore[arg-type]
        self.recording_, self.study_ = recording, found
        self.best_policy_: Policy = found.policy
        self.strategy_ = found.policy.strategy
        self.frontier_ = _frontier(found)
        self.cv_results_ = _results(found)
        self.optimism_ = found.optimism
        return self

    def score(self, X: Recording | ArrayLike, y: object = None) -> float:
        """Mean quality of the policy (0 to 1), less what cost and time are weighed with, where they are."""
        check_is_fitted(self)
        o = outcomes(self.strategy_, self._recorded(X, reset=False))
        weighed = self.cost_weight * o.cost.mean() / NANO + self.latency_weight * o.latency.mean() / 1e6
        return float(o.quality.mean() - weighed)

    def reprice(self, prices: Mapping[str, float]) -> Self:
        """Learn again from the same calls at other prices, mean USD a call by arm; nothing is asked anew."""
        check_is_fitted(self)
        return self.fit(self.recording_.reprice(prices))

    def add_arm(self, recording: Recording) -> Self:
        """Learn again with the arms of another recording of the same tasks."""
        check_is_fitted(self)
        if not isinstance(recording, Recording):
            what = type(recording).__name__
            raise Misuse(f"PortfolioLearner.add_arm takes a Recording of the same tasks, not {what}.")
        return self.fit(self.recording_.join(recording))


def _frontier(found: Study) -> pd.DataFrame:
    rows = [
        {**{k: getattr(p, k) for k in ("name", "words", "max_share", "apparent", "held_out")}, **asdict(p.figures)}
        for p in found.frontier
    ]
    return pd.DataFrame(rows)


def _results(found: Study) -> dict[str, NDArray[np.generic]]:
    tried: list[tuple[str, str, str, Figures]] = [
        (p.name, p.words, "policy" if p.strategy == found.policy.strategy else "frontier", p.figures)
        for p in found.frontier
    ]
    tried += [(b.name, b.words, "baseline", b.figures) for b in found.baselines]
    texts = {k: np.array([t[i] for t in tried], dtype=object) for i, k in enumerate(("name", "words", "kind"))}
    fields = {
        "mean_test_quality": "quality", "mean_test_quality_low": "quality_low",
        "mean_test_quality_high": "quality_high", "mean_cost": "cost_per_task", "mean_latency": "latency_mean",
        "mean_calls": "calls", "mean_difference": "difference",
    }  # fmt: skip
    numbers = {k: np.array([getattr(f, v) for *_, f in tried], dtype=np.float64) for k, v in fields.items()}
    quality = numbers["mean_test_quality"]
    rank = np.array([1 + int((quality > q + 1e-12).sum()) for q in quality], dtype=np.int32)
    return {**texts, **numbers, "rank_test_quality": rank}
