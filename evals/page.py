"""Comparisons as one HTML page that needs no network: charts, a sortable table, and how to read them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files

from plotly.offline import get_plotlyjs

from playcall.evals.comparison import Comparison
from playcall.evals.diagrams import ALIKE, Calibration, clusters
from playcall.evals.study_show import facts
from playcall.portfolio.studies import Study
from playcall.strategies import Misuse

_MAPPED, _CALIBRATED = 40, 12  # the best so many arms are drawn


@dataclass(frozen=True)
class Beside:
    """What the page may show of a table beside its comparison."""

    study: Study | None = None
    calibrations: tuple[Calibration, ...] = ()


def report(comparisons: Sequence[Comparison], beside: Sequence[Beside] = ()) -> str:
    """One self-contained page, which its script draws; no text in the data can run. `beside` goes with the comparisons.

    Raises Misuse for no comparison.
    """
    if not comparisons:
        raise Misuse("There is nothing to report: pass at least one Comparison, as compare(read_table(...)) returns.")
    if len(beside) > len(comparisons):
        raise Misuse(f"report: {len(beside)} Beside for {len(comparisons)} comparisons; give one each, in their order.")
    padded = [*beside, *[Beside()] * (len(comparisons) - len(beside))]
    documents = [_document(c, b) for c, b in zip(comparisons, padded, strict=True)]
    data = json.dumps(documents, allow_nan=False).replace("<", "\\u003c")
    template = (files("playcall.evals") / "data" / "page.html").read_text(encoding="utf-8")
    head, before, after = re.split("__DATA__|__PLOTLY__", template)
    return f"{head}{data}{before}{get_plotlyjs()}{after}"


def _document(c: Comparison, b: Beside) -> dict[str, object]:
    best = [r.strategy for r in sorted(c.rows, key=lambda r: -r.quality) if r.kind == "arm"]
    place = {arm: i for i, arm in enumerate(best)}
    shown = sorted(b.calibrations, key=lambda found: place.get(found.arm, len(best)))[:_CALIBRATED]
    more = {"calibrated": len(b.calibrations), "calibrations": [asdict(found) for found in shown], "alike": ALIKE}
    groups = clusters(c.error_correlation, best[:_MAPPED])
    return c.to_dict() | more | {"clusters": groups, "study": None if b.study is None else _study(b.study)}


def _study(s: Study) -> dict[str, object]:
    """What is drawn of a study; its words are those of the terminal."""
    figures = s.policy.figures
    frontier = [
        {"name": p.name, "words": p.words, "apparent": p.apparent, "held_out": p.held_out, **vars(p.figures)}
        for p in s.frontier
    ]
    baselines = [{"name": b.name, "words": b.words, **vars(b.figures)} for b in s.baselines]
    curve, single = [asdict(c) for c in s.curve], {"name": figures.single_arm, "quality": figures.single_quality}
    drawn = {"frontier": frontier, "baselines": baselines, "curve": curve, "single": single, "optimism": s.optimism}
    return drawn | {"facts": list(facts(s))}
