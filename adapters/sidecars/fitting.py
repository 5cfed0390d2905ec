"""Fit the simulated sidecar to runs of a real server.

Simulated and real runs share their arrivals and their merges; the parameters are those whose simulated latencies have
the real ones' quantiles, by least squares on logarithms with a soft-l1 loss.  The run is the unit of the intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from protocol import seeds
from protocol.calibration.check import summary
from protocol.calibration.model import CalibrationRun
from protocol.calibration.store import read, read_runs
from protocol.errors import BadInput
from protocol.replay.measurements import SERVED, Measurements

#: Fitted parameters, all by their logarithms, and where the search begins.
START = {
    "a_s": 3e-3, "b_s": 1e-4, "c_s": 2e-5, "prefill_slowdown": 3.0, "decode_slowdown": 3.0,
    "overhead_s": 5e-3, "overhead_sigma": 0.3,
}  # fmt: skip
_LEAST = {"a_s": 1e-5, "b_s": 1e-7, "c_s": 1e-8, "overhead_s": 1e-5, "overhead_sigma": 1e-2}
_MOST = {"a_s": 1.0, "b_s": 0.1, "c_s": 1e-2, "overhead_s": 10.0, "overhead_sigma": 2.0}
#: Quantiles compared, and the requests that a group needs before its quantiles are.
E2E_AT, TTFT_AT = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95), (0.25, 0.5, 0.75, 0.95)
_ENOUGH = 20
#: Relative residual at which the loss turns from squared to absolute.
_SOFT = 0.1
#: Distance over which slopes are taken, in units of the logarithm of a parameter.
_STEP = 0.03
#: How far around the gradient's minimum evolution searches, in the same unit; of a slowdown also down to none at all.
_AROUND = 0.7
_SLOWDOWNS = [list(START).index(key) for key in ("prefill_slowdown", "decode_slowdown")]
#: How much larger than a half's the residual of the model may be, since no search is sure to find the minimum.
_WORSE = 1.1
#: Members of a generation for each parameter, generations, and evaluations of the simplex search that goes last.
_POPULATION, _GENERATIONS, _LAST = 6, 60, 400


@dataclass(frozen=True)
class Fit:
    """model : fitted, not yet marked as calibrated.  interval : 95 % limits of each parameter, jackknife over runs.
    residual : root mean square of the relative quantile errors.
    """

    model: SidecarModel
    interval: dict[str, tuple[float, float]]
    residual: float


def simulate(model: SidecarModel, run: CalibrationRun, seed: int) -> Measurements:
    """The run as the model would have served it, under the merges that really ran."""
    rng = seeds.generator(seed, "sidecar", "calibration", run.label)
    return SimulatedSidecar(model).load(run.trace, rng).replay(run.merges)


def check_simulated(folder: Path) -> Iterator[str]:
    """Differences between what a calibration states of its models and what they give for its runs.

    The simulated percentiles come from the models of the halves; residual and intervals from the model itself, which
    may fit hardly worse than one that saw half of the runs.  The search is not repeated.
    Raises BadInput when the calibration is missing or broken.
    """
    stated, runs = read(folder), read_runs(folder)
    seed, model, named = stated.plan.seed, SidecarModel.from_calibration(stated), {run.label: run for run in runs}
    halves = [SidecarModel.fitted(half, f"{folder}, halves[{i}]") for i, half in enumerate(stated.halves)]
    for row in stated.runs:
        if row.run not in named:
            yield f"runs: {row.run} is stated, and has no rows"
            continue
        run, plain = named[row.run], row.plain()
        for key, value in summary(run, simulate(halves[row.half], run, seed), stated.schema_version).items():
            if plain.get(key) != value:
                yield f"{row.run}, {key}: stated {plain.get(key)}, its model says {value}"
    wanted = [_quantiles(run.measurements) for run in runs]
    residual, *others = (_residual(m, runs, wanted, seed) for m in (model, *halves))
    if not np.isclose(residual, stated.residual, rtol=1e-9):
        yield f"residual: stated {stated.residual}, its model says {residual}"
    if residual > _WORSE * min(others):
        yield f"model: residual {residual:.4f}, that of a half's model {min(others):.4f}"
    if stated.intervals:
        again = _intervals(_parameters(model), runs, wanted, model, seed)
        for key in sorted({*again, *stated.intervals}):
            if not np.allclose(stated.intervals.get(key, (np.nan, np.nan)), again.get(key, (0, 0)), rtol=1e-6):
                yield f"intervals, {key}: stated {stated.intervals.get(key)}, its runs say {again.get(key)}"


def fit(
    runs: Sequence[CalibrationRun],
    limits: SidecarModel,
    seed: int,
    intervals: bool = True,
    others: Sequence[SidecarModel] = (),
) -> Fit:
    """Parameters of a model with the slot, batch and KV limits of `limits`.

    others : models of some of the runs, of which one is taken should the search end with a residual `_WORSE` times its.
    Raises BadInput when no run has enough served requests.
    """
    wanted = [_quantiles(run.measurements) for run in runs]
    if not any(np.isfinite(values).any() for values in wanted):
        raise BadInput("calibration", f"fewer than {_ENOUGH} served requests in every run", "longer runs")
    model = _model(_solve(runs, wanted, limits, seed), limits)
    residual = _residual(model, runs, wanted, seed)
    for other in others:
        if residual > _WORSE * (its := _residual(other, runs, wanted, seed)):
            model, residual = other, its
    interval = _intervals(_parameters(model), runs, wanted, limits, seed) if intervals else {}
    return Fit(model, interval, residual)


def _solve(
    runs: Sequence[CalibrationRun],
    wanted: Sequence[NDArray[np.float64]],
    limits: SidecarModel,
    seed: int,
) -> NDArray[np.float64]:
    """Logarithms of the best parameters."""

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return _residuals(x, runs, wanted, limits, seed).ravel()

    def slopes(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return _slopes(x, runs, wanted, limits, seed).reshape(-1, len(x))

    def loss(x: NDArray[np.float64]) -> float:
        return float(np.sum(np.sqrt(1 + (residuals(np.clip(x, *bounds)) / _SOFT) ** 2) - 1))

    bounds = _bounds()
    inside = np.clip(_encode(START), bounds[0] + _STEP, bounds[1] - _STEP)
    x = scipy.optimize.least_squares(
        residuals, inside, slopes, bounds=bounds, loss="soft_l1", f_scale=_SOFT, max_nfev=30
    ).x
    # The loss has steps and valleys, which stop a gradient short of the minimum; evolution goes on around it, and a
    # simplex from the best that it found.
    low, high = np.maximum(x - _AROUND, bounds[0]), np.minimum(x + _AROUND, bounds[1])
    for key in _SLOWDOWNS:
        low[key] = bounds[0][key]
    evolved = scipy.optimize.differential_evolution(
        loss, scipy.optimize.Bounds(low, high), x0=x, popsize=_POPULATION, maxiter=_GENERATIONS, tol=1e-3, init="sobol",
        polish=False, rng=seeds.generator(seed, "sidecar", "fit"),
    ).x  # fmt: skip
    last: Any = {
        "initial_simplex": np.vstack([evolved, evolved + 0.1 * np.eye(len(x))]),
        "xatol": 1e-3,
        "fatol": 1e-6,
        "maxfev": _LAST,
    }
    search = scipy.optimize.minimize(loss, evolved, method="Nelder-Mead", options=last)
    return np.clip(search.x, *bounds)


def _bounds() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and largest logarithm of every parameter."""
    return _encode({k: _LEAST.get(k, 1 + 1e-4) for k in START}), _encode({k: _MOST.get(k, 100.0) for k in START})


def _intervals(
    best: NDArray[np.float64],
    runs: Sequence[CalibrationRun],
    wanted: Sequence[NDArray[np.float64]],
    limits: SidecarModel,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """95 % limits of each parameter: a jackknife over runs, of which each is left out in one Newton step.

    A new search without a run would differ by where it happened to stop, for the loss has steps and valleys.
    The step solves the linearised problem exactly (the infinitesimal jackknife; Efron and Tibshirani, An Introduction
    to the Bootstrap, 1993, section 11.5).
    """
    residuals = _residuals(best, runs, wanted, limits, seed)
    slopes = _slopes(best, runs, wanted, limits, seed)
    weight = 1 / np.sqrt(1 + (residuals / _SOFT) ** 2)  # slope of the soft-l1 loss
    curvature = np.einsum("rqi,rq,rqj->rij", slopes, weight, slopes)
    pull = np.einsum("rqi,rq,rq->ri", slopes, weight, residuals)
    n = len(runs)
    leave = np.array([np.linalg.pinv(curvature.sum(0) - curvature[i]) @ pull[i] for i in range(n)])
    spread = np.sqrt((n - 1) / n * ((leave - leave.mean(axis=0)) ** 2).sum(axis=0))
    reach = scipy.stats.t.ppf(0.975, n - 1) * spread
    low, high = (_decode(np.clip(x, *_bounds())) for x in (best - reach, best + reach))
    return {key: (low[key], high[key]) for key in START}


def _residuals(
    x: NDArray[np.float64], runs: Sequence[CalibrationRun], wanted: Sequence[NDArray[np.float64]], limits: SidecarModel,
    seed: int,
) -> NDArray[np.float64]:  # fmt: skip
    """Log quantile errors, one row a run."""
    model = _model(x, limits)
    return np.stack([_errors(model, run, want, seed) for run, want in zip(runs, wanted, strict=True)])


def _residual(
    model: SidecarModel, runs: Sequence[CalibrationRun], wanted: Sequence[NDArray[np.float64]], seed: int
) -> float:
    """Root mean square of the log quantile errors."""
    errors = [_errors(model, run, want, seed) for run, want in zip(runs, wanted, strict=True)]
    return float(np.sqrt(np.mean(np.square(errors))))


def _slopes(
    x: NDArray[np.float64], runs: Sequence[CalibrationRun], wanted: Sequence[NDArray[np.float64]], limits: SidecarModel,
    seed: int,
) -> NDArray[np.float64]:  # fmt: skip
    """Slopes of the residuals, the parameter last.

    Quantiles of a simulated run are steps: differences must be taken over a distance that crosses many of them.
    """
    found = []
    for h in _STEP * np.eye(len(x)):
        above, below = (np.clip(y, *_bounds()) for y in (x + h, x - h))
        rise = _residuals(above, runs, wanted, limits, seed) - _residuals(below, runs, wanted, limits, seed)
        found.append(rise / (above - below).sum())
    return np.stack(found, axis=-1)


def _errors(model: SidecarModel, run: CalibrationRun, wanted: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
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


def _parameters(model: SidecarModel) -> NDArray[np.float64]:
    return _encode({key: getattr(model, key) for key in START})


def _encode(values: dict[str, float]) -> NDArray[np.float64]:
    return np.log([values[key] for key in START])


def _decode(x: NDArray[np.float64]) -> dict[str, float]:
    return {key: float(np.exp(v)) for key, v in zip(START, x, strict=True)}
