from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from protocol.stats.equivalence import log_tost_paired, rate_limit, tost, tost_paired, tost_rates


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_by_hand() -> None:
    """Differences 0, 1, 2: mean 1, standard error 1 / sqrt 3, margin 3: t = 4 sqrt 3 and -2 sqrt 3 on 2 degrees."""
    found = tost([0.0, 1.0, 2.0], 3.0)
    assert found.estimate == 1.0
    assert found.outcome.pvalue == pytest.approx(stats.t.sf(2 * math.sqrt(3), 2))


@pytest.mark.parametrize("seed", range(10))
def test_p_and_interval_agree_and_paired_equals_one_sample(seed: int) -> None:
    a = rng(seed).normal(5, 1, 8)
    b = a + rng(seed + 100).normal(0.1, 0.2, 8)
    paired, single = tost_paired(a, b, 0.3), tost(a - b, 0.3)
    assert paired.outcome.pvalue == pytest.approx(single.outcome.pvalue)
    assert paired.interval and paired.outcome.pvalue is not None
    inside = -0.3 < paired.interval.lower and paired.interval.upper < 0.3
    assert inside == (paired.outcome.pvalue <= 0.05)
    theirs = stats.ttest_1samp(a - b, 0).confidence_interval(0.9)
    assert (paired.interval.lower, paired.interval.upper) == pytest.approx(tuple(theirs))


def test_log_version_is_a_ratio() -> None:
    a = rng(1).lognormal(0, 0.05, 10)
    found = log_tost_paired(1.5 * a, 1.5 * a[::-1], 1.2)
    assert found.estimate == pytest.approx(1.0) and found.outcome.pvalue is not None and found.outcome.pvalue < 0.001
    assert found.upper_margin == 1.2 and found.lower_margin == 1 / 1.2
    # The published pair: a real ratio of 1.71 against a simulated 1.07 cannot agree within 20 %.
    real, simulated = 1.71 * a[:5], 1.07 * a[5:]
    assert log_tost_paired(real, simulated, 1.2).outcome.pvalue == pytest.approx(1.0, abs=0.01)


def test_refusals() -> None:
    for d, reason in (
        ([], "0 pairs"),
        ([1.0], "1 pairs"),
        ([0.0, math.nan], "pair 2"),
        ([0.0, 0.0, 0.0], "do not vary"),
        ([0.1, 0.1, 0.1], "do not vary"),
    ):
        found = tost(d, 1.0)
        assert found.outcome.pvalue is None and reason in (found.outcome.reason or "") and found.interval is None
    assert tost_paired([1.0, 2.0], [1.0], 1.0).outcome.pvalue is None
    assert tost_paired([0.3, 0.7], [0.1 + 0.2, 0.7], 1.0).outcome.reason is not None
    assert log_tost_paired([1.0, 0.0], [1.0, 1.0], 1.2).outcome.pvalue is None
    for call in (lambda: tost([1.0, 2.0], 0.0), lambda: log_tost_paired([1.0], [1.0], 1.0)):
        with pytest.raises(ValueError):
            call()


def test_zero_counts_are_judged_by_their_limit() -> None:
    """No violation in 765 batches: the rate is below 0.39 % (STATISTICS section 1); p agrees with the limit."""
    assert rate_limit(0, 765) == pytest.approx(0.0039, abs=5e-5)
    assert rate_limit(0, 765) == pytest.approx(1 - 0.05 ** (1 / 765))
    zeros, totals = np.zeros(5), np.full(5, 153)
    wide, narrow = tost_rates(zeros, zeros, totals, totals, 0.0040), tost_rates(zeros, zeros, totals, totals, 0.0038)
    assert wide.outcome.pvalue is not None and wide.outcome.pvalue < 0.05
    assert narrow.outcome.pvalue is not None and narrow.outcome.pvalue > 0.05
    assert wide.interval and wide.interval.upper == pytest.approx(rate_limit(0, 765))
    full = tost_rates(totals, totals, totals, totals, 0.0040)
    assert full.outcome.pvalue == wide.outcome.pvalue


def test_rate_limit_is_clopper_and_pearson() -> None:
    for count, total in ((0, 10), (3, 40), (40, 40)):
        expected = 1.0 if count == total else stats.beta.ppf(0.95, count + 1, total - count)
        assert rate_limit(count, total) == pytest.approx(expected)


def test_varying_counts_are_paired_rates() -> None:
    a, b, n = np.array([3, 4, 2, 5]), np.array([2, 4, 3, 4]), np.full(4, 100)
    expected = tost_paired(a / 100, b / 100, 0.05).outcome.pvalue
    assert tost_rates(a, b, n, n, 0.05).outcome.pvalue == pytest.approx(expected)
    for bad in ((a, b, n * 0, n), (n + 1, b, n, n), (a[:3], b, n, n), (a * math.nan, b, n, n), (-a, b, n, n)):
        assert tost_rates(*bad, 0.05).outcome.pvalue is None


def test_size_at_the_margin() -> None:
    """A true difference at the margin is called equivalent in about 5 %; at zero, with the table's power .95."""
    source = rng(9)
    at_margin = sum((tost(source.normal(0.02, 0.01, 8), 0.02).outcome.pvalue or 1) <= 0.05 for _ in range(1000))
    assert stats.binomtest(at_margin, 1000, 0.05, alternative="greater").pvalue > 0.001
    at_zero = sum((tost(source.normal(0, 0.01, 5), 0.02).outcome.pvalue or 1) <= 0.05 for _ in range(500))
    assert 0.9 < at_zero / 500 < 0.98
