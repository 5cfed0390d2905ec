"""`protocol sweep`: tuned on development traces, certified once on others; what was tried is in the certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Protocol, refused
from judging import Judged, command

from protocol.cli.options import ROOT

#: Merges when few requests are served, or at H_max: the larger the limit, the less it looks.
TUNED = """
class Quiet:
    def __init__(self, most=0, spare=0):
        self.most = most + spare
    def decide(self, obs):
        return obs.in_flight < self.most
"""


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "tuned.py"
    path.parent.mkdir()
    path.write_text(TUNED)
    return path


def swept(small: Path, tuned: Path, out: Path, *more: object) -> Judged:
    return command(out, "sweep", f"{tuned}:Quiet", "--regime", small, "--draws", 9, "--jobs", 1, "--out", out, *more)


def test_the_best_of_several_is_certified_once_on_other_traces(small: Path, tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    judged = swept(small, tuned, out, "--param", "most=1000,4", "--development-seeds", 4, "--seeds", 2)
    made = judged.certificate
    tried = {one["scheduler"]: one for one in made["sweep"]["variants"]}
    names = [f"{tuned}:Quiet(most={n})" for n in (1000, 4)]
    assert [one["scheduler"] for one in made["sweep"]["variants"]] == names and made["sweep"]["tried"] == 2
    gains = [one["gain_pp"] for one in tried.values()]
    assert max(gains) == gains[1] and made["sweep"]["winner"] == names[1]
    assert made["contender"]["name"] == "tuned.py:Quiet(most=4)"
    assert made["contender"]["digest"] == tried[names[1]]["digest"] and len({o["digest"] for o in tried.values()}) == 2
    assert made["settings"]["root_seed"] == ROOT != made["sweep"]["development_root"]
    assert judged.code == 3 and (made["sweep"]["development_seeds"], made["regimes"][0]["n_seeds"]) == (4, 2)
    ledger = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 2  # one run, begun and ended


def test_a_grid_file_and_what_cannot_be_swept(inside: Protocol, small: Path, tuned: Path, tmp_path: Path) -> None:
    grid, spec = tmp_path / "grid.toml", f"{tuned}:Quiet"
    grid.write_text('most = "few"\n')
    refused(inside("sweep", spec, "--regime", small, "--grid", grid), "grid.toml, most", "a list of values")
    refused(inside("sweep", spec, "--regime", small), "--param, --grid", "neither")
    refused(inside("sweep", spec, "--regime", small, "--param", "most"), "--param", "NAME=V1,V2")
    grid.write_text(f"most = {list(range(40))}\nspare = {list(range(40))}\n")
    refused(inside("sweep", spec, "--regime", small, "--grid", grid), "1600 variants", "expected 1 to 1000")
    log, same = tmp_path / "log.csv", tmp_path / "same.csv"
    for path in (log, same):
        path.write_text("time,prompt_tokens,output_tokens\n0,1,1\n")
    asked = ("sweep", spec, "--param", "most=1,2", "--trace", log)
    refused(inside(*asked), "--trace", "--development-trace")
    refused(inside(*asked, "--development-trace", same), "--development-trace", "--trace names too")
    refused(inside(*asked, "--development-trace", tmp_path / "none.csv"), "none.csv", "a trace")
    refused(inside("sweep", spec, "--param", "most=1,2", "--development-trace", log), "--development-trace", "--trace")
