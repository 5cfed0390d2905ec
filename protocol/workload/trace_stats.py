"""How bursty a request trace is, and how far its load can be foreseen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter

from protocol.workload.trace import RequestTrace, seconds_to_ns


def counts(trace: RequestTrace, bin_s: float) -> NDArray[np.int64]:
    """Arrivals in consecutive bins of `bin_s` seconds from time 0, int64, shape (n_bins,).

    Only whole bins count: the one that holds the last arrival is complete in no trace whose end nobody recorded.
    """
    width_ns = seconds_to_ns(bin_s)
    whole = int(trace.arrival_ns[-1]) // width_ns if len(trace) else 0
    inside = trace.arrival_ns[: np.searchsorted(trace.arrival_ns, whole * width_ns)]
    return np.bincount(inside // width_ns, minlength=whole)


def dispersion(per_bin: NDArray[np.int64]) -> float | None:
    """Index of dispersion of counts: variance over mean, 1 for a Poisson process.

    None for fewer than two bins or no arrival in them.  Reference: Cox and Lewis 1966, section 4.5.
    """
    if per_bin.size < 2 or not per_bin.any():
        return None
    return float(per_bin.var(ddof=1) / per_bin.mean())


@dataclass(frozen=True)
class Forecast:
    """One-step forecast of counts by an exponentially weighted moving average.

    r2 : share of the variance of the scored bins that the forecast explains, over their own mean; below 0 it is worse
    than that mean.  alpha : weight of the newest bin, fitted on the bins before.  n : bins scored.
    """

    r2: float
    alpha: float
    n: int


def ewma_forecast(per_bin: NDArray[np.int64]) -> Forecast | None:
    """Fit alpha by least squares on the first half of the bins, score the second half.

    None with fewer than 8 bins, or when a half never varies (then nothing can be explained).
    """
    half = per_bin.size // 2
    scored = per_bin[half:].astype(float)
    if half < 4 or per_bin[:half].min() == per_bin[:half].max() or scored.min() == scored.max():
        return None

    def squared_error(alpha: float, first: int, last: int) -> float:
        forecast = ewma(per_bin, alpha)
        return float(((per_bin[first:last] - forecast[first - 1 : last - 1]) ** 2).sum())

    # The error need not be unimodal in alpha: a coarse grid first, then the minimum beside the best grid point.
    grid = np.linspace(0.0, 1.0, 51)
    best = grid[int(np.argmin([squared_error(a, 1, half) for a in grid]))]
    fit = minimize_scalar(
        squared_error, args=(1, half), method="bounded", bounds=(max(0.0, best - 0.02), min(1.0, best + 0.02))
    )
    alpha = float(fit.x if fit.fun < squared_error(best, 1, half) else best)
    total = float(((scored - scored.mean()) ** 2).sum())
    return Forecast(1.0 - squared_error(alpha, half, per_bin.size) / total, alpha, scored.size)


def ewma(values: NDArray[np.int64] | NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """s_t = alpha x_t + (1 - alpha) s_(t-1), s_0 = x_0; the forecast of x_(t+1).  float64, shape of `values`."""
    x = np.asarray(values, float)
    smoothed, _ = lfilter([alpha], [1.0, alpha - 1.0], x, zi=[(1.0 - alpha) * x[0]])
    return np.asarray(smoothed)
