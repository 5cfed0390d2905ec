"""Times and token counts from text, exactly: decimals never pass through a binary fraction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

from protocol.trace import NS_PER_S

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


def _epoch_seconds(text: str, expected: str) -> int:
    if not _STAMP.fullmatch(text):
        raise BadValue("time is not a date", expected)
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise BadValue("time is not a date", f"a date that exists ({error})") from None
    return (moment - _EPOCH) // timedelta(seconds=1)


def tokens(value: object) -> int:
    """A token count, 0 included.  A trailing .0, as data frames write it, is a whole number."""
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


def parse_column(
    values: Iterable[object], n: int, name: str, parse: Callable[[object], int], faults: dict[int, Fault]
) -> NDArray[np.int64]:
    """Parse n cells; -1 where a cell is unusable, with its fault under the row's position unless it has one already."""

    def one(position: int, value: object) -> int:
        try:
            return parse(value)
        except BadValue as bad:
            faults.setdefault(position, Fault(bad.reason, name, _shown(value), bad.expected))
            return -1

    return np.fromiter((one(i, value) for i, value in enumerate(values)), np.int64, n)


def _shown(value: object) -> str:
    if is_blank(value):
        return "nothing"
    text = value if isinstance(value, str) else repr(value) if type(value) is not int else f"{str(value)[:60]}"
    return repr(text[:60]) if isinstance(value, str) else text[:60]
