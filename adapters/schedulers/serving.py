"""One run of a scheduler, in a fork of the host: confinement first, then its code.

Runs in the child: the standard library, NumPy and its neighbours; what a planner is handed is imported for it alone.
"""

from __future__ import annotations

import io
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from adapters.schedulers import loading, namespaces, sandbox, syscalls, wire
from adapters.schedulers.clock import Clock

#: What a run may print, to each of its two streams, before the rest is dropped.
PRINT_BYTES = 1 << 20
DROPPED = b"\n[further output of this run dropped]\n"
_TIMED_OUT = 70
#: What a run holds when it starts is rounded up to a multiple of this: the limit on memory must not count runs.
_HELD_BYTES = 64 << 20


class _Capped(io.RawIOBase):
    """Writes to a file descriptor until the cap, then says so once and drops the rest."""

    def __init__(self, fd: int) -> None:
        self._fd, self._left = fd, PRINT_BYTES

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        size = len(data)
        if self._left > 0:
            os.write(self._fd, bytes(data)[: self._left])
            self._left -= size
            if self._left <= 0:
                os.write(self._fd, DROPPED)
        return size


class Pipe:
    """Lines in and out of the two pipes, as the run that holds them."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self._rest = b""

    def line(self) -> bytes | None:
        """The next line; None at the end."""
        while True:
            head, found, self._rest = self._rest.partition(b"\n")
            if found:
                return head
            self._rest = head
            chunk = os.read(self.incoming, 1 << 16)
            if not chunk:
                return None
            self._rest += chunk

    def lines(self) -> Iterator[bytes]:
        while (line := self.line()) is not None:
            yield line

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes.  Raises EOFError when the pipe ends before."""
        parts, left = [self._rest[:size]], size - len(self._rest[:size])
        self._rest = self._rest[size:]
        while left:
            chunk = os.read(self.incoming, left)
            if not chunk:
                raise EOFError
            parts.append(chunk)
            left -= len(chunk)
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.outgoing, data) :]


def run(request: dict[str, Any], pipe: Pipe, host: int, log: int, held_bytes: int) -> None:
    """Everything the fork does.  The first line that it sends says how it is confined."""
    sandbox.die_with_parent(host, signal.SIGKILL)
    os.setsid()
    # An input of its own: the flags of one that runs shared would stay.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in range(3, max(pipe.incoming, pipe.outgoing, log) + 64):
        if fd not in (pipe.incoming, pipe.outgoing):
            os.closerange(fd, fd + 1)
    sandbox.forget_the_shell()
    os.chdir(request["cwd"])
    held_bytes = -(-held_bytes // _HELD_BYTES) * _HELD_BYTES
    limits = sandbox.limit(held_bytes + (request["memory_limit_mb"] << 20), request["file_limit_mb"] << 20)
    clock = None
    if request["command"] is None and "clock" not in request["without"]:
        clock = Clock(request["clock_shift_s"])
    confined = _confine(request, clock, limits)
    pipe.send(wire.dumps(confined))
    os.environ.pop("LD_LIBRARY_PATH", None)  # for the interpreter alone, and nobody declared it
    os.environ.update(request["environment"])
    _forget(request, bool(confined["landlock_abi"]))
    if request["command"]:
        os.dup2(pipe.incoming, 0)
        os.dup2(pipe.outgoing, 1)
        os.closerange(3, max(pipe.incoming, pipe.outgoing) + 1)
        pipe.outgoing = 1  # where it is said that the program does not start
        os.execvp(request["command"][0], request["command"])
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Capped(1)), "utf-8", "replace", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(_Capped(2)), "utf-8", "replace", line_buffering=True)
    _serve(request, pipe, clock)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _forget(request: dict[str, Any], enforced: bool) -> None:
    """Drop what only confining needed: paths of the harness's output, and which run of a seed this is.

    enforced : whether the kernel keeps hidden files hidden, so that Python need not know them.
    """
    for key in ("clock_shift_s", "environment", "listable", "namespaces_refused", "own_pids", "grouped", "without"):
        request.pop(key, None)
    if enforced:
        request["hidden"] = ()


def _confine(request: dict[str, Any], clock: Clock | None, limits: list[str]) -> dict[str, object]:
    """Confine this process for good, and say what took hold."""
    without, refused = set(request["without"]), request["namespaces_refused"]
    if refused is None:
        refused = namespaces.only_writable(request["scratch"], request["writable"][0])
    if refused is None and "seccomp" in without:
        namespaces.private_memory()
    namespaces.drop_privileges()
    abi = 0 if "landlock" in without else sandbox.landlock_abi()
    landlock = abi > 0 and sandbox.restrict(
        request["readable"], request["listable"], request["writable"], request["hidden"]
    )
    seccomp = "seccomp" not in without and syscalls.forbid(signals=abi < 6, clocks=clock is not None and clock.complete)
    return {
        "type": "confined",
        "landlock_abi": abi if landlock else 0,
        "seccomp": seccomp,
        "namespaces": refused is None,
        "namespaces_refused": refused,
        "own_pids": request["own_pids"],
        "memory": "control group" if request["grouped"] else "counts",
        "clock": "every clock" if clock and clock.complete and seccomp else "Python's clocks" if clock else "real",
        "limits": limits,
    }


def _alarm(pipe: Pipe, folder: str, number: list[int]) -> Callable[[int, FrameType | None], NoReturn]:
    """Handler that names the line at which the scheduler was when its time was up."""

    def handler(_: int, frame: FrameType | None) -> NoReturn:
        where: tuple[str, int] | None = None
        while frame is not None and where is None:
            path = frame.f_code.co_filename
            if loading.of_folder(path, folder):
                where = loading.short_path(path, folder), frame.f_lineno
            frame = frame.f_back
        file, line = where or (None, None)
        pipe.send(wire.dumps({"id": number[0], "error": "timeout", "file": file, "line": line}))
        os._exit(_TIMED_OUT)

    return handler


def _serve(request: dict[str, Any], pipe: Pipe, clock: Clock | None) -> None:
    """Load the scheduler, say that it is ready, answer until told to stop."""
    target, folder = request["target"], request["folder"]
    opened: set[str] = set()
    own = frozenset(request["files"])
    sandbox.audit(
        request["readable"], request["writable"], request["hidden"],
        lambda path: None if path in own else opened.add(path),
    )  # fmt: skip
    # Unseeded entropy must differ between two runs, or the determinism gate could not see it.
    random.seed()
    np.random.seed()  # noqa: NPY002  # the global generator is what schedulers must not use
    # So must the addresses of objects: forks of one process would repeat them.
    makers: list[Callable[[], object]] = [object, list, dict, set, lambda: bytearray(random.randrange(1, 512))]
    ballast = [make() for make in random.choices(makers, k=random.randrange(1, 4096))]
    sys.path.insert(0, request["import_path"])
    sys.argv = [target["file"] or target["module"]]
    before = {id(module) for module in sys.modules.values()}
    number = [-1]
    signal.signal(signal.SIGALRM, _alarm(pipe, folder, number))
    signal.setitimer(signal.ITIMER_REAL, float(request["start_timeout_s"]))
    planner = request["kind"] == "planner"
    try:
        value = loading.choose(loading.load(target, folder), target["attribute"], request["kind"])
        code = getattr(value, "decide", value)
        code = getattr(getattr(code, "__func__", code), "__code__", None)
        words = request["seed_words"]
        built: Any = None if planner else loading.construct(target["attribute"], value, words, target["arguments"])
    except loading.Refused as refused:
        pipe.send(wire.dumps(refused.report))
        return
    except BaseException as error:
        pipe.send(wire.dumps({"id": -1, **loading.crash(error, folder)}))
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    line = code.co_firstlineno if code else None
    file = loading.short_path(code.co_filename, folder) if code else None
    ready = {"type": "ready", "version": wire.VERSION, "file": file, "line": line}
    pipe.send(wire.dumps({**ready, "sources": loading.loaded_files(before), "opened": sorted(opened)}))
    if planner:
        from adapters.schedulers import planning

        served = planning.serve(pipe, target["attribute"], value, request)
    else:
        served = _answer(pipe, getattr(built, "decide", built), request, number, clock)
    if served:
        bye = {"type": "bye", "sources": loading.loaded_files(before), "opened": sorted(opened)}
        pipe.send(wire.dumps(bye))
    ballast.clear()


def _answer(
    pipe: Pipe, decide: Callable[[Any], object], request: dict[str, Any], number: list[int], clock: Clock | None
) -> bool:
    """Answer observations until told to stop.  False when the scheduler failed, which has been said."""
    answer, send, setitimer, real = wire.answer, pipe.send, signal.setitimer, signal.ITIMER_REAL
    limit_s, show = float(request["decision_timeout_s"]), clock.set if clock else lambda _: None
    for this, seen in wire.Frames(pipe.incoming):
        number[0] = this
        show(seen.time_s)
        setitimer(real, limit_s)
        try:
            said = answer(this, decide(seen))
        except BaseException as error:
            setitimer(real, 0)
            send(wire.dumps({"id": this, **loading.crash(error, request["folder"])}))
            return False
        setitimer(real, 0)
        send(said)
    return True
