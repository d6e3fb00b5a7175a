"""Random recordings and random strategies, for laws.

Equal answers and equal scores abound. Equal moments do not, since their order is no law: latencies are drawn from
millions and each limit of a strategy is its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import inf, nan

import numpy as np
from hypothesis import strategies as st

from playcall.strategies import (
    Agree,
    Ask,
    AtLeast,
    Belief,
    Best,
    Confident,
    Consistent,
    Draws,
    First,
    Gather,
    Keep,
    Live,
    Never,
    OrElse,
    Prompt,
    Recording,
    Reply,
    Result,
    Rule,
    Scripted,
    Stop,
    Strategy,
    Template,
    Then,
    Vote,
    Weight,
    Within,
    interpret,
    on_virtual_clock,
)

ARMS = ("haiku", "sonnet", "opus")
TEXTS = ("red", "green", "blue")
SCORES = np.array([nan, -inf, -2.0, -0.5, 0.0, 0.3, 0.5, 0.9, 1.0])
ROWS, DRAWS = 5, 192


@lru_cache(maxsize=256)
def record(seed: int) -> Recording:
    """Free calls, calls that take hours, arms that never or mostly fail; replies to prompts within the same ranges."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, DRAWS)

    def draws() -> Draws:
        failed = rng.random(shape) < rng.choice([0.0, 0.15, 0.6])
        slow = rng.random(shape) < 0.05
        free = rng.random(shape) < rng.choice([0.0, 0.2])
        return Draws(
            answer=rng.integers(0, len(TEXTS), shape),
            score=rng.choice(SCORES, shape),
            failed=failed,
            price=np.where(free, 0, rng.integers(10**6, 10**9, shape)),
            latency=np.floor(10 ** np.where(slow, rng.uniform(8, 10, shape), rng.uniform(4, 6.5, shape))).astype(int),
            quality=np.where(failed, 0.0, rng.random(shape)),
        )

    arms = {arm: draws() for arm in ARMS}

    def cassette(arm: str, prompt: str) -> Reply:
        h = hashlib.sha256(f"{seed} {arm} {prompt}".encode()).digest()

        def within(x: np.ndarray, i: int) -> int:
            return int(x.min()) + int.from_bytes(h[i : i + 6], "big") % (int(np.median(x)) - int(x.min()) + 1)

        return Reply(
            key=(*TEXTS, "merged", "mended")[h[0] % 5],
            score=float(SCORES[h[1] % len(SCORES)]),
            failed=h[2] < 40,
            price=within(arms[arm].price, 4),
            latency=within(arms[arm].latency, 12),
        )

    return Recording(tuple(f"task {i}" for i in range(ROWS)), arms, TEXTS, cassette=cassette)


@dataclass(frozen=True)
class Apart:
    """Engine[Strategy]: the same strategy, with no two limits alike."""

    ticks: count = field(default_factory=count)

    def ask(self, arm: str, draw: int) -> Strategy:
        return Ask(arm)

    def gather(self, parts: Sequence[Strategy], stop: Stop, gap: float) -> Strategy:
        return Gather(tuple(parts), stop, gap)

    def orelse(self, first: Strategy, then: Strategy) -> Strategy:
        return OrElse(first, then)

    def keep(self, source: Strategy, rule: Rule) -> Strategy:
        return Keep(source, rule)

    def then(self, source: Strategy, arm: str, prompt: Prompt) -> Strategy:
        return Then(source, arm, prompt)

    def within(self, source: Strategy, limit: float) -> Strategy:
        return Within(source, limit + 17e-6 * next(self.ticks))


def live(s: Strategy, recording: Recording) -> list[Result]:
    """The strategy run on each task in turn, on a clock that does not wait."""

    async def main() -> list[Result]:
        run = Live(Scripted(recording))(s)
        return [await run(item) for item in recording.items]

    return on_virtual_clock(main)


def weights(arm: str) -> st.SearchStrategy[Weight]:
    return st.builds(
        Weight,
        st.just(arm),
        bias=st.sampled_from([-1.0, 0.0, 0.4, 1.0, 3.0]),
        slope=st.sampled_from([0.0, 0.7, 2.0, -1.0]),
        scale=st.sampled_from(["raw", "probability", "logprob"]),
        missing=st.sampled_from([0.0, -0.5]),
    )


seeds = st.integers(0, 2**32)
beliefs = st.builds(
    Belief, st.tuples(*map(weights, ARMS)), other=st.sampled_from([0.0, -1.0, 1.3]), dissent=st.sampled_from([0.0, 0.6])
)
thresholds = st.sampled_from([-0.5, 0.3, 0.5, 0.9, 2.0, inf])
rules = (
    st.builds(AtLeast, thresholds) | st.sampled_from([Best(), First(), Vote()]) | st.builds(Vote, st.none() | beliefs)
)
monotone = st.builds(Agree, st.integers(1, 3)) | st.builds(Confident, thresholds)
stops = (
    st.just(Never())
    | monotone
    | st.builds(Confident, st.sampled_from([0.3, 0.6, 0.9]), beliefs)
    | st.builds(Consistent, st.sampled_from([0.6, 0.8, 0.9]))
)
gaps = st.sampled_from([0.0, inf]) | st.floats(1e-7, 4.0)
limits = st.integers(20_000, 4_000_000).map(lambda us: us / 1e6) | st.just(inf)
prompts = st.builds(Template, st.sampled_from(["judge {answers} of {task}", "merge {answers}", "{task} once more"]))
asks = st.sampled_from(ARMS).map(Ask)


def _grow(s: st.SearchStrategy[Strategy]) -> st.SearchStrategy[Strategy]:
    return (
        st.one_of(st.builds(Gather, st.tuples(*[s] * n), stops, gaps) for n in (1, 2, 3, 4))
        | st.builds(OrElse, s, s)
        | st.builds(Keep, s, rules)
        | st.builds(Then, s, st.sampled_from(ARMS), prompts)
        | st.builds(Within, s, limits)
    )


plays = _grow(asks | _grow(asks | _grow(asks))).map(lambda s: interpret(s, Apart()))  # at most 64 asks
