"""Replays on a live server with real merges: what ran decides the exposure, and whether a replay may be judged."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from fault_server import GOOD, HANG, REFUSE, FaultServer, evenly, serving, told

from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars.openai import Deadlines
from adapters.sidecars.real import RealSidecar
from protocol.errors import BadInput, SidecarError
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, NONE, REFUSED, SERVED
from protocol.replay.replay import Replay
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace

MS = 1_000_000
QUICK = Deadlines(request_s=2.0, idle_s=0.5, drain_s=2.0)
GAP_S = 0.02
#: Merges begin between two requests.
MERGES = Schedule.all_islands(np.array([110 * MS, 310 * MS]), 100 * MS)
NO_SYNC = Schedule.empty()


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def control(server: FaultServer) -> Replay:
    """The arm without merges."""
    return replay(server, [GOOD] * 30, NO_SYNC, "none")


def replay(server: FaultServer, hows: list[int], schedule: Schedule, load: str) -> Replay:
    sidecar = RealSidecar(told(server.url, *hows), MergeLoad.parse(load), QUICK)
    return sidecar.replay(evenly(len(hows), GAP_S), schedule)


@pytest.mark.parametrize(
    "how, outcome, cause", [(REFUSE, REFUSED, "HTTP 429"), (HANG, FAILED, "timed out")], ids=["429", "hang"]
)
def test_what_fails_only_during_merges_counts_against_the_scheduler(
    server: FaultServer, control: Replay, how: int, outcome: int, cause: str
) -> None:
    """A server that turns requests away while it merges looks fast on those that it serves."""
    trace = evenly(30, GAP_S)
    begin, end = MERGES.windows_ns(0)
    merging = ((trace.arrival_ns[:, None] >= begin) & (trace.arrival_ns[:, None] < end)).any(axis=1)
    assert merging.sum() == 10
    policy = replay(server, np.where(merging, how, GOOD).tolist(), MERGES, "none")
    assert policy.rows.outcome.tolist() == np.where(merging, outcome, SERVED).tolist()
    assert policy.failures == {cause: 10} and control.failures == {}
    for text in ("e2e<=10s", "ttft<=10s", "e2e<=1ms"):
        # Never better, however strict the objective: with the strictest nothing is within it in either arm.
        worse, baseline = (arm.rows.violates(Slo.parse(text)) for arm in (policy, control))
        assert worse[merging].all() and worse.sum() >= baseline.sum() + (0 if text == "e2e<=1ms" else 10)
    assert (policy.rows.exposure[merging] != NONE).all() and (control.rows.exposure == NONE).all()


def test_exposure_counts_the_merges_that_ran(server: FaultServer) -> None:
    found = replay(server, [GOOD] * 30, MERGES, "host:processes=1,matmul=16,write_mb=0")
    m = found.rows
    assert found.failures == {} and found.n_merges == 2 and found.busy_ns >= 150 * MS
    assert (found.planned_ns[:, 0] == [110 * MS, 310 * MS]).all()
    expected = np.zeros(30, np.int64)
    for began, ended in found.ran_ns:
        alive = np.minimum(m.arrival_ns + m.e2e_ns, ended) - np.maximum(m.arrival_ns, began)
        expected += np.maximum(alive, 0)
    assert np.array_equal(m.exposure_ns, expected) and 0 < (expected > 0).sum() < 30


def but_for_its_client(found: Replay) -> Replay:
    """The same replay with every request sent on time: on a busy machine the client is late, which is named first."""
    return replace(found, rows=replace(found.rows, sent_ns=found.rows.arrival_ns))


@contextmanager
def peer_that_leaves() -> Iterator[str]:
    """Takes what it is sent, until it has been silent for 50 ms, and then goes away."""
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        taken, _ = listener.accept()
        with taken:
            while not taken.recv(1 << 20):
                pass
            taken.settimeout(0.05)
            try:
                while taken.recv(1 << 20):
                    pass
            except TimeoutError:
                return

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(5)


def test_a_load_that_dies_in_the_middle_invalidates_and_says_why(server: FaultServer) -> None:
    with peer_that_leaves() as peer:
        found = replay(server, [GOOD] * 30, MERGES, f"network:chunk_kb=16,peer={peer}")
    assert (found.rows.outcome == SERVED).all()
    reason = str(but_for_its_client(found).invalid)
    assert reason.startswith("1 of 2 merges ran: process 1 of network ended with code 1: ")
    assert "ConnectionResetError" in reason or "BrokenPipeError" in reason


def test_merges_that_overrun_invalidate(server: FaultServer) -> None:
    """The user's own merge ignores the end of its window; the next one begins late."""
    stubborn = "command:sh -c 'trap \"\" TERM; sleep 0.35'"
    found = replay(server, [GOOD] * 30, MERGES, stubborn)
    assert found.n_merges == 2
    reason = str(but_for_its_client(found).invalid)
    assert reason.startswith("merge 1 began ") and "off its schedule" in reason
    assert found.ran_ns[0, 1] - found.planned_ns[0, 1] > 200 * MS


def test_a_late_client_is_named_before_late_merges(server: FaultServer) -> None:
    sidecar = RealSidecar(told(server.url, *[GOOD] * 200), MergeLoad.parse("none"), Deadlines())
    found = sidecar.replay(evenly(200, 0.0), NO_SYNC)
    assert "% of requests were sent within 5 ms of schedule; expected at least 99 %" in str(found.invalid)


def test_what_cannot_be_replayed(server: FaultServer) -> None:
    two = RequestTrace(np.array([0, 1]), np.array([8, 8]), np.array([8, 8]), np.array([0, 1]), 2)
    with pytest.raises(BadInput, match="2 islands"):
        RealSidecar(told(server.url, GOOD, GOOD), MergeLoad.parse("none")).replay(two, NO_SYNC)
    begun = time.monotonic()
    with pytest.raises(SidecarError, match="nobody answers"):
        RealSidecar(told("http://127.0.0.1:9", GOOD), MergeLoad.parse("none"), QUICK).replay(evenly(1, 1.0), NO_SYNC)
    assert time.monotonic() - begun < 3
