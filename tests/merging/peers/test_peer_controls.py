"""Matched controls of peer schedules keep what they say, obey every corridor, and are uniform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from fleets import NETWORKS, any_schedule, at, peers, schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.merging.corridor import Corridor
from protocol.merging.peers import controls as peer_controls
from protocol.merging.peers.schedules import Merging, Peers, PeerSchedule

Key = frozenset[tuple[int, tuple[int, ...]]]


def key(schedule: PeerSchedule) -> Key:
    return frozenset(zip(schedule.cells.tolist(), schedule.groups, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(NETWORKS), st.integers(0, 10**6), st.sampled_from([(1, 1), (1, 0), (0, 1)]))
def test_controls_keep_budgets_and_corridors(merging: Merging, seed: int, moves: tuple[int, int]) -> None:
    p = peers(merging, 6)
    own = schedule_of(any_schedule(p, np.random.default_rng(seed))[0], p)
    timing, partners = map(bool, moves)
    streams = np.random.default_rng(1), np.random.default_rng(2)
    drawn = peer_controls.draws(p, own, 5, *streams, timing=timing, partners=partners, sweeps=20)
    mine = p.by_island(own)
    for schedule in drawn:
        assert p.violation(schedule) is None
        assert all((p.by_island(schedule)[k] == v).all() for k, v in mine.items())
        assert Counter(map(len, schedule.groups)) == Counter(map(len, own.groups))
        if not partners:
            same = [Counter(tuple(sorted(g)) for g in s.groups) for s in (schedule, own)]
            assert same[0] == same[1]
        if not timing:
            assert schedule.cells.tolist() == own.cells.tolist()


#: 4 islands, decisions at every step, a pair takes one step and so do all four.
SMALL = Peers(Corridor(2, 6, 1, 10**9, 10**9, 9 * 10**9), Merging(payload_bytes=100, bandwidth=(100.0,)), 4)


def placements(p: Peers, budgets: list[int]) -> Iterator[PeerSchedule]:
    """Every placement of pairs with these merges an island, by brute force."""

    def extend(merges: list[tuple[int, tuple[int, ...]]], left: list[int]) -> Iterator[PeerSchedule]:
        if not any(left):
            schedule = at(*merges)
            if p.violation(schedule) is None:
                yield schedule
            return
        for cell in range(merges[-1][0] if merges else 0, p.last_cell + 1):
            for pair in combinations(range(p.n), 2):
                if (merges and (cell, pair) <= merges[-1]) or min(left[i] for i in pair) < 1:
                    continue
                yield from extend([*merges, (cell, pair)], [k - (i in pair) for i, k in enumerate(left)])

    return extend([], budgets)


def test_draws_are_uniform_over_every_placement_with_the_same_budgets() -> None:
    every = list(placements(SMALL, [2, 2, 2, 2]))
    assert len({key(s) for s in every}) == len(every) > 100
    drawn = peer_controls.draws(
        SMALL, every[0], 20 * len(every), np.random.default_rng(5), np.random.default_rng(6), sweeps=60
    )
    counts = Counter(key(s) for s in drawn)
    assert set(counts) == {key(s) for s in every}  # all are reached, and nothing else
    assert stats.chisquare([counts[key(s)] for s in every]).pvalue > 1e-3


#: The same, but all four take two steps (an all-reduce of four sends 1.5 payloads).
MIXED = Peers(Corridor(2, 7, 1, 10**9, 2 * 10**9, 13 * 10**9), Merging(payload_bytes=100, bandwidth=(100.0,)), 4)


def mixed_placements(p: Peers, pairs: int) -> Iterator[PeerSchedule]:
    """Every placement of one merge of all and `pairs` pairs of 0, 1 and of 2, 3 each, in any order."""
    kinds = [(0, 1, 2, 3), *[(0, 1)] * pairs, *[(2, 3)] * pairs]

    def extend(merges: list[tuple[int, tuple[int, ...]]], left: Counter[tuple[int, ...]]) -> Iterator[PeerSchedule]:
        if not sum(left.values()):
            schedule = at(*merges)
            if p.violation(schedule) is None:
                yield schedule
            return
        for cell in range(merges[-1][0] if merges else 0, p.last_cell + 1):
            for group in sorted(g for g, k in left.items() if k):
                if not merges or (cell, group) > merges[-1]:
                    yield from extend([*merges, (cell, group)], left - Counter([group]))

    return extend([], Counter(kinds))


def test_draws_change_the_order_of_kinds_and_stay_uniform() -> None:
    every = list(mixed_placements(MIXED, 1))
    assert MIXED.steps((0, 1, 2, 3)) == 2 and MIXED.steps((0, 1)) == 1

    def order(s: PeerSchedule) -> tuple[int, ...]:
        return tuple(len(g) for g in s.groups if 0 in g)

    assert {order(s) for s in every} == {(2, 4), (4, 2)}
    drawn = peer_controls.draws(
        MIXED, every[0], 20 * len(every), np.random.default_rng(5), np.random.default_rng(6), partners=False, sweeps=400
    )
    counts = Counter(key(s) for s in drawn)
    assert set(counts) == {key(s) for s in every}
    assert stats.chisquare([counts[key(s)] for s in every]).pvalue > 1e-3
    # Who meets whom may change as well; then more placements are reached, each of them allowed and in both orders.
    drawn = peer_controls.draws(MIXED, every[0], 200, np.random.default_rng(5), np.random.default_rng(6))
    assert all(MIXED.violation(s) is None for s in drawn)
    assert 20 < sum(order(s) != order(every[0]) for s in drawn) < 180


def test_the_test_of_uniformity_can_tell() -> None:
    every = list(placements(SMALL, [2, 2, 2, 2]))
    drawn = peer_controls.draws(
        SMALL, every[0], 20 * len(every), np.random.default_rng(5), np.random.default_rng(6), sweeps=1
    )
    counts = Counter(key(s) for s in drawn)
    assert stats.chisquare([counts[key(s)] for s in every]).pvalue < 1e-6  # one sweep forgets nothing


def test_policy_and_draws_are_exchangeable_however_short_the_walk() -> None:
    """Of a uniform schedule and its draws, each is as often the first in any fixed order: ranks are uniform."""
    every = list(placements(SMALL, [2, 2, 2, 2]))
    rng = np.random.default_rng(11)
    cost = {key(s): rng.random() for s in every}
    ranks = []
    for _ in range(3000):
        own = every[rng.integers(len(every))]
        drawn = peer_controls.draws(SMALL, own, 4, rng, rng, sweeps=2)
        # Short walks come back: equal values are put in random order.
        values = [cost[key(s)] + 1e-9 * rng.random() for s in (own, *drawn)]
        ranks.append(int(np.argsort(np.argsort(values))[0]))
    assert stats.chisquare(np.bincount(ranks, minlength=5)).pvalue > 1e-3


def test_rounds_of_draws_share_one_hub() -> None:
    own = next(placements(SMALL, [2, 2, 2, 2]))
    hub = lambda: np.random.default_rng(3)  # noqa: E731
    both = peer_controls.draws(SMALL, own, 4, hub(), np.random.default_rng(4))
    rng = np.random.default_rng(4)
    again = [*peer_controls.draws(SMALL, own, 2, hub(), rng), *peer_controls.draws(SMALL, own, 2, hub(), rng)]
    assert [key(s) for s in both] == [key(s) for s in again]


def test_nothing_to_move() -> None:
    empty = at()
    assert peer_controls.draws(SMALL, empty, 3, np.random.default_rng(1), np.random.default_rng(2)) == [empty] * 3
    own = next(placements(SMALL, [2, 2, 2, 2]))
    with pytest.raises(ValueError, match="timing, partners or both"):
        peer_controls.draws(
            SMALL, own, 1, np.random.default_rng(1), np.random.default_rng(2), timing=False, partners=False
        )
