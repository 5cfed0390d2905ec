"""A learner attached to `certify`, from the outside: watched, trained, recorded, recomputed and trained again."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
from conftest import Protocol

ROOT = Path(__file__).resolve().parents[2]
CURVES = ROOT / "docs" / "results" / "gasloc"


@pytest.mark.slow
def test_watched_and_trained(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed; to run this test: pip install -e '.[train]'")
    learner, folder = f"{CURVES}:GASLoC 1-peer", tmp_path / "out"
    options = ("--regime", small, "--draws", 19, "--train-seeds", 3, "--loss-margin", 1, "--learner", learner)
    result = protocol("certify", aware, *options, "--out", folder)
    assert result.returncode == 0, result.stderr
    certificate = json.loads((folder / "certificate.json").read_text())
    jsonschema.validate(certificate, json.loads((ROOT / "protocol" / "certificate.schema.json").read_text()))
    watched = certificate["regimes"][0]["learner"]
    assert (watched["kind"], watched["method"], watched["h"]) == ("measured", "GASLoC 1-peer", 30)
    assert len(pq.read_table(folder / "raw" / "learner.parquet")) == 6
    assert "validation loss" in (folder / "tables" / "gates.csv").read_text()
    again = ("verify", folder, "--rerun", aware, "--regime", small, "--learner")
    found = protocol(*again, learner)
    assert found.returncode == 0 and "recomputed and run again" in found.stdout, found.stdout + found.stderr
    other = protocol(*again, CURVES)
    assert other.returncode == 2 and "the folder of GASLoC 1-peer" in other.stderr
