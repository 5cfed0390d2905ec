"""`protocol simulate`: one scheduler, one seed, and a picture of what happened."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from adapters.traces.readers import Reading
from protocol import files
from protocol.campaign.arms import load, place
from protocol.campaign.plan import Plan, Setting
from protocol.cli import options
from protocol.cli.reading import TraceOptions
from protocol.cli.settings import Overrides, contender_opener, settings_for
from protocol.errors import BadInput
from protocol.files import clean
from protocol.merging.schedule import Schedule
from protocol.placement.rollout import Rollout
from protocol.replay.measurements import FULLY, PARTLY, Measurements
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace
from reports import figures, fitted

#: What a figure of this command says of itself.
_MADE = b"diloco-protocol simulate"


def register(app: typer.Typer) -> None:
    app.command()(options.grouped(simulate))


def simulate(
    scheduler: options.Scheduler,
    asked: TraceOptions,
    regime: options.Regime = None,
    trace: options.Trace = None,
    seed_number: Annotated[int, typer.Option(min=0, help="which seed (or window of a trace) to run")] = 0,
    slo: options.Slo = None,
    decision_steps: options.DecisionSteps = None,
    seed: options.Seed = options.ROOT,
    out: Annotated[
        Path | None, typer.Option(help="figure to write: .svg, .pdf or .png (default: timeline.svg, where that is new)")
    ] = None,
) -> None:
    """Run one scheduler through one seed and draw load, merges and violations."""
    out = _own_timeline() if out is None else out
    if out.suffix not in (".svg", ".pdf", ".png"):
        raise typer.BadParameter(f"{out.name}: expected a name that ends in .svg, .pdf or .png", param_hint="--out")
    out.parent.mkdir(parents=True, exist_ok=True)
    found = simulated(scheduler, regime, trace, asked.reading, seed_number, slo, decision_steps, seed)
    with files.atomic(out) as temporary:
        about = {"Creator": _MADE.decode()} if out.suffix in (".svg", ".pdf") else None
        found.figure.savefig(temporary, format=out.suffix[1:], metadata=about)
    missed, missed_idle = found.measured.violates(found.slo), found.idle.violates(found.slo)
    n = len(missed)
    said = [
        ("merges", f"{len(found.rolled.schedule)}, of which {int(found.rolled.forced.sum())} forced by H_max"),
        ("decisions asked", str(len(found.rolled.decided_ns))),
        ("requests", str(n)),
        (f"violations of {found.slo}", f"{int(missed.sum())} ({100 * missed.mean():.2f} %)"),
        ("the same without merges", f"{int(missed_idle.sum())} ({100 * missed_idle.mean():.2f} %)"),
        ("exposed requests", f"{int(np.isin(found.measured.exposure, (PARTLY, FULLY)).sum())}"),
        ("p95 E2E", f"{np.quantile(found.measured.e2e_ns[found.measured.e2e_ns >= 0], 0.95) / 1e6:.0f} ms"),
    ]
    console = Console(highlight=False)
    console.print(Text(clean(f"{scheduler} in {found.setting.name}, seed {seed_number}"), style="italic"))
    console.print(fitted.facts(said, console.width), soft_wrap=True)
    console.print(f"figure: {out}", soft_wrap=True)


def _own_timeline() -> Path:
    """The figure where no name was asked for.  Raises BadInput where something else has that name."""
    path = Path("timeline.svg")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or _MADE not in path.read_bytes()[:4096]):
        raise BadInput(str(path), "something that this command did not draw", "--out FILE; it was not touched")
    return path


@dataclass(frozen=True, eq=False)
class Simulated:
    """One scheduler on one seed: its merges, what they cost (`measured`), and the same requests without merges."""

    setting: Setting
    rolled: Rollout
    measured: Measurements
    idle: Measurements
    trace: RequestTrace

    @property
    def slo(self) -> Slo:
        return self.setting.slos[0]

    @property
    def figure(self) -> Figure:
        horizon_ns = self.setting.corridor.horizon_ns
        return figures.timeline(self.trace, self.rolled.schedule, self.measured, self.slo, horizon_ns)


def simulated(
    scheduler: str, regime: str | None, trace: Path | None, reading: Reading, seed_number: int, slo: str | None,
    decision_steps: int | None, root: int,
) -> Simulated:  # fmt: skip
    """Run one seed of one regime or trace.  Raises BadInput when there is no such seed."""
    chosen = [regime] if regime else [] if trace else ["bursty-aperiodic"]
    overrides = Overrides(slos=(slo,) if slo else None, decision_steps=decision_steps)
    (setting, *_), _ = settings_for(chosen, [trace] if trace else [], reading, root, overrides)
    if seed_number >= setting.n_seeds:
        raise BadInput("--seed-number", str(seed_number), f"0 to {setting.n_seeds - 1}")
    plan = Plan(partial(contender_opener, scheduler, ""), scheduler, root, draws=0)
    workload = setting.worlds.workload(seed_number)
    sidecar = load(plan, setting, seed_number, workload)
    rolled = place(plan, setting, seed_number, workload, sidecar)
    idle = sidecar.replay(Schedule.empty(workload.trace.n_islands))
    return Simulated(setting, rolled, sidecar.replay(rolled.schedule), idle, workload.trace)
