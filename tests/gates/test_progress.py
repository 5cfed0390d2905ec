"""G4: as many inner steps as the controls."""

from __future__ import annotations

import numpy as np
import pytest
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
