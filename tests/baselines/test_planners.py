"""The offline planners: hand-made prices, and plans that the control loop could have produced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from baselines.calibrated_offline import CalibratedOffline, greedy
from baselines.optimum import Optimum
from protocol.merging.corridor import Corridor
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace

CORRIDOR = Corridor(128, 512, 8, 73_500_000, 8 * NS_PER_S, 600 * NS_PER_S)
SLO = Slo.parse("e2e<=1s")
TRACE = RequestTrace(np.array([0]), np.array([1]), np.array([1]))


class PricedBySecond:
    """A sidecar in name only: a merge costs what the second of its start says."""

    def __init__(self, price: NDArray[np.float64]) -> None:
        self.price = price

    def merge_cost(self, start_ns: NDArray[np.int64], merge_ns: int, slo: Slo) -> NDArray[np.float64]:
        return self.price[np.minimum(start_ns // NS_PER_S, len(self.price) - 1)]


def total(sidecar: PricedBySecond, start_ns: NDArray[np.int64]) -> float:
    return float(sidecar.merge_cost(start_ns, 0, SLO).sum())


def test_greedy_by_hand() -> None:
    # Gaps of 2 to 4 decisions of 10 s, merges of 5 s, two merges in 60 s.  Sums: at least 5 (a third merge is then
    # past the end: 9 * 10 + 15 > 60 holds for all, so only the gaps bind), at most 5 (50 + 10 = 60).
    corridor = Corridor(2, 4, 1, 10, 5, 60)
    assert corridor.sum_range(2) == (4, 5)
    price = np.full((2, 6), 9.0)
    price[0, 3] = 1.0  # the bargain: merge 1 after 3 decisions leaves only 5 for merge 2
    price[1, 4] = 2.0
    price[1, 5] = 8.0
    starts = np.arange(6) * 10 + np.array([[0], [5]])
    assert greedy(corridor, price, starts).tolist() == [3, 2]
    price[0, 3] = 3.0  # now merge 2 after 4 decisions is cheapest, and merge 1 has to start after 2
    assert greedy(corridor, price, starts).tolist() == [2, 2]


def test_equal_prices_give_an_even_spread() -> None:
    decisions = np.arange(CORRIDOR.sum_range(20)[1] + 1) * CORRIDOR.grid_ns
    starts = decisions + np.arange(20)[:, None] * CORRIDOR.merge_ns
    gaps = greedy(CORRIDOR, np.zeros(starts.shape), starts)
    aims = (np.arange(20) + 0.5) * 30e9
    assert np.all(np.abs(CORRIDOR.start_ns(gaps) - aims) <= CORRIDOR.grid_ns / 2)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_greedy_never_leaves_a_small_corridor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gap_min = int(rng.integers(1, 4))
    corridor = Corridor(gap_min, gap_min + int(rng.integers(0, 4)), 1, 10, int(rng.integers(1, 20)), 300)
    k = int(rng.choice(list(corridor.feasible_budgets())))
    if k == 0:
        return
    starts = np.arange(corridor.sum_range(k)[1] + 1) * 10 + np.arange(k)[:, None] * corridor.merge_ns
    gaps = greedy(corridor, rng.integers(0, 5, starts.shape).astype(float), starts)
    assert corridor.violation(corridor.start_ns(gaps)) is None


@pytest.mark.parametrize("planner", [CalibratedOffline, Optimum])
@pytest.mark.parametrize("budget", [13, 16, 25, 34])
def test_plans_lie_in_the_corridor(planner: type[CalibratedOffline | Optimum], budget: int) -> None:
    sidecar = PricedBySecond(np.random.default_rng(budget).random(600) ** 3)
    schedule = planner(sidecar, SLO).plan(TRACE, CORRIDOR, budget)  # type: ignore[arg-type]
    assert len(schedule) == budget
    assert CORRIDOR.violation(schedule.start_ns) is None


@given(seed=st.integers(0, 2**32), budget=st.integers(13, 34))
@settings(max_examples=25, deadline=None)
def test_no_plan_is_cheaper_than_the_optimum(seed: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    # A price of whole bursts, a second of resolution being coarser than the optimum's own price grid.
    sidecar = PricedBySecond(np.repeat(rng.integers(0, 100, 60), 10).astype(float))
    best = Optimum(sidecar, SLO).plan(TRACE, CORRIDOR, budget)  # type: ignore[arg-type]
    planned = CalibratedOffline(sidecar, SLO).plan(TRACE, CORRIDOR, budget)  # type: ignore[arg-type]
    drawn = [total(sidecar, CORRIDOR.start_ns(g)) for g in CORRIDOR.sample(budget, 20, rng)]
    # Prices are looked up within half a grid step, so one edge a merge may be missed.
    slack = 100.0 * budget * 0.1
    assert total(sidecar, best.start_ns) <= min(total(sidecar, planned.start_ns), *drawn) + slack


def test_offline_planning_avoids_known_bursts() -> None:
    # Bursts of 30 s in every 120 s, windows outside them free, at three phases.  Greed pays for some of its bargains.
    rng = np.random.default_rng(1)
    spent = {CalibratedOffline: 0.0, Optimum: 0.0}
    drawn = 0.0
    for phase in (4, 50, 90):
        sidecar = PricedBySecond(np.where((np.arange(600) + phase) % 120 < 30, 100.0, 0.0))
        drawn += float(np.mean([total(sidecar, CORRIDOR.start_ns(g)) for g in CORRIDOR.sample(20, 200, rng)]))
        for planner in spent:
            spent[planner] += total(sidecar, planner(sidecar, SLO).plan(TRACE, CORRIDOR, 20).start_ns)  # type: ignore[arg-type]
    assert spent[Optimum] <= spent[CalibratedOffline] < 0.6 * drawn
    assert spent[Optimum] < 0.3 * drawn
