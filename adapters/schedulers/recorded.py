"""Merge logs: what already happened, read as a recorded schedule.

Three formats, told apart by their contents:

- coordinator JSONL (workload-aware-diloco): events `coordinator_start`, `merged` and `coordinator_stop` or
  `coordinator_end`, each with `elapsed_sec` or `ts_ms`;
- CSV of merge times: `start_s` and, optionally, `duration_s`, seconds from the beginning;
- torchft commit events: records of the logger `torchft_commits` as OpenTelemetry's console exporter prints
  them (JSON objects with `timestamp` and `attributes.step`, `.replica_id`, `.commit_result`).

A coordinator writes `merged` after it has combined the updates and saved the checkpoint, so the stamp marks
the end of its own work; the published replays nevertheless let an 8 s window begin at it.  `stamp` says which
of the two to take: "start" (as published, the default for coordinator logs and CSV) or "end" (the default for
torchft, whose commit vote follows the exchange).
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from protocol.errors import BadInput, SchedulerError
from protocol.merging.schedule import Schedule
from protocol.scheduler import SchedulerRun
from protocol.workload.trace import NS_PER_S, RequestTrace, seconds_to_ns

if TYPE_CHECKING:
    from protocol.merging.corridor import Corridor
    from protocol.replay.sidecar import LoadedSidecar
    from protocol.workload.slo import Slo

Stamp = Literal["start", "end"]
_ENDS = ("coordinator_stop", "coordinator_end")


@dataclass(frozen=True)
class RecordedSchedule:
    """A merge log as a schedule.

    span_s : seconds that the log covers, None when it does not say (a CSV).  merges_logged : merges in the
    log, before overlapping ones were joined.  report : what a reader should know, a line each.
    """

    schedule: Schedule
    span_s: float | None
    merges_logged: int
    format: str
    report: tuple[str, ...]


def read_merge_log(
    path: Path | str, merge_s: float, n_islands: int = 1, stamp: Stamp | None = None
) -> RecordedSchedule:
    """Read a merge log; every merge occupies all islands for `merge_s` unless the log gives its duration.

    Overlapping merges become one busy interval and are reported; time before 0 is cut off.

    Raises BadInput naming file and row.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(str(path), "no such file", "a merge log (.jsonl or .csv)")
    if not merge_s > 0 or not math.isfinite(merge_s):
        raise BadInput("merge_s", f"{merge_s!r}", "a positive number of seconds")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}, byte {error.start + 1}", "bytes that are not UTF-8", "a text file") from None
    if not text.strip():
        raise BadInput(str(path), "an empty file", "at least a header or a coordinator_start event")
    report: list[str] = []
    merges: list[tuple[int, int | None]]
    if path.suffix == ".csv":
        kind, (merges, span_ns) = "csv", _read_csv(path, text)
    else:
        records = list(_json_records(path, text))
        if any(isinstance(r.get("attributes"), dict) and "commit_result" in r["attributes"] for _, r in records):
            kind, (merges, span_ns) = "torchft", _read_torchft(path, records, report)
        else:
            kind, (merges, span_ns) = "coordinator", _read_coordinator(path, records, report)
    if stamp is None:
        stamp = "end" if kind == "torchft" else "start"
    schedule = _schedule(merges, seconds_to_ns(merge_s), n_islands, stamp, span_ns, report)
    if kind == "coordinator" and merges:
        side = "begins" if stamp == "start" else "ends"
        report.append(f"each merge {side} at its event; the coordinator logs the event after the merge")
    if not merges:
        report.append("no merge: a no-sync arm")
    return RecordedSchedule(schedule, None if span_ns is None else span_ns / NS_PER_S, len(merges), kind, tuple(report))


def _schedule(
    merges: list[tuple[int, int | None]],
    merge_ns: int,
    n_islands: int,
    stamp: Stamp,
    span_ns: int | None,
    report: list[str],
) -> Schedule:
    intervals: list[list[int]] = []
    windows = [(t, merge_ns if d is None else d) for t, d in merges]
    for begin, end in sorted((t, t + d) if stamp == "start" else (t - d, t) for t, d in windows):
        if begin < 0:
            report.append(f"the merge that ends at {end / NS_PER_S:g} s began before the log; cut off at 0 s")
            begin = 0
        if intervals and begin < intervals[-1][1]:
            last = intervals[-1]
            report.append(
                f"merges at {last[0] / NS_PER_S:g} s and {begin / NS_PER_S:g} s overlap: one busy interval "
                f"of {(max(last[1], end) - last[0]) / NS_PER_S:g} s"
            )
            last[1] = max(last[1], end)
        elif end > begin:
            intervals.append([begin, end])
    if span_ns is not None and intervals and intervals[-1][1] > span_ns:
        end_s = intervals[-1][1] / NS_PER_S
        report.append(f"the last merge ends at {end_s:g} s, after the log ends ({span_ns / NS_PER_S:g} s)")
    starts = np.array([begin for begin, _ in intervals], np.int64)
    busy = np.array([end - begin for begin, end in intervals], np.int64)
    return Schedule(starts, np.repeat(busy[:, None], n_islands, axis=1).reshape(len(starts), n_islands))


def _json_records(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """JSON objects one after another, one a line or pretty-printed, with the line on which each begins."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        where = f"{path}, line {text.count(chr(10), 0, at) + 1}"
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise BadInput(where, f"text that is not JSON ({error.msg})", "a JSON object") from None
        if not isinstance(value, dict):
            raise BadInput(where, f"a JSON {type(value).__name__}", "a JSON object")
        yield where, value


def _number(where: str, field: str, value: object, least: float | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(f"{where}, {field}", f"{value!r}", "a finite number")
    if least is not None and value < least:
        raise BadInput(f"{where}, {field}", f"{value!r}", f"at least {least:g}")
    return value


def _read_coordinator(
    path: Path, records: list[tuple[str, dict[str, Any]]], report: list[str]
) -> tuple[list[tuple[int, int | None]], int | None]:
    events = [r.get("event") for _, r in records]
    if "coordinator_start" not in events and "merged" not in events:
        expected = "coordinator_start, merged and coordinator_stop events, or torchft commit events"
        raise BadInput(str(path), "no event of a coordinator or of torchft", expected)
    wanted = [(w, r) for w, r in records if r.get("event") in ("coordinator_start", "merged", *_ENDS)]
    # `elapsed_sec` where every merge has it, as the published replay did; else wall-clock milliseconds.
    merged = [(w, r) for w, r in wanted if r["event"] == "merged"]
    counted = merged or wanted
    field = "elapsed_sec" if all("elapsed_sec" in r for _, r in counted) else "ts_ms"
    unit = NS_PER_S if field == "elapsed_sec" else 1_000_000

    def at(where: str, record: dict[str, Any]) -> int:
        if field not in record:
            raise BadInput(where, f"no {field}", "elapsed_sec in every event, or ts_ms in every event")
        return round(_number(where, field, record[field]) * unit)

    starts = [(w, r) for w, r in wanted if r["event"] == "coordinator_start"]
    if len(starts) > 1:
        raise BadInput(starts[1][0], "a second coordinator_start", "one run in a log")
    if starts:
        zero = at(*starts[0])
    elif field == "elapsed_sec":
        zero = 0
    else:
        raise BadInput(str(path), "no coordinator_start", "one, from which ts_ms are counted")
    merges: list[tuple[int, int | None]] = []
    for where, record in merged:
        time_ns = at(where, record) - zero
        if time_ns < 0:
            raise BadInput(where, f"a merge {-time_ns / NS_PER_S:g} s before coordinator_start", "a later time")
        duration = record.get("duration_s")
        merges.append((time_ns, None if duration is None else seconds_to_ns(_number(where, "duration_s", duration, 0))))
    ends = [(w, r) for w, r in wanted if r["event"] in _ENDS]
    if not ends:
        report.append("no coordinator_stop: the log may be cut short, and its span is unknown")
        return merges, None
    return merges, at(*ends[-1]) - zero


def _read_csv(path: Path, text: str) -> tuple[list[tuple[int, int | None]], int | None]:
    rows = csv.DictReader(text.splitlines())
    names = [name.strip() for name in rows.fieldnames or []]
    if "start_s" not in names:
        expected = "a column start_s and, optionally, duration_s"
        raise BadInput(f"{path}, header", ", ".join(names) or "nothing", expected)
    rows.fieldnames = names
    merges: list[tuple[int, int | None]] = []
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        values: dict[str, float] = {}
        for field in ("start_s", "duration_s"):
            text_value = (row.get(field) or "").strip()
            if field == "duration_s" and not text_value:
                continue
            try:
                values[field] = _number(where, field, float(text_value), 0)
            except ValueError:
                raise BadInput(f"{where}, {field}", repr(text_value), "a number of seconds") from None
        if values.get("duration_s") == 0:
            raise BadInput(f"{where}, duration_s", "0", "a positive number of seconds")
        duration = values.get("duration_s")
        merges.append((seconds_to_ns(values["start_s"]), None if duration is None else seconds_to_ns(duration)))
    return merges, None


def _read_torchft(
    path: Path, records: list[tuple[str, dict[str, Any]]], report: list[str]
) -> tuple[list[tuple[int, int | None]], int | None]:
    stamps: list[int] = []
    commits: dict[tuple[object, object], int] = {}
    failed = 0
    for where, record in records:
        attributes = record.get("attributes")
        if not isinstance(attributes, dict) or "commit_result" not in attributes:
            continue
        stamp = record.get("timestamp") or record.get("observed_timestamp")
        try:
            parsed = datetime.fromisoformat(str(stamp))
        except ValueError:
            raise BadInput(f"{where}, timestamp", repr(stamp), "an ISO 8601 time") from None
        since = parsed.replace(tzinfo=parsed.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        time_ns = ((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
        stamps.append(time_ns)
        if attributes["commit_result"] is not True:
            failed += 1
            continue
        # Every replica logs the same commit; the exchange is over when the last one has voted.
        key = (attributes.get("quorum_id"), attributes.get("step"))
        commits[key] = max(commits.get(key, time_ns), time_ns)
    zero = min(stamps)
    report.append("times count from the first commit event; torchft logs no start of the run")
    if failed:
        report.append(f"{failed} commit events had commit_result false and are no merges")
    return [(t - zero, None) for t in sorted(commits.values())], max(stamps) - zero


class RecordedSource:
    """A merge log in place of a scheduler: its schedule is judged as it happened."""

    kind: Literal["scheduler", "planner", "recorded"] = "recorded"
    deployable = False
    clock_shift_s = 0.0

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise BadInput(str(path), "no such file", "a merge log (.jsonl or .csv)")
        self.path, self.name = path, path.name
        read_merge_log(path, 1.0)

    def schedule(self, merge_s: float, n_islands: int = 1, stamp: Stamp | None = None) -> RecordedSchedule:
        """The log's merges; see `read_merge_log`."""
        return read_merge_log(self.path, merge_s, n_islands, stamp)

    def report(self, merge_s: float, horizon_s: float) -> list[str]:
        """What a reader should know of the log where merges take `merge_s` and `horizon_s` are judged, a line each."""
        recorded = self.schedule(merge_s)
        if recorded.span_s is None or recorded.span_s == horizon_s:
            return list(recorded.report)
        return [*recorded.report, f"the log covers {recorded.span_s:g} s; {horizon_s:g} s are judged"]

    def plan(
        self,
        trace: RequestTrace,
        corridor: Corridor,
        budget: int,
        seed_words: tuple[int, ...],
        sidecar: LoadedSidecar | None = None,
        slo: Slo | None = None,
    ) -> Schedule:
        """The log's merges on the trace's islands; nothing else that a planner is handed is looked at."""
        return self.schedule(corridor.merge_ns / NS_PER_S, trace.n_islands).schedule

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> SchedulerRun:
        """A log takes no decisions.  Raises SchedulerError, always."""
        raise SchedulerError(f"{self.name}: a merge log is judged as it happened; it cannot decide")

    def digest(self) -> str:
        """SHA-256 of the log's bytes."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def describe(self) -> dict[str, object]:
        """Plain values that identify the log in a certificate."""
        recorded = self.schedule(1.0)
        return {
            "name": self.name,
            "kind": self.kind,
            "deployable": self.deployable,
            "format": recorded.format,
            "merges_logged": recorded.merges_logged,
            "span_s": recorded.span_s,
            "digest": self.digest(),
        }

    def close(self) -> None:
        """Nothing runs."""
