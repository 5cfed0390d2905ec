"""The same rows through tiers 2, 3 and 4 give the same statuses and the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from same_rows import BACK_ENDS, IDLE, blocks, evidence, head, judged, late, rows_of, unserved

from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate
from protocol.evidence.model import Evidence
from protocol.gates.load_match import load_match_gate
from protocol.gates.transfer import MIN_RATIO, sides_of, transfer_gate
from protocol.replay.measurements import FAILED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM

SERVERS = [b for b in BACK_ENDS if b != "simulated"]


def check(certificate: Certificate, gate: str, name: str) -> Mapping[str, Any]:
    (claim,) = certificate.claims
    checks = [c for g in claim.gates if g.gate == gate for c in g.checks if c.name == name]
    assert len(checks) == 1, [c.name for g in claim.gates for c in g.checks]
    return checks[0].model_dump()


def each(change: Callable[..., Any] | None = None, tiers: Iterable[str] = BACK_ENDS, **asked: Any) -> list[Certificate]:
    """One certificate a tier, of the same rows."""
    return [assess(head(tier, **asked), evidence(tier, change)) for tier in tiers]


SHARED = [
    ("G0", "completeness"), ("G0", "distinct traces"), ("G2", "offered load"), ("G2", "tokens served"),
    ("G2", "no-sync baseline"), ("G4", "inner steps"),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "name"), SHARED)
def test_a_sound_run_passes_the_same_checks(gate: str, name: str) -> None:
    assert {check(c, gate, name)["status"] for c in each()} == {"passed"}


def test_gains_are_the_same_numbers() -> None:
    first, *others = [c.claims[0].envelope for c in each()]
    for other in others:
        assert other.gain_pp == pytest.approx(first.gain_pp, abs=1e-9)
        assert other.policy_excess_pp == pytest.approx(first.policy_excess_pp, abs=1e-9)
        for mine, its in zip(first.per_seed, other.per_seed, strict=True):
            expected = (mine.seed, mine.merges, pytest.approx(mine.policy), pytest.approx(mine.draw_mean))
            assert (its.seed, its.merges, its.policy, its.draw_mean) == expected


def test_pairs_are_judged_by_the_sign_flip_at_the_minimum_effect() -> None:
    """With one draw a seed the stratified test is the same as the sign flip, so only that is there; here by hand."""
    (certificate,) = each(tiers=["live"])
    envelope = certificate.claims[0].envelope
    (test,) = envelope.tests
    gains = np.array([row.draw_mean - row.policy for row in envelope.per_seed]) - envelope.min_effect_pp
    signs = np.array(np.meshgrid(*[[1, -1]] * len(gains))).reshape(len(gains), -1)
    assert test.name == "paired sign flip"
    assert test.p == pytest.approx(float((gains @ signs >= gains.sum() - 1e-9).mean()))


# p95 -------------------------------------------------------------------------------------------------------------


def dropping(share: float, m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
    """The server drops this share of the exposed requests of the random draws."""
    exposed = np.flatnonzero(m.exposure_ns > 0)
    return unserved(m, exposed[: round(share * len(exposed))]) if arm == UNIFORM else m


def test_a_server_that_drops_requests_under_merges_shows_an_effect_at_every_tier() -> None:
    for tier in SERVERS:
        calm = partial(flat)
        assert effect(tier, calm) < MIN_RATIO
        assert effect(tier, lambda m, *where: dropping(0.12, flat(m, *where), *where)) > 5


def flat(m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
    """Merges slow nobody; latencies vary from seed to seed, so that runs are no copies."""
    jitter = np.random.default_rng([seed, draw]).integers(0, 20_000_000, len(m))
    return replace(m, e2e_ns=np.where(m.e2e_ns > 0, 400_000_000 + jitter, -1))


def effect(tier: str, change: Callable[..., Measurements]) -> float:
    asked = head(tier)
    gate = transfer_gate(evidence(tier, change), asked.spec(asked.regimes[0]))
    return float(next(c.statistic for c in gate.checks if c.name == "effect") or 0.0)


def test_a_request_that_was_not_served_is_infinitely_late() -> None:
    m = rows_of(0, POLICY, 0)
    every = np.ones(len(m), bool)
    assert np.isfinite(m.p95_ms(every))
    assert np.isinf(unserved(m, np.arange(len(m) // 10)).p95_ms(every))
    top, bottom, *_ = sides_of([unserved(m, np.flatnonzero(m.exposure_ns > 0)[:9])])
    assert bottom < top < np.inf


# A client that is late -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", SERVERS)
def test_one_late_client_is_left_out_and_no_verdict(tier: str) -> None:
    """Released: failed at tier 3, undecidable at tier 4."""
    found = evidence(tier, lambda m, arm, draw, seed: late(m) if (seed, arm) == (3, POLICY) else m)
    certificate = assess(head(tier), found)
    assert check(certificate, "G2", "send delay")["status"] == "passed"
    out = check(certificate, "G0", "realised merges")
    assert (out["status"], list(out["details"]["left_out"])) == ("passed", ["3"])
    assert certificate.claims[0].envelope.n_seeds == len(found) - 1


def test_many_late_clients_are_undecidable_at_every_tier() -> None:
    for c in each(lambda m, arm, draw, seed: late(m) if seed < 4 and arm == NO_SYNC else m, SERVERS):
        assert check(c, "G0", "realised merges")["status"] == "undecidable"
        assert c.verdict == "INCONCLUSIVE"


def test_the_achieved_rate_is_one_number() -> None:
    found = [check(c, "G2", "achieved rate") for c in each(tiers=SERVERS)]
    assert {f["status"] for f in found} == {"passed"} and len({f["statistic"] for f in found}) == 1


# A/A -------------------------------------------------------------------------------------------------------------


def test_requests_of_one_second_are_one_unit() -> None:
    """8 blocks of 100 requests in one second: released, tier 4 passed with p = .0003 and tier 3 had .92."""
    found = [check(c, "G2", "A/A") for c in (assess(head(t, seeds=8), blocks(t)) for t in SERVERS)]
    assert {f["status"] for f in found} == {"undecidable"}
    assert len({f["statistic"] for f in found}) == 1 and found[0]["statistic"] > 0.9
    assert "8 seconds" in found[0]["reason"]


def test_drift_between_the_first_and_the_last_idle_replay() -> None:
    def drifting(m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
        last = arm == NO_SYNC and draw == IDLE - 1
        return unserved(m, np.arange(40 + seed)) if last else m

    found = [check(c, "G2", "A/A") for c in each(drifting, SERVERS)]
    assert {f["status"] for f in found} == {"failed"} and len({f["statistic"] for f in found}) == 1


# Load and tokens --------------------------------------------------------------------------------------------------


def test_fewer_tokens_than_asked_fail_in_every_arm_and_tier() -> None:
    def shorter(m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
        return replace(m, output_tokens=np.where(m.output_tokens > 0, np.maximum(m.output_tokens - 1, 1), 0))

    assert {check(c, "G2", "tokens served")["status"] for c in each(shorter)} == {"failed"}


def test_another_load_in_one_arm_fails_at_every_tier() -> None:
    def moved(m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
        return replace(m, prompt_tokens=m.prompt_tokens + 1) if arm == NO_SYNC and draw == 0 else m

    assert {check(c, "G2", "offered load")["status"] for c in each(moved)} == {"failed"}


def test_an_unreachable_slo_is_undecidable_at_every_tier() -> None:
    for c in each(lambda m, *where: unserved(m, np.arange(len(m)))):
        assert check(c, "G2", "no-sync baseline")["status"] == "undecidable"


def test_a_row_without_outcome_is_no_complete_run() -> None:
    def odd(m: Measurements, *where: Any) -> Measurements:
        return replace(m, outcome=np.where(np.arange(len(m)) == 0, 7, m.outcome).astype(np.int8))

    assert {check(c, "G0", "completeness")["status"] for c in each(odd)} == {"failed"}


def test_a_seed_too_few_is_undecidable_at_every_tier() -> None:
    for tier in BACK_ENDS:
        certificate = assess(head(tier), evidence(tier)[:-1])
        assert check(certificate, "G0", "completeness")["status"] == "undecidable"


def test_failures_count_as_violations_at_every_tier() -> None:
    def failing(m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
        return unserved(m, np.arange(10)) if arm == POLICY else m

    calm, failed = each(), each(failing)
    losses = [b.claims[0].envelope.gain_pp - a.claims[0].envelope.gain_pp for a, b in zip(calm, failed, strict=True)]  # type: ignore[operator]
    assert max(losses) < 0 and np.ptp(losses) == pytest.approx(0, abs=1e-9)
    assert FAILED in evidence("live", failing)[0].judged[POLICY, 0].rows.outcome


def test_tiers_of_the_same_rows() -> None:
    assert [c.tier.number for c in each()] == [1, 3, 4]
    assert [len(judged(e)) for e in (evidence(t)[0] for t in SERVERS)] == [1 + IDLE + 5, 1 + IDLE + 1]
    assert isinstance(evidence("real")[0], Evidence)


@pytest.mark.parametrize("tier", SERVERS)
def test_the_load_match_needs_every_seed_it_compares(tier: str) -> None:
    asked = head(tier)
    spec = asked.spec(asked.regimes[0])
    empty = [replace(e, served=()) for e in evidence(tier)]
    assert load_match_gate(empty, spec, spec.slos[0], 0).status == "undecidable"
