"""`protocol logs`: what a merge log says, before anybody judges it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from adapters.schedulers.log_formats import Log, read_log
from adapters.schedulers.merge_logs import RecordedSchedule
from adapters.schedulers.recorded import RecordedSource
from protocol.cli import options
from protocol.cli.groups import MergeLog
from protocol.errors import BadInput
from protocol.files import canonical_json, clean
from protocol.merging.schedule import Schedule
from protocol.workload.trace import NS_PER_S
from reports import fitted

#: Of a line of the timeline, in a terminal of 80 columns; and most lines.
WIDTH, LINES = 64, 24
#: Of a merge of the whole model whose length nobody says, as in the shipped regimes.
MERGE_S = 8.0


def register(app: typer.Typer) -> None:
    logs = typer.Typer(no_args_is_help=True, help="Merge logs: inspect a file.")
    logs.command()(options.grouped(inspect))
    app.add_typer(logs, name="logs")


def inspect(
    file: Annotated[Path, typer.Argument(help="merge log")],
    log: MergeLog,
    json_: options.Json = False,
) -> None:
    """Merges, span, overlaps, fragments, outcomes, lengths, and a timeline."""
    if log.corridor is not None:
        raise BadInput("--corridor", log.corridor, "no --corridor: nothing is judged here")
    source = RecordedSource(log.spec(str(file)))
    told, recorded = read_log(source.path), source.schedule(source.share_s(MERGE_S))
    facts, notes = facts_of(told, recorded), [*recorded.report, *_supposed(told, recorded, log.log_merge_s)]
    if json_:
        typer.echo(canonical_json({**facts, "report": notes}), nl=False)
        return
    console = Console(highlight=False)
    said = [(re.sub("_s$", " (s)", name).replace("_", " "), _said(value)) for name, value in facts.items()]
    console.print(clean(str(file)), markup=False, soft_wrap=True)
    console.print(fitted.facts(said, console.width), soft_wrap=True)
    for line in timeline(recorded.schedule, recorded.fragments):
        console.print(line, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {clean(note)}", markup=False, soft_wrap=not console.is_terminal)


def facts_of(log: Log, recorded: RecordedSchedule) -> dict[str, Any]:
    """Plain values; unknown is None."""
    made = recorded.schedule
    took_s = made.busy_ns.max(axis=1, initial=0) / NS_PER_S
    ends = made.start_ns + made.busy_ns.max(axis=1, initial=0)
    waits = (made.start_ns - np.concatenate([[0], ends[:-1]]))[1:] / NS_PER_S if len(made) else np.empty(0)
    return {
        "format": recorded.format,
        "merges": recorded.merges_logged,
        "not_committed": recorded.failed,
        "span_s": recorded.span_s,
        "busy_intervals": len(made),
        "overlapping": recorded.overlapping,
        "fragments": recorded.fragments,
        "busy_intervals_by_fragment": np.bincount(made.fragment, minlength=recorded.fragments).tolist(),
        "lengths_said": sum(m.took_ns is not None for m in log.merges),
        "lengths_s": _spread(took_s),
        "waits_s": _spread(waits),
        "first_starts_s": float(made.start_ns[0] / NS_PER_S) if len(made) else None,
        "last_ends_s": float(ends[-1] / NS_PER_S) if len(made) else None,
    }


def _supposed(log: Log, recorded: RecordedSchedule, merge_s: float | None) -> Iterator[str]:
    """Lengths that are not the log's; the report has those of fragments."""
    unsaid = sum(m.took_ns is None for m in log.merges)
    if unsaid and recorded.fragments == 1:
        each, whose = (
            (MERGE_S, ", as a regime would say; --log-merge-s for another") if merge_s is None else (merge_s, "")
        )
        yield f"{unsaid} of {len(log.merges)} merges are shown {each:g} s long, which the log does not say{whose}"


def _spread(values: NDArray[np.float64]) -> list[float] | None:
    """Least, median and most."""
    if not len(values):
        return None
    return [round(float(x), 3) for x in (values.min(), np.median(values), values.max())]


def _said(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list) and value and isinstance(value[0], float):
        if value[0] == value[2]:
            return f"{value[0]:g}"
        return f"{value[0]:g} to {value[2]:g} (median {value[1]:g})"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def timeline(schedule: Schedule, fragments: int = 1) -> list[str]:
    """Lines of WIDTH cells: `#` where a merge runs for most of it, `+` for some of it, `x` one that was not committed,
    a fragment's number (its last digit) where the model has several, `.` where nothing runs.
    """
    if not len(schedule):
        return []
    took = schedule.busy_ns.max(axis=1)
    end_ns = int((schedule.start_ns + took).max())
    shortest = max(int(np.median(took)), 1)
    cells = int(np.clip(-(-end_ns // shortest), WIDTH, WIDTH * LINES))
    width = -(-end_ns // cells)
    text = ["."] * cells
    for k in range(len(schedule)):
        begin, end = int(schedule.start_ns[k]), int(schedule.start_ns[k] + took[k])
        for cell in range(begin // width, min(-(-end // width), cells)):
            share = (min(end, (cell + 1) * width) - max(begin, cell * width)) / width
            mark = str(schedule.fragment[k] % 10) if fragments > 1 else "#" if share >= 0.5 else "+"
            mark = mark if schedule.committed[k] else "x"
            if text[cell] in ".+" or mark != "+":
                text[cell] = mark
    marks = "its digit: a fragment" if fragments > 1 else "# a merge, + part of a cell"
    lines = [f"timeline, {width / NS_PER_S:.3g} s a cell ({marks}, x not committed)"]
    for first in range(0, cells, WIDTH):
        lines.append(f"{first * width / NS_PER_S:>10.0f} s  {''.join(text[first : first + WIDTH])}")
    return lines
