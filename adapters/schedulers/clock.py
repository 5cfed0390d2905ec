"""Simulated time for a run: what its code reads off any clock is the time of its observation.

On Linux and x86-64 the functions with which C and Python alike read clocks live in a page that the kernel maps into
the process (the vDSO).  Here they are overwritten, in this process only, by a few instructions that read a table; the
system calls behind them are refused by `adapters.schedulers.syscalls`.  Elsewhere Python's own functions are replaced,
which binds Python code only.  Time stamps of files are set to the beginning of simulated time for Python code.

Runs in the child: standard library only.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import mmap
import os
import platform
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

#: Simulated wall-clock time at the beginning of a run: 2020-01-01, in seconds since 1970.
EPOCH_S = 1_577_836_800
_HEADER = 33  # AT_SYSINFO_EHDR
_NANOSECONDS = 1_000_000_000
#: How long a thread naps that waits for its turn, where its table has that; see `_brief_waits`.
_NAP_NS, _NAP_AT = 50_000, 512
#: Clocks that count from 1970; all others count from the beginning of the run.
_WALL = (0, 5, 11)
_PAGE = mmap.PAGESIZE


class Clock:
    """The time that a run sees.  complete : for C code, too."""

    def __init__(self, shift_s: float = 0.0, overwrite: bool = True) -> None:
        self._shift_ns = int(shift_s * _NANOSECONDS)
        self._now_ns = self._shift_ns
        self._table = mmap.mmap(-1, _PAGE)
        self._table[_NAP_AT : _NAP_AT + 16] = struct.pack("<qq", 0, _NAP_NS)
        self.set(0.0)
        self.complete = overwrite and _overwrite(ctypes.addressof(ctypes.c_char.from_buffer(self._table)))
        if not self.complete:
            _replace(lambda: self._now_ns)
        else:
            _count_waits()
        _still_files()
        _silent_timers()
        time.sleep = _pause

    def set(self, time_s: float) -> None:
        """Set all clocks to this time of the replay."""
        now_ns = self._now_ns = int(time_s * _NANOSECONDS) + self._shift_ns
        seconds, rest = divmod(now_ns, _NANOSECONDS)
        self._table[:256] = b"".join(
            struct.pack("<qq", seconds + EPOCH_S if clock in _WALL else seconds, rest) for clock in range(16)
        )


def _pause(seconds: Any, select: Callable[..., object] = select.select) -> None:
    """Sleep for real: C's own sleep would wait until a simulated moment."""
    select([], [], [], seconds)


def _overwrite(table: int) -> bool:
    """Let the vDSO's functions read `table` (seconds and nanoseconds by clock).  False where that is not possible."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.getauxval.restype = ctypes.c_ulong
    base = libc.getauxval(_HEADER)
    if not base:
        return False
    functions = _functions(base)
    codes = {"clock_gettime": _gettime(table), "gettimeofday": _timeofday(table), "time": _time(table)}
    if not set(codes) <= set(functions) or any(len(codes[n]) > functions[n][1] for n in codes):
        return False
    if hasattr(libc, "dladdr1"):
        _brief_waits(libc, table)
    last = max(at + size for at, size in functions.values())
    length = ctypes.c_size_t(-(-(last - base) // _PAGE) * _PAGE)
    if libc.mprotect(ctypes.c_void_p(base), length, 7) != 0:
        return False
    for name, code in codes.items():
        ctypes.memmove(functions[name][0], code, len(code))
    return bool(libc.mprotect(ctypes.c_void_p(base), length, 5) == 0) and int(time.time()) == EPOCH_S + _first(table)


def _brief_waits(libc: Any, table: int) -> None:
    """Have waits on a condition until a simulated moment end after a nap, as if in vain.

    The kernel would compare that moment with its own clock, and most often find it past: Python's threads, which so
    wait for their turn, would do nothing else than ask for it.
    """
    at = ctypes.cast(libc.pthread_cond_timedwait, ctypes.c_void_p).value or 0
    lock, unlock = (ctypes.cast(f, ctypes.c_void_p).value for f in (libc.pthread_mutex_lock, libc.pthread_mutex_unlock))
    code = b"\xf3\x0f\x1e\xfa\x56\x48\x89\xf7\x48\xb8" + struct.pack("<Q", unlock) + b"\xff\xd0"  # unlock(mutex)
    code += b"\x48\xbf" + struct.pack("<Q", table + _NAP_AT) + b"\x31\xf6\xb8\x23\x00\x00\x00\x0f\x05"  # nanosleep
    code += (
        b"\x48\x8b\x3c\x24\x48\xb8" + struct.pack("<Q", lock) + b"\xff\xd0\x5e\xb8\x6e\x00\x00\x00\xc3"
    )  # lock(mutex)
    info, symbol = (ctypes.c_void_p * 4)(), ctypes.c_void_p()
    if not at or not libc.dladdr1(ctypes.c_void_p(at), info, ctypes.byref(symbol), 1) or not symbol.value:
        return
    size = struct.unpack("<16xQ", ctypes.string_at(symbol.value, 24))[0]
    page = at // _PAGE * _PAGE
    length = ctypes.c_size_t(at + len(code) - page)
    if size >= len(code) and libc.mprotect(ctypes.c_void_p(page), length, 7) == 0:
        ctypes.memmove(at, code, len(code))
        libc.mprotect(ctypes.c_void_p(page), length, 5)


def _count_waits() -> None:
    """Have Python's own loops around waits end: their clock goes on a millisecond whenever it is read, and naps one."""
    import queue
    import threading

    reads = itertools.count()

    def counted() -> float:
        _pause(1e-3)
        return next(reads) * 1e-3

    for module, name in ((queue, "time"), (threading, "_time")):
        if hasattr(module, name):
            setattr(module, name, counted)


def _first(table: int) -> int:
    return int(struct.unpack("<q", ctypes.string_at(table, 8))[0]) - EPOCH_S


def _functions(base: int) -> dict[str, tuple[int, int]]:
    """Address and size of the vDSO's clock functions, from its ELF dynamic symbols."""
    image = ctypes.string_at(base, _PAGE)
    start, entry, count = struct.unpack_from("<Q14xHH", image, 32)
    tables: dict[int, int] = {}
    for k in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", image, start + k * entry)
        if kind == 2:  # PT_DYNAMIC: tag and value
            tables |= dict(struct.iter_unpack("<QQ", ctypes.string_at(base + offset, size)))
    names, symbols, hashes = (tables.get(tag, 0) for tag in (5, 6, 4))
    if not names or not symbols:
        return {}
    # The string table follows the symbols in every vDSO; DT_HASH counts them where it is there.
    number = struct.unpack("<I", ctypes.string_at(base + hashes + 4, 4))[0] if hashes else (names - symbols) // 24
    found = {}
    for k in range(number):
        name, _, _, _, value, size = struct.unpack("<IBBHQQ", ctypes.string_at(base + symbols + 24 * k, 24))
        text = ctypes.string_at(base + names + name).decode()
        if text.startswith("__vdso_") and value:
            found[text.removeprefix("__vdso_")] = base + value, size
    return found


def _gettime(table: int) -> bytes:
    """int clock_gettime(clock edi, result rsi): entry edi & 15 of the table."""
    entry = b"\x89\xf8\x83\xe0\x0f\xc1\xe0\x04\x48\xb9" + struct.pack("<Q", table)  # eax = (edi & 15) << 4; rcx = table
    copy = b"\x48\x8b\x14\x01\x48\x89\x16\x48\x8b\x54\x01\x08\x48\x89\x56\x08"  # two words by way of rdx
    return entry + copy + b"\x31\xc0\xc3"


def _timeofday(table: int) -> bytes:
    """int gettimeofday(result rdi or 0, zone): seconds of entry 0, no microseconds."""
    load = b"\x48\xb9" + struct.pack("<Q", table) + b"\x48\x8b\x01"
    return load + b"\x48\x85\xff\x74\x0b\x48\x89\x07\x48\xc7\x47\x08\x00\x00\x00\x00" + b"\x31\xc0\xc3"


def _time(table: int) -> bytes:
    """time_t time(result rdi or 0): seconds of entry 0."""
    return b"\x48\xb9" + struct.pack("<Q", table) + b"\x48\x8b\x01\x48\x85\xff\x74\x03\x48\x89\x07\xc3"


def _replace(now_ns: Callable[[], int]) -> None:
    """Replace the functions with which Python code reads clocks."""
    wall_ns = EPOCH_S * _NANOSECONDS

    def seconds(since_ns: int) -> Callable[..., float]:
        return lambda *_: (since_ns + now_ns()) / _NANOSECONDS

    def nanoseconds(since_ns: int) -> Callable[..., int]:
        return lambda *_: since_ns + now_ns()

    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"):
        since_ns = wall_ns if name == "time" else 0
        setattr(time, name, seconds(since_ns))
        setattr(time, f"{name}_ns", nanoseconds(since_ns))
    for name in ("localtime", "gmtime", "ctime"):
        read = getattr(time, name)
        setattr(time, name, lambda at=None, read=read: read(time.time() if at is None else at))
    real = datetime.datetime

    class Simulated(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    datetime.datetime = Simulated  # type: ignore[misc]


class _Entry:
    """An entry of `os.scandir` whose stat is the replaced one."""

    def __init__(self, entry: os.DirEntry[Any], folder: int | None) -> None:
        self._entry, self._folder = entry, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:
        return self._entry.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._entry.path, dir_fd=self._folder, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino


class _Entries:
    """An iterator of `os.scandir`."""

    def __init__(self, entries: Any, folder: int | None) -> None:
        self._entries, self._folder = entries, folder
        self.close = entries.close

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _Entry:
        return _Entry(next(self._entries), self._folder)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _silent_timers() -> None:
    """Timers ring, and do not say how long they still would: that is a clock of the machine's."""
    real = signal.setitimer

    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        real(which, seconds, interval)
        return 0.0, 0.0

    def alarm(seconds: int) -> int:
        real(signal.ITIMER_REAL, seconds)
        return 0

    def getitimer(which: int) -> tuple[float, float]:
        raise PermissionError("a scheduler may not read a timer: it is a clock")

    for module in (signal, sys.modules.get("_signal", signal)):
        for replaced in (setitimer, alarm, getitimer):
            setattr(module, replaced.__name__, replaced)


def _still_files() -> None:
    """Have Python's stat say that every file is as old as simulated time, and number files as they are looked at.

    Real devices and inodes count what the machine makes.
    """
    posix = sys.modules[os.name] if os.name in sys.modules else os
    devices, inodes = dict[int, int](), dict[tuple[int, int], int]()
    still = {name: EPOCH_S for name in ("st_atime", "st_mtime", "st_ctime")}

    def without(read: Callable[..., Any]) -> Callable[..., Any]:
        def stat(*arguments: Any, **options: Any) -> os.stat_result:
            seen = read(*arguments, **options)
            device = devices.setdefault(seen.st_dev, len(devices) + 1)
            inode = inodes.setdefault((seen.st_dev, seen.st_ino), len(inodes) + 1)
            plain = [seen.st_mode, inode, device, *seen[3:7], *[EPOCH_S] * 3]
            extra = {n: getattr(seen, n) for n in ("st_blksize", "st_blocks", "st_rdev") if hasattr(seen, n)}
            return os.stat_result(plain, {**extra, **still, **{f"{n}_ns": v * _NANOSECONDS for n, v in still.items()}})

        return stat

    for name in ("stat", "lstat", "fstat"):
        replaced = without(getattr(posix, name))
        for module in (os, posix):
            setattr(module, name, replaced)
    real = posix.scandir

    def scandir(path: Any = ".") -> _Entries:
        return _Entries(real(path), path if isinstance(path, int) else None)

    for module in (os, posix):
        setattr(module, "scandir", scandir)  # noqa: B010  # another type than it has
