"""A live segment: a scheduler decides from a real server's telemetry while it serves, and its merges run at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from adapters.cores import Cores, taken
from adapters.merge_loads.runner import MergeLoad, Runner, running
from adapters.sidecars.metrics import Gauges, read_gauges
from adapters.sidecars.openai import Deadlines, Row, Run, Target, replay_open_loop, run_of, that_serves, until
from adapters.sidecars.real import ran, replayed, spin_ns, urgent
from adapters.sidecars.watching import RECENT_NS, state_of
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.placement.rollout import ControlLoop, ask
from protocol.replay.replay import MERGE_WITHIN_NS, LiveDecision, Replay, Scrape
from protocol.replay.sidecar import ServingState
from protocol.scheduler import SchedulerRun
from protocol.workload.trace import NS_PER_S, RequestTrace, Workload


@dataclass
class LiveServer:
    """A server, the load that stands for an outer merge on its host, and how it is watched.

    slots : requests that the server admits at a time, by which the serving pressure is counted.
    scrape_s : seconds between two looks at the server's metrics.
    lead_s : seconds from readiness to a segment's time 0.
    pin : who runs on which cores; by default as `taken` finds them.
    """

    target: Target
    load: MergeLoad
    slots: int
    deadlines: Deadlines = field(default_factory=lambda: Deadlines(request_s=30.0, idle_s=20.0, drain_s=15.0))
    scrape_s: float = 0.5
    lead_s: float = 0.5
    pin: Cores | None = None
    #: Counts prompts on from the clock: no segment is served from the prefix cache of another, or of another session.
    _salt: int = field(default_factory=lambda: time.time_ns() // 1_000_000, init=False)

    @cached_property
    def cores(self) -> Cores:
        """The cores that are taken during a segment."""
        return self.pin or taken(self.target.url)

    def reach(self, trace: RequestTrace) -> None:
        """Find request fields that the server takes.  Raises SidecarError when it serves nothing of the trace."""
        self.target = that_serves(self.target, trace, self._unmeasured)

    def warm_up(self, trace: RequestTrace) -> None:
        """Offer a trace without measuring it."""
        self._unmeasured(self.target, trace)

    def _unmeasured(self, target: Target, trace: RequestTrace) -> Run:
        rows, start_ns = asyncio.run(
            replay_open_loop(target, trace, self.deadlines, lead_s=self.lead_s, salt=self._next_salt(trace))
        )
        return run_of(rows, start_ns, trace, Schedule.empty())

    def _next_salt(self, trace: RequestTrace) -> int:
        salt, self._salt = self._salt, self._salt + len(trace)
        return salt

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Replay:
        """One segment, `span_ns` long: merges when `run` says so, or at `starts_ns` when there is no run.

        Raises BadInput when there is more than one island, SchedulerError when the scheduler fails, SidecarError when
        the load cannot start.  A server that fails gives rows that say so.
        """
        if workload.trace.n_islands != 1:
            raise BadInput("live session", f"{workload.trace.n_islands} islands", "1: one server serves one island")
        with running(self.load.beside(self.target.url), self.cores.load) as runner:
            segment = _Segment(self, workload, loop, span_ns, run, starts_ns, runner)
            with urgent(self.cores):
                rows, start_ns = asyncio.run(
                    replay_open_loop(
                        self.target,
                        workload.trace,
                        self.deadlines,
                        lead_s=self.lead_s,
                        salt=self._next_salt(workload.trace),
                        spin_ns=spin_ns(self.cores),
                        beside=segment.beside,
                    )
                )
            executed = runner.finish()
        found = run_of(rows, start_ns, workload.trace, ran(executed, start_ns))
        decided = replayed(found, executed, start_ns)
        return replace(decided, decisions=tuple(segment.decisions), scrapes=tuple(segment.scrapes))


class _Segment:
    """What goes on beside the requests of one segment."""

    def __init__(
        self,
        server: LiveServer,
        workload: Workload,
        loop: ControlLoop,
        span_ns: int,
        run: SchedulerRun | None,
        starts_ns: Sequence[int],
        runner: Runner,
    ) -> None:
        self.server, self.trace, self.loop, self.span_ns, self.run = server, workload.trace, loop, span_ns, run
        self.starts_ns, self.runner = starts_ns, runner
        self.decisions: list[LiveDecision] = []
        self.scrapes: list[Scrape] = []
        self.rows: Sequence[Row] = ()
        self.start_ns = 0

    async def beside(self, http: Any, rows: Sequence[Row], start_ns: int) -> None:
        """Scrape and merge until the segment is over, whatever the server does meanwhile."""
        self.rows, self.start_ns = rows, start_ns
        scraping = asyncio.create_task(self._scrape(http))
        try:
            await until(start_ns)
            await (self._scheduled() if self.run is None else self._decided(self.run))
            await until(start_ns + self.span_ns)
        finally:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)

    async def _scheduled(self) -> None:
        for due_ns in self.starts_ns:
            await until(self.start_ns + due_ns)
            self._merge()

    async def _decided(self, run: SchedulerRun) -> None:
        loop = self.loop
        while (due_ns := loop.due_ns) is not None:
            await until(self.start_ns + due_ns)
            seen = None if loop.forced else loop.observe((self._state(),))
            asked_ns = self._now()
            said = None if seen is None else await asyncio.to_thread(ask, run, seen)
            answered_ns = self._now()
            # An answer so late that its merge would leave the horizon comes to nothing.
            fits = answered_ns + loop.corridor.merge_ns <= loop.corridor.horizon_ns + MERGE_WITHIN_NS
            merge = said is not False and fits
            self.decisions.append(LiveDecision(due_ns, asked_ns, answered_ns, merge, said, seen))
            if merge:
                loop.merge(self._merge())
            elif seen is None:
                return
            else:
                loop.wait()
                self._skip()

    def _skip(self) -> None:
        """Pass over decisions that a late answer has made pointless; one that H_max imposes stays."""
        loop = self.loop
        while (due_ns := loop.due_ns) is not None and not loop.forced:
            now_ns = self._now()
            if due_ns + loop.corridor.grid_ns > now_ns:
                return
            self.decisions.append(LiveDecision(due_ns, now_ns, now_ns, False))
            loop.wait()

    def _merge(self) -> int:
        """Have the load run a merge from now on; when that is."""
        now_ns = time.monotonic_ns()
        self.runner.add(now_ns, now_ns + self.loop.corridor.merge_ns)
        return now_ns - self.start_ns

    def _now(self) -> int:
        return time.monotonic_ns() - self.start_ns

    # Telemetry -------------------------------------------------------------------------------------------------------

    async def _scrape(self, http: Any) -> None:
        server = self.server
        period_ns = int(server.scrape_s * NS_PER_S)
        due_ns = time.monotonic_ns()
        while True:
            gauges = await _gauges(http, f"{server.target.url.rstrip('/')}/metrics", max(1.0, server.scrape_s))
            running, waiting = (None, None) if gauges is None else (gauges.running, gauges.waiting)
            self.scrapes.append(Scrape(self._now(), running, waiting, self._outstanding()))
            # After a look that took long, the next one comes at its own time, not at once.
            due_ns = max(due_ns + period_ns, time.monotonic_ns() + period_ns // 4)
            await asyncio.sleep((due_ns - time.monotonic_ns()) / NS_PER_S)

    def _outstanding(self) -> int:
        """Requests sent and not ended, by the client's own count."""
        return sum(row.sent_ns >= 0 and row.ended_ns < 0 for row in self._arrived())

    def _arrived(self) -> Sequence[Row]:
        return self.rows[: int(np.searchsorted(self.trace.arrival_ns, self._now(), side="right"))]

    def _state(self) -> ServingState:
        """The server now: its own gauges where they are fresh, the client's counts for the rest."""
        now_ns = self._now()
        served = [
            (row, origin)
            for row, origin in zip(self._arrived(), self.trace.arrival_ns.tolist(), strict=False)
            if row.ended_ns >= 0 and row.failure is None
        ]
        recent = [(row, self.start_ns + at) for row, at in served if row.ended_ns - self.start_ns > now_ns - RECENT_NS]
        return state_of(
            self.scrapes,
            now_ns,
            self.server.slots,
            self._outstanding(),
            len(served),
            _mean_s([row.completion.last_ns - origin for row, origin in recent]),
            _mean_s([row.completion.first_ns - at for row, at in recent if row.completion.streamed]),
        )


async def _gauges(http: Any, url: str, patience_s: float) -> Gauges | None:
    """One look at the metrics page; None when there is none, or not in time, or not with known gauges."""
    try:
        async with asyncio.timeout(patience_s), http.get(url, trace_request_ctx=Row()) as answer:
            return read_gauges(await answer.text()) if answer.status == 200 else None
    except Exception:  # whatever is wrong with the page, the session goes on with the client's own counts
        return None


def _mean_s(values_ns: Sequence[int]) -> float | None:
    return sum(values_ns) / len(values_ns) / NS_PER_S if values_ns else None
