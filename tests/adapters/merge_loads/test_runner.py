"""Merge loads start and stop on their schedule, say what ran, and never outlive their runner."""

from __future__ import annotations

import time

import numpy as np
import pytest

from adapters.merge_loads.runner import Executed, MergeLoad, running
from protocol.errors import BadInput, SidecarError
from protocol.merging.schedule import Schedule

SCHEDULE = Schedule.all_islands(np.array([100_000_000, 500_000_000]), 200_000_000)


@pytest.mark.parametrize(
    "text",
    ["none", "host:processes=1,matmul=64,write_mb=1", "disk:write_mb=1", "network:chunk_kb=64", "command:sleep 5"],
)
def test_windows_run_on_schedule(text: str) -> None:
    with running(MergeLoad.parse(text)) as runner:
        start_ns = time.monotonic_ns() + 50_000_000
        runner.plan(SCHEDULE, start_ns)
        executed = runner.finish()
    assert len(executed.ran_ns) == 2 and executed.planned_ns[0][0] == start_ns + 100_000_000
    for (begin, end), (began, ended) in zip(executed.planned_ns, executed.ran_ns, strict=True):
        # Loose, for a busy machine: that a late window invalidates its run is tested below.
        assert -1_000_000 <= began - begin < 500_000_000 and ended - end < 500_000_000
    assert executed.busy_s > 0.2


def test_late_short_and_missing_windows_invalidate() -> None:
    planned = ((0, 200_000_000), (500_000_000, 700_000_000))
    assert Executed(planned, planned).invalid is None
    late = ((60_000_000, 200_000_000), planned[1])
    assert "merge 1 began +60 ms" in str(Executed(planned, late).invalid)
    short = (planned[0], (500_000_000, 600_000_000))
    assert "merge 2" in str(Executed(planned, short).invalid) and Executed(planned, short, True).invalid is None
    assert Executed(planned, planned[:1]).invalid == "1 of 2 merges ran"


def test_a_load_that_cannot_start_says_why() -> None:
    with pytest.raises(SidecarError, match="did not get ready"), running(MergeLoad.parse("network:peer=127.0.0.1:9")):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "gpu",
        "command:",
        "command:'",
        "command:/nowhere/at/all 3",
        "host:matmul",
        "host:colour=red",
        "host:processes=0",
        "disk:processes=many",
        "",
    ],
)
def test_bad_specs_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        MergeLoad.parse(text)


def test_text_and_back() -> None:
    for text in ("none", "host:processes=2,matmul=256", "command:sleep 5 --fast"):
        assert MergeLoad.parse(str(MergeLoad.parse(text))) == MergeLoad.parse(text)
