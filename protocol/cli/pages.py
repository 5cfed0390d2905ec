"""The output folder: certificate, raw files, and the pages drawn from them; written, and checked again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from adapters.sidecars.agreement import replayed
from protocol import files
from protocol.calibration import store as calibration
from protocol.certificate.model import Certificate, Head, plain
from protocol.certificate.reading import CERTIFICATE, RAW
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.evidence.store import ASKED
from reports import charts, figures, html, panels, paper, tables

REPORT, TABLES, FIGURES = "report.html", "tables", "figures"


def write_folder(
    folder: Path,
    certificate: Certificate,
    head: Head,
    write_raw: Callable[[Path], list[str]],
    evidence: Sequence[Evidence] | None,
    calibrations: Iterable[Path] = (),
) -> Certificate:
    """Replace what an earlier run of ours left; the certificate, which lists every file, appears last.

    head : what was asked.  write_raw : writes the raw tables and names them.  evidence : that the pages are drawn from,
    None for no pages.  calibrations : folders that G1 rests on.
    Raises BadInput when the folder holds something of somebody else's.
    """
    with files.replacing(folder, files.claim_folder(folder)) as waiting:
        raw = waiting / RAW
        names = write_raw(raw)
        files.write_text(raw / ASKED, files.canonical_json(head.plain()))
        names.append(ASKED)
        for source in calibrations:
            names += calibration.carry(source, raw)
        digests = {name: files.sha256(raw / name) for name in sorted(names)}
        certificate = _with(certificate, files=digests)
        if evidence is not None:
            write_pages(certificate, evidence, waiting, raw)
            pages = [name for name in files.names_in(waiting) if not name.startswith(f"{RAW}/")]
            certificate = _with(certificate, pages=tuple(pages))
        files.write_text(waiting / CERTIFICATE, files.canonical_json(plain(certificate)))
    return certificate


def _with(certificate: Certificate, **changes: object) -> Certificate:
    return certificate.model_copy(update=changes)


def write_pages(
    certificate: Certificate, evidence: Sequence[Evidence], folder: Path, raw: Path, asked: paper.Asked | None = None
) -> None:
    """Report, tables and figures into `folder`; the same certificate, evidence and raw files give the same bytes.

    raw : the raw files, among which the calibrations lie.  asked : what tables and figures shall look like, of pages
    that are drawn for a paper: those have every figure as PDF too, where a run's own have the few that papers show.
    """
    values = {key: value for key, value in plain(certificate).items() if key != "pages"}
    tables.write_tables(values, folder / TABLES, asked)
    drawn = charts.chart_data(values, evidence, calibrated(certificate, raw))

    def draw(into: Path, width: figures.Width) -> dict[str, str]:
        named = figures.write_figures(values, evidence, into, width)
        named |= panels.write_panels(drawn, into, pdf=asked is not None, width=width)
        return {name: path.read_text("utf-8") for name, path in named.items()}

    svgs = draw(folder / FIGURES, asked.width if asked is not None else "page")
    if asked is not None and asked.width == "column":
        with tempfile.TemporaryDirectory() as wide:  # the report is a page, whatever the paper is
            svgs = draw(Path(wide), "page")
    html.write_report(values, list(evidence), folder / REPORT, svgs, drawn)


def calibrated(certificate: Certificate, raw: Path) -> dict[str, charts.Pairs]:
    """The calibrations among the raw files, by name: their runs as measured and as their models serve them."""
    stated = [r.sidecar.calibration for r in certificate.regimes if r.sidecar.calibration is not None]
    found = {str(one["name"]): raw / calibration.carried_as(one["name"]) for one in stated}
    return {name: replayed(folder) for name, folder in found.items() if folder.is_dir()}


def draw_into(
    folder: Path, certificate: Certificate, evidence: Sequence[Evidence], raw: Path, asked: paper.Asked | None = None
) -> None:
    """Pages alone, into a folder that is new or empty.  Raises BadInput on any other."""
    if files.claim_folder(folder):
        raise BadInput(str(folder), "an output folder with a certificate", "a new or empty folder")
    with files.replacing(folder, ()) as waiting:
        write_pages(certificate, evidence, waiting, raw, asked)


def differing_pages(write: Callable[[Path], None], folder: Path, listed: Sequence[str]) -> Iterator[str]:
    """Each page of `folder` that is not what `write` draws; one that is not there may have been left out on purpose."""
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        write(fresh)
        for name in sorted({*listed, *files.names_in(fresh)}):
            stored = folder / name
            if not stored.is_file():
                continue
            if not (fresh / name).is_file():
                yield f"{name}: not one of this certificate's pages"
            elif stored.read_bytes() != (fresh / name).read_bytes():
                yield f"{name}: not what the certificate is drawn as"
