"""`quiet`: its filter and fit against sums over all paths, its stopping rule against a linear program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from baselines.quiet import LEVELS, PRIOR_RATE_S, PRIOR_SPELL_S, PRIOR_SPELLS, Load, Plan, Quiet
from protocol.scheduler import Observation

Observe = Callable[..., Observation]
COUNTS = np.array([1.0, 0.0, 5.0, 4.0, 1.0, 2.0])
CALM, BURST = [2.0] * 100, [2.0] * 80 + [9.0] * 20


def example() -> Load:
    load = Load()
    load.rate, load.leave, load.busy = np.array([1.5, 4.0]), np.array([0.1, 0.25]), 0.3
    return load


def paths(load: Load, start: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """Chance of every path of states together with COUNTS; `start` is the law of the first state."""
    moved = np.array([[1 - load.leave[0], load.leave[0]], [load.leave[1], 1 - load.leave[1]]])
    found = {}
    for path in itertools.product((0, 1), repeat=len(COUNTS)):
        chance = start[path[0]]
        for before, now in itertools.pairwise(path):
            chance *= moved[before, now]
        for state, count in zip(path, COUNTS, strict=True):
            rate = load.rate[state]
            chance *= math.exp(-rate) * rate**count / math.factorial(int(count))
        found[path] = chance
    total = sum(found.values())
    return {path: chance / total for path, chance in found.items()}


def test_the_filter_is_the_sum_over_all_paths() -> None:
    load = example()
    start = np.array([0.7, 0.3]) @ np.array([[0.9, 0.1], [0.25, 0.75]])
    expected = sum(p for path, p in paths(load, start).items() if path[-1])
    load.update(COUNTS)
    assert load.busy == pytest.approx(expected, rel=1e-12)


def test_filtering_in_two_parts_is_filtering_at_once() -> None:
    one, two = example(), example()
    one.update(COUNTS)
    two.update(COUNTS[:2])
    two.update(COUNTS[2:])
    assert one.busy == two.busy


def test_a_pass_of_em_is_the_expectation_over_all_paths() -> None:
    load = example()
    known = paths(load, np.array([0.25, 0.1]) / 0.35)
    time, requests, stayed, left = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2)
    for path, p in known.items():
        for t, state in enumerate(path):
            time[state] += p
            requests[state] += p * COUNTS[t]
            if t + 1 < len(path):
                stayed[state] += p
                left[state] += p * (path[t + 1] != state)
    mean = COUNTS.mean()
    load._pass(COUNTS, float(mean))
    assert load.leave == pytest.approx((left + PRIOR_SPELLS) / (stayed + PRIOR_SPELLS * PRIOR_SPELL_S))
    prior = PRIOR_RATE_S * mean * np.array([1.0, 2.0])
    assert load.rate == pytest.approx((requests + prior) / (time + PRIOR_RATE_S))


def test_a_fit_finds_the_rates_and_spells_that_made_the_counts() -> None:
    rng = np.random.default_rng(5)
    busy = np.concatenate([np.full(round(n), i % 2) for i, n in enumerate(rng.exponential([60, 20] * 20))])
    load = Load()
    load.fit(rng.poisson(np.where(busy, 6.0, 2.0)).astype(float), passes=20)
    assert load.rate == pytest.approx([2.0, 6.0], rel=0.1)
    assert load.share[1] == pytest.approx(busy.mean(), abs=0.05)
    assert 12 < 1 / load.leave[1] < 33


def test_expected_arrivals_follow_the_chain() -> None:
    load = example()
    state, total = np.eye(2), np.zeros(2)
    for _ in range(10_000):  # 10 s in steps of a millisecond
        total += 0.001 * state @ load.rate
        state = state @ load.transition(0.001)
    assert load.arrivals(10.0) == pytest.approx(total, rel=1e-3)
    assert np.linalg.matrix_power(load.transition(), 7) == pytest.approx(load.transition(7.0))


def best_gain(plan: Plan) -> float:
    """The largest long-run saving a second of the plan's decision process, as a linear program over how often each
    (decisions since H_min, state, level) is left by each action (Puterman 1994, section 11.4)."""
    shape = (plan.gaps + 1, 2, LEVELS)
    index = np.arange(np.prod(shape)).reshape(shape)
    after = np.einsum("ij,jkn->injk", plan.cycle, plan.settled).reshape(2 * LEVELS, 2 * LEVELS)
    later = np.einsum("ij,ikn->injk", plan.step, plan.served).reshape(2 * LEVELS, 2 * LEVELS)
    balance, saving, lasts = [], [], []
    for waited in range(plan.gaps + 1):
        for x, here in enumerate(index[waited].ravel()):
            for target, row, saved, takes in (
                (0, after[x], plan.saving.ravel()[x], plan.cycle_s),
                (waited + 1, later[x], 0.0, plan.decision_s),
            ):
                if target > plan.gaps:
                    continue  # H_max
                flow = np.zeros(index.size)
                flow[here] += 1.0
                flow[index[target].ravel()] -= row
                balance.append(flow)
                saving.append(saved)
                lasts.append(takes)
    equal = np.vstack([np.array(balance).T, lasts])
    found = linprog(-np.array(saving), A_eq=equal, b_eq=np.append(np.zeros(index.size), 1.0))
    assert found.success
    return -float(found.fun)


def test_the_stopping_rule_is_the_best_there_is(observe: Observe) -> None:
    obs = observe(h_max=128 + 4 * 8)
    assert (plan := Plan(example(), 1.2, 9.0, obs, None)).gaps == 4
    for _ in range(10):
        plan = Plan(example(), 1.2, 9.0, obs, plan)
    assert plan.gain > 0
    assert plan.gain == pytest.approx(best_gain(plan), rel=1e-6)


def test_the_rule_is_choosier_early_and_never_past_h_max(observe: Observe) -> None:
    load = example()
    load.leave = np.array([1 / 60, 1 / 10])
    plan = Plan(load, 1.0, 12.0, observe(), None)
    most = [max((n for n in range(20) if plan.merge(0.9, n, w)), default=-1) for w in range(plan.gaps + 1)]
    assert plan.gaps == 48
    assert most[0] < most[-2] and most[-1] == 19
    assert all(a <= b for a, b in itertools.pairwise(most))
    assert plan.merge(0.0, 0.0, 0) and not plan.merge(1.0, 9.0, 0)


def test_it_defers_in_a_burst_and_merges_after_it(observe: Observe) -> None:
    for counts, expected in ((CALM, True), (BURST, False), (BURST + [2.0] * 20, True)):
        scheduler = Quiet()
        for t in range(10, len(counts)):
            scheduler.decide(observe(per_s=counts[:t], in_flight=0, recent_e2e_s=1.0))
        in_flight = 9 if expected is False else 0
        assert scheduler.decide(observe(per_s=counts, in_flight=in_flight, recent_e2e_s=1.0)) is expected


def test_many_in_flight_or_queued_make_it_wait(observe: Observe) -> None:
    for busy in ({"in_flight": 30}, {"queued": 30}):
        scheduler = Quiet()
        assert scheduler.decide(observe(per_s=CALM, in_flight=0, recent_e2e_s=1.0))
        assert not scheduler.decide(observe(per_s=CALM, **busy))


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
    assert 0.0 <= scheduler.load.busy <= 1.0
    assert scheduler.plan is None or np.isfinite(scheduler.plan.gain)
