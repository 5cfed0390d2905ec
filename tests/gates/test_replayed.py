"""Gates of replays on a real server: a toy server that is all that it should be, then with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import CORRIDOR, MS, SLOS, FunctionSource, S, ToyLoaded, busy, changed, head_for, quiet, ran, setting
from strategies import write_folder as write_certificate

from protocol.campaign import real
from protocol.certificate.assess import assess
from protocol.certificate.verify import verify
from protocol.evidence import store as raw
from protocol.evidence.store import NO_SYNC, POLICY, UNIFORM, SeedEvidence
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import REFUSED, Measurements, exposure_ns
from protocol.replay.replay import NO_SYNC_AGAIN, Observed, Replayed
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace

DRAWS = 19
NOTHING = np.empty((0, 2), np.int64)


def seen(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Observed:
    """The toy sidecar with 0.1 ms of send delay, 5 ms of merge jitter, and latencies that vary a little."""
    m = ToyLoaded(trace).replay(schedule)
    e2e = np.rint(m.e2e_ns * rng.uniform(1.0, 1.05, len(m))).astype(np.int64)
    planned = np.stack(schedule.windows_ns(0), axis=1)
    ran_ns = planned + rng.integers(0, 5 * MS, planned.shape)
    executed = Schedule(ran_ns[:, 0], (ran_ns[:, 1] - ran_ns[:, 0])[:, None])
    m = replace(m, sent_ns=m.arrival_ns + MS // 10, e2e_ns=e2e, exposure_ns=exposure_ns(trace, e2e, executed))
    return Observed(m, planned, ran_ns, False, {})


Server = Callable[[RequestTrace, Schedule, np.random.Generator], Observed]


def replayed(
    server: Server = seen, function: Callable[..., object] = quiet, n_seeds: int = 10, attempts: int = 3
) -> list[SeedEvidence]:
    found = [changed(e, replays=[]) for e in ran(function, n_seeds)]
    rng = np.random.default_rng(5)
    real.run(
        found, setting(n_seeds=n_seeds), 7, DRAWS, lambda t, s: server(t, s, rng), lambda r: None, attempts=attempts
    )
    return found


def head(n_seeds: int = 10, function: Callable[..., object] = quiet, **changes: Any) -> dict[str, Any]:
    asked = head_for(FunctionSource(function), [setting(n_seeds=n_seeds)], **changes)
    asked["settings"]["real"] = {"server": {"name": "toy 1.0"}, "client_host": {}, "merge_load": "none", "attempts": 3}
    return asked


def judged(found: list[SeedEvidence], **changes: Any) -> tuple[dict[str, Any], dict[tuple[str, str], str]]:
    """The certificate, and the status of every check of its first claim by gate and name."""
    made = assess(head(len(found), **changes), found)
    gates = made["claims"][0]["gates"]
    return made, {(g["gate"], c["name"]): c["status"] for g in gates for c in g["checks"]}


def swap(found: list[SeedEvidence], seed: int, arm: str, draw: int = 0, **changes: Any) -> None:
    replays = found[seed].replays
    k = next(i for i, r in enumerate(replays) if (r.arm, r.draw) == (arm, draw))
    replays[k] = replace(replays[k], **changes)


def test_a_sound_campaign_is_tier_three_and_says_where() -> None:
    made, checks = judged(replayed())
    assert set(checks.values()) == {"passed"}, {k: v for k, v in checks.items() if v != "passed"}
    assert made["verdict"] == "PASS" and made["tier"] == {"number": 3, "name": "real replay", "upper_bound": False}
    assert "beats matched random placement of the same number of merges in replay on toy 1.0" in made["sentence"]
    assert made["replays"]["valid"] == 10 * (DRAWS + 3) and made["replays"]["invalid"] == []
    assert [c["name"] for c in made["claims"][0]["envelope"]["controls"]] == ["uniform", "unrelated-trace"]


def test_the_verdict_is_of_the_server_and_not_of_the_simulator() -> None:
    """A server on which merges do nothing: the simulated schedules are as good as ever, and nothing is licensed."""

    def unmoved(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Observed:
        idle = seen(trace, Schedule.empty(), rng)
        planned = np.stack(schedule.windows_ns(0), axis=1)
        exposed = exposure_ns(trace, idle.measurements.e2e_ns, schedule)
        return replace(idle, measurements=replace(idle.measurements, exposure_ns=exposed), planned_ns=planned,
                       ran_ns=planned)  # fmt: skip

    made, checks = judged(replayed(unmoved))
    assert made["verdict"] != "PASS" and made["tier"]["number"] == 3
    assert checks["G1", "effect"] == "failed" and checks["G3", "placement"] == "undecidable"


def test_a_bad_scheduler_fails() -> None:
    made, checks = judged(replayed(function=busy), function=busy)
    assert made["verdict"] == "FAIL" and checks["G3", "placement"] == "failed" and made["tier"]["number"] == 3
    assert made["sentence"].endswith(" in replay on toy 1.0.")


def test_seven_seeds_are_undecidable() -> None:
    made, checks = judged(replayed(n_seeds=7))
    assert made["verdict"] == "INCONCLUSIVE" and checks["G3", "placement"] == "undecidable"


def test_order_is_random_within_a_seed_and_the_same_again() -> None:
    orders = [[(u.arm, u.draw) for u in real.units(7, "toy", seed, 9)] for seed in range(20)]
    assert all(sorted(o) == sorted(orders[0]) and len(o) == 12 for o in orders)
    assert len({tuple(o) for o in orders}) == 20
    assert orders[3] == [(u.arm, u.draw) for u in real.units(7, "toy", 3, 9)]
    firsts = {o[0][0] for o in orders}
    assert UNIFORM in firsts and firsts & {POLICY, NO_SYNC, NO_SYNC_AGAIN}


def test_an_invalid_replay_is_repeated_and_what_stays_invalid_leaves_its_seed_undecidable() -> None:
    calls = 0

    def late(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Observed:
        nonlocal calls
        calls += 1
        found = seen(trace, schedule, rng)
        if calls in (1, 2):
            return replace(found, measurements=replace(found.measurements, sent_ns=found.measurements.sent_ns + 6 * MS))
        return found

    made, checks = judged(replayed(late))
    assert calls == 10 * (DRAWS + 3) + 2 and made["verdict"] == "PASS"
    assert [r["attempt"] for r in made["replays"]["invalid"]] == [1, 2]
    assert "within 5 ms" in made["replays"]["invalid"][0]["reason"]

    calls = 0
    made, checks = judged(replayed(late, attempts=2))
    assert made["verdict"] == "INCONCLUSIVE" and checks["G0", "replays"] == "undecidable"
    assert {checks["G3", "placement"], checks["G2", "offered load"]} <= {"undecidable", "passed"}


@pytest.mark.parametrize("arm", [POLICY, NO_SYNC, NO_SYNC_AGAIN, UNIFORM])
def test_a_missing_replay_is_undecidable(arm: str) -> None:
    found = replayed()
    found[4].replays[:] = [r for r in found[4].replays if r.arm != arm]
    made, checks = judged(found)
    assert made["verdict"] == "INCONCLUSIVE" and checks["G0", "replays"] == "undecidable"
    assert "failed" not in checks.values()


def test_merges_off_schedule_do_not_count_and_unequal_ones_fail() -> None:
    found = replayed()
    policy = next(r for r in found[2].replays if r.arm == POLICY)
    assert policy.invalid is None
    off = policy.ran_ns + np.array([[0, 60 * MS]])
    assert "merge 1 began" in str(replace(policy, ran_ns=off).invalid)
    assert "ran" in str(replace(policy, ran_ns=policy.ran_ns[1:]).invalid)
    assert replace(policy, ran_ns=policy.ran_ns - np.array([[0, 60 * MS]]), may_end_early=True).invalid is None
    # A command that ends early may do so, but not only in the policy's arm.
    swap(found, 2, POLICY, ran_ns=policy.ran_ns - np.array([[0, 300 * MS]]), may_end_early=True)
    made, checks = judged(found)
    assert checks["G0", "realised merges"] == "failed" and made["tier"]["number"] == 0


def test_schedules_rows_and_order_are_those_that_were_asked_for() -> None:
    moved = replayed()
    policy = next(r for r in moved[0].replays if r.arm == POLICY)
    swap(moved, 0, POLICY, planned_ns=policy.planned_ns + MS, ran_ns=policy.ran_ns + MS)
    assert judged(moved)[1]["G0", "replays"] == "failed"
    placed = replayed()
    swap(placed, 1, UNIFORM, 3, position=0)
    assert judged(placed)[1]["G0", "replays"] == "failed"
    twice = replayed()
    twice[1].replays.append(replace(twice[1].replays[0], attempt=2))
    assert judged(twice)[1]["G0", "replays"] == "failed"
    extra = replayed()
    extra[1].replays.append(replace(extra[1].replays[0], arm=UNIFORM, draw=DRAWS))
    assert judged(extra)[1]["G0", "replays"] == "failed"
    backward = replayed()
    backward[1].replays[0] = replace(backward[1].replays[0], started="2999-01-01T00:00:00.000+00:00")
    assert judged(backward)[1]["G0", "replays"] == "undecidable"
    other = replayed()
    shifted = next(r for r in other[0].replays if r.draw == 5).measurements
    fewer = replace(shifted, output_tokens=np.maximum(shifted.output_tokens - 1, 1))
    swap(other, 0, UNIFORM, 5, measurements=fewer)
    assert judged(other)[1]["G2", "every arm"] == "failed"


def test_refusals_only_during_merges_count_as_violations() -> None:
    def refusing(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Observed:
        """What arrives in a merge is turned away at once: the rest looks fast."""
        idle = seen(trace, Schedule.empty(), rng)
        m, planned = idle.measurements, np.stack(schedule.windows_ns(0), axis=1)
        inside = np.zeros(len(m), bool)
        for begin, end in planned:
            inside |= (m.arrival_ns >= begin) & (m.arrival_ns < end)
        e2e = np.where(inside, -1, m.e2e_ns)
        refused = replace(
            m, e2e_ns=e2e, ttft_ns=np.where(inside, -1, m.ttft_ns), outcome=np.where(inside, REFUSED, m.outcome),
            exposure_ns=exposure_ns(trace, e2e, schedule),
        )  # fmt: skip
        return Observed(refused, planned, planned, False, {"HTTP 429": int(inside.sum())})

    found = replayed(refusing)
    slo = Slo.parse(SLOS[0])
    served = real.as_served(found, [Slo.parse(text) for text in SLOS], DRAWS)
    for e in served:
        refused = int((e.requests[POLICY].outcome == REFUSED).sum())
        assert refused > 0 and e.placed[POLICY].violations[0, 0] >= refused
        assert e.placed[UNIFORM].violations[:, 0].mean() > e.requests[NO_SYNC].violates(slo).sum()
    made, checks = judged(found)
    assert checks["G3", "placement"] == "passed"
    # No latency is known of a refused request, so nothing is said of how much slower a merge makes it.
    assert checks["G1", "effect"] == "undecidable" and made["verdict"] == "INCONCLUSIVE"


def again(shift_pp: float, found: list[SeedEvidence]) -> None:
    """Make the second no-sync replay of every seed miss more requests, by about that much."""
    rng = np.random.default_rng(2)
    for e in found:
        m = next(r for r in e.replays if r.arm == NO_SYNC_AGAIN).measurements
        n = round(len(m) * max(shift_pp + rng.normal(0, 0.2), 0) / 100)
        slow = np.isin(np.arange(len(m)), rng.permutation(np.flatnonzero(m.e2e_ns < S // 2))[:n])
        swap(found, e.seed, NO_SYNC_AGAIN, measurements=replace(m, e2e_ns=np.where(slow, 20 * S, m.e2e_ns)))


@pytest.mark.parametrize(
    ("shift_pp", "min_effect_pp", "status"),
    [
        (0.0, 0.0, "passed"),
        (0.3, 0.0, "passed"),
        (1.0, 0.0, "undecidable"),
        (4.0, 0.0, "failed"),
        (4.0, 20.0, "passed"),
    ],
)
def test_two_no_sync_replays_must_agree(shift_pp: float, min_effect_pp: float, status: str) -> None:
    found = replayed()
    if shift_pp:
        again(shift_pp, found)
    made, checks = judged(found, min_effect_pp=min_effect_pp)
    assert checks["G2", "A/A"] == status
    said = next(c for g in made["claims"][0]["gates"] for c in g["checks"] if c["name"] == "A/A")
    assert said["details"]["margin_pp"] == (min_effect_pp / 2 or 1.0)
    assert ("half the minimum effect" if min_effect_pp else "minimum effect is 0") in said["reason"]


def test_transfer_is_measured_under_the_random_merges_by_seed() -> None:
    found = replayed()
    made, _ = judged(found)
    effect = next(
        c for g in made["claims"][0]["gates"] for c in g["checks"] if c["name"] == "effect" and g["gate"] == "G1"
    )
    by_hand = []
    for e in found:
        draws = [r.measurements for r in e.replays if r.arm == UNIFORM]
        e2e = np.concatenate([m.e2e_ns for m in draws])
        exposed = np.concatenate([m.exposure_ns > 0 for m in draws])
        p95 = [np.sort(v)[int(np.ceil(0.95 * (len(v) - 1)))] for v in (e2e[exposed], e2e[~exposed])]
        by_hand.append(p95[0] / p95[1])
    assert effect["details"]["run_ratios"] == pytest.approx(by_hand)
    assert effect["n"] == 10 and effect["statistic"] == pytest.approx(np.exp(np.mean(np.log(by_hand))))


def test_agreement_is_asked_for_when_a_calibration_is_given() -> None:
    asked = head()
    ratios = {"exposed_p95_ms": 300.0, "unexposed_p95_ms": 100.0, "exposed": 50, "unexposed": 50,
              "simulated_unexposed_p95_ms": 100.0}  # fmt: skip
    for simulated, status in ((300.0, "passed"), (150.0, "failed")):
        runs = [{**ratios, "simulated_exposed_p95_ms": simulated + k} for k in range(6)]
        asked["regimes"][0]["sidecar"]["calibration"] = {"server": "toy", "date": "2026-06-01", "runs": runs}
        made = assess(asked, replayed())
        checks = {c["name"]: c["status"] for c in made["claims"][0]["gates"][1]["checks"]}
        assert checks == {"effect": "passed", "agreement": status}


def test_files_hold_everything_and_every_edit_is_found(tmp_path: Path) -> None:
    found = replayed(n_seeds=8)
    write_certificate(tmp_path, head(8), found)
    assert verify(tmp_path) == []
    for e, stored in zip(found, raw.read(tmp_path / "raw"), strict=True):
        assert [vars_of(r) for r in e.replays] == [vars_of(r) for r in stored.replays]
    (tmp_path / "raw" / "served.parquet").unlink()
    assert any("served.parquet" in line for line in verify(tmp_path))
    for e in found:
        e.replays.clear()
    raw.write(found, tmp_path / "raw")
    (tmp_path / "raw" / "replays.parquet").unlink()
    assert any("replays" in line for line in verify(tmp_path))


def vars_of(r: Replayed) -> list[Any]:
    plain = [r.what, r.draw, r.position, r.attempt, r.started, r.wall_s, r.may_end_early, dict(r.failures)]
    return [*plain, r.planned_ns.tolist(), r.ran_ns.tolist(), r.measurements.to_table().to_pydict()]


def test_resumed_replays_are_judged_alike() -> None:
    """Killed after any replay, the rest is made in the same order, and no replay is made twice."""
    whole = replayed(n_seeds=8)
    made: list[tuple[int, str, int]] = [(e.seed, r.arm, r.draw) for e in whole for r in e.replays]
    part = [changed(e, replays=list(e.replays)) for e in whole]
    cut = 30
    for e in part:
        e.replays[:] = [r for k, r in enumerate(e.replays) if made.index((e.seed, r.arm, r.draw)) < cut]
    assert real.outstanding(part, 7, DRAWS) == len(made) - cut
    stored = {(e.seed, r.arm, r.draw): r for e in whole for r in e.replays}
    asked: list[tuple[int, str, int]] = []

    def same(r: Replayed) -> None:
        asked.append((r.seed, r.arm, r.draw))

    rng = np.random.default_rng(1)
    real.run(part, setting(n_seeds=8), 7, DRAWS, lambda t, s: seen(t, s, rng), same)
    assert asked == made[cut:]
    for e in part:
        e.replays[:] = [stored[e.seed, r.arm, r.draw] for r in e.replays]
    assert assess(head(8), part) == assess(head(8), whole)


def test_no_rate_of_two_requests() -> None:
    one = Measurements(*(np.array([v]) for v in (0, 0, 1, 1, 0, 1, 1, 0, 0, 0)))
    assert Observed(one, NOTHING, NOTHING, False, {}).invalid is None
    never = replace(one, sent_ns=np.array([-1]))
    assert "0.00 %" in str(Observed(never, NOTHING, NOTHING, False, {}).invalid)
    assert CORRIDOR.merge_ns > 0
