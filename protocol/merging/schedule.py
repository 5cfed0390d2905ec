"""Merges and schedules: which islands are busy merging, when and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S, frozen, whole


@dataclass(frozen=True, eq=False)
class Schedule:
    """Outer merges in order of start.

    start_ns : int64, shape (K,), non-decreasing, >= 0.
    busy_ns : int64, shape (K, n_islands); how long merge k occupies island i from its start, 0 when the
        island takes no part.  An all-islands merge has one positive value in every column; a pair has two.
    fragment : int16, shape (K,), which model fragment is merged (0 for the whole model).
    committed : bool, shape (K,), whether training gained by it; one that was not was busy all the same.
    applied_ns : int64, shape (K, 2), when what was sent is applied, on every island that takes part, after it was sent
        and before the next merge begins; None where sending is all.
    send_slowdown : of a server's iterations while merges send; None: what it has for a merge.

    Raises BadInput when an island's merges overlap or a merge occupies nobody.
    """

    start_ns: NDArray[np.int64]
    busy_ns: NDArray[np.int64]
    fragment: NDArray[np.int16] = None  # type: ignore[assignment]  # filled in below
    committed: NDArray[np.bool_] = None  # type: ignore[assignment]  # filled in below
    applied_ns: NDArray[np.int64] | None = None
    send_slowdown: float | None = None

    def __post_init__(self) -> None:
        start = whole("schedule", "start", self.start_ns, "i8")
        busy = frozen(self.busy_ns, "i8")
        if busy.ndim != 2 or len(busy) != len(start):
            raise BadInput("schedule, busy", f"shape {busy.shape}", f"({len(start)}, islands)")
        fragment = frozen(np.zeros(len(start)) if self.fragment is None else self.fragment, "i2")
        committed = frozen(np.ones(len(start)) if self.committed is None else self.committed, "?")
        columns = {"start_ns": start, "busy_ns": busy, "fragment": fragment, "committed": committed}
        if self.applied_ns is not None:
            columns["applied_ns"] = frozen(self.applied_ns, "i8")
        for column, values in columns.items():
            object.__setattr__(self, column, values)
            if len(values) != len(start):
                raise BadInput(f"schedule, {column}", f"{len(values)} merges", f"{len(start)}")
        if len(start) == 0:
            return
        if start[0] < 0 or bool(np.any(np.diff(start) < 0)):
            raise BadInput("schedule, start", "a negative or backward time", "non-decreasing times from 0 on")
        if np.any(busy < 0) or np.any(busy.sum(axis=1) == 0):
            raise BadInput("schedule, busy", "a merge that occupies no island", "a positive duration on some island")
        for island in range(busy.shape[1]):
            begin, end = self.windows_ns(island)
            late = np.flatnonzero(begin[1:] < end[:-1])
            if late.size:
                at = begin[late[0] + 1] / NS_PER_S
                raise BadInput(f"schedule, island {island}", f"a merge at {at:g} s inside another", "merges apart")

    @classmethod
    def all_islands(cls, start_ns: NDArray[np.int64], merge_ns: int, n_islands: int = 1) -> Schedule:
        """Merges that occupy every island for the same time."""
        return cls(start_ns, np.full((len(start_ns), n_islands), merge_ns, np.int64))

    @classmethod
    def many(cls, start_ns: NDArray[np.int64], merge_ns: int, n_islands: int = 1) -> list[Schedule]:
        """One `all_islands` for each row of `start_ns`, shape (n, K), checked together: there are thousands of draws.

        Raises BadInput as a schedule does.
        """
        starts = frozen(start_ns, "i8")
        if starts.ndim != 2:
            raise BadInput("schedules, start", f"shape {starts.shape}", "(schedules, merges)")
        if not starts.size or merge_ns <= 0 or bool(np.any(np.diff(starts, axis=1, prepend=-merge_ns) < merge_ns)):
            return [cls.all_islands(row, merge_ns, n_islands) for row in starts]  # which says what is wrong, and where
        shared = cls.all_islands(starts[0], merge_ns, n_islands).__dict__
        found = []
        for row in starts:
            schedule = object.__new__(cls)
            schedule.__dict__.update(shared, start_ns=row)
            found.append(schedule)
        return found

    @classmethod
    def empty(cls, n_islands: int = 1) -> Schedule:
        """The no-sync arm."""
        return cls(np.empty(0, np.int64), np.empty((0, n_islands), np.int64))

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def n_islands(self) -> int:
        return self.busy_ns.shape[1]

    @property
    def start_s(self) -> NDArray[np.float64]:
        """Merge starts in seconds, shape (K,)."""
        return self.start_ns / NS_PER_S

    def windows_ns(self, island: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begin and end of the windows in which this island sends or applies, both int64 of equal length."""
        takes_part = self.busy_ns[:, island] > 0
        begin = self.start_ns[takes_part]
        end = begin + self.busy_ns[takes_part, island]
        if self.applied_ns is None:
            return begin, end
        applied = self.applied_ns[takes_part]
        return np.stack([begin, applied[:, 0]], axis=1).ravel(), np.stack([end, applied[:, 1]], axis=1).ravel()

    def equals(self, other: Schedule) -> bool:
        columns = ("start_ns", "busy_ns", "fragment", "committed", "applied_ns")
        same = all(np.array_equal(getattr(self, c), getattr(other, c)) for c in columns)
        return same and self.send_slowdown == other.send_slowdown
