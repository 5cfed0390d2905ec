"""Calibration: a known server is found again from its own runs, and what is written can be checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars import calibrating, fitting
from adapters.sidecars.calibrating import MODERATE, NEAR_KNEE, conclude, measure, shares
from adapters.sidecars.fitting import fit
from adapters.sidecars.openai import Target
from adapters.sidecars.real import RealSidecar
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from protocol.calibration import check, store
from protocol.calibration.model import ON_OFF, Calibration, CalibrationPlan, CalibrationRun
from protocol.cli.settings import sound
from protocol.errors import BadInput, SidecarError
from protocol.gates.result import worst
from protocol.gates.transfer import calibrated_checks
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED
from protocol.replay.replay import Replay
from protocol.workload.trace import RequestTrace

TRUE = {
    "a_s": 4e-3, "b_s": 2e-4, "c_s": 2e-5, "prefill_slowdown": 2.5, "decode_slowdown": 3.5, "overhead_s": 6e-3,
    "overhead_sigma": 0.2, "max_num_seqs": 64,
}  # fmt: skip
PLAN = CalibrationPlan(
    seed=5, merge_s=3.0, rates_per_s=(2.0, 5.0, 9.0, 30.0), prompt_tokens=(16, 200), output_tokens=(40,), blocks=5
)
FACTS = {"server": "pretended 1.0", "date": "2026-01-02", "merge_load": "host", "served_model": "m"}


def small_plan(seed: int, **changes: Any) -> CalibrationPlan:
    plain = {"merge_s": 1.0, "rates_per_s": (1.0,), "prompt_tokens": (8,), "output_tokens": (8,)}
    return CalibrationPlan(seed=seed, **(plain | changes))


class Pretended(RealSidecar):
    """A server that is itself the simulator, with noise of its own in every run."""

    def __init__(self, model: SidecarModel, broken: int = 0) -> None:
        super().__init__(Target("http://127.0.0.1:9", "m"), MergeLoad("none"))
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "made", [])
        object.__setattr__(self, "broken", broken)

    def replay(self, trace: RequestTrace, schedule: Schedule) -> Replay:
        self.made.append(trace.name)
        m = SimulatedSidecar(self.model).load(trace, np.random.default_rng(len(self.made))).replay(schedule)
        windows = np.stack(schedule.windows_ns(0), axis=1)
        ran = windows[1:] if len(self.made) <= self.broken else windows
        return Replay(m, windows, ran)


@pytest.fixture(scope="module")
def model() -> SidecarModel:
    return SidecarModel.shipped().changed(TRUE).named("pretended")


@pytest.fixture(scope="module")
def runs(model: SidecarModel) -> list[CalibrationRun]:
    return measure(Pretended(model), PLAN)


@pytest.fixture(scope="module")
def found(runs: list[CalibrationRun], model: SidecarModel) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:  # a shorter search is close enough here
        patch.setattr(fitting, "_GENERATIONS", 1)
        patch.setattr(fitting, "_LAST", 100)
        return conclude(runs, PLAN, model, FACTS, intervals=False)


@pytest.mark.slow
def test_known_parameters_are_found_again(found: Calibration) -> None:
    for key, value in TRUE.items():
        # The spread of 6 ms of overhead is hardly seen in latencies of a second.
        assert getattr(found.model, key) == pytest.approx(value, rel=0.5 if key == "overhead_sigma" else 0.15), key
    assert found.residual < 0.05


@pytest.mark.slow
def test_intervals_hold_the_truth(runs: list[CalibrationRun], model: SidecarModel) -> None:
    for key, (low, high) in fit(runs, model, PLAN.seed).interval.items():
        assert 0.9 * low <= TRUE[key] <= 1.1 * high, key


def test_its_transfer_is_shown_at_both_loads_and_predicted(found: Calibration) -> None:
    checks = calibrated_checks(found.stated(), 0.05)
    assert worst(c.status for c in checks) == "passed"
    loads = dict.fromkeys(run.load for run in found.runs)
    assert [c.name for c in checks] == [f"{what} ({load})" for load in loads for what in ("effect", "agreement")]
    assert {run.load for run in found.runs} == {MODERATE, NEAR_KNEE}
    assert {"ttft_ratio", "max_itl_ratio"} <= set(checks[0].details)


@pytest.mark.slow
def test_without_an_effect_there_is_no_transfer(model: SidecarModel) -> None:
    idle = model.changed({"prefill_slowdown": 1.0, "decode_slowdown": 1.0}).named("idle")
    found = conclude(measure(Pretended(idle), PLAN), PLAN, idle, FACTS, intervals=False)
    effects = [check for check in calibrated_checks(found.stated(), 0.05) if check.name.startswith("effect")]
    assert [check.status for check in effects] == ["failed", "failed"]
    assert all(check.statistic == pytest.approx(1.0, abs=0.1) for check in effects)


def test_a_lost_search_gives_way_to_a_model_of_some_runs(
    model: SidecarModel, runs: list[CalibrationRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = model.changed({"a_s": model.a_s * 1.01})
    monkeypatch.setattr(fitting, "_solve", lambda *_: fitting._encode(fitting.START))
    lost, taken = (fit(runs, model, PLAN.seed, False, others) for others in ((), (some,)))
    assert taken.model == some and lost.residual > 1.1 * taken.residual > 0
    monkeypatch.setattr(fitting, "_solve", lambda *_: fitting._parameters(model))
    assert fit(runs, model, PLAN.seed, False, (some,)).model.a_s == pytest.approx(model.a_s)


def test_merges_are_on_in_half_of_the_slots_and_apart() -> None:
    plan = small_plan(1, merge_s=8.0, slots=6)
    drawn = {tuple(plan.merges(f"{i}").start_s) for i in range(300)}
    assert len(drawn) == 20  # every half of six slots
    for starts in drawn:
        assert len(starts) == 3 and min(np.diff(starts)) >= 12 and starts[0] >= 4 and starts[-1] + 8 <= plan.on_off_s


def test_the_loads_are_shares_of_the_knee(model: SidecarModel) -> None:
    swept = [run for run in measure(Pretended(model), PLAN) if run.kind == "sweep"]
    p95 = {run.rate_per_s: run.measurements.p95_ms(np.ones(len(run.measurements), bool)) for run in swept}
    knee = max(rate for rate, value in p95.items() if value <= 2 * p95[2.0])
    assert shares(swept) == {MODERATE: round(0.35 * knee, 1), NEAR_KNEE: round(0.85 * knee, 1)}
    with pytest.raises(SidecarError, match="no swept rate of 30 requests/s was served well"):
        failed = swept[-1].measurements
        refused = type(failed)(**{**vars(failed), "outcome": np.full(len(failed), 1)})
        shares([CalibrationRun("x", "sweep", "sweep", 30.0, refused, Schedule.empty())])


def test_an_invalid_run_is_made_again_and_then_refused(model: SidecarModel) -> None:
    lines: list[str] = []
    server = Pretended(model, broken=30)  # the sweep has no merges to break
    quick = small_plan(3, rates_per_s=(4.0,), blocks=2, sweep_s=10.0)
    with pytest.raises(SidecarError, match="invalid 5 times, last: 1 of 2 merges ran"):
        measure(server, quick, lines.append)
    assert sum("attempt" in line for line in lines) == calibrating.ATTEMPTS


def test_a_server_that_serves_nothing_is_named_with_its_answers(model: SidecarModel) -> None:
    class Refusing(Pretended):
        def replay(self, trace: RequestTrace, schedule: Schedule) -> Replay:
            done = super().replay(trace, schedule)
            rows = replace(done.rows, outcome=np.full(len(trace), FAILED, np.int8))
            return replace(done, rows=rows, failures={"HTTP 404": len(trace)})

    with pytest.raises(SidecarError, match=r"served none of (\d+) requests: HTTP 404 \(\1\)"):
        measure(Refusing(model), PLAN)


def test_finished_runs_are_not_made_again(model: SidecarModel, runs: list[CalibrationRun]) -> None:
    server, new = Pretended(model), []
    kept = {run.label: run for run in runs if run.label != runs[4].label}
    again = measure(server, PLAN, kept=kept, keep=new.append)
    assert [run.label for run in again] == [run.label for run in runs] and server.made == [new[0].measurements and (
        new[0].label if new[0].kind == ON_OFF else f"idle-{new[0].load}"
    )]  # fmt: skip


def test_what_is_written_is_read_and_checked(tmp_path: Path, found: Calibration, runs: list[CalibrationRun]) -> None:
    written = store.write(tmp_path, found, runs)
    stored = store.read(tmp_path)
    assert stored == written and stored.plain() | {"files": {}} == found.plain() and len(stored.files) == 2
    assert stored.plain()["plan"]["slots"] == 4  # a default, filled in
    assert SidecarModel.from_calibration(stored).calibrated
    again = store.read_runs(tmp_path)
    assert [run.label for run in again] == [run.label for run in runs]
    assert all(a.merges.equals(b.merges) for a, b in zip(again, runs, strict=True))
    assert list(check.check(tmp_path)) == [] and list(fitting.check_simulated(tmp_path)) == []
    assert sound(tmp_path) == stored
    edited = json.loads((tmp_path / "calibration.json").read_text())
    edited["runs"][2]["exposed_p95_ms"] += 0.5
    (tmp_path / "calibration.json").write_text(json.dumps(edited))
    assert [line.split(":")[0] for line in check.check(tmp_path)] == [f"{edited['runs'][2]['run']}, exposed_p95_ms"]
    edited["runs"][2]["simulated_exposed_p95_ms"] += 0.5
    edited["halves"][1]["a_s"] *= 1.5
    (tmp_path / "calibration.json").write_text(json.dumps(edited))
    wrong = list(fitting.check_simulated(tmp_path))
    held_out = {row["run"] for row in edited["runs"] if row["half"] == 1} | {edited["runs"][2]["run"]}
    assert {line.partition(",")[0] for line in wrong} == held_out
    with pytest.raises(BadInput, match="its own rows do not bear out"):
        sound(tmp_path)


def test_a_calibration_speaks_only_of_its_own_server_and_merges(found: Calibration) -> None:
    check.refuse_mismatch(found.stated(), merge_s=3.0, server="pretended 1.0")
    with pytest.raises(BadInput, match=r"found merges of 3 s; expected 8 s"):
        check.refuse_mismatch(found.stated(), merge_s=8.0)
    with pytest.raises(BadInput, match=r"found pretended 1.0; expected pretended 2.0, which is what answers now"):
        check.refuse_mismatch(found.stated(), merge_s=3.0, server="pretended 2.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "broken JSON"), ("[]", "schema None, version None; expected protocol-calibration version 1 or"),
        ('{"schema": "protocol-calibration", "schema_version": 3}', "version 3"),
        ('{"schema": "protocol-calibration", "schema_version": 1}', "calibration.json: found no server"),
        ('{"residual": NaN}', "NaN is no number"), ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(BadInput, match=said):
        store.read(tmp_path)


def test_few_requests_are_refused(model: SidecarModel) -> None:
    trace = RequestTrace(np.arange(5) * 10**9, np.full(5, 8), np.full(5, 8))
    few = CalibrationRun("x", "idle", "x", 1.0, SimulatedSidecar(model).load(trace, np.random.default_rng(0)).replay(
        Schedule.empty()), Schedule.empty())  # fmt: skip
    with pytest.raises(BadInput, match="fewer than 20 served requests in every run"):
        fit([few], model, 0)
