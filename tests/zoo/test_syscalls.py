"""The system-call filter by itself, each call in a process that has no other confinement."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest

from adapters.schedulers import syscalls

pytestmark = pytest.mark.skipif(
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
        "libc.syscall(425, 1, None)",
    ],
)
def test_what_it_refuses(call: str) -> None:
    assert confined(f"print(error(lambda: {call}))") == "1"


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


def test_signals_where_landlock_does_not_scope_them() -> None:
    code = """
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
        os.kill(os.getpid(), signal.SIGUSR1), signal.raise_signal(signal.SIGUSR1)
        print(len(got), *(error(lambda: os.kill(pid, 0)) for pid in (os.getppid(), 0, -1, 1)))
        """
    assert confined(code, signals=True) == "2 1 1 1 1"
