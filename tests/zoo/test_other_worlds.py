"""Schedulers that leave the corridor, and one that carries the generator of its world with it."""

from __future__ import annotations

import pytest
from judging import INNOCENT, Judge, same_placements


def test_it_cannot_merge_less_than_the_corridor_or_more(judge: Judge) -> None:
    """Never merging is forced at H_max, always merging held at H_min: there is no budget to gain."""
    never, always = judge("def decide(obs): return False\n"), judge("def decide(obs): return True\n")
    for judged in (never, always):
        assert not judged.refused and judged.check("corridor")["status"] == "passed"
        assert judged.check("budget")["status"] == "passed"
    fewest = [len(g) for g in never.gaps]
    assert [e.forced for e in never.found] == fewest and "of them forced by H_max" in never.check("corridor")["reason"]
    assert all(len(a) > n for a, n in zip(always.gaps, fewest, strict=True))
    assert {g for gaps in always.gaps for g in gaps} == {16} and {g for gaps in never.gaps for g in gaps} == {64}


PLANNERS = {
    "merges less": ("schedule.start_ns[:1], corridor.merge_ns", "H_max forces a merge"),
    "merges too often": ("np.arange(1, 9) * 9 * 10**9, corridor.merge_ns", "expected a multiple of 8 steps"),
    "merges too soon": ("np.array([corridor.grid_ns]), corridor.merge_ns", "H_min is 128"),
    "merges for half the time": ("schedule.start_ns, corridor.merge_ns // 2", "occupies island 0 for 4 s"),
    "merges past the end": (
        "np.append(schedule.start_ns, schedule.start_ns[-1] + corridor.merge_ns + 64 * corridor.grid_ns), "
        "corridor.merge_ns", "past the horizon"),
    "merges between decisions": ("schedule.start_ns + 1, corridor.merge_ns", "expected a multiple of 8 steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANNERS)
def test_planners_that_leave_the_corridor(judge: Judge, name: str) -> None:
    built, words = PLANNERS[name]
    code = f"""
        import numpy as np
        from protocol.merging.schedule import Schedule
        class Plan:
            def __init__(self, rng): self.rng = rng
            def plan(self, trace, corridor, budget):
                gaps = corridor.sample(budget, 1, self.rng)[0]
                schedule = Schedule.all_islands(corridor.start_ns(gaps), corridor.merge_ns)
                return Schedule.all_islands({built})
        """
    judged = judge(code)
    assert judged.refused and words in judged.reason, judged.reason
    if judged.refusal is None:
        assert judged.check("corridor")["status"] == "failed"


# --- the world itself -----------------------------------------------------------------------------------------------

REBUILDS = """
import numpy as np
from adapters.traces.worlds import GeneratedWorlds
from protocol.regimes.regime import Regime
REGIME = Regime.load("small.toml")
class Cheat:
    def __init__(self):
        worlds = GeneratedWorlds(REGIME, 20260601)
        self.seconds = [np.bincount(worlds.workload(s).trace.arrival_ns // 10**9, minlength=200) for s in range(3)]
    def decide(self, obs):
        now = len(obs.arrivals_per_s)
        for seconds in self.seconds:
            if (seconds[:now] == obs.arrivals_per_s).all():
                return bool(seconds[now : now + 8].sum() < 30)
        return obs.in_flight < 4
"""


def test_a_root_that_nobody_knew_before_leaves_nothing_to_rebuild(judge: Judge) -> None:
    """Known limit: a public regime under a public root can be rebuilt, and no gate can tell; --fresh-seed ends it."""
    known, innocent = judge(REBUILDS), judge(INNOCENT)
    assert not known.refused and not same_placements(known, innocent)  # it does know the future; nothing shows it
    root = 8_412_775_203_991
    fresh, innocent = judge(REBUILDS, root_seed=root), judge(INNOCENT, root_seed=root)
    assert not fresh.refused and same_placements(fresh, innocent)
