"""`protocol certify` as a user meets it: verdict, exit code, files, reproducibility, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from conftest import Protocol, refused

from protocol.evidence.store import ASKED, DECISIONS, PLACEMENTS, REQUESTS, SEEDS
from protocol.files import names_in

#: So short a world shows a gain; it does not show half a percentage point of it.
QUICK = ("--draws", "39", "--jobs", "1", "--min-effect", "0")
#: For what needs no verdict.
FEWER = ("--draws", "9", "--seeds", "3", "--jobs", "1", "--min-effect", "0")


def certificate(folder: Path) -> dict:
    return json.loads((folder / "certificate.json").read_text())


def test_verdict_files_and_verification(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = protocol("certify", aware, "--regime", small, "--out", out, *QUICK)
    made = certificate(out)
    assert result.returncode == {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}[made["verdict"]]
    assert made["verdict"] == "PASS", made["sentence"]
    assert made["tier"] == {"number": 1, "name": "stress harness", "upper_bound": False}
    assert "uncalibrated" in made["sentence"] and str(out / "report.html") in result.stderr.replace("\n", "")
    assert sorted(p.name for p in (out / "raw").iterdir()) == sorted([ASKED, DECISIONS, PLACEMENTS, REQUESTS, SEEDS])
    assert {p.suffix for p in (out / "tables").iterdir()} == {".tex", ".md", ".csv"}
    assert {p.suffix for p in (out / "figures").iterdir()} == {".svg", ".pdf"}
    assert "<html" in (out / "report.html").read_text() and not (out / ".partial").exists()
    assert protocol("verify", out).returncode == 0
    text = (out / "certificate.json").read_text()
    (out / "certificate.json").write_text(text.replace('"forced": ', '"forced": 1', 1))
    tampered = protocol("verify", out)
    assert tampered.returncode == 1 and "forced" in tampered.stdout


@pytest.mark.slow
def test_a_shipped_regime_speaks_of_the_server_that_it_is_fitted_to(
    protocol: Protocol, aware: Path, tmp_path: Path
) -> None:
    """The calibration is among the raw files: a reviewer can check it and run everything again.

    It does not show that it speaks for this limit, so the claim stays a benchmark's, and G1 says why.
    """
    out = tmp_path / "out"
    result = protocol("certify", aware, "--regime", "bursty-aperiodic", "--seeds", 8, "--out", out, *QUICK)
    made = certificate(out)
    assert result.returncode == 0 and made["tier"]["name"] == "stress harness", made["sentence"]
    checks = {c["name"]: c["status"] for g in made["claims"][0]["gates"] if g["gate"] == "G1" for c in g["checks"]}
    assert checks["agreement per merge"] == checks["agreement without merges"] == "undecidable"
    carried = out / "raw" / "calibrations" / "vllm-cpu"
    assert {f"calibrations/vllm-cpu/{p.name}" for p in carried.iterdir()} <= made["files"].keys()
    assert protocol("verify", out, "--rerun", aware).returncode == 0
    assert "recomputed from its raw rows" in protocol("verify", carried).stdout
    stated = json.loads((carried / "calibration.json").read_text())
    stated["runs"][0]["simulated_exposed_p95_ms"] += 1
    (carried / "calibration.json").write_text(json.dumps(stated))
    assert "simulated_exposed_p95_ms" in protocol("verify", carried).stdout


@pytest.mark.slow
def test_certificate_is_the_same_byte_for_byte_whatever_the_jobs(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    texts = []
    for jobs in (1, 2):
        protocol("certify", aware, "--regime", small, "--out", tmp_path / str(jobs), "--draws", 19, "--jobs", jobs)
        files = sorted((tmp_path / str(jobs)).rglob("*"))
        texts.append({p.relative_to(tmp_path / str(jobs)): p.read_bytes() for p in files if p.is_file()})
    assert texts[0].keys() == texts[1].keys()
    different = [str(name) for name in texts[0] if texts[0][name] != texts[1][name]]
    assert different == []


@pytest.mark.slow
def test_killed_run_goes_on_to_the_identical_certificate(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    protocol("certify", aware, "--regime", small, "--out", whole, *QUICK)
    command = [
        sys.executable,
        "-m",
        "protocol",
        "certify",
        str(aware),
        "--regime",
        str(small),
        "--out",
        str(killed),
        *QUICK,
    ]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(killed.glob(".partial/seed-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert list(killed.glob(".partial/seed-*")) and not (killed / "certificate.json").exists()
    again = protocol("certify", aware, "--regime", small, "--out", killed, *QUICK)
    assert "going on" in again.stderr
    assert (killed / "certificate.json").read_bytes() == (whole / "certificate.json").read_bytes()


def test_changed_input_starts_afresh_and_says_why(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".partial").mkdir(parents=True)
    (out / ".partial" / "plan.json").write_text('{"contender": {}}')
    result = protocol("certify", aware, "--regime", small, "--out", out, *FEWER)
    assert "starting afresh" in result.stderr and "contender" in result.stderr and result.returncode == 3


def test_load_blind_scheduler_fails(protocol: Protocol, small: Path, tmp_path: Path) -> None:
    blind = tmp_path / "blind.py"
    blind.write_text("class Scheduler:\n    def decide(self, obs):\n        return obs.steps_since_merge >= 256\n")
    result = protocol("certify", blind, "--regime", small, "--out", tmp_path / "out", *QUICK)
    assert result.returncode == 1
    assert certificate(tmp_path / "out")["sentence"].startswith("Nothing is licensed")


def test_planner_is_an_upper_bound(protocol: Protocol, small: Path, tmp_path: Path) -> None:
    result = protocol("certify", "optimum", "--regime", small, "--out", tmp_path / "out", *QUICK)
    made = certificate(tmp_path / "out")
    assert result.returncode == 0 and made["tier"]["upper_bound"] and "upper bound" in made["sentence"]


def test_too_few_seeds_is_undecidable(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    result = protocol("certify", aware, "--regime", small, "--out", tmp_path / "out", *FEWER)
    assert result.returncode == 3
    assert certificate(tmp_path / "out")["claims"][0]["envelope"]["p"] is None


def test_several_slos_are_corrected_together(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    slos = ("--slo", "e2e<=1s", "--slo", "ttft<=30ms")
    protocol("certify", aware, "--regime", small, "--out", tmp_path / "out", *slos, "--draws", 9, "--jobs", 1)
    claims = certificate(tmp_path / "out")["claims"]
    assert [c["slo"] for c in claims] == ["e2e<=1000ms", "ttft<=30ms"]
    for claim in claims:
        assert claim["envelope"]["p_holm"] >= claim["envelope"]["p"]


def test_real_trace_is_cut_into_windows(protocol: Protocol, aware: Path, tmp_path: Path) -> None:
    rows = "".join(f"{i * 0.25},{100 + i % 7},{20 + i % 5}\n" for i in range(6000))
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    result = protocol("certify", aware, "--trace", trace, "--out", tmp_path / "out", "--draws", 9, "--jobs", 1)
    made = certificate(tmp_path / "out")
    assert result.returncode in (0, 1, 3)
    assert made["regimes"][0]["name"] == "trace:trace.csv" and made["regimes"][0]["n_seeds"] == 10
    assert made["regimes"][0]["trace"]["rows_kept"] == 6000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing-like-it"], ["nothing-like-it"]),
        (["wa-dilocoo"], ["wa-diloco"]),
        (["missing.py"], ["missing.py"]),
        (["wa-diloco", "--regime", "bursty"], ["bursty-periodic"]),
        (["wa-diloco", "--slo", "e2e<1"], ["--slo"]),
        (["wa-diloco", "--slo", "latency<=1s"], ["latency", "ttft"]),
        (["wa-diloco", "--trace", "missing.csv"], ["missing.csv"]),
        (["wa-diloco", "--regime", "ordinary", "--regime", "ordinary"], ["twice"]),
    ],
)
def test_bad_options_are_one_line_and_leave_nothing(
    inside: Protocol, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    out = tmp_path / "out"
    refused(inside("certify", *arguments, "--out", out, *QUICK), *words)
    assert not (out / "certificate.json").exists() and not (out / "report.html").exists()


SCHEDULERS = {
    "crashes": (
        "def decide(self, obs):\n        if obs.time_s > 50:\n            1 / 0\n        return False",
        ["ZeroDivisionError", "sched.py:4"],
    ),
    "syntax": ("def decide(self, obs)\n        return 1", ["sched.py"]),
    "nonsense": ('def decide(self, obs):\n        return "maybe"', ["maybe"]),
    "exits": ("def decide(self, obs):\n        raise SystemExit", ["exit"]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_broken_schedulers_are_one_line(protocol: Protocol, small: Path, tmp_path: Path, name: str) -> None:
    body, words = SCHEDULERS[name]
    path = tmp_path / "sched.py"
    path.write_text(f"class Scheduler:\n    {body}\n")
    refused(protocol("certify", path, "--regime", small, "--out", tmp_path / "out", *QUICK), *words)


def test_clock_reader_fails_determinism(protocol: Protocol, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "clock.py"
    path.write_text(
        "import time\nclass Scheduler:\n    def decide(self, obs):\n        return time.time_ns() // 1000 % 7 == 0\n"
    )
    result = protocol("certify", path, "--regime", small, "--out", tmp_path / "out", *FEWER)
    made = certificate(tmp_path / "out")
    assert result.returncode == 1 and made["tier"]["number"] == 0 and "second run" in made["sentence"]


def test_an_interrupted_run_says_what_is_kept(
    inside: Protocol, small: Path, aware: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("protocol.cli.judging._run", interrupted)
    ended = inside("certify", aware, "--regime", small, "--out", tmp_path / "out", *QUICK)
    said = "interrupted; finished seeds are kept, and the same command goes on from there"
    assert ended.returncode == 130 and ended.stderr.splitlines()[-1] == said
    monkeypatch.setattr("protocol.cli.certify.Asked.request", interrupted)
    ended = inside("certify", aware, "--regime", small, "--out", tmp_path / "out", *QUICK)
    assert ended.returncode == 130 and ended.stderr.splitlines() == ["interrupted"]


def test_two_runs_do_not_share_a_folder(inside: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    from protocol.evidence.partial import locked

    with locked(tmp_path / "out"):
        refused(inside("certify", aware, "--regime", small, "--out", tmp_path / "out", *QUICK), "another run")


def test_pages_that_were_edited_are_found(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    protocol("certify", aware, "--regime", small, "--out", out, *FEWER)
    assert not (out / ".lock").exists()
    report, table = out / "report.html", out / "tables" / "claims.md"
    report.write_text(report.read_text().replace("Certificate", "Diploma", 1))
    table.write_text(table.read_text().replace("1", "2", 1))
    (out / "figures" / "gain-overview.pdf").unlink()
    said = protocol("verify", out)
    assert said.returncode == 1 and "not shown: figures/gain-overview.pdf, which are not there" in said.stdout
    for name in ("report.html", "tables/claims.md"):
        assert name in said.stdout


def test_a_folder_without_pages_is_verified_and_draws_them_again(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    protocol("certify", aware, "--regime", small, "--out", out, *FEWER)
    pages = [name for name in names_in(out) if name.startswith(("report", "tables", "figures"))]
    kept = {name: (out / name).read_bytes() for name in pages}
    for name in pages:
        (out / name).unlink()
    said = protocol("verify", out, "--pages", again)
    assert said.returncode == 0 and said.stdout.count("not there") == 1
    assert {name: (again / name).read_bytes() for name in names_in(again)} == kept


def test_nothing_is_made_for_a_scheduler_that_does_not_load(inside: Protocol, small: Path, tmp_path: Path) -> None:
    refused(inside("certify", tmp_path / "none.py", "--regime", small, "--out", tmp_path / "out"), "none.py")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("certify", "wa-diloco", "--seeds", "0"),
        ("certify", "wa-diloco", "--alpha", "nan"),
        ("certify", "wa-diloco", "--nonsense"),
        ("certify", "wa-diloco", "--fresh-seed", "--seed", "3"),
        ("certify", "b\udcff.py"),
        ("simulate", "wa-diloco", "--out", "/dev/null/x.svg"),
        ("validate", "wa-diloco", "--log", "/dev/null/log"),
        ("power", "--reps", "100", "--out", "/dev/null"),
        ("nothing-of-the-kind",),
    ],
)
def test_every_bad_option_is_one_line(inside: Protocol, arguments: tuple[str, ...]) -> None:
    refused(inside(*arguments))


def test_version_and_bare_command(protocol: Protocol) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert protocol("--version").stdout.strip() == project["version"]
    assert "certify" in protocol().stdout
