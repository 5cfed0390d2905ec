"""In which order the replays of a seed run on a real server; fixed before the first of them."""

from __future__ import annotations

from protocol import seeds
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM

#: The order of a live block: each arm with merges follows one without, so that what a merge leaves behind is the same
#: for both (docs/live.md).
BALANCED = ((NO_SYNC, 0), (POLICY, 0), (NO_SYNC, 1), (UNIFORM, 0), (NO_SYNC, 2))
#: The order of version 1, in which the control inherits what the policy's replay left behind.
UNBALANCED = ((NO_SYNC, 0), (POLICY, 0), (UNIFORM, 0), (NO_SYNC, 1))
#: Live orders by the number of replays without merges.
LIVE_ORDERS = {3: BALANCED, 2: UNBALANCED}


def random_order(root_seed: int, regime: str, seed: int, idle: int, draws: int) -> list[tuple[str, int]]:
    """Replays of one seed, by arm and draw, so that a server that drifts does not drift along with an arm."""
    arms = [(POLICY, 0), *((NO_SYNC, k) for k in range(idle)), *((UNIFORM, draw) for draw in range(draws))]
    order = seeds.generator(root_seed, "replay-order", regime, seed).permutation(len(arms))
    return [arms[k] for k in order.tolist()]
