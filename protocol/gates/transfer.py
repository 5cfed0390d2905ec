"""G1: on a real server, requests that overlap a merge are slower, and the simulator agrees by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.gates.result import Check, GateResult
from protocol.stats.equivalence import log_tost_paired
from protocol.stats.ratios import TransferRatio, transfer_ratio

#: Declared minimum effect on the ratio of p95, and margin of agreement between simulator and server.
MIN_RATIO, AGREEMENT = 1.10, 0.20


def transfer_gate(calibration: Mapping[str, Any] | None, alpha: float) -> GateResult:
    """Ratio of p95 E2E among exposed over unexposed requests, the run being the unit (SPEC 6, G1).

    calibration : {"server", "date", "runs": [{"load", "exposed_p95_ms", "unexposed_p95_ms", "exposed", "unexposed",
    "simulated_exposed_p95_ms", "simulated_unexposed_p95_ms", and the same for "ttft_p95_ms" and "max_itl_p95_ms"},
    ...]}; None when there is no real server behind the sidecar, which can only be undecidable.  So is a run that lacks
    one of these numbers.  Effect and agreement are judged at every load by itself; TTFT and the longest ITL are
    reported beside the effect and decide nothing.
    """
    title = "real-sidecar effect transfer"
    if calibration is None:
        reason = "no calibration: no real server has shown the effect, so nothing is said about serving SLOs"
        return GateResult(
            "G1", title, (Check("effect", "undecidable", reason), Check("agreement", "undecidable", reason))
        )
    server, runs = str(calibration.get("server")), calibration.get("runs") or ()
    checks: list[Check] = []
    for load in dict.fromkeys(run.get("load") for run in runs) or [None]:
        mine = [run for run in runs if run.get("load") == load]
        suffix = f" ({load})" if load else ""
        checks += [_effect(f"effect{suffix}", server, mine, alpha), _agreement(f"agreement{suffix}", mine, alpha)]
    return GateResult("G1", title, tuple(checks))


def _effect(name: str, server: str, runs: Sequence[Mapping[str, Any]], alpha: float) -> Check:
    real = _ratio(runs, "", alpha)
    if real.outcome.pvalue is None or real.lower_bound is None or real.interval is None:
        return Check(name, "undecidable", real.outcome.reason or "no p-value", n=real.outcome.n)
    reason = (
        f"p95 of exposed over unexposed requests {real.ratio:.3f} in {real.outcome.n} runs on "
        f"{server}, lower bound {real.lower_bound:.3f}, minimum {MIN_RATIO:g}"
    )
    phases = {phase: _ratio(runs, f"{phase}_", alpha) for phase in ("ttft", "max_itl")}
    details = {
        f"{phase}_ratio": [found.ratio, found.interval.lower, found.interval.upper]
        for phase, found in phases.items()
        if found.interval is not None
    }
    return Check(
        name,
        "passed" if real.lower_bound > MIN_RATIO else "failed",
        reason,
        real.ratio,
        MIN_RATIO,
        real.outcome.n,
        (real.interval.lower, real.interval.upper),
        {"lower_bound": real.lower_bound, "run_ratios": np.exp(real.log_ratios).tolist(), **details},
    )


def _ratio(runs: Sequence[Mapping[str, Any]], phase: str, alpha: float) -> TransferRatio:
    exposed, unexposed = _column(runs, f"exposed_{phase}p95_ms"), _column(runs, f"unexposed_{phase}p95_ms")
    counts = [np.nan_to_num(_column(runs, key)).astype(np.int64) for key in ("exposed", "unexposed")]
    return transfer_ratio(exposed, unexposed, *counts, threshold=MIN_RATIO, alpha=alpha)


def _agreement(name: str, runs: Sequence[Mapping[str, Any]], alpha: float) -> Check:
    real = _column(runs, "exposed_p95_ms") / _column(runs, "unexposed_p95_ms")
    simulated = _column(runs, "simulated_exposed_p95_ms") / _column(runs, "simulated_unexposed_p95_ms")
    found = log_tost_paired(real, simulated, 1 + AGREEMENT, alpha)
    p, n = found.outcome.pvalue, found.outcome.n
    if p is None or found.interval is None:
        return Check(name, "undecidable", found.outcome.reason or "no p-value", n=n)
    reason = (
        f"real over simulated ratio {found.estimate:.3f}, equivalent within {100 * AGREEMENT:.0f} % "
        f"when TOST p <= {alpha:g}: p = {p:.3g}"
    )
    limits = (found.interval.lower, found.interval.upper)
    return Check(name, "passed" if p <= alpha else "failed", reason, p, alpha, n, limits)


def _column(runs: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    """One number a run, NaN where it is absent or not a positive finite number."""
    found = np.full(len(runs), np.nan)
    for i, run in enumerate(runs):
        value = run.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf:
            found[i] = value
    return found
