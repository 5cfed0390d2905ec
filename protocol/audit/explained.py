"""What the count of merge windows alone explains of a published comparison, and why it may explain nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from protocol.audit.imported import Comparison, Finding, Run
from protocol.audit.pairs import budget, pair, transfer_check

#: Fewest runs over which a correlation or a line is given.
FEWEST_RUNS = 10


def by_windows(comparison: Comparison) -> tuple[Finding, ...]:
    """Correlation of violations with windows over all runs, and the share of each published gap that a line through
    the other arms' runs predicts from the two counts of windows.  Empty where windows or rates are not known."""
    known = [
        (run, found.windows, float(run.violation_pct))
        for run in comparison.runs
        for found in [budget(run, comparison.corridor_s)]
        if found is not None and run.violation_pct is not None and math.isfinite(run.violation_pct) and not run.draws
    ]
    if len(known) < FEWEST_RUNS or len(known) < len(comparison.runs):
        return ()
    windows, rates = np.array([w for _, w, _ in known]), np.array([p for _, _, p in known])
    if np.ptp(windows) == 0 or np.ptp(rates) == 0:
        return ()
    r = float(np.corrcoef(windows, rates)[0, 1])
    n = len(known)
    if transfer_check([run.transfer for run in comparison.runs]).status == "failed":
        return (_idle(comparison, r, n),)
    text = f"Violation rates follow the number of merge windows that ran: r = {r:.3f} over {n} runs of all arms"
    return (Finding("windows and violations", f"r = {r:.3f}", f"{text}."), *_shares(comparison, known))


def _idle(comparison: Comparison, r: float, n: int) -> Finding:
    """Merges that cost nothing cannot be placed better or worse."""
    check = transfer_check([run.transfer for run in comparison.runs])
    rates = [float(np.mean([run.violation_pct for run in comparison.runs if run.arm == arm]))
             for arm in dict.fromkeys(run.arm for run in comparison.runs)]  # fmt: skip
    text = (
        f"{check.reason}, so no placement of merges can matter here: the arms lie between {min(rates):.1f} and "
        f"{max(rates):.1f} % whatever number of windows ran (r = {r:.2f} over {n} runs).  What makes requests late here"
        " is not the merges (a stress that follows something else), and it does so in every arm."
    )
    return Finding("why no arm differs", f"r = {r:.2f}", text)


def _shares(comparison: Comparison, known: list[tuple[Run, float, float]]) -> tuple[Finding, ...]:
    found = []
    for policy in dict.fromkeys(claim.policy for claim in comparison.claims if claim.kind == "better"):
        others = [(w, p) for run, w, p in known if run.arm != policy]
        mine = [w for run, w, _ in known if run.arm == policy]
        if len(others) < FEWEST_RUNS or not mine:
            continue
        slope, intercept = np.polyfit([w for w, _ in others], [p for _, p in others], 1)
        shares: dict[str, float] = {}
        for claim in comparison.claims:
            gap: dict[str, Any] = pair(comparison, policy, claim.versus)
            excess, mean = gap["budget_excess"]["estimate"], gap["raw_pp"]["mean"]
            if claim.kind == "better" and claim.policy == policy and mean and mean < 0 and excess is not None:
                shares[claim.versus] = 100 * -slope * excess / mean
        if not shares:
            continue
        told = ", ".join(f"{share:.0f} % of the gap to {arm}" for arm, share in shares.items())
        low, high = min(shares.values()), max(shares.values())
        text = (
            f"A line through the other arms' runs ({slope:.2f} pp a window, {intercept:+.2f} pp at none) predicts from "
            f"the two counts alone {told}.  What is left for placement is the rest."
        )
        found.append(Finding(f"gaps of {policy} explained by counts", f"{low:.0f} to {high:.0f} %", text))
    return tuple(found)
