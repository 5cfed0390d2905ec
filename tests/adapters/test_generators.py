"""Generated workloads: stationary, at the declared rate, and a function of the generator alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adapters.traces.generators import Spells, arrivals_s, lengths, signal, spells, workload
from protocol.regimes.regime import Arrivals, Lengths, Pressure, Regime
from protocol.seeds import generator

NAMES = Regime.names()
STEADY = Arrivals(process="steady", rate_per_s=4.0, cv=0.2)
PERIODIC = Arrivals(process="bursts-periodic", rate_per_s=2.0, cv=0.5, busy_rate_per_s=10.0, busy_s=30.0, quiet_s=90.0)
APERIODIC = Arrivals(
    process="bursts-aperiodic", rate_per_s=2.0, cv=0.5, busy_rate_per_s=10.0, busy_s=20.0, quiet_s=60.0, spell_cv=0.6
)
BUSY = Pressure(follows="busy", low=0.2, high=0.7)
WAVE = Pressure(follows="wave", low=0.2, high=0.8, period_s=50)
PULSE = Pressure(follows="pulse", low=0.1, high=0.9, period_s=40, high_s=10)
QUIET = Spells(np.array([0.0]), np.array([False]))


@pytest.mark.parametrize("name", NAMES)
def test_a_world_depends_on_its_generator_alone(name: str) -> None:
    regime = Regime.load(name)
    one, two, other = (workload(regime, generator(1, "world", s)) for s in (0, 0, 1))
    assert one.trace.digest == two.trace.digest != other.trace.digest
    assert np.array_equal(one.network.values, two.network.values)
    assert one.trace.arrival_ns[-1] < (regime.horizon_s + regime.cooldown_s) * 1e9
    expected = regime.arrivals.mean_rate_per_s * (regime.horizon_s + regime.cooldown_s) * regime.islands
    assert 0.5 * expected < len(one.trace) < 1.6 * expected


@pytest.mark.parametrize("cv", [0.2, 1.0, 2.0])
def test_steady_gaps_have_the_declared_mean_and_variation(cv: float) -> None:
    times = arrivals_s(Arrivals(process="steady", rate_per_s=4.0, cv=cv), QUIET, 10_000.0, np.random.default_rng(5))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=5 * cv / np.sqrt(len(gaps)))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize("cv", [0.2, 1.0])
def test_the_first_arrival_is_the_residual_of_a_running_process(cv: float) -> None:
    # Equilibrium distribution of a gap with mean 1: the integral of 1 - F from 0 to t, which for a gamma of shape k
    # is t (1 - F_k(t)) + F_{k+1}(t), both with scale 1 / k.
    shape = cv**-2
    rng = np.random.default_rng(11)
    first = [arrivals_s(Arrivals(process="steady", rate_per_s=1.0, cv=cv), QUIET, 50.0, rng)[0] for _ in range(2000)]

    def equilibrium(t: float) -> float:
        return t * stats.gamma.sf(t, shape, scale=1 / shape) + stats.gamma.cdf(t, shape + 1, scale=1 / shape)

    assert stats.kstest(first, np.vectorize(equilibrium)).pvalue > 0.01
    # The test can tell: an ordinary gap (a process that starts with an arrival at 0) is far from it.
    if cv < 1:
        assert stats.kstest(rng.gamma(shape, 1 / shape, 2000), np.vectorize(equilibrium)).pvalue < 1e-6


@pytest.mark.parametrize("arrivals", [PERIODIC, APERIODIC], ids=["periodic", "aperiodic"])
def test_load_is_the_same_at_every_time(arrivals: Arrivals) -> None:
    rng = np.random.default_rng(3)
    n, moments = 3000, np.array([0.0, 1.0, 7.0, 25.0, 60.0, 119.0])
    busy = np.zeros(len(moments))
    for _ in range(n):
        drawn = spells(arrivals, 120.0, rng)
        busy += drawn.busy[np.searchsorted(drawn.since_s, moments, side="right") - 1]
    error = np.sqrt(0.25 * 0.75 / n)
    assert np.all(np.abs(busy / n - 0.25) < 4 * error)


def test_a_load_blind_window_meets_the_mean_rate() -> None:
    rng = np.random.default_rng(4)
    counts = np.zeros((1500, 3))
    for row in counts:
        times = arrivals_s(APERIODIC, spells(APERIODIC, 40.0, rng), 40.0, rng)
        row[:] = np.histogram(times, [0.0, 2.0, 20.0, 40.0])[0]
    rates, errors = counts.mean(0) / [2, 18, 20], counts.std(0) / np.sqrt(1500) / [2, 18, 20]
    assert np.all(np.abs(rates - APERIODIC.mean_rate_per_s) < 4 * errors)


def test_periodic_bursts_are_periodic() -> None:
    drawn = spells(PERIODIC, 1200.0, np.random.default_rng(0))
    begins = drawn.since_s[drawn.busy & (drawn.since_s > 0)]
    assert np.allclose(np.diff(begins), 120.0)
    ends = drawn.since_s[~drawn.busy & (drawn.since_s > 0)]
    assert np.allclose(ends % 120.0, (begins[0] + 30.0) % 120.0)
    phases = [spells(PERIODIC, 240.0, np.random.default_rng(s)).since_s[1] for s in range(50)]
    assert np.ptp(phases) > 60


def test_a_declared_phase_is_the_same_in_every_seed() -> None:
    arrivals = PERIODIC.replace(phase_s=10.0)  # 10 s into a burst of 30 s in every 120 s
    for seed in range(3):
        drawn = spells(arrivals, 240.0, np.random.default_rng(seed))
        assert drawn.since_s.tolist() == [0.0, 20.0, 110.0, 140.0, 230.0]
        assert drawn.busy.tolist() == [True, False, True, False, True]


def test_aperiodic_spells_have_the_declared_means() -> None:
    drawn = spells(APERIODIC, 200_000.0, np.random.default_rng(8))
    lasted, busy = np.diff(drawn.since_s)[1:], drawn.busy[1:-1]
    assert np.all(busy[1:] != busy[:-1])
    for state, mean in ((True, 20.0), (False, 60.0)):
        mine = lasted[busy == state]
        assert mine.mean() == pytest.approx(mean, rel=4 * 0.6 / np.sqrt(len(mine)))
        assert mine.std() / mine.mean() == pytest.approx(0.6, rel=0.1)


def test_rates_follow_the_spells_by_hand() -> None:
    # cv near 0: one arrival each unit of operational time, so the count in a spell is its rate times its length.
    rate = Arrivals(process="bursts-periodic", rate_per_s=1.0, cv=0.01, busy_rate_per_s=10.0, busy_s=10.0, quiet_s=10.0)
    known = Spells(np.array([0.0, 10.0, 20.0]), np.array([False, True, False]))
    times = arrivals_s(rate, known, 30.0, np.random.default_rng(0))
    assert np.all(np.abs(np.histogram(times, [0, 10, 20, 30])[0] - [10, 100, 10]) <= 1)
    inside = times[(times > 10.2) & (times < 19.8)]
    assert np.allclose(np.diff(inside), 0.1, atol=0.01)


@given(
    process=st.sampled_from(["steady", "bursts-periodic", "bursts-aperiodic"]),
    rate=st.floats(0.01, 20),
    factor=st.floats(1, 10),
    cv=st.floats(0.05, 3),
    busy_s=st.floats(0.5, 100),
    quiet_s=st.floats(0.5, 100),
    end_s=st.floats(1, 200),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_arrivals_are_in_order_and_inside(
    process: Any, rate: float, factor: float, cv: float, busy_s: float, quiet_s: float, end_s: float, seed: int
) -> None:
    arrivals = Arrivals(
        process=process, rate_per_s=rate, cv=cv, busy_rate_per_s=rate * factor, busy_s=busy_s, quiet_s=quiet_s
    )
    rng = np.random.default_rng(seed)
    drawn = spells(arrivals, end_s, rng)
    assert drawn.since_s[0] == 0.0 and np.all(np.diff(drawn.since_s) > 0) and drawn.since_s[-1] < end_s
    times = arrivals_s(arrivals, drawn, end_s, rng)
    assert np.all(np.diff(times) >= 0)
    assert not len(times) or (times[0] >= 0 and times[-1] <= end_s)
    for pressure in (BUSY, WAVE, PULSE):
        drawn_signal = signal(pressure, drawn, end_s, rng)
        assert drawn_signal.since_ns[0] == 0 and np.all(np.diff(drawn_signal.since_ns) > 0)
        assert np.all((drawn_signal.values >= pressure.low) & (drawn_signal.values <= pressure.high))


def test_signals_by_hand() -> None:
    known = Spells(np.array([0.0, 10.0, 20.0]), np.array([False, True, False]))
    rng = np.random.default_rng(0)
    busy = signal(BUSY, known, 30.0, rng)
    assert [busy.at(int(t * 1e9)) for t in (0, 9.99, 10, 19.99, 20, 29)] == [0.2, 0.2, 0.7, 0.7, 0.2, 0.2]
    assert signal(Pressure(low=0.3), known, 30.0, rng).at(12) == 0.3
    wave = signal(WAVE.replace(period_s=300), known, 3000.0, rng)
    assert wave.values.mean() == pytest.approx(0.5, abs=0.01)
    assert (wave.values.min(), wave.values.max()) == (pytest.approx(0.2, abs=0.01), pytest.approx(0.8, abs=0.01))
    pulse = signal(PULSE.replace(period_s=100, high_s=25), known, 10_000.0, rng)
    share = np.diff(np.append(pulse.since_ns, 10_000 * 10**9))[pulse.values == 0.9].sum() / 1e13
    assert share == pytest.approx(0.25, abs=0.005)


def test_lengths() -> None:
    rng = np.random.default_rng(0)
    assert np.all(lengths(Lengths(values=(128,)), 50, rng) == 128)
    mixed = lengths(Lengths(values=(12, 300), weights=(3.0, 1.0)), 4000, rng)
    assert set(mixed.tolist()) == {12, 300}
    assert (mixed == 12).mean() == pytest.approx(0.75, abs=4 * np.sqrt(0.75 * 0.25 / 4000))
    spread = lengths(Lengths(values=(1000,), sigma=0.5, most=3000), 4000, rng)
    assert np.log(np.median(spread)) == pytest.approx(np.log(1000), abs=0.05)
    assert np.log(spread[spread < 3000]).std() == pytest.approx(0.5, rel=0.1)
    assert spread.max() == 3000
    assert lengths(Lengths(values=(1,), sigma=2.0), 500, rng).min() == 1


def test_every_island_has_its_own_arrivals_at_the_declared_rate() -> None:
    regime = Regime.load("sync-heavy-steady").replace(islands=3)
    trace = workload(regime, np.random.default_rng(2)).trace
    assert trace.n_islands == 3
    counts = np.bincount(trace.island)
    assert np.all(np.abs(counts - regime.arrivals.rate_per_s * 630) < 40)
    own = [trace.arrival_ns[trace.island == i] for i in range(3)]
    assert not np.array_equal(own[0][:100], own[1][:100])
