"""The worlds of a regime: generated ones, and windows cut from a real trace."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.traces.generators import workload
from protocol import seeds
from protocol.regimes.regime import Regime
from protocol.workload.trace import RequestTrace, StepFunction, Workload


@dataclass(frozen=True)
class GeneratedWorlds:
    """One independent workload a seed, from the regime's declared processes."""

    regime: Regime
    root_seed: int

    def workload(self, seed: int) -> Workload:
        return workload(self.regime, seeds.generator(self.root_seed, "world", self.regime.name, seed))

    def other(self, seed: int, probe: int) -> Workload:
        return workload(self.regime, seeds.generator(self.root_seed, "other-world", self.regime.name, seed, probe))


@dataclass(frozen=True)
class RecordedWorlds:
    """One window of a real trace a seed; network and checkpoint pressure are constants, for nobody recorded them."""

    windows: tuple[RequestTrace, ...]
    network: float
    checkpoint: float

    def workload(self, seed: int) -> Workload:
        return Workload(self.windows[seed], StepFunction.constant(self.network), StepFunction.constant(self.checkpoint))

    def other(self, seed: int, probe: int) -> Workload:
        return self.workload((seed + 1 + probe) % len(self.windows))
