"""Two one-sided tests: that two arms differ by less than a declared margin (Schuirmann 1987, J. Pharmacokin. 15, 657).

H0 is that the difference is *outside* the margin, so noise and small samples can only fail, never pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.stats.result import RTOL, Interval, TestOutcome, undecidable

_TOST = "two one-sided tests"


@dataclass(frozen=True)
class Equivalence:
    """outcome : p is the larger of the two one-sided p-values; equivalent at alpha when p <= alpha.
    estimate : mean difference, or ratio for the log versions.
    interval : two-sided at 1 - 2 alpha; it lies inside the margin exactly when p <= alpha.
    lower_margin, upper_margin : in the units of the estimate.
    """

    outcome: TestOutcome
    estimate: float | None
    interval: Interval | None
    lower_margin: float
    upper_margin: float


def tost(differences: ArrayLike, margin: float, alpha: float = 0.05) -> Equivalence:
    """H0: |mean difference| >= margin.  differences : float, shape (n,), one an independent unit (run or seed).

    Two one-sample t tests; needs n >= 2 and differences that vary.  Raises ValueError unless margin > 0.
    """
    if not margin > 0:
        raise ValueError(f"margin {margin}: must be positive")
    d = np.asarray(differences, np.float64).ravel()
    reason = _unfit(d)
    if reason:
        mean = float(d.mean()) if len(d) and np.isfinite(d).all() else None
        return Equivalence(undecidable(_TOST, len(d), reason), mean, None, -margin, margin)
    low = scipy.stats.ttest_1samp(d, -margin, alternative="greater").pvalue
    high = scipy.stats.ttest_1samp(d, margin, alternative="less").pvalue
    return _equivalence(d, float(max(low, high)), margin, alpha)


def tost_paired(a: ArrayLike, b: ArrayLike, margin: float, alpha: float = 0.05) -> Equivalence:
    """The same for pairs, on a - b; both of shape (n,), paired by seed or run."""
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if len(a) != len(b):
        return Equivalence(undecidable(_TOST, 0, f"{len(a)} values against {len(b)}"), None, None, -margin, margin)
    d = a - b
    size = np.maximum(np.abs(a), np.abs(b))
    d = np.where(np.abs(d) <= RTOL * size, 0.0, d)
    if not margin > 0 or _unfit(d):
        return tost(d, margin, alpha)
    from statsmodels.stats.weightstats import ttost_paired  # brings pandas, half a second

    return _equivalence(d, float(ttost_paired(a, b, -margin, margin)[0]), margin, alpha)


def log_tost_paired(a: ArrayLike, b: ArrayLike, ratio: float, alpha: float = 0.05) -> Equivalence:
    """H0: the geometric mean of a / b is outside (1 / ratio, ratio); ratio > 1, values positive.

    With a real and simulated transfer ratios this is the agreement test; estimate and interval are ratios.
    """
    if not ratio > 1:
        raise ValueError(f"ratio {ratio}: must exceed 1")
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if (a <= 0).any() or (b <= 0).any():
        reason = "a value that is not positive has no logarithm"
        return Equivalence(undecidable(_TOST, len(a), reason), None, None, 1 / ratio, ratio)
    logs = tost_paired(np.log(a), np.log(b), math.log(ratio), alpha)
    interval = logs.interval and Interval(
        math.exp(logs.interval.lower), math.exp(logs.interval.upper), logs.interval.level, logs.interval.method
    )
    estimate = None if logs.estimate is None else math.exp(logs.estimate)
    return Equivalence(logs.outcome, estimate, interval, 1 / ratio, ratio)


def tost_rates(
    violations_a: ArrayLike, violations_b: ArrayLike, totals_a: ArrayLike, totals_b: ArrayLike,
    margin: float, alpha: float = 0.05,
) -> Equivalence:  # fmt: skip
    """Equivalence of violation rates over paired runs, counts of shape (n,); margin in fractions.

    A t test on the runs' rate differences.  Where every count is 0 (or every request violates) the rates do not vary
    and that test is void; then each arm's rate is below Clopper and Pearson's limit 1 - alpha^(1 / N), and
    p = (1 - margin)^N, N the smaller total: it is at most alpha exactly when that limit is at most the margin.
    Totals must count *independent* units: requests that share a batch or a burst are not, so give batches or windows.
    """
    ka, kb, na, nb = (np.asarray(v, np.float64).ravel() for v in (violations_a, violations_b, totals_a, totals_b))
    n = len(ka)
    if not len(kb) == len(na) == len(nb) == n:
        return Equivalence(undecidable(_TOST, n, "counts of unequal length"), None, None, -margin, margin)
    counts = np.concatenate([ka, kb, na, nb])
    if not n or not np.isfinite(counts).all() or (na <= 0).any() or (nb <= 0).any():
        return Equivalence(undecidable(_TOST, n, "a run without requests"), None, None, -margin, margin)
    if (ka < 0).any() or (kb < 0).any() or (ka > na).any() or (kb > nb).any():
        return Equivalence(undecidable(_TOST, n, "more violations than requests"), None, None, -margin, margin)
    none, all_of = not (ka.any() or kb.any()), bool((ka == na).all() and (kb == nb).all())
    if not none and not all_of:
        return tost_paired(ka / na, kb / nb, margin, alpha)
    if not margin > 0:
        raise ValueError(f"margin {margin}: must be positive")
    units = int(min(na.sum(), nb.sum()))
    limit = rate_limit(0, units, alpha)
    p = (1 - margin) ** units if margin < 1 else 0.5**units
    name = "every count zero" if none else "every request violates"
    null = f"{name}: Clopper-Pearson on {units} units"
    outcome = TestOutcome(_TOST, 0.0, p, n, p, null, None, True)
    return Equivalence(outcome, 0.0, Interval(-limit, limit, 1 - 2 * alpha, null), -margin, margin)


def rate_limit(count: int, total: int, alpha: float = 0.05) -> float:
    """One-sided upper 1 - alpha limit of a rate (Clopper and Pearson 1934, Biometrika 26)."""
    return float(scipy.stats.beta.isf(alpha, count + 1, total - count)) if count < total else 1.0


def _unfit(d: NDArray[np.float64]) -> str | None:
    if len(d) < 2:
        return f"{len(d)} pairs, fewer than 2"
    if not np.isfinite(d).all():
        return f"pair {int(np.argmin(np.isfinite(d))) + 1} is NaN or infinite"
    if np.ptp(d) <= RTOL * np.abs(d).max():
        return "the differences do not vary: a t test has nothing to measure them by"
    return None


def _equivalence(d: NDArray[np.float64], p: float, margin: float, alpha: float) -> Equivalence:
    half = float(scipy.stats.t.ppf(1 - alpha, len(d) - 1) * scipy.stats.sem(d))
    mean = float(d.mean())
    outcome = TestOutcome(_TOST, mean, p, len(d), 0.0, "Student t", None, True)
    interval = Interval(mean - half, mean + half, 1 - 2 * alpha, "t over pairs")
    return Equivalence(outcome, mean, interval, -margin, margin)
