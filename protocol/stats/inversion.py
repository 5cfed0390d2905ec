"""Three randomisation tests of a gain at any minimum effect, and their confidence limits, from one set of relabellings.

Each test relabels seeds.  With a gain g added back to the policy's costs, a relabelling is as extreme as the observed
labelling exactly when g is at least its *turning point*: the mean, over the seeds that it changes, of what the change
costs.  So the p-value at a minimum effect is a count of turning points, and the confidence limits are order statistics
of them: what bisection on g with common random numbers converges to.

References: Phipson and Smyth (2010), Stat. Appl. Genet. Mol. Biol. 9(1) 39, for (b + 1) / (B + 1); Fisher (1935),
The Design of Experiments, chapter 3, for sign flips; Lehmann and Romano (2005), section 5.12, for limits by inversion.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.stats.randomization import EXACT_PERMUTATIONS, EXACT_SIGNS, reference, tie_tolerance
from protocol.stats.result import RTOL, TestOutcome

STRATIFIED = "stratified randomisation"
SIGN_FLIP = "paired sign flip"
EXCHANGE = "exchange between traces"


@dataclass(frozen=True, eq=False)
class Inversion:
    """One test at every minimum effect.

    estimate : the mean gain, in the units of the costs.
    points : float64, sorted: the turning points, in the same units.
    same : labellings that change nothing; the observed one is counted in.
    size : of the reference set, with the observed labelling.
    floor : the smallest p-value that it could give.
    slack : turning points that close to a minimum effect are ties, and count against the policy.
    """

    name: str
    estimate: float
    points: NDArray[np.float64]
    same: int
    size: int
    floor: float
    n: int
    null: str
    exact: bool
    slack: float

    def pvalue(self, delta: float = 0.0) -> float:
        """H0: the gain is at most `delta`; in (0, 1]."""
        return (self.same + int(np.searchsorted(self.points, delta + self.slack, side="right"))) / self.size

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

    def limits(self, tail: float) -> tuple[float, float]:
        """Gains that the test rejects at `tail` on neither side; the lower exceeds delta exactly when p(delta) <= tail.

        Infinite when no labelling is rare enough.  Both are NaN when every gain is rejected, which takes tail near 1.
        """
        needed = math.floor(tail * self.size * (1 + 1e-12)) + 1 - self.same
        if needed <= 0:
            return -math.inf, math.inf
        if needed > len(self.points):
            return math.nan, math.nan
        return float(self.points[needed - 1]), float(self.points[-needed])


def _inversion(
    name: str, estimate: float, excess: NDArray[np.float64], changed: NDArray[np.int64], exact: bool, total: int,
    n: int, null: str, slack: float,
) -> Inversion:  # fmt: skip
    """excess : what each labelling takes away in sum, over the `changed` seeds of it; total : labellings there are."""
    moved = changed > 0
    points = np.sort(excess[moved] / changed[moved])
    points[np.abs(points) <= slack] = 0.0
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


def sign_flip(gains: NDArray[np.float64], rng: np.random.Generator, n_resamples: int, slack: float) -> Inversion:
    """H0: the seeds' gains, less the gain, are independent and each symmetric about a mean of at most 0.

    gains : float, shape (S,), control minus policy.  Turning points are the means of subsets of the seeds: all of them
    up to 20 seeds, sampled beyond.
    """
    size = len(gains)
    exact = size <= EXACT_SIGNS
    if exact:
        excess, changed = np.zeros(1), np.zeros(1, np.int64)
        for gain in gains:
            excess = np.concatenate([excess, excess + gain])
            changed = np.concatenate([changed, changed + 1])
    else:
        flipped = rng.integers(0, 2, (n_resamples, size), dtype=np.int8)
        excess, changed = flipped @ gains, flipped.sum(axis=1, dtype=np.int64)
    null = "signs flipped independently by seed"
    return _inversion(SIGN_FLIP, float(gains.mean()), excess, changed, exact, 2**size, size, null, slack)


def exchange(cost: NDArray[np.float64], rng: np.random.Generator, n_resamples: int) -> Inversion:
    """H0: with the gain added to the diagonal, schedules are exchangeable over the traces that they were made on.

    cost : float, shape (S, S), S >= 2; cost[s, t] is what the schedule made on trace t costs on trace s.  A labelling
    deals every schedule to one trace; all S! up to 8 seeds, sampled beyond.  At a gain of 0 the test is exact for every
    load-blind scheduler, whatever its gaps: its schedules do not know which trace they were made on.
    """
    size = len(cost)
    exact = size <= EXACT_PERMUTATIONS
    if exact:
        orders = np.array(list(itertools.permutations(range(size))), np.int64)
    else:
        orders = rng.permuted(np.tile(np.arange(size), (n_resamples, 1)), axis=1)
    lost = cost - np.diagonal(cost)[:, None]
    excess = lost[np.arange(size), orders].sum(axis=1)
    changed = np.count_nonzero(orders != np.arange(size), axis=1)
    null = "the schedules dealt to the traces in random order"
    slack = RTOL * float(np.abs(cost).max(axis=1).sum())
    estimate = float(lost.sum(axis=1).mean()) / (size - 1)
    return _inversion(EXCHANGE, estimate, excess, changed, exact, math.factorial(size), size, null, slack)
