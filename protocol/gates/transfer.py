"""G1: on a real server, requests that overlap a merge are slower, and the simulator agrees by how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.gates.result import Check, GateResult
from protocol.stats.equivalence import tost_log_ratio
from protocol.stats.transfer import transfer_ratio

#: Declared minimum effect on the ratio of p95, and margin of agreement between simulator and server.
MIN_RATIO, AGREEMENT = 1.10, 0.20


def transfer_gate(calibration: Mapping[str, Any] | None, alpha: float) -> GateResult:
    """Ratio of p95 E2E among exposed over unexposed requests, the run being the unit (SPEC 6, G1).

    calibration : {"server", "date", "runs": [{"exposed_p95_ms", "unexposed_p95_ms", "exposed", "unexposed",
    "simulated_exposed_p95_ms", "simulated_unexposed_p95_ms"}, ...]}; None when there is no real server behind
    the sidecar, which can only be undecidable.
    """
    title = "real-sidecar effect transfer"
    if calibration is None:
        reason = "no calibration: no real server has shown the effect, so nothing is said about serving SLOs"
        return GateResult(
            "G1", title, (Check("effect", "undecidable", reason), Check("agreement", "undecidable", reason))
        )
    runs = calibration["runs"]
    real = transfer_ratio(
        [r["exposed_p95_ms"] for r in runs],
        [r["unexposed_p95_ms"] for r in runs],
        [min(r["exposed"], r["unexposed"]) for r in runs],
        alpha=alpha,
    )
    if real.pvalue is None or real.ratio is None or real.interval is None:
        effect = Check("effect", "undecidable", real.reason, n=real.n_runs)
    else:
        status = "passed" if real.interval[0] > MIN_RATIO else "failed"
        reason = (
            f"p95 of exposed over unexposed requests {real.ratio:.3f} in {real.n_runs} runs on {calibration['server']}"
        )
        effect = Check("effect", status, reason, real.ratio, MIN_RATIO, real.n_runs, real.interval)
    agreement = tost_log_ratio(
        [r["exposed_p95_ms"] / r["unexposed_p95_ms"] for r in runs],
        [r["simulated_exposed_p95_ms"] / r["simulated_unexposed_p95_ms"] for r in runs],
        margin=AGREEMENT,
        alpha=alpha,
    )
    if agreement.pvalue is None:
        agrees = Check("agreement", "undecidable", agreement.reason, n=agreement.n)
    else:
        status = "passed" if agreement.pvalue <= alpha else "failed"
        reason = f"simulated and real ratio equivalent within {100 * AGREEMENT:.0f} %: TOST p = {agreement.pvalue:.4g}"
        agrees = Check("agreement", status, reason, agreement.pvalue, alpha, agreement.n, agreement.interval)
    return GateResult("G1", title, (effect, agrees))
