"""`protocol validate`: the conformance checks alone, in seconds, with advice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from adapters.conformance import CHECKS, Finding, check_scheduler
from adapters.schedulers import open_scheduler
from protocol.cli import options
from protocol.cli.groups import Declared
from protocol.files import clean
from reports.fitted import fitted

_STYLE = {"error": "bold red", "warning": "yellow"}


def register(app: typer.Typer) -> None:
    app.command()(options.grouped(validate))


def validate(
    scheduler: options.Scheduler,
    declared: Declared,
    decisions: Annotated[int, typer.Option(min=10, help="observations a run")] = 300,
    islands: Annotated[int, typer.Option(min=2, help="islands of the fleet, for schedulers that name groups")] = 8,
    timeout: options.DecisionTimeout = 5.0,
    log: Annotated[Path | None, typer.Option(help="file to which the scheduler's prints are appended")] = None,
    json_: options.Json = False,
) -> None:
    """Check that a scheduler can be certified at all: no trace, no sidecar, a few seconds.

    Exit code 0 nothing stands in the way (there may be warnings), 1 it would be refused, 2 it cannot be run.
    """
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    source = open_scheduler(scheduler, decision_timeout_s=timeout, log_path=log, environment=dict(declared.variables))
    try:
        findings = check_scheduler(source, decisions, n_islands=islands)
        causal = source.kind == "scheduler"
    finally:
        source.close()
    if json_:
        typer.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
    else:
        _print(scheduler, findings, causal)
    raise typer.Exit(1 if any(f.level == "error" for f in findings) else 0)


def _print(scheduler: str, findings: list[Finding], causal: bool) -> None:
    console = Console(highlight=False)
    console.print(Text(clean(scheduler), style="bold"))
    rows: list[tuple[Text | str, ...]] = []
    for name, meaning in CHECKS.items() if causal else ():
        mine = [f for f in findings if f.check == name]
        for finding in mine:
            rows.append((Text(finding.level, _STYLE[finding.level]), name, finding.message))
            rows.append(("", "", Text(finding.advice, "dim")))
        if mine and mine[0].level == "error" and name in ("starts", "answers"):
            break
        if not mine and name in ("forgets", "clock") and any(f.check == "repeats" for f in findings):
            rows.append((Text("-", "dim"), name, Text("not checked: it does not repeat", "dim")))
        elif not mine:
            rows.append((Text("ok", "green"), name, Text(meaning, "dim")))
    for finding in () if causal else findings:
        rows.append((Text(finding.level, _STYLE[finding.level]), "", finding.message))
        rows.append(("", "", Text(finding.advice, "dim")))
    if rows:
        console.print(fitted(("", "", ""), rows, console.width), soft_wrap=True)
    if not findings:
        console.print(
            "nothing stands in the way: protocol certify", Text(clean(scheduler)), style="green", soft_wrap=True
        )
