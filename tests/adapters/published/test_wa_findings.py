"""What the WA-DiLoCo artifact's numbers say beside its claims: by brute force on small sets, and on the real files."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from wa_artifact import write_steady

from adapters.published.registry import read
from adapters.published.wa_findings import GRID_S, best, busy_s, permutation_p, share_without
from adapters.published.wa_schedules import steps_per_s
from protocol.audit.judge import audit


def placements(size: int, k: int, least: float, longest: float, window: float) -> list[tuple[int, ...]]:
    def fits(starts: tuple[int, ...]) -> bool:
        times = [i * GRID_S for i in starts]
        if not least - window <= times[0] <= longest - window:
            return False
        return all(least <= b - a <= longest for a, b in itertools.pairwise(times))

    return [starts for starts in itertools.combinations(range(size), k) if fits(starts)]


@pytest.mark.parametrize(("least", "longest"), [(2.0, 4.5), (1.5, 3.0), (2.0, math.inf), (4.0, 4.0)])
def test_optimum_and_share_by_enumeration(least: float, longest: float) -> None:
    rng = np.random.default_rng(4)
    for _ in range(10):
        cost = np.maximum(rng.integers(-2, 3, 20), 0).astype(float)
        every = placements(20, 3, least, longest, 1.0)
        totals = [cost[list(p)].sum() for p in every]
        assert best(cost, 3, least, longest, 1.0) == min(totals, default=math.inf)
        share = share_without(cost, 3, least, longest, 1.0)
        assert (share == pytest.approx(np.mean(np.array(totals) == 0))) if totals else math.isnan(share)


def test_exact_permutation() -> None:
    assert permutation_p(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == pytest.approx(1 / 6)
    assert permutation_p(np.array([1.0, 3.0]), np.array([2.0, 4.0])) == pytest.approx(2 / 6)
    assert permutation_p(np.array([5.0, 5.0]), np.array([5.0, 5.0])) == 1.0


def test_burst_seconds() -> None:
    spent = busy_s(np.array([0.0, 26.0, 40.0, 118.0]), 8.0, (120.0, 30.0, 0.0))
    assert spent.tolist() == [8.0, 4.0, 0.0, 6.0]


def test_steps_behind_a_schedule() -> None:
    assert steps_per_s("fixed_h_512", 8, 352.0) == pytest.approx((8 * 512 / 352, 8 * 512 / 352))
    assert steps_per_s("wa_diloco", 8, 540.0) == pytest.approx((8 * 128 / 540, 8 * 512 / 540))
    assert steps_per_s("wa_diloco", 8, None) is None


def test_slower_training_fails_g4(tmp_path: Path) -> None:
    """352 s and 540 s for at most the same steps: 7.5 steps/s at most against 11.5."""
    arms = {
        "fixed_h_512": (8, 352.0, 5900, 650),
        "pressure_gate": (8, 300.0, 5800, 800),
        "wa_diloco": (8, 540.0, 6100, 400),
    }
    found = {c.name: audit(c) for c in read([write_steady(tmp_path, arms)]).comparisons}["stage 11 sync"]
    progress = {c["versus"]: k for c in found["claims"] for k in c["checks"] if k["name"] == "G4 progress"}
    assert progress["fixed_h_512"]["status"] == "failed" and "at least 35 % slower" in progress["fixed_h_512"]["reason"]
    assert progress["pressure_gate"]["status"] == "undecidable"  # 3.4 to 13.4 steps/s: nobody knows


@pytest.fixture(scope="module")
def findings(shared_data: Path) -> dict[str, dict[str, dict[str, str]]]:
    found = read([shared_data / "published" / "wa_diloco"]).comparisons
    return {c.name: {f["name"]: f for f in audit(c)["findings"]} for c in found}


def test_windows_explain_the_published_gaps(findings: dict) -> None:
    steady = findings["stage 11 sync"]
    assert steady["windows and violations"]["value"] == "r = 0.984"
    shares = steady["gaps of wa_diloco explained by counts"]
    assert shares["value"] == "87 to 101 %"  # 90 to 101 % of the rates, 87 to 97 % of the numbers of late requests
    assert "95 % of the gap to fixed_h_256" in shares["text"]
    assert "101 % of the gap to pressure_gate_matched" in shares["text"]
    assert "of their rates, 87 to 97 %" in shares["text"]


def test_what_a_closed_loops_denominator_does(findings: dict) -> None:
    found = findings["stage 11 sync"]["equal budget by denominator"]
    by_rate, by_count, by_time = "-0.86 [-1.51, -0.22]", "-0.30 [-0.83, +0.23]", "-0.03 [-1.01, +0.95]"
    assert f"fixed_h_256 {by_rate}, {by_count}, {by_time};" in found["text"]
    assert "equal budget by denominator" not in findings["stage 11 pressure"]


def test_the_training_behind_wa_was_slower(findings: dict) -> None:
    assert findings["stage 11 sync"]["training pace"]["value"] == "at most 7.6 against 11.6 steps/s"


def test_clocks(findings: dict) -> None:
    """1 / (1/90 - 1/300) = 128.6 s; schedules of 508.9 to 546.8 s end 28.9 to 66.8 s into a cycle of 120 s."""
    steady = findings["stage 11 sync"]["training and replay clocks"]
    assert steady["value"] == "300 s against 90 s" and "every 129 s" in steady["text"]
    bursty = findings["stage 13 bursty"]["training and replay clocks"]
    assert bursty["value"] == "29 to 67 s of phase" and "66.8 s (seed 31)" in bursty["text"]


def test_exact_tests_of_the_offline_plan(findings: dict) -> None:
    found = findings["stage 13 bursty"]["offline plan against random, exactly"]
    assert found["value"] == "p = 0.031, 0.0040; as one schedule 0.029"
    assert "0.0079 two-sided" in found["text"]
    assert "0.0312 ± 0.0017 and 0.0079 ± 0.0009" in found["text"]  # sqrt(p (1 - p) / 10,000)


def test_the_greedy_plan_loses_nothing_to_the_optimum_and_leaves_the_corridor(findings: dict) -> None:
    found = findings["stage 13 bursty"]["greedy plan against the exact optimum"]
    assert found["value"] == "0.0 s of burst" and "90.5 s, outside that corridor" in found["text"]


def test_the_pressure_half_cannot_show_placement(findings: dict) -> None:
    found = findings["stage 11 pressure"]["why no arm differs"]
    assert found["value"] == "r = -0.02" and "1.000, 90 % interval [0.997, 1.002]" in found["text"]


def test_equal_budget_figures_of_the_real_artifact(shared_data: Path) -> None:
    comparisons = read([shared_data / "published" / "wa_diloco"]).comparisons
    steady = next(audit(c) for c in comparisons if c.name == "stage 11 sync")
    found = {c["versus"]: c["pair"]["adjusted_pp"] for c in steady["claims"]}
    middle = found["fixed_h_256"]["estimate"]
    assert (round(middle["mean"], 2), round(middle["low"], 2), round(middle["high"], 2)) == (-0.03, -1.01, 0.95)
    for name in found:
        low, mid, high = (found[name][k]["mean"] for k in ("most favourable", "estimate", "least favourable"))
        assert low <= mid <= high
