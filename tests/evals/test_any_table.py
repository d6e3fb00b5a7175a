"""Any table that can be read can be compared and fitted, or is refused in words."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from playcall.evals import compare, read_table
from playcall.evals.page import report
from playcall.portfolio import Target, fit
from playcall.strategies import PlaycallError

SOME = st.sampled_from
arms = st.lists(SOME(["a", "b", "gpt-4", "ü/€", "<i>", "__proto__"]), min_size=1, max_size=4, unique=True)
cells = st.fixed_dictionaries(
    {"score": SOME([0, 1, 0.5, 1.0])},
    optional={
        "answer": SOME(["x", "y", "", None]),
        "cost_usd": SOME([0.0, 0.001, 2.5, None]),
        "latency_s": SOME([0.0, 0.2, 900.0, None]),
        "confidence": SOME([-0.1, 0.0, 0.5, 1.0, 40.0, None]),
    },
)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, object]]:
    named, items, depth = draw(arms), draw(st.integers(2, 9)), draw(st.integers(1, 3))
    where = [(i, a, s) for i in range(items) for a in named for s in range(depth)]
    return [{"item": i, "arm": a, "sample": s, **draw(cells)} for i, a, s in where]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=tables(), verifier=SOME([None, "score"]))
def test_a_table_that_reads_is_compared_and_fitted(
    tmp_path: Path, rows: list[dict[str, object]], verifier: str | None
) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    recording = read_table(path, verifier=verifier)
    c = compare(recording, folds=2)
    assert report([c])
    json.dumps(c.to_dict(), allow_nan=False)
    for r in c.rows:
        assert 0 <= r.quality_low <= r.quality <= r.quality_high <= 1
        assert -1 <= r.difference_low <= r.difference <= r.difference_high <= 1
    try:
        policy = fit(recording, Target(), folds=2)
    except PlaycallError as refused:
        pytest.fail(f"the default target is always feasible, and yet: {refused}")
    policy.save(tmp_path / "p.json")
    for target in (Target(min_quality=0.9), Target(max_cost=0.001), Target(max_latency=0.1), Target(cost_weight=9)):
        with suppress(PlaycallError):  # not kept by any play, or not recorded
            assert fit(recording, target, folds=2).figures.tasks == len(recording)
