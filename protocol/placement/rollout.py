"""The control loop: a scheduler decides on a grid, against a sidecar that serves under its own merges.

The same loop forces a merge at H_max and refuses one that would not end within the horizon, which is
exactly the set that `Corridor` counts and draws from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SchedulerError
from protocol.merging.corridor import Corridor
from protocol.merging.practice import Merges, Timing
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements
from protocol.replay.sidecar import LoadedSidecar, ServingState, Session
from protocol.scheduler import IslandObservation, Observation, SchedulerRun
from protocol.workload.learner import Learner
from protocol.workload.trace import NS_PER_S, RequestTrace, Workload, frozen


@dataclass(frozen=True, eq=False)
class Rollout:
    """What a scheduler did in one horizon.

    decided_ns : int64, shape (n,), times at which it was asked.  merged : bool, shape (n,), its answers.
    forced : bool, shape (K,), merges that H_max imposed.  measurements : rows as the sidecar served them
    while the decisions were taken, None when the loop stopped early.  groups : participants of each merge, None where
    all islands merge.  merges : what its merges were, None where all of them are alike.
    """

    schedule: Schedule
    decided_ns: NDArray[np.int64]
    merged: NDArray[np.bool_]
    forced: NDArray[np.bool_]
    measurements: Measurements | None
    groups: tuple[tuple[int, ...], ...] | None = None
    merges: Merges | None = None


class Arrivals:
    """Counts per full second of the horizon; only a prefix is ever shown."""

    def __init__(self, trace: RequestTrace, horizon_ns: int) -> None:
        second = trace.arrival_ns // NS_PER_S
        size = horizon_ns // NS_PER_S + 1
        early = second < size
        self.requests = frozen(np.bincount(second[early], minlength=size), "f8")
        self.prompt_tokens = frozen(np.bincount(second[early], trace.prompt_tokens[early], minlength=size), "f8")


class ControlLoop:
    """The rules of the loop, whatever keeps its time: when a decision is due, when a merge is forced or too late.

    Inner steps stop while a merge runs, but for those that its practice trains meanwhile, and the grid of decisions
    begins anew where the last merge ended.
    """

    def __init__(
        self, workload: Workload, corridor: Corridor, learner: Learner,
        timing: Timing | None = None, stream: Merges | None = None,
    ) -> None:  # fmt: skip
        """stream : what the merges of this run will be, however many it makes; None: all alike."""
        self.workload, self.corridor, self.learner = workload, corridor, learner
        self._stream, self._delay_steps, self._fragments = stream, 0, 1
        self._trained, self._merged_at = 0, {0: 0}
        self._lengths_ns: NDArray[np.int64] | None = None
        if timing is not None and stream is not None:
            self._lengths_ns, self._delay_steps = timing.lengths_ns(stream), timing.practice.sync_delay_steps
            self._fragments = timing.practice.fragments
        self._arrivals = Arrivals(workload.trace, corridor.horizon_ns)
        self._base_ns = self._base_steps = 0
        self._gap = corridor.gap_min
        self.merges = 0

    @property
    def due_ns(self) -> int | None:
        """When the next decision is due; None when its merge would not end within the horizon."""
        now_ns = self._base_ns + self._gap * self.corridor.grid_ns
        return now_ns if now_ns + self.merge_ns <= self.corridor.horizon_ns else None

    @property
    def merge_ns(self) -> int:
        """How long the next merge will last.  Nobody who decides is told."""
        return self.corridor.merge_ns if self._lengths_ns is None else int(self._lengths_ns[self.merges])

    @property
    def forced(self) -> bool:
        """Whether the merge that is due is imposed by H_max: nobody is asked."""
        return self._gap == self.corridor.gap_max

    def observe(self, serving: tuple[ServingState, ...]) -> Observation:
        """What a scheduler sees at the decision that is due."""
        due_ns = self._base_ns + self._gap * self.corridor.grid_ns
        seen = _observe(
            serving,
            self.workload,
            self._arrivals,
            self.corridor,
            self.learner,
            due_ns,
            self._base_ns,
            self._base_steps,
            self._gap * self.corridor.decision_steps,
            self.merges,
        )
        if self._stream is None:
            return seen
        due = int(self._stream.fragment[self.merges])
        since = self._trained + self._gap * self.corridor.decision_steps - self._merged_at.get(due, 0)
        return replace(seen, fragment=due, fragments=self._fragments, fragment_steps=since)

    def wait(self) -> None:
        """The decision was not to merge; the next one is due a step of the grid later."""
        self._gap += 1

    def merge(self, start_ns: int) -> None:
        """A merge starts at `start_ns`, at or after the time that was due: late where a clock is real."""
        steps = (start_ns - self._base_ns) // self.corridor.step_ns
        if self._stream is None or self._stream.committed[self.merges]:  # else what was trained is given up
            self._base_steps += steps + self._delay_steps
        if self._stream is not None:
            if self._stream.committed[self.merges]:
                self._merged_at[int(self._stream.fragment[self.merges])] = self._trained + steps
            self._trained += steps + self._delay_steps
        self._base_ns, self._gap = start_ns + self.merge_ns, self.corridor.gap_min
        self.merges += 1


def rollout(
    run: SchedulerRun,
    workload: Workload,
    sidecar: LoadedSidecar,
    corridor: Corridor,
    learner: Learner,
    until_ns: int | None = None,
    timing: Timing | None = None,
    stream: Merges | None = None,
) -> Rollout:
    """Let a scheduler place merges over the horizon, or up to `until_ns` (exclusive) when given.

    stream : what the merges will be, however many are made, and `timing` how they lie; None: all alike.
    Raises SchedulerError when it crashes, hangs or answers nonsense.
    """
    n_islands = workload.trace.n_islands
    loop = ControlLoop(workload, corridor, learner, timing, stream)
    slowdown = None if timing is None else timing.practice.send_slowdown
    session = sidecar.session() if slowdown is None else sidecar.session(slowdown)
    every = None
    if timing is not None and stream is not None:
        lengths = timing.practice.length_ns(stream.took_ns, corridor.step_ns)
        every = timing.schedule_at(np.cumsum(lengths) - lengths, n_islands, stream)
    stop_ns = corridor.horizon_ns if until_ns is None else until_ns
    starts: list[int] = []
    forced: list[bool] = []
    decided: list[int] = []
    merged: list[bool] = []
    while (now_ns := loop.due_ns) is not None and now_ns < stop_ns:
        session.advance(now_ns)
        imposed = loop.forced
        if imposed:
            merge = True
        else:
            merge = ask(run, loop.observe(session.observe(now_ns)))
            decided.append(now_ns)
            merged.append(merge)
        if merge:
            _add(session, loop.merges, now_ns, corridor, n_islands, every)
            starts.append(now_ns)
            forced.append(imposed)
            loop.merge(now_ns)
        else:
            loop.wait()
    made = None if stream is None else stream.first(len(starts))
    begun = np.array(starts, np.int64)
    if timing is None or made is None:
        schedule = Schedule.all_islands(begun, corridor.merge_ns, n_islands)
    else:
        schedule = timing.schedule_at(begun, n_islands, made)
    return Rollout(
        schedule,
        frozen(decided, "i8"),
        frozen(merged, "?"),
        frozen(forced, "?"),
        session.finish() if until_ns is None else None,
        merges=made,
    )


def _add(
    session: Session, number: int, start_ns: int, corridor: Corridor, n_islands: int, every: Schedule | None
) -> None:
    """A merge that starts now.  every : all merges that could be made, at any times."""
    if every is None:
        session.add_merge(start_ns, np.full(n_islands, corridor.merge_ns, np.int64))
    elif every.applied_ns is None:
        session.add_merge(start_ns, every.busy_ns[number])
    else:
        begin, end = (start_ns + every.applied_ns[number] - every.start_ns[number]).tolist()
        session.add_merge(start_ns, every.busy_ns[number], (begin, end))


def ask(run: SchedulerRun, seen: Observation) -> bool:
    """The scheduler's answer: merge now?  Raises SchedulerError also when it names other groups than everybody."""
    decision, everyone = run.decide(seen), tuple(range(len(seen.islands)))
    if decision.groups is not None and tuple(tuple(sorted(g)) for g in decision.groups) != (everyone,):
        raise SchedulerError(
            f"decision at {seen.time_s:g} s: found groups {decision.groups}; expected all islands, {everyone}"
        )
    return decision.merge


def _observe(
    serving: tuple[ServingState, ...],
    workload: Workload,
    arrivals: Arrivals,
    corridor: Corridor,
    learner: Learner,
    now_ns: int,
    base_ns: int,
    base_steps: int,
    steps: int,
    merges_so_far: int,
) -> Observation:
    loss = learner.loss(base_steps + steps)
    reduction = max(0.0, learner.loss(base_steps) - loss)
    tokens, staleness_s = steps * learner.tokens_per_step, (now_ns - base_ns) / NS_PER_S
    network, checkpoint = workload.network.at(now_ns), workload.checkpoint.at(now_ns)
    islands = tuple(
        IslandObservation(
            steps, loss, reduction, tokens, staleness_s, network, s.serving_pressure, checkpoint,
            s.in_flight, s.queued, s.completed, s.recent_e2e_s, s.recent_ttft_s,
        )
        for s in serving
    )  # fmt: skip
    return observation(
        islands, arrivals, corridor, now_ns, merges_so_far,
        steps=steps, loss=loss, loss_reduction=reduction, tokens=tokens, staleness_s=staleness_s,
        telemetry_age_s=max(s.telemetry_age_s for s in serving),
    )  # fmt: skip


def observation(
    islands: tuple[IslandObservation, ...],
    arrivals: Arrivals,
    corridor: Corridor,
    now_ns: int,
    merges_so_far: int,
    *,
    steps: int,
    loss: float,
    loss_reduction: float,
    tokens: int,
    staleness_s: float,
    telemetry_age_s: float = 0.0,
) -> Observation:
    """The fleet from its islands; all that is not named here adds them up or takes their mean."""
    second = now_ns // NS_PER_S
    return Observation(
        time_s=now_ns / NS_PER_S,
        steps_since_merge=steps,
        h_min=corridor.h_min,
        h_max=corridor.h_max,
        decision_steps=corridor.decision_steps,
        step_s=corridor.step_ns / NS_PER_S,
        merge_s=corridor.merge_ns / NS_PER_S,
        merges_so_far=merges_so_far,
        loss=loss,
        loss_reduction=loss_reduction,
        tokens=tokens,
        staleness_s=staleness_s,
        network_pressure=islands[0].network_pressure,
        serving_pressure=sum(i.serving_pressure for i in islands) / len(islands),
        checkpoint_pressure=islands[0].checkpoint_pressure,
        in_flight=sum(i.in_flight for i in islands),
        queued=sum(i.queued for i in islands),
        completed=sum(i.completed for i in islands),
        recent_e2e_s=_mean([i.recent_e2e_s for i in islands]),
        recent_ttft_s=_mean([i.recent_ttft_s for i in islands]),
        arrivals_per_s=arrivals.requests[:second],
        prompt_tokens_per_s=arrivals.prompt_tokens[:second],
        islands=islands,
        telemetry_age_s=telemetry_age_s,
        fragment_steps=steps,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
