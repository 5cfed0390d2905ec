"""A file system, network and host name of its own for a scheduler's host, by Linux namespaces.

The host and all that it starts see a root that holds what was granted and nothing else, so that what is not granted
can neither be read nor have its size or times looked at.  The scheduler's own folder is a copy of the files that its
digest covers.  Needs root, or user namespaces; where there are none, the reason is returned and nothing is changed.

Runs in the child: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
)  # fmt: skip
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PIVOT_ROOT, _CLONE = {"x86_64": 155, "aarch64": 41}, {"x86_64": 56, "aarch64": 220}
_BOUNDING_SET_DROP, _DETACH, _NOSUID_NODEV = 24, 2, 2 | 4
#: Mount flags that a new mount must keep, by their bits in statvfs: no-suid, no-dev, no-exec, no-atime and kin.
_KEPT = 2 | 4 | 8 | 1024 | 2048 | 4096
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_HOST_NAME = b"scheduler"
#: Where a host's folder lies in the root that it makes: the same for all, since a name would be an input.
INSIDE = "/run/scheduler"
_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _Failed(Exception):
    pass


def _must(result: int, what: str) -> None:
    if result != 0:
        raise _Failed(f"{what}: {os.strerror(ctypes.get_errno())}")


def enter() -> str | None:
    """Leave the machine's namespaces, before any thread is started.  The reason where that is refused."""
    if _libc is None or os.uname().machine not in _PIVOT_ROOT:
        return "no namespaces on this system"
    uid, gid = os.geteuid(), os.getegid()
    own = _NEWNS | _NEWUTS | _NEWIPC | _NEWNET
    try:
        if uid != 0 or _libc.unshare(own) != 0:
            _must(_libc.unshare(own | _NEWUSER), "unshare")
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as handle:
                    handle.write(text)
        _must(_libc.sethostname(_HOST_NAME, len(_HOST_NAME)), "sethostname")
        _mount("none", "/", _REC | _PRIVATE)
    except (_Failed, OSError) as error:
        return str(error)
    return None


def only_writable(folder: str, path: str) -> str | None:
    """Of the host's folder nothing but `path` stays writable, for this process and all that it starts.

    What lies beside would be a place for notes to later runs.  The reason where that is refused.
    """
    try:
        _must(_libc.unshare(_NEWNS), "unshare")
        _mount("none", "/", _REC | _PRIVATE)
        _mount(path, path, _BIND)
        _mount("none", folder, _BIND | _REMOUNT | _RDONLY | os.statvfs(folder).f_flag & _KEPT)
    except _Failed as error:
        return str(error)
    return None


def first_process() -> int:
    """Fork the first process of a PID namespace of its own: what `os.fork` returns, or -1 where that is refused.

    What it forks gets the same numbers in every run, and ends with it.  For a process without threads: Python is told
    nothing, so the first process does little more than to fork again.
    """
    number = _CLONE.get(os.uname().machine) if _libc is not None else None
    if number is None:
        return -1
    # With the interpreter's lock held throughout.
    return int(ctypes.PyDLL(None).syscall(number, _NEWPID | signal.SIGCHLD, None, None, None, None))


def see_to_its_end(run: int, tell: int) -> NoReturn:
    """The life of a first process: reap until `run` ends, write its wait status to `tell`, end what is left."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which a first process does not heed
    for low, high in ((0, tell), (tell + 1, 1 << 16)):
        os.closerange(low, high)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == run:
            os.write(tell, status.to_bytes(4, "little"))
            os._exit(0)


def empty_folder(path: str, limit_mb: int) -> bool:
    """Mount an empty file system on `path`, whose inodes are counted from its beginning.  False where refused."""
    try:
        _mount("none", path, _NOSUID_NODEV, "tmpfs", f"mode=700,size={limit_mb}m")
    except _Failed:
        return False
    return True


def drop_folder(path: str) -> None:
    """Undo `empty_folder`; what it held is gone."""
    _libc.umount2(os.fsencode(path), _DETACH)


def private_memory() -> None:
    """System V memory, semaphores and queues that no other run sees."""
    _libc.unshare(_NEWIPC)


def drop_privileges() -> None:
    """Give up every capability but reading one's own files as root, for good."""
    for capability in range(41):
        if capability != 1 or os.geteuid() != 0:
            _libc.prctl(_BOUNDING_SET_DROP, capability, 0, 0, 0)
    kept = 2 if os.geteuid() == 0 else 0
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _libc.capset(header, sets)


def _mount(source: str, target: str, flags: int, kind: str | None = None, data: str | None = None) -> None:
    arguments = [None if a is None else os.fsencode(a) for a in (source, target, kind, data)]
    _must(_libc.mount(arguments[0], arguments[1], arguments[2], flags, arguments[3]), f"mount {target}")


def _bind(path: str, root: str, read_only: bool = True, deep: bool = True, inside: str | None = None) -> None:
    target = root + (inside or path)
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a"):
            pass
    _mount(path, target, _BIND | (_REC if deep else 0))
    if read_only:
        kept = os.statvfs(target).f_flag & _KEPT
        _mount("none", target, _BIND | _REMOUNT | _RDONLY | kept)


def _links(path: str) -> Iterable[tuple[str, str]]:
    """Symbolic links on the way to a path, and where they lead."""
    here, seen = "", 0
    parts = [p for p in path.split("/") if p]
    while parts and seen < 100:
        seen += 1
        here += "/" + parts.pop(0)
        if os.path.islink(here):
            leads = os.readlink(here)
            yield here, leads
            there = os.path.normpath(os.path.join(os.path.dirname(here), leads))
            parts, here = [p for p in there.split("/") if p] + parts, ""


def build(root: str, readable: Sequence[str], folder: str, files: Sequence[str], hidden: Sequence[str],
          writable: str) -> str | None:  # fmt: skip
    """Make `root` the root: grants read-only, the folder's files copied, one folder writable, as `INSIDE`.

    Returns the reason if refused.

    A refusal leaves nothing mounted beneath `root`: whoever tidies up there would tidy the user's files.
    """
    os.makedirs(root, exist_ok=True)
    try:
        _mount("none", root, 0, "tmpfs", "mode=755")
    except _Failed as error:
        return str(error)
    refused = _fill(root, readable, folder, files, hidden, writable)
    if refused is not None and _libc.umount2(os.fsencode(root), _DETACH) != 0:
        os._exit(1)
    return refused


def _fill(root: str, readable: Sequence[str], folder: str, files: Sequence[str], hidden: Sequence[str],
          writable: str) -> str | None:  # fmt: skip
    try:
        beneath = [p for p in readable if not _inside(p, folder) or p == folder and not files]
        real = sorted({os.path.realpath(p) for p in beneath if os.path.exists(p)})
        for path in real:
            if not any(_inside(path, other) for other in real if other != path):
                _bind(path, root)
        if files and not any(_inside(folder, p) for p in real):
            _copy(root, folder, files, [os.path.realpath(p) for p in readable if _inside(p, folder) and p != folder])
        for path in hidden:
            if os.path.exists(root + path):
                _cover(root + path)
        for path in _DEVICES:
            _bind(path, root, read_only=False)
        _bind(writable, root, read_only=False, deep=False, inside=INSIDE)
        for path in readable:
            for link, leads in _links(path):
                if not os.path.lexists(root + link):
                    os.makedirs(os.path.dirname(root + link), exist_ok=True)
                    os.symlink(leads, root + link)
        wanted = (sys.executable, *readable, *(os.path.realpath(p) for p in files if not _inside(p, folder)))
        missing = [p for p in wanted if os.path.exists(p) and not _there(root, p, hidden)]
        missing += [p for p in files if _inside(p, folder) and not os.path.isfile(root + p)]
        if missing:
            return f"{missing[0]} is missing from the new root"
        old = os.path.join(root, ".old")
        os.mkdir(old)
        _must(_libc.syscall(_PIVOT_ROOT[os.uname().machine], os.fsencode(root), os.fsencode(old)), "pivot_root")
        os.chdir("/")
        _must(_libc.umount2(b"/.old", _DETACH), "umount")
        os.rmdir("/.old")
        _mount("none", "/", _BIND | _REMOUNT | _RDONLY)
    except (_Failed, OSError) as error:
        return str(error)
    return None


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _there(root: str, path: str, hidden: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return os.path.exists(root + real) or any(_inside(real, h) for h in hidden)


def _copy(root: str, folder: str, files: Sequence[str], inside: Sequence[str]) -> None:
    """The scheduler's folder: its digested files, all of one age, and what else was granted beneath it."""
    target = root + folder
    os.makedirs(target, exist_ok=True)
    _mount("none", target, 0, "tmpfs", "mode=755")
    for path in files:
        if _inside(path, folder):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            shutil.copyfile(path, root + path)
            os.chmod(root + path, 0o555 if os.stat(path).st_mode & 0o111 else 0o444)
        elif not os.path.exists(root + path):
            _bind(path, root)
    for path in inside:
        if not any(_inside(path, f) for f in files):
            _bind(path, root)
    for at, folders, names in os.walk(target, topdown=False):
        for name in (*names, *folders):
            if not os.path.islink(os.path.join(at, name)) and _same_device(os.path.join(at, name), target):
                os.utime(os.path.join(at, name), (0, 0))
    _mount("none", target, _BIND | _REMOUNT | _RDONLY)


def _same_device(path: str, other: str) -> bool:
    return os.stat(path).st_dev == os.stat(other).st_dev


def _cover(path: str) -> None:
    if os.path.isdir(path):
        _mount("none", path, _RDONLY, "tmpfs", "mode=000")
    else:
        _mount("/dev/null", path, _BIND)
