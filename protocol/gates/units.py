"""Which seeds (live: blocks) of a claim on a real server are comparisons of placements, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.evidence.model import Evidence
from protocol.gates.spec import Spec
from protocol.replay.replay import MERGE_WITHIN_NS, NO_SYNC, POLICY, UNIFORM, Replay, named
from protocol.workload.trace import NS_PER_S

#: Share of the seeds that may be left out because a replay was invalid in every attempt, or merges were unequal.
MOST_EXCLUDED = 0.25
#: Busy time may differ by this much a merge: the tolerance of the load at both ends.
BUSY_WITHIN_NS = 2 * MERGE_WITHIN_NS


def wanted(spec: Spec) -> list[tuple[str, int]]:
    """The replays that a seed on a real server consists of, by arm and draw."""
    return [(POLICY, 0), *((NO_SYNC, k) for k in range(spec.idle)), *((UNIFORM, k) for k in range(spec.draws))]


def left_out(e: Evidence, spec: Spec) -> str | None:
    """Why a seed is no comparison of placements, or None; nothing is left out of a simulation."""
    if not spec.on_server:
        return None
    for arm, draw in wanted(spec):
        if e.replay(arm, draw) is None:
            tries = [r for r in e.served if (r.arm, r.draw) == (arm, draw)]
            why = f"{len(tries)} attempts, the last invalid: {tries[-1].invalid}" if tries else "not replayed"
            return f"{named(arm, draw)}: {why}"
    policy = _inside(e, POLICY, 0, spec)
    if not policy[0]:
        return "no merge of the policy inside the horizon"
    for draw in range(spec.draws):
        merges, busy_s = _inside(e, UNIFORM, draw, spec)
        if merges != policy[0] or abs(busy_s - policy[1]) > policy[0] * BUSY_WITHIN_NS / NS_PER_S:
            return (
                f"{named(UNIFORM, draw)}: {merges} merges and {busy_s:.2f} busy seconds inside the horizon, the policy "
                f"{policy[0]} and {policy[1]:.2f}"
            )
    return None


def _inside(e: Evidence, arm: str, draw: int, spec: Spec) -> tuple[int, float]:
    r = e.replay(arm, draw)
    assert r is not None
    return r.inside(spec.corridor.horizon_ns)


def compared(evidence: Sequence[Evidence], spec: Spec) -> list[Evidence]:
    """The seeds that compare placements and nothing else."""
    return [e for e in evidence if left_out(e, spec) is None]


def judged(evidence: Sequence[Evidence]) -> list[Replay]:
    """Every replay that counts, of every seed."""
    return [r for e in evidence for _, r in sorted(e.judged.items())]
