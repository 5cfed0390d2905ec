"""Turning points: p-values and limits at any minimum effect, against tests run anew with the effect put in."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.stats import inversion as inv
from protocol.stats.randomization import sign_flip as flip_test
from protocol.stats.randomization import stratified_randomization, tie_tolerance


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def gains(y: np.ndarray) -> np.ndarray:
    return np.asarray(y[:, 1:].mean(axis=1) - y[:, 0])


def dealt_pvalue(cost: np.ndarray) -> float:
    """Share of all ways to deal the schedules out that cost no more than leaving them where they were made."""
    n = len(cost)
    sums = [cost[range(n), order].sum() for order in itertools.permutations(range(n))]
    return sum(value <= sums[0] + 1e-9 for value in sums) / len(sums)


@given(st.integers(0, 10_000), st.sampled_from([-1.0, 0.0, 0.3, 2.0]))
@settings(max_examples=40, deadline=None)
def test_pvalues_are_those_of_the_shifted_tests(seed: int, delta: float) -> None:
    """On whole numbers, with ties, and enumerated, so that both sides must be equal."""
    source = rng(seed)
    y = np.round(source.normal(0, 2, (5, 5)))
    cost = np.round(source.normal(0, 2, (5, 5)))
    shifted = y.copy()
    shifted[:, 0] += delta
    blocks = list(y)
    assert (
        inv.stratified(blocks, source, 0).pvalue(delta)
        == stratified_randomization(shifted[:, 0], shifted[:, 1:], source).pvalue
    )
    flip = inv.sign_flip(gains(y), source, 0, tie_tolerance(blocks))
    assert flip.pvalue(delta) == flip_test(delta - gains(y)).pvalue
    assert inv.exchange(cost, source, 0).pvalue(delta) == dealt_pvalue(cost + delta * np.eye(5))


def test_by_hand() -> None:
    """Two seeds.  Gains 1 and 3: subsets none, {1}, {3}, {1, 3} with means -, 1, 3, 2."""
    flip = inv.sign_flip(np.array([1.0, 3.0]), rng(), 0, 1e-9)
    assert [flip.points.ranked(k) for k in (0, 1, 2, -1)] == pytest.approx([1, 2, 3, 3])
    assert flip.same == 1 and flip.size == 4 and len(flip.points) == 3
    assert [flip.pvalue(g) for g in (0.0, 1.0, 1.5, 2.0, 3.0)] == [0.25, 0.5, 0.5, 0.75, 1.0]
    assert (flip.lower(0.25), flip.upper(0.25)) == pytest.approx((1.0, 3.0))
    assert (flip.lower(0.24), flip.upper(0.24)) == (-math.inf, math.inf)
    # Three traces; every schedule costs 0 at home, 3 abroad on trace 1, 6 on trace 2, 9 on trace 3.
    cost = np.array([[0.0, 3, 3], [6, 0, 6], [9, 9, 0]])
    dealt = inv.exchange(cost, rng(), 0)
    assert [dealt.points.ranked(k) for k in range(5)] == [4.5, 6.0, 6.0, 6.0, 7.5] and dealt.estimate == 6.0
    assert dealt.pvalue() == 1 / 6 == dealt.floor


@given(st.integers(0, 10_000), st.integers(2, 11))
@settings(max_examples=40, deadline=None)
def test_means_of_subsets_without_listing_them(seed: int, size: int) -> None:
    gains = np.round(rng(seed).normal(size=size), rng(seed).integers(0, 4))
    means = np.sort(
        [np.mean(subset) for k in range(1, size + 1) for subset in itertools.combinations(gains.tolist(), k)]
    )
    found = inv.SubsetMeans(gains)
    assert len(found) == len(means)
    for rank in (0, len(means) // 3, len(means) - 1, -1, -len(means)):
        assert found.ranked(rank) == pytest.approx(means[rank], abs=1e-12)
    for gain in (-0.5, 0.123, 0.7):
        assert found.at_most(gain + 1e-12) == np.count_nonzero(means <= gain + 1e-12)


def test_limits_are_where_each_test_turns() -> None:
    y = rng(2).normal(size=(6, 4))
    cost = rng(3).normal(size=(6, 6))
    for test in (
        inv.stratified(list(y), rng(), 0),
        inv.sign_flip(gains(y), rng(), 0, 1e-9),
        inv.exchange(cost, rng(), 0),
    ):
        assert test.exact
        for tail in (0.02, 0.05, 0.2):
            lower, upper = test.lower(tail), test.upper(tail)
            assert test.pvalue(lower + 1e-6) > tail >= test.pvalue(lower - 1e-6)
            above = [len(test.points) - test.points.at_most(g) + test.same for g in (upper - 1e-6, upper + 1e-6)]
            assert above[0] / test.size > tail >= above[1] / test.size


@given(st.integers(0, 10_000), st.floats(-1, 2), st.sampled_from([0.0, 0.5]))
@settings(max_examples=40, deadline=None)
def test_a_bound_exceeds_the_minimum_effect_exactly_when_significant(seed: int, gain: float, delta: float) -> None:
    source = rng(seed)
    y = np.round(source.normal(size=(22, 8)), 1)
    y[:, 0] = np.round(y[:, 0] - gain, 1)
    cost = np.round(source.normal(size=(22, 22)), 1)
    for test in (
        inv.stratified(list(y), source, 499),
        inv.sign_flip(gains(y), source, 499, 1e-9),
        inv.exchange(cost, source, 499),
    ):
        assert not test.exact and test.size == 500
        for alpha in (0.01, 0.05, 0.3):
            assert (test.pvalue(delta) <= alpha) == (test.lower(alpha) > delta)


def test_sampled_tests_come_near_the_enumerated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    y, cost = rng(5).normal(size=(8, 4)), rng(6).normal(size=(8, 8))
    exact = (inv.stratified(list(y), rng(), 0), inv.sign_flip(gains(y), rng(), 0, 1e-9), inv.exchange(cost, rng(), 0))
    monkeypatch.setattr(inv, "EXACT_SIGNS", 1)
    monkeypatch.setattr(inv, "EXACT_PERMUTATIONS", 1)
    monkeypatch.setattr("protocol.stats.randomization.EXACT_SIZE", 1)
    sampled = (
        inv.stratified(list(y), rng(1), 20_000),
        inv.sign_flip(gains(y), rng(1), 20_000, 1e-9),
        inv.exchange(cost, rng(1), 20_000),
    )
    for one, other in zip(exact, sampled, strict=True):
        assert one.exact and not other.exact and other.floor >= 1 / 20_001
        for delta in (-0.3, 0.0, 0.4):
            p = one.pvalue(delta)
            assert abs(other.pvalue(delta) - p) < 4 * math.sqrt(p * (1 - p) / 20_000) + 1e-4


def test_the_exchange_is_a_count_over_permutations() -> None:
    """A direct enumeration with delta on the diagonal."""
    cost = rng(8).normal(size=(5, 5))
    for delta in (0.0, 0.7):
        found = inv.exchange(cost, rng(), 0)
        assert found.pvalue(delta) == pytest.approx(dealt_pvalue(cost + delta * np.eye(5)), abs=1e-12)
        assert found.floor == 1 / math.factorial(5)


def test_one_schedule_everywhere_and_one_that_follows() -> None:
    same = np.tile(rng().random(20)[:, None], 20)
    assert inv.exchange(same, rng(), 9999).pvalue() == 1.0
    aware = rng().normal(size=(20, 20)) - 3 * np.eye(20)
    assert inv.exchange(aware, rng(), 9999).pvalue() == 1e-4


def test_the_exchange_holds_its_level_where_uniform_draws_do_not() -> None:
    """A load-blind schedule that aliases with periodic load beats uniform placement, but knows nothing of its trace.

    Costs of schedule t on trace s: a merit of the schedule, common to all traces, plus noise.
    """
    reps, rejected = 400, 0
    source = rng(11)
    for _ in range(reps):
        cost = source.normal(size=(12, 12)) + source.exponential(2.0, 12)
        rejected += inv.exchange(cost, source, 399).pvalue() <= 0.05
    assert stats.binomtest(rejected, reps, 0.05, alternative="greater").pvalue > 0.001


def test_gains_that_vary_over_traces_pass_the_exchange_but_not_both() -> None:
    """True gain 2 pp on average, sd 2 over traces, noise of 1 elsewhere: at a minimum effect of 2 pp, 5 % may pass."""
    reps, alone, both = 300, 0, 0
    source = rng(12)
    for _ in range(reps):
        cost = source.normal(size=(12, 12))
        cost[np.diag_indices(12)] -= source.normal(2, 2, 12)
        dealt = inv.exchange(cost, source, 399).pvalue(2.0) <= 0.05
        flipped = inv.sign_flip(inv.own_trace(cost), source, 0, 1e-9, inv.LOAD_FLIP).pvalue(2.0) <= 0.05
        alone, both = alone + dealt, both + (dealt and flipped)
    assert alone / reps > 0.1
    assert stats.binomtest(both, reps, 0.05, alternative="greater").pvalue > 0.001


def test_what_a_schedule_saves_on_its_own_trace() -> None:
    """Trace and schedule effects drop out; the rest is what least squares, fitted off the diagonal, leaves on it."""
    cost = rng(9).normal(size=(7, 7))
    effects = rng(10).normal(0, 9, (7, 1)) + rng(11).normal(0, 9, 7)
    saved = inv.own_trace(cost)
    assert inv.own_trace(cost + effects) == pytest.approx(saved)
    s, t = np.nonzero(~np.eye(7, dtype=bool))
    design = np.zeros((42, 14))
    design[np.arange(42), s] = design[np.arange(42), 7 + t] = 1
    fit = np.linalg.lstsq(design, cost[s, t], rcond=None)[0]
    assert saved == pytest.approx(fit[:7] + fit[7:] - np.diagonal(cost))
    for size in (2, 3, 7):
        some = cost[:size, :size]
        assert inv.own_trace(some).mean() == pytest.approx(inv.exchange(some, rng(), 0).estimate)
