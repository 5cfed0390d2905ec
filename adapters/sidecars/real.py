"""One replay on a real server with real merges: what was served, and what really ran beside it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from adapters.cores import Cores, pinned, taken
from adapters.merge_loads.runner import Executed, MergeLoad, running
from adapters.sidecars.openai import SPIN_NS, TICK_NS, Deadlines, Run, Target, replay
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.replay.replay import Replay
from protocol.workload.trace import RequestTrace

_CLIENT_PRIORITY = -10
#: How far the system lets the client go first.
PRIORITIES = REAL_TIME, NICE, USUAL = "real time", f"nice {_CLIENT_PRIORITY}", "usual"


@contextmanager
def urgent(cores: Cores | None = None) -> Iterator[None]:
    """Let the client go first where the system allows it, on cores of its own, and never stop it to collect garbage."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with pinned(cores.client if cores else None), going_first():
            yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def going_first() -> Iterator[str]:
    """This thread before all others where it may, else before most; says which of `PRIORITIES` was granted.

    A client that sleeps most of the time takes little from anybody in real time, and is never late; a nice value alone
    does not keep a busy machine from running others first, above all after the client has been awake for a while.
    """
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    granted = _granted(usual)
    try:
        yield granted
    finally:
        if granted == REAL_TIME:
            for policy in (os.SCHED_OTHER, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK):  # not everybody may clear the flag
                with suppress(PermissionError):
                    os.sched_setscheduler(0, policy, os.sched_param(0))
                    break
        if granted == NICE:
            os.setpriority(os.PRIO_PROCESS, 0, usual)


def _granted(usual: int) -> str:
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
        with suppress(PermissionError):
            # Nothing that it starts inherits it.
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            return REAL_TIME
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(usual, _CLIENT_PRIORITY))
        return NICE
    return USUAL


def client_priority() -> str:
    """What `going_first` is granted on this machine."""
    with going_first() as granted:
        return granted


def spin_ns(cores: Cores) -> int:
    """How long the client stays awake before a request: on shared cores it would hold up the server."""
    return SPIN_NS if cores.apart else TICK_NS


@dataclass(frozen=True)
class RealSidecar:
    """A server and the load that stands for an outer merge on its host.

    pin : who runs on which cores; by default as `taken` finds them.
    """

    target: Target
    load: MergeLoad
    deadlines: Deadlines = field(default_factory=Deadlines)
    pin: Cores | None = None

    @cached_property
    def cores(self) -> Cores:
        """The cores that are taken while this sidecar replays."""
        return self.pin or taken(self.target.url)

    def replay(self, trace: RequestTrace, schedule: Schedule) -> Replay:
        """Offer the trace open-loop while the merges of the schedule run; exposure counts what really ran.

        Raises BadInput when there is more than one island, SidecarError when the server or the load is not there.
        """
        if trace.n_islands != 1 or schedule.n_islands != 1:
            raise BadInput("real sidecar", f"{trace.n_islands} islands", "1: one server serves one island")
        with running(self.load.beside(self.target.url), self.cores.load) as runner:
            origin_ns = 0

            def begin(start_ns: int) -> None:
                nonlocal origin_ns
                origin_ns = start_ns
                runner.plan(schedule, start_ns)

            with urgent(self.cores):
                run = replay(self.target, trace, schedule, self.deadlines, begin, spin_ns(self.cores))
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
