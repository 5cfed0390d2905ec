"""`protocol selftest`: how often the gates certify what is known to be blind, and find what is known to be there."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pyarrow as pa
import pyarrow.csv
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from adapters.traces.worlds import GeneratedWorlds
from protocol import files
from protocol.campaign.plan import Setting, Worlds
from protocol.cli import options
from protocol.cli.settings import PUBLISHED, setting_of
from protocol.regimes.regime import Regime
from protocol.selftest import families as selftest

#: Simulated selftests run this much of each regime: a few merges a seed, through the same code.
HORIZON_S = 150.0


def register(app: typer.Typer) -> None:
    app.command("selftest")(selftest_command)


def selftest_command(
    quick: options.Quick = False,
    synthetic: Annotated[bool, typer.Option(help="tests on synthetic costs")] = True,
    simulated: Annotated[bool, typer.Option(help="certifications on full replays of the generated regimes")] = True,
    nulls: Annotated[int | None, typer.Option(min=1, help="certifications of each null family")] = None,
    effects: Annotated[int | None, typer.Option(min=2, help="certifications of each known effect")] = None,
    seed: options.Seed = options.ROOT,
    jobs: options.Jobs = 2,
    out: options.Out = None,
) -> None:
    """False certification and power, with exact intervals; exit 1 when a bar is missed."""
    base = selftest.QUICK if quick else selftest.FULL
    size = dataclasses.replace(base, null=nulls or base.null, power=effects or base.power)
    console = Console(highlight=False)
    rows: list[selftest.Row] = []
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting")

        def progress(done: str) -> None:
            bar.update(task, description=f"done: {done}")

        if synthetic:
            rows += selftest.synthetic(seed, size, jobs, progress)
        if simulated:
            rows += selftest.simulated(seed, size, [_world(name) for name in PUBLISHED], jobs, progress)
    _print(rows, console)
    missed = selftest.missed_bars(rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with files.atomic(out / "selftest.csv") as temporary:
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows), temporary)
        files.write_text(out / "selftest.md", _markdown(rows, missed, size, seed))
        console.print(f"tables: {out / 'selftest.md'}, {out / 'selftest.csv'}", soft_wrap=True)
    for line in missed:
        console.print(f"bar missed: {line}", soft_wrap=True)
    if missed:
        raise typer.Exit(1)


class _Short:
    """Worlds of a regime's shortened horizon, from any root seed."""

    def __init__(self, regime: Regime) -> None:
        self.regime = regime

    def __call__(self, root: int) -> Worlds:
        return GeneratedWorlds(self.regime, root)


def _world(name: str) -> tuple[Setting, _Short]:
    regime = Regime.load(name).replace(horizon_s=HORIZON_S)
    worlds = _Short(regime)
    return setting_of(regime, worlds(0), None), worlds


def _pivot(rows: list[selftest.Row], brief: bool) -> list[list[str]]:
    """One line a family: share of certifications that each test passed, in percent, with its exact 95 % interval.

    brief : the interval of the last test, the verdict itself, only.
    """
    lines: dict[tuple[str, str, float], list[str]] = {}
    for row in rows:
        key = (str(row["world"]), str(row["family"]), float(row["effect_pp"]))
        line = lines.setdefault(key, [key[0], key[1], f"{key[2]:.2f}", str(row["n"])])
        rate, low, high = (100 * float(row[c]) for c in ("rate", "low", "high"))
        bare = brief and row["test"] != selftest.GATES[-1]
        line.append(f"{rate:.1f}" if bare else f"{rate:.1f} ({low:.1f}-{high:.1f})")
    return list(lines.values())


_HEAD = ("world", "family", "gain, pp", "n", *(gate.replace("_", " ") for gate in selftest.GATES))


def _print(rows: list[selftest.Row], console: Console) -> None:
    """A table for each world, its lines whole even where the terminal is narrower."""
    for world in dict.fromkeys(str(row["world"]) for row in rows):
        title = f"{world}: how often each passes, % (gain in pp; both randomisation tests)"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in ("family", "gain", "n", "both", "aware", "certified"):
            table.add_column(column, justify="left" if column == "family" else "right", no_wrap=True)
        for line in _pivot([row for row in rows if row["world"] == world], brief=True):
            table.add_row(*line[1:4], *line[6:])
        console.print(table)


def _markdown(rows: list[selftest.Row], missed: list[str], size: selftest.Size, seed: int) -> str:
    head = f"""# Selftest

Made by `protocol selftest` with seed {seed}: {size.null} certifications of each null family and {size.power} of each
known effect (half as many of the simulated ones), {size.seeds} seeds a certification unless said otherwise,
{size.synthetic_draws} draws a seed on synthetic costs and {size.simulated_draws} on simulated ones, alpha
{selftest.ALPHA}. Cells: how often the test passed, in percent, with the exact (Clopper and Pearson) 95 % interval.
`envelope` is the larger of the stratified and the sign-flip p, `load aware` the exchange of schedules between traces,
`certified` gate G3 as a whole together with distinct seeds. Bars: false certification at most 5 %, upper limit at most
6.5 % over 2,000 or more nulls; power at least 90 % at 1.5 pp.

"""
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(line) + " |" for line in _pivot(rows, brief=False)]
    verdict = "Every bar is held." if not missed else "Bars missed:\n" + "\n".join(f"- {line}" for line in missed)
    return head + "\n".join(lines) + f"\n\n{verdict}\n"
