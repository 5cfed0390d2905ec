"""What a reader found in a trace file, and what it left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S

#: Times from here on (1973 in seconds since 1970, or three years of relative time) are read as epoch times.
EPOCH_FROM_NS = 10**8 * NS_PER_S
#: Reason under which requests that the source itself reports as failed are dropped.
FAILED = "failed in source"
#: Where the token counts of a trace come from.
IN_FILE, DECLARED, ABSENT = "the file", "declared", "absent"
#: Fewer distinct stamps than this say too little about the grid they lie on: by chance n random whole numbers
#: share a factor with probability near 2^-n.
_ENOUGH_STAMPS = 5
#: Share of a bin by which its stamp may be off: five random distances pass with probability near (2 x 0.02)^4.
_JITTER = 0.02
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ReadingReport:
    """Everything a reader did to one file.  Times in nanoseconds as found in the file, before the trace is re-based.

    rows_read : data rows in the file; always rows_kept plus the sum of `dropped` (rows by reason).
    resolution_ns : grid on which all stamps lie; None when the file cannot tell (fewer than two distinct stamps).
    ties : kept requests with the same stamp as an earlier one; identical : those of them with the same tokens too.
    backward_steps : kept rows, in file order, stamped before the row above; the trace is sorted.
    first_ns, last_ns : earliest and latest kept stamp; the trace begins at the earliest.
    tokens : IN_FILE, DECLARED (by the user, for a log without them) or ABSENT: then the counts of the trace are 1
    throughout and mean nothing.  unread : columns that nobody looked at.

    Raises BadInput when rows read are not the kept plus the dropped ones.
    """

    path: str
    format: str
    time_unit: str
    rows_read: int
    rows_kept: int
    dropped: Mapping[str, int]
    resolution_ns: int | None
    ties: int
    backward_steps: int
    largest_backward_ns: int
    first_ns: int
    last_ns: int
    notes: tuple[str, ...] = field(default=())
    identical: int = 0
    tokens: str = IN_FILE
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dropped", dict(self.dropped))
        if self.rows_read != self.rows_kept + sum(self.dropped.values()):
            parts = f"{self.rows_kept} kept and {sum(self.dropped.values())} dropped"
            raise BadInput(f"{self.path}, reader {self.format}", parts, f"{self.rows_read}, the rows read")

    @property
    def failures(self) -> int:
        """Requests without output tokens: they failed in the source, and are reported but not served."""
        return self.dropped.get(FAILED, 0)

    @property
    def resolution_s(self) -> float | None:
        return None if self.resolution_ns is None else self.resolution_ns / NS_PER_S

    @property
    def span_s(self) -> float:
        return (self.last_ns - self.first_ns) / NS_PER_S

    @property
    def epoch(self) -> bool:
        """Whether the file holds absolute times."""
        return self.first_ns >= EPOCH_FROM_NS

    @property
    def first(self) -> str:
        return stamp(self.first_ns)

    @property
    def last(self) -> str:
        return stamp(self.last_ns)

    def resolves(self, bin_s: float) -> bool:
        """Whether the stamps are fine enough for counts in bins of `bin_s` seconds to mean anything."""
        return self.resolution_ns is not None and bin_s * NS_PER_S >= self.resolution_ns

    def flaw_at(self, bin_s: float) -> str | None:
        """Why counts in bins of `bin_s` seconds cannot be trusted; None when they can."""
        if self.resolution_ns is None:
            return "the resolution of the stamps is unknown"
        if not self.resolves(bin_s):
            return f"below the resolution of the stamps, {self.resolution_s:g} s"
        ratio = Fraction(bin_s) * NS_PER_S / self.resolution_ns
        if ratio < 10 and ratio.denominator != 1:
            return f"bins hold unequal numbers of stamps, which are {self.resolution_s:g} s apart"
        return None

    def to_dict(self) -> dict[str, object]:
        """All fields and derived ones, ready for JSON."""
        derived = ("failures", "resolution_s", "span_s", "epoch", "first", "last")
        return (
            asdict(self)
            | {name: getattr(self, name) for name in derived}
            | {"notes": list(self.notes), "unread": list(self.unread)}
        )


def stamp(time_ns: int) -> str:
    """A time as found: a UTC date when it is an epoch time, else seconds."""
    seconds, rest = divmod(time_ns, NS_PER_S)
    fraction = f"{rest:09d}".rstrip("0")
    tail = f".{fraction}" if fraction else ""
    if time_ns < EPOCH_FROM_NS:
        return f"{seconds}{tail} s"
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}{tail} UTC"


def resolution_ns(sorted_ns: NDArray[np.int64]) -> int | None:
    """The grid on which sorted stamps lie, in nanoseconds; None when all are equal.

    With enough distinct stamps: the smallest distance, when every distance is a whole multiple of it up to jitter
    (bins whose ends were rounded), else the greatest common divisor.  Few stamps share large divisors by chance: then
    the largest power of ten up to one second that divides all distances.
    """
    gaps = np.diff(sorted_ns)
    gaps = gaps[gaps > 0]
    if not gaps.size:
        return None
    exact = int(np.gcd.reduce(gaps))
    if gaps.size < _ENOUGH_STAMPS:
        return next(10**k for k in range(9, -1, -1) if exact % 10**k == 0)
    single = float(gaps[gaps < 1.5 * gaps.min()].mean())
    if np.all(np.abs(gaps / single - np.rint(gaps / single)) <= _JITTER):
        return max(exact, round(single / exact) * exact)
    return exact
