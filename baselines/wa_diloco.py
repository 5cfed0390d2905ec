"""Workload-aware DiLoCo: merge when the progress worth sharing outweighs the pressures.

Source: WA-DiLoCo (Not Every Sync Is Safe, 2026), the score of a learner and its published weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.scheduler import IslandObservation, Observation


@dataclass(frozen=True)
class Weights:
    loss: float
    tokens: float
    network: float
    serving: float
    checkpoint: float
    sync_cost: float
    staleness: float


PUBLISHED = Weights(loss=0.5, tokens=0.5, network=0.5, serving=0.75, checkpoint=0.25, sync_cost=0.0, staleness=0.25)


def unit(value: float) -> float:
    """Clipped to 0 .. 1."""
    return min(1.0, max(0.0, value))


def score(island: IslandObservation, weights: Weights, sync_cost: float = 0.0) -> float:
    """Progress worth sharing less what sharing it now would cost; each term is clipped to 0 .. 1."""
    return (
        weights.loss * unit(island.loss_reduction / 0.05)
        + weights.tokens * unit(island.tokens / 1e6)
        - weights.network * island.network_pressure
        - weights.serving * island.serving_pressure
        - weights.checkpoint * island.checkpoint_pressure
        - weights.sync_cost * unit(sync_cost)
        - weights.staleness * unit(island.staleness_s / 1800.0)
    )


class WaDiloco:
    """Merge when the mean score of the islands is above 0."""

    weights = PUBLISHED
    threshold = 0.0

    def decide(self, observation: Observation) -> bool:
        cost = self.sync_cost(observation)
        scores = [score(island, self.weights, cost) for island in observation.islands]
        return sum(scores) / len(scores) > self.threshold

    def sync_cost(self, observation: Observation) -> float:
        return 0.0
