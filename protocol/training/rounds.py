"""Judged schedules as rounds that islands can train: the policy's own, and the first of its matched draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.certificate.assess import peers_of
from protocol.evidence.store import POLICY, UNIFORM, SeedEvidence
from protocol.merging.corridor import Corridor
from protocol.merging.peers.communication import Round, coarser, rounds_of_schedule
from protocol.merging.schedule import Schedule

ARMS = (POLICY, UNIFORM)
#: Workers that train, and all merge, in a regime of one island.
WORKERS = 4


def rounds_of(e: SeedEvidence, arm: str, regime: Mapping[str, Any], factor: int) -> list[Round] | None:
    """What each island trains and exchanges, `factor` inner steps to one trained step; None without a schedule.

    regime : as a head describes it.
    """
    corridor, peers, placed = Corridor(**regime["corridor"]), peers_of(regime), e.placed.get(arm)
    if placed is None or not len(placed):
        return None
    if peers is not None:
        schedule, payload = peers.schedule(peers.read(placed)[0]), peers.merging.payload_bytes
    else:
        n = regime["islands"] if regime["islands"] > 1 else WORKERS
        schedule, payload = Schedule.all_islands(corridor.start_ns(placed.rows()[0]), corridor.merge_ns, n), 1
    return coarser(rounds_of_schedule(schedule, corridor.step_ns, corridor.horizon_ns, payload), factor)
