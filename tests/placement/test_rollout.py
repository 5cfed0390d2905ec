"""The control loop against a toy sidecar, and what it shows a scheduler."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    CORRIDOR,
    LEARNER,
    FunctionRun,
    S,
    ToyLoaded,
    ToySession,
    ToyWorlds,
    bursty,
    coin,
    quiet,
)

from protocol.errors import SchedulerError
from protocol.merging.corridor import Corridor
from protocol.merging.practice import Merges, Practice, Timing
from protocol.placement.rollout import Rollout, rollout
from protocol.scheduler import Decision, Observation
from protocol.workload.learner import ModelledLearner
from protocol.workload.trace import RequestTrace, StepFunction, Workload

# Decisions every 2 steps of 1 s from step 4 to step 10, merges of 3 s.
SMALL = Corridor(h_min=4, h_max=10, decision_steps=2, step_ns=S, merge_ns=3 * S, horizon_ns=40 * S)


def world(trace: RequestTrace) -> Workload:
    return Workload(trace, StepFunction(np.array([0, 20 * S]), np.array([0.2, 0.7])), StepFunction.constant(0.1))


def few(times_s: list[float], n_islands: int = 1) -> RequestTrace:
    n = len(times_s)
    arrival = np.array([int(t * S) for t in times_s], np.int64)
    return RequestTrace(arrival, np.arange(1, n + 1), np.ones(n), np.arange(n) % n_islands, n_islands)


def roll(
    decide: Callable[[Observation], object],
    corridor: Corridor = SMALL,
    trace: RequestTrace | None = None,
    until_ns: int | None = None,
    learner: ModelledLearner = LEARNER,
) -> tuple[Rollout, list[Observation]]:
    run = FunctionRun(lambda obs, rng: decide(obs))
    load = few([1.0]) if trace is None else trace
    return rollout(run, world(load), ToyLoaded(load), corridor, learner, until_ns), run.seen


def test_never_merging_is_forced_at_h_max() -> None:
    found, seen = roll(lambda obs: False)
    # 10 s, 3 s merge, 10 s, 3 s merge, 10 s, and a merge from 36 to 39 s.
    assert found.schedule.start_ns.tolist() == [10 * S, 23 * S, 36 * S]
    assert found.forced.tolist() == [True] * 3
    # Asked at 4, 6, 8 steps and never at 10, where there is nothing to decide; after 39 s nothing fits.
    assert found.decided_ns.tolist() == [t * S for t in (4, 6, 8, 17, 19, 21, 30, 32, 34)]
    assert not found.merged.any() and {obs.steps_since_merge for obs in seen} == {4, 6, 8}


def test_always_merging_waits_for_h_min_and_ends_in_time() -> None:
    found, seen = roll(lambda obs: True)
    assert found.schedule.start_ns.tolist() == [t * S for t in (4, 11, 18, 25, 32)]  # one at 39 s would end at 42 s
    assert found.forced.tolist() == [False] * 5 and found.merged.all()
    assert [obs.merges_so_far for obs in seen] == [0, 1, 2, 3, 4]


def test_a_merge_that_ends_on_the_horizon_is_taken_and_one_later_is_not() -> None:
    on_time = Corridor(4, 10, 2, S, 3 * S, 7 * S)
    late = Corridor(4, 10, 2, S, 3 * S, 7 * S - 1)
    assert roll(lambda obs: True, on_time)[0].schedule.start_ns.tolist() == [4 * S]
    assert len(roll(lambda obs: True, late)[0].schedule) == 0


corridors = st.builds(
    lambda low, width, grid, merge, horizon: Corridor(low, low + width + grid, grid, S // 3, merge, horizon),
    st.integers(1, 8), st.integers(0, 12), st.integers(1, 4), st.integers(0, 3 * S), st.integers(0, 60 * S),
)  # fmt: skip


@settings(deadline=None)
@given(corridors, st.integers(0, 2**32 - 1), st.floats(0, 1), st.integers(1, 3))
def test_every_schedule_obeys_the_corridor(c: Corridor, seed: int, chance: float, n_islands: int) -> None:
    if not c.merge_ns:
        c = Corridor(c.h_min, c.h_max, c.decision_steps, c.step_ns, 1, c.horizon_ns)
    rng = np.random.default_rng(seed)
    found, seen = roll(lambda obs: rng.random() < chance, c, few([0.5, 1.5, 7.25], n_islands))
    assert c.violation(found.schedule.start_ns) is None
    assert np.array_equal(found.schedule.busy_ns, np.full((len(found.schedule), n_islands), c.merge_ns))
    assert np.array_equal(c.start_ns(c.gaps(found.schedule.start_ns)), found.schedule.start_ns)
    assert np.array_equal(found.forced, c.gaps(found.schedule.start_ns) == c.gap_max)
    decided = found.decided_ns[found.merged]
    assert np.array_equal(decided, found.schedule.start_ns[~found.forced])
    assert len(seen) == len(found.decided_ns) and found.measurements is not None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_its_measurements_are_those_of_the_replay(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = bursty(seed % 5, 2)
    found, _ = roll(lambda obs: rng.random() < 0.3, CORRIDOR, trace)
    again = ToyLoaded(trace).replay(found.schedule)
    assert found.measurements is not None
    assert np.array_equal(found.measurements.e2e_ns, again.e2e_ns)
    assert np.array_equal(found.measurements.exposure_ns, again.exposure_ns)


def test_what_is_observed() -> None:
    learner = ModelledLearner(floor=1.0, scale=1.0, offset_steps=10.0, exponent=1.0, tokens_per_step=100)
    trace = few([0.0, 0.5, 3.9, 3.999999999, 4.0, 4.5, 7.0, 39.0])
    found, seen = roll(lambda obs: obs.steps_since_merge == 6, trace=trace, learner=learner)
    assert found.schedule.start_ns.tolist() == [6 * S, 15 * S, 24 * S, 33 * S]
    first, second, third = seen[:3]
    assert (first.time_s, second.time_s, third.time_s) == (4.0, 6.0, 13.0)
    assert (first.steps_since_merge, second.steps_since_merge, third.steps_since_merge) == (4, 6, 4)
    assert (first.h_min, first.h_max, first.decision_steps, first.step_s, first.merge_s) == (4, 10, 2, 1.0, 3.0)
    # Four and five full seconds... requests at exactly 4.0 s have not been seen at 4.0 s.
    assert first.arrivals_per_s.tolist() == [2, 0, 0, 2]
    assert first.prompt_tokens_per_s.tolist() == [1 + 2, 0, 0, 3 + 4]
    assert second.arrivals_per_s.tolist() == [2, 0, 0, 2, 2, 0]
    # Loss 1 + 1 / (1 + steps / 10): steps count inner steps only, across merges.
    assert first.loss == pytest.approx(1 + 1 / 1.4) and first.loss_reduction == pytest.approx(1 - 1 / 1.4)
    assert third.loss == pytest.approx(1 + 1 / 2.0)
    assert third.loss_reduction == pytest.approx(1 / 1.6 - 1 / 2.0)
    assert (first.tokens, second.tokens, third.tokens) == (400, 600, 400)
    # The merge of 6 to 9 s has ended four seconds before 13 s.
    assert (first.staleness_s, second.staleness_s, third.staleness_s) == (4.0, 6.0, 4.0)
    assert [o.network_pressure for o in seen if o.time_s < 20] == [0.2] * 4
    assert {o.network_pressure for o in seen if o.time_s >= 20} == {0.7}
    assert {o.checkpoint_pressure for o in seen} == {0.1}
    # 0.0 is the slow 50th request (2 s); 3.9 and 3.999999999 are in flight at 4.0 s.
    assert (first.in_flight, first.completed) == (2, 2)
    assert first.recent_e2e_s == pytest.approx((2.0 + 0.4) / 2) and first.recent_ttft_s == pytest.approx(0.6)
    assert third.recent_e2e_s == pytest.approx(2.0)  # at 7.0 s, inside the merge
    assert seen[-1].recent_e2e_s is None


def test_islands_and_their_sums() -> None:
    _, seen = roll(lambda obs: False, trace=few([3.9, 3.9, 3.95], 2))
    first = seen[0]
    assert [i.in_flight for i in first.islands] == [2, 1] and first.in_flight == 3
    assert first.queued == 0 + 1 and first.completed == 0
    assert first.serving_pressure == pytest.approx((2 / 8 + 1 / 8) / 2)
    assert all(i.steps_since_merge == 4 and i.network_pressure == 0.2 for i in first.islands)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 120 * S))
def test_no_observation_depends_on_the_future(seed: int, at_ns: int) -> None:
    worlds = ToyWorlds(2)
    one = worlds.workload(seed % 4)
    other = one.spliced(worlds.other(seed % 4, 0), at_ns)
    runs = [FunctionRun(coin, (seed,)) for _ in range(2)]
    for run, w in zip(runs, (one, other), strict=True):
        rollout(run, w, ToyLoaded(w.trace), CORRIDOR, LEARNER)
    for a, b in zip(*(r.seen for r in runs), strict=False):
        if a.time_s * S >= at_ns:
            break
        assert a.time_s == b.time_s and len(a.arrivals_per_s) == int(a.time_s)
        for key in vars(a):
            assert np.array_equal(getattr(a, key), getattr(b, key)) or getattr(a, key) == getattr(b, key), key
    else:
        assert min(len(r.seen) for r in runs) > 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 130 * S), st.integers(0, 3))
def test_a_run_cut_short_is_the_beginning_of_the_whole_one(until_ns: int, seed: int) -> None:
    trace = bursty(seed)
    whole, _ = roll(lambda obs: quiet(obs, np.random.default_rng()), CORRIDOR, trace)
    part, _ = roll(lambda obs: quiet(obs, np.random.default_rng()), CORRIDOR, trace, until_ns)
    assert np.array_equal(part.decided_ns, whole.decided_ns[whole.decided_ns < until_ns])
    assert np.array_equal(part.merged, whole.merged[whole.decided_ns < until_ns])
    assert np.array_equal(part.schedule.start_ns, whole.schedule.start_ns[whole.schedule.start_ns < until_ns])
    assert part.measurements is None


def test_the_cut_itself_is_not_decided() -> None:
    assert roll(lambda obs: False, until_ns=6 * S)[0].decided_ns.tolist() == [4 * S]
    assert roll(lambda obs: False, until_ns=6 * S + 1)[0].decided_ns.tolist() == [4 * S, 6 * S]


def test_an_observation_cannot_be_used_to_change_the_world() -> None:
    def meddle(obs: Observation) -> bool:
        with pytest.raises(ValueError):
            obs.arrivals_per_s[:] = 0
        with pytest.raises(AttributeError):
            obs.merges_so_far = 9  # type: ignore[misc]
        return True

    assert len(roll(meddle)[0].schedule) == 5


def test_groups_other_than_everyone_are_refused() -> None:
    trace = few([1.0, 2.0], 2)
    for groups in (((1, 0),), None):
        assert len(roll(lambda obs, g=groups: Decision(True, g), trace=trace)[0].schedule) == 5  # type: ignore[misc]
    for groups in (((0,), (1,)), ((0,),), ((0, 1, 2),), ()):
        with pytest.raises(SchedulerError, match="decision at 4 s: found groups"):
            roll(lambda obs, g=groups: Decision(True, g), trace=trace)  # type: ignore[misc]


def test_a_scheduler_error_passes_through() -> None:
    def crash(obs: Observation) -> bool:
        raise SchedulerError("my.py, line 3: ZeroDivisionError")

    with pytest.raises(SchedulerError, match="line 3"):
        roll(crash)


def test_the_toy_session_is_strict() -> None:
    session = ToySession(ToyLoaded(few([1.0])))
    session.advance(5)
    with pytest.raises(AssertionError):
        session.add_merge(4, np.array([1]))


def test_a_scheduler_sees_which_fragment_is_due() -> None:
    """Two fragments, 8 steps trained while each is under way, and the third merge not committed: it is due again."""
    practice = Practice(fragments=2, sync_delay_steps=8, apply_s=1.0)
    corridor = Corridor(h_min=8, h_max=40, decision_steps=4, step_ns=S // 4, merge_ns=3 * S, horizon_ns=60 * S)
    stream = Merges(np.full(9, 2 * S), np.array([0, 1, 0, 0, 1, 0, 1, 0, 1], np.int16), np.arange(9) != 2, S)
    run = FunctionRun(lambda obs, rng: obs.steps_since_merge == 16)
    made = rollout(
        run, ToyWorlds().workload(0), ToyLoaded(bursty(0)), corridor, LEARNER, None, Timing(corridor, practice), stream
    )
    assert made.schedule.fragment.tolist() == [0, 1, 0, 0, 1, 0, 1, 0]
    assert made.schedule.start_s.tolist() == [4, 11, 18, 25, 32, 39, 46, 53]
    asked = [obs for obs in run.seen if obs.steps_since_merge == 16]
    assert [obs.fragment for obs in asked] == made.schedule.fragment.tolist()
    # 24 steps a turn, the first 16 of them before the fragment is sent.
    assert [obs.fragment_steps for obs in asked] == [16, 40, 48, 72, 72, 48, 48, 48]
    assert {obs.fragments for obs in run.seen} == {2}
    assert made.schedule.applied_ns is not None
    assert (made.schedule.applied_ns[0] / S).tolist() == [6, 7]
