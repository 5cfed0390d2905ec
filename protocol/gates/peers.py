"""What integrity (G0) and progress (G4) ask of peer schedules: the same conditions, island by island."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from protocol.evidence.model import PARTNERS, TIMING, Evidence
from protocol.gates.result import Check, GateResult
from protocol.merging.peers.schedules import Peers, PeerSchedule
from protocol.merging.placements import Placements
from protocol.replay.replay import POLICY, UNIFORM

#: What must be equal, island by island, and how a difference is called.
_KEPT = {"merges": "merges", "busy_ns": "busy ns", "bytes": "bytes", "inner_steps": "inner steps"}


def corridor_check(evidence: Sequence[Evidence], peers: Peers) -> Check:
    """Every island's own corridor, in the policy's schedule and in every control."""
    merges = forced = 0
    for e in evidence:
        if e.corridor_violation:
            return Check("corridor", "failed", f"seed {e.seed}: {e.corridor_violation}", n=len(evidence))
        for arm in (POLICY, UNIFORM, TIMING, PARTNERS):
            placed = e.placed.get(arm)
            for draw, schedule in enumerate(peers.read(placed) if placed is not None else ()):
                wrong = peers.violation(schedule)
                if wrong:
                    where = "" if arm == POLICY else f", {arm} {draw}"
                    return Check("corridor", "failed", f"seed {e.seed}{where}: {wrong}", n=len(evidence))
        merges, forced = merges + len(e.placed[POLICY].gaps), forced + e.forced
    reason = f"{merges} merges inside the corridor of each of their islands, {forced} of them forced by H_max"
    return Check("corridor", "passed", reason, n=len(evidence), details={"merges": merges, "forced": forced})


def budget_check(evidence: Sequence[Evidence], peers: Peers) -> Check:
    """Merges by size, and merges, busy time and bytes of every island, equal in the policy and every control."""
    realised, sent = [], []
    for e in evidence:
        policy = peers.read(e.placed[POLICY])[0]
        realised.append(len(policy))
        if not len(policy) and not e.corridor_violation:
            reason = f"seed {e.seed}: no merge was made, so there is no placement to judge"
            return Check("budget", "undecidable", reason)
        if UNIFORM not in e.placed or not len(e.placed[UNIFORM]):
            return Check("budget", "failed", f"seed {e.seed}: no matched draws")
        for arm in (UNIFORM, TIMING, PARTNERS):
            placed = e.placed.get(arm)
            wrong = _unlike(peers, policy, placed, ("merges", "busy_ns", "bytes")) if placed is not None else None
            if wrong:
                return Check("budget", "failed", f"seed {e.seed}, {arm} {wrong}")
        sent.append(int(peers.by_island(policy)["bytes"].sum()))
    fewest, most = min(realised), max(realised)
    reason = (
        f"policy and every draw made the same merges in every seed ({fewest} to {most}), and each island the same "
        f"number, busy time and bytes ({min(sent) / 1e9:.1f} to {max(sent) / 1e9:.1f} GB a seed in all)"
    )
    return Check("budget", "passed", reason, n=len(evidence), details={"realised": realised, "bytes": sent})


def _unlike(peers: Peers, policy: PeerSchedule, placed: Placements, kept: Sequence[str]) -> str | None:
    """The first draw that departs from the policy in something that controls keep."""
    own, sizes = peers.by_island(policy), Counter(map(len, policy.groups))
    for draw, schedule in enumerate(peers.read(placed)):
        if Counter(map(len, schedule.groups)) != sizes:
            return f"{draw}: merges of other sizes than the policy's"
        found = peers.by_island(schedule)
        for key in kept:
            differs = np.flatnonzero(found[key] != own[key])
            if differs.size:
                i = int(differs[0])
                return f"{draw}: island {i} has {found[key][i]} {_KEPT[key]}, {own[key][i]} under the policy"
    return None


def peer_progress_gate(evidence: Sequence[Evidence], peers: Peers, tokens_per_step: int) -> GateResult:
    """Inner steps, tokens, merges and bytes of each island equal the controls'; its steps between merges in bounds."""
    title = "training progress"
    longest, steps, merges, sent = 0, [], [], []
    for e in evidence:
        if POLICY not in e.placed or len(e.placed[POLICY]) != 1:
            return GateResult("G4", title, (Check("inner steps", "undecidable", f"seed {e.seed}: no schedule"),))
        if UNIFORM not in e.placed or not len(e.placed[UNIFORM]):
            return GateResult("G4", title, (Check("inner steps", "undecidable", "no matched draws"),))
        policy = peers.read(e.placed[POLICY])[0]
        wrong = _unlike(peers, policy, e.placed[UNIFORM], tuple(_KEPT))
        if wrong:
            return GateResult("G4", title, (Check("inner steps", "failed", f"seed {e.seed}, draw {wrong}"),))
        mine = peers.by_island(policy)
        steps.append(mine["inner_steps"].tolist())
        merges.append(mine["merges"].tolist())
        sent.append(mine["bytes"].tolist())
        longest = max([longest, *(g for gaps in peers.gaps(policy) for g in gaps)])
    least, most = min(map(min, steps)), max(map(max, steps))
    gigabytes = [b / 1e9 for row in sent for b in row]
    reason = (
        f"{least} to {most} inner steps an island and seed, {min(map(min, merges))} to {max(map(max, merges))} merges, "
        f"{min(gigabytes):.2f} to {max(gigabytes):.2f} GB sent; each island's equal to every control's"
    )
    equal = Check(
        "inner steps",
        "passed",
        reason,
        n=len(steps),
        details={
            "inner_steps": steps,
            "tokens": [[s * tokens_per_step for s in row] for row in steps],
            "merges": merges,
            "bytes": sent,
        },
    )
    h_max = peers.corridor.h_max
    stale = Check(
        "staleness",
        "passed" if longest <= h_max else "failed",
        f"at most {longest} inner steps between merges of any island (H_max {h_max})",
        float(longest),
        float(h_max),
    )
    return GateResult("G4", title, (equal, stale))
