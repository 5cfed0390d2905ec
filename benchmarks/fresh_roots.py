"""Certificates of one scheduler on many fresh roots: false passes at a minimum effect that is its gain, and coverage.

The scheduler runs in this process and nothing probes it, since only the statistics are asked for.  Its true gain is the
mean over all certificates; then each is judged at that minimum effect, and its interval is asked to hold it.

    python benchmarks/fresh_roots.py --certificates 300 --out runs/fresh-roots
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from statsmodels.stats.proportion import proportion_confint

from adapters.traces.readers import Reading
from protocol import seeds
from protocol.campaign.arms import cross, run_seed
from protocol.campaign.plan import Plan
from protocol.cli.settings import Overrides, settings_for
from protocol.evidence.model import CROSSED
from protocol.gates.envelope import measure
from protocol.gates.spec import Spec
from protocol.replay.replay import POLICY, UNIFORM
from protocol.scheduler import Decision, Observation
from protocol.stats.gains import Gains, judge_gains


class InProcess:
    """A scheduler class of a file, run here."""

    name, kind, deployable, clock_shift_s = "in-process", "scheduler", True, 0.0

    def __init__(self, path: Path) -> None:
        found = importlib.util.spec_from_file_location("judged", path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        self.made = next(v for v in vars(module).values() if isinstance(v, type) and hasattr(v, "decide"))

    def start(self, words: tuple[int, ...], run_deadline_s: float = 300.0) -> Any:
        made = self.made()

        class Run:
            def decide(self, seen: Observation) -> Decision:
                return Decision(bool(made.decide(seen)))

            def close(self) -> None:
                """Nothing was opened."""

        return Run()

    def close(self) -> None:
        """Nothing was opened."""


Costs = dict[str, NDArray[np.float64]]


def costs(path: Path, regime: str, root: int, n_seeds: int, draws: int) -> Costs:
    """What G3 compares in one certificate, pp: policy (S,), draws (S, m), exchanged (S, S)."""
    (setting,), _ = settings_for([regime], [], Reading(), root, Overrides(seeds=n_seeds))
    plan = Plan(lambda: InProcess(path), "in-process", root, draws, control_draws=1, probes=0)  # type: ignore[arg-type, return-value]
    found = [run_seed(plan, setting, seed) for seed in range(n_seeds)]
    made = [e.placed[POLICY] for e in found]
    found = [e.with_placed(CROSSED, cross(plan, setting, e.seed, made)) for e in found]
    spec = Spec(
        setting.name, "simulated", "scheduler", setting.corridor, setting.peers, 1, setting.slos, n_seeds, draws, 1,
        False, 1, root, 0.05, 0.0,
    )  # fmt: skip
    measured = measure(found, spec, 0)
    assert measured.exchanged is not None
    drawn = np.array([measured.excess(e, UNIFORM) for e in found])
    return {"policy": measured.gains.policy, "draws": drawn, "exchanged": measured.exchanged}


def judged(c: Costs, root: int, delta: float) -> Gains:
    rng = seeds.generator(root, "test", "fresh-roots")
    return judge_gains(c["policy"], list(c["draws"]), c["exchanged"], rng, delta=delta)


def share(hits: int, n: int) -> str:
    low, high = proportion_confint(hits, n, method="beta")
    return f"{hits} of {n} = {100 * hits / n:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def collected(o: argparse.Namespace) -> dict[int, Costs]:
    """Costs by root, those of an interrupted run included; kept as they come."""
    roots = [int(seeds.generator(o.root, "fresh-roots", k).integers(2**48)) for k in range(o.certificates)]
    o.out.mkdir(parents=True, exist_ok=True)
    missing = [root for root in roots if not (o.out / f"{root}.npz").exists()]
    task = joblib.delayed(costs)
    made = joblib.Parallel(o.jobs, return_as="generator")(
        task(o.scheduler, o.regime, root, o.seeds, o.draws) for root in missing
    )
    for root, found in zip(missing, made, strict=True):
        np.savez_compressed(o.out / f"{root}.npz", **found)
    return {root: dict(np.load(o.out / f"{root}.npz")) for root in roots}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--scheduler", type=Path, default=Path("examples/ten_line.py"))
    asked.add_argument("--regime", default="bursty-aperiodic")
    asked.add_argument("--certificates", type=int, default=300)
    asked.add_argument("--seeds", type=int, default=20)
    asked.add_argument("--draws", type=int, default=99)
    asked.add_argument("--root", type=int, default=1)
    asked.add_argument("--jobs", type=int, default=1)
    asked.add_argument("--out", type=Path, default=Path("runs/fresh-roots"))
    o = asked.parse_args()
    begun = time.monotonic()
    found = collected(o)
    gains = [judged(c, root, 0.0) for root, c in found.items()]
    for what, each in (
        ("over chance", [g.chance for g in gains]),
        ("from following the load", [g.load for g in gains]),
    ):
        known = [gain for gain in each if gain is not None]
        true = float(np.mean([gain.estimate for gain in known]))
        held = sum(gain.interval.lower <= true <= gain.interval.upper for gain in known)
        print(f"gain {what}: pooled {true:.3f} pp; the 95 % interval holds it in {share(held, len(known))}")
    true = float(np.mean([g.chance.estimate for g in gains if g.chance is not None]))
    passed = sum((judged(c, root, true).pvalue or 1.0) <= 0.05 for root, c in found.items())
    print(f"false passes at a minimum effect of {true:.3f} pp: {share(passed, len(found))}")
    print(f"{len(found)} certificates of {o.seeds} seeds and {o.draws} draws in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
