"""What a budget of minutes buys, and what a calibration file must hold."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from strategies import FunctionSource, described, plan_of, quiet, setting

from adapters.sidecars.simulated import SidecarModel
from protocol.cli import real
from protocol.errors import BadInput


def afforded(minutes: float) -> tuple[int, int, str]:
    notes = io.StringIO()
    n_seeds, draws = real.affordable(
        minutes, 45.0, plan_of(FunctionSource(quiet)), setting(), 0.05, 1, Console(file=notes)
    )
    return n_seeds, draws, " ".join(notes.getvalue().split())


def test_a_budget_is_spent_on_the_seeds_and_draws_that_find_most() -> None:
    n_seeds, draws, words = afforded(120)
    assert n_seeds >= 8 and draws >= 5 and 150 <= n_seeds * (draws + 3) <= 160
    assert "budget: 160 replays of 45 s fit 120 min" in words and f"chosen {n_seeds} seeds of {draws} draws" in words


def test_a_budget_that_is_too_small_says_what_is_missing() -> None:
    n_seeds, draws, words = afforded(45)
    assert (n_seeds, draws) == (7, 5) and n_seeds * (draws + 3) <= 60
    assert "8 seeds of 5 draws need 64 (48 min), so this run can only be undecidable" in words


def test_a_calibration_sets_model_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    model = {k: v for k, v in asdict(SidecarModel.shipped()).items() if k not in ("name", "provenance")}
    runs = [{"exposed_p95_ms": 2.0, "unexposed_p95_ms": 1.0}]
    path.write_text(json.dumps({"server": "vllm", "date": "2026-06-01", "runs": runs, "model": {**model, "a_s": 0.5}}))
    settings, said = real.calibrated(([setting()], [described(setting())]), path)
    assert settings[0].sidecar.calibrated and said[0]["sidecar"]["calibrated"] and said[0]["sidecar"]["a_s"] == 0.5
    assert said[0]["sidecar"]["calibration"] == {"server": "vllm", "date": "2026-06-01", "runs": runs}
    for broken in ("[]", "{}", "no json", json.dumps({"server": "s", "date": "d", "runs": [], "model": {"x": 1}})):
        path.write_text(broken)
        with pytest.raises(BadInput, match="server.json"):
            real.calibrated(([setting()], [described(setting())]), path)
