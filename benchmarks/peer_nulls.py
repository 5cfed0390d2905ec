"""How often load-blind peer schedulers are certified: full replays of small fleets with bursts of their own.

    python -m benchmarks.peer_nulls --n 500 --out nulls.csv

Each certification is one of `protocol certify`'s: schedulers go through the control loop (their sidecar, which they do
not look at, is idle there), their matched draws and exchanged schedules through the simulated sidecar, the counts
through gate G3.  The fleet is smaller than the shipped one so that thousands fit into minutes.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np

from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from adapters.traces.generators import workload
from baselines.peers import AllIslands, Pairs, QuietPairs, RandomPairs
from protocol import seeds
from protocol.evidence.model import CROSSED, Evidence
from protocol.gates.envelope import adjusted, envelope_gate, measure
from protocol.gates.spec import Spec
from protocol.merging.peers import controls as peer_controls
from protocol.merging.peers.schedules import PeerSchedule
from protocol.merging.schedule import Schedule
from protocol.placement.peer_rollout import peer_rollout
from protocol.regimes.regime import Regime
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.replay.sidecar import ServingState
from protocol.scheduler import Decision, Observation
from protocol.selftest.counts import tally
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace, Workload

SEEDS, DRAWS, ALPHA = 8, 19, 0.05
TESTS = ("stratified", "sign_flip", "load_aware", "certified")
REGIME = Regime.load("islands-offset").replace(islands=4, horizon_s=180.0, cooldown_s=10.0)


class RegularPairs(Pairs):
    """The same pairs at the same moments of every round: gaps as even as can be."""

    def pairs(self, observation: Observation, ready: list[int], last: bool) -> list[tuple[int, int]]:
        step = round(observation.time_s / observation.step_s) % 288
        return [(a, a + 1) for a in range(0, 4, 2) if {a, a + 1} <= set(ready) and (last or step >= 144)]


class ClusteredPairs(Pairs):
    """All pairs of a round at one random moment."""

    def begin(self, observation: Observation) -> None:
        self.due, self.order = self.rng.integers(288), self.rng.permutation(4).tolist()

    def pairs(self, observation: Observation, ready: list[int], last: bool) -> list[tuple[int, int]]:
        if len(ready) < len(self.waiting) or not last and observation.time_s / observation.step_s % 288 < self.due:
            return []
        order = [i for i in self.order if i in ready]
        return list(zip(order[::2], order[1::2], strict=False))


class MoodyPairs:
    """Random pairs of the ready at a rate that is drawn anew for each run: budgets differ from seed to seed."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.rate = rng, rng.uniform(0.01, 0.2)

    def decide(self, observation: Observation) -> Decision:
        ready = [i for i, o in enumerate(observation.islands) if o.steps_since_merge >= observation.h_min]
        if self.rng.random() > self.rate:
            return Decision(False)
        a, b = self.rng.permutation(ready)[:2].tolist()
        return Decision(True, ((a, b),))


class PairsAndAll:
    """Merges of two kinds: pairs at random, and all four where all are ready, at rates drawn anew for each run."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.rate, self.all = rng, rng.uniform(0.01, 0.2), rng.uniform(0.2, 0.8)

    def decide(self, observation: Observation) -> Decision:
        ready = [i for i, o in enumerate(observation.islands) if o.steps_since_merge >= observation.h_min]
        if self.rng.random() > self.rate:
            return Decision(False)
        if len(ready) == 4 and self.rng.random() < self.all:
            return Decision(True, ((0, 1, 2, 3),))
        a, b = self.rng.permutation(ready)[:2].tolist()
        return Decision(True, ((a, b),))


class PairsInTurn(PairsAndAll):
    """Now all four, now both halves at once, in turn: one kind after the other, as regularly as can be."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.turn, self.wait = 0, int(rng.integers(128, 400))

    def decide(self, observation: Observation) -> Decision:
        if min(o.steps_since_merge for o in observation.islands) < self.wait:
            return Decision(False)
        self.turn += 1
        return Decision(True, ((0, 1, 2, 3),) if self.turn % 2 else ((0, 1), (2, 3)))


#: Blind to load; QuietPairs is not, and says what the same numbers are worth.
FAMILIES: dict[str, Callable[[np.random.Generator], object]] = {
    "random-time pairs": RandomPairs, "regular pairs": RegularPairs, "all islands, random times": AllIslands,
    "clustered pairs": ClusteredPairs, "pairs at a random rate": MoodyPairs, "a matched draw": RandomPairs,
    "pairs and all": PairsAndAll, "pairs and all in turn": PairsInTurn, "a matched draw of pairs and all": PairsAndAll,
}  # fmt: skip
#: Of these, the ones whose merges are of several kinds.
MIXED = ("pairs and all", "pairs and all in turn", "a matched draw of pairs and all")
AWARE = {"quiet pairs (load-aware)": QuietPairs}


class _Idle:
    """A sidecar that nobody looks at."""

    def __init__(self, trace: RequestTrace) -> None:
        self.trace = trace
        self.state = (ServingState(0.0, 0, 0, 0, None, None),) * trace.n_islands

    def session(self) -> _Idle:
        return self

    def add_merge(self, start_ns: int, busy_ns: object) -> None:
        """It serves nothing."""

    def advance(self, until_ns: int) -> None:
        """It serves nothing."""

    def observe(self, now_ns: int) -> tuple[ServingState, ...]:
        return self.state

    def finish(self) -> None:
        return None


class _Run:
    def __init__(self, scheduler: object) -> None:
        self.scheduler = scheduler

    def decide(self, observation: Observation) -> Decision:
        return self.scheduler.decide(observation)  # type: ignore[attr-defined,no-any-return]


def certification(family: str, root: int, number: int) -> dict[str, bool]:
    """Which tests one load-blind (or, of AWARE, load-aware) scheduler passed in world `number`."""
    peers, slo = REGIME.peers(), Slo.parse(REGIME.slo)
    assert peers is not None
    model = SidecarModel.shipped(REGIME.sidecar).changed(REGIME.sidecar_overrides)
    loaded, made = [], []
    for s in range(SEEDS):

        def stream(what: str, s: int = s) -> np.random.Generator:
            return seeds.generator(root, "peer-null", family, number, s, what)

        world: Workload = workload(REGIME, stream("world"))
        sidecar = SimulatedSidecar(model).load(world.trace, stream("noise"))
        loaded.append(sidecar)
        served = sidecar if family in AWARE else _Idle(world.trace)
        scheduler = {**FAMILIES, **AWARE}[family](stream("scheduler"))
        rolled = peer_rollout(_Run(scheduler), world, served, peers, REGIME.learner, stream("partners"))  # type: ignore[arg-type]
        assert rolled.groups is not None
        own = PeerSchedule(rolled.schedule.start_ns // peers.corridor.grid_ns, rolled.groups)
        if family.startswith("a matched draw"):  # a long walk forgets where it began: the draws' own null
            own = peer_controls.draws(peers, own, 1, stream("first"), stream("own"), sweeps=1000)[0]
        made.append(own)
        assert peers.violation(made[-1]) is None
    evidence = []
    for s, sidecar in enumerate(loaded):

        def price(schedules: list[PeerSchedule], sidecar: object = sidecar) -> np.ndarray:
            return sidecar.violations([peers.schedule(p) for p in schedules], slo)[:, None]  # type: ignore[attr-defined,no-any-return]

        drawn = peer_controls.draws(
            peers, made[s], DRAWS, seeds.generator(root, "peer-null", family, number, s, "hub"),
            seeds.generator(root, "peer-null", family, number, s, "draws"),
        )  # fmt: skip
        everywhere, trace = price(made), sidecar.trace
        idle = sidecar.violations([Schedule.empty(trace.n_islands)], slo)[:, None]
        placed = {
            POLICY: peers.stored([made[s]], everywhere[s : s + 1]),
            NO_SYNC: peers.stored([PeerSchedule(np.empty(0, np.int64), ())], idle),
            UNIFORM: peers.stored(drawn, price(drawn)),
            CROSSED: peers.stored(made, everywhere),
        }
        evidence.append(Evidence(REGIME.name, s, trace.digest, len(trace), 0, 0, 0, None, None, (), placed=placed))
    own_root = seeds.words(root, "peer-null", family, number)[0]
    spec = Spec(
        REGIME.name, "simulated", "scheduler", peers.corridor, peers, peers.n, (slo,), SEEDS, DRAWS, 1, False, 1,
        own_root, ALPHA, 0.0,
    )  # fmt: skip
    measured = measure(evidence, spec, 0)
    ps = {t.name: t.outcome.pvalue for t in measured.gains.tests}
    names = ("stratified randomisation", "paired sign flip", "exchange between traces")
    passed = [p is not None and p <= ALPHA for p in map(ps.get, names)]
    certified = envelope_gate(measured, adjusted([measured], measured.spec.alpha)[0]).status == "passed"
    return dict(zip(TESTS, (*passed, certified), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500, help="certifications of each family")
    parser.add_argument("--first", type=int, default=0, help="number of the first world")
    parser.add_argument("--root", type=int, default=20260601)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--family", choices=[*FAMILIES, *AWARE], action="append")
    parser.add_argument("--out", type=Path, required=True, help="CSV of every certification; appended to")
    asked = parser.parse_args()
    new = not asked.out.exists()
    with asked.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(["family", "world", *TESTS])
        for family in asked.family or FAMILIES:
            numbers = range(asked.first, asked.first + asked.n)
            found = joblib.Parallel(n_jobs=asked.jobs)(
                joblib.delayed(certification)(family, asked.root, k) for k in numbers
            )
            writer.writerows([family, k, *map(int, hit.values())] for k, hit in zip(numbers, found, strict=True))
            design = f"{SEEDS} seeds x {DRAWS}"
            for row in tally(found, dict.fromkeys(TESTS), world="small fleets", family=family, design=design):
                low, high = row.interval
                said = f"{row.count}/{row.n} = {row.rate:.4f} [{low:.4f}, {high:.4f}]"
                sys.stdout.write(f"{row.family}, {row.what}: {said}\n")


if __name__ == "__main__":
    main()
