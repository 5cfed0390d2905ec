"""G1: the effect on a real server, run by run, and the simulator's agreement with it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from strategies import FunctionSource, head_for, quiet, setting

from protocol.gates.result import Check, GateResult
from protocol.gates.transfer import AGREEMENT, MIN_RATIO, transfer_gate


def calibration(ratios: list[float], simulated: list[float] | None = None, requests: int = 200) -> dict[str, Any]:
    simulated = [r * f for r, f in zip(ratios, np.resize([1.01, 0.99, 1.0], len(ratios)), strict=True)] if (
        simulated is None
    ) else simulated  # fmt: skip
    return {
        "server": "vLLM 0.0", "date": "2026-01-01",
        "runs": [
            {"exposed_p95_ms": 400 * r, "unexposed_p95_ms": 400.0, "exposed": requests, "unexposed": requests,
             "simulated_exposed_p95_ms": 300 * s, "simulated_unexposed_p95_ms": 300.0}
            for r, s in zip(ratios, simulated, strict=True)
        ],
    }  # fmt: skip


REAL = [1.70, 1.62, 1.75, 1.68, 1.81]


def gated(found: dict[str, Any] | None) -> GateResult:
    """G1 of a simulation that rests on this calibration; no seed of it is looked at."""
    head = head_for(FunctionSource(quiet), [setting()])
    return transfer_gate([], replace(head.spec(head.regimes[0]), calibration=found))


def judged(found: dict[str, Any] | None) -> tuple[Check, Check]:
    effect, agreement = gated(found).checks
    assert (effect.name, agreement.name) == ("effect", "agreement")
    return effect, agreement


def test_a_clear_effect_passes_with_the_t_bound() -> None:
    effect, agreement = judged(calibration(REAL))
    assert gated(calibration(REAL)).status == "passed"
    logs = np.log(REAL)
    bound = math.exp(logs.mean() - stats.t.ppf(0.95, 4) * stats.sem(logs))
    limits = np.exp(stats.t.interval(0.95, 4, logs.mean(), stats.sem(logs)))
    assert effect.statistic == pytest.approx(math.exp(logs.mean())) and effect.threshold == MIN_RATIO
    assert effect.details["lower_bound"] == pytest.approx(bound) and effect.interval == pytest.approx(tuple(limits))
    assert effect.details["run_ratios"] == pytest.approx(REAL)
    assert "vLLM 0.0" in effect.reason and effect.n == 5
    assert agreement.statistic is not None and agreement.statistic <= 0.05


@pytest.mark.parametrize("ratios", [[1.0, 1.01, 0.99, 1.0, 1.005], [1.12, 1.08, 1.15, 1.1, 1.09], [3, 0.5, 2, 0.9, 1]])
def test_no_small_or_noisy_effects_fail(ratios: list[float]) -> None:
    effect, _ = judged(calibration(ratios))
    assert effect.status == "failed"


def test_the_published_simulator_fails_the_agreement() -> None:
    """1.07 against a real 1.71 (SPEC 6)."""
    effect, agreement = judged(calibration(REAL, [1.07, 1.06, 1.08, 1.07, 1.075]))
    assert effect.status == "passed" and agreement.status == "failed"
    assert gated(calibration(REAL, [1.07, 1.06, 1.08, 1.07, 1.075])).status == "failed"


def test_agreement_by_hand() -> None:
    simulated = [1.6, 1.7, 1.7, 1.75, 1.7]
    d = np.log(np.array(REAL) / np.array(simulated))
    margin = math.log(1 + AGREEMENT)
    p = max(
        stats.ttest_1samp(d, -margin, alternative="greater").pvalue,
        stats.ttest_1samp(d, margin, alternative="less").pvalue,
    )
    _, agreement = judged(calibration(REAL, simulated))
    assert agreement.statistic == pytest.approx(p) and (agreement.status == "passed") == (p <= 0.05)
    # The same numbers in other units.
    other = calibration(REAL, simulated)
    for run in other["runs"]:
        run["exposed_p95_ms"] /= 1000
        run["unexposed_p95_ms"] /= 1000
    assert judged(other)[1].statistic == pytest.approx(p)


def test_a_noisy_simulator_fails() -> None:
    _, agreement = judged(calibration(REAL, [1.2, 2.4, 1.7, 1.1, 2.5]))
    assert agreement.status == "failed"


def test_without_a_server_nothing_is_decided() -> None:
    effect, agreement = judged(None)
    assert effect.status == agreement.status == "undecidable" and "no real server" in effect.reason


POISON = [None, float("nan"), float("inf"), 0, -3.0, "400", True, [1.0]]


@pytest.mark.parametrize("value", POISON)
@pytest.mark.parametrize("key", ["exposed_p95_ms", "unexposed_p95_ms"])
def test_poisoned_quantiles_are_undecidable(key: str, value: object) -> None:
    found = calibration(REAL)
    found["runs"][2][key] = value
    effect, agreement = judged(found)
    assert effect.status == agreement.status == "undecidable"
    assert "run 3" in effect.reason


@pytest.mark.parametrize("value", POISON)
def test_poisoned_simulations_and_counts(value: object) -> None:
    found = calibration(REAL)
    found["runs"][2]["simulated_exposed_p95_ms"] = value
    assert judged(found)[1].status == "undecidable"
    if value is not True:
        found = calibration(REAL)
        found["runs"][2]["exposed"] = value
        assert judged(found)[0].status == "undecidable"


@pytest.mark.parametrize("key", ["exposed_p95_ms", "unexposed", "simulated_unexposed_p95_ms"])
def test_a_missing_number_never_passes(key: str) -> None:
    found = calibration(REAL)
    del found["runs"][0][key]
    assert gated(found).status == "undecidable"


def test_too_little_never_passes() -> None:
    assert judged(calibration(REAL[:4]))[0].status == "undecidable"
    assert judged(calibration(REAL[:1]))[1].status == "undecidable"
    assert judged(calibration(REAL, requests=19))[0].status == "undecidable"
    for runs in ([], None):
        assert gated({"server": "x", "date": "y", "runs": runs}).status == "undecidable"
    assert gated({}).status == "undecidable"


def test_copies_of_one_run_never_pass() -> None:
    assert gated(calibration([1.7] * 6, [1.7] * 6)).status == "undecidable"
