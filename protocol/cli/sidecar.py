"""`protocol sidecar start|stop`: an inference server as a child with a log, always ended."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adapters.cores import AUTO, asked, taken
from adapters.sidecars import engine as engines


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Start and stop an inference server.", no_args_is_help=True)
    group.command()(start)
    group.command()(stop)
    app.add_typer(group, name="sidecar")


_FOLDER = typer.Option(help="folder for the server's log and state")


def start(
    model: Annotated[str, typer.Option(help="folder or name of the model; a folder with a config.json alone will do")],
    engine: Annotated[str, typer.Option(help="vllm, or command:WORDS with {model} and {port}")] = "vllm",
    executable: Annotated[str | None, typer.Option(help="path of the engine's executable")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="default: a free one")] = None,
    folder: Annotated[Path, _FOLDER] = Path("runs/sidecar"),
    patience: Annotated[float, typer.Option(min=1, help="seconds until it must be healthy")] = 300.0,
    cores: Annotated[
        str, typer.Option(help="cores that it may use, e.g. 0-3; auto: all but the last, which is the client's; all")
    ] = AUTO,
    arguments: Annotated[str, typer.Option(help="further words for the engine, e.g. '--max-num-seqs 256'")] = "",
) -> None:
    """Start a server and wait until it is healthy; prints its address."""
    restricted = asked(cores)
    with Console(stderr=True).status("waiting for the server"):
        server = engines.start(
            engine, model, folder, port=port, executable=executable, extra=shlex.split(arguments), patience_s=patience,
            cores=restricted,
        )  # fmt: skip
    typer.echo(server.url)
    typer.echo(f"cores: {taken(server.url)}", err=True)
    typer.echo(f"log: {server.log}; end it with: protocol sidecar stop --folder {folder}", err=True)


def stop(folder: Annotated[Path, _FOLDER] = Path("runs/sidecar")) -> None:
    """End the server that `start` left in this folder, with every process of its own."""
    typer.echo("stopped" if engines.stop(folder) else f"no server was running in {folder}", err=True)
