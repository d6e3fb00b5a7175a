"""Agreement stands in for a confidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr

from playcall.calibration import ConfidenceCalibrator, agreement, vote_share
from playcall.strategies import Misuse

codes = arrays(np.int64, (6, 5), elements=st.integers(0, 2))
lost = arrays(np.bool_, (6, 5))


@given(codes, lost)
def test_it_counts_the_other_live_calls_with_this_answer(answer: np.ndarray, failed: np.ndarray) -> None:
    number, share = agreement(answer, failed), vote_share(answer, failed)
    for t in range(6):
        for i in range(5):
            others = [j for j in range(5) if j != i and not failed[t, j]]
            same = sum(answer[t, j] == answer[t, i] for j in others)
            assert np.isnan(number[t, i]) if failed[t, i] else number[t, i] == same
            alone = failed[t, i] or not others
            assert np.isnan(share[t, i]) if alone else share[t, i] == same / len(others)


def test_shares_of_exactly_none_and_all_can_be_calibrated() -> None:
    rng = np.random.default_rng(0)
    truth, hard = rng.integers(0, 4, 400), rng.random(400)
    guess = rng.integers(0, 4, (400, 4))
    answer = np.where(rng.random((400, 4)) > hard[:, None] * 0.8, truth[:, None], guess)
    share, right = vote_share(answer, np.zeros((400, 4), bool))[:, 0], (answer[:, 0] == truth).astype(float)
    assert {0.0, 1.0} <= set(share)
    fitted = ConfidenceCalibrator().fit(share, right)
    assert fitted.scale_ == "probability"
    levels = np.unique(share)
    p = fitted.predict_proba(levels)[:, 1]
    assert spearmanr(levels, p).statistic == 1
    observed = [right[share == s].mean() for s in levels]
    assert p == pytest.approx(observed, abs=0.12)


def test_arrays_of_two_shapes_are_refused() -> None:
    with pytest.raises(Misuse, match=r"answers \(2, 3\) and failures \(2, 2\)"):
        vote_share(np.zeros((2, 3), np.int64), np.zeros((2, 2), bool))
