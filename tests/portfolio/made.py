"""Made-up recordings whose best play is known."""

from __future__ import annotations

import numpy as np

from playcall.strategies import Draws, Recording


def made(
    quality: dict[str, float],
    *,
    cost: dict[str, float] | None = None,
    tasks: int = 300,
    seed: int = 0,
    telling: bool = True,
    seconds: dict[str, float] | None = None,
) -> Recording:
    """Arms that are right independently, with answers out of five and, if `telling`, confidences that tell."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, tasks)
    arms = {}
    for i, (arm, q) in enumerate(quality.items()):
        right = rng.random(tasks) < q
        answer = np.where(right, truth, (truth + rng.integers(1, 5, tasks)) % 5)
        score = np.clip(rng.normal(np.where(right, 0.8, 0.4), 0.15), 0, 1) if telling else np.full(tasks, np.nan)
        price = round((cost or {}).get(arm, 0.001 * 4**i) * 1e9)
        latency = np.maximum(1, (rng.exponential((seconds or {}).get(arm, 1.0), tasks) * 1e6).astype(np.int64))
        columns = (answer, score, np.zeros(tasks, bool), np.full(tasks, price), latency, right.astype(float))
        arms[arm] = Draws(*(np.asarray(c)[:, None] for c in columns))
    return Recording(tuple(f"t{i}" for i in range(tasks)), arms, tuple("abcde"), name="made")
