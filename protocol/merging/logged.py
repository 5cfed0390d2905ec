"""Merges that happened, as a schedule that can be judged: cut to a window, moved to the decision grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from protocol.merging.practice import Merges, Timing
from protocol.merging.schedule import Schedule


def window(schedule: Schedule, begin_ns: int, end_ns: int) -> Schedule:
    """The merges that lie between both times whole, counted from the first; one that ends later was never decided."""
    end = schedule.start_ns + schedule.busy_ns.max(axis=1, initial=0)
    kept = (schedule.start_ns >= begin_ns) & (end <= end_ns)
    return replace(
        schedule,
        start_ns=schedule.start_ns[kept] - begin_ns,
        busy_ns=schedule.busy_ns[kept],
        fragment=schedule.fragment[kept],
        committed=schedule.committed[kept],
    )


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


def following_ns(schedule: Schedule, end_ns: int) -> int | None:
    """How long the first merge took that ends after a window; None where there is none."""
    took = schedule.busy_ns.max(axis=1, initial=0)
    later = took[schedule.start_ns + took > end_ns]
    return int(later[0]) if later.size else None
