"""`protocol doctor`: what this machine has, and what is missing for each tier."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from adapters.cores import AUTO, Cores, asked, available, named, taken
from adapters.schedulers.opening import confinement_here
from adapters.sidecars.engine import healthy
from adapters.sidecars.identity import host_facts
from adapters.sidecars.probing import base_of
from adapters.sidecars.real import client_priority
from adapters.sidecars.simulated import shipped_calibrations
from protocol.certificate.model import TIERS, versions
from protocol.cli import options
from reports import fitted


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    sidecar: options.MaybeSidecar = None,
    executable: Annotated[str | None, typer.Option(help="path of an engine's executable")] = None,
    json_: options.Json = False,
) -> None:
    """Say what this machine has and what each tier still needs."""
    found = facts(sidecar, executable)
    needs = missing(found)
    if json_:
        typer.echo(json.dumps({"found": found, "missing": needs}, indent=2))
        return
    console = Console(highlight=False)
    for title, rows in (("found", found), ("missing for each tier", needs)):
        said = [(name, "none" if value is None else str(value)) for name, value in rows.items()]
        console.print(Text(title, style="italic"))
        console.print(fitted.facts(said, console.width), soft_wrap=True)
        console.print()
    if sidecar and not found["server"]:
        console.print(f"no server at {sidecar}: its /health does not answer with 200", soft_wrap=True)


def facts(sidecar: str | None, executable: str | None) -> dict[str, object]:
    """Plain facts of this machine; None where something is not there."""
    host = host_facts()
    return {
        **{key: host[key] for key in ("system", "processor", "cores")},
        "cores for a real sidecar": _cores(sidecar),
        "priority of the client": client_priority(),
        "memory, GiB": host["memory_gib"],
        "free disk, GiB": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        "GPU": _gpu(),
        "engine": executable if executable and os.access(executable, os.X_OK) else shutil.which("vllm"),
        "server": sidecar if sidecar and healthy(base_of(sidecar)) else None,
        "shipped calibrations": ", ".join(sorted(shipped_calibrations())) or None,
        "schedulers are confined by": str(confinement_here()),
        "client (aiohttp)": _version("aiohttp"),
        "learner (torch)": _version("torch"),
        "signatures (cryptography)": _version("cryptography"),
        **{f"version of {name}": text for name, text in versions().items()},
    }


def missing(found: dict[str, object]) -> dict[str, str]:
    """What each tier still needs on this machine, in words."""
    start = "protocol sidecar start starts one" + ("" if found["engine"] else " where there is an engine, e.g. vllm")
    server = [] if found["server"] else [f"a running server (--sidecar URL; {start})"]
    client = [] if found["client (aiohttp)"] else ["pip install 'diloco-protocol[sidecar]'"]
    needs = {
        1: [],
        2: [] if shipped_calibrations() else ["a calibration (protocol calibrate)"],
        3: [*server, *client],
        4: [*server, *client],
    }
    return {f"{n} {TIERS[n]}": "; ".join(words) or "nothing" for n, words in needs.items()}


def _cores(sidecar: str | None) -> str:
    """Who would run where; what to do where the client would have no core of its own."""
    if sidecar and healthy(base_of(sidecar)):
        found = taken(base_of(sidecar))
        apart = found.apart or found.server is None or len(available()) < 2
        return str(found) if apart else f"{found}; start it with --cores {named(available()[:-1])}"
    server, mine = asked(AUTO), available()
    if server is None:
        return "one core, which server, merge load and client share: requests will be sent late"
    return f"{Cores(server, server, mine[-1:])}, as `protocol sidecar start` does it"


def _gpu() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    return "; ".join(answer.stdout.split("\n")).strip("; ") or None if answer.returncode == 0 else None


def _version(module: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    if importlib.util.find_spec(module) is None:
        return None
    try:
        return version(module)
    except PackageNotFoundError:
        return "unknown version"
