"""A gain measured on a real server, with the simulator's prediction of each replay taken out of its noise.

References: Angelopoulos, Bates, Fannjiang, Jordan and Zrnic (2023), Prediction-powered inference, Science 382, 669-674;
Deng, Xu, Kohavi and Walker (2013), Improving the sensitivity of online controlled experiments (CUPED), WSDM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.stats.gains import MIN_SEEDS
from protocol.stats.result import RTOL, Interval, TestOutcome, undecidable

PREDICTED = "t over seeds, simulator's prediction removed"
#: Simulated seeds beyond the replayed ones; their mean gain must be known far better than the real one.
MIN_ELSEWHERE = 100


@dataclass(frozen=True, eq=False)
class PredictedGain:
    """outcome : H0 that the gain on the server is at most delta.
    estimate, lower_bound, interval : of the real gain, in the units of the costs; lower_bound one-sided 1 - alpha.
    plain : the same gain by the replays alone.  by_seed : float64, shape (S,), the adjusted gains; slopes : shape (S,),
        of real on simulated costs, each from the draws of the other seeds.
    correlation : of real and simulated draws within their seeds.
    noise_left : variance of the adjusted gains over that of the plain ones.
    """

    outcome: TestOutcome
    estimate: float | None
    lower_bound: float | None
    interval: Interval | None
    plain: float | None
    by_seed: NDArray[np.float64]
    slopes: NDArray[np.float64]
    correlation: float | None
    noise_left: float | None
    delta: float
    alpha: float


def predicted_gain(
    policy: ArrayLike,
    draws: Sequence[ArrayLike],
    simulated_policy: ArrayLike,
    simulated_draws: Sequence[ArrayLike],
    elsewhere: ArrayLike,
    *,
    delta: float = 0.0,
    alpha: float = 0.05,
    min_seeds: int = MIN_SEEDS,
) -> PredictedGain:
    """Mean real gain over seeds, each less what the simulator says is special about that seed.

    policy, draws : real costs, (S,) and S arrays (m_s,), m_s >= 2; lower is better.
    simulated_policy, simulated_draws : costs that the simulator gives to the same schedules on the same traces.
    elsewhere : float, shape (N,), simulated gains of the policy on N seeds that were not replayed.

    adjusted_s = gain_s - slope_(-s) (simulated gain_s - mean of `elsewhere`), slope_(-s) the regression of real on
    simulated costs over the draws of the other seeds, centred within each.  A slope that does not see its own seed
    leaves the mean unbiased whatever the simulator says; a useless simulator has slope 0 and costs nothing.
    t over seeds, with the variance of `elsewhere` added.  Undecidable where a value is not finite or there are too few.
    """
    real = _costs(policy, draws)
    simulated = _costs(simulated_policy, simulated_draws)
    others = np.asarray(elsewhere, np.float64).ravel()

    def nothing(reason: str) -> PredictedGain:
        none, empty = undecidable(PREDICTED, len(draws), reason), np.empty(0)
        return PredictedGain(none, None, None, None, None, empty, empty, None, None, delta, alpha)

    reason = _unfit(real, simulated, others, min_seeds)
    if reason:
        return nothing(reason)
    gains, guessed = (np.array([b[1:].mean() - b[0] for b in blocks]) for blocks in (real, simulated))
    slopes, correlation = _slopes(real, simulated)
    adjusted = gains - slopes * (guessed - others.mean())
    variance = float(adjusted.var(ddof=1))
    if not variance > (RTOL * np.abs(gains).max()) ** 2:
        return nothing("the seeds' gains do not vary: t has nothing to measure them by")
    error = math.sqrt(variance / len(gains) + float(slopes.mean()) ** 2 * float(others.var(ddof=1)) / len(others))
    estimate, freedom = float(adjusted.mean()), len(gains) - 1
    p = max(float(scipy.stats.t.sf((estimate - delta) / error, freedom)), float(np.finfo(float).tiny))
    one, two = (error * float(scipy.stats.t.ppf(1 - tail, freedom)) for tail in (alpha, alpha / 2))
    return PredictedGain(
        outcome=TestOutcome(PREDICTED, estimate, p, len(gains), 0.0, "Student t", None, True),
        estimate=estimate,
        lower_bound=estimate - one,
        interval=Interval(estimate - two, estimate + two, 1 - alpha, PREDICTED),
        plain=float(gains.mean()),
        by_seed=adjusted,
        slopes=slopes,
        correlation=correlation,
        noise_left=variance / float(gains.var(ddof=1)) if np.ptp(gains) > 0 else None,
        delta=delta,
        alpha=alpha,
    )


def _slopes(
    real: Sequence[NDArray[np.float64]], simulated: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], float | None]:
    """Of real on simulated draws, centred within their seeds: without each seed in turn, and the correlation of all."""
    seen, said = ([b[1:] - b[1:].mean() for b in blocks] for blocks in (real, simulated))
    products = np.array([a @ b for a, b in zip(seen, said, strict=True)])
    squares = np.array([b @ b for b in said])
    without = squares.sum() - squares
    slopes = np.divide(products.sum() - products, without, out=np.zeros(len(seen)), where=without > 0)
    spread = math.sqrt(sum(float(a @ a) for a in seen) * float(squares.sum()))
    return slopes, float(products.sum()) / spread if spread > 0 else None


def _costs(policy: ArrayLike, draws: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
    """Per seed the policy's cost and then its draws'; unequal numbers of seeds give an empty list."""
    own = np.asarray(policy, np.float64).ravel()
    every = [np.asarray(d, np.float64).ravel() for d in draws]
    return [np.r_[y, d] for y, d in zip(own, every, strict=True)] if len(own) == len(every) else []


def _unfit(
    real: Sequence[NDArray[np.float64]], simulated: Sequence[NDArray[np.float64]], elsewhere: NDArray[np.float64],
    min_seeds: int,
) -> str | None:  # fmt: skip
    if len(real) < max(min_seeds, 2):
        return f"{len(real)} seeds with a policy and draws, fewer than {max(min_seeds, 2)}"
    if [len(b) for b in real] != [len(b) for b in simulated]:
        return "the simulated costs are not those of the same replays"
    for s, (b, g) in enumerate(zip(real, simulated, strict=True), start=1):
        if len(b) < 3:
            return f"seed {s} has {len(b) - 1} draws, fewer than 2"
        if not np.isfinite(np.r_[b, g]).all():
            return f"seed {s} has a real or simulated cost that is NaN or infinite"
    if len(elsewhere) < MIN_ELSEWHERE:
        return f"{len(elsewhere)} simulated seeds beside the replayed ones, fewer than {MIN_ELSEWHERE}"
    if not np.isfinite(elsewhere).all():
        return "a simulated gain elsewhere that is NaN or infinite"
    return None
