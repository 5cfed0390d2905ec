"""Each test three ways: by hand, by enumeration, and against scipy or an exact count."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.stats import randomization as rz
from protocol.stats.randomization import ranks, sign_flip, strata, stratified_randomization


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


small_values = st.integers(-3, 3)
small_strata = st.lists(st.lists(small_values, min_size=2, max_size=4), min_size=1, max_size=5)


def enumerated(blocks: list[list[int]]) -> float:
    own = sum(b[0] for b in blocks)
    sums = [sum(pick) for pick in itertools.product(*blocks)]
    return sum(s <= own for s in sums) / len(sums)


# Stratified randomisation


def test_stratified_by_hand() -> None:
    """Two seeds, one draw each: relabelled sums 0, 1, 1, 2; the policy's is 0, so p = 1/4."""
    found = stratified_randomization([0.0, 0.0], [[1.0], [1.0]], rng())
    assert (found.pvalue, found.floor, found.n, found.n_null, found.exact) == (0.25, 0.25, 2, 4, True)
    assert found.statistic == -1.0
    assert stratified_randomization([1.0, 0.0], [[0.0], [1.0]], rng()).pvalue == 0.75


@given(small_strata)
@settings(max_examples=200, deadline=None)
def test_stratified_equals_enumeration_with_ties(blocks: list[list[int]]) -> None:
    """Integers divided by 7 tie mathematically but not in floating point."""
    found = stratified_randomization([b[0] / 7 for b in blocks], [np.array(b[1:]) / 7 for b in blocks], rng())
    assert found.exact and found.pvalue == pytest.approx(enumerated(blocks), abs=1e-15)


def test_one_draw_a_seed_is_the_sign_flip_test() -> None:
    """With m = 1 relabelling a seed flips the sign of its difference; scipy's exact test agrees."""
    y = rng(1).normal(size=(9, 2))
    ours = stratified_randomization(y[:, 0], y[:, 1:], rng()).pvalue
    d = y[:, 0] - y[:, 1]
    theirs = stats.permutation_test(
        (d,), np.sum, permutation_type="samples", alternative="less", n_resamples=np.inf
    ).pvalue
    assert ours == pytest.approx(theirs) == pytest.approx(sign_flip(d).pvalue)


def test_sampled_agrees_with_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    y = rng(2).normal(size=(5, 6)) - np.array([0.6, 0, 0, 0, 0, 0])
    exact = stratified_randomization(y[:, 0], y[:, 1:], rng())
    monkeypatch.setattr(rz, "EXACT_SIZE", 0)
    sampled = stratified_randomization(y[:, 0], y[:, 1:], rng(), n_resamples=40_000)
    assert exact.exact and not sampled.exact and exact.pvalue and sampled.pvalue
    se = math.sqrt(exact.pvalue * (1 - exact.pvalue) / 40_000)
    assert abs(sampled.pvalue - exact.pvalue) < 4 * se
    assert sampled.floor == 6.0**-5 and exact.floor == 6.0**-5


def test_unequal_numbers_of_draws() -> None:
    blocks = [[0, 1], [2, 1, 3, 3], [0, 0, -1]]
    found = stratified_randomization([b[0] for b in blocks], [b[1:] for b in blocks], rng())
    assert found.pvalue == pytest.approx(enumerated(blocks)) and found.n_null == 24


def test_a_sampled_p_is_never_zero() -> None:
    y = np.zeros((20, 1000))
    y[:, 1:] = rng().random((20, 999)) + 1
    found = stratified_randomization(y[:, 0], y[:, 1:], rng(), n_resamples=9999)
    assert found.pvalue == 1e-4 == found.floor


def test_the_tie_tolerance_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 + 0.6 and 0.3 + 0.4 are one sum, but (0.3 - 0.1) + (0.4 - 0.6) is 3e-17: without tolerance, no tie."""
    policy, draws = [0.1, 0.6], [[0.3], [0.4]]
    assert stratified_randomization(policy, draws, rng()).pvalue == 3 / 4
    monkeypatch.setattr(rz, "RTOL", 0.0)
    assert stratified_randomization(policy, draws, rng()).pvalue == 2 / 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_poison_is_undecidable(bad: float) -> None:
    y = rng().normal(size=(4, 5))
    for row, column in ((2, 0), (1, 3)):
        spoiled = y.copy()
        spoiled[row, column] = bad
        found = stratified_randomization(spoiled[:, 0], spoiled[:, 1:], rng())
        assert found.pvalue is None and f"seed {row + 1} of 4" in (found.reason or "")
    assert sign_flip([1.0, bad, 2.0]).pvalue is None


def test_too_little_is_undecidable() -> None:
    assert stratified_randomization([], [], rng()).reason == "no seeds"
    assert "has no draws" in (stratified_randomization([1.0, 1.0], [[1.0], []], rng()).reason or "")
    assert stratified_randomization([1.0], [[1.0], [2.0]], rng()).pvalue is None
    assert sign_flip([]).pvalue is None


def test_no_spread_gives_p_one() -> None:
    assert stratified_randomization(np.full(6, 0.1), np.full((6, 9), 0.1), rng()).pvalue == 1.0
    assert sign_flip(np.zeros(8)).pvalue == 1.0


# Ranks


def test_ties_count_against_the_policy() -> None:
    blocks = strata([1.0, 2.0, 0.0], [[1.0, 3.0], [0.0, 1.0], [1.0, 2.0]])
    assert not isinstance(blocks, str) and ranks(blocks).tolist() == [2, 3, 1]


# Sign flips


@given(st.lists(small_values, min_size=1, max_size=9))
@settings(max_examples=200, deadline=None)
def test_sign_flip_equals_enumeration(d: list[int]) -> None:
    sums = [sum(s * v for s, v in zip(signs, d, strict=True)) for signs in itertools.product((1, -1), repeat=len(d))]
    found = sign_flip(np.array(d) / 7)
    assert found.pvalue == pytest.approx(sum(s <= sum(d) for s in sums) / len(sums), abs=1e-15)
    assert found.floor == 2.0 ** -len(d)


@pytest.mark.parametrize("size", [5, 8, 12])
def test_sign_flip_equals_scipy(size: int) -> None:
    d = rng(size).normal(-0.3, 1, size)
    theirs = stats.permutation_test(
        (d,), np.sum, permutation_type="samples", alternative="less", n_resamples=np.inf
    ).pvalue
    assert sign_flip(d).pvalue == pytest.approx(theirs)
    assert sign_flip(-np.abs(d)).pvalue == 2.0**-size


def test_sampled_sign_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    d = rng(3).normal(-0.25, 1, 22)
    with pytest.raises(ValueError, match="need rng"):
        sign_flip(d)
    sampled = sign_flip(d, rng(), n_resamples=40_000)
    monkeypatch.setattr(rz, "EXACT_SIGNS", 22)
    exact = sign_flip(d)
    assert exact.exact and not sampled.exact and exact.pvalue and sampled.pvalue
    assert abs(sampled.pvalue - exact.pvalue) < 4 * math.sqrt(exact.pvalue / 40_000)
    monkeypatch.setattr(rz, "EXACT_SIGNS", 20)
    assert sign_flip(np.full(30, -1.0), rng()).pvalue == 1e-4


def test_speed() -> None:
    """20 seeds: 2^20 sign flips within 50 ms; 999 draws and 9,999 relabellings within 30 ms (best of five)."""
    y = rng().normal(size=(20, 1000))

    def best(call: object) -> float:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            call()  # type: ignore[operator]
            times.append(time.perf_counter() - begin)
        return min(times)

    assert best(lambda: sign_flip(y[:, 0])) < 0.05
    assert best(lambda: stratified_randomization(y[:, 0], y[:, 1:], rng())) < 0.03
