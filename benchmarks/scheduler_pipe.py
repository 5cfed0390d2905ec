"""What a process of its own costs a scheduler: decisions per second, in process and isolated, in one run.

    python benchmarks/scheduler_pipe.py

Bar: thousands of decisions per second; a rollout with an isolated scheduler takes less than twice one with the
same scheduler in process.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from adapters.conformance import synthetic_observations
from adapters.schedulers import open_scheduler
from adapters.sidecars.simulated import SimulatedSidecar
from adapters.traces.worlds import GeneratedWorlds
from protocol import seeds
from protocol.cli.settings import setting_of
from protocol.regime import Regime
from protocol.rollout import rollout
from protocol.scheduler import Decision, Observation

CODE = "class Quiet:\n    def decide(self, obs):\n        return obs.in_flight < 3\n"
REPEATS = 5


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

        decisions: list[int] = []
        rolled(False)  # compiles the kernels
        figures = {
            "start_and_close_s": best(started),
            "decision_in_process_s": best(lambda: decided(False)),
            "decision_isolated_s": best(lambda: decided(True)),
            "rollout_in_process_s": best(lambda: rolled(False)),
            "rollout_isolated_s": best(lambda: rolled(True)),
        }
        source.close()
    print(json.dumps(figures, indent=2))
    print(f"decisions a second, isolated: {1 / figures['decision_isolated_s']['best']:,.0f}")
    ratio = figures["rollout_isolated_s"]["best"] / figures["rollout_in_process_s"]["best"]
    print(f"a rollout of {decisions[-1]} decisions, isolated over in process: {ratio:.2f}")


if __name__ == "__main__":
    main()
