"""`protocol calibrate`: measure a real server under randomised merges and fit the simulator to it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars import calibrating, identity
from adapters.sidecars.openai import Target, that_serves
from adapters.sidecars.probing import base_of, model_at
from adapters.sidecars.real import RealSidecar, client_priority
from adapters.sidecars.simulated import SidecarModel
from protocol.calibration import store as calibrations
from protocol.calibration.model import Calibration, CalibrationPlan, CalibrationRun
from protocol.cli import options
from protocol.cli.progress import progress_bar
from protocol.errors import BadInput, Interrupted
from protocol.evidence.partial import locked
from protocol.files import CERTIFICATE, canonical_json, write_text
from protocol.gates.result import GateResult, Status
from protocol.gates.transfer import TITLE, calibrated_checks
from protocol.reading import read
from reports.fitted import fitted


def register(app: typer.Typer) -> None:
    app.command()(calibrate)


@dataclass(frozen=True)
class Runs:
    """What is replayed."""

    merge_s: Annotated[float, typer.Option(min=0.1, max=600, help="seconds that a merge occupies the host")] = 8.0
    rates: Annotated[str, typer.Option(help="requests a second to sweep without merges")] = "2,5,8,11,14,17,20"
    loads: Annotated[
        str | None, typer.Option(help="the two rates of the merge runs (default: 35 % and 85 % of the knee)")
    ] = None
    blocks: Annotated[int, typer.Option(min=5, max=1000, help="runs with merges at each of the two loads")] = 6
    sweep_s: Annotated[float, typer.Option(min=1, max=3600, help="seconds of each swept rate")] = 15.0
    idle_s: Annotated[
        float, typer.Option(min=1, max=3600, help="seconds of each run without merges at the two loads")
    ] = 40.0
    prompt_tokens: Annotated[str, typer.Option(help="prompt lengths, drawn alike")] = "12,47,223,364"
    output_tokens: Annotated[str, typer.Option(help="output lengths, drawn alike")] = "128"
    seed: options.Seed = options.ROOT

    def plan(self) -> CalibrationPlan:
        """Raises BadInput on lists that are none."""
        asked = {
            "seed": self.seed,
            "merge_s": self.merge_s,
            "rates_per_s": numbers("--rates", self.rates),
            "prompt_tokens": _counts("--prompt-tokens", self.prompt_tokens),
            "output_tokens": _counts("--output-tokens", self.output_tokens),
            "loads_per_s": _two(self.loads) if self.loads else None,
            "blocks": self.blocks,
            "sweep_s": self.sweep_s,
            "idle_s": self.idle_s,
        }
        return read(CalibrationPlan, asked, "calibration plan")


@dataclass(frozen=True)
class Limits:
    """What the server was started with."""

    max_num_seqs: Annotated[int, typer.Option(min=1, help="the server's limit on running requests")] = 256
    max_batched_tokens: Annotated[int, typer.Option(min=1, help="the server's token budget of an iteration")] = 2048
    kv_tokens: Annotated[int | None, typer.Option(min=2, help="the server's KV tokens (default: from its metrics)")] = (
        None
    )

    def model(self, url: str, plan: CalibrationPlan) -> SidecarModel:
        """A model with these limits, still to be fitted.  Raises BadInput when a request of the plan cannot fit."""
        tokens = self.kv_tokens or identity.kv_tokens(url)
        if tokens is None:
            expected = "the tokens that its KV cache holds"
            raise BadInput("--kv-tokens", "none, and the server's metrics do not say", expected)
        longest = max(plan.prompt_tokens) + max(plan.output_tokens)
        if longest > tokens:
            where = "--prompt-tokens, --output-tokens"
            raise BadInput(where, f"{longest} tokens in a request", f"at most {tokens} (KV cache)")
        budget = max(self.max_batched_tokens, self.max_num_seqs)
        limits = {"max_num_seqs": self.max_num_seqs, "max_batched_tokens": budget, "kv_tokens": tokens}
        return SidecarModel.shipped().changed(limits)


@options.grouped
def calibrate(
    sidecar: options.Sidecar,
    out: Annotated[Path, typer.Option(help="folder for calibration.json and its raw rows")],
    runs: Runs,
    limits: Limits,
    model: options.Model = None,
    merge_load: options.MergeLoad = "host",
    model_note: Annotated[
        str | None, typer.Option(help="what readers must know of the served model: '4 layers, random weights'")
    ] = None,
    name: Annotated[str | None, typer.Option(help="name of the fitted model (default: the folder's)")] = None,
    vocabulary: options.Vocabulary = 32_000,
    chat: options.Chat = False,
) -> None:
    """Calibrate: sweep rates, run merges on and off at random at two loads, fit the simulator, judge G1.

    Exit code 0 when a transfer was shown and the fitted simulator agrees, 1 when not, 3 undecidable, 2 bad input, 130
    interrupted.
    An interrupted calibration goes on where it was.
    """
    notes = Console(stderr=True, highlight=False)
    plan, load, url = runs.plan(), MergeLoad.parse(merge_load), base_of(sidecar)
    model = model_at(url, model)
    known = "" if model_note is None else f", {model_note}"
    facts = {"server": identity.server_version(url), "served_model": model.rstrip("/").rpartition("/")[2] + known}
    unfitted = limits.model(url, plan).named(name or out.name)
    for old in (calibrations.FILE, CERTIFICATE):
        if (out / old).exists():
            raise BadInput(f"--out {out}", f"a finished {old}", "another folder")
    target = that_serves(Target(url, model, chat=chat, vocabulary=vocabulary), plan.trace("warm-up", 1.0, 60.0))
    minutes = plan.seconds / 60
    notes.print(f"{facts['server']}, merge load {load}; about {minutes:.0f} minutes of replays", soft_wrap=True)
    server = RealSidecar(target, load)
    with locked(out):
        asked = canonical_json({**facts, "merge_load": str(load), "plan": repr(plan)})
        try:
            made = _measure(server, plan, out / ".partial", asked, notes)
        except KeyboardInterrupt:
            raise Interrupted("finished runs are kept, and the same command goes on with them") from None
        host = {**identity.host_facts(), **server.cores.describe(), "client_priority": client_priority()}
        stamp = {"date": calibrating.today(), "merge_load": str(load), "host": host}
        notes.print("fitting: up to a few minutes")
        with notes.status("fitting"):
            found = calibrating.conclude(made, plan, unfitted, {**facts, **stamp})
        found = calibrations.write(out, found, made)
        shutil.rmtree(out / ".partial")
    status = _show(found)
    notes.print(f"calibration: {out / calibrations.FILE}", soft_wrap=True)
    raise typer.Exit({"passed": 0, "failed": 1, "undecidable": 3}[status])


def _show(found: Calibration) -> Status:
    """What was fitted, and the verdict of G1, which is returned."""
    gate = GateResult("G1", TITLE, tuple(calibrated_checks(found.stated(), 0.05)))
    console = Console(highlight=False)
    console.print(Text(f"G1 {gate.title}: {gate.status}", "italic"))
    rows = [(check.name, check.status, check.reason) for check in gate.checks]
    console.print(fitted(("check", "status", "reason"), rows, console.width), soft_wrap=True)
    for key, (low, high) in found.intervals.items():
        typer.echo(f"{key}: {getattr(found.model, key):.5g} ({low:.5g} to {high:.5g})")
    return gate.status


def _measure(
    server: RealSidecar, plan: CalibrationPlan, partial: Path, asked: str, notes: Console
) -> list[CalibrationRun]:
    """All runs; finished ones of an interrupted calibration with the same plan are taken as they are."""
    stored = partial / "asked.json"
    if stored.is_file() and stored.read_text("utf-8") != asked:
        raise BadInput(
            str(partial.parent), "an interrupted calibration with other options", "the same, or another --out"
        )
    partial.mkdir(parents=True, exist_ok=True)
    write_text(stored, asked)
    kept: dict[str, CalibrationRun] = {}
    for folder in sorted(partial.glob("run-*")):
        for run in calibrations.read_runs(folder):
            kept[run.label] = run
    if kept:
        notes.print(f"going on: {len(kept)} runs of the interrupted calibration are kept")

    def keep(run: CalibrationRun) -> None:
        calibrations.write_runs(partial / f".{run.label}", [run])
        (partial / f".{run.label}").rename(partial / f"run-{run.label}")

    with progress_bar(notes, "replaying", counted=False) as tell:
        tell(total=plan.seconds)
        return calibrating.measure(
            server, plan, lambda line: notes.print(line, soft_wrap=True), lambda s: tell(advance=s), kept, keep
        )


def numbers(where: str, text: str) -> list[float]:
    """Numbers of a comma-separated list.  Raises BadInput."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < 1e9 for value in found):
        raise BadInput(where, repr(text), "positive numbers separated by commas")
    return found


def _counts(where: str, text: str) -> tuple[int, ...]:
    found = numbers(where, text)
    if not all(value.is_integer() for value in found):
        raise BadInput(where, repr(text), "whole numbers separated by commas")
    return tuple(int(value) for value in found)


def _two(text: str) -> tuple[float, float]:
    found = numbers("--loads", text)
    if len(found) != 2 or found[0] >= found[1]:
        raise BadInput("--loads", repr(text), "two rates, the lower one first")
    return found[0], found[1]
