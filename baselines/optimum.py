"""The best placement there is: an upper bound, not a scheduler.

Every possible merge is priced alone (the violations it adds to the trace without any merge), and dynamic
programming over the corridor finds the placement of least total price.  Exact for that additive price.
"""

from __future__ import annotations

from protocol.merging.corridor import Corridor
from protocol.merging.schedule import Schedule
from protocol.placement.planning import optimum
from protocol.replay.sidecar import LoadedSidecar
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace


class Optimum:
    def __init__(self, sidecar: LoadedSidecar, slo: Slo) -> None:
        self.sidecar, self.slo = sidecar, slo

    def plan(self, trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        gaps = optimum(corridor, budget, self.sidecar, self.slo)
        return Schedule.all_islands(corridor.start_ns(gaps), corridor.merge_ns, trace.n_islands)
