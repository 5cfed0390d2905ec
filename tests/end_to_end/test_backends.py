"""Dask and Ray, really started: the same certificate byte for byte, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Protocol, refused
from test_interrupted import contents

ASKED = ("--draws", "19", "--seeds", "4")
WAIT_S = 120.0


def certify(protocol: Protocol, aware: Path, small: Path, out: Path, *more: object) -> dict[str, bytes]:
    """Every file of a run; four seeds can decide nothing."""
    ended = protocol("certify", aware, "--regime", small, "--out", out, *ASKED, *more)
    assert ended.returncode == 3, ended.stderr
    return contents(out)


@pytest.fixture
def alone(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the same run in one process."""
    return certify(protocol, aware, small, tmp_path / "alone", "--jobs", 1)


@contextmanager
def cluster(tmp_path: Path, workers: int = 2) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A Dask scheduler and its workers as processes of their own; its address and the workers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, *words: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, cwd=tmp_path, **quiet))

    try:
        start("scheduler", "--host", address, "--no-dashboard")
        for _ in range(workers):
            start("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
        yield address, started[1:]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(20)


def first_seed(folder: Path, run: subprocess.Popen[bytes]) -> int:
    """Wait until a seed is kept, and not yet all; how many are."""
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends and run.poll() is None:
        if n := len(list(folder.glob(".partial/seed-*"))):
            return n
        time.sleep(0.02)
    raise AssertionError(f"no seed within {WAIT_S:g} s; the run: {run.poll()}")


@pytest.mark.slow
def test_a_local_dask_cluster_of_two_gives_the_same_bytes(
    alone: dict[str, bytes], protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    assert certify(protocol, aware, small, tmp_path / "dask", "--jobs", 2, "--backend", "dask") == alone


@pytest.mark.slow
def test_a_ray_runtime_of_two_gives_the_same_bytes(
    alone: dict[str, bytes], protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    assert certify(protocol, aware, small, tmp_path / "ray", "--jobs", 2, "--backend", "ray") == alone


@pytest.mark.slow
def test_a_killed_dask_worker_changes_no_byte(
    alone: dict[str, bytes], protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    out = tmp_path / "out"
    with cluster(tmp_path) as (address, workers):
        words = ["certify", aware, "--regime", small, "--out", out, *ASKED, "--backend", "dask", "--address", address]
        run = subprocess.Popen([sys.executable, "-m", "protocol", *map(str, words)], stdout=subprocess.DEVNULL)
        kept = first_seed(out, run)
        workers[0].kill()
        assert run.wait(WAIT_S) == 3
        assert kept < 4 and workers[0].wait(5) == -signal.SIGKILL
    assert contents(out) == alone


@pytest.mark.slow
def test_a_killed_driver_goes_on_with_dask(
    alone: dict[str, bytes], protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    out = tmp_path / "out"
    with cluster(tmp_path) as (address, _):
        words = ["certify", aware, "--regime", small, "--out", out, *ASKED, "--backend", "dask", "--address", address]
        command = [sys.executable, "-m", "protocol", *map(str, words)]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert first_seed(out, run) < 4
        os.kill(run.pid, signal.SIGKILL)
        run.wait(20)
        again = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert again.returncode == 3 and "going on: " in again.stderr
    assert contents(out) == alone


@pytest.mark.slow
def test_an_address_where_nobody_answers_is_one_line(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    words = ["certify", aware, "--regime", small, "--out", tmp_path / "out", *ASKED, "--backend", "dask"]
    refused(protocol(*words, "--address", "tcp://127.0.0.1:9"), "--address", "tcp://127.0.0.1:9")
