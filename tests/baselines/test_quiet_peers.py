"""`quiet-peers`: arrivals of an island from its counters, who is paired, and what that is worth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.conformance import check_scheduler
from adapters.schedulers import open_scheduler
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from adapters.traces.generators import workload
from baselines.peers import RandomPairs
from baselines.quiet_peers import Island, PeersWhenQuiet, willing
from protocol.merging.peers.schedules import PeerSchedule
from protocol.placement.peer_rollout import peer_rollout
from protocol.regimes.regime import Regime
from protocol.scheduler import Decision, Observation

Observe = Callable[..., Observation]


def test_arrivals_of_a_second_are_shares_of_what_came_between_two_decisions(observe: Observe) -> None:
    island = Island()
    for time_s, completed, in_flight, queued in ((0.5, 0, 1, 0), (1.5, 1, 3, 1), (1.75, 2, 3, 1), (3.5, 9, 4, 0)):
        state = observe(completed=completed, in_flight=in_flight, queued=queued).islands[0]
        island.see(time_s, state)
    # 1 by 0.5 s, 4 more by 1.5 s, 1 more by 1.75 s, 7 more by 3.5 s, each evenly spread
    assert island.counts == pytest.approx([1 + 2, 2 + 1 + 1, 4])
    assert island.part == pytest.approx(2)
    assert sum(island.counts) + island.part == pytest.approx(13)


def test_counters_that_go_back_add_nothing(observe: Observe) -> None:
    island = Island()
    for time_s, completed in ((1.0, 5), (2.0, 3), (3.0, 6)):
        island.see(time_s, observe(completed=completed).islands[0])
    assert island.counts == pytest.approx([5, 0, 1])


@given(st.lists(st.floats(-5, 5), max_size=7))
def test_the_pairs_have_the_largest_total(values: list[float]) -> None:
    better = dict(enumerate(values))
    best = max(
        sum(better[i] for i in chosen)
        for size in range(0, len(values) + 1, 2)
        for chosen in itertools.combinations(better, size)
    )
    found = willing(better)
    assert sum(better[i] for pair in found for i in pair) == pytest.approx(best)
    assert len({i for pair in found for i in pair}) == 2 * len(found)


def test_one_that_must_merge_takes_the_most_willing_and_one_without_a_plan_waits() -> None:
    assert willing({0: -1.0, 1: math.inf, 2: -3.0, 3: -0.5}) == [(1, 3)]
    assert willing({0: math.inf, 1: -math.inf}) == [(0, 1)]
    assert willing({0: -math.inf, 1: -math.inf}) == []
    assert willing({4: math.inf, 2: math.inf, 0: math.inf, 1: math.inf}) == [(2, 4), (0, 1)]
    assert willing({3: 1.0}) == []


def test_an_island_without_requests_merges_and_one_that_is_not_known_yet_waits(observe: Observe) -> None:
    seen = observe(time_s=12.0)
    idle, new = Island(), Island()
    idle.see(12.0, seen.islands[0])
    new.see(12.0, observe(completed=40).islands[0])
    assert idle.better(seen, seen.islands[0]) == math.inf
    assert new.better(seen, seen.islands[0]) == -math.inf
    late = observe(time_s=12.0, steps_since_merge=512)
    assert new.better(late, late.islands[0]) == math.inf


def test_how_long_a_merge_lasts_is_seen(observe: Observe) -> None:
    def fleet(time_s: float, steps: int, staleness_s: float) -> Observation:
        seen = observe(time_s=time_s, steps_since_merge=steps, staleness_s=staleness_s)
        return replace(seen, islands=seen.islands * 2)

    scheduler = PeersWhenQuiet(np.random.default_rng(1))
    assert scheduler.decide(fleet(10.0, 128, 10.0)).groups == ((0, 1),)
    assert scheduler.merge_s is None
    scheduler.decide(fleet(12.0, 0, 0.0))  # still merging
    assert scheduler.merge_s is None
    scheduler.decide(fleet(20.0, 80, 6.0))  # ended at 14 s
    assert scheduler.merge_s == pytest.approx(4.0)


def rolled(kind: type, seed: int) -> tuple[int, float]:
    """Merges, and requests late because of one, of a fleet in a short world."""
    regime = Regime.load("islands-offset").replace(horizon_s=300.0)
    peers = regime.peers()
    assert peers is not None
    made = workload(regime, np.random.default_rng(seed))
    model = SidecarModel.shipped(regime.sidecar).changed(regime.sidecar_overrides)
    sidecar = SimulatedSidecar(model).load(made.trace, np.random.default_rng(seed))
    scheduler = kind(np.random.default_rng(seed))

    class Run:
        def decide(self, seen: Observation) -> Decision:
            return scheduler.decide(seen)

        def close(self) -> None:
            """Nothing was opened."""

    found = peer_rollout(Run(), made, sidecar, peers, regime.learner, np.random.default_rng(9))
    assert found.groups is not None and not found.forced.any()
    schedule = PeerSchedule(found.schedule.start_ns // peers.corridor.grid_ns, found.groups)
    assert peers.violation(schedule) is None and {len(group) for group in found.groups} == {2}
    assert len(set(found.groups)) > 15  # partners change
    late = int((sidecar.replay(found.schedule).e2e_ns > 10**9).sum())
    return len(found.groups), late / len(found.groups)


def test_its_merges_make_fewer_requests_late_than_blind_ones() -> None:
    blind, ours = ([rolled(kind, seed)[1] for seed in (1, 2)] for kind in (RandomPairs, PeersWhenQuiet))
    assert np.mean(ours) < 0.85 * np.mean(blind)


def test_it_conforms() -> None:
    with open_scheduler("baselines.quiet_peers:PeersWhenQuiet") as source:
        assert [f for f in check_scheduler(source, n_decisions=120) if f.level == "error"] == []
