"""Comparisons as one HTML page that needs no network: charts, a sortable table, and how to read them."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from plotly.offline import get_plotlyjs
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from playcall.evals.comparison import Comparison
from playcall.strategies import Misuse


def report(comparisons: Sequence[Comparison]) -> str:
    """One self-contained page, which its script draws; no text in the data can run. Raises Misuse for no comparison."""
    if not comparisons:
        raise Misuse("There is nothing to report: pass at least one Comparison, as compare(read_table(...)) returns.")
    data = json.dumps([c.to_dict() | {"arms": _order(c)} for c in comparisons], allow_nan=False).replace("<", "\\u003c")
    template = (files("playcall.evals") / "data" / "page.html").read_text(encoding="utf-8")
    head, before, after = re.split("__DATA__|__PLOTLY__", template)
    return f"{head}{data}{before}{get_plotlyjs()}{after}"


def _order(c: Comparison) -> list[str]:
    """The best arms, at most 40, those that fail on the same tasks side by side."""
    arms = [r.strategy for r in sorted(c.rows, key=lambda r: -r.quality) if r.kind == "arm"][:40]
    if len(arms) < 2:
        return arms
    apart = 1 - np.array([[c.error_correlation[a][b] for b in arms] for a in arms])
    tree = linkage(squareform(np.clip(apart, 0, 2), checks=False), "average", optimal_ordering=True)
    return [arms[i] for i in leaves_list(tree)]
