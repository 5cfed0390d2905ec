"""What the oracle knows of a generated load is what the load was made of."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from adapters.traces.load_states import MOST_IN_FLIGHT, LoadStates, present
from adapters.traces.worlds import GeneratedWorlds
from protocol.merging.schedule import Schedule
from protocol.regimes.regime import Regime
from protocol.seeds import generator

WIDTH = MOST_IN_FLIGHT + 1
GRID_S = 0.588


@pytest.mark.parametrize("name", ["bursty-aperiodic", "bursty-periodic"])
def test_the_spells_are_those_of_the_world(name: str) -> None:
    regime = Regime.load(name)
    states = LoadStates.of(regime, GRID_S)
    rates = []
    for seed in range(4):
        arrival_s = GeneratedWorlds(regime, 7).workload(seed).trace.arrival_ns / 1e9
        known = states.spells(7, seed)
        for i in range(len(known.since_s) - 1):
            low, high = known.since_s[i], known.since_s[i + 1]
            rates.append((known.busy[i], high - low, np.sum((arrival_s >= low) & (arrival_s < high))))
    busy, length, count = np.array(rates, float).T
    for state, rate in ((1, regime.arrivals.busy_rate_per_s), (0, regime.arrivals.rate_per_s)):
        assert count[busy == state].sum() / length[busy == state].sum() == pytest.approx(rate, rel=0.12)


def test_a_period_has_phases_that_follow_each_other() -> None:
    regime = Regime.load("bursty-periodic")
    states = LoadStates.of(regime, GRID_S)
    assert states.phases == 204 and len(states) == 204 * WIDTH
    known = states.spells(7, 3)
    begins = known.since_s[known.busy]
    assert states.at(begins + 1e-6, np.zeros(len(begins)), known)[1:].tolist() == [0] * (len(begins) - 1)
    phase = states.at(np.arange(0, 590, GRID_S), np.zeros(1), known) // WIDTH
    assert set(np.diff(phase) % 204) <= {0, 1, 2}


def test_states_of_random_spells_are_two_labels_by_those_present() -> None:
    states = LoadStates.of(Regime.load("bursty-aperiodic"), GRID_S)
    known = states.spells(7, 1)
    middle = (known.since_s[:-1] + known.since_s[1:]) / 2
    assert states.at(middle, np.full(len(middle), 3), known).tolist() == [WIDTH * b + 3 for b in known.busy[:-1]]
    assert states.at([0.0], [50], known)[0] == WIDTH * known.busy[0] + MOST_IN_FLIGHT


def test_those_present_are_counted_one_by_one() -> None:
    regime = Regime.load("bursty-aperiodic")
    trace = GeneratedWorlds(regime, 7).workload(0).trace.window(0, 60 * 10**9, "minute")
    sidecar = SimulatedSidecar(SidecarModel.shipped(regime.sidecar)).load(trace, generator(7, "sidecar"))
    served = sidecar.replay(Schedule.empty(1))
    at_ns = np.arange(0, 60 * 10**9, 7 * 10**9)
    by_hand = [int(np.sum((served.arrival_ns < t) & (served.arrival_ns + served.e2e_ns > t))) for t in at_ns]
    assert present(sidecar, at_ns).tolist() == by_hand
    assert max(by_hand) > 1
