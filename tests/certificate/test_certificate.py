"""Verdict, tier and sentence from evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import (
    FunctionSource,
    PlanSource,
    changed,
    coin,
    head_for,
    plan_of,
    quiet,
    ran,
    setting,
    write_folder,
)

from protocol.campaign import run as campaign
from protocol.campaign.plan import Plan
from protocol.certificate.assess import assess
from protocol.certificate.model import TIERS, Certificate, Claim, Head, TierPart, plain
from protocol.certificate.verify import verify
from protocol.errors import BadInput
from protocol.evidence import store as evidence
from protocol.evidence.model import Evidence
from protocol.files import canonical_json
from protocol.merging.corridor import Corridor
from protocol.merging.placements import Placements
from protocol.merging.schedule import Schedule
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.workload.trace import RequestTrace

SOURCE = FunctionSource(quiet)
#: p95 of exposed over unexposed requests, run by run, of a server on which merges are felt.
RATIOS = [1.7, 1.62, 1.75, 1.68, 1.81]


def judged(found: Sequence[Evidence], head: Head | None = None) -> Certificate:
    certificate = assess(head or head_for(SOURCE, [setting()]), found)
    canonical_json(plain(certificate))
    return certificate


def changed_head(head: Head, change: Callable[[dict[str, Any]], None]) -> Head:
    """The same question with something edited."""
    values = head.plain()
    change(values)
    return Head.model_validate(values)


def renamed(found: tuple[Evidence, ...], regime: str) -> list[Evidence]:
    return [changed(e, regime=regime) for e in found]


def two_regimes(one: Any = quiet, other: Any = coin) -> tuple[Head, list[Evidence]]:
    head = head_for(SOURCE, [setting("good"), setting("bad")])
    return head, renamed(ran(one), "good") + renamed(ran(other), "bad")


def statuses(claim: Claim) -> dict[str, str]:
    return {g.gate: g.status for g in claim.gates}


def agreeing() -> list[dict[str, Any]]:
    """Runs of a calibration on which server and model agree: 25 violations a merge, 2 % without."""
    rows = []
    for k in range(8):
        merges, seen = (2, 70 + k % 3) if k % 2 else (0, 20 + k % 3)
        counts = {"requests": 1000, "merges": merges, "violations": seen, "simulated_violations": 70 if merges else 20}
        rows.append({"run": f"run {k}", "load": "a", **counts})
    return rows


def calibrated(head: Head, ratios: list[float], *servers: str) -> Head:
    """With a calibration of these ratios behind every regime, of servers by regime."""
    runs = [
        {"exposed_p95_ms": 400 * r, "unexposed_p95_ms": 400, "exposed": 99, "unexposed": 99,
         "simulated_exposed_p95_ms": 300 * r * f, "simulated_unexposed_p95_ms": 300}
        for r, f in zip(ratios, np.resize([1.01, 0.99, 1.0], len(ratios)), strict=True)
    ]  # fmt: skip
    named = servers or ("vLLM 0.32",) * len(head.regimes)

    def change(values: dict[str, Any]) -> None:
        for regime, server in zip(values["regimes"], named, strict=True):
            stated = {"server": server, "date": "2026-01-02", "runs": runs} if server else None
            regime["sidecar"] = {"name": "fitted", "calibrated": bool(server), "calibration": stated}
            if server:  # it speaks for every load and limit
                wide = dict.fromkeys(
                    ("rate_per_s", "in_flight", "prompt_tokens", "output_tokens", "merge_s"), (0.0, 1e9)
                )
                regime["sidecar"] |= {"support": wide, "agreement": dict.fromkeys(regime["slos"], agreeing())}

    return changed_head(head, change)


def test_pass_on_the_uncalibrated_sidecar_is_tier_1() -> None:
    c = judged(list(ran()))
    assert c.verdict == "PASS" and c.tier == TierPart(number=1, name="stress harness", upper_bound=False)
    assert c.sentence.startswith(
        "toy-scheduler beats matched random placement of the same number of merges in a repeatable benchmark on the "
        "uncalibrated simulated sidecar toy: toy ("
    )
    expected = {"G0": "passed", "G1": "undecidable", "G2": "passed", "G3": "passed", "G4": "passed"}
    assert statuses(c.claims[0]) == expected and list(statuses(c.claims[0])) == list(expected)
    assert c.claims[0].reason == "every gate passed"


def test_seed_summaries_by_hand() -> None:
    c = judged(list(ran()))
    for e, row in zip(ran(), plain(c)["regimes"][0]["seeds"], strict=True):
        merges = len(e.placed[POLICY].gaps)
        assert row == {
            "seed": e.seed, "trace_digest": e.trace_digest, "requests": e.n_requests,
            "prompt_tokens": e.prompt_tokens, "output_tokens": e.output_tokens, "merges": merges, "forced": e.forced,
            "busy_s": 2.0 * merges, "inner_steps": (120 - 2 * merges) * 4, "asked": len(e.decided_ns),
        }  # fmt: skip


def test_pass_with_transfer_is_tier_2_and_names_the_server() -> None:
    head = calibrated(head_for(SOURCE, [setting()]), RATIOS)
    c = judged(list(ran()), head)
    assert (c.verdict, c.tier.number, c.tier.name) == ("PASS", 2, TIERS[2])
    said = "under a sidecar model calibrated on vLLM 0.32 serving an unnamed model on unnamed hardware at 2026-01-02"
    assert said in c.sentence


def test_another_level_is_said() -> None:
    head = head_for(SOURCE, [setting()], alpha=0.5)
    assert judged(ran(), head).sentence.endswith(" This was judged at level 0.5, not at 0.05.")


@pytest.mark.parametrize("ratios", [[1.0, 1.01, 0.99, 1.0, 1.005], [1.7, 1.6]])
def test_without_transfer_serving_is_not_spoken_of(ratios: list[float]) -> None:
    """The claim of the benchmark stays; the calibrated tier does not."""
    c = judged(list(ran()), calibrated(head_for(SOURCE, [setting()]), ratios))
    assert (c.verdict, c.tier.number) == ("PASS", 1)
    assert "vLLM" not in c.sentence and "in a repeatable benchmark" in c.sentence


def test_a_sidecar_described_with_no_calibration_at_all() -> None:
    def none(values: dict[str, Any]) -> None:
        values["regimes"][0]["sidecar"]["calibration"] = None

    assert judged(ran(), changed_head(head_for(SOURCE, [setting()]), none)).tier.number == 1


def test_the_servers_named_are_those_of_the_regimes_won() -> None:
    head, found = two_regimes()
    c = judged(found, calibrated(head, RATIOS, "vLLM 0.32", "another server"))
    assert c.tier.number == 2 and "vLLM 0.32" in c.sentence and "another server" not in c.sentence


def test_fail() -> None:
    c = judged(list(ran(coin)), head_for(FunctionSource(coin), [setting()]))
    assert (c.verdict, c.tier.number) == ("FAIL", 1)
    assert c.sentence == (
        "Nothing is licensed about toy-scheduler: with the same number of merges, its placement was not shown to beat "
        "matched random placement in toy."
    )
    assert c.claims[0].reason.startswith("G3 matched random-deferral envelope: gain ")


def test_a_fail_for_another_reason_than_placement_says_that_reason() -> None:
    found = list(ran())
    m = found[0].simulated[POLICY].rows
    tokens = m.prompt_tokens.copy()
    tokens[0] += 1
    policy = replace(found[0].simulated[POLICY], rows=replace(m, prompt_tokens=tokens))
    found[0] = changed(found[0], simulated={**found[0].simulated, POLICY: policy})
    c = judged(found)
    assert c.verdict == "FAIL" and statuses(c.claims[0])["G3"] == "passed"
    assert c.sentence == (
        "Nothing is licensed about toy-scheduler: G2 no-sync load match: seed 0, no-sync 0: prompt_tokens differs "
        "from the policy's."
    )


def test_too_few_seeds_are_inconclusive() -> None:
    few = [setting(n_seeds=3)]
    found = campaign.run(plan_of(SOURCE), few, jobs=1)
    c = judged(found, head_for(SOURCE, few))
    assert (c.verdict, c.tier.number) == ("INCONCLUSIVE", 1)
    why = "G3 matched random-deferral envelope: 3 seeds, fewer than 8"
    assert c.sentence.startswith(f"Nothing is licensed about toy-scheduler yet: {why}.")
    assert c.claims[0].envelope.p is None and c.claims[0].envelope.p_holm is None


def test_broken_integrity_refuses_everything() -> None:
    head, found = two_regimes(quiet, quiet)
    found[13] = changed(found[13], replay_difference="request 1: e2e_ns differs between the run and its replay")
    c = judged(found, head)
    assert c.claims[0].verdict == "PASS" and c.claims[1].verdict == "FAIL"
    assert c.verdict == "FAIL" and c.tier == TierPart(number=0, name="refused", upper_bound=False)
    assert c.sentence == (
        "Nothing is licensed about toy-scheduler: G0 integrity: seed 3: request 1: e2e_ns differs between the run and "
        "its replay."
    )


def test_one_regime_won_and_one_lost() -> None:
    head, found = two_regimes()
    c = judged(found, head)
    assert [x.verdict for x in c.claims] == ["PASS", "FAIL"] and c.verdict == "PASS"
    assert "toy: good (" in c.sentence and c.sentence.endswith("Nothing is licensed for bad.")


def test_a_tier_belongs_to_a_claim_and_another_regime_takes_nothing_from_it() -> None:
    """What one regime showed stays, whatever is added: one without the effect, or without any calibration."""
    alone = judged(renamed(ran(), "good"), calibrated(head_for(SOURCE, [setting("good")]), RATIOS))
    assert [c.tier.number for c in alone.claims] == [2]
    head, found = two_regimes(quiet, quiet)
    for ratios in ([1.0, 1.01, 0.99, 1.0, 1.005], None):

        def weaker(values: dict[str, Any], ratios: list[float] | None = ratios) -> None:
            stated = values["regimes"][1]["sidecar"]
            if ratios is None:
                values["regimes"][1]["sidecar"] = {"name": "toy", "calibrated": False}
                return
            stated["calibration"]["runs"] = [
                {**run, "exposed_p95_ms": run["unexposed_p95_ms"] * r}
                for run, r in zip(stated["calibration"]["runs"], ratios, strict=True)
            ]

        both = judged(found, changed_head(calibrated(head, RATIOS), weaker))
        assert [(c.verdict, c.tier.number) for c in both.claims] == [("PASS", 2), ("PASS", 1)]
        assert both.tier.number == 2 and both.claims[1].status("G1") != "passed"
        calibrated_part, benchmark = both.sentence.split("toy-scheduler beats ")[1:]
        assert "calibrated on vLLM 0.32" in calibrated_part and "good (" in calibrated_part
        assert "bad (" not in calibrated_part and "bad (" in benchmark and "repeatable benchmark" in benchmark


def test_holm_over_the_claims_of_one_certificate() -> None:
    head, found = two_regimes()
    envelopes = [x.envelope for x in judged(found, head).claims]
    assert envelopes[0].p < envelopes[1].p
    assert envelopes[0].p_holm == pytest.approx(2 * envelopes[0].p)
    assert envelopes[1].p_holm == pytest.approx(min(1.0, max(envelopes[1].p, 2 * envelopes[0].p)))
    assert judged(ran()).claims[0].envelope.p_holm == envelopes[0].p


def test_an_undecided_regime_stays_in_the_family() -> None:
    head, found = two_regimes()
    found = [
        changed(e, placed={a: p for a, p in e.placed.items() if a != UNIFORM or e.regime == "good"}) for e in found
    ]
    c = judged(found, head)
    assert c.claims[0].envelope.p_holm == pytest.approx(2 * c.claims[0].envelope.p)


def test_several_objectives_are_claims_of_their_own() -> None:
    both = [setting(slos=("e2e<=1s", "ttft<=10s"))]
    found = campaign.run(plan_of(SOURCE), both, jobs=1)
    c = judged(found, head_for(SOURCE, both))
    assert [x.slo for x in c.claims] == ["e2e<=1000ms", "ttft<=10000ms"]
    assert [x.verdict for x in c.claims] == ["PASS", "INCONCLUSIVE"]
    assert c.verdict == "PASS" and c.sentence.endswith("Nothing is licensed for toy (ttft<=10000ms).")
    # Another objective beside it changes nothing but the correction, and what could have been detected after it.
    also = {"p_holm", "detectable_gain_pp", "power_curve"}
    first, alone = ({k: v for k, v in plain(x.claims[0].envelope).items() if k not in also} for x in (c, judged(ran())))
    assert first == alone


def best_planned(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
    """The least loaded moments of a trace that it may see."""
    low, high = corridor.sum_range(budget)
    starts = np.arange(high + 1)[None, :] * corridor.grid_ns + np.arange(budget)[:, None] * corridor.merge_ns
    ends = np.searchsorted(trace.arrival_ns, starts + corridor.merge_ns)
    cost = (ends - np.searchsorted(trace.arrival_ns, starts)).astype(float)
    return Schedule.all_islands(corridor.start_ns(corridor.optimum(budget, cost)), corridor.merge_ns)


def test_a_planner_claims_an_upper_bound_only() -> None:
    source = PlanSource(best_planned)
    found = campaign.run(plan_of(source), [setting()], jobs=1)
    c = judged(found, head_for(source, [setting()]))
    assert c.verdict == "PASS" and c.tier.upper_bound is True
    assert c.sentence.startswith("As an upper bound that no deployable scheduler may claim, toy-planner beats ")
    captured = c.claims[0].envelope.gain_captured
    assert captured == pytest.approx(1.0, abs=0.01)  # it is the optimum


def test_the_head_comes_back_out() -> None:
    head, found = two_regimes()
    assert judged(found, head).head() == head and judged(found, head).head().plain() == head.plain()


def test_evidence_in_any_order_and_through_the_files_gives_the_same_bytes(tmp_path: Path) -> None:
    head, found = two_regimes()
    text = canonical_json(plain(judged(found, head)))
    assert canonical_json(plain(judged(found[::-1], head))) == text
    evidence.write(found, tmp_path)
    again = Head.model_validate_json(canonical_json(head.plain()), strict=True)
    assert canonical_json(plain(assess(again, evidence.read(tmp_path)))) == text


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing() -> None:
    """Half a minute on a busy machine: the workers import everything anew."""
    pickled = Plan(_open, "toy", 7, 19, control_draws=5, probes=1)
    few = [setting(n_seeds=2)]
    one, other = (campaign.run(pickled, few, jobs=n) for n in (1, 2))
    head = head_for(SOURCE, few)
    assert judged(one, head) == judged(other, head)


def _open() -> FunctionSource:
    return FunctionSource(quiet)


def test_missing_seeds_and_arms_are_refused() -> None:
    found = list(ran())
    for broken in (found[1:], [*found, found[0]], [changed(found[0], seed=1), *found[1:]]):
        with pytest.raises(BadInput, match="expected seeds 0 to at most 9"):
            judged(broken)
    # What was not run at all is no fault of shape: the gates say how much is missing.
    for fewer in (found[:-1], []):
        assert judged(fewer).verdict == "INCONCLUSIVE"
    e = found[3]
    without = [*found[:3], changed(e, placed={a: p for a, p in e.placed.items() if a != POLICY}), *found[4:]]
    with pytest.raises(BadInput, match="toy, seed 3: found not exactly one schedule"):
        judged(without)
    p = e.placed[UNIFORM]
    wide = Placements(p.lengths, p.gaps, np.tile(p.violations, 2))
    with pytest.raises(BadInput, match="seed 3, uniform"):
        judged([*found[:3], changed(e, placed={**e.placed, UNIFORM: wide}), *found[4:]])


def fewer_draws(e: Evidence, n: int) -> Evidence:
    p = e.placed[UNIFORM]
    cut = Placements(p.lengths[:n], p.gaps[: int(p.lengths[:n].sum())], p.violations[:n])
    return changed(e, placed={**e.placed, UNIFORM: cut})


def test_lost_draws_never_pass() -> None:
    """As many as were asked for; where drawing may stop early, only if the rule that was fixed did stop it."""
    found = list(ran())
    with pytest.raises(BadInput, match="seed 3, uniform: found 18 draws; expected 19, as asked"):
        judged([*found[:3], fewer_draws(found[3], 18), *found[4:]])
    head = head_for(SOURCE, [setting()], sequential=True)
    assert judged(found, head).verdict == "PASS"
    c = judged([fewer_draws(e, 12) for e in found], head)
    assert c.verdict == "INCONCLUSIVE" and "12 draws, fewer than the 19 declared" in c.sentence
    lost = [fewer_draws(e, 12) for e in ran(coin)]
    assert judged(lost, head).verdict == "FAIL"
    head = head_for(SOURCE, [setting()], sequential=True, draws=18)
    with pytest.raises(BadInput, match="found 19 draws"):
        judged(found, head)


def test_sequential_drawing_stops_for_who_is_lost_and_not_for_who_wins() -> None:
    for function, draws, verdict in ((quiet, 120, "PASS"), (coin, 49, "FAIL")):
        source = FunctionSource(function)
        plan = Plan(lambda s=source: s, "toy", 7, 120, control_draws=2, sequential=True)  # type: ignore[misc]
        assert plan.batches == (49, 50, 21)
        found = campaign.run(plan, [setting(n_seeds=8)], jobs=1)
        assert {len(e.placed[UNIFORM]) for e in found} == {draws}
        head = head_for(source, [setting(n_seeds=8)], sequential=True, draws=120)
        c = judged(found, head)
        assert c.verdict == verdict
        rows = found[0].placed[UNIFORM].rows()
        assert len({tuple(r.tolist()) for r in rows}) > 0.9 * len(rows)  # rounds are not copies of each other


def no_merge(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
    return Schedule.empty(trace.n_islands)


def test_a_log_is_an_upper_bound_and_one_without_merges_decides_nothing() -> None:
    source = PlanSource(best_planned, kind="recorded")
    found = campaign.run(plan_of(source), [setting()], jobs=1)
    c = judged(found, head_for(source, [setting()]))
    assert c.verdict == "PASS" and c.tier.upper_bound is True
    source = PlanSource(no_merge, kind="recorded")
    found = campaign.run(plan_of(source), [setting()], jobs=1)
    c = judged(found, head_for(source, [setting()]))
    assert c.verdict != "PASS" and "no merge" in c.sentence
    source = PlanSource(no_merge)
    found = campaign.run(plan_of(source), [setting()], jobs=1)
    c = judged(found, head_for(source, [setting()]))
    assert c.verdict == "FAIL" and "H_max forces a merge" in c.sentence


@pytest.mark.parametrize("arm", [POLICY, NO_SYNC])
def test_missing_requests_never_pass(arm: str) -> None:
    found = list(ran())
    found[3] = changed(found[3], simulated={a: r for a, r in found[3].simulated.items() if a != arm})
    c = judged(found)
    assert (c.verdict, c.tier.number) == ("FAIL", 0)


@pytest.mark.parametrize("arm", [UNIFORM, NO_SYNC])
def test_missing_placements_never_pass(arm: str) -> None:
    found = list(ran())
    found[3] = changed(found[3], placed={a: p for a, p in found[3].placed.items() if a != arm})
    assert judged(found).verdict != "PASS"


def test_a_seed_outside_the_corridor_is_refused_not_a_crash() -> None:
    def close(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        return Schedule.all_islands(np.arange(1, 5) * 3 * 10**9, corridor.merge_ns)

    source = PlanSource(close)
    found = campaign.run(plan_of(source), [setting()], jobs=1)
    c = judged(found, head_for(source, [setting()]))
    assert (c.verdict, c.tier.number) == ("FAIL", 0) and "H_min is 8" in c.sentence


def test_one_load_for_every_seed_is_refused() -> None:
    found = [changed(e, trace_digest="5" * 64) for e in ran()]
    assert "identical load" in judged(found).sentence


def test_a_written_folder_verifies_for_every_verdict(tmp_path: Path) -> None:
    head, found = two_regimes()
    write_folder(tmp_path / "two", head, found)
    assert verify(tmp_path / "two") == []
    refused = [changed(e, trace_digest="5" * 64) for e in ran()]
    write_folder(tmp_path / "refused", head_for(SOURCE, [setting()]), refused)
    assert verify(tmp_path / "refused") == []
    few = [setting(n_seeds=2)]
    write_folder(tmp_path / "few", head_for(SOURCE, few), campaign.run(plan_of(SOURCE), few, jobs=1))
    assert verify(tmp_path / "few") == []


def test_the_head_of_these_tests_is_what_a_campaign_describes() -> None:
    assert head_for(SOURCE, [setting()]).regimes[0].corridor.corridor() == setting().corridor
