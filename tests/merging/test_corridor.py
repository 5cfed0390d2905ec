"""The corridor against a control loop that is stepped decision by decision, and against full enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.errors import BadInput, InfeasibleCorridor
from protocol.merging.corridor import Corridor


def run_loop(c: Corridor, decide: Callable[[], bool]) -> list[int]:
    """The control loop in the words of the corridor's docstring, one decision after another."""
    starts: list[int] = []
    now, steps = 0, 0
    while True:
        now, steps = now + c.decision_steps * c.step_ns, steps + c.decision_steps
        if now + c.merge_ns > c.horizon_ns:
            return starts
        if steps < c.h_min:
            continue
        forced = steps + c.decision_steps > c.h_max
        if forced or decide():
            starts.append(now)
            now, steps = now + c.merge_ns, 0


def every_run(c: Corridor) -> Iterator[tuple[int, ...]]:
    """Every list of starts that some sequence of decisions produces."""
    script: list[bool] = []
    while True:
        used = 0

        def decide() -> bool:
            nonlocal used
            if used == len(script):
                script.append(False)
            used += 1
            return script[used - 1]

        yield tuple(run_loop(c, decide))
        del script[used:]
        while script and script[-1]:
            script.pop()
        if not script:
            return
        script[-1] = True


def small_corridor(seed: int) -> Corridor:
    rng = np.random.default_rng(seed)
    h_min = int(rng.integers(1, 6))
    return Corridor(
        h_min=h_min,
        h_max=h_min + 2 + int(rng.integers(0, 6)),
        decision_steps=int(rng.integers(1, 3)),
        step_ns=int(rng.integers(1, 4)),
        merge_ns=int(rng.integers(0, 7)),
        horizon_ns=int(rng.integers(20, 44)),
    )


corridors = st.builds(
    lambda h_min, span, decision, step, merge, horizon: Corridor(
        h_min, h_min + span + decision - 1, decision, step, merge, horizon
    ),
    st.integers(1, 6), st.integers(0, 8), st.integers(1, 3), st.integers(1, 5), st.integers(0, 9), st.integers(0, 60),
)  # fmt: skip


def compositions(c: Corridor, k: int) -> set[tuple[int, ...]]:
    low, high = c.sum_range(k)
    return {g for g in itertools.product(range(c.gap_min, c.gap_max + 1), repeat=k) if low <= sum(g) <= high}


@pytest.mark.parametrize("seed", range(40))
def test_the_loop_reaches_exactly_the_feasible_placements(seed: int) -> None:
    c = small_corridor(seed)
    runs = set(every_run(c))
    by_k: dict[int, set[tuple[int, ...]]] = {}
    for run in runs:
        assert c.violation(np.array(run, np.int64)) is None
        by_k.setdefault(len(run), set()).add(tuple(c.gaps(np.array(run, np.int64)).tolist()))
    assert sorted(by_k) == list(c.feasible_budgets())
    for k, found in by_k.items():
        assert c.count(k) == len(found)
        if k <= 6:
            assert found == compositions(c, k)
    for k in (min(by_k) - 1, max(by_k) + 1):
        assert c.count(k) == 0 and c.log10_count(k) == -math.inf


@given(corridors, st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_any_decisions_give_a_feasible_placement(c: Corridor, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chance = rng.random()
    starts = np.array(run_loop(c, lambda: bool(rng.random() < chance)), np.int64)
    assert c.violation(starts) is None
    assert len(starts) in c.feasible_budgets()
    assert np.array_equal(c.start_ns(c.gaps(starts)), starts)


@given(corridors, st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=200, deadline=None)
def test_every_draw_shift_and_permutation_is_feasible(c: Corridor, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    k = data.draw(st.sampled_from(list(c.feasible_budgets())))
    drawn = c.sample(k, 5, rng)
    assert drawn.shape == (5, k) and drawn.dtype == np.int64
    for gaps in drawn:
        assert c.violation(c.start_ns(gaps)) is None
    for other in (c.shifts(drawn[0]), c.permuted(drawn[0], 4, rng)):
        for gaps in other:
            assert c.violation(c.start_ns(gaps)) is None
    assert np.array_equal(np.sort(c.permuted(drawn[0], 3, rng)), np.tile(np.sort(drawn[0]), (3, 1)))


def chi_square_p(c: Corridor, k: int, per_cell: int, seed: int) -> tuple[float, int]:
    cells = sorted(compositions(c, k))
    code = c.gap_max + 1
    weights = code ** np.arange(k)
    index = np.sort(np.array(cells) @ weights)
    drawn = c.sample(k, per_cell * len(cells), np.random.default_rng(seed)) @ weights
    at = np.searchsorted(index, drawn)
    assert np.array_equal(index[at], drawn)
    return float(stats.chisquare(np.bincount(at, minlength=len(cells))).pvalue), len(cells)


def test_uniform_against_full_enumeration() -> None:
    """Chi-square on 24 corridors; under exactness the p-values are uniform, so the least of 24 is above .0005."""
    pvalues: list[float] = []
    seed = 0
    while len(pvalues) < 24:
        seed += 1
        c = small_corridor(seed)
        ks = [k for k in c.feasible_budgets() if 2 <= k <= 6 and 5 <= c.count(k) <= 3000]
        if ks:
            pvalues.append(chi_square_p(c, ks[seed % len(ks)], 200, seed)[0])
    assert min(pvalues) > 0.0005
    assert stats.kstest(pvalues, "uniform").pvalue > 0.001


def test_uniform_when_layers_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    c = Corridor(1, 6, 1, 1, 2, 40)
    kept = c.sample(6, 500, np.random.default_rng(3))
    monkeypatch.setattr("protocol.merging.corridor._KEEP_CELLS", 0)
    assert np.array_equal(kept, c.sample(6, 500, np.random.default_rng(3)))


def test_known_count_and_published_range() -> None:
    """Two gaps of 1..3 with a sum up to 4: (1,1) (1,2) (2,1) (1,3) (3,1) (2,2).  The published pace fits 13 to 34."""
    c = Corridor(1, 3, 1, 1, 1, 6)
    assert c.sum_range(2) == (2, 4)
    assert c.count(2) == 6
    paper = Corridor(94, 376, 1, 100_000_000, 8_000_000_000, 600_000_000_000)
    assert paper.feasible_budgets() == range(13, 35)
    assert paper.log10_count(30) == pytest.approx(math.log10(paper.count(30)))


def gap_cdf(c: Corridor, k: int, x: int) -> float:
    """P(a gap <= gap_min + x) over all placements of k merges, in whole numbers: one part with a tighter bound."""
    low, high = (s - k * c.gap_min for s in c.sum_range(k))
    width = c.gap_max - c.gap_min

    def loose(s: int) -> int:
        terms = range(min(k - 1, s // (width + 1)) + 1) if s >= 0 else ()
        return sum((-1) ** j * math.comb(k - 1, j) * math.comb(s - j * (width + 1) + k, k) for j in terms)

    def tight(s: int) -> int:
        return loose(s) - loose(s - x - 1)

    return float(Fraction(tight(high) - tight(low - 1), c.count(k)))


DAY = Corridor(128, 4096, 8, 73_500_000, 8_000_000_000, 86_400_000_000_000)
FINE_DAY = Corridor(100, 3000, 1, 100_000_000, 8_000_000_000, 86_400_000_000_000)


@pytest.mark.parametrize(
    ("c", "k"),
    [
        (DAY, 281), (DAY, 500), (Corridor(2, 4000, 1, 1, 0, 8000), 2500), (Corridor(2, 4000, 1, 1, 0, 6000), 2990),
        pytest.param(FINE_DAY, 500, marks=pytest.mark.slow), pytest.param(FINE_DAY, 3000, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_long_horizons_neither_overflow_nor_underflow(c: Corridor, k: int) -> None:
    """The first, middle and last gap of 2,000 draws against their exact distribution, in about ten bins."""
    gaps = c.sample(k, 2000, np.random.default_rng(1))
    assert all(c.violation(c.start_ns(row)) is None for row in gaps[:10])
    edges = np.unique(np.quantile(gaps[:, 1], np.arange(1, 10) / 10, method="lower")) - c.gap_min
    p = np.diff([0.0, *(gap_cdf(c, k, int(x)) for x in edges), 1.0])
    likely = p * 2000 > 5
    assert likely.sum() >= 2
    for position in (0, k // 2, k - 1):
        seen = np.bincount(np.searchsorted(edges, gaps[:, position] - c.gap_min), minlength=len(p))[likely]
        assert stats.chisquare(seen, seen.sum() * p[likely] / p[likely].sum()).pvalue > 0.0005


def test_float_layers_give_the_exact_marginal_of_the_total() -> None:
    """P(sum = s) from the sampler against exact counts, in the thin tail of a long corridor."""
    c = Corridor(2, 400, 1, 1, 0, 2_500)
    k = c.feasible_budgets()[-1] - 3
    sums = c.sample(k, 4000, np.random.default_rng(1)).sum(axis=1)
    low, high = c.sum_range(k)
    at_most = [Corridor(2, 400, 1, 1, 0, s).count(k) for s in range(low, high + 1)]
    # Each of those counts sums from its own lower bound 2 k, the same for all, so differences are exact counts.
    exact = np.diff([0, *at_most])
    observed = np.bincount(sums - low, minlength=high - low + 1)
    keep = np.array([float(e) / float(sum(exact)) * 4000 >= 5 for e in exact])
    expected = np.array([float(e) for e in exact])[keep]
    expected *= observed[keep].sum() / expected.sum()
    assert keep.sum() >= 2
    assert stats.chisquare(observed[keep], expected).pvalue > 0.001


def test_optimum_equals_brute_force() -> None:
    """1,000 random cases, ties included (costs of few distinct values)."""
    rng = np.random.default_rng(7)
    done = seed = 0
    while done < 1000:
        seed += 1
        c = small_corridor(seed)
        ks = [k for k in c.feasible_budgets() if 1 <= k <= 5 and 0 < c.count(k) <= 400]
        for k in ks:
            cost = rng.integers(0, 4, (k, c.sum_range(k)[1] + 1)).astype(float)
            if seed % 2:
                cost += rng.normal(size=cost.shape)
            gaps = c.optimum(k, cost)
            assert c.violation(c.start_ns(gaps)) is None

            def total(g: tuple[int, ...], cost: np.ndarray = cost) -> float:
                return float(sum(cost[i, n] for i, n in enumerate(itertools.accumulate(g))))

            best = min(compositions(c, k), key=lambda g: (total(g), sum(g)))
            assert total(tuple(gaps.tolist())) == pytest.approx(total(best), abs=1e-12)
            if not seed % 2:
                assert gaps.sum() == sum(best)
            assert np.array_equal(gaps, c.optimum(k, cost))
            done += 1


def test_optimum_refuses_bad_costs_but_not_unreachable_ones() -> None:
    c = Corridor(2, 3, 1, 1, 1, 9)
    cost = np.full((2, c.sum_range(2)[1] + 1), np.nan)
    cost[0, 2:4] = 1.0
    cost[1, 4:] = [3.0, 1.0, 1.0]
    assert c.optimum(2, cost).sum() == 5
    cost[1, 5] = np.inf
    with pytest.raises(BadInput, match="merge 2: found NaN or inf"):
        c.optimum(2, cost)
    with pytest.raises(BadInput, match="shape"):
        c.optimum(2, np.zeros((2, 3)))


@pytest.mark.parametrize("seed", range(30))
def test_shifts_equal_shifting_on_a_circle(seed: int) -> None:
    """Move every merge by d decisions, carry those that leave to the front, keep what the corridor allows."""
    c = small_corridor(seed)
    rng = np.random.default_rng(seed)
    for k in c.feasible_budgets():
        if k == 0:
            assert len(c.shifts([])) == 0
            continue
        own = c.sample(k, 1, rng)[0]
        circle = (c.horizon_ns - k * c.merge_ns) // c.grid_ns
        expected = set()
        for d in range(1, circle):
            at = np.sort((np.cumsum(own) + d - 1) % circle + 1)
            gaps = np.diff(at, prepend=0)
            if c.violation(c.start_ns(gaps)) is None and not np.array_equal(gaps, own):
                expected.add(tuple(gaps.tolist()))
        rows = [tuple(r) for r in c.shifts(own).tolist()]
        assert set(rows) == expected and len(rows) == len(expected)


def test_infeasible_budget_says_what_fits() -> None:
    c = Corridor(128, 512, 8, 73_500_000, 8_000_000_000, 600_000_000_000)
    assert c.feasible_budgets() == range(13, 35)
    rng = np.random.default_rng(0)
    for call in (c.check_budget, lambda k: c.sample(k, 1, rng), lambda k: c.optimum(k, np.zeros(1))):
        with pytest.raises(InfeasibleCorridor, match="found a budget of 8 merges; expected 13 to 34 merges"):
            call(8)
    with pytest.raises(InfeasibleCorridor):
        c.check_budget(-1)
    assert c.sample(20, 0, np.random.default_rng(0)).shape == (0, 20)
    short = Corridor(128, 512, 8, 73_500_000, 8_000_000_000, 10_000_000_000)
    assert list(short.feasible_budgets()) == [0]
    assert short.sample(0, 4, np.random.default_rng(0)).shape == (4, 0)
    assert short.violation(np.empty(0, np.int64)) is None


@pytest.mark.parametrize(
    ("starts", "says"),
    [
        ([1, 6], "merge 1 starts 1 inner steps after time 0; H_min is 2"),
        ([5, 10], "merge 1 starts 5 inner steps after time 0; H_max is 4"),
        ([2, 6], "merge 2 starts 1 inner steps after the end of merge 1; H_min is 2"),
        ([2, 4], "merge 2 starts -1 inner steps after the end of merge 1; H_min is 2"),
        ([2, 10], "merge 2 starts 5 inner steps after the end of merge 1; H_max is 4"),
        ([3, 10, 17], "merge 3 ends at 2e-08 s, past the horizon of 1.9e-08 s"),
        ([2, 7], "nothing merges after the end of merge 2 until the horizon"),
        ([], "nothing merges after time 0"),
    ],
)
def test_violation_names_the_first_fault(starts: list[int], says: str) -> None:
    found = Corridor(2, 4, 1, 1, 3, 19).violation(np.array(starts, np.int64))
    assert found is not None and found.startswith(says) and "\n" not in found


def test_off_grid_and_odd_inputs() -> None:
    c = Corridor(2, 8, 2, 10, 5, 200)
    assert c.violation(np.array([20.0])) is not None
    assert "a multiple of 2 steps" in (c.violation([30]) or "")
    with pytest.raises(BadInput, match="merge 2: found a start at"):
        c.gaps([20, 60])
    good = {"h_min": 2, "h_max": 8, "decision_steps": 2, "step_ns": 1, "merge_ns": 0, "horizon_ns": 9}
    for bad in ({"h_min": 0}, {"h_max": 1}, {"merge_ns": -1}, {"step_ns": 1.5}, {"h_min": 3, "h_max": 3}):
        with pytest.raises(BadInput):
            Corridor(**(good | bad))
