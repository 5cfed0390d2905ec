"""G1: on a real server, requests that overlap a merge are slower, and the simulator agrees by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.evidence.model import Evidence
from protocol.gates.agreement import slo_checks, support_check
from protocol.gates.result import Check, GateResult
from protocol.gates.spec import Spec
from protocol.gates.units import compared
from protocol.replay.measurements import Measurements
from protocol.replay.replay import POLICY, UNIFORM
from protocol.stats.equivalence import log_tost_paired
from protocol.stats.ratios import MIN_REQUESTS, TransferRatio, transfer_ratio
from protocol.workload.slo import Slo

#: Declared minimum effect on the ratio of p95, and margin of agreement between simulator and server.
MIN_RATIO, AGREEMENT = 1.10, 0.20
#: Phases of a request beside E2E; reported, not decisive.
PHASES = ("ttft", "max_itl")
TITLE = "real-sidecar effect transfer"


@dataclass(frozen=True)
class Sides:
    """p95 of exposed and unexposed requests of each run, ms, and how many there are; NaN where unknown."""

    exposed_ms: NDArray[np.float64]
    unexposed_ms: NDArray[np.float64]
    n_exposed: NDArray[np.int64]
    n_unexposed: NDArray[np.int64]

    def enough(self) -> Sides:
        """Runs with enough requests on both sides for a 95th percentile: a count, not a latency, decides that.

        A count that is not stated (negative) is kept, for the test to refuse.
        """
        fewest = np.minimum(self.n_exposed, self.n_unexposed)
        kept = (fewest >= MIN_REQUESTS) | (fewest < 0)
        return Sides(self.exposed_ms[kept], self.unexposed_ms[kept], self.n_exposed[kept], self.n_unexposed[kept])

    def ratio(self, alpha: float) -> TransferRatio:
        return transfer_ratio(
            self.exposed_ms, self.unexposed_ms, self.n_exposed, self.n_unexposed, threshold=MIN_RATIO, alpha=alpha
        )


def transfer_gate(evidence: Sequence[Evidence], spec: Spec, slo: Slo | None = None) -> GateResult:
    """Ratio of p95 E2E among exposed over unexposed requests under random merges, the run being the unit.

    Where a real server served the draws, the effect is taken from them; with too few of them, and in simulation, from
    the calibration behind the sidecar.  A calibrated simulator must agree: on the ratio, or for a claim on its `slo`,
    within the loads that the calibration saw.
    """
    own = measured_sides(compared(evidence, spec)) if spec.on_server else None
    if own is not None and (len(own.enough().exposed_ms) or spec.calibration is None):
        checks = [effect("effect", str(spec.server), own, spec.alpha, details=_own_details(evidence, spec))]
        if spec.calibration is not None:
            checks += [c for c in calibrated_checks(spec.calibration, spec.alpha) if c.name.startswith("agreement")]
        return GateResult("G1", TITLE, tuple(checks))
    if spec.calibration is None:
        reason = "no calibration: no real server has shown the effect, so nothing is said about serving SLOs"
        both = (Check("effect", "undecidable", reason), Check("agreement", "undecidable", reason))
        return GateResult("G1", TITLE, both)
    checks = calibrated_checks(spec.calibration, spec.alpha)
    if spec.on_server or slo is not None:
        checks = [c for c in checks if c.name.startswith("effect")]
    if slo is not None and not spec.on_server:
        checks += _for_claim(evidence, spec, slo)
    return GateResult("G1", TITLE, tuple(checks))


def _for_claim(evidence: Sequence[Evidence], spec: Spec, slo: Slo) -> list[Check]:
    """Whether the calibration speaks for a claim's load and its limit."""
    rows = spec.agreement.get(str(slo))
    if spec.support is None or rows is None:
        reason = f"the calibration's runs were not counted by {slo}"
        return [Check("agreement", "undecidable", reason)]
    return [support_check(evidence, spec, spec.support), *slo_checks(rows, slo, spec.alpha)]


# Of replays on a server ------------------------------------------------------------------------------------------


def measured_sides(evidence: Sequence[Evidence], phase: str = "e2e", arm: str = UNIFORM) -> Sides:
    """One run a seed: the replays of one arm together.

    The policy's own merges follow the load, so they say nothing about the effect of a merge; the draws do not.  The
    draws of a seed share its traffic, so the seed is the run.
    """
    found = [sides_of([r.rows for r in e.replays(arm)], phase) for e in evidence]
    table = np.array(found, np.float64).reshape(-1, 4)
    return Sides(table[:, 0], table[:, 1], table[:, 2].astype(np.int64), table[:, 3].astype(np.int64))


def sides_of(runs: Sequence[Measurements], phase: str = "e2e") -> tuple[float, float, int, int]:
    """p95 of exposed and unexposed requests of some replays together, and how many there are of each.

    A request that was not served is infinitely late.  So that a ratio stays a number, an infinite percentile counts
    as the time that the requests were arriving in: later than any request that was served while it mattered.
    """
    if not runs:
        return np.nan, np.nan, 0, 0
    pooled = Measurements.pooled(runs)
    exposed = pooled.exposure_ns > 0
    span_ms = max(m.span_ms for m in runs)
    top, bottom = (pooled.p95_ms(mask, phase) for mask in (exposed, ~exposed))
    return min(top, span_ms), min(bottom, span_ms), int(exposed.sum()), int((~exposed).sum())


def _own_details(evidence: Sequence[Evidence], spec: Spec) -> dict[str, object]:
    kept = compared(evidence, spec)
    own = measured_sides(kept, arm=POLICY)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = own.exposed_ms / own.unexposed_ms
    return {
        "policy_ratios": [float(x) if np.isfinite(x) else None for x in ratios],
        **_phases({phase: measured_sides(kept, phase).enough().ratio(spec.alpha) for phase in PHASES}),
    }


def effect(name: str, server: str, sides: Sides, alpha: float, details: Mapping[str, object] | None = None) -> Check:
    """H0: the ratio of p95 is at most MIN_RATIO, over runs with enough requests on both sides."""
    kept = sides.enough()
    found = kept.ratio(alpha)
    out = len(sides.exposed_ms) - len(kept.exposed_ms)
    left = f"; {out} of {len(sides.exposed_ms)} runs have fewer than {MIN_REQUESTS} requests on one side" if out else ""
    if found.outcome.pvalue is None or found.lower_bound is None or found.interval is None:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = ", ".join(f"{x:.2f}" for x in kept.exposed_ms / kept.unexposed_ms if np.isfinite(x))
        seen = f"; p95 of exposed over unexposed requests by run: {ratios}" if ratios else ""
        return Check(name, "undecidable", f"{found.outcome.reason}{left}{seen}", n=found.outcome.n)
    reason = (
        f"p95 of exposed over unexposed requests {found.ratio:.3f} in {found.outcome.n} runs on {server}, lower bound "
        f"{found.lower_bound:.3f}, minimum {MIN_RATIO:g}{left}"
    )
    return Check(
        name,
        "passed" if found.lower_bound > MIN_RATIO else "failed",
        reason,
        found.ratio,
        MIN_RATIO,
        found.outcome.n,
        (found.interval.lower, found.interval.upper),
        {"lower_bound": found.lower_bound, "run_ratios": np.exp(found.log_ratios).tolist(), **(details or {})},
    )


def _phases(found: Mapping[str, TransferRatio]) -> dict[str, object]:
    return {
        f"{phase}_ratio": [r.ratio, r.interval.lower, r.interval.upper]
        for phase, r in found.items()
        if r.interval is not None
    }


# Of a calibration ------------------------------------------------------------------------------------------------


def calibrated_checks(calibration: Mapping[str, Any], alpha: float) -> list[Check]:
    """Effect and agreement at every load of a calibration by itself.

    calibration : {"server", "date", "runs": [{"load", "exposed_p95_ms", "unexposed_p95_ms", "exposed", "unexposed",
    "simulated_exposed_p95_ms", "simulated_unexposed_p95_ms", and the same for "ttft_p95_ms" and "max_itl_p95_ms"},
    ...]}; a run that lacks one of these numbers leaves its load undecidable.
    """
    server, runs = str(calibration.get("server")), calibration.get("runs") or ()
    checks: list[Check] = []
    for load in dict.fromkeys(run.get("load") for run in runs) or [None]:
        mine = [run for run in runs if run.get("load") == load]
        suffix = f" ({load})" if load else ""
        phases = _phases({phase: _stated(mine, f"{phase}_").ratio(alpha) for phase in PHASES})
        checks.append(effect(f"effect{suffix}", server, _stated(mine, ""), alpha, phases))
        checks.append(_agreement(f"agreement{suffix}", mine, alpha))
    return checks


def _stated(runs: Sequence[Mapping[str, Any]], phase: str) -> Sides:
    exposed, unexposed = _column(runs, f"exposed_{phase}p95_ms"), _column(runs, f"unexposed_{phase}p95_ms")
    counts = [_count(runs, key) for key in ("exposed", "unexposed")]
    return Sides(exposed, unexposed, *counts)


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


def _count(runs: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.int64]:
    """One count a run, -1 where it is not stated."""
    found = [run.get(key) for run in runs]
    return np.array([v if isinstance(v, int) and not isinstance(v, bool) and v >= 0 else -1 for v in found], np.int64)


def _column(runs: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    """One number a run, NaN where it is absent or not a positive finite number."""
    found = np.full(len(runs), np.nan)
    for i, run in enumerate(runs):
        value = run.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf:
            found[i] = value
    return found
