"""`protocol compare`: several certificates in one table, corrected for having tried them all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from protocol.certificate.compare import compare, paired
from protocol.certificate.reading import RAW, read_certificate
from protocol.certificate.verify import verify
from protocol.errors import BadInput
from reports.format import interval, p_text, p_value, pp


def register(app: typer.Typer) -> None:
    app.command("compare")(compare_command)


def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(help="output folders of `protocol certify`, made with equal settings")
    ],
    pair: Annotated[
        bool, typer.Option("--paired", help="the gain of the first of two over the second, seed by seed")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Compare schedulers: Holm over all their claims; exit 0 when some claim still passes, 1 when none does.

    Folders with raw files are verified first.  With --paired, exit 0 when the lower limit of some gain is above 0 and
    both schedulers merged equally much.
    """
    for folder in folders:
        _trusted(folder)
    if pair:
        _paired(folders, json_)
    rows = compare({str(folder): read_certificate(folder) for folder in folders})
    if json_:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        table = Table(title=f"{len(rows)} claims, one Holm correction", title_justify="left", box=None, pad_edge=False)
        for column in ("scheduler", "regime", "SLO", "gain", "p alone", "p in all", "verdict"):
            table.add_column(column, justify="right" if column.startswith(("gain", "p ")) else "left")
        for row in rows:
            gain, alone, overall = pp(row.gain_pp, sign=True), p_value(row.p), p_value(row.p_overall)
            table.add_row(row.scheduler, row.regime, row.slo, gain, alone, overall, row.verdict)
        Console(highlight=False).print(table)
    raise typer.Exit(0 if any(row.verdict == "PASS" for row in rows) else 1)


def _paired(folders: list[Path], json_: bool) -> NoReturn:
    rows = paired({str(folder): read_certificate(folder) for folder in folders})
    if json_:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    for row in [] if json_ else rows:
        limits = "no interval" if row.interval_pp is None else interval(row.interval_pp)
        typer.echo(
            f"{row.regime}, {row.slo}: {row.scheduler} ({row.verdicts[0]}) has {pp(row.gain_pp, sign=True)} fewer "
            f"violations than {row.other} ({row.verdicts[1]}), {100 * row.level:g} % interval {limits} (t over "
            f"{row.n_seeds} seeds), sign flip {p_text(row.p)}"
        )
        if not row.matched:
            typer.echo("  the two did not merge equally much: this is no gain of placement")
        for what, (one, other) in row.exchanged.items():
            typer.echo(
                f"  {what.replace('_', ' ')}: {one:.15g} and {other:.15g}{'' if one == other else ' (not equal)'}"
            )
    won = (row.interval_pp is not None and row.interval_pp[0] > 0 and row.matched for row in rows)
    raise typer.Exit(0 if any(won) else 1)


def _trusted(folder: Path) -> None:
    """Verify a folder; one without raw files is taken as it states itself, and that is said."""
    read_certificate(folder)
    if not (folder / RAW).is_dir():
        typer.echo(f"{folder}: no raw files, so taken as stated", err=True)
        return
    wrong = verify(folder)
    if wrong:
        raise BadInput(str(folder), f"a certificate that its raw files do not bear out ({wrong[0]})", "a verified one")
