"""`protocol list`: what can be certified, and where."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table

from protocol import registry
from protocol.cli import options
from protocol.regimes.regime import Regime


def register(app: typer.Typer) -> None:
    app.command("list")(list_command)


def list_command(json_: options.Json = False) -> None:
    """Registered schedulers, regimes, sidecars, trace formats and merge loads."""
    found = {
        group.removeprefix("protocol."): [{"name": p.name, "from": p.value} for p in registry.names(group).values()]
        for group in registry.GROUPS
    }
    found["regimes"] = [{"name": r.name, "from": r.summary} for r in map(Regime.load, Regime.names())]
    if json_:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    for group, rows in found.items():
        if not rows:
            continue
        table = Table(title=group.replace("_", " "), title_justify="left", show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(style="dim")
        for row in rows:
            table.add_row(row["name"], row["from"])
        console.print(table)
        console.print()
