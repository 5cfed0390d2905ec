"""Judged schedules as rounds that islands can train: the policy's own, and the first of its matched draws."""

from __future__ import annotations

from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.merging.corridor import Corridor
from protocol.merging.peers.communication import Round, coarser, rounds_of_schedule
from protocol.merging.peers.schedules import Peers
from protocol.merging.schedule import Schedule
from protocol.replay.replay import POLICY, UNIFORM

ARMS = (POLICY, UNIFORM)
#: Workers that train, and all merge, in a regime of one island.
WORKERS = 4


def rounds_of(
    e: Evidence, arm: str, corridor: Corridor, peers: Peers | None, islands: int, factor: int
) -> list[Round] | None:
    """What each island trains and exchanges, `factor` inner steps to one trained step; None without a schedule.

    islands : of the regime.
    Raises BadInput for merges that are not all alike: nobody trains fragments, or gives up what a merge lost.
    """
    placed = e.placed.get(arm)
    if placed is None or not len(placed):
        return None
    if placed.merges is not None:
        raise BadInput(f"--train-seeds, {e.regime}", "merges that are not all alike", "merges of one length")
    exchanges = None
    if peers is not None:
        merges = peers.read(placed)[0]
        schedule, payload = peers.schedule(merges), peers.merging.payload_bytes
        exchanges = [(peers.mixing_of(g), peers.sent(g)) for g in merges.groups]
    else:
        n = islands if islands > 1 else WORKERS
        schedule, payload = Schedule.all_islands(corridor.start_ns(placed.rows()[0]), corridor.merge_ns, n), 1
    return coarser(rounds_of_schedule(schedule, corridor.step_ns, corridor.horizon_ns, payload, exchanges), factor)
