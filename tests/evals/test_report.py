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

from playcall.evals.comparison import Comparison, Row
from playcall.evals.page import report
from playcall.strategies import Misuse

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
    families = "".join(name[0] for name in data[0]["arms"])
    assert sorted(data[0]["arms"]) == sorted(names)
    assert len(re.findall(r"(.)\1\1", families)) == 4


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
