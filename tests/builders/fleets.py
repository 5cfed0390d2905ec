"""Fleets whose islands merge as peers, their schedules, and what the control loop makes of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from strategies import LEARNER, FunctionRun, S, ToyLoaded, bursty

from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import GRAPH, RING, Merging, Peers, PeerSchedule
from protocol.placement.peer_rollout import peer_rollout
from protocol.scheduler import Decision, Observation
from protocol.workload.trace import StepFunction, Workload

#: 100 bytes at 50 a second: a pair takes 2 s; all four 2 (3/4) 2 = 3 s.
MERGING = Merging(payload_bytes=100, bandwidth=(50.0,))


def peers(merging: Merging = MERGING, n: int = 4, horizon_s: int = 60) -> Peers:
    """Steps of a quarter second, decisions every second, 8 to 40 steps between merges."""
    return Peers(Corridor(8, 40, 4, S // 4, merging.longest_ns(n), horizon_s * S), merging, n)


def at(*merges: tuple[int, tuple[int, ...]]) -> PeerSchedule:
    return PeerSchedule(np.array([cell for cell, _ in merges], np.int64), tuple(group for _, group in merges))


def roll(
    decide: Callable[[Observation], object], p: Peers | None = None, until_s: int | None = None
) -> tuple[Any, FunctionRun]:
    p = p or peers()
    trace = bursty("peer", p.n, 70)
    run = FunctionRun(lambda obs, rng: decide(obs))
    rolled = peer_rollout(
        run,
        Workload(trace, StepFunction.constant(0.0), StepFunction.constant(0.0)),
        ToyLoaded(trace),
        p,
        LEARNER,
        np.random.default_rng(3),
        None if until_s is None else until_s * S,
    )
    return rolled, run


def schedule_of(rolled: Any, p: Peers) -> PeerSchedule:
    return PeerSchedule(rolled.schedule.start_ns // p.corridor.grid_ns, rolled.groups)


NETWORKS = [
    Merging(payload_bytes=100, bandwidth=(50.0,)),
    Merging(payload_bytes=100, bandwidth=(50.0, 30.0, 50.0, 50.0, 50.0, 50.0), latency_s=0.01),
    Merging(payload_bytes=100, bandwidth=(50.0, 50.0, 50.0, 50.0, 50.0, 20.0), exchange=RING),
    Merging(payload_bytes=90, bandwidth=(50.0,), exchange=GRAPH, graph=("0-1", "1-2", "2-3", "3-4", "4-5", "5-0")),
]


def any_schedule(p: Peers, rng: np.random.Generator) -> tuple[Any, FunctionRun]:
    """What the loop makes of answers that are allowed and otherwise arbitrary."""

    def decide(obs: Observation) -> Decision:
        ready = [i for i, o in enumerate(obs.islands) if o.steps_since_merge >= obs.h_min]
        if rng.random() < 0.7:
            return Decision(False)
        order = rng.permutation(ready).tolist()
        groups = []
        while len(order) >= 2 and rng.random() < 0.8:
            size = int(rng.choice([2, 2, 4, 6]))
            group = tuple(order[:size])
            if p.group_problem(group) is None:
                groups.append(group)
            order = order[size:]
        return Decision(True, tuple(groups)) if groups else Decision(False)

    return roll(decide, p)
