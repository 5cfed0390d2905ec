"""Pages of an output folder: compared where they are there, and drawn again into a folder of their own."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from sample_certificate import build

from protocol.certificate.model import Certificate
from protocol.cli.pages import FIGURES, REPORT, TABLES, differing_pages, draw_into
from protocol.cli.report import report
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


def test_pages_are_drawn_into_no_folder_that_holds_a_certificate() -> None:
    made, evidence = build(seeds=2, draws=3)
    before = names_in(KEPT)
    with pytest.raises(BadInput, match="a new or empty folder"):
        draw_into(KEPT, Certificate.model_validate(made), evidence, KEPT / "raw")
    assert names_in(KEPT) == before


def test_a_run_whose_rows_were_edited_is_drawn_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(KEPT, run)
    report(run, tmp_path / "pages")
    assert "warning" not in capsys.readouterr().err
    (run / "raw" / "served.parquet").write_bytes(b"other rows")
    (run / "raw" / "added.parquet").write_bytes(b"")
    with contextlib.suppress(BadInput):  # rows that cannot be read at all are refused afterwards
        report(run, tmp_path / "again")
    said = capsys.readouterr().err
    assert said.startswith("warning: raw/added.parquet: not named by the certificate, and 1 more; `protocol verify ")
    assert len(said.splitlines()) == 1
