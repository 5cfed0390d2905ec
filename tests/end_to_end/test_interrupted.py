"""kill -9 at random moments: the same command goes on, and ends in the folder of an uninterrupted run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Protocol

ASKED = ("--draws", "39", "--seeds", "4", "--jobs", "2")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a finished output folder; the log says how often it was run."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in ("scheduler.log", ".lock"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def survived(folder: Path, scheduler: Path, regime: Path, kills: int, rng: np.random.Generator) -> list[str]:
    """Kill `kills` runs at random moments; a run that ends first is followed by a new one.  What each kill left."""
    command = [sys.executable, "-m", "protocol", "certify", scheduler, "--regime", regime, "--out", folder, *ASKED]
    span_s, left = 4.0, []
    while len(left) < kills:
        began = time.monotonic()
        run = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            _, errors = run.communicate(timeout=float(rng.uniform(0.3, span_s)))
        except subprocess.TimeoutExpired:
            os.kill(run.pid, signal.SIGKILL)
            run.communicate(timeout=20)  # waits for every worker, too: none may stay behind
            seeds = len(list(folder.glob(".partial/seed-*")))
            left.append("done" if (folder / "certificate.json").exists() else f"{seeds} seeds")
            continue
        assert run.returncode in (0, 1, 3), errors
        span_s = max(span_s, time.monotonic() - began)
    return left


def check(protocol: Protocol, small: Path, aware: Path, tmp_path: Path, kills: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = protocol("certify", aware, "--regime", small, "--out", whole, *ASKED)
    assert first.returncode == 3, first.stderr  # four seeds can decide nothing; they can be interrupted
    left = survived(killed, aware, small, kills, np.random.default_rng(20260601))
    last = protocol("certify", aware, "--regime", small, "--out", killed, *ASKED)
    assert last.returncode == first.returncode and last.stdout == first.stdout, (left, last.stderr)
    assert "starting afresh" not in last.stderr
    one, other = contents(whole), contents(killed)
    assert one.keys() == other.keys(), left
    assert [name for name in one if one[name] != other[name]] == [], left


@pytest.mark.slow
def test_three_kills(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    check(protocol, small, aware, tmp_path, 3)


@pytest.mark.slow
def test_twenty_kills(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    check(protocol, small, aware, tmp_path, 20)
    assert protocol("verify", tmp_path / "killed").returncode == 0
