"""Merge when the weighted sum of the pressures is low.

Source: the adaptive-load baseline of WA-DiLoCo (2026); its weights are those of the full score and its limit is 0.6.
"""

from __future__ import annotations

from baselines.wa_diloco import PUBLISHED
from protocol.scheduler import Observation


class AdaptiveLoad:
    def __init__(self, limit: float = 0.6) -> None:
        self.limit = limit

    def decide(self, observation: Observation) -> bool:
        load = (
            PUBLISHED.network * observation.network_pressure
            + PUBLISHED.serving * observation.serving_pressure
            + PUBLISHED.checkpoint * observation.checkpoint_pressure
        )
        return load <= self.limit
