"""Who merges with whom: the filter and the stopping rule of `quiet` for each island, and pairs of willing ones.

Each island is watched by itself as `baselines/quiet.py` watches a server: its arrivals are what it has answered and
has in flight or queued, and nothing is taken to be common to two islands.  The rule says by how many requests merging
now is better for that island than waiting; infinitely many at H_max, and when it never had a request.

Those that may merge are paired from the most willing down, as long as the two together gain.  Of all sets of pairs that
one has the largest total, because a total does not depend on who is paired with whom.  So a busy island waits, a quiet
one takes another quiet one, and one that must merge takes the most willing.  Equals come in random order, so that
partners change.  An island that has no plan yet waits for it.

How long a merge of a pair occupies it is seen after the first one; until then, as long as one of all islands.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from baselines.quiet import Watch
from protocol.scheduler import Decision, IslandObservation, Observation

#: As in `baselines.quiet`, for each island.
WORK = 250


class Island:
    """One island: its arrivals by the second, and by how much merging is better than waiting."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.seen_s, self.arrived = 0.0, 0.0
        self.counts: list[float] = []
        self.part = 0.0  # arrivals since the last full second

    def see(self, time_s: float, island: IslandObservation) -> None:
        """Arrivals since the last decision are spread evenly over the time since then."""
        arrived = float(island.completed + island.in_flight + island.queued)
        new, since = max(arrived - self.arrived, 0.0), self.seen_s
        self.seen_s, self.arrived = time_s, max(arrived, self.arrived)
        rate = new / max(time_s - since, 1e-9)
        for edge in range(math.floor(since) + 1, math.floor(time_s) + 1):
            self.counts.append(self.part + rate * (edge - since))
            self.part, since = 0.0, float(edge)
        self.part += rate * (time_s - since)
        self.watch.see(np.array(self.counts), island.recent_e2e_s)

    def better(self, seen: Observation, island: IslandObservation) -> float:
        waited = island.steps_since_merge // seen.decision_steps
        if island.steps_since_merge + seen.decision_steps > seen.h_max:
            return math.inf
        if self.watch.plan is None:
            return -math.inf if self.arrived else math.inf
        present = float(island.in_flight + island.queued)
        return self.watch.better(seen, self.part, present, waited)


def willing(better: dict[int, float]) -> list[tuple[int, int]]:
    """The pairs to merge, the most willing two first: while two together gain, or one of them must."""
    order = sorted(better, key=lambda i: -better[i])
    return [
        (min(a, b), max(a, b))
        for a, b in zip(order[::2], order[1::2], strict=False)
        if better[a] == math.inf or better[a] + better[b] >= 0
    ]


class PeersWhenQuiet:
    """The scheduler."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.islands: list[Island] = []
        self.merging: dict[int, float] = {}  # since when
        self.merge_s: float | None = None

    def decide(self, observation: Observation) -> Decision:
        states = observation.islands
        if not self.islands:
            self.islands = [Island() for _ in states]
        self.time(observation)
        learnt = replace(observation, merge_s=self.merge_s or observation.merge_s)
        for mine, state in zip(self.islands, states, strict=True):
            mine.see(observation.time_s, state)
            mine.watch.learn(learnt, WORK)
        order = self.rng.permutation(len(states)).tolist()
        better = {
            i: self.islands[i].better(observation, states[i])
            for i in order
            if states[i].steps_since_merge >= observation.h_min
        }
        pairs = willing(better)
        self.merging.update({i: observation.time_s for pair in pairs for i in pair})
        return Decision(True, tuple(pairs)) if pairs else Decision(False)

    def time(self, seen: Observation) -> None:
        """Take the length of merges that have ended."""
        for i, began_s in list(self.merging.items()):
            ended_s = seen.time_s - seen.islands[i].staleness_s
            if seen.islands[i].staleness_s > 0 and ended_s > began_s:
                self.merge_s = ended_s - began_s
                del self.merging[i]
