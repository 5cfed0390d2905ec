"""`protocol live`: a scheduler decides while a real server serves, against a matched control in the same session."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adapters.merge_loads.runner import MergeLoad
from adapters.schedulers.opening import open_scheduler
from adapters.schedulers.process import ProcessSource
from adapters.sidecars.identity import server_version
from adapters.sidecars.live import LiveServer
from adapters.sidecars.openai import Target, http_library
from adapters.sidecars.probing import base_of, model_at
from adapters.sidecars.simulated import SidecarModel
from adapters.traces.worlds import GeneratedWorlds
from protocol import files
from protocol.calibration import store as calibrations
from protocol.campaign.session import SessionPlan, run_session
from protocol.certificate.assess import versions
from protocol.certificate.live_certificate import assess
from protocol.certificate.verify import CERTIFICATE
from protocol.cli import learning
from protocol.cli.certify import EXIT
from protocol.cli.pages import REPORT, write_folder, write_live_pages
from protocol.cli.settings import describe_contender, outputs, sound
from protocol.errors import BadInput, Interrupted
from protocol.evidence import live
from protocol.evidence.live import ARMS, Session
from protocol.evidence.partial import locked
from protocol.regimes.regime import Regime
from protocol.workload.learner import Learner
from protocol.workload.slo import Slo
from protocol.workload.trace import seconds_to_ns
from reports import terminal

#: Most of a segment that is left to the aftermath of its last merge.
MOST_COOLDOWN = 1 / 6


def register(app: typer.Typer) -> None:
    app.command("live")(live_command)


def live_command(
    scheduler: Annotated[str, typer.Argument(help="FILE, FILE:Class, module:attr, cmd:COMMAND or a registered name")],
    sidecar: Annotated[str, typer.Option(help="address of a running server, e.g. http://127.0.0.1:8000")],
    regime: Annotated[str, typer.Option(help="regime name or TOML file: requests, corridor, pace, SLO")],
    model: Annotated[str | None, typer.Option(help="model to ask for (default: the only one of the server)")] = None,
    merge_load: Annotated[str, typer.Option(help="what occupies the host while a merge runs")] = "host",
    minutes: Annotated[float, typer.Option(min=0.01, max=10_000, help="how long at least, in whole blocks")] = 10.0,
    segment_s: Annotated[
        float, typer.Option(min=1.2, max=3600, help="seconds of one segment; four are a block")
    ] = 60.0,
    settle_s: Annotated[float, typer.Option(min=0.0, max=600, help="seconds of quiet before each segment")] = 3.0,
    warm_up_s: Annotated[
        float, typer.Option(min=0.0, max=600, help="seconds of requests that are not measured")
    ] = 10.0,
    rate_scale: Annotated[float, typer.Option(min=1e-3, max=1e3, help="times the regime's requests per second")] = 1.0,
    slo: Annotated[list[str] | None, typer.Option(help="instead of the regime's; repeatable")] = None,
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.5, help="level of the certificate")] = 0.05,
    min_effect: Annotated[float, typer.Option(min=0.0, help="gain in pp that must be exceeded")] = 0.0,
    margin: Annotated[float, typer.Option(min=0.01, help="drift in pp that is none (A/A segments)")] = 2.0,
    seed: Annotated[int | None, typer.Option(min=0, help="root of every random stream (default: a fresh one)")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="requests that the server admits at a time")] = None,
    scrape_s: Annotated[float, typer.Option(min=0.05, max=60, help="seconds between looks at /metrics")] = 0.5,
    decision_timeout: Annotated[float, typer.Option(min=0.05, max=60, help="seconds a decision may take")] = 5.0,
    vocabulary: Annotated[int, typer.Option(min=16, help="token ids of prompts stay below this")] = 32_000,
    text: Annotated[bool, typer.Option("--text", help="prompts as text, for servers that take no token ids")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="chat completions instead of completions")] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="folder of `protocol calibrate`: G1 measured before on this server")
    ] = None,
    learner: Annotated[
        str | None, typer.Option(help="FOLDER[:METHOD] of `protocol train`: the scheduler sees its loss and tokens")
    ] = None,
    learner_scale: Annotated[
        int | None,
        typer.Option(min=1, help="inner steps that one step of --learner stands for (default: as many as fit)"),
    ] = None,
    server_name: Annotated[str | None, typer.Option(help="how the certificate calls the server")] = None,
    out: Annotated[Path | None, typer.Option(help="output folder (default: runs/live-NAME)")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print the certificate instead of the summary")] = False,
) -> None:
    """Certify a scheduler in live operation: it decides from telemetry while the server serves.

    Exit code 0 passed, 1 failed, 3 undecidable, 2 bad input or crash, 130 interrupted (nothing is written).
    """
    notes = Console(stderr=True, highlight=False)
    for name, value in (
        ("--alpha", alpha), ("--min-effect", min_effect), ("--margin", margin), ("--minutes", minutes),
        ("--segment-s", segment_s), ("--settle-s", settle_s), ("--warm-up-s", warm_up_s), ("--rate-scale", rate_scale),
        ("--scrape-s", scrape_s), ("--decision-timeout", decision_timeout),
    ):  # fmt: skip
        if not math.isfinite(value):
            raise BadInput(name, str(value), "a number")
    root = secrets.randbits(48) if seed is None else seed
    world = _regime(regime, segment_s, rate_scale)
    model_of = SidecarModel.shipped(world.sidecar).changed(world.sidecar_overrides)
    url, load = base_of(sidecar), MergeLoad.parse(merge_load)
    corridor, worlds = world.corridor(), GeneratedWorlds(world, root)
    watched, reported = learning.attached(learner, learner_scale), _regime_head(world, slo)
    reports: Learner = world.learner
    if watched is not None:
        reports, reported["learner"] = watched.over(corridor.horizon_ns // corridor.step_ns)
        reported["tokens_per_step"] = reports.tokens_per_step
    blocks = max(1, math.ceil(minutes * 60 / (len(ARMS) * (segment_s + settle_s))))
    plan = SessionPlan(world.name, corridor, reports, worlds, root, blocks, seconds_to_ns(segment_s), settle_s)
    folder = out or Path("runs") / ("live-" + "".join(c if c.isalnum() or c in "-_." else "-" for c in scheduler)[-60:])
    measured = None if calibration is None else sound(calibration)
    source = _causal(scheduler, folder, decision_timeout)
    head: dict[str, Any] = {
        "contender": describe_contender(source),
        "preregistration": None,
        "settings": {
            "alpha": alpha, "blocks": blocks, "decision_timeout_s": decision_timeout, "margin_pp": margin,
            "min_effect_pp": min_effect, "rate_scale": rate_scale, "root_seed": root, "scrape_s": scrape_s,
            "segment_s": segment_s, "settle_s": settle_s, "warm_up_s": warm_up_s,
        },
        "versions": {**versions(), "aiohttp": http_library().__version__},
        "regimes": [reported],
        "calibration": None,
    }  # fmt: skip
    try:
        engine = server_version(url)
        if measured is not None:
            calibrations.refuse_mismatch(measured, merge_s=world.merge_s, server=engine)
            head["calibration"] = calibrations.stated(measured)
        target = Target(url, model_at(url, model), chat=chat, token_ids=not text, vocabulary=vocabulary)
        server = LiveServer(target, load, slots or model_of.max_num_seqs, scrape_s=scrape_s)
        with notes.status("warming the server up"):
            _warm_up(server, worlds, warm_up_s)
        head["server"] = _described(server, engine, server_name)
        with locked(folder):
            source = _causal(scheduler, folder, decision_timeout, folder / "scheduler.log")
            try:
                session = _run(plan, server, source, notes)
            finally:
                source.close()
            certificate = _write(head, session, folder, calibration)
    except KeyboardInterrupt:
        raise Interrupted("nothing was written") from None
    if json_:
        typer.echo(files.canonical_json(certificate), nl=False)
    else:
        terminal.print_certificate(certificate, Console(highlight=False))
        notes.print(f"report: {folder / REPORT}   certificate: {folder / CERTIFICATE}", soft_wrap=True)
    raise typer.Exit(EXIT[certificate["verdict"]])


def _warm_up(server: LiveServer, worlds: GeneratedWorlds, warm_up_s: float) -> None:
    """Raises SidecarError when the server is not there or does not serve."""
    trace = worlds.other(0, 0).trace
    if not len(trace):
        raise BadInput("--regime, --rate-scale", "no request in a segment", "requests")
    begin_ns = int(trace.arrival_ns[0])
    trace = trace.window(begin_ns, int(trace.arrival_ns[-1]) + 1)
    server.reach(trace)
    server.warm_up(trace.window(0, seconds_to_ns(warm_up_s)))


def _run(plan: SessionPlan, server: LiveServer, source: ProcessSource, notes: Console) -> Session:
    total = plan.n_blocks * len(ARMS)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=notes, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("live", total=total)
        return run_session(plan, server, source, lambda done, what: bar.update(task, completed=done, description=what))


def _write(head: dict[str, Any], session: Session, folder: Path, calibration: Path | None) -> dict[str, Any]:
    """Judge, then write the folder; the certificate itself appears last."""
    certificate = assess(head, session)
    write_folder(
        folder, certificate, head, partial(live.write, session), partial(write_live_pages, certificate),
        [] if calibration is None else [calibration],
    )  # fmt: skip
    return certificate


def _regime(name: str, segment_s: float, rate_scale: float) -> Regime:
    """The regime with its horizon cut to a segment and its rates scaled.  Raises BadInput for more than one island."""
    regime = Regime.load(name)
    if regime.islands != 1:
        raise BadInput("--regime", f"{regime.islands} islands", "1: one server serves one island")
    cooldown_s = min(regime.cooldown_s, segment_s * MOST_COOLDOWN)
    arrivals = replace(
        regime.arrivals,
        rate_per_s=regime.arrivals.rate_per_s * rate_scale,
        busy_rate_per_s=regime.arrivals.busy_rate_per_s * rate_scale,
    )
    return regime.replace(horizon_s=segment_s - cooldown_s, cooldown_s=cooldown_s, arrivals=arrivals)


def _regime_head(regime: Regime, slos: list[str] | None) -> dict[str, Any]:
    corridor = regime.corridor()
    keys = ("h_min", "h_max", "decision_steps", "step_ns", "merge_ns", "horizon_ns")
    return {
        **{key: value for key, value in regime.describe().items() if key not in (*keys, "seeds")},
        "digest": regime.digest,
        "corridor": {key: getattr(corridor, key) for key in keys},
        "slos": [str(Slo.parse(one)) for one in dict.fromkeys(slos or [regime.slo])],
        "tokens_per_step": regime.learner.tokens_per_step,
    }


def _causal(scheduler: str, folder: Path, timeout_s: float, log: Path | None = None) -> ProcessSource:
    """Raises BadInput for what cannot decide live."""
    source = open_scheduler(scheduler, decision_timeout_s=timeout_s, log_path=log, hidden=outputs(folder))
    if isinstance(source, ProcessSource):
        return source
    source.close()
    raise BadInput(scheduler, f"a {source.kind} schedule", "a scheduler that decides as it goes: decide(self, obs)")


def _described(server: LiveServer, engine: str, name: str | None) -> dict[str, Any]:
    place = urlsplit(server.target.url).netloc
    # Of a model that is a folder, only its name: where it lies says nothing about the server.
    model = Path(server.target.model).name if Path(server.target.model).is_absolute() else server.target.model
    return {
        "name": name or f"{engine} at {place}, model {model}",
        "address": place,
        "model": model,
        "version": engine,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "merge_load": str(server.load),
        "slots": server.slots,
        "fields": dict(server.target.extra),
        "prompts": "chat" if server.target.chat else "token ids" if server.target.token_ids else "text",
    }
