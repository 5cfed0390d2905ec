"""The system-call filter by itself, each call in a process that has no other confinement."""

from __future__ import annotations

import fcntl
import platform
import struct
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.schedulers import syscalls

known_machine = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in syscalls._MACHINES, reason="needs seccomp on a known machine"
)


def confined(code: str, signals: bool = False, clocks: bool = False) -> str:
    """What a process prints that has given up these calls first."""
    before = f"""
        import ctypes, os, resource, signal, socket, sys
        from adapters.schedulers import syscalls
        libc = ctypes.CDLL(None, use_errno=True)
        assert syscalls.forbid(signals={signals}, clocks={clocks})
        def error(what):
            try:
                result = what()
            except OSError as problem:
                return problem.errno
            return ctypes.get_errno() if result == -1 else 0
        """
    script = textwrap.dedent(before) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@known_machine
@pytest.mark.parametrize(
    "call",
    [
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "os.chmod('/', 0o755)",
        "os.utime('/')",
        "os.chown('/', -1, -1)",
        "os.setxattr('/', 'user.a', b'')",
        "os.nice(0) if False else os.setpriority(0, os.getppid(), 19)",
        "os.sched_setaffinity(os.getppid(), {0})",
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)",
        "libc.shmget(5150, 8, 0o1666)",
        "libc.ptrace(16, os.getppid(), 0, 0)",
        "libc.unshare(0)",
        "__import__('fcntl').fcntl(0, 1024, 0)",
        "os.statvfs('/')",
        "os.preadv(os.open(sys.executable, 0), [bytearray(9)], 0, os.RWF_NOWAIT)",
        "libc.mincore(None, 0, None)",
        "libc.syscall(425, 1, None)",
        "os.getpriority(0, 0)",
        "os.pidfd_open(os.getpid())",
        "libc.inotify_init()",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 35, 1)",
        "socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 57, 8)",
    ],
)
def test_what_it_refuses(call: str) -> None:
    assert confined(f"print(error(lambda: {call}))") == "1"


@known_machine
def test_what_it_leaves() -> None:
    """Files, memory, threads, children, own limits, own signals and socket pairs stay."""
    done = confined(
        """
        import fcntl, tempfile, termios, threading
        import numpy as np
        a, b = socket.socketpair()
        a.send(b"x"), b.recv(1)
        os.set_blocking(a.fileno(), False)
        with tempfile.TemporaryFile() as f:
            f.write(b"x"), f.flush(), fcntl.fcntl(f, fcntl.F_GETFL), fcntl.flock(f, fcntl.LOCK_EX), f.isatty()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        pid = os.fork()
        if not pid: os._exit(0)
        os.kill(pid, 0)
        os.waitpid(pid, 0)
        thread = threading.Thread(target=np.linalg.inv, args=(np.eye(300),))
        thread.start(), thread.join()
        print(error(lambda: fcntl.ioctl(0, 0x40086602, bytes(8))))
        """
    )
    assert done == "25"


@known_machine
def test_a_lock_succeeds_and_locks_nothing(tmp_path: Path) -> None:
    """What one process locks another one would see: it may lock, and is told nothing."""
    path = tmp_path / "locked"
    path.touch()
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        code = f"""
            import fcntl
            file = open({str(path)!r}, "a")
            how = fcntl.LOCK_EX | fcntl.LOCK_NB
            print(error(lambda: fcntl.flock(file, how)), error(lambda: fcntl.lockf(file, how)))
            """
        assert confined(code) == "0 0"


@known_machine
def test_waits_until_a_time_tell_nothing(tmp_path: Path) -> None:
    """Whether a moment is past on the kernel's own clock: the answer is the same for the past and the future."""
    code = """
        import struct, threading
        lock = threading.Lock()
        lock.acquire()
        for when in (1, 10**9):
            moment = struct.pack("qqqq", 0, 0, when, 0)
            print(lock.acquire(timeout=when), libc.clock_nanosleep(0, 1, moment[16:], None),
                  libc.timerfd_settime(libc.timerfd_create(0, 0), 1, moment, None))
        print(libc.clock_nanosleep(0, 0, struct.pack("qq", 0, 1), None), lock.acquire(timeout=0))
        """
    assert confined(code, clocks=True).splitlines() == ["False 1 -1", "False 1 -1", "0 False"]


@known_machine
def test_signals_where_landlock_does_not_scope_them() -> None:
    code = """
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
        os.kill(os.getpid(), signal.SIGUSR1), signal.raise_signal(signal.SIGUSR1)
        print(len(got), *(error(lambda: os.kill(pid, 0)) for pid in (os.getppid(), 0, -1, 1)))
        """
    assert confined(code, signals=True) == "2 1 1 1 1"


#: What the filter refuses on each machine whatever the arguments; ioctl, fcntl and getsockopt by their argument.
REFUSED = {
    "x86_64": """27 29-31 41 54 64-66 68-71 90-94 101 103 132 135-145 148 155 159 161 163-171 175 176 179 187-190
        197-199 220 221 227 235 240 241 246 248-253 260 261 268 272 280 294 298 300 303-305 308 310-315 321
        323 327 328 425 428-430 434 438 442 451 452 457 458 463 466 469""",
    "aarch64": """5-7 14-16 26 30 31 39-41 43 44 51-55 60 88 89 92 97 104-106 112 116-121 127 140-142 161 162 170 171
        180 181 186-196 198 208 213 217-219 223-225 232 241 262 264-266 268 270-275 280 282 286 287 425 428-430
        434 438 442 451 452 457 458 463 466 469""",
}
ALLOW, DONE, EPERM, ENOTTY, ENOSYS, ETIMEDOUT = 0x7FFF0000, 0x50000, 0x50001, 0x50019, 0x50026, 0x5006E


def answer(
    program: bytes, architecture: int, number: int, first: int = 0, second: int = 0, third: int = 0, fourth: int = 0
) -> int:
    """What the filter returns for a call, by interpreting its instructions as the kernel does."""
    data = struct.pack("<IIQQQQQ", number, architecture, 0, first, second, third, fourth)
    at, word = 0, 0
    while True:
        code, yes, no, operand = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            word = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x06:
            return operand
        elif code == 0x54:
            word &= operand
        else:
            at += yes if {0x15: word == operand, 0x35: word >= operand, 0x45: bool(word & operand)}[code] else no


@dataclass(frozen=True)
class Numbers:
    """System calls of a machine, by what is asked of their arguments."""

    architecture: int
    own_only: set[int]
    signals: set[int]
    absent: set[int]
    until: set[int]
    ioctl: int
    fcntl: int
    getsockopt: int
    flock: int
    futex: int
    madvise: int


X86_64 = Numbers(
    0xC000003E, {203, 302}, {62, 129, 200, 234, 297, 424}, {332, 449, 455}, {223, 230, 286}, 16, 72, 55, 73, 202, 28
)
AARCH64 = Numbers(
    0xC00000B7, {122, 261}, {129, 130, 131, 138, 240, 424}, {291, 449, 455}, {86, 110, 115}, 29, 25, 209, 32, 98, 233
)


@pytest.mark.parametrize(("machine", "calls"), [("x86_64", X86_64), ("aarch64", AARCH64)])
def test_every_number(machine: str, calls: Numbers) -> None:
    architecture, own_only, signals, ioctl = calls.architecture, calls.own_only, calls.signals, calls.ioctl
    fcntl = calls.fcntl
    ranges = [part.split("-") for part in REFUSED[machine].split()]
    refused = {n for low, *high in ranges for n in range(int(low), int((high or [low])[0]) + 1)}
    plain, scoped = (syscalls._program(machine, pid) for pid in (None, 77))
    otherwise = dict.fromkeys(calls.absent, ENOSYS) | {ioctl: ENOTTY, calls.flock: DONE, calls.getsockopt: EPERM}
    for number in range(600):
        got = answer(plain, architecture, number, 1, 1, 1), answer(scoped, architecture, number, 1, 1, 1)
        if number in refused | own_only:
            assert got == (EPERM, EPERM), number
        elif number in otherwise:
            assert got == (otherwise[number],) * 2, number
        else:
            assert got == (ALLOW, EPERM if number in signals else ALLOW), number
    assert {answer(plain, architecture, n) for n in own_only} == {ALLOW}
    assert {answer(scoped, architecture, n, 77) for n in signals} == {ALLOW}
    assert (
        answer(plain, architecture, ioctl, 0, 0x5413) == ALLOW
        and answer(plain, architecture, ioctl, 0, 0x6602) == ENOTTY
    )
    commands = {3: ALLOW, 1036: EPERM, 1024: EPERM, 6: DONE, 37: DONE, 36: EPERM, 8: EPERM, 10: EPERM, 11: EPERM}
    assert {c: answer(plain, architecture, fcntl, 0, c) for c in commands} == commands
    advice = {3: ALLOW, 4: ALLOW, 20: EPERM, 21: EPERM}
    assert {a: answer(plain, architecture, calls.madvise, 0, 4096, a) for a in advice} == advice
    options = {4: ALLOW, 35: EPERM, 57: EPERM}
    assert {o: answer(plain, architecture, calls.getsockopt, 3, 1, o) for o in options} == options
    timed = syscalls._program(machine, None, clocks=True)
    assert {answer(timed, architecture, n, 0, 1) for n in calls.until} == {EPERM}
    assert {answer(timed, architecture, n, 0, 2) for n in calls.until} == {ALLOW}
    for operation, pointer, expected in (
        (9, 0, ALLOW), (9 | 128, 77, ETIMEDOUT), (9 | 256, 1 << 32, ETIMEDOUT), (6, 77, ETIMEDOUT), (11, 77, ETIMEDOUT),
        (13, 77, ETIMEDOUT), (0, 77, ALLOW), (1, 77, ALLOW), (13, 0, ALLOW),
    ):  # fmt: skip
        assert answer(timed, architecture, calls.futex, 77, operation, 1, pointer) == expected, operation
        assert answer(plain, architecture, calls.futex, 77, operation, 1, pointer) == ALLOW
    assert answer(plain, 0x40000003, 4) == EPERM  # a 32-bit call
    assert (answer(plain, architecture, 0x40000001) == EPERM) == (machine == "x86_64")  # an x32 call
