"""The open-loop client against a server that misbehaves: every fault ends in the right row, within its deadline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

import fault_server as fs
from fault_server import GOOD, HANG, FaultServer, evenly, serving, told
from sse_bodies import BODIES

from adapters.sidecars.openai import API_KEY, Deadlines, Run, Target, replay
from protocol.errors import SidecarError
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, REFUSED, SERVED
from protocol.replay.replay import SENT_WITHIN_NS
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace

QUICK = Deadlines(request_s=2.0, idle_s=0.5, drain_s=2.0)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with serving() as found:
        yield found


def run(server: FaultServer, *hows: int | tuple[int, ...], gap_s: float = 0.02, deadlines: Deadlines = QUICK) -> Run:
    return replay(told(server.url, *hows), evenly(len(hows), gap_s), Schedule.empty(), deadlines)


FAULTS = {
    fs.GOOD: (SERVED, None),
    fs.REFUSE: (REFUSED, "HTTP 429"),
    fs.BUSY: (REFUSED, "HTTP 503"),
    fs.BROKEN: (FAILED, "HTTP 500"),
    fs.HANG: (FAILED, "timed out"),  # headers, then nothing
    fs.SILENT: (FAILED, "timed out"),  # a token, then nothing: the deadline of an idle stream
    fs.DRIP: (FAILED, "timed out"),  # never idle for long, never done: the deadline of a request
    fs.HANG_UP: (FAILED, "ServerDisconnectedError"),
    fs.CUT: (FAILED, "the stream ended early"),
    fs.ERROR: (FAILED, "server error: engine dead"),
    fs.PAGE: (FAILED, "no token"),
    fs.SEVERAL: (SERVED, None),
    fs.SPLIT: (SERVED, None),
    fs.BIG: (SERVED, None),  # events of 200 KB
    fs.SLOW: (SERVED, None),  # answers after 0.3 s
    fs.LINGER: (SERVED, None),  # goes on without a word after [DONE]
}


def test_every_fault_ends_in_its_row(server: FaultServer) -> None:
    deadlines = Deadlines(request_s=1.2, idle_s=0.5, drain_s=5.0)
    begun = time.monotonic()
    done = run(server, *FAULTS, deadlines=deadlines)
    assert time.monotonic() - begun < 4
    m = done.measurements
    assert m.outcome.tolist() == [outcome for outcome, _ in FAULTS.values()]
    assert done.failures == Counter(cause for _, cause in FAULTS.values() if cause)
    good = m.outcome == SERVED
    assert (m.output_tokens[good] == 8).all() and all(len(done.itl_ns[i]) == 7 for i in np.flatnonzero(good))
    assert (m.e2e_ns[~good] == -1).all() and (m.ttft_ns[~good] == -1).all() and (m.output_tokens[~good] == 0).all()
    # Whatever failed violates every objective; what was served is judged by its latency.
    for text in ("e2e<=10s", "ttft<=10s", "tpot<=10s", "itl<=10s"):
        assert m.violates(Slo.parse(text)).tolist() == (~good).tolist()
    slow = list(FAULTS).index(fs.SLOW)
    assert m.ttft_ns[slow] > 0.3 * NS_PER_S and m.e2e_ns[0] < 0.3 * NS_PER_S
    assert m.violates(Slo.parse("ttft<=300ms"))[slow]


def test_bodies_in_pieces_of_any_size(server: FaultServer) -> None:
    asked = [(fs.BODY, number, size) for size in (1, 3, 7, 64) for number in range(len(BODIES))]
    done = run(server, *asked, gap_s=0.01)
    expected = [tokens if failure is None else 0 for _, tokens, failure in BODIES.values()]
    assert done.measurements.output_tokens.tolist() == expected * 4
    outcomes = [SERVED if failure is None else FAILED for _, _, failure in BODIES.values()]
    assert done.measurements.outcome.tolist() == outcomes * 4
    assert sum(done.failures.values()) == 4 * outcomes.count(FAILED) and set(done.failures.values()) == {4}


def test_a_server_that_starts_late(server: FaultServer) -> None:
    """Nobody listens at first: those requests are turned away, and count; the others are not delayed by them."""
    with serving(late_s=0.8) as late:
        done = run(late, *[GOOD] * 40)
    refused = done.measurements.outcome == REFUSED
    first = int(np.argmin(refused))
    assert 1 <= first < 40 and refused[:first].all() and not refused[first:].any()
    assert list(done.failures.values()) == [first] and "ConnectorError" in next(iter(done.failures))
    assert done.measurements.violates(Slo.parse("e2e<=10s")).sum() == first
    assert (done.send_delay_ns >= 0).all()  # offered all the same: the fault is not the client's


def test_latency_counts_from_the_scheduled_arrival(server: FaultServer) -> None:
    done = run(server, *[GOOD] * 50, gap_s=0.005)
    m = done.measurements
    assert (m.sent_ns >= m.arrival_ns).all() and (m.ttft_ns > done.send_delay_ns).all()
    assert (m.e2e_ns >= m.ttft_ns).all() and done.failures == {}
    itl = np.array([gaps.sum() for gaps in done.itl_ns])
    assert np.allclose(itl, m.e2e_ns - m.ttft_ns, atol=10)


def test_run_deadline_cancels_and_leaves_no_socket(server: FaultServer) -> None:
    begun = time.monotonic()
    done = run(server, GOOD, HANG, HANG, deadlines=Deadlines(request_s=20, idle_s=20, drain_s=0.3))
    assert time.monotonic() - begun < 3
    assert done.measurements.outcome.tolist() == [SERVED, FAILED, FAILED]
    assert done.failures == {"given up at the run's deadline": 2}
    assert done.measurements.violates(Slo.parse("e2e<=10s")).tolist() == [False, True, True]
    wait_until(lambda: server.open == 0 and server.connections == 0)


def wait_until(true: Callable[[], bool], patience_s: float = 5.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_connections_are_used_again_and_closed(server: FaultServer) -> None:
    server.peers.clear()
    assert run(server, *[GOOD] * 10, gap_s=0.06).failures == {}
    assert len(server.peers) <= 5  # one, but for a slow machine
    wait_until(lambda: server.connections == 0)


def test_key_comes_from_the_environment_and_goes_nowhere_else(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "sk-secret")
    done = run(server, GOOD)
    assert server.headers[-1] == "Bearer sk-secret"
    assert "sk-secret" not in repr(done) and "sk-secret" not in repr(server.requests[-1])


def test_nobody_there() -> None:
    trace = RequestTrace(np.array([0]), np.array([8]), np.array([8]))
    with pytest.raises(SidecarError, match="nobody answers"):
        replay(Target("http://127.0.0.1:9", "m"), trace, Schedule.empty(), QUICK)


def test_a_load_above_the_clients_limit_is_invalid(server: FaultServer) -> None:
    """Two hundred requests at one instant cannot all leave within 5 ms; all are served, and the run says so."""
    done = run(server, *[GOOD] * 200, gap_s=0.0, deadlines=Deadlines())
    assert (done.measurements.outcome == SERVED).all() and done.failures == {}
    assert "the client could not offer this load" in str(done.invalid)


def test_one_late_request_in_a_hundred_is_allowed(server: FaultServer) -> None:
    done = run(server, GOOD)
    for late, n, valid in ((1, 100, True), (2, 100, False), (1, 99, False)):
        for how in (SENT_WITHIN_NS + 1, -1):
            delay_ns = np.array([how] * late + [SENT_WITHIN_NS] * (n - late))
            judged = Run(done.measurements, done.itl_ns, done.failures, delay_ns)
            assert (judged.invalid is None) == valid
