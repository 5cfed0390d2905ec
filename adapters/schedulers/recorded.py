"""A merge log in place of a scheduler: what already happened, judged as it happened."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import parse_qsl, urlencode

from adapters.schedulers.merge_logs import LogReading, RecordedSchedule, Stamp, read_merge_log
from protocol.errors import BadInput, SchedulerError
from protocol.merging.logged import snapped
from protocol.merging.schedule import Schedule
from protocol.scheduler import SchedulerRun
from protocol.workload.trace import NS_PER_S, RequestTrace

if TYPE_CHECKING:
    from protocol.campaign.plan import Setting
    from protocol.merging.corridor import Corridor
    from protocol.replay.sidecar import LoadedSidecar
    from protocol.workload.slo import Slo

#: Seconds of a merge where only the number of merges matters: so short a one meets no other.
_SHORT_S = 1e-3
#: Files that are merge logs, by their endings.
ENDINGS = (".jsonl", ".csv")


def is_log(spec: str) -> bool:
    """Whether what stands for a scheduler names a merge log."""
    return not spec.startswith("cmd:") and spec.partition("?")[0].endswith(ENDINGS)


def spec_of(path: str, reading: LogReading) -> str:
    """A merge log and how to read it in one word: FILE?fragments=4&stamp=end."""
    changed = {f.name: getattr(reading, f.name) for f in fields(reading) if getattr(reading, f.name) != f.default}
    return f"{path}?{urlencode(changed)}" if changed else path


def _reading(spec: str, query: str) -> LogReading:
    """Raises BadInput on an unknown key or a value that it cannot have."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    unknown = set(values) - {f.name for f in fields(LogReading)}
    stamp = values.get("stamp")
    try:
        found = LogReading(
            int(values.get("fragments", 1)), cast(Stamp | None, stamp), values.get("zero"),
            float(values["merge_s"]) if "merge_s" in values else None,
        )  # fmt: skip
    except ValueError:
        unknown.add(query)
    if unknown or stamp not in (None, "start", "end") or not 1 <= found.fragments <= 1024:
        expected = "FILE?fragments=N&stamp=start|end&zero=TIME&merge_s=SECONDS"
        raise BadInput("merge log", repr(spec), expected)
    if found.merge_s is not None and not 0 < found.merge_s < 1e6:
        raise BadInput("--log-merge-s", f"{found.merge_s:g}", "a positive number of seconds")
    return found


def _corridor(schedule: Schedule, setting: Setting) -> str:
    """In which corridor it is judged, in one line."""
    c, took_s = setting.corridor, schedule.busy_ns.max(axis=1, initial=0) / NS_PER_S
    each = ""
    if len(took_s):
        least, most = f"{took_s.min():g}", f"{took_s.max():g}"
        each = f" of {least} s" if least == most else f" of {least} to {most} s"
    turn = " of any two fragments" if setting.practice.fragments > 1 else ""
    steps = f"{c.h_min}" if c.h_min == c.h_max else f"{c.h_min} to {c.h_max}"
    return (
        f"judged with {steps} inner steps of {c.step_ns / NS_PER_S:g} s between merges{turn}{each}, "
        f"decided on every {c.decision_steps}"
    )


class RecordedSource:
    """A merge log in place of a scheduler: its schedule is judged as it happened.

    spec : its file, and how to read it where that needs saying (`spec_of`).
    """

    kind: Literal["scheduler", "planner", "recorded"] = "recorded"
    deployable = False
    clock_shift_s = 0.0

    def __init__(self, spec: str | Path) -> None:
        path, _, query = str(spec).partition("?")
        self.path, self.reading = Path(path), _reading(str(spec), query)
        if not self.path.exists():
            raise BadInput(path, "no such file", "a merge log (.jsonl or .csv)")
        self.name = self.path.name
        self.fragments = self.schedule(_SHORT_S).fragments

    def share_s(self, merge_s: float) -> float:
        """Of a merge of the whole model, what one of a fragment takes."""
        return max(merge_s / self.fragments, _SHORT_S)

    def schedule(self, merge_s: float, n_islands: int = 1, stamp: Stamp | None = None) -> RecordedSchedule:
        """The log's merges; see `read_merge_log`."""
        return read_merge_log(self.path, merge_s, n_islands, stamp, self.reading)

    def report(self, setting: Setting) -> list[str]:
        """What a reader should know of the log where it is judged in this regime, a line each."""
        recorded, horizon_s = self.schedule(self._merge_s(setting)), setting.corridor.horizon_ns / NS_PER_S
        found, shift_ns = list(recorded.report), snapped(recorded.schedule, setting.timing)[1]
        found.append(_corridor(recorded.schedule, setting))
        declared, judged = recorded.declared, (setting.corridor.h_min, setting.corridor.h_max)
        if declared is not None and declared != judged and setting.practice.fragments == 1:
            found.append(
                f"its loop was held to {declared[0]} to {declared[1]} inner steps as it counted them; here they are "
                f"the time between merges in steps of {setting.corridor.step_ns / NS_PER_S:g} s: slower ones count more"
            )
        if shift_ns:
            found.append(f"starts were moved to the decision grid, by {shift_ns / NS_PER_S:.3f} s at most")
        if setting.begins_ns:
            found.append(f"{len(setting.begins_ns)} windows of {horizon_s:g} s, each from the end of a merge on")
        elif recorded.span_s is not None and recorded.span_s != horizon_s:
            found.append(f"the log covers {recorded.span_s:g} s; {horizon_s:g} s are judged")
        if not setting.begins_ns and len(recorded.schedule):
            found.append(
                "in generated load every seed has the whole log, so nothing can be told of following the load; --trace "
                "FILE judges it on the load that it saw"
            )
        return found

    @staticmethod
    def _merge_s(setting: Setting) -> float:
        return (setting.transfer_ns or setting.corridor.merge_ns) / NS_PER_S

    def plan(
        self,
        trace: RequestTrace,
        corridor: Corridor,
        budget: int,
        seed_words: tuple[int, ...],
        sidecar: LoadedSidecar | None = None,
        slo: Slo | None = None,
    ) -> Schedule:
        """The log's merges on the trace's islands, at their own times; nothing else is looked at."""
        return self.schedule(corridor.merge_ns / NS_PER_S, trace.n_islands).schedule

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> SchedulerRun:
        """A log takes no decisions.  Raises SchedulerError, always."""
        raise SchedulerError(f"{self.name}: a merge log is judged as it happened; it cannot decide")

    def digest(self) -> str:
        """SHA-256 of the log's bytes."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def describe(self) -> dict[str, object]:
        """Plain values that identify the log in a certificate."""
        recorded = self.schedule(_SHORT_S)
        how = {f.name: getattr(self.reading, f.name) for f in fields(LogReading)}
        return {
            "name": self.name,
            "kind": self.kind,
            "deployable": self.deployable,
            "format": recorded.format,
            "merges_logged": recorded.merges_logged,
            "merges_failed": recorded.failed,
            "span_s": recorded.span_s,
            "digest": self.digest(),
            **({} if self.reading == LogReading() else {"reading": how}),
        }

    def close(self) -> None:
        """Nothing runs."""
