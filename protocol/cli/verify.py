"""`protocol verify`: recompute a certificate offline from the raw files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protocol.verify import read_certificate, verify


def register(app: typer.Typer) -> None:
    app.command("verify")(verify_command)


def verify_command(
    folder: Annotated[Path, typer.Argument(help="output folder of `protocol certify`")],
    most: Annotated[int, typer.Option(min=1, help="differences to print")] = 20,
) -> None:
    """Recompute every gate from the raw files; exit 0 when all agree, 1 with each difference named."""
    certificate = read_certificate(folder)
    found = verify(folder)
    for line in found[:most]:
        typer.echo(f"differs: {line}")
    if len(found) > most:
        typer.echo(f"and {len(found) - most} more differences")
    if found:
        raise typer.Exit(1)
    typer.echo(
        f"verified: {certificate['verdict']}, {len(certificate['claims'])} claims recomputed from {folder / 'raw'}"
    )
