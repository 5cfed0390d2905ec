"""`protocol export`: a finished run for MLflow, Weights & Biases or as an RO-Crate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapters import exports
from protocol.certificate.model import plain
from protocol.certificate.reading import read_certificate
from protocol.cli.remaking import all_wrong
from protocol.errors import BadInput
from protocol.files import clean


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    folder: Annotated[Path, typer.Argument(help="output folder of `protocol certify` or `live`")],
    mlflow: Annotated[bool, typer.Option("--mlflow", help="a run in MLflow, where MLFLOW_TRACKING_URI says")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="a run in Weights & Biases; WANDB_MODE=offline: here")] = False,
    ro_crate: Annotated[bool, typer.Option("--ro-crate", help="a folder that is an RO-Crate, for archives")] = False,
    out: Annotated[Path | None, typer.Option(help="with --ro-crate: its folder (default: FOLDER-crate)")] = None,
    project: Annotated[str, typer.Option(help="project or experiment that the run belongs to")] = "diloco-protocol",
) -> None:
    """Hand a certificate with its numbers and files to another tool; it is verified first."""
    if not (mlflow or wandb or ro_crate):
        raise BadInput("export", "no target", "--mlflow, --wandb or --ro-crate")
    if out is not None and not ro_crate:
        raise BadInput("--out", "no --ro-crate", "both of them")
    certificate = plain(read_certificate(folder))
    found = all_wrong(folder)
    if found:
        raise BadInput(str(folder), found[0], "a certificate that verifies")
    for path in folder.rglob("*"):
        if path.is_symlink():  # what it leads to is no part of a run
            raise BadInput(str(path), "a link", "the files of a run themselves")
    if ro_crate:
        place = out or folder.with_name(f"{folder.resolve().name}-crate")
        _tell("RO-Crate", exports.to_ro_crate(certificate, folder, place))
    if mlflow:
        _tell("MLflow", exports.to_mlflow(certificate, folder, project))
    if wandb:
        _tell("Weights & Biases", exports.to_wandb(certificate, folder, project))


def _tell(what: str, where: str) -> None:
    typer.echo(f"{what}: {clean(where)}")
