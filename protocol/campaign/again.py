"""What of stored evidence follows from its root, its regimes and the decisions behind it, made again and compared.

Only the scheduler is taken at its word: what it decided, and what its second run and its altered futures showed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from protocol.campaign import arms
from protocol.campaign.live import control_gaps
from protocol.campaign.plan import Plan, Setting
from protocol.evidence.model import CROSSED, PESSIMUM, Evidence
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Peers, PeerSchedule
from protocol.merging.placements import Placements
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.replay.sidecar import LoadedSidecar


@dataclass(frozen=True)
class Sample:
    """Which prices are counted again: so many of an arm's placements in each seed (None: all), chosen by `rng`."""

    most: int | None
    rng: np.random.Generator

    def rows(self, n: int) -> NDArray[np.int64]:
        if self.most is None or n <= self.most:
            return np.arange(n)
        return np.sort(self.rng.choice(n, self.most, replace=False))


def differences(plan: Plan, setting: Setting, kind: str, evidence: Sequence[Evidence], sample: Sample) -> Iterator[str]:
    """Where the evidence of one regime is not what its root, its world and the decisions in it give.

    plan : as the campaign had it; nothing is opened.  kind : of the contender.  evidence : every seed's, in order.
    """
    made = [e.placed[POLICY] for e in evidence[: setting.n_seeds] if POLICY in e.placed]
    for e in evidence:
        where = f"{e.regime}, seed {e.seed}"
        yield from (f"{where}, {line}" for line in _seed(plan, setting, kind, e, made, sample))


def _seed(
    plan: Plan, setting: Setting, kind: str, e: Evidence, made: list[Placements], sample: Sample
) -> Iterator[str]:
    workload = setting.worlds.workload(e.seed)
    trace = workload.trace
    load = {
        "trace_digest": trace.digest,
        "n_requests": len(trace),
        "prompt_tokens": int(trace.prompt_tokens.sum(dtype=np.int64)),
        "output_tokens": int(trace.output_tokens.sum(dtype=np.int64)),
    }
    other = [f"{name}: stated {getattr(e, name)}, by regime and root {now}" for name, now in load.items()
             if getattr(e, name) != now]  # fmt: skip
    if other or POLICY not in e.placed:
        yield from other
        return
    sidecar = arms.load(plan, setting, e.seed, workload)
    own = e.placed[POLICY]
    if e.corridor_violation is None:
        yield from _decided(plan, setting, kind, e, own)
        yield from _rows("rows of the policy", e, POLICY, sidecar.replay(_schedules(setting, own, [0], sidecar)[0]))
    yield from _rows("rows without merges", e, NO_SYNC, sidecar.replay(Schedule.empty(trace.n_islands)))
    yield from _probed(plan, setting, kind, e)
    expected = _expected(plan, setting, kind, e, made, sidecar)
    for arm in sorted({*expected, *e.placed}):
        if arm == PESSIMUM and arm not in e.placed:
            continue  # rows of version 1 have none; nothing rests on it then, for no bound without shape is stated
        if arm not in e.placed or arm not in expected:
            yield f"{arm}: {'not there' if arm in expected else 'nobody asked for it'}"
        elif not _same(e.placed[arm], expected[arm]):
            yield f"{arm}: other placements than root and decisions give"
        elif arm != POLICY or e.corridor_violation is None:
            yield from _priced(setting, arm, e.placed[arm], sidecar, sample)


def _rows(what: str, e: Evidence, arm: str, again: Measurements) -> Iterator[str]:
    """Where stored rows are not what the model serves."""
    if arm not in e.simulated:
        yield f"{what}: not there"
        return
    stated = e.simulated[arm].rows
    if len(stated) != len(again):
        yield f"{what}: {len(stated)}, served {len(again)}"
        return
    for column in fields(Measurements):
        differs = np.flatnonzero(getattr(stated, column.name) != getattr(again, column.name))
        if differs.size:
            a, b = (int(getattr(m, column.name)[differs[0]]) for m in (stated, again))
            yield f"{what}, request {differs[0]}, {column.name}: stated {a}, served {b}"
            return


# Decisions -------------------------------------------------------------------------------------------------------


def _decided(plan: Plan, setting: Setting, kind: str, e: Evidence, own: Placements) -> Iterator[str]:
    """Where the stored schedule is not what the stored decisions make of it."""
    if kind != "scheduler":
        decided_ns, merged, least, most = np.empty(0, np.int64), np.empty(0, bool), 0, 0
    elif setting.peers is not None:
        decided_ns, merged, least, most = _peer_decisions(setting.peers, setting.peers.read(own)[0], e)
    else:
        stream = arms.stream_of(plan.root_seed, setting, e.seed)
        merges = own.merges_of(0)
        if (stream is None) != (merges is None) or (
            stream is not None and merges is not None and not stream.first(len(own.gaps)).equals(merges)
        ):
            yield "merges: others than regime and root give"
            return
        decided_ns, merged, most = decisions(setting.corridor, own.rows()[0], setting.timing.lengths_ns(stream))
        least = most
    if not np.array_equal(decided_ns, e.decided_ns):
        yield f"decisions: {len(e.decided_ns)} stored, and by the schedule {len(decided_ns)} others"
    elif not np.array_equal(merged, e.merged):
        at = int(np.flatnonzero(merged != e.merged)[0])
        yield f"decision {at + 1}: answered {bool(e.merged[at])}, by the schedule {bool(merged[at])}"
    elif not least <= e.forced <= most:
        yield f"forced: stated {e.forced}, by the decisions {least if least == most else f'{least} to {most}'}"


def decisions(
    corridor: Corridor, gaps: NDArray[np.integer], lengths_ns: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], int]:
    """When the control loop asks, what was answered, and how many merges it imposed, for this schedule to come out.

    lengths_ns : of these merges and the next; None: all as long.
    """
    base_ns, forced = 0, 0
    decided: list[int] = []
    merged: list[bool] = []
    for number, gap in enumerate((*gaps.tolist(), None)):
        merge_ns = corridor.merge_ns if lengths_ns is None else int(lengths_ns[number])
        last = corridor.gap_max if gap is None else gap
        for step in range(corridor.gap_min, last + 1):
            now_ns = base_ns + step * corridor.grid_ns
            if now_ns + merge_ns > corridor.horizon_ns:
                break
            if step == corridor.gap_max:
                forced += 1
            else:
                decided.append(now_ns)
                merged.append(step == gap)
        base_ns += last * corridor.grid_ns + merge_ns
    return np.array(decided, np.int64), np.array(merged, bool), forced


def _peer_decisions(
    peers: Peers, own: PeerSchedule, e: Evidence
) -> tuple[NDArray[np.int64], NDArray[np.bool_], int, int]:
    """The same for groups.  Whether H_max imposed one beside others that were named is not told by the schedule."""
    corridor, free = peers.corridor, np.zeros(peers.n, np.int64)
    at: dict[int, list[tuple[int, ...]]] = {}
    for cell, group in zip(own.cells.tolist(), own.groups, strict=True):
        at.setdefault(cell, []).append(group)
    said = dict(zip(e.decided_ns.tolist(), e.merged.tolist(), strict=True))
    decided: list[int] = []
    merged: list[bool] = []
    imposed = 0
    for cell in range(1, peers.last_cell + 1):
        groups, now_ns = at.get(cell, []), cell * corridor.grid_ns
        if not (cell * corridor.decision_steps - free >= corridor.h_min).any():
            continue
        decided.append(now_ns)
        merged.append(bool(groups) and said.get(now_ns, False))
        imposed += 0 if said.get(now_ns, False) else len(groups)
        for group in groups:
            free[list(group)] = now_ns // corridor.step_ns + peers.steps(group)
    return np.array(decided, np.int64), np.array(merged, bool), imposed, len(own)


def _probed(plan: Plan, setting: Setting, kind: str, e: Evidence) -> Iterator[str]:
    """Re-runs that are missing, or whose future branched off elsewhere than the root says."""
    if any(p.kind == "determinism" and p.difference for p in e.probes):
        return  # futures may have branched off from the other run
    futures = arms.branches_ns(plan, setting, e.seed, e.decided_ns) if kind == "scheduler" else []
    due = [("determinism", None), *(("causality", at_ns) for at_ns in futures)]
    found = [(p.kind, p.at_ns) for p in e.probes if p.kind != "inputs"]
    if found != due:
        yield f"re-runs: {_named(found)}, by the root {_named(due)}"


def _named(runs: Sequence[tuple[str, int | None]]) -> str:
    return ", ".join(kind if at_ns is None else f"{kind} from {at_ns} ns" for kind, at_ns in runs) or "none"


# Placements ------------------------------------------------------------------------------------------------------


def _expected(
    plan: Plan, setting: Setting, kind: str, e: Evidence, made: list[Placements], sidecar: LoadedSidecar
) -> dict[str, Placements]:  # fmt: skip
    """Every arm's placements as the campaign would have drawn them; their prices mean nothing."""
    own, width = e.placed[POLICY], len(setting.slos)
    found = {POLICY: own}
    if setting.peers is not None:
        own_peers = setting.peers.read(own)[0]
        found[NO_SYNC] = _peers_stored(setting, [PeerSchedule(np.empty(0, np.int64), ())])
        if e.corridor_violation is None and len(own_peers):
            for arm, drawn in arms.peer_controls_of(plan, setting, e.seed, own_peers, setting.peers):
                found[arm] = _peers_stored(setting, drawn)
    else:
        found[NO_SYNC] = Placements.of(np.zeros((1, 0), np.int64), np.zeros((1, width), np.int64))
        idle_log = kind == "recorded" and not len(own.gaps)
        if e.corridor_violation is None and not idle_log:
            found |= dict(arms.controls(plan, setting, e.seed, own, sidecar))
    if UNIFORM in found:
        stated = len(e.placed[UNIFORM]) if UNIFORM in e.placed else 0
        for batch in range(1, len(plan.batches)):
            more = None if len(found[UNIFORM]) >= stated else arms.drawn_more(plan, setting, e.seed, own, batch)
            if more is None:
                break
            found[UNIFORM] = found[UNIFORM].joined(more)
    if e.seed >= setting.n_seeds:  # a further one: nothing is exchanged with it
        return found
    found[CROSSED] = arms.crossed(made, setting)
    if setting.peers is not None:
        sizes, members = (np.concatenate([getattr(p, c) for p in made]) for c in ("sizes", "members"))
        found[CROSSED] = replace(found[CROSSED], sizes=sizes, members=members)
    return found


def _peers_stored(setting: Setting, drawn: Sequence[PeerSchedule]) -> Placements:
    assert setting.peers is not None
    return setting.peers.stored(drawn, np.zeros((len(drawn), len(setting.slos)), np.int64))


def _same(one: Placements, other: Placements) -> bool:
    columns = ("lengths", "gaps", "sizes", "members")
    pairs = [(getattr(one, c), getattr(other, c)) for c in columns]
    if not all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs):
        return False
    if one.merges is None or other.merges is None:
        return one.merges is other.merges
    return len(one) == len(other) and all(a.equals(b) for a, b in zip(one.merges, other.merges, strict=True))


def _schedules(setting: Setting, placements: Placements, rows: Iterable[int], sidecar: LoadedSidecar) -> list[Schedule]:
    if setting.peers is not None:
        merges = setting.peers.read(placements)
        return [setting.peers.schedule(merges[row]) for row in rows]
    gaps, n = placements.rows(), sidecar.trace.n_islands
    return [setting.timing.schedule(gaps[row], n, placements.merges_of(row)) for row in rows]


def _priced(setting: Setting, arm: str, stated: Placements, sidecar: LoadedSidecar, sample: Sample) -> Iterator[str]:
    """The first price of an arm that is not what the model counts."""
    rows = sample.rows(len(stated))
    schedules = _schedules(setting, stated, rows.tolist(), sidecar)
    again = arms.violations_of(sidecar, schedules, setting.slos)
    for k, slo in np.argwhere(again != stated.violations[rows])[:1]:
        a, b = int(stated.violations[rows[k], slo]), int(again[k, slo])
        yield f"{arm}, placement {rows[k]}, {setting.slos[slo]}: stated {a} violations, counted {b}"


# Live sessions ---------------------------------------------------------------------------------------------------


def live_differences(root_seed: int, setting: Setting, evidence: Sequence[Evidence]) -> Iterator[str]:
    """Of blocks on a live server: another load than the root gives, or another control than it draws."""
    for e in evidence:
        where = f"{e.regime}, block {e.seed}"
        digest = setting.worlds.workload(e.seed).trace.digest
        if digest != e.trace_digest:
            yield f"{where}, trace_digest: stated {e.trace_digest}, by regime and root {digest}"
        policy = next((r for r in e.served if r.arm == POLICY), None)
        if policy is not None and UNIFORM in e.placed:
            drawn = control_gaps(root_seed, setting.name, setting.corridor, e.seed, policy.n_merges)
            if not np.array_equal(drawn, e.placed[UNIFORM].gaps):
                yield f"{where}, {UNIFORM}: another placement than the root draws"


# Resumed seeds ---------------------------------------------------------------------------------------------------


def same_seed(one: Evidence, other: Evidence) -> str | None:
    """The first thing in which a seed's evidence differs from another run of it, but for what other seeds give."""
    for name in ("trace_digest", "n_requests", "forced", "corridor_violation", "replay_difference", "probes"):
        if getattr(one, name) != getattr(other, name):
            return name
    for name in ("decided_ns", "merged"):
        if not np.array_equal(getattr(one, name), getattr(other, name)):
            return name
    for arm in sorted({*one.placed, *other.placed} - {CROSSED}):
        a, b = one.placed.get(arm), other.placed.get(arm)
        if a is None or b is None or not _same(a, b) or not np.array_equal(a.violations, b.violations):
            return f"placements of {arm}"
    for arm in sorted({*one.simulated, *other.simulated}):
        mine, its = one.simulated.get(arm), other.simulated.get(arm)
        if (
            mine is None
            or its is None
            or any(
                not np.array_equal(getattr(mine.rows, c.name), getattr(its.rows, c.name)) for c in fields(Measurements)
            )
        ):
            return f"rows of {arm}"
    return None
