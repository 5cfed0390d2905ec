"""Servers are started as children, waited for, and always ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from adapters.sidecars.engine import command_for, healthy, running_in, serving, start, stop
from protocol.errors import BadInput, ProtocolError, SidecarError

SERVER = """
import http.server, subprocess, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404); self.end_headers()
    def log_message(self, *a): pass
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(0.2)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def engine(tmp_path: Path, source: str = SERVER) -> str:
    path = tmp_path / "server.py"
    path.write_text(source)
    return f"command:{sys.executable} {path} {{port}}"


def test_start_and_stop(tmp_path: Path) -> None:
    server = start(engine(tmp_path), "m", tmp_path / "run", patience_s=30)
    assert healthy(server.url) and running_in(tmp_path / "run") == server
    with pytest.raises(SidecarError, match="already running"):
        start(engine(tmp_path), "m", tmp_path / "run")
    assert stop(tmp_path / "run") and not healthy(server.url)
    assert running_in(tmp_path / "run") is None and not stop(tmp_path / "run")
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(p)]
    assert left == []


@pytest.mark.parametrize("again", [False, True])
def test_what_a_killed_server_leaves_is_ended(tmp_path: Path, again: bool) -> None:
    server = start(engine(tmp_path), "m", tmp_path / "run", patience_s=30)
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(server.pid, 0)
    assert running_in(tmp_path / "run") == server and group(server.pid)
    if again:
        other = start(engine(tmp_path), "m", tmp_path / "run", patience_s=30)
        assert not group(server.pid) and running_in(tmp_path / "run") == other
    assert stop(tmp_path / "run") and not group(server.pid) and not stop(tmp_path / "run")


def group(number: int) -> list[str]:
    """Processes of a group that run."""
    found = [_read(p).decode().rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*/stat")]
    return [fields[0] for fields in found if fields and int(fields[2]) == number and fields[0] != "Z"]


def test_a_port_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(engine(tmp_path), "m", tmp_path / "run") as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(BadInput, match=f"--port: found {port} .*in use.*; expected a free one"):
            start(engine(tmp_path), "m", tmp_path / "other", port=port)
        with pytest.raises(
            SidecarError, match="ended with code 3"
        ):  # what answers there is not the one that was started
            start(f"command:{sys.executable} -c 'import sys; sys.exit(3)' {port}", "m", tmp_path / "other")
        assert healthy(server.url)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_block_that_fails_ends_its_server(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), serving(engine(tmp_path), "m", tmp_path / "run") as server:
        raise ZeroDivisionError
    assert not healthy(server.url)


def test_a_server_that_dies_or_never_gets_healthy_says_why(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match=r"ended with code 3: out of memory"):
        start(engine(tmp_path, "import sys; print('out of memory'); sys.exit(3)"), "m", tmp_path / "run", patience_s=30)
    with pytest.raises(SidecarError, match="not healthy after"):
        start(engine(tmp_path, "import time; time.sleep(60)"), "m", tmp_path / "run", patience_s=0.5)
    assert running_in(tmp_path / "run") is None


def test_commands(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="vllm or command"):
        command_for("tgi", "m", 1)
    with pytest.raises(BadInput, match="no command"):
        command_for("command:", "m", 1)
    with pytest.raises(ProtocolError, match="--executable"):
        command_for("vllm", "m", 1, executable=str(tmp_path / "vllm"))
    assert command_for("command:run {model} -p {port}", "m", 7) == ["run", "m", "-p", "7"]
    fake = tmp_path / "vllm"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    (tmp_path / "model").mkdir()
    words = command_for("vllm", str(tmp_path / "model"), 7, executable=str(fake))
    assert "dummy" in words and "7" in words  # a configuration alone is served with random weights
