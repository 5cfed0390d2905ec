"""Runs from Python, and their pages drawn again: whatever the scheduler is called, and the same as the command's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import LOAD_AWARE, Protocol

import protocol as package
from protocol.cli.results import Result
from protocol.files import names_in, sha256

#: As a file may be called; a slash is the one sign that no file name holds.
NASTY = "<script>alert(1)<script> & 100% $x_$.py"


@pytest.fixture
def run(small: Path, tmp_path: Path) -> Result:
    path = tmp_path / NASTY
    path.write_text(LOAD_AWARE)
    return package.certify(
        path, regimes=[str(small)], seeds=3, draws=9, out=tmp_path / "run", jobs=1, quiet=True
    )  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    return {name: sha256(folder / name) for name in names_in(folder)}


@pytest.mark.slow
def test_a_nasty_name_from_the_file_to_the_page(run: Result, protocol: Protocol, tmp_path: Path) -> None:
    assert run.verify() == [] and run.certificate.contender.name == NASTY
    assert "<script>alert" not in run.report.read_text("utf-8") and "<script>alert" not in run._repr_html_()
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in run.figures)
    assert "$<$script$>$alert" in (run.folder / "tables" / "claims.tex").read_text()
    before = digests(run.folder)
    for page in (run.report, run.folder / "tables" / "claims.csv"):
        page.unlink()
    shutil.rmtree(run.folder / "figures")
    result = protocol("report", run.folder)
    assert result.returncode == 0, result.stderr
    assert digests(run.folder) == before

    narrow = protocol(
        "report", run.folder, "--out", tmp_path / "paper", "--width", "column", "--columns", "claim,worst"
    )
    assert narrow.returncode == 0, narrow.stderr
    assert "Worst" in (tmp_path / "paper" / "tables" / "claims.tex").read_text()
    for more, said in (
        (["--decimals", 1], "expected --out NEW"),
        (["--out", tmp_path / "x", "--width", "wide"], "expected column or page"),
        (["--out", tmp_path / "x", "--columns", "colour"], "found colour"),
        (["--out", run.folder], "expected a new or empty folder"),
    ):
        refused = protocol("report", run.folder, *more)
        assert refused.returncode == 2 and said in refused.stderr and "Traceback" not in refused.stderr
    assert digests(run.folder) == before and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_sweep_simulate_and_compare(run: Result, small: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"regimes": [str(small)], "seeds": 3, "draws": 9, "jobs": 1, "quiet": True}
    path = tmp_path / "quiet.py"
    path.write_text("class Quiet:\n    def __init__(self, n=1):\n        self.n = n\n"
                    "    def decide(self, obs):\n        return obs.in_flight < self.n\n")  # fmt: skip
    found = package.sweep(f"{path}:Quiet", {"n": [2, 5]}, development_seeds=8, out=tmp_path / "sweep", **more)
    stated = found.certificate.sweep
    assert stated is not None and stated.tried == 2 and stated.winner in (f"{path}:Quiet(n=2)", f"{path}:Quiet(n=5)")

    both = package.compare(run, found.folder)
    assert both["scheduler"].tolist() == [NASTY, found.certificate.contender.name]
    assert both["gain_pp"].tolist() == [*run.claims["gain_pp"], *found.claims["gain_pp"]]

    one = package.simulate(f"{path}:Quiet(n=2)", regime=str(small), seed_number=1)
    assert len(one.merges) > 0 and (one.merges["busy_s"] == 8).all()
    assert one.requests["violates"].sum() >= one.requests["violates_idle"].sum()
    assert one._repr_png_().startswith(b"\x89PNG") and repr(one).startswith("<small: ")
