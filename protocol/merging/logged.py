"""Merges that happened, as a schedule that can be judged: cut to a window, moved to the decision grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protocol.merging.practice import Merges, Timing
from protocol.merging.schedule import Schedule


def snapped(schedule: Schedule, timing: Timing) -> tuple[Schedule, int]:
    """The schedule with every wait rounded to whole decisions, and the largest shift of a start, ns.

    Wall-clock stamps never fall on the decision grid, which begins anew where the last merge ended.
    """
    grid_ns, free, most = timing.corridor.grid_ns, 0, 0
    starts = np.empty(len(schedule), np.int64)
    lengths = timing.practice.length_ns(schedule.busy_ns.max(axis=1, initial=0), timing.corridor.step_ns)
    for k, (start, length) in enumerate(zip(schedule.start_ns.tolist(), lengths.tolist(), strict=True)):
        starts[k] = free + round(max(start - free, 0) / grid_ns) * grid_ns
        free = int(starts[k]) + length
        most = max(most, abs(int(starts[k]) - start))
    made = timing.schedule_at(starts, schedule.n_islands, Merges.of(schedule, 1))
    return replace(made, busy_ns=schedule.busy_ns), most


def merges_of(schedule: Schedule, timing: Timing, next_ns: int | None = None) -> Merges | None:
    """What its merges are; None where they are as the corridor has them.

    next_ns : of the merge after them; where nobody knows, it would take as long as the longest.
    """
    alike = timing.practice.ordinary and bool(schedule.committed.all()) and not schedule.fragment.any()
    if alike and (schedule.busy_ns == timing.corridor.merge_ns).all():
        return None
    longest = int(schedule.busy_ns.max(initial=0)) or timing.corridor.merge_ns
    return Merges.of(schedule, next_ns or longest)


def window(schedule: Schedule, begin_ns: int, timing: Timing) -> tuple[Schedule, int | None]:
    """The merges from `begin_ns` to the horizon after it, on the decision grid, and how long the next one took.

    A merge that ends past the horizon was not decided in this window, and on the grid it may end a little later or
    earlier than it did.  None where the log has no later merge.
    """
    horizon_ns = timing.corridor.horizon_ns
    kept = np.flatnonzero((schedule.start_ns >= begin_ns) & (schedule.start_ns <= begin_ns + horizon_ns))
    part = snapped(_taken(schedule, kept, begin_ns), timing)[0]
    lengths = timing.practice.length_ns(part.busy_ns.max(axis=1, initial=0), timing.corridor.step_ns)
    late = np.flatnonzero(part.start_ns + lengths > horizon_ns)
    n = int(late[0]) if late.size else len(part)
    after = np.flatnonzero(schedule.start_ns >= begin_ns)[n:]
    following = int(schedule.busy_ns[after[0]].max()) if after.size else None
    return snapped(_taken(schedule, kept[:n], begin_ns), timing)[0], following


def _taken(schedule: Schedule, rows: NDArray[np.int64], zero_ns: int) -> Schedule:
    return replace(
        schedule,
        start_ns=schedule.start_ns[rows] - zero_ns,
        busy_ns=schedule.busy_ns[rows],
        fragment=schedule.fragment[rows],
        committed=schedule.committed[rows],
    )
