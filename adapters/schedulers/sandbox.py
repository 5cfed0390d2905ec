"""What a scheduler's process may not do, as far as the operating system can enforce it.

On Linux with Landlock (5.13 and later; no privilege needed): read nothing but the paths granted, write
nothing but the scratch folder, trace or read the memory of no process outside, open no TCP connection (6.7)
and signal no process outside (6.12).  Everywhere: a Python audit hook refuses new processes, sockets and
files outside the grants (it binds well-behaved code only), and limits on memory and file size.

Runs in the child: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _SET_CHILD_SUBREAPER = 1, 38, 36
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
#: Rights known to each Landlock ABI: 13 from the first, then refer, truncate and device ioctl.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ON_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_LINUX = sys.platform == "linux"
_libc: Any = ctypes.CDLL(None, use_errno=True) if _LINUX else None
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
#: What programs need of the system; nothing of /etc that tells one machine from another.
SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store", "/snap", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/ssl",
)  # fmt: skip


def end_with_parent(sign: int) -> None:
    """Ask for a signal when the parent dies."""
    if _LINUX:
        _libc.prctl(_SET_PDEATHSIG, int(sign), 0, 0, 0)


def die_with_parent(parent: int, sign: int) -> None:
    """Ask for a signal when the parent dies, and act at once if it is dead already."""
    end_with_parent(sign)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can slip away."""
    if _LINUX:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


#: A descriptor of /proc for a host that no longer sees it.
_proc: int | str = "/proc"


def keep_proc() -> None:
    """Keep /proc reachable for this process after its root has changed."""
    global _proc
    if os.path.isdir("/proc/self"):
        _proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _read_proc(name: str) -> bytes:
    where = None if isinstance(_proc, str) else _proc
    handle = os.open(f"/proc/{name}" if where is None else name, os.O_RDONLY, dir_fd=where)
    try:
        return os.read(handle, 1 << 16)
    finally:
        os.close(handle)


def _parents() -> dict[int, int]:
    """Every living process's parent."""
    found: dict[int, int] = {}
    try:
        names = os.listdir(_proc)
    except OSError:
        return found
    for name in names:
        if name.isdigit():
            try:
                fields = _read_proc(f"{name}/stat").rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if fields[0] != b"Z":
                found[int(name)] = int(fields[1])
    return found


def children() -> list[int]:
    """Process ids of this process's children."""
    mine = os.getpid()
    return [pid for pid, parent in _parents().items() if parent == mine]


def descendants() -> list[int]:
    """Process ids of this process's children, theirs, and so on."""
    parents = _parents()
    found, todo = [], [os.getpid()]
    while todo:
        here = todo.pop()
        mine = [pid for pid, parent in parents.items() if parent == here]
        found += mine
        todo += mine
    return found


def resident_bytes(pid: int | str) -> int:
    """Memory that a process holds of its own: private pages and shared ones that are backed by no file."""
    try:
        lines = _read_proc(f"{pid}/status").splitlines()
    except OSError:
        return 0
    counted = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(counted))


def data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    if not _LINUX:
        return 0
    return int(_read_proc("self/statm").split()[5]) * resource.getpagesize()


def folder_bytes(path: str) -> int:
    """Bytes that the files of a folder occupy."""
    total, todo = 0, [path]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except OSError:  # it ended meanwhile
            continue
    return total


def kill_descendants(leader: int = 0) -> None:
    """Kill and reap every child, and what they leave behind, until there is none.

    `leader` is a child that leads its own process group: all that can be found where there is no /proc.
    """
    if leader:
        for kill in (os.killpg, os.kill):
            try:
                kill(leader, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid in children():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


#: Limits that are the same for all, by RLIMIT name: files, processes, stack, locked memory, queues, signals and
#: priorities.
_CONSTANT_LIMITS = {
    "NOFILE": 1024, "NPROC": 1 << 14, "STACK": 8 << 20, "MEMLOCK": 64 << 10, "MSGQUEUE": 0, "SIGPENDING": 1024,
    "NICE": 0, "RTPRIO": 0, "CPU": 1 << 30,
}  # fmt: skip


def forget_the_shell() -> None:
    """Nothing that whoever started the harness left in its process shows: signals ignored or blocked, the umask."""
    os.umask(0o077)
    if _LINUX:
        _libc.personality(0)  # which kernel it is told to be, and whether addresses are drawn
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except (AttributeError, OSError):  # not on Linux, or of a policy that may not be left
        pass
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def limit(memory_bytes: int, file_bytes: int) -> list[str]:
    """Bound this process's private writable memory and the size of a file that it writes; the limits that hold.

    RLIMIT_DATA counts private writable memory; RLIMIT_AS would also count what runtimes only reserve.
    Other limits come from the shell and would be an input: they are set to constants, where those are not above them.
    """
    held = []
    for name, value in _CONSTANT_LIMITS.items():
        try:
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        except (AttributeError, ValueError, OSError):  # no such limit here
            continue
    for name, value in (("DATA", memory_bytes), ("FSIZE", file_bytes), ("CORE", 0)):
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except (ValueError, OSError):  # a lower hard limit is already set
            continue
        held.append(name)
    return held


def _expand(path: str, hidden: frozenset[str]) -> Iterable[tuple[str, bool]]:
    """Grants (path, whole) that together cover `path` without the hidden ones beneath it."""
    if path in hidden:
        return
    if not any(secret.startswith(path.rstrip("/") + "/") for secret in hidden):
        yield path, True
        return
    yield path, False
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return
    for name in names:
        yield from _expand(os.path.join(path, name), hidden)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def outermost(paths: Iterable[str], hidden: Iterable[str]) -> list[str]:
    """Those of `paths`, links resolved, that no other one covers; a hidden path between two parts them."""
    kept: list[str] = []
    for path in sorted(paths):
        secrets = [h for h in hidden if _within(path, h)]
        if not any(_within(path, k) and not any(_within(h, k) for h in secrets) for k in kept):
            kept.append(path)
    return kept


def landlock_abi() -> int:
    """Version of the kernel's Landlock, 0 where there is none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)) if _LINUX else 0


def restrict(readable: Iterable[str], listable: Iterable[str], writable: Iterable[str], hidden: Iterable[str]) -> bool:
    """Confine this process and all that it starts, for good.  False where the kernel cannot.

    `readable` paths have their links resolved; `listable` folders may be listed but not read; `hidden` names files and
    folders that stay unreadable although they lie beneath a readable one.
    """
    abi = landlock_abi()
    if abi < 1:
        return False
    rights = _FILE_RIGHTS.get(abi, (1 << 16) - 1)
    attributes = struct.pack("<QQQ", rights, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False

    def grant(path: str, allowed: int) -> None:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        if not os.path.isdir(path):
            allowed &= _ON_A_FILE
        _libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("<Qi", allowed & rights, handle), 0)
        os.close(handle)

    read, secret = _EXECUTE | _READ_FILE | _READ_DIR, frozenset(map(os.path.realpath, hidden))
    for path in readable:
        for part, whole in _expand(path, secret):
            # The folder above a hidden file may be listed; only its other entries may be read.
            grant(part, read if whole else _READ_DIR)
    for path in listable:
        grant(path, _READ_DIR)
    for path in writable:
        grant(path, rights)
    for path in _DEVICES:
        grant(path, _READ_FILE | _WRITE_FILE)
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    done = _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return bool(done)


_PROCESSES = ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "subprocess.Popen")
_SOCKETS = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo")


def audit(
    readable: Iterable[str], writable: Iterable[str], hidden: Iterable[str], opened: Callable[[str], None]
) -> None:
    """Refuse, as PermissionError, new processes, sockets and files outside the grants; report files read.

    `readable` paths have their links resolved.
    """
    roots = tuple(readable)
    scratch = tuple({os.path.realpath(p) for p in writable})
    secrets = tuple({os.path.realpath(p) for p in hidden})
    realpath, fspath, fsdecode = os.path.realpath, os.fspath, os.fsdecode
    # A name beside a folder's descriptor is reported as if it stood alone: folders are removed by their paths.
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    write_flags = os.O_WRONLY | os.O_RDWR

    def beneath(path: str, folders: tuple[str, ...]) -> bool:
        return any(_within(path, f) for f in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":  # opened past Python
            name = fsdecode(fspath(arguments[0]))
            if name not in ("", ":memory:"):
                hook("open", (name.removeprefix("file:").partition("?")[0], "r", 0))
        elif event == "open":
            if isinstance(arguments[0], int) or arguments[0] is None:
                return
            path = realpath(fsdecode(fspath(arguments[0])))
            if path in _DEVICES or beneath(path, scratch):
                return
            mode, flags = arguments[1], arguments[2]
            writes = bool(flags & write_flags) if isinstance(flags, int) else False
            writes = writes or (isinstance(mode, str) and any(c in mode for c in "wax+"))
            if writes or beneath(path, secrets) or not beneath(path, roots):
                raise PermissionError(f"a scheduler may not {'write' if writes else 'read'} {path}")
            opened(path)
        elif event in _PROCESSES:
            raise PermissionError(f"a scheduler may not start another process ({event})")
        elif event in _SOCKETS:
            raise PermissionError(f"a scheduler may not use the network ({event})")

    sys.addaudithook(hook)


def own_output() -> list[Path]:
    """Files to which this process's own output goes: they grow while it judges, and are no part of a scheduler."""
    found = []
    for descriptor in (1, 2):
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        except OSError:
            continue
    return found
