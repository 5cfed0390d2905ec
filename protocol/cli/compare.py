"""`protocol compare`: several certificates in one table, corrected for having tried them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from protocol import files
from protocol.certificate.compare import Compared, compare, paired
from protocol.certificate.ledger import Entry, others
from protocol.certificate.model import plain
from protocol.certificate.reading import RAW, read_certificate
from protocol.cli import options
from protocol.cli.remaking import all_wrong
from protocol.errors import BadInput
from reports import comparison
from reports.format import clean, interval, p_text, pp

#: What a comparison wrote, with digests: what has changed since is the user's.
_WRITTEN = ".comparison.json"


def register(app: typer.Typer) -> None:
    app.command("compare")(compare_command)


def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(help="output folders of `protocol certify`, made with equal settings")
    ],
    pair: Annotated[
        bool, typer.Option("--paired", help="the gain of the first of two over the second, seed by seed")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="folder for tables (.tex, .md, .csv) and figures (.pdf, .svg)")
    ] = None,
    width: Annotated[
        str, typer.Option(help="with --out: of LaTeX tables and figures, `column` of a two-column paper or `page`")
    ] = "page",
    columns: Annotated[
        str | None, typer.Option(help=f"with --out: of the LaTeX table, some of {', '.join(comparison.COLUMNS)}")
    ] = None,
    decimals: Annotated[int, typer.Option(min=0, max=6, help="with --out: of percentage points in LaTeX")] = 2,
    json_: options.Json = False,
) -> None:
    """Compare schedulers: Holm over all their claims; exit 0 when some claim still passes, 1 when none does.

    Folders with raw files are verified first.  Other runs of the same schedulers, as the ledger beside the folders has
    them, count as tried.  With --paired, exit 0 when some difference of gains has its lower limit above 0 and its
    p, after Holm over the claims, at most 0.05; other runs are not counted.
    """
    if pair and out is not None:
        raise BadInput("--out", "--paired as well", "one of them")
    asked = _asked(width, columns, decimals)
    if out is None and asked != comparison.Asked():
        raise BadInput("--width, --columns, --decimals", "no --out", "--out FOLDER for what they are about")
    for folder in folders:
        _trusted(folder)
    if pair:
        _paired(folders, json_)
    certificates = {str(folder): read_certificate(folder) for folder in folders}
    tried = others(
        folders, [str(c.contender.described("digest")) for c in certificates.values()], certificates.values()
    )
    rows = compare(certificates, tried)
    settings = plain(next(iter(certificates.values())))["settings"]
    values = [asdict(row) for row in rows]
    written = []
    if out is not None:
        rows_ = comparison.detailed(values, [plain(c) for c in certificates.values()])
        written = _write(out, lambda into: comparison.write(rows_, settings, [asdict(e) for e in tried], into, asked))
    if json_:
        typer.echo(json.dumps({"claims": values, "other_runs": [asdict(entry) for entry in tried]}, indent=2))
    else:
        _print(rows, tried, settings)
        for path in written:
            typer.echo(f"wrote {path}")
    raise typer.Exit(0 if any(row.verdict == "PASS" for row in rows) else 1)


def _write(folder: Path, write: Callable[[Path], list[Path]]) -> list[Path]:
    """Write the tables and figures, in the place of those of an earlier comparison that nobody has changed since.

    Raises BadInput, and touches nothing, where something else has the name of one of them.
    """
    kept = {}
    if (folder / _WRITTEN).is_file():
        try:
            kept = dict(files.from_json((folder / _WRITTEN).read_text("utf-8")))
        except (ValueError, TypeError):
            raise BadInput(str(folder / _WRITTEN), "no list of files", "another --out; it was not touched") from None
    with files.naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files.refuse_somebodys(folder)
    ours = [n for n, digest in kept.items() if (folder / n).is_file() and files.sha256(folder / n) == digest]
    with files.adding(folder, [*ours, *([_WRITTEN] if kept else [])]) as waiting:
        names = [path.relative_to(waiting) for path in write(waiting)]
        digests = {name.as_posix(): files.sha256(waiting / name) for name in names}
        files.write_text(waiting / _WRITTEN, files.canonical_json(digests))
    return [folder / name for name in names]


def _asked(width: str, columns: str | None, decimals: int) -> comparison.Asked:
    if width not in ("column", "page"):
        raise BadInput("--width", width, "column or page")
    chosen = None if columns is None else tuple(word.strip() for word in columns.split(",") if word.strip())
    return comparison.Asked("column" if width == "column" else "page", chosen, decimals)


def _print(rows: list[Compared], tried: list[Entry], settings: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    n = len(rows) + sum(entry.claims for entry in tried)
    console.print(Text(f"{n} claims tried, one Holm correction", style="italic"))
    console.print(comparison.on_terminal([asdict(row) for row in rows], settings, console.width), soft_wrap=True)
    console.print()
    if len({row.root_seed for row in rows}) > 1:
        console.print("The claims rest on different roots, that is on different traces.", soft_wrap=True)
    for entry in tried:
        root = "" if entry.root_seed is None else f", root {entry.root_seed}"
        console.print(
            f"also tried: {clean(entry.name)} on {entry.began[:19]} in {clean(entry.folder)}{root}: {entry.verdict}; "
            f"{entry.claims} claim{'' if entry.claims == 1 else 's'} ({clean(entry.settings)})",
            soft_wrap=not console.is_terminal, markup=False,
        )  # fmt: skip


def _paired(folders: list[Path], json_: bool) -> NoReturn:
    rows = paired({str(folder): read_certificate(folder) for folder in folders})
    if json_:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    for row in [] if json_ else rows:
        limits = "no interval" if row.interval_pp is None else interval(row.interval_pp)
        typer.echo(
            f"{row.regime}, {row.slo}: {row.scheduler} ({row.verdicts[0]}) gains {pp(row.gain_pp, sign=True)} more "
            f"over matched random placement than {row.other} ({row.verdicts[1]}), {100 * row.level:g} % interval "
            f"{limits} (t over {row.n_seeds} seeds), paired sign flip {p_text(row.p)}"
            + (f", among {len(rows)} claims {p_text(row.p_all)} (Holm)" if len(rows) > 1 else "")
        )
        if not row.matched:
            typer.echo("  the two did not merge equally much; each is compared with its own matched draws")
        for what, (one, other) in row.exchanged.items():
            typer.echo(
                f"  {what.replace('_', ' ')}: {one:.15g} and {other:.15g}{'' if one == other else ' (not equal)'}"
            )
    won = (
        row.interval_pp is not None and row.interval_pp[0] > 0 and row.p_all is not None and row.p_all <= 1 - row.level
        for row in rows
    )
    raise typer.Exit(0 if any(won) else 1)


def _trusted(folder: Path) -> None:
    """Verify a folder; one without raw files is taken as it states itself, and that is said."""
    certificate = read_certificate(folder)
    if not (folder / RAW).is_dir():
        typer.echo(f"{folder}: no raw files, so taken as stated", err=True)
        return
    wrong = all_wrong(folder)
    if wrong:
        raise BadInput(str(folder), f"a certificate that its raw files do not bear out ({wrong[0]})", "a verified one")
    for regime in certificate.regimes:
        if regime.described("trace"):
            left = f"load, draws and prices of {regime.name} were not made again: verify --trace FILE does"
            typer.echo(clean(f"{folder}: {left}"), err=True)
