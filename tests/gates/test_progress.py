"""G4: as many inner steps as the controls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from server_runs import replay_of, server_spec, session, sound, swapped, with_replays
from strategies import CORRIDOR, S, changed, ran, spec_for

from protocol.evidence.model import Evidence
from protocol.gates.progress import progress_gate
from protocol.gates.result import GateResult
from protocol.merging.placements import Placements
from protocol.replay.replay import POLICY, UNIFORM


def judged(found: list[Evidence]) -> GateResult:
    return progress_gate(found, spec_for(found or ran()))


def test_steps_and_tokens_by_hand() -> None:
    gate = judged(list(ran()))
    equal, stale = gate.checks
    assert gate.status == "passed"
    # 120 s less 2 s a merge, four steps a second.
    steps = [(120 - 2 * len(e.placed[POLICY].gaps)) * 4 for e in ran()]
    assert equal.details == {"inner_steps": steps, "tokens": [2048 * s for s in steps]} and equal.n == 10
    longest = max(int(e.placed[POLICY].gaps.max()) for e in ran()) * CORRIDOR.decision_steps
    assert (stale.statistic, stale.threshold) == (float(longest), 40.0)
    assert equal.reason.startswith(f"{min(steps)} to {max(steps)} inner steps")


def test_a_control_that_trained_more_fails() -> None:
    found = list(ran())
    e = found[6]
    draws = e.placed[UNIFORM]
    rows = [r.tolist() for r in draws.rows()]
    rows[3] = rows[3][:-1]
    fewer = Placements(np.array([len(r) for r in rows]), np.array(sum(rows, []), np.int32), draws.violations)
    found[6] = changed(e, placed={**e.placed, UNIFORM: fewer})
    gate = judged(found)
    own = (120 - 2 * len(e.placed[POLICY].gaps)) * 4
    assert gate.status == "failed" and gate.reason == f"seed 6, draw 3: {own + 8} inner steps, the policy did {own}"


def test_a_gap_above_h_max_fails() -> None:
    found = list(ran())
    e = found[0]
    gaps = e.placed[POLICY].gaps.astype(np.int64)
    gaps[0] = 11
    found[0] = changed(e, placed={**e.placed, POLICY: Placements.of(gaps[None], e.placed[POLICY].violations)})
    gate = judged(found)
    assert gate.status == "failed" and gate.reason == "at most 44 inner steps between merges (H_max 40)"


@pytest.mark.parametrize("arm", [POLICY, UNIFORM])
def test_missing_arms_are_undecidable(arm: str) -> None:
    found = list(ran())
    found[1] = changed(found[1], placed={a: p for a, p in found[1].placed.items() if a != arm})
    assert judged(found).status == "undecidable"
    nothing = Placements.of(np.zeros((0, 3), np.int64), np.zeros((0, 1), np.int64))
    found[1] = changed(found[1], placed={**ran()[1].placed, arm: nothing})
    assert judged(found).status == "undecidable"


def test_no_evidence_never_passes() -> None:
    assert judged([]).status == "undecidable"


def test_merges_cost_training_time() -> None:
    assert CORRIDOR.merge_ns == 2 * S and CORRIDOR.step_ns == S // 4


# On a real server ------------------------------------------------------------------------------------------------


def on_server(found: Sequence[Evidence], back_end: str) -> GateResult:
    return progress_gate(found, server_spec(back_end, found))


@pytest.mark.parametrize("back_end", ["real", "live"])
def test_steps_are_those_beside_the_merges_that_ran(back_end: str) -> None:
    found = sound() if back_end == "real" else session()
    gate = on_server(found, back_end)
    steps = [(120 - 2 * len(replay_of(found, s, POLICY).ran_ns)) * 4 for s in range(10)]
    assert gate.status == "passed" and gate.checks[0].details["inner_steps"] == steps
    assert "executed merges differ by" in gate.checks[0].reason


def test_a_seed_that_is_no_comparison_takes_no_part() -> None:
    control = replay_of(session(), 1, UNIFORM)
    found = swapped(session(), 1, UNIFORM, ran_ns=control.ran_ns[1:], planned_ns=control.planned_ns[1:])
    gate = on_server(found, "live")
    assert gate.status == "passed" and gate.checks[0].n == 9
    assert on_server([with_replays(e, ()) for e in session()], "live").status == "undecidable"


def test_live_staleness_is_between_merges_that_ran_and_may_be_a_decision_late() -> None:
    stale = on_server(session(), "live").checks[1]
    policies = [replay_of(session(), s, POLICY).ran_ns for s in range(10)]
    waits_ns = [begin - end for ran in policies for begin, end in zip(ran[:, 0], [0, *ran[:-1, 1]], strict=True)]
    assert stale.statistic == float(max(waits_ns) // (S // 4)) and stale.threshold == 40.0
    for steps, status in ((44, "passed"), (45, "failed")):
        windows = np.array([[steps * S // 4, steps * S // 4 + 2 * S]])
        found = list(session())
        for arm in (POLICY, UNIFORM):
            found = swapped(found, 0, arm, ran_ns=windows, planned_ns=windows)
        assert on_server(found, "live").checks[1].status == status
