"""Watching a session block by block, with an error that looking does not raise: betting on the signs of its gains.

Reference: Ramdas, Ruf, Larsson and Koolen (2022), Testing exchangeability: fork-convexity, supermartingales and
e-processes, Int. J. Approx. Reason. 141, 83-109; Ville (1939), Etude critique de la notion de collectif.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.stats.result import TestOutcome

WATCHED = "betting on the signs of blocks"

#: Sizes of the bets that are mixed, per standard deviation of the blocks so far: about the effect, in such deviations,
#: against which each grows fastest.
_SIGN_BETS = np.array([0.5, 1.0])


@dataclass(frozen=True, eq=False)
class SignBets:
    """Capital after each block of betting that gains exceed delta.

    log_capital : float64, shape (B,).  pvalue : 1 / the largest capital so far, valid whenever one stops looking.
    decided_at : blocks after which the capital first reached 1 / alpha; None if it did not.
    gains : float64, shape (B,).  reason : why there is no p-value.
    """

    log_capital: NDArray[np.float64]
    pvalue: float | None
    decided_at: int | None
    gains: NDArray[np.float64]
    delta: float
    alpha: float
    reason: str | None = None

    @cached_property
    def lower_bound(self) -> float | None:
        """1 - alpha limit of the gain, valid whenever one stops; -inf where every gain is possible."""
        return None if self.pvalue is None else _sign_bound(self.gains, self.alpha)


@dataclass(frozen=True, eq=False)
class Watched:
    """The same as one of the tests of a gain, at every minimum effect; holds whenever the session was stopped.

    gains : float64, shape (B,), finite, in the order in which the blocks were run.
    """

    gains: NDArray[np.float64]
    name: str = WATCHED

    def pvalue(self, delta: float = 0.0) -> float:
        """H0: the gain is at most `delta`; in (0, 1]."""
        return sign_bets(self.gains, delta=delta).pvalue or 1.0

    def outcome(self, delta: float = 0.0) -> TestOutcome:
        # No block multiplies the capital by more than 2.
        n = len(self.gains)
        null = "given the past, the sign of each block's gain is a fair coin"
        return TestOutcome(self.name, float(self.gains.mean()), self.pvalue(delta), n, 0.5**n, null, 0, True)

    def lower(self, tail: float) -> float:
        """Least gain that is not rejected at `tail` after any of the blocks."""
        return _sign_bound(self.gains, tail)

    def upper(self, tail: float) -> float:
        return -_sign_bound(-self.gains, tail)


def sign_bets(gains: ArrayLike, *, delta: float = 0.0, alpha: float = 0.05) -> SignBets:
    """H0: given the past, each block's gain is symmetric about a centre of at most `delta`; watched after every block.

    gains : float, shape (B,), in the order in which the blocks were run.

    Given its distance |d| from the centre, a block's sign is a fair coin under H0, so 1 + tanh(lambda d / scale) has
    expectation 1 for every bet lambda and scale that do not see the sign; and the capital falls in delta, so a centre
    below delta only lowers it.  The product over blocks, averaged over two bets, may then be looked at as often as one
    likes: P(it ever reaches 1 / alpha) <= alpha (Ville 1939).  scale^2 is the mean square of the earlier blocks about
    their mean and of this one about delta; 1 + tanh(x) = 2 / (1 + exp(-2 x)) is a normal's likelihood ratio of the sign
    given the distance.
    """
    d = np.asarray(gains, np.float64).ravel()
    if not np.isfinite(d).all():
        where = int(np.argmin(np.isfinite(d))) + 1
        return SignBets(np.empty(0), None, None, d, delta, alpha, f"block {where} has a NaN or infinite gain")
    logs = _log_capital(d, delta)
    top = max(float(logs.max(initial=0.0)), 0.0)
    enough = np.flatnonzero(logs >= -math.log(alpha))
    decided = int(enough[0]) + 1 if enough.size else None
    return SignBets(logs, math.exp(-top), decided, d, delta, alpha)


def _log_capital(gains: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    count = np.arange(len(gains))
    before = np.concatenate([[0.0], np.cumsum(gains)[:-1]]) if len(gains) else np.empty(0)
    squares = np.concatenate([[0.0], np.cumsum(gains**2)[:-1]]) if len(gains) else np.empty(0)
    about_mean = np.maximum(squares - before**2 / np.maximum(count, 1), 0.0)
    d = gains - delta
    scale = np.sqrt((about_mean + d**2) / (count + 1))
    unit = np.divide(d, scale, out=np.zeros(len(d)), where=scale > 0)
    # log(1 + tanh x) = log 2 - log(1 + exp(-2 x))
    logs = (math.log(2) - np.logaddexp(0.0, -2 * _SIGN_BETS[:, None] * unit)).cumsum(axis=1)
    top = logs.max(axis=0, initial=-math.inf)
    return np.asarray(top + np.log(np.exp(logs - top).mean(axis=0)))


def _sign_bound(gains: NDArray[np.float64], alpha: float) -> float:
    """The largest delta at which the capital reached 1 / alpha; the capital falls in delta, so by bisection."""

    def reached(delta: float) -> bool:
        return bool((_log_capital(gains, delta) >= -math.log(alpha)).any())

    if not len(gains):
        return -math.inf
    width = float(np.ptp(gains)) + 1e-12
    low, high = float(gains.min()) - 1e3 * width, float(gains.max())
    if not reached(low):
        return -math.inf
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) else (low, middle)
    return low
