"""Load-blind schedulers, and what the code that certifies users' schedulers says of theirs on full replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.campaign.arms import costs
from protocol.campaign.plan import Setting, Worlds
from protocol.evidence.model import CROSSED, Evidence
from protocol.gates.envelope import adjusted, envelope_gate, measure
from protocol.gates.integrity import distinct_traces
from protocol.gates.spec import Spec
from protocol.merging.corridor import Corridor
from protocol.merging.placements import Placements
from protocol.merging.schedule import Schedule
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.selftest.counts import ALPHA, CERTIFIED, verdict
from protocol.workload.trace import RequestTrace

Gaps = NDArray[np.int64]


def completed(corridor: Corridor, wish: Callable[[int], int]) -> Gaps:
    """Gaps that a control loop makes of wishes: clipped to the corridor, until no merge fits any more."""
    gaps: list[int] = []
    now_ns = 0
    while True:
        gap = int(np.clip(wish(len(gaps)), corridor.gap_min, corridor.gap_max))
        start = now_ns + gap * corridor.grid_ns
        if start + corridor.merge_ns > corridor.horizon_ns:
            last = now_ns + corridor.gap_max * corridor.grid_ns
            if last + corridor.merge_ns <= corridor.horizon_ns:  # forced before the wish comes true
                gap, start = corridor.gap_max, last
            else:
                return np.array(gaps, np.int64)
        gaps.append(gap)
        now_ns = start + corridor.merge_ns


def _regular(corridor: Corridor, rng: np.random.Generator) -> Gaps:
    middle = (corridor.gap_min + corridor.gap_max) // 2
    return completed(corridor, lambda i: middle)


def _regular_any(corridor: Corridor, rng: np.random.Generator) -> Gaps:
    gap = int(rng.integers(corridor.gap_min, corridor.gap_max, endpoint=True))
    return completed(corridor, lambda i: gap)


def _clustered(corridor: Corridor, rng: np.random.Generator) -> Gaps:
    length, phase = int(rng.integers(2, 5)), int(rng.integers(0, 4))
    return completed(corridor, lambda i: corridor.gap_max if (i + phase) % length == 0 else corridor.gap_min)


def _drifting(corridor: Corridor, rng: np.random.Generator) -> Gaps:
    first, step = int(rng.integers(corridor.gap_min, corridor.gap_max)), int(rng.integers(2, 9)) * rng.choice((-1, 1))
    return completed(corridor, lambda i: first + i * int(step))


#: They see the corridor and their own random stream, never a trace.
BLIND: Mapping[str, Callable[[Corridor, np.random.Generator], Gaps]] = {
    "regular gaps": _regular,
    "odd gaps": _regular_any,
    "clusters": _clustered,
    "phase drift": _drifting,
}


def blind_verdicts(
    setting: Setting, worlds: Worlds, root: int, family: str, n_seeds: int, draws: int
) -> dict[str, bool]:
    """One certification of a load-blind scheduler."""
    made = [BLIND[family](setting.corridor, seeds.generator(root, "blind", family, s)) for s in range(n_seeds)]
    return verdicts(setting, root, [worlds.workload(s).trace for s in range(n_seeds)], made, draws)


def verdicts(
    setting: Setting, root: int, traces: Sequence[RequestTrace], made: Sequence[Gaps], draws: int
) -> dict[str, bool]:
    """What each test says of schedules `made`, one a trace, through the code that certifies, at no minimum effect."""
    corridor, slos = setting.corridor, setting.slos[:1]
    evidence = []
    for s, trace in enumerate(traces):
        sidecar = setting.sidecar.load(trace, seeds.generator(root, "sidecar", s))
        placed = {UNIFORM: corridor.sample(len(made[s]), draws, seeds.generator(root, "draws", setting.name, s))}
        everywhere = costs(sidecar, made, corridor, slos)
        idle = sidecar.violations([Schedule.empty(trace.n_islands)], slos[0])[:, None]
        arms = {arm: Placements.of(gaps, costs(sidecar, gaps, corridor, slos)) for arm, gaps in placed.items()}
        arms[POLICY] = Placements.of(made[s][None], everywhere[s : s + 1])
        arms[NO_SYNC] = Placements.of(np.zeros((1, 0), np.int64), idle)
        arms[CROSSED] = Placements(np.array([len(m) for m in made]), np.concatenate(made), everywhere)
        evidence.append(Evidence(setting.name, s, trace.digest, len(trace), 0, 0, 0, None, None, (), placed=arms))
    spec = Spec(
        setting.name, "simulated", "scheduler", corridor, None, 1, slos, len(traces), draws, 1, False, 1,
        root, ALPHA, 0.0,
    )  # fmt: skip
    measured = measure(evidence, spec, 0)
    found = verdict(measured.gains)
    passed = envelope_gate(measured, adjusted([measured], ALPHA)[0]).status == "passed"
    return {**found, CERTIFIED: passed and distinct_traces(evidence).status == "passed"}
