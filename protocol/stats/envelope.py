"""The matched random envelope: both tests, the gain and what could have been detected."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.power import TTestPower

from protocol.stats import randomization as rz
from protocol.stats.result import RTOL, Interval, TestOutcome, undecidable

MIN_SEEDS = 8
MIN_DRAWS = 5


@dataclass(frozen=True)
class Envelope:
    """Policy against matched random draws.

    pvalue : the larger of the stratified and the sign-flip p; None when undecidable, with `reason`.
    floor : the smallest that it could have been.
    gain : mean over seeds of (mean of the draws - policy), in the units of the costs; positive is better.
    lower_bound : one-sided 1 - alpha limit of the gain from the stratified test: above 0 exactly when its p <= alpha.
    interval, t_interval : two-sided, by inversion of the stratified test, and t over seeds.
    detectable : gain that a test of this size finds with the declared power, given the seeds' spread.
    ranks : int64, shape (S,), the policy's rank among its m_s + 1 values; 1 is best, ties count against it.
    policy, draw_mean, draw_sd : float64, shape (S,).
    n_draws : fewest draws of any seed.
    """

    pvalue: float | None
    floor: float | None
    gain: float | None
    lower_bound: float | None
    interval: Interval | None
    t_interval: Interval | None
    detectable: float | None
    stratified: TestOutcome
    sign_flip: TestOutcome
    rank: TestOutcome
    ranks: NDArray[np.int64]
    policy: NDArray[np.float64]
    draw_mean: NDArray[np.float64]
    draw_sd: NDArray[np.float64]
    n_seeds: int
    n_draws: int
    alpha: float
    power: float
    reason: str | None = None


def envelope(
    policy: ArrayLike,
    draws: Sequence[ArrayLike],
    rng: np.random.Generator,
    *,
    alpha: float = 0.05,
    level: float = 0.95,
    power: float = 0.9,
    n_resamples: int = 9999,
    min_seeds: int = MIN_SEEDS,
    min_draws: int = MIN_DRAWS,
) -> Envelope:
    """Judge one policy value a seed against that seed's draws, by the larger of two p-values (union of nulls).

    policy : float, shape (S,).  draws : S arrays, shape (m_s,).  Lower is better.

    No p-value, but a reason, when a value is NaN or infinite, when there are fewer than `min_seeds` seeds or
    `min_draws` draws in any, when no seed's draws differ among themselves, or when two seeds are copies.
    """
    blocks = rz.strata(policy, draws)
    if isinstance(blocks, str):
        return _undecidable(policy, draws, blocks, alpha, power)
    fewest = min(len(block) for block in blocks) - 1
    if len(blocks) < min_seeds:
        return _undecidable(policy, draws, f"{len(blocks)} seeds, fewer than {min_seeds}", alpha, power)
    if fewest < min_draws:
        return _undecidable(policy, draws, f"{fewest} draws in a seed, fewer than {min_draws}", alpha, power)
    if all(np.ptp(block[1:]) <= RTOL * np.abs(block).max() for block in blocks):
        return _undecidable(policy, draws, "the draws of every seed are all alike: no envelope", alpha, power)
    seen: dict[bytes, int] = {}
    for s, block in enumerate(blocks):
        first = seen.setdefault(block.tobytes(), s)
        if first != s and np.ptp(block) > 0:
            return _undecidable(policy, draws, f"seeds {first + 1} and {s + 1} have the same values", alpha, power)

    excess, kept, exact = rz.reference(blocks, rng, n_resamples)
    stratified = rz.stratified_outcome(blocks, excess, exact)
    gains = seed_gains(blocks)
    flip = rz.sign_flip(-gains, rng, n_resamples)
    assert stratified.pvalue is not None and flip.pvalue is not None
    assert stratified.floor is not None and flip.floor is not None
    floor = max(stratified.floor, flip.floor)
    lower, upper = invert(excess, kept, len(blocks), (1 - level) / 2, exact)
    own, mean, sd = _summaries(blocks)
    return Envelope(
        pvalue=max(stratified.pvalue, flip.pvalue),
        floor=floor,
        gain=float(gains.mean()),
        lower_bound=invert(excess, kept, len(blocks), alpha, exact)[0],
        interval=Interval(lower, upper, level, "inversion of the stratified randomisation test"),
        t_interval=t_interval(gains, level),
        detectable=detectable_gain(gains, alpha, power) if floor <= alpha else None,
        stratified=stratified,
        sign_flip=flip,
        rank=rz.stratified_rank(policy, draws),
        ranks=rz.ranks(blocks),
        policy=own,
        draw_mean=mean,
        draw_sd=sd,
        n_seeds=len(blocks),
        n_draws=fewest,
        alpha=alpha,
        power=power,
    )


def seed_gains(blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean of the draws minus the policy by seed, shape (S,); rounding noise is made exactly zero.

    Without that, a policy equal to all its draws can differ from their mean by one unit in the last place in every
    seed, and the sign-flip test would call that significant.
    """
    gains = np.array([block[1:].mean() - block[0] for block in blocks])
    size = np.array([np.abs(block).max() for block in blocks])
    return np.where(np.abs(gains) <= RTOL * size, 0.0, gains)


def invert(
    excess: NDArray[np.float64], kept: NDArray[np.int64], n_seeds: int, tail: float, exact: bool
) -> tuple[float, float]:
    """Limits of the gain that the stratified test does not reject at `tail` on either side.

    If the policy is a random draw less a gain g, adding g back restores exchangeability.  With g added, a relabelled
    sum is at most the observed one exactly when excess <= g (S - kept), so each relabelling contributes the single
    number excess / (S - kept), the mean excess over the seeds that changed label, and the limits are order
    statistics of those: what bisection on g with common random numbers converges to.
    """
    changed = n_seeds - kept
    same = int(np.count_nonzero(changed == 0))
    turning = np.sort(excess[changed > 0] / changed[changed > 0])
    size = len(excess) if exact else len(excess) + 1
    always = same if exact else same + 1
    # Rejected while (always + #{turning <= g}) / size <= tail; the limit is the first turning point that ends it.
    needed = math.floor(tail * size * (1 + 1e-12)) + 1 - always
    if needed <= 0:
        return -math.inf, math.inf
    if needed > len(turning):
        return math.nan, math.nan
    return float(turning[needed - 1]), float(turning[-needed])


def t_interval(gains: NDArray[np.float64], level: float) -> Interval | None:
    """Student's interval for the mean gain over seeds; None when the seeds do not vary."""
    if len(gains) < 2 or np.ptp(gains) == 0:
        return None
    low, high = stats.t.interval(level, len(gains) - 1, gains.mean(), stats.sem(gains))
    return Interval(float(low), float(high), level, "t over seeds")


def detectable_gain(gains: NDArray[np.float64], alpha: float, power: float) -> float | None:
    """Gain g with P(t'_{S-1}(g sqrt(S) / sd) > t_{1-alpha, S-1}) = power, t' noncentral, sd that of the seed gains.

    That is the one-sided paired t test's; the envelope's power is close to it (see docs/statistics.md).  None when
    the seeds do not vary.
    """
    if len(gains) < 2 or np.ptp(gains) == 0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solver's first bracket may be flat; the root is checked below
        effect = TTestPower().solve_power(nobs=len(gains), alpha=alpha, power=power, alternative="larger")
    effect = float(np.asarray(effect).ravel()[0])
    return effect * float(np.std(gains, ddof=1)) if math.isfinite(effect) and effect > 0 else None


def _summaries(
    blocks: Sequence[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    own = np.array([block[0] for block in blocks])
    mean = np.array([block[1:].mean() for block in blocks])
    sd = np.array([block[1:].std(ddof=1) if len(block) > 2 else 0.0 for block in blocks])
    return own, mean, sd


def _undecidable(policy: ArrayLike, draws: Sequence[ArrayLike], reason: str, alpha: float, power: float) -> Envelope:
    found = rz.strata(policy, draws)
    blocks = [] if isinstance(found, str) else found
    seeds = len(draws)
    own, mean, sd = _summaries(blocks)
    return Envelope(
        pvalue=None,
        floor=None,
        gain=float(seed_gains(blocks).mean()) if blocks else None,
        lower_bound=None,
        interval=None,
        t_interval=None,
        detectable=None,
        stratified=undecidable("stratified randomisation", seeds, reason),
        sign_flip=undecidable("paired sign flip", seeds, reason),
        rank=undecidable("stratified rank", seeds, reason),
        ranks=rz.ranks(blocks),
        policy=own,
        draw_mean=mean,
        draw_sd=sd,
        n_seeds=seeds,
        n_draws=min((len(block) - 1 for block in blocks), default=0),
        alpha=alpha,
        power=power,
        reason=reason,
    )
