"""The harness's end of a scheduler's host: start it, pass lines within deadlines, end it and all it started."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from typing import IO, Any

from adapters.schedulers import host, wire

#: Whatever the command line says, the host itself must come up within this.
_HOST_TIMEOUT_S = 60.0
#: Beyond the child's own alarm, before the harness ends it from outside.
GRACE_S = 0.5
#: Within this a scheduler that is told to stop must end by itself.
STOP_S = 1.0
#: Within this the host says how a run ended whose pipe is closed: gigabytes of shared memory take a while to be freed.
_STATUS_S = 5.0
#: The whole environment of a scheduler, beside the temporary folder and what it declared, which a run gets once it is
#: confined: some variables have programs load code.  No user, host or session shows in it.
ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "LOGNAME": "scheduler",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
}


class Ended(Exception):
    """The process ended, or closed its pipe, instead of answering."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


class Late(Exception):
    """No answer within the deadline."""


def _end(process: subprocess.Popen[bytes], scratch: str, owner: int, held: list[int]) -> None:
    """Have the host kill all that it started, then itself; insist when it does not."""
    if os.getpid() != owner:  # a fork of the harness that ends; the host is not its own
        return
    try:
        process.terminate()
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.wait()
    for fd in held:
        os.close(fd)
    held.clear()
    shutil.rmtree(scratch, ignore_errors=True)


class Connection:
    """One running host: a socket for requests to it, and the two pipes of the run that it made last."""

    def __init__(self, log: IO[bytes], prepare: Mapping[str, Any]) -> None:
        scratch = self.scratch = os.path.realpath(tempfile.mkdtemp(prefix="scheduler-"))
        everything = {**ENVIRONMENT, "TMPDIR": os.path.join(scratch, "tmp")}
        if "LD_LIBRARY_PATH" in os.environ:  # Python itself may not start without
            everything["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        mine, its = socket.socketpair()
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-P", os.path.realpath(host.__file__)],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=log,
                close_fds=True,
                start_new_session=True,
                cwd=scratch,
                env=everything,
            )
        self._control = mine.detach()
        #: Open descriptors: the socket, and those of the current run.
        self._held = [self._control]
        self._out = self._in = -1
        self._said = self._rest = b""
        self._status: int | None = None
        #: The limit for which the host ended the last run, in words; largest resident size of any run, MB.
        self.excess: str | None = None
        self.peak_mb: float | None = None
        self.end = weakref.finalize(self, _end, self.process, scratch, os.getpid(), self._held)
        self._ask({"type": "prepare", "parent": os.getpid(), "path": import_path(), **prepare})

    def open_run(self, request: dict[str, object]) -> None:
        """Have the host fork a run and take its pipes.  Raises Ended or Late."""
        self.close_run()
        self._status, self._rest, self.excess = None, b"", None
        self._ask(request)
        self._out, self._in = self._hear(_HOST_TIMEOUT_S)
        os.set_blocking(self._out, False)

    def close_run(self) -> None:
        for fd in self._held[1:]:
            os.close(fd)
        del self._held[1:]
        self._out = self._in = -1

    def send(self, data: bytes, within_s: float) -> None:
        """Raises Ended or Late."""
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                if not _poll(self._out, select.POLLOUT, within_s):
                    raise Late from None
            except BrokenPipeError:
                raise Ended(self.status()) from None

    def receive(self, within_s: float, most_bytes: int = wire.ANSWER_BYTES) -> bytes:
        """The run's next line, or what came without an end of line in so many bytes.  Raises Ended or Late."""
        deadline: float | None = None
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                return line
            if len(self._rest) > most_bytes:
                return self._rest
            now = time.monotonic()
            deadline = now + within_s if deadline is None else deadline
            if not _poll(self._in, select.POLLIN, deadline - now):
                raise Late
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise Ended(self.status())
            self._rest += chunk

    def status(self) -> int | None:
        """How the run ended, as the host saw it; None when it has not, or the host is gone."""
        try:
            self._hear(_STATUS_S)
        except (Ended, Late):
            return None
        return self._status

    def _ask(self, message: dict[str, object]) -> None:
        data = wire.dumps(message)
        try:
            while data:
                data = data[os.write(self._control, data) :]
        except (BrokenPipeError, ConnectionResetError):
            raise Ended(None) from None

    def _hear(self, within_s: float) -> list[int]:
        """The host's next message; the pipes that came with it.  Raises Ended or Late."""
        deadline, fds = time.monotonic() + within_s, list[int]()
        while b"\n" not in self._said:
            if not _poll(self._control, select.POLLIN, deadline - time.monotonic()):
                raise Late
            with socket.socket(fileno=os.dup(self._control)) as control:
                try:
                    data, fds, _, _ = socket.recv_fds(control, 1 << 12, 2)
                except ConnectionResetError:
                    data = b""
            self._held += fds
            if not data:
                raise Ended(None)
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        message = json.loads(line)
        if message["type"] == "ended":
            self._status, self.excess, self.peak_mb = message["status"], message["excess"], message["peak_mb"]
        return fds


def _poll(fd: int, event: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(0.0, within_s) * 1000))


def import_path() -> list[str]:
    """Folders that the harness's Python imports from beyond its own: PYTHONPATH and the user's packages."""
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    own = site.getusersitepackages()
    return [os.path.abspath(p) for p in (*given, *([own] if own in sys.path else [])) if os.path.isdir(p)]
