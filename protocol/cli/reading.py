"""Options that say how a request trace is to be read, for every command that takes one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import typer

from adapters.traces.readers import Reading, columns_of, tokens_of
from protocol.cli import options

Columns = Annotated[
    str | None,
    typer.Option(
        help="columns of a foreign table: time=NAME[,prompt_tokens=NAME,output_tokens=NAME]; dots go into JSON"
    ),
]
TimeFormat = Annotated[str | None, typer.Option(help="how times in --columns are written, e.g. '%d/%m/%Y %H:%M:%S.%f'")]
Tokens = Annotated[str | None, typer.Option(help="PROMPT,OUTPUT tokens of every request, for logs that have none")]
DropBadRows = Annotated[
    bool, typer.Option("--drop-bad-rows", help="leave unusable rows out instead of refusing the file")
]


@dataclass(frozen=True)
class TraceOptions:
    """How to read the traces of a command; `reading` is what the readers take."""

    trace_format: options.TraceFormat = None
    time_unit: options.TimeUnit = None
    time_format: TimeFormat = None
    columns: Columns = None
    tokens: Tokens = None
    drop_bad_rows: DropBadRows = False

    def __post_init__(self) -> None:
        _ = self.reading  # refuses what contradicts itself

    @cached_property
    def reading(self) -> Reading:
        """Raises BadInput."""
        return Reading(
            format=self.trace_format,
            time_unit=self.time_unit,
            time_format=self.time_format,
            columns=() if self.columns is None else columns_of(self.columns),
            tokens=None if self.tokens is None else tokens_of(self.tokens),
            drop_bad_rows=self.drop_bad_rows,
        )
