"""`protocol compare`: several certificates in one table, corrected for having tried them all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from protocol.compare import compare
from protocol.verify import read_certificate
from reports.format import p_value, pp


def register(app: typer.Typer) -> None:
    app.command("compare")(compare_command)


def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(help="output folders of `protocol certify`, made with equal settings")
    ],
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Compare schedulers: Holm over all their claims; exit 0 when some claim still passes, 1 when none does."""
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
