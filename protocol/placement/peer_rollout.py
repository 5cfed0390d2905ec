"""The control loop of peer merging: a clock for each island, and a scheduler that names who merges with whom.

The scheduler is asked at every decision at which some island has done H_min steps since its last merge.  Islands that
its answer leaves out, and that would be past H_max at the next decision, are then merged in random pairs, from a
stream of the seed's own; an odd one takes a random partner among those that are ready.  There always is one: groups
have even sizes and the members of a group are ready at the same moment, so the ready are even in number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SchedulerError
from protocol.merging.peers.schedules import Group, Peers, PeerSchedule
from protocol.placement.rollout import Arrivals, Rollout, observation
from protocol.replay.sidecar import LoadedSidecar, ServingState
from protocol.scheduler import Decision, IslandObservation, Observation, SchedulerRun
from protocol.workload.learner import Learner
from protocol.workload.trace import NS_PER_S, Workload, frozen


class _Clocks:
    """free : inner step from which each island's corridor counts.  done : whole steps before its last merge.  left_ns :
    when that merge left the island itself."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.free = np.zeros(peers.n, np.int64)
        self.done = np.zeros(peers.n, np.int64)
        self.left_ns = np.zeros(peers.n, np.int64)

    def own_steps(self, now_ns: int) -> NDArray[np.int64]:
        step_ns = self.peers.corridor.step_ns
        return np.maximum(now_ns // step_ns + -self.left_ns // step_ns, 0)  # a step that a merge cut off is lost

    def merge(self, group: Group, now_ns: int) -> None:
        mine = list(group)
        self.done[mine] += self.own_steps(now_ns)[mine]
        self.left_ns[mine] = now_ns + self.peers.busy_ns(group)[mine]
        self.free[mine] = now_ns // self.peers.corridor.step_ns + self.peers.steps(group)


def peer_rollout(
    run: SchedulerRun, workload: Workload, sidecar: LoadedSidecar, peers: Peers, learner: Learner,
    rng: np.random.Generator, until_ns: int | None = None,
) -> Rollout:  # fmt: skip
    """Let a scheduler place peer merges over the horizon, or up to `until_ns` (exclusive) when given.

    rng : draws the partners of merges that H_max imposes.
    Raises SchedulerError when the scheduler crashes, hangs, answers nonsense or names a group that cannot merge.
    """
    corridor, clocks = peers.corridor, _Clocks(peers)
    arrivals = Arrivals(workload.trace, corridor.horizon_ns)
    session = sidecar.session()
    cells: list[int] = []
    groups: list[Group] = []
    forced: list[bool] = []
    decided: list[int] = []
    merged: list[bool] = []
    for cell in range(1, peers.last_cell + 1):
        now_ns = cell * corridor.grid_ns
        if until_ns is not None and now_ns >= until_ns:
            break
        steps = cell * corridor.decision_steps - clocks.free
        ready = steps >= corridor.h_min
        if not ready.any():
            continue
        session.advance(now_ns)
        seen = _observe(session.observe(now_ns), workload, arrivals, peers, learner, now_ns, clocks, steps, len(cells))
        answer = run.decide(seen)
        chosen = _groups(answer, ready, steps, peers, seen.time_s)
        decided.append(now_ns)
        merged.append(bool(chosen))
        left = ready.copy()
        left[[i for group in chosen for i in group]] = False
        overdue = left & (steps + corridor.decision_steps > corridor.h_max)
        imposed = _forced(np.flatnonzero(overdue), np.flatnonzero(left & ~overdue), rng)
        for group in sorted(chosen) + sorted(imposed):
            session.add_merge(now_ns, peers.busy_ns(group))
            clocks.merge(group, now_ns)
            cells.append(cell)
            groups.append(group)
            forced.append(group in imposed)
    schedule = PeerSchedule(np.array(cells, np.int64), tuple(groups))
    return Rollout(
        peers.schedule(schedule),
        frozen(decided, "i8"),
        frozen(merged, "?"),
        frozen(forced, "?"),
        session.finish() if until_ns is None else None,
        schedule.groups,
    )


def _forced(
    overdue: NDArray[np.int64],
    others: NDArray[np.int64],
    rng: np.random.Generator,
) -> list[Group]:
    """Random pairs of the overdue islands; an odd one gets one of the others."""
    if not len(overdue):
        return []
    order = rng.permutation(overdue).tolist()
    if len(order) % 2:
        order.append(int(rng.choice(others)))
    return [(min(a, b), max(a, b)) for a, b in zip(order[::2], order[1::2], strict=True)]


def _groups(
    decision: Decision, ready: NDArray[np.bool_],
    steps: NDArray[np.int64], peers: Peers, time_s: float,
) -> list[Group]:  # fmt: skip
    """The groups that an answer stands for; a merge that names none is one of all islands that are ready."""
    if not decision.merge:
        return []
    where = f"decision at {time_s:g} s"
    named = decision.groups
    if named is None:
        named = (tuple(np.flatnonzero(ready).tolist()),)
    if not named:
        raise SchedulerError(f"{where}: found no groups; expected who merges with whom")
    taken: set[int] = set()
    for group in named:
        problem = peers.group_problem(group)
        if problem:
            raise SchedulerError(f"{where}: found {problem}")
        for i in group:
            if i in taken:
                raise SchedulerError(f"{where}: found island {i} in two groups; expected each island at most once")
            if not ready[i]:
                did = max(int(steps[i]), 0)
                least = peers.corridor.h_min
                raise SchedulerError(f"{where}: found island {i}, {did} inner steps after its merge; H_min is {least}")
            taken.add(i)
    return list(named)


def _observe(
    serving: tuple[ServingState, ...], workload: Workload, arrivals: Arrivals, peers: Peers, learner: Learner,
    now_ns: int, clocks: _Clocks, corridor_steps: NDArray[np.int64], merges_so_far: int,
) -> Observation:  # fmt: skip
    network, checkpoint = workload.network.at(now_ns), workload.checkpoint.at(now_ns)
    own, islands = clocks.own_steps(now_ns), []
    for i, state in enumerate(serving):
        before, steps = int(clocks.done[i]), int(own[i])
        loss = learner.loss(before + steps)
        islands.append(
            IslandObservation(
                max(int(corridor_steps[i]), 0), loss, max(0.0, learner.loss(before) - loss),
                steps * learner.tokens_per_step, max(now_ns - int(clocks.left_ns[i]), 0) / NS_PER_S, network,
                state.serving_pressure, checkpoint, state.in_flight, state.queued, state.completed,
                state.recent_e2e_s, state.recent_ttft_s,
            )
        )  # fmt: skip
    n = len(islands)
    return observation(
        tuple(islands), arrivals, peers.corridor, now_ns, merges_so_far,
        steps=min(i.steps_since_merge for i in islands),
        loss=sum(i.loss for i in islands) / n,
        loss_reduction=sum(i.loss_reduction for i in islands) / n,
        tokens=sum(i.tokens for i in islands) // n,
        staleness_s=max(i.staleness_s for i in islands),
    )  # fmt: skip
