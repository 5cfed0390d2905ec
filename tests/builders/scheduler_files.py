"""Schedulers written to files, opened in processes of their own, and asked."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.conformance import synthetic_observations
from adapters.schedulers import open_scheduler
from adapters.schedulers.process import ProcessSource
from protocol.errors import SchedulerError
from protocol.scheduler import Decision, Observation

SEEN = synthetic_observations(3, 60)
FLEET = synthetic_observations(3, 20, n_islands=4)
LATE_S = next(o.time_s for o in SEEN if o.time_s > 20)
LINUX = sys.platform == "linux"
Opener = Callable[..., ProcessSource]


def opened_in(tmp_path: Path) -> Iterator[Opener]:
    """Write a scheduler and open it; everything is closed, and nothing may be left running."""
    sources: list[ProcessSource] = []

    def write(code: str, name: str = "my_sched.py", spec: str | None = None, **options: object) -> ProcessSource:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        options.setdefault("decision_timeout_s", 2.0)
        source = open_scheduler(spec or str(path), **options)  # type: ignore[arg-type]
        assert isinstance(source, ProcessSource)
        sources.append(source)
        return source

    yield write
    hosts = [s.host.process.pid for s in sources if s.host is not None]
    for source in sources:
        source.close()
    assert not [pid for pid in hosts if alive(pid)]


def below(ancestor: int) -> dict[int, int]:
    """Every process that descends from one, with its id in its own namespace."""
    parents, own = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:  # gone meanwhile
            continue
        pid = int(status.parent.name)
        parents[pid], own[pid] = int(fields["PPid"]), int(fields["NSpid"].split()[-1])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: own[pid] for pid in found - {ancestor}}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def scheduler(body: str) -> str:
    """A class whose decide has this body."""
    return "class Mine:\n    def decide(self, obs):\n" + textwrap.indent(textwrap.dedent(body).strip(), " " * 8) + "\n"


def answers(source: ProcessSource, seen: list[Observation] = SEEN, seed: int = 1) -> list[Decision]:
    run = source.start((seed,))
    try:
        return [run.decide(o) for o in seen]
    finally:
        run.close()


def failure(source: ProcessSource, seen: list[Observation] = SEEN) -> str:
    with pytest.raises(SchedulerError) as caught:
        answers(source, seen)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message
