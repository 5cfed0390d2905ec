"""Which seeds of a claim on a real server compare placements and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from server_runs import DRAWS, replay_of, server_spec, session, sound, swapped, without
from strategies import MS, S, ran, spec_for

from protocol.gates.units import BUSY_WITHIN_NS, compared, left_out, wanted
from protocol.replay.replay import MERGE_WITHIN_NS, NO_SYNC, POLICY, UNIFORM


def test_what_a_seed_consists_of() -> None:
    assert wanted(server_spec("live", session())) == [
        (POLICY, 0), (NO_SYNC, 0), (NO_SYNC, 1), (NO_SYNC, 2), (UNIFORM, 0),
    ]  # fmt: skip
    assert len(wanted(server_spec("real", sound()))) == 3 + DRAWS


def test_nothing_is_left_out_of_a_simulation_or_of_a_sound_campaign() -> None:
    assert compared(ran(), spec_for(ran())) == list(ran())
    for back_end, found in (("real", sound()), ("live", session())):
        assert compared(found, server_spec(back_end, found)) == list(found)


@pytest.mark.parametrize(("arm", "draw"), [(POLICY, 0), (NO_SYNC, 0), (NO_SYNC, 1), (UNIFORM, 4)])
def test_a_seed_with_a_replay_missing_is_left_out(arm: str, draw: int) -> None:
    found = without(sound(), 4, arm, draw)
    spec = server_spec("real", found)
    assert [e.seed for e in compared(found, spec)] == [s for s in range(10) if s != 4]
    named = f"{arm} {draw}" if arm != POLICY else arm
    assert left_out(found[4], spec) == f"{named}: not replayed"


def test_a_seed_whose_replay_stayed_invalid_says_why() -> None:
    late = replay_of(sound(), 4, UNIFORM, 2)
    found = swapped(sound(), 4, UNIFORM, 2, rows=replace(late.rows, sent_ns=late.rows.sent_ns + 6 * MS))
    why = left_out(found[4], server_spec("real", found))
    assert why is not None and why.startswith("uniform 2: 1 attempts, the last invalid: 0.00 % of requests were sent")


def test_equal_merges_are_those_that_ran_inside_the_horizon() -> None:
    """As many, and busy for as long to within the load's own tolerance at both ends of each."""
    found = sound()
    spec, draw = server_spec("real", found), replay_of(found, 2, UNIFORM, 1)
    fewer = swapped(found, 2, UNIFORM, 1, ran_ns=draw.ran_ns[1:], planned_ns=draw.planned_ns[1:])
    own = len(replay_of(found, 2, POLICY).ran_ns)
    why = left_out(fewer[2], spec)
    assert why is not None and f"uniform 1: {own - 1} merges" in why and f"the policy {own}" in why
    # A command that ends early may do so, but then it was busy for less than the policy's.
    apart = replay_of(found, 2, POLICY).busy_ns - draw.busy_ns
    for short_ns, kept in ((BUSY_WITHIN_NS - 10 * MS, True), (BUSY_WITHIN_NS + 10 * MS, False)):
        cut = draw.ran_ns - np.array([[0, short_ns - apart // own]])
        early = swapped(found, 2, UNIFORM, 1, ran_ns=cut, may_end_early=True)
        assert (left_out(early[2], spec) is None) == kept, short_ns
    assert BUSY_WITHIN_NS == 2 * MERGE_WITHIN_NS


def test_no_merge_inside_the_horizon_is_no_comparison() -> None:
    found = session()
    policy = replay_of(found, 0, POLICY)
    off = policy.ran_ns + 1000 * S
    moved = swapped(found, 0, POLICY, ran_ns=off, planned_ns=off)
    assert left_out(moved[0], server_spec("live", found)) == "no merge of the policy inside the horizon"
