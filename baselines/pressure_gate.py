"""Merge when no single pressure is above a threshold.

Source: the pressure gate of WA-DiLoCo (2026), threshold 0.6; the variant matched to WA-DiLoCo's merges used 0.45.
"""

from __future__ import annotations

from protocol.scheduler import Observation


class PressureGate:
    def __init__(self, threshold: float = 0.6) -> None:
        self.threshold = threshold

    def decide(self, observation: Observation) -> bool:
        highest = max(observation.network_pressure, observation.serving_pressure, observation.checkpoint_pressure)
        return highest <= self.threshold


class PressureGateMatched(PressureGate):
    def __init__(self) -> None:
        super().__init__(0.45)
