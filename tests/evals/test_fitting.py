"""What `playcall fit` says and writes: every figure is the study's, and a play is certified only where it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.portfolio.made import made

from playcall.evals.fitting import Fitted, fitted
from playcall.evals.study_show import facts, render, show
from playcall.portfolio import Policy, Target, best_arm
from playcall.portfolio.studies import Redundant, Study
from playcall.strategies import outcomes

ARMS = {"small": 0.7, "medium": 0.75, "large": 0.85, "poor": 0.3}
SECONDS = {"small": 0.2, "medium": 0.4, "large": 1.0, "poor": 0.1}
RECORDING = made(ARMS, tasks=200, seconds=SECONDS)


@pytest.fixture(scope="module")
def found() -> Fitted:
    return fitted(RECORDING, Target(max_share=0.5), labels=(50,), folds=2)


def lines(s: Study, width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(s))
    return console.export_text().splitlines()


def leaves(value: object) -> Iterator[object]:
    match value:
        case dict():
            yield from (leaf for v in value.values() for leaf in leaves(v))
        case list():
            yield len(value)
            yield from (leaf for v in value for leaf in leaves(v))
        case _:
            yield value


def written(x: float) -> set[str]:
    """The ways in which a figure may be printed, without its sign."""
    x = abs(x)
    return {f"{100 * x:.1f}", f"{x:.3g}", f"{1000 * x:.3g}"} if isinstance(x, float) else {f"{x:,}"}


def test_every_number_on_the_screen_is_a_figure_of_the_json(found: Fitted) -> None:
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    known = {t for x in leaves(document) if isinstance(x, int | float) and not isinstance(x, bool) for t in written(x)}
    known |= {n for x in leaves(document) if isinstance(x, str) for n in re.findall(r"\d[\d,]*\.?\d*", x)}
    figures = document["policy"]["figures"]
    known |= {f"{figures['cost_per_task'] / figures['single_cost']:.2f}", "95", "1,000"}  # the share; 95%, USD/1,000
    shown = "\n".join(lines(found.study, 1000))
    told = re.findall(r"(?<![\w.])\d[\d,]*\.?\d*(?:e-\d+)?", shown)
    assert len(told) > 50
    assert [n for n in told if n.rstrip(",.") not in known and n not in known] == []


def test_the_screen_says_what_the_study_found(found: Fitted) -> None:
    s, f = found.study, found.study.policy.figures
    said = dict(facts(s))
    assert said["Quality"].startswith(
        f"{100 * f.quality:.1f} [{100 * f.quality_low:.1f}, {100 * f.quality_high:.1f}] % of 200 tasks"
    )
    assert f"${f.cost_per_task:.3g}" in said["Cost"]
    assert f"mean {f.latency_mean:.3g}" in said["Latency"]
    assert f"percentile {f.latency_p95:.3g}" in said["Latency"]
    assert said["Ceiling"].startswith(f"{100 * s.ceiling:.1f} [{100 * s.ceiling_low:.1f}, {100 * s.ceiling_high:.1f}]")
    against = [words for name, words in facts(s) if name == "Against"]
    single = best_arm(RECORDING)
    share = f"{f.cost_per_task / RECORDING[single].price.mean() * 1e9:.2f}x its cost"
    assert single in against[0]
    assert against[0].endswith(share)
    assert f"{100 * f.difference:+.1f} [{100 * f.difference_low:+.1f}, {100 * f.difference_high:+.1f}]" in against[0]
    assert s.strongest.name in against[1]
    assert f"{100 * s.strongest.figures.quality:.1f} [" in against[1]
    assert f" at ${s.strongest.figures.cost_per_task:.3g})" in against[1]
    assert against[1].endswith(f"{100 * s.gain:+.1f} [{100 * s.gain_low:+.1f}, {100 * s.gain_high:+.1f}] points")
    earns = [words for name, words in facts(s) if name == "Earns"]
    assert [(words.split(":")[0], f"{100 * e.gain:+.1f} points" in words) for words, e in zip(earns, s.earned)] == [
        (e.arm, True) for e in s.earned
    ]
    screen = lines(s, 200)
    for p in s.frontier:
        (line,) = [line.split() for line in screen if line.split()[:1] == [p.name]]
        assert (line[1], line[2], line[3]) == (
            f"{100 * p.apparent:.1f}",
            f"{100 * p.figures.quality:.1f}",
            f"[{100 * p.figures.quality_low:.1f},",
        )
    assert any("-12.3 points (optimism)" in line for line in lines(replace(s, optimism=-0.123), 200))
    (curve,) = [line.split() for line in screen if line.split()[:1] == ["50"]]
    assert curve[1] == f"{100 * s.curve[0].quality:.1f}"


def test_the_screen_fits_eighty_columns_and_says_little_of_much(found: Fitted) -> None:
    s = replace(found.study, findings=("so " * 200,) * 30, redundant=found.study.redundant * 30)
    screen = lines(s, 80)
    assert max(map(len, screen)) <= 80
    assert len(screen) < 60
    assert "and 27 more: --json has all of it" in "\n".join(screen)
    assert len([words for name, words in facts(s) if name == "Found"]) == 30  # the page has all of it


def test_redundant_arms_are_counted_by_the_arms_that_they_fail_with(found: Fitted) -> None:
    alike = [("x", "y"), ("y", "x"), (), ("x",), ("y",)]
    arms = tuple(Redundant(arm=f"arm{i}", alike=like, words="") for i, like in enumerate(alike))
    s = replace(found.study, redundant=arms)
    said = [words for name, words in facts(s, brief=150) if name == "Redundant"]
    assert said[0] == "2 fail where x, y fail: arm0, arm1"
    assert said[2] == "and 2 more: --json has all of it"
    assert [words for name, words in facts(s) if name == "Redundant"] == [
        "2 fail where x, y fail: arm0, arm1",
        "1 brings nothing of its own: arm2",
        "1 fails where x fails: arm3",
        "1 fails where y fails: arm4",
    ]


def test_limits_that_held_out_figures_miss_are_said(found: Fitted) -> None:
    p = found.study.policy
    cost = p.figures.cost_per_task
    for target, miss in (
        (Target(max_cost=cost / 2), "cost is over the limit of $"),
        (Target(max_share=cost / p.figures.single_cost / 2), "cost is over the limit of $"),
        (Target(min_quality=1.0), "quality is under the target of 100.0 %"),
        (Target(max_drop=0.0), "quality is under the target of "),
        (Target(max_latency_p95=1e-3), "95th percentile of the latency is over the limit of 0.001 s"),
    ):
        s = replace(found.study, policy=replace(p, target=target, figures=replace(p.figures, quality=0.1)))
        said = [words for name, words in facts(s) if name == "Misses"]
        assert any(miss in words for words in said), target
    kept = replace(found.study, policy=replace(p, target=Target(max_cost=1.0)))
    assert "Misses" not in dict(facts(kept))


def test_a_certified_play_is_written_with_the_figures_of_the_tasks_that_certified_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = made({"cheap": 0.9, "dear": 0.9}, tasks=300)
    f = fitted(recording, Target(), guarantee=0.2, folds=2)
    assert f.guarantee is not None
    assert f.policy.strategy == f.guarantee.strategy is not None
    assert f.policy.figures.tasks == f.guarantee.certified_on == 180
    assert f.policy.figures.cost_per_task == pytest.approx(f.guarantee.cost_per_task)
    assert f.guarantee.words in f.policy.notes
    f.policy.save(tmp_path / "p.json")
    assert Policy.load(tmp_path / "p.json").strategy == f.guarantee.strategy
    show(f)
    assert "the certified one is written" in " ".join(capfd.readouterr().out.split())
    document = f.to_dict()["guarantee"]
    assert (document["certified"], document["words"]) == (True, f.guarantee.words)


def test_where_nothing_can_be_certified_the_ordinary_policy_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    f = fitted(made({"cheap": 0.5, "dear": 0.9}, tasks=60), Target(), guarantee=0.0, folds=2)
    assert f.guarantee is not None
    assert f.guarantee.strategy is None
    assert f.policy == f.study.policy
    show(f)
    said = " ".join(capfd.readouterr().out.split())
    assert "The play above is written" in said
    assert " ".join(f.guarantee.words.split()) in said
    assert f.to_dict()["guarantee"]["certified"] is False


def test_a_policy_holds_the_calibration_of_its_arms(found: Fitted) -> None:
    from playcall.calibration import ConfidenceCalibrator
    from playcall.strategies import arms_of

    assert set(found.policy.calibration) == set(arms_of(found.policy.strategy))
    for arm, document in found.policy.calibration.items():
        d = RECORDING[arm]
        fresh = ConfidenceCalibrator().fit(d.score.ravel(), d.quality.ravel()).predict_proba(d.score.ravel())
        assert np.allclose(ConfidenceCalibrator.from_dict(document).predict_proba(d.score.ravel()), fresh)
    assert outcomes(found.policy.strategy, RECORDING).quality.mean() == found.policy.figures.apparent_quality
