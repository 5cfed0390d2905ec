"""Whether a calibrated simulator speaks for what is claimed: the loads that it saw, each SLO by itself.

A ratio of percentiles licenses no violation rate: a ratio cancels the level, and a violation rate is all level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.calibration.support import RATE_WINDOW_S, Support, in_flight, windowed
from protocol.evidence.model import Evidence
from protocol.gates.result import Check, Status
from protocol.gates.spec import Spec
from protocol.replay.measurements import Measurements
from protocol.stats.equivalence import log_tost_paired, tost_paired
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

#: Sync-excess violations per merge, real over simulated, must lie within this factor of 1.
PER_MERGE = 1.25
#: Violation rates without merges, real minus simulated, must lie within this many percentage points.
IDLE_MARGIN_PP = 2.0
#: Share of a claim's requests or windows that may lie outside a range of the support.
OUTSIDE = 0.01


def support_check(evidence: Sequence[Evidence], spec: Spec, support: Support) -> Check:
    """Rates, requests in flight, token counts and merge length lie in the ranges that the calibration saw."""
    rows = [r.rows for e in evidence for r in e.simulated.values()]
    details: dict[str, object] = {}
    left = []
    for what, values in _seen(rows, spec).items():
        low, high = getattr(support, what)
        outside = float(np.mean((values < low) | (values > high))) if len(values) else 0.0
        least, most = (float(values.min()), float(values.max())) if len(values) else (None, None)
        details[what] = {"calibrated": [low, high], "claimed": [least, most], "outside": outside}
        if outside > OUTSIDE:
            name = what.replace("_", " ")
            left.append(f"{name}: {100 * outside:.0f} % outside {low:g} to {high:g} ({least:g} to {most:g})")
    merge_s = spec.corridor.merge_ns / NS_PER_S
    if not support.merge_s[0] <= merge_s <= support.merge_s[1]:
        left.append(f"merge length: {merge_s:g} s outside {support.merge_s[0]:g} to {support.merge_s[1]:g}")
    n = sum(map(len, rows))
    if left:
        reason = f"outside what the calibration saw: {'; '.join(left)}"
        return Check("support", "failed", reason, n=n, details=details)
    reason = f"rates in {RATE_WINDOW_S:g} s windows, requests in flight, tokens and merges inside what was calibrated"
    return Check("support", "passed", reason, n=n, details=details)


def _seen(rows: Sequence[Measurements], spec: Spec) -> dict[str, NDArray[np.float64]]:
    """What the claim's replays held, by the names of `Support`; each island is a server of its own."""
    mine = [m for each in rows for m in by_island(each, spec.islands)]
    columns: dict[str, list[NDArray[Any]]] = {
        "rate_per_s": [windowed(m) for m in mine],
        "in_flight": [in_flight(m) for m in mine],
        "prompt_tokens": [m.prompt_tokens for m in mine],
        "output_tokens": [m.asked_tokens for m in mine],
    }
    return {name: np.concatenate(found).astype(np.float64) if found else np.empty(0) for name, found in columns.items()}


def by_island(m: Measurements, islands: int) -> list[Measurements]:
    return [m] if islands == 1 else [m.chosen(m.island == i) for i in range(islands)]


def slo_checks(rows: Sequence[Mapping[str, Any]], slo: Slo, alpha: float) -> list[Check]:
    """Agreement on one limit: what a merge costs, and what happens without merges.

    rows : one a calibration run: {"load", "requests", "merges", "violations", "simulated_violations"}; those without
    merges say what happens without, and how much of the others' violations is the merges'.
    """
    per_merge = _per_merge(rows, slo, alpha)
    return [per_merge, _without(rows, slo, alpha)]


def _per_merge(rows: Sequence[Mapping[str, Any]], slo: Slo, alpha: float) -> Check:
    name = "agreement per merge"
    real: list[float] = []
    simulated: list[float] = []
    for row in rows:
        if row["merges"]:
            idle = [r for r in rows if not r["merges"] and r["load"] == row["load"]]
            n = sum(r["requests"] for r in idle)
            if not n:
                return Check(name, "undecidable", f"no run without merges at {row['load']}")
            for key, kept in (("violations", real), ("simulated_violations", simulated)):
                rate = sum(r[key] for r in idle) / n
                kept.append((row[key] - rate * row["requests"]) / row["merges"])
    found = log_tost_paired(np.array(real), np.array(simulated), PER_MERGE, alpha)
    p, n = found.outcome.pvalue, found.outcome.n
    if p is None or found.interval is None:
        means = (
            f"{np.mean(real):.1f} real, {np.mean(simulated):.1f} simulated a merge" if real else "no run with merges"
        )
        return Check(name, "undecidable", f"{slo}: {found.outcome.reason}; {means}", n=n)
    reason = (
        f"{slo}: sync-excess violations per merge, real over simulated {found.estimate:.3f} over {n} runs, equivalent "
        f"within a factor of {PER_MERGE:g} when TOST p <= {alpha:g}: p = {p:.3g}"
    )
    return _checked(name, reason, p, alpha, n, (found.interval.lower, found.interval.upper), 1 / PER_MERGE, PER_MERGE)


def _without(rows: Sequence[Mapping[str, Any]], slo: Slo, alpha: float) -> Check:
    name = "agreement without merges"
    idle = [r for r in rows if not r["merges"]]
    real, simulated = (
        np.array([100 * r[key] / r["requests"] for r in idle]) for key in ("violations", "simulated_violations")
    )
    found = tost_paired(real, simulated, IDLE_MARGIN_PP, alpha)
    p, n = found.outcome.pvalue, found.outcome.n
    if p is None or found.interval is None:
        return Check(name, "undecidable", f"{slo}: {found.outcome.reason}", n=n)
    reason = (
        f"{slo}: violations without merges, real minus simulated {found.estimate:+.2f} pp over {n} runs, equivalent "
        f"within {IDLE_MARGIN_PP:g} pp when TOST p <= {alpha:g}: p = {p:.3g}"
    )
    limits = (found.interval.lower, found.interval.upper)
    return _checked(name, reason, p, alpha, n, limits, -IDLE_MARGIN_PP, IDLE_MARGIN_PP)


def _checked(
    name: str, reason: str, p: float, alpha: float, n: int, limits: tuple[float, float], low: float, high: float
) -> Check:
    """Shown to agree, shown to be apart, or neither."""
    apart = limits[0] > high or limits[1] < low
    status: Status = "passed" if p <= alpha else "failed" if apart else "undecidable"
    return Check(name, status, reason, p, alpha, n, limits)
