"""Readers of request traces, found by name or by the columns of the file.

A reader is any object with the three members of `TraceReader`, registered under the entry point group
`protocol.traces`.  The built-in ones share one way of reading and differ in names of columns and unit of time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from adapters.traces.assembling import Found, assembled
from adapters.traces.parsing import DATE, UNITS, is_blank, is_date
from adapters.traces.report import ABSENT, DECLARED, IN_FILE, ReadingReport
from adapters.traces.sample import TABLES, Sample, load, refusal
from adapters.traces.tables import Rows, rows_of
from adapters.traces.windows import Cut, cut, windows
from protocol import registry
from protocol.errors import BadInput, ProtocolError
from protocol.workload.trace import RequestTrace

__all__ = [
    "AZURE", "BURSTGPT", "GENERIC", "MOONCAKE", "VIDUR", "Cut", "Reading", "ReadingReport", "Sample", "TraceReader",
    "cut", "read_trace", "readers", "windows",
]  # fmt: skip

GROUP = "protocol.traces"
#: What `--columns` may name.
ROLES = ("time", "prompt_tokens", "output_tokens")
#: Prompt tokens of a Mooncake block; the last of a request may be partly filled.
MOONCAKE_BLOCK = 512
#: Share of rows whose blocks may not fit before the file counts as somebody else's.
MOST_UNFIT = 0.01


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


@dataclass(frozen=True)
class Reading:
    """How to read a trace, as the user asked for it.

    format : name of a reader; None detects it.  time_unit : s, ms, us or ns where the file leaves it open.
    time_format : a `strptime` pattern for the times of `columns`.  columns : role (of `ROLES`) to column, for tables
    of no known format; of JSON a dotted path such as `usage.prompt_tokens`.
    tokens : prompt and output tokens of every request, declared for a log that has none.
    drop_bad_rows : leave unusable rows out and count them by reason instead of refusing the file.

    Raises BadInput when they contradict each other.
    """

    format: str | None = None
    time_unit: str | None = None
    time_format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    tokens: tuple[int, int] | None = None
    drop_bad_rows: bool = False

    def __post_init__(self) -> None:
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise BadInput("--time-unit", repr(self.time_unit), f"one of {', '.join(UNITS)}")
        if self.format not in (None, GENERIC_NAME) and self.columns:
            raise BadInput("--columns", f"--format {self.format} as well", "one of them")
        if self.time_format is not None:
            self._check_pattern(self.time_format)
        if self.tokens is not None and min(self.tokens) < 1:
            raise BadInput("--tokens", f"{self.tokens[0]},{self.tokens[1]}", "two whole numbers of at least 1")

    def _check_pattern(self, pattern: str) -> None:
        if not self.columns:
            raise BadInput("--time-format", repr(pattern), "--columns time=NAME as well: whose format is it?")
        if self.time_unit:
            raise BadInput("--time-format", f"--time-unit {self.time_unit} as well", "one of them")
        try:
            datetime.strptime(datetime(2025, 1, 2).strftime(pattern), pattern)
        except ValueError as error:
            raise BadInput("--time-format", repr(pattern), f"a pattern like %d/%m/%Y %H:%M:%S.%f ({error})") from None
        if "%Y" not in pattern and "%y" not in pattern:
            raise BadInput("--time-format", repr(pattern), "a pattern with the year: times of day alone repeat")

    def describe(self) -> dict[str, Any]:
        """What was asked for, ready for JSON; what was not is left out."""
        given = {**vars(self), "columns": dict(self.columns), "tokens": list(self.tokens or ())}
        return {name: value for name, value in given.items() if value}

    @classmethod
    def from_described(cls, given: Mapping[str, Any]) -> Reading:
        """The inverse of `describe`."""
        tokens = given.get("tokens")
        columns = tuple(dict(given.get("columns", {})).items())
        return cls(**{**given, "columns": columns, "tokens": tuple(tokens) if tokens else None})


def columns_of(text: str) -> tuple[tuple[str, str], ...]:
    """`time=startTime,prompt_tokens=usage.prompt_tokens` as roles and columns.  Raises BadInput."""
    found: dict[str, str] = {}
    for term in text.split(","):
        role, separator, column = (part.strip() for part in term.partition("="))
        if not separator or not column or role not in ROLES:
            raise BadInput("--columns", repr(term), f"ROLE=COLUMN, with ROLE one of {', '.join(ROLES)}")
        if role in found:
            raise BadInput("--columns", f"{role} twice", "each role once")
        found[role] = column
    if "time" not in found:
        raise BadInput("--columns", repr(text), "time=COLUMN as well")
    return tuple(found.items())


def tokens_of(text: str) -> tuple[int, int]:
    """`200,128` as prompt and output tokens.  Raises BadInput."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and len(part) < 9 for part in parts):
        raise BadInput("--tokens", repr(text), "prompt and output tokens of every request, e.g. 200,128")
    return int(parts[0]), int(parts[1])


def read_trace(
    path: str | Path, asked: Reading | None = None, *, absent_ok: bool = False, **given: Any
) -> tuple[RequestTrace, ReadingReport]:
    """Read a request trace: arrivals in whole nanoseconds from the first kept request on, sorted.

    asked : how; or the fields of `Reading` by name.  absent_ok : take a log without token counts (the report says so,
    and the trace's mean nothing) instead of refusing it.  Requests that failed in the source are always left out and
    counted.

    Raises BadInput: one line with file, row and column, what was found and what was expected.
    """
    asked = asked or Reading(**given)
    known = readers()
    if asked.format is not None and asked.format not in known:
        registry.load(GROUP, asked.format)  # raises, with near names
    sample = load(path)
    reader = _chosen(sample, known, asked)
    trace, report = reader.read(sample, time_unit=asked.time_unit, drop_bad_rows=asked.drop_bad_rows)
    if asked.tokens is not None:
        if report.tokens != ABSENT:
            raise BadInput("--tokens", f"token counts in {path} as well", "it only for logs that have none")
        counts = [np.full(len(trace), n, np.int32) for n in asked.tokens]
        trace = replace(trace, prompt_tokens=counts[0], output_tokens=counts[1])
        report = replace(report, tokens=DECLARED)
    if report.tokens == ABSENT and not absent_ok:
        expected = "--tokens PROMPT,OUTPUT to declare them, or --regime FILE.toml whose [tokens] they are drawn from"
        raise BadInput(str(path), f"a log without token counts (format {report.format})", expected)
    return trace, report


def _chosen(sample: Sample, known: dict[str, TraceReader], asked: Reading) -> TraceReader:
    if asked.columns:
        if sample.container not in TABLES:
            raise refusal(sample)
        return MappedReader(asked.columns, asked.time_format)
    if asked.format is None:
        return _detected(sample, known)
    if sample.container in ("empty", "binary"):
        raise refusal(sample)
    return known[asked.format]


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
    if sample.container == "empty":
        raise refusal(sample)
    matching = [name for name, reader in known.items() if name != GENERIC.name and reader.matches(sample)]
    if len(matching) > 1:
        raise BadInput(str(sample.path), f"a file that {' and '.join(matching)} claim", "--format with one of them")
    if matching:
        return known[matching[0]]
    if GENERIC.matches(sample):
        return GENERIC
    # Most of a known header: say what is missing rather than that nothing fits.
    near = [r for r in known.values() if isinstance(r, ColumnReader) and len(r.missing(sample)) == 1]
    if sample.container in TABLES and len(near) == 1:
        raise near[0].lacks(sample)
    if sample.container in TABLES and GENERIC.roles(sample) == 2:
        GENERIC.names(sample)  # raises
    raise refusal(sample)


@dataclass(frozen=True)
class ColumnReader:
    """A table with one row a request, known by the names of its columns.

    unit : of the times, `date` for calendar dates.  mark : further columns that tell the format apart.
    strict : further keys than these mean another producer, whose unit nobody knows; the user must give it.
    ignored : columns of things that no sidecar here models, counted in a note.
    """

    name: str
    description: str
    time: str
    prompt: str
    output: str
    unit: str
    mark: tuple[str, ...] = ()
    strict: bool = False
    ignored: tuple[str, ...] = ()

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
        if sample.container not in TABLES or self.missing(sample):
            return False
        return not self.strict or set(sample.columns) == set(self.columns)

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        if sample.container not in TABLES:
            raise refusal(sample)
        if self.missing(sample):
            raise self.lacks(sample)
        columns = (self.time, self.prompt, self.output)
        further = tuple(name for name in (*self.mark, *self.ignored) if name in sample.columns)
        rows = rows_of(sample, _once(sample, *columns, *further), drop_bad_rows)
        notes = tuple(note for name in self.ignored if name in further for note in _ignored(rows, further, name))
        unread = tuple(sorted(rows.keys - set(columns) - set(further)))
        unit = self._unit(sample, rows, time_unit)
        return assembled(sample, Found(self.name, columns, rows, unit, notes=notes, unread=unread), drop_bad_rows)

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
        if "hash_ids" in self.mark:
            _check_blocks(sample, rows, self.name, self.time)
        # Milliseconds are whole numbers in these files; the same keys with fractions are in another unit.
        for block in rows.blocks(0):
            for value in _texts(block):
                if isinstance(value, str) and not is_blank(value) and not value.strip().lstrip("+-").isdigit():
                    raise _open_unit(sample, self.time, f"{value[:40]!r}, no whole number")
        return self.unit


GENERIC_NAME = "generic"


@dataclass(frozen=True)
class GenericReader:
    """Any table whose columns say what they hold; see TIMES, PROMPTS and OUTPUTS."""

    name: str = GENERIC_NAME
    description: str = "CSV, JSON lines or Parquet with arrival_s (or _ms, _us, _ns), prompt_tokens, output_tokens"

    #: Columns that carry their unit, and columns that need dates in them or a unit from the user.
    times = {f"{stem}_{unit}": unit for stem in ("arrival", "arrival_time", "timestamp", "time") for unit in UNITS}
    bare_times = ("arrival", "arrival_time", "timestamp", "time")
    prompts = ("prompt_tokens", "input_tokens", "input_length", "prompt_length")
    outputs = ("output_tokens", "completion_tokens", "output_length")
    #: Keys of the Qwen (Bailian) usage traces, whose documentation gives timestamps in seconds.
    bailian = frozenset({"chat_id", "parent_chat_id", "turn", "timestamp"})

    def matches(self, sample: Sample) -> bool:
        return sample.container in TABLES and self.roles(sample) == 3

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
        if sample.container not in TABLES:
            raise refusal(sample)
        names = self.names(sample)
        rows = rows_of(sample, _once(sample, *names), drop_bad_rows)
        unit, notes = self._unit(sample, rows, names[0], time_unit)
        unread = tuple(sorted(rows.keys - set(names)))
        return assembled(sample, Found(self.name, names, rows, unit, notes=notes, unread=unread), drop_bad_rows)

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
        _check_number(sample, rows, time)
        if self.bailian <= rows.keys:
            return "s", ("keys of the Qwen (Bailian) usage traces: timestamp read in seconds, as they document",)
        raise _open_unit(sample, time, "numbers without a unit")


@dataclass(frozen=True)
class MappedReader:
    """A table whose columns the user named: role and column.  Roles left out are found by the generic names."""

    columns: tuple[tuple[str, str], ...]
    time_format: str | None = None
    name: str = "--columns"
    description: str = "any CSV, JSON or Parquet table, by --columns time=NAME,prompt_tokens=NAME,output_tokens=NAME"

    def matches(self, sample: Sample) -> bool:
        return sample.container in TABLES

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        chosen = dict(self.columns)
        for role, names in (("prompt_tokens", GENERIC.prompts), ("output_tokens", GENERIC.outputs)):
            present = [name for name in names if name in sample.columns]
            if role not in chosen and len(present) == 1:
                chosen[role] = present[0]
        for role, column in chosen.items():
            if not sample.has(column):
                shown = ", ".join(repr(name[:40]) for name in sample.columns[:16]) or "none"
                raise BadInput(
                    f"--columns, {role}", f"{column!r}, and {sample.path} has columns {shown}", "one of them"
                )
        if len(chosen) == 2:
            (lacking,) = set(ROLES) - set(chosen)
            raise BadInput(
                "--columns", f"no {lacking}", f"{lacking}=COLUMN as well, or neither of the two token counts"
            )
        asked = _once(sample, *dict.fromkeys(chosen[role] for role in ROLES if role in chosen))
        rows = rows_of(sample, asked, drop_bad_rows)
        unread = tuple(sorted(rows.keys - {name.partition(".")[0] for name in asked} - set(asked)))
        cells = [rows.cells[asked.index(chosen[role])] for role in ROLES if role in chosen]
        tokens = IN_FILE if len(chosen) == 3 else ABSENT
        cells += [[1] * len(rows)] * (3 - len(cells))
        rows = replace(rows, cells=cells)
        if rows.typed_dates and self.time_format:
            raise BadInput("--time-format", repr(self.time_format), f"none: {chosen['time']} holds typed dates")
        names = (chosen["time"], chosen.get("prompt_tokens", ""), chosen.get("output_tokens", ""))
        unit = DATE if self.time_format else self._unit(sample, rows, names[0], time_unit)
        made = Found(self.name, names, rows, unit, self.time_format, unread=unread, tokens=tokens)
        return assembled(sample, made, drop_bad_rows)

    def _unit(self, sample: Sample, rows: Rows, time: str, time_unit: str | None) -> str:
        if rows.typed_dates or any(is_date(v) for v in _first_values(rows)):
            if time_unit:
                raise BadInput("--time-unit", time_unit, f"none: {time} of {sample.path} holds dates")
            return DATE
        if time_unit:
            return time_unit
        suffix = next((unit for unit in UNITS if time.endswith(f"_{unit}")), None)
        if suffix:
            return suffix
        _check_number(sample, rows, time)
        raise _open_unit(sample, time, "numbers without a unit")


def _ignored(rows: Rows, further: tuple[str, ...], name: str) -> list[str]:
    """What lies in a column that is not modelled: how many requests have any, and how many in all."""
    counts = [int(str(value)) for value in rows.column(3 + further.index(name)) if str(value or "").strip().isdigit()]
    some = sum(count > 0 for count in counts)
    return [f"{name} is ignored: {sum(counts)} in {some} requests, which no sidecar here models"] if some else []


def _check_blocks(sample: Sample, rows: Rows, name: str, time: str) -> None:
    """Hash blocks of another size than Mooncake's come from another producer, whose unit of time nobody knows."""
    judged, unfit = 0, list[str]()
    for number, prompt, blocks in zip(rows.number, rows.column(1), rows.column(3), strict=True):
        if isinstance(blocks, list) and isinstance(prompt, int):
            judged += 1
            if len(blocks) != -(-prompt // MOONCAKE_BLOCK):
                unfit.append(f"{len(blocks)} hash blocks for {prompt} prompt tokens on {rows.where} {number}")
    if len(unfit) > MOST_UNFIT * judged:
        raise _open_unit(sample, time, f"{unfit[0]}, where {name} files have one for {MOONCAKE_BLOCK} tokens")


def _texts(block: Any) -> list[object]:
    """Cells of a block; none of one that holds integers alone."""
    if isinstance(block, list):
        return block
    return [] if pa.types.is_integer(block.type) else list(block.to_pylist())


def _first_values(rows: Rows) -> list[object]:
    """The first time that is not blank, as a list of at most one."""
    return [next((value for value in rows.column(0) if not is_blank(value)), None)]


def _check_number(sample: Sample, rows: Rows, column: str) -> None:
    """Refuse times that are neither dates nor numbers, with the options that read them."""
    for value in _first_values(rows):
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d*[.,]?\d*(?:[eE][+-]?\d+)?", value.strip()) is None:
            option = f"--time-format, e.g. %d/%m/%Y %H:%M:%S (with --columns time={column},...)"
            raise BadInput(f"{sample.path}, {column}", repr(value[:40]), f"a pattern for such times: {option}")


def _open_unit(sample: Sample, column: str, found: str) -> BadInput:
    return BadInput(f"{sample.path}, {column}", found, "the unit of the times: --time-unit s, ms, us or ns")


def _once(sample: Sample, *columns: str) -> tuple[str, ...]:
    for column in columns:
        if sample.columns.count(column) > 1:
            raise BadInput(f"{sample.path}, line 1", f"column {column!r} more than once", "each column once")
    return columns


AZURE = ColumnReader(
    "azure", "Azure LLM inference traces 2023, 2024 and 2025 (multimodal: images are ignored), CSV with dates",
    "TIMESTAMP", "ContextTokens", "GeneratedTokens", DATE, ignored=("NumImages",),
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
