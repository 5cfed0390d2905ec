"""`protocol`: one thin module a command."""

from __future__ import annotations

import importlib
import sys

import typer
from rich.console import Console
from rich.text import Text

from protocol.errors import ProtocolError

#: Modules of this package that each offer `register(app)`, in the order in which help lists them.
COMMANDS = (
    "certify", "verify", "compare", "simulate", "listing", "validate", "traces", "power", "train", "selftest", "audit",
    "doctor", "sidecar",
)  # fmt: skip
#: Packages with common names: another distribution on the path may hide ours.
OURS = ("adapters", "baselines", "reports")


def build() -> typer.Typer:
    """The whole command line.  Raises ProtocolError when a foreign package hides one of ours."""
    for name in OURS:
        package = importlib.import_module(name)
        if getattr(package, "DISTRIBUTION", None) != "diloco-protocol":
            where = getattr(package, "__file__", None) or "an unknown place"
            raise ProtocolError(
                f"package {name!r} comes from {where}, which hides the one of diloco-protocol; "
                f"mend it with: pip uninstall the other one, or run in a fresh virtual environment"
            )
    app = typer.Typer(
        name="protocol",
        help="Decide whether a claim about when to synchronise low-communication training is true.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for name in COMMANDS:
        importlib.import_module(f"protocol.cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point: every user error is one line on stderr and exit code 2."""
    complain = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        build()()
    except ProtocolError as error:
        complain.print(Text.assemble(("error: ", "bold red"), " ".join(str(error).split())))
        sys.exit(2)
    except KeyboardInterrupt:
        complain.print("interrupted; finished seeds are kept, the same command goes on from there")
        sys.exit(130)
