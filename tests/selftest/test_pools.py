"""Pools of worlds with priced merges: what they stand for, what they cost, and certificates made on them."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.traces.worlds import GeneratedWorlds
from protocol import seeds
from protocol.campaign.arms import costs
from protocol.cli.settings import setting_of
from protocol.merging.schedule import Schedule
from protocol.regimes.regime import Regime
from protocol.selftest import pools
from protocol.selftest.pools import Played, Player, Pool


def made(regime: Regime, size: int) -> Pool:
    worlds = GeneratedWorlds(regime, 3)
    return Pool.of("aperiodic", setting_of(regime, worlds, None), worlds, size, 3)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return made(Regime.load("bursty-aperiodic").replace(horizon_s=150.0), 40)


@pytest.mark.parametrize("name", ["bursty-aperiodic", "bursty-periodic"])
def test_priced_merges_add_up_to_full_replays(name: str) -> None:
    """At the full horizon: correlation above .98, and means and spreads within 3 % of the replays'."""
    regime = Regime.load(name)
    worlds = GeneratedWorlds(regime, 3)
    setting = setting_of(regime, worlds, None)
    one = Pool.of(name, setting, worlds, 1, 3)
    gaps = setting.corridor.sample(24, 120, np.random.default_rng(1))
    trace = worlds.workload(0).trace
    sidecar = setting.sidecar.load(trace, seeds.generator(3, "sidecar", name, 0))
    idle = sidecar.violations([Schedule.empty(1)], setting.slos[0])[0]
    replayed = 100 * (costs(sidecar, gaps, setting.corridor, setting.slos[:1])[:, 0] - idle) / len(trace)
    priced = one.cost(0, one.starts(gaps))
    assert np.corrcoef(replayed, priced)[0, 1] > 0.98
    assert priced.mean() == pytest.approx(replayed.mean(), rel=0.03)
    assert priced.std() == pytest.approx(replayed.std(), rel=0.1)


def test_costs_by_hand(pool: Pool) -> None:
    k = 6
    gaps = np.array([20, 30, 40, 20, 16, 25])
    c = pool.corridor
    starts = pool.starts(gaps)
    exact_s = (np.cumsum(gaps) * c.grid_ns + np.arange(k) * c.merge_ns) / c.grid_ns
    assert np.abs(starts - exact_s).max() <= 0.5
    assert pool.cost(2, starts) == pytest.approx(sum(pool.prices[2, s] for s in starts))
    other = starts[:4]
    cost = pool.exchanged([2, 5], [starts, other])
    assert cost[0, 0] == pytest.approx(pool.cost(2, starts)) and cost[1, 1] == pytest.approx(pool.cost(5, other))
    assert cost[0, 1] == pytest.approx(pool.cost(2, other) * 6 / 4)
    assert cost[1, 0] == pytest.approx(pool.cost(5, starts) * 4 / 6)


def test_the_dearest_placement_is_no_less_than_any_drawn(pool: Pool) -> None:
    for world in range(5):
        for k in (4, 6):
            assert pool.dearest(world, k) >= pool.cost(world, pool.banks[k]).max() - 1e-9


def test_blind_players_gain_nothing_by_load_and_lookers_do(pool: Pool) -> None:
    by_name = {p.name: Played.on(pool, p) for p in (*pools.PLAYERS, *pools.CLOCKS)}
    assert by_name["looks at the last 8 s"].load > 3 and by_name["best of 5 uniform draws"].chance > 3
    assert by_name["wrong direction"].chance < -3
    # Of 40 worlds the mean of a gain with a spread of 4 pp is known to +-0.65 pp.
    for name in ("uniform draw", "phase drift", "noise"):
        assert abs(by_name[name].load) < 2.6
    assert by_name["clock"].load == pytest.approx(0.0, abs=1e-9)  # one schedule for every world


def test_a_clock_in_a_world_of_one_phase() -> None:
    """It gains over chance, not by load, and is never certified; the looker on top of it gains by load."""
    periodic = Regime.load("bursty-periodic")
    regime = periodic.replace(arrivals=periodic.arrivals.replace(phase_s=0.0))
    same = made(regime, 25)
    clock = Played.on(same, pools.CLOCKS[0])
    assert clock.chance > 5 and abs(clock.load) < 1e-9
    says = [clock.certificate(r, 12, 99, 499) for r in range(10)]
    assert all(s["paired sign flip"] and s["stratified randomisation"] for s in says)
    assert not any(s["certified"] for s in says)


def test_certificates_are_held_to_their_true_gain(pool: Pool) -> None:
    looks = Played.on(pool, Player("looks", pools.PLAYERS[9].scheduler))
    rows = looks.rows(20, 12, 99, 499)
    said = {row.what: row for row in rows}
    assert said["certified"].count <= 4 and said["certified"].n == 20 and said["certified"].bar == "false"
    assert said["gain covered"].count >= 15 and said["bet covers"].count >= 18
    assert looks.rows(20, 12, 99, 499) == rows


def test_who_chooses_only_the_budget(pool: Pool) -> None:
    """Chance placements, and their number by the load: little is seen as following it, less the nearer the numbers."""
    order = pool.arrivals.sum(axis=1).argsort().argsort()
    budgets = np.array(pool.corridor.feasible_budgets())
    wide = budgets[(order * len(budgets)) // len(pool)]
    narrow = 5 + (order * 2) // len(pool)
    assert pools.budget_leak(pool, np.full(len(pool), 6)) == pytest.approx(0.0, abs=1e-9)
    assert abs(pools.budget_leak(pool, narrow)) < abs(pools.budget_leak(pool, wide)) < 2.0
