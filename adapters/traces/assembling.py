"""From the rows that a reader found to a trace: cells are parsed, rows judged and sorted, and everything is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.traces.parsing import (
    DATE,
    Custom,
    Fault,
    Number,
    Parser,
    Stamp,
    Tokens,
    is_blank,
    parse_column,
)
from adapters.traces.report import ABSENT, EPOCH_FROM_NS, FAILED, IN_FILE, ReadingReport, resolution_ns, stamp
from adapters.traces.sample import Sample
from adapters.traces.tables import Rows, row_error
from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S, RequestTrace

BLANK = "blank row"
#: Longer than any published trace (BurstGPT: 121 days); what is longer was written in another unit.
MOST_DAYS = 400


@dataclass(frozen=True)
class Found:
    """What a reader made of a file.

    columns : names of the columns of time, prompt and output tokens, the first three that were asked for.
    unit : of the times, or `DATE`; time_format : a strptime pattern instead.
    left_out : by position, why a row is no request of the load (`FAILED`: it failed in the source); such a row is not
    judged.  tokens : where the token counts come from (`IN_FILE`, `DECLARED` or `ABSENT`).
    unread : columns that nobody looked at.
    """

    format: str
    columns: tuple[str, str, str]
    rows: Rows
    unit: str
    time_format: str | None = None
    left_out: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tokens: str = IN_FILE
    unread: tuple[str, ...] = ()


def assembled(sample: Sample, found: Found, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
    """Parse, judge and sort the rows.  Raises BadInput at the first bad one unless they are to be dropped."""
    rows, columns = found.rows, found.columns
    faults: dict[int, Fault] = {}
    time_ns = parse_column(rows.blocks(0), len(rows), columns[0], _time_parser(sample, found), faults)
    prompt = parse_column(rows.blocks(1), len(rows), columns[1], Tokens(), faults)
    output = parse_column(rows.blocks(2), len(rows), columns[2], Tokens(), faults)
    for i in np.flatnonzero((prompt == 0) & (output > 0)):
        faults.setdefault(int(i), Fault("no prompt tokens", columns[1], "0", "at least 1 prompt token"))
    _mark_blank_rows(rows, (time_ns, prompt, output), faults)
    for position in found.left_out:
        faults.pop(position, None)
    by_number = rows.malformed | {int(rows.number[i]): fault for i, fault in faults.items()}
    if by_number and not drop_bad_rows:
        first = min(by_number)
        raise row_error(sample, rows.where, first, by_number[first])
    out, bad = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    out[list(found.left_out)], bad[list(faults)] = True, True
    failed = ~bad & ~out & (output == 0)
    keep = ~bad & ~out & ~failed
    dropped = Counter(fault.reason for _, fault in sorted(by_number.items()))
    dropped.update(found.left_out.values())
    if failed.any():
        dropped[FAILED] += int(failed.sum())
    if not keep.any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise BadInput(str(sample.path), f"no usable request ({reasons})", "at least one served request")
    _check_one_clock(sample, rows, time_ns, keep | failed)
    kept = (time_ns[keep], prompt[keep].astype(np.int32), output[keep].astype(np.int32))
    return _reported(sample, found, *kept, dropped)


def _time_parser(sample: Sample, found: Found) -> Parser:
    if found.time_format is not None:
        return Custom(found.time_format)
    if found.unit == DATE and not found.rows.typed_dates:
        return Stamp()
    return Number("ns" if found.unit == DATE else found.unit, sample.delimiter not in ("", ","))


def _reported(
    sample: Sample,
    found: Found,
    kept_ns: NDArray[np.int64],
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    dropped: Counter[str],
) -> tuple[RequestTrace, ReadingReport]:
    steps = np.diff(kept_ns)
    order = np.argsort(kept_ns, kind="stable")
    trace = RequestTrace(kept_ns[order] - kept_ns.min(), prompt[order], output[order], name=sample.path.stem)
    report = ReadingReport(
        path=str(sample.path),
        format=found.format,
        time_unit=found.time_format or found.unit,
        rows_read=len(found.rows) + len(found.rows.malformed),
        rows_kept=len(trace),
        dropped=dropped,
        resolution_ns=resolution_ns(trace.arrival_ns),
        ties=int((np.diff(trace.arrival_ns) == 0).sum()),
        identical=0 if found.tokens == ABSENT else len(trace) - _different(kept_ns, prompt, output),
        backward_steps=int((steps < 0).sum()),
        largest_backward_ns=max(0, -int(steps.min(initial=0))),
        first_ns=int(kept_ns.min()),
        last_ns=int(kept_ns.max()),
        tokens=found.tokens,
        unread=found.unread,
    )
    return trace, _noted(report, found.notes)


def _different(*columns: NDArray[Any]) -> int:
    """Rows that differ in some column."""
    return len(np.unique(np.column_stack(columns), axis=0))


def _mark_blank_rows(rows: Rows, parsed: tuple[NDArray[np.int64], ...], faults: dict[int, Fault]) -> None:
    """Rows whose three cells are all blank get one reason of their own."""
    candidates = np.flatnonzero((parsed[0] < 0) & (parsed[1] < 0) & (parsed[2] < 0))
    if candidates.size:
        blank = np.ones(len(rows), bool)
        for column in range(3):
            blank &= np.fromiter((is_blank(value) for value in rows.column(column)), bool, len(rows))
        for i in np.flatnonzero(blank):
            faults[int(i)] = Fault(BLANK, "", "a blank row", "one request a row")


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
        said.append(f"failed in the source (no output tokens, or marked so) and not served: {report.failures}")
    if report.identical:
        said.append(
            f"equal to another row in time and tokens, and kept (is the file joined twice?): {report.identical}"
        )
    if report.unread:
        said.append(f"columns that were not read: {', '.join(report.unread)}")
    return replace(report, notes=tuple(said))
