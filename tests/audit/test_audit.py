"""Realised budgets by hand and by brute force; gates and verdicts of published comparisons."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.audit.imported import Claim, Comparison, Run
from protocol.audit.judge import audit, judge, pair_gates, summary
from protocol.audit.pairs import COUNT, TIME, pair, share_of_time, t_interval, transfer_check
from protocol.audit.windows import Replay, expand, longest_gap_s, realised
from protocol.errors import BadInput

# Realised budget -------------------------------------------------------------------------------------------------


def test_a_schedule_repeats_from_its_end() -> None:
    """40 s long, starts at 10 and 30, 8 s windows, run of 100 s: two whole passes and the first merge of the third."""
    assert expand([10, 30], 40, 8, 100, True) == [(10, 18), (30, 38), (50, 58), (70, 78), (90, 98)]
    assert expand([10, 30], 40, 8, 100, False) == [(10, 18), (30, 38)]
    # No longer than its window: not repeated, as the published replay has it.
    assert expand([0], 8, 8, 100, True) == [(0, 8)]
    # Cut at the end of the run and where the schedule starts anew.
    assert expand([35], 40, 8, 78, True) == [(35, 40), (75, 78)]


def test_overlapping_windows_are_one_busy_interval() -> None:
    assert expand([10, 14], None, 8, 100, False) == [(10, 22)]


def test_startup_takes_windows_away() -> None:
    """First request between 17 and 19 s: the window of 10 to 18 s is in doubt, the rest is not."""
    found = realised(Replay(2, 40, 8, 100, True, (17, 19), (10.0, 30.0)))
    # 10 to 18 s runs 1 s of 8 when the first request comes at 17 s, not at all at 19 s; half a second at the middle.
    assert (found.low, found.windows, found.high, found.exact) == (4, 4, 4.125, False)
    assert realised(Replay(2, 40, 8, 100, True, (19, 19.5), (10.0, 30.0))).exact


def test_no_merges_is_a_budget_of_zero() -> None:
    assert realised(Replay(0, None, 8, 600, True)).high == 0


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(BadInput, match="neither merge starts nor"):
        realised(Replay(8, None, 8, 600, True))
    with pytest.raises(BadInput, match="at most"):
        expand([0.0], 1e-6, 1e-7, 1e6, True)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_bounds_hold_for_every_schedule_of_the_rule(data: st.DataObject) -> None:
    """Draw a schedule that obeys the rule, replay it exactly: what ran lies within bounds made without its starts."""
    w, gap = 8.0, data.draw(st.floats(9, 30))
    longest = data.draw(st.floats(1, 3)) * gap
    first = data.draw(st.floats(gap - w, longest))
    gaps = data.draw(st.lists(st.floats(gap, longest), min_size=0, max_size=10))
    starts = tuple(np.cumsum([first, *gaps]).tolist())
    length = starts[-1] + w
    run = data.draw(st.floats(20, 900))
    startup = data.draw(st.floats(0, min(40, run - 1)))
    repeat = data.draw(st.booleans())
    exact = realised(Replay(len(starts), length, w, run, repeat, (startup, startup), starts))
    # Rounding could put a start on the other side of an edge.
    edges = [
        abs(edge - t) for t in (startup, run) for window in expand(starts, length, w, run, repeat) for edge in window
    ]
    assume(all(distance > 1e-6 for distance in edges))
    replay = Replay(len(starts), length, w, run, repeat, (startup, startup))
    for known in (None, longest * (1 + 1e-9)):
        bounds = realised(replay, gap * (1 - 1e-9), known)
        assert bounds.low <= exact.low == exact.high <= bounds.high
        assert bounds.low <= bounds.windows <= bounds.high


def test_longest_gap_counts_both_ends() -> None:
    assert longest_gap_s([30, 50], 100) == 50
    assert longest_gap_s([], 60) == 60


# Statistics ------------------------------------------------------------------------------------------------------


def test_t_interval_is_students() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(x), scale=stats.sem(x))
    found = t_interval(x)
    assert (found["low"], found["high"], found["n"]) == (pytest.approx(low), pytest.approx(high), 4)


@pytest.mark.parametrize("values", [[], [1.0], [0.0] * 5, [1.0, math.nan], [1.0, math.inf]])
def test_no_interval_without_spread(values: list[float]) -> None:
    """Zero in every seed is no certainty; a NaN is no value."""
    found = t_interval(values)
    assert found["low"] is found["high"] is None and found["reason"]


def _comparison(ours: list[float], theirs: list[float], **more: object) -> Comparison:
    runs = [
        Run("r", arm, seed, pct, requests=1000, merges=10.0, transfer=1.5 + seed / 100)
        for arm, values in (("mine", ours), ("random", theirs))
        for seed, pct in enumerate(values)
    ]
    return Comparison("c", "c", tuple(runs), (Claim("mine beats random", "better", "mine", "random"),), **more)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 100), min_size=2, max_size=7), st.data())
@settings(max_examples=60, deadline=None)
def test_published_test_is_the_enumerated_sign_flip(ours: list[float], data: st.DataObject) -> None:
    """Differences on a coarse grid, so that ties are exact in both."""
    ours = [round(x) / 4 for x in ours]
    theirs = [round(x) / 4 for x in data.draw(st.lists(st.floats(0, 100), min_size=len(ours), max_size=len(ours)))]
    d = np.subtract(ours, theirs)
    signs = itertools.product((1, -1), repeat=len(d))
    expected = np.mean([np.dot(s, d) <= d.sum() + 1e-9 for s in signs])
    found = pair(_comparison(ours, theirs), "mine", "random")
    assert found["p_sign_flip"] == pytest.approx(expected) and found["p_floor"] == 2.0 ** -len(d)


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_a_missing_value_is_undecidable_never_a_small_p(bad: float | None) -> None:
    found = audit(_comparison([1.0, bad, 2.0, 3.0, 1.0], [9.0, 8.0, 9.0, 9.0, 9.0]))  # type: ignore[list-item]
    (claim,) = found["claims"]
    assert claim["verdict"] == "undecidable"
    assert claim["pair"]["p_sign_flip"] is None and claim["pair"]["survives"]["verdict"] == "undecidable"
    first = claim["checks"][0]
    assert first["status"] == "undecidable" and first["statistic"] is None


def test_nothing_in_common_is_undecidable() -> None:
    runs = (Run("r", "mine", 1, 5.0), Run("r", "random", 2, 6.0))
    comparison = Comparison("c", "c", runs, (Claim("t", "better", "mine", "random"),))
    assert judge(comparison, comparison.claims[0])["verdict"] == "undecidable"


def test_per_window_and_adjusted_by_hand() -> None:
    """Twice the windows, twice the violations: no win at equal budget, whatever the raw difference."""
    runs = []
    for seed in range(5):
        runs.append(Run("r", "mine", seed, 5.0 + seed / 10, requests=1000, merges=8.0))
        runs.append(Run("r", "base", seed, 10.0 + seed / 5, requests=1000, merges=16.0))
    found = pair(Comparison("c", "c", tuple(runs)), "mine", "base")
    assert found["raw_pp"]["mean"] == pytest.approx(-5.2)
    assert found["adjusted_pp"]["estimate"]["mean"] == pytest.approx(0, abs=1e-12)
    assert found["per_window"]["estimate"]["mean"] == pytest.approx(0, abs=1e-12)
    assert found["budget_excess"] == {"estimate": 8.0, "low": 8.0, "high": 8.0, "policy": 8.0, "versus": 16.0}
    assert found["survives"]["verdict"] in ("no", "undecidable")


def test_a_win_with_fewer_violations_a_window_survives() -> None:
    runs = []
    for seed in range(5):
        runs.append(Run("r", "mine", seed, 2.0 + seed / 10, requests=1000, merges=8.0))
        runs.append(Run("r", "base", seed, 10.0 + seed / 3, requests=1000, merges=16.0))
    claim = Claim("mine beats base", "better", "mine", "base")
    found = audit(Comparison("c", "Title", tuple(runs), (claim,)))
    assert found["claims"][0]["pair"]["survives"]["verdict"] == "yes"
    assert found["claims"][0]["verdict"] == "not licensed"  # the budgets differ all the same
    assert "1 published win of mine; at equal budget 1 (base) survive" in summary([found])[0]


def test_the_rates_denominator_alone_is_no_win() -> None:
    """Equal violations a window; the other arm merely served fewer requests, so its rate is higher."""
    runs = []
    for seed in range(5):
        noise = (seed - 2) / 100
        runs.append(Run("r", "mine", seed, 100 * (400 + 4 * seed) / 6000, requests=6000, merges=8.0))
        served = 5600 + seed
        runs.append(Run("r", "base", seed, 100 * (400 + 4 * seed) * (1 + noise) / served, requests=served, merges=8.0))
    found = pair(Comparison("c", "c", tuple(runs)), "mine", "base")
    assert found["basis"] == COUNT
    assert found["adjusted_pp"]["estimate"]["mean"] == pytest.approx(0, abs=0.01)
    assert found["survives"]["verdict"] == "no"


def test_a_closed_loops_denominator_is_taken_out() -> None:
    """A server that is slow for 10 and for 30 % of the time, 1.6 times as long for an answer, in 4 and 12 windows: the
    loop sees 6.49 and 21.1 % of requests late, and at equal budget there is nothing between the arms."""
    assert share_of_time(100 * 0.1 / (0.1 + 0.9 * 1.6), 1.6) == pytest.approx(10.0)
    runs = []
    for seed in range(5):
        for arm, share, n in (("mine", 0.1, 4.0), ("base", 0.3, 12.0)):
            seen = 100 * share / (share + (1 - share) * 1.6)
            served = round(6000 * (1 - 0.375 * share)) + seed
            runs.append(Run("r", arm, seed, seen, requests=served, merges=n, transfer=1.6))
    found = pair(Comparison("c", "c", tuple(runs)), "mine", "base")
    assert found["basis"] == TIME
    assert found["adjusted_pp"]["estimate"]["mean"] == pytest.approx(0, abs=1e-12)
    assert 100 * 0.1 / (0.1 + 0.9 * 1.6) - 100 * 0.3 / (0.3 + 0.7 * 1.6) / 3 < -0.5  # what scaled rates would say


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_figures_lie_within_their_own_bounds(data: st.DataObject) -> None:
    runs = []
    for seed in range(3):
        for arm in ("mine", "base"):
            starts = data.draw(st.none() | st.lists(st.floats(0, 300), min_size=1, max_size=9))
            # Without a log, eight merges that the corridor below allows.
            length = data.draw(st.floats(140, 640) if starts is None else st.floats(max(starts) + 8, 640))
            replay = Replay(len(starts or range(8)), length, 8.0, data.draw(st.floats(30, 700)), True, (15.0, 19.0),
                            None if starts is None else tuple(starts), even=data.draw(st.booleans()))  # fmt: skip
            requests, slower = data.draw(st.integers(100, 200)), data.draw(st.none() | st.floats(1.1, 3))
            pct = data.draw(st.floats(0, 60))
            runs.append(Run("r", arm, seed, pct, requests=requests, replay=replay, transfer=slower))
    found = pair(Comparison("c", "c", tuple(runs), corridor_s=(16.0, 80.0)), "mine", "base")
    for name in ("adjusted_pp", "per_window"):
        best, middle, worst = (found[name][k]["mean"] for k in ("most favourable", "estimate", "least favourable"))
        if None not in (best, middle, worst):
            assert best - 1e-9 <= middle <= worst + 1e-9
    budget = found["budget_excess"]
    assert budget["low"] - 1e-9 <= budget["estimate"] <= budget["high"] + 1e-9


# Gates -----------------------------------------------------------------------------------------------------------


def _status(comparison: Comparison) -> dict[str, str]:
    found = pair(comparison, "mine", "random")
    return {c.name: c.status for c in pair_gates(comparison, found, found)}


def test_equal_arms_leave_only_what_the_files_lack() -> None:
    comparison = _comparison([1.0, 2.0, 1.5, 2.5, 1.2], [4.0, 6.0, 4.5, 5.0, 5.5], random_arm="random")
    assert _status(comparison) == {
        "G0 budget": "passed",
        "G0 corridor": "undecidable",
        "G1 transfer": "passed",
        "G2 load match": "undecidable",
        "G3 random envelope": "undecidable",
        "G4 progress": "undecidable",
    }


def test_the_same_arrivals_pass_the_load_match() -> None:
    base = _comparison([1.0, 2.0, 1.5], [4.0, 6.0, 4.5])
    runs = tuple(Run(r.regime, r.arm, r.seed, r.violation_pct, 1000, offered=f"sha256:{r.seed}") for r in base.runs)
    assert _status(Comparison("c", "c", runs))["G2 load match"] == "passed"
    mixed = tuple(Run(r.regime, r.arm, r.seed, r.violation_pct, 1000, offered=f"sha256:{r.arm}") for r in base.runs)
    assert _status(Comparison("c", "c", mixed))["G2 load match"] == "undecidable"


def test_an_envelope_with_enough_seeds_and_draws_decides() -> None:
    rng = np.random.default_rng(1)
    runs = []
    for seed in range(10):
        runs.append(Run("r", "mine", seed, 2.0 + rng.random()))
        runs += [Run("r", "random", seed, 6.0 + rng.random(), draw=d) for d in range(19)]
    assert _status(Comparison("c", "c", tuple(runs)))["G3 random envelope"] == "passed"
    swapped = tuple(
        Run("r", "mine" if r.arm == "mine" else "random", r.seed, 9 - (r.violation_pct or 0), draw=r.draw) for r in runs
    )
    assert _status(Comparison("c", "c", swapped))["G3 random envelope"] == "failed"


def test_one_load_fails_the_envelope_however_small_p_is() -> None:
    base = _comparison([1.0] * 10, [4.0 + i / 10 for i in range(10)])
    runs = tuple(Run(r.regime, r.arm, r.seed, r.violation_pct, offered="the same") for r in base.runs)
    assert _status(Comparison("c", "c", runs))["G3 random envelope"] == "failed"


def test_a_known_schedule_outside_the_corridor_fails() -> None:
    replay = Replay(2, 100.0, 8.0, 100.0, False, starts_s=(10.0, 90.0))
    base = _comparison([1.0, 2.0, 1.5], [4.0, 6.0, 4.5])
    runs = tuple(Run(r.regime, r.arm, r.seed, r.violation_pct, replay=replay) for r in base.runs)
    for longest, status in ((79.0, "failed"), (81.0, "passed")):
        assert _status(Comparison("c", "c", runs, corridor_s=(None, longest)))["G0 corridor"] == status


@pytest.mark.parametrize(
    ("ratios", "status"),
    [
        ([1.5, 1.6, 1.55, 1.52, 1.58], "passed"),
        ([1.0, 1.01, 1.0, 0.99, 1.0], "failed"),
        ([1.5, 1.6, 1.55, 1.52], "undecidable"),
        ([1.5, 1.6, 1.55, 1.52, math.nan], "undecidable"),
        ([1.5, 1.6, 1.55, 1.52, None], "undecidable"),
        ([1.5] * 5, "undecidable"),
        ([0.0, 1.6, 1.55, 1.52, 1.5], "undecidable"),
        ([], "undecidable"),
    ],
)
def test_transfer(ratios: list[float | None], status: str) -> None:
    assert transfer_check(ratios).status == status
