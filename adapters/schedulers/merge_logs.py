"""Merge logs as people have them, read as what happened: when each merge began, how long it took, what came of it.

Six formats, told apart by their contents:

- coordinator JSONL (workload-aware-diloco): events `coordinator_start`, `merged` and `coordinator_stop` or
  `coordinator_end`, each with `elapsed_sec` or `ts_ms`;
- CSV, or JSON lines, of merges: `start_s` and, optionally, `duration_s` or `end_s`, seconds from the beginning, and
  `fragment`, `committed`, `bytes`;
- torchft commit events: records of the logger `torchft_commits` as OpenTelemetry's console exporter prints
  them (JSON objects with `timestamp` and `attributes.step`, `.replica_id`, `.commit_result`);
- the log of a training loop that `adapters.torchft` drives (JSON lines: `begin`, `merge`, `healed`, `left`, `end`);
- a weight watcher's history (JSON lines with `_timestamp` and `watcher/last_update_weights_time`), an update a line,
  stamped at its end.

A coordinator writes `merged` after it has combined the updates and saved the checkpoint, so the stamp marks
the end of its own work; the published replays nevertheless let an 8 s window begin at it.  `stamp` says which
of the two to take: "start" (as published, the default for coordinator logs and tables) or "end" (the default for
torchft, whose commit vote follows the exchange, and for watchers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from adapters.schedulers.log_formats import Log, Logged, read_log, stamp_ns
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.workload.trace import NS_PER_S, seconds_to_ns

Stamp = Literal["start", "end"]
#: Merges with less than this share of the time between them are not merges of a whole model with inner steps between.
_LEAST_FREE = 0.05
_ZERO = "seconds of the log's time, or an ISO 8601 time"


@dataclass(frozen=True)
class LogReading:
    """What a log does not say of itself.

    fragments : of the model; a log that names none has them in turn, and one that was not committed again.
    stamp : what its stamps mark; None: what its format does.  zero : where time 0 of the trace lies, in seconds of the
    log's own time or as an ISO 8601 time; None: where the log begins.  merge_s : of merges without a length; None: the
    regime's.
    """

    fragments: int = 1
    stamp: Stamp | None = None
    zero: str | None = None
    merge_s: float | None = None

    def zero_ns(self, log: Log, path: Path) -> int:
        """Raises BadInput for an ISO time where the log has no calendar."""
        if self.zero is None:
            return 0
        try:
            seconds = float(self.zero)
        except ValueError:
            try:
                at_ns = stamp_ns("--log-zero", self.zero)
            except BadInput:
                raise BadInput("--log-zero", repr(self.zero), _ZERO) from None
            if log.began_ns is None:
                expected = f"seconds: {path.name} has no calendar"
                raise BadInput("--log-zero", repr(self.zero), expected) from None
            return at_ns - log.began_ns
        if not math.isfinite(seconds):
            raise BadInput("--log-zero", repr(self.zero), _ZERO)
        return seconds_to_ns(seconds)


@dataclass(frozen=True)
class RecordedSchedule:
    """A merge log as a schedule.

    span_s : seconds that the log covers, None when it does not say (a CSV).  merges_logged : merges in the
    log, before overlapping ones were joined; failed of them moved their bytes and made no progress.
    report : what a reader should know, a line each.  overlapping : merges that began before the last one had ended.
    declared : H_min and H_max of the loop that wrote it, where it says so.  said_s : the median of the lengths that
    the log says; None where it says none.
    """

    schedule: Schedule
    span_s: float | None
    merges_logged: int
    format: str
    report: tuple[str, ...]
    failed: int = 0
    fragments: int = 1
    overlapping: int = 0
    declared: tuple[int, int] | None = None
    said_s: float | None = None


def read_merge_log(
    path: Path | str, merge_s: float, n_islands: int = 1, stamp: Stamp | None = None, reading: LogReading | None = None
) -> RecordedSchedule:
    """Read a merge log; every merge, of a fragment where the model has several, occupies all islands for `merge_s`
    unless the log gives its duration.

    Overlapping merges become one busy interval and are reported, but those of fragments, of which one is in flight at a
    time; time before 0 is cut off.  A log that begins with its first commit is taken to begin one median interval
    earlier.

    Raises BadInput naming file and row, and for merges that leave no time between them: fragments of a model.
    """
    path, how = Path(path), reading or LogReading()
    if not merge_s > 0 or not math.isfinite(merge_s):
        raise BadInput("merge_s", f"{merge_s!r}", "a positive number of seconds")
    log = read_log(path)
    report = list(log.report)
    marks = stamp or how.stamp or ("end" if log.format in ("torchft", "watcher") else "start")
    fragments = _fragments(path, log.merges, how.fragments)
    each_s = merge_s if how.merge_s is None else how.merge_s
    if fragments > 1 and log.merges:
        rounds = sum(m.committed for m in log.merges) // fragments
        report.append(f"{len(log.merges)} merges of {fragments} fragments: {rounds} whole rounds")
        unsaid = sum(m.took_ns is None for m in log.merges)
        if unsaid:
            some = "" if unsaid == len(log.merges) else f" without a length ({unsaid} of {len(log.merges)})"
            report.append(f"each fragment{some} is taken to be under way for {each_s:g} s")
    zero_ns = how.zero_ns(log, path)
    span_ns = None if log.span_ns is None else log.span_ns - zero_ns
    schedule, overlapping = _schedule(log.merges, seconds_to_ns(each_s), n_islands, marks, zero_ns, fragments, report)
    _past_the_end(schedule, span_ns, report)
    if log.format == "torchft":
        _refuse_fragments(path, schedule, len(log.merges), fragments)
    if log.format == "coordinator" and log.merges:
        side = "begins" if marks == "start" else "ends"
        report.append(f"each merge {side} at its event; the coordinator logs the event after the merge")
    if not log.merges:
        report.append("no merge: a no-sync arm")
    span_s = None if span_ns is None else span_ns / NS_PER_S
    said = [m.took_ns for m in log.merges if m.took_ns is not None]
    return RecordedSchedule(
        schedule, span_s, len(log.merges), log.format, tuple(report), log.failed, fragments, overlapping, log.declared,
        median(said) / NS_PER_S if said else None,
    )  # fmt: skip


def _fragments(path: Path, merges: Sequence[Logged], asked: int) -> int:
    """How many the model has.  Raises BadInput where the log has more than were said."""
    named = max((m.fragment for m in merges if m.fragment is not None), default=-1) + 1
    if 1 < asked < named:
        raise BadInput("--fragments", str(asked), f"at least {named}, as {path.name} names them")
    return max(asked, named, 1)


def _refuse_fragments(path: Path, schedule: Schedule, logged: int, fragments: int) -> None:
    """Commits of single fragments follow each other so closely that whole merges of them would never end."""
    starts, ends = schedule.windows_ns(0)
    if logged < 4 or not len(starts):
        return
    span_ns = int(ends[-1] - starts[0])
    free = 1 - float((ends - starts).sum()) / span_ns
    if free < _LEAST_FREE:
        found = (
            f"{logged} torchft merges that leave {100 * free:.0f} % of {span_ns / NS_PER_S:g} s between them"
            f"{', as commits of single fragments do' if fragments == 1 else ''}"
        )
        expected = "inner steps between them: a shorter --log-merge-s"
        if fragments == 1:
            expected = f"--fragments N, or whole merges with {expected}"
        raise BadInput(str(path), found, expected)


def _schedule(
    merges: Sequence[Logged],
    merge_ns: int,
    n_islands: int,
    stamp: Stamp,
    zero_ns: int,
    fragments: int,
    report: list[str],
) -> tuple[Schedule, int]:
    """The schedule, and how many merges began before the last one had ended."""
    windows = []
    for m in merges:
        took, at = merge_ns if m.took_ns is None else m.took_ns, m.at_ns - zero_ns
        begin = at if stamp == "start" else at - took
        windows.append((begin, begin + took, m))
    windows.sort(key=lambda w: w[:2])
    found: list[list[int]] = []
    early = done = cut = overlapping = 0
    for begin, end, m in windows:
        due = m.fragment if m.fragment is not None else done % fragments
        done += m.committed
        if end <= 0:
            early += 1
            continue
        if begin < 0:
            report.append(f"the merge that ends at {end / NS_PER_S:g} s began before the log; cut off at 0 s")
            begin = 0
        if found and begin < found[-1][1]:
            last, overlapping = found[-1], overlapping + 1
            if fragments == 1:
                report.append(
                    f"merges at {last[0] / NS_PER_S:g} s and {begin / NS_PER_S:g} s overlap: one busy interval "
                    f"of {(max(last[1], end) - last[0]) / NS_PER_S:g} s"
                )
                last[1], last[3] = max(last[1], end), int(bool(last[3]) or m.committed)
                continue
            cut, begin = cut + 1, last[1]
        if end > begin:
            found.append([begin, end, due, int(m.committed)])
    if early:
        report.append(f"{early} merges ended before time 0 and are left out")
    if cut:
        report.append(f"{cut} fragments were sent before the last one was there: one is in flight at a time")
    columns = np.array(found, np.int64).reshape(-1, 4)
    busy = np.repeat((columns[:, 1] - columns[:, 0])[:, None], n_islands, axis=1)
    return Schedule(columns[:, 0], busy, columns[:, 2].astype(np.int16), columns[:, 3] > 0), overlapping


def _past_the_end(schedule: Schedule, span_ns: int | None, report: list[str]) -> None:
    end_ns = int(schedule.windows_ns(0)[1].max(initial=0)) if schedule.n_islands else 0
    if span_ns is not None and end_ns > span_ns:
        end_s, span_s = end_ns / NS_PER_S, span_ns / NS_PER_S
        report.append(f"the last merge ends at {end_s:g} s, after the log ends ({span_s:g} s)")
