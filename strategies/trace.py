"""What traces of an agent's calls tell: how long its item took, and who in it did what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from playcall.strategies.call import Call, Usage
from playcall.strategies.errors import Misuse, some
from playcall.strategies.prices import Price, mapped
from playcall.strategies.recording import NANO

Prices = Mapping[str, Price | Literal["free"]]


@dataclass(frozen=True, eq=False)
class Strand:
    """What runs one after another: a task, or a thread. `created` is in seconds of the same clock as calls."""

    parent: Strand | None = None
    created: float = 0.0  # 0: not known, so that it may have run beside all else

    @property
    def line(self) -> Iterator[Strand]:
        """It, and all that it came from."""
        strand: Strand | None = self
        while strand is not None:
            yield strand
            strand = strand.parent


@dataclass(frozen=True)
class Span:
    """When a call ran. `original` are the seconds that it took when it was fresh, where it came from a cache."""

    start: float
    end: float
    strand: Strand
    original: float | None = None

    @property
    def delay(self) -> float:
        """Seconds that a cache saved."""
        return 0.0 if self.original is None else max(0.0, self.original - (self.end - self.start))


def latency(wall: float, spans: Sequence[Span]) -> float:
    """Seconds that an item would have taken without a cache: its wall time, and what was saved along the critical path.

    What a call saved delays all that may have waited for it: later calls of its strand and of those that this came
    from, and whatever one of these created after its end. (A thread that began after a call of another thread
    counts as having waited for it; a work item of a pool only if its submitter waited for something after that.)
    """
    if not any(span.delay for span in spans):
        return wall
    made: dict[Strand, float] = {}  # when, parents first
    for span in spans:
        new = list(takewhile(lambda strand: strand not in made, span.strand.line))
        for strand in reversed(new):
            made[strand] = max(strand.created, made[strand.parent] if strand.parent is not None else 0.0)
    # At one moment: ends, strands, calls that took no time, begins.
    events = [(when, 1, order, strand, 0) for order, (strand, when) in enumerate(made.items())]
    for i, span in enumerate(spans):
        short = span.end <= span.start
        events.append((span.start, 2 if short else 3, 2 * i, span.strand, i))
        events.append((span.end, 2 if short else 0, 2 * i + 1, span.strand, i))
    late: dict[Strand, float] = defaultdict(float)  # by what it may have waited for so far
    shifts = [0.0] * len(spans)
    for _, kind, order, strand, i in sorted(events, key=lambda event: event[:3]):
        if kind == 1:
            late[strand] = late[strand.parent] if strand.parent is not None else 0.0
        elif order % 2 == 0:
            shifts[i] = late[strand]
        else:
            for one in strand.line:
                late[one] = max(late[one], shifts[i] + spans[i].delay)
    return wall + max(shift + span.delay for shift, span in zip(shifts, spans))


class Traced(Protocol):
    """What is read of a run: a Trace, or your own record of one."""

    @property
    def arm(self) -> str: ...
    @property
    def calls(self) -> Sequence[Call]: ...
    @property
    def models(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class RoleFacts:
    """What a role did. Calls from a cache count with what they would have cost."""

    called_share: float  # of the runs
    calls: int
    input: int  # tokens
    output: int
    reasoning: int  # a part of output
    usd: float
    cost_share: float  # of what all roles cost
    output_share: float
    models: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    roles: Mapping[str, RoleFacts]
    warnings: tuple[str, ...]


RARELY = 0.5  # a role that is called in a smaller share of an arm's runs is told


def facts(
    traces: Iterable[Traced],
    *,
    runs: int | None = None,
    arms: Collection[str] | None = None,
    roles: Collection[str] = (),
    prices: Prices | None = None,
) -> Facts:
    """Who did what, over one trace or many. `runs` is how many there were of each arm, where some left no trace; `arms`
    are those to look at; `roles` those that should be called, beside the keys of each trace's `models`; `prices` those
    of models that litellm's map lacks.

    It warns, arm by arm, of a role that most runs never called, of the dearest model in the role that writes most, and
    of models without a known price.
    """
    if runs is not None and runs < 1:
        raise Misuse(f"facts(runs={runs!r}); give how many runs each arm had.")
    by_arm: dict[str, list[Traced]] = defaultdict(list)
    for trace in traces:
        if arms is None or trace.arm in arms:
            by_arm[trace.arm].append(trace)
    warnings: list[str] = []
    for arm, found in by_arm.items():
        warnings += _odd(f"arm {arm!r}: " if arm else "", found, max(runs or 0, len(found)), roles, prices or {})
    all_ = [trace for found in by_arm.values() for trace in found]
    unknown = sorted({call.model for trace in all_ for call in trace.calls if call.source == "unknown"})
    if unknown:
        warnings.append(
            f"no price is known of {some(unknown)}: their calls count as free. Give prices={{model: Price}}."
        )
    number = sum(max(runs or 0, len(found)) for found in by_arm.values())
    return Facts(_roles(all_, number), tuple(warnings))


def _cost(call: Call) -> int:
    return call.price + call.saved


def _roles(traces: Sequence[Traced], runs: int) -> dict[str, RoleFacts]:
    calls: dict[str, list[Call]] = defaultdict(list)
    called: Counter[str] = Counter()
    for trace in traces:
        called.update({call.role for call in trace.calls})
        for call in trace.calls:
            calls[call.role].append(call)
    cost = sum(_cost(call) for of in calls.values() for call in of)
    used = {role: [call.usage or Usage() for call in of] for role, of in calls.items()}
    output = sum(u.output for of in used.values() for u in of)
    return {
        role: RoleFacts(
            called[role] / runs,
            len(of),
            sum(u.input for u in used[role]),
            wrote := sum(u.output for u in used[role]),
            sum(u.reasoning for u in used[role]),
            (paid := sum(map(_cost, of))) / NANO,
            paid / cost if cost else 0.0,
            wrote / output if output else 0.0,
            tuple(sorted({call.model for call in of})),
        )
        for role, of in sorted(calls.items())
    }


def _odd(where: str, traces: Sequence[Traced], runs: int, roles: Collection[str], prices: Prices) -> list[str]:
    """What is odd about one arm."""
    told, found = [], _roles(traces, runs)
    for role in sorted({*roles, *(role for trace in traces for role in trace.models), *found}):
        share = found[role].called_share if role in found else 0.0
        if share < RARELY:
            times = f"in {round(share * runs):,} of {runs:,} runs" if share else f"in none of {runs:,} runs"
            told.append(
                f"{where}role {role!r} was called {times}: another role may do its work, or no call has its name."
            )
    priced = {model: prices.get(model) or mapped(model) for role in found.values() for model in role.models}
    rates = {model: price.output for model, price in priced.items() if isinstance(price, Price)}
    if len(found) > 1 and len(rates) > 1:
        role, most = max(found.items(), key=lambda item: item[1].output)
        dearest = max(rates, key=rates.__getitem__)
        if most.models == (dearest,) and rates[dearest] > min(rates.values()):
            told.append(
                f"{where}{dearest!r}, the dearest model, has the role that writes most, {role!r}: "
                f"{most.output_share:.0%} of the output and {most.cost_share:.0%} of the cost."
            )
    return told


FEWEST, FALLS, STEADY = 20, -0.3, -0.1


def metric_suspect(answers: Sequence[str], references: Sequence[str], scores: Sequence[float]) -> str | None:
    """Whether a score seems to punish long answers rather than wrong ones; None if it does not.

    Over FEWEST answers or more, with Spearman's rank correlations to the answers' length in words: that of the score is
    FALLS or lower, though that of holding the reference (case and punctuation aside) is STEADY or higher. Token F1 is
    such a score: a sentence that holds the right name gets little.
    """
    if not len(answers) == len(references) == len(scores):
        raise Misuse(f"{len(answers)} answers, {len(references)} references, {len(scores)} scores; give one of each.")
    n, lengths = len(answers), [len(answer.split()) for answer in answers]
    if n < FEWEST or len(set(lengths)) < 2 or len(set(scores)) < 2:
        return None
    holds = [float(f" {_plain(r)} " in f" {_plain(a)} ") for a, r in zip(answers, references)]
    score, held = _spearman(lengths, scores), _spearman(lengths, holds)
    if score > FALLS or held < STEADY:
        return None
    return (
        f"the score falls with the length of the answer (rank correlation {score:.2f}, n={n:,}), while holding the "
        f"reference does not ({held:+.2f}): {sum(holds) / n:.0%} hold it, the mean score is {sum(scores) / n:.2f}. "
        "It may grade the form of answers; extract the answer before scoring, or let a judge compare."
    )


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


def _ranks(x: Sequence[float]) -> NDArray[np.float64]:
    """From their mean on."""
    _, place, count = np.unique(np.asarray(x, float), return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(count) - (count - 1) / 2)[place] - (len(x) + 1) / 2
    return ranks


def _spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Correlation of ranks, those of equals averaged; 0 where one does not vary."""
    a, b = map(_ranks, (x, y))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0
