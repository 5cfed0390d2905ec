"""One door for every form of scheduler."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from adapters.schedulers import kinds
from adapters.schedulers.confinement import Confinement
from adapters.schedulers.connection import ENVIRONMENT
from adapters.schedulers.planner import PlannerSource
from adapters.schedulers.process import ProcessSource
from adapters.schedulers.recorded import RecordedSource, is_log
from adapters.schedulers.sources import resolve
from protocol.errors import BadInput


def open_scheduler(
    spec: str,
    *,
    decision_timeout_s: float = 5.0,
    log_path: Path | None = None,
    memory_limit_mb: int = 2048,
    start_timeout_s: float = 60.0,
    hidden: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> ProcessSource | PlannerSource | RecordedSource:
    """The scheduler that `spec` names, loaded once to see that it can be.

    spec : a registered name, FILE.py, FILE.py:Class, package.module:attribute, cmd:COMMAND ARGUMENTS, or a
        merge log (.jsonl, .csv; `recorded.spec_of` adds how to read it).
    decision_timeout_s : seconds within which each decision must come.
    log_path : file that what the scheduler prints is appended to when the source is closed; None drops it.
    memory_limit_mb : what a run and all that it starts may hold beyond what it starts with.
    start_timeout_s : seconds within which its code must be imported and constructed.
    hidden : files and folders (the trace, the output) that it may not read even where they lie in its folder.
    environment : variables that it is given beside the constant ones; they are part of its digest.

    Raises BadInput when there is no such scheduler or the choice is not clear, SchedulerError when its code
    cannot be loaded.
    """
    for variable, value in (environment or {}).items():
        if not variable or "=" in variable or "\0" in variable + value or variable in (*ENVIRONMENT, "TMPDIR"):
            fixed = f"a name other than {', '.join(sorted((*ENVIRONMENT, 'TMPDIR')))}, which every scheduler is given"
            raise BadInput("environment", repr(f"{variable}={value}"), f"NAME=VALUE; {fixed}")
    if is_log(spec):
        return RecordedSource(spec)
    target = resolve(spec)
    offer = None if target.command else kinds.offer(target)
    source = (PlannerSource if offer and offer.kind == "planner" else ProcessSource)(
        target,
        decision_timeout_s=decision_timeout_s,
        log_path=log_path,
        memory_limit_mb=memory_limit_mb,
        start_timeout_s=start_timeout_s,
        hidden=hidden,
        environment=environment,
    )
    try:
        source.start_once()
    except BaseException:
        source.close()
        raise
    return source


def confinement_here() -> Confinement:
    """What confinement takes hold of a scheduler on this machine: one is started, to see."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.py"
        path.write_text("def decide(obs):\n    return True\n")
        source = open_scheduler(str(path))
        source.close()
    assert isinstance(source, ProcessSource) and source.confinement is not None
    return source.confinement
