"""Defer each decision with a fixed probability, blind to everything.

Source: the random-deferral baseline of WA-DiLoCo (2026): probability 0.5 by default, 0.7 in its matched runs.
There each decision came 128 inner steps after the last (`--decision-steps 128` does the same here); on a finer
grid the same probability defers for a shorter time.  This is a scheduler like any other, not the control that
the envelope gate draws.
"""

from __future__ import annotations

import numpy as np

from protocol.scheduler import Observation


class RandomDeferral:
    def __init__(self, rng: np.random.Generator, probability: float = 0.5) -> None:
        self.rng, self.probability = rng, probability

    def decide(self, observation: Observation) -> bool:
        return bool(self.rng.random() >= self.probability)


class RandomDeferral70(RandomDeferral):
    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 0.7)
