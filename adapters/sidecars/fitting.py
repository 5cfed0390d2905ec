"""Fit the simulated sidecar to runs of a real server.

Simulated and real runs share their arrivals and their merges; the parameters are those whose simulated latencies have
the real ones' quantiles, by least squares on logarithms with a soft-l1 loss.  The run is the unit of the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from protocol import seeds
from protocol.calibration import Observed
from protocol.errors import BadInput
from protocol.measurements import SERVED, Measurements

#: Fitted parameters and where the search begins; the slowdowns are fitted as what they add to 1.
START = {
    "a_s": 3e-3, "b_s": 1e-4, "c_s": 2e-5, "prefill_slowdown": 3.0, "decode_slowdown": 3.0,
    "overhead_s": 5e-3, "overhead_sigma": 0.3,
}  # fmt: skip
_FLOOR = {"prefill_slowdown": 1.0, "decode_slowdown": 1.0}
_LEAST = {"a_s": 1e-5, "b_s": 1e-7, "c_s": 1e-8, "overhead_s": 1e-5, "overhead_sigma": 1e-2}
_MOST = {"a_s": 1.0, "b_s": 0.1, "c_s": 1e-2, "overhead_s": 10.0, "overhead_sigma": 2.0}
#: Quantiles compared, and the requests that a group needs before its quantiles are.
E2E_AT, TTFT_AT = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95), (0.25, 0.5, 0.75, 0.95)
_ENOUGH = 20
#: Relative residual at which the loss turns from squared to absolute.
_SOFT = 0.1
#: Distance over which slopes are taken, in units of the logarithm of a parameter.
_STEP = 0.03
#: Edges of the simplices that go on from there, in the same unit.
_SIMPLEX, _NEAR = (0.2, -0.1, 0.05), (0.1, -0.05)


@dataclass(frozen=True)
class Fit:
    """model : fitted, not yet marked as calibrated.  interval : 95 % limits of each parameter, jackknife over runs.
    residual : root mean square of the relative quantile errors.
    """

    model: SidecarModel
    interval: dict[str, tuple[float, float]]
    residual: float


def simulate(model: SidecarModel, run: Observed, seed: int) -> Measurements:
    """The run as the model would have served it, under the merges that really ran."""
    rng = seeds.generator(seed, "sidecar", "calibration", run.label)
    return SimulatedSidecar(model).load(run.trace, rng).replay(run.merges)


def fit(runs: Sequence[Observed], limits: SidecarModel, seed: int, intervals: bool = True) -> Fit:
    """Parameters of a model with the slot, batch and KV limits of `limits`.

    Raises BadInput when no run has enough served requests.
    """
    wanted = [_quantiles(run.measurements) for run in runs]
    if not any(np.isfinite(values).any() for values in wanted):
        raise BadInput("calibration", f"fewer than {_ENOUGH} served requests in every run", "longer runs")
    best = _solve(runs, wanted, limits, seed, _encode(START))
    model = _model(best, limits)
    errors = np.concatenate([_errors(model, r, w, seed) for r, w in zip(runs, wanted, strict=True)])
    interval: dict[str, tuple[float, float]] = {}
    if intervals:
        n = len(runs)
        leave = np.array([
            _solve([*runs[:i], *runs[i + 1 :]], [*wanted[:i], *wanted[i + 1 :]], limits, seed, best, near=True)
            for i in range(n)
        ])  # fmt: skip
        spread = np.sqrt((n - 1) / n * ((leave - leave.mean(axis=0)) ** 2).sum(axis=0))
        reach = stats.t.ppf(0.975, n - 1) * spread
        low, high = _decode(best - reach), _decode(best + reach)
        interval = {key: (low[key], high[key]) for key in START}
    return Fit(model, interval, float(np.sqrt(np.mean(errors**2))))


def _solve(
    runs: Sequence[Observed],
    wanted: Sequence[NDArray[np.float64]],
    limits: SidecarModel,
    seed: int,
    start: NDArray[np.float64],
    near: bool = False,
) -> NDArray[np.float64]:
    """The best parameters from `start` on; `near` when the start is known to be close."""

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        model = _model(x, limits)
        return np.concatenate([_errors(model, run, want, seed) for run, want in zip(runs, wanted, strict=True)])

    def slopes(x: NDArray[np.float64]) -> NDArray[np.float64]:
        # Quantiles of a simulated run are steps: differences must be taken over a distance that crosses many of them.
        return np.stack([(residuals(x + h) - residuals(x - h)) / (2 * _STEP) for h in _STEP * np.eye(len(x))], axis=1)

    def loss(x: NDArray[np.float64]) -> float:
        return float(np.sum(np.sqrt(1 + (residuals(np.clip(x, *bounds)) / _SOFT) ** 2) - 1))

    bounds = (_encode({k: _LEAST.get(k, 1 + 1e-4) for k in START}), _encode({k: _MOST.get(k, 100.0) for k in START}))
    inside = np.clip(start, bounds[0] + _STEP, bounds[1] - _STEP)
    x = inside
    if not near:
        x = optimize.least_squares(
            residuals, inside, slopes, bounds=bounds, loss="soft_l1", f_scale=_SOFT, max_nfev=30
        ).x
    # The steps stop a gradient short of the minimum; a simplex goes on.
    for reach in _NEAR if near else _SIMPLEX:
        corners = np.vstack([x, x + reach * np.eye(len(x))])
        limits_of_search: Any = {
            "initial_simplex": corners,
            "xatol": 1e-3,
            "fatol": 1e-6,
            "maxfev": 200 if near else 300,
        }
        x = np.asarray(optimize.minimize(loss, x, method="Nelder-Mead", options=limits_of_search).x)
    return np.clip(x, *bounds)


def _errors(model: SidecarModel, run: Observed, wanted: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Log quantile errors; 0 where either side has too few requests to have one."""
    return np.nan_to_num(_quantiles(simulate(model, run, seed)) - wanted)


def _quantiles(m: Measurements) -> NDArray[np.float64]:
    """Log quantiles of E2E and TTFT, unexposed then exposed; NaN for a group that is too small."""
    served, found = m.outcome == SERVED, []
    for group in (m.exposure_ns == 0, m.exposure_ns > 0):
        rows = served & group
        for column, at in ((m.e2e_ns, E2E_AT), (m.ttft_ns, TTFT_AT)):
            enough = rows.sum() >= _ENOUGH
            found.append(np.log(np.quantile(column[rows], at)) if enough else np.full(len(at), np.nan))
    return np.concatenate(found)


def _model(x: NDArray[np.float64], limits: SidecarModel) -> SidecarModel:
    return limits.changed(_decode(x))


def _encode(values: dict[str, float]) -> NDArray[np.float64]:
    return np.log([values[key] - _FLOOR.get(key, 0.0) for key in START])


def _decode(x: NDArray[np.float64]) -> dict[str, float]:
    return {key: float(np.exp(v) + _FLOOR.get(key, 0.0)) for key, v in zip(START, x, strict=True)}
