"""`protocol certify --sidecar` against a server that is there, one that dies, and one that is not there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SMALL_REGIME, Protocol

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from fault_server import FaultServer, Good, serving

from adapters.sidecars.probing import base_of, model_at
from adapters.sidecars.simulated import shipped_calibrations
from protocol.cli.certify import Asked, Sidecar
from protocol.cli.groups import Draws, Judging, Learning, Output, Server, Training, Worlds
from protocol.cli.main import build
from protocol.errors import ProtocolError
from protocol.evidence.model import CROSSED
from protocol.evidence.store import read, read_replays
from protocol.files import canonical_json, sha256
from protocol.replay.replay import UNIFORM

#: A second of merges of 0.1 s, every 0.16 to 0.48 s.
TINY = (
    SMALL_REGIME.replace("150.0", "1.0").replace("cooldown_s = 20.0", "cooldown_s = 0.1")
    .replace("seeds = 8", "seeds = 2").replace("step_s = 0.0735", "step_s = 0.00125\nmerge_s = 0.1")
    .replace("busy_s = 15.0", "busy_s = 0.2").replace("quiet_s = 30.0", "quiet_s = 0.3")
    .replace("rate_per_s = 1.5", "rate_per_s = 20.0").replace("busy_rate_per_s = 12.0", "busy_rate_per_s = 60.0")
    .replace("values = [128]", "values = [8]").replace("planner_budget = 4", "planner_budget = 2")
)  # fmt: skip
KEY = "sk-never-to-be-seen"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with serving() as found:
        yield found


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TINY)
    return path


Said = Callable[..., "tuple[int, str]"]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """The command in this process: its exit code and what it printed on both streams."""

    def run(*arguments: object) -> tuple[int, str]:
        code = build()([*map(str, arguments)], standalone_mode=False)
        out = capsys.readouterr()
        return int(code or 0), " ".join((out.out + out.err).split())

    return run


def asked(server: FaultServer, tiny: Path, out: Path, *more: object) -> list[object]:
    return ["certify", "fixed-h-256", "--regime", tiny, "--out", out, "--sidecar", server.url, "--merge-load", "none",
            "--jobs", 1, *more]  # fmt: skip


def valid(made: dict) -> int:
    return sum(r["invalid"] is None for r in made["replays"])


def certificate(folder: Path) -> dict:
    return json.loads((folder / "certificate.json").read_text())


def test_a_server_that_dies_then_a_certificate(
    protocol: Protocol, said: Said, server: FaultServer, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jsonschema

    import protocol as package

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out = tmp_path / "out"
    arguments = asked(server, tiny, out, "--draws", 1, "--seeds", 1)
    server.dead = lambda: len(server.requests) > 100
    died = protocol(*arguments)
    last = died.stderr.strip().splitlines()[-1]
    assert died.returncode == 2 and "Traceback" not in died.stderr, died.stderr
    assert "of 4 replays are kept, the same command goes on" in last
    kept = [r for folder in out.glob(".partial/replay-*") for r in read_replays(folder)]
    assert 0 < len(kept) < 4 and not (out / "certificate.json").exists()
    server.dead = lambda: False
    with pytest.raises(ProtocolError, match="replays of another run"):
        said(*arguments, "--min-effect", "0", "--seed", 5)

    result = protocol(*arguments)
    words = " ".join(result.stderr.split())
    assert result.returncode == 3 and f"going on: {sum(r.invalid is None for r in kept)} replays" in words, words
    assert "1 seeds x (1 draws + 3) = 4 replays" in words and "attainable p: paired sign flip 0.5" in words
    assert "undecidable by design" in words and not (out / ".partial").exists()
    made, stored = certificate(out), read_replays(out / "raw")
    for r in kept:
        same = next(s for s in stored if (s.what, s.attempt) == (r.what, r.attempt))
        assert same.started == r.started and same.rows.e2e_ns.tolist() == r.rows.e2e_ns.tolist()
    assert made["server"]["name"] == f"vLLM 1.2 at {server.url.removeprefix('http://')}, model m"
    assert made["server"]["merge_load"] == "none" and valid(made) == 4
    schema = json.loads((Path(package.__file__).parent / "certificate.schema.json").read_text())
    assert [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(made)] == []
    assert said("verify", out)[0] == 0
    assert "Replays on the real server" in (out / "report.html").read_text()
    assert server.headers[-1] == f"Bearer {KEY}" and KEY not in words
    for path in out.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    with pytest.raises(ProtocolError, match="--rerun"):
        said("verify", out, "--rerun", "fixed-h-256")


@pytest.mark.slow
def test_further_seeds_predict_the_replays(said: Said, server: FaultServer, tiny: Path, tmp_path: Path) -> None:
    """Declared before, simulated beside, verified from root and regime; an edited price is found."""
    out, registered = tmp_path / "out", tmp_path / "registered.json"
    arguments = asked(server, tiny, out, "--draws", 1, "--seeds", 1, "--predicted", 100)
    assert said(*arguments, "--preregister", registered)[0] == 0
    with pytest.raises(ProtocolError, match="departs from what was registered in settings.predicted"):
        said(*arguments[:-1], 101, "--preregistered", registered)
    code, words = said(*arguments, "--preregistered", registered)
    made = certificate(out)
    assert code == 3 and made["settings"]["predicted"] == 100 and valid(made) == 4, words
    assert len(made["regimes"][0]["seeds"]) == 1
    stored = read(out / "raw")
    assert [bool(e.served) for e in stored] == [True] + [False] * 100
    assert CROSSED in stored[0].placed and CROSSED not in stored[1].placed
    assert said("verify", out)[0] == 0 and said("report", out)[0] == 0

    edited = pq.read_table(out / "raw" / "placements.parquet")
    at = next(i for i, (s, a) in enumerate(zip(edited["seed"].to_pylist(), edited["arm"].to_pylist(), strict=True))
              if (s, a) == (50, UNIFORM))  # fmt: skip
    counts = edited["violations"].to_pylist()
    counts[at] = [c + 1 for c in counts[at]]
    column = edited.schema.get_field_index("violations")
    forged = edited.set_column(column, edited.schema.field(column), pa.array(counts, edited.schema.field(column).type))
    pq.write_table(forged, out / "raw" / "placements.parquet")
    made["files"]["placements.parquet"] = sha256(out / "raw" / "placements.parquet")
    (out / "certificate.json").write_text(canonical_json(made))
    code, words = said("verify", out)
    assert code == 1 and f"seed 50, {UNIFORM}, placement 0" in words, words


@pytest.mark.parametrize(
    ("more", "where"),
    [(["--predicted", 99], "'--predicted': Input should be greater than or equal to 100"),
     (["--predicted", 100, "--draws", "auto"], "auto"), (["--predicted", 100, "--trace", "x.csv"], "x.csv")],
)  # fmt: skip
def test_what_no_prediction_can_be_made_from(
    protocol: Protocol, server: FaultServer, tiny: Path, tmp_path: Path, more: list[object], where: str
) -> None:
    result = protocol(*asked(server, tiny, tmp_path / "out", *more))
    assert result.returncode == 2 and where in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_prompts_as_the_server_takes_them(
    said: Said, server: FaultServer, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token ids of a small vocabulary, or text."""
    monkeypatch.setattr("protocol.cli.real.Target", Good)
    less = ("--draws", 1, "--seeds", 1)
    assert said(*asked(server, tiny, tmp_path / "ids", *less, "--vocabulary", 64))[0] == 3
    prompts = [request["prompt"] for request in server.requests]
    assert max(map(max, prompts)) == 63 and certificate(tmp_path / "ids")["server"]["prompts"] == "token ids"
    monkeypatch.undo()
    server.requests.clear()
    assert said(*asked(server, tiny, tmp_path / "text", *less, "--text"))[0] == 3
    assert all(isinstance(request["prompt"], str) for request in server.requests)
    assert certificate(tmp_path / "text")["server"]["prompts"] == "text"


@pytest.mark.slow
def test_killed_run_goes_on_with_the_replays_that_it_has(
    protocol: Protocol, server: FaultServer, tiny: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = asked(server, tiny, out, "--draws", 2)
    command = [sys.executable, "-m", "protocol", *map(str, arguments)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.glob(".partial/replay-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    kept = [r for folder in out.glob(".partial/replay-*") for r in read_replays(folder)]
    assert len(kept) >= 3 and not (out / "certificate.json").exists()
    result = protocol(*arguments)
    assert "going on: " in result.stderr and result.returncode in (1, 3)
    assert valid(certificate(out)) == 10 and protocol("verify", out).returncode == 0
    begun = {(r.what, r.attempt): r.started for r in read_replays(out / "raw")}
    assert all(begun[r.what, r.attempt] == r.started for r in kept)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--sidecar", "http://127.0.0.1:9"], "nobody answers"),
        (["--sidecar", "127.0.0.1:9"], "http://HOST:PORT"),
        (["--sidecar", "http://me:secret@127.0.0.1:9"], "credentials"),
        (["--model", "other"], "'other'; expected one that the server has: m"),
        (["--merge-load", "nothing"], "--merge-load"),
        (["--draws", "auto"], "--draws"),
        (["--regime", "ordinary"], "exactly one"),
        (["--budget-minutes", "5", "--seeds", "8"], "--budget-minutes"),
        (["--calibration", "missing.json"], "missing.json"),
    ],
)
def test_wrong_options_are_one_line(
    said: Said, server: FaultServer, tiny: Path, tmp_path: Path, more: list[str], words: str
) -> None:
    with pytest.raises(ProtocolError) as error:
        said(*asked(server, tiny, tmp_path / "out", *more))
    assert words in str(error.value) and "\n" not in str(error.value) and "secret" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_options_of_a_server_need_one(said: Said, tiny: Path) -> None:
    with pytest.raises(ProtocolError, match="--budget-minutes: found 5.0 without --sidecar"):
        said("certify", "fixed-h-256", "--regime", tiny, "--budget-minutes", 5)


def test_a_server_that_serves_nothing_is_refused_before_anything_is_replayed(
    said: Said, server: FaultServer, tiny: Path, tmp_path: Path
) -> None:
    server.refusing = lambda: True
    with pytest.raises(ProtocolError, match=r"served none of 4 first requests \(HTTP 429: busy \(4\)\)"):
        said(*asked(server, tiny, tmp_path / "out"))


def test_a_shipped_calibration_shows_nothing_of_another_server(tmp_path: Path) -> None:
    """Its model may place the merges; only one that was asked for may speak of the server."""
    shipped = shipped_calibrations()["vllm-cpu"]
    for given, kept in ((None, False), (shipped, True)):
        output = Output(tmp_path)
        asked_ = Asked(
            "fixed-h-256", Worlds(["bursty-aperiodic"]), Draws(), Judging(), Learning(), Training(),
            Sidecar("http://127.0.0.1:9", None, given), Server(), output, 1,
        )  # fmt: skip
        (regime,) = asked_.chosen(1, None)[1]
        assert (regime.sidecar.calibration is not None) == kept
    asked_ = replace(asked_, sidecar=Sidecar(None, None, None))
    (regime,) = asked_.chosen(1, None)[1]
    assert regime.sidecar.calibration is not None and regime.sidecar.calibration["server"].startswith("vLLM ")


def test_the_address_may_end_as_other_clients_want_it(server: FaultServer) -> None:
    assert base_of(f"{server.url}/v1") == base_of(f"{server.url}/") == server.url
    assert model_at(server.url, None) == model_at(server.url, "m") == "m"


def calibrating(server: FaultServer, out: Path) -> list[object]:
    """On a server that takes no field which it does not know, with merges that do nothing."""
    server.refusing = lambda: "detokenize" in server.requests[-1]
    return ["calibrate", "--sidecar", server.url + "/v1", "--merge-load", "none", "--merge-s", 0.2, "--kv-tokens", 4096,
            "--rates", "60", "--loads", "40,60", "--blocks", 5, "--sweep-s", 1, "--idle-s", 1,
            "--prompt-tokens", "8,16", "--output-tokens", "4", "--out", out]  # fmt: skip


def test_an_interrupted_calibration_is_not_mixed_with_another(said: Said, server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "mine" / ".partial").mkdir(parents=True)
    (tmp_path / "mine" / ".partial" / "asked.json").write_text("{}")
    with pytest.raises(ProtocolError, match="an interrupted calibration with other options; expected the same, or"):
        said(*calibrating(server, tmp_path / "mine"))


@pytest.mark.slow
def test_a_calibration_is_measured_written_and_verified(said: Said, server: FaultServer, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    code, text = said(*calibrating(server, out))
    assert code in (1, 3) and "G1 real-sidecar effect transfer" in text and "calibration.json" in text
    assert sorted(p.name for p in out.iterdir()) == ["calibration.json", "merges.parquet", "requests.parquet"]
    assert said("verify", out)[0] == 0
    with pytest.raises(ProtocolError, match="merges of 0.2 s; expected 8 s"):
        said("certify", "fixed-h-256", "--calibration", out, "--regime", "bursty-aperiodic", "--out", tmp_path / "not")


def test_unlike_merges_are_refused_before_anything_runs(said: Said, tiny: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "a.csv", tmp_path / "out"
    log.write_text("start_s,duration_s\n0.2,0.1\n0.6,0.2\n")
    with pytest.raises(ProtocolError, match=r"a\.csv: found merges that are not all alike; expected whole, committed"):
        said("certify", log, "--regime", tiny, "--sidecar", "http://127.0.0.1:9", "--out", out)
    with pytest.raises(ProtocolError, match=r"found merges that are not all alike \(\[merge\]\); expected a regime"):
        said("certify", "fixed-h-256", "--regime", "weight-sync", "--sidecar", "http://127.0.0.1:9", "--out", out)
    with pytest.raises(
        ProtocolError, match=r"optimum, weight-sync: found a planner beside \[merge\]; expected a sched"
    ):
        said("certify", "optimum", "--regime", "weight-sync", "--out", out)
    assert not out.exists()
