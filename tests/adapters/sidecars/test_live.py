"""Live segments against a server that misbehaves: what a scheduler is shown, when merges run, what is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from fault_server import FaultServer, Good, serving
from strategies import LEARNER, FunctionRun

from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars.live import LiveServer
from adapters.sidecars.openai import Deadlines, Target
from protocol.errors import SchedulerError, SidecarError
from protocol.merging.corridor import Corridor
from protocol.placement.rollout import ControlLoop
from protocol.replay.replay import Replay
from protocol.scheduler import Observation
from protocol.workload.trace import RequestTrace, StepFunction, Workload

MS = 1_000_000
#: A decision every 50 ms from 100 to 300 ms after a merge of 100 ms; a segment of 1 s, of which 0.9 s may hold merges.
CORRIDOR = Corridor(h_min=10, h_max=30, decision_steps=5, step_ns=10 * MS, merge_ns=100 * MS, horizon_ns=900 * MS)
SPAN_NS = 1000 * MS


@pytest.fixture(scope="module")
def _server() -> Iterator[FaultServer]:
    with serving() as found:
        yield found


@pytest.fixture
def server(_server: FaultServer) -> Iterator[FaultServer]:
    usual = {name: getattr(_server, name) for name in ("refusing", "blind", "delay_s", "gauges")}
    yield _server
    for name, value in usual.items():
        setattr(_server, name, value)


def world(n: int = 20) -> Workload:
    arrival = np.linspace(0, 900 * MS, n).astype(np.int64)
    trace = RequestTrace(arrival, np.full(n, 8), np.full(n, 8))
    return Workload(trace, StepFunction.constant(0.25), StepFunction.constant(0.5))


def live(server: FaultServer, slots: int = 10) -> LiveServer:
    quick = Deadlines(request_s=2.0, idle_s=1.0, drain_s=1.0)
    return LiveServer(Good(server.url, "m"), MergeLoad.parse("none"), slots, quick, scrape_s=0.1, lead_s=0.1)


def segment(server: FaultServer, decide: Callable[[Observation], object]) -> tuple[Replay, list[Observation]]:
    run = FunctionRun(lambda seen, rng: decide(seen))
    load = world()
    served = live(server).serve(load, ControlLoop(load, CORRIDOR, LEARNER), SPAN_NS, run, ())
    return served, run.seen


def test_what_a_scheduler_is_shown(server: FaultServer) -> None:
    server.gauges = lambda: {"running": 5, "waiting": 1}
    server.delay_s = lambda: 0.08
    served, seen = segment(server, lambda obs: False)
    times = [round(obs.time_s, 9) for obs in seen]
    # Never merging: asked from 100 ms on, forced at 300 ms; again 100 to 300 ms after that merge ended at 400 ms.
    assert np.allclose(times, [0.1, 0.15, 0.2, 0.25, 0.5, 0.55, 0.6, 0.65], atol=0.06)
    for obs in seen:
        assert (obs.network_pressure, obs.checkpoint_pressure, obs.serving_pressure) == (0.25, 0.5, 0.5)
        assert obs.arrivals_per_s.shape == (0,) and obs.step_s == 0.01 and obs.merge_s == 0.1
        # The server's queue is believed as far as the client has that many under way.
        assert obs.queued == min(1, obs.queued + obs.in_flight) and obs.in_flight + obs.queued <= 5
    assert [obs.merges_so_far for obs in seen] == [0, 0, 0, 0, 1, 1, 1, 1]
    # Looks come every 0.1 s, so what is shown is hardly older; it is when the last of them was.
    looks = np.array([s.at_ns for s in served.scrapes]) / 1e9
    for obs in seen:
        assert 0 <= obs.telemetry_age_s < 0.5 and np.abs(looks + obs.telemetry_age_s - obs.time_s).min() < 0.06
    last = seen[-1]
    assert 8 <= last.completed <= 14
    assert last.recent_e2e_s is not None and 0.08 < last.recent_ttft_s < last.recent_e2e_s < 0.4
    assert [(d.merge, d.said) for d in served.decisions].count((True, None)) == 2
    assert served.n_merges == 2 and served.died is None and served.failures == {}
    assert all(s.running == 5 and s.waiting == 1 for s in served.scrapes) and len(served.scrapes) >= 8
    assert (served.rows.exposure_ns > 0).any() and (served.rows.exposure_ns == 0).any()


def test_without_metrics_the_client_counts(server: FaultServer) -> None:
    server.blind = lambda: True
    server.delay_s = lambda: 0.2
    served, seen = segment(server, lambda obs: True)
    assert all(s.running is None for s in served.scrapes) and max(s.client for s in served.scrapes) >= 3
    assert all(obs.queued == 0 and obs.telemetry_age_s == 0 for obs in seen) and max(obs.in_flight for obs in seen) >= 3
    assert 0 < seen[-1].serving_pressure < 0.6
    # Merging whenever asked: every 100 ms of steps, then 100 ms of merge.
    assert served.n_merges == 4 and np.allclose(served.planned_ns[:, 0] / MS, [100, 300, 500, 700], atol=60)


def test_late_answers_are_logged_and_h_max_still_holds(server: FaultServer) -> None:
    def slow(obs: Observation) -> bool:
        time.sleep(0.13)
        return False

    served, _ = segment(server, slow)
    asked = [d for d in served.decisions if d.said is not None]
    assert all(100 * MS < d.answered_ns - d.due_ns < 400 * MS for d in asked)
    skipped = [d for d in served.decisions if d.said is None and not d.merge]
    assert skipped and served.n_merges >= 1
    waits = served.planned_ns[:, 0] - np.concatenate([[0], served.planned_ns[:-1, 1]])
    assert (waits >= 300 * MS).all() and (waits < 450 * MS).all()


def test_a_scheduler_that_fails_ends_the_session(server: FaultServer) -> None:
    def broken(obs: Observation) -> bool:
        raise SchedulerError("mine.py:3: broken")

    asked = len(server.requests)
    with pytest.raises(SchedulerError, match="broken"):
        segment(server, broken)
    assert len(server.requests) - asked < len(world().trace)
    time.sleep(0.2)
    assert server.open == 0


def test_nobody_there() -> None:
    nobody = LiveServer(Target("http://127.0.0.1:9", "m"), MergeLoad.parse("none"), 4, lead_s=0.0)
    with pytest.raises(SidecarError, match="served none of 4 first requests"):
        nobody.reach(world().trace)


def test_fields_that_a_server_needs_are_found(server: FaultServer) -> None:
    asked = len(server.requests)
    server.refusing = lambda: "detokenize" in server.requests[-1]
    found = live(server)
    found.reach(world().trace)
    assert found.target.extra == {}
    prompts = [tuple(sent["prompt"]) for sent in server.requests[asked:]]
    assert len(prompts) == len(set(prompts)) == 8  # no prefix cache serves a second attempt
