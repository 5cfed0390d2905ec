"""Randomisation tests of a policy against matched random draws.  Costs: lower is better, all tests one-sided.

References: Phipson and Smyth (2010), Stat. Appl. Genet. Mol. Biol. 9(1) 39, for (b + 1) / (B + 1); Fisher (1935),
The Design of Experiments, chapter 3, for sign flips; Berger (1982), Technometrics 24, for taking the larger p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.stats.result import RTOL, TestOutcome, undecidable

#: Reference sets up to this size are enumerated.
EXACT_SIZE = 100_000
#: Sign flips are enumerated up to this many seeds (two halves of 2^10 sums each).
EXACT_SIGNS = 20
EXACT_PERMUTATIONS = 8

_STRATIFIED = "stratified randomisation"
_SIGN = "paired sign flip"


def strata(policy: ArrayLike, draws: Sequence[ArrayLike]) -> list[NDArray[np.float64]] | str:
    """Per seed the policy's value followed by its draws, shape (m_s + 1,); or the reason why there are none."""
    own = np.asarray(policy, np.float64)
    if own.ndim != 1 or len(own) != len(draws):
        return f"{own.size} policy values for the draws of {len(draws)} seeds"
    if not len(own):
        return "no seeds"
    blocks = [np.concatenate([[y], np.asarray(d, np.float64).ravel()]) for y, d in zip(own, draws, strict=True)]
    for s, block in enumerate(blocks):
        if len(block) < 2:
            return f"seed {s + 1} of {len(blocks)} has no draws"
        if not np.isfinite(block).all():
            return f"seed {s + 1} of {len(blocks)} has a value that is NaN or infinite"
    return blocks


def tie_tolerance(blocks: Sequence[NDArray[np.float64]]) -> float:
    """Sums over seeds that differ by no more than this are ties: RTOL times the size of the values summed."""
    return RTOL * float(sum(np.abs(block).max() for block in blocks))


def reference(
    blocks: Sequence[NDArray[np.float64]], rng: np.random.Generator, n_resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], bool]:
    """Excess of relabelled sums over the policy's own, and in how many seeds the policy kept its label.

    Returns (excess, kept, exact): excess = sum_s (Y_{s, J_s} - Y_s0) with J_s uniform on the seed's m_s + 1 values,
    kept = #{s : J_s = 0}.  When exact, all prod (m_s + 1) relabellings are there, the observed one included.
    An excess within the tie tolerance is exactly 0.
    """
    exact = math.prod(len(block) for block in blocks) <= EXACT_SIZE
    size = 1 if exact else n_resamples
    excess, kept = np.zeros(size), np.zeros(size, np.int64)
    if exact:
        for block in blocks:
            excess = np.add.outer(excess, block - block[0]).ravel()
            kept = np.add.outer(kept, (np.arange(len(block)) == 0).astype(np.int64)).ravel()
    else:
        for block in blocks:
            label = rng.integers(0, len(block), n_resamples)
            excess += (block - block[0])[label]
            kept += label == 0
    excess[np.abs(excess) <= tie_tolerance(blocks)] = 0.0
    return excess, kept, exact


def tail_pvalue(as_extreme: int, size: int, exact: bool) -> float:
    """Share of an enumerated set; of a sampled one with the observed counted in: (b + 1) / (B + 1)."""
    return as_extreme / size if exact else (as_extreme + 1) / (size + 1)


def stratified_randomization(
    policy: ArrayLike, draws: Sequence[ArrayLike], rng: np.random.Generator, n_resamples: int = 9999
) -> TestOutcome:
    """H0: within each seed, the policy's cost and its draws' are exchangeable (the policy is one more draw).

    policy : float, shape (S,).  draws : S arrays, shape (m_s,); m_s must not depend on the values.
    T = sum_s (Y_s0 - mean of the seed's m_s + 1 values), against the same sum with a uniformly chosen value of each
    seed in the policy's place; p = P(T* <= T), enumerated when there are at most 100,000 relabellings.
    """
    blocks = strata(policy, draws)
    if isinstance(blocks, str):
        return undecidable(_STRATIFIED, len(draws), blocks)
    excess, _, exact = reference(blocks, rng, n_resamples)
    return stratified_outcome(blocks, excess, exact)


def stratified_outcome(blocks: Sequence[NDArray[np.float64]], excess: NDArray[np.float64], exact: bool) -> TestOutcome:
    """The test's outcome from an already drawn reference set."""
    count = int(np.count_nonzero(excess <= 0))
    size = math.prod(len(block) for block in blocks)
    floor = 1 / size if exact else max(1 / (len(excess) + 1), 1 / size)
    return TestOutcome(
        _STRATIFIED,
        float(sum(block[0] - block.mean() for block in blocks)),
        tail_pvalue(count, len(excess), exact),
        len(blocks),
        floor,
        "one value of each seed, uniformly chosen, in the policy's place",
        len(excess),
        exact,
    )


def ranks(blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Rank of the policy among its seed's m_s + 1 values, shape (S,): 1 is best, and ties count against it."""
    return np.array([np.count_nonzero(b <= b[0] + RTOL * np.abs(b).max()) for b in blocks], np.int64)


def sign_flip(d: ArrayLike, rng: np.random.Generator | None = None, n_resamples: int = 9999) -> TestOutcome:
    """H0: the seeds' differences are independent and each symmetric about a mean >= 0.

    d : float, shape (S,), policy minus control; T = sum d; p = P(sum eps_s d_s <= T), eps_s independent signs.
    Enumerated up to 20 seeds; beyond, sampled from `rng` with the observed counted in.
    """
    d = np.asarray(d, np.float64).ravel()
    size = len(d)
    if not size:
        return undecidable(_SIGN, 0, "no seeds")
    if not np.isfinite(d).all():
        return undecidable(_SIGN, size, f"seed {int(np.argmin(np.isfinite(d))) + 1} has a NaN or infinite difference")
    # sum eps d <= sum d exactly when the d whose sign is flipped sum to at least 0.
    slack = -RTOL * float(np.abs(d).sum())
    exact = size <= EXACT_SIGNS
    if exact:
        left, right = _subset_sums(d[: size // 2]), np.sort(_subset_sums(d[size // 2 :]))
        count = int((len(right) - np.searchsorted(right, slack - left, side="left")).sum())
        n_null = 2**size
    else:
        if rng is None:
            raise ValueError(f"{size} seeds: beyond {EXACT_SIGNS}, sign flips are sampled and need rng")
        flipped = np.zeros(n_resamples)
        for value in d:
            flipped += np.where(rng.integers(0, 2, n_resamples, dtype=np.int8) == 1, value, 0.0)
        count, n_null = int(np.count_nonzero(flipped >= slack)), n_resamples
    floor = 2.0**-size if exact else max(1 / (n_resamples + 1), 2.0**-size)
    p = tail_pvalue(count, n_null, exact)
    return TestOutcome(_SIGN, float(d.sum()), p, size, floor, "signs flipped independently by seed", n_null, exact)


def _subset_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums
