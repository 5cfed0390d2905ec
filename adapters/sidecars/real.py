"""One replay on a real server with real merges: what was served, and what really ran beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from adapters.merge_loads.runner import Executed, MergeLoad, running
from adapters.sidecars.openai import Deadlines, Run, Target, replay
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.replay.replay import Replay
from protocol.workload.trace import RequestTrace

_CLIENT_PRIORITY = -10


@contextmanager
def urgent() -> Iterator[None]:
    """Let the client go first where the system allows it: it stands for users who do not live on the server's host."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(usual, _CLIENT_PRIORITY))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, usual)


@dataclass(frozen=True)
class RealSidecar:
    """A server and the load that stands for an outer merge on its host."""

    target: Target
    load: MergeLoad
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        object.__setattr__(self, "load", self.load.beside(self.target.url))

    def replay(self, trace: RequestTrace, schedule: Schedule) -> Replay:
        """Offer the trace open-loop while the merges of the schedule run; exposure counts what really ran.

        Raises BadInput when there is more than one island, SidecarError when the server or the load is not there.
        """
        if trace.n_islands != 1 or schedule.n_islands != 1:
            raise BadInput("real sidecar", f"{trace.n_islands} islands", "1: one server serves one island")
        with running(self.load) as runner:
            origin_ns = 0

            def begin(start_ns: int) -> None:
                nonlocal origin_ns
                origin_ns = start_ns
                runner.plan(schedule, start_ns)

            with urgent():
                run = replay(self.target, trace, schedule, self.deadlines, begin)
            executed = runner.finish()
        return replayed(run.exposed_to(trace, ran(executed, origin_ns)), executed, origin_ns)


def replayed(run: Run, executed: Executed, origin_ns: int) -> Replay:
    """A run and the merges beside it, on a clock that was 0 at `origin_ns`."""
    planned, ran_ = (np.array(w, np.int64).reshape(-1, 2) - origin_ns for w in (executed.planned_ns, executed.ran_ns))
    return Replay(run.measurements, planned, ran_, executed.may_end_early, executed.died, run.failures)


def ran(executed: Executed, origin_ns: int) -> Schedule:
    """The merges as they really ran, on a clock that was 0 at `origin_ns`."""
    windows = np.array(executed.ran_ns, np.int64).reshape(-1, 2) - origin_ns
    began = np.maximum(windows[:, 0], 0)
    return Schedule(began, (windows[:, 1] - began)[:, None])
