"""Pure decisions, written once: Live calls them with one row, Replay with all.

A rule says which candidates survive, a stop whether enough is known. Sums over candidates are
taken in integers, so that a column which is absent live and masked in replay changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from playcall.strategies.errors import Misuse
from playcall.strategies.panel import Floats, Ints, Mask, Panel
from playcall.strategies.requests import text_of

Scale = Literal["raw", "probability", "logprob"]

_STEPS = 2**20  # log-odds are counted in steps of a millionth
_DIGITS = 9  # probabilities are compared to this many digits


@runtime_checkable
class Rule(Protocol):
    """Which candidates survive: panel -> (rows, calls)."""

    def __call__(self, panel: Panel, /) -> Mask: ...


@runtime_checkable
class Stop(Protocol):
    """Whether enough is known: panel -> (rows,)."""

    def __call__(self, panel: Panel, /) -> Mask: ...


def stretch(score: Floats, scale: Scale) -> Floats:
    """A raw confidence on a line where a logistic curve fits it; NaN stays NaN.

    `probability` becomes its log-odds. `logprob` becomes -log(-logprob), which keeps apart the
    many values that crowd just under zero (Zellinger & Thomson, "Rational tuning", 2025).
    """
    match scale:
        case "raw":
            return score
        case "probability":
            p = np.clip(score, 1e-4, 1 - 1e-4)
            return np.log(p / (1 - p))
        case "logprob":
            return -np.log(np.clip(-score, 1e-8, 1e3))


@dataclass(frozen=True)
class Weight:
    """What an answer of one arm is worth, in log-odds: bias + slope * stretch(score)."""

    arm: str
    bias: float
    slope: float = 0.0
    scale: Scale = "raw"
    missing: float = 0.0  # the log-odds of an answer that came without a score

    def __call__(self, score: Floats) -> Floats:
        if self.slope == 0.0:
            return np.full(score.shape, self.bias)
        worth = self.bias + self.slope * stretch(score, self.scale)
        return np.where(np.isnan(score), self.missing, worth)


@dataclass(frozen=True)
class Belief:
    """How sure to be of each answer: a conditional logit over the answers seen, and none of them.

    An answer's utility is the summed log-odds of the candidates that gave it; `other` is the
    utility of "another answer is right" (McFadden 1974, with an outside option), and grows by
    `dissent` with each further answer that differs. With one candidate this is its calibrated
    probability.
    """

    weights: tuple[Weight, ...]
    other: float = 0.0
    dissent: float = 0.0

    def __post_init__(self) -> None:
        arms = [w.arm for w in self.weights]
        if twice := {a for a in arms if arms.count(a) > 1}:
            raise Misuse(f"Belief weighs {sorted(twice)[0]!r} twice; give each arm one Weight.")

    @classmethod
    def of(cls, **weights: float) -> Belief:
        """Fixed weights by arm: Belief.of(opus=2.0, haiku=1.0)."""
        return cls(tuple(Weight(arm, w) for arm, w in weights.items()))

    def worth(self, panel: Panel) -> Ints:
        """(rows, calls) log-odds that each candidate lends to its answer, in 2^-20; 0 if not alive."""
        known = {w.arm: w for w in self.weights}
        if strange := [a for a in panel.arm if a not in known]:
            raise Misuse(f"Belief has no weight for the arm {strange[0]!r}; it knows {sorted(known)}.")
        columns = [known[a](panel.score[:, i]) for i, a in enumerate(panel.arm)]
        worth = np.column_stack(columns) if columns else np.zeros(panel.alive.shape)
        return np.where(panel.alive, np.rint(np.clip(worth, -1e9, 1e9) * _STEPS), 0).astype(np.int64)

    def posterior(self, panel: Panel) -> Floats:
        """(rows, calls) probability that each candidate's answer is right; 0 if not alive."""
        utility = np.where(panel.alive, _tally(panel, self.worth(panel)) / _STEPS, -np.inf)
        first = panel.alive & ~_seen_before(panel)
        other = self.other + self.dissent * np.maximum(first.sum(axis=1, keepdims=True) - 1, 0)
        top = np.maximum(utility.max(axis=1, keepdims=True, initial=-1e9), other)
        odds = np.exp(utility - top)  # the greatest is 1
        total = np.where(first, odds, 0.0).sum(axis=1, keepdims=True) + np.exp(other - top)
        return np.round(odds / np.maximum(total, 1.0), _DIGITS)


def _same(panel: Panel) -> Mask:
    """(calls, calls, rows) both alive, with equal answers; with rows last numpy is four times as fast."""
    answer, alive = panel.answer.T.copy(), panel.alive.T.copy()
    return (answer[:, None] == answer) & alive[:, None] & alive


def _seen_before(panel: Panel) -> Mask:
    """(rows, calls) an earlier live candidate gave this answer."""
    n = panel.alive.shape[1]
    return (_same(panel) & np.tri(n, k=-1, dtype=bool)[:, :, None]).any(axis=1).T


def _tally(panel: Panel, worth: Ints) -> Ints:
    """(rows, calls) the summed worth of all live candidates with this candidate's answer."""
    return np.where(_same(panel), worth.T[:, None], 0).sum(axis=0).T


def votes(panel: Panel) -> Ints:
    """(rows, calls) how many live candidates give this candidate's answer."""
    return _same(panel).sum(axis=0).T


def _first_max(x: Floats, alive: Mask) -> Mask:
    """One-hot of each row's first maximum among the living."""
    masked = np.where(alive, x, -np.inf)
    top = alive & (masked == masked.max(axis=1, keepdims=True, initial=-np.inf))
    return top & (top.cumsum(axis=1) == 1)


def _number(x: float) -> str:
    return f"{x:.3g}"


# --- rules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtLeast:
    """Keep candidates whose raw score reaches the threshold."""

    threshold: float

    def __call__(self, panel: Panel) -> Mask:
        return panel.alive & (panel.score >= self.threshold)

    def __str__(self) -> str:
        return f"answers with a score of at least {_number(self.threshold)}"


@dataclass(frozen=True)
class Best:
    """Keep the candidate with the highest raw score (the first of equals); one without a score comes last."""

    def __call__(self, panel: Panel) -> Mask:
        return _first_max(np.nan_to_num(panel.score, nan=-np.inf, posinf=np.inf, neginf=-1e308), panel.alive)

    def __str__(self) -> str:
        return "the answer with the best score"


@dataclass(frozen=True)
class Vote:
    """Keep one candidate of the answer with most votes, or most summed log-odds with a belief."""

    belief: Belief | None = None

    def __call__(self, panel: Panel) -> Mask:
        count = votes(panel) if self.belief is None else _tally(panel, self.belief.worth(panel))
        return _first_max(count.astype(np.float64), panel.alive)

    def __str__(self) -> str:
        return "the answer with most votes" if self.belief is None else "the answer with the greatest weight of votes"


@dataclass(frozen=True)
class First:
    """Keep the first candidate in reading order."""

    def __call__(self, panel: Panel) -> Mask:
        return panel.alive & (panel.alive.cumsum(axis=1) == 1)

    def __str__(self) -> str:
        return "the first answer"


# --- stops ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agree:
    """Enough when `quorum` candidates give the same answer."""

    quorum: int

    def __post_init__(self) -> None:
        if self.quorum < 1:
            raise Misuse(f"Agree(quorum={self.quorum}): at least one answer must agree; write 1 or more.")

    def __call__(self, panel: Panel) -> Mask:
        return votes(panel).max(axis=1, initial=0) >= self.quorum

    def __str__(self) -> str:
        return "there is an answer" if self.quorum == 1 else f"{self.quorum} answers agree"


@dataclass(frozen=True)
class Confident:
    """Enough when some candidate's raw score, or with a belief its answer's probability, reaches the threshold."""

    threshold: float
    belief: Belief | None = None

    def __call__(self, panel: Panel) -> Mask:
        sure = panel.score if self.belief is None else self.belief.posterior(panel)
        return np.any(panel.alive & (sure >= self.threshold), axis=1)

    def __str__(self) -> str:
        if self.belief is None:
            return f"a score reaches {_number(self.threshold)}"
        return f"an answer is right with probability {_number(self.threshold)} or more"


@lru_cache(maxsize=4096)
def ahead(a: int, b: int) -> float:
    """P(p > 1/2) after a votes for and b against, from a flat prior: 1 - I_{1/2}(a+1, b+1), a binomial tail."""
    return float(1 - sum(comb(a + b + 1, j) for j in range(b + 1)) / 2 ** (a + b + 1))


@dataclass(frozen=True)
class Consistent:
    """Enough when the leading answer is ahead of the runner-up for good with this probability, above 1/2 and below 1.

    Adaptive-Consistency's Beta rule (Aggarwal et al. 2023): each vote for either of the two is a draw of one
    coin of unknown bias, so 0.95 takes votes of 4:0, 6:1, 8:2 or 9:3.
    """

    threshold: float = 0.95

    def __post_init__(self) -> None:
        if not 0.5 < self.threshold < 1:
            say = "give a probability above 0.5, such as 0.95, and below 1"
            raise Misuse(f"Consistent(threshold={self.threshold}): {say}.")

    def __call__(self, panel: Panel) -> Mask:
        count = votes(panel)
        if not count.shape[1]:
            return Never()(panel)
        leader = np.take_along_axis(panel.answer, count.argmax(axis=1)[:, None], axis=1)
        most, next_most = count.max(axis=1), np.where(panel.answer == leader, 0, count).max(axis=1)
        pairs, row = np.unique(np.stack([most, next_most]), axis=1, return_inverse=True)
        enough = [ahead(int(a), int(b)) >= self.threshold for a, b in pairs.T]
        return np.array(enough, dtype=np.bool_)[row.reshape(-1)]

    def __str__(self) -> str:
        return f"the leading answer is ahead for good with probability {_number(self.threshold)} or more"


@dataclass(frozen=True)
class Never:
    """Never enough: run everything."""

    def __call__(self, panel: Panel) -> Mask:
        return np.zeros(len(panel.end), dtype=np.bool_)

    def __str__(self) -> str:
        return "all have answered"


# --- prompts ----------------------------------------------------------------------------------


@runtime_checkable
class Prompt(Protocol):
    """What to ask about the survivors: (task, their answers in reading order) -> text."""

    def __call__(self, task: object, answers: Sequence[str], /) -> str: ...


@dataclass(frozen=True)
class Template:
    """A prompt text in which {task} and {answers} are filled in; answers are numbered lines."""

    text: str

    def __call__(self, task: object, answers: Sequence[str]) -> str:
        listed = "\n".join(f"{i}. {a}" for i, a in enumerate(answers, 1))
        head, *rest = self.text.split("{task}")
        return text_of(task).join(part.replace("{answers}", listed) for part in (head, *rest))

    def __str__(self) -> str:
        return f"“{self.text}”"
