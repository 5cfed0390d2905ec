"""Merge every H inner steps, whatever happens: the usual DiLoCo loop.

Source: the fixed-H baselines of WA-DiLoCo (2026), H = 256 and 512.
"""

from __future__ import annotations

from protocol.scheduler import Observation


class FixedH:
    """H = 512 unless told otherwise; on the decision grid the first decision at or after H merges."""

    def __init__(self, h: int = 512) -> None:
        self.h = h

    def decide(self, observation: Observation) -> bool:
        return observation.steps_since_merge >= self.h


class FixedH256(FixedH):
    def __init__(self) -> None:
        super().__init__(256)


class FixedH512(FixedH):
    def __init__(self) -> None:
        super().__init__(512)
