"""A user's log in the user's own system: one command to a verdict, whatever the log's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import log_files as make
import numpy as np
import pytest
from conftest import Protocol, refused

from adapters.traces.generators import arrivals_s, spells
from adapters.traces.readers import Reading, columns_of
from protocol.cli.settings import Overrides, settings_for
from protocol.regimes.regime import Arrivals

VERDICTS = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE"}
QUICK = ("--seeds", "3", "--draws", "9", "--jobs", "1")


@pytest.fixture(scope="module")
def requests() -> list[tuple[float, int]]:
    """700 s of bursts in whole milliseconds, with prompts: four windows of the small regime's 170 s."""
    rng = np.random.default_rng(11)
    load = Arrivals(process="bursts-aperiodic", rate_per_s=3.0, busy_rate_per_s=12.0, busy_s=15.0, quiet_s=30.0)
    times = arrivals_s(load, spells(load, 700.0, rng), 700.0, rng)
    return [(round(float(t), 3), int(rng.choice([64, 256]))) for t in times]


def written(folder: Path, requests: list[tuple[float, int]], name: str) -> tuple[Path, tuple[str, ...]]:
    """The same requests as one kind of log, under one file name, and the options that it needs."""
    folder.mkdir()
    path = folder / "log.jsonl"
    if name == "csv":
        rows = (f"{i};{make.START + t:.3f};{prompt};128;me" for i, (t, prompt) in enumerate(requests))
        make.save(path, "id;begun;in;out;who", *rows)
        return path, ("--columns", "time=begun,prompt_tokens=in,output_tokens=out", "--time-unit", "s")
    if name == "otlp":
        return make.save(path, *(make.otlp(make.span(i, t, p, 128)) for i, (t, p) in enumerate(requests))), ()
    return make.save(path, *(make.litellm(t, prompt, 128) for t, prompt in requests)), ()


def certified(
    protocol: Protocol, folder: Path, aware: Path, small: Path, name: str, requests: list[tuple[float, int]]
) -> dict[str, Any]:
    """One command from one kind of log to a certificate that says what was taken from where."""
    path, options = written(folder / name, requests, name)
    out = folder / name / "out"
    result = protocol("certify", aware, "--trace", path, "--regime", small, *options, "--out", out, *QUICK)
    assert result.returncode in VERDICTS, result.stderr[-2000:]
    made: dict[str, Any] = json.loads((out / "certificate.json").read_text())
    assert made["verdict"] == VERDICTS[result.returncode]
    (regime,), (claim,) = made["regimes"], made["claims"]
    assert (regime["name"], regime["n_seeds"], claim["slo"]) == ("small on log.jsonl", 3, "e2e<=1000ms")
    assert regime["trace"]["system"] == "small"
    for said in ("SLO: e2e<=1s (from small)", "window length: 150 s and 20 s to settle (from small)"):
        assert said in result.stderr and said in regime["trace"]["taken"]
    unread = {"csv": "id, who", "litellm": "api_key, completionStartTime"}.get(name)
    assert unread is None or f"not read: columns {unread}" in result.stderr
    return made


def moved(aware: Path) -> Path:
    """The scheduler in a folder of its own: what lies beside it belongs to its digest."""
    folder = aware.parent / "mine"
    folder.mkdir()
    return aware.rename(folder / aware.name)


@pytest.mark.slow
def test_a_foreign_table_certifies_in_ones_own_system_and_verifies(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path, requests: list[tuple[float, int]]
) -> None:
    aware = moved(aware)
    certified(protocol, tmp_path, aware, small, "csv", requests)
    verified = protocol("verify", tmp_path / "csv" / "out", "--rerun", aware, "--trace", tmp_path / "csv" / "log.jsonl",
                        "--regime", small)  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_three_logs_of_the_same_requests_get_the_same_verdict(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path, requests: list[tuple[float, int]]
) -> None:
    aware = moved(aware)
    made = [certified(protocol, tmp_path, aware, small, name, requests) for name in ("csv", "otlp", "litellm")]
    first, *others = [(m["claims"][0]["envelope"], m["regimes"][0]["seeds"]) for m in made]
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", ["csv", "otlp", "litellm"])
def test_three_logs_of_the_same_requests_are_the_same_worlds(
    small: Path, tmp_path: Path, requests: list[tuple[float, int]], name: str
) -> None:
    path, options = written(tmp_path / name, requests, name)
    reading = Reading(columns=columns_of(options[1]), time_unit="s") if options else Reading()
    (setting,), (regime,) = settings_for([str(small)], [path], reading, 1, Overrides(seeds=3))
    assert (setting.name, regime.n_seeds, [str(s) for s in setting.slos]) == ("small on log.jsonl", 3, ["e2e<=1000ms"])
    windows = [setting.worlds.workload(seed).trace for seed in range(3)]
    edges = [170 * i for i in range(4)]
    first = requests[0][0]
    for window, low, high in zip(windows, edges, edges[1:], strict=False):
        inside = [(round(t - first, 3), prompt) for t, prompt in requests if low <= round(t - first, 3) < high]
        assert window.arrival_s.tolist() == pytest.approx([t - low for t, _ in inside])
        assert window.prompt_tokens.tolist() == [prompt for _, prompt in inside]


def test_refusals(protocol: Protocol, inside: Protocol, small: Path, aware: Path, tmp_path: Path) -> None:
    log = make.save(tmp_path / "access.log", *(make.envoy(float(t)) for t in range(1400)))
    refused(
        inside("certify", aware, "--trace", log), "a log without token counts (format envoy)", "--tokens", "--regime"
    )
    refused(inside("certify", aware, "--trace", log, "--tokens", "0,1"), "--tokens")
    refused(inside("certify", aware, "--regime", small, "--tokens", "9,1"), "--tokens", "no --trace")
    refused(inside("certify", aware, "--regime", small, "--trace-format", "otlp"), "--trace-format", "no --trace")
    short = make.save(tmp_path / "short.log", *(make.envoy(float(t)) for t in range(150)))
    refused(inside("certify", aware, "--trace", short, "--regime", small), "short.log in small", "at least 2 windows")
    assert not list(tmp_path.glob("runs*"))


def test_a_log_without_tokens_takes_them_from_the_system(
    protocol: Protocol, small: Path, aware: Path, tmp_path: Path, requests: list[tuple[float, int]]
) -> None:
    log = make.save(tmp_path / "access.log", *(make.envoy(t) for t, _ in requests))
    figure = tmp_path / "one.svg"
    result = protocol("simulate", aware, "--trace", log, "--regime", small, "--out", figure)
    assert result.returncode == 0 and figure.is_file(), result.stderr
    assert "small on access.log, seed 0" in result.stdout
