"""Command-line options that several commands share, each with one meaning and one range, and groups of them.

A command writes ``seed: options.Seed = options.ROOT``.  Options that belong together are the fields of a frozen
dataclass, which checks them in its `__post_init__`; `grouped` turns a parameter of such a type into its options.
Every number has a least and a largest value, which also refuses NaN and infinity.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

#: Default root of every random stream.
ROOT = 20260601

# Who is judged, and in which world.
Scheduler = Annotated[
    str, typer.Argument(help="FILE, FILE:Class, module:attr, cmd:COMMAND, a merge log or a name of `protocol list`")
]
DecisionTimeout = Annotated[float, typer.Option(min=0.01, max=60, help="seconds within which each decision must come")]
Regime = Annotated[str | None, typer.Option(help="regime name or TOML file: requests, corridor, pace, SLO")]
Regimes = Annotated[list[str] | None, typer.Option(help="regime name or TOML file; repeatable (default: all five)")]
Trace = Annotated[Path | None, typer.Option(help="real request trace instead of a regime")]
Traces = Annotated[list[Path] | None, typer.Option(help="real request trace, cut into windows; repeatable")]
TraceFormat = Annotated[str | None, typer.Option(help="format of the trace, where it cannot be detected")]
TimeUnit = Annotated[str | None, typer.Option(help="unit of the trace's times where ambiguous: s, ms, us or ns")]
DecisionSteps = Annotated[
    int | None, typer.Option(min=1, help="inner steps between decisions (default: the regime's, 8; published: 128)")
]
Learner = Annotated[
    str | None, typer.Option(help="FOLDER[:METHOD] of `protocol train`: the scheduler sees its loss and tokens")
]
LearnerScale = Annotated[
    int | None,
    typer.Option(min=1, help="inner steps that one step of --learner stands for (default: as many as fit)"),
]

# What is claimed.
Slo = Annotated[str | None, typer.Option(help="e.g. e2e<=1s or ttft<=200ms,itl<=50ms")]
Slos = Annotated[list[str] | None, typer.Option(help="instead of the regime's, e.g. ttft<=200ms,itl<=50ms; repeatable")]
Alpha = Annotated[float, typer.Option(min=0.0001, max=0.5, help="level of the certificate")]
MinEffect = Annotated[float, typer.Option(min=0, max=100, help="gain in pp that must be exceeded")]
Seed = Annotated[int, typer.Option(min=0, help="root of every random stream")]
#: None where the command chooses or draws one itself.
MaybeSeed = Annotated[int | None, typer.Option("--seed", min=0, help="root of every random stream")]
FreshSeed = Annotated[
    bool, typer.Option("--fresh-seed", help="a root that nobody could know before, recorded in the certificate")
]

# A real server, and what occupies its host.
Sidecar = Annotated[str, typer.Option(help="address of the server, e.g. http://127.0.0.1:8000")]
MaybeSidecar = Annotated[str | None, typer.Option("--sidecar", help="address of a server, e.g. http://127.0.0.1:8000")]
Model = Annotated[str | None, typer.Option(help="model to ask the server for (default: its only one)")]
Chat = Annotated[bool, typer.Option("--chat", help="chat completions, prompts as text")]
Text = Annotated[bool, typer.Option("--text", help="prompts as text, for servers that take no token ids")]
Vocabulary = Annotated[int, typer.Option(min=16, help="token ids of prompts lie below this")]
MergeLoad = Annotated[
    str,
    typer.Option(
        help="what a merge does to the host: none, host, disk, network, collective, torchft, cuda, pause, command:WORDS"
    ),
]
Calibration = Annotated[Path | None, typer.Option(help="folder of `protocol calibrate`")]

# Trust.
Preregister = Annotated[
    Path | None, typer.Option(help="only write this file, which fixes everything that will be judged")
]
Preregistered = Annotated[Path | None, typer.Option(help="keep to this registration, or refuse")]
Sign = Annotated[Path | None, typer.Option(help="Ed25519 private key (PEM) to sign the certificate with")]

# Running and writing.
Jobs = Annotated[int, typer.Option(min=1, help="processes; no result depends on it")]
Out = Annotated[Path | None, typer.Option(help="folder for the results")]
Quick = Annotated[bool, typer.Option("--quick", help="a fraction of the work, to see that everything runs")]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of the summary")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of each of its dataclass parameters as options of their own.

    Field defaults are the options'; a field without one is a required option.  The dataclass is made when the command
    runs, so that what its `__post_init__` raises is shown as any other bad input.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))
            continue
        inner = get_type_hints(groups[parameter.name], include_extras=True)
        for field in dataclasses.fields(groups[parameter.name]):
            default = parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(
                inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=inner[field.name])
            )

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
