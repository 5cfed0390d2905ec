"""Re-judging published comparisons: what their own numbers license.

Importers (`adapters.published`) turn files into runs and claims; `audit` computes for each pair of arms the realised
budget, the offered load, the published test and the same comparison per realised merge, and gives every claim one of
three verdicts: licensed, not licensed (which gate, by how much) or undecidable (what is missing).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from protocol.errors import BadInput
from protocol.gates.result import Check, Status, worst
from protocol.published import Aggregate, Claim, Comparison, Run
from protocol.realised import Realised, Replay, longest_gap_s, realised
from protocol.seeds import generator
from protocol.stats.equivalence import log_tost_paired
from protocol.stats.randomization import sign_flip, stratified_randomization

ALPHA = 0.05
#: Fewest seeds on which the envelope gate decides anything.
FEWEST_SEEDS = 8
FEWEST_TRANSFER_RUNS = 5
#: A transfer must exceed this ratio, and served loads must agree within this one.
TRANSFER_RATIO, LOAD_RATIO, SIMULATOR_RATIO = 1.10, 1.02, 1.20


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
    half = float(stats.t.ppf((1 + level) / 2, len(x) - 1) * stats.sem(x))
    return found | {"low": found["mean"] - half, "high": found["mean"] + half}


def _by_seed(runs: Sequence[Run], arm: str) -> dict[int, list[Run]]:
    seeds: dict[int, list[Run]] = {}
    for run in runs:
        if run.arm == arm and run.seed is not None:
            seeds.setdefault(run.seed, []).append(run)
    return seeds


def _replays(run: Run) -> tuple[Replay, ...]:
    return run.draws or ((run.replay,) if run.replay is not None else ())


def _mean(values: Sequence[float | None]) -> float:
    """NaN as soon as one value is missing: a mean over what happens to be there would hide the rest."""
    return float(np.mean([math.nan if v is None else v for v in values])) if values else math.nan


_COUNTS = ("windows", "low", "high")


def budget(run: Run, least_gap_s: float | None) -> Realised | None:
    """Windows that ran, or None where the files do not tell."""
    if run.merges is not None and math.isfinite(run.merges):
        return Realised(run.merges, math.floor(run.merges), math.ceil(run.merges), "as stated in the file", True)
    try:
        found = [realised(replay, least_gap_s) for replay in _replays(run)]
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
    budgets = [budget(run, comparison.corridor_s[0]) for run in runs]
    known = [b for b in budgets if b is not None]
    requests = [run.requests for run in runs if run.requests is not None]
    complete = len(known) == len(runs) > 0
    labels = [run.label_windows for run in runs if run.label_windows is not None]
    replays = [replay for run in runs for replay in _replays(run)]
    return {
        "arm": arm,
        "runs": len(runs),
        "seeds": sorted({run.seed for run in runs if run.seed is not None}),
        "violation_pct": t_interval([_nan(run.violation_pct) for run in runs]),
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
        "per_window": t_interval([
            _nan(run.violation_pct) * _nan(run.requests) / 100 / b.windows if b and b.windows > 0 else math.nan
            for run, b in zip(runs, budgets, strict=True)
        ]),
        "derived": next((run.derived for run in runs if run.derived), ""),
    }  # fmt: skip


def aggregate_summary(comparison: Comparison, found: Aggregate) -> dict[str, Any]:
    """An arm of which only mean and spread over runs were published, with the windows of its schedules."""
    budgets = [realised(replay, comparison.corridor_s[0]) for replay in found.replays]
    means = {name: float(np.mean([getattr(b, name) for b in budgets])) if budgets else None for name in _COUNTS}
    return {
        **vars(found),
        "replays": len(budgets),
        "windows": means["windows"],
        "windows_low": means["low"],
        "windows_high": means["high"],
        "pct_per_window": found.mean_pct / means["windows"] if means["windows"] else None,
    }


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
    """One seed of a pair: means over an arm's draws on that seed."""

    seed: int
    pct: tuple[float, float]
    requests: tuple[float, float]
    windows: tuple[float, float]
    least: tuple[float, float]
    most: tuple[float, float]
    draws: tuple[float, ...]


def _of(found: Realised | None, name: str) -> float | None:
    return None if found is None else float(getattr(found, name))


def _units(comparison: Comparison, policy: str, versus: str) -> list[_Unit]:
    ours, theirs = _by_seed(comparison.runs, policy), _by_seed(comparison.runs, versus)
    units = []
    for seed in sorted(set(ours) & set(theirs)):
        sides = [ours[seed], theirs[seed]]
        found = [[budget(run, comparison.corridor_s[0]) for run in side] for side in sides]
        windows, least, most = ([_mean([_of(b, name) for b in side]) for side in found] for name in _COUNTS)
        pct = [_mean([run.violation_pct for run in side]) for side in sides]
        requests = [_mean([run.requests for run in side]) for side in sides]
        draws = tuple(_nan(run.violation_pct) for run in theirs[seed] if run.draw is not None)
        both = [(values[0], values[1]) for values in (pct, requests, windows, least, most)]
        units.append(_Unit(seed, both[0], both[1], both[2], both[3], both[4], draws))
    return units


def pair(comparison: Comparison, policy: str, versus: str) -> dict[str, Any]:
    """The comparison of two arms as published, per realised window and at equal budget; policy minus versus.

    Budget adjustment takes violations as proportional to windows: the other arm's rate is scaled to the policy's
    number of windows.  Each is given at the estimated windows and at the bounds worst and best for the policy.
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
    adjusted = {name: t_interval([_adjusted(u, *sides) for u in units]) for name, sides in _SIDES.items()}
    return {
        "policy": policy,
        "versus": versus,
        "seeds": [u.seed for u in units],
        "raw_pp": t_interval(raw) | {"by_seed": raw},
        "p_sign_flip": test.pvalue,
        "p_reason": test.reason,
        "p_floor": test.floor,
        "p_stratified": envelope.pvalue if envelope else None,
        "per_window": {name: t_interval([_per_window(u, *sides) for u in units]) for name, sides in _SIDES.items()},
        "adjusted_pp": adjusted,
        "budget_excess": _excess(units),
        "load_pct": load | {"equal": bool(units) and all(u.requests[0] == u.requests[1] for u in units)},
        "load_equivalence_p": tost.outcome.pvalue,
        "survives": _survival(raw, adjusted),
    }


#: Which windows to take for (policy, versus): 0 estimate, -1 least, 1 most.
_SIDES = {"estimate": (0, 0), "least favourable": (-1, 1), "most favourable": (1, -1)}


def _pick(unit: _Unit, side: int, which: int) -> float:
    n = (unit.least, unit.windows, unit.most)[which + 1][side]
    return n if n > 0 else math.nan


def _per_window(unit: _Unit, ours: int, theirs: int) -> float:
    mine = unit.pct[0] * unit.requests[0] / 100 / _pick(unit, 0, ours)
    return mine - unit.pct[1] * unit.requests[1] / 100 / _pick(unit, 1, theirs)


def _adjusted(unit: _Unit, ours: int, theirs: int) -> float:
    return unit.pct[0] - unit.pct[1] * _pick(unit, 0, ours) / _pick(unit, 1, theirs)


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


def _survival(raw: Sequence[float], adjusted: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Whether a lower published rate is still lower at equal budget: yes, no, or cannot be told."""
    if not raw or not np.isfinite(raw).all():
        return {"verdict": "undecidable", "reason": "a published value is missing or not a number"}
    if np.mean(raw) >= 0:
        return {"verdict": "no win", "reason": "the published mean is not lower"}
    middle, worst_case = adjusted["estimate"], adjusted["least favourable"]
    if middle["high"] is None or worst_case["high"] is None:
        return {"verdict": "undecidable", "reason": middle["reason"] or "the realised windows are not known"}
    if middle["high"] >= 0:
        return {"verdict": "no", "reason": "at equal budget the interval reaches zero"}
    if worst_case["high"] >= 0:
        return {"verdict": "undecidable", "reason": "yes at the estimated windows, not at their bounds"}
    return {"verdict": "yes", "reason": "lower at equal budget at every number of windows that the rule allows"}


# Gates of a published claim --------------------------------------------------------------------------------------


def pair_gates(comparison: Comparison, found: Mapping[str, Any], envelope: Mapping[str, Any] | None) -> list[Check]:
    """The gates, in order, for "the policy places merges better than the other arm".

    envelope : the pair of the policy and the matched random control, when there is one.
    """
    return [
        _budget_gate(found),
        _corridor_gate(comparison, found["policy"], found["versus"]),
        _transfer_gate([run for run in comparison.runs if run.arm == found["policy"]]),
        _load_gate(found),
        _envelope_gate(comparison, found["policy"], envelope),
        Check("G4 progress", "undecidable", "no inner steps, tokens or losses of the replayed schedules in the files"),
    ]


def _budget_gate(found: Mapping[str, Any]) -> Check:
    excess = found["budget_excess"]
    if excess["estimate"] is None:
        return Check("G0 budget", "undecidable", "neither realised merges nor schedule and replay lengths in the files")
    ours, theirs, low, high = excess["policy"], excess["versus"], excess["low"], excess["high"]
    told = f"{ours:.1f} windows ran for {found['policy']}, {theirs:.1f} for {found['versus']}"
    told += f"; difference {excess['estimate']:+.1f}, between {low:+.1f} and {high:+.1f}"
    status: Status = "passed" if low == high == 0 else "failed" if low > 0 or high < 0 else "undecidable"
    if status == "undecidable":
        told += "; the merge logs would decide"
    return Check("G0 budget", status, told, excess["estimate"], 0.0, len(found["seeds"]), (low, high))


def _corridor_gate(comparison: Comparison, *arms: str) -> Check:
    longest = comparison.corridor_s[1]
    if longest is None:
        return Check("G0 corridor", "undecidable", "the corridor's longest gap in seconds is not known")
    replays = [(run.arm, replay) for run in comparison.runs if run.arm in arms for replay in _replays(run)]
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


def transfer_check(ratios: Sequence[float | None]) -> Check:
    """One-sided t over independent runs on the log ratio of p95 in windows over outside, against TRANSFER_RATIO."""
    name, known = "G1 transfer", [r for r in ratios if r is not None]
    if not known:
        return Check(name, "undecidable", "no ratio of p95 in windows over outside in the files")
    if len(known) < FEWEST_TRANSFER_RUNS or len(known) < len(ratios):
        reason = f"{len(known)} runs with a ratio (geometric mean {_geometric(known)}), {FEWEST_TRANSFER_RUNS} needed"
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


def _geometric(ratios: Sequence[float]) -> str:
    usable = all(math.isfinite(r) and r > 0 for r in ratios)
    return f"{math.exp(np.mean(np.log(ratios))):.3f}" if usable else "unknown"


def _load_gate(found: Mapping[str, Any]) -> Check:
    load = found["load_pct"]
    if load["mean"] is None:
        return Check("G2 load match", "undecidable", "the arms' request counts are not both in the files")
    told = f"{found['policy']} served {load['mean']:+.2f} % requests against {found['versus']}"
    if load["low"] is not None:
        told += f", 95 % interval [{load['low']:+.2f}, {load['high']:+.2f}] %"
    limits = None if load["low"] is None else (load["low"], load["high"])
    if load["equal"]:
        reason = f"{told}; equal counts, but the arrivals themselves are not in the files"
        return Check("G2 load match", "undecidable", reason, load["mean"], 0.0, load["n"], limits)
    p = found["load_equivalence_p"]
    if p is not None:
        told += f"; equivalence within {100 * (LOAD_RATIO - 1):.0f} %: p = {p:.3f}"
    return Check("G2 load match", "failed", told, load["mean"], 0.0, load["n"], limits)


def _envelope_gate(comparison: Comparison, policy: str, envelope: Mapping[str, Any] | None) -> Check:
    name = "G3 random envelope"
    if envelope is None or not envelope["seeds"]:
        return Check(name, "undecidable", "no matched random control in the files")
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
    if not found["seeds"]:
        reason = f"no seed on which both {claim.policy} and {claim.versus} have a value"
        return _said(claim, "undecidable", [reason], [], found)
    if claim.kind == "not better":
        return _judge_caution(claim, found)
    random = comparison.random_arm
    envelope = pair(comparison, claim.policy, random) if random and random != claim.policy else None
    checks = pair_gates(comparison, found, envelope)
    p = found["p_sign_flip"]
    raw: Status = "passed" if p is not None and p <= ALPHA else "undecidable" if p is None else "failed"
    checks.insert(0, Check("published difference", raw, _p_told(found), p, ALPHA, len(found["seeds"])))
    status = worst(check.status for check in checks)
    reasons = [f"{c.name}: {c.reason}" for c in checks if c.status == status != "passed"]
    return _said(claim, _VERDICTS[status], reasons, checks, found)


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
        "real": _geometric([a for a, _ in both]),
        "simulated": _geometric([b for _, b in both]),
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
        "corridor_s": list(comparison.corridor_s),
        "random_arm": comparison.random_arm,
    })  # fmt: skip


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
