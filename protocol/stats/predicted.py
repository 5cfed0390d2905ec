"""A gain measured on a real server, with the simulator's prediction of each replay taken out of its noise.

References: Angelopoulos, Bates, Fannjiang, Jordan and Zrnic (2023), Prediction-powered inference, Science 382, 669-674;
Deng, Xu, Kohavi and Walker (2013), Improving the sensitivity of online controlled experiments (CUPED), WSDM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.stats.gains import MIN_SEEDS, Gain, Gains, GateTest, undecided
from protocol.stats.power import Spread
from protocol.stats.result import RTOL, TestOutcome

PREDICTED = "t over seeds, simulator's prediction removed"
#: Simulated seeds beyond the replayed ones; their mean gain must be known far better than the real one.
MIN_ELSEWHERE = 100


@dataclass(frozen=True, eq=False)
class PredictedGain:
    """A mean gain in the units of the costs, and t's test of it at every minimum effect.

    by_seed : float64, shape (S,), the adjusted gains; error : standard error of their mean.
    plain : the same gain by the replays alone.  slopes : shape (S,), of real on simulated costs, each from the draws of
        the other seeds.  simulated, elsewhere : mean simulated gain on the replayed seeds and on the further ones.
    correlation : of real and simulated draws within their seeds.  noise_left : variance of the adjusted gains over that
        of the plain ones.
    """

    estimate: float
    error: float
    by_seed: NDArray[np.float64]
    plain: float
    slopes: NDArray[np.float64]
    simulated: float
    elsewhere: float
    further: int
    correlation: float | None
    noise_left: float | None
    name: str = PREDICTED

    def pvalue(self, delta: float = 0.0) -> float:
        """H0: the gain is at most `delta`; in (0, 1]."""
        p = scipy.stats.t.sf((self.estimate - delta) / self.error, len(self.by_seed) - 1)
        return max(float(p), float(np.finfo(float).tiny))

    def outcome(self, delta: float = 0.0) -> TestOutcome:
        least, n = float(np.finfo(float).tiny), len(self.by_seed)
        return TestOutcome(self.name, self.estimate, self.pvalue(delta), n, least, "Student t", None, True)

    def lower(self, tail: float) -> float:
        """Least gain that is not rejected at `tail`."""
        return self.estimate - self.error * float(scipy.stats.t.ppf(1 - tail, len(self.by_seed) - 1))

    def upper(self, tail: float) -> float:
        return self.estimate + self.error * float(scipy.stats.t.ppf(1 - tail, len(self.by_seed) - 1))


def predicted_gain(
    policy: ArrayLike,
    draws: Sequence[ArrayLike],
    simulated_policy: ArrayLike,
    simulated_draws: Sequence[ArrayLike],
    elsewhere: ArrayLike,
    *,
    min_seeds: int = MIN_SEEDS,
) -> PredictedGain | str:
    """Mean real gain over seeds, each less what the simulator says is special about that seed.

    policy, draws : real costs, (S,) and S arrays (m_s,), m_s >= 2; lower is better.
    simulated_policy, simulated_draws : costs that the simulator gives to the same schedules on the same traces.
    elsewhere : float, shape (N,), simulated gains of the policy on N seeds that were not replayed.

    adjusted_s = gain_s - slope_(-s) (simulated gain_s - mean of `elsewhere`), slope_(-s) the regression of real on
    simulated costs over the draws of the other seeds, centred within each.  A slope that does not see its own seed
    leaves the mean unbiased whatever the simulator says; a useless simulator has slope 0 and costs nothing.
    t over seeds, with the variance of `elsewhere` added.  A reason in words where a value is not finite or there are
    too few.
    """
    real = _costs(policy, draws)
    simulated = _costs(simulated_policy, simulated_draws)
    others = np.asarray(elsewhere, np.float64).ravel()
    reason = _unfit(real, simulated, others, min_seeds)
    if reason:
        return reason
    gains, guessed = (np.array([b[1:].mean() - b[0] for b in blocks]) for blocks in (real, simulated))
    slopes, correlation = _slopes(real, simulated)
    adjusted = gains - slopes * (guessed - others.mean())
    variance = float(adjusted.var(ddof=1))
    if not variance > (RTOL * np.abs(gains).max()) ** 2:
        return "the seeds' gains do not vary: t has nothing to measure them by"
    return PredictedGain(
        estimate=float(adjusted.mean()),
        error=math.sqrt(variance / len(gains) + float(slopes.mean()) ** 2 * float(others.var(ddof=1)) / len(others)),
        by_seed=adjusted,
        plain=float(gains.mean()),
        slopes=slopes,
        simulated=float(guessed.mean()),
        elsewhere=float(others.mean()),
        further=len(others),
        correlation=correlation,
        noise_left=variance / float(gains.var(ddof=1)) if np.ptp(gains) > 0 else None,
    )


def decided_by(gains: Gains, found: PredictedGain | str) -> Gains:
    """The gains with the predicted one deciding over chance; the replays' own tests of it become a check.

    The check: the predicted gain lies in the replays' own interval.  Undecidable where it does not, where the plain
    gain is, or where there is no prediction.
    """
    if gains.chance is None or gains.pvalue is None:
        return gains
    plain = gains.chance.interval
    reason = found if isinstance(found, str) else None
    if not isinstance(found, str) and not plain.lower <= found.estimate <= plain.upper:
        reason = (
            f"predicted {found.estimate:.2f} pp, outside the replays' own interval {plain.lower:.2f} to "
            f"{plain.upper:.2f}: the simulator and these replays disagree"
        )
    if isinstance(found, str) or reason is not None:
        return undecided(gains, reason or "")
    own = GateTest(found.outcome(gains.delta), found.pvalue(0.0), "chance")
    tests = (own, *(test for test in gains.tests if test.concerns == "load"))
    ps = [test.outcome.pvalue or 1.0 for test in tests]
    return replace(
        gains,
        chance=Gain(found.estimate, found.by_seed, (found,), PREDICTED, False, gains.alpha),
        tests=tests,
        pvalue=max(ps),
        decided_by=tests[int(np.argmax(ps))].name,
        floor=max(test.outcome.floor or 0.0 for test in tests),
    )


def predicted_power(
    seeds: int, draws: int, *, gain: float, spread: Spread, correlation: float, delta: float = 0.0, alpha: float = 0.05
) -> float:
    """Power of the predicted t where real costs are simulated ones plus an error of the same shape.

    spread : of the simulated costs; correlation : of real and simulated costs within a seed, so that the error's
    variance is (1 / correlation^2 - 1) times the simulated one.  The further seeds' own variance is left out.
    """
    sd = math.hypot(spread.policy_sd, spread.draw_sd / math.sqrt(draws)) * math.sqrt(1 / correlation**2 - 1)
    distance = (gain - delta) / sd * math.sqrt(seeds) if sd > 0 else math.inf
    least = float(scipy.stats.t.ppf(1 - alpha, seeds - 1))
    return float(scipy.stats.nct.sf(least, seeds - 1, distance)) if math.isfinite(distance) else float(gain > delta)


def _slopes(
    real: Sequence[NDArray[np.float64]], simulated: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], float | None]:
    """Of real on simulated draws, centred within their seeds: without each seed in turn, and the correlation of all."""
    seen, said = ([_centred(b[1:]) for b in blocks] for blocks in (real, simulated))
    products = np.array([a @ b for a, b in zip(seen, said, strict=True)])
    squares = np.array([b @ b for b in said])
    without = squares.sum() - squares
    slopes = np.divide(products.sum() - products, without, out=np.zeros(len(seen)), where=without > 0)
    spread = math.sqrt(sum(float(a @ a) for a in seen) * float(squares.sum()))
    return slopes, float(products.sum()) / spread if spread > 0 else None


def _centred(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draws less their mean; rounding noise is exactly zero, for a slope of noise on noise may be anything."""
    left = draws - draws.mean()
    return np.where(np.abs(left) <= RTOL * np.abs(draws).max(), 0.0, left)


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
