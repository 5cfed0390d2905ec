"""`protocol live`: a scheduler decides while a real server serves, against a matched control in the same session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adapters.merge_loads.runner import MergeLoad
from adapters.schedulers.opening import open_scheduler
from adapters.schedulers.process import ProcessSource
from adapters.sidecars import identity
from adapters.sidecars.live import LiveServer
from adapters.sidecars.openai import http_library
from adapters.sidecars.probing import base_of
from adapters.sidecars.simulated import SidecarModel
from protocol.calibration.check import refuse_mismatch
from protocol.campaign import live
from protocol.campaign.plan import Setting
from protocol.certificate.assess import assess
from protocol.certificate.model import Head, RegimePart, versions
from protocol.cli import options, real
from protocol.cli.groups import Declared, Judging, Learning, Output, Server, Trust
from protocol.cli.judging import Request, judge
from protocol.cli.progress import progress_bar
from protocol.cli.settings import (
    Overrides,
    describe_contender,
    described,
    generated,
    outputs,
    sound,
    watching,
    without_calibration,
)
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.evidence.order import BALANCED
from protocol.evidence.partial import Partial
from protocol.regimes.regime import Regime
from protocol.replay.replay import NO_SYNC
from protocol.workload.trace import seconds_to_ns

#: Most of a replay that is left to the aftermath of its last merge.
MOST_COOLDOWN = 1 / 6


def register(app: typer.Typer) -> None:
    app.command("live")(options.grouped(live_command))


@dataclass(frozen=True)
class Session:
    """How long a session is, and how it is watched."""

    minutes: Annotated[float, typer.Option(min=0.01, max=10_000, help="how long at least, in whole blocks")] = 10.0
    segment_s: Annotated[float, typer.Option(min=1.2, max=3600, help="seconds of one replay; five are a block")] = 60.0
    settle_s: Annotated[float, typer.Option(min=0.0, max=600, help="seconds of quiet before each replay")] = 3.0
    warm_up_s: Annotated[float, typer.Option(min=0.0, max=600, help="seconds of requests that are not measured")] = 10.0
    rate_scale: Annotated[float, typer.Option(min=1e-3, max=1e3, help="times the regime's requests per second")] = 1.0
    until_decided: Annotated[
        bool,
        typer.Option("--until-decided", help="end with the block after which every claim passes; --minutes at most"),
    ] = False
    margin: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="A/A drift in pp that is none (default: half --min-effect)")
    ] = None
    slots: Annotated[int | None, typer.Option(min=1, help="requests that the server admits at a time")] = None
    scrape_s: Annotated[float, typer.Option(min=0.05, max=60, help="seconds between looks at /metrics")] = 0.5
    decision_timeout: options.DecisionTimeout = 5.0
    calibration: Annotated[
        Path | None, typer.Option(help="folder of `protocol calibrate`: G1 measured before on this server")
    ] = None

    @property
    def blocks(self) -> int:
        return max(1, math.ceil(self.minutes * 60 / (len(BALANCED) * (self.segment_s + self.settle_s))))


def live_command(
    scheduler: options.Scheduler,
    declared: Declared,
    sidecar: options.Sidecar,
    regime: Annotated[str, typer.Option(help="regime name or TOML file: requests, corridor, pace, SLO")],
    session: Session,
    judging: Judging,
    learner: Learning,
    server: Server,
    trust: Trust,
    output: Output,
) -> None:
    """Certify a scheduler in live operation: it decides from telemetry while the server serves.

    Exit code 0 passed, 1 failed, 3 undecidable, 2 bad input or crash, 130 interrupted.
    """
    notes = Console(stderr=True, highlight=False)
    asked = Asked(
        scheduler, base_of(sidecar), session, judging, learner, server, output, trust.files, declared.variables
    )  # fmt: skip
    judge(asked.request(regime, trust), trust, output, notes)


@dataclass(frozen=True)
class Asked:
    """A live session as the command line asked for it."""

    scheduler: str
    url: str
    session: Session
    judging: Judging
    learner: Learning
    server: Server
    output: Output
    unseen: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        return self.output.folder(f"live-{Path(self.scheduler).name}")

    def source(self, log: Path | None = None) -> ProcessSource:
        """Raises BadInput for what cannot decide live."""
        found = open_scheduler(
            self.scheduler,
            decision_timeout_s=self.session.decision_timeout,
            log_path=log,
            hidden=[*outputs(self.folder), *self.unseen],
            environment=dict(self.environment),
        )
        if isinstance(found, ProcessSource):
            return found
        found.close()
        expected = "a scheduler that decides as it goes: decide(self, obs)"
        raise BadInput(self.scheduler, f"a {found.kind} schedule", expected)

    def request(self, regime: str, trust: Trust) -> Request:
        s = self.session
        world = shortened(Regime.load(regime), s.segment_s, s.rate_scale).replace(seeds=s.blocks)
        load, contender = MergeLoad.parse(self.server.merge_load), describe_contender(self.source())
        root = self.judging.root(str(contender.get("digest")), trust.preregistered)
        setting, text = generated(
            world, root.seed, Overrides(slos=tuple(self.judging.slo) if self.judging.slo else None)
        )
        real.refuse_practised("live", setting)
        watched = self.learner.watched()
        if watched is not None:
            setting, text = watching(watched, setting, text)
        plan = live.SessionPlan(
            setting.name, setting.corridor, setting.learner, setting.worlds, root.seed, s.blocks,
            seconds_to_ns(s.segment_s), s.settle_s, root.secret,
        )  # fmt: skip
        measured = None if s.calibration is None else sound(s.calibration).stated()
        engine = identity.server_version(self.url)
        stated = _stated(described(setting, text), measured, world.merge_s, engine)
        target = real.target_of(self.url, self.server)
        limits = SidecarModel.shipped(world.sidecar).changed(world.sidecar_overrides)
        server = LiveServer(target, load, s.slots or limits.max_num_seqs, scrape_s=s.scrape_s)
        _reach(server, setting)
        head = Head.model_validate({
            "contender": contender,
            "preregistration": None,
            "settings": {
                "back_end": "live", "root_seed": root.seed, "root": root.origin,
                **({} if root.nonce is None else {"nonce": root.nonce}), **self._levels(),
            },
            "versions": {**versions(), "aiohttp": http_library().__version__},
            "regimes": [stated.model_dump(mode="json", exclude_unset=True)],
            "server": {**real.described(server, engine, self.server.server_name), "slots": server.slots},
        })  # fmt: skip
        given = [] if s.calibration is None else [s.calibration]
        return Request(head, self.folder, partial(self._collect, plan, server, setting, head), given, "finished blocks")

    def _levels(self) -> dict[str, Any]:
        s, j = self.session, self.judging
        shape = {key: getattr(s, key) for key in ("segment_s", "settle_s", "warm_up_s", "rate_scale", "scrape_s")}
        return {
            "alpha": j.alpha, "min_effect_pp": j.min_effect, "bounded": j.bounded, "draws": 1,
            **({"unconfined": True} if j.unconfined else {}),
            **({"until_decided": True} if s.until_decided else {}), "margin_pp": s.margin,
            "idle": sum(arm == NO_SYNC for arm, _ in BALANCED),
            "live": {**shape, "decision_timeout_s": s.decision_timeout},
        }  # fmt: skip

    def _collect(
        self, plan: live.SessionPlan, server: LiveServer, setting: Setting, head: Head, kept: Partial, notes: Console
    ) -> list[Evidence]:
        finished = [e for _, e in sorted(kept.finished().items())]
        if finished:
            notes.print(f"going on: {len(finished)} blocks of the interrupted session are kept")
        with notes.status("warming the server up"):
            trace = setting.worlds.other(0, 0).trace
            server.warm_up(trace.window(0, seconds_to_ns(self.session.warm_up_s)))
        source = self.source(self.folder / "scheduler.log")

        def decided(blocks: Sequence[Evidence]) -> bool:
            return self.session.until_decided and all(c.verdict == "PASS" for c in assess(head, blocks).claims)

        try:
            with progress_bar(notes, "replays of the session") as tell:
                tell(total=plan.n_blocks * len(BALANCED))
                return live.run(
                    plan, server, source, finished, kept.keep,
                    lambda done, what: tell(completed=done, description=what), decided=decided,
                )  # fmt: skip
        finally:
            source.close()


def _reach(server: LiveServer, setting: Setting) -> None:
    """Raises SidecarError when the server is not there or does not serve."""
    trace = setting.worlds.other(0, 0).trace
    if not len(trace):
        raise BadInput("--regime, --rate-scale", "no request in a replay", "requests")
    server.reach(trace)


def _stated(regime: RegimePart, measured: dict[str, Any] | None, merge_s: float, engine: str) -> RegimePart:
    """The regime with the calibration that was given; a shipped one is another server's."""
    (bare,) = without_calibration([regime])
    if measured is None:
        return bare
    refuse_mismatch(measured, merge_s=merge_s, server=engine)
    sidecar = {**bare.sidecar.model_dump(), "calibrated": False, "calibration": measured}
    return RegimePart.model_validate({**bare.model_dump(exclude_unset=True), "sidecar": sidecar})


def shortened(regime: Regime, segment_s: float, rate_scale: float) -> Regime:
    """The regime with its horizon cut to a replay and its rates scaled.  Raises BadInput for more than one island."""
    if regime.islands != 1:
        raise BadInput("--regime", f"{regime.islands} islands", "1: one server serves one island")
    cooldown_s = min(regime.cooldown_s, segment_s * MOST_COOLDOWN)
    arrivals = regime.arrivals.replace(
        rate_per_s=regime.arrivals.rate_per_s * rate_scale,
        busy_rate_per_s=regime.arrivals.busy_rate_per_s * rate_scale,
    )
    return regime.replace(horizon_s=segment_s - cooldown_s, cooldown_s=cooldown_s, arrivals=arrivals)
