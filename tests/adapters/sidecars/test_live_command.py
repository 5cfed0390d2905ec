"""`protocol live` from the command line to its verified folder, against a mock server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from fault_server import FaultServer, Good, serving

from adapters.sidecars.openai import API_KEY
from protocol.campaign import live
from protocol.certificate.verify import verify
from protocol.cli.main import build
from protocol.errors import BadInput
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.evidence.order import BALANCED
from protocol.evidence.partial import Partial
from protocol.files import canonical_json, sha256
from protocol.replay.telemetry import gauge_lag

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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    monkeypatch.setenv(API_KEY, SECRET)
    monkeypatch.setattr("protocol.cli.real.Target", Good)
    # How busy this machine is, is no question here.
    monkeypatch.setattr("protocol.replay.replay.SENT_SHARE", 0.0)
    monkeypatch.setattr("protocol.replay.replay.MERGE_WITHIN_NS", 10**9)
    with serving() as found:
        yield found


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build(), [*map(str, arguments)])


def certificate(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "certificate.json").read_text())


def test_a_session_is_written_verified_and_compared(words: list[str], server: FaultServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "curves.csv").write_text(CURVE)
    said = run(*words, "--sidecar", server.url, "--learner", tmp_path)
    assert server.headers[-1] == f"Bearer {SECRET}"
    prompts = [tuple(asked["prompt"]) for asked in server.requests]
    assert len(set(prompts)) == len(prompts)
    assert said.exit_code == 3, said.output
    made = certificate(out)
    assert made["verdict"] == "INCONCLUSIVE" and made["tier"]["name"] == "live"
    assert "fewer than 8" in str(made["claims"][0]["gates"])
    replays = made["replays"]
    assert [(r["arm"], r["draw"]) for r in replays] == list(BALANCED)
    assert all(r["served"] == r["requests"] for r in replays)
    assert replays[1]["merges"] == replays[3]["merges"] >= 1 and replays[0]["merges"] == 0
    assert all(r["scrapes"] >= 3 and r["scrapes_failed"] == 0 for r in replays)
    found = gauge_lag([r.scrapes for e in store.read(out / "raw") for r in e.served])
    assert found is not None and made["gauges"]["looks"] == found.looks > 0 and made["gauges"]["lag_s"] == found.lag_s
    assert "gauges were blind for" in (out / "report.html").read_text()
    gates = {g["gate"]: g for g in made["claims"][0]["gates"]}
    # On a busy machine an answer may come after the next was due, which no gate takes for a fault of the scheduler.
    assert gates["G0"]["status"] != "failed" and gates["G4"]["status"] == "passed", gates["G0"]
    answers = pq.read_table(out / "raw" / "answers.parquet")
    assert len(answers) >= 2 and answers["serving_pressure"].null_count < len(answers)
    learner = made["regimes"][0]["learner"]
    assert learner["kind"] == "measured" and learner["steps_per_measured_step"] == 2  # 60 steps for a replay's 110
    losses = answers["loss"].drop_null().to_pylist()
    assert losses[0] == 3.1 and 2.2 <= min(losses)  # the modelled one starts at 3.9
    for path in out.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    verified = run("verify", out)
    assert verified.exit_code == 0 and "verified: INCONCLUSIVE" in verified.output, verified.output
    report = (out / "report.html").read_text()
    assert "mine.py" in report and '<h2 id="replays">' in report and report.count("no-sync ") >= 3
    check_edits(out, tmp_path / "copy", answers)
    check_compared(words, server, out, tmp_path)


def check_edits(out: Path, copy: Path, answers: pa.Table) -> None:
    """Whatever is changed in the raw files contradicts something else in them, or their digests."""
    merging = answers["merge"].to_pylist().index(True)
    policy = pq.read_table(out / "raw" / "replays.parquet")["arm"].to_pylist().index("policy")
    for table, column, row, value, finding in (
        ("served", "exposure_ns", 0, 5, "request 0: exposure 5 ns, by the merges that ran"),
        ("answers", "said", merging, False, "which the scheduler had declined"),
        ("answers", "answered_ns", merging, 1, "decided at 1 ns"),
        ("replays", "planned_ns", policy, [], "0 merges, "),
    ):
        assert any(finding in line for line in verify(edited(out, copy, table, column, row, value)))
    shutil.rmtree(copy)
    shutil.copytree(out, copy)
    shorter = pq.read_table(copy / "raw" / "replays.parquet").slice(1)
    pq.write_table(shorter, copy / "raw" / "replays.parquet")
    refused = run("verify", copy)
    assert refused.exit_code == 1 and "replays.parquet: its SHA-256" in refused.output


def edited(folder: Path, copy: Path, table: str, column: str, row: int, value: object) -> Path:
    """A copy with one cell changed, and the digest of its file as if it had always been so."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    path = copy / "raw" / f"{table}.parquet"
    found = pq.read_table(path)
    values, i = found[column].to_pylist(), found.column_names.index(column)
    values[row] = value
    pq.write_table(found.set_column(i, found.schema.field(i), pa.array(values, found.schema.field(i).type)), path)
    made = certificate(copy)
    made["files"][path.name] = sha256(path)
    (copy / "certificate.json").write_text(canonical_json(made))
    return copy


def check_compared(words: list[str], server: FaultServer, out: Path, tmp_path: Path) -> None:
    """Two schedulers in sessions of the same requests stand in one table."""
    other = tmp_path / "other.py"
    other.write_text("class Other:\n    def decide(self, obs):\n        return True\n")
    said = run("live", other, *words[2:], "--out", tmp_path / "second", "--sidecar", server.url)
    assert said.exit_code == 3, said.output
    compared = run("compare", out, tmp_path / "second", "--json")
    assert compared.exit_code == 1, compared.output
    rows = json.loads(compared.stdout)["claims"]
    assert [(row["scheduler"], row["verdict"]) for row in rows] == [
        ("mine.py", "INCONCLUSIVE"), ("other.py", "INCONCLUSIVE"),
    ]  # fmt: skip


def test_a_registered_session_goes_on_after_an_interruption_and_is_signed(
    words: list[str], server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Ed25519PrivateKey.generate()
    private, public, plan, out = (tmp_path / name for name in ("key.pem", "key.pub", "plan.json", "out"))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    asked = [*words, "--sidecar", server.url, "--minutes", "0.2"]  # two blocks
    assert run(*asked, "--preregister", plan).exit_code == 0 and not out.exists()
    departed = run(*asked, "--slo", "e2e<=100ms", "--preregistered", plan)
    assert "departs from what was registered in regimes" in str(departed.exception)
    first = live._block

    def interrupted(plan_: live.SessionPlan, *rest: Any) -> Evidence:
        if rest[2] == 1:
            raise KeyboardInterrupt
        return first(plan_, *rest)

    monkeypatch.setattr(live, "_block", interrupted)
    tomorrow = mock.Mock(wraps=datetime)
    tomorrow.now.side_effect = lambda zone: datetime.now(zone) + timedelta(days=1)
    monkeypatch.setattr("protocol.cli.real.datetime", tomorrow)
    stopped = run(*asked, "--preregistered", plan, "--sign", private)
    assert "finished blocks are kept, and the same command goes on from there" in str(stopped.exception)
    assert not (out / "certificate.json").exists() and not (out / "raw").exists()
    (kept,) = Partial.finished(mock.Mock(folder=out / ".partial")).values()

    monkeypatch.setattr(live, "_block", first)
    tomorrow.now.side_effect = lambda zone: datetime.now(zone) + timedelta(days=2)
    finished = run(*asked, "--preregistered", plan, "--sign", private)
    assert finished.exit_code == 3 and "going on: 1 blocks" in finished.output, finished.output
    made = certificate(out)
    assert made["preregistration"] == json.loads(plan.read_text())["digest"] and not (out / ".partial").exists()
    assert [r["started"] for r in made["replays"]][:5] == [r.started for r in kept.served]
    assert [r["seed"] for r in made["replays"]] == [0] * 5 + [1] * 5
    verified = run("verify", out, "--key", public)
    assert verified.exit_code == 0 and "not checked" not in verified.output, verified.output


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
    """Ctrl-C in the middle of a block, which is then not kept."""
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
    assert child.returncode == 130 and "interrupted; finished blocks are kept" in " ".join(said.split())
    assert not (tmp_path / "out" / "certificate.json").exists() and not (tmp_path / "out" / "raw").exists()
