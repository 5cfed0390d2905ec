"""G0: the run was what it claims to be.  Deterministic; there is no p-value in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.evidence.store import NO_SYNC, POLICY, UNIFORM, SeedEvidence
from protocol.gates.peers import budget_check, corridor_check
from protocol.gates.result import Check, GateResult
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Peers
from protocol.replay.measurements import FAILED, REFUSED, SERVED


def integrity_gate(
    evidence: Sequence[SeedEvidence],
    corridor: Corridor,
    planner: bool,
    recorded: bool = False,
    peers: Peers | None = None,
) -> GateResult:
    """Corridor, realised budget, causality, determinism, completeness and distinct seeds (SPEC 6, G0).

    planner : the schedule comes from something that sees the whole trace.  recorded : it comes from a log of what
    already happened, which can neither be run again nor be shown another future.  peers : groups of islands merge on
    their own, each island in a corridor of its own.
    """
    if not evidence:
        return GateResult("G0", "integrity", (Check("completeness", "undecidable", "no seed was run", n=0),))
    unplaced = [e.seed for e in evidence if POLICY not in e.placed or len(e.placed[POLICY]) != 1]
    if unplaced:
        reason = f"seed {unplaced[0]}: not exactly one schedule of the policy"
        return GateResult("G0", "integrity", (Check("completeness", "failed", reason, n=len(evidence)),))
    if peers is not None:
        checks = [corridor_check(evidence, peers), budget_check(evidence, peers)]
    else:
        checks = [_corridor(evidence, corridor, recorded), _budget(evidence, corridor)]
    checks.append(_determinism(evidence, recorded))
    checks += [_causality(evidence, planner, recorded), _completeness(evidence), distinct_seeds(evidence)]
    return GateResult("G0", "integrity", tuple(checks))


def _corridor(evidence: Sequence[SeedEvidence], corridor: Corridor, recorded: bool) -> Check:
    if recorded and not any(e.corridor_violation or len(e.placed[POLICY].gaps) for e in evidence):
        reason = "the log has no merge: a valid no-sync arm, in which there is no placement to judge"
        return Check("corridor", "undecidable", reason, n=len(evidence))
    for e in evidence:
        if e.corridor_violation:
            return Check("corridor", "failed", f"seed {e.seed}: {e.corridor_violation}", n=len(evidence))
        for gaps in e.placed[POLICY].rows():
            stored = corridor.violation(corridor.start_ns(gaps))
            if stored:
                return Check("corridor", "failed", f"seed {e.seed}: {stored}", n=len(evidence))
    merges = sum(len(e.placed[POLICY].gaps) for e in evidence)
    forced = sum(e.forced for e in evidence)
    reason = f"{merges} merges inside the corridor, {forced} of them forced by H_max"
    return Check("corridor", "passed", reason, n=len(evidence), details={"merges": merges, "forced": forced})


def _budget(evidence: Sequence[SeedEvidence], corridor: Corridor) -> Check:
    realised = []
    for e in evidence:
        budget = int(e.placed[POLICY].lengths[0])
        realised.append(budget)
        if budget == 0 and not e.corridor_violation:
            return Check(
                "budget", "undecidable", f"seed {e.seed}: no merge was made, so there is no placement to judge"
            )
        controls = e.placed.get(UNIFORM)
        if controls is None or not len(controls):
            return Check("budget", "failed", f"seed {e.seed}: no matched draws")
        for draw, gaps in enumerate(controls.rows()):
            starts = corridor.start_ns(gaps)
            inside = int(np.sum((starts >= 0) & (starts + corridor.merge_ns <= corridor.horizon_ns)))
            if inside != budget:
                reason = f"seed {e.seed}, draw {draw}: {inside} merges inside the horizon, the policy made {budget}"
                return Check("budget", "failed", reason)
    busy_s = sum(realised) * corridor.merge_ns / 1e9
    reason = f"policy and every draw realised the same merges in every seed ({min(realised)} to {max(realised)} a seed)"
    return Check("budget", "passed", reason, n=len(evidence), details={"realised": realised, "busy_s": busy_s})


def _causality(evidence: Sequence[SeedEvidence], planner: bool, recorded: bool) -> Check:
    if recorded:
        reason = "a log cannot be shown another future: that it is causal is not known, so its result is an upper bound"
        return Check("causality", "passed", reason)
    if planner:
        reason = "a planner sees the whole trace: not causal by its type, so its result is an upper bound"
        return Check("causality", "passed", reason)
    if any(p.difference for e in evidence for p in e.probes if p.kind == "determinism"):
        reason = "two runs with the same seed already differ, so altered futures say nothing"
        return Check("causality", "undecidable", reason)
    probes = [(e.seed, p) for e in evidence for p in e.probes if p.kind == "causality"]
    for seed, probe in probes:
        if probe.difference:
            when = (probe.at_ns or 0) / 1e9
            reason = f"seed {seed}: with only the future after {when:.1f} s altered, {probe.difference}"
            return Check("causality", "failed", reason, n=len(probes))
    untried = {e.seed for e in evidence} - {seed for seed, _ in probes}
    if untried:
        reason = f"seed {min(untried)}: no altered future was tried"
        return Check("causality", "undecidable", reason, n=len(probes))
    return Check("causality", "passed", f"{len(probes)} altered futures changed no earlier decision", n=len(probes))


def _determinism(evidence: Sequence[SeedEvidence], recorded: bool) -> Check:
    probes = [(e.seed, p) for e in evidence for p in e.probes if p.kind == "determinism"]
    for seed, probe in probes:
        if probe.difference:
            reason = f"seed {seed}: a second run differs ({probe.difference}): a clock or unseeded entropy"
            return Check("determinism", "failed", reason, n=len(probes))
    for e in evidence:
        if e.replay_difference:
            return Check("determinism", "failed", f"seed {e.seed}: {e.replay_difference}", n=len(probes))
    once = {e.seed for e in evidence} - {seed for seed, _ in probes}
    if once:
        return Check("determinism", "undecidable", f"seed {min(once)}: not run twice", n=len(probes))
    again = "a log is read, not run again" if recorded else "every seed decided the same twice"
    return Check("determinism", "passed", f"{again}, and its replay agrees", n=len(probes))


def _completeness(evidence: Sequence[SeedEvidence]) -> Check:
    total = failed = 0
    for e in evidence:
        for arm in (POLICY, NO_SYNC):
            m = e.requests.get(arm)
            if m is None or len(m) != e.n_requests:
                got = 0 if m is None else len(m)
                reason = f"seed {e.seed}, arm {arm}: {got} rows for {e.n_requests} scheduled requests"
                return Check("completeness", "failed", reason)
            counted = np.isin(m.outcome, (SERVED, FAILED, REFUSED))
            if not counted.all():
                return Check("completeness", "failed", f"seed {e.seed}, arm {arm}: a request without an outcome")
            total += len(m)
            failed += int(np.sum(m.outcome != SERVED))
    reason = (
        f"scheduled = served + failed + refused in every arm; {failed} of {total} not served, counted as violations"
    )
    return Check("completeness", "passed", reason, n=total, details={"not_served": failed})


def distinct_seeds(evidence: Sequence[SeedEvidence]) -> Check:
    """Seeds are independent replicates only if their traces differ."""
    digests: dict[str, int] = {}
    for e in evidence:
        if e.trace_digest in digests:
            reason = f"seeds {digests[e.trace_digest]} and {e.seed} have identical load: not independent replicates"
            return Check("distinct seeds", "failed", reason)
        digests[e.trace_digest] = e.seed
    return Check("distinct seeds", "passed", "every seed has its own trace", n=len(digests))
