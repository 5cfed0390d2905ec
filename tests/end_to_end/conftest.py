"""A small world in which the whole command line runs in seconds."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

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


@pytest.fixture(scope="session")
def imported() -> None:
    """What certificates, their pages and `verify` import, once for all the processes that `protocol` forks."""
    for name in ("certify", "verify", "compare", "pages"):
        importlib.import_module(f"protocol.cli.{name}")


@pytest.fixture
def protocol(imported: None, tmp_path_factory: pytest.TempPathFactory) -> Protocol:
    """The command in a process of its own, forked from one that has imported it: spares seconds each."""
    said = tmp_path_factory.mktemp("said")

    def run(*arguments: object, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        words = ["protocol", *map(str, arguments)]
        out, err = said / "out", said / "err"
        child = os.fork()
        if not child:
            _become(words, out, err)
        ends = time.monotonic() + timeout_s
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > ends:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise subprocess.TimeoutExpired(words, timeout_s)
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(ended[1])
        return subprocess.CompletedProcess(words, code, out.read_text("utf-8"), err.read_text("utf-8"))

    return run


def _become(words: list[str], out: Path, err: Path) -> NoReturn:
    """Be the command: streams to files, then its exit code, whatever happens."""
    code = 1
    try:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin, sys.stdout, sys.stderr = (open(os.devnull), *(open(n, "w", encoding="utf-8") for n in (1, 2)))
        sys.argv = words
        os.environ.update(COLUMNS="200", NO_COLOR="1")
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
