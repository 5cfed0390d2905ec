"""What the rows of a run say, by both versions' rules, and that G1 sees a server that drops requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.calibration.check import rates, summary
from protocol.calibration.model import (
    ON_OFF,
    SCHEMA,
    SCHEMA_VERSION,
    SWEEP,
    Calibration,
    CalibrationPlan,
    CalibrationRun,
    IdleRow,
    OnOffRow,
)
from protocol.errors import BadInput
from protocol.gates.transfer import calibrated_checks, sides_of
from protocol.merging.schedule import Schedule
from protocol.reading import read
from protocol.replay.measurements import FAILED, SERVED, Measurements

MS = 1_000_000


def rows(latency_ms: list[float], exposed: list[bool]) -> Measurements:
    """One request a second; a negative latency is a failure."""
    n, served = len(latency_ms), np.array(latency_ms) >= 0
    e2e = np.where(served, np.array(latency_ms) * MS, -1).astype(np.int64)
    arrival = np.arange(n) * 1000 * MS
    return Measurements(
        arrival, arrival, np.where(served, e2e // 4, -1), e2e, np.where(served, e2e // 10, -1), np.full(n, 8),
        np.where(served, 8, 0), np.where(served, SERVED, FAILED), np.zeros(n), np.where(exposed, 1, 0),
    )  # fmt: skip


def run(measurements: Measurements, label: str = "a", kind: str = ON_OFF) -> CalibrationRun:
    return CalibrationRun(label, kind, "moderate", 2.0, measurements, Schedule.empty())


def test_both_rules_by_hand() -> None:
    # 21 exposed requests of 10, 20, .. 200 ms and one failed; 10 unexposed ones of 1 .. 10 ms.
    m = rows([*range(10, 201, 10), -1, *range(1, 11)], [True] * 21 + [False] * 10)
    new, old = summary(run(m), m), summary(run(m), m, version=1)
    # 2: the failed one is the last of 21, rank ceil(0.95 x 20) = 19 from 0 is 200 ms; of 10, rank 9 is 10 ms.
    assert (new["exposed"], new["exposed_failed"], new["exposed_p95_ms"]) == (21, 1, 200.0)
    assert (new["unexposed"], new["unexposed_failed"], new["unexposed_p95_ms"]) == (10, 0, 10.0)
    assert (new["exposed_ttft_p95_ms"], new["exposed_max_itl_p95_ms"]) == (50.0, 20.0) and "failed" not in new
    # 1: of the 20 served ones, between 190 and 200 ms at 0.95 x 19 = 18.05; of 10, between 9 and 10 at 8.55.
    assert (old["exposed"], old["failed"], old["exposed_p95_ms"]) == (20, 1, 190.5)
    assert (old["unexposed"], old["unexposed_p95_ms"]) == (10, 9.55) and "exposed_failed" not in old
    for found in (new, old):
        assert read(OnOffRow, found | {"half": 0}, "x").plain() == found | {"half": 0}
        assert {key: value for key, value in found.items() if key.startswith("simulated_")} == {
            f"simulated_{key}": value for key, value in found.items() if f"simulated_{key}" in found
        }
    # 31 requests, 1 .. 10, 10 .. 200 and one failed: rank ceil(0.95 x 30) = 29 from 0 is the last that was served.
    assert (rates(run(m))["p95_ms"], rates(run(m))["p50_ms"], rates(run(m), 1)["p50_ms"]) == (200.0, 55.0, 55.0)
    for version in (1, 2):
        found = rates(run(m), version)
        assert read(IdleRow, found, "x").plain() == found and (found["requests"], found["served"]) == (31, 30)


def test_what_is_infinite_is_as_long_as_the_run() -> None:
    m = rows([10.0] * 18 + [-1] * 3 + [5.0] * 5, [True] * 21 + [False] * 5)
    found = summary(run(m), m)
    # 26 requests, one a second: 25 s between the first and the last.
    assert (found["exposed"], found["exposed_failed"], found["exposed_p95_ms"]) == (21, 3, 25_000.0)
    assert found["exposed_ttft_p95_ms"] == found["exposed_max_itl_p95_ms"] == 25_000.0
    assert summary(run(m), m, version=1)["exposed_p95_ms"] == 10.0
    nothing = rows([-1.0, -1.0], [False, False])
    assert summary(run(nothing), nothing)["exposed_p95_ms"] is None  # of nothing
    said = rates(run(nothing, kind=SWEEP))
    assert said["p50_ms"] is said["answered_per_s"] is None and (said["p95_ms"], said["served"]) == (1000.0, 0)


def test_what_g1_reads_of_a_calibration_is_what_it_reads_of_replays() -> None:
    rng = np.random.default_rng(3)
    for share in (0.0, 0.02, 0.2):
        latency = np.where(rng.uniform(size=300) < share, -1, rng.uniform(50, 900, 300).round())
        m = rows(latency.tolist(), (np.arange(300) % 3 == 0).tolist())
        found = summary(run(m), m)
        stated = [found[key] for key in ("exposed_p95_ms", "unexposed_p95_ms", "exposed", "unexposed")]
        assert stated == list(sides_of([m]))


@given(st.lists(st.tuples(st.integers(1, 1000) | st.just(-1), st.booleans()), min_size=1, max_size=60))
def test_a_stated_percentile_is_one_of_the_rows(requests: list[tuple[int, bool]]) -> None:
    m = rows([latency for latency, _ in requests], [met for _, met in requests])
    found = summary(run(m), m)
    for name, met in (("exposed", True), ("unexposed", False)):
        mine = [latency for latency, side in requests if side == met]
        assert found[name] == len(mine) and found[f"{name}_failed"] == mine.count(-1)
        stated = found[f"{name}_p95_ms"]
        assert stated is None if not mine else stated in mine or stated == m.span_ms


def calibration(share_failed: float, version: int = SCHEMA_VERSION) -> Calibration:
    """Six runs on a server that serves exposed requests as fast as others, but turns that share of them away."""
    rng = np.random.default_rng(7)
    stated = []
    for i in range(6):
        exposed = np.arange(400) % 2 == 0
        latency = rng.normal(100.0, 5.0, 400)
        latency[np.flatnonzero(exposed)[: round(200 * share_failed)]] = -1
        m = rows(latency.tolist(), exposed.tolist())
        stated.append(summary(run(m, f"run-{i}"), m, version) | {"half": i % 2})
    fitted = {"name": "mine", "provenance": "uncalibrated", "a_s": 0.004}
    plan = CalibrationPlan(seed=1, merge_s=3.0, rates_per_s=(1.0,), prompt_tokens=(8,), output_tokens=(8,))
    values: dict[str, Any] = {
        "schema": SCHEMA, "schema_version": version, "server": "pretended 1.0", "date": "2026-01-02",
        "merge_load": "host", "merge_s": 3.0, "plan": plan.model_dump(), "model": fitted, "halves": [fitted, fitted],
        "intervals": {"a_s": [0.003, 0.005]}, "residual": 0.01, "sweep": [], "idle": [], "runs": stated, "files": {},
    }  # fmt: skip
    return read(Calibration, values, "here")


def test_g1_sees_a_server_that_drops_requests_under_merges() -> None:
    """12 % of exposed requests fail.  By the old rule nothing is seen, as those that were served are as fast."""
    old, new, few = (calibration(share, version) for share, version in ((0.12, 1), (0.12, 2), (0.02, 2)))
    effects = [calibrated_checks(found.stated(), 0.05)[0] for found in (old, new, few)]
    assert [check.status for check in effects] == ["failed", "passed", "failed"]
    assert effects[1].statistic is not None and effects[1].statistic > 1000


def test_attributes_and_the_file_say_the_same() -> None:
    found = calibration(0.12)
    assert (found.plan.slots, found.model.name, found.runs[3].half) == (4, "mine", 1)
    assert found.runs[0].exposed_p95_ms == 399_000.0
    assert found.halves[0].plain() == {"name": "mine", "provenance": "uncalibrated", "a_s": 0.004}
    assert read(Calibration, found.plain(), "again") == found and found.plain()["schema"] == SCHEMA
    stated = found.stated()
    keys = "name server served_model host date merge_load merge_s runs files digest"
    assert list(stated) == keys.split()
    assert stated["runs"][0]["exposed_failed"] == 24 and stated["name"] == "mine"
    assert found.replace(residual=0.02).stated()["digest"] != stated["digest"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("runs", 0, "exposed"), -1, "here, runs[0].exposed: found -1; expected a whole number from 0 on"),
        (("runs", 0, "exposed_p95_ms"), "fast", "here, runs[0].exposed_p95_ms: found 'fast'; expected a number"),
        (("runs", 0, "exposed_p95"), 1.0, "did you mean exposed_p95_ms?"),
        (("runs", 0), 3, "here, runs[0]: found 3; expected a table"),
        (("sweep",), {}, "here, sweep: found {}; expected a list"),
        (("plan", "slots"), 3, "here, plan.slots: found 3; expected an even number"),
        (("plan", "loads_per_s"), [1.0], "here, plan.loads_per_s: found 1 values; expected at least 2"),
        (("plan", "rates_per_s"), [0], "here, plan.rates_per_s[0]: found 0; expected a number above 0"),
        (
            ("model", "provenance"),
            "measured",
            "here, model.provenance: found 'measured'; expected 'uncalibrated', or",
        ),
        (("model", "a_s"), None, "here, model.a_s: found None; expected a number"),
        (("schema_version",), True, "here, schema_version: found True; expected a whole number"),
        (("intervals", "a_s"), [1.0], "here, intervals.a_s: found 1 values; expected at least 2"),
        (("merge_s",), 0, "here, merge_s: found 0; expected a number above 0"),
        (("host",), [], "here, host: found []; expected a table"),
        (("residuals",), 1.0, "here: found unknown key 'residuals'"),
    ],
)
def test_every_mistake_is_one_line(path: tuple[Any, ...], value: Any, message: str) -> None:
    plain = calibration(0.0).plain()
    holder: Any = plain
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(BadInput) as refusal:
        read(Calibration, plain, "here")
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
