"""The order of a live session, its budgets and its streams, with a sidecar that serves at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from protocol.campaign.session import SessionPlan, run_session
from protocol.evidence.live import ARMS, CONTROL, POLICY, Decision, Served
from strategies import LEARNER, FunctionSource

from protocol import seeds
from protocol.errors import BadInput, SchedulerError
from protocol.merging.corridor import Corridor
from protocol.placement.rollout import ControlLoop, ask
from protocol.replay.measurements import FAILED, SERVED, Measurements
from protocol.replay.sidecar import ServingState
from protocol.scheduler import Observation, SchedulerRun
from protocol.workload.trace import RequestTrace, StepFunction, Workload

MS = 1_000_000
CORRIDOR = Corridor(h_min=10, h_max=30, decision_steps=5, step_ns=10 * MS, merge_ns=100 * MS, horizon_ns=900 * MS)
IDLE = (ServingState(0.0, 0, 0, 0, None, None),)


class Worlds:
    def workload(self, seed: int) -> Workload:
        trace = RequestTrace(np.arange(5) * 100 * MS + seed, np.full(5, 8), np.full(5, 8))
        return Workload(trace, StepFunction.constant(0.0), StepFunction.constant(0.0))

    def other(self, seed: int, probe: int) -> Workload:
        return self.workload(100 + seed)


@dataclass
class AtOnce:
    """Merges without a clock; `dead` says from which segment on nothing is served."""

    dead: int = 1000
    served: list[Sequence[int]] = field(default_factory=list)

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Served:
        decisions, starts = [], list(starts_ns)
        while run is not None and (due_ns := loop.due_ns) is not None:
            seen = None if loop.forced else loop.observe(IDLE)
            said = None if seen is None else ask(run, seen)
            decisions.append(Decision(due_ns, due_ns, due_ns, said is not False, said, seen))
            if said is False:
                loop.wait()
            else:
                loop.merge(due_ns)
                starts.append(due_ns)
        self.served.append(starts)
        windows = np.array([(s, s + CORRIDOR.merge_ns) for s in starts], np.int64).reshape(-1, 2)
        n, up = len(workload.trace), len(self.served) <= self.dead
        requests = Measurements(
            arrival_ns=workload.trace.arrival_ns, sent_ns=workload.trace.arrival_ns,
            ttft_ns=np.full(n, 1 if up else -1), e2e_ns=np.full(n, 2 if up else -1), max_itl_ns=np.zeros(n),
            prompt_tokens=np.full(n, 8), output_tokens=np.full(n, 8), outcome=np.full(n, SERVED if up else FAILED),
            island=np.zeros(n), exposure_ns=np.zeros(n),
        )  # fmt: skip
        return Served(requests, windows, windows, None, {} if up else {"HTTP 500": n}, tuple(decisions))


def run(decide: Callable[[Observation, np.random.Generator], object], blocks: int = 2, sidecar: AtOnce | None = None):
    plan = SessionPlan("tiny", CORRIDOR, LEARNER, Worlds(), 7, blocks, 1000 * MS, 0.0)
    return run_session(plan, sidecar or AtOnce(), FunctionSource(decide))


def test_a_control_has_its_policys_budget_and_a_recorded_stream() -> None:
    session = run(lambda obs, rng: bool(rng.random() < 0.5), blocks=6)
    assert [(s.block, s.arm) for s in session.segments] == [(b, arm) for b in range(6) for arm in ARMS]
    assert session.ended_early is None
    made = set()
    for number, block in enumerate(session.blocks()):
        k = block[POLICY].served.n_merges
        made.add(k)
        assert block[CONTROL].budget == block[CONTROL].served.n_merges == k
        gaps = CORRIDOR.sample(k, 1, seeds.generator(7, "live-control", "tiny", number))[0]
        assert block[CONTROL].served.planned_ns[:, 0].tolist() == CORRIDOR.start_ns(gaps).tolist()
        assert CORRIDOR.violation(block[POLICY].served.planned_ns[:, 0]) is None
        assert len({s.trace_digest for s in block.values()}) == 1 and block[POLICY].replay_difference is None
    assert len(made) > 1 and len({b[POLICY].trace_digest for b in session.blocks()}) == 6


def test_a_dead_server_ends_the_session() -> None:
    session = run(lambda obs, rng: True, blocks=3, sidecar=AtOnce(dead=6))
    assert len(session.segments) == 7 and len(session.blocks()) == 1
    assert session.ended_early == "block 2, random: no request was served (5 x HTTP 500)"


def test_memory_between_runs_is_found() -> None:
    calls = iter(range(1000))
    session = run(lambda obs, rng: next(calls) < 10)  # eight are asked for live
    assert "when asked again" in str(session.blocks()[0][POLICY].replay_difference)

    asked = iter([False] * 10)

    def fails_later(obs: Observation, rng: np.random.Generator) -> bool:
        answer = next(asked, None)
        if answer is None:
            raise SchedulerError("mine.py: broken")
        return answer

    session = run(fails_later, blocks=1)
    assert "asked again it failed: mine.py: broken" in str(session.blocks()[0][POLICY].replay_difference)


def test_a_segment_must_hold_a_merge() -> None:
    short = Corridor(10, 30, 5, 10 * MS, 100 * MS, 350 * MS)
    with pytest.raises(BadInput, match="found 0.5 s, of which 0.35 s are for merges; expected at least 0.40 s"):
        SessionPlan("tiny", short, LEARNER, Worlds(), 7, 1, 500 * MS, 0.0)
