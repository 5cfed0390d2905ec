"""What of a merge log lies in a window, on the decision grid."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.merging.corridor import Corridor
from protocol.merging.logged import merges_of, window
from protocol.merging.practice import Practice, Timing
from protocol.merging.schedule import Schedule

S = 1_000_000_000
#: Decisions every second, merges of 2 s in a window of 20 s.
TIMING = Timing(Corridor(h_min=1, h_max=9, decision_steps=1, step_ns=S, merge_ns=2 * S, horizon_ns=20 * S), Practice())


def logged(*windows_s: tuple[float, float]) -> Schedule:
    start = np.array([round(a * S) for a, _ in windows_s], np.int64)
    return Schedule(start, np.array([[round((b - a) * S)] for a, b in windows_s], np.int64))


def test_a_window_by_hand() -> None:
    log = logged((1, 3), (12.0, 14.0), (19.4, 21.4), (27.6, 29.9), (36, 39))
    found, following = window(log, 3 * S, TIMING)
    # 9 s; the 5.4 s from its end at 11 s on are 5 s on the grid, so 16 to 18 s; the next begins after the window.
    assert found.start_s.tolist() == [9.0, 16.0] and following == round(2.3 * S)
    assert window(log, 30 * S, TIMING)[0].start_s.tolist() == [6.0] and window(log, 30 * S, TIMING)[1] is None


def test_rounding_moves_a_merge_out_of_the_window_or_into_it() -> None:
    out, following = window(logged((8.6, 10.6), (18.0, 19.9)), 0, TIMING)
    assert out.start_s.tolist() == [9.0, 18.0] and following is None
    late, following = window(logged((9.5, 11.5), (17.6, 19.9)), 0, TIMING)  # 10 and 6: 18 s, and 2.3 s do not fit
    assert late.start_s.tolist() == [10.0] and following == round(2.3 * S)
    early, _ = window(logged((9.4, 11.4), (18.4, 20.3)), 0, TIMING)  # 9 and 7: 18 s, though it ended at 20.3 s
    assert early.start_s.tolist() == [9.0, 18.0]


@given(st.lists(st.tuples(st.floats(1.0, 9.0), st.floats(0.5, 3.0)), min_size=1, max_size=12), st.integers(0, 3))
def test_no_window_leaves_the_corridor_but_at_its_end(gaps: list[tuple[float, float]], skip: int) -> None:
    at, windows = 0.0, []
    for wait, took in gaps:
        windows.append((at + wait, at + wait + took))
        at = windows[-1][1]
    begin = 0 if skip == 0 or skip > len(windows) else round(windows[skip - 1][1] * S)
    found, following = window(logged(*windows), begin, TIMING)
    ends = found.start_ns + found.busy_ns[:, 0]
    assert (ends <= TIMING.corridor.horizon_ns).all()
    merges = merges_of(found, TIMING, following)
    why = TIMING.violation(found.start_ns, merges)
    # A log that ends before the window does leaves its end without a merge that H_max would force.
    assert why is None or (following is None and "H_max" in why), why
