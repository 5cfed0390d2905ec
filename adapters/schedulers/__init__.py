"""Schedulers from files, processes and logs, each run in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.schedulers.merge_logs import RecordedSchedule, read_merge_log
    from adapters.schedulers.opening import open_scheduler
    from adapters.schedulers.planner import PlannerSource
    from adapters.schedulers.recorded import RecordedSource

__all__ = ["PlannerSource", "RecordedSchedule", "RecordedSource", "open_scheduler", "read_merge_log"]

_HOME = {"open_scheduler": "opening", "PlannerSource": "planner", "RecordedSource": "recorded"}


def __getattr__(name: str) -> object:
    # Lazy, because the scheduler's process imports this package too and must start fast.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'merge_logs')}"), name)
