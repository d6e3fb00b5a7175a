"""How the failures of arms go together: what nobody gets right, and the chance that a given set of arms all fail."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import log
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest
from sklearn.base import BaseEstimator
from sklearn.covariance import LedoitWolf
from sklearn.utils.validation import check_is_fitted, validate_data

from playcall.strategies import Misuse, Recording
from playcall.strategies.panel import Floats

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_POINTS = 4096  # of the lattice; the error of an orthant of 10 arms is then about 1e-4
_STEEPEST = 0.999  # correlations beyond this are not told apart


def grades(estimator: BaseEstimator, X: ArrayLike, *, reset: bool) -> Floats:
    """(items, arms) grades as floats from 0 to 1; what lies outside is moved to the nearer end, with a warning."""
    if isinstance(X, Recording):
        raise Misuse(
            f"{type(estimator).__name__} takes (items, arms) grades, not a Recording; give "
            "np.stack([d.quality.mean(axis=1) for d in recording.arms.values()], axis=1)."
        )
    scores = np.asarray(validate_data(estimator, X, reset=reset, dtype=np.float64, ensure_min_samples=2))
    if scores.min() < 0 or scores.max() > 1:
        warnings.warn(
            f"{type(estimator).__name__}: grades run from {scores.min():.3g} to {scores.max():.3g} and are clipped to "
            "0..1; divide by the best possible grade first.",
            stacklevel=3,
        )
    return np.clip(scores, 0.0, 1.0)


class JointFailure(BaseEstimator):
    """The joint distribution of failures of several arms on the same items.

    A set's chance of failing together is its empirical rate blended with a Gaussian copula, (n emp + kappa cop) /
    (n + kappa). Pairwise correlations alone do not identify the rate at which all fail: with many strong arms a
    copula gave less than half of what was observed (arXiv 2606.27288), so `all_fail_` is the plain observed rate.

    Parameters
    ----------
    kappa : how many items the copula is worth in the blend; 25 to 200 did about equally well held out.
    shrink : how many items it takes to believe a pair's own correlation as much as the mean of all pairs.

    Attributes (probabilities)
    ----------
    location_ : (arms,) failure rates.
    covariance_ : (arms, arms) covariance of failures, Ledoit & Wolf (2004), in probability squared.
    correlation_ : (arms, arms) tetrachoric correlations (Pearson 1900), shrunk, positive definite.
    all_fail_, all_fail_interval_ : rate at which every arm fails, and its 95% interval: Clopper & Pearson's (1934)
        where failures are whole, else Chernoff's bound for values in 0..1 (Hoeffding 1963), which is wider.
    ceiling_ : 1 - all_fail_: no router, vote or cascade of one call an arm can be right more often.
    n_items_ : items it was learned from.
    """

    def __init__(self, *, kappa: float = 100.0, shrink: float = 50.0) -> None:
        self.kappa = kappa
        self.shrink = shrink

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn from (items, arms) grades, 1 = right; a grade in between is the share of calls that are right."""
        for name in ("kappa", "shrink"):
            if not 0 <= getattr(self, name) < np.inf:
                raise Misuse(f"JointFailure({name}={getattr(self, name)!r}): give a number of items, zero or more.")
        fails = 1 - grades(self, X, reset=True)
        n = self.n_items_ = len(fails)
        self.fails_ = fails
        self.location_ = fails.mean(axis=0)
        self.covariance_ = LedoitWolf().fit(fails).covariance_
        self.correlation_ = _shrunk(tetrachoric(fails), n / (n + self.shrink))
        together = fails.prod(axis=1)
        self.all_fail_ = float(together.mean())
        self.all_fail_interval_ = rate_interval(together)
        self.ceiling_ = 1 - self.all_fail_
        return self

    def joint_prob(self, arms: Sequence[int | str]) -> float:
        """P(all of these arms fail) on a new item; arms by number, or by name where X had column names."""
        check_is_fitted(self)
        index = self._indices(arms)
        n = self.n_items_
        observed = float(self.fails_[:, index].prod(axis=1).mean())
        threshold = ndtri(_inside(self.location_, n))[index]
        copula = orthant(threshold, self.correlation_[np.ix_(index, index)])
        return (n * observed + self.kappa * copula) / (n + self.kappa)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Mean log-likelihood per item and pair of arms, in nats: a composite likelihood (Lindsay 1988).

        Of each pair the model gives four probabilities (both fail, one, the other, neither); a grade between 0 and 1
        spreads an item over them. One arm alone is scored by its own log-likelihood.
        """
        check_is_fitted(self)
        fails = 1 - grades(self, X, reset=False)
        n, p = self.n_items_, _inside(self.location_, self.n_items_)
        if len(p) == 1:
            return float((fails * np.log(p) + (1 - fails) * np.log(1 - p)).mean())
        a, b = np.triu_indices(len(p), 1)
        t = ndtri(p)
        observed = (self.fails_.T @ self.fails_ / n)[a, b]
        both = (n * observed + self.kappa * bivariate(t[a], t[b], self.correlation_[a, b])) / (n + self.kappa)
        cells = np.stack([both, p[a] - both, p[b] - both, 1 - p[a] - p[b] + both])
        cells = np.maximum(cells, 0.25 / (n + 1))
        cells = np.log(cells / cells.sum(axis=0))
        ff, rate = fails.T @ fails / len(fails), fails.mean(axis=0)
        seen = np.stack([ff[a, b], rate[a] - ff[a, b], rate[b] - ff[a, b], 1 - rate[a] - rate[b] + ff[a, b]])
        return float((seen * cells).sum(axis=0).mean())

    def _indices(self, arms: Sequence[int | str]) -> list[int]:
        names = list(getattr(self, "feature_names_in_", ()))
        index = [names.index(a) if a in names else a for a in arms]
        for a, i in zip(arms, index):
            if not isinstance(i, int | np.integer) or not 0 <= i < len(self.location_):
                raise Misuse(f"joint_prob: there is no arm {a!r}; write 0 to {len(self.location_) - 1}, or a name.")
        if len(set(index)) < len(index):
            raise Misuse(f"joint_prob({list(arms)!r}) names an arm twice; give each arm once.")
        return [int(i) for i in index]


def _inside(rate: Floats, n: int) -> Floats:
    """Rates at least half an item away from 0 and 1."""
    return np.clip(rate, 0.5 / n, 1 - 0.5 / n)


def tetrachoric(fails: Floats) -> Floats:
    """(arms, arms) tetrachoric correlations of (items, arms) failures, with one more item at independence.

    Every pair at once, by bisection: P(both below) grows with the correlation.
    """
    n, m = fails.shape
    p = _inside(fails.mean(axis=0), n)
    a, b = np.triu_indices(m, 1)
    both = ((fails.T @ fails)[a, b] + p[a] * p[b]) / (n + 1)
    t = ndtri(p)
    low, high = np.full(len(a), -_STEEPEST), np.full(len(a), _STEEPEST)
    for _ in range(30):
        middle = (low + high) / 2
        less = bivariate(t[a], t[b], middle) < both
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    R = np.eye(m)
    R[a, b] = R[b, a] = (low + high) / 2
    return R


def _shrunk(R: Floats, own: float) -> Floats:
    """Off-diagonals shrunk to their mean, eigenvalues clipped from below, diagonal back to 1."""
    m = len(R)
    if m == 1:
        return np.ones((1, 1))
    off = ~np.eye(m, dtype=bool)
    S = np.where(off, own * R + (1 - own) * R[off].mean(), 1.0)
    values, vectors = np.linalg.eigh(S)
    S = (vectors * np.maximum(values, 1e-4)) @ vectors.T
    scale = np.sqrt(np.diag(S))
    return np.asarray(S / np.outer(scale, scale))


def bivariate(h: Floats, k: Floats, rho: Floats) -> Floats:
    """P(X < h, Y < k) of standard normals with correlation rho, all (pairs,).

    Plackett's identity (1954), integrated over the correlation's arc sine by Gauss-Legendre quadrature.
    """
    top = np.arcsin(rho)[:, None]
    angle = top * (_NODES + 1) / 2
    sine, cosine2 = np.sin(angle), np.cos(angle) ** 2
    h_, k_ = h[:, None], k[:, None]
    density = np.exp(-(h_**2 + k_**2 - 2 * h_ * k_ * sine) / (2 * cosine2))
    return np.asarray(ndtr(h) * ndtr(k) + (density * _WEIGHTS).sum(axis=1) * top[:, 0] / (4 * np.pi))


def orthant(t: Floats, R: Floats) -> float:
    """P(all X_m < t_m) of normals with correlations R: exact for one or two, else Genz's (1992) transformation.

    The lattice of its integral is fixed, so the same question has the same answer.
    """
    k = len(t)
    if k == 0:
        return 1.0
    if k == 1:
        return float(ndtr(t[0]))
    if k == 2:
        return float(bivariate(t[:1], t[1:], R[:1, 1])[0])
    order = np.argsort(t)
    t, L = t[order], np.linalg.cholesky(R[np.ix_(order, order)])
    root = np.sqrt(_primes(k - 1))  # Richtmyer's lattice, folded
    w = np.abs(2 * ((np.arange(1, _POINTS + 1)[:, None] * root) % 1) - 1)
    y, f = np.zeros((_POINTS, k)), np.ones(_POINTS)
    for i in range(k):
        e = ndtr((t[i] - y[:, :i] @ L[i, :i]) / L[i, i])
        f = f * e
        if i < k - 1:
            y[:, i] = ndtri(np.clip(w[:, i] * e, 1e-300, 1 - 1e-16))
    return float(f.mean())


def _primes(n: int) -> Floats:
    found: list[int] = []
    candidate = 2
    while len(found) < n:
        if all(candidate % q for q in found):
            found.append(candidate)
        candidate += 1
    return np.array(found, dtype=np.float64)


def rate_interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """An interval for the mean of independent (items,) values in 0..1, valid at any number of items.

    Clopper & Pearson's exact one where all values are 0 or 1; else all means m with n KL(mean, m) <= log(2 / alpha).
    """
    n, mean = len(values), float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        interval = binomtest(int(values.sum()), n).proportion_ci(confidence, "exact")
        return float(interval.low), float(interval.high)

    def excess(m: float) -> float:
        parts = ((mean, m), (1 - mean, 1 - m))
        return n * sum(p * log(p / q) for p, q in parts if p > 0) - log(2 / (1 - confidence))

    tiny = 1e-12
    low = brentq(excess, tiny, mean) if mean > tiny and excess(tiny) > 0 else 0.0
    high = brentq(excess, mean, 1 - tiny) if mean < 1 - tiny and excess(1 - tiny) > 0 else 1.0
    return float(low), float(high)
