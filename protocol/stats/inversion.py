"""Three randomisation tests of a gain at any minimum effect, and their confidence limits, from one set of relabellings.

Each test relabels seeds.  With a gain g added back to the policy's costs, a relabelling is as extreme as the observed
labelling exactly when g is at least its *turning point*: the mean, over the seeds that it changes, of what the change
costs.  So the p-value at a minimum effect is a count of turning points, and the confidence limits are order statistics
of them: what bisection on g with common random numbers converges to.

References: Phipson and Smyth (2010), Stat. Appl. Genet. Mol. Biol. 9(1) 39, for (b + 1) / (B + 1); Fisher (1935),
The Design of Experiments, chapter 3, for sign flips; Lehmann and Romano (2005), section 5.12, for limits by inversion.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from protocol.stats.randomization import EXACT_PERMUTATIONS, EXACT_SIGNS, reference, tie_tolerance
from protocol.stats.result import RTOL, TestOutcome

STRATIFIED = "stratified randomisation"
SIGN_FLIP = "paired sign flip"
EXCHANGE = "exchange between traces"
LOAD_FLIP = "paired sign flip of the load gain"


class Points(Protocol):
    """Turning points, in the units of the gain, in order."""

    def at_most(self, gain: float) -> int:
        """How many are at most `gain`."""

    def ranked(self, rank: int) -> float:
        """The one with that many before it; negative ranks count from the end."""

    def __len__(self) -> int: ...


class Listed:
    """points : float64, any order."""

    def __init__(self, points: NDArray[np.float64]) -> None:
        self.sorted = np.sort(points)

    def at_most(self, gain: float) -> int:
        return int(np.searchsorted(self.sorted, gain, side="right"))

    def ranked(self, rank: int) -> float:
        return float(self.sorted[rank])

    def __len__(self) -> int:
        return len(self.sorted)


class SubsetMeans:
    """Means of every subset of the gains but the empty one: 2^S - 1, from the sums of two halves, never listed.

    gains : float, shape (S,).  A mean is at most g exactly when its members less g sum to at most 0.
    """

    def __init__(self, gains: NDArray[np.float64]) -> None:
        half = len(gains) // 2
        self.halves = [_subset_sums(part) for part in (gains[:half], gains[half:])]
        self.range = float(gains.min()), float(gains.max())
        self.size = 2 ** len(gains) - 1

    def at_most(self, gain: float) -> int:
        left, right = (np.sort(sums - gain * sizes) for sums, sizes in self.halves)
        return int(_pairs_at_most_0(left, right)) - 1  # the empty subset's sum is 0 for every gain

    def ranked(self, rank: int) -> float:
        wanted = rank + 1 if rank >= 0 else self.size + rank + 1
        low, high = self.range
        if self.at_most(low) >= wanted:
            return low
        enough = 1e-13 * max(abs(low), abs(high))
        while high - low > enough:
            middle = (low + high) / 2
            low, high = (low, middle) if self.at_most(middle) >= wanted else (middle, high)
        return high

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, eq=False)
class Inversion:
    """One test at every minimum effect.

    estimate : the mean gain, in the units of the costs.
    points : the turning points.
    same : labellings that change nothing; the observed one is counted in.
    size : of the reference set, with the observed labelling.
    floor : the smallest p-value that it could give.
    slack : turning points that close to a minimum effect are ties, and count against the policy.
    """

    name: str
    estimate: float
    points: Points
    same: int
    size: int
    floor: float
    n: int
    null: str
    exact: bool
    slack: float

    def pvalue(self, delta: float = 0.0) -> float:
        """H0: the gain is at most `delta`; in (0, 1]."""
        return (self.same + self.points.at_most(delta + self.slack)) / self.size

    def outcome(self, delta: float = 0.0) -> TestOutcome:
        return TestOutcome(
            self.name,
            self.estimate,
            self.pvalue(delta),
            self.n,
            self.floor,
            self.null,
            self.size - (not self.exact),
            self.exact,
        )

    def lower(self, tail: float) -> float:
        """Least gain that the test does not reject at `tail`: it exceeds delta exactly when p(delta) <= tail.

        -inf when no labelling is rare enough; NaN when every gain is rejected, which takes a tail near 1.
        """
        needed = self._needed(tail)
        if needed <= 0:
            return -math.inf
        # A turning point within the slack of delta counts against the policy, so it may not bound the gain above delta.
        return self._limit(self.points.ranked(needed - 1) - self.slack) if needed <= len(self.points) else math.nan

    def upper(self, tail: float) -> float:
        """Greatest gain that the test in the other direction does not reject at `tail`."""
        needed = self._needed(tail)
        if needed <= 0:
            return math.inf
        return self._limit(self.points.ranked(-needed) + self.slack) if needed <= len(self.points) else math.nan

    def _needed(self, tail: float) -> int:
        return math.floor(tail * self.size * (1 + 1e-12)) + 1 - self.same

    def _limit(self, value: float) -> float:
        return 0.0 if abs(value) <= 2 * self.slack else value


def _inversion(
    name: str, estimate: float, excess: NDArray[np.float64], changed: NDArray[np.int64], exact: bool, total: int,
    n: int, null: str, slack: float,
) -> Inversion:  # fmt: skip
    """excess : what each labelling takes away in sum, over the `changed` seeds of it; total : labellings there are."""
    moved = changed > 0
    points = Listed(excess[moved] / changed[moved])
    size = len(excess) + (not exact)
    floor = 1 / total if exact else max(1 / size, 1 / total)
    same = len(excess) - len(points) + (not exact)
    return Inversion(name, estimate, points, same, size, floor, n, null, exact, slack)


def stratified(blocks: Sequence[NDArray[np.float64]], rng: np.random.Generator, n_resamples: int) -> Inversion:
    """H0: the policy, made worse by the gain, is one more draw of its seed.

    blocks : per seed the policy's cost and then its draws'.  A labelling puts one value of each seed, uniformly chosen,
    in the policy's place; enumerated when there are at most 100,000.
    """
    excess, kept, exact = reference(blocks, rng, n_resamples)
    total = math.prod(len(block) for block in blocks)
    null = "one value of each seed, uniformly chosen, in the policy's place"
    estimate = float(np.mean([block[1:].mean() - block[0] for block in blocks]))
    changed, slack = len(blocks) - kept, tie_tolerance(blocks)
    return _inversion(STRATIFIED, estimate, excess, changed, exact, total, len(blocks), null, slack)


def sign_flip(
    gains: NDArray[np.float64], rng: np.random.Generator, n_resamples: int, slack: float, name: str = SIGN_FLIP
) -> Inversion:
    """H0: the seeds' gains, less the gain, are independent and each symmetric about a mean of at most 0.

    gains : float, shape (S,), control minus policy.  Turning points are the means of subsets of the seeds: all of them
    up to 20 seeds, sampled beyond.
    """
    size = len(gains)
    null, estimate = "signs flipped independently by seed", float(gains.mean())
    if size <= EXACT_SIGNS:
        return Inversion(name, estimate, SubsetMeans(gains), 1, 2**size, 2.0**-size, size, null, True, slack)
    flipped = rng.integers(0, 2, (n_resamples, size), dtype=np.int8)
    changed = flipped.sum(axis=1, dtype=np.int64)
    return _inversion(name, estimate, flipped @ gains, changed, False, 2**size, size, null, slack)


def _subset_sums(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and size of every subset, the empty one first."""
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    return sums, sizes


@numba.njit(cache=True, nogil=True)
def _pairs_at_most_0(left: NDArray[np.float64], right: NDArray[np.float64]) -> int:
    """Pairs of one value of each sorted array whose sum is at most 0."""
    count, end = 0, len(right)
    for value in left:
        while end > 0 and value + right[end - 1] > 0:
            end -= 1
        count += end
    return count


@functools.cache
def _permutations(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All orders, shape (S!, S), and how many each changes."""
    orders = np.array(list(itertools.permutations(range(size))), np.int64)
    return orders, _moved(orders)


def _moved(orders: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(np.count_nonzero(orders != np.arange(orders.shape[1]), axis=1))


def own_trace(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each schedule saves on the trace that it was made on, shape (..., S); their mean is the load gain.

    cost : float, shape (..., S, S), S >= 2, as for `exchange`.  Expected is what trace and schedule cost apart from
    each other: the sum of both effects, fitted by least squares to the costs off the diagonal.  Unlike the mean cost of
    the other schedules it has no part in how good a schedule is on every trace, which is no gain from the load.
    """
    size = cost.shape[-1]
    own = np.diagonal(cost, axis1=-2, axis2=-1)
    rows, columns = cost.sum(axis=-1) - own, cost.sum(axis=-2) - own
    if size == 2:  # the effects cannot be told apart
        return np.asarray(rows - own)
    every = rows.sum(axis=-1, keepdims=True)
    return np.asarray((rows + columns - every / (size - 1)) / (size - 2) - own)


def exchange(cost: NDArray[np.float64], rng: np.random.Generator, n_resamples: int) -> Inversion:
    """H0: with the gain added to the diagonal, schedules are exchangeable over the traces that they were made on.

    cost : float, shape (S, S), S >= 2; cost[s, t] is what the schedule made on trace t costs on trace s.  A labelling
    deals every schedule to one trace; all S! up to 8 seeds, sampled beyond.  At a gain of 0 the test is exact for every
    load-blind scheduler, whatever its gaps: its schedules do not know which trace they were made on.
    """
    size = len(cost)
    exact = size <= EXACT_PERMUTATIONS
    if exact:
        orders, changed = _permutations(size)
    else:
        orders = rng.permuted(np.tile(np.arange(size), (n_resamples, 1)), axis=1)
        changed = _moved(orders)
    lost = cost - np.diagonal(cost)[:, None]
    excess = lost[np.arange(size), orders].sum(axis=1)
    null = "the schedules dealt to the traces in random order"
    slack = RTOL * float(np.abs(cost).max(axis=1).sum())
    estimate = float(lost.sum(axis=1).mean()) / (size - 1)
    return _inversion(EXCHANGE, estimate, excess, changed, exact, math.factorial(size), size, null, slack)
