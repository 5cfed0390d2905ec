"""Cells to integers: exactness, and blocks that agree with single cells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.traces.parsing import LATEST_NS, UNITS, BadValue, Number, Stamp, Tokens, parse_column

#: Cells near what the parsers take, so that the border between plain and other cells is met often.
NUMERIC = st.one_of(
    st.from_regex(r"\A[0-9]{1,20}(\.[0-9]{0,12})?\Z"),
    st.from_regex(r"\A[-+ ]?[0-9]{0,3}[.,]?[0-9]{0,3}([eE][-+]?[0-9]{1,3})?\Z"),
    st.sampled_from(["", " ", "nan", "-inf", "0x1F", "1_0", "٣", "9223372036.854775807", "9223372036.854775808"]),
    st.text(max_size=4),
)
DATES = st.one_of(
    st.datetimes(datetime(1969, 1, 1), datetime(2300, 1, 1)).map(str),
    st.from_regex(r"\A20[0-9]{2}-0[0-9]-[0-3][0-9][ T][0-2][0-9]:00:[0-6]0(\.[0-9]{1,10})?(Z|[+-][0-2]0:[0-6]0)?\Z"),
    st.sampled_from(["2024-01-01", "2024-01-01 00:00", "", "2024-02-29 00:00:00", "2023-02-29 00:00:00"]),
)  # fmt: skip


def one_by_one(parse, cells):
    out = []
    for cell in cells:
        try:
            out.append(parse(cell))
        except BadValue:
            out.append(-1)
    return out


@given(st.lists(NUMERIC, max_size=6), st.sampled_from(sorted(UNITS)), st.booleans())
def test_blocks_of_numbers_agree_with_single_cells(cells, unit, comma):
    block = Number(unit, comma).block(pa.array(cells, pa.string()))
    if block is not None:
        assert block.tolist() == one_by_one(Number(unit, comma), cells)


@given(st.lists(st.one_of(st.integers(-3, 2**63 - 1), st.none()), max_size=6), st.sampled_from(sorted(UNITS)))
def test_blocks_of_integers_agree_with_single_cells(cells, unit):
    for parse in (Number(unit), Tokens()):
        block = parse.block(pa.array(cells, pa.int64()))
        if block is not None:
            assert block.tolist() == one_by_one(parse, cells)


@given(st.lists(DATES, max_size=6))
def test_blocks_of_dates_agree_with_single_cells(cells):
    block = Stamp().block(pa.array(cells, pa.string()))
    if block is not None:
        assert block.tolist() == one_by_one(Stamp(), cells)


@given(st.lists(NUMERIC, max_size=6))
def test_blocks_of_tokens_agree_with_single_cells(cells):
    block = Tokens().block(pa.array(cells, pa.string()))
    if block is not None:
        assert block.tolist() == one_by_one(Tokens(), cells)


def test_plain_cells_are_read_as_blocks():
    """Otherwise the tests above would compare nothing."""
    assert Number("s").block(pa.array(["1780000000.123456789", "0", "7.5"])).tolist() == [
        1780000000123456789, 0, 7_500_000_000]  # fmt: skip
    assert Number("ms").block(pa.array(["3000", "0.25"])).tolist() == [3_000_000_000, 250_000]
    assert Number("ns").block(pa.array([1, 2])).tolist() == [1, 2]
    assert Stamp().block(pa.array(["1970-01-01 00:00:01.5", "1970-01-01T00:00:02"])).tolist() == [
        1_500_000_000,
        2 * 10**9,
    ]
    assert Stamp().block(pa.array(["1970-01-01 01:00:01.5+01:00"])).tolist() == [1_500_000_000]
    assert Tokens().block(pa.array(["0", "12"])).tolist() == [0, 12]
    sliced = pa.array(["9", "1.5", "2.5", "9"]).slice(1, 2)
    assert Number("s").block(sliced).tolist() == [1_500_000_000, 2_500_000_000]


@given(st.integers(0, LATEST_NS), st.sampled_from(sorted(UNITS)))
def test_every_nanosecond_survives_in_every_unit(time_ns, unit):
    whole, rest = divmod(time_ns, UNITS[unit])
    digits = len(str(UNITS[unit])) - 1
    text = f"{whole}.{rest:0{digits}d}" if digits else str(whole)
    assert Number(unit)(text) == time_ns
    block = Number(unit).block(pa.array([text]))
    assert block is None or block.tolist() == [time_ns]


@given(st.decimals(0, 10**9, places=15), st.sampled_from(["s", "ms", "us"]))
def test_more_digits_are_rounded_to_the_nearest_nanosecond(value, unit):
    exact = Fraction(value) * UNITS[unit]
    assert abs(Number(unit)(format(value, "f")) - exact) <= Fraction(1, 2)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2262, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_dates_agree_with_the_standard_library(moment, minutes):
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    expected = (since // timedelta(microseconds=1)) * 1000
    if expected >= 0:
        assert Stamp()(str(aware)) == expected
        assert parse_column([pa.array([str(aware)])], 1, "t", Stamp(), {}).tolist() == [expected]


def test_huge_exponents_and_digits_cost_nothing():
    for text in ("1e99", "9" * 25, "1e-99", "9" * 5000, "1e999999999"):
        try:
            assert Number("s")(text) == 0
        except BadValue:
            pass
    with pytest.raises(BadValue):
        Number("s")(10**4000)


def test_faults_name_the_first_bad_column_of_a_row():
    faults = {}
    values = parse_column([["1", None, "x"], ["2"]], 4, "a", Tokens(), faults)
    assert values.tolist() == [1, -1, -1, 2] and values.dtype == np.int64
    parse_column([["", "", ""], [""]], 4, "b", Tokens(), faults)
    assert [faults[i].column for i in range(4)] == ["b", "a", "a", "b"]
