"""`protocol power`: assumed and piloted spreads, outputs and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import power as command
from protocol.errors import BadInput
from protocol.stats.power import POLICY_SD

QUICK = ["power", "--reps", "200", "--draws", "9"]


def run(*options: str) -> Any:
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, [*QUICK, *options])


def pilot(folder: Path, change: Any = None) -> Path:
    """40 seeds of very different levels, whose gains are -1 and 3 in turn: mean 1, variance 4 x 40 / 39."""
    level = np.random.default_rng(1).normal(6, 3, 40)
    per_seed = [{"policy": level[s] - 1 + 2 * (-1) ** s, "draw_mean": level[s], "draw_sd": 1.0} for s in range(40)]
    certificate: Any = {"claims": [{"regime": "bursty", "envelope": {"n_draws": 19, "per_seed": per_seed}}]}
    if change is not None:
        certificate = change(certificate)
    path = folder / "certificate.json"
    path.write_text(json.dumps(certificate))
    return path


def test_assumed_spread_as_json() -> None:
    done = run("--policy-sd", "1.89", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["level"] == 0.05 and [r["family"] for r in found["designs"]] == ["normal", "lognormal"]
    normal = found["designs"][0]
    assert normal["draws"] == 9 and normal["power"] >= 0.9 and 28 <= normal["seeds"] <= 42
    assert run("--policy-sd", "1.89", "--json").stdout == done.stdout
    assert json.loads(run("--policy-sd", "1.89", "--claims", "4", "--json").stdout)["level"] == 0.0125


def test_published_spreads_by_default() -> None:
    assert [s.name for s in command._spreads(None, None, None)] == [f"published, {n}" for n in POLICY_SD]
    done = run("--gain", "4")
    assert done.exit_code == 0 and "published, online" in done.stdout.replace("\n", " ")


def test_files_are_whole_and_reproducible(tmp_path: Path) -> None:
    options = ("--policy-sd", "0.34", "--out", str(tmp_path / "new"))
    assert run(*options).exit_code == 0
    written = {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()}
    assert sorted(written) == ["power.json", "power.png", "power.svg"]
    assert written["power.svg"].startswith(b"<?xml") and written["power.png"].startswith(b"\x89PNG")
    assert json.loads(written["power.json"])["designs"][0]["seeds"] == 8
    run(*options)
    assert {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()} == written


def test_a_gain_out_of_reach_is_said_so() -> None:
    done = run("--policy-sd", "50", "--gain", "0.6")
    assert done.exit_code == 0 and "above 200" in done.stdout


def test_a_pilot_gives_its_own_spread(tmp_path: Path) -> None:
    """The policy's variance is that of the gains, less the draws' share 1 / 19, whatever the seeds' levels."""
    path = pilot(tmp_path)
    estimate, upper = (one.spread for one in command.pilot_spreads(path))
    assert estimate.draw_sd == upper.draw_sd == 1.0
    assert estimate.policy_sd == pytest.approx(math.sqrt(4 * 40 / 39 - 1 / 19))
    # 25.695 is the 5 % point of chi-square on 39 degrees of freedom.
    assert upper.policy_sd == pytest.approx(math.sqrt(4 * 40 / 25.695 - 1 / 19), rel=1e-4)
    assert "bursty" in run("--pilot", str(path)).stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: [], "no JSON object with claims"),
        (lambda c: {"claims": []}, "no claims"),
        (lambda c: {"claims": [{"envelope": None}]}, "claim 1, envelope.per_seed"),
        (lambda c: {"claims": [{"envelope": {"per_seed": [1, 2], "n_draws": 9}}]}, "claim 1, policy: found None"),
        (lambda c: c["claims"][0]["envelope"].update(n_draws="9") or c, "claim 1, n_draws: found '9'"),
        (lambda c: c["claims"][0]["envelope"]["per_seed"][3].update(policy=math.nan) or c, "policy: found nan"),
        (lambda c: [s.update(draw_sd=0) for s in c["claims"][0]["envelope"]["per_seed"]] and c, "no draws that vary"),
    ],
)
def test_a_bad_pilot_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        command.pilot_spreads(pilot(tmp_path, change))


OUT_OF_RANGE = (
    ("--gain", "0"), ("--gain", "nan"), ("--gain", "inf"), ("--min-effect", "-1"), ("--min-effect", "nan"),
    ("--power", "1"), ("--power", "nan"), ("--alpha", "0"), ("--policy-sd", "-1"), ("--policy-sd", "nan"),
    ("--draw-sd", "0"),
)  # fmt: skip


@pytest.mark.parametrize("options", OUT_OF_RANGE)
def test_what_is_out_of_range_is_refused(options: tuple[str, ...]) -> None:
    found = run(*options)
    assert found.exit_code == 2 and options[0] in found.output


CONTRADICTORY = (("--gain", "0.5"), ("--pilot", "absent.json"), ("--pilot", "absent.json", "--draw-sd", "1"))


@pytest.mark.parametrize("options", CONTRADICTORY)
def test_what_cannot_be_together_is_refused(options: tuple[str, ...]) -> None:
    assert isinstance(run(*options).exception, BadInput)
