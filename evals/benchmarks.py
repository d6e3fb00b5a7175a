"""How fast replay is: python -m playcall.evals.benchmarks [--json].

Replays each play over 1,000 made-up tasks (median of 21 runs), and runs it live over them one by one with calls that
answer at once, so as to time the engines alone. Targets: an early stop of 5 in under 20 ms, and a ratio of 100.
"""

import json
import sys
from dataclasses import dataclass
from math import inf
from time import perf_counter

import anyio
import numpy as np

from playcall import strategies as s

small, medium, large = map(s.Ask, ("small", "medium", "large"))
PLAYS: dict[str, s.Strategy] = {
    "one call": small,
    "best of 8": s.best_of(8, small),
    "vote of 8": s.self_consistency(8, small),
    "cascade of 3": s.Gather((small, medium, large), s.Confident(0.8), inf).keep(s.Best()),
    "early stop of 5": (2 * small & 2 * medium & large).until(s.Agree(2)).keep(s.Vote()),
    "hedge": s.hedge(large, after=0.3),
}


def table() -> s.Recording:
    """Three arms of 8 random draws: 4 answers, 1% failures, up to a second and a cent each."""
    rng, shape = np.random.default_rng(0), (1000, 8)
    answer, price, latency = (rng.integers(1, most, (3, *shape)) for most in (5, 10**7, 10**6))
    score, failed = rng.random((3, *shape)), rng.random((3, *shape)) < 0.01
    columns = zip(("small", "medium", "large"), answer, score, failed, price, latency, score)
    return s.Recording(tuple(map(str, range(1000))), {arm: s.Draws(*x) for arm, *x in columns}, tuple("abcde"))


@dataclass(frozen=True)
class AtOnce(s.Scripted):
    """Recorded calls without their waiting."""

    async def __call__(self, attempt: s.Attempt) -> s.Reply:
        return self.reply(attempt)


def measure(play: s.Strategy, recording: s.Recording) -> dict[str, float]:
    """Milliseconds per 1,000 tasks of both engines, and their ratio."""
    clock = [perf_counter()]
    for _ in range(21):
        s.Replay(recording)(play)
        clock.append(perf_counter())

    async def one_by_one() -> None:
        run = s.Live(AtOnce(recording))(play)
        for item in recording.items:
            await run(item)

    anyio.run(one_by_one)
    *runs, live = (1e3 * np.diff([*clock, perf_counter()])).tolist()
    return {"replay_ms": float(np.median(runs)), "one_by_one_ms": live, "ratio": live / float(np.median(runs))}


if __name__ == "__main__":
    figures = {name: measure(play, table()) for name, play in PLAYS.items()}
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures, indent=2))
    else:
        print("per 1,000 tasks     replay ms    one by one ms    ratio")
        for name, f in figures.items():
            print(f"{name:16}{f['replay_ms']:13.2f}{f['one_by_one_ms']:17.0f}{f['ratio']:9.0f}")
