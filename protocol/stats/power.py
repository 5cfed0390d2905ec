"""How often the whole gate finds a gain of given size, which gain it finds 9 times in 10, and what seeds that takes.

Model: in seed s a draw costs b_s + draw_sd e and the policy b_s - gain + policy_sd e; the schedule made on trace t
costs a_s + c_t + exchange_sd e on another trace s.  All e have mean 0 and variance 1, normal or lognormal (exp of a
standard normal, standardised); b_s, a_s and c_t cancel in every test.  The tests are simulated, not approximated: a
simulated certificate without gain has a lower confidence limit by each test, a gain moves it by as much, and the gate
passes when the lowest exceeds the minimum effect.  So one set of simulated certificates answers for every gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numba
import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.stats.betting import BETS, BETTING
from protocol.stats.inversion import EXCHANGE, LOAD_FLIP, SIGN_FLIP, STRATIFIED, own_trace

Family = Literal["normal", "lognormal"]
FAMILIES: tuple[Family, ...] = ("normal", "lognormal")

#: Published between-seed spreads of violation rates, in percentage points: a uniform draw's, and three policies'
#: (planned offline; a draw shifted by a constant; decided online).
DRAW_SD = 0.956
POLICY_SD = {"offline": 0.34, "shift": 0.956, "online": 1.89}

#: More draws than this a seed are simulated as this many: past it they change nothing that a simulation can see.
_MOST_DRAWS = 99
#: Simulated certificates, in ten groups or in groups of at least 100, share a set of sampled relabellings: no single
#: set's error stays.
_SETS, _SHARED = 10, 100


@dataclass(frozen=True)
class Spread:
    """Spreads of single costs from seed to seed, all in one unit, e.g. percentage points.

    policy_sd : of the policy about its seed's mean draw.  draw_sd : of a draw about that mean.
    exchange_sd : of a schedule on a trace that it was not made on, about the trace's and the schedule's means; None
        when schedules are not exchanged, and that test is not made.
    diagonal_sd, correlation : the same on its own trace, and how that goes with the policy's deviation from its draws.
    seen_seeds : seeds from which the policy's spread was estimated; None when it is taken as known.  An estimate is
        uncertain, and a gain is found with the declared power only if that is put into the simulation.
    """

    policy_sd: float
    draw_sd: float
    exchange_sd: float | None = None
    diagonal_sd: float = 0.0
    correlation: float = 1.0
    seen_seeds: int | None = None

    @classmethod
    def alike(cls, policy_sd: float, draw_sd: float) -> Spread:
        """As assumed where nothing was measured: a schedule varies on other traces as it does on its own."""
        return cls(policy_sd, draw_sd, policy_sd, policy_sd)


def seen_spread(policy: ArrayLike, draws: Sequence[ArrayLike], exchanged: ArrayLike | None) -> Spread | None:
    """Spreads of a certificate: policy (S,), S arrays of draws, exchanged (S, S) or None; None when they do not vary.

    var(D) = policy_sd^2 + draw_sd^2 / m for the seeds' gains D.  The exchanged costs off the diagonal are fitted by
    trace and schedule effects, least squares; what is left, there and on the diagonal, is their noise.
    """
    own = np.asarray(policy, np.float64)
    every = [np.asarray(d, np.float64).ravel() for d in draws]
    if len(own) < 3 or not all(len(d) for d in every) or not np.isfinite(np.concatenate([own, *every])).all():
        return None
    deviation = own - np.array([d.mean() for d in every])
    within = np.array([d.var(ddof=1) if len(d) > 1 else np.nan for d in every])
    # One draw a seed: policy and draw are alike but for the gain, so each has half of the pairs' variance.
    draw_var = float(within.mean()) if np.isfinite(within).all() else float(deviation.var(ddof=1)) / 2
    share = float(np.mean([1 / len(d) for d in every]))
    policy_sd = math.sqrt(max(float(deviation.var(ddof=1)) - draw_var * share, 0.0))
    if not draw_var > 0:
        return None
    spread = Spread(policy_sd, math.sqrt(draw_var), seen_seeds=len(own))
    if exchanged is None:
        return spread
    cost = np.asarray(exchanged, np.float64)
    if not np.isfinite(cost).all():
        return None
    noise, saved = _interaction(cost), own_trace(cost)
    diagonal = math.sqrt(max(float(saved.var(ddof=1)) - 2 * noise**2 / (len(own) - 2), 0.0))
    varies = np.ptp(deviation) > 0 and np.ptp(saved) > 0
    correlation = -float(np.corrcoef(deviation, saved)[0, 1]) if varies else 0.0
    return replace(spread, exchange_sd=noise, diagonal_sd=diagonal, correlation=correlation)


def _interaction(cost: NDArray[np.float64]) -> float:
    """Spread of the costs off the diagonal about the trace and schedule effects fitted to them by least squares."""
    size = len(cost)
    s, t = np.nonzero(~np.eye(size, dtype=bool))
    design = np.zeros((len(s), 2 * size))
    design[np.arange(len(s)), s] = design[np.arange(len(s)), size + t] = 1
    left = cost[s, t] - design @ np.linalg.lstsq(design, cost[s, t], rcond=None)[0]
    return math.sqrt(float(left @ left) / max(len(s) - (2 * size - 1), 1))


@dataclass(frozen=True)
class Design:
    """seeds, draws : per certificate.  gain, delta : true gain and minimum effect, in the spread's unit.
    alpha : level of each test, at Holm's first step for several claims.
    lowest : the least gain that any seed can have; with it the bound without assumptions on shape decides too.
    """

    seeds: int
    draws: int
    gain: float
    spread: Spread
    family: Family = "normal"
    alpha: float = 0.05
    delta: float = 0.0
    lowest: float | None = None

    def __post_init__(self) -> None:
        spread = self.spread
        if self.seeds < 1 or self.draws < 1:
            raise ValueError(f"{self.seeds} seeds and {self.draws} draws: needs at least one of each")
        sds = spread.policy_sd + spread.draw_sd + (spread.exchange_sd or 0.0) + spread.diagonal_sd
        if not (spread.policy_sd >= 0 and spread.draw_sd > 0 and math.isfinite(sds + self.gain + self.delta)):
            raise ValueError("spreads must be finite, policy_sd >= 0 and draw_sd > 0")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha {self.alpha}: must lie between 0 and 1")
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r}: must be one of {', '.join(FAMILIES)}")


@dataclass(frozen=True)
class Power:
    """power : share of simulated certificates that pass.  lower, upper : its 95 % Clopper-Pearson limits.
    alone : the same share for each test, by its name.
    """

    design: Design
    power: float
    lower: float
    upper: float
    alone: dict[str, float]
    reps: int


def simulate_power(design: Design, rng: np.random.Generator, reps: int = 1000) -> Power:
    """Simulated power of the gate: every test at the minimum effect."""
    from statsmodels.stats.proportion import proportion_confint  # brings pandas, half a second

    needed = needed_gains(design, rng, reps)
    passed = {name: least < design.gain for name, least in needed.items()}
    hits = int(np.count_nonzero(np.all(list(passed.values()), axis=0)))
    low, high = proportion_confint(hits, reps, alpha=0.05, method="beta")
    alone = {name: float(found.mean()) for name, found in passed.items()}
    return Power(design, hits / reps, float(low), float(high), alone, reps)


def detectable_gain(
    spread: Spread,
    seeds: int,
    draws: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.05,
    claims: int = 1,
    delta: float = 0.0,
    lowest: float | None = None,
    power: float = 0.9,
    reps: int = 1000,
) -> float | None:
    """The gain that a certificate of this size passes with probability `power`, at Holm's first step of `claims`.

    A gain that follows the load wholly, so that it is both over chance and from following the load.  None when no
    p-value of that size is low enough, whatever the gain.
    """
    return detectable_gains(
        spread, seeds, draws, rng, alpha=alpha, claims=claims, delta=delta, lowest=lowest, powers=(power,), reps=reps
    )[0]


def detectable_gains(
    spread: Spread,
    seeds: int,
    draws: int,
    rng: np.random.Generator,
    *,
    powers: Sequence[float],
    alpha: float = 0.05,
    claims: int = 1,
    delta: float = 0.0,
    lowest: float | None = None,
    reps: int = 1000,
) -> list[float | None]:
    """`detectable_gain` at several powers, from one set of simulated certificates."""
    design = Design(seeds, draws, 0.0, spread, "normal", alpha / claims, delta, lowest)
    needed = np.sort(np.max(list(needed_gains(design, rng, reps).values()), axis=0))
    gains = [float(needed[min(math.ceil(power * reps), reps) - 1]) for power in powers]
    return [gain if math.isfinite(gain) else None for gain in gains]


def needed_gains(design: Design, rng: np.random.Generator, reps: int) -> dict[str, NDArray[np.float64]]:
    """Gain above which each test passes, by its name, in simulated certificates; shape (reps,), infinite for none."""
    spread, seeds, m = design.spread, design.seeds, min(design.draws, _MOST_DRAWS)
    unit = _noise(rng, (reps, seeds), design.family)
    if spread.seen_seeds is not None:
        freedom = max(spread.seen_seeds - 1, 1)
        unit *= np.sqrt(freedom / rng.chisquare(freedom, (reps, 1)))
    # Excess of a relabelled seed: the draw, or the mean draw, or another trace's schedule, in the policy's place.
    drawn = spread.draw_sd * _noise(rng, (reps, seeds, m), design.family)
    drawn -= spread.policy_sd * unit[:, :, None]
    gains = drawn.mean(axis=2, keepdims=True)
    tests = {SIGN_FLIP: (gains, _flips)} if m == 1 else {STRATIFIED: (drawn, _relabelled), SIGN_FLIP: (gains, _flips)}
    if spread.exchange_sd is not None:
        cost = spread.exchange_sd * _noise(rng, (reps, seeds, seeds), design.family)
        rest = math.sqrt(max(1 - spread.correlation**2, 0.0)) * _noise(rng, (reps, seeds), design.family)
        own = spread.diagonal_sd * (spread.correlation * unit + rest)
        cost[:, np.arange(seeds), np.arange(seeds)] = own
        tests[EXCHANGE] = (cost - own[:, :, None], _deals)
        tests[LOAD_FLIP] = (own_trace(cost)[:, :, None], _flips)
    found = {name: np.empty(reps) for name in tests}
    # Twenty relabellings or more in the tail that decides.
    sets, resamples = max(1, min(_SETS, reps // _SHARED)), max(999, math.ceil(20 / design.alpha) - 1)
    for first in range(sets):
        some = slice(first, reps, sets)
        for name, (excess, labels) in tests.items():
            shuffled, exact = labels(rng, seeds, excess.shape[2], resamples)
            found[name][some] = design.delta - _lower(excess[some], shuffled, exact, design.alpha)
    if design.lowest is not None:
        found[BETTING] = _needed_to_bet(gains[:, :, 0], design.lowest, design.delta, design.alpha)
    return found


def _relabelled(rng: np.random.Generator, seeds: int, m: int, n: int) -> tuple[NDArray[np.int64], bool]:
    """Relabellings, shape (B, S): which excess each seed takes, -1 for none; and whether all there are."""
    return rng.integers(-1, m, (n, seeds)), False


def _flips(rng: np.random.Generator, seeds: int, m: int, n: int) -> tuple[NDArray[np.int64], bool]:
    if 2**seeds <= n:
        return np.array(list(itertools.product((-1, 0), repeat=seeds)), np.int64), True
    return rng.integers(-1, 1, (n, seeds)), False


def _deals(rng: np.random.Generator, seeds: int, m: int, n: int) -> tuple[NDArray[np.int64], bool]:
    own, exact = np.arange(seeds), math.factorial(seeds) <= n
    if exact:
        orders = np.array(list(itertools.permutations(range(seeds))), np.int64)
    else:
        orders = rng.permuted(np.tile(own, (n, 1)), axis=1)
    return np.where(orders == own, -1, orders), exact


def _needed_to_bet(gains: NDArray[np.float64], lowest: float, delta: float, alpha: float) -> NDArray[np.float64]:
    """The gain that must be added to each row of gains (reps, S) for its bet's capital to reach 1 / alpha."""
    if delta <= lowest:
        return np.full(len(gains), math.inf)
    low, high = np.full(len(gains), -1.0), np.full(len(gains), 1.0)
    low, high = low * (delta - lowest), high * 4 * (delta - lowest)
    for _ in range(30):
        middle = (low + high) / 2
        odds = (np.maximum(gains + middle[:, None], lowest) - delta) / (delta - lowest)
        logs = np.log1p(BETS * odds[:, :, None]).sum(axis=1)
        top = logs.max(axis=1)
        enough = top + np.log(np.exp(logs - top[:, None]).mean(axis=1)) >= -math.log(alpha)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _lower(excess: NDArray[np.float64], labels: NDArray[np.int64], exact: bool, tail: float) -> NDArray[np.float64]:
    """As `inversion.Inversion.lower`: the lower limit of each repetition, from one set of relabellings."""
    unchanged = (labels < 0).all(axis=1)
    same = int(unchanged.sum()) + (not exact)
    needed = math.floor(tail * (len(labels) + (not exact)) * (1 + 1e-12)) + 1 - same
    labels = labels[~unchanged]
    if needed <= 0 or needed > len(labels):
        return np.full(len(excess), -math.inf if needed <= 0 else math.nan)
    return _turning_point(np.ascontiguousarray(excess), labels, needed - 1)


@numba.njit(cache=True, nogil=True)
def _turning_point(excess: NDArray[np.float64], labels: NDArray[np.int64], rank: int) -> NDArray[np.float64]:
    """The turning point of that rank, by repetition: mean excess of the seeds that each relabelling changes."""
    found = np.empty(excess.shape[0])
    points = np.empty(labels.shape[0])
    for r in range(excess.shape[0]):
        for b in range(labels.shape[0]):
            total, changed = 0.0, 0
            for s in range(labels.shape[1]):
                if labels[b, s] >= 0:
                    total += excess[r, s, labels[b, s]]
                    changed += 1
            points[b] = total / changed
        found[r] = np.partition(points, rank)[rank]
    return found


def _noise(rng: np.random.Generator, shape: tuple[int, ...], family: Family) -> NDArray[np.float64]:
    noise = rng.standard_normal(shape)
    if family == "lognormal":
        noise = (np.exp(noise) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    return noise


def required_seeds(
    *,
    gain: float,
    spread: Spread,
    rng: np.random.Generator,
    draws: int = 19,
    power: float = 0.9,
    alpha: float = 0.05,
    delta: float = 0.0,
    family: Family = "normal",
    fewest: int = 5,
    most: int = 200,
    reps: int = 1000,
) -> Power | None:
    """The least number of seeds whose simulated power reaches `power`, and that power; None above `most` seeds.

    Power rises with seeds (but for steps of the sign flip's 2^-S), so the search brackets the t test's answer and
    halves.  With 1,000 repetitions the power is known to +-2 points, the number of seeds to about one in ten.
    """
    if not gain > delta:
        raise ValueError(f"gain {gain}: must exceed the minimum effect {delta}")
    sd = math.hypot(spread.policy_sd, spread.draw_sd / math.sqrt(draws))
    guess = ((scipy.stats.norm.ppf(power) + scipy.stats.norm.ppf(1 - alpha)) * sd / (gain - delta)) ** 2 + 2
    floor_seeds = math.ceil(-math.log2(alpha))
    fewest = max(fewest, floor_seeds)

    def at(seeds: int) -> Power:
        return simulate_power(Design(seeds, draws, gain, spread, family, alpha, delta), rng, reps)

    tried: dict[int, Power] = {}

    def reaches(seeds: int) -> bool:
        if seeds not in tried:
            tried[seeds] = at(seeds)
        return tried[seeds].power >= power

    high = min(max(fewest, round(guess)), most)
    low = fewest - 1
    while not reaches(high):
        if high == most:
            return None
        low, high = high, min(most, math.ceil(high * 1.3) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return tried[high]


def best_design(
    replays: int,
    fixed: int,
    *,
    gain: float,
    spread: Spread,
    alpha: float,
    rng: np.random.Generator,
    fewest_seeds: int,
    fewest_draws: int,
    delta: float = 0.0,
    most_draws: int = 99,
    reps: int = 1000,
    designs: int = 12,
) -> Power:
    """Seeds and draws with the highest simulated power among those that `replays` replays pay for.

    A seed costs its draws and `fixed` more.  Each number of seeds tried takes as many draws as fit; ties go to more
    seeds, which the sign flip's floor of 2^-S rewards.  Raises ValueError when not even the smallest design fits.
    """
    most_seeds = replays // (fewest_draws + fixed)
    if most_seeds < fewest_seeds:
        raise ValueError(f"{replays} replays do not pay for {fewest_seeds} seeds of {fewest_draws} draws")
    tried = np.unique(np.geomspace(fewest_seeds, most_seeds, designs).round().astype(int))
    found = []
    for seeds in tried.tolist():
        draws = min(replays // seeds - fixed, most_draws)
        found.append(simulate_power(Design(seeds, draws, gain, spread, "normal", alpha, delta), rng, reps))
    return max(found, key=lambda power: (power.power, power.design.seeds))
