"""The corridor: which placements of merges a control loop can produce, counted, drawn and optimised exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Corridor:
    """H_min to H_max inner steps between merges, on a grid of decisions, within a horizon.

    A merge may be decided every `decision_steps` inner steps after the last one ended (or after time 0),
    from h_min on, and is forced at h_max.  Inner steps take `step_ns` each and stop while a merge runs.
    A decision whose merge would end after `horizon_ns` is never taken.
    """

    h_min: int
    h_max: int
    decision_steps: int
    step_ns: int
    merge_ns: int
    horizon_ns: int

    @property
    def grid_ns(self) -> int:
        """Time between two decisions."""
        return self.decision_steps * self.step_ns

    @property
    def gap_min(self) -> int:
        """Fewest decisions between merges."""
        return -(-self.h_min // self.decision_steps)

    @property
    def gap_max(self) -> int:
        """Decision at which a merge is forced."""
        return self.h_max // self.decision_steps

    def start_ns(self, gaps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Merge starts from gaps in decisions; both shape (..., K)."""
        gaps = np.asarray(gaps, np.int64)
        return np.cumsum(gaps, axis=-1) * self.grid_ns + np.arange(gaps.shape[-1]) * self.merge_ns
