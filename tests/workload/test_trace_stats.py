"""Burstiness and forecasts against closed forms and slow references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.workload.trace import NS_PER_S, RequestTrace
from protocol.workload.trace_stats import counts, dispersion, ewma, ewma_forecast


def trace_at(seconds):
    n = len(seconds)
    return RequestTrace(np.rint(np.array(seconds) * NS_PER_S).astype(np.int64), np.ones(n), np.ones(n))


def test_counts_of_whole_bins_only():
    trace = trace_at([0, 0.5, 1.999, 2, 5, 8.1])
    assert counts(trace, 2.0).tolist() == [3, 1, 1, 0]
    assert counts(trace, 10.0).tolist() == []
    assert counts(trace_at([]), 1.0).tolist() == []


def test_dispersion_by_hand():
    assert dispersion(np.array([0, 4])) == pytest.approx(8 / 2)
    assert dispersion(np.array([3, 3, 3])) == 0
    assert dispersion(np.array([3])) is None and dispersion(np.array([0, 0])) is None


def test_dispersion_of_poisson_and_of_batches():
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.05, 40_000))
    assert dispersion(counts(trace_at(times), 1.0)) == pytest.approx(1.0, abs=0.1)
    # Poisson batches of 5: a batch adds 5 to the mean and 25 to the variance.
    batches = np.repeat(np.cumsum(rng.exponential(0.25, 10_000)), 5)
    assert dispersion(counts(trace_at(batches), 1.0)) == pytest.approx(5.0, abs=0.5)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.floats(0, 1))
def test_ewma_is_its_recursion(values, alpha):
    smoothed, expected = float(values[0]), []
    for value in values:
        smoothed = alpha * value + (1 - alpha) * smoothed
        expected.append(smoothed)
    assert ewma(np.array(values), alpha) == pytest.approx(expected, abs=1e-9)


def test_forecast_against_a_slow_reference():
    x = np.random.default_rng(2).poisson(5, 40) + 10 * (np.arange(40) // 5 % 2)

    def error(alpha, first, last):
        s, out = x[0], 0.0
        for t in range(1, last):
            out += (x[t] - s) ** 2 if t >= first else 0
            s = alpha * x[t] + (1 - alpha) * s
        return out

    found = ewma_forecast(x)
    assert error(found.alpha, 1, 20) <= min(error(a, 1, 20) for a in np.linspace(0, 1, 1001)) + 1e-3
    assert found.r2 == pytest.approx(1 - error(found.alpha, 20, 40) / ((x[20:] - x[20:].mean()) ** 2).sum())
    assert found.n == 20


def test_what_can_and_cannot_be_foreseen():
    rng = np.random.default_rng(3)
    noise = ewma_forecast(rng.poisson(20, 2000))
    assert noise.r2 < 0.01
    level = ewma_forecast(rng.poisson(np.repeat(rng.choice([5, 50], 100), 20)))
    assert level.r2 > 0.7


def test_no_forecast_of_too_little():
    assert ewma_forecast(np.arange(7)) is None
    assert ewma_forecast(np.array([1, 1, 1, 1, 1, 2, 3, 4])) is None
    assert ewma_forecast(np.array([1, 2, 3, 4, 5, 5, 5, 5])) is None
