"""One replay: a trace under one schedule, as it was served.  Every tier's evidence is made of these.

Whether a replay counts is never stored but follows from its rows and merges, so that nobody can drop a valid one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.replay.measurements import Measurements
from protocol.scheduler import Observation
from protocol.workload.trace import NS_PER_S, frozen

#: Arms of a claim: the scheduler's schedule, no merge at all (draw k: its k-th replay), the matched random draws.
POLICY, NO_SYNC, UNIFORM = "policy", "no-sync", "uniform"
#: A replay counts when this share of its requests was sent within this delay of schedule ...
SENT_SHARE, SENT_WITHIN_NS = 0.99, 5_000_000
#: ... and every merge began and ended within this time of schedule.
MERGE_WITHIN_NS = 50_000_000


@dataclass(frozen=True)
class LiveDecision:
    """One decision taken while a real server served; times in nanoseconds since the replay began.

    due_ns : when it was due.  asked_ns, answered_ns : when the observation was handed over, and the answer there.
    merge : whether a merge followed.  said : what the scheduler answered; None where nobody was asked, because H_max
        imposed the merge or an earlier answer came after this decision was due.  seen : the observation behind `said`.
    """

    due_ns: int
    asked_ns: int
    answered_ns: int
    merge: bool
    said: bool | None = None
    seen: Observation | None = None


@dataclass(frozen=True)
class Scrape:
    """One look at the server's metrics; gauges are None when it failed, `client` is the client's own count."""

    at_ns: int
    running: int | None
    waiting: int | None
    client: int


@dataclass(frozen=True, eq=False)
class Replay:
    """One attempt at one arm of one seed (live: of one block); times in nanoseconds since the trace began.

    planned_ns, ran_ns : int64, shape (K, 2), begin and end of each merge, as asked or decided and as executed; empty in
        simulation, where the stored placements are what ran.
    may_end_early : the merge load does one thing a window, however long that takes.  died : why the load ended before
        its last merge, or None.
    failures : requests that were not served, by cause.  decisions, scrapes : of live operation.
    draw : which of the arm's schedules.  position : its place in the order of its seed's replays.  attempt : from 1 on.
    started : UTC, ISO 8601.  wall_s : seconds that it took.
    """

    rows: Measurements
    planned_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    ran_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    may_end_early: bool = False
    died: str | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[LiveDecision, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    regime: str = ""
    seed: int = 0
    arm: str = POLICY
    draw: int = 0
    position: int = 0
    attempt: int = 1
    started: str = ""
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("planned_ns", "ran_ns"):
            object.__setattr__(self, name, frozen(np.reshape(getattr(self, name), (-1, 2)), "i8"))

    @property
    def what(self) -> str:
        return f"seed {self.seed}, {named(self.arm, self.draw)}"

    @property
    def n_merges(self) -> int:
        """Merges that really ran."""
        return len(self.ran_ns)

    @property
    def busy_ns(self) -> int:
        return int((self.ran_ns[:, 1] - self.ran_ns[:, 0]).sum())

    @property
    def send_delay_ns(self) -> NDArray[np.int64]:
        """Sent minus scheduled, of the requests that were sent."""
        sent = self.rows.sent_ns >= 0
        return (self.rows.sent_ns - self.rows.arrival_ns)[sent]

    @property
    def sent_share(self) -> float:
        """Share of requests that were sent within SENT_WITHIN_NS of schedule; one never sent counts as late."""
        return float(np.count_nonzero(self.send_delay_ns <= SENT_WITHIN_NS)) / len(self.rows) if len(self.rows) else 1.0

    @property
    def achieved_rate(self) -> float:
        """Requests sent by the last scheduled arrival over those scheduled; at most 1."""
        m = self.rows
        due_ns = int(m.arrival_ns.max(initial=0)) + SENT_WITHIN_NS
        return float(np.count_nonzero((m.sent_ns >= 0) & (m.sent_ns <= due_ns))) / len(m) if len(m) else 1.0

    @property
    def invalid(self) -> str | None:
        """Why this replay may not be judged, or None: a late client, or merges off their schedule."""
        if self.sent_share < SENT_SHARE:
            return (
                f"{100 * self.sent_share:.2f} % of requests were sent within {SENT_WITHIN_NS / 1e6:g} ms of schedule; "
                f"expected at least {100 * SENT_SHARE:g} %"
            )
        if len(self.ran_ns) != len(self.planned_ns):
            why = f": {self.died}" if self.died else ""
            return f"{len(self.ran_ns)} of {len(self.planned_ns)} merges ran{why}"
        off = self.ran_ns - self.planned_ns
        early = (off[:, 1] < -MERGE_WITHIN_NS) & (not self.may_end_early)
        for k in np.flatnonzero((np.abs(off[:, 0]) > MERGE_WITHIN_NS) | (off[:, 1] > MERGE_WITHIN_NS) | early)[:1]:
            began, ended = off[k] / 1e6
            return (
                f"merge {k + 1} began {began:+.0f} ms and ended {ended:+.0f} ms off its schedule; "
                f"expected within {MERGE_WITHIN_NS / 1e6:.0f} ms"
            )
        return None

    def inside(self, horizon_ns: int) -> tuple[int, float]:
        """Merges, and seconds busy merging, by the execution log inside the measured horizon."""
        begin, end = np.clip(self.ran_ns, 0, horizon_ns).T
        return int(np.count_nonzero(end > begin)), float((end - begin).sum()) / NS_PER_S


def named(arm: str, draw: int) -> str:
    """How an arm's replay is called: by its number where there are several."""
    return f"{arm} {draw}" if arm != POLICY else arm


def summary(r: Replay) -> dict[str, Any]:
    """What a certificate states of one attempt on a real server."""
    served = int((r.rows.outcome == 0).sum())
    return {
        "regime": r.regime,
        "seed": r.seed,
        "arm": r.arm,
        "draw": r.draw,
        "position": r.position,
        "attempt": r.attempt,
        "started": r.started,
        "wall_s": r.wall_s,
        "requests": len(r.rows),
        "served": served,
        "failures": dict(sorted(r.failures.items())),
        "merges": r.n_merges,
        "busy_s": r.busy_ns / NS_PER_S,
        "asked": sum(d.said is not None for d in r.decisions),
        "scrapes": len(r.scrapes),
        "scrapes_failed": sum(s.running is None for s in r.scrapes),
        "invalid": r.invalid,
    }
