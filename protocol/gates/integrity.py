"""G0: the run was what it claims to be.  Deterministic; there is no p-value in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.evidence.model import Evidence
from protocol.gates.execution import decisions_in_time, realised_merges, replays_as_planned
from protocol.gates.peers import budget_check, corridor_check
from protocol.gates.result import Check, GateResult, Status
from protocol.gates.spec import Spec
from protocol.merging.corridor import Corridor
from protocol.merging.practice import Merges, same_kinds
from protocol.replay.measurements import FAILED, REFUSED, SERVED
from protocol.replay.replay import MERGE_WITHIN_NS, NO_SYNC, POLICY, UNIFORM, Replay
from protocol.workload.trace import NS_PER_S

#: A live merge may begin or end this far from where the corridor has it: the load's own tolerance, twice.
TOLERANCE_NS = 2 * MERGE_WITHIN_NS


def integrity_gate(evidence: Sequence[Evidence], spec: Spec) -> GateResult:
    """Corridor, realised budget, causality, determinism, completeness and distinct traces."""
    if not evidence:
        return GateResult("G0", "integrity", (Check("completeness", "undecidable", "no seed was run", n=0),))
    live = spec.back_end == "live"
    unplaced = [e.seed for e in evidence if POLICY not in e.placed or len(e.placed[POLICY]) != 1]
    if unplaced and not live:
        reason = f"seed {unplaced[0]}: not exactly one schedule of the policy"
        return GateResult("G0", "integrity", (Check("completeness", "failed", reason, n=len(evidence)),))
    if spec.peers is not None:
        checks = [corridor_check(evidence, spec.peers), budget_check(evidence, spec.peers)]
    elif live:
        checks = [_live_corridor(evidence, spec.corridor)]
    else:
        checks = [_corridor(evidence, spec), _budget(evidence, spec)]
    if spec.on_server:
        checks += [replays_as_planned(evidence, spec), realised_merges(evidence, spec)]
    if live:
        checks.append(decisions_in_time(evidence, spec))
    if spec.confinement is not None:
        checks += [_confined(spec.confinement, spec.unconfined), _inputs(evidence)]
    checks += [_determinism(evidence, spec), _causality(evidence, spec), _completeness(evidence, spec)]
    return GateResult("G0", "integrity", (*checks, distinct_traces(evidence)))


def _corridor(evidence: Sequence[Evidence], spec: Spec) -> Check:
    recorded = spec.kind == "recorded"
    if recorded and not any(e.corridor_violation or len(e.placed[POLICY].gaps) for e in evidence):
        reason = "the log has no merge: a valid no-sync arm, in which there is no placement to judge"
        return Check("corridor", "undecidable", reason, n=len(evidence))
    for e in evidence:
        if e.corridor_violation:
            # What happened happened: a log that this corridor cannot match is not judged, it did not defy anything.
            status: Status = "undecidable" if recorded else "failed"
            hint = "; --corridor from-log judges a log in its own corridor" if recorded else ""
            return Check("corridor", status, f"seed {e.seed}: {e.corridor_violation}{hint}", n=len(evidence))
        own = e.placed[POLICY]
        for k, gaps in enumerate(own.rows()):
            stored = spec.timing.violation(spec.timing.start_ns(gaps, own.merges_of(k)), own.merges_of(k))
            if stored:
                return Check("corridor", "failed", f"seed {e.seed}: {stored}", n=len(evidence))
    return _inside(sum(len(e.placed[POLICY].gaps) for e in evidence), evidence)


def _confined(stated: Mapping[str, Any], unconfined: bool) -> Check:
    """Nothing that judged the scheduler could be read by it, and no run could leave a note for the next one."""
    gaps = "; ".join(map(str, stated.get("gaps") or ())) or "nothing is left open"
    if stated.get("sound"):
        return Check("confinement", "passed", f"Landlock ABI {stated.get('landlock_abi')}: {gaps}")
    if unconfined:
        return Check("confinement", "passed", f"--unconfined was said: {gaps}")
    return Check("confinement", "undecidable", f"{gaps} (--unconfined judges all the same, and says so)")


def _inputs(evidence: Sequence[Evidence]) -> Check:
    """Nothing that the scheduler read is left out of its digest."""
    for e in evidence:
        for probe in e.probes:
            if probe.kind == "inputs" and probe.difference:
                return Check("inputs", "failed", f"seed {e.seed}: {probe.difference}", n=len(evidence))
    return Check("inputs", "passed", "every file that its runs read is part of its digest", n=len(evidence))


def _inside(merges: int, evidence: Sequence[Evidence]) -> Check:
    forced = sum(e.forced for e in evidence)
    reason = f"{merges} merges inside the corridor, {forced} of them forced by H_max"
    return Check("corridor", "passed", reason, n=len(evidence), details={"merges": merges, "forced": forced})


def _live_corridor(evidence: Sequence[Evidence], corridor: Corridor) -> Check:
    """The same for merges that were decided on a clock of their own, to within what a real clock can keep."""
    merges = 0
    for e in evidence:
        for arm in (POLICY, UNIFORM):
            for r in e.replays(arm):
                for what, windows_ns in (("decided", r.planned_ns), ("executed", r.ran_ns)):
                    problem = _outside(windows_ns, corridor)
                    if problem:
                        reason = f"{r.what}, as {what}: {problem}"
                        return Check("corridor", "failed", reason, n=len(evidence))
                merges += len(r.planned_ns) if arm == POLICY else 0
    return _inside(merges, evidence)


def _outside(merges_ns: NDArray[np.int64], corridor: Corridor) -> str | None:
    """Why merges are not what the control loop may do, to within what a real clock can keep."""
    least, most = corridor.gap_min * corridor.grid_ns, corridor.gap_max * corridor.grid_ns
    late = max(TOLERANCE_NS, corridor.grid_ns)
    waits = merges_ns[:, 0] - np.concatenate([[0], merges_ns[:-1, 1]])
    for k, wait in enumerate(waits.tolist(), start=1):
        if not least - TOLERANCE_NS <= wait <= most + late:
            return (
                f"merge {k} began {wait / NS_PER_S:.2f} s after {'time 0' if k == 1 else f'the end of merge {k - 1}'}; "
                f"the corridor is {least / NS_PER_S:.2f} to {most / NS_PER_S:.2f} s"
            )
    end = int(merges_ns[-1, 1]) if len(merges_ns) else 0
    if end > corridor.horizon_ns + TOLERANCE_NS:
        return (
            f"the last merge ended at {end / NS_PER_S:.2f} s, past the horizon of {corridor.horizon_ns / NS_PER_S:g} s"
        )
    if end + most + corridor.merge_ns + late <= corridor.horizon_ns:
        return f"nothing merged after {end / NS_PER_S:.2f} s, though H_max imposes a merge within the horizon"
    return None


def _budget(evidence: Sequence[Evidence], spec: Spec) -> Check:
    realised, busy_ns, kinds = [], 0, False
    for e in evidence:
        budget = int(e.placed[POLICY].lengths[0])
        realised.append(budget)
        if budget == 0 and not e.corridor_violation:
            reason = f"seed {e.seed}: no merge was made, so there is no placement to judge"
            return Check("budget", "undecidable", reason)
        controls = e.placed.get(UNIFORM)
        if controls is None or not len(controls):
            status: Status = "undecidable" if spec.kind == "recorded" and e.corridor_violation else "failed"
            return Check("budget", status, f"seed {e.seed}: no matched draws")
        own = e.placed[POLICY].merges_of(0)
        busy_ns += spec.timing.busy_ns(budget if own is None else own)
        kinds = kinds or own is not None
        for draw, gaps in enumerate(controls.rows()):
            problem = _other_budget(gaps, controls.merges_of(draw), budget, own, spec)
            if problem:
                return Check("budget", "failed", f"seed {e.seed}, draw {draw}: {problem}")
    busy_s = busy_ns / 1e9
    reason = f"policy and every draw realised the same merges in every seed ({min(realised)} to {max(realised)} a seed)"
    reason += ", each with its own length, fragment and outcome" if kinds else ""
    return Check("budget", "passed", reason, n=len(evidence), details={"realised": realised, "busy_s": busy_s})


def _other_budget(
    gaps: NDArray[np.int32], merges: Merges | None, budget: int, own: Merges | None, spec: Spec
) -> str | None:
    """Where a draw has not the policy's merges, all of them inside the horizon; None where it has."""
    if (own is None) != (merges is None) or (own is not None and merges is not None and not same_kinds(own, merges)):
        return "merges of other lengths, fragments or outcomes than the policy's"
    starts, lengths = spec.timing.start_ns(gaps, merges), spec.timing.lengths_ns(merges)
    ends = starts + (spec.corridor.merge_ns if lengths is None else lengths)
    inside = int(np.sum((starts >= 0) & (ends <= spec.corridor.horizon_ns)))
    return None if inside == budget else f"{inside} merges inside the horizon, the policy made {budget}"


def _causality(evidence: Sequence[Evidence], spec: Spec) -> Check:
    if spec.kind == "recorded":
        reason = "a log cannot be shown another future: that it is causal is not known, so its result is an upper bound"
        return Check("causality", "passed", reason)
    if spec.kind == "planner":
        reason = "a planner sees the whole trace: not causal by its type, so its result is an upper bound"
        return Check("causality", "passed", reason)
    if any(p.difference for e in evidence for p in e.probes if p.kind == "determinism"):
        reason = "two runs with the same seed already differ, so altered futures say nothing"
        return Check("causality", "undecidable", reason)
    if spec.back_end == "live":
        return _asked_in_time(evidence)
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


def _asked_in_time(evidence: Sequence[Evidence]) -> Check:
    for e in evidence:
        for r in e.replays(POLICY):
            for d in r.decisions:
                if d.said is not None and d.asked_ns < d.due_ns:
                    reason = f"{r.what}: asked before the decision at {d.due_ns / NS_PER_S:.2f} s was due"
                    return Check("causality", "failed", reason, n=len(evidence))
    reason = "every answer came while its requests were being served, from a process that holds no trace"
    return Check("causality", "passed", reason, n=len(evidence))


def _determinism(evidence: Sequence[Evidence], spec: Spec) -> Check:
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
    if spec.back_end == "live":
        reason = "a fresh scheduler answered the logged observations the same"
    else:
        again = "a log is read, not run again" if spec.kind == "recorded" else "every seed decided the same twice"
        reason = f"{again}, and its replay agrees"
    return Check("determinism", "passed", reason, n=len(probes))


def _completeness(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Every scheduled request has an outcome in every replay, and every seed that was asked for is there."""
    total = failed = 0
    for e in evidence:
        rows: tuple[Replay | None, ...] = e.served or tuple(e.simulated.get(arm) for arm in (POLICY, NO_SYNC))
        for r in rows:
            if r is None or len(r.rows) != e.n_requests:
                what = r.what if r is not None else f"seed {e.seed}, an arm that is missing"
                found = f"{what}: {0 if r is None else len(r.rows)} rows for {e.n_requests} scheduled requests"
                return Check("completeness", "failed", found)
            if not np.isin(r.rows.outcome, (SERVED, FAILED, REFUSED)).all():
                return Check("completeness", "failed", f"{r.what}: a request without an outcome")
            total += len(r.rows)
            failed += int(np.sum(r.rows.outcome != SERVED))
    details = {"not_served": failed, "seeds": len(evidence), "asked_seeds": spec.n_seeds}
    stopped = spec.until_decided and evidence[-1].served and (evidence[-1].served[-1].rows.outcome == SERVED).any()
    if len(evidence) < spec.n_seeds and not stopped:
        last = evidence[-1].served[-1] if evidence[-1].served else None
        dead = last is not None and not (last.rows.outcome == SERVED).any()
        why = f"{last.what}: no request was served" if dead and last is not None else "the others were not run"
        reason = f"{len(evidence)} of {spec.n_seeds} seeds: {why}"
        return Check("completeness", "undecidable", reason, n=total, details=details)
    reason = (
        f"scheduled = served + failed + refused in every arm; {failed} of {total} not served, counted as violations"
    )
    return Check("completeness", "passed", reason, n=total, details=details)


def distinct_traces(evidence: Sequence[Evidence]) -> Check:
    """Seeds are independent replicates only if their traces differ."""
    digests: dict[str, int] = {}
    for e in evidence:
        if e.trace_digest in digests:
            reason = f"seeds {digests[e.trace_digest]} and {e.seed} have identical load: not independent replicates"
            return Check("distinct traces", "failed", reason)
        digests[e.trace_digest] = e.seed
    return Check("distinct traces", "passed", "every seed has its own trace", n=len(digests))
