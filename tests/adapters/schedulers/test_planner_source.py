"""Planners from files: handed the trace, run in the harness, refused in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from adapters.schedulers import PlannerSource, open_scheduler
from protocol.errors import SchedulerError
from protocol.merging.corridor import Corridor
from protocol.workload.trace import NS_PER_S, RequestTrace

CORRIDOR = Corridor(128, 512, 8, 73_500_000, 8 * NS_PER_S, 600 * NS_PER_S)
TRACE = RequestTrace(np.arange(5) * NS_PER_S, np.ones(5), np.ones(5), n_islands=2)


def planned(path: Path, code: str) -> PlannerSource:
    path.write_text(code)
    source = open_scheduler(str(path))
    assert isinstance(source, PlannerSource) and (source.kind, source.deployable) == ("planner", False)
    return source


HEAD = "import numpy as np\nfrom protocol.merging.schedule import Schedule\nclass P:\n"


def test_a_planner_is_handed_what_it_names(tmp_path: Path) -> None:
    code = HEAD + (
        "    def __init__(self, rng, slo):\n        self.shift, self.slo = int(rng.integers(9)), slo\n"
        "    def plan(self, trace, corridor, budget):\n        assert self.slo is None\n"
        "        starts = (20 + 30 * np.arange(budget) + self.shift) * 10**9\n"
        "        return Schedule.all_islands(starts, corridor.merge_ns, trace.n_islands)\n"
    )
    source = planned(tmp_path / "my_plan.py", code)
    expected = 20 + int(np.random.Generator(np.random.PCG64(np.random.SeedSequence((5,)))).integers(9))
    for _ in range(2):
        schedule = source.plan(TRACE, CORRIDOR, 3, (5,))
        assert schedule.start_s.tolist() == [expected, expected + 30, expected + 60] and schedule.n_islands == 2
    with pytest.raises(SchedulerError, match="cannot decide step by step"):
        source.start((1,))
    assert source.describe()["deployable"] is False


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError('boom')", r"^my_plan\.py:5: ValueError: boom$"),
        ("exit(3)", r"^my_plan\.py:5: called exit\(3\)$"),
        ("return [1, 2]", r"plan returned 'list'; expected a Schedule$"),
    ],
)
def test_a_broken_planner_is_one_line(tmp_path: Path, body: str, expected: str) -> None:
    source = planned(tmp_path / "my_plan.py", HEAD + f"    def plan(self, trace, corridor, budget):\n        {body}\n")
    with pytest.raises(SchedulerError, match=expected):
        source.plan(TRACE, CORRIDOR, 3, (5,))


def test_its_own_modules_do_not_replace_ours(tmp_path: Path) -> None:
    import baselines

    (tmp_path / "baselines.py").write_text("START_S = 20\n")
    code = (
        "from baselines import START_S\n"
        + HEAD
        + (
            "    def plan(self, trace, corridor, budget):\n"
            "        return Schedule.all_islands(np.array([START_S * 10**9]), corridor.merge_ns, trace.n_islands)\n"
        )
    )
    source = planned(tmp_path / "my_plan.py", code)
    assert source.plan(TRACE, CORRIDOR, 1, (5,)).start_s.tolist() == [20.0]
    assert sys.modules["baselines"] is baselines and str(tmp_path) not in sys.path
    assert source.describe()["files"] == ["baselines.py", "my_plan.py"]
