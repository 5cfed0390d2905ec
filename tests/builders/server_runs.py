"""The toy scheduler on a toy server that is all that it should be: replayed (tier 3) and live (tier 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from strategies import CORRIDOR, LEARNER, MS, FunctionSource, ToyLoaded, ToyWorlds, head_for, quiet, ran, setting

from protocol.campaign import live, real
from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, CheckPart, Head
from protocol.evidence.model import Evidence
from protocol.gates.spec import Spec
from protocol.merging.schedule import Schedule
from protocol.placement.rollout import ControlLoop, ask
from protocol.replay.measurements import exposure_ns
from protocol.replay.replay import LiveDecision, Replay, Scrape
from protocol.scheduler import SchedulerRun
from protocol.workload.trace import RequestTrace, Workload

DRAWS, ATTEMPTS = 19, 3
Server = Callable[[RequestTrace, Schedule, np.random.Generator], Replay]


def seen(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Replay:
    """The toy sidecar with 0.1 ms of send delay, 5 ms of merge jitter, and latencies that vary a little."""
    m = ToyLoaded(trace).replay(schedule)
    e2e = np.rint(m.e2e_ns * rng.uniform(1.0, 1.05, len(m))).astype(np.int64)
    planned = np.stack(schedule.windows_ns(0), axis=1)
    ran_ns = planned + rng.integers(0, 5 * MS, planned.shape)
    executed = Schedule(ran_ns[:, 0], (ran_ns[:, 1] - ran_ns[:, 0])[:, None])
    m = replace(m, sent_ns=m.arrival_ns + MS // 10, e2e_ns=e2e, exposure_ns=exposure_ns(trace, e2e, executed))
    return Replay(m, planned, ran_ns)


# Tier 3 ----------------------------------------------------------------------------------------------------------


def replayed(
    server: Server = seen, function: Callable[..., object] = quiet, n_seeds: int = 10, attempts: int = ATTEMPTS
) -> list[Evidence]:
    """Every seed with its replays, made one after the other."""
    rng = np.random.default_rng(5)
    return real.run(
        ran(function, n_seeds), setting(n_seeds=n_seeds), 7, DRAWS, lambda t, s: server(t, s, rng), lambda r: None,
        attempts=attempts,
    )  # fmt: skip


@cache
def sound() -> tuple[Evidence, ...]:
    """Ten seeds in which nothing is wrong."""
    return tuple(replayed())


# Tier 4 ----------------------------------------------------------------------------------------------------------


@dataclass
class ToyServer:
    """Serves live, on a clock that is the trace's; answers come 2 ms after a decision is due."""

    replays: int = 0

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Replay:
        self.replays += 1
        trace, busy = workload.trace, np.array([CORRIDOR.merge_ns])
        session, decisions, starts = ToyLoaded(trace).session(), [], list(starts_ns)
        while run is not None and (due_ns := loop.due_ns) is not None:
            session.advance(due_ns)
            shown = None if loop.forced else loop.observe(session.observe(due_ns))
            said = None if shown is None else ask(run, shown)
            decisions.append(LiveDecision(due_ns, due_ns + MS, due_ns + 2 * MS, said is not False, said, shown))
            if said is False:
                loop.wait()
                continue
            loop.merge(due_ns + 2 * MS)
            session.advance(due_ns + 2 * MS)
            session.add_merge(due_ns + 2 * MS, busy)
            starts.append(due_ns + 2 * MS)
        made = seen(trace, Schedule.all_islands(np.array(starts, np.int64), CORRIDOR.merge_ns),
                    np.random.default_rng([3, self.replays]))  # fmt: skip
        return replace(made, decisions=tuple(decisions), scrapes=(Scrape(0, 3, 0, 3), Scrape(500 * MS, None, None, 2)))


def session_plan(blocks: int) -> live.SessionPlan:
    return live.SessionPlan("toy", CORRIDOR, LEARNER, ToyWorlds(), 7, blocks, CORRIDOR.horizon_ns, 0.0)


@cache
def session(function: Callable[..., object] = quiet, blocks: int = 10) -> tuple[Evidence, ...]:
    """A live session; treat it as read-only."""
    return tuple(live.run(session_plan(blocks), ToyServer(), FunctionSource(function)))


# What is judged ---------------------------------------------------------------------------------------------------


def server_head(back_end: str, n_seeds: int = 10, function: Callable[..., object] = quiet, **changes: Any) -> Head:
    """What was asked; changes : of the settings."""
    own: dict[str, Any] = {"idle": 2, "attempts": ATTEMPTS, "draws": DRAWS} if back_end == "real" else {
        "idle": 3, "draws": 1, "control_draws": 0, "probes": 0}  # fmt: skip
    asked = head_for(
        FunctionSource(function), [setting(n_seeds=n_seeds)], **{"back_end": back_end, **own, **changes}
    ).plain()
    return Head.model_validate({**asked, "server": {"name": "toy 1.0", "version": "1.0", "merge_load": "none"}})


def server_spec(back_end: str, found: Sequence[Evidence], **changes: Any) -> Spec:
    asked = server_head(back_end, len(found))
    return replace(asked.spec(asked.regimes[0]), **changes)


def calibrated(asked: Head, runs: list[dict[str, Any]]) -> Head:
    """The same with a calibration of these runs behind its simulated sidecar."""
    values = asked.plain()
    values["regimes"][0]["sidecar"]["calibration"] = {"server": "toy", "date": "2026-06-01", "runs": runs}
    return Head.model_validate(values)


def with_replays(e: Evidence, made: Sequence[Replay]) -> Evidence:
    return replace(e, served=tuple(made))


def swapped(found: Sequence[Evidence], seed: int, arm: str, draw: int = 0, **changes: Any) -> list[Evidence]:
    """The same seeds with one replay changed."""
    return [
        with_replays(e, [replace(r, **changes) if (r.arm, r.draw) == (arm, draw) else r for r in e.served])
        if e.seed == seed
        else e
        for e in found
    ]


def without(found: Sequence[Evidence], seed: int, arm: str, draw: int | None = None) -> list[Evidence]:
    """The same seeds without some replays of one."""
    return [
        with_replays(e, [r for r in e.served if r.arm != arm or draw not in (None, r.draw)]) if e.seed == seed else e
        for e in found
    ]


def replay_of(found: Sequence[Evidence], seed: int, arm: str, draw: int = 0) -> Replay:
    made = found[seed].replay(arm, draw)
    assert made is not None
    return made


Statuses = dict[tuple[str, str], str]


def judged(back_end: str, found: Sequence[Evidence], **changes: Any) -> tuple[Certificate, Statuses]:
    """The certificate, and the status of every check of its first claim by gate and name."""
    made = assess(server_head(back_end, changes.pop("n_seeds", len(found)), **changes), found)
    return made, {(g.gate, c.name): c.status for g in made.claims[0].gates for c in g.checks}


def check_of(made: Certificate, gate: str, name: str) -> CheckPart:
    found = next(g for g in made.claims[0].gates if g.gate == gate)
    return next(c for c in found.checks if c.name == name)
