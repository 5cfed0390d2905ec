"""What a replay measured: exposure in nanoseconds counted one by one, SLO terms one by one."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import measurements, schedules, traces

from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, FULLY, NONE, PARTLY, REFUSED, SERVED, Measurements, exposure_ns
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace


def rows(**columns: list[int]) -> Measurements:
    n = len(next(iter(columns.values())))
    values = {
        "arrival_ns": list(range(n)), "sent_ns": list(range(n)), "ttft_ns": [10] * n, "e2e_ns": [50] * n,
        "max_itl_ns": [5] * n, "prompt_tokens": [1] * n, "output_tokens": [5] * n, "outcome": [SERVED] * n,
        "island": [0] * n, "exposure_ns": [0] * n,
    }  # fmt: skip
    return Measurements(**{k: np.array(v) for k, v in (values | columns).items()})


@given(traces().flatmap(lambda t: st.tuples(st.just(t), schedules(t.n_islands))), st.data())
def test_exposure_by_counting_nanoseconds(both: tuple[RequestTrace, Schedule], data: st.DataObject) -> None:
    trace, schedule = both
    lives = st.lists(st.integers(-1, 80), min_size=len(trace), max_size=len(trace))
    e2e = np.array(data.draw(lives), np.int64)
    merging = np.zeros((trace.n_islands, 1000), bool)
    for k in range(len(schedule)):
        for island in range(trace.n_islands):
            begin = int(schedule.start_ns[k])
            merging[island, begin : begin + int(schedule.busy_ns[k, island])] = True
    expected = [
        int(merging[trace.island[i], trace.arrival_ns[i] : trace.arrival_ns[i] + max(int(e2e[i]), 1)].sum())
        for i in range(len(trace))
    ]
    assert exposure_ns(trace, e2e, schedule).tolist() == expected


def test_exposure_classes() -> None:
    m = rows(e2e_ns=[50, 50, 50, 50, -1, -1], exposure_ns=[0, 1, 49, 50, 0, 1], outcome=[0, 0, 0, 0, FAILED, FAILED])
    assert m.exposure.tolist() == [NONE, PARTLY, PARTLY, FULLY, NONE, FULLY]


@pytest.mark.parametrize(
    ("slo", "column", "values", "missed"),
    [
        (Slo(e2e_ns=50), "e2e_ns", [49, 50, 51], [False, False, True]),
        (Slo(ttft_ns=10), "ttft_ns", [9, 10, 11, -1], [False, False, True, True]),
        (Slo(itl_ns=5), "max_itl_ns", [0, 5, 6, -1], [False, False, True, True]),
        # 50 - 10 over four gaps is exactly 10 a token.
        (Slo(tpot_ns=10), "e2e_ns", [49, 50, 51], [False, False, True]),
        # A single token has no time between tokens; two have one gap of 40.
        (Slo(tpot_ns=39), "output_tokens", [1, 2, 3], [False, True, False]),
        (Slo(), "e2e_ns", [1, 10**12], [False, False]),
    ],
)
def test_each_term_at_its_limit(slo: Slo, column: str, values: list[int], missed: list[bool]) -> None:
    assert rows(**{column: values}).violates(slo).tolist() == missed


def test_what_was_not_served_misses_every_slo() -> None:
    m = rows(outcome=[SERVED, FAILED, REFUSED], e2e_ns=[1, -1, -1], ttft_ns=[1, -1, -1], max_itl_ns=[0, -1, -1])
    for slo in (Slo(), Slo(e2e_ns=10**9), Slo(ttft_ns=10**9), Slo(tpot_ns=10**9), Slo(itl_ns=10**9)):
        assert m.violates(slo).tolist() == [False, True, True]


@given(measurements(), *[st.none() | st.integers(1, 45)] * 4)
def test_violations_in_plain_words(
    m: Measurements, e2e: int | None, ttft: int | None, tpot: int | None, itl: int | None
) -> None:
    def misses(i: int) -> bool:
        if m.outcome[i] != SERVED:
            return True
        checks = [e2e is not None and m.e2e_ns[i] > e2e]
        checks.append(ttft is not None and not 0 <= m.ttft_ns[i] <= ttft)
        checks.append(itl is not None and not 0 <= m.max_itl_ns[i] <= itl)
        if tpot is not None:
            gaps = int(m.output_tokens[i]) - 1
            unknown = m.ttft_ns[i] < 0
            checks.append(bool(unknown or (gaps > 0 and (m.e2e_ns[i] - m.ttft_ns[i]) / gaps > tpot)))
        return any(checks)

    assert m.violates(Slo(e2e, ttft, tpot, itl)).tolist() == [misses(i) for i in range(len(m))]


@given(measurements(), st.integers(1, 45))
def test_more_terms_never_forgive(m: Measurements, limit: int) -> None:
    one, both = m.violates(Slo(e2e_ns=limit)), m.violates(Slo(e2e_ns=limit, ttft_ns=limit))
    assert not (one & ~both).any()
    assert np.array_equal(m.violates(Slo(tpot_ns=limit)), ~(m.tpot_ns <= limit))


def test_tpot() -> None:
    m = rows(output_tokens=[5, 1, 5, 5], outcome=[0, 0, FAILED, 0], e2e_ns=[50, 50, -1, 50], ttft_ns=[10, 10, -1, -1])
    assert m.tpot_ns[:2].tolist() == [10.0, 0.0] and np.isnan(m.tpot_ns[2:]).all()


@given(measurements())
def test_table_round_trip(m: Measurements) -> None:
    back = Measurements.from_table(m.to_table())
    for column in fields(Measurements):
        one, other = getattr(m, column.name), getattr(back, column.name)
        assert np.array_equal(one, other) and one.dtype == other.dtype


def test_refusals() -> None:
    table = rows(e2e_ns=[50, 50]).to_table()
    with pytest.raises(BadInput, match="no column outcome"):
        Measurements.from_table(table.drop_columns(["outcome"]))
    index = table.column_names.index("e2e_ns")
    for values in (pa.array([50, None]), pa.array([50.0, 50.5]), pa.array([50.0, float("nan")]), pa.array(["1", "2"])):
        with pytest.raises(BadInput, match="e2e_ns"):
            Measurements.from_table(table.set_column(index, "e2e_ns", values))
    with pytest.raises(BadInput, match="without latency"):
        rows(e2e_ns=[0])
    with pytest.raises(BadInput, match="sent_ns: found 1 rows"):
        replace(rows(e2e_ns=[50, 50]), sent_ns=np.array([1]))


def test_a_percentile_is_a_latency_that_was_measured_and_failures_are_infinitely_late() -> None:
    """20 requests of 1 to 20 ms: rank ceil(0.95 x 19) = 19 from 0 is the last, and one failure is past all of them."""
    e2e = [k * 1_000_000 for k in range(1, 21)]
    m = rows(e2e_ns=e2e, ttft_ns=[k // 2 for k in e2e], max_itl_ns=[-1] * 20, exposure_ns=[1, 0] * 10)
    every = np.ones(20, bool)
    assert m.p95_ms(every) == 20.0 and m.p95_ms(every, "ttft") == 10.0
    assert m.p95_ms(m.exposure_ns > 0) == 19.0 and m.p95_ms(m.exposure_ns == 0) == 20.0
    assert np.isnan(m.p95_ms(every, "max_itl"))  # the server told no gap between tokens
    assert np.isnan(m.p95_ms(~every)) and m.span_ms == 19e-6
    for outcome in (FAILED, REFUSED):
        lost = rows(e2e_ns=[-1, *e2e[1:]], outcome=[outcome] + [SERVED] * 19, exposure_ns=[1, 0] * 10)
        assert lost.p95_ms(every) == np.inf and lost.p95_ms(lost.exposure_ns == 0) == 20.0


@given(st.lists(st.integers(1, 10**9) | st.just(-1), min_size=1, max_size=80))
def test_the_percentile_by_sorting(e2e: list[int]) -> None:
    m = rows(e2e_ns=e2e, outcome=[FAILED if k < 0 else SERVED for k in e2e])
    ordered = sorted(np.inf if k < 0 else k / 1e6 for k in e2e)
    at = -(-95 * (len(e2e) - 1) // 100)  # ceil of 0.95 (n - 1), in whole numbers
    found = m.p95_ms(np.ones(len(e2e), bool))
    assert found == ordered[at] and np.isinf(found) == (e2e.count(-1) > len(e2e) - 1 - at)
