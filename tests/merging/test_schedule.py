"""Schedules: merges of one island never overlap."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import schedules

from protocol.errors import BadInput
from protocol.merging.schedule import Schedule


@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.tuples(st.integers(0, 30), st.lists(st.integers(0, 6), min_size=n, max_size=n)), min_size=1, max_size=6
        )
    )
)
def test_accepts_exactly_what_occupies_each_nanosecond_once(rows: list[tuple[int, list[int]]]) -> None:
    rows = sorted(rows, key=lambda r: r[0])
    n = len(rows[0][1])
    start, busy = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    taken = np.zeros((n, 40), int)
    for begin, row in rows:
        for island, length in enumerate(row):
            taken[island, begin : begin + length] += 1
    valid = bool((taken <= 1).all()) and all(sum(row) > 0 for _, row in rows)
    if valid:
        assert len(Schedule(start, busy)) == len(rows)
    else:
        with pytest.raises(BadInput, match="schedule"):
            Schedule(start, busy)


def test_a_merge_may_begin_when_another_ends() -> None:
    assert len(Schedule.all_islands(np.array([0, 5, 10]), 5, 2)) == 3
    with pytest.raises(BadInput, match="island 0: found a merge at 4e-09 s inside another"):
        Schedule.all_islands(np.array([0, 4]), 5)


@pytest.mark.parametrize(
    ("start", "busy"),
    [
        ([-1], [[1]]), ([5, 3], [[1], [1]]), ([0], [[0]]), ([0], [[-1]]), ([0], [1]), ([0, 9], [[1]]),
        ([0.5], [[1]]), ([float("nan")], [[1]]),
    ],
)  # fmt: skip
def test_refusals(start: list[float], busy: object) -> None:
    with pytest.raises(BadInput, match="schedule"):
        Schedule(np.array(start), np.array(busy))


def test_windows_leave_out_islands_that_take_no_part() -> None:
    s = Schedule(np.array([0, 10, 20]), np.array([[4, 0], [4, 6], [0, 6]]))
    assert [w.tolist() for w in s.windows_ns(0)] == [[0, 10], [4, 14]]
    assert [w.tolist() for w in s.windows_ns(1)] == [[10, 20], [16, 26]]
    assert s.n_islands == 2 and s.start_s.tolist() == [0.0, 1e-8, 2e-8]
    assert len(Schedule.empty(3)) == 0 and Schedule.empty(3).n_islands == 3


@given(st.integers(1, 3).flatmap(lambda n: schedules(n)), st.integers(0, 5))
def test_equality_is_of_every_cell(s: Schedule, row: int) -> None:
    assert s.equals(Schedule(s.start_ns, s.busy_ns, s.fragment))
    if len(s):
        fragment = s.fragment.copy()
        fragment[row % len(s)] += 1
        assert not s.equals(Schedule(s.start_ns, s.busy_ns, fragment))
        busy = s.busy_ns.copy()
        busy[-1][busy[-1] > 0] += 1
        assert not s.equals(Schedule(s.start_ns, busy))
        assert not s.equals(Schedule(s.start_ns[:-1], s.busy_ns[:-1]))


@given(
    st.integers(0, 4).flatmap(lambda k: st.lists(st.lists(st.integers(-1, 40), min_size=k, max_size=k), max_size=4)),
    st.integers(0, 6),
    st.integers(1, 3),
)
def test_many_schedules_at_once_are_those_made_one_by_one(rows: list[list[int]], merge_ns: int, islands: int) -> None:
    starts = np.array(rows, np.int64).reshape(len(rows), len(rows[0]) if rows else 0)
    try:
        wanted = [Schedule.all_islands(row, merge_ns, islands) for row in starts]
    except BadInput as refused:
        with pytest.raises(BadInput, match=re.escape(str(refused))):
            Schedule.many(starts, merge_ns, islands)
        return
    found = Schedule.many(starts, merge_ns, islands)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.equals(other) and vars(one).keys() == vars(other).keys()
        assert not any(value.flags.writeable for value in vars(one).values() if isinstance(value, np.ndarray))


def test_many_valid_schedules_share_what_is_the_same() -> None:
    one, other = Schedule.many(np.array([[0, 5, 10], [1, 6, 99]]), 5, 2)
    assert other.start_ns.tolist() == [1, 6, 99] and one.busy_ns is other.busy_ns
