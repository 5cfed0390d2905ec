"""Merges that are not all alike: their placements against a control loop, by enumeration and by chi-square."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.errors import BadInput, InfeasibleCorridor
from protocol.merging.corridor import Corridor, Spent
from protocol.merging.practice import Durations, Merges, Practice, Timing, same_kinds
from protocol.reading import read

PLAIN = Practice()


def run_loop(t: Timing, stream: Merges, decide: Callable[[], bool]) -> list[int]:
    """One decision after another: steps are trained between merges, and for as long as a delay lets them meanwhile."""
    c, starts = t.corridor, []
    lengths = [max(t.practice.sync_delay_steps * c.step_ns, took) + round(t.practice.apply_s * 1e9)
               for took in stream.took_ns.tolist()]  # fmt: skip
    now, steps = 0, 0
    while True:
        now, steps = now + c.decision_steps * c.step_ns, steps + c.decision_steps
        if now + lengths[len(starts)] > c.horizon_ns:
            return starts
        if steps < c.h_min:
            continue
        if steps + c.decision_steps > c.h_max or decide():
            starts.append(now)
            now, steps = now + lengths[len(starts) - 1], 0


def every_run(t: Timing, stream: Merges) -> Iterator[tuple[int, ...]]:
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

        yield tuple(run_loop(t, stream, decide))
        del script[used:]
        while script and script[-1]:
            script.pop()
        if not script:
            return
        script[-1] = True


def small_world(seed: int) -> tuple[Timing, Merges]:
    """A small corridor, and merges of other lengths, some of them of a second fragment, some not committed."""
    rng = np.random.default_rng(seed)
    h_min = int(rng.integers(1, 4))
    c = Corridor(h_min, h_min + 2 + int(rng.integers(0, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 3)), 2, 30)
    n = 40
    took, fragment = rng.integers(1, 9, n), rng.integers(0, int(rng.integers(1, 3)), n)
    merges = Merges(took, fragment.astype(np.int16), rng.random(n) < 0.7, int(rng.integers(1, 9)))
    return Timing(
        c, Practice(sync_delay_steps=int(rng.integers(0, 3)), apply_s=float(rng.integers(0, 2)) * 1e-9)
    ), merges


def runs_of(t: Timing, own: Merges) -> set[tuple[int, ...]]:
    """All runs that make exactly these merges; the one after them takes what it would have taken."""
    took = np.concatenate([own.took_ns, np.full(40, own.next_ns)])
    stream = Merges(took, np.zeros(len(took), np.int16), np.ones(len(took), bool), own.next_ns)
    return {run for run in every_run(t, stream) if len(run) == len(own)}


@pytest.mark.parametrize("seed", range(30))
def test_the_loop_reaches_exactly_the_counted_placements(seed: int) -> None:
    t, stream = small_world(seed)
    by_k: dict[int, set[tuple[int, ...]]] = {}
    for run in every_run(t, stream):
        by_k.setdefault(len(run), set()).add(run)
    for k, found in by_k.items():
        own = stream.first(k)
        assert t.corridor.count(k, t.spent(own)) == len(found)
        for run in found:
            starts = np.array(run, np.int64)
            assert t.violation(starts, own) is None
            assert np.array_equal(t.start_ns(t.gaps(starts, own), own), starts)
    assert any(by_k)


def test_draws_are_uniform_over_times_and_orders() -> None:
    """Every order in which the fragments come as they came, each with every placement that a loop reaches."""
    pvalues = []
    for seed in itertools.count():
        t, stream = small_world(seed)
        ks = [k for k in range(2, 6) if 3 <= t.corridor.count(k, t.spent(stream.first(k))) <= 400]
        if not ks:
            continue
        own = stream.first(ks[seed % len(ks)])
        orders = [o for o in itertools.permutations(range(len(own)))
                  if np.array_equal(own.fragment[list(o)], own.fragment)]  # fmt: skip
        cells = {(order, run): 0 for order in orders for run in runs_of(t, own.ordered(np.array(order)))}
        if len(cells) > 3000 or len(orders) < 2:
            continue
        rng = np.random.default_rng(1000 + seed)
        n = 100 * len(cells)
        gaps = t.corridor.sample(len(own), n, rng, t.spent(own))
        for row, order in zip(gaps, own.orders(n, rng), strict=True):
            cells[tuple(order.tolist()), tuple(t.start_ns(row, own.ordered(order)).tolist())] += 1
        assert sum(cells.values()) == n
        pvalues.append(float(stats.chisquare(list(cells.values())).pvalue))
        if len(pvalues) == 12:
            break
    assert min(pvalues) > 0.0005
    assert stats.kstest(pvalues, "uniform").pvalue > 0.001


@given(st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_controls_stay_in_the_corridor_and_keep_the_merges(seed: int) -> None:
    t, stream = small_world(seed)
    rng = np.random.default_rng(seed)
    starts = run_loop(t, stream, lambda: bool(rng.random() < 0.4))
    own = stream.first(len(starts))
    gaps = t.gaps(np.array(starts, np.int64), own)
    k = len(own)
    orders = own.orders(4, rng)
    found = [(row, own.ordered(order)) for row, order in zip(t.corridor.permuted(gaps, 4, rng), orders, strict=True)]
    shifts, first = t.corridor.turned(gaps, t.spent(own))
    found += [(row, own.ordered((np.arange(k) + j) % k)) for row, j in zip(shifts, first.tolist(), strict=True)]
    for row, merges in found:
        assert t.violation(t.start_ns(row, merges), merges) is None
        assert same_kinds(own, merges)
    assert all(np.array_equal(own.fragment[order], own.fragment) for order in orders)


def test_alike_is_the_corridor_itself() -> None:
    c = Corridor(2, 7, 1, 3, 5, 100)
    t, own = Timing(c, PLAIN), Merges.alike(4, 5)
    assert c.sum_range(4, t.spent(own)) == c.sum_range(4) and c.count(4, t.spent(own)) == c.count(4) > 0
    one, other = (c.sample(4, 50, np.random.default_rng(1), s) for s in (None, t.spent(own)))
    assert np.array_equal(one, other) and np.array_equal(c.start_ns(one), t.start_ns(one[0:], own))
    assert t.schedule(one[0], 2).equals(t.schedule(one[0], 2, own))
    assert t.inner_steps(4) == t.inner_steps(own) and t.busy_ns(4) == t.busy_ns(own)


def test_merges_that_fit_nowhere_are_refused() -> None:
    c = Corridor(2, 7, 1, 3, 5, 100)
    with pytest.raises(InfeasibleCorridor, match="3 merges that take 9e-08 s in all"):
        c.sample(3, 1, np.random.default_rng(0), Spent(90, 30))


def test_a_fragment_is_sent_while_training_goes_on() -> None:
    """Four steps of 2 s are trained meanwhile: a transfer of 5 s ends before them, one of 11 s is waited for; then 3 s
    of applying.  Starts: 20 s; 20 + 11 + 10 = 41 s."""
    s = 1_000_000_000
    t = Timing(Corridor(5, 50, 5, 2 * s, 11 * s, 100 * s), Practice(fragments=2, sync_delay_steps=4, apply_s=3.0))
    own = Merges(np.array([5 * s, 11 * s]), np.array([0, 1], np.int16), np.ones(2, bool), 5 * s)
    made = t.schedule(np.array([2, 1]), 1, own)
    assert made.start_s.tolist() == [20.0, 41.0]
    assert made.applied_ns is not None and (made.applied_ns / s).tolist() == [[28, 31], [52, 55]]
    assert [(w / s).tolist() for w in made.windows_ns(0)] == [[20, 28, 41, 52], [25, 31, 52, 55]]
    # 100 s less two merges of 11 and 14 s leave 37 steps, and each lets 4 be trained.
    assert t.inner_steps(own) == 37 + 8
    assert t.busy_ns(own) == (5 + 11 + 6) * s


@pytest.mark.parametrize(
    "table",
    [
        {"follows": "given", "values_s": [60, 120, 420]},
        {"follows": "drawn", "values_s": [60, 120, 420]},
        {"follows": "uniform", "least_s": 60, "most_s": 420},
        {"follows": "lognormal", "least_s": 60, "most_s": 420, "median_s": 100, "sigma": 1.0},
    ],
)
def test_durations(table: dict[str, object]) -> None:
    d, follows = read(Durations, table, "x"), table["follows"]
    assert read(Durations, d.model_dump(), "x") == d  # a certificate states every field
    assert not d.unused and read(Durations, {**table, "sigma": 0.0}, "x").unused == (
        [] if follows == "lognormal" else ["sigma"]
    )
    few, many = (d.draw(n, np.random.default_rng(3)) for n in (50, 4000))
    assert np.array_equal(few, many[:50]) and few.min() >= d.least == 60 and few.max() <= d.most == 420
    if follows == "given":
        assert few[:4].tolist() == [60, 120, 420, 60]
    if follows == "drawn":
        assert stats.chisquare([np.sum(many == v) for v in d.values_s]).pvalue > 0.001
    if follows == "uniform":
        assert stats.kstest(many, "uniform", args=(60, 360)).pvalue > 0.001
    if follows == "lognormal":
        assert np.median(many) == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"follows": "drawn"}, "values_s: found none; expected a value, as 'drawn' asks for"),
        ({"follows": "uniform", "least_s": 5}, "most_s: found none"),
        ({"follows": "uniform", "least_s": 5, "most_s": 4}, "most_s: found 4.0; expected a number from 5"),
        ({"follows": "lognormal"}, "median_s: found none"),
        ({"follows": "given", "values_s": [0]}, "values_s"),
    ],
)
def test_durations_that_say_nothing(table: dict[str, object], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(Durations, table, "x")
    assert problem in str(caught.value)


def test_a_merge_that_failed_is_due_again() -> None:
    made = Practice(fragments=3, failed_share=0.5).stream(7, 200, np.random.default_rng(2))
    due = 0
    for fragment, committed in zip(made.fragment.tolist(), made.committed.tolist(), strict=True):
        assert fragment == due
        due = (due + committed) % 3
    assert 60 < int(made.committed.sum()) < 140
    again = Practice(fragments=3, failed_share=0.5).stream(7, 200, np.random.default_rng(2))
    assert made.equals(again) and not made.equals(again.first(199))
