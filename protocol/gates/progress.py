"""G4: training got as far as under the control."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.evidence.store import POLICY, UNIFORM, SeedEvidence
from protocol.gates.result import Check, GateResult
from protocol.merging.corridor import Corridor


def progress_gate(evidence: Sequence[SeedEvidence], corridor: Corridor, tokens_per_step: int) -> GateResult:
    """Inner steps, tokens and merges equal the control's; steps between merges inside the corridor (SPEC 6, G4)."""
    steps = []
    if not all(POLICY in e.placed and len(e.placed[POLICY]) for e in evidence) or not evidence:
        reason = "no schedule of the policy in some seed"
        return GateResult("G4", "training progress", (Check("inner steps", "undecidable", reason),))
    for e in evidence:
        budget = int(e.placed[POLICY].lengths[0])
        policy = _inner_steps(budget, corridor)
        controls = e.placed.get(UNIFORM)
        if controls is None or not len(controls):
            return GateResult("G4", "training progress", (Check("inner steps", "undecidable", "no matched draws"),))
        different = np.flatnonzero(controls.lengths != budget)
        if different.size:
            other = _inner_steps(int(controls.lengths[different[0]]), corridor)
            reason = f"seed {e.seed}, draw {different[0]}: {other} inner steps, the policy did {policy}"
            return GateResult("G4", "training progress", (Check("inner steps", "failed", reason),))
        steps.append(policy)
    longest = max((int(e.placed[POLICY].gaps.max(initial=0)) for e in evidence), default=0) * corridor.decision_steps
    tokens = [s * tokens_per_step for s in steps]
    reason = f"{min(steps)} to {max(steps)} inner steps a seed, equal to every control's"
    equal = Check("inner steps", "passed", reason, n=len(steps), details={"inner_steps": steps, "tokens": tokens})
    inside = longest <= corridor.h_max
    stale = Check(
        "staleness",
        "passed" if inside else "failed",
        f"at most {longest} inner steps between merges (H_max {corridor.h_max})",
        float(longest),
        float(corridor.h_max),
    )
    return GateResult("G4", "training progress", (equal, stale))


def _inner_steps(merges: int, corridor: Corridor) -> int:
    """Whole inner steps that fit the horizon beside the merges."""
    return (corridor.horizon_ns - merges * corridor.merge_ns) // corridor.step_ns
