"""Real replays: which are made, in which order, and that none is made twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from server_runs import DRAWS, replayed, seen, server_head, with_replays
from strategies import MS, S, setting

from protocol.campaign import real
from protocol.certificate.assess import assess
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements
from protocol.replay.replay import UNIFORM, Replay
from protocol.workload.trace import RequestTrace


def test_resumed_replays_are_judged_alike() -> None:
    """Killed after any replay, the rest is made in the same order, and no replay is made twice."""
    whole = replayed(n_seeds=8)
    made = [(e.seed, r.arm, r.draw) for e in whole for r in e.served]
    cut = 30
    part = [with_replays(e, [r for r in e.served if made.index((e.seed, r.arm, r.draw)) < cut]) for e in whole]
    assert real.outstanding(part, 7, DRAWS) == len(made) - cut
    stored = {(e.seed, r.arm, r.draw): r for e in whole for r in e.served}
    asked: list[tuple[int, str, int]] = []
    left: list[int] = []
    rng = np.random.default_rng(1)
    found = real.run(
        part, setting(n_seeds=8), 7, DRAWS, lambda t, s: seen(t, s, rng),
        lambda r: asked.append((r.seed, r.arm, r.draw)), lambda r, n: left.append(n),
    )  # fmt: skip
    assert asked == made[cut:] and left == list(range(len(made) - cut))[::-1]
    found = [with_replays(e, [stored[e.seed, r.arm, r.draw] for r in e.served]) for e in found]
    assert assess(server_head("real", 8), found) == assess(server_head("real", 8), whole)
    assert [e.served for e in part] != [e.served for e in found]  # what was given stayed as it was


def test_an_invalid_replay_is_kept_and_tried_again_so_many_times_and_no_more() -> None:
    calls: list[Replay] = []

    def late(trace: RequestTrace, schedule: Schedule) -> Replay:
        found = seen(trace, schedule, np.random.default_rng(1))
        return replace(found, rows=replace(found.rows, sent_ns=found.rows.sent_ns + 6 * MS))

    found = [with_replays(e, ()) for e in replayed(n_seeds=1)]
    done = real.run(found, setting(n_seeds=1), 7, DRAWS, late, calls.append, attempts=2)
    assert len(calls) == len(done[0].served) == 2 * (DRAWS + 3) and all(r.invalid for r in calls)
    assert real.outstanding(done, 7, DRAWS, attempts=2) == 0
    assert real.outstanding(done, 7, DRAWS, attempts=3) == DRAWS + 3


def test_merges_off_schedule_do_not_count() -> None:
    policy = replayed(n_seeds=1)[0].replay("policy")
    assert policy is not None and policy.invalid is None
    off = policy.ran_ns + np.array([[0, 60 * MS]])
    assert "merge 1 began" in str(replace(policy, ran_ns=off).invalid)
    assert "ran" in str(replace(policy, ran_ns=policy.ran_ns[1:]).invalid)
    assert "merges ran: exit code 3" in str(replace(policy, ran_ns=policy.ran_ns[1:], died="exit code 3").invalid)
    early = policy.ran_ns - np.array([[0, 60 * MS]])
    assert replace(policy, ran_ns=early).invalid is not None
    assert replace(policy, ran_ns=early, may_end_early=True).invalid is None


def test_no_rate_of_two_requests() -> None:
    one = Measurements(*(np.array([v]) for v in (0, 0, 1, 1, 0, 1, 1, 0, 0, 0)))
    assert Replay(one).invalid is None and Replay(one).achieved_rate == 1.0
    never = replace(one, sent_ns=np.array([-1]))
    assert "0.00 %" in str(Replay(never).invalid) and Replay(never).achieved_rate == 0.0


@pytest.mark.parametrize(("late", "valid"), [(1, True), (2, False)])
def test_one_in_a_hundred_may_be_sent_late(late: int, valid: bool) -> None:
    n = 100
    arrival = np.arange(n) * S
    sent = arrival + np.where(np.arange(n) < late, 5 * MS + 1, 5 * MS)
    columns = (arrival, sent, np.ones(n), np.full(n, 2), np.zeros(n), np.ones(n), np.ones(n), np.zeros(n), np.zeros(n))
    r = Replay(Measurements(*columns, np.zeros(n)), arm=UNIFORM)
    assert (r.invalid is None) == valid and r.sent_share == 1 - late / n and r.achieved_rate == 1.0


def test_the_achieved_rate_counts_what_was_sent_by_the_last_arrival() -> None:
    n = 50
    arrival = np.arange(n) * S
    for sent, rate in (
        (arrival, 1.0),
        (np.maximum(arrival - 1, 0), 1.0),
        (np.where(np.arange(n) < 40, arrival, arrival[-1] + S), 0.8),
    ):
        columns = (arrival, sent, np.ones(n), np.full(n, 2), np.zeros(n), np.ones(n), np.ones(n))
        assert Replay(Measurements(*columns, np.zeros(n), np.zeros(n), np.zeros(n))).achieved_rate == rate
