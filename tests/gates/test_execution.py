"""G0 on a real server: replays as planned, equal merges by the execution log, decisions in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from server_runs import (
    DRAWS,
    check_of,
    judged,
    replay_of,
    replayed,
    seen,
    server_spec,
    session,
    sound,
    swapped,
    with_replays,
    without,
)
from strategies import MS, S

from protocol.evidence.model import Evidence
from protocol.evidence.order import BALANCED, UNBALANCED, random_order
from protocol.gates.execution import decisions_in_time, order_of, realised_merges, replays_as_planned
from protocol.gates.result import Check
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, LiveDecision


def planned(found: list[Evidence] | tuple[Evidence, ...], back_end: str = "real", **changes: object) -> Check:
    return replays_as_planned(found, server_spec(back_end, found, **changes))


# As planned ------------------------------------------------------------------------------------------------------


def test_order_is_random_within_a_seed_and_the_same_again() -> None:
    orders = [random_order(7, "toy", seed, 2, 9) for seed in range(20)]
    assert all(sorted(o) == sorted(orders[0]) and len(o) == 12 for o in orders)
    assert len({tuple(o) for o in orders}) == 20
    assert orders[3] == random_order(7, "toy", 3, 2, 9) != random_order(8, "toy", 3, 2, 9)
    firsts = {o[0][0] for o in orders}
    assert UNIFORM in firsts and firsts & {POLICY, NO_SYNC}


def test_a_live_block_has_its_own_order_by_the_replays_without_merges() -> None:
    """Each arm with merges after one without; the order of version 1 is known by its two."""
    assert [arm for arm, _ in BALANCED] == [NO_SYNC, POLICY, NO_SYNC, UNIFORM, NO_SYNC]
    found = session()
    assert order_of(server_spec("live", found), 3) == list(BALANCED)
    assert order_of(server_spec("live", found, idle=2), 3) == list(UNBALANCED)


def test_a_sound_campaign_is_as_planned() -> None:
    assert (planned(sound()).status, planned(sound()).n) == ("passed", 10 * (DRAWS + 3))
    assert (planned(session(), "live").status, planned(session(), "live").n) == ("passed", 50)


def test_an_invalid_replay_is_repeated_and_what_stays_invalid_leaves_its_seed_out() -> None:
    calls = 0

    def late(trace, schedule, rng):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        found = seen(trace, schedule, rng)
        if calls in (1, 2):
            return replace(found, rows=replace(found.rows, sent_ns=found.rows.sent_ns + 6 * MS))
        return found

    made, checks = judged("real", replayed(late))
    assert calls == 10 * (DRAWS + 3) + 2 and made.verdict == "PASS" and set(checks.values()) == {"passed"}
    assert made.replays is not None
    invalid = [r for r in made.replays if r["invalid"]]
    assert [r["attempt"] for r in invalid] == [1, 2] and "within 5 ms" in invalid[0]["invalid"]
    assert check_of(made, "G0", "replays").details["repeated"] == 2

    calls = 0
    made, checks = judged("real", replayed(late, attempts=2), attempts=2)
    assert made.verdict == "PASS" and made.claims[0].envelope.n_seeds == 9
    assert list(check_of(made, "G0", "realised merges").details["left_out"]) == ["0"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("arm", "draw"), [(POLICY, 0), (NO_SYNC, 0), (NO_SYNC, 1), (UNIFORM, 7)])
def test_a_missing_replay_is_undecidable(arm: str, draw: int) -> None:
    made, checks = judged("real", without(sound(), 4, arm, draw))
    assert made.verdict == "INCONCLUSIVE" and checks["G0", "replays"] == "undecidable"
    assert "failed" not in checks.values()


def again(found: tuple[Evidence, ...]) -> list[Evidence]:
    first = found[1].served[0]
    return [with_replays(e, [*e.served, replace(first, attempt=2)]) if e.seed == 1 else e for e in found]


def unasked(found: tuple[Evidence, ...]) -> list[Evidence]:
    extra = replace(found[1].served[0], arm=UNIFORM, draw=DRAWS)
    return [with_replays(e, [*e.served, extra]) if e.seed == 1 else e for e in found]


def moved(found: tuple[Evidence, ...]) -> list[Evidence]:
    policy = replay_of(found, 0, POLICY)
    return swapped(found, 0, POLICY, planned_ns=policy.planned_ns + MS, ran_ns=policy.ran_ns + MS)


def merging(found: tuple[Evidence, ...]) -> list[Evidence]:
    policy = replay_of(found, 0, POLICY)
    return swapped(found, 0, NO_SYNC, 1, planned_ns=policy.planned_ns, ran_ns=policy.ran_ns)


def renumbered(found: tuple[Evidence, ...]) -> list[Evidence]:
    return swapped(found, 1, UNIFORM, 3, attempt=2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (moved, "seed 0, policy: its merges are not those of the stored schedule"),
        (lambda f: swapped(f, 1, UNIFORM, 3, position=0), "seed 1, uniform 3: not at the place in the order"),
        (again, "replayed again although an attempt was valid"),
        (unasked, "seed 1: a replay that nobody asked for"),
        (renumbered, "seed 1, uniform 3: attempts [2]"),
        (merging, "seed 0, no-sync 1: merges in a replay without merges"),
    ],
)
def test_replays_other_than_planned_fail(change: Callable[..., list[Evidence]], says: str) -> None:
    found = change(sound())
    check = planned(found)
    assert check.status == "failed" and says in check.reason
    made, _ = judged("real", found)
    assert made.verdict == "FAIL" and made.tier.number == 0


def test_replays_that_began_in_another_order_are_undecidable() -> None:
    first = next(r for r in sound()[1].served if r.position == 0)
    found = swapped(sound(), 1, first.arm, first.draw, started="2999-01-01T00:00:00.000+00:00")
    assert planned(found).status == "undecidable" and "did not start in the order" in planned(found).reason


def test_a_live_control_keeps_to_its_placement_and_the_clock_is_tolerated() -> None:
    control = replay_of(session(), 2, UNIFORM)
    for shift_ns, status in ((90 * MS, "passed"), (110 * MS, "failed")):
        off = swapped(session(), 2, UNIFORM, planned_ns=control.planned_ns + shift_ns, ran_ns=control.ran_ns + shift_ns)
        assert planned(off, "live").status == status
    # What the policy decides is not known before: its merges are held to the corridor instead.
    policy = replay_of(session(), 2, POLICY)
    off = swapped(session(), 2, POLICY, planned_ns=policy.planned_ns + S, ran_ns=policy.ran_ns + S)
    assert planned(off, "live").status == "passed"


# Equal merges ----------------------------------------------------------------------------------------------------


def test_realised_merges_are_counted_from_the_execution_log() -> None:
    for back_end, found in (("real", sound()), ("live", session())):
        check = realised_merges(found, server_spec(back_end, found))
        assert check.status == "passed" and check.n == 10
        assert check.details["realised"] == [len(replay_of(found, s, POLICY).ran_ns) for s in range(10)]
        busy_s = [[r.busy_ns / S for r in (*e.replays(POLICY), *e.replays(UNIFORM))] for e in found]
        assert check.statistic == pytest.approx(max(max(b) - min(b) for b in busy_s), abs=1e-9)


@pytest.mark.parametrize(("broken", "status"), [(2, "passed"), (3, "undecidable")])
def test_unequal_blocks_are_left_out_and_more_than_a_quarter_decides_nothing(broken: int, status: str) -> None:
    found = list(session())
    for seed in range(broken):
        control = replay_of(found, seed, UNIFORM)
        found = swapped(found, seed, UNIFORM, ran_ns=control.ran_ns[1:], planned_ns=control.planned_ns[1:])
    check = realised_merges(found, server_spec("live", found))
    assert check.status == status and check.reason.startswith("by the" if status == "passed" else f"{broken} of 10")
    assert list(check.details["left_out"]) == [str(s) for s in range(broken)]  # type: ignore[call-overload]


def test_a_load_that_died_leaves_its_block_out() -> None:
    control = replay_of(session(), 1, UNIFORM)
    found = swapped(session(), 1, UNIFORM, ran_ns=control.ran_ns[:2], died="exit code 3")
    made, checks = judged("live", found)
    assert made.verdict == "PASS" and made.claims[0].envelope.n_seeds == 9 and set(checks.values()) == {"passed"}
    left = check_of(made, "G0", "realised merges").details["left_out"]
    n = len(control.planned_ns)
    assert left == {"1": f"uniform 0: 1 attempts, the last invalid: 2 of {n} merges ran: exit code 3"}


# Decisions in time -----------------------------------------------------------------------------------------------


def test_answers_that_come_after_the_next_decision_are_undecidable() -> None:
    found = session()
    spec = server_spec("live", found)
    asked = sum(d.said is not None for e in found for d in replay_of(found, e.seed, POLICY).decisions)
    check = decisions_in_time(found, spec)
    assert (check.status, check.n, check.statistic) == ("passed", asked, 1.0) and "2.0 ms after" in check.reason

    def late(share: float) -> Check:
        slow = list(found)
        for e in found:
            made = replay_of(found, e.seed, POLICY).decisions
            off = [
                replace(d, answered_ns=d.due_ns + S + MS) if k < share * len(made) else d for k, d in enumerate(made)
            ]
            slow = swapped(slow, e.seed, POLICY, decisions=tuple(off))
        return decisions_in_time(slow, spec)

    assert spec.corridor.grid_ns == S and late(0.02).status == "undecidable" and late(0.0).status == "passed"


def test_a_scheduler_that_was_never_asked_is_undecidable() -> None:
    found = list(session())
    for e in session():
        made = replay_of(found, e.seed, POLICY).decisions
        forced = [LiveDecision(d.due_ns, d.asked_ns, d.answered_ns, d.merge) for d in made]
        found = swapped(found, e.seed, POLICY, decisions=tuple(forced))
    check = decisions_in_time(found, server_spec("live", found))
    assert check.status == "undecidable" and check.reason == "the scheduler was never asked"
