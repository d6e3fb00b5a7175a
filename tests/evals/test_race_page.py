"""A race's page in a real browser: what it draws, that it sorts, fits a phone, asks nobody, that no name can run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import nan
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from playcall.evals.race_page import page
from playcall.portfolio.effects import RoleEffect
from playcall.portfolio.race import Race, Rules
from playcall.portfolio.raced import Raced, Racer, result

from .test_report import HOSTILE, LABELS, Browser, browser  # noqa: F401

RULES = Rules()
BARE = result(Race(HOSTILE, 100))
"""Of a race that has asked nothing."""


def racer(arm: str, state: str, quality: float, cost: float = nan, **more: Any) -> Racer:
    told = {
        "asked": 40, "failures": 1, "low": quality - 0.1, "high": quality + 0.2, "corrected": quality - 0.05,
        "cost_low": 0.9 * cost, "cost_high": 1.2 * cost, "latency": 2.0, "behind": 0.7 - quality, "ahead": 0.01,
    }  # fmt: skip
    return replace(BARE.arms[0], arm=arm, state=state, quality=quality, cost=cost, **{**told, **more})


def hostile(**changed: Any) -> Raced:
    """Every name hostile; one arm chosen, one tied, two in the set, of which one is of unknown cost, and one out."""
    states = ["chosen", "tied", "in the set", "in the set", "out"]
    arms = [racer(arm, s, 0.7 - i / 20, 0.02 * 4.0**-i) for i, (arm, s) in enumerate(zip(HOSTILE, states))]
    arms[3] = racer(HOSTILE[3], "in the set", 0.55)
    models = {arm: (i - 2) / 50 for i, arm in enumerate(HOSTILE)}
    told: dict[str, Any] = {
        "chosen": HOSTILE[0], "survivors": HOSTILE[:4], "ties": (HOSTILE[1],), "arms": tuple(arms), "dollars": 1.5,
        "effects": tuple(RoleEffect(role, 0.05, 0.02, 0.09, 0.4, models) for role in HOSTILE[:2]), "evaluations": 200,
        "regret_bound": 0.03, "expected_regret": 0.002, "brute_force_dollars": 4.0, "stopped": "done",
    }  # fmt: skip
    return replace(BARE, **{**told, **changed})


def charts(browser: Browser) -> dict[str, Any]:  # noqa: F811
    """Title -> the data of its chart."""
    shown = (
        "[...document.querySelectorAll('figure')].map(f => [f.firstChild.textContent, f.querySelector('.chart').data])"
    )
    return dict(browser.js(shown))


def test_the_page_holds_the_race_and_refers_to_nothing_outside_itself() -> None:
    made = page(hostile(), RULES, name=HOSTILE[0], notes=HOSTILE, more=[("Paid", HOSTILE[1])])
    told = json.loads(made.split("application/json>")[1].split("</script>")[0])
    assert [arm["arm"] for arm in told["arms"]] == [*HOSTILE]
    assert told["arms"][3]["cost"] is None
    assert told["facts"][-1] == ["Paid", HOSTILE[1]]
    own = made.replace(get_plotlyjs(), "")
    assert not re.search(r"url\(|@import|fetch\(|import\(", own)
    assert own.count("</script>") == own.count("<script") == 4


def test_the_frontier_the_set_the_roles_and_the_items_are_drawn_and_no_name_runs(browser: Browser) -> None:  # noqa: F811
    raced = hostile()
    made = page(raced, RULES, name=HOSTILE[1], notes=HOSTILE)
    browser.open(re.sub("<meta http-equiv[^>]*>", "", made))  # trust escaping alone
    drawn = charts(browser)
    titles = ["quality against cost", f"role {HOSTILE[0]}", f"role {HOSTILE[1]}", "items asked"]
    assert [*drawn] == titles
    parts = {part.get("name"): part for part in drawn[titles[0]]}
    assert {*parts} == {"frontier", "chosen", "tied", "in the set", "out", None}
    known = [r for r in raced.arms if r.cost == r.cost]
    assert sorted(parts["frontier"]["x"]) == sorted(r.cost for r in known)  # dearer is better
    best = raced.arms[0]
    chosen = parts["chosen"]
    assert (chosen["x"], chosen["y"]) == ([best.cost], [pytest.approx(100 * best.corrected)])
    assert chosen["error_y"]["array"] == [pytest.approx(100 * (best.high - best.corrected))]
    assert chosen["error_x"]["array"] == [pytest.approx(best.cost_high - best.cost)]
    assert drawn[titles[1]][0]["x"] == pytest.approx([-4, -2, 0, 2, 4])
    assert drawn[titles[3]][0]["x"] == [40] * 5
    assert "1 of unknown cost, only in the table" in browser.js("document.querySelector('figcaption').textContent")
    made_of = "[...document.querySelectorAll('body script, body img, .chart a, td *')].map(e => e.tagName)"
    assert browser.js(made_of) == ["SCRIPT"] * 4
    assert browser.js("window.ran") is None
    assert browser.problems() == []
    browser.js("[...document.querySelectorAll('th button')].find(b => b.textContent === 'USD an item').click()")
    names = browser.js("[...document.querySelectorAll('tbody th')].map(th => th.textContent)")
    assert names == [HOSTILE[i] for i in (4, 2, 1, 0, 3)]  # the unknown one last


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_screen_and_its_labels_do_not_overlap(browser: Browser, width: int) -> None:  # noqa: F811
    arms = tuple(racer(f"{'long name ' * 4}{i}", "in the set", 0.7 - i / 200, 0.01 + i / 100) for i in range(60))
    browser.open(page(hostile(arms=arms, effects=(), chosen=arms[0].arm, ties=()), RULES), width)
    assert browser.js("document.scrollingElement.scrollWidth") <= width
    _, covered, clipped = browser.js(LABELS)
    assert covered == clipped == 0
    assert len(charts(browser)["items asked"][0]["x"]) == 40
    assert browser.problems() == []


def test_a_race_that_chose_nothing_or_knows_no_cost_is_drawn_too(browser: Browser) -> None:  # noqa: F811
    arms = (racer("near", "nearest", 0.6, latency=nan), racer("far", "out", 0.3, latency=nan))
    browser.open(page(hostile(chosen=None, arms=arms, effects=(), survivors=(), ties=()), Rules(threshold=0.9)))
    assert [*charts(browser)] == ["quality against items", "items asked"]
    assert "no arm clears 90.0 %; the nearest is near" in browser.js("document.body.innerText")
    assert browser.problems() == []
    browser.open(page(BARE, RULES))
    assert "no arm was asked" in browser.js("document.body.innerText")
    assert browser.problems() == []
