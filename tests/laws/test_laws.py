"""Laws over random strategies and seeds: the engines agree, and the operators mean what they say."""

from __future__ import annotations

import json
from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import playcall.strategies as namespace
from playcall.strategies import (
    AtLeast,
    Best,
    Bounds,
    First,
    Gather,
    OrElse,
    Recording,
    Replay,
    Rule,
    Stop,
    Strategy,
    Vote,
    arms_of,
    decode,
    dump,
    encode,
    load,
    walk,
)

from .plays import asks, beliefs, gaps, limits, live, monotone, plays, record, rules, seeds


def alike(codes: np.ndarray) -> list[int]:
    """Which of the answers are equal, whatever their codes."""
    return [codes.tolist().index(c) for c in codes]


@settings(max_examples=1500)
@given(plays, seeds)
def test_live_equals_replay(s: Strategy, seed: int) -> None:
    """To the answer, the microsecond, the nano-dollar and the single call, cancelled and failed calls included."""
    recording = record(seed)
    replay = Replay(recording)
    panel = replay(s)
    texts = list(replay.codes)
    for row, result in enumerate(live(s, recording)):
        here, there = panel.alive[row], result.panel.alive[0]
        began = np.flatnonzero(panel.began[row])
        best = panel.output[row]
        assert result.latency == panel.end[row]
        assert result.cost == panel.cost[row]
        assert sorted((a.arm, a.draw, a.issued, a.price) for a in result.attempts) == sorted(
            (panel.arm[i], panel.draw[i], panel.issued[row, i], panel.price[row, i]) for i in began
        )
        assert result.panel.failed.sum() == panel.failed[row].sum()
        assert [(panel.arm[i], panel.draw[i]) for i in np.flatnonzero(here)] == [
            (result.panel.arm[i], result.panel.draw[i]) for i in np.flatnonzero(there)
        ]
        assert alike(panel.answer[row, here]) == alike(result.panel.answer[0, there])
        assert result.arm == (panel.arm[best] if best >= 0 else None)
        assert result.output == (texts[panel.answer[row, best]] if best >= 0 else None)


def same(a: Strategy, b: Strategy, recording: Recording) -> None:
    """Equal survivors, money and time, and the same calls at the same moments."""
    p, q = Replay(recording)(a), Replay(recording)(b)
    assert (p.arm, p.draw) == (q.arm, q.draw)
    assert p.alive.tolist() == q.alive.tolist()
    assert p.issued.tolist() == q.issued.tolist()
    assert p.end.tolist() == q.end.tolist()
    assert p.cost.tolist() == q.cost.tolist()


@settings(max_examples=300)
@given(plays, plays, plays, seeds)
def test_side_by_side_and_fallback_are_associative_and_flat_when_built(
    a: Strategy, b: Strategy, c: Strategy, seed: int
) -> None:
    recording = record(seed)
    assert (a & b) & c == a & (b & c)
    assert (a | b) | c == a | (b | c)
    for s in walk((a & b) | (b & (c & a)) | c):
        if isinstance(s, Gather) and s.plain:
            assert not any(isinstance(p, Gather) and p.plain for p in s.parts)
        assert not (isinstance(s, OrElse) and isinstance(s.first, OrElse))
    same(Gather((Gather((a, b)), c), gap=0.0), a & b & c, recording)


@given(plays, st.integers(1, 3), st.integers(1, 3))
def test_multiples_add_and_multiply_and_once_is_itself(a: Strategy, m: int, n: int) -> None:
    assert 1 * a == a
    assert (m + n) * a == m * a & n * a
    assert m * (n * a) == (m * n) * a


@settings(max_examples=300)
@given(plays, plays, st.sampled_from([-0.5, 0.3, 0.5]), st.sampled_from([0.0, 0.5, 0.9]), seeds)
def test_thresholds_fuse_and_reach_into_parts(a: Strategy, b: Strategy, low: float, high: float, seed: int) -> None:
    recording = record(seed)
    both = AtLeast(max(low, high))
    same(a.keep(AtLeast(low)).keep(AtLeast(high)), a.keep(both), recording)
    same((a & b).keep(both), a.keep(both) & b.keep(both), recording)


@settings(max_examples=300)
@given(plays, st.sampled_from([Best(), First(), Vote()]) | st.builds(Vote, beliefs), rules, seeds)
def test_best_first_and_vote_keep_one_and_leave_one_alone(a: Strategy, rule: Rule, other: Rule, seed: int) -> None:
    recording = record(seed)
    panel = Replay(recording)(a.keep(rule))
    assert (panel.alive.sum(axis=1) == Replay(recording)(a).accepted).all()
    same(a.keep(rule).keep(rule), a.keep(rule), recording)
    if not isinstance(other, AtLeast):
        same(a.keep(rule).keep(other), a.keep(rule), recording)


@settings(max_examples=1500)
@given(plays, seeds)
def test_calls_cost_and_latency_are_within_bounds(s: Strategy, seed: int) -> None:
    """Replies to prompts are in no recording, so these tests' cassette answers within what each arm's calls take."""
    recording = record(seed)
    panel, bounds = Replay(recording)(s), Bounds.of(recording)(s)
    for value, (least, most) in (
        (panel.began.sum(axis=1), bounds.calls),
        (panel.cost, bounds.cost),
        (panel.end, bounds.latency),
    ):
        assert (least <= value).all()
        assert (value <= most).all()


@settings(max_examples=500)
@given(plays)
def test_a_saved_strategy_and_its_repr_come_back_as_they_were(s: Strategy) -> None:
    assert decode(encode(s)) == s
    back = load(json.loads(json.dumps(dump(s), allow_nan=False)))
    assert back == s
    assert hash(back) == hash(s)
    assert eval(repr(s), {**vars(namespace), "inf": inf}) == s


@settings(max_examples=500)
@given(st.lists(plays, min_size=2, max_size=3).map(tuple), monotone, gaps, gaps, seeds)
def test_a_longer_gap_is_never_faster(
    parts: tuple[Strategy, ...], stop: Stop, one: float, other: float, seed: int
) -> None:
    """For stops that more answers cannot undo; a belief can lose its confidence."""
    recording = record(seed)
    quick, slow = (Replay(recording)(Gather(parts, stop, gap)) for gap in sorted((one, other)))
    assert (quick.end <= slow.end).all()


@settings(max_examples=500)
@given(st.lists(asks, min_size=2, max_size=6).map(tuple), monotone, gaps, seeds)
def test_one_after_another_is_cheapest(parts: tuple[Strategy, ...], stop: Stop, gap: float, seed: int) -> None:
    """For single calls. A part of several calls in turn may cost less when it is cancelled half way."""
    recording = record(seed)
    hasty, patient = (Replay(recording)(Gather(parts, stop, g)) for g in (gap, inf))
    assert (patient.cost <= hasty.cost).all()
    assert (patient.began <= hasty.began).all()


@settings(max_examples=500)
@given(plays, limits, seeds)
def test_a_limit_changes_nothing_before_it(s: Strategy, limit: float, seed: int) -> None:
    """So a longer one costs no less. It may lose an answer all the same: more votes can overturn a confident one."""
    recording = record(seed)
    free, cut = Replay(recording)(s), Replay(recording)(s.within(limit))
    most = round(min(limit, 1e12) * 1e6)
    assert (cut.end == np.minimum(free.end, most)).all()
    assert (cut.issued[free.issued < most] == free.issued[free.issued < most]).all()
    assert not cut.began[free.issued >= most].any()
    assert (cut.alive == free.alive)[free.end < most].all()


@given(plays, limits, limits, seeds)
def test_the_shorter_of_two_limits_holds(s: Strategy, one: float, other: float, seed: int) -> None:
    recording = record(seed)
    same(s.within(one).within(other), s.within(min(one, other)), recording)


@settings(max_examples=200)
@given(plays, seeds, st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_no_task_knows_of_the_others(s: Strategy, seed: int, rows: list[int]) -> None:
    recording = record(seed)
    whole, some = Replay(recording)(s), Replay(recording.take(np.array(rows)))(s)
    assert (some.alive == whole.alive[rows]).all()
    assert (some.issued == whole.issued[rows]).all()
    assert (some.end == whole.end[rows]).all()
    assert (some.cost == whole.cost[rows]).all()


@given(plays)
def test_the_arms_of_a_strategy_are_those_it_can_call(s: Strategy) -> None:
    assert set(arms_of(s)) == set(Replay(record(0))(s).arm)
