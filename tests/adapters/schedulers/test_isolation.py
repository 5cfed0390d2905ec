"""What a scheduler's process may not do, and what is left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scheduler_files import LINUX, SEEN, Opener, alive, answers, below, failure, opened_in, scheduler

from adapters.schedulers import sandbox
from protocol.errors import SchedulerError


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    yield from opened_in(tmp_path)


# --- isolation ----------------------------------------------------------------------------------------------


def test_nothing_learned_in_a_run_reaches_another(opened: Opener) -> None:
    source = opened(
        """
        import mmap, tempfile, pathlib
        SEEN = []
        SHARED = mmap.mmap(-1, 16)
        NOTE = pathlib.Path(tempfile.gettempdir(), "note")
        class Mine:
            runs = 0
            def __init__(self):
                Mine.runs += 1
                self.first = not SEEN and SHARED[0] == 0 and not NOTE.exists() and Mine.runs == 1
            def decide(self, obs):
                SEEN.append(obs)
                SHARED[0] = 1
                NOTE.write_text("been here")
                return self.first
        """
    )
    for _ in range(3):
        assert all(d.merge for d in answers(source))


def test_what_cannot_be_deleted_is_out_of_reach_all_the_same(opened: Opener) -> None:
    source = opened(
        """
        import os, pathlib, tempfile
        class Mine:
            def __init__(self):
                note = pathlib.Path(tempfile.gettempdir(), "note")
                self.fresh = not note.exists()
                note.mkdir()
                (note / "inner").mkdir(mode=0)  # not even to be listed
            def decide(self, obs):
                return self.fresh
        """
    )
    for _ in range(2):
        assert all(d.merge for d in answers(source))


def test_an_output_folder_around_the_scheduler_does_not_hide_it(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("LIMIT = 3\n")
    code = "from helper import LIMIT\ndef decide(obs):\n    return obs.in_flight < LIMIT\n"
    assert answers(opened(code, hidden=[tmp_path, tmp_path.parent]))


def test_unseeded_entropy_differs_between_runs(opened: Opener) -> None:
    for draw in ("import random\nreturn random.random() < 0.5", "import numpy as np\nreturn np.random.random() < 0.5"):
        source = opened(scheduler(draw))
        assert answers(source) != answers(source)


def test_a_timer_rings_and_does_not_tell_the_time(opened: Opener) -> None:
    source = opened(
        """
        import signal
        def decide(obs):
            real = signal.ITIMER_REAL
            told = [signal.setitimer(real, 4.0), signal.setitimer(real, 3.0), signal.alarm(9)]
            try:
                told.append(signal.getitimer(real))
            except PermissionError:
                told.append("refused")
            return told == [(0.0, 0.0), (0.0, 0.0), 0, "refused"]
        """
    )
    assert all(decision.merge for decision in answers(source))


@pytest.mark.parametrize(
    ("paths", "hidden", "kept"),
    [
        (["/usr/lib", "/usr", "/usr-local/x"], [], ["/usr", "/usr-local/x"]),
        (["/a", "/a/b", "/a/b/c"], ["/a/b"], ["/a", "/a/b", "/a/b/c"]),  # what is granted beneath a hidden folder stays
        (["/a", "/a/b/c"], ["/a/b/c/d", "/a/x"], ["/a"]),
        (["/a", "/a/b", "/a/b/c"], ["/"], ["/a"]),
    ],
)
def test_only_the_outermost_grants_are_handed_over(paths: list[str], hidden: list[str], kept: list[str]) -> None:
    assert sandbox.outermost(paths, hidden) == kept


def test_hash_order_is_the_same_in_every_process(opened: Opener) -> None:
    source = opened(scheduler("return next(iter({str(obs.time_s), 'a', 'b', 'c'})) in 'abc'"))
    first = answers(source)
    source.close()
    assert answers(source) == first


@pytest.mark.skipif(not LINUX, reason="needs Landlock")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return open('{secret}').read() == ''", "PermissionError: a scheduler may not read"),
        ("return open('trace.csv').read() == ''", "PermissionError: a scheduler may not read"),
        ("return open(f'/proc/{{os.getppid()}}/maps').read() == ''", "PermissionError: a scheduler may not read"),
        ("return bool(open('note', 'w').write('x'))", "PermissionError: a scheduler may not write"),
        ("return bool(subprocess.run(['true']).returncode)", "PermissionError: a scheduler may not start another"),
        ("return bool(socket.create_connection(('127.0.0.1', 9)))", "PermissionError: a scheduler may not use"),
        # The same past Python's own audit hook: the kernel refuses.
        ("f = libc.open(b'{secret}', 0)\nraise SystemExit(f)", "called exit(-1)"),
        ("f = libc.open(b'trace.csv', 0)\nraise SystemExit(f)", "called exit(-1)"),
        ("f = libc.open(b'note', 65, 0o600)\nraise SystemExit(f)", "called exit(-1)"),
        ("f = libc.open(b'/proc/%d/mem' % {parent}, 0)\nraise SystemExit(f)", "called exit(-1)"),
        ("raise SystemExit(libc.ptrace(16, {parent}, 0, 0))", "called exit(-1)"),
        ("raise SystemExit(libc.kill({parent}, 0))", "called exit(-1)"),
    ],
)  # fmt: skip
def test_what_the_sandbox_refuses(
    opened: Opener, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, body: str, expected: str
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.csv"
    for path in (secret, tmp_path / "trace.csv"):
        path.write_text("the future")
    filled = body.format(secret=secret, parent=os.getpid())
    code = "import ctypes, os, socket, subprocess\nlibc = ctypes.CDLL(None)\n" + scheduler(filled)
    message = failure(opened(code, hidden=[tmp_path / "trace.csv"]))
    assert expected in message, message
    assert not (tmp_path / "note").exists()


def test_the_child_inherits_neither_files_nor_settings(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROTOCOL_TRACE", "secret")
    with (tmp_path / "held.txt").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        source = opened(
            scheduler(
                f"""
                import os, sys
                names = [k for k in os.environ if k.startswith("PROTOCOL_")]
                def same(fd):
                    try: return os.fstat(fd).st_ino == {os.fstat(held.fileno()).st_ino}
                    except OSError: return False
                return not names and not any(same(fd) for fd in range(256)) and len(sys.argv) == 1
                """
            )
        )
        assert answers(source)[0].merge


def test_memory_without_end(opened: Opener) -> None:
    source = opened(scheduler("hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 24))"), memory_limit_mb=256)
    assert failure(source) == "my_sched.py:5: MemoryError: more than 256 MB, at the decision at 9.408 s"


def test_forked_children_are_cleaned_up(opened: Opener, tmp_path: Path) -> None:
    """Three children, one of them in a session of its own, started past the audit hook."""
    source = opened(
        """
        import ctypes, os, signal, time
        libc = ctypes.CDLL(None)
        class Mine:
            def __init__(self):
                self.children = []
                for k in range(3):
                    pid = libc.fork()
                    if pid == 0:
                        if k == 2:
                            os.setsid()
                        signal.signal(signal.SIGTERM, signal.SIG_IGN)
                        while True:
                            time.sleep(1)
                    self.children.append(pid)
            def decide(self, obs):
                from protocol.scheduler import Decision
                return Decision(True, reason=repr(self.children))
        """
    )
    for orderly in (True, False):
        run = source.start((1,))
        children = eval(run.decide(SEEN[0]).reason)
        assert len(children) == 3
        children = [pid for pid, own in below(os.getpid()).items() if own in children]  # as they are called out here
        assert len(children) == 3 and all(map(alive, children))
        if orderly:
            run.close()
        else:
            source.close()
        assert not any(map(alive, children))


def test_a_host_that_was_killed_is_replaced(opened: Opener) -> None:
    source = opened(scheduler("return True"))
    assert source.host is not None
    os.kill(source.host.process.pid, signal.SIGKILL)
    source.host.process.wait()
    assert answers(source)[0].merge
    run = source.start((1,))
    os.kill(source.host.process.pid, signal.SIGKILL)
    with pytest.raises(SchedulerError, match="^my_sched.py: .* at the decision at"):
        for o in SEEN:
            run.decide(o)
            time.sleep(0.01)


def test_the_child_imports_little() -> None:
    heavy = {"pandas", "pyarrow", "scipy", "numba", "typer"}
    code = f"import sys, adapters.schedulers.host; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.skipif(not LINUX, reason="needs the parent-death signal")
def test_everything_ends_with_the_harness(tmp_path: Path) -> None:
    (tmp_path / "my_sched.py").write_text(scheduler("return True"))
    script = textwrap.dedent(
        f"""
        import time
        from adapters.schedulers import open_scheduler
        source = open_scheduler({str(tmp_path / "my_sched.py")!r})
        run = source.start((1,))
        print(source.host.process.pid, source.host.scratch, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        pid, scratch = harness.stdout.readline().split()
        host = int(pid)
        assert alive(host)
        harness.kill()
    deadline = time.monotonic() + 5
    while alive(host) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(host) and not os.path.exists(scratch)


def test_no_zombies(opened: Opener) -> None:
    for body in ("return True", "import os\nos._exit(1)"):
        source = opened(scheduler(body))
        for _ in range(3):
            try:
                answers(source)
            except SchedulerError:
                pass
        source.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
