"""Run a merge load on a schedule and say what really ran."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from adapters.cores import pinned
from adapters.merge_loads.worker import KINDS, ONCE, post
from protocol.errors import BadInput, SidecarError
from protocol.merging.schedule import Schedule
from protocol.replay.replay import MERGE_WITHIN_NS
from protocol.workload.trace import NS_PER_S

NONE = "none"
PAUSE = "pause"
#: What vLLM serves (with VLLM_SERVER_DEV_MODE=1): requests under way are frozen, and go on afterwards.
PAUSE_PATH, RESUME_PATH = "/pause?mode=keep", "/resume"
#: Kinds whose processes exchange with each other.
TOGETHER = ("collective", "torchft")
_READY_S = 60.0
#: Seconds that a process has to put in order what it disturbed before it is killed.
_GRACE_S = 5.0


@dataclass(frozen=True)
class MergeLoad:
    """A parsed load: `none`, or a kind with its options and the number of processes.

    >>> MergeLoad.parse("host:processes=2,matmul=256")
    MergeLoad(kind='host', processes=2, options=(('matmul', '256'),))
    """

    kind: str
    processes: int = 1
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> MergeLoad:
        """`KIND` or `KIND:key=value,...`; `command:` takes the rest as it stands.  Raises BadInput."""
        kind, _, rest = text.partition(":")
        if kind not in (*KINDS, NONE):
            raise BadInput("--merge-load", repr(kind), f"one of {', '.join(sorted((*KINDS, NONE)))}")
        if kind == "command":
            try:
                words = shlex.split(rest)
            except ValueError as error:
                raise BadInput("--merge-load", f"{rest!r} ({error})", "command:WORDS") from None
            if not words:
                raise BadInput("--merge-load", "no command", "command:WORDS")
            if shutil.which(words[0]) is None:
                raise BadInput(
                    "--merge-load", f"no executable {words[0]!r}", "command:WORDS, the first of them a program"
                )
            return cls(kind, 1, (("run", rest),))
        options: dict[str, str] = {}
        for word in filter(None, rest.split(",")):
            key, equals, value = word.partition("=")
            if not equals or not value:
                raise BadInput("--merge-load", repr(word), "key=value")
            options[key] = value
        if kind == PAUSE:
            _check_pause(options)
        default = os.cpu_count() or 1 if kind == "host" else 2 if kind in TOGETHER else 1
        processes = options.pop("processes", str(default))
        if not processes.isdigit() or not 1 <= int(processes) <= 256:
            raise BadInput("--merge-load, processes", repr(processes), "1 to 256")
        known = KINDS[kind].__code__.co_varnames[: KINDS[kind].__code__.co_argcount] if kind in KINDS else ()
        for key in options:
            if key not in known:
                raise BadInput("--merge-load", repr(key), f"one of processes, {', '.join(known)}")
        return cls(kind, int(processes), tuple(sorted(options.items())))

    def beside(self, url: str) -> MergeLoad:
        """The load beside the server at `url`: a pause that names no addresses pauses that server."""
        if self.kind != PAUSE or self.options:
            return self
        base = url.rstrip("/")
        return replace(self, options=(("pause", base + PAUSE_PATH), ("resume", base + RESUME_PATH)))

    def __str__(self) -> str:
        if self.kind in (NONE, "command"):
            return self.kind if self.kind == NONE else f"command:{dict(self.options)['run']}"
        several = () if self.kind == PAUSE else (("processes", str(self.processes)),)
        words = ",".join(f"{k}={v}" for k, v in (*several, *self.options))
        return f"{self.kind}:{words}" if words else self.kind


@dataclass(frozen=True)
class Executed:
    """What really ran, on the monotonic clock: per merge the worst begin and end over the processes.

    died : which process ended before its time, and its last words.
    """

    planned_ns: tuple[tuple[int, int], ...]
    ran_ns: tuple[tuple[int, int], ...]
    may_end_early: bool = False
    died: str | None = None

    @property
    def invalid(self) -> str | None:
        """Why the merges are not the scheduled ones, or None."""
        if len(self.ran_ns) != len(self.planned_ns):
            why = f": {self.died}" if self.died else ""
            return f"{len(self.ran_ns)} of {len(self.planned_ns)} merges ran{why}"
        for k, ((begin, end), (began, ended)) in enumerate(zip(self.planned_ns, self.ran_ns, strict=True)):
            early = ended < end - MERGE_WITHIN_NS and not self.may_end_early
            if abs(began - begin) > MERGE_WITHIN_NS or ended > end + MERGE_WITHIN_NS or early:
                return (
                    f"merge {k + 1} began {(began - begin) / 1e6:+.0f} ms and ended {(ended - end) / 1e6:+.0f} ms off "
                    f"its schedule; expected within {MERGE_WITHIN_NS / 1e6:.0f} ms"
                )
        return None

    @property
    def busy_s(self) -> float:
        return sum(end - begin for begin, end in self.ran_ns) / NS_PER_S


class Runner:
    """The processes of one load, started and ready; `plan` hands them a schedule, `add` one window at a time.

    cores : where they run, None for anywhere.
    """

    def __init__(self, load: MergeLoad, cores: Collection[int] | None = None) -> None:
        self.load, self.cores = load, cores
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: list[list[str]] = []
        self._threads: list[threading.Thread] = []
        self._planned: list[tuple[int, int]] = []

    def start(self) -> None:
        """Raises SidecarError when a process does not get ready, BadInput on a pause of nothing."""
        if self.load.kind == PAUSE and not self.load.options:
            raise BadInput("--merge-load", "pause of no server", "pause:pause=URL,resume=URL")
        if self.load.kind == NONE:
            return
        port = _free_port() if self.load.kind in TOGETHER else 0
        for rank in range(self.load.processes):
            options = dict(self.load.options)
            if self.load.kind in TOGETHER:
                options |= {"rank": str(rank), "world": str(self.load.processes), "port": str(port)}
            if self.load.kind == "host" and rank > 0:
                options["write_mb"] = "0"
            words = [sys.executable, "-m", "adapters.merge_loads.worker", self.load.kind]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
            with pinned(self.cores):  # inherited by the process and all that it starts
                self._processes.append(
                    subprocess.Popen(
                        [*words, *(f"{k}={v}" for k, v in options.items())], env=environment, text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    )
                )  # fmt: skip
        for process in self._processes:
            self._await_ready(process)
            lines: list[str] = []
            thread = threading.Thread(target=lambda p=process, kept=lines: kept.extend(p.stdout), daemon=True)
            thread.start()
            self._lines.append(lines)
            self._threads.append(thread)

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stderr is not None
        timer = threading.Timer(_READY_S, process.kill)
        timer.start()
        try:
            said = process.stdout.readline()
        finally:
            timer.cancel()
        if said.strip() != "ready":
            process.kill()
            why = (process.stderr.read().strip().splitlines() or ["it ended without a word"])[-1]
            self.close()
            raise SidecarError(f"merge load {self.load}: did not get ready: {why}")

    def plan(self, schedule: Schedule, start_ns: int, island: int = 0) -> None:
        """Give the processes their windows; `start_ns` is the monotonic clock at the schedule's time 0."""
        begin, end = schedule.windows_ns(island)
        for b, e in zip(begin.tolist(), end.tolist(), strict=True):
            self.add(start_ns + b, start_ns + e)
        self._no_more()

    def add(self, begin_ns: int, end_ns: int) -> None:
        """One more window, after those before it; a beginning that has passed is begun at once."""
        self._planned.append((begin_ns, end_ns))
        for process in self._processes:
            assert process.stdin is not None
            # A dead process runs nothing, and `finish` says so.
            with suppress(OSError):
                process.stdin.write(f"{begin_ns} {end_ns}\n")
                process.stdin.flush()

    def _no_more(self) -> None:
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                with suppress(OSError):
                    process.stdin.close()

    def finish(self, patience_s: float = 10.0) -> Executed:
        """Wait for the last window and say what ran.  `none` runs every window by doing nothing."""
        self._no_more()
        if self.load.kind == NONE:
            return Executed(tuple(self._planned), tuple(self._planned))
        for process, thread in zip(self._processes, self._threads, strict=True):
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
            thread.join(patience_s)
        ran = [[tuple(map(int, line.split()[:2])) for line in lines] for lines in self._lines]
        fewest = min(map(len, ran), default=0)
        # Late when any process is late, short when any is short: the worst of them counts.
        merged = [(max(r[k][0] for r in ran), min(r[k][1] for r in ran)) for k in range(fewest)]
        longest = [max(r[k][1] for r in ran) for k in range(fewest)]
        planned_end = [end for _, end in self._planned]
        ends = [
            lo if abs(lo - p) > abs(hi - p) else hi
            for (_, lo), hi, p in zip(merged, longest, planned_end, strict=False)
        ]
        windows = tuple((begin, end) for (begin, _), end in zip(merged, ends, strict=True))
        return Executed(tuple(self._planned), windows, self.load.kind in ONCE, self._died())

    def _died(self) -> str | None:
        """The first process that failed, with the last line that it wrote."""
        for number, process in enumerate(self._processes, 1):
            if process.returncode and process.stderr is not None:
                # What a child of a load may hold open is not waited for.
                lines: list[str] = []
                os.set_blocking(process.stderr.fileno(), False)
                with suppress(BlockingIOError):
                    lines = os.read(process.stderr.fileno(), 1 << 16).decode("utf-8", "replace").strip().splitlines()
                said = f": {lines[-1].strip()[:200]}" if lines else ""
                return f"process {number} of {self.load.kind} ended with code {process.returncode}{said}"
        return None

    def close(self) -> None:
        """End every process, whatever it is doing; a server that was paused is resumed, whatever happened."""
        for process in self._processes:
            if process.poll() is None:
                self._end(process)
            process.wait()
            if self.load.kind == PAUSE and process.returncode < 0:  # killed, perhaps between the two
                with suppress(OSError, RuntimeError, HTTPException):
                    post(dict(self.load.options)["resume"])
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None and not pipe.closed:
                    pipe.close()

    def _end(self, process: subprocess.Popen[str]) -> None:
        if self.load.kind == PAUSE:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
                return
        process.kill()


def _check_pause(options: Mapping[str, str]) -> None:
    """Raises BadInput on anything but two addresses, or none."""
    if options.get("processes", "1") != "1":
        raise BadInput("--merge-load, processes", options["processes"], "1 for a pause")
    if not options.keys() - {"processes"}:
        return
    for key in ("pause", "resume"):
        parts = urlsplit(options.get(key, ""))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            found = "credentials in it" if parts.username or parts.password else repr(options.get(key, ""))
            raise BadInput(f"--merge-load, {key}", found, "pause:pause=URL,resume=URL, each http://HOST:PORT/PATH")


@contextmanager
def running(load: MergeLoad, cores: Collection[int] | None = None) -> Iterator[Runner]:
    """A started runner that is always closed."""
    runner = Runner(load, cores)
    try:
        runner.start()
        yield runner
    finally:
        runner.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
