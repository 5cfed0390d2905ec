"""`protocol leaderboard`: a static page of every certificate below a folder, each verified first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from protocol.certificate import signature
from protocol.certificate.model import plain
from protocol.certificate.reading import CERTIFICATE, read_certificate
from protocol.cli.remaking import all_wrong, recomputed, unproven
from protocol.errors import BadInput, ProtocolError
from protocol.files import clean
from reports.leaderboard import GENERATOR, Entry, write_leaderboard

PAGE = "leaderboard.html"


def register(app: typer.Typer) -> None:
    app.command("leaderboard")(leaderboard)


def leaderboard(
    folder: Annotated[
        Path, typer.Argument(help="folder below which output folders of `protocol certify` or `live` lie")
    ],
    out: Annotated[Path | None, typer.Option(help=f"the page (default: {PAGE} in that folder)")] = None,
    title: Annotated[str, typer.Option(help="what the page is called")] = "Leaderboard of merge placement",
    rows: Annotated[
        bool, typer.Option("--rows", help="make the raw rows again from root, regime and decisions, too: minutes each")
    ] = False,
) -> None:
    """Verify every certificate below FOLDER and write a page that ranks those that verify, regime by regime.

    Exits with 1 when some certificate does not verify; the page names it and says why.
    """
    path = out or folder / PAGE
    _ours(path)
    found = sorted(p.parent for p in folder.rglob(CERTIFICATE))
    if not found:
        raise BadInput(str(folder), f"no {CERTIFICATE} below it", "output folders of `protocol certify` or `live`")
    entries, console = [], Console(highlight=False)
    for one in found:
        entries.append(entry(one, one.relative_to(folder).as_posix(), rows))
        state = "verified" if entries[-1].verified else f"not verified: {entries[-1].problems[0]}"
        console.print(Text(f"{clean(entries[-1].where)}: {clean(state)}"), soft_wrap=not console.is_terminal)
    write_leaderboard(entries, title, path)
    typer.echo(f"leaderboard: {path}")
    raise typer.Exit(0 if all(e.verified for e in entries) else 1)


def entry(folder: Path, where: str, rows: bool) -> Entry:
    """One certificate, verified as `protocol verify` does; whatever is wrong with it becomes a line.

    rows : whether its raw rows are made again as well.
    """
    try:
        certificate = read_certificate(folder)
    except ProtocolError as error:
        return Entry(where, None, [str(error)])
    values = plain(certificate)
    try:
        problems = all_wrong(folder) if rows else recomputed(folder)
        if problems:
            return Entry(where, values, problems)
        left = list(unproven(certificate, folder, lambda _: None, every_price=False, rerun=False))
    except (ProtocolError, OSError) as error:
        return Entry(where, values, [str(error)])
    if not rows:
        left.append("that the raw rows follow from root, regime and decisions: --rows makes them again")
    signed = (folder / signature.SIGNATURE).is_file()
    left.append(f"who made it: {'its signature was not checked' if signed else 'it is not signed'}")
    made = "and the rows themselves from root, regime and decisions" if rows else ""
    return Entry(where, values, (), f"recomputed from its raw files {made}".strip(), left)


def _ours(path: Path) -> None:
    """Raises BadInput where the page would take the place of something that is no leaderboard."""
    if path.is_dir() or (path.exists() and f'content="{GENERATOR}"' not in path.read_text("utf-8", "replace")[:2000]):
        raise BadInput(str(path), "something that is no leaderboard", "another --out; it was not touched")
    if not path.parent.is_dir():
        raise BadInput(str(path.parent), "no such folder", "a folder for the page")
