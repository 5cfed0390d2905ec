"""`protocol report`: report, tables and figures of a finished run, drawn again from what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protocol import files
from protocol.certificate.reading import RAW, read_certificate, read_json
from protocol.certificate.verify import other_files
from protocol.cli.pages import REPORT, draw_into, write_pages
from protocol.errors import BadInput
from protocol.evidence import store
from protocol.evidence.partial import locked
from protocol.files import clean
from reports import paper


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    folder: Annotated[Path, typer.Argument(help="output folder of `protocol certify` or `live`, with its raw files")],
    out: Annotated[
        Path | None, typer.Option(help="new folder for the pages (default: those of the run are drawn again)")
    ] = None,
    width: Annotated[
        str, typer.Option(help="with --out: of LaTeX tables and figures, `column` of a two-column paper or `page`")
    ] = "page",
    columns: Annotated[
        str | None, typer.Option(help=f"with --out: of the claims table, some of {', '.join(paper.COLUMNS)}")
    ] = None,
    decimals: Annotated[int, typer.Option(min=0, max=6, help="with --out: of percentage points in LaTeX")] = 2,
) -> None:
    """Draw report, tables and figures again from the stored results; nothing is run and nothing is judged."""
    if width not in ("column", "page"):
        raise BadInput("--width", width, "column or page")
    chosen = None if columns is None else tuple(word.strip() for word in columns.split(",") if word.strip())
    asked = paper.Asked("column" if width == "column" else "page", chosen, decimals)
    certificate, raw = read_certificate(folder), folder / RAW
    other = list(other_files(read_json(folder), raw))
    if other:
        more = f", and {len(other) - 1} more" if len(other) > 1 else ""
        typer.echo(
            f"warning: {clean(other[0])}{more}; `protocol verify {clean(str(folder))}` says what differs", err=True
        )
    evidence = store.read(raw)
    if out is not None:
        draw_into(out, certificate, evidence, raw, asked)
    elif asked != paper.Asked():
        raise BadInput(
            "--width, --columns, --decimals", "no --out", "--out NEW: the run's own tables stay as it lists them"
        )
    else:
        with locked(folder), files.adding(folder, certificate.pages or ()) as waiting:
            write_pages(certificate, evidence, waiting, raw)
    typer.echo(f"report: {(out or folder) / REPORT}")
