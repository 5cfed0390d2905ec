"""`quiet`: filter, fit and Bayes' rule against sums over all there is, the stopping rule against a linear program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats
from scipy.optimize import linprog

import baselines.quiet as quiet
from baselines.quiet import (
    AGES_S,
    PRIOR_RATE_S,
    PRIOR_SPELL_S,
    PRIOR_SPELLS,
    SCALE_STEP,
    SHAPES,
    WINDOW_S,
    Load,
    Plan,
    Quiet,
    outlasting,
    stopping,
)
from protocol.scheduler import Observation

Observe = Callable[..., Observation]
Floats = NDArray[np.float64]
COUNTS = np.array([1.0, 0.0, 5.0, 4.0, 1.0, 2.0])
CALM, BURST = [2.0] * 100, [2.0] * 80 + [9.0] * 20
#: Quiet for 90 s, busy for 30.
CLOCK = ([2.0] * 90 + [6.0] * 30) * 5


def example() -> Load:
    load = Load()
    load.rate, load.leave = np.array([1.5, 4.0]), np.array([0.1, 0.25])
    return load


def poisson(state: int, load: Load, count: float) -> float:
    return float(stats.poisson.pmf(count, load.rate[state]))


def memoryless(load: Load, quiet_s: float, busy_s: float) -> None:
    load.outlast = np.exp(-np.arange(AGES_S + 2.0) / np.array([[quiet_s], [busy_s]]))
    load.ends = 1.0 - load.outlast[:, 1 : AGES_S + 1] / load.outlast[:, :AGES_S]


def fitted(counts: list[float] | Floats, passes: int = 2) -> Load:
    load = Load()
    load.see(np.asarray(counts, float))
    assert all(cost > 0 for cost in load.fit(load.counts, passes))
    return load


def test_the_filter_is_the_sum_over_all_paths() -> None:
    load = example()
    start = np.zeros((2, AGES_S))
    start[0, 3], start[1, 0] = 0.7, 0.3
    found: dict[tuple[int, int], float] = {}
    for (state, age), first in (((0, 3), 0.7), ((1, 0), 0.3)):
        for moves in itertools.product((False, True), repeat=len(COUNTS)):
            chance, s, a = first, state, age
            for moved, count in zip(moves, COUNTS, strict=True):
                ends = load.ends[s, a]
                chance *= ends if moved else 1.0 - ends
                s, a = (1 - s, 0) if moved else (s, a + 1)
                chance *= poisson(s, load, count)
            found[s, a] = found.get((s, a), 0.0) + chance
    load.belief = start
    load.update(COUNTS)
    total = sum(found.values())
    assert load.belief.sum() == pytest.approx(1.0)
    for (s, a), chance in found.items():
        assert load.belief[s, a] == pytest.approx(chance / total, rel=1e-9)


def test_filtering_in_two_parts_is_filtering_at_once() -> None:
    one, two = example(), example()
    one.see(COUNTS)
    two.see(COUNTS[:2])
    two.see(COUNTS)
    assert np.array_equal(one.belief, two.belief)


def test_a_part_of_a_second_and_old_telemetry_move_the_belief() -> None:
    load = example()
    memoryless(load, 60.0, 20.0)
    load.belief = load.law
    busy = load.busy
    assert load.now(0.5, 4.0)[1].sum() > busy > load.now(0.5, 0.0)[1].sum()
    load.belief = np.zeros((2, AGES_S))
    load.belief[1, 0] = 1.0
    assert load.now(0.0, None) is load.belief
    decay = (math.exp(-1 / 60) + math.exp(-1 / 20) - 1) ** 5  # of a chain of two states, in 5 s
    share = (1 - math.exp(-1 / 60)) / (2 - math.exp(-1 / 60) - math.exp(-1 / 20))
    assert load.now(5.3, 0.0)[1].sum() == pytest.approx(share + (1 - share) * decay)


def test_a_pass_of_em_is_the_expectation_over_all_paths() -> None:
    load = example()
    moved = np.array([[0.9, 0.1], [0.25, 0.75]])
    start = np.array([0.25, 0.1]) / 0.35
    known = {}
    for path in itertools.product((0, 1), repeat=len(COUNTS)):
        chance = start[path[0]] * math.prod(moved[a, b] for a, b in itertools.pairwise(path))
        known[path] = chance * math.prod(poisson(s, load, c) for s, c in zip(path, COUNTS, strict=True))
    total = sum(known.values())
    time, requests, stayed, left = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2)
    busy = np.zeros(len(COUNTS))
    for path, chance in known.items():
        p = chance / total
        busy += p * np.array(path)
        for t, state in enumerate(path):
            time[state] += p
            requests[state] += p * COUNTS[t]
            if t + 1 < len(path):
                stayed[state] += p
                left[state] += p * (path[t + 1] != state)
    mean = float(COUNTS.mean())
    assert load.expect(COUNTS, mean) == pytest.approx(busy)
    assert load.leave == pytest.approx((left + PRIOR_SPELLS) / (stayed + PRIOR_SPELLS * PRIOR_SPELL_S))
    prior = PRIOR_RATE_S * mean * np.array([1.0, 2.0])
    assert load.rate == pytest.approx((requests + prior) / (time + PRIOR_RATE_S))


def test_a_fit_finds_the_rates_and_spells_that_made_the_counts() -> None:
    rng = np.random.default_rng(5)
    busy = np.concatenate([np.full(round(n), i % 2) for i, n in enumerate(rng.exponential([60, 20] * 20))])
    load = fitted(rng.poisson(np.where(busy, 6.0, 2.0)).astype(float), passes=20)
    assert load.rate == pytest.approx([2.0, 6.0], rel=0.1)
    assert load.law[1].sum() == pytest.approx(busy.mean(), abs=0.1)
    assert np.interp(-0.5, -load.outlast[1], np.arange(AGES_S + 2)) == pytest.approx(20 * math.log(2), rel=0.4)
    assert load.ends[1, 40] < 0.1  # the age of a spell says little
    assert load.busy == pytest.approx(busy[-1], abs=0.05)


def test_spells_by_bayes_rule_are_the_sum_over_all_laws() -> None:
    spells, cut = ([50, 44], [20]), (1, 33)
    weight, outlast = [], []
    for k in SHAPES:
        scales = np.exp(np.arange(math.log(2.0), math.log(WINDOW_S), min(SCALE_STEP / k, 0.3)))
        laws = [stats.weibull_min(k, scale=scale) for scale in scales]
        likely = np.array(
            [
                [math.prod(max(law.cdf(d + 1) - law.cdf(d - 1), 1e-9) for d in lengths) for law in laws]
                for lengths in spells
            ]
        )
        likely[cut[0]] *= [max(law.sf(cut[1]) / law.mean(), 1e-9) for law in laws]
        weight.append(likely / len(scales))
        outlast.append(np.array([law.sf(np.arange(AGES_S + 2)) for law in laws]))
    shape = np.array([w.sum(axis=1).prod() for w in weight])
    expected = np.zeros((2, AGES_S + 2))
    for p, w, table in zip(shape / shape.sum(), weight, outlast, strict=True):
        expected += p * (w / w.sum(axis=1, keepdims=True)) @ table
    assert outlasting(spells, cut) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_clock_is_learnt_from_two_bursts() -> None:
    load = fitted(CLOCK[:300])  # quiet, busy, quiet, busy, 60 s of quiet
    lasts = load.outlast[0]
    assert lasts[80] / lasts[60] > 0.8
    assert lasts[100] / lasts[60] < 0.2
    assert load.belief[0, 57:62].sum() > 0.95
    blank = Load().outlast[0]
    assert blank[100] / blank[60] > 0.7  # before anything was seen, the longer it has lasted, the longer it lasts
    assert blank[40] / blank[20] < blank[120] / blank[100]


@given(st.floats(-9, 9), st.floats(0.1, 5))
def test_a_choice_between_stopping_and_waiting_is_the_integral(better: float, varies: float) -> None:
    chance, more = stopping(np.array(better), np.array(varies))
    where = [x for x in (-better,) if -varies < x < varies]
    best, _ = integrate.quad(lambda u: max(better + u, 0.0) / (2 * varies), -varies, varies, points=where or None)
    assert float(chance * better + more) == pytest.approx(best, abs=1e-6)
    assert float(chance) == pytest.approx(float(np.clip((varies + better) / (2 * varies), 0, 1)))


def best_gain(plan: Plan) -> float:
    """The largest long-run saving a second of the plan's decision process, as a linear program over how often each
    (steps since H_min, state, age) is left by each action (Puterman 1994, section 11.4)."""
    ages = plan.ends.shape[1]
    move = np.zeros((2 * ages, 2 * ages))
    for s, a in itertools.product((0, 1), range(ages)):
        move[s * ages + a, s * ages + min(a + 1, ages - 1)] += 1.0 - plan.ends[s, a]
        move[s * ages + a, (1 - s) * ages] += plan.ends[s, a]
    after = np.linalg.matrix_power(move, plan.cycle_steps)
    index = np.arange((plan.gaps + 1) * 2 * ages).reshape(plan.gaps + 1, 2 * ages)
    balance, saving, lasts = [], [], []
    for waited in range(plan.gaps + 1):
        for x, here in enumerate(index[waited]):
            for target, row, saved, takes in (
                (0, after[x], plan.saving.ravel()[x], plan.cycle_s),
                (waited + 1, move[x], 0.0, plan.step_s),
            ):
                if target > plan.gaps:
                    continue  # H_max
                flow = np.zeros(index.size)
                flow[here] += 1.0
                flow[index[target]] -= row
                balance.append(flow)
                saving.append(saved)
                lasts.append(takes)
    equal = np.vstack([np.array(balance).T, lasts])
    found = linprog(-np.array(saving), A_eq=equal, b_eq=np.append(np.zeros(index.size), 1.0))
    assert found.success
    return -float(found.fun)


def planned(load: Load, obs: Observation, sweeps: int = 60) -> Plan:
    plan = Plan(load, 1.0, 0, obs, None)
    for _ in range(sweeps):
        plan.sweep()
    return plan


@pytest.mark.parametrize("regular", [False, True])
def test_the_stopping_rule_is_the_best_there_is(
    observe: Observe, monkeypatch: pytest.MonkeyPatch, regular: bool
) -> None:
    monkeypatch.setattr(quiet, "LEFT", 1e-9)
    load = fitted(CLOCK) if regular else example()
    obs = observe(step_s=1.0, decision_steps=10, h_min=20, h_max=60, merge_s=8.0)
    plan = planned(load, obs, 300)
    assert (plan.gaps, plan.step_s) == (4, 10.0) and plan.gain > 0
    assert plan.gain == pytest.approx(best_gain(plan), rel=1e-4)


def test_the_rule_is_choosier_early_and_never_past_h_max(observe: Observe) -> None:
    load = example()
    memoryless(load, 60.0, 10.0)
    plan = planned(load, observe())
    mixed, calm, burst = (np.zeros((2, AGES_S)) for _ in range(3))
    mixed[0, 5], mixed[1, 5], calm[0, 5], burst[1, 5] = 0.2, 0.8, 1.0, 1.0
    assert (plan.gaps, plan.stride) == (24, 2)
    most = [max((n for n in range(40) if plan.better(mixed, n, w) >= 0), default=-1) for w in range(49)]
    assert most[0] < most[-2] and most[-1] == 39
    assert all(a <= b for a, b in itertools.pairwise(most))
    assert plan.better(calm, 0.0, 0) > 0 > plan.better(burst, 9.0, 0)


def decided(observe: Observe, counts: list[float], **last: object) -> bool:
    """The last of the decisions of a scheduler that is asked twice a second."""
    scheduler = Quiet()
    for t in range(20, 2 * len(counts)):
        scheduler.decide(observe(per_s=counts[: t // 2], time_s=t / 2, recent_e2e_s=1.0))
    return scheduler.decide(observe(**{"per_s": counts, "recent_e2e_s": 1.0, **last}))


def test_it_defers_in_a_burst_and_merges_after_it(observe: Observe) -> None:
    for counts, expected in ((CALM, True), (BURST, False), (BURST + [2.0] * 20, True)):
        assert decided(observe, counts, in_flight=0 if expected else 9) is expected


def test_it_waits_out_a_burst_on_a_clock(observe: Observe) -> None:
    for since, steps, expected in ((20, 480, True), (60, 480, True), (93, 128, False), (100, 128, False)):
        assert decided(observe, CLOCK[: 360 + since], in_flight=0, steps_since_merge=steps) is expected


def test_where_seconds_are_told_late_the_plan_is_for_what_will_have_become_of_them(observe: Observe) -> None:
    load, obs = fitted(CLOCK), observe(step_s=1.0, decision_steps=1, h_min=20, h_max=30, merge_s=8.0)
    plan, late = Plan(load, 1.0, 0, obs, None), Plan(load, 1.0, 3, obs, None)
    ages = plan.ends.shape[1]
    for state, age in itertools.product((0, 1), (0, 5, 28, 88, ages - 1)):
        here = {(state, age): 1.0}
        for _ in range(3):
            then: dict[tuple[int, int], float] = {}
            for (s, a), p in here.items():
                for to, chance in (((1 - s, 0), plan.ends[s, a]), ((s, min(a + 1, ages - 1)), 1 - plan.ends[s, a])):
                    then[to] = then.get(to, 0.0) + p * chance
            here = then
        exposed = sum(p * -plan.saving[at] for at, p in here.items())
        assert late.saving[0, 0] - late.saving[state, age] == pytest.approx(exposed + late_level(plan, late))


def late_level(plan: Plan, late: Plan) -> float:
    """What state 0 of age 0 is exposed to three steps later, with the sign that makes it a difference."""
    value = -plan.saving
    for _ in range(3):
        value = plan.ahead(value)
    return -float(value[0, 0])


def test_old_telemetry_of_requests_in_flight_counts_less(observe: Observe) -> None:
    load = fitted(CLOCK)
    plans = [planned(load, observe(telemetry_age_s=age)) for age in (0.0, 0.5, 5.0)]  # requests take 1 s
    calm = load.law.copy()
    calm[1] = 0.0
    calm /= calm.sum()
    costs = [plan.better(calm, 0.0, 0) - plan.better(calm, 10.0, 0) for plan in plans]
    assert costs == pytest.approx([5.0, 2.5, 0.0], abs=0.02)


def test_many_in_flight_or_queued_make_it_wait(observe: Observe) -> None:
    assert decided(observe, CALM)
    assert not decided(observe, CALM, in_flight=60)
    assert not decided(observe, CALM, queued=60)


def test_a_fit_that_takes_several_decisions_forgets_no_second(
    observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "WORK", 1)  # one piece a decision
    scheduler, counts = Quiet(), CLOCK[:400] + [6.0] * 40
    for t in range(10, len(counts) + 1):
        scheduler.decide(observe(per_s=counts[:t], in_flight=2))
    ages = scheduler.watch.load.belief[1]
    assert ages[37:42].sum() > 0.95


def test_it_merges_at_once_while_nothing_is_known(observe: Observe) -> None:
    assert Quiet().decide(observe(per_s=[]))
    assert Quiet().decide(observe(per_s=[0.0] * 300))
    assert Quiet().decide(observe(per_s=[3.0] * 5, in_flight=40))


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.one_of(st.just(0), st.integers(0, 8), st.integers(0, 10**9)), min_size=1, max_size=90),
    latency=st.one_of(st.none(), st.floats(1e-6, 1e5)),
    present=st.integers(0, 10**6),
    merge_s=st.floats(0.0, 600.0),
    h_max=st.integers(128, 400),
)
def test_it_decides_whatever_comes(
    observe: Observe, counts: list[int], latency: float | None, present: int, merge_s: float, h_max: int
) -> None:
    scheduler = Quiet()
    for t in range(0, len(counts) + 1, 7):
        seen = observe(
            per_s=[float(c) for c in counts[:t]], recent_e2e_s=latency, in_flight=present, merge_s=merge_s,
            steps_since_merge=min(128 + 8 * (t // 7), h_max), h_max=h_max,
        )  # fmt: skip
        assert scheduler.decide(seen) in (True, False)
    assert 0.0 <= scheduler.watch.load.busy <= 1.0
    assert scheduler.watch.plan is None or np.isfinite(scheduler.watch.plan.gain)
