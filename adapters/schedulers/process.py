"""A scheduler in a process of its own: observations to it, decisions from it, within deadlines."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

import adapters
import protocol
from adapters.schedulers import kinds, sandbox, wire
from adapters.schedulers.confinement import WITHOUT, Confinement
from adapters.schedulers.connection import GRACE_S, STOP_S, Connection, Ended, Late, import_path
from adapters.schedulers.sources import Target, digest
from protocol.errors import BadInput, SchedulerError
from protocol.scheduler import Decision, Observation

#: A scheduler may write files up to this size, and this much in all; it and what it starts are so many processes.
_FILE_LIMIT_MB, _SCRATCH_LIMIT_MB, _PROCESS_LIMIT = 64, 256, 64
#: Seconds that one campaign's worker waits for a scheduler, all of its runs together.
CAMPAIGN_S = 4 * 3600.0
_OUTPUTS = ("*/certificate.json", "*/*/certificate.json", "*/.partial", "*/*/.partial")


def message(line: bytes) -> Any:
    """A line from a run as JSON; the text itself where it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line.decode("utf-8", "replace")


class ProcessRun:
    """One rollout: a fork of the host, or one process of an external command."""

    def __init__(self, source: ProcessSource, ready: dict[str, Any], run_deadline_s: float) -> None:
        self._source, self._ready = source, ready
        self._number = self._sent = 0
        self._left_s = self._deadline_s = run_deadline_s
        self._encode = wire.named if source.target.command else wire.frame
        self._open = True

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
            line = running.receive(min(limit_s + GRACE_S, self._left_s))
        except Late:
            self._fail(self._late(time.monotonic() - started), observation)
        except Ended as ended:
            self._fail(self._source.why(ended.status), observation)
        self._sent = len(observation.arrivals_per_s)
        waited_s = time.monotonic() - started
        self._left_s -= waited_s
        self._source.waited(waited_s)
        said = self._said(line, number, observation)
        if isinstance(said, str):
            self._fail(f"{self._where()}: decide answered {said}; expected {wire.ALLOWED}", observation)
        return said

    def _said(self, line: bytes, number: int, observation: Observation) -> Decision | str:
        """The decision in a line, or what is wrong with it."""
        answer, n_islands = message(line), len(observation.islands)
        if isinstance(answer, list) and answer[:1] == [number] and len(answer) in (2, 4):
            merge, groups, reason = answer[1:] if len(answer) == 4 else (answer[1], None, None)
            return wire.decision(merge, groups, reason, n_islands)
        if not isinstance(answer, dict):
            return wire.short(line[:1000].decode("utf-8", "replace"))
        if "error" in answer:
            self._fail(self._source.crash(answer), observation)
        if "answered" in answer:
            return (
                wire.short(answer["answered"], 200) if not isinstance(answer["answered"], str) else answer["answered"]
            )
        if answer.get("id", number) != number or "merge" not in answer:
            return wire.short(answer)
        return wire.decision(answer["merge"], answer.get("groups"), answer.get("reason"), n_islands)

    def _late(self, waited_s: float) -> str:
        if waited_s >= self._left_s - 1e-3 and self._left_s < self._source.decision_timeout_s + GRACE_S:
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


@cache
def _installed() -> tuple[str, ...]:
    """Folders of this Python; asked for at every run, and the same in all of them."""
    return tuple(sysconfig.get_paths().values())


@cache
def _resolved(paths: tuple[str, ...]) -> tuple[Path, ...]:
    """The same without links, which stay as they were when first asked for."""
    return tuple(Path(os.path.realpath(p)) for p in paths)


@cache
def _trusted() -> tuple[Path, ...]:
    """Folders whose files no digest need cover: ours, and Python's with its packages."""
    python = [sysconfig.get_path(p) for p in ("stdlib", "purelib", "platlib")]
    return tuple(Path(os.path.realpath(p)) for p in (*protocol.__path__, *adapters.__path__, *python))


def _publish(spool: IO[bytes], path: Path | None) -> None:
    """Append what runs printed to the log, once they are over: while they last, nothing of it has a name."""
    if path is not None and spool.seek(0, os.SEEK_END):
        spool.seek(0)
        # Not through a link: it would be another file of the user's.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644), "ab") as log:
            while data := spool.read(1 << 20):
                log.write(data)
        spool.seek(0)
        spool.truncate()


def _release(spool: IO[bytes], path: Path | None) -> None:
    with spool:
        _publish(spool, path)


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
        environment: Mapping[str, str] | None = None,
        campaign_s: float = CAMPAIGN_S,
    ) -> None:
        self.target, self.name = target, target.name
        self.decision_timeout_s, self.log_path, self.memory_limit_mb = decision_timeout_s, log_path, memory_limit_mb
        self.start_timeout_s, self.environment = start_timeout_s, dict(environment or {})
        # Earlier campaigns whose output lies in its folder hold the loads of their seeds.
        earlier = [p.parent for pattern in _OUTPUTS for p in target.folder.glob(pattern)]
        told = [hidden, earlier, [log_path] if log_path else [], sandbox.own_output()]
        secrets = [Path(os.path.realpath(p)) for p in itertools.chain(*told)]
        # A folder that holds the scheduler itself cannot be hidden from it.
        self._hidden = [p for p in secrets if not target.folder.is_relative_to(p)]
        begins = None if target.command else target.entry()
        if begins is not None and any(Path(os.path.realpath(begins)).is_relative_to(p) for p in self._hidden):
            found = "its own file among those that no scheduler may see: an output, a trace, a registration or a key"
            raise BadInput(self.name, found, "another path for one of the two")
        self.offer = None if target.command else kinds.offer(target)
        self.host: Connection | None = None
        self._preload = target.sources()[1]
        self._files = target.readable(self._hidden)
        self._grants: tuple[list[Path], list[str]] | None = None
        self._opened_s = time.time()
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # it lives as long as this object
        self._published = weakref.finalize(self, _release, self._spool, log_path)
        self._run: ProcessRun | None = None
        self._noted = False
        self._left_s, self._campaign_s = campaign_s, campaign_s
        #: What holds of every run so far; None before the first.
        self.confinement: Confinement | None = None
        #: Files that runs imported or read and that the digest does not cover.
        self.undigested: set[str] = set()
        #: Seconds by which Python schedulers see the clock ahead of time: no decision may change with it.
        self.clock_shift_s = 0.0
        #: Largest resident size that a finished run reported, MB.
        self.peak_mb: float | None = None

    # --- public ---

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> ProcessRun:
        """A fresh run.  Raises SchedulerError when the scheduler cannot be loaded or constructed."""
        ready = self.probe(seed_words)
        self._run = ProcessRun(self, ready, run_deadline_s)
        return self._run

    def start_once(self) -> None:
        """Load it, to see that it can be, and end that run.  Raises as `start` does."""
        self._run = ProcessRun(self, self.probe(), self.start_timeout_s)
        self._run.close()

    def probe(self, seed_words: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Start a run and return what it says of itself, leaving it open."""
        if self._run is not None:
            self._run.close()
        try:
            running = self._running()
            running.open_run(self._request(seed_words))
            self._confined(message(running.receive(self.start_timeout_s + GRACE_S)))
            if self.target.command:
                first = {"type": "start", "version": wire.VERSION, "seed_words": list(seed_words)}
                running.send(wire.dumps(first), self.start_timeout_s)
            ready = message(running.receive(self.start_timeout_s + GRACE_S, wire.PLAN_BYTES))
        except Late:
            self.stop_host()
            raise SchedulerError(f"{self.name}: not ready within {self.start_timeout_s:g} s") from None
        except Ended as ended:
            reason = self.why(ended.status)
            self.stop_host()
            raise SchedulerError(f"{reason}, while starting") from None
        if isinstance(ready, dict) and ready.get("type") == "ready":
            if ready.get("version") != wire.VERSION:
                self.stop_host()
                found = f"version {wire.short(ready.get('version'))}"
                raise SchedulerError(f"{self.name}: found {found} in its ready message; expected {wire.VERSION}")
            self._note(ready)
            return ready
        self.stop_host()
        if isinstance(ready, dict) and "bad" in ready:
            raise BadInput(self.name, str(ready.get("found")), str(ready.get("expected")))
        if isinstance(ready, dict) and "error" in ready:
            raise SchedulerError(f"{self.crash(ready)}, while starting")
        expected = f'{{"type":"ready","version":{wire.VERSION}}}'
        raise SchedulerError(f"{self.name}: found {wire.short(ready)} as its first line; expected {expected}")

    def digest(self) -> str:
        """SHA-256 over its arguments, its declared environment and every file that it may read of its own."""
        return digest(self.target, self._files, self.environment)

    def describe(self) -> dict[str, object]:
        """Plain values that identify the scheduler in a certificate."""
        return {
            "name": self.name,
            "kind": self.kind,
            "deployable": self.deployable,
            "language": "command" if self.target.command else "python",
            "digest": self.digest(),
            "files": [self._shown(f) for f in self._files],
            "files_outside_digest": sorted(self.undigested),
            "environment": dict(sorted(self.environment.items())),
            "confinement": self.confinement.describe() if self.confinement else None,
        }

    def restart(self) -> None:
        """End every process, so that the next run begins in a new one; what they printed stays unseen."""
        if self._run is not None:
            self._run.close()
            self._run = None
        self.stop_host()

    def close(self) -> None:
        """End every process that the source started, and add what they printed to the log."""
        self.restart()
        _publish(self._spool, self.log_path)

    def __enter__(self) -> ProcessSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def uncovered(self) -> str | None:
        """What its runs have read by now that no digest covers, in words; None where there is nothing."""
        if not self.undigested:
            return None
        return f"read {', '.join(sorted(self.undigested))} after its first start, which the digest does not cover"

    @property
    def changed(self) -> list[str]:
        """Files under its digest that were written since it was opened."""
        return [self._shown(f) for f in self._files if not f.exists() or f.stat().st_mtime > self._opened_s]

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the digest covers: all that it may read of its own."""
        return tuple(self._files)

    # --- for its runs ---

    def waited(self, waited_s: float) -> None:
        """Count time spent waiting for it.  Raises SchedulerError when the campaign's is used up."""
        self._left_s -= waited_s
        if self._left_s < 0:
            self.stop_host()
            raise SchedulerError(f"{self.name}: took more than {self._campaign_s:g} s for all of its runs together")

    def stop_host(self) -> None:
        """Kill the host and all that it started."""
        if self.host is not None:
            self.host.end()
            self.host = None

    def finish_run(self, run: object) -> None:
        """Ask an orderly end of the run; keep the host for the next one only if it came."""
        if self.host is None or run is not self._run:
            return
        self._run = None
        deadline = time.monotonic() + STOP_S
        plain = self.target.command is not None or self.kind == "planner"
        try:
            self.host.send(wire.dumps({"type": "stop"}) if plain else wire.stop_frame(), STOP_S)
            while time.monotonic() < deadline:
                said = message(self.host.receive(deadline - time.monotonic(), wire.PLAN_BYTES))
                if isinstance(said, dict) and said.get("type") == "bye":
                    self._note(said)
        except Ended as ended:
            if ended.status is not None:
                self.peak_mb = max(self.host.peak_mb or 0.0, self.peak_mb or 0.0)
                return
        except Late:
            pass
        self.stop_host()

    def crash(self, report: dict[str, Any]) -> str:
        """One line for an exception that the child reported."""
        where = f"{report['file']}:{report.get('line')}" if report.get("file") else self.name
        number = report.get("id")
        if report.get("error") == "timeout":
            limit_s = self.decision_timeout_s if isinstance(number, int) and number >= 0 else self.start_timeout_s
            return f"{where}: no answer within {limit_s:g} s"
        if report.get("error") == "SystemExit":
            return f"{where}: {report.get('message')}"
        if report.get("error") == "MemoryError":
            return f"{where}: MemoryError: more than {self.memory_limit_mb} MB"
        said = report.get("message")
        return f"{where}: {report.get('error')}" + (f": {said}" if said else "")

    def why(self, status: object) -> str:
        """One line for a process that ended by itself or was ended; negative statuses are signals."""
        log = f" (its output: {self.log_path})" if self.log_path else ""
        if self.host is not None and self.host.excess:
            return f"{self.name}: ended for holding {self.host.excess}"
        if not isinstance(status, int):
            return f"{self.name}: its process ended or closed its pipe{log}"
        if status < 0:
            try:
                return f"{self.name}: killed by {signal.Signals(-status).name}{log}"
            except ValueError:
                return f"{self.name}: killed by signal {-status}{log}"
        return f"{self.name}: exited with status {status}{log}"

    # --- details ---

    def _shown(self, path: Path) -> str:
        inside = path.is_relative_to(self.target.folder)
        return os.path.relpath(path, self.target.folder) if inside else path.name

    def _running(self) -> Connection:
        if self.host is not None and self.host.process.poll() is not None:
            self.stop_host()  # it was killed while idle
        if self.host is None:
            self.host = Connection(self._spool, self._prepare())
        return self.host

    def _prepare(self) -> dict[str, object]:
        view = None
        if "namespaces" not in WITHOUT:
            hidden = [str(p) for p in self._hidden]
            files = [str(f) for f in self._files]
            view = {"readable": self._readable(), "folder": str(self.target.folder), "files": files, "hidden": hidden}
        return {"modules": self._preload, "planner": self.kind == "planner", "namespaces": view}

    def _request(self, seed_words: tuple[int, ...]) -> dict[str, object]:
        target = self.target
        file = str(target.file) if target.file else None
        attribute = self.offer.attribute if self.offer else target.attribute or "decide"
        own = [str(f) for f in self._files]
        named = {"file": file, "module": target.module, "attribute": attribute, "arguments": dict(target.arguments)}
        return {
            "type": "start",
            "target": named,
            "kind": self.offer.kind if self.offer else "scheduler",
            "command": list(target.command) if target.command else None,
            "folder": str(target.folder),
            "files": own,
            "import_path": str(target.import_path),
            "cwd": str(target.folder),
            "environment": self.environment,
            "seed_words": [int(word) for word in seed_words],
            "decision_timeout_s": self.decision_timeout_s,
            "start_timeout_s": self.start_timeout_s,
            "memory_limit_mb": self.memory_limit_mb,
            "file_limit_mb": _FILE_LIMIT_MB,
            "scratch_limit_mb": _SCRATCH_LIMIT_MB,
            "process_limit": _PROCESS_LIMIT,
            "without": sorted(WITHOUT),
            "clock_shift_s": self.clock_shift_s,
            "readable": self._granted(),
            "listable": [*self._listable(), str(Path(protocol.__path__[0]).parent)],
            "hidden": [str(p) for p in self._hidden],
        }

    def _listable(self) -> list[str]:
        """Its import path and the folders on the way to its files, without which Python does not find them."""
        folders = {str(self.target.import_path), str(self.target.folder)}
        for path in self._files:
            folders |= {str(p) for p in path.parents if p.is_relative_to(self.target.folder)}
        return sorted(folders)

    def _granted(self) -> list[str]:
        """What a run may read, links resolved, which in the run would take longer than all the rest of its start."""
        if self._grants is None or self._grants[0] is not self._files:
            real = {os.path.realpath(p) for p in (*self._readable(), *map(str, self._files))}
            # A link of its folder is a file of its own where the folder is a copy.
            real |= {os.path.join(os.path.realpath(p.parent), p.name) for p in self._files}
            hidden = [os.path.realpath(p) for p in self._hidden]
            self._grants = self._files, sandbox.outermost(real, hidden)
        return self._grants[1]

    def _readable(self) -> list[str]:
        """Granted beside its own files: the system's and Python's."""
        paths = [sys.prefix, sys.base_prefix, *sandbox.SYSTEM, *_installed()]
        paths += [*protocol.__path__, *adapters.__path__]
        # What lies on PYTHONPATH above its own folder would grant all of that.
        paths += [p for p in import_path() if not self.target.folder.is_relative_to(os.path.realpath(p))]
        paths += [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
        if self.target.command:
            paths.append(os.path.dirname(os.path.dirname(os.path.realpath(self.target.command[0]))))
            paths.append(self.target.command[0])
        return sorted({os.path.abspath(p) for p in paths if os.path.exists(p)} - {"/"})

    def _confined(self, report: Any) -> None:
        """Keep what the child said of its confinement, before any of its code ran; it must stay the same."""
        if not isinstance(report, dict) or report.get("type") != "confined":
            raise Ended(None)
        found = Confinement.read(report)
        if self.confinement is not None and found != self.confinement:
            self.stop_host()
            raise SchedulerError(f"{self.name}: confinement changed from {self.confinement} to {found}")
        self.confinement = found

    def _note(self, said: dict[str, Any]) -> None:
        """Take down which files a run imported or read that the digest does not cover.

        A run that ran code of the scheduler may say anything: what it could not have read, it has not.
        Raises SchedulerError where it says no list of paths.
        """
        told = [said.get(key) or [] for key in ("sources", "opened")]
        if not all(isinstance(names, list) for names in told):
            self.stop_host()
            found = wire.short({key: said.get(key) for key in ("sources", "opened")})
            raise SchedulerError(f"{self.name}: found {found} of the files that it read; expected lists of paths")
        named = [f for names in told for f in names if isinstance(f, str)]
        granted = _resolved(tuple(self._readable()))
        fresh = {Path(f) for f in named if os.path.isfile(f)} - set(self._files)
        fresh = {f for f in fresh if any(Path(os.path.realpath(f)).is_relative_to(g) for g in granted)}
        beyond = {f for f in fresh if not any(f.is_relative_to(t) for t in _trusted())}
        if not self._noted:
            # What it imports and reads on its first start counts as its own, wherever it lies.
            self._noted = True
            self._files = sorted({*self._files, *beyond})
        else:
            self.undigested |= {self._shown(f) for f in beyond}
