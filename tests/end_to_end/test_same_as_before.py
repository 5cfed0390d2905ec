"""With one fragment, no delay and constant durations, default certificates measure what version 0.1 measured.

The digests below were computed from the raw files that the released code at commit 847da57 wrote for

    protocol certify wa-calibrated --regime bursty-aperiodic --seeds 2 --draws 9 --jobs 1

with the pinned packages of `constraints.txt`, by `digests` of this file.  Every column that version wrote is compared;
newer files have one more arm (`pessimum`, which prices the worst placement) and more columns, which are left out.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from protocol.cli.main import build

#: Columns of raw/, and the arms, as 0.1 had them.
COLUMNS = {
    "decisions": ("seed", "decided_ns", "merged"),
    "placements": ("seed", "arm", "draw", "gaps", "violations"),
    "requests": (
        "seed", "arm", "arrival_ns", "sent_ns", "ttft_ns", "e2e_ns", "max_itl_ns", "prompt_tokens", "output_tokens",
        "outcome", "island", "exposure_ns",
    ),
    "seeds": ("seed", "trace_digest", "n_requests", "prompt_tokens", "output_tokens", "forced"),
}  # fmt: skip
ARMS = ("crossed", "no-sync", "optimum", "own-gaps-permuted", "own-schedule-shifted", "policy", "uniform")
RELEASED = {
    "decisions": "8249654e90ddaf18f7e943a5a7113fa8dbd68f6dace12fd3d7e030b6a022ade0",
    "placements": "0479b7ccdb24a4522c355b427ccf6e88c5fa3b95231b158d63e7967e39309a01",
    "requests": "97a7f5f2434ff175665d7755dd0b3113e5f3f318ef62ebf8113f34c79d577026",
    "seeds": "1d7cdc3de019c6c78a57540689a2becfb6832f7cf725b47a0b927b64736bdbba",
}


def digests(raw: Path) -> dict[str, str]:
    """SHA-256 of each file's columns, value by value in their order."""
    found = {}
    for name, columns in COLUMNS.items():
        table = parquet.read_table(raw / f"{name}.parquet")
        if "arm" in columns:
            table = table.filter(np.isin(table["arm"].to_pylist(), ARMS))
        text = hashlib.sha256()
        for column in columns:
            text.update(f"{column}\n".encode())
            text.update(repr(table[column].to_pylist()).encode())
        found[name] = text.hexdigest()
    return found


def certified(regime: str, out: Path) -> Path:
    words = ["certify", "wa-calibrated", "--regime", regime, "--seeds", "2", "--draws", "9", "--jobs", "1"]
    ended = CliRunner().invoke(build(), [*words, "--out", str(out)])
    assert ended.exit_code in (0, 1, 3), ended.output
    return out / "raw"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified("bursty-aperiodic", tmp_path_factory.mktemp("same") / "plain")


def test_default_certificates_measure_what_the_release_measured(raw: Path) -> None:
    assert digests(raw) == RELEASED


def test_defaults_of_merge_said_out_loud_change_nothing(raw: Path, tmp_path: Path) -> None:
    """The same bytes with `[merge]` as without it."""
    text = (files("protocol") / "regimes" / "bursty-aperiodic.toml").read_text()
    regime = tmp_path / "bursty-aperiodic.toml"
    regime.write_text(f"{text}\n[merge]\nfragments = 1\nsync_delay_steps = 0\napply_s = 0\nfailed_share = 0\n")
    said = certified(str(regime), tmp_path / "said")
    names = sorted(p.name for p in raw.glob("*.parquet"))
    assert len(names) == 4
    for name in names:
        assert (said / name).read_bytes() == (raw / name).read_bytes(), name
