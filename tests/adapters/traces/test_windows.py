"""Windows of a real trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.traces.windows import cut, windows
from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S, RequestTrace


def trace_at(*seconds):
    n = len(seconds)
    return RequestTrace(np.rint(np.array(seconds) * NS_PER_S), np.arange(1, n + 1), np.ones(n), name="t")


def test_consecutive_windows_rebased_at_zero():
    trace = trace_at(0, 1, 5, 11, 12, 20, 29)  # ends one mean gap after 29 s, at 33.8 s
    found = cut(trace, 5, 8.0, 2.0)
    assert [w.arrival_s.tolist() for w in found.windows] == [[0, 1, 5], [1, 2], [0, 9]]
    assert [w.prompt_tokens.tolist() for w in found.windows] == [[1, 2, 3], [4, 5], [6, 7]]
    assert (found.fitting, found.empty) == (3, ()) and found.unused_s == pytest.approx(29 * 7 / 6 - 30)
    assert len({w.name for w in found.windows}) == 3


def test_empty_windows_are_left_out_and_reported():
    found = cut(trace_at(0, 1, 25, 26, 39), 5, 10.0, 0.0)
    assert found.empty == (1,) and [len(w) for w in found.windows] == [2, 2, 1]
    assert "3 of 4 windows" in found.report and "1 empty" in found.report


def test_no_more_windows_than_asked_for():
    assert len(windows(trace_at(*range(100)), 3, 9.0, 1.0)) == 3


def test_a_last_window_needs_its_whole_length():
    assert len(windows(trace_at(*range(20)), 9, 10.0, 0.0)) == 2  # 19 s and one mean gap
    with pytest.raises(BadInput, match="at least 2 windows"):
        windows(trace_at(*range(19)), 9, 10.0, 0.0)


def test_windows_of_a_log_that_miss_the_trace_say_what_aligns_them():
    with pytest.raises(BadInput, match="from the end of a logged merge on .--log-zero: where the trace begins"):
        cut(trace_at(*range(20)), 9, 5.0, 0.0, [NS_PER_S, 100 * NS_PER_S])
    assert cut(trace_at(*range(20)), 9, 5.0, 0.0, [0, 6 * NS_PER_S]).report.startswith("2 windows, all that fit; ")


@pytest.mark.parametrize("seconds", [(), (0,), (0, 0, 0), (0, 100)])
def test_too_little_for_two_windows(seconds):
    with pytest.raises(BadInput, match="replicates"):
        windows(trace_at(*seconds), 9, 150.0, 0.0)


@pytest.mark.parametrize(("n", "horizon", "cooldown"), [(1, 1.0, 0.0), (5, 0.0, 1.0), (5, 1.0, -0.5), (5, -1.0, 5.0)])
def test_senseless_windows(n, horizon, cooldown):
    with pytest.raises(BadInput):
        windows(trace_at(*range(10)), n, horizon, cooldown)


@given(st.lists(st.integers(0, 200), min_size=2, max_size=40), st.integers(2, 9), st.integers(1, 30))
def test_windows_partition_the_trace(seconds, n_max, width):
    trace = trace_at(*sorted(s - min(seconds) for s in seconds))
    try:
        found = cut(trace, n_max, float(width), 0.0)
    except BadInput:
        return
    used = len(found.windows) + len(found.empty)
    assert 2 <= len(found.windows) <= n_max and used <= found.fitting
    assert sum(map(len, found.windows)) == int((trace.arrival_ns < used * width * NS_PER_S).sum())
    assert all(0 <= w.arrival_ns[0] and w.arrival_ns[-1] < width * NS_PER_S for w in found.windows)
