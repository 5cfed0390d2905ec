"""Tier 4: block after block, each arm through the same code, on a server that keeps serving.

A block replays one trace five times: without merges, under the scheduler, without, under its matched control, without.
The scheduler's replay comes before its control's, for the control is given as many merges as the scheduler made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.campaign.arms import uncovered
from protocol.campaign.plan import Worlds
from protocol.errors import BadInput, SchedulerError
from protocol.evidence.model import Evidence, Probe
from protocol.evidence.order import BALANCED
from protocol.merging.corridor import Corridor
from protocol.merging.placements import Placements
from protocol.placement.rollout import ControlLoop, ask
from protocol.replay.measurements import SERVED
from protocol.replay.replay import POLICY, UNIFORM, LiveDecision, Replay
from protocol.scheduler import CLOCK_SHIFT_S, SchedulerRun, SchedulerSource
from protocol.workload.learner import Learner
from protocol.workload.trace import Workload


class LiveSidecar(Protocol):
    """A server that can be loaded, merged beside and watched, now."""

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Replay:
        """One replay, `span_ns` long: merges when `run` says so, or at `starts_ns` when there is no run."""


@dataclass(frozen=True)
class SessionPlan:
    """What a live session was asked to do.

    regime : name, which takes part in the random streams.  span_ns : length of a replay, the corridor's horizon and
    what the trace goes on after it.  settle_s : seconds without requests or merges between two replays.
    secret : as in `Plan`.
    """

    regime: str
    corridor: Corridor
    learner: Learner
    worlds: Worlds
    root_seed: int
    n_blocks: int
    span_ns: int
    settle_s: float
    secret: bytes = b""

    def __post_init__(self) -> None:
        if self.corridor.feasible_budgets()[0] < 1:
            longest_s = (self.corridor.gap_max * self.corridor.grid_ns + self.corridor.merge_ns) / 1e9
            found = f"{self.span_ns / 1e9:g} s, of which {self.corridor.horizon_ns / 1e9:.2f} s are for merges"
            expected = f"at least {longest_s:.2f} s for merges, in which H_max imposes one"
            raise BadInput("--segment-s", found, expected)


def run(
    plan: SessionPlan,
    sidecar: LiveSidecar,
    source: SchedulerSource,
    finished: Sequence[Evidence] = (),
    keep: Callable[[Evidence], None] = lambda block: None,
    progress: Callable[[int, str], None] = lambda done, what: None,
    settle: Callable[[float], None] = time.sleep,
    decided: Callable[[Sequence[Evidence]], bool] = lambda blocks: False,
) -> list[Evidence]:
    """Every block of the plan; fewer when the server has stopped serving.

    finished : blocks of an interrupted session, from the first on.  keep : called with each block as it ends.
    progress : called with the number of finished replays and what comes next.
    decided : asked after each block whether the blocks so far suffice.
    Raises SchedulerError when the scheduler crashes, hangs or answers nonsense.
    """
    blocks = list(finished)
    for number in range(len(blocks), plan.n_blocks):
        if blocks and decided(blocks):
            break
        block = _block(plan, sidecar, source, number, progress, settle)
        blocks.append(block)
        if not (block.served[-1].rows.outcome == SERVED).any():
            break
        keep(block)
    return blocks


def _block(
    plan: SessionPlan,
    sidecar: LiveSidecar,
    source: SchedulerSource,
    number: int,
    progress: Callable[[int, str], None],
    settle: Callable[[float], None],
) -> Evidence:
    """One block; it ends with the first replay in which nothing was served."""
    workload = plan.worlds.workload(number)
    gaps: NDArray[np.int64] = np.empty(0, np.int64)
    made: list[Replay] = []
    for position, (arm, draw) in enumerate(BALANCED):
        progress(number * len(BALANCED) + position, f"block {number + 1} of {plan.n_blocks}, {arm}")
        settle(plan.settle_s)
        started, begun = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
        starts_ns = plan.corridor.start_ns(gaps).tolist() if arm == UNIFORM else ()
        served = replace(
            _serve(plan, sidecar, source, workload, number, arm, starts_ns), regime=plan.regime, seed=number, arm=arm,
            draw=draw, position=position, started=started, wall_s=round(time.monotonic() - begun, 3),
        )  # fmt: skip
        made.append(served)
        if arm == POLICY:
            gaps = control_gaps(plan.root_seed, plan.regime, plan.corridor, number, served.n_merges)
        if not (served.rows.outcome == SERVED).any():
            break
    progress(number * len(BALANCED) + len(made), "asking a fresh scheduler again")
    policy = next((r for r in made if r.arm == POLICY), None)
    trace = workload.trace
    return Evidence(
        regime=plan.regime,
        seed=number,
        trace_digest=trace.digest,
        n_requests=len(trace),
        prompt_tokens=int(trace.prompt_tokens.sum(dtype=np.int64)),
        output_tokens=int(trace.output_tokens.sum(dtype=np.int64)),
        forced=0 if policy is None else sum(d.merge and d.said is None for d in policy.decisions),
        corridor_violation=None,
        replay_difference=None,
        probes=()
        if policy is None
        else (Probe("determinism", None, _asked_again(plan, source, policy)), *uncovered(source)),  # fmt: skip
        placed={UNIFORM: Placements.of(gaps[None], np.empty((1, 0), np.int64))} if policy is not None else {},
        served=tuple(made),
    )


def control_gaps(root_seed: int, regime: str, corridor: Corridor, block: int, budget: int) -> NDArray[np.int64]:
    """Gaps of a uniform placement of the policy's merges.

    A scheduler that answered too late may have made fewer than fit; its block is then left out as not matched.
    """
    fits = corridor.feasible_budgets()
    rng = seeds.generator(root_seed, "live-control", regime, block)
    return corridor.sample(min(max(budget, fits[0]), fits[-1]), 1, rng)[0]


def _serve(
    plan: SessionPlan,
    sidecar: LiveSidecar,
    source: SchedulerSource,
    workload: Workload,
    block: int,
    arm: str,
    starts_ns: Sequence[int],
) -> Replay:
    loop = ControlLoop(workload, plan.corridor, plan.learner)
    if arm != POLICY:
        return sidecar.serve(workload, loop, plan.span_ns, None, starts_ns)
    run_ = source.start(_words(plan, block))
    try:
        return sidecar.serve(workload, loop, plan.span_ns, run_, ())
    finally:
        run_.close()


def _words(plan: SessionPlan, block: int) -> tuple[int, ...]:
    return seeds.words(plan.root_seed, "scheduler", plan.regime, block, secret=plan.secret)


def _asked_again(plan: SessionPlan, source: SchedulerSource, policy: Replay) -> str | None:
    """What a fresh scheduler answers otherwise to the same observations, or None."""
    source.clock_shift_s = CLOCK_SHIFT_S
    try:
        run_ = source.start(_words(plan, policy.seed))
    finally:
        source.clock_shift_s = 0.0
    try:
        return _difference(run_, policy.decisions)
    except SchedulerError as error:
        return f"asked again it failed: {error}"
    finally:
        run_.close()


def _difference(run_: SchedulerRun, decisions: Sequence[LiveDecision]) -> str | None:
    for number, d in enumerate(decisions, start=1):
        if d.seen is not None:
            again = ask(run_, d.seen)
            if again != d.said:
                return f"decision {number}, at {d.seen.time_s:g} s: merge {d.said} live, {again} when asked again"
    return None
