"""Counting, and when a bar is missed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from protocol.selftest import counts
from protocol.selftest.counts import Row, tally, verdict
from protocol.stats.gains import judge_gains


def row(count: int, n: int, bar: str | None) -> Row:
    return Row("w", "f", "d", 0.0, "x", count, n, bar)


def test_exact_limits() -> None:
    """Clopper and Pearson by the beta quantiles that define them."""
    low, high = row(7, 90, None).interval
    assert low == pytest.approx(stats.beta.ppf(0.025, 7, 84)) and high == pytest.approx(stats.beta.ppf(0.975, 8, 83))
    assert row(0, 10, None).interval[0] == 0.0


@pytest.mark.parametrize(
    ("count", "n", "bar", "holds"),
    [
        (107, 2000, counts.FALSE, True), (108, 2000, counts.FALSE, True), (109, 2000, counts.FALSE, False),
        (13, 100, counts.FALSE, True), (14, 100, counts.FALSE, False), (87, 100, counts.COVERS, True),
        (1800, 2000, counts.COVERS, False), (1900, 2000, counts.COVERS, True), (360, 400, counts.NINE_IN_TEN, True),
        (315, 400, counts.NINE_IN_TEN, False), (394, 400, counts.NINE_IN_TEN, False), (870, 1000, counts.POWER, True),
        (865, 1000, counts.POWER, False), (755, 1000, counts.EIGHTY, False), (790, 1000, counts.EIGHTY, True),
        (845, 1000, counts.NOT_EIGHTY, False), (700, 1000, counts.NOT_EIGHTY, True), (1, 1000, None, True),
    ],
)  # fmt: skip
def test_bars(count: int, n: int, bar: str | None, holds: bool) -> None:
    """Missed at an exact p below .001; and 109 of 2,000 has an upper limit of 6.54 %, above 6.5 %."""
    missed = row(count, n, bar).missed()
    assert (missed is None) == holds
    assert missed is None or f"{count} of {n}" in missed and counts.BARS[bar or ""] in missed


def test_tally_counts_what_was_said() -> None:
    rows = tally([{"a": True, "b": False}, {"a": True}, {"a": False}], {"a": counts.FALSE, "b": None, "c": None},
                 world="w", family="f", design="d", effect_pp=1.5)  # fmt: skip
    assert [(r.what, r.count, r.n, r.bar) for r in rows] == [("a", 2, 3, counts.FALSE), ("b", 0, 1, None)]
    assert rows[0].to_json()["rate"] == pytest.approx(2 / 3)


def test_a_verdict_says_what_the_claim_says() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(10, 9))
    cost = rng.normal(size=(10, 10)) - 3 * np.eye(10)
    gains = judge_gains(np.diagonal(cost), list(draws), cost, rng, delta=0.5, worst=draws.max(axis=1) + 1)
    assert gains.chance and gains.load
    says = verdict(gains, gains.chance.estimate, gains.load.interval.upper + 0.1)
    assert all(says[t.name] == ((t.outcome.pvalue or 1) <= 0.05) for t in gains.tests)
    assert says["certified"] and says["gain covered"] and says["t covers"] and says["bet covers"]
    assert not says["load gain covered"]
    refused = verdict(judge_gains(np.diagonal(cost)[:3], list(draws[:3]), cost[:3, :3], rng), 0.0, 0.0)
    assert not any(refused.values()) and "gain covered" not in refused
