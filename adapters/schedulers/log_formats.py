"""Readers of merge logs: what each of them says of every merge, in its own time.

They are told apart by their contents; `merge_logs` has the list, and makes a schedule of what they say.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from protocol.errors import BadInput
from protocol.reading import near
from protocol.workload.trace import NS_PER_S, seconds_to_ns

#: Replica, quorum, step, whether it was committed, and when, ns.
_Vote = tuple[Any, Any, Any, bool, int]
_ENDS = ("coordinator_stop", "coordinator_end")
_WATCHED_AT, _WATCHED_S = "_timestamp", "watcher/last_update_weights_time"
#: Columns of a table of merges, and fields of its lines as JSON.
_COLUMNS = ("start_s", "duration_s", "end_s", "fragment", "committed", "bytes")
#: Seconds: nanoseconds since 1970 up to the year 2255 fit 64 bits.  Bytes: more than any model has.
_MOST_S, _MOST_BYTES = 9e9, 1e18
#: Seconds, September 2001: no training run is older than its own beginning by so much.
_EPOCH_S = 1e9
_YES_NO = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class Logged:
    """One merge as logged: its stamp, and what else the log says of it."""

    at_ns: int
    took_ns: int | None = None
    fragment: int | None = None
    committed: bool = True


@dataclass(frozen=True)
class Log:
    """merges : in no order.  span_ns : that the log covers, None when it does not say.  began_ns : the time since 1970
    from which the merges' times count, None where the log has a clock of its own.  declared : H_min and H_max that
    held in the loop which wrote it, None where it does not say.
    """

    format: str
    merges: tuple[Logged, ...]
    span_ns: int | None
    report: tuple[str, ...]
    began_ns: int | None = None
    declared: tuple[int, int] | None = None

    @property
    def failed(self) -> int:
        """Merges that moved their bytes and made no progress."""
        return sum(not m.committed for m in self.merges)


def read_log(path: Path) -> Log:
    """What a file says.  Raises BadInput naming file and row."""
    if path.is_dir():
        raise BadInput(str(path), "a folder", "a merge log (.jsonl or .csv)")
    if not path.is_file():
        raise BadInput(str(path), "no such file", "a merge log (.jsonl or .csv)")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}, byte {error.start + 1}", "bytes that are not UTF-8", "a text file") from None
    if not text.strip():
        raise BadInput(str(path), "an empty file", "at least a header or a coordinator_start event")
    if path.suffix == ".csv":
        return _read_csv(path, text)
    records = list(_json_records(path, text))
    if any(isinstance(r.get("attributes"), dict) and "commit_result" in r["attributes"] for _, r in records):
        return _read_torchft(records)
    if any(_WATCHED_S in r for _, r in records):
        return _read_watcher(records)
    if any(r.get("event") == "begin" and "decision_steps" in r for _, r in records):
        return _read_loop(records)
    if any("start_s" in r for _, r in records):
        for where, record in records:
            _check_fields(where, list(record))
        return _table("lines", [_merge(where, record) for where, record in records])
    return _read_coordinator(path, records)


def _check_fields(where: str, names: Sequence[str]) -> None:
    """Raises BadInput for a table of merges without beginnings, with two ends, or with what is not known there."""
    expected = "start_s and, optionally, duration_s or end_s, fragment, committed, bytes"
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown:
        hint = near(unknown[0].lower(), [name for name in _COLUMNS if name not in names])
        raise BadInput(where, ", ".join(map(repr, unknown)), expected + hint)
    if "start_s" not in names:
        raise BadInput(where, f"no start_s, but {', '.join(names) or 'nothing'}", expected)
    if {"duration_s", "end_s"} <= set(names):
        raise BadInput(where, "duration_s and end_s", "one of the two: how long a merge took, or when it was over")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(where, f"{twice} twice", "each once")


def _uncommitted(merges: Sequence[Logged]) -> Iterator[str]:
    failed = sum(not m.committed for m in merges)
    if failed:
        yield f"{failed} of {len(merges)} merges were not committed: busy, without progress"


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
        except (RecursionError, ValueError) as error:
            what = "too deeply nested" if isinstance(error, RecursionError) else "with a number of thousands of digits"
            raise BadInput(where, f"JSON {what}", "a JSON object of a few fields") from None
        if not isinstance(value, dict):
            raise BadInput(where, f"a JSON {type(value).__name__}", "a JSON object")
        yield where, value


def _number(where: str, field: str, value: object, least: float | None = None, most: float = _MOST_S) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(f"{where}, {field}", f"{value!r}", "a finite number")
    if least is not None and value < least:
        raise BadInput(f"{where}, {field}", f"{value!r}", f"at least {least:g}")
    if abs(value) > most:
        raise BadInput(f"{where}, {field}", f"{value!r:.40}", f"at most {most:g} in size")
    return value


def _read_coordinator(path: Path, records: list[tuple[str, dict[str, Any]]]) -> Log:
    events = [r.get("event") for _, r in records]
    if "coordinator_start" not in events and "merged" not in events:
        expected = "lines with start_s, or coordinator_start, merged and coordinator_stop, or torchft's commit events"
        raise BadInput(str(path), "no start_s and no event of a coordinator or of torchft", expected)
    wanted = [(w, r) for w, r in records if r.get("event") in ("coordinator_start", "merged", *_ENDS)]
    # `elapsed_sec` where every merge has it, as the published replay did; else wall-clock milliseconds.
    merged = [(w, r) for w, r in wanted if r["event"] == "merged"]
    counted = merged or wanted
    field = "elapsed_sec" if all("elapsed_sec" in r for _, r in counted) else "ts_ms"
    unit = NS_PER_S if field == "elapsed_sec" else 1_000_000

    def at(where: str, record: dict[str, Any]) -> int:
        if field not in record:
            raise BadInput(where, f"no {field}", "elapsed_sec in every event, or ts_ms in every event")
        return round(_number(where, field, record[field], most=_MOST_S * NS_PER_S / unit) * unit)

    starts = [(w, r) for w, r in wanted if r["event"] == "coordinator_start"]
    if len(starts) > 1:
        raise BadInput(starts[1][0], "a second coordinator_start", "one run in a log")
    if starts:
        zero = at(*starts[0])
    elif field == "elapsed_sec":
        zero = 0
    else:
        raise BadInput(str(path), "no coordinator_start", "one, from which ts_ms are counted")
    merges: list[Logged] = []
    for where, record in merged:
        time_ns = at(where, record) - zero
        if time_ns < 0:
            raise BadInput(where, f"a merge {-time_ns / NS_PER_S:g} s before coordinator_start", "a later time")
        duration = record.get("duration_s")
        took = None if duration is None else seconds_to_ns(_number(where, "duration_s", duration, 0))
        merges.append(Logged(time_ns, took))
    ends = [(w, r) for w, r in wanted if r["event"] in _ENDS]
    if not ends:
        report = ("no coordinator_stop: the log may be cut short, and its span is unknown",)
        return Log("coordinator", tuple(merges), None, report)
    return Log("coordinator", tuple(merges), at(*ends[-1]) - zero, ())


def _read_csv(path: Path, text: str) -> Log:
    rows = csv.DictReader(text.splitlines())
    names = [name.strip() for name in rows.fieldnames or []]
    _check_fields(f"{path}, header", names)
    rows.fieldnames = names
    merges = []
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        given = len(names) + len(row.get(None) or ()) - sum(value is None for value in row.values())
        if given != len(names):
            raise BadInput(where, f"{given} values", f"{len(names)}, one a column")
        values: dict[str, object] = {}
        for field in names:
            text_value = (row.get(field) or "").strip()
            if field != "start_s" and not text_value:
                continue
            values[field] = (
                _YES_NO.get(text_value.lower(), text_value)
                if field == "committed"
                else _value(where, field, text_value)
            )
        merges.append(_merge(where, values))
    return _table("csv", merges)


def _table(kind: str, merges: Sequence[Logged]) -> Log:
    """Rows whose times count from the beginning, or from 1970, as so many seconds can only."""
    began_ns, report = None, list(_uncommitted(merges))
    first_ns = min((m.at_ns for m in merges), default=0)
    if first_ns >= _EPOCH_S * NS_PER_S:
        began_ns = 0
        first = f"{first_ns / NS_PER_S:.0f}"
        report.append(f"times are seconds since 1970: --log-zero {first}, or an ISO 8601 time, is where a trace begins")
    return Log(kind, tuple(merges), None, tuple(report), began_ns)


def _value(where: str, field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        expected = "a number of seconds" if field.endswith("_s") else "a number"
        raise BadInput(f"{where}, {field}", repr(text), expected) from None


def _merge(where: str, values: Mapping[str, object]) -> Logged:
    """One row of a table, or one line of its fields, where null leaves out what may be left out."""
    start_s = _number(where, "start_s", values["start_s"], 0)
    values = {field: value for field, value in values.items() if value is not None}
    _number(where, "bytes", values.get("bytes", 0), 0, _MOST_BYTES)
    if "end_s" in values:
        end_s = _number(where, "end_s", values["end_s"], 0)
        if end_s <= start_s:
            raise BadInput(f"{where}, end_s", f"{end_s:g}", f"more than start_s, {start_s:g}")
        took = seconds_to_ns(end_s - start_s)
    elif "duration_s" in values:
        took = seconds_to_ns(_number(where, "duration_s", values["duration_s"], 0))
        if took == 0:
            raise BadInput(f"{where}, duration_s", "0", "a positive number of seconds")
    else:
        took = None
    return _told(where, values, seconds_to_ns(start_s), took)


def _told(where: str, values: Mapping[str, object], at_ns: int, took_ns: int | None) -> Logged:
    fragment, committed = values.get("fragment"), values.get("committed", True)
    if fragment is not None:
        number = _number(where, "fragment", fragment, 0)
        if number != int(number) or number > 1023:
            raise BadInput(f"{where}, fragment", f"{fragment!r}", "a whole number from 0 to 1023")
        fragment = int(number)
    if not isinstance(committed, bool):
        raise BadInput(f"{where}, committed", f"{committed!r}", "true or false")
    return Logged(at_ns, took_ns, fragment, committed)


def _read_loop(records: list[tuple[str, dict[str, Any]]]) -> Log:
    """The log of `adapters.torchft`: merges, and what became of its replicas."""
    merges, report = [], []
    began_ns: int | None = None
    span_ns: int | None = None
    declared: tuple[int, int] | None = None
    for where, record in records:
        event = record.get("event")
        if event == "merge":
            if "start_s" not in record:
                raise BadInput(where, "no start_s", "start_s and end_s")
            merges.append(_merge(where, record))
            lost = record.get("steps_lost")
            for name, steps in lost.items() if isinstance(lost, dict) else ():
                report.append(f"merge at {record['start_s']:g} s: not committed; {name} lost {steps} inner steps")
            continue
        at_s = 0.0 if event == "begin" else _number(where, "at_s", record.get("at_s"), 0)
        if event == "begin":
            began_ns = stamp_ns(f"{where}, time", record.get("time"))
            least, most = record.get("h_min"), record.get("h_max")
            declared = (least, most) if isinstance(least, int) and isinstance(most, int) else None
        elif event == "end":
            span_ns = seconds_to_ns(at_s)
        elif event == "healed":
            lost = record.get("steps_lost")
            report.append(f"{record.get('replica')} caught up at {at_s:g} s and lost {lost} inner steps")
        elif event == "left" and "steps_lost_at_least" in record:
            lost = record["steps_lost_at_least"]
            report.append(f"{record.get('replica')} was lost at {at_s:g} s, with {lost} inner steps or more")
        elif event == "scheduler_failed":
            report.append(f"the scheduler failed at {at_s:g} s; merges at H_max from then on: {record.get('why')}")
    report += _uncommitted(merges)
    if span_ns is None:
        report.append("no end: the log may be cut short, and its span is unknown")
    return Log("loop", tuple(merges), span_ns, tuple(report), began_ns, declared)


def _read_torchft(records: list[tuple[str, dict[str, Any]]]) -> Log:
    """Every vote of a quorum is a merge that moved its bytes, whether its outcome was committed or not."""
    votes: list[_Vote] = []
    for where, record in records:
        attributes = record.get("attributes")
        if not isinstance(attributes, dict) or "commit_result" not in attributes:
            continue
        time_ns = stamp_ns(f"{where}, timestamp", record.get("timestamp") or record.get("observed_timestamp"))
        replica, quorum, step = (attributes.get(key) for key in ("replica_id", "quorum_id", "step"))
        votes.append((replica, quorum, step, attributes["commit_result"] is True, time_ns))
    rounds = _rounds(votes)
    began: list[str] = []
    zero = _beginning([t for t, _ in rounds], began)
    merges = tuple(Logged(t - zero, committed=committed) for t, committed in rounds)
    report = (*_uncommitted(merges), *began)
    return Log("torchft", merges, max(t for t, _ in rounds) - zero, report, zero)


def stamp_ns(where: str, stamp: object) -> int:
    """Nanoseconds since 1970 of an ISO 8601 time; without a zone it is UTC.  Raises BadInput."""
    try:
        parsed = datetime.fromisoformat(str(stamp))
    except ValueError:
        raise BadInput(where, repr(stamp), "an ISO 8601 time") from None
    since = parsed.replace(tzinfo=parsed.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _rounds(votes: list[_Vote]) -> list[tuple[int, bool]]:
    """When each merge ended, in order, and whether it was committed.

    Every replica logs the same vote; the exchange is over when the last one has voted.  A step that failed is tried
    again under the same number, so a replica's second vote on it, and any vote with another outcome, is another merge.
    """
    tries: Counter[tuple[object, ...]] = Counter()
    ended: dict[tuple[object, object, bool, int], int] = {}
    for replica, quorum, step, committed, time_ns in votes:
        tries[replica, quorum, step, committed] += 1
        key = (quorum, step, committed, tries[replica, quorum, step, committed])
        ended[key] = max(ended.get(key, time_ns), time_ns)
    return sorted((time_ns, committed) for (_, _, committed, _), time_ns in ended.items())


def _read_watcher(records: list[tuple[str, dict[str, Any]]]) -> Log:
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
    report: list[str] = []
    zero = _beginning([t for t, _ in found], report)
    merges = tuple(Logged(t - zero, took) for t, took in found)
    return Log("watcher", merges, found[-1][0] - zero, tuple(report), zero)


def _beginning(ends_ns: list[int], report: list[str]) -> int:
    """Where a log begins that names no beginning: one median interval before its first merge ended."""
    between = [b - a for a, b in itertools.pairwise(ends_ns)]
    before = round(median(between)) if between else 0
    report.append(f"times count from {before / NS_PER_S:g} s (the median interval) before the end of the first merge")
    return ends_ns[0] - before
