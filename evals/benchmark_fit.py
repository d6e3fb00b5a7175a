"""How long a fit takes, and how that grows: python -m playcall.evals.benchmark_fit [ARMSxTASKSxDRAWS ...].

A fit is one search of all plays and one for each of five folds, spread over the cores. The search grows

- with arms up to the shortlist of eleven (1,276 plays of up to four calls; each further arm beyond only joins the
  shortlist's choice) and, of these, with the arms that cost at most 1.5 times the best one;
- linearly with tasks from a few hundred on: below, what each play costs apart from its tasks is felt;
- with confidences, which make every task a case of its own, where answers alone are counted by who agrees;
- with draws hardly: plays of repeated draws are worked out along a few queues of sixteen calls.
"""

import re
import resource
import sys
from time import perf_counter

import numpy as np

from playcall.portfolio import fit, search
from playcall.strategies import Draws, Misuse, Recording

SIZES = ("6x300x1", "12x150x1", "12x300x1", "12x600x1", "12x1200x1", "24x300x1", "30x500x10")


def table(arms: int, tasks: int, draws: int, seed: int = 0) -> Recording:
    """Made-up arms on tasks of unequal difficulty: answers of five, confidences that tell, similar costs."""
    rng = np.random.default_rng(seed)
    truth, hard, shape = rng.integers(0, 5, (tasks, 1)), rng.normal(0, 1, (tasks, 1)), (tasks, draws)
    made = {}
    for i in range(arms):
        right = rng.random(shape) < 1 / (1 + np.exp(hard - rng.normal(0.8, 0.5)))
        answer = np.where(right, truth, (truth + rng.integers(1, 5, shape)) % 5)
        score = np.clip(rng.normal(np.where(right, 0.8, 0.5), 0.2), 0, 1)
        price = np.full(shape, round(1e6 * rng.uniform(0.8, 1.2)))
        latency = 1 + rng.integers(0, 2_000_000, shape)
        made[f"arm{i}"] = Draws(answer, score, np.zeros(shape, bool), price, latency, right.astype(np.float64))
    return Recording(tuple(f"t{i}" for i in range(tasks)), made, tuple("abcde"))


def main() -> None:
    """Print a line for each size."""
    sizes = sys.argv[1:] or SIZES
    if bad := [size for size in sizes if not re.fullmatch(r"\d+x\d+x\d+", size)]:
        raise Misuse(f"{bad[0]!r}: write ARMSxTASKSxDRAWS, such as 12x300x1.")
    print("arms x tasks x draws    plays    search s    whole fit s    peak MB of a process")
    for size in sizes:
        recording = table(*map(int, size.split("x")))
        begun = perf_counter()
        plays = len(search(recording))
        searched = perf_counter()
        fit(recording)
        done = perf_counter()
        most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(f"{size:22}{plays:7,}{searched - begun:12.1f}{done - searched:15.1f}{most / 1024:24.0f}", flush=True)


if __name__ == "__main__":
    main()
