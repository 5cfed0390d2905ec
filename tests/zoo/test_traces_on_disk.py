"""The real command with the real trace on disk: wherever a scheduler looks for it, it finds nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from judging import Command, Judged

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock")
QUICK = ("--draws", 3, "--jobs", 1, "--seeds", 2)
#: Looks everywhere for a trace or a campaign's files, by Python and past it; prints what it could read.
SEARCH = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def text(path):
    try:
        with open(path, "rb") as f:
            return f.read(1 << 20)
    except OSError:
        pass
    fd = libc.open(os.fsencode(path), 0)
    if fd < 0:
        return None
    buffer = ctypes.create_string_buffer(1 << 20)
    return buffer.raw[: max(0, libc.read(fd, buffer, 1 << 20))]
def names(folder):
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []
def search():
    places = [os.getcwd(), os.path.dirname(os.path.abspath(__file__)), FOLDER, FOLDER + "/out"]
    places += [FOLDER + "/out/.partial", FOLDER + "/out/raw", os.environ.get("PWD", "/"), os.environ.get("OLDPWD", "/")]
    places.append(os.path.expanduser("~"))
    for pid in (os.getppid(), 1, "self"):
        places += [f"/proc/{pid}/cwd", f"/proc/{pid}/fd", f"/proc/{pid}/map_files"]
        for word in (text(f"/proc/{pid}/cmdline") or b"").split(b"\\0"):
            places.append(os.path.dirname(os.fsdecode(word)))
    found = set(KNOWN)
    for place in places:
        for path in names(place):
            found.add(path)
            found.update(names(path))
    for path in sorted(found):
        descriptor = os.path.basename(os.path.dirname(path)) == "fd" and os.path.isfile(path)
        if not descriptor and not path.endswith((".csv", "/asked.json", "/plan.json", "/certificate.json", ".parquet")):
            continue  # reading a pipe, a terminal or a device would only wait
        data = text(path)
        if data and (b"arrival_s" in data or b"PAR1" in data or b"root_seed" in data):
            if not path.endswith(".py"):
                print("FOUND", path, flush=True)
                return True
    return False
class Cheat:
    def __init__(self):
        self.found = search()
    def decide(self, obs):
        return not self.found and obs.in_flight < 4
"""


def trace(path: Path) -> Path:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(0.1, 8000))
    rows = "".join(f"{t:.6f},{100 + k % 7},{20 + k % 5}\n" for k, t in enumerate(times))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return path


def looking(folder: Path, *known: Path) -> Path:
    path = folder / "cheat.py"
    path.write_text(f"FOLDER = {str(folder)!r}\nKNOWN = {[str(p) for p in known]!r}\n" + SEARCH)
    return path


def nothing_found(judged: Judged) -> None:
    assert not judged.refused, judged.reason
    assert "FOUND" not in judged.log
    assert sum(seed["merges"] for seed in judged.certificate["regimes"][0]["seeds"]) > 4


@LINUX
def test_a_trace_in_its_own_folder(certify: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = trace(tmp_path / "trace.csv")
    nothing_found(certify(looking(tmp_path, real), tmp_path / "out", "--trace", real.name, *QUICK))


@LINUX
def test_a_trace_elsewhere_whose_path_it_knows(certify: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(), (tmp_path / "mine").mkdir()
    real = trace(tmp_path / "data" / "trace.csv")
    (tmp_path / "mine" / "link.csv").symlink_to(real)
    nothing_found(certify(looking(tmp_path / "mine", real), tmp_path / "out", "--trace", real, *QUICK))


@LINUX
def test_the_output_of_the_running_and_of_an_earlier_campaign(certify: Command, tmp_path: Path) -> None:
    """The scheduler's own folder is no output folder: it holds something else."""
    for _ in range(2):
        nothing_found(certify(looking(tmp_path, tmp_path / "out"), tmp_path / "out", *QUICK))
    refused = certify(tmp_path / "cheat.py", tmp_path, *QUICK)
    assert refused.code == 2 and "files of somebody else (cheat.py" in str(refused.refusal)


def test_what_it_finds_without_the_sandbox(tmp_path: Path) -> None:
    """The search is a real one: run plainly, it finds the trace."""
    import subprocess

    trace(tmp_path / "trace.csv")
    looking(tmp_path)
    plain = subprocess.run(
        [sys.executable, "-c", "import cheat; cheat.Cheat()"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "FOUND" in plain.stdout and "trace.csv" in plain.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on PATH")
def test_a_scheduler_in_javascript(certify: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, and one that searches for what is not its own."""
    example = Path(__file__).parents[2] / "examples" / "node_scheduler.mjs"
    judged = certify(f"cmd:node {example}", tmp_path / "out", "--draws", 19, "--jobs", 1)
    assert not judged.refused and judged.code in (0, 1, 3)
    assert judged.certificate["claims"][0]["gates"][0]["status"] == "passed"
    contender = judged.certificate["contender"]
    assert contender["language"] == "command" and "node_scheduler.mjs" in contender["files"]
    real = trace(tmp_path / "trace.csv")
    (tmp_path / "mine").mkdir()
    spy = tmp_path / "mine" / "spy.mjs"
    looks = f'"observe") {{\n    readFileSync({str(real)!r});'
    text = 'import { readFileSync } from "node:fs";\n' + example.read_text()
    assert '"observe") {' in text
    spy.write_text(text.replace('"observe") {', looks))
    spied = certify(f"cmd:node {spy}", tmp_path / "spied", *QUICK)
    assert spied.code == 2 and spied.refusal is not None
    assert "spy.mjs: exited with status 1" in spied.refusal and any(word in spied.log for word in ("EACCES", "ENOENT"))
