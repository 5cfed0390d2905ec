"""A small world in which the whole command line runs in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.cli import main

SMALL_REGIME = """
[regime]
name = "small"
version = 1
summary = "a short bursty world for tests"
slo = "e2e<=1s"
horizon_s = 150.0
cooldown_s = 20.0
seeds = 8
planner_budget = 4

[pace]
step_s = 0.0735

[arrivals]
process = "bursts-aperiodic"
rate_per_s = 1.5
busy_rate_per_s = 12.0
busy_s = 15.0
quiet_s = 30.0

[tokens.prompt]
values = [64, 256]

[tokens.output]
values = [128]

[learner]
floor = 2.0
scale = 1.9
offset_steps = 6000.0
exponent = 0.5
tokens_per_step = 2048
"""

LOAD_AWARE = """
class Scheduler:
    def decide(self, obs):
        return obs.in_flight < 4
"""

Protocol = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL_REGIME)
    return path


@pytest.fixture
def aware(tmp_path: Path) -> Path:
    path = tmp_path / "aware.py"
    path.write_text(LOAD_AWARE)
    return path


@pytest.fixture
def protocol() -> Protocol:
    """Run the real command in a process of its own."""

    def run(*arguments: object, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "protocol", *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)

    return run


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Protocol:
    """The command's entry point in this process, for what ends before a scheduler is run: spares two seconds each."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = ["protocol", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), said.out, said.err)

    return run


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr that holds every word, exit code 2, no traceback."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode == 2, (result.returncode, result.stderr[-2000:])
    assert "Traceback" not in result.stderr + result.stdout
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0], (word, lines[0])
