"""Readers of request traces, found by name or by the columns of the file.

A reader is any object with the three members of `TraceReader`, registered under the entry point group
`protocol.traces`.  The built-in ones share one way of reading and differ in names of columns and unit of time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from adapters.traces.parsing import DATE, UNITS, Fault, Number, Stamp, Tokens, is_blank, is_date, parse_column
from adapters.traces.report import EPOCH_FROM_NS, FAILED, ReadingReport, resolution_ns, stamp
from adapters.traces.sample import Sample, load, refusal
from adapters.traces.tables import Rows, row_error, rows_of
from adapters.traces.windows import Cut, cut, windows
from protocol import registry
from protocol.errors import BadInput, ProtocolError
from protocol.workload.trace import NS_PER_S, RequestTrace

__all__ = [
    "AZURE", "BURSTGPT", "GENERIC", "MOONCAKE", "VIDUR", "Cut", "ReadingReport", "Sample", "TraceReader",
    "cut", "read_trace", "readers", "windows",
]  # fmt: skip

GROUP = "protocol.traces"
_TABLES = ("csv", "jsonl", "parquet")
_BLANK = "blank row"
#: Longer than any published trace (BurstGPT: 121 days); what is longer was written in another unit.
MOST_DAYS = 400


@runtime_checkable
class TraceReader(Protocol):
    """What a plugin offers.

    name : as in `--format`.  description : one line for `protocol traces formats`.
    matches : whether the file is surely of this format, by its sample alone.
    read : the trace, its first arrival at 0, and the report.  Raises BadInput.  `time_unit` is one of s, ms, us, ns
    or None when the user gave none; `drop_bad_rows` asks to leave unusable rows out, with their count by reason.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    def matches(self, sample: Sample) -> bool: ...

    def read(
        self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool
    ) -> tuple[RequestTrace, ReadingReport]: ...


def read_trace(
    path: str | Path, *, format: str | None = None, time_unit: str | None = None, drop_bad_rows: bool = False
) -> tuple[RequestTrace, ReadingReport]:
    """Read a request trace: arrivals in whole nanoseconds from the first kept request on, sorted.

    format : name of a reader; None detects it by the columns.  time_unit : s, ms, us or ns where the file leaves it
    open.  drop_bad_rows : leave unusable rows out and count them by reason instead of refusing the file.  Requests
    without output tokens failed in the source: they are always left out and counted.

    Raises BadInput: one line with file, row and column, what was found and what was expected.
    """
    if time_unit is not None and time_unit not in UNITS:
        raise BadInput("--time-unit", repr(time_unit), f"one of {', '.join(UNITS)}")
    known = readers()
    if format is not None and format not in known:
        registry.load(GROUP, format)  # raises, with near names
    sample = load(path)
    if format is not None:
        reader = known[format]
        if sample.container in ("empty", "binary"):
            raise refusal(sample)
    else:
        reader = _detected(sample, known)
    return reader.read(sample, time_unit=time_unit, drop_bad_rows=drop_bad_rows)


def readers() -> dict[str, TraceReader]:
    """Every registered reader by name.  Raises ProtocolError when one cannot be loaded or is no TraceReader."""
    found = {}
    for name, point in registry.names(GROUP).items():
        try:
            reader = point.load()
        except (ImportError, AttributeError) as error:
            raise ProtocolError(f"trace reader {name!r} cannot be loaded: {error}") from None
        if not isinstance(reader, TraceReader):
            raise BadInput(f"trace reader {name!r}", type(reader).__name__, "name, description, matches and read")
        found[name] = reader
    return found


def _detected(sample: Sample, known: dict[str, TraceReader]) -> TraceReader:
    """The one reader that matches; GENERIC only when no other does."""
    matching = [name for name, reader in known.items() if name != GENERIC.name and reader.matches(sample)]
    if len(matching) > 1:
        raise BadInput(str(sample.path), f"a file that {' and '.join(matching)} claim", "--format with one of them")
    if matching:
        return known[matching[0]]
    if GENERIC.matches(sample):
        return GENERIC
    # Most of a known header: say what is missing rather than that nothing fits.
    near = [r for r in known.values() if isinstance(r, ColumnReader) and len(r.missing(sample)) == 1]
    if sample.container in _TABLES and len(near) == 1:
        raise near[0].lacks(sample)
    if sample.container in _TABLES and GENERIC.roles(sample) == 2:
        GENERIC.names(sample)  # raises
    raise refusal(sample)


@dataclass(frozen=True)
class ColumnReader:
    """A table with one row a request, known by the names of its columns.

    unit : of the times, `date` for calendar dates.  mark : further columns that tell the format apart.
    strict : further keys than these mean another producer, whose unit nobody knows; the user must give it.
    """

    name: str
    description: str
    time: str
    prompt: str
    output: str
    unit: str
    mark: tuple[str, ...] = ()
    strict: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, self.prompt, self.output, *self.mark)

    def missing(self, sample: Sample) -> list[str]:
        return [column for column in self.columns if column not in sample.columns]

    def lacks(self, sample: Sample) -> BadInput:
        """The refusal that names the missing columns."""
        missing = ", ".join(repr(column) for column in self.missing(sample))
        found = ", ".join(repr(name[:40]) for name in sample.columns[:12]) or "none"
        line = "" if sample.container == "parquet" else ", line 1"
        return BadInput(f"{sample.path}{line}", f"columns {found}", f"{missing} as well (format {self.name})")

    def matches(self, sample: Sample) -> bool:
        if sample.container not in _TABLES or self.missing(sample):
            return False
        return not self.strict or set(sample.columns) == set(self.columns)

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        if sample.container not in _TABLES:
            raise refusal(sample)
        if self.missing(sample):
            raise self.lacks(sample)
        rows = rows_of(sample, _once(sample, self.time, self.prompt, self.output), drop_bad_rows)
        unit, notes = self._unit(sample, rows, time_unit), ()
        return _assembled(self.name, (self.time, self.prompt, self.output), sample, rows, unit, drop_bad_rows, notes)

    def _unit(self, sample: Sample, rows: Rows, time_unit: str | None) -> str:
        if not self.strict:
            if time_unit not in (None, self.unit):
                raise BadInput("--time-unit", time_unit or "", f"none: {self.name} files give times in {self.unit}")
            return self.unit
        if time_unit:
            return time_unit
        extra = sorted(rows.keys - set(self.columns))
        if extra:
            raise _open_unit(sample, self.time, f"keys that {self.name} files lack ({', '.join(extra[:8])})")
        # Milliseconds are whole numbers in these files; the same keys with fractions are in another unit.
        for block in rows.blocks(0):
            for value in _texts(block):
                if isinstance(value, str) and not is_blank(value) and not value.strip().lstrip("+-").isdigit():
                    raise _open_unit(sample, self.time, f"{value[:40]!r}, no whole number")
        return self.unit


@dataclass(frozen=True)
class GenericReader:
    """Any table whose columns say what they hold; see TIMES, PROMPTS and OUTPUTS."""

    name: str = "generic"
    description: str = "CSV, JSON lines or Parquet with arrival_s (or _ms, _us, _ns), prompt_tokens, output_tokens"

    #: Columns that carry their unit, and columns that need dates in them or a unit from the user.
    times = {f"{stem}_{unit}": unit for stem in ("arrival", "arrival_time", "timestamp", "time") for unit in UNITS}
    bare_times = ("arrival", "arrival_time", "timestamp", "time")
    prompts = ("prompt_tokens", "input_tokens", "input_length", "prompt_length")
    outputs = ("output_tokens", "completion_tokens", "output_length")
    #: Keys of the Qwen (Bailian) usage traces, whose documentation gives timestamps in seconds.
    bailian = frozenset({"chat_id", "parent_chat_id", "turn", "timestamp"})

    def matches(self, sample: Sample) -> bool:
        return sample.container in _TABLES and self.roles(sample) == 3

    def roles(self, sample: Sample) -> int:
        """How many of time, prompt tokens and output tokens the columns hold."""
        times = (*self.times, *self.bare_times)
        return sum(not set(sample.columns).isdisjoint(names) for names in (times, self.prompts, self.outputs))

    def names(self, sample: Sample) -> tuple[str, str, str]:
        """The columns of time, prompt and output tokens.  Raises BadInput when one is missing or twice there."""
        return (
            self._one(sample, tuple(self.times), "") or self._one(sample, self.bare_times, "arrival_s"),
            self._one(sample, self.prompts, "prompt_tokens"),
            self._one(sample, self.outputs, "output_tokens"),
        )

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        if sample.container not in _TABLES:
            raise refusal(sample)
        names = self.names(sample)
        rows = rows_of(sample, _once(sample, *names), drop_bad_rows)
        unit, notes = self._unit(sample, rows, names[0], time_unit)
        return _assembled(self.name, names, sample, rows, unit, drop_bad_rows, notes)

    def _one(self, sample: Sample, choices: tuple[str, ...], default: str) -> str:
        """The only column of `choices`; "" when there is none and `default` is empty."""
        found = [name for name in choices if name in sample.columns]
        if len(found) > 1:
            raise BadInput(str(sample.path), f"columns {' and '.join(found)}", "one of them: which is meant?")
        if not found and default:
            columns = ", ".join(repr(name[:40]) for name in sample.columns[:12]) or "none"
            raise BadInput(f"{sample.path}, line 1", f"columns {columns}", f"{default!r} as well (format generic)")
        return found[0] if found else ""

    def _unit(self, sample: Sample, rows: Rows, time: str, time_unit: str | None) -> tuple[str, tuple[str, ...]]:
        if rows.typed_dates or any(is_date(v) for v in _first_values(rows)):
            if time_unit:
                raise BadInput("--time-unit", time_unit, f"none: {time} of {sample.path} holds dates")
            return DATE, ()
        fixed = self.times.get(time)
        if fixed:
            if time_unit not in (None, fixed):
                raise BadInput("--time-unit", time_unit or "", f"none: column {time} is in {fixed}")
            return fixed, ()
        if time_unit:
            return time_unit, ()
        if self.bailian <= rows.keys:
            return "s", ("keys of the Qwen (Bailian) usage traces: timestamp read in seconds, as they document",)
        raise _open_unit(sample, time, "numbers without a unit")


def _texts(block: Any) -> list[object]:
    """Cells of a block; none of one that holds integers alone."""
    if isinstance(block, list):
        return block
    return [] if pa.types.is_integer(block.type) else list(block.to_pylist())


def _first_values(rows: Rows) -> list[object]:
    """The first time that is not blank, as a list of at most one."""
    return [next((value for value in rows.column(0) if not is_blank(value)), None)]


def _open_unit(sample: Sample, column: str, found: str) -> BadInput:
    return BadInput(f"{sample.path}, {column}", found, "the unit of the times: --time-unit s, ms, us or ns")


def _once(sample: Sample, *columns: str) -> tuple[str, ...]:
    for column in columns:
        if sample.columns.count(column) > 1:
            raise BadInput(f"{sample.path}, line 1", f"column {column!r} more than once", "each column once")
    return columns


def _assembled(
    name: str,
    columns: tuple[str, str, str],
    sample: Sample,
    rows: Rows,
    unit: str,
    drop_bad_rows: bool,
    notes: tuple[str, ...],
) -> tuple[RequestTrace, ReadingReport]:
    """Parse, judge and sort the rows."""
    faults: dict[int, Fault] = {}
    parse = Stamp() if unit == DATE and not rows.typed_dates else Number("ns" if unit == DATE else unit,
                                                                         sample.delimiter not in ("", ","))  # fmt: skip
    time_ns = parse_column(rows.blocks(0), len(rows), columns[0], parse, faults)
    prompt = parse_column(rows.blocks(1), len(rows), columns[1], Tokens(), faults)
    output = parse_column(rows.blocks(2), len(rows), columns[2], Tokens(), faults)
    for i in np.flatnonzero((prompt == 0) & (output > 0)):
        faults.setdefault(int(i), Fault("no prompt tokens", columns[1], "0", "at least 1 prompt token"))
    _mark_blank_rows(rows, (time_ns, prompt, output), faults)
    by_number = rows.malformed | {int(rows.number[i]): fault for i, fault in faults.items()}
    if by_number and not drop_bad_rows:
        first = min(by_number)
        raise row_error(sample, rows.where, first, by_number[first])
    bad = np.zeros(len(rows), bool)
    bad[list(faults)] = True
    failed = ~bad & (output == 0)
    keep = ~bad & ~failed
    dropped = Counter(fault.reason for _, fault in sorted(by_number.items()))
    if failed.any():
        dropped[FAILED] = int(failed.sum())
    if not keep.any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise BadInput(str(sample.path), f"no usable request ({reasons})", "at least one served request")
    kept_ns = time_ns[keep]
    _check_one_clock(sample, rows, time_ns, ~bad)
    steps = np.diff(kept_ns)
    order = np.argsort(kept_ns, kind="stable")
    trace = RequestTrace(
        kept_ns[order] - kept_ns.min(), prompt[keep][order], output[keep][order], name=sample.path.stem
    )
    report = ReadingReport(
        path=str(sample.path),
        format=name,
        time_unit=unit,
        rows_read=len(rows) + len(rows.malformed),
        rows_kept=len(trace),
        dropped=dropped,
        resolution_ns=resolution_ns(trace.arrival_ns),
        ties=int((np.diff(trace.arrival_ns) == 0).sum()),
        backward_steps=int((steps < 0).sum()),
        largest_backward_ns=max(0, -int(steps.min(initial=0))),
        first_ns=int(kept_ns.min()),
        last_ns=int(kept_ns.max()),
    )
    return trace, _noted(report, notes)


def _mark_blank_rows(rows: Rows, parsed: tuple[NDArray[np.int64], ...], faults: dict[int, Fault]) -> None:
    """Rows whose three cells are all blank get one reason of their own."""
    candidates = np.flatnonzero((parsed[0] < 0) & (parsed[1] < 0) & (parsed[2] < 0))
    if candidates.size:
        blank = np.ones(len(rows), bool)
        for column in range(3):
            blank &= np.fromiter((is_blank(value) for value in rows.column(column)), bool, len(rows))
        for i in np.flatnonzero(blank):
            faults[int(i)] = Fault(_BLANK, "", "a blank row", "one request a row")


def _check_one_clock(sample: Sample, rows: Rows, time_ns: NDArray[np.int64], valid: NDArray[np.bool_]) -> None:
    """Refuse a file in which some times count from 1970 and others from its start, or whose span is absurd."""
    epoch = time_ns >= EPOCH_FROM_NS
    first = int(np.flatnonzero(valid)[0])
    other = np.flatnonzero(valid & (epoch != epoch[first]))
    if other.size:
        found = stamp(int(time_ns[other[0]]))
        expected = f"a time of the same clock as on {rows.where} {rows.number[first]}, {stamp(int(time_ns[first]))}"
        raise BadInput(f"{sample.path}, {rows.where} {rows.number[other[0]]}", found, expected)
    days = (int(time_ns[valid].max()) - int(time_ns[valid].min())) / NS_PER_S / 86400
    if days > MOST_DAYS:
        raise BadInput(str(sample.path), f"a span of {days:.0f} days", f"at most {MOST_DAYS} (is the time unit right?)")


def _noted(report: ReadingReport, notes: tuple[str, ...]) -> ReadingReport:
    """The report with what the user should know about the data."""
    said = list(notes)
    resolution = report.resolution_ns
    if resolution is not None and resolution >= NS_PER_S // 100:
        said.append(f"stamps lie {resolution / NS_PER_S:g} s or multiples of it apart: nothing shorter can be analysed")
    if report.backward_steps:
        most = report.largest_backward_ns / NS_PER_S
        said.append(f"sorted; backward steps: {report.backward_steps}, the largest {most:g} s")
    if report.failures:
        said.append(f"failed in the source (no output tokens) and not served: {report.failures}")
    return ReadingReport(**{**report.__dict__, "notes": tuple(said)})


AZURE = ColumnReader(
    "azure", "Azure LLM inference traces 2023 and 2024, CSV with dates",
    "TIMESTAMP", "ContextTokens", "GeneratedTokens", DATE,
)  # fmt: skip
BURSTGPT = ColumnReader(
    "burstgpt", "BurstGPT, CSV in whole seconds; requests without response tokens failed",
    "Timestamp", "Request tokens", "Response tokens", "s",
)  # fmt: skip
MOONCAKE = ColumnReader(
    "mooncake", "Mooncake (FAST 25), JSON lines in milliseconds",
    "timestamp", "input_length", "output_length", "ms", mark=("hash_ids",), strict=True,
)  # fmt: skip
VIDUR = ColumnReader(
    "vidur", "Vidur processed traces, CSV in seconds",
    "arrived_at", "num_prefill_tokens", "num_decode_tokens", "s",
)  # fmt: skip
GENERIC = GenericReader()
