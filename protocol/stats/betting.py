"""A lower bound for a mean gain that assumes nothing about its shape: betting against it.

Reference: Waudby-Smith and Ramdas (2024), Estimating means of bounded random variables by betting, J. R. Stat. Soc. B
86(1), 1-27: the capital of constant bets, mixed over their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.stats.result import TestOutcome, undecidable

BETTING = "betting on bounded gains"
#: Bets that are mixed, as shares of the largest that no possible loss ruins.
BETS = (np.arange(64) + 0.5) / 64
_BISECTIONS = 60


@dataclass(frozen=True)
class BettingBound:
    """outcome : H0 that the mean gain is at most delta.  lower_bound : one-sided 1 - alpha limit of the mean gain.
    lowest : the lowest gain that any seed could have had; the whole of what is assumed.
    """

    outcome: TestOutcome
    lower_bound: float | None
    lowest: float | None
    alpha: float


def log_capital(gains: NDArray[np.float64], lowest: float, mean: float) -> float:
    """Log of the mixed capital from betting that the mean of `gains`, none below `lowest`, exceeds `mean` > lowest."""
    # A share c of the largest bet multiplies the capital by 1 + c (gain - mean) / (mean - lowest) at each seed.
    odds = (gains - mean) / (mean - lowest)
    logs = np.log1p(BETS[:, None] * odds).sum(axis=1)
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean()))


def betting_bound(
    gains: ArrayLike, lowest: ArrayLike, *, delta: float = 0.0, alpha: float = 0.05, highest: ArrayLike | None = None
) -> BettingBound:
    """Lower bound for the mean gain of independent seeds, valid for every shape within the bounds.

    gains : float, shape (S,).  lowest, highest : float, shape (S,), each seed's gain at its worst and best placement
        (the worst is a bound that must hold; the best only tells the smallest p-value that there could have been).

    One bet on every seed, 1 + c (gain - g) / (g - L) with L the smallest of `lowest`, mixed over c in (0, 1).  Given
    the seeds' bounds the product's expectation is at most 1 when the seeds' mean gains *average* at most g, equal or
    not (independence, then arithmetic over geometric mean); so p = 1 / capital (Markov), and the bound is the g at
    which the capital is 1 / alpha.  Undecidable when a value is not finite or a gain lies below its bound.
    """
    d, low = np.asarray(gains, np.float64).ravel(), np.asarray(lowest, np.float64).ravel()

    def refuse(reason: str) -> BettingBound:
        return BettingBound(undecidable(BETTING, len(d), reason), None, None, alpha)

    if len(low) != len(d) or not len(d):
        return refuse(f"{len(low)} worst placements for {len(d)} seeds")
    if not (np.isfinite(d).all() and np.isfinite(low).all()):
        return refuse("a gain or a bound that is NaN or infinite")
    tolerance = 1e-9 * max(1.0, float(np.abs(low).max()))
    below = np.flatnonzero(d < low - tolerance)
    if below.size:
        return refuse(f"seed {below[0] + 1} gained less than its worst placement: the bound does not hold")
    bottom = float(min(low.min(), d.min()))
    if delta <= bottom:
        return refuse(f"a minimum effect of {delta:g} below every possible gain")
    p = math.exp(-max(log_capital(d, bottom, delta), 0.0))
    floor = None
    if highest is not None:
        high = np.asarray(highest, np.float64).ravel()
        if len(high) == len(d) and np.isfinite(high).all():
            floor = math.exp(-max(log_capital(np.maximum(high, d), bottom, delta), 0.0))
    outcome = TestOutcome(BETTING, float(d.mean()), p, len(d), floor, "no shape: gains bounded below", None, True)
    return BettingBound(outcome, _bound(d, bottom, alpha), bottom, alpha)


def _bound(gains: NDArray[np.float64], lowest: float, alpha: float) -> float:
    """The g in [lowest, mean] at which the capital falls to 1 / alpha."""
    low, high = lowest, float(gains.mean())
    if high <= low:
        return lowest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle <= lowest or log_capital(gains, lowest, middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low
