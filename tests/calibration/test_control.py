"""What certification labels prove, and how often that is false."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest, multinomial, norm

from playcall.calibration import Certificate, control_risk
from playcall.calibration.pvalues import _log_wealth, _score, betting_p, paired_p
from playcall.strategies import Misuse


def table(n: int, *errors: int) -> np.ndarray:
    """0/1 losses of policies with so many errors."""
    return np.stack([np.arange(n) < k for k in errors], axis=1).astype(float)


# --- absolute risk --------------------------------------------------------------------------------


def test_no_error_in_45_certifies_five_percent_and_44_do_not() -> None:
    assert control_risk(table(45, 0), [1], target=0.05).chosen == 0
    short = control_risk(table(44, 0), [1], target=0.05)
    assert (short.chosen, short.labels_needed) == (None, 45)
    assert 0.95**45 <= 0.1 < 0.95**44


@pytest.mark.parametrize(
    ("n", "errors", "upper"),
    [
        *[(50, 0, 4.5), (50, 2, 10.3), (50, 5, 17.8), (100, 0, 2.3), (100, 2, 5.2), (100, 5, 9.1)],
        *[(500, 0, 0.5), (500, 2, 1.1), (500, 5, 1.85)],
    ],
)
def test_the_upper_bound_is_clopper_and_pearsons(n: int, errors: int, upper: float) -> None:
    found = control_risk(table(n, errors), [1], target=0.5).upper
    assert 100 * found == pytest.approx(upper, abs=0.05)
    assert found == pytest.approx(binomtest(errors, n, alternative="less").proportion_ci(0.9).high, abs=1e-6)
    assert found == pytest.approx(beta.ppf(0.9, errors + 1, n - errors), abs=1e-6)


def test_the_cheapest_before_the_first_failure_is_chosen() -> None:
    loss = table(200, 2, 3, 4, 40, 0)
    certificate = control_risk(loss, [5, 4, 3, 2, 1], target=0.05)
    assert certificate.certified == (0, 1, 2)  # the fifth would pass, but stands behind the fourth
    assert certificate.chosen == 2
    assert certificate.p_values == pytest.approx(binom.cdf([2, 3, 4, 40, 0], 200, 0.05))
    assert control_risk(loss, [5, 4, 3, 2, 1], target=0.05, order=[4, 0, 3]).certified == (4, 0)


def test_the_p_values_and_the_sequence_are_mapies() -> None:
    control = pytest.importorskip("mapie.risk_control")
    rng = np.random.default_rng(0)  # 256 items: else MAPIE's n * (1 - accuracy) is a hair too much, and rounded up
    loss = (rng.random((256, 8)) < np.linspace(0.01, 0.09, 8)).astype(float)
    ours = control_risk(loss, np.arange(8)[::-1], target=0.05)
    theirs = control.BinaryClassificationController(
        lambda rows, policy: 1 - loss[rows.astype(int).ravel(), int(policy)],
        risk="accuracy",
        target_level=0.95,
        confidence_level=0.9,
        list_predict_params=np.arange(8.0)[:, None],
        fwer_method="bonferroni",
    )
    theirs.calibrate(np.arange(256.0)[:, None], np.ones(256))
    assert list(ours.p_values) == pytest.approx(np.ravel(theirs.p_values).tolist())
    assert list(ours.certified) == control.control_fwer(np.array(ours.p_values), 0.1, "fixed_sequence").tolist()
    assert 0 < len(ours.certified) < 8


def test_certifying_what_is_false_is_rarer_than_delta() -> None:
    rng = np.random.default_rng(0)
    risk = np.array([0.04, 0.0501, 0.0501, 0.07])  # all but the first are above the target
    false = 0
    for _ in range(300):
        certificate = control_risk((rng.random((120, 4)) < risk).astype(float), [4, 3, 2, 1], target=0.05)
        false += any(risk[j] > 0.05 for j in certificate.certified)
    assert 0 < false <= binom.ppf(0.999, 300, 0.1)


def test_labels_needed_are_the_fewest_that_would_do() -> None:
    certificate = control_risk(table(100, 2), [1], target=0.05)
    passes = [n for n in range(1, 400) if binom.cdf(np.ceil(round(n * 0.02, 9)), n, 0.05) <= 0.1]
    assert certificate.chosen is None
    assert certificate.labels_needed == passes[0]
    assert f"{passes[0]} labels would certify it" in certificate.words


@pytest.mark.parametrize(
    ("n", "errors", "target", "says"),
    [
        (100, 5, 0.05, "would not help: raise the target"),
        (100, 30, 0.05, "would not help: raise the target"),
        (1000, 50, 0.0501, "100,000 labels would not do"),
    ],
)
def test_what_no_number_of_labels_would_certify_says_so(n: int, errors: int, target: float, says: str) -> None:
    certificate = control_risk(table(n, errors), [1], target=target)
    assert (certificate.chosen, certificate.labels_needed) == (None, None)
    assert says in str(certificate)


def test_no_labels_certify_nothing_and_are_no_error() -> None:
    certificate = control_risk(np.zeros((0, 2)), [2, 1], target=0.05)
    assert (certificate.chosen, certificate.risk, certificate.upper) == (None, None, 1.0)
    assert certificate.labels_needed == 45
    paired = control_risk(np.zeros((0, 2)), [2, 1], target=0.05, reference=np.zeros(0))
    assert paired.chosen is None
    fractions = control_risk(np.full((1, 1), 0.5), [1], target=0.05)
    assert (fractions.chosen, fractions.labels_needed) == (None, None)


def test_a_policy_behind_one_that_failed_is_told_to_go_first() -> None:
    certificate = control_risk(table(100, 30, 0), [2, 1], target=0.05)
    assert (certificate.chosen, certificate.policy) == (None, 1)
    assert "tested first, on fresh labels" in certificate.words


def test_a_certificate_reads_as_a_sentence() -> None:
    assert control_risk(table(100, 1), [1], target=0.05).words == (
        "Policy 0 is certified: with probability 90% its mean loss is at most 5%. "
        "On 100 labels it was 1%, and with that probability at most 3.83%."
    )


# --- against a reference --------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "limit"), [(12, 0.2), (25, 0.0), (25, -0.05), (30, 0.05)])
def test_the_paired_test_keeps_its_level_at_every_law_on_the_boundary(n: int, limit: float) -> None:
    cells = [(w, b) for w in range(n + 1) for b in range(n + 1 - w)]
    rejected = np.array([(w, b, n - w - b) for w, b in cells if paired_p(w, b, n, limit) <= 0.1])
    q = np.linspace(max(0, -limit), (1 - limit) / 2, 101)
    laws = np.stack([q + limit, q, np.maximum(1 - 2 * q - limit, 0)], axis=1)
    size = [multinomial.pmf(rejected, n, law / law.sum()).sum() for law in laws]
    assert max(size) <= 0.1
    assert max(size) > 0.07  # and wastes little of it


@pytest.mark.parametrize("limit", [-0.1, 0.0, 0.05, 0.3])
def test_the_paired_statistic_rises_with_what_got_worse_and_falls_with_what_got_better(limit: float) -> None:
    n = 30
    for k in range(n + 1):
        rest = np.arange(n - k + 1)
        assert (np.diff(_score(rest, np.full(len(rest), k), n, limit)) > -1e-9).all()
        assert (np.diff(_score(np.full(len(rest), k), rest, n, limit)) < 1e-9).all()


@pytest.mark.parametrize("law", ["rare", "wide", "paired"])
def test_bets_win_rarely_where_the_mean_is_at_the_limit(law: str) -> None:
    rng = np.random.default_rng(0)
    draw = {
        "rare": lambda: ((rng.random(150) < 0.1) * rng.random(150), 0.05),
        "wide": lambda: (rng.beta(0.2, 0.8, 150), 0.2),
        "paired": lambda: ((rng.choice([1.0, -1.0, 0.0], 150, p=[0.1, 0.05, 0.85]) + 1) / 2, 0.525),
    }[law]
    won = sum(betting_p(*draw(), 0.1) <= 0.1 for _ in range(2000))
    assert won <= binom.ppf(0.999, 2000, 0.1)


@pytest.mark.parametrize("limit", [0.05, 0.3, 0.6])
def test_a_bet_is_a_fair_game_at_the_limit(limit: float) -> None:
    losses = np.array(list(product([0.0, 1.0], repeat=8)))
    chance = np.prod(np.where(losses == 1, limit, 1 - limit), axis=1)
    wealth = np.exp([_log_wealth(x, limit, 0.1) for x in losses])
    assert chance @ wealth == pytest.approx(np.ones(8))


def test_no_p_value_is_below_the_chance_that_was_given_up() -> None:
    assert 1e-4 <= paired_p(0, 300, 300, 0.05) < 1.1e-4


def pairs(n: int, worse: int, better: int) -> tuple[np.ndarray, np.ndarray]:
    loss, reference = np.zeros((n, 1)), np.zeros(n)
    loss[:worse], reference[worse : worse + better] = 1, 1
    return loss, reference


def test_a_small_disagreement_proves_much() -> None:
    loss, reference = pairs(300, 3, 3)
    assert control_risk(loss, [1], target=0.02, reference=reference).chosen == 0
    loss, reference = pairs(300, 30, 30)
    wide = control_risk(loss, [1], target=0.02, reference=reference)
    assert (wide.chosen, wide.relative, wide.risk) == (None, True, 0.0)
    assert wide.labels_needed is not None
    assert wide.labels_needed > 300
    more = pairs(wide.labels_needed, int(np.ceil(wide.labels_needed / 10)), wide.labels_needed // 10)
    assert control_risk(more[0], [1], target=0.02, reference=more[1]).chosen == 0


def test_against_nothing_the_paired_test_lies_between_mcnemars_two() -> None:
    asymptotic, conditional = norm.cdf((4 - 16) / np.sqrt(20)), binom.cdf(4, 20, 0.5)
    assert asymptotic < paired_p(4, 16, 200, 0.0) < conditional


@pytest.mark.parametrize("grade", [1.0, 0.7])
def test_false_claims_against_a_reference_are_rarer_than_delta(grade: float) -> None:
    rng = np.random.default_rng(1)
    reference = rng.random((500, 200)) < 0.2
    loss = np.where(rng.random(reference.shape) < 0.1, rng.random(reference.shape) < 0.4, reference)
    excess = grade * 0.1 * (0.4 - 0.2)  # the true mean of loss - reference
    d = loss * grade - reference * grade
    if grade == 1:
        seen, often = np.unique([(d > 0).sum(axis=1), (d < 0).sum(axis=1)], axis=1, return_counts=True)
        p = np.repeat([paired_p(worse, better, 200, excess) for worse, better in seen.T], often)
    else:
        p = np.array([betting_p((row + 1) / 2, (excess + 1) / 2, 0.1) for row in d])
    assert (p <= 0.1).sum() <= binom.ppf(0.999, 500, 0.1)
    assert control_risk(loss[0, :, None] * grade, [1], target=0.3, reference=reference[0] * grade).chosen == 0


def test_the_bound_of_a_difference_is_where_the_test_would_turn() -> None:
    loss, reference = pairs(200, 6, 10)
    found = control_risk(loss, [1], target=0.05, reference=reference)
    assert found.risk == pytest.approx(-0.02)
    assert paired_p(6, 10, 200, found.upper) <= 0.1 < paired_p(6, 10, 200, found.upper - 1e-4)


def test_a_difference_of_fractions_is_tested_as_its_place_between_minus_one_and_one() -> None:
    rng = np.random.default_rng(0)
    loss, reference = rng.random((300, 2)) * 0.5, rng.random(300) * 0.5
    paired = control_risk(loss, [2, 1], target=0.03, reference=reference)
    placed = control_risk((loss - reference[:, None] + 1) / 2, [2, 1], target=0.515)
    assert paired.p_values == pytest.approx(placed.p_values)
    assert 0 < paired.p_values[0] < 1


def test_the_order_of_the_rows_of_a_table_is_no_evidence() -> None:
    loss = np.sort(np.random.default_rng(0).beta(0.5, 4, 200))[:, None]
    lucky = betting_p(loss.ravel(), float(loss.mean()), 0.1)
    assert lucky < 0.1  # sorted, bets win at the very mean
    assert control_risk(loss, [1], target=float(loss.mean())).chosen is None


# --- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"loss": np.full((5, 1), 1.5)}, "loss holds 1.5"),
        ({"loss": np.full((5, 1), np.nan)}, "loss holds nan"),
        ({"loss": np.zeros(5)}, r"loss \(5,\)"),
        ({"cost": [1, 2]}, r"cost \(2,\)"),
        ({"cost": [np.nan]}, "cost holds nan"),
        ({"target": 0}, "target=0"),
        ({"target": -0.1}, "between 0 and 1"),
        ({"delta": 1}, "delta=1"),
        ({"reference": np.zeros(4)}, r"reference \(4,\)"),
        ({"reference": np.full(5, -1)}, "reference holds -1"),
        ({"order": [0, 0]}, "once"),
        ({"order": [1]}, "0 to 0"),
        ({"order": []}, "once"),
    ],
)
def test_misuse_says_what_to_write(change: dict, says: str) -> None:
    given = {"loss": np.zeros((5, 1)), "cost": [1], "target": 0.05} | change
    with pytest.raises(Misuse, match=says):
        control_risk(**given)


def test_certificates_are_values() -> None:
    a, b = (control_risk(table(50, 1), [1], target=0.2) for _ in range(2))
    assert a == b
    assert isinstance(a, Certificate)
    assert hash(a) == hash(b)


def test_serving_needs_no_scikit_learn() -> None:
    code = "import sys, playcall.strategies, playcall.portfolio as p; from playcall.calibration import control_risk; "
    code += "p.load; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
