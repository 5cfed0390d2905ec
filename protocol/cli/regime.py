"""`protocol regime`: a regime of one's own, begun from a commented file or from what a trace is like."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from adapters.traces.proposing import Proposal, propose
from adapters.traces.readers import read_trace
from protocol import seeds
from protocol.cli import options
from protocol.cli.reading import TraceOptions
from protocol.errors import BadInput
from protocol.files import write_text
from protocol.regimes.regime import STEADY, Lengths, Regime
from protocol.regimes.template import template

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

New = Annotated[Path | None, typer.Argument(help="file to write, e.g. own_system.toml (default: print it)")]
TracePath = Annotated[Path, typer.Option("--trace", help="request trace that the load should resemble")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Regimes of your own: begin a file, fit its load to a trace.")
    group.command()(new)
    group.command()(options.grouped(fit))
    app.add_typer(group, name="regime")


def new(
    file: New = None,
    name: Annotated[str | None, typer.Option(help="the regime's name (default: the file's)")] = None,
) -> None:
    """A commented TOML file with every key of a regime: its unit, its range, and an example to put your own for."""
    chosen = name if name is not None else (file.stem if file else "mycluster")
    if not _NAME.fullmatch(chosen):
        raise BadInput("--name", repr(chosen), "letters, digits, '-', '_' and '.'")
    text = template(chosen, file.name if file else "own_system.toml")
    Regime.parse(text, "the template")
    _give(text, file)


def fit(trace: TracePath, asked: TraceOptions, out: options.Out = None, seed: options.Seed = options.ROOT) -> None:
    """The parts of a regime that need no pace, from a trace: the tables arrivals and tokens, with what they keep of it.

    They take the place of the same tables in a file of `protocol regime new`.  A certificate on the trace itself needs
    none of this: --trace FILE --regime own_system.toml.
    """
    read, report = read_trace(trace, asked.reading, absent_ok=True)
    found = propose(read, report, seeds.generator(seed, "regime fit", read.digest))
    _give(proposal_text(found, trace.name, report.rows_kept, report.span_s), out)


def _give(text: str, file: Path | None) -> None:
    if file is None:
        typer.echo(text, nl=False)
        return
    if file.exists():
        raise BadInput(str(file), "a file that is there already", "a new name: nothing is overwritten")
    write_text(file, text)
    typer.echo(f"wrote {file}")


def proposal_text(found: Proposal, file: str, requests: int, span_s: float) -> str:
    """TOML tables with comments."""
    a = found.arrivals
    lines = [
        f"# Proposed from {file}: {requests} requests over {span_s:.0f} s.  What such a load keeps of it:",
        *(
            f"#   {row.name}: {_shown(row.trace)} in the trace, {_shown(row.proposal)} in one draw"
            for row in found.compared
        ),
        *(f"# Note: {note}" for note in found.notes),
        "",
        "[arrivals]",
        f'process = "{a.process}"',
        f"rate_per_s = {a.rate_per_s:g} # requests/s{'' if a.process == STEADY else ' in quiet spells'}",
    ]
    if a.process != STEADY:
        lines += [
            f"busy_rate_per_s = {a.busy_rate_per_s:g} # requests/s in bursts",
            f"busy_s = {a.busy_s:g} # mean length of a burst, s",
            f"quiet_s = {a.quiet_s:g} # mean length between bursts, s",
        ]
    lines += [f"cv = {a.cv:g} # coefficient of variation of the gaps between requests"]
    for name, lengths in (("prompt", found.prompt), ("output", found.output)):
        if lengths is not None:
            lines += ["", f"[tokens.{name}]", *_lengths_text(lengths)]
    return "\n".join(lines) + "\n"


def _lengths_text(lengths: Lengths) -> list[str]:
    lines = [f"values = {list(lengths.values)}"]
    if lengths.weights:
        lines.append(f"weights = {list(lengths.weights)}")
    return [*lines, f"most = {lengths.most} # the largest that occurs"]


def _shown(value: float | None) -> str:
    return "not to be told" if value is None or not np.isfinite(value) else f"{value:.3g}"
