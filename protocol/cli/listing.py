"""`protocol list`: what can be certified, and where."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.text import Text

from protocol import registry
from protocol.cli import options
from protocol.regimes.regime import Regime
from reports import fitted


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
        console.print(Text(group.replace("_", " "), style="italic"))
        console.print(fitted.facts([(row["name"], row["from"]) for row in rows], console.width), soft_wrap=True)
        console.print()
