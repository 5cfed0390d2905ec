"""Times and token counts from text, exactly: decimals never pass through a binary fraction.

Each parser reads one cell when called, and is the definition; its `block` reads a whole Arrow array of plain cells at
once, with equal results, and gives None for an array that holds anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from protocol.workload.trace import NS_PER_S

#: Nanoseconds per unit of time.
UNITS = {"s": NS_PER_S, "ms": 10**6, "us": 10**3, "ns": 1}
#: Calendar dates, beside UNITS.
DATE = "date"
LATEST_NS = 2**63 - 1
MOST_TOKENS = 2**31 - 1

_DECIMAL = re.compile(r"[+-]?(?:\d{1,25}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,2})?", re.ASCII)
_TOKENS = re.compile(r"([+-]?\d{1,18})(?:\.0)?", re.ASCII)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", re.ASCII)
_STAMP_TAIL = re.compile(r"(?:[.,](\d{1,9}))? ?(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_PLAIN_STAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Wide enough for every text that _DECIMAL lets through; ties between two nanoseconds go to the even one.
_EXACT = Context(prec=200)


class BadValue(ValueError):
    """One cell cannot be used.  reason: short, equal for equal faults; expected: what the cell should hold."""

    def __init__(self, reason: str, expected: str) -> None:
        self.reason, self.expected = reason, expected
        super().__init__(reason)


@dataclass(frozen=True)
class Fault:
    """Why a row is unusable: the column, what stood there, what should have."""

    reason: str
    column: str
    found: str
    expected: str


def is_date(value: object) -> bool:
    return isinstance(value, str) and _STAMP.match(value.strip()) is not None


def is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


class Parser(Protocol):
    """A kind of cell."""

    def __call__(self, value: object) -> int: ...

    def block(self, cells: Any) -> NDArray[np.int64] | None: ...


@dataclass
class Number:
    """Parses a time in one of UNITS to whole nanoseconds (to the nearest, where a file has more digits)."""

    unit: str
    decimal_comma: bool = False

    def __call__(self, value: object) -> int:
        factor = UNITS[self.unit]
        if type(value) is int:
            return self._in_range(value * factor)
        expected = f"a time in {self.unit}"
        if is_blank(value):
            raise BadValue("no time", expected)
        text = value.strip() if isinstance(value, str) else ""
        if self.decimal_comma and "." not in text:
            text = text.replace(",", ".")
        if not _DECIMAL.fullmatch(text):
            if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
                raise BadValue("time is not finite", f"a finite time in {self.unit}")
            raise BadValue("time is not a number", expected)
        return self._in_range(int(_EXACT.to_integral_value(_EXACT.multiply(Decimal(text), Decimal(factor)))))

    def block(self, cells: Any) -> NDArray[np.int64] | None:
        factor = UNITS[self.unit]
        if pa.types.is_integer(cells.type):
            values = _whole(cells)
            return values * factor if values is not None and values.max(initial=0) <= LATEST_NS // factor else None
        digits = len(str(factor)) - 1
        plain = rf"^[0-9]{{1,{19 - digits}}}(\.[0-9]{{1,{digits}}})?$" if digits else "^[0-9]{1,18}$"
        if not _all_match(cells, plain):
            return None
        try:
            scaled = pc.cast(cells, pa.decimal128(38, digits))
        except pa.ArrowException:
            return None
        # A decimal128 is its unscaled integer in two words, the low one first; plain cells stay below 2^64.
        words = np.frombuffer(scaled.buffers()[1], np.int64)[2 * scaled.offset : 2 * (scaled.offset + len(scaled)) : 2]
        return words.copy() if words.min(initial=0) >= 0 else None

    def _in_range(self, time_ns: int) -> int:
        if time_ns < 0:
            raise BadValue("negative time", "0 or later")
        if time_ns > LATEST_NS:
            raise BadValue("time out of range", f"a time in {self.unit} before the year 2262 (is the unit right?)")
        return time_ns


@dataclass
class Stamp:
    """Parses a calendar date to nanoseconds since 1970.  A date without offset counts as UTC.

    The unit comes from the text alone: up to nine fractional digits, or none.
    """

    _aware: bool | None = None
    _seconds: dict[str, int] = field(default_factory=dict)

    def __call__(self, value: object) -> int:
        expected = "a date like 2023-11-16 18:17:03.9799600"
        if is_blank(value):
            raise BadValue("no time", expected)
        text = value.strip() if isinstance(value, str) else ""
        tail = _STAMP_TAIL.fullmatch(text[19:])
        if tail is None:
            raise BadValue("time is not a date", expected)
        seconds = self._seconds.get(text[:19])
        if seconds is None:
            seconds = self._seconds[text[:19]] = _epoch_seconds(text[:19], expected)
        fraction, offset = tail.groups()
        if self._aware is None:
            self._aware = offset is not None
        if self._aware != (offset is not None):
            raise BadValue("dates with and without offset", "an offset from UTC on every date or on none")
        if offset and offset[0] in "+-":
            hours, minutes = int(offset[1:3]), int(offset[3:].lstrip(":") or 0)
            if hours > 23 or minutes > 59:
                raise BadValue("time is not a date", "an offset from UTC like +02:00")
            seconds -= (hours * 3600 + minutes * 60) * (-1 if offset[0] == "-" else 1)
        time_ns = seconds * NS_PER_S + (int(fraction.ljust(9, "0")) if fraction else 0)
        if not 0 <= time_ns <= LATEST_NS:
            raise BadValue("time out of range", "a date from 1970 to 2261")
        return time_ns

    def block(self, cells: Any) -> NDArray[np.int64] | None:
        if not _all_match(cells, _PLAIN_STAMP):
            return None
        for zone in (None, "UTC"):  # dates without an offset, then dates with one; never both in one file
            if self._aware not in (None, zone is not None):
                continue
            try:
                values = _whole(pc.cast(pc.cast(cells, pa.timestamp("ns", zone)), pa.int64()))
            except pa.ArrowException:
                continue
            if values is not None:
                self._aware = zone is not None
            return values
        return None


def _epoch_seconds(text: str, expected: str) -> int:
    if not _STAMP.fullmatch(text):
        raise BadValue("time is not a date", expected)
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise BadValue("time is not a date", f"a date that exists ({error})") from None
    return (moment - _EPOCH) // timedelta(seconds=1)


@dataclass
class Custom:
    """Parses a time in a `strptime` pattern of the user's to nanoseconds since 1970; without an offset it is UTC."""

    pattern: str

    def __call__(self, value: object) -> int:
        expected = f"a time like {self.pattern}"
        if is_blank(value):
            raise BadValue("no time", expected)
        try:
            moment = datetime.strptime(str(value).strip(), self.pattern)
        except (ValueError, TypeError):
            raise BadValue("time does not fit the format", expected) from None
        passed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        time_ns = passed // timedelta(microseconds=1) * 1000
        if not 0 <= time_ns <= LATEST_NS:
            raise BadValue("time out of range", "a date from 1970 to 2261")
        return time_ns

    def block(self, cells: Any) -> NDArray[np.int64] | None:
        return None


@dataclass
class Tokens:
    """A token count, 0 included.  A trailing .0, as data frames write it, is a whole number."""

    def __call__(self, value: object) -> int:
        expected = "a whole number of tokens"
        if type(value) is not int:
            if is_blank(value):
                raise BadValue("no token count", expected)
            match = _TOKENS.fullmatch(value.strip()) if isinstance(value, str) else None
            if match is None:
                raise BadValue("token count is not a whole number", expected)
            value = int(match[1])
        if value < 0:
            raise BadValue("negative token count", "0 or more tokens")
        if value > MOST_TOKENS:
            raise BadValue("token count out of range", f"at most {MOST_TOKENS} tokens")
        return value

    def block(self, cells: Any) -> NDArray[np.int64] | None:
        if _all_match(cells, "^[0-9]{1,9}$"):
            cells = pc.cast(cells, pa.int64())
        values = _whole(cells) if pa.types.is_integer(cells.type) else None
        return values if values is not None and values.max(initial=0) <= MOST_TOKENS else None


def _all_match(cells: Any, pattern: str) -> bool:
    if cells.null_count or not pa.types.is_string(cells.type):
        return False
    return pc.all(pc.match_substring_regex(cells, pattern), min_count=0).as_py()


def _whole(cells: Any) -> NDArray[np.int64] | None:
    """Integers as int64; None when one is missing, negative or too large."""
    if cells.null_count:
        return None
    values = cells.to_numpy(zero_copy_only=False)
    if values.size and (values.min() < 0 or values.max() > LATEST_NS):
        return None
    return values.astype(np.int64)


def parse_column(
    blocks: Iterable[Any], n: int, name: str, parse: Parser, faults: dict[int, Fault]
) -> NDArray[np.int64]:
    """Parse n cells given in Arrow arrays or lists.

    An unusable cell gives -1, and its fault is noted under the position of its row unless that has one already.
    """
    parsed = np.empty(n, np.int64)
    start = 0
    for cells in blocks:
        stop = start + len(cells)
        values = None if isinstance(cells, list) else parse.block(cells)
        if values is not None:
            parsed[start:stop] = values
        else:
            for i, value in enumerate(cells if isinstance(cells, list) else cells.to_pylist(), start=start):
                try:
                    parsed[i] = parse(value)
                except BadValue as bad:
                    parsed[i] = -1
                    faults.setdefault(i, Fault(bad.reason, name, _shown(value), bad.expected))
        start = stop
    return parsed


def _shown(value: object) -> str:
    if is_blank(value):
        return "nothing"
    return repr(value[:60] if isinstance(value, str) else value)[:64]
