"""The page in a real browser: what it draws, that it sorts, fits a phone, asks nobody, and that no name can run."""

import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from playcall.calibration import Reliability
from playcall.evals.comparison import Comparison, Row
from playcall.evals.diagrams import Calibration
from playcall.evals.page import Beside, report
from playcall.evals.study_show import facts
from playcall.portfolio import Expected, Figures, Policy, Target
from playcall.portfolio.studies import Baseline, CurvePoint, Earned, Point, Redundant, Study
from playcall.strategies import Ask, Misuse

HOSTILE = (
    "<script>window.ran = 1</script>",
    "</script><img src=x onerror='window.ran=1'>",
    '"><a href="javascript:window.ran=1">&lt;b&gt;</a>',
    "%{x} ${window.ran=1} \\u003c & <!-- <sup>2</sup>",
    "__proto__",
)
CHECKER = "THE SCORES ARE THE GRADES: this holds only where a checker as good as the grader runs live."
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync --remote-debugging-pipe"


def row(strategy: str, kind: str, quality: float, cost: float | None, seconds: float | None = 1.0, **more: Any) -> Row:
    """A row; quality and difference within 0.02, the best single arm at 0.7."""
    return Row(
        strategy=strategy,
        kind=kind,
        words=more.pop("words", f"ask {strategy}."),
        quality=quality,
        quality_low=quality - 0.02,
        quality_high=quality + 0.02,
        cost_per_task=None if cost is None else cost / 1000,
        cost_per_1000=cost,
        latency_mean=seconds,
        latency_p95=None if seconds is None else 2 * seconds,
        calls=more.pop("calls", 1.0),
        difference=quality - 0.7,
        difference_low=quality - 0.72,
        difference_high=quality - 0.68,
        **more,
    )


def comparison(rows: Sequence[Row], name: str = "table", notes: Sequence[str] = ()) -> Comparison:
    """Arms whose names are equal up to the last letter fail together, others apart."""
    arms = [r.strategy for r in rows if r.kind == "arm"]
    alike = {a: {b: 1.0 if a == b else 0.8 if a[:-1] == b[:-1] else -0.2 for b in arms} for a in arms}
    return Comparison(name, 1234, arms[0], tuple(rows), tuple(notes), alike)


def hostile(name: str = HOSTILE[1]) -> Comparison:
    """Every text hostile; nine rows with a cost, one without, three on the frontier."""
    first, *others = (
        row(text, "arm", 0.7 - i / 20, 10.0 * 3**-i, 3.0 - i / 2, frontier=i == 4) for i, text in enumerate(HOSTILE)
    )
    family = [
        row("cascade, half the cost", "family", 0.69, 5.0, 2.5, frontier=True, words=HOSTILE[0], calls=1.5),
        row("cascade, best", "family", 0.72, 12.0, 4.0, frontier=True, words="long words " * 20, calls=2.0),
    ]
    rows = [*family, row("mine " + HOSTILE[0], "yours", 0.66, 7.0), first, *others]
    rows += [row("free " * 30, "arm", 0.95, None), row("oracle", "bound", 0.9, 1.0)]
    return comparison(rows, name, [CHECKER, f"no costs recorded: {HOSTILE[0]}."])


def figures(quality: float, cost: float | None) -> Figures:
    same = {k: getattr(row("x", "arm", quality, None), k) for k in ("quality", "quality_low", "quality_high", "calls")}
    same |= {
        "quality_low": quality - 0.03,
        "difference": quality - 0.7,
        "difference_low": quality - 0.72,
        "difference_high": quality - 0.68,
    }
    return Figures(**same, cost_per_task=cost, latency_mean=None, latency_p95=None)


def studied(*, cost: float | None = 0.01, curve: bool = True) -> Study:
    """Every text hostile; three points of the frontier, two baselines of which one is far below."""
    h, arm = HOSTILE, HOSTILE[0]
    expected = Expected(
        **vars(figures(0.71, cost)),
        single_arm=h[2],
        single_quality=0.7,
        single_cost=cost,
        apparent_quality=0.74,
        tasks=1234,
    )
    found = {"words": h[2], "strategy": Ask(arm), "held_out": 0.69}
    points = [
        Point(name=h[i], max_share=s, apparent=q + 0.03, figures=figures(q, cost and cost * s), **found)
        for i, (s, q) in enumerate([(0.5, 0.68), (1.0, 0.71), (4.0, 0.72)])
    ]
    simple = [Baseline(name=h[i], words=h[3], figures=figures(q, cost)) for i, q in enumerate([0.7, 0.2])]
    grown = [
        CurvePoint(labels=n, runs=10, words=h[1], cost_per_task=cost, **_interval(0.6 + n / 1000)) for n in (50, 100)
    ]
    return Study(
        policy=Policy(Ask(arm), expected, Target(), {arm: cost}, {}, h),
        frontier=tuple(points),
        baselines=tuple(simple),
        strongest=simple[0],
        gain=0.02,
        gain_low=-0.01,
        gain_high=0.05,
        ceiling=0.9,
        ceiling_low=0.88,
        ceiling_high=0.92,
        earned=(Earned(arm=arm, gain=0.01, cost=cost, words=h[1]),),
        redundant=(Redundant(arm=h[1], alike=(arm,), words=h[1]),),
        findings=h,
        changes=h,
        curve=tuple(grown) if curve else (),
        optimism=0.03,
    )


def _interval(quality: float) -> dict[str, float]:
    kept = vars(figures(quality, None))
    return {k: kept[k] for k in kept if k.startswith(("quality", "difference"))}


def believed(arm: str) -> Calibration:
    diagram = Reliability((0.2, 0.6, 0.9), (0.25, 0.5, 0.95), (0.1, 0.3, 0.8), (0.4, 0.7, 1.0), (20, 20, 20))
    return Calibration(arm, 60, diagram, (0.11, 0.1, 0.12), (0.31, 0.3, 0.32))


class Browser:
    """A headless Chromium driven by the DevTools protocol over two pipes."""

    def __init__(self, program: str, folder: Path) -> None:
        import fcntl  # not on Windows

        (read, self.write), (self.read, write) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        self.process = subprocess.Popen(
            [program, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "about:blank"],
            preexec_fn=lambda: [os.dup2(end, place) for place, end in enumerate(high, 3)],
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read, write, *high):
            os.close(end)
        self.folder, self.buffer, self.sent, self.pages, self.session = folder, b"", 0, 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """The result of a command; events that come before it are kept."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.sent:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.read], [], [], 15)[0], "the browser says nothing"
            part = os.read(self.read, 1 << 20)
            assert part, "the browser ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def open(self, page: str, width: int = 1280) -> None:
        """Loads a page at a width; `events` are then those of this page."""
        self.pages += 1
        path = self.folder / f"page{self.pages}.html"
        path.write_text(page, encoding="utf-8")
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        start = time.monotonic()
        while not self.js(f"document.readyState === 'complete' && location.href === {path.as_uri()!r}"):
            assert time.monotonic() - start < 15, "the page does not load"

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def problems(self) -> list[dict[str, Any]]:
        """What went wrong since the page was opened: exceptions, console and log entries, requests."""
        self.js("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        wrong = [e for e in self.events if e.get("method") in kinds]
        return wrong + [
            {"asked": url} for url in asked if not url.startswith("data:") and f"page{self.pages}.html" not in url
        ]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on PATH to open the page with")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def column(browser: Browser, name: str) -> list[str]:
    heads = browser.js("[...document.querySelectorAll('thead th')].map(th => th.textContent)")
    cells = f"[...document.querySelectorAll('tbody tr')].map(tr => tr.cells[{heads.index(name)}].textContent)"
    return list(browser.js(cells))


LABELS = """(() => {
  const shown = [...document.querySelectorAll('.textpoint text')].filter(t => t.style.visibility === 'visible');
  const boxes = shown.map(t => [t.closest('.chart').querySelector('.nsewdrag'), t.getBoundingClientRect()]);
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const covered = boxes.filter(([c, a], i) => boxes.some(([d, b], j) => j < i && c === d && !apart(a, b)));
  const clipped = boxes.map(([c, a]) => [c.getBoundingClientRect(), a]).filter(([c, a]) =>
    a.left < c.left || a.right > c.right || a.top < c.top || a.bottom > c.bottom);
  return [shown.length, covered.length, clipped.length];
})()"""


def test_nothing_to_report_is_refused() -> None:
    with pytest.raises(Misuse, match="at least one Comparison"):
        report([])


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = report([hostile(), hostile("http://example.org")])
    references = list[tuple[str, str | None]]()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            references.extend(a for a in attrs if a[0] in ("src", "href", "data", "action", "srcset", "poster"))

    Reader().feed(page)
    assert references == []  # the contents are made by the script
    own = page.replace(get_plotlyjs(), "")
    assert not re.search(r"url\(|@import|fetch\(|import\(", own)
    assert own.count("</script>") == own.count("<script") == 3


def test_arms_that_fail_together_stand_together() -> None:
    names = [f"{family}{i}" for i in range(3) for family in "abcd"]
    page = report([comparison([row(n, "arm", 0.5 + i / 100, 1.0) for i, n in enumerate(names)])])
    data = json.loads(page.split("application/json>")[1].split("</script>")[0])
    groups = data[0]["clusters"]
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert sorted("".join(sorted(name[0] for name in group)) for group in groups) == ["aaa", "bbb", "ccc", "ddd"]


def test_every_strategy_is_drawn_and_nothing_of_a_name_runs(browser: Browser) -> None:
    c = hostile()
    for page in (report([c]), re.sub("<meta http-equiv[^>]*>", "", report([c]))):  # the second trusts escaping alone
        browser.open(page)
        assert browser.js("document.querySelectorAll('.chart .cartesianlayer .subplot').length") == 4
        points = browser.js("[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('.point').length)")
        assert points == [len(c.rows) - 1, len(c.rows), len(c.rows) - 1, 0]
        step = browser.js("document.querySelector('.chart').data[0]")
        on = sorted((r.cost_per_1000, 100 * r.quality) for r in c.rows if r.frontier)
        assert sorted(zip(step["x"], step["y"], strict=True)) == on
        hovers = browser.js("""(async (chart, texts) => {
            for (const [curveNumber, t] of chart.data.entries())
                for (const pointNumber of (t.hovertext ?? []).keys()) {
                    await new Promise(done => setTimeout(done, 60));  // plotly ignores a hover within 50 ms of another
                    Plotly.Fx.hover(chart, [{curveNumber, pointNumber}]);
                    texts.push(chart.querySelector('.hoverlayer').textContent);
                }
            return texts; })(document.querySelector('.chart'), [])""")
        assert len(set(hovers)) == len(c.rows) - 1
        figures = ("cascade, half", HOSTILE[0], "quality, %: 69.0 [67.0, 71.0]", "calls per task: 1.50", "5.00")
        assert any(all(part in h for part in figures) for h in hovers)
        assert any(HOSTILE[3].replace(" ", "") in h.replace(" ", "") for h in hovers)  # in two lines
        assert sorted(column(browser, "strategy")) == sorted(r.strategy for r in c.rows)
        assert browser.js("document.querySelector('h2').textContent") == c.name
        shown = browser.js("document.querySelectorAll('.chart')[3].querySelector('.yaxislayer-above').textContent")
        assert "<script>window" in shown
        made = "[...document.querySelectorAll('body script, body img, .chart a, td *, th *')].map(e => e.tagName)"
        assert browser.js(made) == ["SCRIPT"] * 3 + ["BUTTON"] * 9
        assert browser.js("window.ran") is None
        assert browser.problems() == []


def charts(browser: Browser) -> dict[str, Any]:
    """Title -> the data of its chart."""
    shown = (
        "[...document.querySelectorAll('figure')].map(f => [f.firstChild.textContent, f.querySelector('.chart').data])"
    )
    return dict(browser.js(shown))


def test_a_study_and_the_confidences_are_drawn_and_nothing_of_their_texts_runs(browser: Browser) -> None:
    c, s = hostile(), studied()
    whole = report([c], [Beside(s, tuple(believed(a) for a in HOSTILE))])
    for page in (whole, re.sub("<meta http-equiv[^>]*>", "", whole)):
        browser.open(page)
        drawn = charts(browser)
        apparent, simple, nested, tested, _names = drawn["what a limit on the cost would get"]
        assert nested["x"] == pytest.approx([1000 * p.figures.cost_per_task for p in s.frontier])
        assert nested["y"] == pytest.approx([100 * p.figures.quality for p in s.frontier])
        assert nested["error_y"]["array"] == pytest.approx([2, 2, 2])
        assert nested["error_y"]["arrayminus"] == pytest.approx([3, 3, 3])
        assert apparent["y"] == pytest.approx([100 * p.apparent for p in s.frontier])
        assert tested["y"] == pytest.approx([69, 69, 69])
        assert simple["y"] == pytest.approx([70])
        learnt, single = drawn["what more labels would get"]
        assert (learnt["x"], learnt["y"]) == ([50, 100], pytest.approx([65, 70]))
        assert single["y"] == pytest.approx([70, 70])
        for arm in HOSTILE:
            _line, points = drawn[arm]
            assert points["x"] == [0.2, 0.6, 0.9]
            assert points["y"] == [0.25, 0.5, 0.95]
            assert points["error_y"]["array"] == pytest.approx([0.15, 0.2, 0.05])
            assert points["error_y"]["arrayminus"] == pytest.approx([0.15, 0.2, 0.15])
        captions = browser.js("[...document.querySelectorAll('figcaption')].map(e => e.textContent)")
        assert any("3.0 points off" in say and "1 simple choice, worse" in say for say in captions)
        assert "60 answers. Brier 0.110 [0.100, 0.120], log loss 0.310 [0.300, 0.320]" in captions
        told = browser.js("[...document.querySelectorAll('dd')].map(e => e.textContent)")
        assert sorted(told) == sorted(words for _, words in facts(s))
        hovers = browser.js("""(async (charts, texts) => {
            for (const chart of charts)
                for (const [curveNumber, t] of chart.data.entries())
                    for (const pointNumber of (t.hovertext ?? []).keys()) {
                        await new Promise(done => setTimeout(done, 60));
                        Plotly.Fx.hover(chart, [{curveNumber, pointNumber}]);
                        texts.push(chart.querySelector('.hoverlayer').textContent);
                    }
            return texts; })([...document.querySelectorAll('.chart')].slice(3, 6), [])""")
        texts = HOSTILE[0], HOSTILE[2].replace(" ", ""), "68.0[65.0,70.0]"
        assert any(all(text.replace(" ", "") in h.replace(" ", "") for text in texts) for h in hovers)
        assert any("50 labels, 10 runs" in h for h in hovers)
        made = "[...document.querySelectorAll('body script, body img, .chart a, dd *, dt *, li *')].map(e => e.tagName)"
        assert browser.js(made) == ["A"] + ["SCRIPT"] * 3  # a link of the contents
        assert browser.js("window.ran") is None
        assert browser.problems() == []


def test_without_costs_the_frontier_is_against_calls_and_without_labels_there_is_no_curve(browser: Browser) -> None:
    browser.open(report([hostile()], [Beside(studied(cost=None, curve=False))]))
    drawn = charts(browser)
    assert drawn["what a limit on the cost would get"][2]["x"] == [1, 1, 1]
    assert "what more labels would get" not in drawn
    assert "can the confidences be believed" not in browser.js("document.body.innerText").lower()
    assert browser.problems() == []


def test_clusters_are_framed_and_named(browser: Browser) -> None:
    names = ["apple1", "apple2", "pear1", "pear2", "pear3", "plum"]
    browser.open(report([comparison([row(n, "arm", 0.5 + i / 100, 1.0) for i, n in enumerate(names)])]))
    frames = browser.js("[...document.querySelectorAll('.chart')].at(-1).layout.shapes.map(s => s.x1 - s.x0)")
    assert sorted(frames) == [2, 3]
    said = browser.js("[...document.querySelectorAll('ul li')].map(e => e.textContent)")
    assert sorted(said)[0] == "1 other fails apart from these"
    assert {frozenset(re.findall(r"\w+\d", line)) for line in said if line.startswith("fail together")} == {
        frozenset(names[:2]),
        frozenset(names[2:5]),
    }
    assert browser.problems() == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_with_a_study_fits_the_screen_and_the_paper(browser: Browser, width: int) -> None:
    browser.open(report([hostile()], [Beside(studied(), tuple(believed(a) for a in HOSTILE))]), width)
    assert browser.js("document.scrollingElement.scrollWidth") <= width
    named, covered, clipped = browser.js(LABELS)
    assert named >= 6
    assert covered == clipped == 0
    browser.js("[...document.styleSheets[0].cssRules].filter(r => r.media).forEach(r => r.media.mediaText = 'screen')")
    browser.js("document.body.style.width = '690px'")  # what A4 leaves
    wide = """[...document.querySelectorAll('.chart, .main-svg, table')].filter(e =>
        e.getBoundingClientRect().width > 691).map(e => e.className || e.tagName)"""
    assert browser.js(wide) == []
    assert browser.problems() == []


def test_more_to_show_than_comparisons_is_refused() -> None:
    with pytest.raises(Misuse, match="2 Beside for 1"):
        report([hostile()], [Beside(), Beside()])


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_and_its_labels_do_not_overlap(browser: Browser, width: int) -> None:
    browser.open(report([hostile(), hostile("x" * 200)]), width)
    assert browser.js("innerWidth") == width
    assert browser.js("document.scrollingElement.scrollWidth") <= width
    wide = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('svg') &&
        e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + e.className)"""
    assert browser.js(wide) == []
    named, covered, clipped = browser.js(LABELS)
    assert named >= 8
    assert covered == clipped == 0
    assert browser.problems() == []


def test_a_heading_sorts_by_mouse_and_keyboard_with_missing_figures_last(browser: Browser) -> None:
    c = hostile()
    browser.open(report([c]))
    name = "cost, USD per 1,000 tasks"
    button = f"[...document.querySelectorAll('th button')].find(b => b.textContent === {name!r})"
    costs = sorted(r.cost_per_1000 for r in c.rows if r.cost_per_1000 is not None)

    def shown() -> tuple[list[float], str]:
        *known, last = column(browser, name)
        assert last == "–"
        return [float(x) for x in known], browser.js(f"{button}.parentNode.getAttribute('aria-sort')")

    browser.js(f"{button}.click()")
    assert shown() == (pytest.approx(costs, rel=0.01), "ascending")
    browser.js(f"{button}.focus()")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, **enter)
    assert shown() == (pytest.approx(costs[::-1], rel=0.01), "descending")
    browser.js("document.querySelector('th button').click()")
    names = "document.querySelectorAll('tbody th')"
    assert browser.js(
        f"[...{names}].every((th, i, all) => !i || all[i - 1].innerText.localeCompare(th.innerText) <= 0)"
    )
    assert browser.js("document.querySelectorAll('[aria-sort]').length") == 1
    assert browser.js("document.querySelector('nav li').offsetParent === null")  # no contents of a single comparison
    assert browser.problems() == []


def test_what_was_not_recorded_is_said_in_words(browser: Browser) -> None:
    rows = [row("family", "family", 0.8, None, None, calls=2.0, frontier=True), row("a", "arm", 0.7, None, None)]
    browser.open(report([comparison([*rows, row("b", "arm", 0.6, 1.0, None)])]))
    assert browser.js("[...document.querySelectorAll('h3')].map(h => h.textContent)") == [
        "quality against calls per task",
        "all figures",
        "which arms fail together",
    ]
    assert "Latencies were not recorded" in browser.js("document.body.innerText")
    assert browser.problems() == []


def test_the_checker_note_is_loud_and_several_comparisons_have_contents(browser: Browser) -> None:
    one, two = hostile("first"), comparison([row("only", "arm", 0.5, 1.0)], "second")
    browser.open(report([one, two]))
    assert browser.js("document.querySelector('.loud').textContent") == CHECKER
    links = browser.js("[...document.querySelectorAll('nav a')].map(a => [a.textContent, a.getAttribute('href')])")
    assert links == [["first", "#s0"], ["second", "#s1"]]
    assert browser.js("[...document.querySelectorAll('section')].map(s => s.id)") == ["s0", "s1"]
    levels = browser.js("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.js("document.querySelectorAll('table caption').length") == 2
    assert browser.problems() == []


def test_of_many_arms_the_best_forty_are_mapped(browser: Browser) -> None:
    browser.open(report([comparison([row(f"arm {i}", "arm", i / 50, 1.0 + i) for i in range(50)])]), 390)
    assert browser.js("[...document.querySelectorAll('.chart')].at(-1).data[0].z.length") == 40
    assert "the best 40 arms" in browser.js("[...document.querySelectorAll('figcaption')].at(-1).textContent")
    assert browser.js("document.scrollingElement.scrollWidth") <= 390
    assert browser.problems() == []
