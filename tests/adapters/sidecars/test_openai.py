"""The open-loop client against a server that misbehaves: every fault ends in the right row, within its deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")

from fault_server import CUT, ERROR, GOOD, HANG, REFUSE, SEVERAL, SLOW, SPLIT, FaultServer, serving

from adapters.sidecars.openai import API_KEY, Deadlines, Run, Target, replay
from protocol.errors import SidecarError
from protocol.measurements import FAILED, REFUSED, SERVED
from protocol.schedule import Schedule
from protocol.slo import Slo
from protocol.trace import NS_PER_S, RequestTrace

QUICK = Deadlines(request_s=2.0, idle_s=0.5, drain_s=2.0)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with serving() as found:
        yield found


class Told(Target):
    """Prompts whose first token tells the server what to do."""

    hows: tuple[int, ...] = ()

    def body(self, prompt_tokens: int, output_tokens: int, index: int, run: int = 0) -> dict:
        asked = super().body(prompt_tokens, output_tokens, index, run)
        asked["prompt"][0] = self.hows[index]
        return asked


def run(server: FaultServer, *hows: int, gap_s: float = 0.02, deadlines: Deadlines = QUICK) -> Run:
    target = Told(server.url, "m")
    object.__setattr__(target, "hows", hows)
    n = len(hows)
    trace = RequestTrace(np.arange(n) * int(gap_s * NS_PER_S), np.full(n, 8), np.full(n, 8))
    return replay(target, trace, Schedule.empty(), deadlines)


def test_every_fault_ends_in_its_row(server: FaultServer) -> None:
    begun = time.monotonic()
    done = run(server, GOOD, REFUSE, HANG, CUT, ERROR, SEVERAL, SPLIT, SLOW)
    assert time.monotonic() - begun < 6
    assert done.measurements.outcome.tolist() == [
        SERVED, REFUSED, FAILED, FAILED, FAILED, SERVED, SERVED, SERVED
    ]  # fmt: skip
    assert sum(done.failures.values()) == 4
    assert {"HTTP 429": 1, "server error: engine dead": 1, "timed out": 1}.items() <= done.failures.items()
    good = done.measurements.outcome == SERVED
    assert done.measurements.output_tokens[good].tolist() == [8, 8, 8, 8]
    assert all(len(done.itl_ns[i]) == 7 for i in np.flatnonzero(good))
    assert done.measurements.violates(Slo.parse("e2e<=10s")).tolist() == (~good).tolist()
    slow = 7
    assert done.measurements.ttft_ns[slow] > 0.3 * NS_PER_S and done.measurements.e2e_ns[0] < 0.3 * NS_PER_S


def test_latency_counts_from_the_scheduled_arrival(server: FaultServer) -> None:
    done = run(server, *[GOOD] * 50, gap_s=0.005)
    m = done.measurements
    assert (m.sent_ns >= m.arrival_ns).all() and (m.ttft_ns > done.send_delay_ns).all()
    assert (m.e2e_ns >= m.ttft_ns).all() and done.failures == {}
    itl = np.array([gaps.sum() for gaps in done.itl_ns])
    assert np.allclose(itl, m.e2e_ns - m.ttft_ns, atol=10)


def test_refusals_only_during_a_merge_count_against_the_scheduler(server: FaultServer) -> None:
    """A server that turns requests away while it merges looks fast on those that it serves."""
    begun = time.monotonic()
    server.refusing = lambda: 1.0 < time.monotonic() - begun < 1.5
    try:
        done = run(server, *[GOOD] * 100, gap_s=0.02)
    finally:
        server.refusing = lambda: False
    refused = done.measurements.outcome == REFUSED
    assert 5 <= refused.sum() <= 40 and done.failures == {"HTTP 429": int(refused.sum())}
    assert done.measurements.violates(Slo.parse("e2e<=5s")).sum() == refused.sum()


def test_run_deadline_cancels_and_leaves_no_socket(server: FaultServer) -> None:
    begun = time.monotonic()
    done = run(server, GOOD, HANG, HANG, deadlines=Deadlines(request_s=20, idle_s=20, drain_s=0.3))
    assert time.monotonic() - begun < 3
    assert done.measurements.outcome.tolist() == [SERVED, FAILED, FAILED]
    assert done.failures == {"given up at the run's deadline": 2}
    time.sleep(0.3)
    assert server.open == 0


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


def test_a_client_that_cannot_keep_up_says_so(server: FaultServer) -> None:
    done = run(server, GOOD, GOOD)
    late = Run(done.measurements, done.itl_ns, done.failures, done.send_delay_ns + 6_000_000)
    assert "could not offer" in str(late.invalid)
    never = Run(done.measurements, done.itl_ns, done.failures, np.array([-1, 0]))
    assert "could not offer" in str(never.invalid)
