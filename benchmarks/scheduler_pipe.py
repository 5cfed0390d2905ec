"""What a process of its own costs a scheduler: decisions per second, in process and isolated, in one run.

    python benchmarks/scheduler_pipe.py

Bar: thousands of decisions per second, and a seed of a certificate (rollouts, probes and 999 draws) in less than
twice the time that it takes with the same scheduler in process.  A bare rollout is shown beside it: the simulator
serves one in about ten milliseconds, so there the process shows.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.conformance import synthetic_observations
from adapters.schedulers import open_scheduler
from adapters.sidecars.simulated import SimulatedSidecar
from adapters.traces.worlds import GeneratedWorlds
from protocol import seeds
from protocol.campaign.arms import run_seed
from protocol.campaign.plan import Plan
from protocol.cli.settings import setting_of
from protocol.placement.rollout import rollout
from protocol.regimes.regime import Regime
from protocol.scheduler import Decision, Observation

CODE = "class Quiet:\n    def decide(self, obs):\n        return obs.in_flight < 3\n"
REPEATS = 5
#: Seeds of a repeat: in some, the runs are in two processes.
SEEDS = 8


class InProcess:
    """The same scheduler, called directly."""

    def __init__(self) -> None:
        scope: dict[str, type] = {}
        exec(CODE, scope)  # the very text that the isolated one runs
        self.scheduler = scope["Quiet"]()

    def decide(self, observation: Observation) -> Decision:
        return Decision(bool(self.scheduler.decide(observation)))

    def close(self) -> None:
        pass


class InProcessSource:
    """Runs of it, for a campaign."""

    name, kind, deployable, clock_shift_s = "quiet", "scheduler", True, 0.0

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> InProcess:
        return InProcess()

    def close(self) -> None:
        pass


def best(work: Callable[[], float]) -> dict[str, float]:
    """Fastest and median of a few repeats: the machine may be shared."""
    times = [work() for _ in range(REPEATS)]
    return {"best": min(times), "median": statistics.median(times)}


def main() -> None:
    seen = synthetic_observations(1, 2000)
    regime = Regime.load("bursty-aperiodic")
    setting = setting_of(regime, GeneratedWorlds(regime, 1), None)
    workload = setting.worlds.workload(0)
    sidecar = setting.sidecar.load(workload.trace, seeds.generator(1, "sidecar"))
    assert isinstance(setting.sidecar, SimulatedSidecar)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quiet.py"
        path.write_text(CODE)
        source = open_scheduler(str(path))

        def started() -> float:
            begin = time.perf_counter()
            source.start((1,)).close()
            return time.perf_counter() - begin

        def decided(isolated: bool) -> float:
            run = source.start((1,)) if isolated else InProcess()
            begin = time.perf_counter()
            for observation in seen:
                run.decide(observation)
            took = time.perf_counter() - begin
            run.close()
            return took / len(seen)

        def rolled(isolated: bool) -> float:
            begin = time.perf_counter()
            run = source.start((1,)) if isolated else InProcess()
            result = rollout(run, workload, sidecar, setting.corridor, setting.learner)
            run.close()
            decisions.append(len(result.decided_ns))
            return time.perf_counter() - begin

        def certified(open_contender: Callable[[], Any]) -> float:
            plan = Plan(open_contender, "quiet", 1, draws=999)
            begin = time.perf_counter()
            for seed in range(SEEDS):
                run_seed(plan, setting, seed)
            return (time.perf_counter() - begin) / SEEDS

        def isolated_source() -> Any:
            return source

        decisions: list[int] = []
        rolled(False)  # compiles the kernels
        figures = {
            "start_and_close_s": best(started),
            "decision_in_process_s": best(lambda: decided(False)),
            "decision_isolated_s": best(lambda: decided(True)),
            "rollout_in_process_s": best(lambda: rolled(False)),
            "rollout_isolated_s": best(lambda: rolled(True)),
            "seed_in_process_s": best(lambda: certified(InProcessSource)),
            "seed_isolated_s": best(lambda: certified(isolated_source)),
        }
        source.close()
    report(figures, decisions[-1])


def report(figures: dict[str, dict[str, float]], decisions: int) -> None:
    """decisions : of one rollout."""
    print(json.dumps(figures, indent=2))
    print(f"decisions a second, isolated: {1 / figures['decision_isolated_s']['best']:,.0f}")
    for what in ("rollout", "seed"):
        ratio = figures[f"{what}_isolated_s"]["best"] / figures[f"{what}_in_process_s"]["best"]
        of = f"{decisions} decisions" if what == "rollout" else "a certificate"
        print(f"a {what} of {of}, isolated over in process: {ratio:.2f}")


if __name__ == "__main__":
    main()
