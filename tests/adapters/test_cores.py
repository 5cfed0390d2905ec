"""Server, merge load and client on their cores: what is asked, what is found, what is inherited."""

from __future__ import annotations

import gc
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.cores import Cores, asked, available, cores_of_server, named, pinned, taken
from adapters.merge_loads.runner import MergeLoad, running
from adapters.sidecars.engine import running_in, serving
from adapters.sidecars.openai import SPIN_NS, TICK_NS
from adapters.sidecars.real import PRIORITIES, going_first, spin_ns, urgent
from protocol.errors import BadInput

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that pins processes")
MINE = available()
two = pytest.mark.skipif(len(MINE) < 2, reason="needs two cores")
SERVER = """
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404); self.end_headers()
    def log_message(self, *a): pass
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(SERVER)
    return f"command:{sys.executable} {tmp_path / 'server.py'} {{port}}"


def test_what_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.cores.available", lambda: (0, 1, 2, 3, 6))
    assert asked("0") == (0,) and asked("3,0-1") == (0, 1, 3) and asked("all") is None
    assert asked("auto") == (0, 1, 2, 3)
    for wrong in ("", "x", "1-", "-1", "2-1", "0,,1", "0.5"):
        with pytest.raises(BadInput, match="numbers and ranges"):
            asked(wrong)
    with pytest.raises(BadInput, match="cores of this machine, 0-3,6"):
        asked("4")
    monkeypatch.setattr("adapters.cores.available", lambda: (5,))
    assert asked("auto") is None  # one core is shared


@pytest.mark.parametrize(
    ("server", "load", "client", "apart"),
    [
        ((0,), (0,), (1, 2, 3), True),
        ((1, 2), (1, 2), (0, 3), True),
        ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3), False),
        ((8,), (0, 1, 2, 3), (0, 1, 2, 3), False),  # the server has cores that we have not
        (None, (0, 1, 2, 3), (0, 1, 2, 3), False),
    ],
)
def test_the_client_takes_what_the_server_leaves(
    monkeypatch: pytest.MonkeyPatch, server: tuple[int, ...] | None, load: tuple[int, ...], client: tuple[int, ...],
    apart: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("adapters.cores.available", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("adapters.cores.cores_of_server", lambda url: server)
    found = taken("http://127.0.0.1:1")
    assert found == Cores(server, load, client) and found.apart == apart
    assert found.describe()["client_cores"] == list(client) and ("shared" in str(found)) != apart
    # On shared cores a client that stays awake would take the server's time.
    assert spin_ns(found) == (SPIN_NS if apart else TICK_NS)


@two
def test_a_server_its_load_and_its_client(engine: str, tmp_path: Path) -> None:
    """The server and its child on the first core; the load inherits them, and the client has the rest."""
    with serving(engine, "m", tmp_path / "run", cores=MINE[:1]) as server:
        assert server.cores == [MINE[0]] and running_in(tmp_path / "run") == server
        found = taken(server.url)
        assert found == Cores(MINE[:1], MINE[:1], MINE[1:]) and found.apart
        assert str(found) == f"server on {MINE[0]}, merge load on {MINE[0]}, client on {named(MINE[1:])}"
        assert cores_of_server(server.url.replace("127.0.0.1", "localhost")) == MINE[:1]
        with running(MergeLoad.parse("host:processes=2,matmul=16,write_mb=0"), found.load) as runner:
            assert [os.sched_getaffinity(p.pid) for p in runner._processes] == [set(MINE[:1])] * 2
        with urgent(found):
            assert available() == MINE[1:] and not gc.isenabled()
            # What the client starts does not go first.
            child = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"],
                                   capture_output=True, text=True)  # fmt: skip
            assert int(child.stdout) == os.SCHED_OTHER
        # Whoever lets a child of the server wander off takes the client's cores from it.
        (child,) = _children(server.pid)
        os.sched_setaffinity(child, MINE)
        assert taken(server.url).server == MINE and not taken(server.url).apart
    assert available() == MINE and gc.isenabled()
    assert cores_of_server(server.url) is None  # nobody listens any more


def _children(pid: int) -> list[int]:
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True).stdout
    return [int(line) for line in said.split()]


@pytest.fixture
def ours() -> Iterator[str]:
    """A server in this process, on every core."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_servers_that_are_not_pinned_or_not_here(ours: str) -> None:
    assert cores_of_server(ours) == MINE and not taken(ours).apart
    for elsewhere in ("http://192.0.2.1:80", "http://no-such-host.invalid", "http://127.0.0.1:9"):
        assert cores_of_server(elsewhere) is None
    with pinned(None):
        assert available() == MINE


def test_the_client_goes_as_far_ahead_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    seen = []
    for name in ("", "sched_setscheduler", "setpriority"):
        if name:
            monkeypatch.setattr(os, name, refused)
        with going_first() as granted:
            seen.append(PRIORITIES.index(granted))
            if granted == PRIORITIES[0]:
                assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
            if granted == PRIORITIES[1]:
                assert os.getpriority(os.PRIO_PROCESS, 0) <= -10
        assert os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) == usual
    assert seen == sorted(seen) and seen[-1] == 2  # each refusal costs a step, where there was one


def test_an_error_gives_everything_back() -> None:
    with pytest.raises(ZeroDivisionError), urgent(Cores(None, MINE, MINE[-1:])):
        assert available() == MINE[-1:]
        raise ZeroDivisionError
    assert available() == MINE and gc.isenabled()
