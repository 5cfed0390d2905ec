"""The system-call filter by itself, each call in a process that has no other confinement."""

from __future__ import annotations

import platform
import struct
import subprocess
import sys
import textwrap

import pytest

from adapters.schedulers import syscalls

known_machine = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in syscalls._MACHINES, reason="needs seccomp on a known machine"
)


def confined(code: str, signals: bool = False) -> str:
    """What a process prints that has given up these calls first."""
    before = f"""
        import ctypes, os, resource, signal, socket, sys
        from adapters.schedulers import syscalls
        libc = ctypes.CDLL(None, use_errno=True)
        assert syscalls.forbid(signals={signals})
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
        "os.statvfs('/')",
        "os.preadv(os.open(sys.executable, 0), [bytearray(9)], 0, os.RWF_NOWAIT)",
        "libc.mincore(None, 0, None)",
        "libc.syscall(425, 1, None)",
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
def test_signals_where_landlock_does_not_scope_them() -> None:
    code = """
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
        os.kill(os.getpid(), signal.SIGUSR1), signal.raise_signal(signal.SIGUSR1)
        print(len(got), *(error(lambda: os.kill(pid, 0)) for pid in (os.getppid(), 0, -1, 1)))
        """
    assert confined(code, signals=True) == "2 1 1 1 1"


#: What the filter refuses on each machine whatever the arguments, as first shipped; ioctl and fcntl by their argument.
REFUSED = {
    "x86_64": """27 29-31 41 64-66 68-71 90-94 101 103 132 137 138 141 142 144 155 159 161 163-171 175 176 179 188-190
        197-199 220 227 235 240 241 246 248-251 260 261 268 272 280 298 305 308 310-314 321 323 327 328 425 428-430
        438 442 451 452 463 466 469""",
    "aarch64": """5-7 14-16 30 39-41 43 44 51-55 60 88 89 97 104-106 112 116-119 140 142 161 162 170 171 180 181
        186-196 198 217-219 224 225 232 241 266 268 270-274 280 282 286 287 425 428-430 438 442 451 452 463 466 469""",
}
ALLOW, EPERM, ENOTTY = 0x7FFF0000, 0x50001, 0x50019


def answer(program: bytes, architecture: int, number: int, first: int = 0, second: int = 0) -> int:
    """What the filter returns for a call, by interpreting its instructions as the kernel does."""
    data = struct.pack("<IIQQQ", number, architecture, 0, first, second)
    at, word = 0, 0
    while True:
        code, yes, no, operand = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            word = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x06:
            return operand
        else:
            at += yes if (word == operand if code == 0x15 else word >= operand) else no


@pytest.mark.parametrize(
    ("machine", "architecture", "own_only", "signals", "ioctl", "fcntl"),
    [
        ("x86_64", 0xC000003E, {203, 302}, {62, 129, 200, 234, 297, 424}, 16, 72),
        ("aarch64", 0xC00000B7, {122, 261}, {129, 130, 131, 138, 240, 424}, 29, 25),
    ],
)
def test_every_number(
    machine: str, architecture: int, own_only: set[int], signals: set[int], ioctl: int, fcntl: int
) -> None:
    ranges = [part.split("-") for part in REFUSED[machine].split()]
    refused = {n for low, *high in ranges for n in range(int(low), int((high or [low])[0]) + 1)}
    plain, scoped = (syscalls._program(machine, pid) for pid in (None, 77))
    for number in range(600):
        got = answer(plain, architecture, number, 1, 1), answer(scoped, architecture, number, 1, 1)
        if number in refused | own_only:
            assert got == (EPERM, EPERM), number
        elif number == ioctl:
            assert got == (ENOTTY, ENOTTY)
        else:
            assert got == (ALLOW, EPERM if number in signals else ALLOW), number
    assert {answer(plain, architecture, n) for n in own_only} == {ALLOW}
    assert {answer(scoped, architecture, n, 77) for n in signals} == {ALLOW}
    assert (
        answer(plain, architecture, ioctl, 0, 0x5413) == ALLOW
        and answer(plain, architecture, ioctl, 0, 0x6602) == ENOTTY
    )
    assert answer(plain, architecture, fcntl, 0, 1036) == EPERM and answer(plain, architecture, fcntl, 0, 3) == ALLOW
    assert answer(plain, 0x40000003, 4) == EPERM  # a 32-bit call
    assert (answer(plain, architecture, 0x40000001) == EPERM) == (machine == "x86_64")  # an x32 call
