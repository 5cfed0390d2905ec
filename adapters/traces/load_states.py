"""The state of a generated load as only an oracle can know it: busy or quiet, or the phase, and how many are served.

A causal scheduler has to infer from arrivals whether a spell is busy; the oracle of the causal ceiling is told.  It is
not told when the spell ends, unless the process is periodic, where the phase says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adapters.traces.generators import Spells, spells
from protocol import seeds
from protocol.merging.schedule import Schedule
from protocol.regimes.regime import PERIODIC, Regime
from protocol.replay.sidecar import LoadedSidecar

#: Requests in flight are told apart up to this many.
MOST_IN_FLIGHT = 8


@dataclass(frozen=True)
class LoadStates:
    """How the states of a regime's load are numbered: of each label, 0 to MOST_IN_FLIGHT requests or more.

    phases : parts of a period, where there is one; else the labels are quiet and busy.
    """

    regime: Regime
    phases: int

    @classmethod
    def of(cls, regime: Regime, grid_s: float) -> LoadStates:
        periodic = regime.arrivals.process == PERIODIC
        return cls(regime, round(cls._period_s(regime) / grid_s) if periodic else 0)

    @staticmethod
    def _period_s(regime: Regime) -> float:
        return regime.arrivals.busy_s + regime.arrivals.quiet_s

    def __len__(self) -> int:
        return (self.phases or 2) * (MOST_IN_FLIGHT + 1)

    def spells(self, root_seed: int, seed: int) -> Spells:
        """The spells of a seed's world: the first that its generator draws."""
        rng = seeds.generator(root_seed, "world", self.regime.name, seed)
        return spells(self.regime.arrivals, self.regime.horizon_s + self.regime.cooldown_s, rng)

    def at(self, time_s: ArrayLike, present: ArrayLike, known: Spells) -> NDArray[np.int64]:
        """States, shape (n,), at times with so many requests in flight or queued."""
        when = np.asarray(time_s, np.float64)
        if self.phases:
            period_s = self._period_s(self.regime)
            # The last burst that begins inside the world begins on time; the first may have been cut off at 0.
            into = (when - known.since_s[known.busy][-1]) % period_s / period_s
            label = np.minimum((into * self.phases).astype(np.int64), self.phases - 1)
        else:
            label = known.busy[np.searchsorted(known.since_s, when, side="right") - 1].astype(np.int64)
        return label * (MOST_IN_FLIGHT + 1) + np.minimum(np.asarray(present, np.int64), MOST_IN_FLIGHT)


def present(sidecar: LoadedSidecar, at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Requests in flight or queued at moments of a replay without merges, shape (n,)."""
    served = sidecar.replay(Schedule.empty(sidecar.trace.n_islands))
    ended = np.sort(served.arrival_ns + served.e2e_ns)
    return np.searchsorted(np.sort(served.arrival_ns), at_ns) - np.searchsorted(ended, at_ns, side="right")
