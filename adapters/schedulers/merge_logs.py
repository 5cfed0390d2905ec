"""Merge logs as people have them, read as what happened: when each merge began and how long it took.

Four formats, told apart by their contents:

- coordinator JSONL (workload-aware-diloco): events `coordinator_start`, `merged` and `coordinator_stop` or
  `coordinator_end`, each with `elapsed_sec` or `ts_ms`;
- CSV of merge times: `start_s` and, optionally, `duration_s` or `end_s`, seconds from the beginning;
- torchft commit events: records of the logger `torchft_commits` as OpenTelemetry's console exporter prints
  them (JSON objects with `timestamp` and `attributes.step`, `.replica_id`, `.commit_result`);
- a weight watcher's history (JSON lines with `_timestamp` and `watcher/last_update_weights_time`), an update a line,
  stamped at its end.

A coordinator writes `merged` after it has combined the updates and saved the checkpoint, so the stamp marks
the end of its own work; the published replays nevertheless let an 8 s window begin at it.  `stamp` says which
of the two to take: "start" (as published, the default for coordinator logs and CSV) or "end" (the default for
torchft, whose commit vote follows the exchange, and for watchers).
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.workload.trace import NS_PER_S, seconds_to_ns

if TYPE_CHECKING:
    from protocol.merging.corridor import Corridor

Stamp = Literal["start", "end"]
#: Replica, quorum, step, whether it was committed, and when, ns.
_Vote = tuple[Any, Any, Any, bool, int]
_ENDS = ("coordinator_stop", "coordinator_end")
_WATCHED_AT, _WATCHED_S = "_timestamp", "watcher/last_update_weights_time"
#: Merges with less than this share of the time between them are not merges of a whole model with inner steps between.
_LEAST_FREE = 0.05


@dataclass(frozen=True)
class RecordedSchedule:
    """A merge log as a schedule.

    span_s : seconds that the log covers, None when it does not say (a CSV).  merges_logged : merges in the
    log, before overlapping ones were joined; failed of them moved their bytes and made no progress.
    report : what a reader should know, a line each.
    """

    schedule: Schedule
    span_s: float | None
    merges_logged: int
    format: str
    report: tuple[str, ...]
    failed: int = 0


def read_merge_log(
    path: Path | str, merge_s: float, n_islands: int = 1, stamp: Stamp | None = None
) -> RecordedSchedule:
    """Read a merge log; every merge occupies all islands for `merge_s` unless the log gives its duration.

    Overlapping merges become one busy interval and are reported; time before 0 is cut off.  A log that begins with its
    first commit is taken to begin one median interval earlier.

    Raises BadInput naming file and row, and for merges that leave no time between them: fragments of a model.
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
    failed = 0
    merges: list[tuple[int, int | None]]
    if path.suffix == ".csv":
        kind, (merges, span_ns) = "csv", _read_csv(path, text)
    else:
        records = list(_json_records(path, text))
        if any(isinstance(r.get("attributes"), dict) and "commit_result" in r["attributes"] for _, r in records):
            kind, (merges, span_ns, failed) = "torchft", _read_torchft(path, records, report)
        elif any(_WATCHED_S in r for _, r in records):
            kind, (merges, span_ns) = "watcher", _read_watcher(records, report)
        else:
            kind, (merges, span_ns) = "coordinator", _read_coordinator(path, records, report)
    if stamp is None:
        stamp = "end" if kind in ("torchft", "watcher") else "start"
    schedule = _schedule(merges, seconds_to_ns(merge_s), n_islands, stamp, span_ns, report)
    if kind == "torchft":
        _refuse_fragments(path, schedule, len(merges))
    if kind == "coordinator" and merges:
        side = "begins" if stamp == "start" else "ends"
        report.append(f"each merge {side} at its event; the coordinator logs the event after the merge")
    if not merges:
        report.append("no merge: a no-sync arm")
    span_s = None if span_ns is None else span_ns / NS_PER_S
    return RecordedSchedule(schedule, span_s, len(merges), kind, tuple(report), failed)


def snapped(schedule: Schedule, corridor: Corridor) -> tuple[Schedule, int]:
    """The schedule with every wait rounded to whole decisions, and the largest shift of a start, ns.

    Wall-clock stamps never fall on the decision grid, which begins anew where the last merge ended.
    """
    free = end = 0
    starts = np.empty(len(schedule), np.int64)
    for k, (start, busy) in enumerate(
        zip(schedule.start_ns.tolist(), schedule.busy_ns.max(axis=1).tolist(), strict=True)
    ):
        starts[k] = free + round(max(start - free, 0) / corridor.grid_ns) * corridor.grid_ns
        free = int(starts[k]) + busy
        end = max(end, abs(int(starts[k]) - start))
    return Schedule(starts, schedule.busy_ns, schedule.fragment), end


def _refuse_fragments(path: Path, schedule: Schedule, logged: int) -> None:
    """Commits of single fragments follow each other so closely that whole merges of them would never end."""
    starts, ends = schedule.windows_ns(0)
    if logged < 4 or not len(starts):
        return
    span_ns = int(ends[-1] - starts[0])
    free = 1 - float((ends - starts).sum()) / span_ns
    if free < _LEAST_FREE:
        found = (
            f"{logged} torchft merges that leave {100 * free:.0f} % of {span_ns / NS_PER_S:g} s between them, as "
            "commits of single fragments do"
        )
        raise BadInput(str(path), found, "whole merges with inner steps between them, or a shorter merge_s")


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
    unknown = [n for n in names if n not in ("start_s", "duration_s", "end_s")]
    if "start_s" not in names or unknown or {"duration_s", "end_s"} <= set(names):
        expected = "a column start_s and, optionally, duration_s or end_s"
        raise BadInput(f"{path}, header", ", ".join(names) or "nothing", expected)
    rows.fieldnames = names
    merges: list[tuple[int, int | None]] = []
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        values: dict[str, float] = {}
        for field in ("start_s", "duration_s", "end_s"):
            text_value = (row.get(field) or "").strip()
            if field != "start_s" and not text_value:
                continue
            try:
                values[field] = _number(where, field, float(text_value), 0)
            except ValueError:
                raise BadInput(f"{where}, {field}", repr(text_value), "a number of seconds") from None
        if "end_s" in values:
            if values["end_s"] <= values["start_s"]:
                raise BadInput(f"{where}, end_s", f"{values['end_s']:g}", f"more than start_s, {values['start_s']:g}")
            values["duration_s"] = values["end_s"] - values["start_s"]
        if values.get("duration_s") == 0:
            raise BadInput(f"{where}, duration_s", "0", "a positive number of seconds")
        duration = values.get("duration_s")
        merges.append((seconds_to_ns(values["start_s"]), None if duration is None else seconds_to_ns(duration)))
    return merges, None


def _read_torchft(
    path: Path, records: list[tuple[str, dict[str, Any]]], report: list[str]
) -> tuple[list[tuple[int, int | None]], int | None, int]:
    """Every vote of a quorum is a merge that moved its bytes, whether its outcome was committed or not."""
    stamps: list[int] = []
    votes: list[_Vote] = []
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
        replica, quorum, step = (attributes.get(key) for key in ("replica_id", "quorum_id", "step"))
        votes.append((replica, quorum, step, attributes["commit_result"] is True, time_ns))
    merges, failed = _rounds(votes)
    if failed:
        report.append(f"{failed} of {len(merges)} merges were not committed: busy, without progress")
    zero = _beginning(merges, report)
    return [(t - zero, None) for t in merges], max(stamps) - zero, failed


def _rounds(votes: list[_Vote]) -> tuple[list[int], int]:
    """When each merge ended, in order, and how many failed.

    Every replica logs the same vote; the exchange is over when the last one has voted.  A step that failed is tried
    again under the same number, so a replica's second vote on it, and any vote with another outcome, is another merge.
    """
    tries: Counter[tuple[object, ...]] = Counter()
    ended: dict[tuple[object, object, bool, int], int] = {}
    for replica, quorum, step, committed, time_ns in votes:
        tries[replica, quorum, step, committed] += 1
        key = (quorum, step, committed, tries[replica, quorum, step, committed])
        ended[key] = max(ended.get(key, time_ns), time_ns)
    return sorted(ended.values()), sum(not committed for _, _, committed, _ in ended)


def _read_watcher(
    records: list[tuple[str, dict[str, Any]]], report: list[str]
) -> tuple[list[tuple[int, int | None]], int | None]:
    """Updates of a server's weights, a line each, stamped in seconds since 1970 when they were over."""
    found = []
    for where, record in records:
        if _WATCHED_S not in record:
            continue
        if _WATCHED_AT not in record:
            raise BadInput(where, f"no {_WATCHED_AT}", f"{_WATCHED_AT} and {_WATCHED_S}")
        at_ns = round(_number(where, _WATCHED_AT, record[_WATCHED_AT], 0) * NS_PER_S)
        took_s = _number(where, _WATCHED_S, record[_WATCHED_S], 0)
        if took_s == 0:
            raise BadInput(f"{where}, {_WATCHED_S}", "0", "a positive number of seconds")
        found.append((at_ns, seconds_to_ns(took_s)))
    found.sort()
    zero = _beginning([t for t, _ in found], report)
    return [(t - zero, took) for t, took in found], found[-1][0] - zero


def _beginning(ends_ns: list[int], report: list[str]) -> int:
    """Where a log begins that names no beginning: one median interval before its first merge ended."""
    between = [b - a for a, b in itertools.pairwise(ends_ns)]
    before = round(median(between)) if between else 0
    report.append(f"times count from {before / NS_PER_S:g} s (the median interval) before the end of the first merge")
    return ends_ns[0] - before
