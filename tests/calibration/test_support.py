"""What a calibration saw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from strategies import S, bursty
from strategies import measurements as any_rows

from protocol.calibration.support import in_flight, support_of, windowed
from protocol.replay.measurements import Measurements


def rows(arrival_s: list[float], e2e_s: list[float]) -> Measurements:
    n = len(arrival_s)
    arrival, e2e = (np.array([int(x * S) for x in values], np.int64) for values in (arrival_s, e2e_s))
    return Measurements(
        arrival_ns=arrival, sent_ns=arrival, ttft_ns=e2e // 2, e2e_ns=e2e, max_itl_ns=np.zeros(n),
        prompt_tokens=np.arange(1, n + 1), output_tokens=np.full(n, 4), outcome=np.zeros(n), island=np.zeros(n),
        exposure_ns=np.zeros(n),
    )  # fmt: skip


def test_rates_by_hand() -> None:
    assert windowed(rows([0, 1, 2, 11, 20.5], [1] * 5)).tolist() == [0.3, 0.1]
    assert windowed(rows([5, 6], [1, 1])).tolist() == [0.2]  # less than one window
    assert windowed(rows([0, 35, 55], [1] * 3)).tolist() == [0.1, 0.1]  # idle ones between them


def test_requests_in_flight_by_hand() -> None:
    assert in_flight(rows([0, 1, 2, 3], [2.5, 0.5, 5, 1])).tolist() == [1, 2, 2, 2]


@given(any_rows())
def test_requests_in_flight_by_counting(m: Measurements) -> None:
    ends = m.arrival_ns + np.maximum(m.e2e_ns, 0)
    counted = [int(((m.arrival_ns <= t) & (ends >= t)).sum()) for t in m.arrival_ns]
    # A request that ends at the very moment of an arrival is still there.
    assert in_flight(m).tolist() == counted


def test_the_ranges_of_all_runs() -> None:
    one, other = rows([0, 1], [1, 1]), rows([0, 0.1, 0.2, 0.3], [9, 9, 9, 9])
    found = support_of([one, other], 8.0)
    assert (found.rate_per_s, found.in_flight, found.merge_s) == ((0.2, 0.4), (1.0, 4.0), (8.0, 8.0))
    assert (found.prompt_tokens, found.output_tokens) == ((1.0, 4.0), (4.0, 4.0))


def test_a_trace_is_in_its_own_support() -> None:
    trace = bursty(1)
    m = rows((trace.arrival_ns / S).tolist(), [0.4] * len(trace))
    found = support_of([m], 2.0)
    assert windowed(m).max() == found.rate_per_s[1] == pytest.approx(windowed(m).max())
