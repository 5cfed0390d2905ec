"""Evidence follows from root, regime and decisions: an honest one entirely, an edited one says where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from strategies import CORRIDOR, FunctionSource, PlanSource, coin, plan_of, quiet, ran, setting

from protocol.campaign import arms
from protocol.campaign.again import Sample, decisions, differences, same_seed
from protocol.campaign.arms import run_seed
from protocol.campaign.run import run
from protocol.evidence.model import CROSSED, OPTIMUM, Evidence
from protocol.merging.schedule import Schedule
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM

EVERY = Sample(None, np.random.default_rng(1))


def said(found: list[Evidence], kind: str = "scheduler", sample: Sample = EVERY) -> list[str]:
    return list(differences(plan_of(None), setting(n_seeds=len(found)), kind, found, sample))


@pytest.mark.parametrize("function", [quiet, coin, lambda obs, rng: False, lambda obs, rng: True])
def test_honest_evidence_is_made_again_to_the_last_row(function: Callable[..., object]) -> None:
    assert said(list(run(plan_of(FunctionSource(function)), [setting(n_seeds=3)], jobs=1))) == []


def test_a_planner_s_evidence_is_made_again() -> None:
    def every_20_steps(trace: object, corridor: object, budget: int) -> Schedule:
        gaps = np.full(14, 5, np.int64)
        return Schedule.all_islands(CORRIDOR.start_ns(gaps), CORRIDOR.merge_ns, 1)

    found = run(plan_of(PlanSource(every_20_steps)), [setting(n_seeds=2)], jobs=1)
    assert said(list(found), kind="planner") == []


def test_rounds_of_draws_are_made_again() -> None:
    plan = replace(plan_of(FunctionSource(quiet), draws=120), sequential=True)
    found = run(plan, [setting(n_seeds=2)], jobs=1)
    assert len(found[0].placed[UNIFORM]) in (49, 99, 120)
    assert list(differences(plan, setting(n_seeds=2), "scheduler", found, EVERY)) == []


def edited(**changes: object) -> list[Evidence]:
    found = list(ran(n_seeds=3))
    found[1] = replace(found[1], **changes)  # type: ignore[arg-type]
    return found


def dearer(e: Evidence, arm: str, by: int = 1, row: int = -1) -> Evidence:
    prices = e.placed[arm].violations.copy()
    prices[row] += by
    return e.with_placed(arm, replace(e.placed[arm], violations=prices))


@pytest.mark.parametrize("arm", [UNIFORM, CROSSED, OPTIMUM, POLICY, NO_SYNC])
def test_a_price_of_any_arm_is_counted_again(arm: str) -> None:
    found = list(ran(n_seeds=3))
    found[2] = dearer(found[2], arm)
    (line,) = said(found)
    assert line.startswith(f"toy, seed 2, {arm}, placement ") and "e2e<=1000ms: stated" in line


def test_a_sample_finds_what_is_common_and_may_miss_what_is_rare() -> None:
    found = [dearer(e, UNIFORM, row=slice(None)) for e in ran(n_seeds=3)]  # type: ignore[arg-type]
    assert len(said(found, sample=Sample(2, np.random.default_rng(3)))) == 3
    rare = list(ran(n_seeds=3))
    rare[0] = dearer(rare[0], UNIFORM)
    tries = [bool(said(rare, sample=Sample(5, np.random.default_rng(k)))) for k in range(40)]
    assert 0 < sum(tries) < 40  # 5 of 19 each time


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trace_digest": "f" * 64}, "trace_digest: stated fff"),
        ({"prompt_tokens": 3}, "prompt_tokens: stated 3"),
        ({"forced": 99}, "forced: stated 99"),
        ({"probes": ()}, "re-runs: none, by the root determinism, causality from"),
    ],
)
def test_fields_are_held_against_root_and_schedule(changes: dict[str, object], words: str) -> None:
    (line,) = said(edited(**changes))
    assert line.startswith(f"toy, seed 1, {words}")


def test_answers_and_rows_are_held_against_the_schedule() -> None:
    e = ran(n_seeds=3)[1]
    merged = e.merged.copy()
    merged[4] = ~merged[4]
    (line,) = said(edited(merged=merged))
    assert line.startswith("toy, seed 1, decision 5: answered ")
    rows = e.simulated[POLICY].rows
    ttft = rows.ttft_ns.copy()
    ttft[7] += 1
    moved = {**e.simulated, POLICY: replace(e.simulated[POLICY], rows=replace(rows, ttft_ns=ttft))}
    (line,) = said(edited(simulated=moved))
    assert line.startswith("toy, seed 1, rows of the policy, request 7, ttft_ns: stated ")


def test_other_draws_than_the_root_s_are_found() -> None:
    e = ran(n_seeds=3)[1]
    p = e.placed[UNIFORM]
    turned = replace(p, gaps=p.gaps[::-1].copy(), lengths=p.lengths[::-1].copy(), violations=p.violations[::-1].copy())
    (line,) = said(edited(placed={**e.placed, UNIFORM: turned}))
    assert line == "toy, seed 1, uniform: other placements than root and decisions give"
    without = {arm: placed for arm, placed in e.placed.items() if arm != OPTIMUM}
    assert said(edited(placed=without)) == [f"toy, seed 1, {OPTIMUM}: not there"]


def test_decisions_of_a_schedule_by_hand() -> None:
    """Grid 1 s, merges of 2 s, gaps of 2 to 10 decisions: asked at 2 and 3 s, merged there; then H_max at 15 s."""
    decided_ns, merged, forced = decisions(replace(CORRIDOR, horizon_ns=18 * 10**9), np.array([3, 10]))
    assert (decided_ns / 1e9).tolist() == [2, 3, *range(7, 15)]
    assert merged.tolist() == [False, True] + [False] * 8 and forced == 1


def test_the_same_seed_is_the_same_evidence_and_another_is_told() -> None:
    plan, world = plan_of(FunctionSource(quiet)), setting(n_seeds=3)
    again = run_seed(plan, world, 1)
    assert same_seed(ran(n_seeds=3)[1], again) is None  # what other seeds' schedules cost here is not of one seed
    assert same_seed(dearer(again, UNIFORM), again) == "placements of uniform"
    assert same_seed(replace(again, probes=()), again) == "probes"


# The order of runs -----------------------------------------------------------------------------------------------


def test_runs_of_a_seed_come_in_a_drawn_order_of_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run is first; the one whose clock is ahead, and the one that stops early, come in any order."""
    source, made = FunctionSource(quiet), arms.place
    kinds: list[str] = []

    def noted(*arguments: object, until_ns: int | None = None) -> object:
        kinds.append("stopped" if until_ns else "ahead" if source.clock_shift_s else "counts")
        return made(*arguments, until_ns=until_ns)  # type: ignore[arg-type]

    monkeypatch.setattr(arms, "place", noted)
    for seed in range(12):
        run_seed(plan_of(source), setting(n_seeds=12), seed)
    orders = {tuple(kinds[k : k + 3]) for k in range(0, len(kinds), 3)}
    assert len(kinds) == 36 and len(orders) >= 3
    assert all(sorted(o) == ["ahead", "counts", "stopped"] and o[0] != "stopped" for o in orders)


def test_what_no_digest_covers_is_noted() -> None:
    class Reads(FunctionSource):
        uncovered = "read notes.txt after its first start, which the digest does not cover"

    e = run_seed(plan_of(Reads(quiet)), setting(), 0)
    assert [p.difference for p in e.probes if p.kind == "inputs"] == [Reads.uncovered]
    plan = replace(plan_of(FunctionSource(quiet)), digest="1" * 64)
    (probe,) = (p for p in run_seed(plan, setting(), 0).probes if p.kind == "inputs")
    assert "its files changed while it was judged" in str(probe.difference)
    same = replace(plan, digest="0" * 64)
    assert not [p for p in run_seed(same, setting(), 0).probes if p.kind == "inputs"]
    arms.close_contenders()
