"""G3: what is measured by hand, what passes, fails and cannot be decided, and poison that never passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_runs import replay_of, server_spec, session, sound, with_replays
from strategies import SLOS, S, busy, changed, coin, quiet, ran, spec_for

from protocol.evidence.model import CROSSED, OPTIMUM, PERMUTED, PESSIMUM, SHIFTED, Evidence
from protocol.evidence.order import LIVE_ORDERS
from protocol.files import canonical_json
from protocol.gates.envelope import Measured, adjusted, controls, envelope_gate, measure, standing
from protocol.gates.result import Check, GateResult
from protocol.merging.placements import Placements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.stats.gains import Adjusted, Standing
from protocol.stats.inversion import LOAD_FLIP
from protocol.workload.slo import Slo


def alone(m: Measured) -> Adjusted:
    """Its p-values as the only claim of a certificate."""
    return adjusted([m], m.spec.alpha)[0]


def test_what_is_said_of_several_claims_is_corrected_for_all_of_them() -> None:
    m = measured(list(ran()))
    chance, load = m.gains.at_zero("chance"), m.gains.at_zero("load")
    assert m.p is not None and chance is not None and load is not None
    for of_five in adjusted([m] * 5, m.spec.alpha):
        assert of_five == Adjusted(min(1, 5 * m.p), min(1, 5 * chance), min(1, 5 * load))
    # Holm's cap at 1 hides how large its step was, so the p-values against no gain take their own.
    assert standing(m, Adjusted(1.0, 0.051, 0.001)) == Standing.NOT_CHANCE
    assert standing(m, Adjusted(1.0, 0.05, 0.051)) == Standing.NOT_LOAD
    assert standing(m, Adjusted(1.0, 0.05, 0.05)) == Standing.BELOW_MINIMUM


def measured(found: list[Evidence], **changes: Any) -> Measured:
    return measure(found, spec_for(found, **changes), 0)


def gated(found: list[Evidence], **changes: Any) -> GateResult:
    m = measured(found, **changes)
    canonical_json(m.to_json(alone(m)))  # whatever happens, it can be written
    gate = envelope_gate(m, alone(m))
    canonical_json([vars(check) for check in gate.checks])
    return gate


def p_of(m: Measured, name: str) -> float | None:
    return next(t.outcome.pvalue for t in m.gains.tests if t.name == name)


def placement(gate: GateResult) -> Check:
    assert gate.checks[0].name == "placement"
    return gate.checks[0]


def costing(e: Evidence, **violations: object) -> Evidence:
    """The same placements at other prices; one number stands for all rows."""
    placed = dict(e.placed)
    for arm, values in violations.items():
        p = placed[arm]
        prices = np.broadcast_to(np.asarray(values).reshape(-1, 1), (len(p), 1))
        placed[arm] = Placements(p.lengths, p.gaps, prices)
    return changed(e, placed=placed)


def priced(price: Callable[[Evidence, str, np.random.Generator], object]) -> list[Evidence]:
    """The quiet scheduler's run with the violations of every arm replaced by `price(seed, arm, rng)`."""
    found = []
    for e in ran():
        rng = np.random.default_rng(e.seed)
        arms = (POLICY, NO_SYNC, UNIFORM, PERMUTED, SHIFTED, OPTIMUM, PESSIMUM, CROSSED)
        placed = dict(e.placed)
        for arm in arms:
            p = placed[arm]
            values = np.broadcast_to(np.asarray(price(e, arm, rng)).reshape(-1, 1), (len(p), 1))
            placed[arm] = Placements(p.lengths, p.gaps, values)
        found.append(changed(e, placed=placed))
    return found


def test_figures_by_hand() -> None:
    m = measured(list(ran()))
    out = m.to_json(Adjusted(0.01))
    policy, gains, ranks = [], [], []
    for e in ran():
        idle = int(e.placed[NO_SYNC].violations[0, 0])
        own = 100 * (int(e.placed[POLICY].violations[0, 0]) - idle) / e.n_requests
        draws = 100 * (e.placed[UNIFORM].violations[:, 0] - idle) / e.n_requests
        policy.append(own)
        gains.append(float(draws.mean() - own))
        ranks.append(1 + int((draws <= own).sum()))
    assert out["gain_pp"] == pytest.approx(np.mean(gains))
    assert out["policy_excess_pp"] == pytest.approx(np.mean(policy))
    assert out["control_excess_pp"] == pytest.approx(np.mean(policy) + np.mean(gains))
    assert [s["rank"] for s in out["per_seed"]] == ranks and {s["of"] for s in out["per_seed"]} == {20}
    assert [s["policy"] for s in out["per_seed"]] == pytest.approx(policy)
    assert (out["n_seeds"], out["n_draws"], out["p_holm"]) == (10, 19, 0.01)
    saved = np.mean([g * e.n_requests / 100 for g, e in zip(gains, ran(), strict=True)]) * 600 / 120
    assert out["requests_saved_per_sidecar_per_10_min"] == pytest.approx(saved)
    excess = [int(e.placed[POLICY].violations[0, 0] - e.placed[NO_SYNC].violations[0, 0]) for e in ran()]
    merges = [len(e.placed[POLICY].gaps) for e in ran()]
    assert out["policy_violations_per_merge"] == pytest.approx(sum(excess) / sum(merges))
    ps = {t["name"]: t["p"] for t in out["tests"]}
    of_chance, of_load = ["stratified randomisation", "paired sign flip"], ["exchange between traces", LOAD_FLIP]
    assert list(ps) == of_chance + of_load
    assert out["p"] == max(ps.values()) == ps[out["decided_by"]]
    assert out["optimum_gain_pp"] > out["gain_pp"] > 0
    assert out["gain_captured"] == pytest.approx(out["gain_pp"] / out["optimum_gain_pp"])
    idle_rate = [100 * e.placed[NO_SYNC].violations[0, 0] / e.n_requests for e in ran()]
    assert out["no_sync_violation_pct"] == pytest.approx(np.mean(idle_rate))


def exchanged_by_hand() -> np.ndarray:
    """[s, t]: pp of excess on trace s of the schedule made on trace t, per merge of that, for the merges made on s."""
    return np.array(
        [
            [100 * (v - e.placed[NO_SYNC].violations[0, 0]) / k * len(e.placed[POLICY].gaps) / e.n_requests for v, k in
             zip(e.placed[CROSSED].violations[:, 0], e.placed[CROSSED].lengths, strict=True)]
            for e in ran()
        ]
    )  # fmt: skip


def test_crossed_costs_by_hand() -> None:
    """Own schedules, at the policy's own number of merges, against all ways to deal them out."""
    cost = exchanged_by_hand()
    rng = np.random.default_rng(1)
    dealt = np.array([cost[np.arange(10), rng.permutation(10)].sum() for _ in range(4000)])
    p = float((dealt <= np.trace(cost) + 1e-12).mean())
    found = p_of(measured(list(ran())), "exchange between traces")
    assert found is not None and found == pytest.approx(p, abs=0.01)


def test_the_gain_from_following_the_load_by_hand() -> None:
    cost = exchanged_by_hand()
    others = (cost.sum(axis=1) - np.diagonal(cost)) / 9
    out = measured(list(ran())).to_json(Adjusted(0.01))
    assert out["load_gain_pp"] == pytest.approx((others - np.diagonal(cost)).mean())
    low, high = out["load_interval_pp"]
    assert low < out["load_gain_pp"] < high and low <= out["load_lower_bound_pp"] and not out["load_gain_simulated"]
    # What a schedule gains anywhere is a clock's: the rest follows the load.
    placebo = next(c for c in out["controls"] if c["name"] == "placebo")
    assert out["gain_pp"] - out["load_gain_pp"] == pytest.approx(placebo["gain_pp"])


def test_the_diagonal_of_the_exchange_is_the_policy() -> None:
    for e in ran():
        assert e.placed[CROSSED].violations[e.seed, 0] == e.placed[POLICY].violations[0, 0]
        assert e.placed[CROSSED].rows()[e.seed].tolist() == e.placed[POLICY].gaps.tolist()


def test_it_passes_who_looks_and_fails_who_does_not() -> None:
    gate = gated(list(ran(quiet)))
    assert gate.status == "passed" and [c.name for c in gate.checks] == ["placement", "load-aware"]
    assert gated(list(ran(coin))).status == gated(list(ran(busy))).status == "failed"
    found = {c["name"]: c for c in controls(measured(list(ran(quiet))))}
    assert list(found) == [UNIFORM, PERMUTED, SHIFTED, "unrelated-trace", "placebo"]
    assert [name for name, c in found.items() if c["gates"]] == [UNIFORM, "unrelated-trace"]
    assert found[UNIFORM]["says"] == "better than chance"
    assert found["unrelated-trace"]["says"] == "the schedules follow the load"


def test_a_minimum_effect_must_be_exceeded() -> None:
    """By both gains: p of every test at that effect, which is what its lower bound exceeds or not."""
    gains = measured(list(ran())).gains
    assert gains.chance is not None and gains.load is not None
    bound = min(gains.chance.lower_bound, gains.load.lower_bound)
    assert bound > 1
    assert gated(list(ran()), min_effect_pp=bound - 0.1).status == "passed"
    for effect in (bound + 0.1, 1000.0):
        m = measured(list(ran()), min_effect_pp=effect)
        gate = envelope_gate(m, alone(m))
        assert gate.status == "failed" and standing(m, alone(m)) == Standing.BELOW_MINIMUM
        assert f"{Standing.BELOW_MINIMUM}; Holm p = " in gate.reason
        assert f"at a minimum effect of {effect:g} pp" in gate.reason
        assert m.p is not None and m.p > 0.05 and all(t.at_zero <= 0.05 for t in m.gains.tests)


def test_a_gain_from_the_gaps_alone_fails_with_its_reason() -> None:
    """Cheaper than every draw, but equally cheap on every trace."""

    def price(e: Evidence, arm: str, rng: np.random.Generator) -> object:
        if arm == UNIFORM:
            return rng.integers(120, 200, 19)
        # Per merge the same everywhere: 4 violations a merge above 20.
        return 20 + 4 * e.placed[arm].lengths if arm in (POLICY, CROSSED) else 20

    m = measured(priced(price))
    gate = envelope_gate(m, alone(m))
    assert gate.status == "failed" and standing(m, alone(m)) == Standing.NOT_LOAD
    assert str(Standing.NOT_LOAD) in gate.reason and "decided by the exchange between traces" in gate.reason
    assert gate.checks[1].name == "load-aware" and gate.checks[1].status == "failed"
    out = m.to_json(alone(m))
    assert out["gain_pp"] > 1 and out["load_gain_pp"] == pytest.approx(0.0, abs=1e-9)


def test_holm_decides_not_the_raw_p() -> None:
    m = measured(list(ran()))
    assert placement(envelope_gate(m, Adjusted(0.05))).status == "passed"
    gate = envelope_gate(m, Adjusted(0.0500001))
    assert placement(gate).status == "failed" and "Holm p = 0.05" in gate.reason
    assert envelope_gate(m, Adjusted(None)).status == "undecidable"


def test_a_level_is_of_the_claim_and_of_the_load_check_alike() -> None:
    """At 5 % it follows the load, at a level below that p it does not."""
    gate = gated(list(ran()))
    p = gate.checks[1].statistic
    assert p is not None and gate.checks[1].threshold == 0.05 and 0 < p <= 0.05


def test_the_bound_without_a_shape_decides_only_if_asked() -> None:
    found = list(ran())
    spec = spec_for(found)
    plain, bounded = measure(found, spec, 0), measure(found, spec, 0, bounded=True)
    assert len(plain.gains.tests) == 4 and plain.gains.bounded is not None
    assert [t.name for t in bounded.gains.tests][:4] == [t.name for t in plain.gains.tests]
    assert len(bounded.gains.tests) == 5 and bounded.p is not None and plain.p is not None
    assert bounded.p == max(plain.p, plain.gains.bounded.outcome.pvalue or 1.0)
    out = plain.to_json(alone(plain))
    assert out["bounded_lower_bound_pp"] is not None and out["bounded_lower_bound_pp"] < out["lower_bound_pp"]
    without = [changed(e, placed={a: p for a, p in e.placed.items() if a != PESSIMUM}) for e in found]
    gate = envelope_gate(measure(without, spec, 0, bounded=True), Adjusted(None))
    assert gate.status == "undecidable" and "no worst placements" in gate.reason


def test_a_worst_seed_is_named_with_what_could_not_be_seen() -> None:
    m = measured(list(ran()))
    out = m.to_json(alone(m))
    gains = {row["seed"]: row["draw_mean"] - row["policy"] for row in out["per_seed"]}
    assert out["worst_seed"] == min(gains, key=lambda seed: gains[seed])
    assert out["worst_seed_gain_pp"] == pytest.approx(min(gains.values()))
    assert out["unseen_loss_share"] == pytest.approx(1 - 0.05**0.1)


# Too little ------------------------------------------------------------------------------------------------------


def first(n: int) -> list[Evidence]:
    """The first n seeds, exchanged among themselves only."""
    found = []
    for e in ran()[:n]:
        p = e.placed[CROSSED]
        rows = p.rows()[:n]
        crossed = Placements(p.lengths[:n], np.concatenate(rows), p.violations[:n])
        found.append(changed(e, placed={**e.placed, CROSSED: crossed}))
    return found


@pytest.mark.parametrize("n", [1, 2, 7])
def test_few_seeds_are_undecidable(n: int) -> None:
    gate = gated(first(n))
    assert gate.status == "undecidable" and gate.reason == f"{n} seeds, fewer than 8"


def test_eight_seeds_are_enough() -> None:
    assert gated(first(8)).status == "passed"


@pytest.mark.parametrize("m", [1, 4])
def test_few_draws_are_undecidable(m: int) -> None:
    found = list(ran())
    p = found[3].placed[UNIFORM]
    k = int(p.lengths[0])
    few = Placements(p.lengths[:m], p.gaps[: m * k], p.violations[:m])
    found[3] = changed(found[3], placed={**found[3].placed, UNIFORM: few})
    gate = gated(found)
    assert gate.status == "undecidable" and gate.reason == f"{m} draws in a seed, fewer than 5"


def test_a_level_that_no_data_could_reach_is_undecidable() -> None:
    """Ten seeds: the sign flip cannot go below 2^-10."""
    gate = gated(list(ran()), alpha=0.0005)
    assert gate.status == "undecidable" and "0.000977 was attainable" in gate.reason
    assert gated(list(ran()), alpha=0.001).status == "passed"


@pytest.mark.parametrize("arm", [UNIFORM, NO_SYNC, CROSSED])
def test_a_missing_arm_is_undecidable(arm: str) -> None:
    found = list(ran())
    found[2] = changed(found[2], placed={a: p for a, p in found[2].placed.items() if a != arm})
    gate = gated(found)
    assert gate.status == "undecidable" and gate.reason


@pytest.mark.parametrize("arm", [PERMUTED, SHIFTED, OPTIMUM])
def test_the_other_controls_do_not_decide(arm: str) -> None:
    found = list(ran())
    whole = measured(found).to_json(Adjusted(0.01))
    found[2] = changed(found[2], placed={a: p for a, p in found[2].placed.items() if a != arm})
    assert gated(found).status == "passed"
    out = measured(found).to_json(Adjusted(0.01))
    assert (out["p"], out["gain_pp"]) == (whole["p"], whole["gain_pp"])
    if arm == OPTIMUM:
        assert out["optimum_gain_pp"] is None and out["gain_captured"] is None
        assert out["per_seed"][2]["optimum"] is None and out["per_seed"][1]["optimum"] is not None


def test_an_incomplete_exchange_is_undecidable() -> None:
    found = list(ran())
    p = found[0].placed[CROSSED]
    fewer = Placements(p.lengths[:-1], p.gaps[: int(p.lengths[:-1].sum())], p.violations[:-1])
    found[0] = changed(found[0], placed={**found[0].placed, CROSSED: fewer})
    gate = gated(found)
    assert gate.status == "undecidable" and "has no finite cost" in gate.reason


# Poison ----------------------------------------------------------------------------------------------------------


def test_identical_draws_are_undecidable() -> None:
    gate = gated([costing(e, **{UNIFORM: 200}) for e in ran()])
    assert gate.status == "undecidable" and "all alike" in gate.reason


@pytest.mark.parametrize("share", [0, 1])
def test_no_violation_anywhere_and_all_everywhere(share: int) -> None:
    gate = gated(priced(lambda e, arm, rng: share * e.n_requests))
    assert gate.status == "undecidable"


def test_identical_draws_in_some_seeds_leave_the_others_to_decide() -> None:
    found = [costing(e, **{UNIFORM: int(e.placed[POLICY].violations[0, 0])}) if e.seed < 6 else e for e in ran()]
    assert gated(found).status == "failed"  # four seeds alone cannot reach 5 %


def test_copied_seeds_are_undecidable() -> None:
    found = list(ran())
    found[5] = changed(found[5], n_requests=found[4].n_requests, placed=dict(found[4].placed))
    gate = gated(found)
    assert gate.status == "undecidable" and gate.reason == "seeds 5 and 6 have the same values"


def test_a_policy_that_equals_every_draw_mean_does_not_pass() -> None:
    def price(e: Evidence, arm: str, rng: np.random.Generator) -> object:
        return np.resize([99, 101, 100], 19) if arm == UNIFORM else 100

    assert gated(priced(price)).status == "failed"


def test_without_any_merge_nothing_is_decided() -> None:
    found = []
    for e in ran():
        placed = {}
        for arm, p in e.placed.items():
            placed[arm] = Placements(np.zeros(len(p), np.int32), np.zeros(0, np.int32), p.violations)
        found.append(changed(e, placed=placed))
    assert gated(found).status == "undecidable"


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)  # fmt: skip
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 50, 10**6]))
def test_nothing_worse_than_its_draws_ever_passes(seed: int, spread: int) -> None:
    """Whatever the draws cost, a policy at or above their mean in every seed is not certified."""
    root = np.random.default_rng(seed)

    def price(e: Evidence, arm: str, rng: np.random.Generator) -> object:
        draws = np.random.default_rng([seed, e.seed]).integers(0, spread + 1, 19)
        if arm == UNIFORM:
            return draws
        if arm in (POLICY, CROSSED):
            return int(np.ceil(draws.mean())) + int(root.integers(0, 2))
        return 0

    assert gated(priced(price)).status != "passed"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_it_does_not_depend_on_the_order_of_the_draws(data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(19))))
    found = []
    for e in ran():
        p = e.placed[UNIFORM]
        gaps = np.stack(p.rows())[order].ravel()
        found.append(changed(e, placed={**e.placed, UNIFORM: Placements(p.lengths, gaps, p.violations[order])}))
    one, other = measured(list(ran())).to_json(Adjusted(0.01)), measured(found).to_json(Adjusted(0.01))
    assert one["gain_pp"] == pytest.approx(other["gain_pp"]) and one["p"] == pytest.approx(other["p"], abs=0.01)
    flips = [next(t["p"] for t in out["tests"] if t["name"] == "paired sign flip") for out in (one, other)]
    assert flips[0] == flips[1]


# On a real server ------------------------------------------------------------------------------------------------


def test_a_live_gain_by_hand() -> None:
    """N P N R N: each arm against the mean of the two replays without merges beside it."""
    found, slo = session(), Slo.parse(SLOS[0])
    by_hand = []
    for e in found:
        missed = [int(r.rows.violates(slo).sum()) for r in sorted(e.served, key=lambda r: r.position)]
        first, policy, middle, control, last = (100 * n / e.n_requests for n in missed)
        by_hand.append((control - (middle + last) / 2) - (policy - (first + middle) / 2))
    m = measure(found, server_spec("live", found), 0)
    assert m.gains.chance is not None and m.gains.chance.by_seed == pytest.approx(by_hand)
    out = m.to_json(alone(m))
    assert out["gain_pp"] == pytest.approx(np.mean(by_hand))
    assert out["worst_seed_gain_pp"] == pytest.approx(min(by_hand))


@pytest.mark.parametrize("idle", [3, 2])
def test_a_steady_drift_cancels(idle: int) -> None:
    """Five more slow requests in each later replay: the baseline of either arm rises along with it."""
    order = LIVE_ORDERS[idle]
    found = []
    for e in session():
        quick = next(r for r in e.served if r.arm == NO_SYNC).rows
        merges = replay_of(session(), e.seed, POLICY)
        made = []
        for place, (arm, draw) in enumerate(order):
            n = 2 + e.seed + 5 * place + (0 if arm == NO_SYNC else 30)
            e2e = np.where(np.arange(len(quick)) < n, 2 * S, S // 2)
            rows = replace(quick, e2e_ns=e2e, ttft_ns=e2e // 2)
            windows = merges.ran_ns if arm != NO_SYNC else merges.ran_ns[:0]
            made.append(Replay(rows, windows, windows, regime="toy", seed=e.seed, arm=arm, draw=draw, position=place))
        found.append(with_replays(e, made))
    m = measure(found, server_spec("live", found, idle=idle), 0)
    assert [100 * 30 / e.n_requests for e in found] == pytest.approx(m.gains.policy.tolist())
    assert m.gains.policy == pytest.approx(m.gains.draw_mean) and m.p == 1.0


def test_a_real_gain_by_hand() -> None:
    """Its replays run in random order, so the mean of both replays without merges is the baseline."""
    found, slo = sound(), Slo.parse(SLOS[0])
    gains = []
    for e in found:
        policy = replay_of(found, e.seed, POLICY).rows.violates(slo).sum()
        draws = [r.rows.violates(slo).sum() for r in e.replays(UNIFORM)]
        gains.append(100 * (np.mean(draws) - policy) / e.n_requests)
    m = measure(found, server_spec("real", found), 0)
    out = m.to_json(alone(m))
    assert out["gain_pp"] == pytest.approx(np.mean(gains)) and out["load_gain_simulated"]
    assert out["optimum_gain_pp"] is None and out["bounded_lower_bound_pp"] is None  # those are the simulator's
    simulated = measured(list(ran())).to_json(Adjusted(0.01))
    assert out["load_gain_pp"] == pytest.approx(simulated["load_gain_pp"])
    idle = [np.mean([r.rows.violates(slo).mean() for r in e.replays(NO_SYNC)]) for e in found]
    assert out["no_sync_violation_pct"] == pytest.approx(100 * np.mean(idle))


def test_few_blocks_say_what_was_seen_all_the_same() -> None:
    found = session(blocks=3)
    m = measure(found, server_spec("live", found), 0)
    gate = envelope_gate(m, alone(m))
    assert gate.status == "undecidable" and "3 seeds, fewer than 8" in gate.reason
    assert m.to_json(Adjusted(None))["gain_pp"] == pytest.approx(float(np.mean(m.gains.draw_mean - m.gains.policy)))
