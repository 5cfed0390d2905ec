"""What commands that take long say meanwhile: a bar on a terminal, which leaves nothing behind, and elsewhere a line
every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

#: Seconds between two lines where there is no terminal.
EVERY_S = 10.0


@contextmanager
def progress_bar(notes: Console, *steps: str, counted: bool = True) -> Iterator[Callable[..., Any]]:
    """A bar; call what is yielded with advance=, completed=, total= and description=, and step= of several.

    steps : what is done, in its order; each is named with how many there are.
    counted : say how many of how many are done, not only the share.
    """

    def named(step: str) -> str:
        return f"{step} (step {steps.index(step) + 1} of {len(steps)})" if len(steps) > 1 else step

    def described(changes: dict[str, Any]) -> dict[str, Any]:
        step = changes.pop("step", None)
        return changes if step is None else {**changes, "description": named(step)}

    if not notes.is_terminal:
        with _lines(notes, Phase(named(steps[0]), counted)) as tell:
            yield lambda **changes: tell(**described(changes))
        return
    count = (MofNCompleteColumn(),) if counted else ()
    # Within 80 columns; what has no total yet, moves.
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(16), *count, TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=notes, transient=True, expand=True) as bar:
        task = bar.add_task(named(steps[0]), total=None)
        yield lambda **changes: bar.update(task, **described(changes))


class Phase:
    """What is being done, how much of it is done, and since when."""

    def __init__(self, what: str, counted: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._counted, self._clock = what, counted, clock
        self._done, self._total = 0.0, 0.0
        self._begun_s = self._from_s = clock()
        self._from = 0.0

    def tell(self, **changes: Any) -> None:
        """As `rich.progress.Progress.update`.  Fewer done than before, or another total: a new phase."""
        before, total = self._done, self._total
        self._what = str(changes.get("description", self._what))
        self._total = float(changes.get("total") or self._total)
        self._done = float(changes.get("completed", self._done)) + float(changes.get("advance", 0))
        if self._done < before or self._total != total:
            # What an interrupted run kept took no time now.
            self._from, self._from_s = self._done, self._clock()

    def line(self) -> str:
        """One line: the phase, what is done of it, how long it took, and how long what is left will."""
        parts = [self._what]
        if self._total > 0 and self._counted:
            parts.append(f"{self._done:.0f} of {self._total:.0f}")
        elif self._total > 0:
            parts.append(f"{100 * min(self._done / self._total, 1):.0f} %")
        now_s = self._clock()
        parts.append(_shown(now_s - self._begun_s))
        left = self._total - self._done
        if left > 0 and self._done > self._from:
            parts.append(f"about {_shown((now_s - self._from_s) * left / (self._done - self._from))} left")
        return ", ".join(parts)


def _shown(seconds: float) -> str:
    """`40 s`, `2 min 30 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 595:
        minutes, tens = divmod(round(seconds / 10), 6)
        return f"{minutes} min {10 * tens} s" if tens else f"{minutes} min"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def _lines(notes: Console, phase: Phase) -> Iterator[Callable[..., Any]]:
    over = threading.Event()

    def say() -> None:
        while not over.wait(EVERY_S):
            notes.print(phase.line(), soft_wrap=True, markup=False, highlight=False)

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield phase.tell
    finally:
        over.set()
        thread.join()
