"""`protocol live` from the command line to its verified folder, against a mock server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from fault_server import Good, serving
from protocol.evidence.live import ARMS

from adapters.sidecars.openai import API_KEY
from protocol.certificate.verify import verify
from protocol.cli.main import build
from protocol.errors import BadInput
from protocol.files import canonical_json, sha256

REGIME = """
[regime]
name = "tiny"
version = 1
summary = "Merges of 0.1 s for tests."
slo = "e2e<=200ms"
cooldown_s = 0.1
[pace]
step_s = 0.01
h_min = 10
h_max = 40
decision_steps = 10
merge_s = 0.1
[arrivals]
process = "steady"
rate_per_s = 15.0
[tokens.prompt]
values = [8]
[tokens.output]
values = [8]
[learner]
floor = 2.0
scale = 1.9
offset_steps = 6000
exponent = 0.5
tokens_per_step = 2048
[sidecar]
max_num_seqs = 4
"""
#: As `protocol train` writes it: two rounds of 30 steps.
CURVE = """method,h,islands,seed,step,tokens,train_loss,validation_loss
DiLoCo,30,4,0,30,3840,3.1,3.1
DiLoCo,30,4,0,60,7680,2.2,2.2
"""
SECRET = "sk-live-secret"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "tiny.toml").write_text(REGIME)
    (tmp_path / "mine.py").write_text("class Mine:\n    def decide(self, obs):\n        return obs.in_flight < 2\n")
    common = ["--model", "m", "--regime", str(tmp_path / "tiny.toml"), "--minutes", "0.05", "--segment-s", "1.2"]
    common += ["--settle-s", "0", "--warm-up-s", "0.2", "--scrape-s", "0.2", "--merge-load", "none"]
    return ["live", str(tmp_path / "mine.py"), *common, "--out", str(tmp_path / "out")]


def test_a_session_is_written_and_verified(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, SECRET)
    monkeypatch.setattr("protocol.cli.live.Target", Good)
    run, out = CliRunner(), tmp_path / "out"
    (tmp_path / "curves.csv").write_text(CURVE)
    with serving() as server:
        said = run.invoke(build(), [*words, "--sidecar", server.url, "--learner", str(tmp_path)])
        assert server.headers[-1] == f"Bearer {SECRET}"
        prompts = [tuple(asked["prompt"]) for asked in server.requests]
        assert len(set(prompts)) == len(prompts)
    assert said.exit_code == 3, said.output
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["verdict"] == "INCONCLUSIVE" and certificate["tier"]["name"] == "live"
    assert "fewer than 8" in str(certificate["claims"][0]["gates"])
    segments = certificate["regimes"][0]["blocks"]
    assert [s["arm"] for s in segments] == list(ARMS) and all(s["served"] == s["requests"] for s in segments)
    assert segments[1]["merges"] == segments[2]["merges"] >= 1 and segments[0]["merges"] == 0
    assert all(s["scrapes"] >= 3 and s["scrapes_failed"] == 0 for s in segments)
    gates = {g["gate"]: g for g in certificate["claims"][0]["gates"]}
    # On a busy machine an answer may come after the next was due, which no gate takes for a fault of the scheduler.
    assert gates["G0"]["status"] != "failed" and gates["G4"]["status"] == "passed", gates["G0"]
    decisions = pq.read_table(out / "raw" / "decisions.parquet")
    assert len(decisions) >= 2 and decisions["serving_pressure"].null_count < len(decisions)
    learner = certificate["regimes"][0]["learner"]
    assert learner["kind"] == "measured" and learner["steps_per_measured_step"] == 2  # 60 steps for a segment's 110
    losses = decisions["loss"].drop_null().to_pylist()
    assert losses[0] == 3.1 and 2.2 <= min(losses)  # the modelled one starts at 3.9
    for path in out.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    verified = run.invoke(build(), ["verify", str(out)])
    assert verified.exit_code == 0 and "verified: INCONCLUSIVE" in verified.output
    report = (out / "report.html").read_text()
    assert "Live session: mine.py" in report and "no-sync-before" in report and "<figure>" in report
    assert sorted(p.name for p in (out / "figures").iterdir()) == ["envelope-01-tiny.pdf", "envelope-01-tiny.svg"]
    for table, column, row, value, finding in (
        ("requests", "exposure_ns", 0, 5, "request 0: exposure 5 ns, by the merges that ran"),
        ("decisions", "said", decisions["merge"].to_pylist().index(True), False, "which the scheduler had declined"),
        ("decisions", "answered_ns", decisions["merge"].to_pylist().index(True), 1, "decided at 1 ns"),
        ("merges", "kind", 0, "other", "decisions to merge"),
    ):
        assert any(finding in line for line in verify(forged(out, tmp_path / "forged", table, column, row, value)))
    edited = pq.read_table(out / "raw" / "merges.parquet")
    pq.write_table(edited.slice(1), out / "raw" / "merges.parquet")
    refused = run.invoke(build(), ["verify", str(out)])
    assert refused.exit_code == 1 and "merges.parquet: its SHA-256" in refused.output


def forged(folder: Path, copy: Path, table: str, column: str, row: int, value: object) -> Path:
    """A copy with one cell changed, and the digest of its file as if it had always been so."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    path = copy / "raw" / f"{table}.parquet"
    found = pq.read_table(path)
    values, i = found[column].to_pylist(), found.column_names.index(column)
    values[row] = value
    pq.write_table(found.set_column(i, found.schema.field(i), pa.array(values, found.schema.field(i).type)), path)
    certificate = json.loads((copy / "certificate.json").read_text())
    certificate["files"][path.name] = sha256(path)
    (copy / "certificate.json").write_text(canonical_json(certificate))
    return copy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--sidecar", "http://user:pw@127.0.0.1:9"], "an address with credentials or a query"),
        (["--sidecar", "127.0.0.1:9"], "expected http://HOST:PORT"),
        (["--sidecar", "http://127.0.0.1:9", "--merge-load", "gpu"], "--merge-load"),
        (["--sidecar", "http://127.0.0.1:9", "--regime", "nowhere"], "--regime"),
        (["--sidecar", "http://127.0.0.1:9", "--slo", "e2e<1"], "--slo"),
        (["--sidecar", "http://127.0.0.1:9", "--calibration", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_words_are_refused_before_anything_is_made(
    words: list[str], tmp_path: Path, changes: list[str], message: str
) -> None:
    found = CliRunner().invoke(build(), [*words, *changes])
    assert (
        isinstance(found.exception, BadInput) and message in str(found.exception) and "pw" not in str(found.exception)
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_interrupted_session_writes_no_certificate(words: list[str], tmp_path: Path) -> None:
    with serving() as server:
        child = subprocess.Popen(
            [sys.executable, "-m", "protocol", *words, "--sidecar", server.url],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while len(server.requests) < 25 and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    assert child.returncode == 130 and "interrupted; nothing was written" in said
    assert not (tmp_path / "out" / "certificate.json").exists() and not (tmp_path / "out" / "raw").exists()
