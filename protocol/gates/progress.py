"""G4: training got as far as under the control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protocol.evidence.model import Evidence
from protocol.gates.loss import loss_check
from protocol.gates.peers import peer_progress_gate
from protocol.gates.result import Check, GateResult
from protocol.gates.spec import Spec
from protocol.gates.units import compared
from protocol.merging.practice import Merges
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
    """Steps beside the merges that ran, by the execution log where there is one; training stops while a merge runs.

    Those that a delay lets train meanwhile count.  A merge that was not committed was busy and gained nothing.
    """
    done, lost, committed = [], 0.0, []
    for e in evidence:
        policy, draws = merges_of(e, POLICY, spec), merges_of(e, UNIFORM, spec)
        if not policy:
            return Check("inner steps", "undecidable", f"seed {e.seed}: no schedule of the policy")
        if not draws:
            return Check("inner steps", "undecidable", f"seed {e.seed}: no matched draws")
        own = steps_beside(policy[0], e, POLICY, 0, spec)
        gained = _committed(e, POLICY, 0, policy[0])
        for draw, merges in enumerate(draws):
            other = steps_beside(merges, e, UNIFORM, draw, spec)
            if merges != policy[0] or other != own or _committed(e, UNIFORM, draw, merges) != gained:
                reason = f"seed {e.seed}, draw {draw}: {other} inner steps, the policy did {own}"
                return Check("inner steps", "failed", reason)
        done.append(own)
        committed.append(gained)
        if spec.on_server:
            busy_ns = [r.busy_ns for r in (*e.replays(POLICY), *e.replays(UNIFORM))]
            lost = max(lost, (max(busy_ns) - min(busy_ns)) / spec.corridor.step_ns)
    if not done:
        return Check("inner steps", "undecidable", "no seed to compare", n=0)
    reason = f"{min(done)} to {max(done)} inner steps a seed, equal to every control's"
    reason += f"; executed merges differ by {lost:.1f} steps at most" if spec.on_server else ""
    details: dict[str, object] = {"inner_steps": done, "tokens": [s * spec.tokens_per_step for s in done]}
    if any(merges_at(e, POLICY, 0) is not None for e in evidence):
        reason += f"; {min(map(sum, committed))} to {max(map(sum, committed))} merges committed"
        details["committed_by_fragment"] = committed
    return Check("inner steps", "passed", reason, n=len(done), details=details)


def _committed(e: Evidence, arm: str, row: int, merges: int) -> list[int]:
    """Merges that were committed, by fragment."""
    made = merges_at(e, arm, row)
    return [merges] if made is None else np.bincount(made.fragment[made.committed]).tolist()


def _staleness(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Inner steps between merges; a live merge may begin a decision late, when the answer came late.

    Of fragments, between two merges of the same one, whose H_max is as many turns long.  One that was not committed is
    due again, so the corridor holds for turns, and what is left stale meanwhile is only told.
    """
    corridor, practice, longest, without = spec.corridor, spec.practice, 0, 0
    for e in evidence:
        if spec.back_end == "live":
            for r in e.replays(POLICY):
                waits_ns = r.ran_ns[:, 0] - np.concatenate([[0], r.ran_ns[:-1, 1]])
                longest = max(longest, int(waits_ns.max(initial=0)) // corridor.step_ns)
        elif POLICY in e.placed:
            gaps = e.placed[POLICY].gaps * corridor.decision_steps + practice.sync_delay_steps
            merges = e.placed[POLICY].merges_of(0) or Merges.alike(len(gaps), 1)
            if merges.committed.all():
                longest = max(longest, _stalest(gaps, merges))
            else:
                longest = max(longest, practice.fragments * int(gaps.max(initial=0)))
                without = max(without, _stalest(gaps, merges))
    h_max = practice.fragments * (corridor.h_max + practice.sync_delay_steps)
    most = h_max + (corridor.decision_steps if spec.back_end == "live" else 0)
    what = "merges" if practice.fragments == 1 else "merges of a fragment"
    reason = f"at most {longest} inner steps between {what} (H_max {h_max})"
    reason += f"; {without} between committed ones" if without else ""
    return Check("staleness", "passed" if longest <= most else "failed", reason, float(longest), float(h_max))


def _stalest(gaps: NDArray[np.integer], merges: Merges) -> int:
    """Most inner steps between two committed merges of one fragment, or before its first; gaps : in inner steps."""
    at, longest = np.cumsum(gaps), 0
    for fragment in np.unique(merges.fragment):
        kept = at[(merges.fragment == fragment) & merges.committed]
        longest = max(longest, int(np.diff(kept, prepend=0).max(initial=0)))
    return longest


def merges_of(e: Evidence, arm: str, spec: Spec) -> list[int]:
    """Merges of each schedule of an arm: those that ran, or in simulation those that were placed."""
    if spec.on_server:
        return [r.inside(spec.corridor.horizon_ns)[0] for r in e.replays(arm)]
    return e.placed[arm].lengths.tolist() if arm in e.placed else []


def merges_at(e: Evidence, arm: str, row: int) -> Merges | None:
    """What the merges of a stored schedule are; None where all are alike, or where nothing is stored."""
    return e.placed[arm].merges_of(row) if arm in e.placed and row < len(e.placed[arm]) else None


def steps_beside(merges: int, e: Evidence, arm: str, row: int, spec: Spec) -> int:
    """Whole inner steps that fit the horizon beside the merges, and those trained while they are under way."""
    made = merges_at(e, arm, row)
    return spec.timing.inner_steps(merges if made is None else made)
