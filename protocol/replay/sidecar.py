"""The interface between the domain and whatever serves requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace


@dataclass(frozen=True)
class ServingState:
    """One island's sidecar at a moment; counts only events at or before that moment."""

    serving_pressure: float
    in_flight: int
    queued: int
    completed: int
    recent_e2e_s: float | None
    recent_ttft_s: float | None
    #: Seconds since its gauges were read; 0 where they are those of this moment.
    telemetry_age_s: float = 0.0


class Session(Protocol):
    """A replay that is still going on: merges are added as they are decided, never in the past."""

    def add_merge(self, start_ns: int, busy_ns: NDArray[np.int64], applied_ns: tuple[int, int] | None = None) -> None:
        """A merge that starts at `start_ns`, at or after the time last advanced to; busy_ns per island.

        applied_ns : begin and end of the window in which it is applied, where there is one.
        """

    def advance(self, until_ns: int) -> None:
        """Serve everything that begins before `until_ns`."""

    def observe(self, now_ns: int) -> tuple[ServingState, ...]:
        """State per island at `now_ns`, to which the session has been advanced."""

    def finish(self) -> Measurements:
        """Serve what is left and return the same rows that `replay` of the finished schedule returns."""


class LoadedSidecar(Protocol):
    """A sidecar with one trace loaded; every arm of a seed goes through the same object."""

    trace: RequestTrace

    def replay(self, schedule: Schedule) -> Measurements: ...

    def violations(self, schedules: list[Schedule], slo: Slo) -> NDArray[np.int64]:
        """Number of requests that violate the SLO under each schedule, shape (len(schedules),)."""

    def merge_cost(
        self, start_ns: NDArray[np.int64], merge_ns: int, slo: Slo, like: Schedule | None = None
    ) -> NDArray[np.float64]:
        """Extra violations caused by one all-islands merge alone, for each start; shape of `start_ns`.

        like : one merge at time 0 whose windows and slowdown it has, in place of merge_ns.
        """

    def session(self, send_slowdown: float | None = None) -> Session:
        """send_slowdown : of iterations while a merge sends; None: the sidecar's own of a merge."""


class Sidecar(Protocol):
    """A server or a model of one."""

    name: str
    calibrated: bool

    def load(self, trace: RequestTrace, rng: np.random.Generator) -> LoadedSidecar:
        """Ready the sidecar for a trace; `rng` seeds its measured noise, the same in every arm."""

    def describe(self) -> Mapping[str, object]:
        """Plain values that identify the sidecar in a certificate."""
