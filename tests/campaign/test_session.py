"""The order of a live session, its budgets and its streams, with a sidecar that serves at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from server_runs import ToyServer, judged, session, session_plan
from strategies import LEARNER, FunctionSource, quiet

from protocol import seeds
from protocol.campaign.live import SessionPlan, run
from protocol.errors import BadInput, SchedulerError
from protocol.evidence.model import Evidence
from protocol.evidence.order import BALANCED
from protocol.evidence.partial import Partial
from protocol.merging.corridor import Corridor
from protocol.placement.rollout import ControlLoop, ask
from protocol.replay.measurements import FAILED, SERVED, Measurements
from protocol.replay.replay import POLICY, UNIFORM, LiveDecision, Replay
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
    """Merges without a clock; `dead` says from which replay on nothing is served."""

    dead: int = 1000
    served: list[Sequence[int]] = field(default_factory=list)

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Replay:
        decisions, starts = [], list(starts_ns)
        while run is not None and (due_ns := loop.due_ns) is not None:
            seen = None if loop.forced else loop.observe(IDLE)
            said = None if seen is None else ask(run, seen)
            decisions.append(LiveDecision(due_ns, due_ns, due_ns, said is not False, said, seen))
            if said is False:
                loop.wait()
            else:
                loop.merge(due_ns)
                starts.append(due_ns)
        self.served.append(starts)
        windows = np.array([(s, s + CORRIDOR.merge_ns) for s in starts], np.int64).reshape(-1, 2)
        n, up = len(workload.trace), len(self.served) <= self.dead
        rows = Measurements(
            arrival_ns=workload.trace.arrival_ns, sent_ns=workload.trace.arrival_ns,
            ttft_ns=np.full(n, 1 if up else -1), e2e_ns=np.full(n, 2 if up else -1), max_itl_ns=np.zeros(n),
            prompt_tokens=np.full(n, 8), output_tokens=np.full(n, 8), outcome=np.full(n, SERVED if up else FAILED),
            island=np.zeros(n), exposure_ns=np.zeros(n),
        )  # fmt: skip
        failures = {} if up else {"HTTP 500": n}
        return Replay(rows, windows, windows, failures=failures, decisions=tuple(decisions))


Decide = Callable[[Observation, np.random.Generator], object]


def blocks_of(decide: Decide, blocks: int = 2, sidecar: AtOnce | None = None) -> list[Evidence]:
    plan = SessionPlan("tiny", CORRIDOR, LEARNER, Worlds(), 7, blocks, 1000 * MS, 0.0)
    return run(plan, sidecar or AtOnce(), FunctionSource(decide))


def replay_of(e: Evidence, arm: str) -> Replay:
    return next(r for r in e.served if r.arm == arm)


def repeated(e: Evidence) -> str | None:
    (probe,) = e.probes
    return probe.difference


def test_a_control_has_its_policys_budget_and_a_recorded_stream() -> None:
    found = blocks_of(lambda obs, rng: bool(rng.random() < 0.5), blocks=6)
    assert [[(r.arm, r.draw) for r in e.served] for e in found] == [list(BALANCED)] * 6
    assert [(r.seed, r.position, r.regime) for e in found for r in e.served] == [
        (b, place, "tiny") for b in range(6) for place in range(5)
    ]
    made = set()
    for number, e in enumerate(found):
        policy, control = replay_of(e, POLICY), replay_of(e, UNIFORM)
        k = policy.n_merges
        made.add(k)
        gaps = CORRIDOR.sample(k, 1, seeds.generator(7, "live-control", "tiny", number))[0]
        assert control.planned_ns[:, 0].tolist() == CORRIDOR.start_ns(gaps).tolist() and control.n_merges == k
        assert e.gaps(UNIFORM, 0).tolist() == gaps.tolist()
        assert CORRIDOR.violation(policy.planned_ns[:, 0]) is None
        assert (e.seed, e.n_requests, repeated(e)) == (number, 5, None)
        assert e.forced == sum(d.merge and d.said is None for d in policy.decisions)
    assert len(made) > 1 and len({e.trace_digest for e in found}) == 6


def test_a_dead_server_ends_the_session_and_its_block_is_not_kept() -> None:
    plan = SessionPlan("tiny", CORRIDOR, LEARNER, Worlds(), 7, 3, 1000 * MS, 0.0)
    kept: list[int] = []
    source = FunctionSource(lambda obs, rng: True)
    found = run(plan, AtOnce(dead=6), source, keep=lambda e: kept.append(e.seed))
    assert [len(e.served) for e in found] == [5, 2] and kept == [0]
    assert found[1].served[-1].failures == {"HTTP 500": 5}
    before_the_policy = run(plan, AtOnce(dead=5), source)
    assert [len(e.served) for e in before_the_policy] == [5, 1] and before_the_policy[1].placed == {}


def test_memory_between_runs_is_found() -> None:
    calls = iter(range(1000))
    found = blocks_of(lambda obs, rng: next(calls) < 6)  # four are asked for live
    assert "when asked again" in str(repeated(found[0]))

    asked = iter([False] * 10)

    def fails_later(obs: Observation, rng: np.random.Generator) -> bool:
        answer = next(asked, None)
        if answer is None:
            raise SchedulerError("mine.py: broken")
        return answer

    found = blocks_of(fails_later, blocks=1)
    assert "asked again it failed: mine.py: broken" in str(repeated(found[0]))


def test_a_segment_must_hold_a_merge() -> None:
    short = Corridor(10, 30, 5, 10 * MS, 100 * MS, 350 * MS)
    with pytest.raises(BadInput, match="found 0.5 s, of which 0.35 s are for merges; expected at least 0.40 s"):
        SessionPlan("tiny", short, LEARNER, Worlds(), 7, 1, 500 * MS, 0.0)


# Resumption ------------------------------------------------------------------------------------------------------


def plain(e: Evidence) -> list[object]:
    """What a block is, less when it ran."""
    return [
        [
            r.arm,
            r.draw,
            r.position,
            r.planned_ns.tolist(),
            r.ran_ns.tolist(),
            r.rows.e2e_ns.tolist(),
            [(d.due_ns, d.answered_ns, d.merge, d.said) for d in r.decisions],
        ]
        for r in e.served
    ] + [e.seed, e.trace_digest, e.forced, e.probes, e.gaps(UNIFORM, 0).tolist()]


@pytest.mark.parametrize("finished", [0, 1, 7])
def test_a_session_goes_on_from_the_blocks_that_are_kept(finished: int) -> None:
    """Blocks have streams of their own, so what comes after the interruption is what would have come."""
    whole = session(blocks=8)
    kept: list[int] = []
    server = ToyServer(replays=5 * finished)
    resumed = run(session_plan(8), server, FunctionSource(quiet), whole[:finished], lambda e: kept.append(e.seed))
    assert kept == list(range(finished, 8)) and server.replays == 40
    assert [plain(e) for e in resumed] == [plain(e) for e in whole]


def test_a_session_resumed_from_its_files_is_judged_alike(tmp_path: Path) -> None:
    """Through the files of the interrupted run: the same certificate but for the moments at which replays ran."""
    whole = session(blocks=8)
    partial = Partial(tmp_path, {"a": 1})
    for e in whole[:5]:
        partial.keep(e)
    finished = [e for _, e in sorted(Partial(tmp_path, {"a": 1}).finished().items())]
    resumed = run(session_plan(8), ToyServer(replays=25), FunctionSource(quiet), finished)
    timeless = [[replace(r, started="", wall_s=0.0) for r in e.served] for e in whole]
    again = [[replace(r, started="", wall_s=0.0) for r in e.served] for e in resumed]
    one, other = (
        judged("live", [replace(e, served=tuple(made)) for e, made in zip(whole, served, strict=True)])[0]
        for served in (timeless, again)
    )
    assert one == other and one.verdict == "PASS"
