"""Peer schedulers that exchange the same number of bytes: all islands, random-time pairs, and load-aware pairs.

Written for a comparison at equal bytes on eight islands.  With a payload M, an island sends M in a pair and
2 (8 - 1) / 8 M = 1.75 M in a ring all-reduce of all eight.  So 28 rounds of pairs send what 16 merges of all islands
send; at 288 and 504 inner steps apiece both take equally long.  A *round* pairs every island once (1-peer gossip).
"""

from __future__ import annotations

import numpy as np

from protocol.scheduler import Decision, Observation

#: Inner steps of a round of pairs, and of a cycle of all-islands merges: 28 x 288 = 16 x 504.
ROUND_STEPS, CYCLE_STEPS = 288, 504
#: Inner steps of a cycle from which, and how long, an all-islands merge may begin.
FROM_STEPS, SPAN_STEPS = 320, 120


def _step(observation: Observation) -> int:
    """The inner step of this decision, counted from time 0."""
    return round(observation.time_s / observation.step_s)


class AllIslands:
    """All islands merge once a cycle, at a uniformly random one of its late decisions; blind to load."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.cycle, self.due = rng, -1, 0

    def decide(self, observation: Observation) -> Decision:
        cycle = _step(observation) // CYCLE_STEPS
        if cycle != self.cycle:
            self.cycle = cycle
            self.due = cycle * CYCLE_STEPS + FROM_STEPS + int(self.rng.integers(SPAN_STEPS))
        ready = observation.steps_since_merge >= observation.h_min
        if not ready or _step(observation) < self.due:
            return Decision(False)
        self.due = (cycle + 1) * CYCLE_STEPS
        return Decision(True, (tuple(range(len(observation.islands))),))


class Pairs:
    """Every round pairs each island once; who is not paired by its last decision is paired then.

    A subclass says which of the waiting islands merge now.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.round = rng, -1
        self.waiting: set[int] = set()
        self.steps: list[int] = []

    def decide(self, observation: Observation) -> Decision:
        step, grid = _step(observation), observation.decision_steps
        steps = [island.steps_since_merge for island in observation.islands]
        # Islands whose clock went back have merged, whoever decided it.
        self.waiting -= {i for i, (was, now) in enumerate(zip(self.steps, steps, strict=False)) if now < was}
        self.steps = steps
        if step // ROUND_STEPS != self.round:
            self.round, self.waiting = step // ROUND_STEPS, set(range(len(steps)))
            self.begin(observation)
        ready = [i for i in sorted(self.waiting) if steps[i] >= observation.h_min]
        last = step // ROUND_STEPS != (step + grid) // ROUND_STEPS
        pairs = self.pairs(observation, ready, last)
        self.waiting -= {i for pair in pairs for i in pair}
        return Decision(True, tuple(pairs)) if pairs else Decision(False)

    def begin(self, observation: Observation) -> None:
        """A round begins."""

    def pairs(self, observation: Observation, ready: list[int], last: bool) -> list[tuple[int, int]]:
        raise NotImplementedError


class RandomPairs(Pairs):
    """1-peer gossip at random times: a random matching a round, each pair at a uniformly random moment; blind to load.

    A pair whose moment comes before both may merge waits for that.
    """

    def begin(self, observation: Observation) -> None:
        order = self.rng.permutation(len(observation.islands)).tolist()
        due = self.round * ROUND_STEPS + self.rng.integers(ROUND_STEPS, size=len(order))
        self.planned = [(min(a, b), max(a, b), int(t)) for a, b, t in zip(order[::2], order[1::2], due, strict=False)]

    def pairs(self, observation: Observation, ready: list[int], last: bool) -> list[tuple[int, int]]:
        now = _step(observation)
        found = [(a, b) for a, b, when in self.planned if a in ready and b in ready and (last or now >= when)]
        rest = [i for i in ready if not any(i in pair for pair in found)]
        # What H_max imposed can have broken a planned pair; the halves find each other at the end of the round.
        return found + list(zip(rest[::2], rest[1::2], strict=False)) if last else found


class QuietPairs(Pairs):
    """Load-aware 1-peer gossip: pairs islands whose sidecars are quiet; the busy ones wait, at most to the round's end.

    A sidecar is quiet when the share of its batch slots in use over the last 5 s is below the fleet's mean so far.
    The quietest two pair first; who is still busy at the last decision of the round is paired then.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.total, self.count = 0.0, 0

    def pairs(self, observation: Observation, ready: list[int], last: bool) -> list[tuple[int, int]]:
        pressure = [island.serving_pressure for island in observation.islands]
        self.total, self.count = self.total + observation.serving_pressure, self.count + 1
        quiet = [i for i in ready if last or pressure[i] * self.count < self.total]
        order = sorted(quiet, key=lambda i: (pressure[i], i))
        return [(min(a, b), max(a, b)) for a, b in zip(order[::2], order[1::2], strict=False)]
