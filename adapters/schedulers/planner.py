"""Planners: handed the whole trace, so never deployable; in the same confined process as schedulers."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapters.schedulers import wire
from adapters.schedulers.connection import GRACE_S, Ended, Late
from adapters.schedulers.planning import COLUMNS
from adapters.schedulers.process import ProcessRun, ProcessSource, message
from protocol.errors import BadInput, SchedulerError
from protocol.merging.schedule import Schedule
from protocol.workload.slo import Slo
from protocol.workload.trace import whole

if TYPE_CHECKING:
    from protocol.merging.corridor import Corridor
    from protocol.replay.sidecar import LoadedSidecar
    from protocol.workload.trace import RequestTrace

#: Seconds within which a schedule must come, and starts that it may have priced.
PLAN_S, PRICED_STARTS = 300.0, 1_000_000


class PlannerSource(ProcessSource):
    """A user's or a built-in planner.  A trace goes in, starts and durations come out, numbers both ways."""

    kind: Literal["scheduler", "planner", "recorded"] = "planner"
    deployable = False

    def plan(
        self,
        trace: RequestTrace,
        corridor: Corridor,
        budget: int,
        seed_words: tuple[int, ...],
        sidecar: LoadedSidecar | None = None,
        slo: Slo | None = None,
    ) -> Schedule:
        """The planner's schedule; a fresh planner each time.  Raises SchedulerError with file and line."""
        ready = self.probe(seed_words)
        run = self._run = ProcessRun(self, ready, PLAN_S)
        assert self.host is not None
        asked = {
            "type": "plan",
            "requests": len(trace),
            "islands": trace.n_islands,
            "name": trace.name,
            "corridor": dataclasses.asdict(corridor),
            "budget": int(budget),
            "slo": str(slo) if sidecar is not None and slo is not None else None,
            "within_s": PLAN_S,
        }
        columns = [np.ascontiguousarray(getattr(trace, c), dtype).tobytes() for c, dtype in COLUMNS.items()]
        try:
            self.host.send(wire.dumps(asked) + b"".join(columns), self.start_timeout_s)
            said = self._hear(sidecar, corridor)
        except Late:
            self.stop_host()
            raise SchedulerError(f"{self.name}: no schedule within {PLAN_S:g} s") from None
        except Ended as ended:
            reason = self.why(ended.status)
            self.stop_host()
            raise SchedulerError(f"{reason}, while planning") from None
        run.close()
        return self._schedule(said, trace.n_islands)

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> ProcessRun:
        """A planner takes no decisions.  Raises SchedulerError, always."""
        raise SchedulerError(f"{self.name}: a planner sees the whole trace; it plans and cannot decide step by step")

    def _hear(self, sidecar: LoadedSidecar | None, corridor: Corridor) -> Any:
        """The planner's answer; what it asks of the sidecar on the way is answered."""
        assert self.host is not None
        deadline, priced = time.monotonic() + PLAN_S + GRACE_S, 0
        while True:
            before = time.monotonic()
            said = message(self.host.receive(deadline - before, wire.PLAN_BYTES))
            self.waited(time.monotonic() - before)
            if not isinstance(said, dict) or "price" not in said:
                return said
            prices = self._price(said["price"], sidecar, corridor, PRICED_STARTS - priced)
            priced += len(prices)
            self.host.send(wire.dumps({"price": prices}), self.start_timeout_s)

    def _price(self, asked: Any, sidecar: LoadedSidecar | None, corridor: Corridor, most: int) -> list[float]:
        expected = f"start_ns, merge_ns within {corridor.horizon_ns} ns and slo, at most {PRICED_STARTS} starts a plan"
        try:
            start, merge_ns, slo = _whole(asked["start_ns"]), int(asked["merge_ns"]), Slo.parse(asked["slo"])
        except (KeyError, TypeError, ValueError, OverflowError, BadInput, AttributeError):
            start, merge_ns, slo = np.empty(0, np.int64), 0, Slo()
        within = start.ndim == 1 and np.all((start >= 0) & (start <= corridor.horizon_ns))
        if sidecar is None or not within or not 0 < merge_ns <= corridor.horizon_ns or len(start) > most:
            self.stop_host()
            raise SchedulerError(f"{self.name}: asked for prices of {wire.short(asked)}; expected {expected}")
        return sidecar.merge_cost(start, merge_ns, slo).tolist()

    def _schedule(self, said: Any, n_islands: int) -> Schedule:
        """The schedule that an answer stands for.  Raises SchedulerError when it is none."""
        if isinstance(said, dict) and "error" in said:
            if said["error"] == "timeout":
                raise SchedulerError(f"{self.name}: no schedule within {PLAN_S:g} s")
            raise SchedulerError(self.crash(said))
        if isinstance(said, dict) and "bad" in said:
            raise BadInput(self.name, str(said.get("found")), str(said.get("expected")))
        if isinstance(said, dict) and isinstance(said.get("answered"), str):
            raise SchedulerError(f"{self.name}: plan returned {wire.short(said['answered'])}; expected a Schedule")
        try:
            fields = {name: _whole(said["schedule"][name]) for name in ("start_ns", "busy_ns", "fragment")}
        except (KeyError, TypeError, ValueError, OverflowError):
            raise SchedulerError(f"{self.name}: plan answered {wire.short(said)}; expected a Schedule") from None
        if not len(fields["start_ns"]):
            fields["busy_ns"] = np.empty((0, n_islands), np.int64)
        fragment = whole(self.name, "fragment", fields["fragment"], "i2")
        return Schedule(fields["start_ns"], fields["busy_ns"], fragment)


def _whole(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An integer array of numbers from outside.  Raises ValueError, TypeError or OverflowError on anything else."""
    array = np.array(values)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(array.dtype)
    return array.astype(np.int64)
