"""G4: training got as far as under the control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from protocol.evidence.model import Evidence
from protocol.gates.loss import loss_check
from protocol.gates.peers import peer_progress_gate
from protocol.gates.result import Check, GateResult
from protocol.gates.spec import Spec
from protocol.gates.units import compared
from protocol.merging.corridor import Corridor
from protocol.replay.replay import POLICY, UNIFORM

TITLE = "training progress"


def progress_gate(evidence: Sequence[Evidence], spec: Spec) -> GateResult:
    """Inner steps, tokens and merges equal the control's; steps between merges inside the corridor.

    Where models were trained under the schedules, also their validation loss.
    """
    if spec.peers is not None:
        found = peer_progress_gate(evidence, spec.peers, spec.tokens_per_step)
    else:
        kept = compared(evidence, spec)
        found = GateResult("G4", TITLE, (_inner_steps(kept, spec), _staleness(kept, spec)))
    if spec.loss is not None:
        loss = loss_check(evidence, *spec.loss, spec.alpha)
        found = replace(found, checks=(*found.checks, loss))
    return found


def _inner_steps(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Steps beside the merges that ran, by the execution log where there is one; training stops while a merge runs."""
    done, lost = [], 0.0
    for e in evidence:
        policy, draws = merges_of(e, POLICY, spec), merges_of(e, UNIFORM, spec)
        if not policy:
            return Check("inner steps", "undecidable", f"seed {e.seed}: no schedule of the policy")
        if not draws:
            return Check("inner steps", "undecidable", f"seed {e.seed}: no matched draws")
        own = steps_beside(policy[0], spec.corridor)
        for draw, merges in enumerate(draws):
            other = steps_beside(merges, spec.corridor)
            if merges != policy[0]:
                reason = f"seed {e.seed}, draw {draw}: {other} inner steps, the policy did {own}"
                return Check("inner steps", "failed", reason)
        done.append(own)
        if spec.on_server:
            busy_ns = [r.busy_ns for r in (*e.replays(POLICY), *e.replays(UNIFORM))]
            lost = max(lost, (max(busy_ns) - min(busy_ns)) / spec.corridor.step_ns)
    if not done:
        return Check("inner steps", "undecidable", "no seed to compare", n=0)
    reason = f"{min(done)} to {max(done)} inner steps a seed, equal to every control's"
    reason += f"; executed merges differ by {lost:.1f} steps at most" if spec.on_server else ""
    details = {"inner_steps": done, "tokens": [s * spec.tokens_per_step for s in done]}
    return Check("inner steps", "passed", reason, n=len(done), details=details)


def _staleness(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Inner steps between merges; a live merge may begin a decision late, when the answer came late."""
    corridor, longest = spec.corridor, 0
    for e in evidence:
        if spec.back_end == "live":
            for r in e.replays(POLICY):
                waits_ns = r.ran_ns[:, 0] - np.concatenate([[0], r.ran_ns[:-1, 1]])
                longest = max(longest, int(waits_ns.max(initial=0)) // corridor.step_ns)
        elif POLICY in e.placed:
            longest = max(longest, int(e.placed[POLICY].gaps.max(initial=0)) * corridor.decision_steps)
    most = corridor.h_max + (corridor.decision_steps if spec.back_end == "live" else 0)
    reason = f"at most {longest} inner steps between merges (H_max {corridor.h_max})"
    return Check("staleness", "passed" if longest <= most else "failed", reason, float(longest), float(corridor.h_max))


def merges_of(e: Evidence, arm: str, spec: Spec) -> list[int]:
    """Merges of each schedule of an arm: those that ran, or in simulation those that were placed."""
    if spec.on_server:
        return [r.inside(spec.corridor.horizon_ns)[0] for r in e.replays(arm)]
    return e.placed[arm].lengths.tolist() if arm in e.placed else []


def steps_beside(merges: int, corridor: Corridor) -> int:
    """Whole inner steps that fit the horizon beside the merges."""
    return (corridor.horizon_ns - merges * corridor.merge_ns) // corridor.step_ns
