"""G2: the same requests in every arm, and counts that are those of the stored requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import MS, changed, ran, spec_for

from protocol.evidence.model import Evidence
from protocol.gates.load_match import load_match_gate
from protocol.gates.result import Check
from protocol.merging.placements import Placements
from protocol.replay.measurements import FAILED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY
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
