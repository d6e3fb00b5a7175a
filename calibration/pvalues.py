"""P-values of H0 "the mean loss is above its limit" that hold at any sample size.

Which test to use was measured: the share of 1,000 samples in which H0 is rejected at 0.1, first where H0 is false
(more is better), then at its boundary (more than 0.1 would be wrong).

    differences of 0/1 losses: n, limit, share unequal, true mean    paired_p  betting_p  Hoeffding-Bentkus
      100  .05  .10   0     |   boundary .05                        .56  .09   .40  .06       .00  .00
      300  .02  .10   0     |   boundary .02                        .39  .07   .25  .05       .00  .00
      300  .05  .15   0     |   boundary .05                        .83  .09   .65  .06       .00  .00
      500  .02  .05   0     |   boundary .02                        .73  .08   .56  .05       .00  .00
    losses that are fractions: n, limit, true mean                   betting_p  Hoeffding-Bentkus
      100  .10  beta(2 * mean, 2 - 2 * mean), .05   |   .10          .85  .04   .28  .00
      200  .05  mostly 0, .02                       |   .05          .83  .06   .57  .00
    differences of fractions
      300  .03  0                                   |   .03          .61  .07   .00  .00

So 0/1 losses have their exact tests, and all others bets. (Hoeffding-Bentkus: Bates et al. 2021, section 3.1.2.)
"""

from __future__ import annotations

import numpy as np
from scipy.stats import beta, binom

from playcall.strategies.panel import Floats, Ints

_NUISANCE = 1e-4  # chance given up so that q need only be looked for near what was seen
_TAIL = 1e-12
_CELLS = 200
_CAP = 0.75  # the most of its capital that a bet may lose


def binomial_p(errors: int, n: int, limit: float) -> float:
    """P(Bin(n, limit) <= errors), for losses of 0 and 1: exact."""
    return float(binom.cdf(errors, n, limit))


def betting_p(loss: Floats, limit: float, level: float) -> float:
    """For (n,) losses in [0, 1], independent and in an order that says nothing about them.

    One over the most that a gambler ever held who began with 1 and bet, loss by loss, that they stay under the limit:
    under H0 no such game is in his favour, so that he rarely gets rich (Ville 1939). Stakes are the predictable plug-in
    of Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting" (2024), set for this level.
    """
    return float(np.exp(-_log_wealth(loss, limit, level).max(initial=0.0)))


def _log_wealth(loss: Floats, limit: float, level: float) -> Floats:
    """(n,) the logarithm of what the gambler holds after each loss; a stake knows the losses before it only."""
    n = len(loss)
    t = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(loss)) / (t + 1)
    spread = (0.25 + np.cumsum((loss - mean) ** 2)) / (t + 1)
    before = np.concatenate([[0.25], spread[:-1]])
    stake = np.minimum(np.sqrt(2 * np.log(1 / level) / (n * before)), _CAP / (1 - limit))
    return np.asarray(np.cumsum(np.log1p(stake * (limit - loss))))


def paired_p(worse: int, better: int, n: int, limit: float) -> float:
    """For differences of two 0/1 losses: of n items, `worse` have +1 and `better` have -1; exact.

    The chance, under the likeliest law in H0, of a score statistic (Tango 1998) no higher than the one seen. Laws on
    H0's boundary differ in q = P(-1), which is looked for in its Clopper-Pearson interval, whose error is added (Berger
    & Boos 1994), in cells: within one, the chance is greatest with the least P(+1) and the greatest P(-1), since the
    statistic rises with `worse` and falls with `better` (Sidik 2003). So this is a bound, and no search can miss.
    """
    if n == 0:
        return 1.0
    least, most = max(0.0, -limit), (1 - limit) / 2
    low = float(beta.ppf(_NUISANCE / 2, better, n - better + 1)) if better else 0.0
    high = float(beta.isf(_NUISANCE / 2, better + 1, n - better)) if better < n else 1.0
    edge = np.linspace(np.clip(low, least, most), np.clip(high, least, most), _CELLS + 1)
    last = min(n, int(binom.isf(_TAIL, n, edge[-1])) + 1)
    first = max(0, int(binom.ppf(_TAIL, n, edge[0])) - 1)
    k = np.arange(first, last + 1)
    inside = _boundary(worse, better, n, limit, last)[first:]
    below, above = edge[:-1, None], edge[1:, None]
    rest = np.clip((below + limit) / np.maximum(1 - above, 1e-300), 0.0, 1.0)
    chance = (binom.pmf(k, n, above) * binom.cdf(inside, n - k, rest)).sum(axis=1)
    return float(min(1.0, chance.max() + _NUISANCE + 2 * _TAIL))


def _boundary(worse: int, better: int, n: int, limit: float, last: int) -> Ints:
    """The most +1s, for 0 to `last` -1s, with which the statistic is no higher than seen; -1 where there are none."""
    k = np.arange(last + 1)
    seen = float(_score(np.array([worse]), np.array([better]), n, limit)[0]) + 1e-9
    low, high = np.full(last + 1, -1), n - k
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = _score(middle, k, n, limit) <= seen
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return np.maximum.accumulate(low)


def _score(worse: Ints, better: Ints, n: int, limit: float) -> Floats:
    """(worse - better - n * limit) over its standard error, with P(-1) as likely as H0's boundary allows."""
    a, b = 2.0 * n, (2 * n - worse + better) * limit - worse - better
    root = np.sqrt(np.maximum(b * b + 4 * a * better * limit * (1 - limit), 0))
    rate = np.maximum((root - b) / (2 * a), max(0.0, -limit))
    spread = n * np.maximum(2 * rate + limit * (1 - limit), 1e-12)
    return np.asarray((worse - better - n * limit) / np.sqrt(spread))
