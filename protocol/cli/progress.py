"""The progress bar of commands that take long; it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(notes: Console, what: str, counted: bool = True) -> Iterator[Callable[..., Any]]:
    """A bar; call what is yielded with advance=, completed=, total= and description=.

    counted : say how many of how many are done, not only the share.
    """
    count = (MofNCompleteColumn(),) if counted else ()
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda **changes: bar.update(task, **changes)
