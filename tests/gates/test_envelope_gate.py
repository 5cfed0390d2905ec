"""G3: what is measured by hand, what passes, fails and cannot be decided, and poison that never passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import CORRIDOR, busy, changed, coin, quiet, ran

from protocol.evidence.store import (
    CROSSED,
    NO_SYNC,
    OPTIMUM,
    PERMUTED,
    POLICY,
    SHIFTED,
    UNIFORM,
    Placements,
    SeedEvidence,
)
from protocol.files import canonical_json
from protocol.gates.envelope import Measured, envelope_gate, measure
from protocol.gates.result import GateResult


def measured(found: list[SeedEvidence], alpha: float = 0.05) -> Measured:
    return measure(found, 0, CORRIDOR, islands=1, root_seed=7, alpha=alpha)


def gated(found: list[SeedEvidence], alpha: float = 0.05, min_effect_pp: float = 0.0) -> GateResult:
    m = measured(found, alpha)
    canonical_json(m.to_json(m.p))  # whatever happens, it can be written
    gate = envelope_gate(m, m.p, alpha, min_effect_pp)
    canonical_json([vars(check) for check in gate.checks])
    return gate


def costing(e: SeedEvidence, **violations: object) -> SeedEvidence:
    """The same placements at other prices; one number stands for all rows."""
    placed = dict(e.placed)
    for arm, values in violations.items():
        p = placed[arm]
        prices = np.broadcast_to(np.asarray(values).reshape(-1, 1), (len(p), 1))
        placed[arm] = Placements(p.lengths, p.gaps, prices)
    return changed(e, placed=placed)


def priced(price: Callable[[SeedEvidence, str, np.random.Generator], object]) -> list[SeedEvidence]:
    """The quiet scheduler's run with the violations of every arm replaced by `price(seed, arm, rng)`."""
    found = []
    for e in ran():
        rng = np.random.default_rng(e.seed)
        arms = (POLICY, NO_SYNC, UNIFORM, PERMUTED, SHIFTED, OPTIMUM, CROSSED)
        placed = dict(e.placed)
        for arm in arms:
            p = placed[arm]
            values = np.broadcast_to(np.asarray(price(e, arm, rng)).reshape(-1, 1), (len(p), 1))
            placed[arm] = Placements(p.lengths, p.gaps, values)
        found.append(changed(e, placed=placed))
    return found


def test_figures_by_hand() -> None:
    m = measured(list(ran()))
    out = m.to_json(0.01)
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
    assert out["p"] == max(out["p_stratified"], out["p_sign_flip"], out["p_crossed"])
    assert out["optimum_gain_pp"] > out["gain_pp"] > 0
    assert out["gain_captured"] == pytest.approx(out["gain_pp"] / out["optimum_gain_pp"])
    idle_rate = [100 * e.placed[NO_SYNC].violations[0, 0] / e.n_requests for e in ran()]
    assert out["no_sync_violation_pct"] == pytest.approx(np.mean(idle_rate))


def test_crossed_costs_by_hand() -> None:
    """Own schedules per merge against all ways to deal them out."""
    cost = np.array(
        [
            [(v - e.placed[NO_SYNC].violations[0, 0]) / k / e.n_requests for v, k in
             zip(e.placed[CROSSED].violations[:, 0], e.placed[CROSSED].lengths, strict=True)]
            for e in ran()
        ]
    )  # fmt: skip
    rng = np.random.default_rng(1)
    dealt = np.array([cost[np.arange(10), rng.permutation(10)].sum() for _ in range(4000)])
    p = float((dealt <= np.trace(cost) + 1e-12).mean())
    found = measured(list(ran())).independence.pvalue
    assert found is not None and found == pytest.approx(p, abs=0.01)


def test_the_diagonal_of_the_exchange_is_the_policy() -> None:
    for e in ran():
        assert e.placed[CROSSED].violations[e.seed, 0] == e.placed[POLICY].violations[0, 0]
        assert e.placed[CROSSED].rows()[e.seed].tolist() == e.placed[POLICY].gaps.tolist()


def test_it_passes_who_looks_and_fails_who_does_not() -> None:
    gate = gated(list(ran(quiet)))
    assert gate.status == "passed" and [c.name for c in gate.checks] == ["placement", "effect", "load-aware"]
    assert gated(list(ran(coin))).status == gated(list(ran(busy))).status == "failed"
    controls = {c["name"]: c for c in measured(list(ran(quiet))).controls}
    assert list(controls) == [UNIFORM, PERMUTED, SHIFTED, "unrelated-trace", "placebo"]
    assert [name for name, c in controls.items() if c["gates"]] == [UNIFORM, "unrelated-trace"]
    assert controls[UNIFORM]["says"] == "better than chance"
    assert controls["unrelated-trace"]["says"] == "the schedules follow the load"


def test_a_minimum_effect_must_be_exceeded() -> None:
    bound = measured(list(ran())).tests.lower_bound
    assert bound is not None and bound > 1
    assert gated(list(ran()), min_effect_pp=bound - 0.01).status == "passed"
    for effect in (bound, bound + 0.01, 1000.0):
        gate = gated(list(ran()), min_effect_pp=effect)
        assert gate.status == "failed" and gate.reason.startswith("lower bound of the gain")


def test_a_gain_from_the_gaps_alone_fails_with_its_reason() -> None:
    """Cheaper than every draw, but equally cheap on every trace."""

    def price(e: SeedEvidence, arm: str, rng: np.random.Generator) -> object:
        if arm == UNIFORM:
            return rng.integers(120, 200, 19)
        # Per merge the same everywhere: 4 violations a merge above 20.
        return 20 + 4 * e.placed[arm].lengths if arm in (POLICY, CROSSED) else 20

    gate = gated(priced(price))
    assert gate.status == "failed" and "not from looking at the load" in gate.reason
    assert gate.checks[2].name == "load-aware" and gate.checks[2].status == "failed"


def test_holm_decides_not_the_raw_p() -> None:
    m = measured(list(ran()))
    assert envelope_gate(m, 0.05, 0.05, 0.0).checks[0].status == "passed"
    gate = envelope_gate(m, 0.0500001, 0.05, 0.0)
    assert gate.checks[0].status == "failed" and "Holm p = 0.05" in gate.reason
    assert envelope_gate(m, None, 0.05, 0.0).status == "undecidable"


# Too little ------------------------------------------------------------------------------------------------------


def first(n: int) -> list[SeedEvidence]:
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
    whole = measured(found).to_json(0.01)
    found[2] = changed(found[2], placed={a: p for a, p in found[2].placed.items() if a != arm})
    assert gated(found).status == "passed"
    out = measured(found).to_json(0.01)
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
    def price(e: SeedEvidence, arm: str, rng: np.random.Generator) -> object:
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

    def price(e: SeedEvidence, arm: str, rng: np.random.Generator) -> object:
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
    one, other = measured(list(ran())).to_json(0.01), measured(found).to_json(0.01)
    assert one["gain_pp"] == pytest.approx(other["gain_pp"]) and one["p_sign_flip"] == other["p_sign_flip"]
    assert one["p_stratified"] == pytest.approx(other["p_stratified"], abs=0.01)
