"""The small commands: list, simulate, doctor, sidecar."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import Protocol, refused


def test_list_names_everything_that_is_registered(protocol: Protocol) -> None:
    found = json.loads(protocol("list", "--json").stdout)
    assert {"wa-diloco", "optimum"} <= {row["name"] for row in found["schedulers"]}
    assert {"azure", "mooncake"} <= {row["name"] for row in found["traces"]}
    assert "bursty-aperiodic" in {row["name"] for row in found["regimes"]}
    assert "wa-calibrated-forecast" in protocol("list").stdout


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_simulate_draws_one_seed(protocol: Protocol, small: Path, aware: Path, tmp_path: Path, suffix: str) -> None:
    figure = tmp_path / f"timeline.{suffix}"
    result = protocol("simulate", aware, "--regime", small, "--seed-number", 3, "--out", figure)
    assert result.returncode == 0, result.stderr
    assert figure.read_bytes().startswith(b"<?xml" if suffix == "svg" else b"\x89PNG")
    assert "merges" in result.stdout and "without merges" in result.stdout


def test_simulate_refuses_what_it_cannot_do(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    for arguments in (("--out", tmp_path / "x.gif"), ("--seed-number", 99, "--out", tmp_path / "x.svg")):
        result = protocol("simulate", aware, "--regime", small, *arguments)
        assert result.returncode == 2 and "Traceback" not in result.stderr
    assert not list(tmp_path.glob("x.*"))


def test_doctor_says_what_each_tier_needs(protocol: Protocol) -> None:
    found = json.loads(protocol("doctor", "--json", "--sidecar", "http://127.0.0.1:9").stdout)
    assert found["found"]["server"] is None and found["missing"]["1 stress harness"] == "nothing"
    assert found["missing"]["2 calibrated replay"] == "nothing" and "--sidecar" in found["missing"]["4 live"]
    assert found["found"]["shipped calibrations"] == "vllm-cpu"


def test_sidecar_starts_and_stops(protocol: Protocol, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(
        "import http.server, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n        self.send_response(200)\n        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    )
    folder = ("--folder", tmp_path / "run")
    started = protocol(
        "sidecar", "start", "--model", "m", "--engine", f"command:{sys.executable} {server} {{port}}", *folder
    )
    assert started.returncode == 0 and started.stdout.startswith("http://127.0.0.1:")
    assert json.loads(protocol("doctor", "--json", "--sidecar", started.stdout.strip()).stdout)["found"]["server"]
    assert "stopped" in protocol("sidecar", "stop", *folder).stderr
    assert "no server" in protocol("sidecar", "stop", *folder).stderr
    refused(protocol("sidecar", "start", "--model", "m", "--engine", "tgi", *folder), "--engine", "tgi")
