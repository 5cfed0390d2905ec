"""The exact optimum of an additive cost: what a planner that knows the future could reach, and the worst of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.merging.corridor import Corridor
from protocol.replay.sidecar import LoadedSidecar
from protocol.workload.slo import Slo


def optimum(corridor: Corridor, budget: int, sidecar: LoadedSidecar, slo: Slo) -> NDArray[np.int64]:
    """Gaps of the cheapest placement when every merge's cost is counted alone (additive), exact by DP."""
    return extremes(corridor, budget, sidecar, slo)[0]


def extremes(
    corridor: Corridor, budget: int, sidecar: LoadedSidecar, slo: Slo
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Gaps of the cheapest and of the dearest placement, each int64, shape (budget,)."""
    most = corridor.sum_range(budget)[1] if budget else 0
    decisions = np.arange(most + 1, dtype=np.int64) * corridor.grid_ns
    # Merge i after n decisions starts at n * grid + i * merge: price the distinct starts, then look them up.
    starts = decisions[None, :] + np.arange(budget, dtype=np.int64)[:, None] * corridor.merge_ns
    lattice = np.unique(starts[starts + corridor.merge_ns <= corridor.horizon_ns])
    # Starts a few milliseconds apart cost the same to within a request: price one in every half grid step.
    coarse = np.arange(0, corridor.horizon_ns + 1, max(corridor.grid_ns // 2, 1))
    if len(coarse) < len(lattice):
        lattice = coarse
    price = sidecar.merge_cost(lattice, corridor.merge_ns, slo)
    after = np.clip(np.searchsorted(lattice, starts), 0, len(lattice) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(lattice[before] - starts) < np.abs(lattice[after] - starts), before, after)
    return corridor.optimum(budget, price[nearest]), corridor.optimum(budget, -price[nearest])
