"""Groups travel from a scheduler's own process, as a Python file and as JSON lines, into the loop of peer merging."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from strategies import LEARNER, ToyLoaded, bursty

from adapters.schedulers import open_scheduler
from protocol.errors import SchedulerError
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Merging, Peers
from protocol.placement.peer_rollout import peer_rollout
from protocol.placement.rollout import Rollout
from protocol.workload.trace import StepFunction, Workload

PYTHON = """
from protocol.scheduler import Decision


class Mine:
    def decide(self, obs):
        ready = [i for i, o in enumerate(obs.islands) if o.steps_since_merge >= obs.h_min]
        if obs.time_s % 3 or len(ready) < 2:
            return False
        return Decision(True, ((ready[0], ready[-1]),), "far apart")
"""
LINES = """
import json, sys
print(json.dumps({"type": "ready", "version": json.loads(sys.stdin.readline())["version"]}), flush=True)
for line in sys.stdin:
    obs = json.loads(line)
    if obs["type"] == "stop":
        break
    ready = [i for i, o in enumerate(obs["islands"]) if o["steps_since_merge"] >= obs["h_min"]]
    merge = obs["time_s"] % 3 == 0 and len(ready) >= 2
    print(json.dumps({"merge": merge, "groups": [[ready[0], ready[-1]]] if merge else None}), flush=True)
"""


def roll(source: str) -> Rollout:
    merging = Merging(payload_bytes=100, bandwidth=(50.0,))
    peers = Peers(Corridor(8, 40, 4, 10**9 // 4, merging.longest_ns(4), 60 * 10**9), merging, 4)
    trace, flat = bursty("peer", 4, 70), StepFunction.constant(0.0)
    with open_scheduler(source) as opened:
        run = opened.start((1, 2))
        try:
            rng = np.random.default_rng(3)
            return peer_rollout(run, Workload(trace, flat, flat), ToyLoaded(trace), peers, LEARNER, rng)
        finally:
            run.close()


def test_a_python_file_and_a_command_make_the_same_groups(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PYTHON)
    (tmp_path / "lines.py").write_text(LINES)
    one, other = roll(str(tmp_path / "mine.py")), roll(f"cmd:{sys.executable} {tmp_path / 'lines.py'}")
    assert one.groups == other.groups and one.schedule.equals(other.schedule)
    assert one.groups is not None and set(one.groups) == {(0, 3), (1, 2)} and not one.forced.all()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Decision(True, ((0, 7),))", "island 7 in groups"),
        ("Decision(True, ((0, 1), (1, 2)))", "island 1 twice in groups"),
        ("Decision(True, ())", r"groups \[\]"),
        ("Decision(True, ((0, 1, 2),))", "a group of 3"),
        ("Decision(True, ((0, 1),)) if obs.time_s in (2, 5) else False", "island 0, 4 inner steps"),
    ],
)
def test_garbage_is_refused_in_one_line(tmp_path: Path, answer: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from protocol.scheduler import Decision\n\n\ndef decide(obs):\n    return {answer}\n")
    with pytest.raises(SchedulerError, match=message) as caught:
        roll(str(path))
    assert "\n" not in str(caught.value)
