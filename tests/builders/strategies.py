"""Hypothesis strategies, a toy sidecar whose every latency is known by hand, and small campaigns on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.campaign.plan import Plan, Setting
from protocol.campaign.run import run
from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, Head, versions
from protocol.cli import pages
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.gates.spec import Spec
from protocol.merging.corridor import Corridor
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, REFUSED, SERVED, Measurements, exposure_ns
from protocol.replay.sidecar import ServingState
from protocol.scheduler import Decision, Observation
from protocol.workload.learner import ModelledLearner
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace, StepFunction, Workload

S = 1_000_000_000
MS = 1_000_000

#: Latency of a request that arrives outside and inside a merge.
QUICK_NS, SLOW_NS = 400 * MS, 2 * S


# Strategies ------------------------------------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn, most: int = 30, span_ns: int = 200, islands: int = 3) -> RequestTrace:
    """Traces with many ties, on a clock coarse enough that events meet."""
    n = draw(st.integers(0, most))
    n_islands = draw(st.integers(1, islands))
    column = lambda low, high: draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    return RequestTrace(
        np.array(sorted(column(0, span_ns)), np.int64),
        np.array(column(1, 5), np.int32),
        np.array(column(1, 5), np.int32),
        np.array(column(0, n_islands - 1), np.int16),
        n_islands,
    )


@st.composite
def schedules(draw: st.DrawFn, n_islands: int, span_ns: int = 200, most: int = 6) -> Schedule:
    """Valid schedules in which each merge occupies some of the islands."""
    start, busy = [], []
    now, free = 0, np.zeros(n_islands, np.int64)
    for _ in range(draw(st.integers(0, most))):
        now += draw(st.integers(0, span_ns // 4))
        who = [i for i in range(n_islands) if free[i] <= now and draw(st.booleans())]
        if not who:
            continue
        row = np.zeros(n_islands, np.int64)
        for i in who:
            row[i] = draw(st.integers(1, span_ns // 4))
            free[i] = now + row[i]
        start.append(now)
        busy.append(row)
    return Schedule(np.array(start, np.int64), np.array(busy, np.int64).reshape(len(start), n_islands))


@st.composite
def step_functions(draw: st.DrawFn, span_ns: int = 50) -> StepFunction:
    edges = sorted(draw(st.sets(st.integers(1, span_ns), max_size=8)))
    values = draw(st.lists(st.floats(0, 1), min_size=len(edges) + 1, max_size=len(edges) + 1))
    return StepFunction(np.array([0, *edges], np.int64), np.array(values))


@st.composite
def measurements(draw: st.DrawFn, most: int = 20) -> Measurements:
    """Served, failed and refused requests with latencies on both sides of small limits."""
    n = draw(st.integers(0, most))
    column = lambda s: draw(st.lists(s, min_size=n, max_size=n))  # noqa: E731
    outcome = np.array(column(st.sampled_from([SERVED, SERVED, SERVED, FAILED, REFUSED])), np.int8)
    served = outcome == SERVED
    e2e = np.where(served, column(st.integers(5, 40)), -1)
    return Measurements(
        arrival_ns=np.array(sorted(column(st.integers(0, 100))), np.int64),
        sent_ns=np.array(column(st.integers(0, 100)), np.int64),
        ttft_ns=np.where(served, np.minimum(column(st.integers(-1, 40)), e2e), -1),
        e2e_ns=e2e,
        max_itl_ns=np.where(served, column(st.integers(-1, 20)), -1),
        prompt_tokens=np.array(column(st.integers(1, 9)), np.int32),
        output_tokens=np.where(served, column(st.integers(1, 9)), 0),
        outcome=outcome,
        island=np.zeros(n, np.int16),
        exposure_ns=np.array(column(st.integers(0, 50)), np.int64),
    )


# A toy sidecar ---------------------------------------------------------------------------------------------------


class ToyLoaded:
    """A request takes SLOW_NS when it arrives while its island merges, else QUICK_NS.

    Every 50th request takes SLOW_NS whatever happens, so that the no-sync rate is not zero.
    """

    def __init__(self, trace: RequestTrace) -> None:
        self.trace = trace

    def e2e_ns(self, schedule: Schedule) -> NDArray[np.int64]:
        trace = self.trace
        inside = np.zeros(len(trace), bool)
        for island in range(trace.n_islands):
            begin, end = schedule.windows_ns(island)
            k = np.searchsorted(begin, trace.arrival_ns, side="right") - 1
            if len(begin):
                inside |= (trace.island == island) & (k >= 0) & (trace.arrival_ns < end[np.maximum(k, 0)])
        inside[::50] = True
        return np.where(inside, SLOW_NS, QUICK_NS).astype(np.int64)

    def replay(self, schedule: Schedule) -> Measurements:
        e2e = self.e2e_ns(schedule)
        return self._rows(e2e, exposure_ns(self.trace, e2e, schedule))

    def _rows(self, e2e: NDArray[np.int64], exposure: NDArray[np.int64]) -> Measurements:
        trace = self.trace
        return Measurements(
            arrival_ns=trace.arrival_ns,
            sent_ns=trace.arrival_ns,
            ttft_ns=e2e // 2,
            e2e_ns=e2e,
            max_itl_ns=e2e // 4,
            prompt_tokens=trace.prompt_tokens,
            output_tokens=trace.output_tokens,
            outcome=np.zeros(len(trace), np.int8),
            island=trace.island,
            exposure_ns=exposure,
        )

    def violations(self, schedules: list[Schedule], slo: Slo) -> NDArray[np.int64]:
        nothing = np.zeros(len(self.trace), np.int64)  # no limit looks at exposure
        missed = [self._rows(self.e2e_ns(schedule), nothing).violates(slo).sum() for schedule in schedules]
        return np.array(missed, np.int64)

    def merge_cost(
        self, start_ns: NDArray[np.int64], merge_ns: int, slo: Slo, like: Schedule | None = None
    ) -> NDArray[np.float64]:
        idle = self.replay(Schedule.empty(self.trace.n_islands)).violates(slo).sum()
        one = Schedule.all_islands(np.zeros(1, np.int64), merge_ns, self.trace.n_islands) if like is None else like
        applied = one.applied_ns
        alone = [
            replace(one, start_ns=one.start_ns + s, applied_ns=None if applied is None else applied + s)
            for s in start_ns
        ]
        return (self.violations(alone, slo) - idle).astype(np.float64)

    def session(self, send_slowdown: float | None = None) -> ToySession:
        return ToySession(self)


class ToySession:
    """Checks the order of the calls that the rollout makes."""

    def __init__(self, loaded: ToyLoaded) -> None:
        self.loaded = loaded
        self.now_ns = 0
        self.starts: list[int] = []
        self.busy: list[NDArray[np.int64]] = []
        self.applied: list[tuple[int, int]] = []
        self.finished = False

    def _schedule(self) -> Schedule:
        busy = np.array(self.busy, np.int64).reshape(len(self.starts), self.loaded.trace.n_islands)
        applied = np.array(self.applied, np.int64) if self.applied else None
        return Schedule(np.array(self.starts, np.int64), busy, applied_ns=applied)

    def add_merge(self, start_ns: int, busy_ns: NDArray[np.int64], applied_ns: tuple[int, int] | None = None) -> None:
        assert start_ns >= self.now_ns and not self.finished
        self.starts.append(start_ns)
        self.busy.append(busy_ns.copy())
        if applied_ns is not None:
            self.applied.append(applied_ns)

    def advance(self, until_ns: int) -> None:
        assert until_ns >= self.now_ns and not self.finished
        self.now_ns = until_ns

    def observe(self, now_ns: int) -> tuple[ServingState, ...]:
        assert now_ns == self.now_ns
        trace, e2e_ns, states = self.loaded.trace, self.loaded.e2e_ns(self._schedule()), []
        ends_ns = trace.arrival_ns + e2e_ns
        for island in range(trace.n_islands):
            mine = (trace.island == island) & (trace.arrival_ns < now_ns)
            done = mine & (ends_ns <= now_ns)
            recent = done & (ends_ns > now_ns - 5 * S)
            states.append(
                ServingState(
                    serving_pressure=min(1.0, int((mine & ~done).sum()) / 8),
                    in_flight=int((mine & ~done).sum()),
                    queued=island,
                    completed=int(done.sum()),
                    recent_e2e_s=float(e2e_ns[recent].mean()) / S if recent.any() else None,
                    recent_ttft_s=float((e2e_ns[recent] // 2).mean()) / S if recent.any() else None,
                )
            )
        return tuple(states)

    def finish(self) -> Measurements:
        self.finished = True
        return self.loaded.replay(self._schedule())


class ToySidecar:
    name = "toy"
    calibrated = False

    def load(self, trace: RequestTrace, rng: np.random.Generator) -> ToyLoaded:
        return ToyLoaded(trace)

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


# Toy contenders --------------------------------------------------------------------------------------------------


class FunctionRun:
    """A scheduler run made of one function of (observation, rng); notes what it saw."""

    def __init__(self, function: Callable[[Observation, np.random.Generator], object], words: tuple[int, ...] = (0,)):
        self.function, self.rng = function, np.random.default_rng(words)
        self.seen: list[Observation] = []
        self.closed = False

    def decide(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        answer = self.function(observation, self.rng)
        return answer if isinstance(answer, Decision) else Decision(bool(answer))

    def close(self) -> None:
        self.closed = True


@dataclass
class FunctionSource:
    """A scheduler source around such a function."""

    function: Callable[[Observation, np.random.Generator], object]
    name: str = "toy-scheduler"
    kind: Literal["scheduler", "planner", "recorded"] = "scheduler"
    deployable: bool = True
    clock_shift_s: float = 0.0

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> FunctionRun:
        return FunctionRun(self.function, seed_words)

    def digest(self) -> str:
        return "0" * 64

    def close(self) -> None:
        """Nothing was opened."""

    def describe(self) -> dict[str, object]:
        return {"deployable": self.deployable, "digest": self.digest()}


@dataclass
class PlanSource:
    """A planner around a function of (trace, corridor, budget)."""

    function: Callable[[RequestTrace, Corridor, int], Schedule]
    name: str = "toy-planner"
    kind: Literal["planner", "recorded"] = "planner"
    deployable: bool = False
    clock_shift_s: float = 0.0

    def plan(
        self, trace: RequestTrace, corridor: Corridor, budget: int, seed_words: tuple[int, ...],
        sidecar: object = None, slo: Slo | None = None,
    ) -> Schedule:  # fmt: skip
        return self.function(trace, corridor, budget)

    def describe(self) -> dict[str, object]:
        return {"deployable": False, "digest": "0" * 64}

    def close(self) -> None:
        """Nothing was opened."""


def quiet(obs: Observation, rng: np.random.Generator) -> bool:
    """Merge when the last full second brought few requests: sees the load."""
    return bool(len(obs.arrivals_per_s) and obs.arrivals_per_s[-1] <= 4)


def busy(obs: Observation, rng: np.random.Generator) -> bool:
    """Merge at the worst moments."""
    return bool(len(obs.arrivals_per_s) and obs.arrivals_per_s[-1] > 4)


def coin(obs: Observation, rng: np.random.Generator) -> bool:
    """Does not look."""
    return bool(rng.random() < 0.2)


# Small campaigns -------------------------------------------------------------------------------------------------

CORRIDOR = Corridor(h_min=8, h_max=40, decision_steps=4, step_ns=S // 4, merge_ns=2 * S, horizon_ns=120 * S)
LEARNER = ModelledLearner(floor=2.0, scale=1.0, offset_steps=100.0, exponent=1.0, tokens_per_step=2048)
SLOS = ("e2e<=1000ms",)


def bursty(seed: int | str, n_islands: int = 1, span_s: int = 125) -> RequestTrace:
    """Spells of 4 to 8 s with about 12 or 2 requests a second, in random phase."""
    rng = np.random.default_rng([ord(c) for c in f"bursty {seed}"])
    rate = np.zeros(span_s)
    at, high = 0, bool(rng.integers(2))
    while at < span_s:
        spell = int(rng.integers(4, 9))
        rate[at : at + spell] = 12.0 if high else 2.0
        at, high = at + spell, not high
    counts = rng.poisson(rate)
    arrival = np.sort(np.repeat(np.arange(span_s) * S, counts) + rng.integers(0, S, counts.sum()))
    n = len(arrival)
    return RequestTrace(
        arrival, rng.integers(1, 50, n), rng.integers(2, 60, n), rng.integers(0, n_islands, n), n_islands, f"s{seed}"
    )


@dataclass(frozen=True)
class ToyWorlds:
    n_islands: int = 1
    same: bool = False

    def workload(self, seed: int) -> Workload:
        flat = StepFunction.constant(0.25)
        return Workload(bursty(0 if self.same else seed, self.n_islands), flat, StepFunction.constant(0.0))

    def other(self, seed: int, probe: int) -> Workload:
        flat = StepFunction.constant(0.75)
        return Workload(bursty(f"{seed} other {probe}", self.n_islands), flat, StepFunction.constant(0.5))


def setting(name: str = "toy", n_seeds: int = 10, slos: tuple[str, ...] = SLOS, **changes: Any) -> Setting:
    plain = Setting(
        name=name,
        corridor=CORRIDOR,
        worlds=ToyWorlds(),
        sidecar=ToySidecar(),
        learner=LEARNER,
        slos=tuple(Slo.parse(text) for text in slos),
        n_seeds=n_seeds,
        planner_budget=12,
    )
    return replace(plain, **changes)


def described(s: Setting, **changes: object) -> dict[str, Any]:
    keys = ("h_min", "h_max", "decision_steps", "step_ns", "merge_ns", "horizon_ns")
    return {
        "name": s.name,
        "version": 1,
        "digest": "1" * 64,
        "summary": "bursts",
        "islands": 1,
        "corridor": {key: getattr(s.corridor, key) for key in keys},
        "n_seeds": s.n_seeds,
        "slos": [str(slo) for slo in s.slos],
        "sidecar": {"name": "toy", "calibrated": False},
        "tokens_per_step": s.learner.tokens_per_step,
        **({} if s.practice.ordinary else {"merge": s.practice.model_dump(mode="json")}),
        **changes,
    }


def plan_of(source: object, draws: int = 19) -> Plan:
    return Plan(lambda: source, "toy", 7, draws, control_draws=5, probes=1)  # type: ignore[arg-type, return-value]


def head_for(
    source: object, settings: list[Setting], alpha: float = 0.05, min_effect_pp: float = 0.0, **changes: Any
) -> Head:
    """What was asked of `plan_of`; changes : of the settings."""
    return Head.model_validate({
        "contender": {"name": source.name, "kind": source.kind, **source.describe()},  # type: ignore[attr-defined]
        "settings": {"root_seed": 7, "draws": 19, "control_draws": 5, "probes": 1, "alpha": alpha,
                     "min_effect_pp": min_effect_pp, **changes},
        "versions": versions(),
        "preregistration": None,
        "regimes": [described(s) for s in settings],
    })  # fmt: skip


def spec_for(found: Sequence[Evidence], **changes: Any) -> Spec:
    """What the gates judge a toy regime's seeds by."""
    head = head_for(FunctionSource(quiet), [setting(n_seeds=len(found))])
    return replace(head.spec(head.regimes[0]), **changes)


@cache
def ran(function: Callable[..., object] = quiet, n_seeds: int = 10) -> tuple[Evidence, ...]:
    """Evidence of a toy scheduler; treat it as read-only."""
    return tuple(run(plan_of(FunctionSource(function)), [setting(n_seeds=n_seeds)], jobs=1))


def changed(e: Evidence, **changes: Any) -> Evidence:
    """The same seed with some fields, and copies of its dictionaries, changed."""
    return replace(e, **{"simulated": dict(e.simulated), "placed": dict(e.placed), **changes})


def write_folder(folder: Path, head: Head, found: Sequence[Evidence], calibrations: Sequence[Path] = ()) -> Certificate:
    """An output folder as far as `verify` reads it: no pages."""
    return pages.write_folder(folder, assess(head, found), head, partial(store.write, found), None, calibrations)
