"""The three peer schedulers: rounds, cycles, equal bytes, and who looks at the load."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from adapters.conformance import check_scheduler
from adapters.schedulers import open_scheduler
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from adapters.traces.generators import workload
from baselines.peers import AllIslands, QuietPairs, RandomPairs
from protocol.merging.peers.schedules import PeerSchedule
from protocol.merging.schedule import Schedule
from protocol.placement.peer_rollout import peer_rollout
from protocol.regimes.regime import Regime
from protocol.scheduler import Decision, Observation

REGIME = Regime.load("islands-offset")
PEERS = REGIME.peers()
assert PEERS is not None


class Run:
    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.seen = scheduler, []  # type: ignore[var-annotated]

    def decide(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        return self.scheduler.decide(observation)

    def close(self) -> None:
        """Nothing was opened."""


def world(seed: int) -> tuple[Any, Any]:
    made = workload(REGIME, np.random.default_rng(seed))
    model = SidecarModel.shipped(REGIME.sidecar).changed(REGIME.sidecar_overrides)
    return made, SimulatedSidecar(model).load(made.trace, np.random.default_rng(seed))


def roll(kind: Any, seed: int) -> tuple[PeerSchedule, Any, Run]:
    made, sidecar = world(seed)
    run = Run(kind(np.random.default_rng(seed)))
    assert PEERS is not None
    rolled = peer_rollout(run, made, sidecar, PEERS, REGIME.learner, np.random.default_rng(9))
    assert rolled.groups is not None and not rolled.forced.any()
    return PeerSchedule(rolled.schedule.start_ns // PEERS.corridor.grid_ns, rolled.groups), sidecar, run


@pytest.mark.parametrize("seed", [1, 2])
def test_the_three_exchange_the_same_bytes(seed: int) -> None:
    assert PEERS is not None
    merges = {}
    for kind in (AllIslands, RandomPairs, QuietPairs):
        made, _, _ = roll(kind, seed)
        assert PEERS.violation(made) is None
        merges[kind.__name__] = len(made)
        assert PEERS.by_island(made)["bytes"].tolist() == [28 * 1_102_000_000] * 8
    assert merges == {"AllIslands": 16, "RandomPairs": 112, "QuietPairs": 112}


@pytest.mark.parametrize("kind", [RandomPairs, QuietPairs])
def test_every_round_pairs_each_island_once(kind: Any) -> None:
    made, _, _ = roll(kind, 3)
    by_round = Counter(
        (int(cell) * 8 // 288, i) for cell, group in zip(made.cells, made.groups, strict=True) for i in group
    )
    assert set(by_round.values()) == {1} and len(by_round) == 28 * 8
    assert {len(g) for g in made.groups} == {2} and len(set(made.groups)) > 20  # partners change


def test_blind_schedulers_do_not_look(seed: int = 4) -> None:
    for kind, same in ((AllIslands, True), (RandomPairs, True), (QuietPairs, False)):
        plans = []
        for load in (1, 2):
            made, sidecar = world(load)
            rolled = peer_rollout(
                Run(kind(np.random.default_rng(seed))), made, sidecar, PEERS, REGIME.learner, np.random.default_rng(9)  # type: ignore[arg-type]
            )  # fmt: skip
            plans.append((rolled.schedule.start_ns.tolist(), rolled.groups))
        assert (plans[0] == plans[1]) == same


def test_quiet_pairs_merge_at_emptier_servers() -> None:
    """What their islands serve when they merge, against what all serve on average."""
    made, sidecar, run = roll(QuietPairs, 5)
    at = {round(o.time_s / 0.588): [i.in_flight for i in o.islands] for o in run.seen}
    chosen = [at[int(c)][i] for c, g in zip(made.cells, made.groups, strict=True) for i in g]
    assert np.mean(chosen) < 0.75 * np.mean([n for row in at.values() for n in row])
    assert PEERS is not None
    slo_missed = lambda s: sidecar.replay(s).e2e_ns  # noqa: E731
    assert np.mean(slo_missed(PEERS.schedule(made)) > 10**9) > np.mean(slo_missed(Schedule.empty(8)) > 10**9)


@pytest.mark.parametrize("name", ["AllIslands", "RandomPairs", "QuietPairs"])
def test_they_conform(name: str) -> None:
    with open_scheduler(f"baselines.peers:{name}") as source:
        assert [f for f in check_scheduler(source, n_decisions=120) if f.level == "error"] == []


def test_islands_have_bursts_of_their_own() -> None:
    """Arrivals of two sidecars in 5 s bins: uncorrelated here, correlated where bursts are common."""

    def correlation(regime: Regime) -> float:
        found = []
        for seed in range(12):
            trace = workload(regime, np.random.default_rng(seed)).trace
            bins = np.arange(0, 601, 5) * 1e9
            counts = [np.histogram(trace.arrival_ns[trace.island == i], bins)[0] for i in (0, 1)]
            found.append(np.corrcoef(*counts)[0, 1])
        return float(np.mean(found))

    own = REGIME.replace(islands=2)
    assert own.peer is not None
    common = own.replace(peer=type(own.peer)(payload_bytes=own.peer.payload_bytes, bandwidth=own.peer.bandwidth))
    assert abs(correlation(own)) < 0.15 < 0.6 < correlation(common)
