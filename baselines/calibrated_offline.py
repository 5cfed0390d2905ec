"""The published offline planner: take the cheapest windows, one after another, a minimum gap apart.

Source: WA-DiLoCo (2026), the calibrated offline replay.  Merge k of K aims at the moment (k + 1/2) / K of the
horizon and takes, among the starts at least a minimum gap from those already taken, one of least cost; of equal
ones the nearest to its aim.  Two things differ here, both needed for a matched comparison:

- The published cost of a window was its share of burst time, off the known burst clock; here it is the number
  of SLO violations that a merge there adds to the trace under the sidecar model.
- The published plan heeded no H_max and lay on no decision grid.  Here the minimum gap is the corridor's own
  (H_min and the merge: 17.4 s at the published pace, where the paper took 18 s), and the greedy starts are moved
  to the nearest placement that the control loop could have produced: least total displacement, by dynamic
  programming.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.corridor import Corridor
from protocol.schedule import Schedule
from protocol.sidecar import LoadedSidecar
from protocol.slo import Slo
from protocol.trace import NS_PER_S, RequestTrace


class CalibratedOffline:
    def __init__(self, sidecar: LoadedSidecar, slo: Slo) -> None:
        self.sidecar, self.slo = sidecar, slo

    def plan(self, trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        corridor.check_budget(budget)
        # Candidates every half second, as published.
        first = corridor.gap_min * corridor.grid_ns
        candidates = np.arange(first, corridor.horizon_ns - corridor.merge_ns + 1, NS_PER_S // 2, dtype=np.int64)
        price = self.sidecar.merge_cost(candidates, corridor.merge_ns, self.slo)
        wanted = greedy(candidates, price, budget, corridor.horizon_ns, first + corridor.merge_ns)
        gaps = nearest_placement(corridor, wanted)
        return Schedule.all_islands(corridor.start_ns(gaps), corridor.merge_ns, trace.n_islands)


def greedy(
    candidates: NDArray[np.int64], price: NDArray[np.float64], k: int, horizon_ns: int, min_gap_ns: int
) -> NDArray[np.int64]:
    """Starts of k merges, sorted: int64, shape (k,).

    candidates : int64, shape (n,), increasing.  price : shape (n,).  Where no candidate is left that far from
    those taken, the one farthest from them is.
    """
    taken: list[int] = []
    room = np.full(len(candidates), np.iinfo(np.int64).max)
    for i in range(k):
        aim = (2 * i + 1) * horizon_ns // (2 * k)
        free = np.flatnonzero(room >= min_gap_ns)
        if not len(free):
            free = np.flatnonzero(room == room.max())
        best = free[np.lexsort((np.abs(candidates[free] - aim), price[free]))[0]]
        taken.append(int(candidates[best]))
        room = np.minimum(room, np.abs(candidates - candidates[best]))
    return np.sort(np.array(taken, np.int64))


def nearest_placement(corridor: Corridor, start_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Gaps of the placement whose starts are nearest to these, by total displacement in time."""
    k = len(start_ns)
    decisions = np.arange(corridor.sum_range(k)[1] + 1, dtype=np.int64) * corridor.grid_ns
    starts = decisions[None, :] + np.arange(k, dtype=np.int64)[:, None] * corridor.merge_ns
    return corridor.optimum(k, np.abs(starts - start_ns[:, None]) / NS_PER_S)
