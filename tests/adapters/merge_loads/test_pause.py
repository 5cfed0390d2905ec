"""The merge load that stops a server: on schedule, on the record, and never for longer than its window."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from adapters.merge_loads.runner import MergeLoad, running
from protocol.errors import BadInput, SidecarError
from protocol.merging.schedule import Schedule

MS = 1_000_000
SCHEDULE = Schedule.all_islands(np.array([100, 500]) * MS, 200 * MS)


class Stub(http.server.ThreadingHTTPServer):
    """Notes what it is told, and when; `status` is what it answers to a pause."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[tuple[str, int]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def load(self) -> MergeLoad:
        return MergeLoad.parse("pause").beside(self.url)

    def names(self) -> list[str]:
        return [name for name, _ in self.told]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        self.server.told.append((self.path, time.monotonic_ns()))
        self.send_response(self.server.status if self.path.startswith("/pause") else 200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"said so")

    def log_message(self, *arguments: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def wait_for(server: Stub, number: int) -> None:
    deadline = time.monotonic() + 10
    while len(server.told) < number:
        assert time.monotonic() < deadline, server.told
        time.sleep(0.005)


def test_pauses_on_schedule_and_says_what_ran() -> None:
    with stub() as server, running(server.load) as runner:
        start_ns = time.monotonic_ns() + 50 * MS
        runner.plan(SCHEDULE, start_ns)
        executed = runner.finish()
    assert server.names() == ["/resume", *["/pause?mode=keep", "/resume"] * 2]
    windows = list(zip(executed.planned_ns, executed.ran_ns, server.told[1::2], server.told[2::2], strict=True))
    assert len(windows) == 2
    for (begin, end), (began, ended), (_, paused_ns), (_, resumed_ns) in windows:
        # Told within what is on the record, and not before it was due; loose, for a busy machine.
        assert begin <= began <= paused_ns < begin + 500 * MS
        assert end <= resumed_ns <= ended < end + 500 * MS
    if executed.invalid is None:
        assert all(resumed - paused < 300 * MS for _, _, (_, paused), (_, resumed) in windows)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_pause_that_is_interrupted_ends(how: str) -> None:
    long = Schedule.all_islands(np.array([0]), 60_000 * MS)
    with stub() as server:
        with running(server.load) as runner:
            runner.plan(long, time.monotonic_ns())
            wait_for(server, 2)
            if how == "killed":
                runner._processes[0].kill()
            begun = time.monotonic()
        assert time.monotonic() - begun < 4
        assert server.names() == ["/resume", "/pause?mode=keep", "/resume"]


HARNESS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
import numpy as np
from adapters.merge_loads.runner import MergeLoad, running
from protocol.merging.schedule import Schedule
with running(MergeLoad.parse("pause").beside(sys.argv[1])) as runner:
    runner.plan(Schedule.all_islands(np.array([0, 1_000_000_000]), 400_000_000), time.monotonic_ns())
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_harness_that_is_ended_leaves_no_server_paused(how: signal.Signals) -> None:
    root = Path(__file__).resolve().parents[3]
    with stub() as server:
        harness = subprocess.Popen(
            [sys.executable, "-c", HARNESS, server.url],
            env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_for(server, 2)
        # As a terminal does it: the interrupt goes to the load as well.
        os.killpg(harness.pid, how) if how == signal.SIGINT else harness.kill()
        harness.wait(10)
        wait_for(server, 3)
        time.sleep(0.9)  # the second window's time: nobody is there for whom it would be
        assert server.names() == ["/resume", "/pause?mode=keep", "/resume"]


def test_a_server_that_cannot_be_paused_says_why() -> None:
    with stub() as server:
        server.status = 501
        with running(server.load) as runner:
            runner.plan(SCHEDULE, time.monotonic_ns())
            executed = runner.finish()
        assert "0 of 2 merges ran" in str(executed.invalid) and "HTTP 501: said so" in str(executed.invalid)
        assert server.names()[-1] == "/resume"
        nowhere = MergeLoad.parse("pause:pause=http://127.0.0.1:9/p,resume=http://127.0.0.1:9/r")
    with pytest.raises(SidecarError, match="did not get ready.*refused"), running(nowhere):
        pass
    with pytest.raises(BadInput, match="pause of no server"), running(MergeLoad.parse("pause")):
        pass


def test_any_pair_of_addresses() -> None:
    text = "pause:pause=http://h:1/stop?for=ever,resume=https://h/go"
    load = MergeLoad.parse(text)
    assert str(load) == text and MergeLoad.parse(text) == load == load.beside("http://other:2")
    beside = MergeLoad.parse("pause").beside("http://h:1/")
    assert dict(beside.options) == {"pause": "http://h:1/pause?mode=keep", "resume": "http://h:1/resume"}
    assert str(MergeLoad.parse("pause")) == "pause"
    assert MergeLoad.parse("host").beside("http://h:1") == MergeLoad.parse("host")
    for wrong in (
        "pause:pause=http://h:1/p", "pause:pause=h,resume=h", "pause:pause=http://u:k@h/p,resume=http://h/r",
        "pause:stop=http://h/p", "pause:processes=2",
    ):  # fmt: skip
        with pytest.raises(BadInput) as refused:
            MergeLoad.parse(wrong)
        assert "u:k" not in str(refused.value)
