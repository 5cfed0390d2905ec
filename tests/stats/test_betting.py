"""The bound without assumptions on shape."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.stats.betting import BETS, betting_bound, log_capital


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_capital_by_hand() -> None:
    """Gains 1 and -1 above a lowest of -3: at mean 1 a bet of share c gives (1 + 0)(1 - c / 2)."""
    by_hand = float(np.mean(1 - BETS / 2))
    assert math.exp(log_capital(np.array([1.0, -1.0]), -3.0, 1.0)) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("mean", "sd", "low", "high", "published"),
    [(8.6, 2, -16, 15, (3.5, 5.9, 7.1)), (3, 1, -10, 8, (0.4, 1.6, 2.3)), (1.5, 1, -10, 8, (-0.8, 0.25, 0.83))],
)
def test_reproduces_the_table(mean: float, sd: float, low: float, high: float, published: tuple[float, ...]) -> None:
    """STATISTICS section 6, median lower bounds at 20, 40 and 80 seeds; the cell below 0 was measured here."""
    for seeds, expected in zip((20, 40, 80), published, strict=True):
        found = [
            betting_bound(np.clip(rng(r).normal(mean, sd, seeds), low, high), np.full(seeds, low)).lower_bound
            for r in range(40)
        ]
        assert np.median(np.array(found, float)) == pytest.approx(expected, abs=0.35)


def test_bound_and_pvalue_agree() -> None:
    d = rng(1).normal(4, 2, 30)
    for delta in (0.0, 0.5, 1.0, 2.0):
        found = betting_bound(d, np.full(30, -5.0), delta=delta, highest=np.full(30, 12.0))
        p, bound, floor = found.outcome.pvalue, found.lower_bound, found.outcome.floor
        assert p is not None and bound is not None and floor is not None
        assert (p <= 0.05) == (bound > delta)
        assert 0 < floor <= p <= 1
    assert betting_bound(d, np.full(30, -8.0)).lower_bound < betting_bound(d, np.full(30, -5.0)).lower_bound  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_rare_losses_do_not_break_it(share: float) -> None:
    """A gambler: +1 in most seeds, all of it lost in few, mean 0.  A t test passes far more than 5 %."""
    loss = -(1 - share) / share
    passed = 0
    for r in range(400):
        d = np.where(rng(r).random(20) < share, loss, 1.0)
        p = betting_bound(d, np.full(20, loss)).outcome.pvalue
        assert p is not None
        passed += p <= 0.05
    assert passed <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_means_that_differ_between_seeds_are_held_too() -> None:
    """Half the seeds gain 1 and half lose 1, whichever bounds they have: the average is 0 and p is never small."""
    low = np.where(np.arange(20) % 2 == 0, -1.5, -6.0)
    for r in range(200):
        d = np.where(np.arange(20) % 2 == 0, 1.0, -1.0) + rng(r).uniform(-0.5, 0.5, 20)
        found = betting_bound(d, low)
        assert found.outcome.pvalue is not None and found.outcome.pvalue > 0.05 and found.lowest == -6.0


@pytest.mark.parametrize(
    ("gains", "lowest", "delta", "says"),
    [
        ([1.0, math.nan], [-1.0, -1.0], 0.0, "NaN"),
        ([1.0, 1.0], [-1.0, -math.inf], 0.0, "NaN or infinite"),
        ([1.0, 1.0], [-1.0], 0.0, "1 worst placements for 2 seeds"),
        ([], [], 0.0, "0 worst placements"),
        ([1.0, -2.0], [-1.0, -1.0], 0.0, "seed 2 gained less than its worst placement"),
        ([1.0, 1.0], [-1.0, -1.0], -1.0, "below every possible gain"),
    ],
)
def test_what_is_no_bound_decides_nothing(gains: list[float], lowest: list[float], delta: float, says: str) -> None:
    found = betting_bound(gains, lowest, delta=delta)
    assert found.outcome.pvalue is None and found.lower_bound is None
    assert says in (found.outcome.reason or "")
