"""Peer schedulers as a user meets them: certify, verify, run again, compare in pairs, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import SMALL_REGIME, Protocol, refused

QUICK = ("--draws", "19")
PEERS = """
[peer]
payload_bytes = 1_000_000
bandwidth = [500_000.0]
bursts = "own"
"""
PAIRS = """
from protocol.scheduler import Decision


class Scheduler:
    def __init__(self, rng):
        self.rng = rng

    def decide(self, obs):
        ready = [i for i, o in enumerate(obs.islands) if o.steps_since_merge >= obs.h_min]
        {choose}
        if len(ready) < 2:
            return False
        return Decision(True, ((ready[0], ready[1]),))
"""
QUIET = "ready = sorted((i for i in ready if obs.islands[i].in_flight < 3), key=lambda i: obs.islands[i].in_flight)"
BLIND = "ready = ready if self.rng.random() < 0.05 else []"


@pytest.fixture
def regime(tmp_path: Path) -> Path:
    path = tmp_path / "small-peers.toml"
    text = SMALL_REGIME.replace('"small"', '"small-peers"').replace("planner_budget = 4", "islands = 4")
    path.write_text(text + PEERS)
    return path


@pytest.mark.slow
def test_certify_verify_and_compare(protocol: Protocol, regime: Path, tmp_path: Path) -> None:
    found = {}
    for name, choose in (("quiet", QUIET), ("blind", BLIND)):
        file = tmp_path / f"{name}.py"
        file.write_text(PAIRS.format(choose=choose))
        result = protocol("certify", file, "--regime", regime, "--out", tmp_path / name, *QUICK, "--jobs", 1)
        assert result.returncode == {"quiet": 0, "blind": 1}[name], result.stderr
        found[name] = json.loads((tmp_path / name / "certificate.json").read_text())
    assert "peer" in found["quiet"]["regimes"][0] and (tmp_path / "quiet" / "tables" / "islands.csv").exists()
    page = (tmp_path / "quiet" / "report.html").read_text()
    assert "Gigabytes sent by seed" in page and "Own groups at other times" in page
    again = protocol("verify", tmp_path / "quiet", "--rerun", tmp_path / "quiet.py", "--regime", regime, "--jobs", 1)
    assert again.returncode == 0 and "recomputed and run again" in again.stdout, again.stdout
    pair = protocol("compare", "--paired", tmp_path / "quiet", tmp_path / "blind")
    assert pair.returncode == 0 and "gains +" in pair.stdout and "bytes: " in pair.stdout
    back = protocol("compare", "--paired", tmp_path / "blind", tmp_path / "quiet", "--json")
    assert back.returncode == 1 and json.loads(back.stdout)[0]["gain_pp"] < 0
    refused(protocol("compare", "--paired", tmp_path / "quiet"), "1 certificates; expected two")


def test_refusals_are_one_line(protocol: Protocol, regime: Path, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from protocol.scheduler import Decision\n\n\ndef decide(obs):\n    return Decision(True, ((0,),))\n"
    )
    result = protocol("certify", file, "--regime", regime, "--out", tmp_path / "odd", *QUICK, "--jobs", 1)
    refused(result, "a group of 1", "expected an even number of islands")
