"""The time model, against numbers worked by hand and a chunk-by-chunk simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadInput
from protocol.merging.corridor import Corridor
from protocol.merging.peers import topology as tp
from protocol.merging.peers.communication import (
    Network,
    Round,
    adapted_steps,
    fit_link,
    plan_rounds,
    rounds_of_schedule,
    sent_bytes,
)
from protocol.merging.peers.schedules import Merging, Peers, PeerSchedule
from protocol.merging.peers.topology import Topology, averaging
from protocol.merging.schedule import Schedule

#: 134 million parameters in two bytes, over 1 Gbit/s.
PAYLOAD, GIGABIT = 268_000_000, 1.25e8
S = 1_000_000_000


def ring_of(n: int) -> np.ndarray:
    return tp.from_edges(n, [(k, (k + 1) % n) for k in range(n)])


def test_times_worked_by_hand() -> None:
    equal = Network.of(8, GIGABIT)
    pairs = tp.averaging(8, [(0, 1), (2, 3), (4, 5), (6, 7)])
    assert equal.all_reduce_ns(PAYLOAD) == 3_752_000_000
    assert equal.gossip_ns(PAYLOAD, pairs).tolist() == [2_144_000_000] * 8
    slow = Network.of(8, GIGABIT, slow={0: 0.1})
    assert slow.all_reduce_ns(PAYLOAD) == pytest.approx(37_520_000_000, abs=2)
    np.testing.assert_allclose(slow.gossip_ns(PAYLOAD, pairs) / 1e9, [21.44] * 2 + [2.144] * 6)
    np.testing.assert_allclose(
        slow.gossip_ns(PAYLOAD, ring_of(8)) / 1e9, [42.88, 42.88, *[4.288] * 5, 42.88]
    )  # the slow island and its two neighbours


def test_latency_is_counted_by_hop() -> None:
    network = Network.of(4, 1e9, latency_s=1e-3)
    assert network.all_reduce_ns(0) == 6_000_000
    alone = tp.averaging(4, [(1, 2)])
    assert network.gossip_ns(0, alone).tolist() == [0, 1_000_000, 1_000_000, 0]


def test_bytes_sent() -> None:
    assert sent_bytes(80, tp.complete(8), True).tolist() == [140.0] * 8
    assert sent_bytes(80, ring_of(8), False).tolist() == [160.0] * 8
    assert sent_bytes(80, tp.averaging(3, [(0, 2)]), False).tolist() == [80.0, 0.0, 80.0]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=9))
def test_all_reduce_equals_its_simulation(rates: list[int]) -> None:
    """Without buffers a step's chunk passes from i to i + 1 once both have ended the step before."""
    n, chunk = len(rates), 1000
    ended = np.zeros(n)
    for _ in range(2 * (n - 1)):
        link = [max(ended[i], ended[(i + 1) % n]) + chunk / min(rates[i], rates[(i + 1) % n]) for i in range(n)]
        ended = np.array([max(link[i], link[i - 1]) for i in range(n)])
    model = Network(np.array(rates, float)).all_reduce_ns(chunk * n) / 1e9
    assert model == pytest.approx(ended.max(), rel=1e-6)


def test_adapted_steps_by_hand() -> None:
    """Usual exchange 3 ms, slow pair 10.5 ms, a step 1 ms: 7.5 steps fit into the difference, so 8 are cut."""
    network = Network(np.array([1.0, 4.0, 4.0, 4.0]))
    pairs = tp.averaging(4, [(0, 1), (2, 3)])
    took = np.array([10_500_000, 10_500_000, 3_000_000, 3_000_000])
    usual = np.full(4, 3_000_000)
    for adapt, steps in (("none", [30] * 4), ("straggler", [22, 30, 30, 30]), ("partners", [22, 22, 30, 30])):
        found = adapted_steps(30, took, usual, pairs, 1_000_000, network, adapt)  # type: ignore[arg-type]
        assert found.tolist() == steps
    assert adapted_steps(5, took, usual, pairs, 1_000_000, network).tolist() == [1, 1, 5, 5]


@pytest.mark.parametrize(
    ("kind", "adapt", "length"),
    [("complete", "none", 2.75), ("pair", "none", 2.0), ("pair", "straggler", 1.47), ("pair", "partners", 1.10)],
)
def test_round_lengths_with_a_straggler(kind: str, adapt: str, length: float) -> None:
    """Pair exchange = a tenth of the H steps, one of eight interfaces at a tenth: in units of H steps."""
    h, step_ns, rounds = 30, 1_000_000, 300
    planned = list(
        plan_rounds(
            Topology(kind, 8), Network.of(8, 1e9, slow={0: 0.1}), h=h, rounds=rounds, step_ns=step_ns,  # type: ignore[arg-type]
            payload_bytes=3_000_000, rng=np.random.default_rng(0), adapt=adapt,  # type: ignore[arg-type]
        )
    )  # fmt: skip
    assert planned[-1].end_ns.max() / (rounds * h * step_ns) == pytest.approx(length, abs=0.01)


@given(st.sampled_from(["pair", "ring", "complete"]), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_rounds_are_consistent(kind: str, n: int, seed: int, adapted: bool) -> None:
    network = Network.of(n, 1e6, 1e-4, {0: 0.3})
    planned = list(
        plan_rounds(
            Topology(kind, n), network, h=7, rounds=5, step_ns=10_000_000, payload_bytes=20_000,  # type: ignore[arg-type]
            rng=np.random.default_rng(seed), adapt="partners" if adapted else "none",
        )
    )  # fmt: skip
    ready = np.zeros(n, np.int64)
    for r, one in enumerate(planned):
        tp.check_mixing(one.mixing)
        assert ((one.steps >= 1) & (one.steps <= 7)).all() and (one.first_step == 7 * r).all()
        assert (one.start_ns >= ready + one.steps * 10_000_000).all() and (one.end_ns >= one.start_ns).all()
        assert ((one.end_ns > one.start_ns) == one.exchanging).all()
        for members in one.members if kind == "pair" else ():
            assert len(set(one.start_ns[members])) == len(set(one.end_ns[members])) == 1
        ready = one.end_ns


def test_only_a_collective_makes_everybody_wait() -> None:
    network = Network.of(8, 1e6, slow={0: 0.1})

    def one(kind: str):  # type: ignore[no-untyped-def]
        return next(
            plan_rounds(
                Topology(kind, 8), network, h=2, rounds=1, step_ns=10**9, payload_bytes=10**6,  # type: ignore[arg-type]
                rng=np.random.default_rng(3),
            )
        )  # fmt: skip

    busy = {kind: one(kind).end_ns - one(kind).start_ns for kind in ("complete", "pair", "ring")}
    assert len(set(busy["complete"])) == 1
    assert (busy["pair"] == busy["pair"].max()).sum() == 2
    assert (busy["ring"] == busy["ring"].max()).sum() == 3


def test_a_schedule_becomes_rounds_by_hand() -> None:
    """Three islands, steps of 10: a pair at 25 for 5 and 7, all at 60 for 10, until 100."""
    schedule = Schedule(np.array([25, 60]), np.array([[5, 0, 7], [10, 10, 10]]))
    pair, everyone, rest = rounds_of_schedule(schedule, 10, 100, 12)
    assert pair.steps.tolist() == [2, 0, 2] and pair.exchanging.tolist() == [True, False, True]
    assert pair.sent.tolist() == [12.0, 0.0, 12.0] and not pair.collective
    # Free again at 30, 0 and 32.
    assert everyone.steps.tolist() == [3, 6, 2] and everyone.first_step.tolist() == [2, 0, 2]
    assert everyone.collective and everyone.sent.tolist() == [16.0] * 3
    assert rest.steps.tolist() == [3, 3, 3] and rest.first_step.tolist() == [5, 6, 4]
    assert not rest.exchanging.any() and rest.sent.sum() == 0
    assert (pair.end_ns - pair.start_ns).tolist() == [5, 0, 7]


@given(st.lists(st.integers(1, 400), max_size=6), st.integers(1, 4), st.integers(1, 30))
def test_steps_of_a_schedule_fit_into_its_free_time(gaps: list[int], n: int, step: int) -> None:
    rng = np.random.default_rng(0)
    busy = rng.integers(0, 2, (len(gaps), n)) * 3
    busy[:, 0] = 3
    schedule = Schedule(np.cumsum(np.array(gaps, np.int64) + 3), busy)
    horizon = 3000
    rounds = rounds_of_schedule(schedule, step, horizon, 1)
    steps = np.sum([r.steps for r in rounds], axis=0)
    free = horizon - busy.sum(0)
    assert (steps * step <= free).all()
    assert ((steps + 1 + (busy > 0).sum(0)) * step >= free).all()
    assert all((r.steps >= 0).all() for r in rounds)


def test_fit_recovers_a_link_and_reports_its_error() -> None:
    sent = np.array([1e5, 3e5, 1e6, 4e6])
    fit = fit_link(sent, sent / 5e6 + 0.002)
    assert fit.bandwidth == pytest.approx(5e6) and fit.latency_s == pytest.approx(0.002)
    np.testing.assert_allclose(fit.relative_error, 0, atol=1e-9)
    noisy = fit_link(sent, (sent / 5e6 + 0.002) * [1.1, 0.9, 1.1, 0.9])
    assert 0.05 < np.abs(noisy.relative_error).max() < 0.3
    assert fit_link(sent, sent / 5e6 - 0.001).latency_s == 0


def test_bad_input_is_refused() -> None:
    draw = np.random.default_rng(0)
    good = {"h": 1, "rounds": 1, "step_ns": 1, "payload_bytes": 1, "rng": draw}
    for call in (
        lambda: Network(np.array([1.0, 0.0])),
        lambda: Network(np.array([[1.0]])),
        lambda: Network(np.array([np.nan])),
        lambda: Network.of(2, 1.0, latency_s=-1.0),
        lambda: Network.of(2, 1.0, slow={2: 0.1}),
        lambda: rounds_of_schedule(Schedule.empty(2), 0, 1, 1),
        lambda: fit_link([1.0, 2.0], [1.0, 2.0]),
        lambda: fit_link([1.0, 2.0, 3.0], [3.0, 2.0, -1.0]),
        lambda: next(plan_rounds(Topology("pair", 3), Network.of(2, 1.0), **good)),  # type: ignore[arg-type]
        lambda: next(plan_rounds(Topology("pair", 2), Network.of(2, 1.0), **{**good, "h": 0})),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInput):
            call()


def test_training_exchanges_what_was_judged() -> None:
    """A ring of four mixes each island with its two neighbours, a pair takes its mean, a graph has own weights."""
    ring = Peers(
        Corridor(2, 9, 1, S, 3 * S, 30 * S), Merging(payload_bytes=100, bandwidth=(100.0,), exchange="ring"), 4
    )
    merges = PeerSchedule(np.array([3, 9]), ((0, 2, 1, 3), (0, 1)))
    exchanges = [(ring.mixing_of(g), ring.sent(g)) for g in merges.groups]
    schedule = ring.schedule(merges)
    first, second, last = rounds_of_schedule(schedule, S, 30 * S, 100, exchanges)
    third = 1 / 3
    assert np.allclose(first.mixing, [[third, 0, third, third], [0, third, third, third], [third, third, third, 0],
                                      [third, third, 0, third]])  # fmt: skip
    assert not first.collective and first.sent.tolist() == [200.0] * 4
    assert np.array_equal(second.mixing, averaging(4, [(0, 1)])) and second.sent.tolist() == [100, 100, 0, 0]
    assert np.array_equal(last.mixing, np.eye(4))
    everybody = rounds_of_schedule(schedule, S, 30 * S, 100)[0]
    assert everybody.collective and np.allclose(everybody.mixing, 0.25)
    path = Merging(payload_bytes=100, bandwidth=(100.0,), exchange="graph", graph=("0-1", "1-2", "2-3"))
    w = Peers(ring.corridor, path, 4).mixing_of((0, 1, 2, 3))
    assert np.allclose(
        w, [[2 / 3, third, 0, 0], [third, third, third, 0], [0, third, third, third], [0, 0, third, 2 / 3]]
    )


def test_a_round_that_would_move_the_mean_is_refused() -> None:
    zeros = np.zeros(2, np.int64)
    with pytest.raises(BadInput, match="round, mixing: found a row that misses a sum of 1 by 0.5"):
        Round(np.full((2, 2), 0.25), False, zeros, zeros, zeros, zeros, np.zeros(2))
