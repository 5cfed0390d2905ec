"""The simulated sidecar against a plain iteration-by-iteration server, closed forms and itself."""

from __future__ import annotations

import numpy as np
import plain_server
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.sidecars.simulated import LoadedSimulation, SidecarModel, SimulatedSidecar
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import REFUSED, SERVED
from protocol.replay.sidecar import ServingState
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace

S = NS_PER_S


def model(**changes: float) -> SidecarModel:
    """A server whose times are a few nanoseconds, so that ties and merge edges are hit often."""
    plain: dict[str, float] = {
        "a_s": 2e-9, "b_s": 1e-9, "c_s": 1e-9, "prefill_slowdown": 1.0, "decode_slowdown": 1.0, "max_num_seqs": 3,
        "max_batched_tokens": 6, "kv_tokens": 1000, "overhead_s": 0.0, "overhead_sigma": 0.0,
    }  # fmt: skip
    return SidecarModel(**(plain | changes), name="test")  # type: ignore[arg-type]


def load(which: SidecarModel, trace: RequestTrace, seed: int = 0) -> LoadedSimulation:
    return SimulatedSidecar(which).load(trace, np.random.default_rng(seed))


def requests(*rows: tuple[int, int, int], n_islands: int = 1) -> RequestTrace:
    """From (arrival ns, prompt, output)."""
    return RequestTrace(*np.array(rows, np.int64).reshape(-1, 3).T, n_islands=n_islands)


models = st.builds(
    model,
    a_s=st.sampled_from([0.0, 1e-9, 2.5e-9, 4e-9]),
    b_s=st.sampled_from([0.0, 0.5e-9, 1e-9]),
    c_s=st.sampled_from([0.0, 0.3e-9, 1e-9]),
    prefill_slowdown=st.sampled_from([1.0, 1.3, 2.5]),
    decode_slowdown=st.sampled_from([1.0, 1.5, 3.0]),
    max_num_seqs=st.integers(1, 4),
    max_batched_tokens=st.integers(4, 12),
    kv_tokens=st.sampled_from([8, 14, 30, 1000]),
    overhead_s=st.sampled_from([0.0, 5e-9]),
    overhead_sigma=st.sampled_from([0.0, 1.0]),
)


@st.composite
def traces(draw: st.DrawFn, max_size: int = 14) -> RequestTrace:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 1, 3, 7, 20]), st.integers(1, 15), st.integers(1, 7), st.integers(0, 1)
            ),
            max_size=max_size,
        )
    )
    gap, prompt, output, island = np.array(rows, np.int64).reshape(-1, 4).T
    return RequestTrace(np.cumsum(gap), prompt, output, island, n_islands=2)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Merges of one or both islands, some back to back."""
    start, starts, busy = 0, [], []
    for _ in range(draw(st.integers(0, 5))):
        start += draw(st.integers(0, 12))
        durations = draw(st.tuples(st.integers(0, 15), st.integers(0, 15)).filter(any))
        starts.append(start)
        busy.append(durations)
        start += max(durations)
    return Schedule(np.array(starts, np.int64), np.array(busy, np.int64).reshape(-1, 2))


slos = st.builds(
    Slo,
    e2e_ns=st.none() | st.integers(1, 120),
    ttft_ns=st.none() | st.integers(1, 60),
    tpot_ns=st.none() | st.integers(1, 12),
    itl_ns=st.none() | st.integers(1, 20),
)


# --- against the plain server ------------------------------------------------------------------------------


@settings(max_examples=250, deadline=None)
@given(models, traces(), schedules())
def test_replay_equals_the_plain_server(which: SidecarModel, trace: RequestTrace, schedule: Schedule) -> None:
    loaded = load(which, trace)
    got = loaded.replay(schedule)
    expected = plain_server.serve(which, trace, schedule)
    for row in range(len(trace)):
        if row not in expected:
            assert trace.prompt_tokens[row] + trace.output_tokens[row] > which.kv_tokens
            assert (got.outcome[row], got.ttft_ns[row], got.e2e_ns[row], got.max_itl_ns[row]) == (REFUSED, -1, -1, -1)
            assert got.output_tokens[row] == 0
            continue
        request, late = expected[row], int(loaded.overhead_ns[row])
        assert got.outcome[row] == SERVED
        assert got.ttft_ns[row] == request.first - request.arrival + late
        assert got.e2e_ns[row] == request.finished - request.arrival + late
        assert got.max_itl_ns[row] == request.max_itl
        assert got.output_tokens[row] == len(request.tokens)


def test_a_server_worked_by_hand() -> None:
    which = model(max_batched_tokens=4, max_num_seqs=2)
    got = load(which, requests((0, 4, 4), (1, 4, 2), (2, 1, 1))).replay(Schedule.empty())
    # Iterations of 2 + n + k ns.  0..6: request 0 reads 4.  6..12: it decodes, request 1 reads 3.
    # 12..16: request 0 decodes, request 1 reads its last prompt token.  16..20: both decode and end.
    # 20..23: request 2, which had to wait for a slot, reads 1 and is done.
    assert got.ttft_ns.tolist() == [6, 15, 21]
    assert got.e2e_ns.tolist() == [20, 19, 21]
    assert got.max_itl_ns.tolist() == [6, 4, 0]


def test_a_merge_slows_what_starts_inside_its_half_open_window() -> None:
    which = model(a_s=10e-9, b_s=0.0, c_s=0.0, prefill_slowdown=3.0, decode_slowdown=2.0)
    trace = requests((0, 1, 4))
    # Prefill 0..10, then decode iterations that start at 10, 20, 30 without merges.
    for window, e2e, longest in (
        ((0, 1), 30 + 30, 10),
        ((1, 9), 40, 10),
        ((1, 10), 50, 20),
        ((10, 1), 50, 20),
        ((10, 11), 50, 20),  # the slow one runs 10..30: 30 is past the end, 21
        ((10, 21), 60, 20),
        ((30, 5), 50, 20),
        ((31, 50), 40, 10),
    ):
        got = load(which, trace).replay(Schedule.all_islands(np.array([window[0]]), window[1]))
        assert (got.e2e_ns[0], got.max_itl_ns[0]) == (e2e, longest), window


def test_a_request_that_fits_no_memory_is_refused_and_blocks_nobody() -> None:
    got = load(model(kv_tokens=10), requests((0, 9, 2), (0, 4, 2), (0, 5, 6))).replay(Schedule.empty())
    assert got.outcome.tolist() == [REFUSED, SERVED, REFUSED]
    assert got.violates(Slo()).tolist() == [True, False, True]


def test_memory_admits_in_order_of_arrival() -> None:
    # 12 tokens hold request 0 (6) but not also request 1 (8); request 2 (2) would fit but waits behind it.
    got = load(model(kv_tokens=12), requests((0, 3, 3), (0, 4, 4), (0, 1, 1))).replay(Schedule.empty())
    assert got.ttft_ns[2] > got.e2e_ns[0]


def test_an_empty_trace_has_no_rows() -> None:
    loaded = load(model(), requests())
    schedule = Schedule.all_islands(np.array([5]), 8)
    assert len(loaded.replay(schedule)) == 0
    assert loaded.violations([schedule], Slo(e2e_ns=1)).tolist() == [0]
    assert loaded.merge_cost(np.array([0, 3]), 8, Slo(e2e_ns=1)).tolist() == [0.0, 0.0]
    session = loaded.session()
    session.advance(10)
    assert session.observe(10) == (ServingState(0.0, 0, 0, 0, None, None),)


# --- sessions ------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(models, traces(), schedules(), st.lists(st.integers(0, 150), max_size=20))
def test_a_session_ends_as_the_replay_of_its_schedule(
    which: SidecarModel, trace: RequestTrace, schedule: Schedule, stops: list[int]
) -> None:
    loaded = load(which, trace)
    session = loaded.session()
    merges = list(zip(schedule.start_ns.tolist(), schedule.busy_ns, strict=True))
    for stop in sorted(stops):
        # As late as a control loop may: a merge is added when time has come to its start.
        while merges and merges[0][0] <= stop:
            session.advance(merges[0][0])
            session.add_merge(*merges.pop(0))
        session.advance(stop)
        session.observe(stop)
    for merge in merges:
        session.add_merge(*merge)
    online, replayed = session.finish(), loaded.replay(schedule)
    assert online.to_table().equals(replayed.to_table())
    assert session.finish().to_table().equals(replayed.to_table())


@settings(max_examples=120, deadline=None)
@given(models, traces(), schedules(), st.lists(st.integers(0, 200), min_size=1, max_size=8), st.sampled_from([50, 100]))
def test_observations_count_what_has_happened(
    which: SidecarModel, trace: RequestTrace, schedule: Schedule, stops: list[int], stretch: int
) -> None:
    # In units in which the recent window is about as long as a busy period.
    unit = 5 * S // stretch
    which = SidecarModel.changed(which, {k: getattr(which, k) * unit for k in ("a_s", "b_s", "c_s", "overhead_s")})
    trace = RequestTrace(trace.arrival_ns * unit, trace.prompt_tokens, trace.output_tokens, trace.island, 2)
    schedule = Schedule(schedule.start_ns * unit, schedule.busy_ns * unit)
    loaded = load(which, trace)
    served = plain_server.serve(which, trace, schedule)
    session = loaded.session()
    session.add_schedule(schedule)
    for now in sorted(stop * unit for stop in stops):
        session.advance(now)
        for island, state in enumerate(session.observe(now)):
            mine = [(r, int(loaded.overhead_ns[i])) for i, r in served.items() if trace.island[i] == island]
            arrived = [r for r, _ in mine if r.arrival <= now]
            assert state.in_flight == sum(r.finished > now for r in arrived)
            assert state.queued == sum(r.admitted >= now for r in arrived)
            assert state.completed == sum(r.finished + late <= now for r, late in mine)
            recent = [(r, late) for r, late in mine if now - 5 * S < r.finished + late <= now]
            if recent:
                assert state.recent_e2e_s == pytest.approx(np.mean([r.finished + o - r.arrival for r, o in recent]) / S)
                assert state.recent_ttft_s == pytest.approx(np.mean([r.first + o - r.arrival for r, o in recent]) / S)
            else:
                assert state.recent_e2e_s is None and state.recent_ttft_s is None
            since = max(now - 5 * S, 0)
            used = sum(max(min(r.finished, now) - max(r.admitted, since), 0) for r, _ in mine)
            share = used / (which.max_num_seqs * (now - since)) if now else 0.0
            assert state.serving_pressure == pytest.approx(share) and 0 <= state.serving_pressure <= 1


@settings(max_examples=100, deadline=None)
@given(models, traces(), traces(), schedules(), st.integers(0, 100))
def test_an_observation_knows_nothing_of_the_future(
    which: SidecarModel, trace: RequestTrace, other: RequestTrace, schedule: Schedule, now: int
) -> None:
    sessions = [load(which, t).session() for t in (trace, trace.spliced(other, now + 1))]
    sessions[0].add_schedule(schedule)
    for start, busy in zip(schedule.start_ns.tolist(), schedule.busy_ns, strict=True):
        if start < now:
            sessions[1].add_merge(start, busy)
    states = []
    for session in sessions:
        session.advance(now)
        states.append(session.observe(now))
    assert states[0] == states[1]


def test_a_session_refuses_merges_in_the_past_and_inside_others() -> None:
    session = load(model(), requests((0, 3, 3))).session()
    session.advance(100)
    for start, busy in ((99, [5]), (100, [0]), (100, [-1]), (100, [1, 1])):
        with pytest.raises(BadInput):
            session.add_merge(start, np.array(busy))
    session.add_merge(100, np.array([50]))
    with pytest.raises(BadInput, match="inside another"):
        session.add_merge(149, np.array([1]))
    session.add_merge(150, np.array([1]))
    with pytest.raises(ValueError, match="advanced to 100"):
        session.observe(101)


def test_a_session_holds_any_number_of_merges() -> None:
    trace = requests(*((i * 40, 3, 5) for i in range(200)))
    loaded = load(model(decode_slowdown=2.0), trace)
    schedule = Schedule.all_islands(np.arange(0, 8000, 40), 20)
    session = loaded.session()
    session.add_schedule(schedule)
    assert session.finish().to_table().equals(loaded.replay(schedule).to_table())


# --- counting violations -------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(models, traces(), st.lists(schedules(), max_size=4), slos)
def test_violations_are_those_of_the_replays(
    which: SidecarModel, trace: RequestTrace, several: list[Schedule], slo: Slo
) -> None:
    loaded = load(which, trace)
    assert loaded.violations(several, slo).tolist() == [loaded.replay(s).violates(slo).sum() for s in several]


@settings(max_examples=100, deadline=None)
@given(models, traces(), schedules())
def test_merges_that_slow_nothing_change_nothing(which: SidecarModel, trace: RequestTrace, schedule: Schedule) -> None:
    free = which.changed({"prefill_slowdown": 1.0, "decode_slowdown": 1.0})
    merged, quiet = load(free, trace).replay(schedule), load(free, trace).replay(Schedule.empty(2))
    for column in ("ttft_ns", "e2e_ns", "max_itl_ns", "outcome"):
        assert np.array_equal(getattr(merged, column), getattr(quiet, column))


def test_schedules_of_another_fleet_are_refused() -> None:
    loaded = load(model(), requests((0, 1, 1)))
    for call in (lambda s: loaded.replay(s), lambda s: loaded.violations([s], Slo(e2e_ns=1))):
        with pytest.raises(BadInput, match="2 islands; expected 1"):
            call(Schedule.empty(2))


# --- the price of one merge ----------------------------------------------------------------------------------


def poisson(rate_per_s: float, seconds: float, seed: int, n_islands: int = 1) -> RequestTrace:
    rng = np.random.default_rng(seed)
    n = rng.poisson(rate_per_s * seconds)
    arrival = np.sort(rng.integers(0, int(seconds * S), n))
    island = rng.integers(0, n_islands, n)
    return RequestTrace(arrival, rng.integers(64, 257, n), rng.integers(32, 161, n), island, n_islands)


SLOS = ("e2e<=1s", "ttft<=25ms", "tpot<=7ms", "itl<=15ms", "e2e<=900ms,ttft<=60ms,tpot<=8ms,itl<=20ms")


@pytest.mark.parametrize("slo", SLOS)
def test_merge_cost_equals_full_replays_where_the_server_gets_idle(slo: str) -> None:
    limits = Slo.parse(slo)
    trace = poisson(6.0, 120, seed=3, n_islands=2)
    loaded = load(SidecarModel.shipped(), trace)
    # Far outside, before, after, unordered and repeated starts.
    starts = np.array([*range(0, 120 * S, 3 * S), 7 * S + 123_456_789, 500 * S, 7 * S, 7 * S], np.int64)
    base = loaded.violations([Schedule.empty(2)], limits)[0]
    full = loaded.violations([Schedule.all_islands(np.array([s]), 8 * S, 2) for s in starts], limits) - base
    assert loaded.merge_cost(starts, 8 * S, limits).tolist() == full.tolist()
    assert full.max() > 5 and full[starts == 500 * S] == 0


@settings(max_examples=200, deadline=None)
@given(models, traces(max_size=7), st.lists(st.integers(0, 150), max_size=6), st.integers(1, 30), slos)
def test_merge_cost_equals_full_replays_of_short_traces(
    which: SidecarModel, trace: RequestTrace, starts: list[int], merge_ns: int, slo: Slo
) -> None:
    # Eight requests in a row would be needed to stop before the end of the aftermath.
    which = which.changed({"max_num_seqs": 4})
    loaded = load(which, trace)
    base = loaded.violations([Schedule.empty(2)], slo)[0]
    full = loaded.violations([Schedule.all_islands(np.array([s]), merge_ns, 2) for s in starts], slo) - base
    assert loaded.merge_cost(np.array(starts, np.int64), merge_ns, slo).tolist() == full.tolist()


def test_merge_cost_of_a_server_that_is_never_idle() -> None:
    # 11 in flight on average: idle about once in e^11 arrivals.  What is left out is iterations that shift by
    # less than one: it must average out, and stay within a few requests.
    trace = poisson(15.0, 600, seed=5)
    loaded = load(SidecarModel.shipped(), trace)
    slo = Slo.parse("e2e<=1s")
    starts = np.linspace(0, 590 * S, 150).astype(np.int64)
    base = loaded.violations([Schedule.empty()], slo)[0]
    full = loaded.violations([Schedule.all_islands(np.array([s]), 8 * S) for s in starts], slo) - base
    error = loaded.merge_cost(starts, 8 * S, slo) - full
    assert full.mean() > 30
    assert abs(error.mean()) < 0.02 * full.mean()
    assert np.abs(error).max() <= 0.1 * full.mean()


def test_merge_cost_follows_a_mild_merge_to_its_end() -> None:
    # At 0.5 % slower no request is off by an iteration, so only the end of the merge may end its simulation.
    mild = {"decode_slowdown": 1.005, "prefill_slowdown": 1.005, "overhead_sigma": 0.0}
    loaded = load(SidecarModel.shipped().changed(mild), poisson(9.0, 120, seed=3))
    quiet = loaded.replay(Schedule.empty())
    slo = Slo(tpot_ns=int(np.median(quiet.tpot_ns)))
    starts = np.arange(0, 110 * S, 3 * S)
    full = loaded.violations([Schedule.all_islands(np.array([s]), 8 * S) for s in starts], slo)
    assert loaded.merge_cost(starts, 8 * S, slo).tolist() == (full - quiet.violates(slo).sum()).tolist()


def test_merge_cost_refuses_nonsense() -> None:
    loaded = load(model(), requests((0, 1, 1)))
    for starts, merge_ns in (([-1], 8), ([0], 0), ([[0]], 8)):
        with pytest.raises(BadInput):
            loaded.merge_cost(np.array(starts), merge_ns, Slo(e2e_ns=1))


# --- queueing theory -----------------------------------------------------------------------------------------


def mean_wait_s(load_factor: float, service: str, replications: int = 40, n: int = 20_000) -> tuple[float, float]:
    """Mean wait over replications and its standard error; one slot, tokens of 10 us, mean service 10 ms."""
    one_slot = model(a_s=1e-5, b_s=0.0, c_s=0.0, max_num_seqs=1, max_batched_tokens=10, kv_tokens=1 << 30)
    waits = []
    for seed in range(replications):
        rng = np.random.default_rng(seed)
        arrival = np.cumsum(rng.exponential(0.010 / load_factor, n))
        output = np.full(n, 1000) if service == "deterministic" else rng.geometric(1 / 1000, n)
        trace = RequestTrace((arrival * S).astype(np.int64), np.ones(n), output)
        wait = load(one_slot, trace).replay(Schedule.empty()).e2e_ns - output * 10_000
        assert wait.min() == 0
        waits.append(wait[n // 10 :].mean() / S)
    return float(np.mean(waits)), float(np.std(waits, ddof=1) / np.sqrt(replications))


@pytest.mark.parametrize("load_factor", [0.3, 0.7])
def test_waiting_times_of_single_server_queues(load_factor: float) -> None:
    # Pollaczek-Khinchine: M/D/1 waits rho S / (2 (1 - rho)), M/M/1 twice that (geometric token counts of mean
    # 1,000 are exponential to 0.05 %).  Within four standard errors, each below 2 % of the mean.
    for service, factor in (("deterministic", 0.5), ("exponential", 1.0)):
        mean, error = mean_wait_s(load_factor, service)
        expected = factor * load_factor / (1 - load_factor) * 0.010
        assert error < 0.02 * expected
        assert abs(mean - expected) < 4 * error


def test_littles_law_holds_exactly() -> None:
    # Summed over every nanosecond, requests in the system are the requests' times in the system.
    rng = np.random.default_rng(1)
    trace = requests(*sorted((int(t), int(p), int(o)) for t, p, o in rng.integers([0, 1, 1], [900, 9, 9], (80, 3))))
    loaded = load(model(decode_slowdown=2.0), trace)
    schedule = Schedule.all_islands(np.array([100, 400]), 90)
    session = loaded.session()
    session.add_schedule(schedule)
    total = queued = 0
    now, busy = 0, True
    while busy:
        session.advance(now)
        (state,) = session.observe(now)
        total, queued = total + state.in_flight, queued + state.queued
        busy, now = state.completed < len(trace), now + 1
    got = session.finish()
    assert total == got.e2e_ns.sum()
    assert 0 < queued < total


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(0, 20),
)
def test_work_is_conserved(lengths: list[tuple[int, int]], slots: int, extra: int) -> None:
    # At one nanosecond a token of either kind and nothing else, a busy period lasts its tokens, however they are
    # batched and chunked (each request's first token comes with its prompt).
    which = model(a_s=0.0, max_num_seqs=slots, max_batched_tokens=slots + extra)
    got = load(which, requests(*((0, p, o) for p, o in lengths))).replay(Schedule.empty())
    assert got.e2e_ns.max() == sum(p + o - 1 for p, o in lengths)
    assert (got.outcome == SERVED).all() and np.array_equal(got.output_tokens, [o for _, o in lengths])


@example(seed=0)
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**31))
def test_noise_is_drawn_once_and_has_the_stated_median(seed: int) -> None:
    trace = requests(*((i * 1000, 1, 1) for i in range(4000)))
    noisy = model(overhead_s=0.02, overhead_sigma=0.5)
    loaded = load(noisy, trace, seed)
    assert np.array_equal(loaded.overhead_ns, load(noisy, trace, seed).overhead_ns)
    log = np.log(loaded.overhead_ns / (0.02 * S))
    assert abs(np.median(log)) < 5 * 1.2533 * 0.5 / np.sqrt(4000)
    assert abs(log.std() - 0.5) < 5 * 0.5 / np.sqrt(2 * 4000)
    quiet = load(model(), trace).replay(Schedule.empty())
    got = loaded.replay(Schedule.empty())
    assert np.array_equal(got.e2e_ns - quiet.e2e_ns, loaded.overhead_ns)
    assert np.array_equal(got.ttft_ns - quiet.ttft_ns, loaded.overhead_ns)
