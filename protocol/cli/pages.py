"""The output folder: certificate, raw files, and the pages drawn from them; written, and checked again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from protocol import files
from protocol.calibration import store as calibration
from protocol.campaign import real
from protocol.certificate import signature
from protocol.certificate.verify import CERTIFICATE, RAW
from protocol.evidence.store import ASKED, SeedEvidence
from protocol.workload.slo import Slo
from reports import figures, html, tables
from reports.live import write_live_report

REPORT, TABLES, FIGURES = "report.html", "tables", "figures"


def write_folder(
    folder: Path,
    certificate: dict[str, Any],
    head: dict[str, Any],
    write_raw: Callable[[Path], list[str]],
    draw: Callable[[Path], None],
    calibrations: Iterable[Path] = (),
) -> None:
    """Replace what an earlier run left; the certificate, with the digests of its raw files, appears last.

    head : what was asked.  write_raw : writes the raw tables and names them.  calibrations : folders that G1 rests on.
    """
    for name in (CERTIFICATE, signature.SIGNATURE):
        (folder / name).unlink(missing_ok=True)
    for stale in (RAW, TABLES, FIGURES):
        shutil.rmtree(folder / stale, ignore_errors=True)
    raw = folder / RAW
    names = write_raw(raw)
    files.write_text(raw / ASKED, files.canonical_json(head))
    names.append(ASKED)
    for source in calibrations:
        names += calibration.carry(source, raw)
    certificate["files"] = {name: files.sha256(raw / name) for name in sorted(names)}
    draw(folder)
    files.write_text(folder / CERTIFICATE, files.canonical_json(certificate))


def write_pages(certificate: dict[str, Any], evidence: Sequence[SeedEvidence], folder: Path) -> None:
    """Report, tables and figures into `folder`; the same certificate and evidence give the same bytes."""
    tables.write_tables(certificate, folder / TABLES)
    drawn = figures.write_figures(certificate, _compared(certificate, evidence), folder / FIGURES)
    html.write_report(
        certificate, list(evidence), folder / REPORT, {name: path.read_text("utf-8") for name, path in drawn.items()}
    )


def _compared(certificate: dict[str, Any], evidence: Sequence[SeedEvidence]) -> list[SeedEvidence]:
    """What the envelope compared: the server's replays where there are any."""
    if "real" not in certificate["settings"]:
        return list(evidence)
    slos = [Slo.parse(text) for text in certificate["regimes"][0]["slos"]]
    return real.as_served(evidence, slos, certificate["settings"]["draws"])


def write_live_pages(certificate: dict[str, Any], folder: Path) -> None:
    """The same for a live session."""
    tables.write_tables(certificate, folder / TABLES)
    drawn = figures.write_live_figures(certificate, folder / FIGURES)
    write_live_report(certificate, folder / REPORT, {name: path.read_text("utf-8") for name, path in drawn.items()})


def differing_pages(write: Callable[[Path], None], folder: Path) -> Iterator[str]:
    """Each page of `folder` that is not what `write` draws."""
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        write(fresh)
        names = {
            p.relative_to(root)
            for root in (fresh, folder)
            for part in (TABLES, FIGURES)
            for p in (root / part).glob("*")
        }
        for name in sorted({*names, Path(REPORT)}):
            stored = folder / name
            if not stored.is_file():
                yield f"{name}: missing"
            elif not (fresh / name).is_file():
                yield f"{name}: not one of this certificate's pages"
            elif stored.read_bytes() != (fresh / name).read_bytes():
                yield f"{name}: not what the certificate is drawn as"
