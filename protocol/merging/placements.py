"""Schedules of one arm as gaps in decisions, with what each of them cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.merging.practice import Merges
from protocol.workload.trace import whole

#: Columns of the merges of all schedules, one row a merge.
OF_MERGES = ("took_ns", "fragment", "committed")


@dataclass(frozen=True, eq=False)
class Placements:
    """Schedules of one arm on one trace, as gaps in decisions, with what each cost.

    lengths : int32, shape (n,), merges of each schedule.  gaps : int32, shape (sum of lengths,).
    violations : int64, shape (n, n_slos), requests that missed each SLO.
    sizes : int32, shape (sum of lengths,), participants of each merge; members : int32, shape (sum of sizes,), who
        they are.  None where all islands merge.  Gaps of peer schedules lie between the starts of successive merges.
    merges : what the merges of each schedule are, in its order; None where all of them are alike.
    """

    lengths: NDArray[np.int32]
    gaps: NDArray[np.int32]
    violations: NDArray[np.int64]
    sizes: NDArray[np.int32] | None = None
    members: NDArray[np.int32] | None = None
    merges: tuple[Merges, ...] | None = None

    def __post_init__(self) -> None:
        for column in ("lengths", "gaps"):
            object.__setattr__(self, column, whole("placements", column, getattr(self, column), "i4"))
        costs = np.asarray(self.violations)
        object.__setattr__(self, "violations", whole("placements", "violations", costs.ravel(), "i8"))
        object.__setattr__(self, "violations", self.violations.reshape(costs.shape))
        if self.lengths.sum() != len(self.gaps) or len(self.violations) != len(self.lengths):
            raise BadInput(
                "placements", f"{len(self.gaps)} gaps, {len(self.violations)} costs", "as many as the lengths say"
            )
        if self.sizes is not None and self.members is not None:
            for column in ("sizes", "members"):
                object.__setattr__(self, column, whole("placements", column, getattr(self, column), "i4"))
            if len(self.sizes) != len(self.gaps) or self.sizes.sum() != len(self.members):
                found = f"{len(self.sizes)} groups with {len(self.members)} members for {len(self.gaps)} merges"
                raise BadInput("placements", found, "one group a merge")
        if self.merges is not None and [len(m) for m in self.merges] != self.lengths.tolist():
            raise BadInput("placements, merges", "other numbers than of gaps", "one gap a merge")

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(
        cls, gaps: NDArray[np.int64], violations: NDArray[np.int64], merges: Sequence[Merges] | None = None
    ) -> Placements:
        """From schedules of equal length: gaps of shape (n, K), violations of shape (n, n_slos)."""
        kept = None if merges is None else tuple(merges)
        return cls(np.full(len(gaps), gaps.shape[1], np.int32), gaps.ravel().astype(np.int32), violations, merges=kept)

    def joined(self, more: Placements) -> Placements:
        """These schedules, then those."""
        parts = ("lengths", "gaps", "violations", *(("sizes", "members") if self.sizes is not None else ()))
        merges = None if self.merges is None or more.merges is None else (*self.merges, *more.merges)
        columns = {p: np.concatenate([getattr(self, p), getattr(more, p)]) for p in parts}
        return Placements(**columns, merges=merges)

    def rows(self) -> list[NDArray[np.int32]]:
        return np.split(self.gaps, np.cumsum(self.lengths)[:-1]) if len(self) else []

    def merges_of(self, row: int) -> Merges | None:
        """What the merges of a schedule are; None where all are alike."""
        return None if self.merges is None else self.merges[row]

    def column(self, name: str) -> NDArray[np.generic]:
        """One of OF_MERGES over all schedules."""
        parts = [getattr(m, name) for m in self.merges or ()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)
