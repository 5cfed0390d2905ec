"""Re-judging published comparisons: what their own numbers license.

Importers (`adapters.published`) turn files into runs and claims; `audit` computes for each pair of arms the realised
budget, the offered load, the published test and the same comparison per realised merge, and gives every claim one of
three verdicts: licensed, not licensed (which gate, by how much) or undecidable (what is missing).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from protocol.audit.explained import beside_claims
from protocol.audit.imported import Aggregate, Claim, Comparison, Run
from protocol.audit.pairs import (
    ALPHA,
    FEWEST_SEEDS,
    LOAD_RATIO,
    MOST_LATE_MS,
    PROGRESS_RATIO,
    SIMULATOR_RATIO,
    TRANSFER_RATIO,
    aggregate_summary,
    arm_summary,
    geometric,
    pair,
    replays_of,
    transfer_check,
)
from protocol.audit.windows import longest_gap_s
from protocol.gates.result import Check, Status, worst
from protocol.stats.equivalence import log_tost_paired

# Gates of a published claim --------------------------------------------------------------------------------------


def pair_gates(comparison: Comparison, found: Mapping[str, Any], envelope: Mapping[str, Any] | None) -> list[Check]:
    """The gates, in order, for "the policy places merges better than the other arm".

    envelope : the pair of the policy and the matched random control, when there is one.
    """
    return [
        _budget_gate(found),
        _corridor_gate(comparison, found["policy"], found["versus"]),
        _transfer_gate([run for run in comparison.runs if run.arm == found["policy"]]),
        _load_gate(comparison, found),
        _envelope_gate(comparison, found["policy"], envelope),
        _progress_gate(comparison, found),
    ]


def _progress_gate(comparison: Comparison, found: Mapping[str, Any]) -> Check:
    """Inner steps a second of the training runs behind the schedules; an arm that trains slower merges less often."""
    name = "G4 progress"
    ours, theirs = (arm_summary(comparison, found[side])["steps_per_s"] for side in ("policy", "versus"))
    if ours is None or theirs is None:
        return Check(name, "undecidable", "no inner steps, tokens or losses of the replayed schedules in the files")
    told = f"{_speed(ours)} inner steps/s behind the schedules of {found['policy']}, {_speed(theirs)} behind those of "
    told += found["versus"]
    n = len(found["seeds"])
    if ours[1] * PROGRESS_RATIO < theirs[0]:
        told += f": {found['policy']} trained at least {100 * (1 - ours[1] / theirs[0]):.0f} % slower"
        told += ", so its merges come less often by the clock for that alone"
        return Check(name, "failed", told, ours[1] / theirs[0], 1 / PROGRESS_RATIO, n)
    if ours[0] > theirs[1] * PROGRESS_RATIO:
        told += f": {found['policy']} trained at least {100 * (ours[0] / theirs[1] - 1):.0f} % faster"
        return Check(name, "failed", told, ours[0] / theirs[1], PROGRESS_RATIO, n)
    return Check(name, "undecidable", f"{told}; losses are not in the files")


def _speed(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"{low:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"


def _budget_gate(found: Mapping[str, Any]) -> Check:
    excess = found["budget_excess"]
    if excess["estimate"] is None:
        return Check("G0 budget", "undecidable", "neither realised merges nor schedule and replay lengths in the files")
    ours, theirs, low, high = excess["policy"], excess["versus"], excess["low"], excess["high"]
    told = f"{ours:.1f} windows ran for {found['policy']}, {theirs:.1f} for {found['versus']}"
    told += f"; difference {excess['estimate']:+.1f}, between {low:+.1f} and {high:+.1f}"
    status: Status = "passed" if low == high == 0 else "failed" if low > 0 or high < 0 else "undecidable"
    if high < 0:
        told += f", which works against {found['policy']}"
    if status == "undecidable":
        told += "; the merge logs would decide"
    return Check("G0 budget", status, told, excess["estimate"], 0.0, len(found["seeds"]), (low, high))


def _corridor_gate(comparison: Comparison, *arms: str) -> Check:
    longest = comparison.corridor_s[1]
    if longest is None:
        return Check("G0 corridor", "undecidable", "the corridor's longest gap in seconds is not known")
    replays = [(run.arm, replay) for run in comparison.runs if run.arm in arms for replay in replays_of(run)]
    known = [
        (arm, longest_gap_s(r.starts_s, min(r.schedule_s or r.run_s, r.run_s))) for arm, r in replays if r.starts_s
    ]
    over = [(arm, gap) for arm, gap in known if gap > longest]
    if over:
        arm, gap = max(over, key=lambda item: item[1])
        least = min(gap for _, gap in over)
        reason = f"{len(over)} of {len(known)} known schedules exceed the longest gap of {longest:.1f} s"
        reason += f" (gaps of {least:.0f} to {gap:.0f} s, the longest in {arm})"
        return Check("G0 corridor", "failed", reason, gap, longest, len(known))
    if replays and len(known) == len(replays):
        return Check("G0 corridor", "passed", f"every gap is at most {longest:.1f} s", n=len(known), threshold=longest)
    return Check("G0 corridor", "undecidable", "merge starts are not in the files", threshold=longest)


def _transfer_gate(runs: Sequence[Run]) -> Check:
    return transfer_check([run.transfer for run in runs])


def _load_gate(comparison: Comparison, found: Mapping[str, Any]) -> Check:
    load = found["load_pct"]
    fault = _client_fault([run for run in comparison.runs if run.arm in (found["policy"], found["versus"])])
    if fault is not None:
        return fault
    if load["mean"] is None:
        return Check("G2 load match", "undecidable", "the arms' request counts are not both in the files")
    told = f"{found['policy']} served {load['mean']:+.2f} % requests against {found['versus']}"
    if load["low"] is not None:
        told += f", 95 % interval [{load['low']:+.2f}, {load['high']:+.2f}] %"
    limits = None if load["low"] is None else (load["low"], load["high"])
    if load["equal"] and load["same_arrivals"]:
        reason = f"{told}; the same arrivals and tokens on every seed"
        return Check("G2 load match", "passed", reason, load["mean"], 0.0, load["n"], limits)
    if load["equal"]:
        reason = f"{told}; equal counts, but the arrivals themselves are not in the files"
        return Check("G2 load match", "undecidable", reason, load["mean"], 0.0, load["n"], limits)
    p = found["load_equivalence_p"]
    if p is not None:
        told += f"; equivalence within {100 * (LOAD_RATIO - 1):.0f} %: p = {p:.3f}"
    return Check("G2 load match", "failed", told, load["mean"], 0.0, load["n"], limits)


def _client_fault(runs: Sequence[Run]) -> Check | None:
    """A client that did not offer what it was to offer, or not when; None where nothing of the kind is known."""
    short = [run for run in runs if run.achieved is not None and run.achieved < 1 / LOAD_RATIO]
    if short:
        worst_run = min(short, key=lambda run: run.achieved or 0.0)
        reason = f"{len(short)} of {len(runs)} runs offered less than they were to: {worst_run.arm} on seed "
        reason += f"{worst_run.seed} achieved {100 * (worst_run.achieved or 0.0):.1f} % of the rate"
        return Check("G2 load match", "failed", reason, worst_run.achieved, 1 / LOAD_RATIO, len(runs))
    late = [run for run in runs if run.late_ms is not None and run.late_ms > MOST_LATE_MS]
    if late:
        worst_run = max(late, key=lambda run: run.late_ms or 0.0)
        reason = f"the client sent late in {len(late)} of {len(runs)} runs: by {worst_run.late_ms:.3g} ms (p99) for "
        reason += f"{worst_run.arm} on seed {worst_run.seed}, at most {MOST_LATE_MS:g} ms wanted"
        return Check("G2 load match", "failed", reason, worst_run.late_ms, MOST_LATE_MS, len(runs))
    return None


def _envelope_gate(comparison: Comparison, policy: str, envelope: Mapping[str, Any] | None) -> Check:
    name = "G3 random envelope"
    if envelope is None or not envelope["seeds"]:
        reason = comparison.control_reason or "no matched random control in the files"
        return Check(name, "undecidable", reason)
    runs = [run for run in comparison.runs if run.arm == policy and run.seed is not None]
    n, offered = len(envelope["seeds"]), {run.offered for run in runs}
    told = f"against {envelope['versus']}: " + _p_told(envelope)
    if len(runs) > 1 and len(offered) == 1 and None not in offered:
        reason = f"{told}; {n} seed names share one load ({next(iter(offered))}), so they are repeats, not replicates"
        return Check(name, "failed", reason, envelope["p_sign_flip"], ALPHA, n)
    ps = [envelope["p_sign_flip"], envelope["p_stratified"]]
    if n < FEWEST_SEEDS or envelope["p_sign_flip"] is None or envelope["p_stratified"] is None:
        missing = f"{n} seeds, {FEWEST_SEEDS} needed" if n < FEWEST_SEEDS else "no draws of their own for every seed"
        return Check(name, "undecidable", f"{told}; {missing}", envelope["p_sign_flip"], ALPHA, n)
    p = max(q for q in ps if q is not None)
    return Check(name, "passed" if p <= ALPHA else "failed", told, p, ALPHA, n)


def _p_told(found: Mapping[str, Any]) -> str:
    if found["p_sign_flip"] is None:
        return f"no p-value ({found['p_reason']})"
    more = "" if found["p_stratified"] is None else f", stratified p = {found['p_stratified']:.4f}"
    return f"sign-flip p = {found['p_sign_flip']:.4f} (least attainable {found['p_floor']:.4f}){more}"


# Verdicts --------------------------------------------------------------------------------------------------------


_VERDICTS = {"passed": "licensed", "failed": "not licensed", "undecidable": "undecidable"}


def judge(comparison: Comparison, claim: Claim) -> dict[str, Any]:
    """Verdict of one claim with its evidence: checks, the pair's numbers, and reasons in words."""
    if claim.kind in ("transfer", "no transfer"):
        return _judge_transfer(comparison, claim)
    if claim.kind == "measured":
        missing = "one measurement a configuration, so without an interval, and nothing about serving or placement"
        return _said(claim, "licensed", [f"as a measurement only: {missing}"], [])
    found = pair(comparison, claim.policy, claim.versus)
    mean_only = next((a for a in comparison.aggregates if a.arm == claim.versus), None)
    if not found["seeds"] and mean_only is not None:
        return _judge_means(comparison, claim, mean_only)
    if not found["seeds"]:
        reason = f"no seed on which both {claim.policy} and {claim.versus} have a value"
        return _said(claim, "undecidable", [reason], [], found)
    if claim.kind == "not better":
        return _judge_caution(claim, found)
    random = comparison.random_arm
    envelope = pair(comparison, claim.policy, random) if random and random != claim.policy else None
    checks = pair_gates(comparison, found, envelope)
    p = found["p_sign_flip"]
    raw: Status = "undecidable" if p is None or found["p_floor"] > ALPHA else "passed" if p <= ALPHA else "failed"
    checks.insert(0, Check("published difference", raw, _p_told(found), p, ALPHA, len(found["seeds"])))
    status = worst(check.status for check in checks)
    reasons = [f"{c.name}: {c.reason}" for c in checks if c.status == status != "passed"]
    return _said(claim, _VERDICTS[status], reasons, checks, found)


def _judge_means(comparison: Comparison, claim: Claim, versus: Aggregate) -> dict[str, Any]:
    """Against an arm of which only mean and spread were published: the budgets can be judged, a test cannot be made."""
    ours, theirs = arm_summary(comparison, claim.policy), aggregate_summary(comparison, versus)
    test = Check("published difference", "undecidable", f"the runs of {versus.arm} were not published, only their mean")
    if ours["windows"] is None or theirs["windows"] is None:
        return _said(claim, "undecidable", [f"{test.name}: {test.reason}"], [test])
    low = theirs["windows_low"] - ours["windows_high"]
    high = theirs["windows_high"] - ours["windows_low"]
    status: Status = "failed" if low > 0 or high < 0 else "undecidable"
    told = (
        f"{ours['windows']:.1f} windows ran for {claim.policy}, {theirs['windows']:.1f} for {versus.arm}; difference "
    )
    told += f"{theirs['windows'] - ours['windows']:+.1f}, between {low:+.1f} and {high:+.1f}"
    budget = Check("G0 budget", status, told, theirs["windows"] - ours["windows"], 0.0, versus.n, (low, high))
    per = ours["pct_per_window"]["mean"]
    left = f"per window {_points(per)} of all requests for {claim.policy}, {_points(theirs['pct_per_window'])} for "
    left += f"{versus.arm}; whether that difference is more than chance cannot be told without the runs"
    checks = [test, budget]
    return _said(claim, _VERDICTS[worst(c.status for c in checks)], [f"{budget.name}: {told}", left], checks)


def _points(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} pp"


def _judge_caution(claim: Claim, found: Mapping[str, Any]) -> dict[str, Any]:
    """ "Not shown to be better": licensed unless the data, as published or at equal budget, show it after all."""
    p, middle = found["p_sign_flip"], found["adjusted_pp"]["estimate"]
    if p is None:
        return _said(claim, "undecidable", [_p_told(found)], [], found)
    told = [_p_told(found)]
    if middle["high"] is not None:
        limits = f"[{middle['low']:+.2f}, {middle['high']:+.2f}]"
        told.append(f"at equal budget {middle['mean']:+.2f} pp, 95 % interval {limits}")
    if p <= ALPHA:
        return _said(claim, "not licensed", told, [], found)
    if middle["high"] is not None and middle["high"] < 0:
        return _said(claim, "undecidable", [*told, "which leaves out zero: the budgets decide"], [], found)
    told.append("no difference was shown; that is not a proof of equality")
    return _said(claim, "licensed", told, [], found)


def _judge_transfer(comparison: Comparison, claim: Claim) -> dict[str, Any]:
    group = [t for t in comparison.transfers if t.group == claim.policy]
    ratios = [t.pressure if claim.versus == "pressure" else t.sync for t in group]
    check = transfer_check(ratios)
    if claim.kind == "transfer" or check.status == "undecidable":
        return _said(claim, _VERDICTS[check.status], [f"{check.name}: {check.reason}"], [check])
    small = check.interval is not None and check.interval[1] < TRANSFER_RATIO
    verdict = "licensed" if small else "not licensed"
    return _said(claim, verdict, [f"{check.reason}; no effect means below {TRANSFER_RATIO:.2f}"], [])


def _said(
    claim: Claim, verdict: str, reasons: list[str], checks: Iterable[Check], found: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "text": claim.text,
        "kind": claim.kind,
        "policy": claim.policy,
        "versus": claim.versus,
        "printed_p": claim.printed_p,
        "verdict": verdict,
        "reasons": reasons,
        "checks": [dict(vars(check)) | {"details": dict(check.details)} for check in checks],
        "pair": found,
    }


def simulator_agreement(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Real over simulated transfer ratio over runs that have both, with its equivalence test; None without any."""
    both = [(r.transfer, r.simulated_transfer) for r in runs if r.transfer and r.simulated_transfer]
    if not both:
        return None
    found = log_tost_paired([a for a, _ in both], [b for _, b in both], SIMULATOR_RATIO)
    return {
        "n": len(both),
        "real": geometric([a for a, _ in both]),
        "simulated": geometric([b for _, b in both]),
        "ratio": found.estimate,
        "interval": None if found.interval is None else [found.interval.lower, found.interval.upper],
        "p": found.outcome.pvalue,
        "margin": SIMULATOR_RATIO,
        "reason": found.outcome.reason,
    }


def audit(comparison: Comparison) -> dict[str, Any]:
    """Everything that the page shows about one comparison, as plain values; NaN and infinity become None."""
    arms = list(dict.fromkeys(run.arm for run in comparison.runs))
    return finite({
        "name": comparison.name,
        "title": comparison.title,
        "arms": [arm_summary(comparison, arm) for arm in arms],
        "aggregates": [aggregate_summary(comparison, found) for found in comparison.aggregates],
        "transfers": [dict(vars(t)) for t in comparison.transfers],
        "claims": [judge(comparison, claim) for claim in comparison.claims],
        "simulator": simulator_agreement(comparison.runs),
        "notes": list(comparison.notes),
        "printed": [list(row) for row in comparison.printed],
        "table": comparison.table,
        "findings": [dict(vars(f)) for f in (*beside_claims(comparison), *comparison.findings)],
        "corridor_s": list(comparison.corridor_s),
        "random_arm": comparison.random_arm,
    })  # fmt: skip


def summary(audited: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence a comparison with published wins: how many are still wins at equal budget, and what the arms ran."""
    told = []
    for found in audited:
        wins = [c for c in found["claims"] if c["kind"] == "better" and c["pair"] and c["pair"]["seeds"]]
        wins = [c for c in wins if c["pair"]["survives"]["verdict"] != "no win"]
        if not wins:
            continue
        names = {
            v: [c["versus"] for c in wins if c["pair"]["survives"]["verdict"] == v] for v in ("yes", "undecidable")
        }
        text = f"{found['title']}: {len(wins)} published win{'s' if len(wins) > 1 else ''} of {wins[0]['policy']}; "
        text += f"at equal budget {_count(names['yes'])} {'survives' if len(names['yes']) == 1 else 'survive'}"
        text += f", {_count(names['undecidable'])} cannot be told" if names["undecidable"] else ""
        ran = [a for a in found["arms"] if a["windows"] is not None]
        if ran:
            least, most = min(ran, key=lambda a: a["windows"]), max(ran, key=lambda a: a["windows"])
            text += f".  Merge windows that ran: from {least['windows']:.1f} ({least['arm']}) to {most['windows']:.1f} "
            text += f"({most['arm']})"
        per = [a["per_window"]["mean"] for a in ran if a["per_window"]["mean"] is not None]
        if len(per) > 1:
            text += f"; violations per window from {min(per):.1f} to {max(per):.1f}"
        told.append(text + ".")
    return told


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def finite(value: Any) -> Any:
    """The same with every number that is not finite as None, and tuples as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return finite(value.item())
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value
