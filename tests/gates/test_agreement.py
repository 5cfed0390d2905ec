"""Agreement for each SLO, and the support of a calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategies import ran, spec_for

from protocol.calibration.support import Support, support_of
from protocol.gates.agreement import slo_checks, support_check
from protocol.workload.slo import Slo

SLO = Slo.parse("e2e<=1s")


def calibration(per_merge: float, idle_pct: float, runs: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Runs of 1,000 requests: the simulator costs 25 violations a merge and 2 % without; the server as asked."""
    rng, rows = np.random.default_rng(seed), []
    for k in range(runs):
        noise = float(rng.normal(1, 0.03))
        rows.append({"load": "a", "requests": 1000, "merges": 2, "violations": 10 * idle_pct + 50 * per_merge * noise,
                     "simulated_violations": 70.0})  # fmt: skip
        rows.append({"load": "a", "requests": 1000, "merges": 0, "violations": 10 * (idle_pct + 0.1 * (k % 3 - 1)),
                     "simulated_violations": 20.0})  # fmt: skip
    return rows


@pytest.mark.parametrize(("per_merge", "idle_pct", "expected"), [
    (1.0, 2.0, ("passed", "passed")), (1.6, 2.0, ("failed", "passed")), (1.0, 12.0, ("passed", "failed")),
    (1.25, 2.0, ("undecidable", "passed")),
])  # fmt: skip
def test_level_and_cost_of_a_merge_are_two_questions(
    per_merge: float, idle_pct: float, expected: tuple[str, str]
) -> None:
    """A ratio of percentiles cancels the level; a server that is late without merges must fail on its own."""
    assert tuple(c.status for c in slo_checks(calibration(per_merge, idle_pct), SLO, 0.05)) == expected


def test_false_agreement_at_the_margin() -> None:
    """At a ratio of exactly 1.25 the two one-sided tests pass at most 5 % of the time."""
    passed = 0
    for seed in range(400):
        made = calibration(1.25, 2.0, seed=seed)
        passed += slo_checks(made, SLO, 0.05)[0].status == "passed"
    assert passed <= 0.05 * 400 + 3 * np.sqrt(0.05 * 0.95 * 400)


@pytest.mark.parametrize("made", [[], calibration(1, 2, runs=1), [r for r in calibration(1, 2) if r["merges"]]])
def test_too_little_is_undecidable(made: list[dict[str, Any]]) -> None:
    assert {c.status for c in slo_checks(made, SLO, 0.05)} == {"undecidable"}


def test_a_merge_that_costs_nothing_has_no_ratio() -> None:
    made = [{**row, "violations": 20.0} for row in calibration(1, 2)]
    assert slo_checks(made, SLO, 0.05)[0].status == "undecidable"


def own_support() -> Support:
    return support_of([r.rows for e in ran() for r in e.simulated.values()], 2.0)


def test_a_claim_inside_what_was_seen() -> None:
    check = support_check(ran(), spec_for(ran()), own_support())
    assert check.status == "passed" and check.n == 2 * sum(e.n_requests for e in ran())


@pytest.mark.parametrize(("change", "said"), [
    ({"rate_per_s": (0.0, 3.0)}, "rate per s: "), ({"in_flight": (0.0, 1.0)}, "in flight: "),
    ({"prompt_tokens": (1.0, 10.0)}, "prompt tokens: "), ({"output_tokens": (30.0, 99.0)}, "output tokens: "),
    ({"merge_s": (8.0, 8.0)}, "merge length: 2 s outside 8 to 8"),
])  # fmt: skip
def test_which_range_was_left_is_said(change: dict[str, Any], said: str) -> None:
    check = support_check(ran(), spec_for(ran()), replace(own_support(), **change))
    assert check.status == "failed" and said in check.reason
