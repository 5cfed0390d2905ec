"""Numbers of arms and of pairs of arms in a published comparison: budgets, loads, differences with intervals.

The unit is the seed.  Nothing here decides anything; `protocol.audit.judge` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from protocol.audit.imported import Aggregate, Comparison, Name, Run
from protocol.audit.windows import Realised, Replay, realised
from protocol.errors import BadInput
from protocol.gates.result import Check, Status
from protocol.seeds import generator
from protocol.stats.equivalence import log_tost_paired
from protocol.stats.randomization import sign_flip, stratified_randomization

ALPHA = 0.05
#: Fewest seeds on which the envelope gate decides anything.
FEWEST_SEEDS = 8
FEWEST_TRANSFER_RUNS = 5
#: A transfer must exceed this ratio, and served loads must agree within this one.
TRANSFER_RATIO, LOAD_RATIO, SIMULATOR_RATIO = 1.10, 1.02, 1.20
#: Arms whose training paces differ by more than this do not make the same progress.
PROGRESS_RATIO = 1.02
#: A client that sends one request in a hundred later than this measures itself .
MOST_LATE_MS = 5.0


# Small statistics ------------------------------------------------------------------------------------------------


def t_interval(values: Sequence[float], level: float = 0.95) -> dict[str, Any]:
    """Mean and t interval over independent units; `reason` instead of an interval where there can be none."""
    x = np.asarray(values, np.float64)
    found: dict[str, Any] = {"n": len(x), "mean": None, "low": None, "high": None, "sd": None, "reason": None}
    if not len(x) or not np.isfinite(x).all():
        return found | {"reason": "a value is missing or not a number" if len(x) else "no value"}
    found["mean"] = float(x.mean())
    if len(x) < 2:
        return found | {"reason": "a single value has no spread"}
    found["sd"] = float(x.std(ddof=1))
    if np.ptp(x) <= 1e-12 * max(float(np.abs(x).max()), 1.0):
        return found | {"reason": "the values do not vary, which is no proof of certainty"}
    half = float(scipy.stats.t.ppf((1 + level) / 2, len(x) - 1) * scipy.stats.sem(x))
    return found | {"low": found["mean"] - half, "high": found["mean"] + half}


def named(name: Name) -> tuple[bool, int, str]:
    """A key that sorts numbers as numbers, before texts."""
    return (isinstance(name, str), name if isinstance(name, int) else 0, str(name))


def _by_unit(runs: Sequence[Run], arm: str) -> dict[Name, list[Run]]:
    """Runs of an arm by replicate."""
    units: dict[Name, list[Run]] = {}
    for run in runs:
        if run.arm == arm and run.unit is not None:
            units.setdefault(run.unit, []).append(run)
    return units


def replays_of(run: Run) -> tuple[Replay, ...]:
    """The schedules behind a run: those of its draws when it is a mean over draws."""
    return run.draws or ((run.replay,) if run.replay is not None else ())


def _mean(values: Sequence[float | None]) -> float:
    """NaN as soon as one value is missing: a mean over what happens to be there would hide the rest."""
    return float(np.mean([math.nan if v is None else v for v in values])) if values else math.nan


_COUNTS = ("windows", "low", "high")


def budget(run: Run, gaps_s: tuple[float | None, float | None] = (None, None)) -> Realised | None:
    """Windows that ran, or None where the files do not tell.  gaps_s : least and longest between merge starts."""
    if run.merges is not None and math.isfinite(run.merges):
        return Realised(run.merges, math.floor(run.merges), math.ceil(run.merges), "as stated in the file", True)
    try:
        found = [realised(replay, *gaps_s) for replay in replays_of(run)]
    except BadInput:
        return None
    if len(found) <= 1:
        return found[0] if found else None
    means = [float(np.mean([getattr(b, name) for b in found])) for name in _COUNTS]
    return Realised(means[0], means[1], means[2], f"mean of {len(found)} draws", all(b.exact for b in found))


# One arm ---------------------------------------------------------------------------------------------------------


def arm_summary(comparison: Comparison, arm: str) -> dict[str, Any]:
    """Plain numbers of one arm: violations, requests, budget, violations per realised window."""
    runs = [run for run in comparison.runs if run.arm == arm]
    budgets = [budget(run, comparison.corridor_s) for run in runs]
    known = [b for b in budgets if b is not None]
    requests = [run.requests for run in runs if run.requests is not None]
    complete = len(known) == len(runs) > 0
    labels = [run.label_windows for run in runs if run.label_windows is not None]
    replays = [replay for run in runs for replay in replays_of(run)]
    return {
        "arm": arm,
        "runs": len(runs),
        "replicates": len({run.unit for run in runs}) if any(run.cluster is not None for run in runs) else None,
        "seeds": sorted({run.seed for run in runs if run.seed is not None}, key=named),
        "violation_pct": _rate(runs),
        "unjudged": next((run.unjudged for run in runs if run.unjudged), ""),
        "steps_per_s": _both_ends([run.steps_per_s for run in runs]),
        "requests": t_interval([float(n) for n in requests]) if len(requests) == len(runs) else None,
        "requests_range": [min(requests), max(requests)] if requests else None,
        "merges_logged": sorted({replay.merges for replay in replays}),
        "windows": float(np.mean([b.windows for b in known])) if complete else None,
        "windows_low": float(np.mean([b.low for b in known])) if complete else None,
        "windows_high": float(np.mean([b.high for b in known])) if complete else None,
        "windows_exact": complete and all(b.exact for b in known),
        "windows_by_labels": [float(np.mean([x[0] for x in labels])), float(np.mean([x[1] for x in labels]))]
        if labels else None,
        "label_runs": len(labels),
        "startup_s": _hull([replay.startup_s for replay in replays]),
        "schedule_s": _range([replay.schedule_s for replay in replays]),
        "per_window": _unless_idle(
            runs,
            [
                _nan(run.violation_pct) * _nan(run.requests) / 100 / b.windows if b and b.windows > 0 else math.nan
                for run, b in zip(runs, budgets, strict=True)
            ],
        ),
        "pct_per_window": _unless_idle(
            runs,
            [
                _nan(run.violation_pct) / b.windows if b and b.windows > 0 else math.nan
                for run, b in zip(runs, budgets, strict=True)
            ],
        ),
        "derived": next((run.derived for run in runs if run.derived), ""),
    }  # fmt: skip


def aggregate_summary(comparison: Comparison, found: Aggregate) -> dict[str, Any]:
    """An arm of which only mean and spread over runs were published, with the windows of its schedules."""
    budgets = [realised(replay, *comparison.corridor_s) for replay in found.replays]
    means = {name: float(np.mean([getattr(b, name) for b in budgets])) if budgets else None for name in _COUNTS}
    return {
        **vars(found),
        "replays": len(budgets),
        "windows": means["windows"],
        "windows_low": means["low"],
        "windows_high": means["high"],
        "pct_per_window": found.mean_pct / means["windows"] if means["windows"] else None,
    }


def _rate(runs: Sequence[Run]) -> dict[str, Any]:
    """Mean violation rate with its interval over replicates; over every run where each is one (or a draw)."""
    if any(run.cluster is not None for run in runs):
        units = _by_unit(runs, runs[0].arm)
        return t_interval([_mean([run.violation_pct for run in units[name]]) for name in sorted(units, key=named)])
    return t_interval([_nan(run.violation_pct) for run in runs])


def _both_ends(bounds: Sequence[tuple[float, float] | None]) -> list[float] | None:
    """Mean of the lower and of the upper bounds; None as soon as one is missing."""
    known = [b for b in bounds if b is not None]
    if not known or len(known) < len(bounds):
        return None
    return [float(np.mean([b[0] for b in known])), float(np.mean([b[1] for b in known]))]


def _nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _hull(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    return [min(a for a, _ in pairs), max(b for _, b in pairs)] if pairs else None


def _range(values: Sequence[float | None]) -> list[float] | None:
    known = [v for v in values if v is not None]
    return [min(known), max(known)] if known else None


# A pair of arms --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """One replicate of a pair: means over an arm's runs (draws, pods) in it."""

    name: Name
    pct: tuple[float, float]
    requests: tuple[float, float]
    windows: tuple[float, float]
    least: tuple[float, float]
    most: tuple[float, float]
    slower: tuple[float, float]
    draws: tuple[float, ...]


def _of(found: Realised | None, name: str) -> float | None:
    return None if found is None else float(getattr(found, name))


def _units(comparison: Comparison, policy: str, versus: str) -> list[_Unit]:
    ours, theirs = _by_unit(comparison.runs, policy), _by_unit(comparison.runs, versus)
    units = []
    for name in sorted(set(ours) & set(theirs), key=named):
        sides = [ours[name], theirs[name]]
        found = [[budget(run, comparison.corridor_s) for run in side] for side in sides]
        windows, least, most = ([_mean([_of(b, name) for b in side]) for side in found] for name in _COUNTS)
        pct = [_mean([run.violation_pct for run in side]) for side in sides]
        requests = [_mean([run.requests for run in side]) for side in sides]
        slower = [_mean([run.transfer for run in side]) for side in sides]
        draws = tuple(_nan(run.violation_pct) for run in theirs[name] if run.draw is not None)
        # Draws of several seeds in one cluster are not exchangeable with the cluster's mean.
        if len({run.seed for run in theirs[name]}) > 1:
            draws = ()
        both = [(values[0], values[1]) for values in (pct, requests, windows, least, most, slower)]
        units.append(_Unit(name, both[0], both[1], both[2], both[3], both[4], both[5], draws))
    return units


def pair(comparison: Comparison, policy: str, versus: str) -> dict[str, Any]:
    """The comparison of two arms as published, per realised window and at equal budget; policy minus versus.

    Budget adjustment takes violations as proportional to windows: the other arm's are scaled to the policy's number of
    windows (`_adjusted`).  Each is given at the estimated windows and at the bounds worst and best for the policy.
    """
    units = _units(comparison, policy, versus)
    raw = [u.pct[0] - u.pct[1] for u in units]
    test = sign_flip(raw, generator(0, "audit", "sign flip", policy, versus))
    envelope = None
    if units and all(len(u.draws) > 1 for u in units):
        rng = generator(0, "audit", "stratified", policy, versus)
        envelope = stratified_randomization([u.pct[0] for u in units], [u.draws for u in units], rng)
    ratio = [u.requests[0] / u.requests[1] if u.requests[1] > 0 else math.nan for u in units]
    load = t_interval([100 * (r - 1) for r in ratio])
    tost = log_tost_paired([u.requests[0] for u in units], [u.requests[1] for u in units], LOAD_RATIO)
    both = [run for run in comparison.runs if run.arm in (policy, versus)]
    adjusted, per_window = ({name: _unless(both, units, how, *at) for name, at in _SIDES.items()} for how in _MEASURES)
    return {
        "policy": policy,
        "versus": versus,
        "seeds": [u.name for u in units],
        "basis": _basis(units),
        "raw_pp": t_interval(raw) | {"by_seed": raw},
        "p_sign_flip": test.pvalue,
        "p_reason": _missing(comparison, policy, versus, units) or test.reason,
        "p_floor": test.floor,
        "p_stratified": envelope.pvalue if envelope else None,
        "per_window": per_window,
        "adjusted_pp": adjusted,
        "budget_excess": _excess(units),
        "load_pct": load
        | {
            "equal": bool(units) and all(u.requests[0] == u.requests[1] for u in units),
            "same_arrivals": _same_arrivals(comparison, policy, versus),
        },
        "load_equivalence_p": tost.outcome.pvalue,
        "survives": _survival(raw, adjusted, per_window),
    }


def _same_arrivals(comparison: Comparison, policy: str, versus: str) -> bool:
    """Whether every seed's runs of both arms have one digest of arrivals and tokens."""
    ours, theirs = _by_unit(comparison.runs, policy), _by_unit(comparison.runs, versus)
    seeds = {run.seed for run in comparison.runs if run.arm == policy and run.unit in set(ours) & set(theirs)}
    loads = [
        {run.offered for run in comparison.runs if run.arm in (policy, versus) and run.seed == seed} for seed in seeds
    ]
    return bool(loads) and all(len(load) == 1 and str(next(iter(load))).startswith("sha256:") for load in loads)


def _missing(comparison: Comparison, policy: str, versus: str, units: Sequence[_Unit]) -> str:
    """Which values no test can be made of, by the names that the file gives; "" when all are there."""
    if all(math.isfinite(u.pct[0] + u.pct[1]) for u in units):
        return ""
    broken = [
        run for run in comparison.runs if run.arm in (policy, versus) and not math.isfinite(_nan(run.violation_pct))
    ]
    why = next((run.unjudged for run in broken if run.unjudged), "")
    if why:
        return why
    names = ", ".join(f"{run.arm} on seed {run.seed}" for run in broken[:3])
    more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    return f"no violation rate that is a number: {names}{more}"


#: Which windows to take for (policy, versus): 0 estimate, -1 least, 1 most.
_SIDES = {"estimate": (0, 0), "least favourable": (-1, 1), "most favourable": (1, -1)}


def _pick(unit: _Unit, side: int, which: int) -> float:
    n = (unit.least, unit.windows, unit.most)[which + 1][side]
    return n if n > 0 else math.nan


def _per_window(unit: _Unit, ours: int, theirs: int, basis: str) -> float:
    mine = unit.pct[0] * unit.requests[0] / 100 / _pick(unit, 0, ours)
    return mine - unit.pct[1] * unit.requests[1] / 100 / _pick(unit, 1, theirs)


#: What "at equal budget" compares, by what the files hold.
TIME, COUNT, RATE = "share of the server's time", "violations over the policy's requests", "rate"


def _basis(units: Sequence[_Unit]) -> str:
    """In a closed loop a slow server is asked less, so a rate's own denominator depends on the windows that ran."""
    if not units or all(u.requests[0] == u.requests[1] for u in units):
        return RATE
    if all(u.slower[side] > 0 and math.isfinite(u.slower[side]) for u in units for side in (0, 1)):
        return TIME
    return COUNT if all(math.isfinite(u.requests[0] * u.requests[1]) for u in units) else RATE


def share_of_time(pct: float, slower: float) -> float:
    """Percent of the time in which requests are late, from the percent of requests that a closed loop saw late.

    slower : latency inside merge windows over outside: a loop that waits asks the slow server that much less often.
    It is what requests that do not wait for answers would meet.
    """
    return 100 * pct * slower / (pct * slower + 100 - pct)


def _adjusted(unit: _Unit, ours: int, theirs: int, basis: str) -> float:
    """Policy less the other arm's scaled to the policy's windows."""
    scale = _pick(unit, 0, ours) / _pick(unit, 1, theirs)
    mine, other = unit.pct
    if basis == TIME:
        mine, other = share_of_time(mine, unit.slower[0]), share_of_time(other, unit.slower[1])
    elif basis == COUNT:
        other *= unit.requests[1] / unit.requests[0]
    return mine - min(other * scale, 100.0)


def by_denominator(comparison: Comparison, policy: str, versus: str) -> dict[str, dict[str, Any]]:
    """The difference at equal budget and at the estimated windows by every denominator that the files allow."""
    units = _units(comparison, policy, versus)
    found = {how: t_interval([_adjusted(unit, 0, 0, how) for unit in units]) for how in (RATE, COUNT, TIME)}
    return {how: limits for how, limits in found.items() if limits["low"] is not None}


_MEASURES: tuple[Callable[[_Unit, int, int, str], float], ...] = (_adjusted, _per_window)


def _unless(
    runs: Sequence[Run],
    units: Sequence[_Unit],
    measure: Callable[[_Unit, int, int, str], float],
    ours: int,
    theirs: int,
) -> dict[str, Any]:
    """The measure over seeds, unless the runs show that violations do not come from merge windows at all."""
    basis = _basis(units)
    return _unless_idle(runs, [measure(unit, ours, theirs, basis) for unit in units])


def _unless_idle(runs: Sequence[Run], values: Sequence[float]) -> dict[str, Any]:
    if transfer_check([run.transfer for run in runs]).status == "failed":
        return t_interval([]) | {"reason": "p95 is no higher in merge windows, so violations are not the windows'"}
    return t_interval(values)


def _excess(units: Sequence[_Unit]) -> dict[str, float | None]:
    """Other arm's windows less the policy's, mean over seeds: estimate and bounds."""
    if not units or any(math.isnan(u.windows[0] + u.windows[1]) for u in units):
        return {"estimate": None, "low": None, "high": None, "policy": None, "versus": None}
    return {
        "estimate": float(np.mean([u.windows[1] - u.windows[0] for u in units])),
        "low": float(np.mean([u.least[1] - u.most[0] for u in units])),
        "high": float(np.mean([u.most[1] - u.least[0] for u in units])),
        "policy": float(np.mean([u.windows[0] for u in units])),
        "versus": float(np.mean([u.windows[1] for u in units])),
    }


def _survival(
    raw: Sequence[float], adjusted: Mapping[str, Mapping[str, Any]], per_window: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Whether a lower published rate is still lower at equal budget: yes, no, or undecidable.

    Both measures must say so where both are known: the rate's own denominator drifts with the served load, the
    violations per window do not.
    """
    if not raw or not np.isfinite(raw).all():
        return {"verdict": "undecidable", "reason": "a published value is missing or not a number"}
    if np.mean(raw) >= 0:
        return {"verdict": "no win", "reason": "the published mean is not lower"}
    if adjusted["estimate"]["high"] is None:
        reason = adjusted["estimate"]["reason"] or "the realised windows are not known"
        return {"verdict": "undecidable", "reason": str(reason)}
    measures = {"rate at equal budget": adjusted}
    if per_window["estimate"]["high"] is not None:
        measures["violations per realised window"] = per_window
    for name, found in measures.items():
        if found["estimate"]["high"] >= 0:
            return {"verdict": "no", "reason": f"{name}: the interval reaches zero"}
    for name, found in measures.items():
        if found["least favourable"]["high"] is None or found["least favourable"]["high"] >= 0:
            return {"verdict": "undecidable", "reason": f"{name}: yes at the estimated windows, not at their bounds"}
    return {"verdict": "yes", "reason": "lower at equal budget at every number of windows that the rule allows"}


# Effect transfer -------------------------------------------------------------------------------------------------


def transfer_check(ratios: Sequence[float | None]) -> Check:
    """One-sided t over independent runs on the log ratio of p95 in windows over outside, against TRANSFER_RATIO."""
    name, known = "G1 transfer", [r for r in ratios if r is not None]
    if not known:
        return Check(name, "undecidable", "no ratio of p95 in windows over outside in the files")
    if len(known) < FEWEST_TRANSFER_RUNS or len(known) < len(ratios):
        reason = (
            f"{len(known)} of {len(ratios)} runs with a ratio ({geometric(known)}), {FEWEST_TRANSFER_RUNS} runs needed"
        )
        return Check(name, "undecidable", reason, n=len(known), threshold=TRANSFER_RATIO)
    if not all(math.isfinite(r) and r > 0 for r in known):
        return Check(name, "undecidable", "a ratio is not a positive number", n=len(known), threshold=TRANSFER_RATIO)
    limits = t_interval([math.log(r) for r in known], 0.90)
    if limits["low"] is None:
        return Check(name, "undecidable", str(limits["reason"]), n=len(known), threshold=TRANSFER_RATIO)
    low, high = math.exp(limits["low"]), math.exp(limits["high"])
    status: Status = "passed" if low > TRANSFER_RATIO else "failed"
    middle = math.exp(limits["mean"])
    reason = f"p95 in windows over outside: {middle:.3f}, 90 % interval [{low:.3f}, {high:.3f}] over runs"
    return Check(name, status, reason, middle, TRANSFER_RATIO, len(known), (low, high))


def geometric(ratios: Sequence[float]) -> str:
    """Geometric mean as text, three decimals."""
    usable = all(math.isfinite(r) and r > 0 for r in ratios)
    return f"{math.exp(np.mean(np.log(ratios))):.3f}" if usable else "unknown"
