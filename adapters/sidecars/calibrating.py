"""The runs of a calibration on a real server, and what is made of them.

First a sweep of rates without merges.  Then blocks, each with one on-off run at either load and, in the first two, one
run without merges on the same arrivals (the server's own A/A spread); the order inside a block is random.  In an on-off
run time is cut into slots, and a merge runs at the beginning of a randomly chosen half of them: whether a request
meets a merge is decided by a draw, not by anything that also changes the load.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adapters.sidecars.fitting import fit, simulate
from adapters.sidecars.real import RealSidecar
from adapters.sidecars.simulated import SidecarModel
from protocol import seeds
from protocol.calibration.check import rates, summary
from protocol.calibration.model import (
    IDLE,
    IDLE_BLOCKS,
    ON_OFF,
    SCHEMA,
    SCHEMA_VERSION,
    SWEEP,
    Calibration,
    CalibrationPlan,
    CalibrationRun,
    Provenance,
)
from protocol.errors import SidecarError
from protocol.merging.schedule import Schedule
from protocol.reading import read
from protocol.replay.measurements import SERVED
from protocol.workload.trace import RequestTrace

MODERATE, NEAR_KNEE = "moderate", "near the knee"
#: The knee is the highest swept rate whose p95 is at most this many times the lowest rate's; the loads are its shares.
KNEE_P95, LOAD_SHARES = 2.0, {MODERATE: 0.35, NEAR_KNEE: 0.85}
#: An invalid run (late client, merges off schedule) is made again this often.
ATTEMPTS = 5


def measure(
    sidecar: RealSidecar,
    plan: CalibrationPlan,
    log: Callable[[str], None] = lambda line: None,
    advance: Callable[[float], None] = lambda seconds: None,
    kept: Mapping[str, CalibrationRun] | None = None,
    keep: Callable[[CalibrationRun], None] = lambda run: None,
) -> list[CalibrationRun]:
    """Every run of the plan, on the server.

    kept : runs that need not be made again.  keep : called with each new run.
    Raises SidecarError when a run stays invalid, or when the sweep finds no load that the server can serve.
    """
    runs: list[CalibrationRun] = []
    before = dict(kept or {})

    def one(
        label: str, kind: str, load: str, rate: float, length_s: float, arrivals: str, merges: Schedule
    ) -> CalibrationRun:
        if label not in before:
            trace = plan.trace(arrivals, rate, length_s)
            before[label] = CalibrationRun(label, kind, load, rate, *_replayed(sidecar, trace, merges, log))
            keep(before[label])
        advance(length_s)
        runs.append(before[label])
        return before[label]

    idle = Schedule.empty()
    swept = [one(f"sweep-{r:g}", SWEEP, "sweep", r, plan.sweep_s, f"sweep-{r:g}", idle) for r in plan.rates_per_s]
    loads = dict(zip((MODERATE, NEAR_KNEE), plan.loads_per_s, strict=True)) if plan.loads_per_s else shares(swept)
    log(", ".join(f"{load}: {rate:g} requests/s" for load, rate in loads.items()))
    for block in range(plan.blocks):
        work = [(ON_OFF, load) for load in loads] + [(IDLE, load) for load in loads if block < IDLE_BLOCKS]
        for i in seeds.generator(plan.seed, "calibration", "order", block).permutation(len(work)):
            kind, load = work[i]
            label = f"{kind}-{load.replace(' ', '-')}-{block}"
            if kind == ON_OFF:
                one(label, kind, load, loads[load], plan.on_off_s, label, plan.merges(label))
            else:  # the same arrivals in every block, so that what differs is the server
                one(label, kind, load, loads[load], plan.idle_s, f"idle-{load}", idle)
    return runs


def _replayed(
    sidecar: RealSidecar, trace: RequestTrace, merges: Schedule, log: Callable[[str], None]
) -> tuple[Any, Schedule]:
    """Rows and executed merges of a valid replay.

    Raises SidecarError when none of ATTEMPTS is valid, or when the server served nothing at all.
    """
    for attempt in range(1, ATTEMPTS + 1):
        done = sidecar.replay(trace, merges)
        if not np.any(done.rows.outcome == SERVED):
            causes = ", ".join(f"{cause} ({n})" for cause, n in done.failures.items())
            found = f"{sidecar.target.url} served none of {len(trace)} requests: {causes}"
            raise SidecarError(f"run {trace.name}: {found}")
        if done.invalid is None:
            begin_ns = np.maximum(done.ran_ns[:, 0], 0)
            return done.rows, Schedule(begin_ns, (done.ran_ns[:, 1] - begin_ns)[:, None])
        log(f"{trace.name}, attempt {attempt}: {done.invalid}")
    raise SidecarError(f"run {trace.name}: invalid {ATTEMPTS} times, last: {done.invalid}")


def shares(swept: Sequence[CalibrationRun]) -> dict[str, float]:
    """The two loads as shares of the knee.  Raises SidecarError when the lowest rate is already past it."""
    p95 = {run.rate_per_s: run.measurements.p95_ms(np.ones(len(run.measurements), bool)) for run in swept}
    most = KNEE_P95 * p95[min(p95)]
    good = [
        run.rate_per_s
        for run in swept
        if p95[run.rate_per_s] <= most < np.inf and np.mean(run.measurements.outcome == SERVED) >= 0.99
    ]
    if not good:
        raise SidecarError(f"no swept rate of {', '.join(f'{r:g}' for r in sorted(p95))} requests/s was served well")
    return {name: round(share * max(good), 1) for name, share in LOAD_SHARES.items()}


def conclude(
    runs: Sequence[CalibrationRun],
    plan: CalibrationPlan,
    limits: SidecarModel,
    facts: Mapping[str, Any],
    intervals: bool = True,
) -> Calibration:
    """The calibration, less the digests of its files: fitted model with intervals, and per on-off run what G1 reads.

    The simulated side of each run's percentiles comes from a model fitted without that run's half of the on-off runs,
    so that the agreement is a prediction; either half has every other run of each load.  facts : at least "server",
    "date" and "merge_load".
    """
    on_off = [run for run in runs if run.kind == ON_OFF]
    by_load = sorted(on_off, key=lambda run: run.load)
    rows: dict[str, Any] = {}
    halves: list[SidecarModel] = []
    for half in (0, 1):
        held_out = by_load[half::2]
        without = fit([run for run in runs if run not in held_out], limits, plan.seed, intervals=False).model
        halves.append(without)
        rows |= {run.label: {**summary(run, simulate(without, run, plan.seed)), "half": half} for run in held_out}
    whole = fit(runs, limits, plan.seed, intervals, halves)
    origin = Provenance(server=facts["server"], date=facts["date"])
    found = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **facts,
        "merge_s": plan.merge_s,
        "plan": plan.model_dump(),
        "model": whole.model.replace(provenance=origin).model_dump(),
        "halves": [half.model_dump() for half in halves],
        "intervals": whole.interval,
        "residual": whole.residual,
        "sweep": [rates(run) for run in runs if run.kind == SWEEP],
        "idle": [rates(run) for run in runs if run.kind == IDLE],
        "runs": [rows[run.label] for run in on_off],
        "files": {},
    }
    return read(Calibration, found, "calibration")


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
