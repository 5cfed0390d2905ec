"""The process that a scheduler runs in.

Started once by `adapters.schedulers.connection` with a socket for requests as stdin and the log as stderr.  It takes
namespaces of its own where it may, imports NumPy, then forks for every run; only the fork ever executes the
scheduler's code, so each run begins from the same state and nothing that one run learns can reach another.  A run has
pipes and a log file of its own and never holds the socket, so it can neither speak for the host nor leave anything in
what the next run gets.  The host counts what a run and all that it starts hold, ends it beyond its limits, and when a
run ends, kills everything that it started.

May import: the standard library, NumPy, protocol.scheduler and its neighbours that run in the child.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from types import FrameType
from typing import IO, Any, NoReturn

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
if __name__ == "__main__":
    sys.path.insert(0, _ROOT)


import numpy.random  # noqa: E402, F401  # after the path is set; it would be loaded in every run otherwise

from adapters.schedulers import cgroups, loading, namespaces, sandbox, serving, wire  # noqa: E402

if __name__ == "__main__":
    sys.path.remove(_ROOT)
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)

_MEMORY = "more than {} MB of memory, shared memory and all its processes counted"
#: What a control group allows beside memory and temporary files: what a run shares with its host, and copies of it.
_BESIDE_MB = 64
#: Seconds between two counts of what a run holds.
_COUNT_S = 0.05


class Host:
    """The host's state: where it works, the run that is going on, and why it has no namespaces (None: it has)."""

    def __init__(self) -> None:
        self.folder = os.getcwd()  # a temporary one, made for this host
        self.name = os.path.basename(self.folder)
        self.above = os.open(os.path.dirname(self.folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.running: list[Any] = [0, None]
        self.refused: str | None = "not asked"
        self.group: cgroups.Group | None = None
        self.control = socket.socket(fileno=os.dup(0))
        self.requests = serving.Pipe(self.control.fileno(), self.control.fileno())
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)

    def end(self, _: int, __: FrameType | None) -> NoReturn:
        sandbox.kill_descendants(self.running[0])
        if self.running[1] is not None:
            _keep_log(self.running[1])
        self.tidy()
        os._exit(0)

    def tidy(self) -> None:
        """Remove what runs left.  Never `root`, beneath which the user's own files may be mounted."""
        if self.refused is None:
            namespaces.drop_folder(os.path.join(self.folder, "tmp"))
        for name in os.listdir(self.folder):
            if name != "root":
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        for path in (os.path.join(self.name, "root"), self.name):
            try:
                os.rmdir(path, dir_fd=self.above)  # by its place outside: inside, it is mounted
            except OSError:  # not there, or something of somebody else's
                continue
        if self.group is not None:
            self.group.remove()

    def request(self) -> dict[str, Any] | None:
        """The next request; None at the end."""
        text = self.requests.line()
        return None if text is None else dict(json.loads(text))

    def prepare(self, request: dict[str, Any]) -> None:
        """Import what runs would import again and again, then leave the machine's file system."""
        sandbox.die_with_parent(request["parent"], signal.SIGTERM)
        sandbox.keep_proc()
        wanted = request["namespaces"]
        self.group = cgroups.make()
        self.refused = namespaces.enter() if wanted is not None else "not asked"
        for module in request["modules"]:
            try:
                importlib.import_module(module)
            except Exception:  # noqa: S112  # the run itself will say why it cannot be imported
                continue
        if request["planner"]:
            from adapters.schedulers import warming

            warming.warm()
        # Only now, and for the runs: what lies there is the scheduler's, and this process executes none of it.
        sys.path += [p for p in request["path"] if p not in sys.path]
        if self.refused is None:
            self.refused = namespaces.build(os.path.join(self.folder, "root"), writable=self.folder, **wanted)
            if self.refused is None:
                self.folder = namespaces.INSIDE
            os.chdir(self.folder)
        os.environ["TMPDIR"] = os.environ["NUMBA_CACHE_DIR"] = os.path.join(self.folder, "tmp")
        if "numba" in sys.modules:
            sys.modules["numba"].config.reload_config()
        gc.collect()
        gc.freeze()

    def run(self, request: dict[str, Any], turn: int) -> None:
        """Fork a run, hand out its pipes, see it to its end and say how it ended."""
        # The same name for every run, never the same folder: what could not be deleted is out of reach.
        scratch = os.path.join(self.folder, "tmp")
        os.mkdir(scratch, 0o700)
        request |= {"scratch": self.folder, "writable": [scratch], "namespaces_refused": self.refused}
        # Larger than the limit, which is counted and named; this one only bounds what comes between two counts.
        mounted = self.refused is None and namespaces.empty_folder(scratch, 2 * request["scratch_limit_mb"])
        killed = 0
        if self.group is not None:
            beside = request["scratch_limit_mb"] + _BESIDE_MB
            self.group.limit(request["memory_limit_mb"] + beside << 20)
            killed = self.group.killed()
        theirs, ours, told = os.pipe(), os.pipe(), os.pipe()
        with tempfile.TemporaryFile(dir=self.folder) as log:
            pid = self._fork(request, serving.Pipe(theirs[0], ours[1]), log.fileno(), told[1])
            self.running[:] = pid, log
            for fd in (theirs[0], ours[1], told[1]):
                os.close(fd)
            socket.send_fds(self.control, [wire.dumps({"type": "forked"})], [theirs[1], ours[0]])
            os.close(theirs[1])
            os.close(ours[0])
            status, excess = _wait(pid, request, scratch)
            # Told to end meanwhile, it still keeps what the run printed, and once.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            self.running[:] = 0, None
            sandbox.kill_descendants()
            _keep_log(log)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        said = os.read(told[0], 4)
        os.close(told[0])
        if excess is None and self.group is not None and self.group.killed() > killed:
            excess = _MEMORY.format(request["memory_limit_mb"])
        if mounted:
            namespaces.drop_folder(scratch)
        used = f"{scratch}-{turn}"
        os.rename(scratch, used)
        shutil.rmtree(used, ignore_errors=True)
        code = os.waitstatus_to_exitcode(int.from_bytes(said, "little") if said else status)
        self.requests.send(wire.dumps({"type": "ended", "status": code, "excess": excess, "peak_mb": self.peak_mb()}))

    def _fork(self, request: dict[str, Any], pipe: serving.Pipe, log: int, tell: int) -> int:
        """Fork the run; where it can have process ids of its own, by way of the first process of their namespace."""
        held, parent = sandbox.data_bytes(), os.getpid()
        first = namespaces.first_process() if self.refused is None else -1
        request |= {"own_pids": first >= 0, "grouped": first == 0 and self.grouped()}
        if first > 0:
            return first
        if first == 0:
            sandbox.end_with_parent(signal.SIGKILL)
            parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(tell)
            request["grouped"] = request["grouped"] or self.grouped()
            _begin(request, pipe, parent, log, held)
        if first == 0:
            namespaces.see_to_its_end(pid, tell)
        return pid

    def grouped(self) -> bool:
        return self.group is not None and self.group.join()

    @staticmethod
    def peak_mb() -> float:
        """Largest resident size of any run so far."""
        import resource

        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def _begin(request: dict[str, Any], pipe: serving.Pipe, host: int, log: int, held: int) -> NoReturn:
    """The fork's life."""
    code = 0
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    try:
        serving.run(request, pipe, host, log, held)
    except BrokenPipeError:
        code = 1
    except BaseException as error:
        code = 1
        pipe.send(wire.dumps({"id": -1, **loading.crash(error, request["folder"])}))
    finally:
        os._exit(code)


def _wait(pid: int, request: dict[str, Any], scratch: str) -> tuple[int, str | None]:
    """Wait for the run, counting meanwhile what it holds; its status, and the limit for which it was ended."""
    excess = None
    base = sandbox.resident_bytes("self")
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, excess
        if signal.sigtimedwait({signal.SIGCHLD}, _COUNT_S) is None and excess is None:
            excess = _excess(request, scratch, base)
            if excess:
                os.kill(pid, signal.SIGKILL)


def _excess(request: dict[str, Any], scratch: str, base: int) -> str | None:
    """The limit that the run and all that it started exceed together, in words; None within all of them."""
    pids = sandbox.descendants()
    if len(pids) - request["own_pids"] > request["process_limit"]:  # the first process is ours
        return f"more than {request['process_limit']} processes"
    memory = sum(max(0, sandbox.resident_bytes(pid) - base) for pid in pids)
    if memory > request["memory_limit_mb"] << 20:
        return _MEMORY.format(request["memory_limit_mb"])
    if sandbox.folder_bytes(scratch) > request["scratch_limit_mb"] << 20:
        return f"more than {request['scratch_limit_mb']} MB in its temporary folder"
    return None


def _keep_log(log: IO[bytes]) -> None:
    """Append what a run printed to the log.  A run that wrote past Python's streams is cut here."""
    limit = 2 * (serving.PRINT_BYTES + len(serving.DROPPED))
    try:
        size, data = os.fstat(log.fileno()).st_size, os.pread(log.fileno(), limit, 0)
        data += serving.DROPPED if size > limit else b""
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # a full disk must not end the campaign
        return


def main() -> None:
    sandbox.adopt_orphans()
    host = Host()
    signal.signal(signal.SIGTERM, host.end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    inspect.signature(loading.Refused)  # compiles what it needs once, not once a run
    inspect.signature(object)
    turn = 0
    # Neither text nor request is held by anything that a run could look through: it clears what it was told.
    while (request := host.request()) is not None:
        if request["type"] == "prepare":
            host.prepare(request)
        else:
            host.run(request, turn)
        turn += 1
    sandbox.kill_descendants()
    host.tidy()


if __name__ == "__main__":
    main()
