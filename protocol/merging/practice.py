"""Merges as they are practised: how long each takes, which fragment of the model it moves, whether it was committed.

A merge sends for as long as its transfer takes.  Training goes on for the first `sync_delay_steps` of it and then waits
for what is left; the merge is applied when both are over, which stops training for `apply_s`.  So a merge lasts
max(delay, transfer) + apply, and the corridor counts decisions from its end.  Without delay, and applied at once, this
is a blocking merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from protocol.errors import BadInput
from protocol.merging.corridor import Corridor, Spent
from protocol.merging.schedule import Schedule
from protocol.reading import Listed, Model, Range, refuse
from protocol.workload.trace import NS_PER_S, frozen, seconds_to_ns, whole

_Seconds = Annotated[float, Range(1e-3, 1e5)]
#: Values without which durations of a kind say nothing.
_NEEDED = {
    "given": {"values_s"}, "drawn": {"values_s"}, "uniform": {"least_s", "most_s"}, "lognormal": {"median_s"}
}  # fmt: skip


class Durations(Model):
    """The table [merge.duration]: seconds that the transfers of successive merges take.

    follows : `given` (`values_s` in their order, again from the first after the last), `drawn` (one of `values_s`, all
        alike), `uniform` (from `least_s` to `most_s`) or `lognormal` (`median_s`, `sigma` of the logarithm, cut off at
        `least_s` and `most_s`).
    """

    follows: Literal["given", "drawn", "uniform", "lognormal"]
    values_s: Listed[_Seconds] = ()
    least_s: _Seconds = 1e-3
    most_s: _Seconds = 1e5
    median_s: _Seconds = 1.0
    sigma: Annotated[float, Range(0, 5)] = 0.0

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = _NEEDED[self.follows]
        missing = needed - self.model_fields_set
        if missing or ("values_s" in needed and not self.values_s):
            raise refuse(min(missing or needed), "none", f"a value, as {self.follows!r} asks for")
        Range(self.least_s, 1e5).check("most_s", self.most_s)
        return self

    @property
    def unused(self) -> list[str]:
        """What was given and is not looked at; a certificate gives everything."""
        used = _NEEDED[self.follows] | ({"least_s", "most_s", "sigma"} if self.follows == "lognormal" else set())
        return sorted(self.model_fields_set - used - {"follows"})

    @property
    def least(self) -> float:
        """No transfer is shorter, seconds."""
        return min(self.values_s) if self.values_s else self.least_s

    @property
    def most(self) -> float:
        return max(self.values_s) if self.values_s else self.most_s

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Of n successive merges, seconds; more of them begin alike."""
        if self.follows == "given":
            return np.resize(np.array(self.values_s), n)
        if self.follows == "drawn":
            return np.array(self.values_s)[rng.integers(len(self.values_s), size=n)]
        if self.follows == "uniform":
            return rng.uniform(self.least_s, self.most_s, n)
        return np.clip(self.median_s * np.exp(self.sigma * rng.standard_normal(n)), self.least_s, self.most_s)


class Practice(Model):
    """The table [merge].

    duration : of the transfers; without it each takes `merge_s`.  failed_share : of merges that are not committed: they
    moved their bytes, training gained nothing from them, and the same fragment is due again.
    fragments : of the model, merged in turn, one in flight at a time.  sync_delay_steps : inner steps that are trained
    between sending a fragment and applying it.  send_slowdown : of the server's iterations while a fragment is sent;
    without it the sidecar's own of a merge.  apply_s : seconds in which a fragment is applied and training stops.
    """

    duration: Durations | None = None
    failed_share: Annotated[float, Range(0, 0.9)] = 0.0
    fragments: Annotated[int, Range(1, 1024)] = 1
    sync_delay_steps: Annotated[int, Range(0, 1_000_000)] = 0
    send_slowdown: Annotated[float, Range(1, 1000)] | None = None
    apply_s: Annotated[float, Range(0, 1e4)] = 0.0

    @property
    def ordinary(self) -> bool:
        """Whether it is the default: one blocking merge of the whole model, always as long and always committed."""
        return self == Practice()

    def turn(self, h_min: int, h_max: int) -> tuple[int, int]:
        """H_min and H_max of a fragment as the steps from one fragment's end to the next one's beginning.

        Each fragment is due once in `fragments` turns, so a turn has that share of its corridor (torchft: `sync_every /
        n_fragments`), less the steps that are trained while a fragment is under way.
        """
        return -(-h_min // self.fragments) - self.sync_delay_steps, h_max // self.fragments - self.sync_delay_steps

    def length_ns(self, took_ns: NDArray[np.int64], step_ns: int) -> NDArray[np.int64]:
        """From the beginning of each merge to its end; took_ns : of its transfer."""
        return np.maximum(took_ns, self.sync_delay_steps * step_ns) + seconds_to_ns(self.apply_s)

    def stream(self, merge_ns: int, most: int, rng: np.random.Generator) -> Merges:
        """What the first `most` merges of a run will be, whoever decides when they begin."""
        if self.duration is None:
            took = np.full(most + 1, merge_ns, np.int64)
        else:
            took = np.maximum(np.rint(self.duration.draw(most + 1, rng) * NS_PER_S), 1).astype(np.int64)
        committed = rng.random(most + 1) >= self.failed_share
        before = np.concatenate([[0], np.cumsum(committed)[:-1]])
        return Merges(took, np.asarray(before % self.fragments, np.int16), committed, int(took[-1])).first(most)


@dataclass(frozen=True, eq=False)
class Merges:
    """The merges of one schedule, in their order, wherever they lie.

    took_ns : int64, shape (K,), of each transfer.  fragment : int16, shape (K,).  committed : bool, shape (K,).
    next_ns : of the transfer that would have come after them.

    >>> Merges.alike(2, 8).first(1).took_ns.tolist()
    [8]
    """

    took_ns: NDArray[np.int64]
    fragment: NDArray[np.int16]
    committed: NDArray[np.bool_]
    next_ns: int

    def __post_init__(self) -> None:
        took = whole("merges", "took_ns", self.took_ns, "i8")
        if took.size and took.min() <= 0:
            raise BadInput("merges, took_ns", f"{took.min()}", "a positive number of nanoseconds")
        for column, values in (("took_ns", took), ("fragment", frozen(self.fragment, "i2")),
                               ("committed", frozen(self.committed, "?"))):  # fmt: skip
            if len(values) != len(took):
                raise BadInput(f"merges, {column}", f"{len(values)} values", f"{len(took)}, one a merge")
            object.__setattr__(self, column, values)

    def __len__(self) -> int:
        return len(self.took_ns)

    @classmethod
    def alike(cls, k: int, merge_ns: int) -> Merges:
        """So many of the whole model, all as long and all committed."""
        return cls(np.full(k, merge_ns, np.int64), np.zeros(k, np.int16), np.ones(k, bool), merge_ns)

    @classmethod
    def of(cls, schedule: Schedule, next_ns: int) -> Merges:
        """Of a schedule in which every merge occupies all islands for the same time."""
        return cls(schedule.busy_ns.max(axis=1, initial=0), schedule.fragment, schedule.committed, next_ns)

    def first(self, k: int) -> Merges:
        """The first k; the next one is known when there are more."""
        following = int(self.took_ns[k]) if k < len(self) else self.next_ns
        return Merges(self.took_ns[:k], self.fragment[:k], self.committed[:k], following)

    def ordered(self, order: NDArray[np.integer]) -> Merges:
        """The same merges in another order."""
        return Merges(self.took_ns[order], self.fragment[order], self.committed[order], self.next_ns)

    def orders(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """n random orders, int64, shape (n, K), uniform over those in which the fragments come as they came."""
        found = np.tile(np.arange(len(self)), (n, 1))
        for fragment in np.unique(self.fragment):
            mine = np.flatnonzero(self.fragment == fragment)
            found[:, mine] = rng.permuted(found[:, mine], axis=1)
        return found

    def equals(self, other: Merges) -> bool:
        columns = ("took_ns", "fragment", "committed")
        same = all(np.array_equal(getattr(self, c), getattr(other, c)) for c in columns)
        return same and self.next_ns == other.next_ns


@dataclass(frozen=True)
class Timing:
    """Where merges of a practice lie in a corridor; `merges` None: all alike, as the corridor itself has them."""

    corridor: Corridor
    practice: Practice

    def lengths_ns(self, merges: Merges | None) -> NDArray[np.int64] | None:
        return None if merges is None else self.practice.length_ns(merges.took_ns, self.corridor.step_ns)

    def next_ns(self, merges: Merges | None) -> int | None:
        if merges is None:
            return None
        return int(self.practice.length_ns(np.array([merges.next_ns]), self.corridor.step_ns)[0])

    def spent(self, merges: Merges | None) -> Spent | None:
        lengths, following = self.lengths_ns(merges), self.next_ns(merges)
        return None if lengths is None or following is None else Spent(int(lengths.sum()), following)

    def start_ns(self, gaps: NDArray[np.integer], merges: Merges | None = None) -> NDArray[np.int64]:
        return self.corridor.start_ns(gaps, self.lengths_ns(merges))

    def gaps(self, start_ns: NDArray[np.int64], merges: Merges | None = None) -> NDArray[np.int64]:
        return self.corridor.gaps(start_ns, self.lengths_ns(merges))

    def violation(self, start_ns: NDArray[np.int64], merges: Merges | None = None) -> str | None:
        return self.corridor.violation(start_ns, self.lengths_ns(merges), self.next_ns(merges))

    def schedule(self, gaps: NDArray[np.integer], n_islands: int, merges: Merges | None = None) -> Schedule:
        """What the sidecar replays."""
        starts = self.start_ns(gaps, merges)
        if merges is None:
            return Schedule.all_islands(starts, self.corridor.merge_ns, n_islands)
        return self.schedule_at(starts, n_islands, merges)

    def schedule_at(self, start_ns: NDArray[np.int64], n_islands: int, merges: Merges) -> Schedule:
        """The same from the merges' beginnings."""
        busy = np.repeat(merges.took_ns[:, None], n_islands, axis=1)
        apply_ns = seconds_to_ns(self.practice.apply_s)
        end = start_ns + self.practice.length_ns(merges.took_ns, self.corridor.step_ns)
        applied = np.stack([end - apply_ns, end], axis=1) if apply_ns else None
        return Schedule(start_ns, busy, merges.fragment, merges.committed, applied, self.practice.send_slowdown)

    def busy_ns(self, merges: int | Merges) -> int:
        """Time in which merges send or apply, of so many that are alike, or of these."""
        if isinstance(merges, int):
            return merges * self.corridor.merge_ns
        return int(merges.took_ns.sum()) + len(merges) * seconds_to_ns(self.practice.apply_s)

    def inner_steps(self, merges: int | Merges) -> int:
        """Whole inner steps in the horizon: those beside the merges, and those that a delay lets train meanwhile."""
        if isinstance(merges, int):
            return (self.corridor.horizon_ns - merges * self.corridor.merge_ns) // self.corridor.step_ns
        spent = self.spent(merges)
        assert spent is not None
        beside = (self.corridor.horizon_ns - spent.total_ns) // self.corridor.step_ns
        return beside + len(merges) * self.practice.sync_delay_steps


def same_kinds(one: Merges, other: Merges) -> bool:
    """Whether both have the same merges in any order: fragment, transfer and outcome."""
    keys: Sequence[NDArray[np.int64]] = [np.lexsort((m.committed, m.took_ns, m.fragment)) for m in (one, other)]
    a, b = one.ordered(keys[0]), other.ordered(keys[1])
    return len(one) == len(other) and a.equals(b)
