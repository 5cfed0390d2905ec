"""What G0 asks of replays on a real server: all there, as planned, with equal merges by the execution log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.evidence.model import Evidence
from protocol.evidence.order import LIVE_ORDERS, random_order
from protocol.gates.result import Check, Status
from protocol.gates.spec import Spec
from protocol.gates.units import BUSY_WITHIN_NS, MOST_EXCLUDED, compared, left_out, wanted
from protocol.replay.replay import NO_SYNC, POLICY, Replay, named
from protocol.workload.trace import NS_PER_S

#: Share of live decisions that must be answered before the next one is due.
ON_TIME_SHARE = 0.99


def order_of(spec: Spec, seed: int) -> list[tuple[str, int]]:
    """The replays of a seed in the order in which they are to run: random, or a live block's own."""
    if spec.back_end == "live":
        return list(LIVE_ORDERS[spec.idle])
    return random_order(spec.root_seed, spec.regime, seed, spec.idle, spec.draws)


def replays_as_planned(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Every replay was made, in the order that was fixed beforehand, with the merges of the stored schedules."""
    name, repeated, missing = "replays", 0, None
    for e in evidence:
        places = {unit: place for place, unit in enumerate(order_of(spec, e.seed))}
        for unit, place in places.items():
            tries = sorted((r for r in e.served if (r.arm, r.draw) == unit), key=lambda r: r.attempt)
            wrong = _attempts(tries, place, spec.attempts)
            if wrong:
                return Check(name, "failed", f"seed {e.seed}, {named(*unit)}: {wrong}")
            if not tries and missing is None:
                missing = f"seed {e.seed}, {named(*unit)}: not replayed"
            repeated += max(len(tries) - 1, 0)
        if any((r.arm, r.draw) not in places for r in e.served):
            return Check(name, "failed", f"seed {e.seed}: a replay that nobody asked for")
        begun = [r.started for r in sorted(e.served, key=lambda r: (r.position, r.attempt))]
        if begun != sorted(begun):
            return Check(name, "undecidable", f"seed {e.seed}: replays did not start in the order that was fixed")
        for r in e.served:
            wrong = _other_merges(e, r, spec)
            if wrong:
                return Check(name, "failed", f"{r.what}: {wrong}")
    total = sum(len(e.judged) for e in evidence)
    if missing:
        return Check(name, "undecidable", missing, n=total)
    reason = f"{total} valid replays, in the order that was fixed beforehand; {repeated} invalid attempts repeated"
    return Check(name, "passed", reason, n=total, details={"repeated": repeated})


def _attempts(tries: Sequence[Replay], place: int, most: int) -> str | None:
    if [r.attempt for r in tries] != list(range(1, len(tries) + 1)) or len(tries) > most:
        return f"attempts {[r.attempt for r in tries]}, expected 1 to at most {most}"
    if any(r.invalid is None for r in tries[:-1]):
        return "replayed again although an attempt was valid"
    if any(r.position != place for r in tries):
        return "not at the place in the order that was fixed for it"
    return None


def _other_merges(e: Evidence, r: Replay, spec: Spec) -> str | None:
    """Planned merges that are not those of the stored schedule; a live policy's were decided as it went."""
    if r.arm == NO_SYNC:
        return "merges in a replay without merges" if len(r.planned_ns) or len(r.ran_ns) else None
    if r.arm not in e.placed:
        return None if spec.back_end == "live" else "no stored schedule"
    starts = spec.corridor.start_ns(e.gaps(r.arm, r.draw))
    asked = np.stack([starts, starts + spec.corridor.merge_ns], axis=1)
    # A live control is begun when its time has come on the client's clock.
    within_ns = BUSY_WITHIN_NS if spec.back_end == "live" else 0
    if r.planned_ns.shape != asked.shape or np.abs(r.planned_ns - asked).max(initial=0) > within_ns:
        return "its merges are not those of the stored schedule"
    return None


def realised_merges(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Merges and busy seconds counted from the execution log inside the horizon, policy against every draw."""
    name, kept = "realised merges", compared(evidence, spec)
    why = {str(e.seed): left_out(e, spec) for e in evidence}
    excluded = {seed: reason for seed, reason in why.items() if reason}
    realised = [e.judged[POLICY, 0].inside(spec.corridor.horizon_ns) for e in kept]
    details: dict[str, object] = {"realised": [n for n, _ in realised], "left_out": excluded}
    told = f"{len(excluded)} of {len(evidence)} seeds left out"
    if not kept or len(excluded) > MOST_EXCLUDED * len(evidence):
        first = next(f"; seed {seed}, {reason}" for seed, reason in excluded.items())
        return Check(name, "undecidable", told + first, n=len(kept), details=details)
    spread_s = 0.0
    for e in kept:
        busy_s = [
            r.inside(spec.corridor.horizon_ns)[1]
            for unit in wanted(spec)
            if unit[0] != NO_SYNC
            for r in [e.judged[unit]]
        ]
        spread_s = max(spread_s, max(busy_s) - min(busy_s))
    merges = [n for n, _ in realised]
    reason = (
        f"by the execution log, policy and every draw ran the same merges inside the horizon ({min(merges)} to "
        f"{max(merges)} a seed), busy for the same time to within {spread_s:.3f} s; {told}"
    )
    return Check(name, "passed", reason, spread_s, n=len(kept), details=details)


def decisions_in_time(evidence: Sequence[Evidence], spec: Spec) -> Check:
    """Live answers came before the next decision was due."""
    asked = [d for e in evidence for r in e.served if r.arm == POLICY for d in r.decisions if d.said is not None]
    if not asked:
        return Check("decisions in time", "undecidable", "the scheduler was never asked", n=0)
    late_s = np.array([d.answered_ns - d.due_ns for d in asked]) / NS_PER_S
    share = float((late_s <= spec.corridor.grid_ns / NS_PER_S).mean())
    reason = (
        f"{len(asked)} answers {1e3 * np.median(late_s):.1f} ms after they were due (median), {1e3 * late_s.max():.0f} "
        f"ms at most; {100 * share:.1f} % before the next was due"
    )
    status: Status = "passed" if share >= ON_TIME_SHARE else "undecidable"
    return Check("decisions in time", status, reason, share, ON_TIME_SHARE, len(asked))
