"""Planners: handed the whole trace, so never deployable, and run in the harness's own process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapters.schedulers.process import ProcessSource
from adapters.schedulers.sources import Target
from protocol.errors import ProtocolError, SchedulerError
from protocol.merging.schedule import Schedule
from protocol.scheduler import SchedulerRun

if TYPE_CHECKING:
    from protocol.merging.corridor import Corridor
    from protocol.replay.sidecar import LoadedSidecar
    from protocol.workload.slo import Slo
    from protocol.workload.trace import RequestTrace


class PlannerSource:
    """A user's or a built-in planner."""

    kind: Literal["scheduler", "planner", "recorded"] = "planner"
    deployable = False

    def __init__(self, inspected: ProcessSource) -> None:
        self._inspected = inspected
        self._target = inspected.target
        self.name = self._target.name
        self._class: Any = None

    def plan(
        self,
        trace: RequestTrace,
        corridor: Corridor,
        budget: int,
        seed_words: tuple[int, ...],
        sidecar: LoadedSidecar | None = None,
        slo: Slo | None = None,
    ) -> Schedule:
        """The planner's schedule; a fresh planner each time.  Raises SchedulerError with file and line."""
        try:
            with _own_imports(self._target):
                if self._class is None:
                    self._class = _load(self._target)
                parameters = inspect.signature(self._class).parameters
                given: dict[str, object] = {}
                if "rng" in parameters:
                    given["rng"] = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed_words)))
                given |= {name: value for name, value in (("sidecar", sidecar), ("slo", slo)) if name in parameters}
                planner: Any = self._class(**given) if inspect.isclass(self._class) else self._class
                schedule = planner.plan(trace, corridor, budget)
        except ProtocolError:
            raise
        except (Exception, SystemExit) as error:
            raise SchedulerError(f"{_where(error, self._target)}: {type(error).__name__}: {_line(error)}") from None
        if not isinstance(schedule, Schedule):
            raise SchedulerError(f"{self.name}: plan returned {type(schedule).__name__}; expected a Schedule")
        return schedule

    def start(self, seed_words: tuple[int, ...], run_deadline_s: float = 300.0) -> SchedulerRun:
        """A planner takes no decisions.  Raises SchedulerError, always."""
        raise SchedulerError(f"{self.name}: a planner sees the whole trace; it plans and cannot decide step by step")

    def digest(self) -> str:
        """SHA-256 over the planner's source, including the files that it imports from its own folder."""
        return self._inspected.digest()

    def describe(self) -> dict[str, object]:
        """Plain values that identify the planner in a certificate."""
        return {**self._inspected.describe(), "kind": self.kind, "deployable": self.deployable}

    def close(self) -> None:
        """Nothing runs between plans."""
        self._inspected.close()


@contextmanager
def _own_imports(target: Target) -> Iterator[None]:
    """The planner's folder first on the import path, and its modules instead of ours of the same name."""
    first = str(target.import_path)
    sys.path.insert(0, first)
    ours: dict[str, Any] = {}
    if target.file is not None:
        for name in {module.partition(".")[0] for module in sys.modules} - {"__main__", "protocol"}:
            if name in sys.stdlib_module_names:
                continue
            loaded = getattr(sys.modules.get(name), "__file__", None)
            for own in (target.folder / f"{name}.py", target.folder / name / "__init__.py"):
                if own.is_file() and (loaded is None or os.path.realpath(loaded) != os.path.realpath(own)):
                    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                        ours[module] = sys.modules.pop(module)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(first)
        sys.modules.update(ours)


def _load(target: Target) -> Any:
    if target.module:
        module = importlib.import_module(target.module)
    else:
        assert target.file is not None
        spec = importlib.util.spec_from_file_location(f"planner_{target.file.stem}", target.file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
    if target.attribute:
        value: Any = module
        for part in target.attribute.split("."):
            value = getattr(value, part)
        return value
    # The inspection in the child has already seen that there is exactly one.
    return next(
        v
        for n, v in vars(module).items()
        if inspect.isclass(v) and v.__module__ == module.__name__ and not n.startswith("_") and hasattr(v, "plan")
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _where(error: BaseException, target: Target) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    frames = traceback.StackSummary(
        f for f in frames if Path(os.path.realpath(f.filename)).is_relative_to(target.folder)
    )
    if not frames:
        return target.name
    return f"{os.path.relpath(os.path.realpath(frames[-1].filename), target.folder)}:{frames[-1].lineno}"
