"""How long an item takes without a cache, who did what in it, and what is odd about that."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from playcall.strategies import Misuse
from playcall.strategies.call import Call, Usage
from playcall.strategies.prices import Price
from playcall.strategies.trace import Facts, Span, Strand, _spearman, facts, latency, metric_suspect

ROOT = Strand()


def cached(start: float, original: float, strand: Strand = ROOT, took: float = 0.0) -> Span:
    return Span(start, start + took, strand, original)


def test_calls_one_after_another_add_up() -> None:
    assert latency(0.5, [cached(0.1, 2.0), cached(0.2, 3.0), Span(0.3, 0.4, ROOT)]) == 5.5


def test_of_calls_side_by_side_the_longest_counts() -> None:
    tasks = [Strand(ROOT, 0.05) for _ in range(3)]
    assert latency(0.5, [cached(0.1 + i / 100, 2.0 + i, task) for i, task in enumerate(tasks)]) == 4.5


def test_what_was_created_after_a_call_waited_for_it() -> None:
    assert latency(0.5, [cached(0.1, 2.0), cached(0.3, 3.0, Strand(ROOT, 0.2))]) == 5.5
    assert latency(0.5, [cached(0.1, 2.0), cached(0.3, 3.0, Strand(ROOT, 0.05))]) == 3.5
    assert latency(0.5, [cached(0.1, 2.0), cached(0.3, 3.0, Strand(ROOT))]) == 3.5  # nobody saw it begin


def test_a_strand_that_began_late_waited_only_for_what_its_creator_did() -> None:
    one, two = Strand(ROOT, 0.05), Strand(ROOT, 0.05)
    within = Strand(two, 0.3)  # as a loop of its own in a thread that came to run late
    assert latency(0.5, [cached(0.1, 2.0, one), cached(0.4, 3.0, within)]) == 3.5
    assert latency(0.5, [cached(0.1, 2.0, one), cached(0.2, 1.0, two), cached(0.4, 3.0, within)]) == 4.5


def test_what_joins_waited_for_the_longest_of_all_that_came_from_it() -> None:
    one, two = Strand(ROOT, 0.05), Strand(Strand(ROOT, 0.05), 0.05)
    assert latency(0.5, [cached(0.1, 2.0, one), cached(0.2, 3.0, two), cached(0.4, 1.0)]) == 4.5


def test_a_call_that_was_running_was_not_waited_for() -> None:
    other = Strand(ROOT, 0.1)
    assert latency(1.0, [cached(0.1, 5.0, other, took=0.5), cached(0.3, 1.0)]) == 5.5


def test_a_cached_answer_that_came_later_than_a_fresh_one_would_adds_nothing() -> None:
    assert latency(3.0, [cached(0.0, 1.0, took=2.0), cached(2.0, 1.5)]) == 4.5


seconds = st.integers(0, 64).map(lambda n: n / 8)  # sums are exact


@st.composite
def runs(draw: st.DrawFn) -> list[Span]:
    strands = [Strand()]
    for _ in range(draw(st.integers(0, 4))):
        strands.append(Strand(draw(st.sampled_from(strands)), draw(seconds)))
    spans = []
    for _ in range(draw(st.integers(0, 8))):
        strand = draw(st.sampled_from(strands))
        start = max(s.created for s in strand.line) + draw(seconds)
        spans.append(Span(start, start + draw(seconds), strand, draw(st.none() | seconds)))
    return spans


def waited(a: Span, b: Span) -> bool:
    """Whether b may have waited for a, which began before it: its strand, or one that this came from, did so."""
    when, short, strand = b.start, False, b.strand
    while a.end < when or (a.end == when and not (short and a.start == a.end)):
        if strand in a.strand.line:
            return True
        if strand.parent is None:
            break
        when, short, strand = max(s.created for s in strand.line), True, strand.parent
    return False


def plainly(spans: list[Span]) -> float:
    """One by one, in the order of their beginnings."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].start, spans[i].end > spans[i].start, i))
    late: list[float] = []
    for n, j in enumerate(order):
        before = [late[k] for k in range(n) if waited(spans[order[k]], spans[j])]
        late.append(max(before, default=0.0) + spans[j].delay)
    return max(late, default=0.0)


@given(runs(), seconds)
def test_the_critical_path_is_what_the_rule_says(spans: list[Span], wall: float) -> None:
    assert latency(wall, spans) == wall + plainly(spans)


@given(runs(), seconds)
def test_it_is_never_below_the_wall_time_nor_above_the_sum(spans: list[Span], wall: float) -> None:
    assert wall <= latency(wall, spans) <= wall + sum(span.delay for span in spans)
    assert latency(wall, [Span(s.start, s.end, s.strand) for s in spans]) == wall


@given(st.lists(seconds, max_size=8), seconds)
def test_a_chain_is_the_sum_and_a_gather_the_most(originals: list[float], wall: float) -> None:
    chain = [cached(i / 8, original) for i, original in enumerate(originals)]
    assert latency(wall, chain) == wall + sum(originals)
    gather = [cached(9.0, original, Strand(ROOT, 8.0)) for original in originals]
    assert latency(wall, gather) == wall + max(originals, default=0.0)


@dataclass
class Run:
    arm: str
    calls: list[Call]
    models: dict[str, str] = field(default_factory=dict)


def call(role: str, model: str, output: int, usd: float = 0.0, *, source: str = "user", saved: float = 0.0) -> Call:
    made = Call("a", model, None, None, 0, {}, role=role, usage=Usage(10, output, 0, output // 2), source=source)
    made.price, made.saved = round(usd * 1e9), round(saved * 1e9)
    return made


def test_facts_say_who_did_what() -> None:
    one = Run("a", [call("planner", "p", 10, 0.25), call("solver", "s", 20, 0.25), call("solver", "s", 20, saved=0.25)])
    found = facts([one, Run("a", [call("planner", "p", 50, 0.25)])])
    planner, solver = found.roles["planner"], found.roles["solver"]
    assert (planner.called_share, planner.calls, planner.input, planner.output, planner.reasoning) == (
        1.0,
        2,
        20,
        60,
        30,
    )
    assert (planner.usd, planner.cost_share, planner.output_share, planner.models) == (0.5, 0.5, 0.6, ("p",))
    assert (solver.called_share, solver.usd, solver.output_share) == (0.5, 0.5, 0.4)
    assert found.warnings == ()
    assert facts([]) == Facts({}, ())


def test_a_role_that_most_runs_never_called_is_told_with_its_arm() -> None:
    models = {"planner": "p", "solver": "s"}
    alone, both = [call("planner", "p", 10)], [call("planner", "p", 10), call("solver", "s", 10)]
    traces = [*(Run("opus", alone, models) for _ in range(9)), Run("opus", both, models), Run("mini", both, models)]
    assert facts(traces).warnings == (
        "arm 'opus': role 'solver' was called in 1 of 10 runs: another role may do its work, or no call has its name.",
    )
    assert facts(traces, arms=["mini"]).warnings == ()
    told = facts([Run("a", both)], runs=4, roles=["critic"])
    assert told.roles["solver"].called_share == 0.25
    assert [w.partition(" was")[0] for w in told.warnings] == [
        f"arm 'a': role {r!r}" for r in ("critic", "planner", "solver")
    ]
    with pytest.raises(Misuse, match="runs=0"):
        facts([], runs=0)


def test_the_dearest_model_where_most_is_written_is_told() -> None:
    prices = {"cheap": Price(0.1, 1.0), "dear": Price(1.0, 10.0), "alike": Price(1.0, 10.0)}
    run = Run("a", [call("planner", "cheap", 10, 0.001), call("solver", "dear", 90, 0.1)])
    (told,) = facts([run], prices=prices).warnings
    assert told.startswith("arm 'a': 'dear', the dearest model, has the role that writes most, 'solver': ")
    assert told.endswith("90% of the output and 99% of the cost.")
    for planner, solver in (("dear", "cheap"), ("alike", "dear"), ("unknown", "dear")):
        calls = [call("planner", planner, 10, 0.1), call("solver", solver, 90, 0.1)]
        assert facts([Run("a", calls)], prices=prices).warnings == ()


def test_a_model_without_a_known_price_is_told() -> None:
    (told,) = facts([Run("a", [call("r", "mystery", 10, source="unknown")])]).warnings
    assert "'mystery'" in told


def f1(answer: str, reference: str) -> float:
    """Of tokens, as in HotpotQA's grader."""
    said, right = answer.lower().split(), reference.lower().split()
    shared = sum(min(said.count(word), right.count(word)) for word in set(right))
    return 2 * shared / (len(said) + len(right))


def test_a_score_that_punishes_sentences_is_suspected() -> None:
    names = [f"Name{i} Surname{i}" for i in range(40)]
    answers = [name if i % 2 else f"The answer that they look for is of course {name}" for i, name in enumerate(names)]
    told = metric_suspect(answers, names, [f1(a, n) for a, n in zip(answers, names)])
    assert told is not None
    assert "n=40" in told
    assert "100% hold it" in told


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_rank_correlations_are_spearmans(pairs: list[tuple[int, int]]) -> None:
    x, y = zip(*pairs)
    expected = 0.0 if len(set(x)) == 1 or len(set(y)) == 1 else float(spearmanr(x, y).statistic)
    assert _spearman(x, y) == pytest.approx(expected, abs=1e-12)


def test_a_score_is_not_suspected_where_long_answers_are_wrong_or_little_is_known() -> None:
    names = [f"Name{i}" for i in range(40)]
    wrong = [name if i % 2 else "I am afraid that I do not know who" for i, name in enumerate(names)]
    assert metric_suspect(wrong, names, [f1(a, n) for a, n in zip(wrong, names)]) is None
    long = [name if i % 2 else f"It is, I think, {name}" for i, name in enumerate(names)]
    assert metric_suspect(long, names, [1.0] * 40) is None
    assert metric_suspect(long[:10], names[:10], [f1(a, n) for a, n in zip(long[:10], names)]) is None
    with pytest.raises(Misuse, match="39 references"):
        metric_suspect(long, names[1:], [1.0] * 40)
