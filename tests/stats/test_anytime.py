"""Betting on signs, watched after every block."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.stats import anytime
from protocol.stats.anytime import Watched, sign_bets
from protocol.stats.randomization import sign_flip

FAMILIES = {
    "normal": lambda source, shape: source.normal(size=shape),
    "t3": lambda source, shape: source.standard_t(3, shape),
    "two values": lambda source, shape: source.choice([-1.0, 1.0], shape),
    "growing": lambda source, shape: source.normal(size=shape) * 1.2 ** np.arange(shape[-1]),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_by_hand() -> None:
    """One block: its own size is the scale, so the capital is the mean of 1 + tanh(bet) over the bets."""
    bets = np.array([0.5, 1.0])
    for value, sign in ((3.0, 1), (-3.0, -1)):
        capital = math.exp(sign_bets([value]).log_capital[0])
        assert capital == pytest.approx(float(np.mean(1 + sign * np.tanh(bets))))
    # Second block: squares about the mean of the first (none) and 4 about 0, over two blocks.
    second = float(np.mean((1 + np.tanh(bets)) * (1 + np.tanh(bets * 2 / math.sqrt(4 / 2)))))
    assert math.exp(sign_bets([1.0, 2.0]).log_capital[1]) == pytest.approx(second)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_given_the_sizes_the_capital_is_fair(sizes: list[float]) -> None:
    """Over the two signs of the last block, with the past and the size fixed, the capital stays on average."""
    past, last = sizes[:-1], abs(sizes[-1])
    up, down = (math.exp(sign_bets([*past, value]).log_capital[-1]) for value in (last, -last))
    before = math.exp(sign_bets(past).log_capital[-1]) if past else 1.0
    assert (up + down) / 2 == pytest.approx(before, rel=1e-9)


def test_the_capital_falls_in_delta_so_the_bound_is_a_limit() -> None:
    gains = rng(1).normal(1, 1, 20)
    capital = [sign_bets(gains, delta=g).log_capital for g in np.linspace(-3, 3, 40)]
    assert np.all(np.diff(np.array(capital), axis=0) <= 1e-9)
    found = sign_bets(gains)
    assert found.lower_bound is not None and found.pvalue is not None
    for delta in (found.lower_bound - 1e-6, found.lower_bound + 1e-6):
        watched = sign_bets(gains, delta=delta)
        assert (watched.decided_at is not None) == (delta < found.lower_bound)
        assert watched.pvalue is not None and (watched.pvalue <= 0.05) == (watched.decided_at is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_looking_after_every_block_keeps_the_level(family: str) -> None:
    """Of sessions without gain that are watched for 60 blocks, at most 5 % are ever decided; sign flips exceed it."""
    made = FAMILIES[family](rng(2), (2000, 60))
    hits = sum(bool((anytime._log_capital(row, 0.0) >= math.log(20)).any()) for row in made)
    assert stats.binomtest(hits, 2000, 0.05, alternative="greater").pvalue > 0.001
    if family == "normal":
        peeks = (8, 12, 16, 20)
        caught = sum(any((sign_flip(-row[:n]).pvalue or 1.0) <= 0.05 for n in peeks) for row in made[:600])
        assert stats.binomtest(caught, 600, 0.05, alternative="greater").pvalue < 0.001


def test_a_clear_gain_is_decided_early() -> None:
    """One standard deviation: half of the sessions end by block 12, nine in ten by block 20."""
    at = np.array([sign_bets(rng(r).normal(1, 1, 30)).decided_at or 99 for r in range(80)])
    assert np.median(at) <= 12 and np.mean(at <= 20) > 0.85 and at.min() >= 5


def test_nothing_to_bet_on() -> None:
    assert sign_bets([]).pvalue == 1.0 and sign_bets([]).decided_at is None
    assert sign_bets([0.0, 0.0]).pvalue == 1.0
    assert sign_bets([1.0, 2.0]).lower_bound == -math.inf
    broken = sign_bets([1.0, math.nan, 1.0])
    assert broken.pvalue is None and broken.decided_at is None and "block 2" in (broken.reason or "")


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12), st.floats(-10, 10))
@settings(max_examples=60, deadline=None)
def test_as_a_test_of_a_gain_it_agrees_with_its_own_limits(gains: list[float], delta: float) -> None:
    watched = Watched(np.array(gains))
    outcome = watched.outcome(delta)
    assert outcome.pvalue == watched.pvalue(delta) == sign_bets(gains, delta=delta).pvalue
    assert outcome.floor is not None and outcome.pvalue is not None and outcome.floor <= outcome.pvalue
    mirrored = Watched(-np.array(gains))
    assert watched.upper(0.1) == -mirrored.lower(0.1) and watched.lower(0.1) <= watched.upper(0.1)
