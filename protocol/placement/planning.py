"""The exact optimum of an additive cost: what a planner that knows the future could reach, and the worst of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.merging.corridor import Corridor
from protocol.merging.practice import Merges, Timing
from protocol.replay.sidecar import LoadedSidecar
from protocol.workload.slo import Slo


def optimum(corridor: Corridor, budget: int, sidecar: LoadedSidecar, slo: Slo) -> NDArray[np.int64]:
    """Gaps of the cheapest placement when every merge's cost is counted alone (additive), exact by DP."""
    return extremes(corridor, budget, sidecar, slo)[0]


def extremes(
    corridor: Corridor, budget: int, sidecar: LoadedSidecar, slo: Slo
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Gaps of the cheapest and of the dearest placement, each int64, shape (budget,).

    Where merges are not all alike, `extremes_of` has them.
    """
    most = corridor.sum_range(budget)[1] if budget else 0
    decisions = np.arange(most + 1, dtype=np.int64) * corridor.grid_ns
    # Merge i after n decisions starts at n * grid + i * merge: price the distinct starts, then look them up.
    starts = decisions[None, :] + np.arange(budget, dtype=np.int64)[:, None] * corridor.merge_ns
    lattice = np.unique(starts[starts + corridor.merge_ns <= corridor.horizon_ns])
    # Starts a few milliseconds apart cost the same to within a request: price one in every half grid step.
    coarse = np.arange(0, corridor.horizon_ns + 1, max(corridor.grid_ns // 2, 1))
    if len(coarse) < len(lattice):
        lattice = coarse
    price = sidecar.merge_cost(lattice, corridor.merge_ns, slo)[_nearest(lattice, starts)]
    return corridor.optimum(budget, price), corridor.optimum(budget, -price)


def extremes_of(
    timing: Timing, merges: Merges, sidecar: LoadedSidecar, slo: Slo
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same for merges that are not all alike, in the order in which they come.

    Equal ones are priced together, each at the starts that its places in the order can reach, half a step apart.
    """
    corridor, k, spent = timing.corridor, len(merges), timing.spent(merges)
    lengths = timing.lengths_ns(merges)
    assert spent is not None and lengths is not None
    low, high = corridor.sum_range(k, spent)
    before_ns = np.cumsum(lengths) - lengths
    price = np.zeros((k, high + 1))
    for took in np.unique(merges.took_ns).tolist():
        mine = np.flatnonzero(merges.took_ns == took)
        reached = [np.arange(corridor.earliest(i, k, low), corridor.latest(i, k, high) + 1) for i in mine.tolist()]
        starts = [n * corridor.grid_ns + before_ns[i] for i, n in zip(mine, reached, strict=True)]
        lattice = np.unique(np.concatenate(starts))
        coarse = np.arange(lattice[0], lattice[-1] + corridor.grid_ns, max(corridor.grid_ns // 2, 1))
        lattice = coarse if len(coarse) < len(lattice) else lattice
        alone = timing.schedule_at(np.zeros(1, np.int64), sidecar.trace.n_islands, merges.ordered(mine[:1]))
        costs = sidecar.merge_cost(lattice, took, slo, alone)
        for i, n, at in zip(mine.tolist(), reached, starts, strict=True):
            price[i, n] = costs[_nearest(lattice, at)]
    return corridor.optimum(k, price, spent), corridor.optimum(k, -price, spent)


def _nearest(lattice: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    after = np.clip(np.searchsorted(lattice, starts), 0, len(lattice) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(lattice[before] - starts) < np.abs(lattice[after] - starts), before, after)
