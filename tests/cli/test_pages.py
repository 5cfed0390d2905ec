"""Pages of an output folder: compared where they are there, and drawn again by a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from protocol.certificate.reading import read_certificate
from protocol.cli.main import build
from protocol.cli.pages import FIGURES, REPORT, TABLES, differing_pages
from protocol.errors import BadInput
from protocol.files import names_in

KEPT = Path(__file__).parents[2] / "docs" / "results" / "live-session"
PAGES = (REPORT, f"{TABLES}/claims.csv", f"{FIGURES}/gain.svg")


def draw(folder: Path) -> None:
    for name in PAGES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"what {name} says")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    draw(tmp_path)
    return tmp_path


def test_a_page_that_is_not_there_is_not_a_difference(kept: Path) -> None:
    assert list(differing_pages(draw, kept, PAGES)) == []
    (kept / REPORT).unlink()
    assert list(differing_pages(draw, kept, PAGES)) == []


def test_a_page_that_is_there_must_be_what_is_drawn(kept: Path) -> None:
    (kept / TABLES / "claims.csv").write_text("something better")
    (kept / FIGURES / "loss.svg").write_text("of another run")
    assert list(differing_pages(draw, kept, (*PAGES, f"{FIGURES}/loss.svg"))) == [
        "figures/loss.svg: not one of this certificate's pages",
        "tables/claims.csv: not what the certificate is drawn as",
    ]


def test_a_folder_kept_without_pages_is_verified_and_drawn_again(tmp_path: Path) -> None:
    said = CliRunner().invoke(build(["verify"]), ["verify", str(KEPT), "--pages", str(tmp_path / "new")])
    assert said.exit_code == 0, said.output
    assert said.stderr.count("not compared") == 1 and "verified: INCONCLUSIVE" in said.stdout
    assert sorted(names_in(tmp_path / "new")) == sorted(read_certificate(KEPT).pages)
    again = CliRunner().invoke(build(["verify"]), ["verify", str(KEPT), "--pages", str(KEPT)])
    assert isinstance(again.exception, BadInput) and (KEPT / "certificate.json").is_file()
