"""Tier 3: the schedules that were placed in simulation, and their controls, replayed on a real server.

A unit of work is one replay: a seed's trace under one of its schedules.  The units of a seed run in a random order, so
that a server that drifts does not drift along with an arm, and each is kept as soon as it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.campaign.arms import Setting
from protocol.evidence.store import NO_SYNC, POLICY, UNIFORM, Placements, SeedEvidence
from protocol.merging.corridor import Corridor
from protocol.merging.schedule import Schedule
from protocol.replay.replay import NO_SYNC_AGAIN, Observed, Replayed
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace

#: Replays of a seed beside its draws: the policy, no merges, no merges again.
FIXED = ((POLICY, 0), (NO_SYNC, 0), (NO_SYNC_AGAIN, 0))
#: Attempts at a replay that turns out invalid, before its seed is undecidable.
ATTEMPTS = 5
#: Arms whose replays are merges against none, the others being held equal in merges.
MERGING = (POLICY, UNIFORM)


@dataclass(frozen=True)
class Unit:
    """One replay: a seed, which of its schedules, and its place in the seed's order."""

    seed: int
    arm: str
    draw: int
    position: int


def units(root_seed: int, regime: str, seed: int, draws: int) -> list[Unit]:
    """The replays of one seed, in the random order in which they run."""
    arms = [*FIXED, *((UNIFORM, draw) for draw in range(draws))]
    order = seeds.generator(root_seed, "replay-order", regime, seed).permutation(len(arms))
    return [Unit(seed, arms[k][0], arms[k][1], position) for position, k in enumerate(order.tolist())]


def gaps_of(e: SeedEvidence, arm: str, draw: int) -> NDArray[np.int32]:
    """The schedule of one replay, as gaps in decisions; empty without merges."""
    return e.placed[arm].rows()[draw] if arm in MERGING else np.zeros(0, np.int32)


def schedule_of(e: SeedEvidence, arm: str, draw: int, corridor: Corridor) -> Schedule:
    return Schedule.all_islands(corridor.start_ns(gaps_of(e, arm, draw)), corridor.merge_ns)


def run(
    evidence: Sequence[SeedEvidence],
    setting: Setting,
    root_seed: int,
    draws: int,
    replay: Callable[[RequestTrace, Schedule], Observed],
    keep: Callable[[Replayed], None],
    tell: Callable[[Replayed], None] = lambda made: None,
    attempts: int = ATTEMPTS,
) -> None:
    """Make the replays that the seeds' evidence lacks and add them to it, in the order of the seeds and of `units`.

    replay : one replay on the server; what it raises ends the campaign, and the next one goes on from there.
    keep : stores a replay as soon as it is there.  An invalid one is stored too, and tried again up to `attempts`
    times in all.
    """
    for e in evidence:
        trace = setting.worlds.workload(e.seed).trace
        for unit in units(root_seed, setting.name, e.seed, draws):
            tried = [r for r in e.replays if (r.arm, r.draw) == (unit.arm, unit.draw)]
            schedule = schedule_of(e, unit.arm, unit.draw, setting.corridor)
            for attempt in range(len(tried) + 1, attempts + 1):
                if any(r.invalid is None for r in tried):
                    break
                started, begun = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
                seen = replay(trace, schedule)
                made = Replayed(
                    seen.measurements, seen.planned_ns, seen.ran_ns, seen.may_end_early, seen.failures,
                    setting.name, e.seed, unit.arm, unit.draw, unit.position, attempt,
                    started, round(time.monotonic() - begun, 3),
                )  # fmt: skip
                keep(made)
                tried.append(made)
                e.replays.append(made)
                tell(made)
        e.replays.sort(key=lambda r: (r.position, r.attempt))


def outstanding(evidence: Sequence[SeedEvidence], root_seed: int, draws: int, attempts: int = ATTEMPTS) -> int:
    """Replays that are still to be made, if none of them turns out invalid."""
    left = 0
    for e in evidence:
        for unit in units(root_seed, e.regime, e.seed, draws):
            tried = [r for r in e.replays if (r.arm, r.draw) == (unit.arm, unit.draw)]
            left += len(tried) < attempts and all(r.invalid is not None for r in tried)
    return left


def valid(e: SeedEvidence) -> dict[tuple[str, int], Replayed]:
    """The replays of a seed that count, by arm and draw; the first, should there be several."""
    found: dict[tuple[str, int], Replayed] = {}
    for r in e.replays:
        if r.invalid is None:
            found.setdefault((r.arm, r.draw), r)
    return found


def as_served(evidence: Sequence[SeedEvidence], slos: Sequence[Slo], draws: int) -> list[SeedEvidence]:
    """The same seeds with the server's rows and violations in the simulator's place; a missing replay, a missing arm.

    Controls of which nothing was replayed are left out.
    """
    served = []
    for e in evidence:
        found = valid(e)

        def counted(arm: str, made: Sequence[Replayed], e: SeedEvidence = e) -> Placements:
            rows = [gaps_of(e, arm, r.draw) for r in made]
            violations = [[int(r.measurements.violates(slo).sum()) for slo in slos] for r in made]
            lengths = np.array([len(g) for g in rows], np.int32)
            return Placements(lengths, np.concatenate(rows), np.array(violations, np.int64))

        arms = {arm: [found[arm, 0]] for arm in (POLICY, NO_SYNC) if (arm, 0) in found}
        drawn = [found[UNIFORM, draw] for draw in range(draws) if (UNIFORM, draw) in found]
        if len(drawn) == draws:
            arms[UNIFORM] = drawn
        served.append(
            replace(
                e,
                requests={arm: arms[arm][0].measurements for arm in (POLICY, NO_SYNC) if arm in arms},
                placed={arm: counted(arm, made) for arm, made in arms.items()},
            )
        )
    return served


def summary(evidence: Sequence[SeedEvidence]) -> dict[str, Any]:
    """When and in which order the replays ran, and which attempts did not count, for the certificate."""
    made = [r for e in evidence for r in e.replays]
    return {
        "attempts": len(made),
        "valid": sum(r.invalid is None for r in made),
        "first_started": min((r.started for r in made), default=None),
        "last_started": max((r.started for r in made), default=None),
        "order": [
            {"seed": e.seed, "arms": [_named(r) for r in sorted(e.replays, key=lambda r: r.position) if r.attempt == 1]}
            for e in evidence
        ],
        "invalid": [
            {"seed": r.seed, "arm": _named(r), "attempt": r.attempt, "reason": r.invalid}
            for r in made
            if r.invalid is not None
        ],
    }


def _named(r: Replayed) -> str:
    return f"{r.arm} {r.draw}" if r.arm == UNIFORM else r.arm


def attainable(n_seeds: int, draws: int) -> Mapping[str, float]:
    """Smallest p that each test can give with so many seeds and draws."""
    return {
        "sign flip": 2.0**-n_seeds,
        "stratified": max((draws + 1.0) ** -n_seeds, 1e-4 if (draws + 1.0) ** n_seeds > 100_000 else 0.0),
    }
