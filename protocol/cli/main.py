"""`protocol`: one thin module a command."""

from __future__ import annotations

import importlib
import sys

import typer
from rich.console import Console

from protocol.errors import ProtocolError

#: Modules of this package that each offer `register(app)`.
COMMANDS = ("certify", "simulate", "listing", "traces", "validate", "power", "selftest", "audit")

app = typer.Typer(
    name="protocol",
    help="Decide whether a claim about when to synchronise low-communication training is true.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)


def build() -> typer.Typer:
    for name in COMMANDS:
        importlib.import_module(f"protocol.cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point: every user error is one line on stderr and exit code 2."""
    complain = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        build()()
    except ProtocolError as error:
        complain.print(f"[bold red]error:[/] {str(error)}", markup=True)
        sys.exit(2)
