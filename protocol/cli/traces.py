"""`protocol traces`: what a request trace holds, and which formats are read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from adapters.traces.inspection import Statistic, remarks, statistics
from adapters.traces.readers import Reading, columns_of, read_trace, readers, tokens_of
from adapters.traces.report import ABSENT, IN_FILE, ReadingReport
from protocol.cli import options
from protocol.cli.reading import Columns, DropBadRows, TimeFormat, Tokens
from protocol.files import canonical_json
from reports.fitted import fitted


def register(app: typer.Typer) -> None:
    traces = typer.Typer(no_args_is_help=True, help="Request traces: inspect a file, list the formats.")
    traces.command()(inspect)
    traces.command()(formats)
    app.add_typer(traces, name="traces")


def inspect(
    file: Annotated[Path, typer.Argument(help="request trace")],
    format_: Annotated[str | None, typer.Option("--format", help="format, where it cannot be detected")] = None,
    time_unit: options.TimeUnit = None,
    time_format: TimeFormat = None,
    columns: Columns = None,
    tokens: Tokens = None,
    drop_bad_rows: DropBadRows = False,
    json_: options.Json = False,
) -> None:
    """What was read, what was left out, and what the trace is like as load."""
    asked = Reading(
        format_,
        time_unit,
        time_format,
        columns_of(columns) if columns is not None else (),
        tokens_of(tokens) if tokens is not None else None,
        drop_bad_rows,
    )
    with Console(stderr=True).status(f"reading {file}"):
        trace, report = read_trace(file, asked, absent_ok=True)
        found = statistics(trace, report)
    notes = [*report.notes, *remarks(trace, report)]
    if json_:
        facts = {
            "report": report.to_dict() | {"notes": notes},
            "statistics": [asdict(s) for s in found],
            "trace_digest": trace.digest,
        }
        typer.echo(canonical_json(facts), nl=False)
        return
    console = Console(highlight=False)
    console.print(_reading(report, console.width), soft_wrap=True)
    console.print()
    console.print(_figures(found, console.width), soft_wrap=True)
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def formats(json_: options.Json = False) -> None:
    """Formats of request traces that can be read; further ones come by the entry point `protocol.traces`."""
    known = readers()
    if json_:
        typer.echo(canonical_json({name: reader.description for name, reader in known.items()}), nl=False)
        return
    console = Console(highlight=False)
    rows = [(name, reader.description) for name, reader in known.items()]
    console.print(fitted(("format", "what it is"), rows, console.width), soft_wrap=True)


def _reading(report: ReadingReport, width: int) -> Text:
    resolution = "unknown" if report.resolution_s is None else f"{report.resolution_s:g} s"
    tokens = report.ties and report.tokens != ABSENT
    rows = [
        ("file", report.path),
        ("format, time unit", f"{report.format}, {report.time_unit}"),
        ("token counts", f"from {report.tokens}" if report.tokens == IN_FILE else report.tokens),
        ("rows read", f"{report.rows_read} = {report.rows_kept} kept + {sum(report.dropped.values())} dropped"),
        *((f"  dropped: {reason}", str(count)) for reason, count in sorted(report.dropped.items())),
        ("first, last", f"{report.first}, {report.last}"),
        ("span", f"{report.span_s:.6f} s"),
        ("resolution of the stamps", resolution),
        ("ties", f"{report.ties}, of which {report.identical} equal in tokens too" if tokens else str(report.ties)),
        ("backward steps", str(report.backward_steps)),
        ("failed in the source", str(report.failures)),
    ]
    return fitted(("reading report", ""), rows, width)


def _figures(found: list[Statistic], width: int) -> Text:
    rows = []
    for s in found:
        number = "-" if s.value is None else f"{s.value:.0f}" if s.value == round(s.value) else f"{s.value:.4g}"
        value = number if s.value is None else f"{number} {s.unit}".strip()
        rows.append((s.name, value, Text(s.flaw or "", style="yellow")))
    return fitted(("as load", "", ""), rows, width)
