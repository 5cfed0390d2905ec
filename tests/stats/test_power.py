from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from protocol.stats.envelope import envelope
from protocol.stats.power import (
    DRAW_SD,
    POLICY_SD,
    Design,
    best_design,
    required_seeds,
    simulate_power,
    simulate_pvalues,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("spread", "seeds", "draws", "gain", "published"),
    [
        ("offline", 5, 5, 1.0, 0.76), ("offline", 12, 19, 0.5, 0.64), ("shift", 5, 5, 1.5, 0.66),
        ("shift", 12, 19, 1.0, 0.95), ("online", 12, 19, 1.5, 0.82), ("online", 20, 19, 1.0, 0.73),
        ("online", 20, 19, 1.5, 0.96),
    ],
)  # fmt: skip
def test_reproduces_the_power_table(spread: str, seeds: int, draws: int, gain: float, published: float) -> None:
    """STATISTICS section 4, 800 repetitions a cell there and 1,000 here: differences up to 4 standard errors."""
    found = simulate_power(Design(seeds, draws, gain, POLICY_SD[spread], DRAW_SD), rng(seeds), 1000)
    assert abs(found.power - published) < 4 * (published * (1 - published) * (1 / 800 + 1 / 1000)) ** 0.5
    assert found.lower < found.power < found.upper
    assert found.power <= min(found.stratified, found.sign_flip)


def test_simulated_pvalues_are_the_envelopes() -> None:
    """The fast kernel against the public tests on the same kind of data: the same power within its error."""
    design = Design(10, 9, 1.0, 1.0, 1.0)
    fast = simulate_power(design, rng(1), 400)
    source, hits = rng(2), 0
    for _ in range(400):
        y = source.normal(size=(10, 10))
        y[:, 0] -= 1.0
        p = envelope(y[:, 0], y[:, 1:], source, n_resamples=999).pvalue
        hits += p is not None and p <= 0.05
    assert abs(hits / 400 - fast.power) < 4 * (2 * 0.25 / 400) ** 0.5


@pytest.mark.parametrize("family", ["normal", "lognormal"])
def test_no_gain_is_not_found(family: str) -> None:
    found = simulate_power(Design(14, 9, 0.0, 1.0, 1.0, family), rng(3), 2000)  # type: ignore[arg-type]
    assert stats.binomtest(round(found.power * 2000), 2000, 0.05, alternative="greater").pvalue > 0.001


def test_pvalues_are_never_zero_and_have_the_right_floor() -> None:
    stratified, flip = simulate_pvalues(Design(8, 9, 100.0, 1.0, 1.0), rng(4), 50, 99)
    assert np.all(stratified == 0.01) and np.all(flip == 2.0**-8)


def test_required_seeds() -> None:
    """Table in STATISTICS section 4 for 1.5 points: shift 6 at .05; online 16 at .05 and 24 at .0125, +-1 step."""
    shift = required_seeds(gain=1.5, policy_sd=POLICY_SD["shift"], rng=rng(5))
    online = required_seeds(gain=1.5, policy_sd=POLICY_SD["online"], rng=rng(6))
    strict = required_seeds(gain=1.5, policy_sd=POLICY_SD["online"], alpha=0.0125, rng=rng(7))
    assert shift and online and strict
    assert 5 <= shift.design.seeds <= 8
    assert 14 <= online.design.seeds <= 19
    assert 20 <= strict.design.seeds <= 28
    assert min(shift.power, online.power, strict.power) >= 0.9
    assert required_seeds(gain=0.01, policy_sd=1.0, rng=rng(8), most=20, reps=100) is None
    # 2^-S must reach alpha, whatever the gain.
    assert required_seeds(gain=50, policy_sd=0.1, alpha=0.01, rng=rng(9), reps=100).design.seeds == 7  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_bar_at_the_default_design() -> None:
    """20 seeds, 999 draws, published online spread, 1.5 points: power at least .90."""
    found = simulate_power(Design(20, 999, 1.5, POLICY_SD["online"], DRAW_SD), rng(10), 1000)
    assert found.lower >= 0.9


def test_refusals() -> None:
    for change in ({"seeds": 0}, {"draws": 0}, {"draw_sd": 0.0}, {"policy_sd": -1.0}, {"gain": float("nan")},
                   {"alpha": 0.0}, {"family": "cauchy"}):  # fmt: skip
        good = {"seeds": 5, "draws": 5, "gain": 1.0, "policy_sd": 1.0, "draw_sd": 1.0}
        with pytest.raises(ValueError):
            Design(**(good | change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        required_seeds(gain=0.0, policy_sd=1.0, rng=rng())


def test_best_design_spends_what_it_has_where_the_power_is() -> None:
    common = {"gain": 1.5, "draw_sd": 0.956, "alpha": 0.05, "fewest_seeds": 8, "fewest_draws": 5, "reps": 400}
    noisy = best_design(240, 3, policy_sd=1.89, rng=rng(1), **common)
    d = noisy.design
    assert d.seeds * (d.draws + 3) <= 240 < (d.seeds) * (d.draws + 4) and d.seeds >= 8 and d.draws >= 5
    # A noisy policy needs seeds; the same replays put into draws of eight seeds find far less.
    few = simulate_power(Design(8, 27, 1.5, 1.89, 0.956), rng(2), 400)
    assert d.seeds >= 18 and noisy.power > few.upper
    with pytest.raises(ValueError, match="63 replays"):
        best_design(63, 3, policy_sd=1.89, rng=rng(1), **common)
    assert best_design(64, 3, policy_sd=1.89, rng=rng(1), **common).design.seeds == 8
