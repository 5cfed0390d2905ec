"""What a scheduler sees, what it answers, and the two kinds of scheduler there are.

A *scheduler* is causal: it gets observations and answers decisions.  A *planner* is handed the whole
trace and is never deployable.  They are different types so that nothing causal can be handed a future.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from protocol.merging.corridor import Corridor
    from protocol.merging.schedule import Schedule
    from protocol.workload.trace import RequestTrace


@dataclass(frozen=True)
class IslandObservation:
    """One island and its sidecar, as known at the time of a decision.

    steps_since_merge : inner steps; since the island's last merge (as a peer: since its group's ended, 0 until then)
    loss : nats; current training loss
    loss_reduction : nats, >= 0; how much it fell since the island's last merge
    tokens : count; trained on since the island's last merge
    staleness_s : seconds; since the island's last merge ended
    network_pressure : 0 to 1; how busy the network is, as the regime declares it
    serving_pressure : 0 to 1; share of the sidecar's batch slots in use over the last 5 s
    checkpoint_pressure : 0 to 1; how busy the checkpoint path is, as the regime declares it
    in_flight : count; requests being served now
    queued : count; requests waiting to be admitted now
    completed : count; requests answered so far
    recent_e2e_s : seconds or None; mean end-to-end latency of the requests answered in the last 5 s
    recent_ttft_s : seconds or None; mean time to their first token
    """

    steps_since_merge: int
    loss: float
    loss_reduction: float
    tokens: int
    staleness_s: float
    network_pressure: float
    serving_pressure: float
    checkpoint_pressure: float
    in_flight: int
    queued: int
    completed: int
    recent_e2e_s: float | None
    recent_ttft_s: float | None


@dataclass(frozen=True)
class Observation:
    """Everything a scheduler may know at a decision.  Nothing in it depends on a later moment.

    Scalar fields describe the fleet: steps, tokens, loss and pressures are means over the islands
    (steps_since_merge is the smallest, staleness the largest), counts are sums.

    time_s : seconds; since the trace began
    steps_since_merge : inner steps; since the last merge, of the island that merged last
    h_min : inner steps; least between two merges, no decision is asked before
    h_max : inner steps; most between two merges, a merge is forced then
    decision_steps : inner steps; between two decisions
    step_s : seconds; that one inner step takes
    merge_s : seconds; that one outer merge of all islands takes
    merges_so_far : count; of this run
    loss : nats; current training loss
    loss_reduction : nats, >= 0; how much it fell since the last merge
    tokens : count; trained on since the last merge
    staleness_s : seconds; since the last merge ended
    network_pressure : 0 to 1; how busy the network is, as the regime declares it
    serving_pressure : 0 to 1; share of the sidecars' batch slots in use over the last 5 s
    checkpoint_pressure : 0 to 1; how busy the checkpoint path is, as the regime declares it
    in_flight : count; requests being served now
    queued : count; requests waiting to be admitted now
    completed : count; requests answered so far
    recent_e2e_s : seconds or None; mean end-to-end latency of the requests answered in the last 5 s
    recent_ttft_s : seconds or None; mean time to their first token
    arrivals_per_s : float64 array, shape (floor(time_s),); requests that arrived in each full second
    prompt_tokens_per_s : float64 array, shape (floor(time_s),); their prompt tokens
    islands : tuple of IslandObservation; the islands one by one
    telemetry_age_s : seconds; since the server's gauges behind queued and serving_pressure were read, 0 in simulation
    fragment : number; of the model's fragment that is due, which this decision is about
    fragments : count; of the model, merged in turn; steps_since_merge, h_min and h_max are those of a turn
    fragment_steps : inner steps; since the fragment that is due was last merged
    """

    time_s: float
    steps_since_merge: int
    h_min: int
    h_max: int
    decision_steps: int
    step_s: float
    merge_s: float
    merges_so_far: int
    loss: float
    loss_reduction: float
    tokens: int
    staleness_s: float
    network_pressure: float
    serving_pressure: float
    checkpoint_pressure: float
    in_flight: int
    queued: int
    completed: int
    recent_e2e_s: float | None
    recent_ttft_s: float | None
    arrivals_per_s: NDArray[np.float64]
    prompt_tokens_per_s: NDArray[np.float64]
    islands: tuple[IslandObservation, ...]
    #: A gauge may say what was some time before it was read; 0 too where the client's own counts stand for it.
    telemetry_age_s: float = 0.0
    fragment: int = 0
    fragments: int = 1
    fragment_steps: int = 0


@dataclass(frozen=True)
class Decision:
    """Merge now or wait.  `groups` names who merges with whom; None means all islands together.

    Only a regime in which islands merge as peers takes other groups than all islands; there a group has an even number
    of islands that have done H_min steps, and None means all that have.
    """

    merge: bool
    groups: tuple[tuple[int, ...], ...] | None = None
    reason: str = ""


@runtime_checkable
class Scheduler(Protocol):
    """Causal scheduler; called at each decision step from H_min on, forced to merge at H_max.

    Where islands merge as peers, it is called when some island has done H_min steps, at H_max as well.

    The constructor may take `rng` (a seeded numpy Generator); any other source of entropy fails the
    determinism gate.

    >>> class MergeWhenIdle:
    ...     def decide(self, obs):
    ...         return obs.in_flight < 3
    >>> isinstance(MergeWhenIdle(), Scheduler)
    True
    """

    def decide(self, observation: Observation) -> Decision | bool: ...


@runtime_checkable
class Planner(Protocol):
    """Sees the whole trace; its certificate can never claim more than an upper bound.

    It runs in the confined process, too.  The constructor may take `rng`, `slo`, and `sidecar`, whose
    `merge_cost(start_ns, merge_ns, slo)` prices one merge at each start.
    `budget` is the number of merges to place.
    """

    def plan(self, trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule: ...


class SchedulerRun(Protocol):
    """One rollout of one scheduler with one seed; it holds nothing from any other run."""

    def decide(self, observation: Observation) -> Decision:
        """The scheduler's answer.  Raises SchedulerError when it crashes, hangs, exits or answers nonsense."""

    def close(self) -> None:
        """End the run; safe to call twice and after an error."""


#: Seconds by which clocks are ahead in the second run of a scheduler: no decision may change with them.
CLOCK_SHIFT_S = 12_345.678


class SchedulerSource(Protocol):
    """A scheduler that can be run many times, each time from the same fresh state."""

    name: str
    kind: Literal["scheduler", "planner", "recorded"]
    #: Whether it could run live; planners and recorded logs could not.
    deployable: bool
    #: Seconds by which clocks in runs that are started from now on are ahead of the time of the replay.
    clock_shift_s: float

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> SchedulerRun:
        """A fresh run.  seed_words are uint32 words: a constructor that takes `rng` is handed
        Generator(PCG64(SeedSequence(seed_words))).  run_deadline_s bounds the time spent waiting for the
        scheduler in this run.  At most one run of a source is open: starting another closes the last one."""

    def digest(self) -> str:
        """SHA-256 over the scheduler's source, including the files that it imports from its own folder."""

    def close(self) -> None:
        """End every process that the source started; a later `start` begins anew."""

    def describe(self) -> dict[str, object]:
        """Plain values that identify the scheduler in a certificate."""
