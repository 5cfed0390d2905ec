"""Run a live session: block after block, each arm's segment through the same code, on a server that keeps serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from protocol import seeds
from protocol.campaign.arms import Worlds
from protocol.errors import BadInput, SchedulerError
from protocol.evidence.live import ARMS, CONTROL, POLICY, Decision, Segment, Served, Session
from protocol.merging.corridor import Corridor
from protocol.placement.rollout import ControlLoop, ask
from protocol.replay.measurements import SERVED
from protocol.scheduler import SchedulerRun, SchedulerSource
from protocol.workload.learner import Learner
from protocol.workload.trace import Workload


class LiveSidecar(Protocol):
    """A server that can be loaded, merged beside and watched, now."""

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Served:
        """One segment, `span_ns` long: merges when `run` says so, or at `starts_ns` when there is no run."""


@dataclass(frozen=True)
class SessionPlan:
    """What a live session was asked to do.

    regime : name, which takes part in the random streams.  span_ns : length of a segment, the corridor's horizon and
    what the trace goes on after it.  settle_s : seconds without requests or merges between two segments.
    """

    regime: str
    corridor: Corridor
    learner: Learner
    worlds: Worlds
    root_seed: int
    n_blocks: int
    span_ns: int
    settle_s: float

    def __post_init__(self) -> None:
        if self.corridor.feasible_budgets()[0] < 1:
            longest_s = (self.corridor.gap_max * self.corridor.grid_ns + self.corridor.merge_ns) / 1e9
            found = f"{self.span_ns / 1e9:g} s, of which {self.corridor.horizon_ns / 1e9:.2f} s are for merges"
            expected = f"at least {longest_s:.2f} s for merges, in which H_max imposes one"
            raise BadInput("--segment-s", found, expected)


def run_session(
    plan: SessionPlan,
    sidecar: LiveSidecar,
    source: SchedulerSource,
    progress: Callable[[int, str], None] = lambda done, what: None,
    settle: Callable[[float], None] = time.sleep,
) -> Session:
    """Every block of the plan; fewer, with the reason, when the server has stopped serving.

    progress : called with the number of finished segments and what comes next.
    Raises SchedulerError when the scheduler crashes, hangs or answers nonsense.
    """
    segments: list[Segment] = []
    began_s = time.monotonic()
    ended_early = None
    for block in range(plan.n_blocks):
        workload = plan.worlds.workload(block)
        budget = 0
        for arm in ARMS:
            progress(len(segments), f"block {block + 1} of {plan.n_blocks}, {arm}")
            settle(plan.settle_s)
            at_s = time.monotonic() - began_s
            served = _serve(plan, sidecar, source, workload, block, arm, budget)
            given = budget if arm == CONTROL else None
            segments.append(Segment(block, arm, at_s, workload.trace.digest, served, given))
            if arm == POLICY:
                budget = served.n_merges
            if not (served.requests.outcome == SERVED).any():
                causes = ", ".join(f"{count} x {cause}" for cause, count in served.failures.items()) or "no requests"
                ended_early = f"block {block + 1}, {arm}: no request was served ({causes})"
                break
        if ended_early:
            break
    progress(len(segments), "asking a fresh scheduler again")
    checked = [_checked(plan, source, s) if s.arm == POLICY else s for s in segments]
    return Session(tuple(checked), ended_early)


def _serve(
    plan: SessionPlan,
    sidecar: LiveSidecar,
    source: SchedulerSource,
    workload: Workload,
    block: int,
    arm: str,
    budget: int,
) -> Served:
    loop = ControlLoop(workload, plan.corridor, plan.learner)
    if arm == POLICY:
        run = source.start(_words(plan, block))
        try:
            return sidecar.serve(workload, loop, plan.span_ns, run, ())
        finally:
            run.close()
    starts_ns: list[int] = []
    if arm == CONTROL:
        fits = plan.corridor.feasible_budgets()
        # A scheduler that answered too late may have made fewer than fit; the block is then not a matched one.
        rng = seeds.generator(plan.root_seed, "live-control", plan.regime, block)
        gaps = plan.corridor.sample(min(max(budget, fits[0]), fits[-1]), 1, rng)[0]
        starts_ns = plan.corridor.start_ns(gaps).tolist()
    return sidecar.serve(workload, loop, plan.span_ns, None, starts_ns)


def _words(plan: SessionPlan, block: int) -> tuple[int, ...]:
    return seeds.words(plan.root_seed, "scheduler", plan.regime, block)


def _checked(plan: SessionPlan, source: SchedulerSource, segment: Segment) -> Segment:
    """The policy's segment with what a fresh scheduler answers otherwise to the same observations."""
    run = source.start(_words(plan, segment.block))
    try:
        difference = _difference(run, segment.served.decisions)
    except SchedulerError as error:
        difference = f"asked again it failed: {error}"
    finally:
        run.close()
    return replace(segment, replay_difference=difference)


def _difference(run: SchedulerRun, decisions: Sequence[Decision]) -> str | None:
    for number, d in enumerate(decisions, start=1):
        if d.seen is not None:
            again = ask(run, d.seen)
            if again != d.said:
                return f"decision {number}, at {d.seen.time_s:g} s: merge {d.said} live, {again} when asked again"
    return None
