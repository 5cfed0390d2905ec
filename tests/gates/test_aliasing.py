"""A gain that comes from gaps and clocks alone must not be taken for load awareness.

The trap of the published bursty replay: every "seed" has its bursts at the same times, so a schedule that
never looks at the load can sit between them in all seeds at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from adapters.sidecars.simulated import SimulatedSidecar
from adapters.traces.generators import workload
from protocol import seeds
from protocol.campaign.arms import Setting
from protocol.cli.settings import PUBLISHED, setting_of
from protocol.regimes.regime import Regime
from protocol.selftest import families as selftest
from protocol.workload.trace import NS_PER_S, RequestTrace, Workload

SEEDS, DRAWS = 12, 99


@dataclass(frozen=True)
class SamePhase:
    """Seeds with their own arrivals, whose bursts are all in the first 30 s of every 60 s."""

    def workload(self, seed: int) -> Workload:
        regime = Regime.load("sync-heavy-steady").replace(horizon_s=240.0)
        quiet = workload(regime, seeds.generator(1, "quiet", seed))
        more = [workload(regime, seeds.generator(1, "burst", seed, i)).trace.arrival_ns for i in range(2)]
        extra = np.concatenate(more)
        arrival = np.sort(np.concatenate([quiet.trace.arrival_ns, extra[(extra // NS_PER_S) % 60 < 30]]))
        ones = np.ones(len(arrival), np.int64)
        trace = RequestTrace(arrival, 64 * ones, 128 * ones, None, 1, "same-phase")  # type: ignore[arg-type]
        return Workload(trace, quiet.network, quiet.checkpoint)

    def other(self, seed: int, probe: int) -> Workload:
        return self.workload(1000 + seed + probe)


def same_phase() -> Setting:
    return setting_of(Regime.load("sync-heavy-steady").replace(horizon_s=240.0), SamePhase(), None)


def test_clock_beats_chance_by_aliasing_and_is_not_certified() -> None:
    setting = same_phase()
    assert isinstance(setting.sidecar, SimulatedSidecar)
    corridor = setting.corridor
    # Merges in the quiet half of every minute, two a minute where they fit: a clock, blind to the load.
    price = np.where((np.arange(0, 240) % 60 < 30), 1.0, 0.0)
    budget = corridor.feasible_budgets()[len(corridor.feasible_budgets()) // 2]
    decisions = np.arange(corridor.sum_range(budget)[1] + 1) * corridor.grid_ns
    starts = (decisions[None] + np.arange(budget)[:, None] * corridor.merge_ns) // NS_PER_S
    gaps = corridor.optimum(budget, price[np.minimum(starts, 239)])
    traces = [setting.worlds.workload(s).trace for s in range(SEEDS)]
    assert len({t.digest for t in traces}) == SEEDS  # equal digests alone would not catch it
    says = selftest.verdicts(setting, 7, traces, [gaps] * SEEDS, DRAWS)
    assert says["stratified randomisation"] and says["paired sign flip"]
    assert not says["exchange between traces"] and not says["certified"]


@pytest.mark.parametrize("regime", PUBLISHED)
@pytest.mark.parametrize("family", selftest.BLIND)
def test_load_blind_families_are_not_certified_on_any_regime(regime: str, family: str) -> None:
    short = Regime.load(regime).replace(horizon_s=150.0)
    from adapters.traces.worlds import GeneratedWorlds

    worlds = GeneratedWorlds(short, 5)
    says = selftest.blind_verdicts(setting_of(short, worlds, None), worlds, 5, family, SEEDS, DRAWS)
    assert not says["certified"]
