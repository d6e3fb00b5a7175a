"""The benchmark: its baselines against plain computations, and its command on tables of odd shapes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog
from scipy.special import expit
from scipy.stats import norm
from sklearn.feature_extraction.text import TfidfVectorizer
from typer.testing import CliRunner

from playcall.calibration import fit_weight
from playcall.evals import baselines, baselines_staged, benchmark
from playcall.evals.baselines import DROP, POINTS, SHARES
from playcall.evals.benchmark_summary import area, summarise
from playcall.evals.benchmark_tables import Bench, read_folder
from playcall.strategies import Draws, Misuse, PlaycallError, Recording

from ..portfolio.made import made

KEYS = {
    "table", "labels", "split", "learner", "point", "policy", "quality", "cost", "latency_mean", "latency_p95",
    "single_arm", "single_quality", "single_cost", "expected_quality", "expected_low", "expected_high", "seconds",
}  # fmt: skip
QUICK = ",".join(name for name in benchmark.LEARNERS if name != "portfolio")
FOUR = {"a": 0.55, "b": 0.7, "c": 0.75, "d": 0.8}
COSTS = {"a": 0.001, "b": 0.003, "c": 0.004, "d": 0.01}


def four(**how: Any) -> Recording:
    return made(FOUR, cost=COSTS, tasks=200, seed=3, **how)


def figures(recording: Recording) -> tuple[dict[str, float], dict[str, float]]:
    quality = {a: float(d.quality[:, 0].mean()) for a, d in recording.arms.items()}
    return quality, {a: float(d.price[:, 0].mean()) for a, d in recording.arms.items()}


def wanted(point: str, options: list[tuple[float, float]], recording: Recording) -> tuple[float, float]:
    """The (quality, cost) that serves a point, by the definition of the points."""
    quality, cost = figures(recording)
    best = max(quality, key=lambda a: quality[a])
    if point == "frugal":
        return min((o for o in options if o[0] >= quality[best] - DROP - 1e-9), key=lambda o: (o[1], -o[0]))
    within = [o for o in options if o[1] <= SHARES[point] * cost[best] + 1e-6]
    return max(within, key=lambda o: (o[0], -o[1])) if within else min(options, key=lambda o: o[1])


def elected(recording: Recording, calls: list[tuple[str, int]], weight: dict[str, float] | None = None) -> float:
    """Mean quality of a vote, counted task by task; ties to the first."""
    total = 0.0
    for i in range(len(recording)):
        votes: Counter[int] = Counter()
        for arm, draw in calls:
            votes[int(recording[arm].answer[i, draw])] += (weight or {}).get(arm, 1.0)  # type: ignore[assignment]
        winner = max(votes, key=lambda k: round(votes[k], 5))
        arm, draw = next((a, k) for a, k in calls if recording[a].answer[i, k] == winner)
        total += float(recording[arm].quality[i, draw])
    return total / len(recording)


def agrees(plays: dict[str, baselines.Play], options: list[tuple[float, float]], recording: Recording) -> None:
    quality, cost = figures(recording)
    options = options + [(quality[a], cost[a]) for a in recording.arms]
    for point in POINTS:
        q, c = wanted(point, options, recording)
        assert plays[point].quality == pytest.approx(q), point
        assert plays[point].cost == pytest.approx(c), point


def test_a_single_arm_serves_each_point() -> None:
    agrees(baselines.best_single(four()), [], four())


def test_the_floor_is_the_better_of_the_cheapest() -> None:
    recording = made({"a": 0.6, "b": 0.8, "c": 0.9}, cost={"a": 0.001, "b": 0.001, "c": 0.01})
    assert baselines.cheapest(recording).arms == ("b",)


def test_with_nothing_at_half_the_cost_the_cheapest_arm_is_taken() -> None:
    recording = made({"a": 0.6, "b": 0.8}, cost={"a": 0.009, "b": 0.01})
    assert baselines.best_single(recording)["half"].arms == ("a",)


def test_a_mix_of_single_arms_is_the_linear_programmes_and_hits_the_budget() -> None:
    recording = four()
    quality, cost = figures(recording)
    q, c = (np.array([x[a] for a in recording.arms]) for x in (quality, cost))
    plays, unit = baselines.single_mix(recording), c[q.argmax()]
    for point, share in SHARES.items():
        best = linprog(-q, A_ub=[c], b_ub=[share * unit], A_eq=[np.ones(4)], b_eq=[1])
        assert plays[point].quality == pytest.approx(-best.fun)
    assert plays["half"].cost == pytest.approx(0.5 * unit)
    least = linprog(c, A_ub=[-q], b_ub=[-(q.max() - DROP)], A_eq=[np.ones(4)], b_eq=[1])
    assert plays["frugal"].cost == pytest.approx(least.fun)


def repeated(depth: int = 7, tasks: int = 120) -> Recording:
    rng = np.random.default_rng(5)
    arms = {}
    for name, q, price in (("big", 0.7, 10_000_000), ("small", 0.65, 2_500_000)):
        right = rng.random((tasks, depth)) < q
        answer = np.where(right, 0, rng.integers(1, 5, right.shape))
        shape = right.shape
        arms[name] = Draws(
            answer,
            np.full(shape, np.nan),
            np.zeros(shape, bool),
            np.full(shape, price),
            np.full(shape, 9),
            right.astype(np.float64),
        )
    return Recording(tuple(map(str, range(tasks))), arms, tuple("abcde"))


def test_self_consistency_is_the_best_count_of_draws_within_budget() -> None:
    recording = repeated()
    options = [
        (elected(recording, [(a, k) for k in range(n)]), n * figures(recording)[1][a])
        for a in recording.arms
        for n in (1, 2, 3, 4, 5, 7)
    ]
    agrees(baselines.self_consistency(recording), options, recording)


def test_votes_are_counted_as_by_hand() -> None:
    recording = four()
    quality, cost = figures(recording)

    def ranked(cap: float) -> list[str]:
        return sorted((a for a in FOUR if cost[a] <= cap * cost["d"]), key=lambda a: -quality[a])

    def vote(arms: Any) -> tuple[float, float]:
        return elected(recording, [(a, 0) for a in arms]), sum(cost[a] for a in arms)

    agrees(
        baselines.majority(recording), [vote(r[:3]) for r in (ranked(9), ranked(0.5))] + [vote(ranked(9))], recording
    )
    caps = [ranked(cap) for cap in (9, 0.5, 0.25)]
    agrees(baselines.top_distinct(recording), [vote(r[:b]) for r in caps for b in range(1, len(r) + 1)], recording)


def test_log_odds_weights_are_nitzan_and_paroushs() -> None:
    recording = four()
    quality, cost = figures(recording)
    k = max(len({int(recording[a].answer[i, 0]) for a in FOUR}) for i in range(len(recording)))
    p = {a: (quality[a] * 200 + 1) / 202 for a in FOUR}
    weight = {a: float(np.log((k - 1) * p[a] / (1 - p[a]))) for a in FOUR}
    ranked = sorted(FOUR, key=lambda a: -p[a])
    options = [
        (elected(recording, [(a, 0) for a in s], weight), sum(cost[a] for a in s))
        for size in range(1, 5)
        for s in combinations(ranked, size)
    ]
    agrees(baselines.log_odds(recording), options, recording)


def chained(recording: Recording, chain: baselines_staged._Chain, thresholds: tuple[float, ...]) -> tuple[float, float]:
    """A chain's mean quality and cost, task by task."""
    quality = cost = 0.0
    for i in range(len(recording)):
        for at, arm in enumerate(chain.arms):
            d, w = recording[arm], chain.weights[arm]
            cost += d.price[i, 0]
            if w.slope:
                stop = at < len(thresholds) and expit(float(w(d.score[i : i + 1, 0])[0])) >= thresholds[at]
            else:
                stop = at > 0 and d.answer[i, 0] == recording[chain.arms[at - 1]].answer[i, 0]
            if stop or at == len(chain.arms) - 1:
                quality += d.quality[i, 0]
                break
    return quality / len(recording), cost / len(recording)


@pytest.mark.parametrize("telling", [True, False])
def test_the_stage_grid_finds_the_best_of_all_its_chains(telling: bool) -> None:
    recording = made({"a": 0.5, "b": 0.65, "c": 0.8}, cost=COSTS, tasks=60, seed=2, telling=telling)
    weights = {a: fit_weight(a, d.score[:, 0], d.quality[:, 0]) for a, d in recording.arms.items()}
    options = []
    for size in (1, 2, 3):
        for arms in combinations("abc", size):
            chain = baselines_staged._Chain(arms, weights)
            sure = [expit(weights[a](recording[a].score[:, 0])) for a in arms[:-1]]
            grids = [np.unique(np.quantile(s, baselines_staged._LEVELS)) if telling else [0.5] for s in sure]
            options += [chained(recording, chain, t) for t in product(*grids)]
    plays = baselines_staged.stage_grid(recording)
    agrees(plays, options, recording)
    new = made({"a": 0.5, "b": 0.65, "c": 0.8}, cost=COSTS, tasks=40, seed=9, telling=telling)
    for play in plays.values():
        if isinstance(play.grade, baselines_staged._Chain):
            g = play.grade(new)
            came = g.quality.mean(), g.cost.mean()
            assert came == pytest.approx(chained(new, play.grade, play.grade.thresholds))


def test_the_expected_maximum_is_clarks() -> None:
    """Clark 1961: E max(X, Y) = m1 Phi(a) + m2 Phi(-a) + t phi(a), t^2 the variance of X - Y, a = (m1 - m2) / t."""
    rng = np.random.default_rng(0)
    mean, cov = np.array([0.5, 0.6]), np.array([[0.04, 0.01], [0.01, 0.02]])
    spread = rng.multivariate_normal([0, 0], cov, 100_000)
    router = baselines_staged.CascadeRouter((), np.array([1.0, 2.0]), mean, np.zeros((2, 2)), np.zeros((2, 3)), spread)
    table, cost = router.gains
    t = float(np.sqrt(0.04 + 0.02 - 2 * 0.01))
    a = (0.5 - 0.6) / t
    low, high = (np.maximum(mean + spread, r).max(axis=1).mean() for r in (0.0, 0.7))
    assert table[3, 0] == pytest.approx(0.5 * norm.cdf(a) + 0.6 * norm.cdf(-a) + t * norm.pdf(a), abs=0.003)
    assert (table[3, 0], table[3, 70]) == (pytest.approx(low), pytest.approx(high))
    assert cost.tolist() == [0, 1, 2, 3]


def test_cascade_routing_follows_its_rule_task_by_task() -> None:
    recording = four()
    router = baselines_staged.CascadeRouter.fit(recording, 0)
    seen = baselines_staged._Seen.of(recording, router.weights)
    drawn, m = router.ante + router.spread, 4
    for price in (0.0, 0.05, 0.5):
        ran, pick = router.route(seen, price)
        for i in range(0, len(recording), 7):
            mask = 0
            while True:
                now = router.after(seen, mask)[i] if mask else np.full(m, -1.0)
                have = max(float(now.max()), 0.0)
                worth = {0: have if mask else -9.0}
                for s in range(1, 1 << m):
                    if not s & mask:
                        arms = [j for j in range(m) if s >> j & 1]
                        gain = np.maximum(drawn[:, arms].max(axis=1), have).mean()
                        worth[s] = gain - price * router.cost[arms].sum()
                best = max(worth, key=lambda s: worth[s])
                if best == 0 or worth[best] - worth[0] < 1e-4:  # the table of gains is in steps of 0.01
                    break
                mask |= best & -best
            if mask != ran[i]:  # only where it hardly matters
                assert abs(sorted(worth.values())[-1] - sorted(worth.values())[-2]) < 2e-3
            else:
                assert pick[i] == now.argmax()
    none, every = router.route(seen, 100.0)[0], router.route(seen, 0.0)[0]
    assert set(none) == {1}  # the cheapest arm alone
    assert every.mean() > none.mean()


def test_the_nearest_prompts_tell_which_arm_to_ask() -> None:
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 2, 300)
    texts = {f"t{i}": f"{('sum of numbers', 'name the river')[t]} {rng.integers(99)}" for i, t in enumerate(topics)}
    right = {arm: ((topics == t) != (rng.random(300) < 0.3)) * 1.0 for t, arm in enumerate(("maths", "places"))}
    ones, nan, none = np.ones((300, 1), int), np.full((300, 1), np.nan), np.zeros((300, 1), bool)
    arms = {a: Draws(ones, nan, none, ones * 1000, ones, r[:, None]) for a, r in right.items()}
    recording = Recording(tuple(texts), arms, ("x", "y"))
    train, test = recording.take(np.arange(200)), recording.take(np.arange(200, 300))
    play = baselines_staged.knn_router(train, 0, texts)["best"]
    assert play.grade(test).quality.mean() > max(d.quality.mean() for d in test.arms.values())

    prompts = [texts[i] for i in train.items]
    table = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b|[^\w\s]").fit_transform(prompts).toarray()
    hits = 0.0
    for i, row in enumerate(table):  # on the training tasks each is left out of its neighbours
        near = sorted((j for j in range(200) if j != i), key=lambda j: -float(row @ table[j]))[:15]
        estimate = {a: train[a].quality[near, 0].sum() + 10 * train[a].quality.mean() for a in right}
        hits += train[max(estimate, key=lambda a: estimate[a])].quality[i, 0]
    assert play.quality == pytest.approx(hits / 200)


def test_without_prompts_the_router_says_that_it_is_a_mix() -> None:
    assert baselines_staged.knn_router(four(), 0, {})["half"].words.startswith("no prompts recorded")


def test_the_oracle_takes_the_cheapest_right_arm() -> None:
    recording = four()
    by_cost = sorted(FOUR, key=lambda a: COSTS[a])
    g = baselines.oracle(recording)["best"].grade(recording)
    for i in range(len(recording)):
        arm = next((a for a in by_cost if recording[a].quality[i, 0] == 1), by_cost[0])
        assert (g.quality[i], g.cost[i]) == (recording[arm].quality[i, 0], recording[arm].price[i, 0])


def test_the_area_runs_what_was_expected_best_and_not_what_came_out_best() -> None:
    # budgets 0-1: nothing; 1-2: 0.6; 2-3: the dearer one, expected better, is worse
    assert area([(0.7, 1, 0.6), (0.8, 2, 0.5)], 3) == pytest.approx((0.6 + 0.5) / 3)
    assert area([(0.7, 1, 0.6), (0.5, 2, 0.9)], 3) == pytest.approx(2 * 0.6 / 3)  # never run: expected worse
    assert area([(0.7, 5, 0.6)], 3) == 0


# --- the command ------------------------------------------------------------------------------


def frame(tasks: int = 80, dataset: str = "one", **columns: Any) -> pd.DataFrame:
    """Calls of three arms, rarely without anything."""
    recording = made({"a": 0.5, "b": 0.7, "c": 0.8}, tasks=tasks, seed=len(dataset))
    rows = [
        {
            "dataset": dataset,
            "item": f"q{i}",
            "arm": arm,
            "prompt": f"question {i % 7} of {dataset} {i}",
            "answer": "abcde"[d.answer[i, 0]],
            "score": d.quality[i, 0],
            "cost_usd": d.price[i, 0] / 1e9,
            "latency_s": d.latency[i, 0] / 1e6,
            "confidence": d.score[i, 0],
        }
        for arm, d in recording.arms.items()
        for i in range(tasks)
    ]
    return pd.DataFrame(rows).assign(**columns)


def command(*arguments: object) -> str:
    done = CliRunner().invoke(benchmark.app(), [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def settled(file: Path) -> list[str]:
    """The rows in one order, without their seconds."""
    return sorted(json.dumps({k: v for k, v in row.items() if k != "seconds"}) for row in rows_of(file))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    pd.concat([frame(), frame(70, "second")]).to_parquet(tmp_path / "data" / "two.parquet")
    return tmp_path / "data"


def test_every_learner_has_a_row_for_every_point_with_the_agreed_keys(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    said = json.loads(command(folder, "--labels", "20,30", "--splits", 1, "--jobs", 1, "-o", out, "--json"))
    rows = rows_of(out)
    assert all(set(row) >= KEYS for row in rows)
    units = Counter((r["table"], r["labels"], r["learner"]) for r in rows)
    assert units == {
        (t, n, learner): 3
        for t, sizes in (("two/one", (20, 30)), ("two/second", (20,)))
        for n in sizes
        for learner in benchmark.LEARNERS
    }
    assert said["notes"]["two/second"] == ["too few tasks (70) for 30 labels and 50 more."]
    for row in rows:
        assert row["cost"] > 0
        assert 0 <= row["quality"] <= 1
        assert row["latency_mean"] <= row["latency_p95"]
        assert (row["expected_quality"] is None) == (row["learner"] == "oracle")


def test_a_stopped_run_goes_on_where_it_was(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = (folder, "--labels", "20", "--splits", 2, "--learners", QUICK, "--jobs", 1, "-o", out)
    first = command(*arguments)
    whole = settled(out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:16]) + lines[16][:50])  # five units, a row of the sixth, and a torn one
    ran = list[benchmark.Unit]()
    rows = benchmark.Unit.rows

    def counted(unit: benchmark.Unit, bench: Bench) -> Any:
        ran.append(unit)
        return rows(unit, bench)

    monkeypatch.setattr(benchmark.Unit, "rows", counted)
    assert command(*arguments).splitlines()[0] == first.splitlines()[0]
    assert len(ran) == len(whole) // 3 - 5
    assert settled(out) == whole
    ran.clear()
    command(*arguments)
    assert not ran


def test_two_processes_write_the_same_rows_as_one(folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{jobs}.jsonl" for jobs in (1, 2)]
    for jobs, out in enumerate(files, 1):
        command(
            folder, "--tables", "two/one", "--labels", 25, "--splits", 2, "--learners", QUICK, "--jobs", jobs, "-o", out
        )
    assert settled(files[0]) == settled(files[1])


def test_the_training_tasks_of_fewer_labels_are_among_those_of_more() -> None:
    small, large = (set(benchmark.Unit("t", n, 4, "oracle").parts(four())[0].items) for n in (20, 60))
    assert small < large
    assert small != set(benchmark.Unit("t", 20, 5, "oracle").parts(four())[0].items)


def test_a_file_that_holds_something_else_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.txt"
    out.write_text('{"a": 1}\n')
    with pytest.raises(Misuse, match="no row of a benchmark"):
        command(folder, "--labels", "20", "--splits", 1, "--learners", "oracle", "-o", out)
    assert out.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("options", "say"),
    [
        (("--learners", "best"), "no learner 'best'"),
        (("--labels", "5"), "at least 10"),
        (("--tables", "three"), "no table 'three'"),
    ],
)
def test_misuse_says_what_to_write(folder: Path, options: tuple[str, ...], say: str) -> None:
    with pytest.raises(Misuse, match=say):
        command(folder, *options)


def odd() -> dict[str, pd.DataFrame]:
    """Tables as they come."""
    plain = frame().drop(columns="dataset")
    arm, item = plain.arm, plain.item
    few = plain[(arm != "a") | (item < "q5")]  # one arm on half of the items
    gaps = plain[(arm != "b") | (item != "q3")]  # one missing cell
    draws = pd.concat([plain.assign(trial=3, answer="e"), plain.assign(trial=1)])
    builds = pd.concat([plain.assign(build=k) for k in ("v1", "v2")])
    return {
        "few": few,
        "gaps": gaps,
        "draws": draws,
        "builds": builds,
        "null_scores": plain.assign(score=plain.score.mask(item.isin(["q1", "q2"]) & (arm == "c"))),
        "nan_scores_csv": plain.assign(score=plain.score.mask(item == "q1")),
        "negative": plain.assign(cost_usd=plain.cost_usd.mask(item == "q1", -0.5)),
        "no_costs": plain.drop(columns="cost_usd"),
        "one_unpriced": plain.assign(cost_usd=plain.cost_usd.mask(arm == "c")),
        "no_answers": plain.drop(columns=["answer", "prompt", "latency_s"]),
        "nothing_but_scores": plain[["item", "arm", "score"]],
        "one_arm": plain[arm == "b"],
        "free": plain.assign(cost_usd=0.0),
        "all_right": plain.assign(score=1.0, confidence=1.0),
        "many_arms": pd.concat([plain.assign(arm=plain.arm + str(k)) for k in range(24)]),
    }


def test_tables_of_any_shape_are_run(tmp_path: Path) -> None:
    for name, table in odd().items():
        table.to_csv(tmp_path / f"{name}.csv", index=False) if name.endswith("csv") else table.to_parquet(
            tmp_path / f"{name}.parquet"
        )
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "steps.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "README.md").write_text("# not a table")
    out = tmp_path / "out" / "rows.jsonl"
    out.parent.mkdir()
    quick = ("--labels", 20, "--splits", 1, "--jobs", 1, "--learners", QUICK)
    said = json.loads(command(tmp_path, *quick, "-o", out, "--json"))
    notes, rows = said["notes"], rows_of(out)
    assert not [line for lines in notes.values() for line in lines if "FAILED" in line]
    assert {row["table"] for row in rows} == set(odd())
    assert "refused: broken.parquet: cannot be read" in notes["broken"][0]
    assert "refused: steps.jsonl: there is no column 'item'" in notes["steps"][0]
    assert "arms with under 95% of the items, left out: 1 of 3 ('a')." in notes["few"]
    assert "items that a kept arm lacks, left out: 1 of 80." in notes["gaps"]
    assert "items that a kept arm lacks, left out: 2 of 80." in notes["null_scores"]
    assert "cost_usd under zero, taken as not recorded: 3." in notes["negative"]
    assert "draws are numbered by the column 'build'." in notes["builds"]
    assert "arms without a cost, left out: 1 of 3 ('c')." in notes["one_unpriced"]
    calls = [r for r in rows if r["table"] == "no_costs" and r["learner"] == "best_single"]
    assert all(r["cost"] is r["single_cost"] is None and r["cost_ratio"] == 1 for r in calls)
    alone = [r for r in rows if r["table"] == "no_answers" and r["learner"] == "majority"]
    assert all(r["latency_mean"] is None and r["policy"].startswith("ask ") for r in alone)


def test_repeated_draws_are_taken_in_order(tmp_path: Path) -> None:
    odd()["draws"].to_parquet(tmp_path / "draws.parquet")
    (bench,) = read_folder(tmp_path)
    assert bench.recording is not None
    d = bench.recording["b"]
    assert d.depth == 2
    first, second = ({bench.recording.texts[k] for k in d.answer[:, draw]} for draw in (0, 1))
    assert len(first) > 1
    assert second == {"e"}


def test_a_learner_that_fails_is_reported_and_stops_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, baselines.Play]:
        raise ZeroDivisionError("planted")

    monkeypatch.setitem(benchmark.LEARNERS, "majority", broken)
    quick = ("--labels", 20, "--splits", 1, "--jobs", 1, "--learners", "majority,best_single")
    said = json.loads(command(folder, *quick, "--json"))
    assert "majority, 20 labels, split 0 FAILED: ZeroDivisionError: planted" in said["notes"]["two/one"]
    assert {s["learner"] for s in said["summary"]} == {"best_single"}


def test_the_summary_is_the_means_of_its_rows() -> None:
    base: dict[str, str | int | float | None] = {
        "table": "t",
        "labels": 50,
        "single_quality": 0.8,
        "area": 0.5,
        "seconds": 1.0,
        "brier": None,
    }
    rows: list[dict[str, str | int | float | None]] = [
        {**base, "learner": "x", "split": s, "point": p, "quality": q, "cost_ratio": 0.5, "expected_quality": 0.85,
         "expected_low": 0.79, "expected_high": 0.9, "oracle_quality": 0.9, "oracle_ratio": 0.5}
        for s, q in ((0, 0.78), (1, 0.82)) for p in POINTS
    ]  # fmt: skip
    (found,) = summarise(rows, ["x"])
    assert found.difference["best"] == pytest.approx(0)
    assert found.half_width["best"] == pytest.approx(12.706 * 2, rel=1e-3)  # t(1 df) * 2.83 / sqrt(2)
    assert found.coverage == 0.5
    assert found.optimism == pytest.approx(5)
    # U - U_single: 0.8 - 0.1 * 0.5 - (0.8 - 0.1) = 0.05 on average; the oracle's 0.9 - 0.05 - 0.7 = 0.15
    assert found.closed_gap == pytest.approx(1 / 3)


def test_rows_that_cannot_be_written_are_refused_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "_computed", lambda *_: pytest.fail("worked first"))
    for out in (tmp_path / "no" / "rows.jsonl", tmp_path):
        with pytest.raises(PlaycallError, match=r"(cannot be written|no regular file)"):
            command(folder, "--labels", "20", "--splits", 1, "--learners", "oracle", "-o", out)


def test_what_is_named_twice_is_run_once(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    command(folder, "--labels", "20,20", "--splits", 1, "--jobs", 1, "--learners", "oracle,oracle", "-o", out)
    keys = [(r["table"], r["labels"], r["point"]) for r in map(json.loads, out.read_text().splitlines())]
    assert len(keys) == len(set(keys)) > 0
