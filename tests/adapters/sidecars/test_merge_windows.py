"""Merges that send while training goes on and are applied afterwards: each window has its own slowdown."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from protocol.errors import BadInput
from protocol.merging.corridor import Corridor
from protocol.merging.practice import Merges, Practice, Timing
from protocol.merging.schedule import Schedule
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace

S, MS = 1_000_000_000, 1_000_000
#: One request at a time: 10 ms a token, no cost of prefill.
MODEL = SidecarModel.shipped().changed(
    {"a_s": 0.01, "b_s": 0.0, "c_s": 0.0, "prefill_slowdown": 3, "decode_slowdown": 3, "overhead_s": 0.0}
)


def test_an_iteration_lasts_as_its_window_says() -> None:
    """A request of 400 tokens from 0 on; sending from 1 to 2 s at half speed, applying from 3 to 3.6 s at a third.

    100 tokens by 1 s, 50 by 2 s, 100 by 3 s, 20 by 3.6 s; the other 130 take 1.3 s.
    """
    trace = RequestTrace(np.array([0]), np.array([1]), np.array([400]))
    merge = Schedule(np.array([S]), np.array([[S]]), applied_ns=np.array([[3 * S, 3_600 * MS]]), send_slowdown=2.0)
    loaded = SimulatedSidecar(MODEL).load(trace, np.random.default_rng(0))
    assert loaded.replay(merge).e2e_ns.tolist() == [4900 * MS]
    assert loaded.replay(merge).exposure_ns.tolist() == [1600 * MS]
    assert loaded.violations([merge], Slo.parse("e2e<=4899ms")).tolist() == [1]
    assert loaded.violations([merge], Slo.parse("e2e<=4900ms")).tolist() == [0]


@pytest.mark.parametrize("slowdown", [None, 1.5])
def test_the_run_its_replay_the_count_and_the_price_agree(slowdown: float | None) -> None:
    rng = np.random.default_rng(5)
    n = 300
    trace = RequestTrace(
        np.sort(rng.integers(0, 60 * S, n)), rng.integers(1, 200, n), rng.integers(1, 60, n), rng.integers(0, 2, n), 2
    )
    practice = Practice(sync_delay_steps=2, apply_s=0.7, send_slowdown=slowdown)
    timing = Timing(Corridor(4, 40, 2, S // 4, 3 * S, 60 * S), practice)
    own = Merges(np.array([2, 1, 3, 2]) * S, np.zeros(4, np.int16), np.ones(4, bool), S)
    schedule = timing.schedule(np.array([10, 15, 8, 12]), 2, own)
    loaded = SimulatedSidecar(MODEL).load(trace, np.random.default_rng(0))
    rows, slo = loaded.replay(schedule), Slo.parse("e2e<=900ms,ttft<=300ms")
    session = loaded.session() if slowdown is None else loaded.session(slowdown)
    assert schedule.applied_ns is not None
    for k, start in enumerate(schedule.start_ns.tolist()):
        session.advance(start)
        begin, end = schedule.applied_ns[k].tolist()
        session.add_merge(start, schedule.busy_ns[k], (begin, end))
    again = session.finish()
    for column in ("ttft_ns", "e2e_ns", "exposure_ns"):
        assert np.array_equal(getattr(rows, column), getattr(again, column))
    idle = loaded.violations([Schedule.empty(2)], slo)[0]
    assert loaded.violations([schedule], slo)[0] == rows.violates(slo).sum() > idle
    alone = timing.schedule_at(np.zeros(1, np.int64), 2, own.first(1))
    starts = np.array([5, 21, 40]) * S
    price = loaded.merge_cost(starts, 2 * S, slo, alone)
    for start, cost in zip(starts.tolist(), price.tolist(), strict=True):
        one = timing.schedule_at(np.array([start]), 2, own.first(1))
        assert loaded.violations([one], slo)[0] - idle == cost
    plain = loaded.merge_cost(starts, 2 * S, slo)
    assert plain.tolist() != price.tolist()


def test_what_no_merge_does_is_refused() -> None:
    trace = RequestTrace(np.array([0]), np.array([1]), np.array([4]))
    loaded = SimulatedSidecar(MODEL).load(trace, np.random.default_rng(0))
    with pytest.raises(BadInput, match="expected after it was sent"):
        loaded.session().add_merge(0, np.array([S]), (S - 1, S))
    two = [Schedule(np.array([S]), np.array([[S]]), send_slowdown=x) for x in (1.5, 2.0)]
    with pytest.raises(BadInput, match="send_slowdown: found 2 values"):
        loaded.violations(two, Slo.parse("e2e<=1s"))
    with pytest.raises(BadInput, match="inside another"):
        Schedule(np.array([0]), np.array([[S]]), applied_ns=np.array([[S - 1, S]]))
