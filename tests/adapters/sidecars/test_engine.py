"""Servers are started as children, waited for, and always ended."""

from __future__ import annotations

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
