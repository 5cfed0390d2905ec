"""`protocol simulate`: one scheduler, one seed, and a picture of what happened."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from protocol import files
from protocol.campaign.arms import load, place
from protocol.campaign.plan import Plan
from protocol.cli import options
from protocol.cli.reading import TraceOptions
from protocol.cli.settings import Overrides, contender_opener, settings_for
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FULLY, PARTLY
from reports import figures


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
    out: Annotated[Path, typer.Option(help="figure to write: .svg, .pdf or .png")] = Path("timeline.svg"),
) -> None:
    """Run one scheduler through one seed and draw load, merges and violations."""
    if out.suffix not in (".svg", ".pdf", ".png"):
        raise typer.BadParameter(f"{out.name}: expected a name that ends in .svg, .pdf or .png", param_hint="--out")
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen = [regime] if regime else [] if trace else ["bursty-aperiodic"]
    overrides = Overrides(slos=(slo,) if slo else None, decision_steps=decision_steps)
    settings, _ = settings_for(chosen, [trace] if trace else [], asked.reading, seed, overrides)
    setting = settings[0]
    if seed_number >= setting.n_seeds:
        raise typer.BadParameter(f"{seed_number}: expected 0 to {setting.n_seeds - 1}", param_hint="--seed-number")
    plan = Plan(partial(contender_opener, scheduler, ""), scheduler, seed, draws=0)
    workload = setting.worlds.workload(seed_number)
    sidecar = load(plan, setting, seed_number, workload)
    rolled = place(plan, setting, seed_number, workload, sidecar)
    limit = setting.slos[0]
    measured = sidecar.replay(rolled.schedule)
    idle = sidecar.replay(Schedule.empty(workload.trace.n_islands))
    figure = figures.timeline(workload.trace, rolled.schedule, measured, limit, setting.corridor.horizon_ns)
    with files.atomic(out) as temporary:
        figure.savefig(temporary, format=out.suffix[1:])
    missed, missed_idle = measured.violates(limit), idle.violates(limit)
    table = Table(title=f"{scheduler} in {setting.name}, seed {seed_number}", title_justify="left", show_header=False)
    for name, value in (
        ("merges", f"{len(rolled.schedule)}, of which {int(rolled.forced.sum())} forced by H_max"),
        ("decisions asked", str(len(rolled.decided_ns))),
        ("requests", str(len(measured))),
        (f"violations of {limit}", f"{int(missed.sum())} ({100 * missed.mean():.2f} %)"),
        ("the same without merges", f"{int(missed_idle.sum())} ({100 * missed_idle.mean():.2f} %)"),
        ("exposed requests", f"{int(np.isin(measured.exposure, (PARTLY, FULLY)).sum())}"),
        ("p95 E2E", f"{np.quantile(measured.e2e_ns[measured.e2e_ns >= 0], 0.95) / 1e6:.0f} ms"),
    ):
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"figure: {out}", soft_wrap=True)
