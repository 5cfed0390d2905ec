"""The progress bar of commands that take long; it leaves nothing behind."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress(console: Console, counted: bool = True) -> Progress:
    """counted : show how many of how many are done, not only the share."""
    count = (MofNCompleteColumn(),) if counted else ()
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
