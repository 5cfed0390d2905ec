"""The measured calibrations: what they state is what their raw rows say, and the default regimes rest on them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapters.sidecars.calibrating import conclude
from adapters.sidecars.fitting import check_simulated
from adapters.sidecars.simulated import SidecarModel, shipped_calibrations
from protocol.calibration import store
from protocol.calibration.check import check
from protocol.cli.settings import PUBLISHED, sound
from protocol.errors import BadInput
from protocol.files import canonical_json
from protocol.gates.transfer import calibrated_checks
from protocol.regimes.regime import Regime

#: Merges that occupied the host, shipped; and kept beside the results, merges that occupied nothing, and merges that
#: occupied the host at the loads that the sweep chose.
HOST = shipped_calibrations()["vllm-cpu"]
KEPT = Path(__file__).parents[3] / "docs" / "results" / "calibrations"
IDLE, KNEE = KEPT / "vllm-cpu-idle", KEPT / "vllm-cpu-knee"


@pytest.mark.parametrize("folder", [HOST, IDLE, KNEE])
def test_its_numbers_are_those_of_its_rows(folder: Path) -> None:
    assert list(check(folder)) == [] and list(check_simulated(folder)) == []
    model = SidecarModel.from_calibration(store.read(folder))
    assert model.calibrated and folder.name.startswith(model.name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1 << 20


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("model", "decode_slowdown"), 9.0, "residual"), (("model", "a_s"), 0.0059, "residual"),
        (("model", "a_s"), "fast", "model.a_s: found 'fast'; expected a number"),
        (("model",), None, "model: found None; expected a table"), (("runs",), [], "runs"), (("files",), {}, "files"),
        (("merge_s",), 4.0, "merge_s"), (("plan", "merge_s"), 4.0, "merge_s"),
        (("idle", 0, "p95_ms"), 1.0, "p95_ms"), (("sweep", 0, "p50_ms"), 1.0, "p50_ms"),
        (("runs", 3, "exposed_failed"), 2, "exposed_failed: stated 2, its rows say None"),
        (("runs", 3, "half"), 2, r"runs\[3\].half: found 2"), (("schema_version",), 2, "exposed_failed: stated None"),
        (("residual",), 0.0, "residual"), (("intervals", "a_s"), [0, 1], "intervals, a_s"),
        (("halves",), [], "halves: found an empty list"), (("plan",), {}, "plan: found no seed"),
    ],
)  # fmt: skip
def test_an_edited_calibration_is_not_used(path: tuple[Any, ...], value: Any, said: str, tmp_path: Path) -> None:
    shutil.copytree(HOST, tmp_path / "edited")
    file = tmp_path / "edited" / store.FILE
    edited = json.loads(file.read_text())
    holder = edited
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    file.write_text(json.dumps(edited))
    with pytest.raises(BadInput, match=said):
        sound(tmp_path / "edited")


@pytest.mark.parametrize("folder", [HOST, IDLE, KNEE])
def test_reading_loses_nothing(folder: Path) -> None:
    """Version 1, whose digest certificates state: written again it is the same file, to the last byte."""
    stored, text = store.read(folder), (folder / store.FILE).read_text()
    assert canonical_json(stored.plain()) == text and stored.schema_version == 1
    assert stored.stated()["digest"] == hashlib.sha256(text.encode()).hexdigest()


def test_host_merges_transfer_and_idle_ones_do_not() -> None:
    *busy, idle = (calibrated_checks(store.read(folder).stated(), 0.05) for folder in (HOST, KNEE, IDLE))
    for checks in busy:
        assert len(checks) == 4 and {check.status for check in checks} == {"passed"}
    effects = [check for check in idle if check.name.startswith("effect")]
    assert len(effects) == 2 and {check.status for check in effects} == {"failed"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_default_regimes_stay_within_what_was_measured(name: str) -> None:
    """A fitted model speaks of its own merges, and of loads up to those that were swept."""
    regime, measured = Regime.load(name), store.read(HOST)
    assert regime.sidecar == HOST.name and measured.merge_s == regime.merge_s
    # Where merges are declared to slow nothing down, the model is changed, and calibrated no more.
    changed = SidecarModel.shipped(regime.sidecar).changed(regime.sidecar_overrides)
    assert changed.calibrated == (name not in ("ordinary", "high-pressure"))
    swept = [run.rate_per_s for run in measured.sweep]
    assert max(regime.arrivals.rate_per_s, regime.arrivals.busy_rate_per_s) <= max(swept)
    assert {*regime.prompt.values} == {*measured.plan.prompt_tokens}
    assert {*regime.output.values} == {*measured.plan.output_tokens}


@pytest.mark.slow
@pytest.mark.parametrize("folder", [HOST, IDLE])
def test_its_parameters_are_found_again(folder: Path) -> None:
    stored = store.read(folder)
    limits = SidecarModel.fitted(stored.model, "model").replace(provenance="uncalibrated")
    facts = {key: getattr(stored, key) for key in ("server", "date", "merge_load")}
    again = conclude(store.read_runs(folder), stored.plan, limits, facts, intervals=False).model.plain()
    for key, value in stored.model.plain().items():
        assert again[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
