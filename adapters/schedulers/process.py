"""The harness's side of a scheduler's process: start it, ask it within deadlines, end it and all it started."""

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
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

import adapters
import protocol
from adapters.schedulers import host, sandbox, wire
from adapters.schedulers.sources import Target, digest
from protocol.errors import BadInput, SchedulerError
from protocol.scheduler import Decision, Observation

#: Whatever the command line says, the host itself must come up within this.
_HOST_TIMEOUT_S = 60.0
#: Beyond the child's own alarm, before the harness ends it from outside.
_GRACE_S = 0.5
#: Within this a scheduler that is told to stop must end by itself.
_STOP_S = 1.0
#: A scheduler may write files up to this size, its log included.
_FILE_LIMIT_MB = 64
_OUTPUTS = ("*/certificate.json", "*/*/certificate.json", "*/.partial", "*/*/.partial")
_THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")}


class _Ended(Exception):
    """The process ended, or closed its pipe, instead of answering."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


class _Late(Exception):
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


class _Host:
    """One running host: a socket for requests to it, and the two pipes of the run that it made last."""

    def __init__(self, log: IO[bytes], preload: Sequence[str]) -> None:
        scratch = self.scratch = os.path.realpath(tempfile.mkdtemp(prefix="scheduler-"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PROTOCOL_", "COV_"))}
        environment |= _THREADS | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "TMPDIR": os.path.join(scratch, "tmp"),
            "NUMBA_CACHE_DIR": os.path.join(scratch, "tmp"),
        }
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
                env=environment,
            )
        self._control = mine.detach()
        #: Open descriptors: the socket, and those of the current run.
        self._held = [self._control]
        self._out = self._in = -1
        self._said = self._rest = b""
        self._status: int | None = None
        self.end = weakref.finalize(self, _end, self.process, scratch, os.getpid(), self._held)
        self._ask({"type": "preload", "parent": os.getpid(), "modules": list(preload)})

    def open_run(self, request: dict[str, object]) -> None:
        """Have the host fork a run and take its pipes.  Raises _Ended or _Late."""
        self.close_run()
        self._status, self._rest = None, b""
        self._ask(request)
        self._out, self._in = self._hear(_HOST_TIMEOUT_S)
        os.set_blocking(self._out, False)

    def close_run(self) -> None:
        for fd in self._held[1:]:
            os.close(fd)
        del self._held[1:]
        self._out = self._in = -1

    def send(self, data: bytes, within_s: float) -> None:
        """Raises _Ended or _Late."""
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                if not _poll(self._out, select.POLLOUT, within_s):
                    raise _Late from None
            except BrokenPipeError:
                raise _Ended(self.status()) from None

    def receive(self, within_s: float) -> bytes:
        """The run's next line.  Raises _Ended or _Late."""
        deadline: float | None = None
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                return line
            if len(self._rest) > wire.ANSWER_BYTES:
                return self._rest
            now = time.monotonic()
            deadline = now + within_s if deadline is None else deadline
            if not _poll(self._in, select.POLLIN, deadline - now):
                raise _Late
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise _Ended(self.status())
            self._rest += chunk

    def status(self) -> int | None:
        """How the run ended, as the host saw it; None when it has not, or the host is gone."""
        try:
            self._hear(_STOP_S)
        except (_Ended, _Late):
            return None
        return self._status

    def _ask(self, message: dict[str, object]) -> None:
        data = wire.dumps(message)
        try:
            while data:
                data = data[os.write(self._control, data) :]
        except (BrokenPipeError, ConnectionResetError):
            raise _Ended(None) from None

    def _hear(self, within_s: float) -> list[int]:
        """The host's next message; the pipes that came with it.  Raises _Ended or _Late."""
        deadline, fds = time.monotonic() + within_s, list[int]()
        while b"\n" not in self._said:
            if not _poll(self._control, select.POLLIN, deadline - time.monotonic()):
                raise _Late
            with socket.socket(fileno=os.dup(self._control)) as control:
                try:
                    data, fds, _, _ = socket.recv_fds(control, 1 << 12, 2)
                except ConnectionResetError:
                    data = b""
            self._held += fds
            if not data:
                raise _Ended(None)
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        message = json.loads(line)
        if message["type"] == "ended":
            self._status = message["status"]
        return fds


def _poll(fd: int, event: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(0.0, within_s) * 1000))


class ProcessRun:
    """One rollout: a fork of the host, or one process of an external command."""

    def __init__(self, source: ProcessSource, ready: dict[str, Any], run_deadline_s: float) -> None:
        self._source, self._ready = source, ready
        self._number = self._sent = 0
        self._left_s = self._deadline_s = run_deadline_s
        self._encode = wire.named if source.target.command else wire.frame
        self._open = True
        self.kind = str(ready.get("kind", "scheduler"))

    def decide(self, observation: Observation) -> Decision:
        """The scheduler's answer.  Raises SchedulerError when it crashes, hangs, exits or answers nonsense."""
        running = self._source.host
        if not self._open or running is None:
            raise SchedulerError(f"{self._source.name}: asked for a decision after its run had ended")
        number, self._number = self._number, self._number + 1
        started = time.monotonic()
        limit_s = self._source.decision_timeout_s
        try:
            running.send(self._encode(number, observation, self._sent), limit_s)
            line = running.receive(min(limit_s + _GRACE_S, self._left_s))
        except _Late:
            self._fail(self._late(time.monotonic() - started), observation)
        except _Ended as ended:
            self._fail(self._source.why(ended.status), observation)
        self._sent = len(observation.arrivals_per_s)
        self._left_s -= time.monotonic() - started
        n_islands = len(observation.islands)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, list) and message[:1] == [number] and len(message) in (2, 4):
            merge, groups, reason = message[1:] if len(message) == 4 else (message[1], None, None)
            said = wire.decision(merge, groups, reason, n_islands)
        elif isinstance(message, dict):
            said = self._read(message, number, n_islands, observation)
        else:
            said = wire.short(line.decode("utf-8", "replace"))
        if isinstance(said, str):
            self._fail(f"{self._where()}: decide answered {said}; expected {wire.ALLOWED}", observation)
        return said

    def _read(self, message: dict[str, Any], number: int, n_islands: int, observation: Observation) -> Decision | str:
        """A decision in an object, or what is wrong with it."""
        if "error" in message:
            self._fail(self._source.crash(message), observation)
        if "answered" in message:
            return str(message["answered"])
        if message.get("id", number) != number or "merge" not in message:
            return wire.short(message)
        return wire.decision(message["merge"], message.get("groups"), message.get("reason"), n_islands)

    def _late(self, waited_s: float) -> str:
        if waited_s >= self._left_s - 1e-3 and self._left_s < self._source.decision_timeout_s + _GRACE_S:
            return f"{self._source.name}: took more than {self._deadline_s:g} s for the decisions of one run"
        return f"{self._where()}: no answer within {self._source.decision_timeout_s:g} s"

    def _where(self) -> str:
        file, line = self._ready.get("file"), self._ready.get("line")
        return f"{file}:{line}" if file else self._source.name

    def _fail(self, what: str, observation: Observation) -> NoReturn:
        self._open = False
        self._source.stop_host()
        raise SchedulerError(f"{what}, at the decision at {observation.time_s:g} s")

    def close(self) -> None:
        """End the run; safe to call twice and after an error."""
        if self._open:
            self._open = False
            self._source.finish_run(self)


class ProcessSource:
    """A scheduler in a process of its own; see `adapters.schedulers.open_scheduler`."""

    kind: Literal["scheduler", "planner", "recorded"] = "scheduler"
    deployable = True

    def __init__(
        self,
        target: Target,
        *,
        decision_timeout_s: float,
        log_path: Path | None,
        memory_limit_mb: int,
        start_timeout_s: float = 60.0,
        hidden: Sequence[Path] = (),
        confine: bool = True,
    ) -> None:
        self.target, self.name = target, target.name
        self.decision_timeout_s, self.log_path, self.memory_limit_mb = decision_timeout_s, log_path, memory_limit_mb
        self.start_timeout_s = start_timeout_s
        # Earlier campaigns whose output lies in its folder hold the loads of their seeds.
        earlier = [p.parent for pattern in _OUTPUTS for p in target.folder.glob(pattern)]
        secrets = [Path(os.path.realpath(p)) for p in (*hidden, *earlier, *([log_path] if log_path else []))]
        # A folder that holds the scheduler itself cannot be hidden from it.
        self._hidden = [str(p) for p in secrets if not target.folder.is_relative_to(p)]
        self._confine = confine
        self.host: _Host | None = None
        self._files, self._preload = target.sources()
        self._log: IO[bytes] | None = None
        self._run: ProcessRun | None = None
        self._noted = False
        #: Files of its own folder that runs imported or read and that the digest does not cover.
        self.undigested: set[str] = set()
        #: Seconds by which Python schedulers see the clock ahead of time (the conformance checks set it).
        self.clock_shift_s = 0.0
        #: Largest resident size that a finished run reported, MB.
        self.peak_mb: float | None = None

    # --- public ---

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> ProcessRun:
        """A fresh run.  Raises SchedulerError when the scheduler cannot be loaded or constructed."""
        ready = self.probe(seed_words)
        self._run = ProcessRun(self, ready, run_deadline_s)
        return self._run

    def probe(self, seed_words: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Start a run and return what it says of itself, leaving it open."""
        if self._run is not None:
            self._run.close()
        running = self._running()
        try:
            running.open_run(self._request(seed_words, running.scratch))
            if self.target.command:
                first = {"type": "start", "version": wire.VERSION, "seed_words": list(seed_words)}
                running.send(wire.dumps(first), self.start_timeout_s)
            line = running.receive(self.start_timeout_s + _GRACE_S)
            ready = json.loads(line)
        except _Late:
            self.stop_host()
            raise SchedulerError(f"{self.name}: not ready within {self.start_timeout_s:g} s") from None
        except _Ended as ended:
            self.stop_host()
            raise SchedulerError(f"{self.why(ended.status)}, while starting") from None
        except ValueError:
            ready = line.decode("utf-8", "replace")
        if isinstance(ready, dict) and ready.get("type") == "ready":
            if ready.get("version") != wire.VERSION:
                self.stop_host()
                found = f"version {wire.short(ready.get('version'))}"
                raise SchedulerError(f"{self.name}: found {found} in its ready message; expected {wire.VERSION}")
            self._note(ready)
            return ready
        self.stop_host()
        if isinstance(ready, dict) and "bad" in ready:
            raise BadInput(self.name, str(ready["found"]), self._advice(ready))
        if isinstance(ready, dict) and "error" in ready:
            raise SchedulerError(f"{self.crash(ready)}, while starting")
        expected = f'{{"type":"ready","version":{wire.VERSION}}}'
        raise SchedulerError(f"{self.name}: found {wire.short(ready)} as its first line; expected {expected}")

    def digest(self) -> str:
        """SHA-256 over the scheduler's source, including the files that it imports from its own folder."""
        return digest(self.target, self._files)

    def describe(self) -> dict[str, object]:
        """Plain values that identify the scheduler in a certificate."""
        return {
            "name": self.name,
            "kind": self.kind,
            "deployable": self.deployable,
            "language": "command" if self.target.command else "python",
            "digest": self.digest(),
            "files": [os.path.relpath(f, self.target.folder) for f in self._files],
            "files_outside_digest": sorted(self.undigested),
        }

    def close(self) -> None:
        """End every process that the source started."""
        if self._run is not None:
            self._run.close()
            self._run = None
        self.stop_host()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> ProcessSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def files(self) -> tuple[Path, ...]:
        """Source files that the digest covers."""
        return tuple(self._files)

    # --- for its runs ---

    def stop_host(self) -> None:
        """Kill the host and all that it started."""
        if self.host is not None:
            self.host.end()
            self.host = None

    def finish_run(self, run: ProcessRun) -> None:
        """Ask an orderly end of the run; keep the host for the next one only if it came."""
        if self.host is None or run is not self._run:
            return
        self._run = None
        deadline = time.monotonic() + _STOP_S
        try:
            self.host.send(wire.dumps({"type": "stop"}) if self.target.command else wire.stop_frame(), _STOP_S)
            while time.monotonic() < deadline:
                message = json.loads(self.host.receive(deadline - time.monotonic()))
                if message.get("type") == "bye":
                    self._note(message)
        except _Ended as ended:
            if ended.status is not None:
                return
        except (_Late, ValueError, AttributeError):
            pass
        self.stop_host()

    def crash(self, report: dict[str, Any]) -> str:
        """One line for an exception that the child reported."""
        where = f"{report['file']}:{report['line']}" if report.get("file") else self.name
        if report.get("error") == "timeout":
            limit_s = self.decision_timeout_s if report.get("id", -1) >= 0 else self.start_timeout_s
            return f"{where}: no answer within {limit_s:g} s"
        if report.get("error") == "SystemExit":
            return f"{where}: {report.get('message')}"
        if report.get("error") == "MemoryError":
            return f"{where}: MemoryError: more than {self.memory_limit_mb} MB"
        message = report.get("message")
        return f"{where}: {report.get('error')}" + (f": {message}" if message else "")

    def why(self, status: object) -> str:
        """One line for a process that ended by itself; negative statuses are signals."""
        log = f" (its output: {self.log_path})" if self.log_path else ""
        if not isinstance(status, int):
            return f"{self.name}: its process ended or closed its pipe{log}"
        if status < 0:
            try:
                return f"{self.name}: killed by {signal.Signals(-status).name}{log}"
            except ValueError:
                return f"{self.name}: killed by signal {-status}{log}"
        return f"{self.name}: exited with status {status}{log}"

    # --- details ---

    def _running(self) -> _Host:
        if self.host is not None and self.host.process.poll() is not None:
            self.stop_host()  # it was killed while idle
        if self.host is None:
            if self._log is None:
                self._log = tempfile.TemporaryFile() if self.log_path is None else self.log_path.open("ab")
            self.host = _Host(self._log, self._preload)
        return self.host

    def _request(self, seed_words: tuple[int, ...], scratch: str) -> dict[str, object]:
        target = self.target
        return {
            "type": "start",
            "target": {
                "file": str(target.file) if target.file else None,
                "module": target.module,
                "attribute": target.attribute,
            },
            "command": list(target.command) if target.command else None,
            "folder": str(target.folder),
            "import_path": str(target.import_path),
            "cwd": str(target.folder),
            "seed_words": [int(word) for word in seed_words],
            "decision_timeout_s": self.decision_timeout_s,
            "start_timeout_s": self.start_timeout_s,
            "memory_limit_mb": self.memory_limit_mb,
            "file_limit_mb": _FILE_LIMIT_MB,
            "confine": self._confine,
            "clock_shift_s": self.clock_shift_s,
            "readable": self._readable(),
            "listable": [str(target.import_path), str(Path(protocol.__path__[0]).parent)],
            "writable": [os.path.join(scratch, "tmp")],
            "scratch": scratch,
            "hidden": self._hidden,
        }

    def _readable(self) -> list[str]:
        paths = [str(self.target.folder), sys.prefix, sys.base_prefix, *sandbox.SYSTEM, *sysconfig.get_paths().values()]
        paths += [*protocol.__path__, *adapters.__path__, site.getusersitepackages()]
        for variable in ("PYTHONPATH", "LD_LIBRARY_PATH"):
            paths += [p for p in os.environ.get(variable, "").split(os.pathsep) if p]
        if self.target.command:
            paths.append(os.path.dirname(os.path.dirname(os.path.realpath(self.target.command[0]))))
            paths += [os.path.dirname(w) for w in self.target.command[1:] if os.path.isfile(w)]
        return sorted({os.path.realpath(p) for p in paths if os.path.exists(p)} - {"/"})

    def _advice(self, report: dict[str, Any]) -> str:
        base = self.target.file.name if self.target.file else self.name.partition(":")[0]
        if report["bad"] == "choice":
            return "one of them by name: " + " or ".join(f"{base}:{choice}" for choice in report["choices"])
        return str(report["expected"])

    def _note(self, message: dict[str, Any]) -> None:
        sources = message.get("sources")
        if self.target.command or not isinstance(sources, list):
            return
        if not self._noted:
            # Imports by computed names are found by running them; those of the first start still count.
            self._noted = True
            self._files = sorted({*self._files, *(Path(s) for s in map(str, sources) if os.path.isfile(s))})
        known = {str(f) for f in self._files}
        late = {os.path.relpath(s, self.target.folder) for s in sources if isinstance(s, str) and s not in known}
        if isinstance(message.get("peak_mb"), float):
            self.peak_mb = max(message["peak_mb"], self.peak_mb or 0.0)
        data = message.get("data_files")
        self.undigested |= late | {d for d in data if isinstance(d, str)} if isinstance(data, list) else late
