"""The runs of a calibration on a real server, and what is made of them.

First a sweep of rates without merges.  Then blocks, each with one on-off run at either load and, in the first two, one
run without merges on the same arrivals (the server's own A/A spread); the order inside a block is random.  In an on-off
run time is cut into slots, and a merge runs at the beginning of a randomly chosen half of them: whether a request
meets a merge is decided by a draw, not by anything that also changes the load.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from adapters.sidecars.fitting import fit, simulate
from adapters.sidecars.real import RealSidecar
from adapters.sidecars.simulated import Calibration, SidecarModel
from protocol import seeds
from protocol.calibration.store import (
    IDLE,
    ON_OFF,
    SCHEMA,
    SCHEMA_VERSION,
    SWEEP,
    Observed,
    p95_ms,
    rates,
    summary,
)
from protocol.errors import BadInput, SidecarError
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import SERVED
from protocol.workload.trace import NS_PER_S, RequestTrace, seconds_to_ns

MODERATE, NEAR_KNEE = "moderate", "near the knee"
#: The knee is the highest swept rate whose p95 is at most this many times the lowest rate's; the loads are its shares.
KNEE_P95, LOAD_SHARES = 2.0, {MODERATE: 0.35, NEAR_KNEE: 0.85}
#: An invalid run (late client, merges off schedule) is made again this often.
ATTEMPTS = 5
#: Blocks that also hold a run without merges.
IDLE_BLOCKS = 2
#: What a slot leaves free after its merge, as a share of the merge.
_REST = 0.5


@dataclass(frozen=True)
class CalibrationPlan:
    """rates_per_s : swept.  loads_per_s : the two rates of the on-off runs, or None to take shares of the knee.
    sweep_s, idle_s : seconds of those runs.  slots : of an on-off run, even.  blocks : on-off runs at either load.
    prompt_tokens, output_tokens : values drawn from.
    """

    seed: int
    merge_s: float
    rates_per_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    loads_per_s: tuple[float, float] | None = None
    blocks: int = 6
    slots: int = 4
    sweep_s: float = 15.0
    idle_s: float = 40.0

    def __post_init__(self) -> None:
        if self.blocks < 2 or self.slots < 2 or self.slots % 2:
            found = f"{self.blocks} blocks of {self.slots} slots"
            raise BadInput("calibration", found, "two or more blocks, and an even number of slots")
        if any(rate <= 0 for rate in (*self.rates_per_s, *(self.loads_per_s or ()))):
            raise BadInput("calibration, rates", str(self.rates_per_s), "rates above 0 requests a second")

    @property
    def slot_s(self) -> float:
        return self.merge_s * (1 + _REST)

    @property
    def on_off_s(self) -> float:
        """Seconds of an on-off run: its slots, and as much again as one rest at the beginning."""
        return self.slots * self.slot_s + self.merge_s * _REST

    @property
    def seconds(self) -> float:
        """Offered load in all, without the drain and set-up of each run."""
        return len(self.rates_per_s) * self.sweep_s + 2 * (self.blocks * self.on_off_s + IDLE_BLOCKS * self.idle_s)

    def trace(self, label: str, rate_per_s: float, length_s: float) -> RequestTrace:
        """Poisson arrivals with independent lengths."""
        rng = seeds.generator(self.seed, "calibration", label)
        n = int(rng.poisson(rate_per_s * length_s))
        arrival = np.sort(rng.uniform(0, length_s, n))
        prompt, output = rng.choice(self.prompt_tokens, n), rng.choice(self.output_tokens, n)
        return RequestTrace((arrival * NS_PER_S).astype(np.int64), prompt, output, name=label)

    def merges(self, label: str) -> Schedule:
        """One merge in each of a random half of the slots."""
        rng = seeds.generator(self.seed, "calibration", "merges", label)
        on = np.sort(rng.choice(self.slots, self.slots // 2, replace=False))
        start_s = self.merge_s * _REST + on * self.slot_s
        return Schedule.all_islands((start_s * NS_PER_S).astype(np.int64), seconds_to_ns(self.merge_s))


def measure(
    sidecar: RealSidecar,
    plan: CalibrationPlan,
    log: Callable[[str], None] = lambda line: None,
    advance: Callable[[float], None] = lambda seconds: None,
    kept: Mapping[str, Observed] | None = None,
    keep: Callable[[Observed], None] = lambda run: None,
) -> list[Observed]:
    """Every run of the plan, on the server.

    kept : runs that need not be made again.  keep : called with each new run.
    Raises SidecarError when a run stays invalid, or when the sweep finds no load that the server can serve.
    """
    runs: list[Observed] = []
    before = dict(kept or {})

    def one(
        label: str, kind: str, load: str, rate: float, length_s: float, arrivals: str, merges: Schedule
    ) -> Observed:
        if label not in before:
            trace = plan.trace(arrivals, rate, length_s)
            before[label] = Observed(label, kind, load, rate, *_replayed(sidecar, trace, merges, log))
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


def shares(swept: Sequence[Observed]) -> dict[str, float]:
    """The two loads as shares of the knee.  Raises SidecarError when the lowest rate is already past it."""
    p95 = {run.rate_per_s: p95_ms(run.measurements.e2e_ns[run.measurements.outcome == SERVED]) for run in swept}
    slow = p95[min(p95)]
    good = [
        run.rate_per_s
        for run in swept
        if slow and (found := p95[run.rate_per_s]) and found <= KNEE_P95 * slow
        and np.mean(run.measurements.outcome == SERVED) >= 0.99
    ]  # fmt: skip
    if not good:
        raise SidecarError(f"no swept rate of {', '.join(f'{r:g}' for r in sorted(p95))} requests/s was served well")
    return {name: round(share * max(good), 1) for name, share in LOAD_SHARES.items()}


def conclude(
    runs: Sequence[Observed],
    plan: CalibrationPlan,
    limits: SidecarModel,
    facts: Mapping[str, Any],
    intervals: bool = True,
) -> dict[str, Any]:
    """The calibration: fitted model with intervals, and per on-off run what G1 reads.

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
    model = replace(whole.model, provenance=Calibration(str(facts["server"]), str(facts["date"])))
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **facts,
        "merge_s": plan.merge_s,
        "plan": {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(plan).items()},
        "model": {key: value for key, value in asdict(model).items()},
        "halves": [asdict(half) for half in halves],
        "intervals": {key: list(limits_) for key, limits_ in whole.interval.items()},
        "residual": whole.residual,
        "sweep": [rates(run) for run in runs if run.kind == SWEEP],
        "idle": [rates(run) for run in runs if run.kind == IDLE],
        "runs": [rows[run.label] for run in on_off],
    }


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
