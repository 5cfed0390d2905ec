from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from protocol.stats.ratios import transfer_ratio


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_by_hand_and_by_scipy() -> None:
    """Log ratios 0, 1, 2, 3, 4: mean 2, standard error sqrt(2.5 / 5)."""
    found = transfer_ratio(np.exp(np.arange(5.0)), np.ones(5))
    assert found.ratio == pytest.approx(math.exp(2)) and found.lower_bound and found.interval
    sem = math.sqrt(0.5)
    assert found.lower_bound == pytest.approx(math.exp(2 - stats.t.ppf(0.95, 4) * sem))
    assert found.outcome.pvalue == pytest.approx(stats.t.sf(2 / sem, 4))
    theirs = stats.ttest_1samp(np.arange(5.0), 0).confidence_interval(0.95)
    assert np.log([found.interval.lower, found.interval.upper]) == pytest.approx(tuple(theirs))


@pytest.mark.parametrize("seed", range(8))
def test_bound_above_the_threshold_exactly_when_significant(seed: int) -> None:
    found = transfer_ratio(rng(seed).lognormal(0.2, 0.1, 6), rng(seed + 50).lognormal(0, 0.1, 6), threshold=1.1)
    assert found.outcome.pvalue is not None and found.lower_bound is not None
    assert (found.lower_bound > 1.1) == (found.outcome.pvalue < 0.05)


def test_refusals() -> None:
    good, many, few = np.array([1.5, 1.6, 1.4, 1.7, 1.5]), np.full(5, 100), np.array([100, 100, 19, 100, 100])
    ones = np.ones(5)
    for found, reason in (
        (transfer_ratio(good[:4], ones[:4]), "4 runs, fewer than 5"),
        (transfer_ratio(good, ones[:4]), "5 exposed values against 4"),
        (transfer_ratio(good, ones, few, many), "run 3 has 19 exposed requests, below 20"),
        (transfer_ratio(good, ones, many, few), "run 3 has 19 unexposed requests, below 20"),
        (transfer_ratio(good, ones, many[:2], many), "2 counts"),
        (transfer_ratio(good * [1, 1, math.nan, 1, 1], ones), "run 3 has a quantile"),
        (transfer_ratio(good, ones * [1, 0, 1, 1, 1]), "run 2 has a quantile"),
        (transfer_ratio(good, [1, math.inf, 1, 1, 1]), "run 2 has a quantile"),
        (transfer_ratio(ones * 1.7, ones), "agree to the last digit"),
        (transfer_ratio([], []), "0 runs"),
    ):
        assert found.outcome.pvalue is None and found.interval is None
        assert reason in (found.outcome.reason or "")


def one_run(source: np.random.Generator, log_ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Latencies of a run: batches of 8 share a log-AR(1) level; the run and each merge have their own effect."""
    batches = 150
    level = np.empty(batches)
    level[0] = source.normal()
    for b in range(1, batches):
        level[b] = 0.95 * level[b - 1] + math.sqrt(1 - 0.95**2) * source.normal()
    merge = np.arange(batches) % 15 < 3
    # Merges of one run resemble each other more than merges of different runs.
    shift = source.normal(source.normal(log_ratio, 0.06), 0.06, batches // 15)[np.arange(batches) // 15]
    log_latency = 0.2 * level + np.where(merge, shift, 0)
    values = np.exp(np.repeat(log_latency, 8) + source.normal(0, 0.1, batches * 8))
    exposed = np.repeat(merge, 8)
    return values[exposed], values[~exposed]


def coverage(reps: int, seed: int) -> tuple[float, float]:
    """How often 95 % intervals hold the long-run mean log ratio: t over 5 runs, and resampled requests."""
    source = rng(seed)
    truth = np.mean([np.log(np.quantile(a, 0.95) / np.quantile(b, 0.95)) for a, b in
                     (one_run(source, math.log(1.5)) for _ in range(1500))])  # fmt: skip
    by_run = by_request = 0
    for _ in range(reps):
        runs = [one_run(source, math.log(1.5)) for _ in range(5)]
        found = transfer_ratio([np.quantile(a, 0.95) for a, _ in runs], [np.quantile(b, 0.95) for _, b in runs])
        assert found.interval is not None
        by_run += found.interval.lower <= math.exp(truth) <= found.interval.upper
        a, b = np.concatenate([r[0] for r in runs]), np.concatenate([r[1] for r in runs])
        boot = [
            np.log(np.quantile(source.choice(a, len(a)), 0.95) / np.quantile(source.choice(b, len(b)), 0.95))
            for _ in range(100)
        ]
        low, high = np.quantile(boot, [0.025, 0.975])
        by_request += low <= truth <= high
    return by_run / reps, by_request / reps


def test_the_run_is_the_unit() -> None:
    """STATISTICS section 1: t over runs covers .95 to .97, resampled requests .18 to .29."""
    by_run, by_request = coverage(60, 5)
    assert by_run >= 0.87 and by_request < 0.6


@pytest.mark.slow
def test_the_run_is_the_unit_at_length() -> None:
    by_run, by_request = coverage(600, 6)
    assert by_run > 0.92 and by_request < 0.5
