"""`protocol`: one thin module a command."""

from __future__ import annotations

import importlib
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer.exceptions import TyperException

from protocol.errors import Interrupted, ProtocolError
from protocol.files import clean

#: Commands in the order in which help lists them, and the modules of this package that `register` them.
COMMANDS = {
    "certify": "certify", "sweep": "sweep", "verify": "verify", "compare": "compare", "report": "report",
    "leaderboard": "leaderboard", "export": "export",
    "simulate": "simulate", "list": "listing", "validate": "validate", "traces": "traces", "logs": "logs",
    "regime": "regime", "power": "power", "train": "train", "selftest": "selftest", "audit": "audit",
    "doctor": "doctor", "sidecar": "sidecar", "calibrate": "calibrate", "live": "live",
}  # fmt: skip
#: Exit code after Ctrl-C, as shells have it.
INTERRUPTED = 130
#: Packages with common names: another distribution on the path may hide ours.
OURS = ("adapters", "baselines", "reports")


def build(words: Sequence[str] = ()) -> typer.Typer:
    """The command line, or of it what these words need: importing every command takes two seconds.

    Raises ProtocolError when a foreign package hides one of ours.
    """
    for name in OURS:
        package = importlib.import_module(name)
        if getattr(package, "DISTRIBUTION", None) != "diloco-protocol":
            where = getattr(package, "__file__", None) or "an unknown place"
            raise ProtocolError(
                f"package {name!r} comes from {where}, which hides the one of diloco-protocol; "
                f"mend it with: pip uninstall the other one, or run in a fresh virtual environment"
            )
    app = typer.Typer(
        callback=_common,
        invoke_without_command=True,
        name="protocol",
        help="Decide whether a claim about when to synchronise low-communication training is true.",
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    named = [COMMANDS[word] for word in words[:1] if word in COMMANDS]
    for name in named or ([] if list(words) == ["--version"] else COMMANDS.values()):
        importlib.import_module(f"protocol.cli.{name}").register(app)
    return app


def _common(
    context: typer.Context, show: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    if show:
        typer.echo(version("diloco-protocol"))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point: every user error is one line on stderr and exit code 2; so is every defect of ours."""
    complain = Console(stderr=True, soft_wrap=True, highlight=False)

    def refuse(message: str) -> None:
        complain.print(Text.assemble(("error: ", "bold red"), " ".join(clean(message).split())))
        sys.exit(2)

    try:
        for word in sys.argv:
            word.encode("utf-8")
        code = build(sys.argv[1:])(standalone_mode=False)
        if code == INTERRUPTED:  # how typer says it, and it says no more
            complain.print("interrupted")
        sys.exit(code if isinstance(code, int) else 0)
    except Interrupted as what:
        complain.print(Text(clean(f"interrupted; {what}")), soft_wrap=True)
        sys.exit(INTERRUPTED)
    except (ProtocolError, TyperException) as error:
        refuse(error.format_message() if hasattr(error, "format_message") else str(error))
    except UnicodeEncodeError:
        refuse("command line: found a name that is not UTF-8; expected UTF-8")
    except OSError as error:
        refuse(f"{error.filename or 'a file'}: {error.strerror or error}")
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except Exception as error:  # ours to mend, but not the user's to read
        with tempfile.NamedTemporaryFile("w", prefix="protocol-", suffix=".log", delete=False) as details:
            traceback.print_exc(file=details)
        refuse(f"a defect of protocol, please report it: {type(error).__name__}: {error}; details in {details.name}")
