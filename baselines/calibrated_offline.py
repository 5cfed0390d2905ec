"""The published offline planner: take the cheapest windows, one after another, a minimum gap apart.

Source: WA-DiLoCo (2026), the calibrated offline replay.  It took, again and again, a window of least cost at least
18 s from those already taken, of equal ones the nearest to an even spread.  Two things differ here, both needed
for a matched comparison:

- The published cost of a window was its share of burst time, off the known burst clock; here it is the number
  of SLO violations that a merge there adds to the trace under the sidecar model.
- The published plan heeded no H_max and lay on no decision grid.  Here a window may be taken only while the
  merges still to be placed fit the corridor around it, so every plan is one that the control loop could have
  produced.  It stays greedy: an early bargain can force later merges into dear windows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.merging.corridor import Corridor
from protocol.merging.schedule import Schedule
from protocol.replay.sidecar import LoadedSidecar
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace


class CalibratedOffline:
    def __init__(self, sidecar: LoadedSidecar, slo: Slo) -> None:
        self.sidecar, self.slo = sidecar, slo

    def plan(self, trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        corridor.check_budget(budget)
        decisions = np.arange(corridor.sum_range(budget)[1] + 1, dtype=np.int64) * corridor.grid_ns
        starts = decisions + np.arange(budget, dtype=np.int64)[:, None] * corridor.merge_ns
        # Windows priced every half second, as published; a start costs what the window nearest to it does.
        every = NS_PER_S // 2
        windows = np.arange(0, corridor.horizon_ns + 1, every, dtype=np.int64)
        price = self.sidecar.merge_cost(windows, corridor.merge_ns, self.slo)
        nearest = np.minimum((starts + every // 2) // every, len(windows) - 1)
        gaps = greedy(corridor, price[nearest], starts)
        return Schedule.all_islands(corridor.start_ns(gaps), corridor.merge_ns, trace.n_islands)


def greedy(corridor: Corridor, price: NDArray[np.float64], start_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Gaps, int64, shape (k,), of a placement built from its cheapest merges first.

    price, start_ns : shape (k, n); cost and start of merge i after that many decisions.
    """
    k = len(price)
    index = np.arange(k)
    low, high = corridor.sum_range(k)
    # Decisions after which each merge may start, given those already fixed; the last merge ends the sum.
    earliest = np.maximum((index + 1) * corridor.gap_min, low - (k - 1 - index) * corridor.gap_max)
    latest = np.minimum((index + 1) * corridor.gap_max, high - (k - 1 - index) * corridor.gap_min)
    detour = np.abs(start_ns - (2 * index[:, None] + 1) * corridor.horizon_ns // (2 * k))
    decisions = np.arange(price.shape[1])
    open_ = np.ones(k, bool)
    for _ in range(k):
        allowed = open_[:, None] & (decisions >= earliest[:, None]) & (decisions <= latest[:, None])
        i, n = np.nonzero(allowed)
        best = np.lexsort((detour[i, n], price[i, n]))[0]
        fixed, at = i[best], n[best]
        open_[fixed] = False
        apart = np.abs(index - fixed)
        near, far = apart * corridor.gap_min, apart * corridor.gap_max
        earliest = np.maximum(earliest, np.where(index < fixed, at - far, at + near))
        latest = np.minimum(latest, np.where(index < fixed, at - near, at + far))
    return np.diff(earliest, prepend=0)
