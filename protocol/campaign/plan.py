"""What a campaign was asked to do: the regimes resolved, the scheduler to be judged, the draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Peers
from protocol.merging.practice import Practice, Timing
from protocol.merging.schedule import Schedule
from protocol.replay.sidecar import LoadedSidecar, Sidecar
from protocol.scheduler import SchedulerSource
from protocol.workload.learner import Learner
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace, Workload


class PlannerSource(Protocol):
    """A planner, or a recorded schedule: hands over a whole schedule at once."""

    name: str
    kind: Literal["planner", "recorded"]
    deployable: bool
    clock_shift_s: float

    def plan(
        self,
        trace: RequestTrace,
        corridor: Corridor,
        budget: int,
        seed_words: tuple[int, ...],
        sidecar: LoadedSidecar | None = None,
        slo: Slo | None = None,
    ) -> Schedule: ...

    def describe(self) -> dict[str, object]: ...

    def close(self) -> None: ...


Contender = SchedulerSource | PlannerSource


class Worlds(Protocol):
    """Where the workloads of a regime come from: generated, or cut from a real trace."""

    def workload(self, seed: int) -> Workload:
        """The world of one seed."""

    def other(self, seed: int, probe: int) -> Workload:
        """A world with a different future, for the causality gate; independent of `workload(seed)`."""


@dataclass(frozen=True)
class Setting:
    """One regime, resolved: everything that its seeds share.  Picklable, so that workers can take it.

    peers : how groups of islands merge on their own; None where all islands merge together.
    practice : how long merges take, which fragment each moves, whether it is committed.  transfer_ns : of a merge where
        the practice names no durations; the corridor's merge also has what delay and applying add.
    further : seeds beyond `n_seeds` that are only simulated: they predict the replayed ones.
    begins_ns : where each seed's window begins in a recording that a merge log shares; empty: the log is judged whole.
    """

    name: str
    corridor: Corridor
    worlds: Worlds
    sidecar: Sidecar
    learner: Learner
    slos: tuple[Slo, ...]
    n_seeds: int
    planner_budget: int
    peers: Peers | None = None
    practice: Practice = Practice()
    transfer_ns: int = 0
    begins_ns: tuple[int, ...] = ()
    further: int = 0

    @property
    def timing(self) -> Timing:
        return Timing(self.corridor, self.practice)


@dataclass(frozen=True)
class Plan:
    """What a campaign was asked to do.

    open_contender : called once a process; gives the scheduler or planner to be judged.
    draws : matched uniform placements a seed, at most when `sequential`.  sequential : stop a regime's draws once
        its claims are lost (Besag and Clifford 1991); what is certified is certified on all draws.
    control_draws : own-gaps and shifted placements a seed.
    probes : altered futures a seed.
    digest : of the contender when it was described; None where nobody compares.
    secret : of a fresh root, mixed into the scheduler's own stream, from which the root could be found by trying.
    """

    open_contender: Callable[[], Contender]
    contender: str
    root_seed: int
    draws: int
    control_draws: int = 99
    probes: int = 1
    sequential: bool = False
    secret: bytes = b""
    digest: str | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """Draws a seed in each round: one round, or doubling ones up to `draws`."""
        if not self.sequential:
            return (self.draws,)
        ends = [*itertools.takewhile(lambda n: n < self.draws, (50 * 2**i - 1 for i in itertools.count())), self.draws]
        return tuple(b - a for a, b in itertools.pairwise([0, *ends]))
