"""Certified risk: which of several policies, on labels that did not choose them, keeps a loss under a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from playcall.calibration.pvalues import betting_p, binomial_p, paired_p
from playcall.strategies.errors import Misuse
from playcall.strategies.panel import Floats, Ints

MOST = 100_000
"""More labels than this nobody is told to collect."""

Test = Callable[[Floats, int, float], float]
"""(differences or losses of one policy, as if of so many labels, limit) -> p-value."""


@dataclass(frozen=True)
class Certificate:
    """What certification labels prove: with probability 1 - delta, every certified policy's risk is within the target.

    Risk is the mean loss of a policy or, where `relative`, its mean loss less the reference's. `risk` and its one-sided
    upper bound at 1 - delta belong to `policy`: the chosen one or, where none is certified, the one of least observed
    risk. The bound is that policy's own; what choosing among policies leaves true is the target.
    """

    target: float
    delta: float
    relative: bool
    labels: int  # certification items
    p_values: tuple[float, ...]  # of each policy: how likely so little loss is if its risk is above the target
    certified: tuple[int, ...]  # in the order in which they were tested
    chosen: int | None  # the cheapest of them
    policy: int
    risk: float | None  # None without any labels
    upper: float
    labels_needed: int | None  # that certify `policy` alone if losses go on like that; None: no number to 100,000

    @property
    def words(self) -> str:
        """The certificate in a sentence or two."""
        say = "its mean loss less the reference's is" if self.relative else "its mean loss is"
        limit = f"{say} at most {_share(self.target)}"
        sure = _share(1 - self.delta)
        if self.chosen is not None and self.risk is not None:
            return (
                f"Policy {self.chosen} is certified: with probability {sure} {limit}. On {self.labels:,} labels it was "
                f"{_share(self.risk)}, and with that probability at most {_share(self.upper)}."
            )
        seen = f"On {self.labels:,} labels policy {self.policy} came nearest"
        seen += f", with {_share(self.risk)}." if self.risk is not None else "."
        if self.labels_needed is None and self.risk is not None and self.risk >= self.target:
            more = "That is no less than the target, so more labels of the same kind would not help: raise the target."
        elif self.labels_needed is None:
            more = f"That is so near the target that {MOST:,} labels would not do: raise the target."
        elif self.p_values[self.policy] <= self.delta:
            more = "It stood behind a policy that failed; tested first, on fresh labels, it may well be certified."
        else:
            more = f"If it goes on like that, {self.labels_needed:,} labels would certify it, tested first."
        return f"No policy is certified: it is not proved with probability {sure} that {limit}. {seen} {more}"

    def __str__(self) -> str:
        return self.words


def control_risk(
    loss: ArrayLike,
    cost: ArrayLike,
    *,
    target: float,
    delta: float = 0.1,
    reference: ArrayLike | None = None,
    order: ArrayLike | None = None,
) -> Certificate:
    """Certify policies one after another, dearest first, and choose the cheapest before the first that fails.

    Fixed-sequence testing (Bauer 1991; "Learn then Test", Angelopoulos et al. 2021): each policy is tested at delta,
    so that the chance that any certified one has a risk above the target is at most delta.

    Parameters
    ----------
    loss : (items, policies) losses in [0, 1] on certification items, drawn independently, which chose neither the
        policies nor their order. No items at all is a case like others: nothing is certified.
    cost : (policies,) in any unit, known beforehand, such as from the items that chose the policies.
    target : the limit of the mean loss, between 0 and 1, or with a reference that of the difference, between -1 and 1.
    delta : the chance of certifying what is false.
    reference : (items,) losses of the arm to compare with; None for the loss itself. If that arm is a policy too, leave
        it out of `order`: it needs no proof, and without enough items it would fail and end the sequence.
    order : (tests,) which policies to test, in which order; by default all, dearest first.

    The tests hold at any number of items: the binomial tail for losses of 0 and 1, an exact paired test for differences
    of such losses, and betting where any loss in the table is a fraction. A certificate that cannot be had is a value
    with the reason in words. Raises Misuse for arrays that do not fit together or lie outside their limits.

    >>> control_risk(np.zeros((45, 1)), [1.0], target=0.05).words[:56]
    'Policy 0 is certified: with probability 90% its mean los'
    """
    loss, cost, base, sequence = _checked(loss, cost, target, delta, reference, order)
    excess = loss if base is None else loss - base[:, None]
    binary = bool(np.isin(loss, (0, 1)).all()) and (base is None or bool(np.isin(base, (0, 1)).all()))
    n, relative = len(excess), base is not None
    shuffled = excess[np.random.default_rng(0).permutation(n)]  # betting must not see the order of a table
    test = (_paired if relative else _binomial) if binary else _betting(delta, relative)
    p = [test(x, n, target) for x in shuffled.T]
    certified: list[int] = []
    for j in sequence.tolist():
        if p[j] > delta:
            break
        certified.append(j)
    risk = excess.mean(axis=0) if n else np.zeros(len(cost))
    among = certified or sequence.tolist()
    chosen = min(among, key=lambda j: (cost[j], risk[j])) if certified else None
    policy = min(among, key=lambda j: risk[j]) if chosen is None else chosen
    seen = shuffled[:, policy]
    return Certificate(
        target=float(target),
        delta=float(delta),
        relative=relative,
        labels=n,
        p_values=tuple(p),
        certified=tuple(certified),
        chosen=chosen,
        policy=policy,
        risk=float(risk[policy]) if n else None,
        upper=_upper(test, seen, float(risk[policy]), target if p[policy] <= delta else 1.0, delta) if n else 1.0,
        labels_needed=_needed(test, seen, float(risk[policy]), target, delta),
    )


def _binomial(loss: Floats, n: int, limit: float) -> float:
    return binomial_p(_scaled(loss.sum(), len(loss), n, np.ceil), n, limit)


def _paired(excess: Floats, n: int, limit: float) -> float:
    worse, better = (excess > 0).sum(), (excess < 0).sum()
    return paired_p(_scaled(worse, len(excess), n, np.ceil), _scaled(better, len(excess), n, np.floor), n, limit)


def _betting(delta: float, relative: bool) -> Test:
    def test(x: Floats, n: int, limit: float) -> float:
        x = np.resize(x, n)  # the same losses over and over
        return betting_p((x + 1) / 2, (limit + 1) / 2, delta) if relative else betting_p(x, limit, delta)

    return test


def _scaled(count: float, of: int, n: int, whole: Callable[[float], float]) -> int:
    """As many of n as `count` are of `of`."""
    return int(whole(round(float(count) * n / of, 9))) if of else 0


def _upper(test: Test, seen: Floats, low: float, high: float, delta: float) -> float:
    """The least limit that would have been certified: a bound at 1 - delta; for 0/1 losses Clopper & Pearson's."""
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if test(seen, len(seen), middle) <= delta else (middle, high)
    return high


def _needed(test: Test, seen: Floats, risk: float, target: float, delta: float) -> int | None:
    """The least number of labels with losses like those seen that certify; found by halving but for 0/1 losses."""
    if risk >= target:
        return None
    low, high = 0, min(max(len(seen), 1), MOST)
    while test(seen, high, target) > delta:
        if high == MOST:
            return None
        low, high = high, min(2 * high, MOST)
    if test is _binomial:  # exact: rounding up the errors makes the p-value a saw
        n = np.arange(1, high + 1)
        rate = seen.sum() / max(len(seen), 1)
        return int(n[np.argmax(binom.cdf(np.ceil(np.round(n * rate, 9)), n, target) <= delta)])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test(seen, middle, target) <= delta else (middle, high)
    return high


def _checked(
    loss: ArrayLike, cost: ArrayLike, target: float, delta: float, reference: ArrayLike | None, order: ArrayLike | None
) -> tuple[Floats, Floats, Floats | None, Ints]:
    losses, costs = np.asarray(loss, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    if losses.ndim != 2 or losses.shape[1] == 0 or costs.shape != losses.shape[1:]:
        raise Misuse(
            f"control_risk: loss {losses.shape} and cost {costs.shape}; give (items, policies) and (policies,)."
        )
    base = None if reference is None else np.asarray(reference, dtype=np.float64)
    if base is not None and base.shape != losses.shape[:1]:
        raise Misuse(f"control_risk: reference {base.shape} for loss {losses.shape}; give one loss for each item.")
    for name, values in (("loss", losses), ("reference", base)):
        if values is not None and not ((values >= 0) & (values <= 1)).all():
            bad = values[~((values >= 0) & (values <= 1))][0]
            raise Misuse(f"control_risk: {name} holds {bad:g}; losses go from 0 to 1, such as 1 - quality.")
    if not np.isfinite(costs).all():
        raise Misuse(f"control_risk: cost holds {costs[~np.isfinite(costs)][0]}; give each policy a number.")
    least = 0 if base is None else -1
    if not least < target < 1:
        raise Misuse(f"control_risk: target={target}; give a number between {least} and 1, neither included.")
    if not 0 < delta < 1:
        raise Misuse(f"control_risk: delta={delta}; give a number between 0 and 1, such as 0.1.")
    if order is None:
        return losses, costs, base, np.argsort(-costs, kind="stable")
    sequence = np.asarray(order)
    listed = sequence.tolist()
    if sequence.ndim != 1 or not listed or len(set(listed)) < len(listed) or not set(listed) <= set(range(len(costs))):
        raise Misuse(f"control_risk: order={listed}; give each policy to test once, 0 to {len(costs) - 1}.")
    return losses, costs, base, sequence.astype(np.int64)


def _share(x: float) -> str:
    return f"{x:.4g}" if 0 < abs(x) < 1e-4 else f"{100 * x:.3g}%"
