"""G2: the same requests in every arm, and counts that are those of the stored requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from server_runs import replay_of, server_spec, session, sound, swapped
from strategies import MS, S, changed, ran, spec_for

from protocol.evidence.model import Evidence
from protocol.gates.load_match import load_match_gate
from protocol.gates.result import Check
from protocol.merging.placements import Placements
from protocol.replay.measurements import FAILED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.workload.slo import Slo

SLO = Slo(e2e_ns=1000 * MS)


def judged(found: list[Evidence], slo: Slo = SLO) -> dict[str, Check]:
    return {check.name: check for check in load_match_gate(found, spec_for(found), slo, 0).checks}


def with_requests(position: int, arm: str, m: Measurements) -> list[Evidence]:
    found = list(ran())
    e = found[position]
    found[position] = changed(e, simulated={**e.simulated, arm: replace(e.simulated[arm], rows=m)})
    return found


def test_a_clean_run_passes() -> None:
    gate = load_match_gate(ran(), spec_for(ran()), SLO, 0)
    assert gate.status == "passed"
    assert [c.name for c in gate.checks] == ["offered load", "tokens served", "counted rows", "no-sync baseline"]
    baseline = judged(list(ran()))["no-sync baseline"]
    missed = sum(-(-e.n_requests // 50) for e in ran())  # every 50th request, the first included
    total = sum(e.n_requests for e in ran())
    assert baseline.details == {"no_sync_violations": missed, "requests": total}
    assert baseline.statistic == pytest.approx(missed / total)


@pytest.mark.parametrize("arm", [POLICY, NO_SYNC])
@pytest.mark.parametrize("column", ["arrival_ns", "prompt_tokens", "island"])
def test_one_changed_request_fails(arm: str, column: str) -> None:
    m = ran()[3].simulated[arm].rows
    values = getattr(m, column).copy()
    values[10] += 1
    check = judged(with_requests(3, arm, replace(m, **{column: values})))["offered load"]
    assert check.status == "failed"
    assert check.reason == f"seed 3, no-sync 0: {column} differs from the policy's"


def test_fewer_requests_in_one_arm_fail() -> None:
    m = ran()[3].simulated[POLICY].rows
    fewer = Measurements(**{n: getattr(m, n)[:-2] for n in m.__dataclass_fields__})
    check = judged(with_requests(3, POLICY, fewer))["offered load"]
    assert check.status == "failed" and f"{len(m)} requests, {len(m) - 2} under the policy" in check.reason


def test_tokens_other_than_the_traces_fail() -> None:
    found = list(ran())
    found[0] = changed(found[0], prompt_tokens=found[0].prompt_tokens + 1)
    assert judged(found)["offered load"].reason == "seed 0: prompt tokens differ from the trace"


@pytest.mark.parametrize("arm", [POLICY, NO_SYNC])
def test_a_missing_arm_fails(arm: str) -> None:
    found = list(ran())
    e = found[2]
    found[2] = changed(e, simulated={a: r for a, r in e.simulated.items() if a != arm})
    checks = judged(found)
    assert checks["offered load"].status == "failed"
    assert f"no requests of the {arm} arm" in checks["offered load"].reason
    found[2] = changed(e, placed={a: p for a, p in e.placed.items() if a != arm})
    assert judged(found)["counted rows"].reason.startswith(f"seed 2, arm {arm}: [] violations of e2e<=1000ms counted")


@pytest.mark.parametrize("arm", [POLICY, NO_SYNC])
def test_a_count_that_its_rows_do_not_bear_out_fails(arm: str) -> None:
    found = list(ran())
    e = found[4]
    p = e.placed[arm]
    found[4] = changed(e, placed={**e.placed, arm: Placements(p.lengths, p.gaps, p.violations - 1)})
    check = judged(found)["counted rows"]
    true = int(p.violations[0, 0])
    assert check.status == "failed"
    assert check.reason == f"seed 4, arm {arm}: [{true - 1}] violations of e2e<=1000ms counted, {true} in its requests"


def test_a_failed_request_counts_in_both() -> None:
    m = ran()[4].simulated[POLICY].rows
    quick = int(np.flatnonzero(~m.violates(SLO))[0])
    outcome, e2e = m.outcome.copy(), m.e2e_ns.copy()
    outcome[quick], e2e[quick] = FAILED, -1
    found = with_requests(4, POLICY, replace(m, outcome=outcome, e2e_ns=e2e))
    assert judged(found)["counted rows"].status == "failed"


def test_an_objective_that_nobody_meets_without_merges_is_undecidable() -> None:
    check = judged(list(ran()), Slo(e2e_ns=1))["no-sync baseline"]
    assert check.status == "undecidable" and "without any merge" in check.reason and check.statistic == 1.0
    easy = judged(list(ran()), Slo(e2e_ns=10**12))["no-sync baseline"]
    assert (easy.status, easy.statistic) == ("passed", 0.0)


def test_no_evidence_never_passes() -> None:
    assert load_match_gate([], spec_for(ran()), SLO, 0).status != "passed"


# On a real server ------------------------------------------------------------------------------------------------


def on_server(found: Sequence[Evidence], back_end: str = "real", **changes: Any) -> dict[str, Check]:
    spec = server_spec(back_end, found, **changes)
    return {c.name: c for c in load_match_gate(found, spec, spec.slos[0], 0).checks}


@pytest.mark.parametrize("back_end", ["real", "live"])
def test_a_sound_server_passes_every_check(back_end: str) -> None:
    checks = on_server(sound() if back_end == "real" else session(), back_end)
    assert {c.status for c in checks.values()} == {"passed"} and list(checks) == [
        "offered load", "tokens served", "counted rows", "no-sync baseline", "send delay", "achieved rate", "A/A",
        *(["carryover"] if back_end == "live" else []),
    ]  # fmt: skip
    assert checks["send delay"].details["p50_ms"] == 0.1 and checks["achieved rate"].statistic == 1.0


@pytest.mark.parametrize(("arm", "draw"), [(POLICY, 0), (NO_SYNC, 1), (UNIFORM, 0)])
@pytest.mark.parametrize("back_end", ["real", "live"])
def test_fewer_tokens_than_asked_in_any_replay_fail(back_end: str, arm: str, draw: int) -> None:
    found = sound() if back_end == "real" else session()
    m = replay_of(found, 2, arm, draw).rows
    tokens = m.output_tokens.copy()
    tokens[7] -= 1
    check = on_server(swapped(found, 2, arm, draw, rows=replace(m, output_tokens=tokens)), back_end)["tokens served"]
    assert check.status == "failed"
    assert check.reason.endswith(f"request 7 gave {tokens[7]} tokens of {tokens[7] + 1} asked for (1 such requests)")


def test_a_request_that_was_not_served_owes_no_tokens() -> None:
    m = replay_of(sound(), 2, UNIFORM, 0).rows
    outcome, e2e, tokens = m.outcome.copy(), m.e2e_ns.copy(), m.output_tokens.copy()
    outcome[7], e2e[7], tokens[7] = FAILED, -1, 0
    found = swapped(sound(), 2, UNIFORM, 0, rows=replace(m, outcome=outcome, e2e_ns=e2e, output_tokens=tokens))
    assert on_server(found)["tokens served"].status == on_server(found)["offered load"].status == "passed"


@pytest.mark.parametrize("column", ["arrival_ns", "prompt_tokens", "asked_tokens", "island"])
def test_another_request_in_any_draw_fails(column: str) -> None:
    m = replay_of(sound(), 2, UNIFORM, 5).rows
    values = getattr(m, column).copy()
    values[3] += 1
    check = on_server(swapped(sound(), 2, UNIFORM, 5, rows=replace(m, **{column: values})))["offered load"]
    assert (check.status, check.reason) == ("failed", f"seed 2, uniform 5: {column} differs from the policy's")


def test_a_replay_that_was_sent_late_is_left_out_and_a_slow_client_is_seen() -> None:
    """Requests sent 4 ms after they were due are in time; the achieved rate counts all that came later."""
    m = replay_of(sound(), 2, UNIFORM, 5).rows
    late = replace(m, sent_ns=np.where(np.arange(len(m)) < len(m) // 50, m.sent_ns + 30 * MS, m.sent_ns))
    checks = on_server(swapped(sound(), 2, UNIFORM, 5, rows=late))
    assert "seed 2" not in checks["send delay"].reason and checks["send delay"].statistic == 1.0
    edge = replace(m, sent_ns=m.arrival_ns + 4 * MS)
    assert on_server(swapped(sound(), 2, UNIFORM, 5, rows=edge))["send delay"].details["p100_ms"] == 4.0


def again(shift_pp: float, found: Sequence[Evidence]) -> list[Evidence]:
    """Make the last no-sync replay of every seed miss more requests, by about that much."""
    rng = np.random.default_rng(2)
    for e in found:
        m = replay_of(found, e.seed, NO_SYNC, 1).rows
        n = round(len(m) * max(shift_pp + rng.normal(0, 0.2), 0) / 100)
        slow = np.isin(np.arange(len(m)), rng.permutation(np.flatnonzero(m.e2e_ns < S // 2))[:n])
        found = swapped(found, e.seed, NO_SYNC, 1, rows=replace(m, e2e_ns=np.where(slow, 20 * S, m.e2e_ns)))
    return list(found)


@pytest.mark.parametrize(
    ("shift_pp", "min_effect_pp", "status"),
    [
        (0.0, 0.0, "passed"),
        (0.3, 0.0, "passed"),
        (1.0, 0.0, "undecidable"),
        (4.0, 0.0, "failed"),
        (4.0, 20.0, "passed"),
    ],
)
def test_two_no_sync_replays_must_agree(shift_pp: float, min_effect_pp: float, status: str) -> None:
    found = again(shift_pp, sound()) if shift_pp else sound()
    check = on_server(found, min_effect_pp=min_effect_pp)["A/A"]
    assert check.status == status and check.details["margin_pp"] == (min_effect_pp / 2 or 1.0)
    declared = on_server(found, min_effect_pp=min_effect_pp, margin_pp=30.0)["A/A"]
    assert declared.status == "passed" and declared.details["margin_pp"] == 30.0


def test_the_agreement_of_two_no_sync_replays_by_hand() -> None:
    found = again(0.3, sound())
    d = []
    for e in found:
        first, last = (replay_of(found, e.seed, NO_SYNC, k).rows.violates(SLO).sum() for k in (0, 1))
        d.append(100 * (last - first) / e.n_requests)
    p = max(
        stats.ttest_1samp(d, -1.0, alternative="greater").pvalue, stats.ttest_1samp(d, 1.0, alternative="less").pvalue
    )
    check = on_server(found)["A/A"]
    assert check.statistic == pytest.approx(p) and "t over seeds" in check.reason
    half = stats.t.ppf(0.95, 9) * stats.sem(d)
    assert check.interval == pytest.approx((np.mean(d) - half, np.mean(d) + half))


def test_where_nothing_varies_the_units_are_seconds_with_arrivals_and_not_requests() -> None:
    """Ten seeds with equal counts: so many seconds bound the rate, whatever each of them holds."""
    found = sound()
    check = on_server(found)["A/A"]
    seconds = sum(len(np.unique(replay_of(found, s, NO_SYNC, 0).rows.arrival_ns // S)) for s in range(10))
    assert f"Clopper-Pearson on {seconds} seconds" in check.reason and seconds < 10 * 125 < sum(
        e.n_requests for e in found
    )
    assert check.statistic == pytest.approx(0.99**seconds) and check.status == "passed"
    few = on_server(found[:1])["A/A"]  # one seed is no replicate
    assert few.status == "undecidable"


def test_replays_that_disagree_on_many_requests_but_count_alike_do_not_pass() -> None:
    """As many late ones in each, but others: the shares cancel and the disagreement does not."""
    found = list(sound())
    for e in sound():
        for k in (0, 1):
            m = replay_of(found, e.seed, NO_SYNC, k).rows
            slow = np.arange(len(m)) % 40 == k
            e2e = np.where(slow, 2 * S, S // 2)
            found = swapped(found, e.seed, NO_SYNC, k, rows=replace(m, e2e_ns=e2e, ttft_ns=e2e // 2))
    missed = [[int(replay_of(found, s, NO_SYNC, k).rows.violates(SLO).sum()) for k in (0, 1)] for s in range(10)]
    found = [e for e, (first, last) in zip(found, missed, strict=True) if first == last]
    assert len(found) > 1
    check = on_server(found)["A/A"]
    assert check.status != "passed" and "requests judged otherwise" in check.reason
