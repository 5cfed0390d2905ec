"""Two gains of a policy, over chance and from following the load: estimates, intervals, tests and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.stats import inversion as inv
from protocol.stats import randomization as rz
from protocol.stats.anytime import Watched
from protocol.stats.betting import BettingBound, betting_bound
from protocol.stats.result import RTOL, Interval, TestOutcome

MIN_SEEDS = 8
MIN_DRAWS = 5
#: Minimum effect where none is declared, percentage points of sync-excess violations.
MIN_EFFECT_PP = 0.5
_HULL = "hull of the inverted stratified randomisation and the inverted paired sign flip"
_FLIPPED = "inverted paired sign flip"
_WATCHED = "hull of that and of betting on the signs of blocks"
_EXCHANGED = "hull of the inverted exchange between traces and the inverted paired sign flip of the load gain"


class Inverted(Protocol):
    """A test of a mean gain at every minimum effect, and the limits that follow from it."""

    def pvalue(self, delta: float = 0.0) -> float: ...

    def outcome(self, delta: float = 0.0) -> TestOutcome: ...

    def lower(self, tail: float) -> float: ...

    def upper(self, tail: float) -> float: ...


class Standing(StrEnum):
    """What a claim's tests show, in the order in which they are asked."""

    UNDECIDABLE = "undecidable"
    NOT_CHANCE = "does not beat chance"
    NOT_LOAD = "beats chance, does not follow the load"
    BELOW_MINIMUM = "beats it by less than the minimum effect"
    SHOWN = "beats it by more than the minimum effect"


@dataclass(frozen=True, eq=False)
class Gain:
    """A mean gain over seeds, in the units of the costs; positive is better.

    by_seed : float64, shape (S,).
    tests : the gain's own, at every minimum effect; `method` says in words how the limits come from them.
    student : whether Student's interval says anything (not of gains that are not independent, or that were watched).
    """

    estimate: float
    by_seed: NDArray[np.float64]
    tests: tuple[Inverted, ...]
    method: str
    student: bool
    alpha: float

    @cached_property
    def t_interval(self) -> Interval | None:
        """Student's, beside the tests' own; None when it says nothing, or the seeds do not vary."""
        return t_interval(self.by_seed, 1 - self.alpha) if self.student else None

    @cached_property
    def lower_bound(self) -> float:
        """One-sided 1 - alpha limit: above delta exactly when each of the tests has p(delta) <= alpha."""
        return min(test.lower(self.alpha) for test in self.tests)

    @cached_property
    def interval(self) -> Interval:
        """Two-sided 1 - alpha: the hull of the tests' own, alpha / 2 a side."""
        tail = self.alpha / 2
        lower, upper = min(test.lower(tail) for test in self.tests), max(test.upper(tail) for test in self.tests)
        return Interval(lower, upper, 1 - self.alpha, self.method)


@dataclass(frozen=True)
class GateTest:
    """outcome : the test of a gain of at most delta, which decides.  at_zero : its p-value for no gain at all.
    concerns : "chance" or "load", the gain that it is about.
    """

    outcome: TestOutcome
    at_zero: float
    concerns: str

    @property
    def name(self) -> str:
        return self.outcome.name


@dataclass(frozen=True)
class Adjusted:
    """P-values of a claim after Holm over all claims, each kind over its own: of the claim itself, at the minimum
    effect, and against no gain over chance and none from following the load.  None is unknown.
    """

    claim: float | None
    chance: float | None = None
    load: float | None = None


@dataclass(frozen=True, eq=False)
class Gains:
    """Everything that a claim of placement says.

    chance : mean of the draws less the policy.  load : the policy's schedules on other traces less on their own; None
        when schedules were not exchanged between traces.
    tests : those that decide, at delta.  pvalue : the largest; decided_by : its test's name; floor : the smallest that
        it could have been.
    bounded : the bound that assumes no shape; it decides only if asked (`bounded=True`), then it is among the tests.
    worst_seed : index of the seed with the least gain over chance.  unseen_share : a loss on a smaller share of traces
        would not have been seen in these seeds with probability above alpha.
    ranks : int64, shape (S,): the policy among its seed's m + 1 values, 1 is best, ties count against it.
    policy, draw_mean, draw_sd : float64, shape (S,).
    reason : why there is no p-value; the numbers that do not need one are still there where they are finite.
    """

    chance: Gain | None
    load: Gain | None
    tests: tuple[GateTest, ...]
    pvalue: float | None
    decided_by: str | None
    floor: float | None
    bounded: BettingBound | None
    worst_seed: int | None
    unseen_share: float | None
    ranks: NDArray[np.int64]
    policy: NDArray[np.float64]
    draw_mean: NDArray[np.float64]
    draw_sd: NDArray[np.float64]
    n_seeds: int
    n_draws: int
    delta: float
    alpha: float
    reason: str | None = None

    def at_zero(self, concerns: str) -> float | None:
        """The largest p-value against no gain at all, of the tests of one of the gains; None without any."""
        return max((t.at_zero for t in self.tests if t.concerns == concerns), default=None)

    def standing(self, adjusted: Adjusted | None = None) -> Standing:
        """What is shown at alpha; with `adjusted`, among all claims of a certificate."""
        if self.pvalue is None or self.floor is None or self.floor > self.alpha:
            return Standing.UNDECIDABLE
        p = adjusted or Adjusted(self.pvalue, self.at_zero("chance"), self.at_zero("load"))
        if p.claim is not None and p.claim <= self.alpha:
            return Standing.SHOWN
        for zero, otherwise in ((p.chance, Standing.NOT_CHANCE), (p.load, Standing.NOT_LOAD)):
            if zero is not None and zero > self.alpha:
                return otherwise
        return Standing.BELOW_MINIMUM


def undecided(gains: Gains, reason: str) -> Gains:
    """The same numbers without a p-value, for this reason."""
    return replace(gains, tests=(), pvalue=None, decided_by=None, floor=None, reason=reason)


def judge_gains(
    policy: ArrayLike,
    draws: Sequence[ArrayLike],
    exchanged: ArrayLike | None,
    rng: np.random.Generator,
    *,
    delta: float = 0.0,
    alpha: float = 0.05,
    worst: ArrayLike | None = None,
    best: ArrayLike | None = None,
    bounded: bool = False,
    watched: bool = False,
    n_resamples: int = 9999,
    min_seeds: int = MIN_SEEDS,
    min_draws: int = MIN_DRAWS,
) -> Gains:
    """Judge one policy cost a seed against that seed's draws, and against its schedules from other traces.

    policy : float, shape (S,).  draws : S arrays, shape (m_s,).  Lower is better, all in one unit (pp).
    exchanged : float, shape (S, S); [s, t] is the cost on trace s of the schedule made on trace t, scaled to the
        policy's own number of merges on s, so that the diagonal is the policy.  None where that was not measured.
    delta : minimum effect.  alpha : one-sided level of every test; intervals have level 1 - alpha.
    worst, best : float, shape (S,), costs of each seed's worst and best placement, for the bound that needs no shape.
        A draw worse than `worst` takes its place.
    bounded : whether that bound decides too.
    watched : whether seeds, in the order given, were looked at one by one and ended when they sufficed: one more test,
        which holds whenever one stops, so the largest p-value does.

    The claim's p-value is the largest of its tests' (intersection-union, Berger 1982, Technometrics 24): its error is
    at most the smallest of theirs.  With one draw a seed the stratified test is the sign flip, and only that is there.
    No p-value, but a reason, when a value is NaN or infinite, when seeds or draws are fewer than declared, when no
    seed's draws differ among themselves, when two seeds are copies, or when a bound that should decide does not hold.
    """
    if not (math.isfinite(delta) and 0 < alpha < 1):
        raise ValueError(f"delta {delta}, alpha {alpha}: needs a finite delta and 0 < alpha < 1")
    blocks = rz.strata(policy, draws)
    if isinstance(blocks, str):
        return _undecidable([], len(draws), blocks, delta, alpha)
    cost = None if exchanged is None else np.asarray(exchanged, np.float64)
    reason = _unfit(blocks, min_seeds, min_draws) or _unfit_exchange(cost, len(blocks))
    if reason:
        return _undecidable(blocks, len(draws), reason, delta, alpha)
    chance, tests = _over_chance(blocks, rng, delta, alpha, n_resamples, watched)
    load, more = (None, []) if cost is None else _by_load(cost, rng, delta, alpha, n_resamples)
    tests += more
    bound = None if worst is None else _betting(blocks, chance.by_seed, worst, best, delta, alpha)
    if bounded:
        problem = "no worst placements to bound the gains by" if bound is None else bound.outcome.reason
        if bound is None or problem:
            return _undecidable(blocks, len(draws), problem or "", delta, alpha)
        at_zero = betting_bound(chance.by_seed, np.full(len(blocks), bound.lowest), delta=0.0).outcome.pvalue
        tests.append(GateTest(bound.outcome, 1.0 if at_zero is None else at_zero, "chance"))
    ps = [test.outcome.pvalue or 1.0 for test in tests]
    return _of(
        blocks, len(draws), delta, alpha, chance=chance, load=load, tests=tuple(tests), bounded=bound, pvalue=max(ps),
        decided_by=tests[int(np.argmax(ps))].name, floor=max(test.outcome.floor or 0.0 for test in tests),
    )  # fmt: skip


def _over_chance(
    blocks: Sequence[NDArray[np.float64]], rng: np.random.Generator, delta: float, alpha: float, n_resamples: int,
    watched: bool,
) -> tuple[Gain, list[GateTest]]:  # fmt: skip
    by_seed = gains_by_seed(blocks)
    flip = inv.sign_flip(by_seed, rng, n_resamples, rz.tie_tolerance(blocks))
    paired = max(len(block) for block in blocks) == 2
    tests: list[Inverted] = [flip] if paired else [inv.stratified(blocks, rng, n_resamples), flip]
    method = _FLIPPED if paired else _HULL
    if watched:
        tests, method = [*tests, Watched(by_seed)], f"{method}, {_WATCHED}"
    gain = _gain(tests, by_seed, alpha, method, student=not watched)
    return gain, [GateTest(test.outcome(delta), test.pvalue(0.0), "chance") for test in tests]


def _by_load(
    cost: NDArray[np.float64], rng: np.random.Generator, delta: float, alpha: float, n_resamples: int
) -> tuple[Gain, list[GateTest]]:
    slack = RTOL * float(np.abs(cost).max(axis=1).sum())
    saved = inv.own_trace(cost)
    saved = np.where(np.abs(saved) <= slack, 0.0, saved)
    flip = inv.sign_flip(saved, rng, n_resamples, slack, inv.LOAD_FLIP)
    tests = [inv.exchange(cost, rng, n_resamples), flip]
    own = np.diagonal(cost)
    gain = _gain(tests, (cost.sum(axis=1) - own) / (len(cost) - 1) - own, alpha, _EXCHANGED, student=False)
    return gain, [GateTest(test.outcome(delta), test.pvalue(0.0), "load") for test in tests]


def gains_by_seed(blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean of the draws minus the policy by seed, shape (S,); rounding noise is made exactly zero.

    Without that, a policy equal to all its draws can differ from their mean by one unit in the last place in every
    seed, and the sign-flip test would call that significant.
    """
    gains = np.array([block[1:].mean() - block[0] for block in blocks])
    size = np.array([np.abs(block).max() for block in blocks])
    return np.where(np.abs(gains) <= RTOL * size, 0.0, gains)


def t_interval(gains: NDArray[np.float64], level: float) -> Interval | None:
    """Student's interval for the mean gain over seeds; None when the seeds do not vary."""
    if len(gains) < 2 or np.ptp(gains) == 0:
        return None
    low, high = scipy.stats.t.interval(level, len(gains) - 1, gains.mean(), scipy.stats.sem(gains))
    return Interval(float(low), float(high), level, "t over seeds")


def unseen_share(n_seeds: int, alpha: float) -> float:
    """The share q of traces with (1 - q)^S = alpha: rarer losses stay unseen in S seeds more often than alpha."""
    return float(1 - alpha ** (1 / n_seeds))


def _gain(tests: Sequence[Inverted], by_seed: NDArray[np.float64], alpha: float, method: str, *, student: bool) -> Gain:
    return Gain(float(by_seed.mean()), by_seed, tuple(tests), method, student, alpha)


def _betting(
    blocks: Sequence[NDArray[np.float64]], gains: NDArray[np.float64], worst: ArrayLike, best: ArrayLike | None,
    delta: float, alpha: float,
) -> BettingBound:  # fmt: skip
    """Bound each seed's gain by its worst placement, or by a draw if one was worse still."""
    mean = np.array([block[1:].mean() for block in blocks])
    most = np.asarray(worst, np.float64).ravel()
    if len(most) == len(blocks):
        most = np.maximum(most, [block[1:].max() for block in blocks])
        lowest: NDArray[np.float64] = mean - most
    else:
        lowest = most  # refused for its length
    least = None if best is None else np.asarray(best, np.float64).ravel()
    highest = mean - least if least is not None and len(least) == len(mean) else None
    return betting_bound(gains, lowest, delta=delta, alpha=alpha, highest=highest)


def _unfit(blocks: Sequence[NDArray[np.float64]], min_seeds: int, min_draws: int) -> str | None:
    fewest = min(len(block) for block in blocks) - 1
    if len(blocks) < max(min_seeds, 2):
        return f"{len(blocks)} seeds, fewer than {max(min_seeds, 2)}"
    if fewest < min_draws:
        return f"{fewest} draws in a seed, fewer than {min_draws}"
    if fewest < 2:  # a single draw has no spread, and small counts coincide by chance
        return None
    if all(np.ptp(block[1:]) <= RTOL * np.abs(block).max() for block in blocks):
        return "the draws of every seed are all alike, wherever their merges lie: no envelope"
    seen: dict[bytes, int] = {}
    for s, block in enumerate(blocks):
        first = seen.setdefault(block.tobytes(), s)
        if first != s and np.ptp(block) > 0:
            return f"seeds {first + 1} and {s + 1} have the same values"
    return None


def _unfit_exchange(cost: NDArray[np.float64] | None, n_seeds: int) -> str | None:
    if cost is None:
        return None
    if cost.shape != (n_seeds, n_seeds):
        return f"exchanged costs of shape {cost.shape}, not every schedule on every trace"
    if not np.isfinite(cost).all():
        s, t = np.argwhere(~np.isfinite(cost))[0] + 1
        return f"the schedule of seed {t} on the trace of seed {s} has no finite cost"
    return None


def _undecidable(blocks: Sequence[NDArray[np.float64]], n_seeds: int, reason: str, delta: float, alpha: float) -> Gains:
    return _of(blocks, n_seeds, delta, alpha, reason=reason)


def _of(
    blocks: Sequence[NDArray[np.float64]], n_seeds: int, delta: float, alpha: float, *, chance: Gain | None = None,
    load: Gain | None = None, tests: tuple[GateTest, ...] = (), pvalue: float | None = None,
    decided_by: str | None = None, floor: float | None = None, bounded: BettingBound | None = None,
    reason: str | None = None,
) -> Gains:  # fmt: skip
    return Gains(
        chance=chance,
        load=load,
        tests=tests,
        pvalue=pvalue,
        decided_by=decided_by,
        floor=floor,
        bounded=bounded,
        worst_seed=int(np.argmin(gains_by_seed(blocks))) if blocks else None,
        unseen_share=unseen_share(n_seeds, alpha) if n_seeds else None,
        ranks=rz.ranks(blocks),
        policy=np.array([block[0] for block in blocks]),
        draw_mean=np.array([block[1:].mean() for block in blocks]),
        draw_sd=np.array([block[1:].std(ddof=1) if len(block) > 2 else 0.0 for block in blocks]),
        n_seeds=n_seeds,
        n_draws=min((len(block) - 1 for block in blocks), default=0),
        delta=delta,
        alpha=alpha,
        reason=reason,
    )
