"""The arms of one seed in simulation: the scheduler's schedule, no merge, and every control that has its merges."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import cast

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.campaign.plan import Contender, Plan, PlannerSource, Setting
from protocol.errors import BadInput
from protocol.evidence.model import OPTIMUM, PARTNERS, PERMUTED, PESSIMUM, SHIFTED, TIMING, Evidence, Probe
from protocol.merging import logged
from protocol.merging.corridor import Corridor
from protocol.merging.peers import controls as peer_controls
from protocol.merging.peers.schedules import Peers, PeerSchedule
from protocol.merging.placements import Placements
from protocol.merging.practice import Merges
from protocol.merging.schedule import Schedule
from protocol.placement.peer_rollout import peer_rollout
from protocol.placement.planning import extremes, extremes_of
from protocol.placement.rollout import Rollout, rollout
from protocol.replay.measurements import Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.replay.sidecar import LoadedSidecar
from protocol.scheduler import CLOCK_SHIFT_S, SchedulerSource
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace, Workload, seconds_to_ns

#: Share of seeds whose runs are in two processes.
ELSEWHERE = 0.25


def draw_more(plan: Plan, setting: Setting, seed: int, policy: Placements | None, batch: int) -> Placements | None:
    """One more round of matched draws of a seed; None for a schedule outside the corridor."""
    drawn = drawn_more(plan, setting, seed, policy, batch)
    if drawn is None:
        return None
    sidecar = load(plan, setting, seed, setting.worlds.workload(seed))
    if setting.peers is not None:
        return _priced(setting.peers, sidecar, setting.peers.read(drawn), setting.slos)
    return priced(sidecar, drawn, setting)


def drawn_more(plan: Plan, setting: Setting, seed: int, policy: Placements | None, batch: int) -> Placements | None:
    """The same without prices."""
    if policy is None or not len(policy.gaps):
        return None
    rng = seeds.generator(plan.root_seed, UNIFORM, setting.name, seed, batch)
    n = plan.batches[batch]
    unpriced = np.zeros((n, len(setting.slos)), np.int64)
    if setting.peers is not None:
        own = setting.peers.read(policy)[0]
        drawn = peer_controls.draws(setting.peers, own, n, _hub(plan, setting, seed, UNIFORM), rng)
        return setting.peers.stored(drawn, unpriced)
    merges = policy.merges_of(0)
    gaps = setting.corridor.sample(len(policy.gaps), n, rng, setting.timing.spent(merges))
    return Placements.of(gaps, unpriced, _reordered(plan, setting, seed, UNIFORM, merges, n, batch))


def load(plan: Plan, setting: Setting, seed: int, workload: Workload) -> LoadedSidecar:
    """The sidecar with a seed's trace; its measured noise depends on the regime and the seed alone."""
    return setting.sidecar.load(workload.trace, seeds.generator(plan.root_seed, "sidecar", setting.name, seed))


def schedules_of(gaps: Iterable[NDArray[np.integer]], corridor: Corridor, n_islands: int) -> list[Schedule]:
    """Schedules of merges that are all alike, from their gaps."""
    rows = list(gaps)
    if len({len(row) for row in rows}) == 1:
        return Schedule.many(corridor.start_ns(np.stack(rows)), corridor.merge_ns, n_islands)
    return [Schedule.all_islands(corridor.start_ns(row), corridor.merge_ns, n_islands) for row in rows]


def costs(
    sidecar: LoadedSidecar,
    gaps: Iterable[NDArray[np.integer]],
    corridor: Corridor,
    slos: Sequence[Slo],
) -> NDArray[np.int64]:
    """Requests that violate each SLO under each placement, shape (len(gaps), len(slos)), of merges all alike."""
    return violations_of(sidecar, schedules_of(gaps, corridor, sidecar.trace.n_islands), slos)


def priced(sidecar: LoadedSidecar, placed: Placements, setting: Setting) -> Placements:
    """The same placements with what they cost."""
    n, timing = sidecar.trace.n_islands, setting.timing
    if placed.merges is None:
        return replace(placed, violations=costs(sidecar, placed.rows(), setting.corridor, setting.slos))
    schedules = [timing.schedule(gaps, n, placed.merges_of(k)) for k, gaps in enumerate(placed.rows())]
    return replace(placed, violations=violations_of(sidecar, schedules, setting.slos))


def violations_of(sidecar: LoadedSidecar, schedules: list[Schedule], slos: Sequence[Slo]) -> NDArray[np.int64]:
    if not schedules:
        return np.empty((0, len(slos)), np.int64)
    return np.stack([sidecar.violations(schedules, slo) for slo in slos], axis=1)


def _priced(peers: Peers, sidecar: LoadedSidecar, drawn: Sequence[PeerSchedule], slos: Sequence[Slo]) -> Placements:
    return peers.stored(drawn, violations_of(sidecar, [peers.schedule(s) for s in drawn], slos))


def _hub(plan: Plan, setting: Setting, seed: int, control: str) -> np.random.Generator:
    """The stream that leads to a control's hub: all rounds of its draws start from one."""
    return seeds.generator(plan.root_seed, f"{control}-hub", setting.name, seed)


def refuse_kind(name: str, kind: str, setting: Setting) -> None:
    """Raises BadInput for a planner or a merge log where only others can be judged."""
    if kind != "scheduler" and setting.peers is not None:
        expected = "a scheduler: planners and merge logs name no groups"
        raise BadInput(f"{name}, {setting.name}", f"a {kind} schedule", expected)
    if kind == "planner" and not setting.practice.ordinary:
        expected = "a scheduler or a merge log: a planner places merges that are all alike"
        raise BadInput(f"{name}, {setting.name}", "a planner beside [merge]", expected)


def place(
    plan: Plan, setting: Setting, seed: int, workload: Workload, sidecar: LoadedSidecar, until_ns: int | None = None
) -> Rollout:
    """One run of the contender: a fresh scheduler with the seed's own random stream."""
    contender = _contender(plan.open_contender)
    stream = (plan.root_seed, "scheduler", setting.name, seed)
    words = seeds.words(*stream, secret=plan.secret)
    refuse_kind(plan.contender, contender.kind, setting)
    if contender.kind != "scheduler":
        corridor = setting.corridor
        if contender.kind == "planner":
            corridor.check_budget(setting.planner_budget)
        elif setting.transfer_ns:  # a log's merges without a length are as long as a transfer
            corridor = replace(corridor, merge_ns=setting.transfer_ns)
        schedule = cast(PlannerSource, contender).plan(
            workload.trace, corridor, setting.planner_budget, words, sidecar, setting.slos[0]
        )
        if schedule.n_islands != workload.trace.n_islands:
            found = f"a schedule of {schedule.n_islands} islands"
            raise BadInput(f"{plan.contender}, {setting.name}, seed {seed}", found, f"{workload.trace.n_islands}")
        merges = None
        if contender.kind == "recorded":
            schedule, merges = _recorded(schedule, setting, seed)
        nothing, forced = np.empty(0, np.int64), np.zeros(len(schedule), bool)
        return Rollout(schedule, nothing, nothing > 0, forced, sidecar.replay(schedule), merges=merges)
    scheduler = contender.start(words)
    try:
        if setting.peers is not None:
            partners = seeds.generator(plan.root_seed, "partners", setting.name, seed)
            return peer_rollout(scheduler, workload, sidecar, setting.peers, setting.learner, partners, until_ns)
        coming = stream_of(plan.root_seed, setting, seed)
        return rollout(
            scheduler, workload, sidecar, setting.corridor, setting.learner, until_ns, setting.timing, coming
        )
    finally:
        scheduler.close()


def stream_of(root_seed: int, setting: Setting, seed: int) -> Merges | None:
    """What the merges of a seed will be, however many are made; None where they are all alike.

    They depend on the regime and the seed alone: the same in every run, whatever was decided.
    """
    practice, corridor = setting.practice, setting.corridor
    if practice.ordinary:
        return None
    least_ns = setting.transfer_ns if practice.duration is None else seconds_to_ns(practice.duration.least)
    shortest = int(practice.length_ns(np.array([least_ns]), corridor.step_ns)[0])
    most = corridor.horizon_ns // (corridor.gap_min * corridor.grid_ns + shortest) + 1
    return practice.stream(setting.transfer_ns, most, seeds.generator(root_seed, "merges", setting.name, seed))


def _recorded(whole: Schedule, setting: Setting, seed: int) -> tuple[Schedule, Merges | None]:
    """A merge log in a seed: what of it lies in the seed's window, on the decision grid."""
    if not setting.begins_ns:
        schedule = logged.snapped(whole, setting.timing)[0]
        return schedule, logged.merges_of(schedule, setting.timing)
    schedule, following = logged.window(whole, setting.begins_ns[seed], setting.timing)
    return schedule, logged.merges_of(schedule, setting.timing, following)


def _contender(open_contender: Callable[[], Contender]) -> Contender:
    """One opened contender a process; its runs are fresh all the same."""
    # A worker is handed a new copy of the opener with every seed: equal ones open the same.
    try:
        key: object = pickle.dumps(open_contender)
    except (pickle.PicklingError, AttributeError, TypeError):
        key = open_contender
    if key not in _OPENED:
        _OPENED[key] = open_contender()
        # What it printed is published when it is closed, in a worker when that ends.
        Finalize(None, close_contenders, exitpriority=100)
    return _OPENED[key]


_OPENED: dict[object, Contender] = {}


def close_contenders() -> None:
    """End what this process has opened; what it printed goes to its log."""
    while _OPENED:
        _OPENED.popitem()[1].close()


def run_seed(plan: Plan, setting: Setting, seed: int) -> Evidence:
    """All arms of one seed, except the ones that need the other seeds' schedules."""
    workload = setting.worlds.workload(seed)
    trace = workload.trace
    if not len(trace):
        raise BadInput(f"{setting.name}, seed {seed}", "no requests", "a trace with at least one request")
    sidecar = load(plan, setting, seed, workload)
    policy, probes = _runs(plan, setting, seed, workload, sidecar)
    rows = {POLICY: sidecar.replay(policy.schedule), NO_SYNC: sidecar.replay(Schedule.empty(trace.n_islands))}
    violation = _violation(plan, setting, policy)
    return Evidence(
        regime=setting.name,
        seed=seed,
        trace_digest=trace.digest,
        n_requests=len(trace),
        prompt_tokens=int(trace.prompt_tokens.sum(dtype=np.int64)),
        output_tokens=int(trace.output_tokens.sum(dtype=np.int64)),
        forced=int(policy.forced.sum()),
        corridor_violation=violation,
        replay_difference=_difference(policy.measurements, rows[POLICY])
        or _other_load(trace, *rows.values())
        or _other_price(sidecar, policy.schedule, rows[POLICY], setting.slos),
        probes=probes,
        decided_ns=policy.decided_ns,
        merged=policy.merged,
        placed=dict(_placed(plan, setting, seed, policy, violation, sidecar, rows)),
        simulated={arm: Replay(m, regime=setting.name, seed=seed, arm=arm) for arm, m in rows.items()},
    )


def _idle_log(plan: Plan, policy: Rollout) -> bool:
    """A log without merges is a no-sync arm, not a scheduler that defied H_max."""
    return not len(policy.schedule) and _contender(plan.open_contender).kind == "recorded"


def _violation(plan: Plan, setting: Setting, policy: Rollout) -> str | None:
    if _idle_log(plan, policy):
        return None
    if setting.peers is not None:
        return setting.peers.violation(_as_peers(policy, setting.corridor))
    unequal = None if policy.merges is not None else _busy_violation(policy.schedule, setting.corridor)
    return unequal or setting.timing.violation(policy.schedule.start_ns, policy.merges)


def _placed(
    plan: Plan, setting: Setting, seed: int, policy: Rollout, violation: str | None, sidecar: LoadedSidecar,
    rows: dict[str, Measurements],
) -> Iterator[tuple[str, Placements]]:  # fmt: skip
    """The policy's schedule and every control's, priced; no control of a schedule outside the corridor."""
    slos, peers = setting.slos, setting.peers
    counted = {arm: np.array([[m.violates(slo).sum() for slo in slos]]) for arm, m in rows.items()}
    if peers is not None:
        own = _as_peers(policy, setting.corridor)
        yield POLICY, peers.stored([own], counted[POLICY])
        yield NO_SYNC, peers.stored([_as_peers(None, setting.corridor)], counted[NO_SYNC])
        if violation is None and len(own):
            for arm, drawn in peer_controls_of(plan, setting, seed, own, peers):
                yield arm, _priced(peers, sidecar, drawn, slos)
        return
    gaps = np.zeros(0, np.int64) if violation else setting.timing.gaps(policy.schedule.start_ns, policy.merges)
    merges = policy.merges
    if merges is not None and violation is not None:
        merges = merges.first(0)
    made = Placements.of(gaps[None], counted[POLICY], None if merges is None else [merges])
    yield POLICY, made
    yield NO_SYNC, Placements.of(np.zeros((1, 0), np.int64), counted[NO_SYNC])
    if violation is None and not _idle_log(plan, policy):
        for arm, placed in controls(plan, setting, seed, made, sidecar):
            yield arm, priced(sidecar, placed, setting)


def controls(
    plan: Plan, setting: Setting, seed: int, policy: Placements, sidecar: LoadedSidecar
) -> Iterator[tuple[str, Placements]]:
    """Every control, unpriced: it has the policy's own merges and obeys the same corridor.

    Of merges that are not all alike, draws and permuted gaps take them in random orders; a schedule moved in time turns
    them with it, and the best and the worst keep their order, which nobody could have chosen.
    """
    corridor, timing = setting.corridor, setting.timing
    gaps, own = policy.rows()[0].astype(np.int64), policy.merges_of(0)
    spent, budget = timing.spent(own), len(gaps)

    def stream(control: str) -> np.random.Generator:
        return seeds.generator(plan.root_seed, control, setting.name, seed)

    def unpriced(found: NDArray[np.int64], merges: Sequence[Merges] | None) -> Placements:
        return Placements.of(found, np.zeros((len(found), len(setting.slos)), np.int64), merges)

    drawn = corridor.sample(budget, plan.batches[0], stream(UNIFORM), spent)
    yield UNIFORM, unpriced(drawn, _reordered(plan, setting, seed, UNIFORM, own, len(drawn)))
    permuted = corridor.permuted(gaps, plan.control_draws, stream(PERMUTED))
    yield PERMUTED, unpriced(permuted, _reordered(plan, setting, seed, PERMUTED, own, len(permuted)))
    shifts, first = corridor.turned(gaps, spent)
    if len(shifts) > plan.control_draws:
        kept = np.sort(stream(SHIFTED).choice(len(shifts), plan.control_draws, replace=False))
        shifts, first = shifts[kept], first[kept]
    around = np.arange(budget)
    turned = None if own is None else [own.ordered((around + j) % budget) for j in first.tolist()]
    yield SHIFTED, unpriced(shifts, turned)
    ends = (extremes(corridor, budget, sidecar, slo) if own is None else extremes_of(timing, own, sidecar, slo)
            for slo in setting.slos)  # fmt: skip
    for arm, rows in zip((OPTIMUM, PESSIMUM), zip(*ends, strict=True), strict=True):
        yield arm, unpriced(np.stack(rows), None if own is None else [own] * len(rows))


def _reordered(
    plan: Plan, setting: Setting, seed: int, arm: str, own: Merges | None, n: int, batch: int = 0
) -> list[Merges] | None:
    """The policy's merges in n random orders, by a stream of their own; None where they are all alike."""
    if own is None:
        return None
    rng = seeds.generator(plan.root_seed, f"{arm}-merges", setting.name, seed, batch)
    return [own.ordered(order) for order in own.orders(n, rng)]


def peer_controls_of(
    plan: Plan, setting: Setting, seed: int, own: PeerSchedule, peers: Peers
) -> Iterator[tuple[str, list[PeerSchedule]]]:
    """The matched draws change times and partners; each of the two others changes one and keeps the other."""
    for arm, n, timing, partners in (
        (UNIFORM, plan.batches[0], True, True),
        (TIMING, plan.control_draws, True, False),
        (PARTNERS, plan.control_draws, False, True),
    ):
        hub, rng = _hub(plan, setting, seed, arm), seeds.generator(plan.root_seed, arm, setting.name, seed)
        yield arm, peer_controls.draws(peers, own, n, hub, rng, timing=timing, partners=partners)


def _as_peers(policy: Rollout | None, corridor: Corridor) -> PeerSchedule:
    """The groups of a rollout at their decisions; no merge at all for None, or where no groups were formed."""
    if policy is None or policy.groups is None:
        return PeerSchedule(np.empty(0, np.int64), ())
    return PeerSchedule(policy.schedule.start_ns // corridor.grid_ns, policy.groups)


def _busy_violation(schedule: Schedule, corridor: Corridor) -> str | None:
    """A merge that occupies an island for another time than its controls will."""
    for k, i in np.argwhere(schedule.busy_ns != corridor.merge_ns)[:1]:
        took, due = schedule.busy_ns[k, i] / NS_PER_S, corridor.merge_ns / NS_PER_S
        return f"merge {k + 1} occupies island {i} for {took:g} s; a merge takes {due:g} s"
    return None


def _difference(online: Measurements | None, replayed: Measurements) -> str | None:
    """The finished schedule, replayed, must reproduce the run in which it was decided."""
    if online is None:
        return "the run in which the schedule was decided has no measurements"
    for column in ("arrival_ns", "ttft_ns", "e2e_ns", "outcome", "output_tokens"):
        differs = np.flatnonzero(getattr(online, column) != getattr(replayed, column))
        if differs.size:
            return f"request {differs[0]}: {column} differs between the run and its replay"
    return None


def _other_load(trace: RequestTrace, *arms: Measurements) -> str | None:
    """A request that an arm reports otherwise than the trace offered it: retried, moved, sent elsewhere."""
    for m in arms:
        for column in ("arrival_ns", "prompt_tokens", "island"):
            reported, offered = getattr(m, column), getattr(trace, column)
            n = min(len(reported), len(offered))  # missing and surplus rows fail the completeness check
            differs = np.flatnonzero(reported[:n] != offered[:n])
            if differs.size:
                return f"request {differs[0]}: the sidecar reports another {column} than the trace has"
    return None


def _other_price(sidecar: LoadedSidecar, schedule: Schedule, replayed: Measurements, slos: Sequence[Slo]) -> str | None:
    """Controls are only counted, the policy is also kept row by row: both ways must say the same of one schedule."""
    for slo in slos:
        priced, found = int(sidecar.violations([schedule], slo)[0]), int(replayed.violates(slo).sum())
        if priced != found:
            return (
                f"priced like a control, the policy's schedule has {priced} violations of {slo}; its rows have {found}"
            )
    return None


def _runs(
    plan: Plan, setting: Setting, seed: int, workload: Workload, sidecar: LoadedSidecar
) -> tuple[Rollout, tuple[Probe, ...]]:
    """The contender's runs of one seed, and what telling them apart shows: the one that counts, the same again with
    the clock ahead, and altered futures.

    They come in an order drawn for the seed, so that whatever could count its runs would not know which one counts.  A
    whole one is always first: it says when decisions are due, and a future branches off right after one of them.
    """
    contender = _contender(plan.open_contender)
    rng = seeds.generator(plan.root_seed, "order", setting.name, seed)
    first, last = ("policy", "again") if rng.random() < 0.5 else ("again", "policy")
    others = [last, *range(plan.probes if contender.kind == "scheduler" else 0)]
    whole = {first: _whole(plan, setting, seed, workload, sidecar, first)}
    # In seeds that the root draws, the first of a regime among them, the rest in a new process, where the system puts
    # everything elsewhere: what is the same in all runs of one process would pass for a constant.
    if seed == 0 or rng.random() < ELSEWHERE:
        getattr(contender, "restart", contender.close)()  # closing would show the log to the runs that follow
    altered: dict[int, tuple[int, Rollout]] = {}
    for index in rng.permutation(len(others)):
        kind = others[index]
        if isinstance(kind, str):
            whole[kind] = _whole(plan, setting, seed, workload, sidecar, kind)
        else:
            altered[kind] = _altered(plan, setting, seed, workload, whole[first], kind)
    policy, again = whole["policy"], whole["again"]
    found = [Probe("determinism", None, _decided_otherwise(policy, again, setting.corridor.horizon_ns))]
    for at_ns, other in (altered[number] for number in sorted(altered)):
        found.append(Probe("causality", at_ns, _decided_otherwise(policy, other, at_ns)))
    return policy, (*found, *uncovered(contender, plan.digest))


def _whole(plan: Plan, setting: Setting, seed: int, workload: Workload, sidecar: LoadedSidecar, kind: str) -> Rollout:
    if kind == "policy":
        return place(plan, setting, seed, workload, sidecar)
    contender = _contender(plan.open_contender)
    contender.clock_shift_s = CLOCK_SHIFT_S
    try:
        return place(plan, setting, seed, workload, load(plan, setting, seed, workload))
    finally:
        contender.clock_shift_s = 0.0


def branches_ns(plan: Plan, setting: Setting, seed: int, decided_ns: NDArray[np.int64]) -> list[int]:
    """When the altered futures of a seed begin: right after a decision.

    That one and all before it must stay, and a look ahead, however short, reaches the change.
    """
    asked = decided_ns if len(decided_ns) else np.array([setting.corridor.horizon_ns])
    rngs = (seeds.generator(plan.root_seed, "probe", setting.name, seed, number) for number in range(plan.probes))
    return [int(rng.choice(asked)) + 1 for rng in rngs]


def _altered(
    plan: Plan, setting: Setting, seed: int, workload: Workload, run: Rollout, number: int
) -> tuple[int, Rollout]:
    at_ns = branches_ns(plan, setting, seed, run.decided_ns)[number]
    altered = workload.spliced(setting.worlds.other(seed, number), at_ns)
    return at_ns, place(plan, setting, seed, altered, load(plan, setting, seed, altered), until_ns=at_ns)


def uncovered(contender: Contender | SchedulerSource, digest: str | None = None) -> Iterator[Probe]:
    """Files that its runs read so far and its digest does not cover, or that changed while it was judged."""
    problem = getattr(contender, "uncovered", None)
    if problem is None and digest is not None:
        now = contender.describe().get("digest")
        if now != digest:
            which = ", ".join(getattr(contender, "changed", ())) or "which, their dates do not tell"
            problem = f"its files changed while it was judged ({which}): their digest is now {now}"
            problem += "; what lies beside a scheduler is its data, so output and logs belong elsewhere"
    if problem is not None:
        yield Probe("inputs", None, problem)


def _decided_otherwise(one: Rollout, other: Rollout, until_ns: int) -> str | None:
    """The first thing that two runs decided differently before `until_ns`, or None."""
    for k, (mine, its) in enumerate(zip(one.groups or (), other.groups or (), strict=False)):
        start = int(one.schedule.start_ns[k])
        if start == other.schedule.start_ns[k] and start < until_ns and mine != its:
            return f"participants of merge {k + 1} differ at {start / NS_PER_S:.3f} s"
    for what, a, b in (
        ("merge start", one.schedule.start_ns, other.schedule.start_ns),
        ("decision", one.decided_ns, other.decided_ns),
        ("decision to merge", one.decided_ns[one.merged], other.decided_ns[other.merged]),
    ):
        a, b = a[a < until_ns], b[b < until_ns]
        n = min(len(a), len(b))
        differs = np.flatnonzero(a[:n] != b[:n])
        if differs.size or len(a) != len(b):
            at = int(differs[0]) if differs.size else n
            when = min(int(x[at]) for x in (a, b) if at < len(x))
            return f"{what} {at + 1} differs at {when / NS_PER_S:.3f} s"
    return None


def cross(plan: Plan, setting: Setting, seed: int, made: list[Placements]) -> Placements:
    """The schedules made on every seed's trace, replayed on this seed's: row t is the one made on trace t."""
    sidecar = load(plan, setting, seed, setting.worlds.workload(seed))
    if setting.peers is not None:
        return _priced(setting.peers, sidecar, [setting.peers.read(p)[0] for p in made], setting.slos)
    return priced(sidecar, crossed(made, setting), setting)


def crossed(made: Sequence[Placements], setting: Setting) -> Placements:
    """The policy's schedules of all seeds as one arm, unpriced."""
    lengths = np.concatenate([p.lengths for p in made])
    merges = None
    if any(p.merges is not None for p in made):
        alike = (Merges.alike(int(p.lengths[0]), setting.corridor.merge_ns) for p in made)
        merges = tuple(p.merges_of(0) or a for p, a in zip(made, alike, strict=True))
    unpriced = np.zeros((len(lengths), len(setting.slos)), np.int64)
    return Placements(lengths, np.concatenate([p.gaps for p in made]), unpriced, merges=merges)
