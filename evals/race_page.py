"""The end of a race as one HTML page that needs no network: charts, a sortable table, and what to take."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files

from plotly.offline import get_plotlyjs

from playcall.evals.race_show import facts, named_effects
from playcall.portfolio.race import Rules
from playcall.portfolio.raced import Raced

_TITLE, _MAIN = "Strategies compared", "for (const [i, c] of JSON.parse("


def page(
    raced: Raced, rules: Rules, *, name: str = "", notes: Sequence[str] = (), more: Sequence[tuple[str, str]] = ()
) -> str:
    """One self-contained page, in the style and by the means of a comparison's; no text in the data can run.

    `more` are lines of words that follow those of `facts`.
    """
    told = raced.to_dict() | {"name": name, "notes": [*notes], "facts": [*facts(raced, rules), *more]}
    told["effects"] = told["effects"] if named_effects(raced) else []
    data = json.dumps(told, allow_nan=False).replace("<", "\\u003c")
    folder = files("playcall.evals") / "data"
    template = (folder / "page.html").read_text(encoding="utf-8").replace(_TITLE, f"A race of {len(raced.arms)} arms")
    head, before, tools = re.split("__DATA__|__PLOTLY__", template.partition(_MAIN)[0])
    main = (folder / "race.html").read_text(encoding="utf-8")
    return f"{head}{data}{before}{get_plotlyjs()}{tools}</script>{main}"
