"""Tier 3: the schedules that were placed in simulation, and their controls, replayed on a real server.

A unit of work is one replay: a seed's trace under one of its schedules.  The units of a seed run in a random order, so
that a server that drifts does not drift along with an arm, and each is kept as soon as it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from protocol.campaign.plan import Setting
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.evidence.order import random_order
from protocol.merging.schedule import Schedule
from protocol.replay.replay import Replay
from protocol.workload.trace import NS_PER_S, RequestTrace

#: Replays of a seed beside its draws: the policy, and no merges twice.
IDLE, FIXED = 2, 3
#: Attempts at a replay that turns out invalid, before its seed is left out.
ATTEMPTS = 5


def run(
    evidence: Sequence[Evidence],
    setting: Setting,
    root_seed: int,
    draws: int,
    replay: Callable[[RequestTrace, Schedule], Replay],
    keep: Callable[[Replay], None],
    tell: Callable[[Replay, int], None] = lambda made, left: None,
    attempts: int = ATTEMPTS,
) -> list[Evidence]:
    """The seeds with the replays that they lack, made in the order of the seeds and of `random_order`.

    replay : one replay on the server; what it raises ends the campaign, and the next one goes on from there.
    keep : stores a replay as soon as it is there.  An invalid one is stored too, and tried again up to `attempts` times
    in all.  tell : called with each new replay and the number still to be made.
    """
    left = outstanding(evidence, root_seed, draws, attempts)
    done = []
    for e in evidence:
        if any(p.merges is not None for p in e.placed.values()):
            expected = f"merges of {setting.corridor.merge_ns / NS_PER_S:g} s each: a merge load runs one length"
            raise BadInput(f"{e.regime}, seed {e.seed}", "merges that are not all alike", expected)
        trace = setting.worlds.workload(e.seed).trace
        made = list(e.served)
        for position, (arm, draw) in enumerate(random_order(root_seed, setting.name, e.seed, IDLE, draws)):
            tried = [r for r in made if (r.arm, r.draw) == (arm, draw)]
            starts = setting.corridor.start_ns(e.gaps(arm, draw))
            schedule = Schedule.all_islands(starts, setting.corridor.merge_ns)
            for attempt in range(len(tried) + 1, attempts + 1):
                if any(r.invalid is None for r in tried):
                    break
                started, begun = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
                seen = replace(
                    replay(trace, schedule), regime=setting.name, seed=e.seed, arm=arm, draw=draw, position=position,
                    attempt=attempt, started=started, wall_s=round(time.monotonic() - begun, 3),
                )  # fmt: skip
                keep(seen)
                tried.append(seen)
                made.append(seen)
                left -= seen.invalid is None or attempt == attempts
                tell(seen, left)
        done.append(replace(e, served=tuple(sorted(made, key=lambda r: (r.position, r.attempt)))))
    return done


def outstanding(evidence: Sequence[Evidence], root_seed: int, draws: int, attempts: int = ATTEMPTS) -> int:
    """Replays that are still to be made, if none of them turns out invalid."""
    left = 0
    for e in evidence:
        for unit in random_order(root_seed, e.regime, e.seed, IDLE, draws):
            tried = [r for r in e.served if (r.arm, r.draw) == unit]
            left += len(tried) < attempts and all(r.invalid is not None for r in tried)
    return left


def attainable(n_seeds: int, draws: int) -> Mapping[str, float]:
    """Smallest p that each test can give with so many seeds and draws."""
    return {
        "paired sign flip": 2.0**-n_seeds,
        "stratified randomisation": max((draws + 1.0) ** -n_seeds, 1e-4 if (draws + 1.0) ** n_seeds > 100_000 else 0.0),
    }
