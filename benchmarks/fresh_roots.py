"""Certificates of one scheduler on many fresh roots: false passes at a minimum effect that is its gain, and coverage.

The scheduler runs in this process and nothing probes it, since only the statistics are asked for.  Its true gain is taken
as the mean over all certificates; then each is judged at that minimum effect, and its interval is asked to hold it.

    python benchmarks/fresh_roots.py --certificates 300 --out fresh-roots.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from statsmodels.stats.proportion import proportion_confint

from protocol import seeds
from protocol.campaign.arms import cross, run_seed
from protocol.campaign.plan import Plan, Setting
from protocol.cli.settings import Overrides, settings_for
from protocol.evidence.model import CROSSED, Evidence
from protocol.gates.envelope import measure
from protocol.gates.spec import Spec
from protocol.replay.replay import POLICY
from protocol.scheduler import Decision, Observation


class InProcess:
    """A scheduler class of a file, run here."""

    name, kind, deployable = "in-process", "scheduler", True

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


def certificate(path: Path, regime: str, root: int, n_seeds: int, draws: int) -> tuple[list[Evidence], Spec]:
    """The evidence of one certificate, as far as G3 reads it."""
    (setting,), _ = settings_for([regime], [], None, None, root, Overrides(seeds=n_seeds))
    plan = Plan(lambda: InProcess(path), "in-process", root, draws, control_draws=1, probes=0)  # type: ignore[arg-type, return-value]
    found = [run_seed(plan, setting, seed) for seed in range(n_seeds)]
    made = [e.placed[POLICY] for e in found]
    found = [e.with_placed(CROSSED, cross(plan, setting, e.seed, made)) for e in found]
    return [replace(e, simulated={}) for e in found], spec_of(setting, root, draws)


def spec_of(setting: Setting, root: int, draws: int) -> Spec:
    return Spec(
        setting.name, "simulated", "scheduler", setting.corridor, setting.peers, 1, setting.slos, setting.n_seeds, draws,
        1, False, 1, root, 0.05, 0.0,
    )  # fmt: skip


def share(hits: int, n: int) -> str:
    low, high = proportion_confint(hits, n, method="beta")
    return f"{hits} of {n} = {100 * hits / n:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--scheduler", type=Path, default=Path("examples/ten_line.py"))
    asked.add_argument("--regime", default="bursty-aperiodic")
    asked.add_argument("--certificates", type=int, default=300)
    asked.add_argument("--seeds", type=int, default=20)
    asked.add_argument("--draws", type=int, default=99)
    asked.add_argument("--root", type=int, default=1)
    asked.add_argument("--jobs", type=int, default=1)
    asked.add_argument("--out", type=Path)
    o = asked.parse_args()
    begun = time.monotonic()
    roots = [int(seeds.generator(o.root, "fresh-roots", k).integers(2**48)) for k in range(o.certificates)]
    found = joblib.Parallel(o.jobs)(
        joblib.delayed(certificate)(o.scheduler, o.regime, root, o.seeds, o.draws) for root in roots
    )
    gains = [measure(evidence, spec, 0).gains for evidence, spec in found]
    for what, of in (("over chance", "chance"), ("from following the load", "load")):
        each = [getattr(g, of) for g in gains]
        true = float(np.mean([gain.estimate for gain in each]))
        held = sum(gain.interval.lower <= true <= gain.interval.upper for gain in each)
        print(f"gain {what}: pooled {true:.3f} pp; the 95 % interval holds it in {share(held, len(each))}")
    true = float(np.mean([g.chance.estimate for g in gains if g.chance is not None]))
    at = [measure(evidence, replace(spec, min_effect_pp=true), 0) for evidence, spec in found]
    passed = sum(m.p is not None and m.p <= 0.05 for m in at)
    print(f"false passes at a minimum effect of {true:.3f} pp: {share(passed, len(at))}")
    print(f"{len(found)} certificates of {o.seeds} seeds and {o.draws} draws in {time.monotonic() - begun:.0f} s")
    if o.out is not None:
        rows = [[g.chance.estimate, g.load.estimate] for g in gains if g.chance and g.load]
        o.out.write_text(json.dumps({"roots": roots, "gains_pp": rows, "minimum_effect_pp": true, "passed": passed}))


if __name__ == "__main__":
    main()
