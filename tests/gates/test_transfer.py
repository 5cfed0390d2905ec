"""G1: the effect on a real server, run by run, and the simulator's agreement with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from server_runs import judged as certified
from server_runs import replay_of, replayed, seen, server_spec, session, sound, swapped
from strategies import SLOS, FunctionSource, head_for, quiet, setting

from protocol.evidence.model import Evidence
from protocol.gates.result import Check, GateResult
from protocol.gates.transfer import AGREEMENT, MIN_RATIO, transfer_gate
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import REFUSED, exposure_ns
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.stats.ratios import MIN_REQUESTS
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace


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
    """1.07 against a real 1.71."""
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


# Replays on a server ---------------------------------------------------------------------------------------------

RUNS = [{"exposed_p95_ms": 900.0 + r, "unexposed_p95_ms": 300.0, "exposed": 50, "unexposed": 50} for r in range(5)]


def on_server(
    found: Sequence[Evidence], back_end: str = "real", runs: list[dict[str, Any]] | None = None
) -> GateResult:
    stated = None if runs is None else {"server": "toy", "date": "2026-06-01", "runs": runs}
    return transfer_gate(found, server_spec(back_end, found, calibration=stated))


def test_transfer_is_measured_under_the_random_merges_by_seed() -> None:
    """All requests of a seed's draws together; an order statistic, so that it can be checked by sorting."""
    (effect,) = on_server(sound()).checks
    by_hand = []
    for e in sound():
        draws = [r.rows for r in e.replays(UNIFORM)]
        e2e, exposed = (np.concatenate([getattr(m, c) for m in draws]) for c in ("e2e_ns", "exposure_ns"))
        p95 = [np.sort(v)[int(np.ceil(0.95 * (len(v) - 1)))] for v in (e2e[exposed > 0], e2e[exposed == 0])]
        by_hand.append(p95[0] / p95[1])
    assert effect.details["run_ratios"] == pytest.approx(by_hand)
    assert effect.n == 10 and effect.statistic == pytest.approx(np.exp(np.mean(np.log(by_hand))))
    assert "toy 1.0" in effect.reason and len(effect.details["policy_ratios"]) == 10  # type: ignore[arg-type]


def test_agreement_is_asked_for_when_a_calibration_is_given() -> None:
    for simulated, status in ((300.0, "passed"), (150.0, "failed")):
        runs = [
            {"exposed_p95_ms": 300.0, "unexposed_p95_ms": 100.0, "exposed": 50, "unexposed": 50,
             "simulated_unexposed_p95_ms": 100.0, "simulated_exposed_p95_ms": simulated + k}
            for k in range(6)
        ]  # fmt: skip
        checks = {c.name: c.status for c in on_server(sound(), runs=runs).checks}
        assert checks == {"effect": "passed", "agreement": status}


def flat(found: Sequence[Evidence]) -> list[Evidence]:
    """The same violations, but exposed requests as fast as the others: merges are not what hurts."""
    for e in found:
        for r in e.replays(UNIFORM):
            e2e = np.random.default_rng([e.seed, r.draw]).permutation(r.rows.e2e_ns)
            found = swapped(found, e.seed, UNIFORM, r.draw, rows=replace(r.rows, e2e_ns=e2e))
    return list(found)


@pytest.mark.parametrize("back_end", ["real", "live"])
def test_a_server_without_the_effect_licenses_nothing(back_end: str) -> None:
    found = flat(sound() if back_end == "real" else session())
    assert on_server(found, back_end).status == "failed"
    made, _ = certified(back_end, found)
    assert made.verdict == "FAIL" and "G1" in made.claims[0].reason


def narrow(found: Sequence[Evidence], exposed: int) -> list[Evidence]:
    """So few requests of the draws overlap a merge."""
    for e in found:
        for r in e.replays(UNIFORM):
            exposure = np.where(np.cumsum(r.rows.exposure_ns > 0) <= exposed, r.rows.exposure_ns, 0)
            found = swapped(found, e.seed, UNIFORM, r.draw, rows=replace(r.rows, exposure_ns=exposure))
    return list(found)


def test_where_too_few_requests_met_a_merge_the_calibration_speaks() -> None:
    found = narrow(session(), MIN_REQUESTS - 1)
    alone = on_server(found, "live")
    assert alone.status == "undecidable" and f"10 of 10 runs have fewer than {MIN_REQUESTS} requests" in alone.reason
    told = on_server(found, "live", RUNS)
    assert [c.name for c in told.checks] == ["effect"] and told.status == "passed" and told.checks[0].n == 5
    assert on_server(narrow(session(), MIN_REQUESTS), "live").checks[0].n == 10


def test_runs_with_too_few_exposed_requests_are_left_out() -> None:
    few = {"exposed_p95_ms": 1.0, "unexposed_p95_ms": 300.0, "exposed": 19, "unexposed": 50}
    effect = gated({"server": "x", "runs": [*RUNS, few]}).checks[0]
    assert effect.status == "passed" and effect.n == 5 and "1 of 6 runs have fewer than 20" in effect.reason
    effect = gated({"server": "x", "runs": [*RUNS[:4], few]}).checks[0]
    assert effect.status == "undecidable" and "3.00, 3.00, 3.01, 3.01" in effect.reason


def refusing(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Replay:
    """What arrives in a merge is turned away at once: the rest looks fast."""
    m, planned = seen(trace, Schedule.empty(), rng).rows, np.stack(schedule.windows_ns(0), axis=1)
    inside = ((m.arrival_ns[:, None] >= planned[:, 0]) & (m.arrival_ns[:, None] < planned[:, 1])).any(axis=1)
    e2e = np.where(inside, -1, m.e2e_ns)
    rows = replace(
        m, e2e_ns=e2e, ttft_ns=np.where(inside, -1, m.ttft_ns), outcome=np.where(inside, REFUSED, m.outcome),
        output_tokens=np.where(inside, 0, m.output_tokens), exposure_ns=exposure_ns(trace, e2e, schedule),
    )  # fmt: skip
    return Replay(rows, planned, planned, failures={"HTTP 429": int(inside.sum())})


def test_a_server_that_refuses_requests_in_merges_shows_an_effect_and_violations() -> None:
    """A request that was not served is infinitely late, in the percentile and as a violation."""
    found = replayed(refusing)
    slo = Slo.parse(SLOS[0])
    for e in found:
        refused = int((replay_of(found, e.seed, POLICY).rows.outcome == REFUSED).sum())
        assert refused > 0 and e.violations(POLICY, slo, 0)[0] >= refused
        assert e.violations(UNIFORM, slo, 0).mean() > e.violations(NO_SYNC, slo, 0)[0]
    made, checks = certified("real", found)
    assert checks["G1", "effect"] == checks["G3", "placement"] == "passed" and made.verdict == "PASS"
    ratios = next(c for c in on_server(found).checks if c.name == "effect").details["run_ratios"]
    assert min(ratios) > 50  # type: ignore[call-overload]  # later than all the time in which requests arrived
