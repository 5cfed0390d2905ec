"""What the count of merge windows alone explains of a published comparison, and why it may explain nothing."""

from __future__ import annotations

import math

import numpy as np

from protocol.audit.imported import Comparison, Finding, Run
from protocol.audit.pairs import COUNT, RATE, TIME, budget, by_denominator, pair, transfer_check

#: Fewest runs over which a correlation or a line is given.
FEWEST_RUNS = 10


def beside_claims(comparison: Comparison) -> tuple[Finding, ...]:
    """What the counts of windows, and the denominators, say of a comparison beside its claims."""
    return (*by_windows(comparison), *by_denominators(comparison))


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


def by_denominators(comparison: Comparison) -> tuple[Finding, ...]:
    """Each difference at equal budget by every denominator of a closed loop; empty where loads were equal."""
    if transfer_check([run.transfer for run in comparison.runs]).status == "failed":
        return ()
    told = []
    for claim in comparison.claims:
        basis = pair(comparison, claim.policy, claim.versus)["basis"] if claim.kind == "better" else RATE
        limits = by_denominator(comparison, claim.policy, claim.versus) if basis == TIME else {}
        if {RATE, COUNT, TIME} <= limits.keys():
            three = [
                f"{one['mean']:+.2f} [{one['low']:+.2f}, {one['high']:+.2f}]"
                for one in (limits[how] for how in (RATE, COUNT, TIME))
            ]
            told.append(f"{claim.versus} {', '.join(three)}")
    if not told:
        return ()
    text = (
        f"In pp, as plain rates, as late requests over the policy's number of requests, and as {TIME}: "
        f"{'; '.join(told)}.  Plain rates count it in favour of the arm with fewer windows that a loop which waits "
        "asks a slow server less often."
    )
    return (Finding("equal budget by denominator", f"{len(told)} pairs", text),)


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
        rates = _explained(comparison, policy, [(run, w, p) for run, w, p in known])
        if rates is None:
            continue
        line, shares = rates
        told = ", ".join(f"{share:.0f} % of the gap to {arm}" for arm, share in shares.items())
        text = (
            f"A line through the other arms' runs ({line[0]:.2f} pp a window, {line[1]:+.2f} pp at none) predicts from "
            f"the two counts alone {told}.  What is left for placement is the rest."
        )
        every = list(shares.values())
        if all(run.requests is not None for run, _, _ in known):
            # A slower loop is asked less: the numbers of late requests carry no denominator.
            counts = _explained(comparison, policy, [(run, w, p * float(run.requests or 0)) for run, w, p in known])
            if counts is not None:
                also = list(counts[1].values())
                text += f"  Of the numbers of late requests, in place of their rates, {_hull(also)} %."
                every += also
        found.append(Finding(f"gaps of {policy} explained by counts", f"{_hull(every)} %", text))
    return tuple(found)


def _explained(
    comparison: Comparison, policy: str, known: list[tuple[Run, float, float]]
) -> tuple[tuple[float, float], dict[str, float]] | None:
    """Slope and intercept of a line through the runs of the other arms, and the share in percent of the policy's gap
    to each arm that it claims to beat which the line predicts.  known : runs, their windows, and what is explained."""
    others = [(w, y) for run, w, y in known if run.arm != policy]
    arms = {arm: [(w, y) for run, w, y in known if run.arm == arm] for arm in {run.arm for run, _, _ in known}}
    if len(others) < FEWEST_RUNS or policy not in arms:
        return None
    slope, intercept = np.polyfit([w for w, _ in others], [y for _, y in others], 1)
    middle = {arm: np.mean(values, axis=0) for arm, values in arms.items()}
    shares: dict[str, float] = {}
    for claim in comparison.claims:
        if claim.kind == "better" and claim.policy == policy and claim.versus in middle:
            windows, gap = middle[claim.versus] - middle[policy]
            if gap > 0:
                shares[claim.versus] = 100 * float(slope * windows / gap)
    return ((float(slope), float(intercept)), shares) if shares else None


def _hull(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"
