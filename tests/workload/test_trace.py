"""Traces, their digests and windows; signals that hold their value until the next edge."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import step_functions, traces

from protocol.errors import BadInput
from protocol.workload.trace import RequestTrace, StepFunction, Workload, seconds_to_ns


def small(**changes: object) -> RequestTrace:
    columns: dict[str, object] = {
        "arrival_ns": [0, 5, 5, 9], "prompt_tokens": [1, 2, 3, 4], "output_tokens": [4, 3, 2, 1],
        "island": [0, 1, 0, 1], "n_islands": 2,
    }  # fmt: skip
    return RequestTrace(**(columns | changes))  # type: ignore[arg-type]


def test_digest_is_that_of_the_documented_bytes() -> None:
    raw = b"request-trace/1 4 2\n" + struct.pack("<4q4i4i4h", 0, 5, 5, 9, 1, 2, 3, 4, 4, 3, 2, 1, 0, 1, 0, 1)
    assert small().digest == hashlib.sha256(raw).hexdigest()
    assert small(name="another").digest == small().digest


@given(traces(), st.data())
def test_digest_sees_every_cell(trace: RequestTrace, data: st.DataObject) -> None:
    columns = {c: getattr(trace, c) for c in ("arrival_ns", "prompt_tokens", "output_tokens", "island")}
    copy = RequestTrace(**columns, n_islands=trace.n_islands)
    assert copy.digest == trace.digest
    assert RequestTrace(**columns, n_islands=trace.n_islands + 1).digest != trace.digest
    if not len(trace):
        return
    column = data.draw(st.sampled_from(sorted(columns)))
    row = len(trace) - 1 if column == "arrival_ns" else data.draw(st.integers(0, len(trace) - 1))
    edited = columns[column].copy()
    edited[row] += 1
    other = RequestTrace(**(columns | {column: edited}), n_islands=trace.n_islands + 1)
    assert other.digest not in (trace.digest, RequestTrace(**columns, n_islands=trace.n_islands + 1).digest)


def test_a_row_moved_between_columns_changes_the_digest() -> None:
    a = RequestTrace(np.array([0]), np.array([2]), np.array([1]))
    b = RequestTrace(np.array([0]), np.array([1]), np.array([2]))
    assert a.digest != b.digest


def test_arrays_cannot_be_changed_from_outside() -> None:
    own = np.array([0, 1])
    trace = RequestTrace(own, np.array([1, 1]), np.array([1, 1]))
    own[0] = 7
    assert trace.arrival_ns.tolist() == [0, 1]
    with pytest.raises(ValueError):
        trace.arrival_ns[0] = 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_tokens": [1, 2, 3]}, ["prompt_tokens", "3 rows", "4 rows"]),
        ({"arrival_ns": [-1, 5, 5, 9]}, ["row 1", "arrival", "-1"]),
        ({"arrival_ns": [0, 5, 4, 9]}, ["row 3", "arrival", "backward"]),
        ({"arrival_ns": [0.0, 5.5, 6.0, 9.0]}, ["row 2", "arrival_ns", "5.5"]),
        ({"arrival_ns": [0.0, 5.0, float("nan"), 9.0]}, ["row 3", "arrival_ns", "nan"]),
        ({"arrival_ns": [0.0, 5.0, float("inf"), 9.0]}, ["row 3", "arrival_ns", "inf"]),
        ({"arrival_ns": ["0", "5", "5", "9"]}, ["arrival_ns"]),
        ({"prompt_tokens": [1, 0, 3, 4]}, ["row 2", "prompt_tokens", "0"]),
        ({"output_tokens": [1, 2, 3, -4]}, ["row 4", "output_tokens", "-4"]),
        ({"prompt_tokens": np.array([1, 2**32 + 1, 3, 4])}, ["row 2", "prompt_tokens", "4294967297"]),
        ({"island": [0, 1, 2, 0]}, ["row 3", "island", "2", "0 to 1"]),
        ({"island": [0, -1, 0, 0]}, ["row 2", "island", "-1"]),
    ],
)
def test_refusals_name_row_and_column(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        small(**changes)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message


@given(traces(), st.integers(0, 220), st.integers(0, 220))
def test_window_by_brute_force(trace: RequestTrace, a: int, b: int) -> None:
    start, end = min(a, b), max(a, b)
    found = trace.window(start, end)
    rows = [i for i in range(len(trace)) if start <= trace.arrival_ns[i] < end]
    assert found.arrival_ns.tolist() == [trace.arrival_ns[i] - start for i in rows]
    assert found.prompt_tokens.tolist() == [trace.prompt_tokens[i] for i in rows]
    assert found.island.tolist() == [trace.island[i] for i in rows]
    assert found.n_islands == trace.n_islands


@given(traces(islands=2), traces(islands=2), st.integers(0, 220))
def test_splice_by_brute_force(one: RequestTrace, other: RequestTrace, at: int) -> None:
    def rows(t: RequestTrace) -> list[tuple[int, ...]]:
        columns = (t.arrival_ns, t.prompt_tokens, t.output_tokens, t.island)
        return [tuple(int(v) for v in row) for row in zip(*columns, strict=True)]

    expected = [r for r in rows(one) if r[0] < at] + [r for r in rows(other) if r[0] >= at]
    assert rows(one.spliced(other, at)) == expected


@given(step_functions(), st.integers(0, 60))
def test_signal_by_brute_force(signal: StepFunction, time: int) -> None:
    expected = [v for since, v in zip(signal.since_ns, signal.values, strict=True) if since <= time][-1]
    assert signal.at(time) == expected


@given(step_functions(), step_functions(), st.integers(0, 60))
def test_spliced_signal_is_the_one_then_the_other(one: StepFunction, other: StepFunction, at: int) -> None:
    both = one.spliced(other, at)
    assert [both.at(t) for t in range(70)] == [(one if t < at else other).at(t) for t in range(70)]


@pytest.mark.parametrize(
    ("since", "values"), [([], []), ([1], [0.5]), ([0, 5, 5], [0.1, 0.2, 0.3]), ([0, 3], [0.1]), ([0, 4, 2], [0, 0, 0])]
)
def test_broken_signals_are_refused(since: list[int], values: list[float]) -> None:
    with pytest.raises(BadInput, match="signal"):
        StepFunction(np.array(since, np.int64), np.array(values))


def test_a_spliced_world_changes_only_its_future() -> None:
    one = Workload(small(), StepFunction.constant(0.1), StepFunction.constant(0.2))
    other = Workload(small(prompt_tokens=[9, 9, 9, 9]), StepFunction.constant(0.8), StepFunction.constant(0.9))
    world = one.spliced(other, 5)
    assert world.trace.prompt_tokens.tolist() == [1, 9, 9, 9]
    assert (world.network.at(4), world.network.at(5)) == (0.1, 0.8)
    assert (world.checkpoint.at(4), world.checkpoint.at(5)) == (0.2, 0.9)


def test_seconds_become_whole_nanoseconds() -> None:
    assert seconds_to_ns(0.0735) == 73_500_000
    assert seconds_to_ns(0.1 + 0.2) == 300_000_000
    assert small().arrival_s.tolist() == [0.0, 5e-9, 5e-9, 9e-9]
