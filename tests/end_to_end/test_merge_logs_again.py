"""`verify --rerun` of a merge log in generated load: its corridor and how it was read are taken again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Protocol

MERGES = [(21.3, 27.1), (44.0, 52.5), (66.2, 74.2), (93.9, 99.0), (120.4, 131.0)]


@pytest.mark.parametrize(
    ("how", "name", "h_min"),
    [
        # Waits of 13.7 to 21.4 s in a corridor of whole decisions of 0.588 s.
        (("--corridor", "from-log"), "small with merges.csv", 184),
        pytest.param(("--fragments", "1"), "small", 128, marks=pytest.mark.slow),
        pytest.param(
            ("--corridor", "from-log", "--log-zero", "-2"), "small with merges.csv", 184, marks=pytest.mark.slow
        ),
    ],
)
def test_a_log_is_judged_again(
    protocol: Protocol, small: Path, tmp_path: Path, how: tuple[str, ...], name: str, h_min: int
) -> None:
    log, out = tmp_path / "merges.csv", tmp_path / "out"
    log.write_text("start_s,end_s\n" + "".join(f"{a},{b}\n" for a, b in MERGES))
    made = protocol(
        "certify", log, "--regime", small, *how, "--draws", 9, "--seeds", 2, "--jobs", 1, "--out", out
    )  # fmt: skip
    assert made.returncode in (0, 1, 3), made.stderr
    (regime,) = json.loads((out / "certificate.json").read_text())["regimes"]
    assert (regime["name"], regime["corridor"]["h_min"]) == (name, h_min)
    again = protocol("verify", out, "--rerun", log, "--regime", small, "--jobs", 1)
    assert again.returncode == 0 and "run again" in again.stdout, again.stdout + again.stderr
    log.write_text(log.read_text().replace("44.0", "45.5"))
    other = protocol("verify", out, "--rerun", log, "--regime", small, "--jobs", 1)
    assert other.returncode == 1 and "digest" in other.stdout
