"""How often the envelope finds a gain of given size, and how many seeds that takes.

Model: in seed s a draw costs b_s + draw_sd e and the policy b_s - gain + policy_sd e, all e independent with mean 0
and variance 1, normal or lognormal (exp of a standard normal, standardised).  Seed levels b_s cancel.  The tests are
simulated, not approximated; only their reference sets are sampled (and shared between repetitions).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

Family = Literal["normal", "lognormal"]
FAMILIES: tuple[Family, ...] = ("normal", "lognormal")

#: Published between-seed spreads of violation rates, in percentage points: a uniform draw's, and three policies'
#: (planned offline; a draw shifted by a constant; decided online).
DRAW_SD = 0.956
POLICY_SD = {"offline": 0.34, "shift": 0.956, "online": 1.89}

_SIGNS_ENUMERATED = 12
#: Simulated draws held at a time.
_BLOCK_CELLS = 2_000_000


@dataclass(frozen=True)
class Design:
    """seeds, draws : per certificate.  gain, policy_sd, draw_sd : in one unit, e.g. percentage points."""

    seeds: int
    draws: int
    gain: float
    policy_sd: float
    draw_sd: float
    family: Family = "normal"
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.draws < 1:
            raise ValueError(f"{self.seeds} seeds and {self.draws} draws: needs at least one of each")
        if not (self.policy_sd >= 0 and self.draw_sd > 0 and math.isfinite(self.policy_sd + self.draw_sd + self.gain)):
            raise ValueError("spreads must be finite, policy_sd >= 0 and draw_sd > 0")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha {self.alpha}: must lie between 0 and 1")
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r}: must be one of {', '.join(FAMILIES)}")


@dataclass(frozen=True)
class Power:
    """power : share of simulated certificates with p <= alpha.  lower, upper : its 95 % Clopper-Pearson limits.
    stratified, sign_flip : the same share for each of the two tests alone.
    """

    design: Design
    power: float
    lower: float
    upper: float
    stratified: float
    sign_flip: float
    reps: int


def simulate_power(design: Design, rng: np.random.Generator, reps: int = 1000, n_resamples: int = 1999) -> Power:
    """Simulated power of the larger of the stratified and sign-flip p-values."""
    stratified, flip = simulate_pvalues(design, rng, reps, n_resamples)
    hits = int(np.count_nonzero(np.maximum(stratified, flip) <= design.alpha))
    low, high = proportion_confint(hits, reps, alpha=0.05, method="beta")
    return Power(
        design,
        hits / reps,
        float(low),
        float(high),
        float(np.mean(stratified <= design.alpha)),
        float(np.mean(flip <= design.alpha)),
        reps,
    )


def simulate_pvalues(
    design: Design, rng: np.random.Generator, reps: int, n_resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Stratified and sign-flip p-values of `reps` simulated certificates, each float64, shape (reps,)."""
    labels = rng.integers(-1, design.draws, (n_resamples, design.seeds))
    low = np.empty(reps, np.int64)
    d = np.empty((reps, design.seeds))
    block = max(1, _BLOCK_CELLS // (design.seeds * design.draws))
    for begin in range(0, reps, block):
        now = slice(begin, min(begin + block, reps))
        shape = (now.stop - begin, design.seeds)
        policy = design.policy_sd * _noise(rng, shape, design.family) - design.gain
        draws = design.draw_sd * _noise(rng, (*shape, design.draws), design.family)
        low[now] = _count_low(policy, draws, labels)
        d[now] = policy - draws.mean(axis=2)
    stratified = (low + 1) / (n_resamples + 1)
    if design.seeds <= _SIGNS_ENUMERATED:
        flipped = np.array(list(itertools.product((0.0, 1.0), repeat=design.seeds)))
        flip = np.mean(d @ flipped.T >= -1e-12, axis=1)
    else:
        flipped = rng.integers(0, 2, (n_resamples, design.seeds)).astype(np.float64)
        flip = (np.count_nonzero(d @ flipped.T >= 0, axis=1) + 1) / (n_resamples + 1)
    return stratified, flip


def _noise(rng: np.random.Generator, shape: tuple[int, ...], family: Family) -> NDArray[np.float64]:
    noise = rng.standard_normal(shape)
    if family == "lognormal":
        noise = (np.exp(noise) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    return noise


@numba.njit(cache=True, nogil=True)
def _count_low(policy: NDArray[np.float64], draws: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many relabelled sums are at most the policy's, by repetition; label -1 keeps the policy."""
    reps, seeds = policy.shape
    low = np.zeros(reps, np.int64)
    for r in range(reps):
        for b in range(labels.shape[0]):
            excess = 0.0
            for s in range(seeds):
                if labels[b, s] >= 0:
                    excess += draws[r, s, labels[b, s]] - policy[r, s]
            low[r] += excess <= 0.0
    return low


def required_seeds(
    *,
    gain: float,
    policy_sd: float,
    rng: np.random.Generator,
    draw_sd: float = DRAW_SD,
    draws: int = 19,
    power: float = 0.9,
    alpha: float = 0.05,
    family: Family = "normal",
    fewest: int = 5,
    most: int = 200,
    reps: int = 1000,
) -> Power | None:
    """The least number of seeds whose simulated power reaches `power`, and that power; None above `most` seeds.

    Power rises with seeds (but for steps of the sign flip's 2^-S), so the search brackets the t test's answer and
    halves.  With 1,000 repetitions the power is known to +-2 points, the number of seeds to about one in ten.
    """
    if not gain > 0:
        raise ValueError(f"gain {gain}: must be positive")
    sd = math.hypot(policy_sd, draw_sd / math.sqrt(draws))
    guess = ((stats.norm.ppf(power) + stats.norm.ppf(1 - alpha)) * sd / gain) ** 2 + 2
    floor_seeds = math.ceil(-math.log2(alpha))
    fewest = max(fewest, floor_seeds)

    def at(seeds: int) -> Power:
        return simulate_power(Design(seeds, draws, gain, policy_sd, draw_sd, family, alpha), rng, reps)

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
    policy_sd: float,
    draw_sd: float,
    alpha: float,
    rng: np.random.Generator,
    fewest_seeds: int,
    fewest_draws: int,
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
        found.append(simulate_power(Design(seeds, draws, gain, policy_sd, draw_sd, "normal", alpha), rng, reps))
    return max(found, key=lambda power: (power.power, power.design.seeds))
