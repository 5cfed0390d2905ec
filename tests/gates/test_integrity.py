"""G0: every check passing, failing and undecidable, with its reason; and cheats through the real campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from server_runs import replay_of, server_spec, session, sound, swapped
from strategies import (
    CORRIDOR,
    MS,
    SLOS,
    FunctionSource,
    PlanSource,
    S,
    ToyLoaded,
    ToyWorlds,
    changed,
    coin,
    plan_of,
    quiet,
    ran,
    setting,
    spec_for,
)

from protocol.campaign import run as campaign
from protocol.evidence.model import Evidence, Probe
from protocol.gates.integrity import integrity_gate
from protocol.gates.result import Check, GateResult, worst
from protocol.merging.corridor import Corridor
from protocol.merging.placements import Placements
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, REFUSED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.scheduler import Observation
from protocol.workload.trace import RequestTrace


def judged(found: list[Evidence], **changes: Any) -> dict[str, Check]:
    return {check.name: check for check in integrity_gate(found, spec_for(found, **changes)).checks}


def others_pass(checks: dict[str, Check], *names: str) -> bool:
    return all(c.status == "passed" for name, c in checks.items() if name not in names)


def with_one(position: int, **changes: object) -> list[Evidence]:
    found = list(ran())
    found[position] = changed(found[position], **changes)
    return found


def cut(p: Placements, row: int, gaps: list[int]) -> Placements:
    """The same placements with one row's gaps replaced."""
    rows = [r.tolist() for r in p.rows()]
    rows[row] = gaps
    return Placements(np.array([len(r) for r in rows]), np.array(sum(rows, []), np.int32), p.violations)


def test_a_clean_run_passes_every_check() -> None:
    gate = integrity_gate(ran(), spec_for(ran()))
    assert gate.status == "passed" and gate.reason == "every check passed"
    names = ["corridor", "budget", "determinism", "causality", "completeness", "distinct traces"]
    assert [c.name for c in gate.checks] == names
    checks = judged(list(ran()))
    merges = [len(e.placed[POLICY].gaps) for e in ran()]
    assert checks["budget"].details == {"realised": merges, "busy_s": 2.0 * sum(merges)}
    assert checks["corridor"].details["merges"] == sum(merges)
    assert checks["completeness"].n == 2 * sum(e.n_requests for e in ran())


def test_status_is_the_worst_and_nothing_is_undecidable() -> None:
    assert worst([]) == "undecidable" and worst(["passed"]) == "passed"
    assert worst(["passed", "undecidable"]) == "undecidable"
    assert worst(["undecidable", "failed", "passed"]) == "failed"
    gate = GateResult("G", "t", (Check("a", "undecidable", "few"), Check("b", "failed", "bad")))
    assert (gate.status, gate.reason) == ("failed", "bad")
    assert integrity_gate([], spec_for(ran())).status == "undecidable"


# Corridor --------------------------------------------------------------------------------------------------------


def test_a_recorded_corridor_violation_fails() -> None:
    checks = judged(with_one(3, corridor_violation="merge 2 starts 4 inner steps after the end of merge 1"))
    assert checks["corridor"].status == "failed"
    assert checks["corridor"].reason == "seed 3: merge 2 starts 4 inner steps after the end of merge 1"


def test_a_log_outside_its_corridor_is_told_of_its_own() -> None:
    checks = judged(with_one(3, corridor_violation="merge 2 starts 4 inner steps after merge 1"), kind="recorded")
    assert checks["corridor"].status == "undecidable"
    assert checks["corridor"].reason == (
        "seed 3: merge 2 starts 4 inner steps after merge 1; --corridor from-log judges a log in its own corridor"
    )


@pytest.mark.parametrize("gaps", [[1] * 10, [11] * 5, [2, 2], [], [10] * 30, [-2, 30], [0]])
def test_stored_placements_outside_the_corridor_fail(gaps: list[int]) -> None:
    e = ran()[2]
    checks = judged(with_one(2, placed={**e.placed, POLICY: cut(e.placed[POLICY], 0, gaps)}))
    assert checks["corridor"].status == "failed" and checks["corridor"].reason.startswith("seed 2: ")


# Budget ----------------------------------------------------------------------------------------------------------


def test_a_draw_with_another_budget_fails() -> None:
    e = ran()[1]
    draws = e.placed[UNIFORM]
    fewer = draws.rows()[4].tolist()[:-1]
    checks = judged(with_one(1, placed={**e.placed, UNIFORM: cut(draws, 4, fewer)}))
    budget = len(e.placed[POLICY].gaps)
    assert checks["budget"].status == "failed" and others_pass(checks, "budget")
    assert checks["budget"].reason == (
        f"seed 1, draw 4: {budget - 1} merges inside the horizon, the policy made {budget}"
    )


def test_a_merge_past_the_horizon_is_not_realised() -> None:
    e = ran()[1]
    gaps = e.placed[UNIFORM].rows()[0].tolist()
    gaps[-1] += 400
    checks = judged(with_one(1, placed={**e.placed, UNIFORM: cut(e.placed[UNIFORM], 0, gaps)}))
    assert checks["budget"].status == "failed" and "draw 0" in checks["budget"].reason


def test_no_draws_fail_and_no_merge_is_undecidable() -> None:
    e = ran()[0]
    without = {arm: p for arm, p in e.placed.items() if arm != UNIFORM}
    nothing = Placements.of(np.zeros((0, 3), np.int64), np.zeros((0, 1), np.int64))
    for placed in (without, {**e.placed, UNIFORM: nothing}):
        checks = judged(with_one(0, placed=placed))
        assert (checks["budget"].status, checks["budget"].reason) == ("failed", "seed 0: no matched draws")
    short = replace(CORRIDOR, horizon_ns=5 * S)
    idle = changed(e, placed={**e.placed, POLICY: cut(e.placed[POLICY], 0, [])})
    checks = judged([idle], corridor=short)
    assert checks["corridor"].status == "passed" and checks["budget"].status == "undecidable"
    assert "no merge was made" in checks["budget"].reason


@pytest.mark.parametrize("rows", [0, 2])
def test_the_policy_has_exactly_one_schedule(rows: int) -> None:
    e = ran()[0]
    gaps = np.tile(e.placed[POLICY].gaps, (rows, 1)).astype(np.int64)
    several = Placements.of(gaps.reshape(rows, -1) if rows else np.zeros((0, 3), np.int64), np.zeros((rows, 1)))
    for placed in ({**e.placed, POLICY: several}, {a: p for a, p in e.placed.items() if a != POLICY}):
        found = with_one(0, placed=placed)
        gate = integrity_gate(found, spec_for(found))
        assert gate.status == "failed" and "not exactly one schedule" in gate.reason


# Causality and determinism ---------------------------------------------------------------------------------------


def probes(causal: str | None = None, repeat: str | None = None) -> tuple[Probe, ...]:
    return Probe("determinism", None, repeat), Probe("causality", 30 * S + 500 * MS, causal)


def test_a_changed_future_that_changes_the_past_fails() -> None:
    checks = judged(with_one(5, probes=probes(causal="decision 3 differs at 12.000 s")))
    assert checks["causality"].status == "failed" and others_pass(checks, "causality")
    assert checks["causality"].reason == (
        "seed 5: with only the future after 30.5 s altered, decision 3 differs at 12.000 s"
    )


def test_every_seed_needs_an_altered_future_and_a_second_run() -> None:
    one, other = probes()
    checks = judged(with_one(5, probes=(one,)))
    assert checks["causality"].status == "undecidable" and others_pass(checks, "causality")
    assert checks["causality"].reason == "seed 5: no altered future was tried"
    # Another seed's spare probe does not stand in for it.
    found = with_one(5, probes=(other,))
    found[6] = changed(found[6], probes=(one, one, other))
    checks = judged(found)
    assert checks["determinism"].status == "undecidable" and others_pass(checks, "determinism")
    assert checks["determinism"].reason == "seed 5: not run twice"
    assert judged([changed(e, probes=()) for e in ran()])["causality"].status == "undecidable"


def test_a_planner_is_not_asked_for_causality() -> None:
    found = [changed(e, probes=(probes()[0],)) for e in ran()]
    checks = judged(found, kind="planner")
    assert checks["causality"].status == "passed" and "upper bound" in checks["causality"].reason


def test_a_second_run_or_a_replay_that_differs_fails() -> None:
    checks = judged(with_one(4, probes=probes(repeat="merge start 1 differs at 9.000 s")))
    assert checks["determinism"].status == "failed" and others_pass(checks, "determinism", "causality")
    assert checks["causality"].status == "undecidable"  # what differs between equal runs says nothing of the future
    assert checks["determinism"].reason.startswith("seed 4: a second run differs (merge start 1 differs at 9.000 s)")
    checks = judged(with_one(4, replay_difference="request 7: e2e_ns differs between the run and its replay"))
    assert checks["determinism"].status == "failed" and others_pass(checks, "determinism")
    assert "seed 4: request 7" in checks["determinism"].reason


# Completeness and distinct seeds ---------------------------------------------------------------------------------


def rows_of(m: Measurements, keep: slice) -> Measurements:
    return Measurements(**{name: getattr(m, name)[keep] for name in m.__dataclass_fields__})


def with_rows(e: Evidence, arm: str, rows: Measurements) -> dict[str, Replay]:
    return {**e.simulated, arm: replace(e.simulated[arm], rows=rows)}


@pytest.mark.parametrize("arm", [POLICY, NO_SYNC])
def test_dropped_requests_fail(arm: str) -> None:
    e = ran()[8]
    fewer = rows_of(e.simulated[arm].rows, slice(0, -1))
    checks = judged(with_one(8, simulated=with_rows(e, arm, fewer)))
    assert checks["completeness"].status == "failed" and others_pass(checks, "completeness")
    what = e.simulated[arm].what
    expected = f"{what}: {e.n_requests - 1} rows for {e.n_requests} scheduled requests"
    assert checks["completeness"].reason == expected
    checks = judged(with_one(8, simulated={a: r for a, r in e.simulated.items() if a != arm}))
    assert checks["completeness"].status == "failed" and "arm that is missing: 0 rows" in checks["completeness"].reason


def test_retried_requests_fail() -> None:
    e = ran()[8]
    m = e.simulated[POLICY].rows
    twice = Measurements(**{n: np.append(getattr(m, n), getattr(m, n)[-1:]) for n in m.__dataclass_fields__})
    assert judged(with_one(8, simulated=with_rows(e, POLICY, twice)))["completeness"].status == "failed"


def test_failed_and_refused_requests_are_counted() -> None:
    e = ran()[0]
    m = e.simulated[POLICY].rows
    outcome, e2e = m.outcome.copy(), m.e2e_ns.copy()
    outcome[:2], outcome[2], e2e[:3] = FAILED, REFUSED, -1
    broken = replace(m, outcome=outcome, e2e_ns=e2e)
    checks = judged(with_one(0, simulated=with_rows(e, POLICY, broken)))
    assert checks["completeness"].status == "passed" and checks["completeness"].details["not_served"] == 3
    outcome[5] = 7
    checks = judged(with_one(0, simulated=with_rows(e, POLICY, replace(broken, outcome=outcome))))
    assert checks["completeness"].status == "failed" and "without an outcome" in checks["completeness"].reason


def test_equal_traces_under_different_seeds_fail() -> None:
    checks = judged(with_one(7, trace_digest=ran()[2].trace_digest))
    assert checks["distinct traces"].status == "failed" and others_pass(checks, "distinct traces")
    assert checks["distinct traces"].reason == "seeds 2 and 7 have identical load: not independent replicates"


# Through the real campaign ---------------------------------------------------------------------------------------


def campaigned(source: object, **changes: object) -> dict[str, Check]:
    found = campaign.run(plan_of(source, draws=5), [setting(**{"n_seeds": 3, **changes})], jobs=1)  # type: ignore[arg-type]
    return judged(found, kind=source.kind)  # type: ignore[attr-defined]


def test_honest_schedulers_pass() -> None:
    for function in (quiet, coin):
        assert all(c.status == "passed" for c in campaigned(FunctionSource(function)).values())


@pytest.mark.parametrize("ahead_s", [0.25, 1, 3, 30])
def test_looking_into_the_future_is_caught(ahead_s: float) -> None:
    """The loader lets its scheduler see the whole trace, however little of it beyond now."""
    looks = {}
    source = FunctionSource(lambda obs, rng: looks["now"](obs, rng))

    class Peeking(ToyLoaded):
        def __init__(self, trace: RequestTrace) -> None:
            super().__init__(trace)

            def few_to_come(obs: Observation, rng: np.random.Generator) -> bool:
                now = obs.time_s * S
                soon = np.searchsorted(trace.arrival_ns, [now, now + ahead_s * S])
                return bool(soon[1] - soon[0] <= 5 * ahead_s)

            self.look = few_to_come

        def session(self) -> object:
            looks["now"] = self.look
            return super().session()

    class PeekingSidecar:
        name, calibrated = "peek", False

        def load(self, trace: RequestTrace, rng: object) -> Peeking:
            return Peeking(trace)

    checks = campaigned(source, sidecar=PeekingSidecar(), n_seeds=10)
    assert checks["causality"].status == "failed" and "altered" in checks["causality"].reason
    assert checks["determinism"].status == "passed"


def test_unseeded_entropy_is_caught() -> None:
    entropy = np.random.default_rng()
    checks = campaigned(FunctionSource(lambda obs, rng: bool(entropy.random() < 0.5)))
    assert checks["determinism"].status == "failed" and "unseeded entropy" in checks["determinism"].reason


def test_one_load_for_all_seeds_is_caught() -> None:
    checks = campaigned(FunctionSource(quiet), worlds=ToyWorlds(same=True))
    assert checks["distinct traces"].status == "failed"


def test_a_replay_that_differs_from_the_run_is_caught() -> None:
    class Moody(ToyLoaded):
        def replay(self, schedule: Schedule) -> Measurements:
            m = super().replay(schedule)
            self.calls = getattr(self, "calls", 0) + 1
            return replace(m, e2e_ns=m.e2e_ns + self.calls)

    class MoodySidecar:
        name, calibrated = "moody", False

        def load(self, trace: RequestTrace, rng: object) -> Moody:
            return Moody(trace)

    checks = campaigned(FunctionSource(coin), sidecar=MoodySidecar())
    assert checks["determinism"].status == "failed" and "e2e_ns differs" in checks["determinism"].reason


def planned(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
    gaps = corridor.sample(budget, 1, np.random.default_rng(len(trace)))[0]
    return Schedule.all_islands(corridor.start_ns(gaps), corridor.merge_ns)


def test_a_planner_inside_the_corridor_passes() -> None:
    assert all(c.status == "passed" for c in campaigned(PlanSource(planned)).values())


def test_planners_that_bend_the_rules_fail() -> None:
    def shorter(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        return Schedule.all_islands(planned(trace, corridor, budget).start_ns, corridor.merge_ns // 2)

    def too_close(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        return Schedule.all_islands(np.arange(1, 5) * 3 * S, corridor.merge_ns)

    def too_few(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        return Schedule.all_islands(np.array([8 * S]), corridor.merge_ns)

    def off_grid(trace: RequestTrace, corridor: Corridor, budget: int) -> Schedule:
        return Schedule.all_islands(planned(trace, corridor, budget).start_ns + 1, corridor.merge_ns)

    says = {
        shorter: "occupies island 0 for 1 s; a merge takes 2 s",
        too_close: "H_min is 8",
        too_few: "H_max forces a merge",
        off_grid: "expected a multiple of 4 steps",
    }
    for plan, words in says.items():
        checks = campaigned(PlanSource(plan))
        assert checks["corridor"].status == "failed" and words in checks["corridor"].reason, plan.__name__


def test_the_slo_of_these_tests_is_what_the_toy_sidecar_misses() -> None:
    assert SLOS == ("e2e<=1000ms",)
    assert all(0 < e.placed[NO_SYNC].violations[0, 0] < e.placed[POLICY].violations[0, 0] for e in ran())


def test_an_early_end_is_undecidable_and_says_why() -> None:
    """Fewer seeds than were asked for decide nothing, whatever they show."""
    checks = judged(list(ran())[:9], n_seeds=10)
    assert checks["completeness"].status == "undecidable" and others_pass(checks, "completeness")
    assert checks["completeness"].reason == "9 of 10 seeds: the others were not run"


# A live session --------------------------------------------------------------------------------------------------


def live(found: Sequence[Evidence]) -> dict[str, Check]:
    return {check.name: check for check in integrity_gate(found, server_spec("live", found)).checks}


def test_a_sound_session_passes_every_check() -> None:
    checks = live(session())
    assert others_pass(checks) and list(checks) == [
        "corridor", "replays", "realised merges", "decisions in time", "determinism", "causality", "completeness",
        "distinct traces",
    ]  # fmt: skip
    policies = [replay_of(session(), s, POLICY) for s in range(10)]
    assert checks["corridor"].details["merges"] == sum(len(r.planned_ns) for r in policies)
    assert "a fresh scheduler answered the logged observations the same" in checks["determinism"].reason


@pytest.mark.parametrize("arm", [POLICY, UNIFORM])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: np.concatenate([w[:1] - 5 * S, w[1:]]), "merge 1 began "),
        (lambda w: w + np.where(np.arange(len(w)) == len(w) - 1, 12 * S, 0)[:, None], " s"),
        (lambda w: w[:1], "though H_max imposes a merge within the horizon"),
        (lambda w: w[:0], "nothing merged after 0.00 s"),
    ],
)
def test_live_merges_outside_the_corridor_fail(arm: str, change: Any, says: str) -> None:
    """Of the scheduler and of its control; what was decided and what ran move together, so the replay stays valid."""
    windows = change(replay_of(session(), 0, arm).planned_ns)
    checks = live(swapped(session(), 0, arm, planned_ns=windows, ran_ns=windows))
    assert checks["corridor"].status == "failed" and says in checks["corridor"].reason
    assert checks["corridor"].reason.startswith(f"seed 0, {arm}")


def test_live_merges_that_ran_off_what_was_decided_leave_their_block_out() -> None:
    """One rule of validity for all tiers: such a replay measures nothing, so it fails nothing."""
    windows = replay_of(session(), 0, UNIFORM).planned_ns
    found = swapped(session(), 0, UNIFORM, ran_ns=windows - 3 * S)
    checks = live(found)
    assert others_pass(checks) and list(checks["realised merges"].details["left_out"]) == ["0"]  # type: ignore[call-overload]


def test_the_load_may_be_off_by_its_tolerance_and_a_late_answer_by_a_decision() -> None:
    policy = replay_of(session(), 0, POLICY)
    assert judged_live_corridor(policy.planned_ns + np.array([[90 * MS, 90 * MS]])) == "passed"
    # Executed, the first merge began 0.1 s too early: the corridor's least wait is two decisions.
    least_ns = CORRIDOR.gap_min * CORRIDOR.grid_ns
    for begin_ns, status in ((least_ns - 90 * MS, "passed"), (least_ns - 110 * MS, "failed")):
        one = np.array([[begin_ns, begin_ns + CORRIDOR.merge_ns]])
        most_ns = CORRIDOR.gap_max * CORRIDOR.grid_ns
        rest = [one[0, 1]]
        windows = [one[0]]
        while rest[-1] + most_ns + CORRIDOR.merge_ns <= CORRIDOR.horizon_ns:
            start = rest[-1] + most_ns
            windows.append(np.array([start, start + CORRIDOR.merge_ns]))
            rest.append(int(windows[-1][1]))
        assert judged_live_corridor(np.array(windows)) == status


def judged_live_corridor(windows: Any) -> str:
    return live(swapped(session(), 0, POLICY, planned_ns=windows, ran_ns=windows))["corridor"].status


def test_an_answer_before_its_decision_was_due_fails() -> None:
    made = replay_of(session(), 0, POLICY).decisions
    k = next(k for k, d in enumerate(made) if d.said is not None)
    early = (*made[:k], replace(made[k], asked_ns=made[k].due_ns - 1), *made[k + 1 :])
    checks = live(swapped(session(), 0, POLICY, decisions=early))
    assert checks["causality"].status == "failed" and others_pass(checks, "causality")
    assert checks["causality"].reason.startswith("seed 0, policy: asked before the decision at ")


def test_a_scheduler_that_answers_otherwise_when_asked_again_fails() -> None:
    found = list(session())
    found[0] = changed(found[0], probes=(Probe("determinism", None, "decision 1, at 3 s: merge True live"),))
    checks = live(found)
    assert checks["determinism"].status == "failed" and checks["causality"].status == "undecidable"
    found[0] = changed(found[0], probes=())
    assert live(found)["determinism"].reason == "seed 0: not run twice"
    assert live(found)["determinism"].status == "undecidable"


def test_two_blocks_of_one_trace_fail() -> None:
    found = list(session())
    found[1] = changed(found[1], trace_digest=found[0].trace_digest)
    assert live(found)["distinct traces"].status == "failed"


@pytest.mark.parametrize("arm", [POLICY, UNIFORM, NO_SYNC])
def test_a_request_missing_from_any_replay_on_a_server_fails(arm: str) -> None:
    for back_end, found in (("real", sound()), ("live", session())):
        rows = replay_of(found, 3, arm).rows
        dropped = swapped(found, 3, arm, rows=rows_of(rows, slice(0, -1)))
        gate = integrity_gate(dropped, server_spec(back_end, dropped))
        check = next(c for c in gate.checks if c.name == "completeness")
        assert check.status == "failed" and f"{len(rows) - 1} rows for {len(rows)} scheduled" in check.reason
