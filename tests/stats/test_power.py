from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from protocol.stats import power as pw
from protocol.stats.betting import betting_bound
from protocol.stats.gains import judge_gains
from protocol.stats.inversion import EXCHANGE, LOAD_FLIP, SIGN_FLIP, STRATIFIED
from protocol.stats.power import (
    DRAW_SD,
    POLICY_SD,
    Design,
    Spread,
    best_design,
    detectable_gain,
    needed_gains,
    required_seeds,
    seen_spread,
    simulate_power,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def certificate(
    source: np.random.Generator, seeds: int, draws: int, policy_sd: float, gain: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Policy, draws and exchanged costs of schedules that gain `gain` on their own trace."""
    drawn = source.normal(0, DRAW_SD, (seeds, draws))
    cost = source.normal(0, policy_sd, (seeds, seeds))
    cost[np.diag_indices(seeds)] -= gain
    return np.diagonal(cost), drawn, cost


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
    found = simulate_power(Design(seeds, draws, gain, Spread(POLICY_SD[spread], DRAW_SD)), rng(seeds), 1000)
    assert abs(found.power - published) < 4 * (published * (1 - published) * (1 / 800 + 1 / 1000)) ** 0.5
    assert found.lower < found.power < found.upper
    assert set(found.alone) == {STRATIFIED, SIGN_FLIP} and found.power <= min(found.alone.values())


@pytest.mark.parametrize(("seeds", "draws"), [(9, 9), (14, 1)])
def test_it_simulates_the_gate(seeds: int, draws: int) -> None:
    """The fast kernel against the gate itself on the same kind of data: the same power within its error."""
    fast = simulate_power(Design(seeds, draws, 1.8, Spread.alike(1.2, DRAW_SD), delta=0.5), rng(1), 1000)
    source, hits = rng(2), 0
    for _ in range(250):
        policy, drawn, cost = certificate(source, seeds, draws, 1.2, 1.8)
        found = judge_gains(policy, list(drawn), cost, source, delta=0.5, n_resamples=1999, min_draws=1)
        hits += found.pvalue is not None and found.pvalue <= 0.05
    assert set(fast.alone) == ({EXCHANGE, LOAD_FLIP, SIGN_FLIP} | (set() if draws == 1 else {STRATIFIED}))
    assert 0.3 < fast.power < 0.95 and abs(hits / 250 - fast.power) < 4 * (0.25 / 250 + 0.25 / 1000) ** 0.5


@pytest.mark.parametrize("family", ["normal", "lognormal"])
def test_no_gain_is_not_found(family: pw.Family) -> None:
    found = simulate_power(Design(14, 9, 0.5, Spread.alike(1.0, 1.0), family, delta=0.5), rng(3), 2000)
    assert stats.binomtest(round(found.power * 2000), 2000, 0.05, alternative="greater").pvalue > 0.001


def test_no_gain_is_enough_where_no_pvalue_is_low_enough() -> None:
    """Six seeds give 1 / 64 by sign flips: nothing at .01, whatever the gain."""
    assert detectable_gain(Spread(1.0, 1.0), 6, 9, rng(), alpha=0.05, claims=5) is None
    assert detectable_gain(Spread(1.0, 1.0), 6, 9, rng(), alpha=0.05) is not None
    assert simulate_power(Design(6, 9, 1e6, Spread(1.0, 1.0), alpha=0.01), rng(), 100).power == 0.0


def test_the_spread_of_a_certificate_is_recovered() -> None:
    """Known spreads, with trace and schedule effects that must not matter; averages over 60 certificates."""
    found = []
    source = rng(11)
    for _ in range(60):
        level, quality = source.normal(0, 5, 20), source.normal(0, 2, 20)
        noise = source.normal(0, 0.7, (20, 20))
        noise[np.diag_indices(20)] *= 2  # its own trace: 1.4
        cost = level[:, None] + quality + noise - 3 * np.eye(20)
        drawn = level[:, None] + source.normal(0, 1.5, (20, 9))
        spread = seen_spread(np.diagonal(cost), list(drawn), cost)
        assert spread and spread.exchange_sd is not None and spread.seen_seeds == 20
        found.append((spread.policy_sd, spread.draw_sd, spread.exchange_sd, spread.diagonal_sd, spread.correlation))
    policy_sd = (2**2 + 1.4**2) ** 0.5
    expected = (policy_sd, 1.5, 0.7, 1.4, 1.4 / policy_sd)
    assert np.sqrt(np.mean(np.square(found), axis=0)) == pytest.approx(expected, rel=0.1)
    assert seen_spread([1.0, 2.0, np.nan], [[1.0, 2.0]] * 3, None) is None
    assert seen_spread([1.0, 2.0, 3.0], [[1.0, 1.0]] * 3, None) is None


def seen_gain(
    source: np.random.Generator, seeds: int, policy_sd: float, claims: int, reps: int
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """The gain that a certificate says would have been found, and another certificate with that true gain."""
    policy, drawn, cost = certificate(source, seeds, 19, policy_sd, 2.0)
    spread = seen_spread(policy, list(drawn), cost)
    assert spread is not None
    gain = detectable_gain(spread, seeds, 19, source, claims=claims, delta=0.5, reps=reps)
    assert gain is not None
    return gain, *certificate(source, seeds, 19, policy_sd, gain)


@pytest.mark.parametrize(("seeds", "policy_sd", "claims"), [(8, 1.89, 1), (20, 0.956, 5)])
def test_nine_times_in_ten(seeds: int, policy_sd: float, claims: int) -> None:
    """The gains read off 60 certificates are found by others of their kind 85 to 95 % of the time."""
    source = rng(12)
    truth = Design(seeds, 19, 0.0, Spread.alike(policy_sd, DRAW_SD), alpha=0.05 / claims, delta=0.5)
    needed = np.max(list(needed_gains(truth, source, 1000).values()), axis=0)
    found = [np.mean(needed < seen_gain(source, seeds, policy_sd, claims, 200)[0]) for _ in range(60)]
    assert 0.85 < np.mean(found) < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("claims", [1, 5])
@pytest.mark.parametrize("policy_sd", [0.4, 0.956, 1.89])
@pytest.mark.parametrize("seeds", [8, 20])
def test_nine_times_in_ten_by_the_gate_itself(seeds: int, policy_sd: float, claims: int) -> None:
    source, hits = rng(13), 0
    for _ in range(600):
        _, policy, drawn, cost = seen_gain(source, seeds, policy_sd, claims, 1000)
        found = judge_gains(policy, list(drawn), cost, source, delta=0.5, n_resamples=1999)
        hits += found.pvalue is not None and found.pvalue <= 0.05 / claims
    assert 0.85 < hits / 600 < 0.95


def test_a_bound_without_shape_asks_for_more() -> None:
    spread = Spread.alike(1.0, 1.0)
    plain = detectable_gain(spread, 20, 19, rng(4), delta=0.5)
    asked = detectable_gain(spread, 20, 19, rng(4), delta=0.5, lowest=-8.0)
    assert plain and asked and asked > 1.5 * plain
    needed = needed_gains(Design(10, 19, 0.0, spread, lowest=-8.0), rng(5), 20)["betting on bounded gains"]
    assert needed.shape == (20,)
    fixed = pw._needed_to_bet(np.full((1, 10), 2.0), -8.0, 0.5, 0.05)[0]
    for more, passes in ((1e-6, True), (-1e-6, False)):
        p = betting_bound(np.full(10, 2.0 + fixed + more), np.full(10, -8.0), delta=0.5).outcome.pvalue
        assert p is not None and (p <= 0.05) == passes


def test_required_seeds() -> None:
    """Table in STATISTICS section 4 for 1.5 points: shift 6 at .05; online 16 at .05 and 24 at .0125, +-1 step."""
    spread = {name: Spread(sd, DRAW_SD) for name, sd in POLICY_SD.items()}
    shift = required_seeds(gain=1.5, spread=spread["shift"], rng=rng(5))
    online = required_seeds(gain=1.5, spread=spread["online"], rng=rng(6))
    strict = required_seeds(gain=1.5, spread=spread["online"], alpha=0.0125, rng=rng(7))
    beyond = required_seeds(gain=2.0, spread=spread["online"], delta=0.5, rng=rng(6))
    assert shift and online and strict and beyond
    assert 5 <= shift.design.seeds <= 8
    assert 14 <= online.design.seeds <= 19
    assert abs(beyond.design.seeds - online.design.seeds) <= 1
    assert 20 <= strict.design.seeds <= 28
    assert min(shift.power, online.power, strict.power) >= 0.9
    assert required_seeds(gain=0.01, spread=Spread(1.0, DRAW_SD), rng=rng(8), most=20, reps=100) is None
    # 2^-S must reach alpha, whatever the gain.
    assert required_seeds(gain=50, spread=Spread(0.1, DRAW_SD), alpha=0.01, rng=rng(9), reps=100).design.seeds == 7  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_bar_at_the_default_design() -> None:
    """20 seeds, 999 draws, published online spread, 1.5 points beyond the minimum effect: power at least .90."""
    found = simulate_power(Design(20, 999, 2.0, Spread.alike(POLICY_SD["online"], DRAW_SD), delta=0.5), rng(10), 4000)
    assert found.lower >= 0.9


def test_refusals() -> None:
    for change in ({"seeds": 0}, {"draws": 0}, {"spread": Spread(1.0, 0.0)}, {"spread": Spread(-1.0, 1.0)},
                   {"gain": float("nan")}, {"delta": float("inf")}, {"alpha": 0.0}, {"family": "cauchy"}):  # fmt: skip
        good = {"seeds": 5, "draws": 5, "gain": 1.0, "spread": Spread(1.0, 1.0)}
        with pytest.raises(ValueError):
            Design(**(good | change))  # type: ignore[arg-type]
    for gain, delta in ((0.0, 0.0), (0.5, 0.5)):
        with pytest.raises(ValueError, match="must exceed"):
            required_seeds(gain=gain, delta=delta, spread=Spread(1.0, DRAW_SD), rng=rng())


def test_best_design_spends_what_it_has_where_the_power_is() -> None:
    common = {"gain": 1.5, "spread": Spread(1.89, 0.956), "alpha": 0.05, "fewest_seeds": 8, "fewest_draws": 5}
    noisy = best_design(240, 3, rng=rng(1), reps=400, **common)  # type: ignore[arg-type]
    d = noisy.design
    assert d.seeds * (d.draws + 3) <= 240 < (d.seeds) * (d.draws + 4) and d.seeds >= 8 and d.draws >= 5
    # A noisy policy needs seeds; the same replays put into draws of eight seeds find far less.
    few = simulate_power(Design(8, 27, 1.5, Spread(1.89, 0.956)), rng(2), 400)
    assert d.seeds >= 18 and noisy.power > few.upper
    with pytest.raises(ValueError, match="63 replays"):
        best_design(63, 3, rng=rng(1), **common)  # type: ignore[arg-type]
    assert best_design(64, 3, rng=rng(1), reps=400, **common).design.seeds == 8  # type: ignore[arg-type]
