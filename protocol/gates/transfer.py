"""G1: on a real server, requests that overlap a merge are slower, and the simulator agrees by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.gates.result import Check, GateResult
from protocol.stats.equivalence import log_tost_paired
from protocol.stats.ratios import transfer_ratio

#: Declared minimum effect on the ratio of p95, and margin of agreement between simulator and server.
MIN_RATIO, AGREEMENT = 1.10, 0.20


def transfer_gate(calibration: Mapping[str, Any] | None, alpha: float) -> GateResult:
    """Ratio of p95 E2E among exposed over unexposed requests, the run being the unit (SPEC 6, G1).

    calibration : {"server", "date", "runs": [{"exposed_p95_ms", "unexposed_p95_ms", "exposed", "unexposed",
    "simulated_exposed_p95_ms", "simulated_unexposed_p95_ms"}, ...]}; None when there is no real server behind
    the sidecar, which can only be undecidable.  So is a run that lacks one of these numbers.
    """
    title = "real-sidecar effect transfer"
    if calibration is None:
        reason = "no calibration: no real server has shown the effect, so nothing is said about serving SLOs"
        return GateResult(
            "G1", title, (Check("effect", "undecidable", reason), Check("agreement", "undecidable", reason))
        )
    runs = calibration.get("runs") or ()
    exposed, unexposed = _column(runs, "exposed_p95_ms"), _column(runs, "unexposed_p95_ms")
    counts = [np.nan_to_num(_column(runs, key)).astype(np.int64) for key in ("exposed", "unexposed")]
    real = transfer_ratio(exposed, unexposed, *counts, threshold=MIN_RATIO, alpha=alpha)
    if real.outcome.pvalue is None or real.lower_bound is None or real.interval is None:
        effect = Check("effect", "undecidable", real.outcome.reason or "no p-value", n=real.outcome.n)
    else:
        reason = (
            f"p95 of exposed over unexposed requests {real.ratio:.3f} in {real.outcome.n} runs on "
            f"{calibration.get('server')}, lower bound {real.lower_bound:.3f}, minimum {MIN_RATIO:g}"
        )
        effect = Check(
            "effect",
            "passed" if real.lower_bound > MIN_RATIO else "failed",
            reason,
            real.ratio,
            MIN_RATIO,
            real.outcome.n,
            (real.interval.lower, real.interval.upper),
            {"lower_bound": real.lower_bound, "run_ratios": np.exp(real.log_ratios).tolist()},
        )
    simulated = _column(runs, "simulated_exposed_p95_ms") / _column(runs, "simulated_unexposed_p95_ms")
    agreement = log_tost_paired(exposed / unexposed, simulated, 1 + AGREEMENT, alpha)
    p, n = agreement.outcome.pvalue, agreement.outcome.n
    if p is None or agreement.interval is None:
        agrees = Check("agreement", "undecidable", agreement.outcome.reason or "no p-value", n=n)
    else:
        reason = (
            f"real over simulated ratio {agreement.estimate:.3f}, equivalent within {100 * AGREEMENT:.0f} % "
            f"when TOST p <= {alpha:g}: p = {p:.3g}"
        )
        limits = (agreement.interval.lower, agreement.interval.upper)
        agrees = Check("agreement", "passed" if p <= alpha else "failed", reason, p, alpha, n, limits)
    return GateResult("G1", title, (effect, agrees))


def _column(runs: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    """One number a run, NaN where it is absent or not a positive finite number."""
    found = np.full(len(runs), np.nan)
    for i, run in enumerate(runs):
        value = run.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf:
            found[i] = value
    return found
