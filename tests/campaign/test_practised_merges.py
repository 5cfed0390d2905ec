"""Campaigns whose merges are not all alike: controls have the policy's own, and all of it follows from the root."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from strategies import (
    CORRIDOR,
    SLOS,
    FunctionSource,
    PlanSource,
    S,
    ToyWorlds,
    coin,
    head_for,
    plan_of,
    quiet,
    ran,
    setting,
    write_folder,
)  # fmt: skip

from protocol.campaign.again import Sample, differences
from protocol.campaign.plan import Setting
from protocol.campaign.run import run
from protocol.certificate.assess import assess
from protocol.errors import BadInput
from protocol.evidence import store
from protocol.evidence.model import CROSSED, OPTIMUM, PERMUTED, PESSIMUM, SHIFTED, Evidence
from protocol.gates.integrity import integrity_gate
from protocol.gates.progress import progress_gate
from protocol.merging.practice import Durations, Merges, Practice, same_kinds
from protocol.merging.schedule import Schedule
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.workload.slo import Slo

VARYING = Practice(duration=Durations(follows="uniform", least_s=0.5, most_s=4.0), failed_share=0.2)
STREAMING = Practice(
    fragments=2, sync_delay_steps=3, apply_s=0.5, duration=Durations(follows="drawn", values_s=(0.5, 2))
)


def world(practice: Practice, n_seeds: int = 3) -> Setting:
    h_min, h_max = practice.turn(8, 40)
    return setting(
        n_seeds=n_seeds, corridor=replace(CORRIDOR, h_min=h_min, h_max=h_max), practice=practice, transfer_ns=2 * S
    )


@pytest.fixture(scope="module", params=[VARYING, STREAMING], ids=["varying", "streaming"])
def made(request: pytest.FixtureRequest) -> tuple[Setting, list[Evidence]]:
    chosen = world(request.param)
    return chosen, run(plan_of(FunctionSource(quiet)), [chosen], jobs=1)


def test_every_control_has_the_policy_s_merges(made: tuple[Setting, list[Evidence]]) -> None:
    chosen, found = made
    for e in found:
        own = e.placed[POLICY].merges_of(0)
        assert own is not None and len(np.unique(own.took_ns)) > 1
        for arm in (UNIFORM, PERMUTED, SHIFTED, OPTIMUM, PESSIMUM):
            placed = e.placed[arm]
            for k, gaps in enumerate(placed.rows()):
                merges = placed.merges_of(k)
                assert merges is not None and same_kinds(own, merges)
                assert chosen.timing.violation(chosen.timing.start_ns(gaps, merges), merges) is None
        assert len({m.took_ns.tobytes() for m in e.placed[UNIFORM].merges or ()}) > 5
        assert all(m.equals(own) for m in e.placed[OPTIMUM].merges or ())
        dearest, cheapest = (e.placed[arm].violations[0, 0] for arm in (PESSIMUM, OPTIMUM))
        assert cheapest <= e.placed[POLICY].violations[0, 0] <= dearest
        assert e.replay_difference is None and e.placed[NO_SYNC].merges is None
        assert [len(m) for m in e.placed[CROSSED].merges or ()] == [len(f.placed[POLICY].gaps) for f in found]


def test_merges_last_as_long_whoever_decides(made: tuple[Setting, list[Evidence]]) -> None:
    chosen, found = made
    others = run(plan_of(FunctionSource(coin)), [chosen], jobs=1)
    for e, other in zip(found, others, strict=True):
        mine, its = (x.placed[POLICY].merges_of(0) for x in (e, other))
        assert mine is not None and its is not None
        k = min(len(mine), len(its))
        assert mine.first(k).took_ns.tolist() == its.first(k).took_ns.tolist()


def test_the_gates_judge_them(made: tuple[Setting, list[Evidence]]) -> None:
    chosen, found = made
    head = head_for(FunctionSource(quiet), [chosen])
    spec = head.spec(head.regimes[0])
    integrity = integrity_gate(found, spec)
    assert integrity.status == "passed", integrity.reason
    budget = next(c for c in integrity.checks if c.name == "budget")
    own = [e.placed[POLICY].merges_of(0) for e in found]
    busy_s = sum(float(m.took_ns.sum()) / S + len(m) * chosen.practice.apply_s for m in own if m is not None)
    assert budget.details["busy_s"] == pytest.approx(busy_s) and "its own length" in budget.reason
    progress = progress_gate(found, spec)
    assert progress.status == "passed", progress.reason
    assert "committed" in progress.checks[0].reason
    assert assess(head, found).claims[0].verdict in ("PASS", "FAIL", "INCONCLUSIVE")


def test_a_draw_with_other_merges_breaks_the_budget(made: tuple[Setting, list[Evidence]]) -> None:
    chosen, found = made
    head = head_for(FunctionSource(quiet), [chosen])
    spec = head.spec(head.regimes[0])
    drawn = found[1].placed[UNIFORM]
    assert drawn.merges is not None
    one = drawn.merges[3]
    for change in ({"took_ns": one.took_ns + 1}, {"committed": ~one.committed}, {"fragment": one.fragment + 1}):
        merges = list(drawn.merges)
        merges[3] = replace(one, **change)
        forged = [*found]
        forged[1] = found[1].with_placed(UNIFORM, replace(drawn, merges=tuple(merges)))
        check = next(c for c in integrity_gate(forged, spec).checks if c.name == "budget")
        assert check.status == "failed" and "seed 1, draw 3: merges of other lengths" in check.reason
    assert progress_gate(forged, spec).status in ("passed", "failed")


def test_it_is_stored_and_made_again(made: tuple[Setting, list[Evidence]], tmp_path: Path) -> None:
    chosen, found = made
    every = Sample(None, np.random.default_rng(1))
    assert list(differences(plan_of(None), chosen, "scheduler", found, every)) == []
    store.write(found, tmp_path)
    again = store.read(tmp_path)
    assert list(differences(plan_of(None), chosen, "scheduler", again, every)) == []
    own = again[2].placed[POLICY]
    assert own.merges is not None
    longer = replace(own.merges[0], took_ns=own.merges[0].took_ns + 1)
    again[2] = again[2].with_placed(POLICY, replace(own, merges=(longer,)))
    lines = list(differences(plan_of(None), chosen, "scheduler", again, every))
    assert "toy, seed 2, merges: others than regime and root give" in lines


def test_beside_a_regime_whose_merges_are_alike(tmp_path: Path) -> None:
    """The columns of one regime's merges leave the other's rows as they were."""
    both = [replace(world(VARYING, 2), name="varying"), setting(n_seeds=2)]
    found = run(plan_of(FunctionSource(quiet)), both, jobs=1)
    write_folder(tmp_path / "x", head_for(FunctionSource(quiet), both), found)
    again = store.read(tmp_path / "x" / "raw")
    assert [e.placed[UNIFORM].merges is None for e in again] == [False, False, True, True]
    alone = ran(n_seeds=10)
    assert np.array_equal(again[2].placed[UNIFORM].gaps, alone[0].placed[UNIFORM].gaps)


def test_planners_place_merges_that_are_alike() -> None:
    def every_20_steps(trace: object, corridor: object, budget: int) -> Schedule:
        return Schedule.all_islands(np.array([10 * S]), 2 * S, 1)

    with pytest.raises(BadInput, match=r"a planner beside \[merge\]"):
        run(plan_of(PlanSource(every_20_steps)), [world(VARYING, 1)], jobs=1)


def test_a_log_has_merges_of_its_own() -> None:
    """A recorded schedule of merges of several lengths is judged with controls that have them."""

    def log(trace: object, corridor: object, budget: int) -> Schedule:
        took = np.array([1, 3, 2, 5, 1, 1, 4, 2, 3, 1], np.int64) * S
        gaps = np.array([6, 9, 7, 10, 8, 9, 9, 10, 8, 9], np.int64)
        starts = CORRIDOR.start_ns(gaps, took)
        committed = np.arange(10) != 4
        return Schedule(starts, took[:, None], np.zeros(10, np.int16), committed)

    source = PlanSource(log, kind="recorded")
    found = run(plan_of(source), [setting(n_seeds=6)], jobs=1)
    certificate = assess(head_for(source, [setting(n_seeds=6)]), found)
    (claim,) = certificate.claims
    assert {g.gate: g.status for g in claim.gates if g.gate in ("G0", "G4")} == {"G0": "passed", "G4": "passed"}
    stale = next(c for g in claim.gates if g.gate == "G4" for c in g.checks if c.name == "staleness")
    assert "68 between committed ones" in stale.reason  # gaps 8 and 9 of four steps
    every = Sample(None, np.random.default_rng(1))
    assert list(differences(plan_of(None), setting(n_seeds=6), "recorded", found, every)) == []
    assert ToyWorlds().workload(0).trace.n_islands == 1 and SLOS and Slo.parse(SLOS[0])
    assert Merges.of(log(None, CORRIDOR, 0), 1).committed.sum() == 9
