"""Effect transfer: ratio of a high quantile of exposed over unexposed requests, with the run as the unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.stats.result import RTOL, Interval, TestOutcome, undecidable

_RATIO = "t over runs on the log ratio"
MIN_RUNS = 5
#: Below this many requests the 95th percentile is the sample's largest value, so the two sides' estimates would be
#: biased differently; at 20 the order statistic of rank ceil(0.95 n) = 19 is an inner one for the first time.
MIN_REQUESTS = 20


@dataclass(frozen=True)
class TransferRatio:
    """outcome : H0 that the geometric mean ratio is at most `threshold`.
    ratio : geometric mean over runs.  lower_bound : one-sided 1 - alpha limit, above threshold when p <= alpha.
    interval : two-sided.  log_ratios : float64, shape (runs,).
    """

    outcome: TestOutcome
    ratio: float | None
    lower_bound: float | None
    interval: Interval | None
    log_ratios: NDArray[np.float64]
    threshold: float


def transfer_ratio(
    exposed: ArrayLike,
    unexposed: ArrayLike,
    n_exposed: ArrayLike | None = None,
    n_unexposed: ArrayLike | None = None,
    *,
    threshold: float = 1.0,
    alpha: float = 0.05,
    level: float = 0.95,
    min_runs: int = MIN_RUNS,
    min_requests: int = MIN_REQUESTS,
) -> TransferRatio:
    """H0: E log(exposed / unexposed) <= log(threshold), over independent runs.

    exposed, unexposed : float, shape (R,), each run's quantile (positive, any unit).
    n_exposed, n_unexposed : int, shape (R,), the requests behind each quantile, when known.

    t on R - 1 degrees of freedom.  Requests within a run share bursts, batches and merges, so they are not the unit:
    an interval from resampled requests covers about .2 where this one covers .95.  Undecidable with fewer than
    `min_runs` runs, `min_requests` requests on either side of any run, or a value that is not finite and positive.
    """
    top, bottom = np.asarray(exposed, np.float64).ravel(), np.asarray(unexposed, np.float64).ravel()
    runs = len(top)

    def refuse(reason: str) -> TransferRatio:
        return TransferRatio(undecidable(_RATIO, runs, reason), None, None, None, np.empty(0), threshold)

    if len(bottom) != runs:
        return refuse(f"{runs} exposed values against {len(bottom)}")
    if runs < max(min_runs, 2):
        return refuse(f"{runs} runs, fewer than {max(min_runs, 2)}")
    for r, pair in enumerate(zip(top, bottom, strict=True)):
        if not all(math.isfinite(v) and v > 0 for v in pair):
            return refuse(f"run {r + 1} has a quantile that is not a positive number")
    for name, counts in (("exposed", n_exposed), ("unexposed", n_unexposed)):
        if counts is None:
            continue
        counts = np.asarray(counts)
        if counts.shape != (runs,):
            return refuse(f"{counts.size} counts of {name} requests for {runs} runs")
        if counts.min() < min_requests:
            return refuse(f"run {int(counts.argmin()) + 1} has {counts.min()} {name} requests, below {min_requests}")
    logs = np.log(top) - np.log(bottom)
    if np.ptp(logs) <= RTOL:
        return refuse("the runs agree to the last digit: they are not independent measurements")
    sem = float(scipy.stats.sem(logs))
    mean = float(logs.mean())
    p = float(scipy.stats.ttest_1samp(logs, math.log(threshold), alternative="greater").pvalue)
    low, high = scipy.stats.t.interval(level, runs - 1, mean, sem)
    return TransferRatio(
        outcome=TestOutcome(_RATIO, mean, p, runs, 0.0, "Student t", None, True),
        ratio=math.exp(mean),
        lower_bound=math.exp(mean - float(scipy.stats.t.ppf(1 - alpha, runs - 1)) * sem),
        interval=Interval(math.exp(low), math.exp(high), level, "t over runs"),
        log_ratios=logs,
        threshold=threshold,
    )
