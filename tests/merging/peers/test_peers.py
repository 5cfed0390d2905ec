"""Peer merging: what a group costs, which schedules can be, and what the control loop makes of answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fleets import NETWORKS, any_schedule, at, peers, roll, schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LEARNER, S

from protocol.errors import BadInput, SchedulerError
from protocol.merging.peers.schedules import GRAPH, RING, Merging
from protocol.reading import read
from protocol.scheduler import Decision, Observation

# What a merge costs -----------------------------------------------------------------------------------------------


def test_costs_by_hand() -> None:
    p = peers()
    assert p.busy_ns((1, 3)).tolist() == [0, 2 * S, 0, 2 * S] and p.sent((1, 3)).tolist() == [0, 100, 0, 100]
    assert p.busy_ns((0, 1, 2, 3)).tolist() == [3 * S] * 4 and p.sent((0, 1, 2, 3)).tolist() == [150] * 4
    assert p.steps((1, 3)) == 8 and p.steps((0, 1, 2, 3)) == 12


def test_a_slow_interface_is_felt_by_its_partner_alone() -> None:
    p = peers(Merging(payload_bytes=100, bandwidth=(50.0, 50.0, 50.0, 10.0), latency_s=0.5))
    assert p.busy_ns((0, 1)).tolist() == [2 * S + S // 2] * 2 + [0, 0]
    assert p.busy_ns((0, 3)).tolist() == [10 * S + S // 2, 0, 0, 10 * S + S // 2]
    # All four: 2 (3/4) 100 / 10 = 15 s, and six hops.
    assert p.busy_ns((0, 1, 2, 3)).tolist() == [18 * S] * 4


def test_a_ring_has_a_window_for_each_island() -> None:
    p = peers(Merging(payload_bytes=100, bandwidth=(50.0, 50.0, 50.0, 50.0, 50.0, 10.0), exchange=RING), n=6)
    # Two payloads over the slowest of three interfaces; 5 is slow, and so are its two neighbours.
    assert (p.busy_ns((0, 1, 2, 3, 4, 5)) // S).tolist() == [20, 4, 4, 4, 20, 20]
    assert (p.busy_ns((5, 2, 0, 4, 1, 3)) // S).tolist() == [4, 4, 20, 20, 4, 20]
    assert p.sent((0, 1, 2, 3)).tolist() == [200] * 4 + [0, 0] and p.sent((0, 1)).tolist() == [100] * 2 + [0] * 4


def test_a_declared_graph_says_who_exchanges() -> None:
    p = peers(Merging(payload_bytes=100, bandwidth=(50.0,), exchange=GRAPH, graph=("0-1", "1-2", "2-3")))
    assert p.sent((0, 1, 2, 3)).tolist() == [100, 200, 200, 100]
    assert (p.busy_ns((0, 1, 2, 3)) // S).tolist() == [4] * 4  # 0 and 3 wait for neighbours with two links
    assert p.group_problem((0, 3)) is None  # a pair exchanges directly
    star = peers(Merging(payload_bytes=100, bandwidth=(50.0,), exchange=GRAPH, graph=("0-1", "2-3")))
    assert "does not connect" in str(star.group_problem((0, 1, 2, 3)))


@pytest.mark.parametrize(
    ("change", "n", "message"),
    [
        ({}, 3, "3 islands; expected an even number"),
        ({"payload_bytes": 0}, 4, "payload_bytes"),
        ({"bandwidth": (1.0, 2.0)}, 4, "2 values; expected one, or 4"),
        ({"bandwidth": (-1.0,)}, 4, "bandwidth"),
        ({"latency_s": float("nan")}, 4, "latency"),
        ({"exchange": "star"}, 4, "'star'"),
        ({"exchange": "graph"}, 4, "0 edges"),
        ({"graph": ("0-1",)}, 4, "1 edges"),
        ({"exchange": "graph", "graph": ("0-4",)}, 4, "'0-4'"),
        ({"exchange": "graph", "graph": ("1-1",)}, 4, "'1-1'"),
        ({"bursts": "mine"}, 4, "'mine'"),
    ],
)
def test_declarations_are_checked(change: dict[str, Any], n: int, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        values = {"payload_bytes": 100, "bandwidth": (50.0,), **change}
        read(Merging, values, "x.toml, peer").check("x.toml, peer", n)
    assert str(caught.value).startswith("x.toml, peer") and "\n" not in str(caught.value)


# Which schedules can be -------------------------------------------------------------------------------------------


def test_the_corridor_by_hand() -> None:
    p = peers(horizon_s=23)  # merges of all end by 23 s: the last decision is at 20 s
    assert p.last_cell == 20
    fine = at((2, (0, 1)), (10, (2, 3)), (6, (0, 1)))
    assert p.violation(fine) == "merge 3 starts before merge 2"
    # 0 and 1: 2 to 4 s busy, free at step 16, so from step 24 (6 s) to step 56 (14 s).
    assert p.violation(at((2, (0, 1)), (10, (2, 3)), (14, (0, 1)))) is None
    said = p.violation(at((2, (0, 1)), (10, (2, 3)), (15, (0, 1))))
    assert said == "merge 3: island 0 did 44 inner steps before; H_max is 40"
    said = p.violation(at((2, (0, 1)), (5, (0, 1)), (10, (2, 3))))
    assert said == "merge 2: island 0 did 4 inner steps before; H_min is 8"
    assert p.violation(at((1, (0, 1)))) == "merge 1: island 0 did 4 inner steps before; H_min is 8"
    # Free at 8 s, due by 18 s, which is before the last decision.
    said = p.violation(at((6, (0, 1)), (10, (2, 3))))
    assert said == "island 0 does not merge again, though H_max forces it to at 18 s"
    assert "decision 21" in str(p.violation(at((10, (0, 1)), (10, (2, 3)), (21, (0, 1)))))
    for group, word in (
        ((0,), "even"),
        ((0, 1, 2), "even"),
        ((0, 0), "different"),
        ((0, 4), "different"),
        ((), "even"),
    ):
        assert word in str(p.violation(at((5, group))))


def test_budgets_by_hand() -> None:
    p = peers(horizon_s=23)
    mine = p.by_island(at((2, (0, 1)), (9, (0, 1, 2, 3))))
    assert mine["merges"].tolist() == [2, 2, 1, 1]
    assert (mine["busy_ns"] // S).tolist() == [5, 5, 3, 3]
    assert mine["bytes"].tolist() == [250, 250, 150, 150]
    assert mine["inner_steps"].tolist() == [92 - 20, 92 - 20, 92 - 12, 92 - 12]
    assert p.gaps(at((2, (0, 1)), (9, (0, 1, 2, 3)))) == [[8, 20], [8, 20], [36], [36]]


def test_raw_files_hold_the_participants() -> None:
    p = peers()
    two = [at((2, (0, 1)), (2, (3, 2)), (9, (0, 1, 2, 3))), at(), at((4, (1, 3)))]
    stored = p.stored(two, np.zeros((3, 1), np.int64))
    assert stored.gaps.tolist() == [2, 0, 7, 4] and stored.sizes.tolist() == [2, 2, 4, 2]  # type: ignore[union-attr]
    again = p.read(stored)
    assert [(s.cells.tolist(), s.groups) for s in again] == [(s.cells.tolist(), s.groups) for s in two]


# The control loop -------------------------------------------------------------------------------------------------


def test_nobody_asked_is_forced_in_random_pairs() -> None:
    p = peers()
    rolled, run = roll(lambda obs: False, p)
    made = schedule_of(rolled, p)
    assert rolled.forced.all() and p.violation(made) is None
    assert {len(g) for g in made.groups} == {2} and made.cells[0] == made.cells[1] == 10  # H_max: 40 steps
    assert not rolled.merged.any() and [o.time_s for o in run.seen[:2]] == [2.0, 3.0]  # asked from H_min on


def test_true_merges_all_that_are_ready() -> None:
    p = peers()
    rolled, _ = roll(lambda obs: True, p)
    assert set(rolled.groups) == {(0, 1, 2, 3)} and not rolled.forced.any()
    # 8 steps, then 3 s of merging: every 5 s from 2 s on.
    assert rolled.schedule.start_s.tolist() == list(range(2, 58, 5))


def test_each_island_has_its_own_clock() -> None:
    p = peers()
    seen: list[tuple[float, list[int]]] = []

    def decide(obs: Observation) -> Decision:
        seen.append((obs.time_s, [i.steps_since_merge for i in obs.islands]))
        return Decision(True, ((0, 2),)) if obs.time_s == 3 else Decision(False)

    rolled, run = roll(decide, p, until_s=8)
    assert rolled.groups == ((0, 2),) and rolled.schedule.busy_ns.tolist() == [[2 * S, 0, 2 * S, 0]]
    assert seen[1:] == [
        (3.0, [12] * 4),
        (4.0, [0, 16, 0, 16]),
        (5.0, [0, 20, 0, 20]),
        (6.0, [4, 24, 4, 24]),
        (7.0, [8, 28, 8, 28]),
    ]
    late = run.seen[-1]
    assert late.islands[0].staleness_s == 2.0 and late.islands[1].staleness_s == 7.0 and late.staleness_s == 7.0
    assert late.islands[0].tokens == 8 * 2048 and late.tokens == 18 * 2048 and late.steps_since_merge == 8
    # Island 0 did 12 steps before its merge and 8 since; island 1 did 28.
    assert late.islands[0].loss == LEARNER.loss(20) and late.islands[1].loss == LEARNER.loss(28)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((0, 1), (1, 2)), "island 1 in two groups"),
        (((0,),), "a group of 1"),
        (((0, 1, 2),), "a group of 3"),
        (((0, 9),), "different islands of 0 to 3"),
        ((), "no groups"),
    ],
)
def test_groups_that_cannot_merge_are_refused_in_one_line(groups: Any, message: str) -> None:
    with pytest.raises(SchedulerError, match=message) as caught:
        roll(lambda obs: Decision(True, groups))
    assert str(caught.value).startswith("decision at 2 s: found") and "\n" not in str(caught.value)


def test_a_group_that_is_not_ready_is_refused() -> None:
    def decide(obs: Observation) -> Decision:
        return Decision(True, ((0, 1),)) if obs.time_s in (2, 5) else Decision(False)

    with pytest.raises(SchedulerError, match="island 0, 4 inner steps after its merge; H_min is 8"):
        roll(decide)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NETWORKS), st.integers(0, 10**6))
def test_whatever_is_answered_every_island_stays_in_its_corridor(merging: Merging, seed: int) -> None:
    p = peers(merging, 6)
    rolled, run = any_schedule(p, np.random.default_rng(seed))
    made = schedule_of(rolled, p)
    assert p.violation(made) is None
    assert rolled.measurements is not None
    # Steps counted one by one: a step counts when the island is not merging during any of it.
    step = p.corridor.step_ns
    begin = np.arange(p.horizon_steps) * step
    for i in range(p.n):
        starts, ends = p.schedule(made).windows_ns(i)
        free = ~np.any((begin[:, None] < ends) & (begin[:, None] + step > starts), axis=1)
        assert free.sum() == p.by_island(made)["inner_steps"][i]


def test_decisions_do_not_depend_on_what_comes_after_them() -> None:
    p = peers()
    whole, _ = roll(lambda obs: obs.time_s % 7 == 0, p)
    part, _ = roll(lambda obs: obs.time_s % 7 == 0, p, until_s=30)
    n = len(part.schedule)
    assert n and whole.groups[:n] == part.groups and part.measurements is None
    assert (whole.schedule.start_ns[:n] == part.schedule.start_ns).all()
