"""What is odd about the arms of a recording: copies, constant answers, lucky opposites, draws that are no draws.

None of it is an error of the data, and all of it makes a portfolio look better, or an arm worse, than it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from scipy.stats import chi2

from playcall.strategies import Recording
from playcall.strategies.errors import some
from playcall.strategies.panel import Floats, Ints, Mask

Kind = Literal["constant", "clone", "opposite", "format", "dependent draws", "partial", "silent"]

_FEWEST = 20  # items; with fewer nothing is said
_CONSTANT = 0.95  # share of items with one answer
_CLONE = 0.9  # agreement beyond that of independent arms of the same accuracy, where 1 is always equal
_DIFFERENCES = 10  # that such independent arms would be expected to have, at the least
_OPPOSITE, _SURE = -0.2, -4.0  # correlation of failures, and in standard errors
_SKILL = 0.2  # accuracy from that of the best constant answer, 0, to perfection, 1
_GRADED = 0.02  # share of groups of equal answers with unequal grades
_LOST = 0.5  # share of an arm's wrong answers that are right from other arms
_UNLIKELY = 1e-4  # p-value for draws that differ by position
_DRIFT = 0.02  # between the best and the worst position's mean
_SAME = 0.99  # share of items on which all draws are equal
_PARTIAL, _SILENT = 0.1, 0.95  # share of calls without an answer


@dataclass(frozen=True)
class Finding:
    """Something about some arms that their owner should know. `figure` is the share or correlation that shows it."""

    kind: Kind
    arms: tuple[str, ...]
    words: str
    figure: float

    @property
    def inflates(self) -> bool:
        """Whether "some arm is right" counts luck or grading here, so that only a checker can turn it into quality."""
        return self.kind in ("constant", "opposite", "format")


def diagnose(recording: Recording) -> tuple[Finding, ...]:
    """All findings; none where there are fewer than 20 items.

    Tests of one arm against many would find something by chance, so thresholds are on the size of an effect, and where
    a test is made, at 1e-4 or 4 standard errors. Reading a table keeps as many draws as every item has: of arms that
    stop at a success it keeps the first, and nothing can be seen here of their later ones.
    """
    if len(recording) < _FEWEST:
        return ()
    found = (_silent, _constant, _clones, _opposites, _format, _draws)
    return tuple(finding for look in found for finding in look(recording))


def redundant(recording: Recording) -> pd.DataFrame:
    """Per arm: `accuracy`, `gain` (chance that it is right and no other arm is), and the arm most like it.

    `like` is the arm whose failures correlate most with its own, `correlation` how much, `equal` the share of their
    answers that are equal (grades, where no answers were recorded). Gains are by first draws.
    """
    arms = list(recording.arms)
    right = np.stack([recording[a].quality[:, 0] for a in arms], axis=1)
    R = failure_correlations(recording)
    rows = []
    for i, a in enumerate(arms):
        others = np.delete(1 - right, i, axis=1).prod(axis=1)
        row: dict[str, object] = {"accuracy": recording[a].quality.mean(), "gain": (right[:, i] * others).mean()}
        if len(arms) > 1:
            near = int(np.nanargmax(np.where(np.arange(len(arms)) == i, -np.inf, R[i])))
            row |= {"like": arms[near], "correlation": R[i, near], "equal": _equal(recording, a, arms[near])[0].mean()}
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index(arms, name="arm"))


def failure_correlations(recording: Recording) -> Floats:
    """(arms, arms) correlations of mean grades by item; 0 with an arm whose grades are all alike."""
    grade = np.stack([d.quality.mean(axis=1) for d in recording.arms.values()], axis=1)
    grade = grade - grade.mean(axis=0)
    scale = np.sqrt((grade**2).sum(axis=0))
    return np.asarray(grade.T @ grade / np.maximum(np.outer(scale, scale), 1e-12))


def _equal(recording: Recording, a: str, b: str) -> tuple[Mask, Floats, Floats, int]:
    """Of the draws that both answered, in one row: whether they are equal, and both grades; and of how many items."""
    one, two = recording[a], recording[b]
    k = min(one.depth, two.depth)
    both = ~one.failed[:, :k] & ~two.failed[:, :k]
    p, q = one.quality[:, :k][both], two.quality[:, :k][both]
    same = one.answer[:, :k][both] == two.answer[:, :k][both] if recording.answered else np.abs(p - q) < 1e-6
    return same, p, q, int(both.any(axis=1).sum())


def _silent(recording: Recording) -> Iterator[Finding]:
    for a, d in recording.arms.items():
        share = float(d.failed.mean())
        if share >= _SILENT:
            yield Finding(
                "silent",
                (a,),
                f"{a!r} has no answer in {share:.0%} of its calls. It can only cost; leave it out.",
                share,
            )
        elif share >= _PARTIAL:
            words = (
                f"{a!r} has no answer in {share:.0%} of its calls, which count as wrong. Where it was never asked, as "
                "in a recording that broke off, compare arms on the items that all of them have (--missing drop-items)."
            )
            yield Finding("partial", (a,), words, share)


def _constant(recording: Recording) -> Iterator[Finding]:
    if not recording.answered:
        return
    shares = {a: _shares(recording, a) for a in recording.arms}
    for a, d in recording.arms.items():
        if d.failed.mean() > 0.5:
            continue
        code = int(shares[a].argmax())
        share, others = float(shares[a][code]), [float(s[code]) for b, s in shares.items() if b != a]
        if share >= _CONSTANT and d.quality.mean() < 0.9 and (not others or np.mean(others) < 0.9 * share):
            words = (
                f"{a!r} answers {recording.texts[code][:40]!r} to {share:.0%} of the items, whatever is asked; its "
                f"grade of {d.quality.mean():.3f} is how often that happens to be right. Its agreement with other arms "
                "tells nothing, and items that only it gets right are luck."
            )
            yield Finding("constant", (a,), words, share)


def _shares(recording: Recording, arm: str) -> Floats:
    """(texts,) how often the arm gives each answer."""
    d = recording[arm]
    given = d.answer[~d.failed]
    return np.bincount(given, minlength=len(recording.texts)) / max(len(given), 1)


def _clones(recording: Recording) -> Iterator[Finding]:
    pairs = list(combinations(recording.arms, 2))
    equal = {pair: _equal(recording, *pair) for pair in pairs}
    wrong = [same[(p < 0.5) & (q < 0.5)] for same, p, q, _ in equal.values()]
    alike = [x.mean() for x in wrong if len(x) >= _DIFFERENCES]
    luck = float(min(np.median(alike), 0.5)) if len(alike) > 2 and recording.answered else 0.5
    linked = dict[str, set[str]]()
    share = dict[frozenset[str], float]()
    for (a, b), (same, p, q, items) in equal.items():
        if not items:
            continue
        chance = _chance(p, q, luck) if recording.answered else _chance_of_grades(p, q)
        if items * (1 - chance) >= _DIFFERENCES and (same.mean() - chance) / (1 - chance) >= _CLONE:
            share[frozenset((a, b))] = float(same.mean())
            group = linked.get(a, {a}) | linked.get(b, {b})
            linked |= dict.fromkeys(group, group)
    for group in {id(g): g for g in linked.values()}.values():
        arms = tuple(a for a in recording.arms if a in group)
        least = min(s for pair, s in share.items() if pair <= group)
        what = "answers" if recording.answered else "grades"
        words = (
            f"{some(arms, 6)} are one arm under several names: their {what} are equal in {least:.1%} of calls or more, "
            "far beyond what arms as good as they are have in common. A vote of them counts one opinion several times, "
            "and a second one adds cost and no coverage. Keep the cheapest."
        )
        yield Finding("clone", arms, words, least)


def _chance(p: Floats, q: Floats, luck: float) -> float:
    """How often two arms of these accuracies would be equal, did they err independently."""
    return float(p.mean() * q.mean() + (1 - p.mean()) * (1 - q.mean()) * luck)


def _chance_of_grades(p: Floats, q: Floats) -> float:
    """The same of grades: Cohen's (1960) chance agreement."""
    values, codes = np.unique(np.concatenate([p, q]).round(6), return_inverse=True)
    one, two = (np.bincount(c, minlength=len(values)) / len(c) for c in np.split(codes, 2))
    return float(one @ two)


def _opposites(recording: Recording) -> Iterator[Finding]:
    arms = list(recording.arms)
    if len(arms) < 2:
        return
    mean = np.array([recording[a].quality.mean() for a in arms])
    chance = _best_constant(recording)
    R = failure_correlations(recording)
    told = set[int]()
    for i in np.argsort(R.min(axis=1), kind="stable"):
        j = int(R[i].argmin())
        low = [m for m in (int(i), j) if (mean[m] - chance) / (1 - chance + 1e-12) < _SKILL]
        if R[i, j] > _OPPOSITE or R[i, j] * np.sqrt(len(recording)) > _SURE or not set(low) - told:
            continue
        told |= set(low)
        p, q = (recording[arms[m]].quality[:, 0] for m in (int(i), j))
        either = float(1 - ((1 - p) * (1 - q)).mean())
        words = (
            f"{arms[i]!r} ({mean[i]:.3f}) and {arms[j]!r} ({mean[j]:.3f}) tend to be right on different items "
            f"(correlation {R[i, j]:.2f}), and {some([arms[m] for m in low])} is little better than a fixed answer "
            f"({chance:.3f}). That one of the two is right in {either:.3f} is mostly that they say different things: "
            "without a checker nobody can tell which, and no ceiling should rest on it."
        )
        yield Finding("opposite", tuple(arms[m] for m in sorted((int(i), j))), words, float(R[i, j]))


def _best_constant(recording: Recording) -> float:
    """The share of items that the best fixed answer gets right, as far as the arms show; 0 without answers."""
    if not recording.answered:
        return 0.0
    width = max(int(d.answer.max()) for d in recording.arms.values()) + 1
    good = dict[int, set[int]]()
    for d in recording.arms.values():
        item = np.repeat(np.arange(len(recording)), d.depth)
        right = ((d.quality > 0.5) & ~d.failed).ravel()
        for pair in np.unique(item[right] * width + d.answer.ravel()[right]).tolist():
            good.setdefault(pair % width, set()).add(pair // width)
    return max((len(items) for items in good.values()), default=0) / len(recording)


def _format(recording: Recording) -> Iterator[Finding]:
    if not recording.answered:
        return
    group, grade, arm = _calls(recording)
    n = int(group.max()) + 1 if len(group) else 0
    most, least, size = np.zeros(n), np.ones(n), np.bincount(group, minlength=n)
    np.maximum.at(most, group, grade)
    np.minimum.at(least, group, grade)
    shared = size > 1
    mixed = shared & (most - least > 0.5)
    share = float(mixed.sum() / max(shared.sum(), 1))
    if share < _GRADED or mixed.sum() < 5:
        return
    wrong = grade < 0.5
    lost = np.bincount(arm[wrong & mixed[group]], minlength=len(recording.arms))
    rate = lost / np.maximum(np.bincount(arm[wrong], minlength=len(recording.arms)), 1)
    names = list(recording.arms)
    worst = [names[m] for m in np.argsort(-rate, kind="stable") if rate[m] >= _LOST and lost[m] >= 5]
    words = (
        f"Equal answers to an item have unequal grades in {share:.0%} of the groups of equal answers: the grader saw "
        "more than the answer, such as its format, or answers were cut or made canonical too far. A vote treats them "
        "as equal, so its replayed quality depends on whose copy is put out."
    )
    if worst:
        words += f" Half or more of the wrong answers of {some(worst)} are right from other arms: mend their format."
    yield Finding("format", tuple(worst), words, share)


def _calls(recording: Recording) -> tuple[Ints, Floats, Ints]:
    """Of every answer: which (item, answer) it is, its grade, its arm."""
    item, code, grade, arm = [], [], [], []
    for m, d in enumerate(recording.arms.values()):
        live = ~d.failed
        item.append(np.nonzero(live)[0])
        code.append(d.answer[live])
        grade.append(d.quality[live])
        arm.append(np.full(int(live.sum()), m))
    both = np.stack([np.concatenate(item), np.concatenate(code)])
    _, group = np.unique(both, axis=1, return_inverse=True)
    return group.reshape(-1), np.concatenate(grade), np.concatenate(arm)


def _draws(recording: Recording) -> Iterator[Finding]:
    for a, d in recording.arms.items():
        if d.depth < 2:
            continue
        means, p = d.quality.mean(axis=0), positions_differ(d.quality)
        if p < _UNLIKELY and np.ptp(means) >= _DRIFT:
            listed = ", ".join(f"{x:.3f}" for x in means[:6]) + ", ..." * (len(means) > 6)
            words = (
                f"the draws of {a!r} are not alike: by position their means are {listed}. They are steps or ranks of "
                "one run, or later ones are lacking; replayed as repeated calls, as in self-consistency or best of n, "
                "they mislead. Record steps as arms of their own."
            )
            yield Finding("dependent draws", (a,), words, float(np.ptp(means)))
        elif recording.answered and d.quality.mean() < 0.98:
            same = float((d.answer == d.answer[:, :1]).all(axis=1).mean())
            if same >= _SAME:
                words = (
                    f"all draws of {a!r} are equal on {same:.0%} of the items: a cache, or temperature 0. Asking again "
                    "costs and brings nothing."
                )
                yield Finding("dependent draws", (a,), words, same)


def independent(recording: Recording) -> Recording:
    """Only the first draw of arms whose draws are not independent. A checker asks in order, so there all are kept."""
    odd = {f.arms[0] for f in _draws(recording)} if not recording.graded_by_checker else set()
    if not odd:
        return recording
    arms = {a: d.first(1) if a in odd else d for a, d in recording.arms.items()}
    note = f"draws of {some(sorted(odd))} are not independent: the first of each item counts."
    return replace(recording, arms=arms, notes=(*recording.notes, note))


def positions_differ(grade: Floats) -> float:
    """p-value of (items, draws) grades for: within an item every order of the draws is equally likely.

    Cochran's Q (1950), with the within-item variance of grades in place of that of zeros and ones; chi-squared with
    draws - 1 degrees of freedom.
    """
    n, k = grade.shape
    spread = float(((grade - grade.mean(axis=1, keepdims=True)) ** 2).sum() / (k - 1))  # variances, summed over items
    if spread < 1e-12:
        return 1.0
    means = grade.mean(axis=0)
    return float(chi2.sf(n * n * ((means - means.mean()) ** 2).sum() / spread, k - 1))
