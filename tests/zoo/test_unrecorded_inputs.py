"""Inputs that no certificate records, and limits that count everything; with all of the sandbox or without a part."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from judging import Judge

from adapters.conformance import check_scheduler, synthetic_observations
from adapters.schedulers import PlannerSource, confinement, open_scheduler
from adapters.schedulers.process import ProcessSource
from protocol.errors import BadInput, SchedulerError
from protocol.scheduler import Decision

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock, namespaces or seccomp")

SEEN = synthetic_observations(3, 40)
#: What a machine may lack.  Landlock that answers ENOSYS and seccomp that is absent are told to the child here.
LACKING = {
    "nothing": set[str](),
    "Landlock": {"landlock"},
    "seccomp": {"seccomp"},
    "namespaces": {"namespaces"},
}


@pytest.fixture(
    params=[pytest.param(w, marks=() if w == "nothing" else pytest.mark.slow, id=f"without {w}") for w in LACKING]
)
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr(confinement, "WITHOUT", set(LACKING[request.param]))
    monkeypatch.setattr("adapters.schedulers.process.WITHOUT", confinement.WITHOUT)
    return confinement.WITHOUT


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mine").mkdir()
    yield tmp_path / "mine"


def opened(folder: Path, code: str, **options: object) -> ProcessSource:
    (folder / "cheat.py").write_text(textwrap.dedent(code))
    source = open_scheduler(str(folder / "cheat.py"), **options)  # type: ignore[arg-type]
    assert isinstance(source, ProcessSource)
    return source


def decided(source: ProcessSource) -> list[Decision]:
    run = source.start((1,))
    try:
        return [run.decide(o) for o in SEEN]
    finally:
        run.close()


def refusal(source: ProcessSource) -> str:
    with source, pytest.raises(SchedulerError) as caught:
        decided(source)
    message = str(caught.value)
    assert "\n" not in message and "defect" not in message and message.startswith("cheat.py")
    return message


#: Ways to ask for something that differs from one day, one machine or one run to the next: an expression of an int.
INPUTS = {
    "the hour": "int(__import__('time').time() // 3600)",
    "the date": "__import__('datetime').date.today().toordinal()",
    "NumPy's clock": "int(__import__('numpy').datetime64('now').astype('int64'))",
    "C's clock": "libc.time(None)",
    "the kernel's clock": "libc.syscall(201, None)",
    "time since boot": "int(__import__('time').clock_gettime(7))",
    "age of its file": "int(os.stat(__file__).st_mtime)",
    "age of the log": "int(os.fstat(1).st_mtime)",
    "the environment": "len(os.environ.get('USER', '') + os.environ.get('ZOO', '') + os.environ.get('PWD', ''))",
    "the user": "len(os.environ.get('HOME', '')) + len(os.environ.get('LOGNAME', ''))",
    "age of a file that it wrote": "int(next(os.scandir(written())).stat().st_mtime)",
    "a stamp on a message": "stamped()",
    "how long a wait takes": "waited()",
    "a timer of the kernel": "until(lambda when: libc.timerfd_settime(libc.timerfd_create(0, 0), 1, when, None))",
    "a sleep until a date": "until(lambda when: libc.clock_nanosleep(0, 1, when[-16:], None))",
    "how long a file was made": "made(written())",
}
#: What the expressions above call.
HELPERS = """
import ctypes, os, socket, struct, tempfile, threading, time
libc = ctypes.CDLL(None)
def written():
    with open(os.path.join(tempfile.gettempdir(), "written"), "w"): return tempfile.gettempdir()
def stamped():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try: b.setsockopt(socket.SOL_SOCKET, 35, 1)
    except PermissionError: return -1
    a.send(b"x")
    return struct.unpack("q", b.recvmsg(9, 99)[1][0][2][:8])[0]
def waited():
    # Whether the kernel's clock, which counts from boot, is past so many seconds: bit by bit, without waiting for it.
    lock, past = threading.Lock(), 0
    lock.acquire()
    for bit in range(24, -1, -1):
        done = []
        ask = threading.Thread(target=lambda: done.append(lock.acquire(timeout=past + 2**bit)), daemon=True)
        ask.start()
        for _ in range(5):
            time.sleep(0.001)
        past += 2**bit if done else 0
    return past
def until(ask):
    return ask(struct.pack("qqqq", 0, 0, 1_600_000_000, 0))
def made(folder):
    buffer = ctypes.create_string_buffer(256)
    libc.statx(-100, os.fsencode(folder), 0, 0xfff, buffer)
    return struct.unpack_from("q", buffer, 0x50)[0]
"""


def answering(expressions: dict[str, str]) -> str:
    """A scheduler that gives as its reasons what these expressions say, one a decision and each once a run."""
    listed = ", ".join(f"{name!r}: lambda: {text}" for name, text in expressions.items())
    return f"""
from protocol.scheduler import Decision
ALL = iter({{{listed}}}.items())
def decide(obs):
    name, ask = next(ALL, ("nothing", lambda: 0))
    return Decision(True, reason=f"{{name}}: {{ask()}}")
"""


def test_what_differs_elsewhere_is_the_same_for_it(
    folder: Path, lacking: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "seccomp" in lacking:
        pytest.skip("without it the kernel answers for its clock; the report says so")
    code = HELPERS + answering(INPUTS)
    said = []
    for k in range(2):
        monkeypatch.setenv("ZOO", "x" * k)
        monkeypatch.setenv("HOME", f"/home/{'x' * k}")
        with opened(folder, code) as source:
            said.append([d.reason for d in decided(source)])
        os.utime(folder / "cheat.py", (k, k))
        time.sleep(1.1)  # the next second on every clock
    assert said[0] == said[1]


#: What the shell leaves in a process, and numbers that go up with what the machine does: an expression each.
STARTED = {
    "umask": "os.umask(0o22)",
    "signals": "[signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM)]",
    "blocked signals": "signal.pthread_sigmask(signal.SIG_BLOCK, [])",
    "limits": "[resource.getrlimit(k) for k in (3, 6, 7, 8, 11, 12, 13, 14)]",
    "limit on memory": "resource.getrlimit(resource.RLIMIT_DATA)",
    "priority": "quietly(lambda: os.getpriority(0, 0))",
    "terminal": "quietly(os.getlogin)",
    "inode of a pipe": "os.fstat(os.pipe()[0]).st_ino",
    "inode of memory": "os.fstat(os.memfd_create('x')).st_ino",
    "inode of its file": "os.stat(__file__)[:3]",
    "inode of a process": "quietly(lambda: os.fstat(os.pidfd_open(os.getpid())).st_ino)",
    "inode of a temporary file": "[e.inode() for e in os.scandir(written())]",
    "cookie of a socket": "quietly(lambda: socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 57, 8))",
}
NUMBERS = {
    "its process id": "os.getpid()",
    "its parent's process id": "os.getppid()",
    "its session": "(os.getsid(0), os.getpgrp())",
    "its thread's id": "threading.get_native_id()",
    "its child's process id": "libc.fork() or os._exit(0)",
    "its temporary folder": "tempfile.gettempdir()",
    "inode of a temporary file, past Python": "inode(written())",
}
QUIETLY = """
import resource, signal
def quietly(ask):
    try: return ask()
    except OSError as error: return error.errno
def inode(path):
    buffer = ctypes.create_string_buffer(256)
    libc.stat(os.fsencode(path), buffer)
    return struct.unpack_from("Q", buffer, 8)[0]
"""


def test_how_it_was_started_and_what_ran_before_is_the_same_for_it(folder: Path, lacking: set[str]) -> None:
    """In two runs of one process, and in one of a harness that was started with other limits, masks and signals."""
    if "seccomp" in lacking:
        pytest.skip("without it priorities and cookies can be asked for; G0 is undecidable")
    code = HELPERS + QUIETLY + answering(STARTED | NUMBERS)
    said = []
    with opened(folder, code) as source:
        for _ in range(2):
            said.append([d.reason for d in decided(source)])
        with started_otherwise():
            source.restart()
            said.append([d.reason for d in decided(source)])
        says = source.confinement
    assert says is not None and says.own_pids == says.namespaces
    told = len(STARTED) + (len(NUMBERS) if says.own_pids else 0)
    assert said[0][:told] == said[1][:told] == said[2][:told]
    assert len(said[0]) > len(STARTED) + len(NUMBERS)  # all were asked


@contextlib.contextmanager
def started_otherwise() -> Iterator[None]:
    """This process with an umask, signals and limits as some shells set them."""
    umask, hup = os.umask(0o27), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 2000), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGHUP, hup)
        os.umask(umask)


@pytest.mark.confined
def test_declared_variables_are_given_and_part_of_the_digest(folder: Path) -> None:
    code = """
        import os
        from protocol.scheduler import Decision
        def decide(obs):
            return Decision(True, reason=os.environ.get("LIMIT", "none"))
        """
    digests = []
    for given in ({}, {"LIMIT": "3"}, {"LIMIT": "4"}):
        with opened(folder, code, environment=given) as source:
            assert decided(source)[0].reason == given.get("LIMIT", "none")
            digests.append(source.digest())
            assert source.describe()["environment"] == given
    assert len(set(digests)) == 3
    for name in ("", "A=B", "TMPDIR", "PYTHONHASHSEED", "NUL\0"):
        with pytest.raises(BadInput, match="NAME=VALUE"):
            opened(folder, code, environment={name: "1"})


@pytest.mark.confined
def test_a_variable_that_has_programs_load_code_reaches_only_what_is_confined(folder: Path) -> None:
    """LD_PRELOAD in the host would run code of the user's before anything is confined."""
    mark = folder.parent / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    code = "def decide(obs):\n    return True\n"
    given = {"LD_PRELOAD": str(folder / "evil.so"), "PYTHONSTARTUP": str(folder / "evil.py"), "PYTHONPATH": str(folder)}
    with opened(folder, code, environment=given) as source:
        decided(source)
        assert source.host is not None
        seen = Path(f"/proc/{source.host.process.pid}/environ").read_bytes()
    assert b"evil" not in seen and b"PYTHONPATH" not in seen and not mark.exists()


@pytest.mark.confined
def test_a_file_that_is_read_later_and_not_digested_fails(folder: Path, tmp_path: Path, judge: Judge) -> None:
    """A module beside the interpreter's own, imported in some run only: `validate` names it, and G0 fails."""
    late = tmp_path / "path" / "late_table.py"
    late.parent.mkdir()
    late.write_text("LIMIT = 4\n")
    code = """
        import os
        class Late:
            def decide(self, obs):
                if obs.time_s > 30:
                    import late_table
                    return obs.in_flight < late_table.LIMIT
                return obs.in_flight < 4
        """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(late.parent), os.environ.get("PYTHONPATH", "")]))
        judged = judge(code)
    assert judged.refused and judged.check("inputs")["status"] == "failed"
    assert "late_table.py" in judged.reason and "the digest does not cover" in judged.reason


def test_a_database_is_a_file_that_it_reads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite opens files past Python: from a folder that no digest covers it is named; elsewhere it is refused."""
    late, far = tmp_path / "path" / "late.db", tmp_path / "far.db"
    late.parent.mkdir()
    for path in (late, far):
        with contextlib.closing(sqlite3.connect(path)) as made:
            made.execute("create table t (x)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(late.parent), os.environ.get("PYTHONPATH", "")]))
    code = f"""
        import sqlite3
        def decide(obs):
            sqlite3.connect(":memory:").execute("create table t (x)")
            if obs.time_s > 30:
                sqlite3.connect("file:{late}?mode=ro", uri=True).execute("select * from t").fetchall()
            return obs.in_flight < 4
        """
    with opened(folder, code) as source:
        decided(source)
        assert source.undigested == {"late.db"}
    far_away = f"import sqlite3\ndef decide(obs):\n    sqlite3.connect({str(far)!r}).execute('select * from t')\n"
    assert "may not read" in refusal(opened(folder, far_away))


def test_a_link_to_data_is_read_and_digested_unless_it_leads_to_what_is_hidden(
    folder: Path, tmp_path: Path, lacking: set[str]
) -> None:
    data, secret = tmp_path / "data.txt", tmp_path / "out"
    secret.mkdir()
    data.write_text("7"), (secret / "plan.txt").write_text("the root")
    (folder / "own.txt").symlink_to(data), (folder / "told.txt").symlink_to(secret / "plan.txt")
    (folder / "all").symlink_to(secret)
    code = """
        import ctypes
        from protocol.scheduler import Decision
        libc = ctypes.CDLL(None)
        def decide(obs):
            told = [libc.open(name, 0) for name in (b"told.txt", b"all/plan.txt")]
            return Decision(True, reason=open("own.txt").read() + str(told))
        """
    with opened(folder, code, hidden=[secret]) as source:
        assert decided(source)[0].reason == "7[-1, -1]"
        assert source.describe()["files"] == ["cheat.py", "own.txt"]


def test_nothing_of_outside_has_a_size_or_an_age(folder: Path, tmp_path: Path, lacking: set[str]) -> None:
    log, out = tmp_path / "scheduler.log", tmp_path / "out"
    out.mkdir()
    (out / ".partial").write_text("the root")
    code = f"""
        import ctypes, os
        from protocol.scheduler import Decision
        libc = ctypes.CDLL(None)
        def size(path):
            try: return os.stat(path).st_size
            except OSError: return None
        def decide(obs):
            print("x" * 1000)
            hidden = {str(out / ".partial")!r}
            seen = [size({str(log)!r}), size(hidden), libc.open(hidden.encode(), 0)]
            return Decision(True, reason=repr(seen))
        """
    with opened(folder, code, log_path=log, hidden=[out]) as source:
        first, again = decided(source), decided(source)
        assert first == again
        says = source.confinement
    assert says is not None and log.stat().st_size > 1000  # it is written once they are over
    assert first[0].reason.endswith("-1]")  # never read
    if says.namespaces:
        assert first[0].reason == "[None, None, -1]"
    assert says.reads_confined and (says.sound or "seccomp" in lacking)


def test_what_took_hold_is_known_and_what_did_not_is_said(folder: Path, lacking: set[str]) -> None:
    with opened(folder, "def decide(obs):\n    return True\n") as source:
        decided(source)
        says = source.confinement
    assert says is not None and says.describe()["gaps"] == list(says.gaps)
    assert (says.landlock_abi > 0, says.seccomp, says.namespaces) == tuple(
        part not in lacking for part in ("landlock", "seccomp", "namespaces")
    )
    assert bool(says.gaps) == bool(lacking - {"landlock"})


def test_without_any_of_it_reads_are_not_confined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.schedulers.process.WITHOUT", {"landlock", "namespaces"})
    with opened(folder, "def decide(obs):\n    return True\n") as source:
        says = source.confinement
    assert says is not None and not says.reads_confined and not says.sound
    assert says.gaps[0].startswith("reads of files are not confined: no Landlock, and no namespaces")


LIMITS = {
    "shared memory": (
        """
        import mmap
        hoard = []
        def decide(obs):
            hoard.append(mmap.mmap(-1, 1 << 27, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x8000))
            import time; time.sleep(0.2)
            return True
        """,
        "more than 300 MB of memory, shared memory and all its processes counted",
    ),
    "processes": (
        """
        import ctypes
        libc = ctypes.CDLL(None)
        def decide(obs):
            for k in range(100):
                if libc.fork() == 0:
                    while True: libc.sleep(1000)
            import time; time.sleep(1)
            return True
        """,
        "more than 64 processes",
    ),
    "many files": (
        """
        import os, tempfile, time
        def decide(obs):
            for k in range(10):
                with open(os.path.join(tempfile.gettempdir(), str(k)), "wb") as file:
                    file.write(bytes(40 << 20))
            time.sleep(1)
            return True
        """,
        "more than 256 MB in its temporary folder",
    ),
    "endless brackets": (
        """
        import os, stat
        out = []
        for fd in range(3, 64):
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b""); out.append(fd)
            except OSError: pass
        def decide(obs):
            os.write(out[0], b"[" * 60000 + b"\\n")
            return True
        """,
        "decide answered",
    ),
}


@pytest.mark.confined
@pytest.mark.parametrize("name", LIMITS)
def test_limits_count_everything_and_blame_the_scheduler(folder: Path, name: str) -> None:
    code, words = LIMITS[name]
    assert words in refusal(opened(folder, code, memory_limit_mb=300))


def test_a_campaign_has_an_end(folder: Path) -> None:
    source = opened(folder, "import time\ndef decide(obs):\n    time.sleep(0.05)\n    return True\n")
    source._left_s = source._campaign_s = 0.3
    assert "took more than 0.3 s for all of its runs together" in refusal(source)


# --- planners -------------------------------------------------------------------------------------------------------


def test_who_is_a_planner_is_read_off_the_text(folder: Path) -> None:
    """Nothing of a user's runs in the harness, whatever it says of itself once it runs."""
    mark = "import sys\nsys.modules['protocol'].HIJACKED = True\n"
    planner = "class P:\n    def plan(self, trace, corridor, budget):\n        raise ValueError('here')\n"
    (folder / "cheat.py").write_text(mark + planner)
    with open_scheduler(str(folder / "cheat.py")) as source:  # type: ignore[union-attr]
        assert isinstance(source, PlannerSource)
    import protocol

    assert not hasattr(protocol, "HIJACKED")
    late = "class P:\n    def decide(self, obs):\n        return True\nP.plan = P.decide\ndel P.decide\n"
    with pytest.raises(BadInput, match="P without decide"):
        opened(folder, late)
    made = "exec('class P:\\n    def plan(self, trace, corridor, budget): return None')\n"
    with pytest.raises(BadInput, match="found no scheduler"):
        opened(folder, made)


# --- the shared cases -----------------------------------------------------------------------------------------------


@pytest.fixture
def round2(shared_cases: Path) -> Path:
    return shared_cases / "round2"


def of_round_2(round2: Path, folder: Path, name: str, **options: object) -> ProcessSource:
    shutil.copy(round2 / name, folder)
    source = open_scheduler(str(folder / name), **options)  # type: ignore[arg-type]
    assert isinstance(source, ProcessSource)
    return source


def test_an_hour_later_the_hour_is_the_same_and_reading_it_is_an_error(round2: Path, folder: Path) -> None:
    with of_round_2(round2, folder, "sched_hour_clock.py") as source:
        now = decided(source)
        assert [f.check for f in check_scheduler(source, 60) if f.level == "error"] == ["clock"]
    with of_round_2(round2, folder, "sched_hour_clock.py") as source:
        assert decided(source) == now


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sched_shared_memory.py", "more than 2048 MB of memory"),
        ("sched_endless_brackets.py", "decide answered"),
        ("sched_escape_codes_in_error.py", "ValueError"),
    ],
)
def test_cases_of_round_2_are_refused(round2: Path, folder: Path, name: str, words: str) -> None:
    if name == "sched_shared_memory.py" and os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 << 30:
        pytest.skip("needs 8 GiB of free memory")
    with of_round_2(round2, folder, name) as source, pytest.raises(SchedulerError) as caught:
        decided(source)
    assert words in str(caught.value) and str(caught.value).startswith("sched_")
