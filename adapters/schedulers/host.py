"""The process that a scheduler runs in.

Started once by `adapters.schedulers.process` with a socket for requests as stdin and the log as stderr.  It
imports NumPy, then forks for every run; only the fork ever executes the scheduler's code, so each run begins
from the same state and nothing that one run learns can reach another.  A run has pipes and a log file of its
own and never holds the socket, so it can neither speak for the host nor leave anything in what the next run
gets.  When a run ends, everything that it started is killed.

May import: the standard library, NumPy, protocol.scheduler and the neighbours `wire`, `sandbox`, `syscalls`.
"""

from __future__ import annotations

import datetime
import gc
import importlib
import importlib.util
import inspect
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import IO, Any, NoReturn

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
if __name__ == "__main__":
    sys.path.insert(0, _ROOT)

import numpy as np  # noqa: E402  # after the path is set
import numpy.random  # noqa: E402  # loaded lazily otherwise, once a run

from adapters.schedulers import sandbox, syscalls, wire  # noqa: E402

if __name__ == "__main__":
    sys.path.remove(_ROOT)
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)

#: What a run may print, to each of its two streams, before the rest is dropped.
PRINT_BYTES = 1 << 20
_DROPPED = b"\n[further output of this run dropped]\n"
_TIMED_OUT = 70


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
                os.write(self._fd, _DROPPED)
        return size


class Pipe:
    """Lines in and out of the two pipes, as the run that holds them."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        while True:
            head, found, self._rest = self._rest.partition(b"\n")
            if found:
                yield head
                continue
            self._rest = head
            chunk = os.read(self.incoming, 1 << 16)
            if not chunk:
                return
            self._rest += chunk

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.outgoing, data) :]


class Refused(Exception):
    """What to tell the user about a scheduler that cannot run."""

    def __init__(self, **report: object) -> None:
        super().__init__(report)
        self.report = report


def _short_path(path: str, folder: str) -> str:
    real = os.path.realpath(path)
    return os.path.relpath(real, folder) if real.startswith(folder.rstrip("/") + "/") else real


def _own(path: str, folder: str) -> bool:
    # Frozen modules and evaluated strings have names in angle brackets, which are no files.
    return not path.startswith("<") and os.path.realpath(path).startswith(folder.rstrip("/") + "/")


def _crash(error: BaseException, folder: str) -> dict[str, object]:
    """Type, message and the innermost line of the scheduler's own folder in an exception."""
    where: tuple[str, int] | None = None
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if _own(path, folder) and "site-packages" not in path:
            where = _short_path(path, folder), trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        if not error.filename.startswith("<"):
            where = _short_path(error.filename, folder), error.lineno or 1
        message: str = str(error.msg)
    elif isinstance(error, SystemExit):
        message = f"called exit({'' if error.code is None else error.code})"
    else:
        try:
            message = " ".join(str(error).split())
        except Exception:  # __str__ is the scheduler's code, too
            message = "(its message cannot be printed)"
    message = message if len(message) <= 300 else message[:297] + "..."
    return {"file": where and where[0], "line": where and where[1], "error": type(error).__name__, "message": message}


# --- the scheduler's code ---------------------------------------------------------------------------------


def _forget_shadowed(folder: str) -> None:
    """Drop host modules that the scheduler's folder has its own version of, so that its imports find those."""
    names = {os.path.splitext(entry)[0] for entry in os.listdir(folder)}
    for name in names & {module.partition(".")[0] for module in sys.modules}:
        if name in sys.stdlib_module_names or name in ("numpy", "__main__"):
            continue
        for own in (os.path.join(folder, name + ".py"), os.path.join(folder, name, "__init__.py")):
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if os.path.isfile(own) and (loaded is None or os.path.realpath(loaded) != os.path.realpath(own)):
                for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                    del sys.modules[module]


def _load(target: dict[str, Any], folder: str) -> ModuleType:
    _forget_shadowed(folder)
    if target["module"]:
        return importlib.import_module(target["module"])
    path = target["file"]
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.stdlib_module_names or name in sys.modules or not name.isidentifier():
        name = "scheduler_" + "".join(c if c.isalnum() else "_" for c in name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(bad="file", found="a name that Python does not import", expected="a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _kind(value: object) -> str | None:
    if callable(getattr(value, "decide", None)):
        return "scheduler"
    return "planner" if callable(getattr(value, "plan", None)) else None


def _choose(module: ModuleType, attribute: str | None) -> tuple[str, object]:
    """The scheduler that a module offers: the one named, else the only class, else its function decide."""
    if attribute:
        value: object = module
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise Refused(bad="attribute", found=f"no {attribute}", expected=_offer(module))
            value = getattr(value, part)
        if _kind(value) is None and not inspect.isfunction(value):
            raise Refused(bad="attribute", found=f"{attribute} without decide or plan", expected=_offer(module))
        return attribute, value
    found = _candidates(module)
    if len(found) == 1:
        return found[0], getattr(module, found[0])
    raise Refused(
        bad="choice" if found else "attribute",
        found=f"{len(found)} schedulers" if found else "no scheduler",
        expected=" or ".join(found) if found else "a class with decide(self, obs), or a function decide(obs)",
        choices=found,
    )


def _candidates(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
        and not name.startswith("_")
        and (inspect.isclass(value) and _kind(value) or (inspect.isfunction(value) and name == "decide"))
    ]


def _offer(module: ModuleType) -> str:
    return " or ".join(_candidates(module)) or "a class with decide(self, obs), or a function decide(obs)"


def _construct(name: str, value: object, words: list[int]) -> tuple[Callable[[Any], object], str]:
    """The decide function of a fresh scheduler, and its kind."""
    kind = None if inspect.isfunction(value) else _kind(value)
    if kind == "planner":
        return lambda _: None, kind
    factory: Any = value
    if inspect.isclass(value) or inspect.isfunction(value):
        parameters = inspect.signature(factory).parameters
        arguments = {}
        if "rng" in parameters:
            arguments["rng"] = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
        free = [
            p.name
            for p in parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        free = [p for p in free if p != "rng"]
        if inspect.isfunction(value):
            if len(free) != 1:
                raise Refused(bad="signature", found=f"{name}({', '.join(parameters)})", expected="one observation")
            function: Any = value
            return (lambda seen: function(seen, **arguments)) if arguments else function, "scheduler"
        if free:
            expected = "defaults for all parameters but rng"
            raise Refused(bad="signature", found=f"{name}({', '.join(parameters)})", expected=expected)
        factory = factory(**arguments)
    return factory.decide, "scheduler"


def _own_files(folder: str, before: set[int]) -> list[str]:
    """Source files of the scheduler's folder that this run has imported by now."""
    files = [getattr(m, "__file__", None) for m in list(sys.modules.values()) if id(m) not in before]
    real = {os.path.realpath(f) for f in files if isinstance(f, str) and not f.startswith("<")}
    return sorted(f for f in real if f.startswith(folder.rstrip("/") + "/") and "site-packages" not in f)


def _shift_clock(shift_s: float) -> None:
    """Set the clocks that Python code reads ahead, to see whether a scheduler looks at one."""

    def ahead(read: Callable[[], Any], step: Any) -> Callable[[], Any]:
        return lambda: read() + step

    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, ahead(getattr(time, name), shift_s))
        setattr(time, f"{name}_ns", ahead(getattr(time, f"{name}_ns"), int(shift_s * 1e9)))
    real = datetime.datetime

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.now(tz) + datetime.timedelta(seconds=shift_s)

        @classmethod
        def utcnow(cls) -> Any:
            return real.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=shift_s)

    datetime.datetime = Ahead  # type: ignore[misc]


# --- one run, in the fork ---------------------------------------------------------------------------------


def _alarm(pipe: Pipe, folder: str, number: list[int]) -> Callable[[int, FrameType | None], NoReturn]:
    """Handler that names the line at which the scheduler was when its time was up."""

    def handler(_: int, frame: FrameType | None) -> NoReturn:
        where: tuple[str, int] | None = None
        while frame is not None and where is None:
            path = frame.f_code.co_filename
            if _own(path, folder):
                where = _short_path(path, folder), frame.f_lineno
            frame = frame.f_back
        file, line = where or (None, None)
        pipe.send(wire.dumps({"id": number[0], "error": "timeout", "file": file, "line": line}))
        os._exit(_TIMED_OUT)

    return handler


def _serve(request: dict[str, Any], pipe: Pipe) -> None:
    """Load the scheduler, say that it is ready, answer observations until told to stop."""
    target, folder = request["target"], request["folder"]
    data_files: set[str] = set()

    def opened(path: str) -> None:
        if path.startswith(folder.rstrip("/") + "/") and not path.endswith((".py", ".pyc", ".so")):
            data_files.add(os.path.relpath(path, folder))

    sandbox.audit(request["readable"], request["writable"], request["hidden"], opened)
    # Unseeded entropy must differ between two runs, or the determinism gate could not see it.
    random.seed()
    np.random.seed()  # noqa: NPY002  # the global generator is what schedulers must not use
    # So must the addresses of objects: forks of one process would repeat them.
    makers: list[Callable[[], object]] = [object, list, dict, set, lambda: bytearray(random.randrange(1, 512))]
    ballast = [random.choice(makers)() for _ in range(random.randrange(1, 4096))]
    if request["clock_shift_s"]:
        _shift_clock(request["clock_shift_s"])
    sys.path.insert(0, request["import_path"])
    sys.argv = [target["file"] or target["module"]]
    before = {id(module) for module in sys.modules.values()}
    number = [-1]
    signal.signal(signal.SIGALRM, _alarm(pipe, folder, number))
    setitimer, real = signal.setitimer, signal.ITIMER_REAL
    limit_s = float(request["decision_timeout_s"])
    setitimer(real, float(request["start_timeout_s"]))
    try:
        name, value = _choose(_load(target, folder), target["attribute"])
        code = getattr(value, "decide", value)
        code = getattr(getattr(code, "__func__", code), "__code__", None)
        decide, kind = _construct(name, value, request["seed_words"])
    except Refused as refused:
        pipe.send(wire.dumps(refused.report))
        return
    except BaseException as error:
        pipe.send(wire.dumps({"id": -1, **_crash(error, folder)}))
        return
    setitimer(real, 0)
    line = code.co_firstlineno if code else None
    file = _short_path(code.co_filename, folder) if code else None
    ready = {"type": "ready", "version": wire.VERSION, "kind": kind, "name": name, "file": file, "line": line}
    pipe.send(wire.dumps({**ready, "sources": _own_files(folder, before)}))
    answer, send = wire.answer, pipe.send
    for this, seen in wire.Frames(pipe.incoming):
        number[0] = this
        setitimer(real, limit_s)
        try:
            said = answer(this, decide(seen))
        except BaseException as error:
            setitimer(real, 0)
            send(wire.dumps({"id": this, **_crash(error, folder)}))
            return
        setitimer(real, 0)
        send(said)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bye = {"type": "bye", "sources": _own_files(folder, before), "data_files": sorted(data_files)}
    send(wire.dumps({**bye, "peak_mb": peak_kb / 1024}))
    ballast.clear()


def _run(request: dict[str, Any], pipe: Pipe, host: int, log: int) -> None:
    """Everything the fork does: confinement first, then the scheduler's code."""
    sandbox.die_with_parent(host, signal.SIGKILL)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in range(3, max(pipe.incoming, pipe.outgoing, log) + 64):
        if fd not in (pipe.incoming, pipe.outgoing):
            os.closerange(fd, fd + 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(request["cwd"])
    sandbox.limit(request["memory_limit_mb"] << 20, request["file_limit_mb"] << 20)
    if request["confine"]:
        sandbox.restrict(request["readable"], request["listable"], request["writable"], request["hidden"])
        syscalls.forbid(signals=sandbox.landlock_abi() < 6)
    if request["command"]:
        os.dup2(pipe.incoming, 0)
        os.dup2(pipe.outgoing, 1)
        os.closerange(3, max(pipe.incoming, pipe.outgoing) + 1)
        os.execvp(request["command"][0], request["command"])
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Capped(1)), "utf-8", "replace", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(_Capped(2)), "utf-8", "replace", line_buffering=True)
    _serve(request, pipe)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _keep_log(log: IO[bytes]) -> None:
    """Append what a run printed to the log.  A run that wrote past Python's streams is cut here."""
    limit = 2 * (PRINT_BYTES + len(_DROPPED))
    try:
        size, data = os.fstat(log.fileno()).st_size, os.pread(log.fileno(), limit, 0)
        data += _DROPPED if size > limit else b""
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # a full disk must not end the campaign
        return


def main() -> None:
    sandbox.adopt_orphans()
    folder = os.getcwd()  # a temporary one, made for this host
    running: list[Any] = [0, None]

    def end(_: int, __: FrameType | None) -> NoReturn:
        sandbox.kill_descendants(running[0])
        if running[1] is not None:
            _keep_log(running[1])
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    requests = Pipe(control.fileno(), control.fileno())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    host = os.getpid()
    inspect.signature(Refused)  # compiles what it needs once, not once a run
    inspect.signature(object)
    for turn, text in enumerate(requests.lines()):
        request = json.loads(text)
        if request["type"] == "preload":
            sandbox.die_with_parent(request["parent"], signal.SIGTERM)
            for module in request["modules"]:
                try:
                    importlib.import_module(module)
                except Exception:  # noqa: S112  # the run itself will say why it cannot be imported
                    continue
            if os.path.isdir("tmp"):
                os.rename("tmp", "preload")  # where compiled code was cached; every run has its own
            gc.collect()
            gc.freeze()
            continue
        # The same name for every run, never the same folder: what could not be deleted is out of reach.
        scratch = os.path.join(request["scratch"], "tmp")
        os.mkdir(scratch, 0o700)
        theirs, ours = os.pipe(), os.pipe()
        with tempfile.TemporaryFile(dir=request["scratch"]) as log:
            pid = os.fork()
            if pid == 0:
                code = 0
                pipe = Pipe(theirs[0], ours[1])
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                try:
                    _run(request, pipe, host, log.fileno())
                except BrokenPipeError:
                    code = 1
                except BaseException as error:
                    pipe.send(wire.dumps({"id": -1, **_crash(error, request["folder"])}))
                    code = 1
                finally:
                    os._exit(code)
            running[:] = pid, log
            os.close(theirs[0])
            os.close(ours[1])
            socket.send_fds(control, [wire.dumps({"type": "forked"})], [theirs[1], ours[0]])
            os.close(theirs[1])
            os.close(ours[0])
            _, status = os.waitpid(pid, 0)
            # Told to end meanwhile, it still keeps what the run printed, and once.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            running[:] = 0, None
            sandbox.kill_descendants()
            _keep_log(log)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        used = f"{scratch}-{turn}"
        os.rename(scratch, used)
        shutil.rmtree(used, ignore_errors=True)
        requests.send(wire.dumps({"type": "ended", "status": os.waitstatus_to_exitcode(status)}))
    sandbox.kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
