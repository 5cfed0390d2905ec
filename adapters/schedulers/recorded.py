"""A merge log in place of a scheduler: what already happened, judged as it happened."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from adapters.schedulers.merge_logs import RecordedSchedule, Stamp, read_merge_log, snapped
from protocol.errors import BadInput, SchedulerError
from protocol.merging.schedule import Schedule
from protocol.scheduler import SchedulerRun
from protocol.workload.trace import NS_PER_S, RequestTrace

if TYPE_CHECKING:
    from protocol.merging.corridor import Corridor
    from protocol.replay.sidecar import LoadedSidecar
    from protocol.workload.slo import Slo


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

    def report(self, corridor: Corridor) -> list[str]:
        """What a reader should know of the log where it is judged in this corridor, a line each."""
        recorded, horizon_s = self.schedule(corridor.merge_ns / NS_PER_S), corridor.horizon_ns / NS_PER_S
        found, shift_ns = list(recorded.report), snapped(recorded.schedule, corridor)[1]
        if shift_ns:
            found.append(f"starts were moved to the decision grid, by {shift_ns / NS_PER_S:.3f} s at most")
        if recorded.span_s is not None and recorded.span_s != horizon_s:
            found.append(f"the log covers {recorded.span_s:g} s; {horizon_s:g} s are judged")
        return found

    def plan(
        self,
        trace: RequestTrace,
        corridor: Corridor,
        budget: int,
        seed_words: tuple[int, ...],
        sidecar: LoadedSidecar | None = None,
        slo: Slo | None = None,
    ) -> Schedule:
        """The log's merges, on the trace's islands and the decision grid; nothing else is looked at."""
        return snapped(self.schedule(corridor.merge_ns / NS_PER_S, trace.n_islands).schedule, corridor)[0]

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
            "merges_failed": recorded.failed,
            "span_s": recorded.span_s,
            "digest": self.digest(),
        }

    def close(self) -> None:
        """Nothing runs."""
