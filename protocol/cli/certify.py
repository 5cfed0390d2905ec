"""`protocol certify`: a verdict on one scheduler, with everything needed to recompute it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adapters.schedulers.log_fit import LogFit, fit_of
from adapters.schedulers.recorded import is_log
from protocol import files
from protocol.campaign import real as replaying
from protocol.campaign.again import same_seed
from protocol.campaign.arms import refuse_kind, run_seed
from protocol.campaign.plan import Contender, Plan, Setting
from protocol.campaign.run import Key, run, steps
from protocol.certificate.model import Head, versions
from protocol.certificate.root import Root
from protocol.cli import learning, options, real
from protocol.cli.backend import Backend
from protocol.cli.groups import (
    Declared,
    Draws,
    Judging,
    Learning,
    MergeLog,
    Output,
    Server,
    Training,
    Trust,
    Worlds,
)
from protocol.cli.judging import Request, judge
from protocol.cli.progress import progress_bar
from protocol.cli.settings import (
    Chosen,
    Overrides,
    calibrations_of,
    contender_opener,
    describe_contender,
    outputs,
    refuse_endless,
    settings_for,
    without_calibration,
)
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.evidence.partial import Partial
from protocol.stats.predicted import MIN_ELSEWHERE as MIN_FURTHER


def register(app: typer.Typer) -> None:
    app.command()(options.grouped(certify))


@dataclass(frozen=True)
class Sidecar:
    """A real server that replays every arm, or a calibrated model of one."""

    sidecar: Annotated[
        str | None, typer.Option(help="real server (http://HOST:PORT) on which every arm is replayed: tier 3")
    ] = None
    budget_minutes: Annotated[
        float | None,
        typer.Option(min=0.01, max=10_000, help="with --sidecar: choose seeds and draws that fit this time"),
    ] = None
    calibration: Annotated[
        Path | None, typer.Option(help="folder of `protocol calibrate`; its model serves every regime")
    ] = None
    predicted: Annotated[
        int | None,
        typer.Option(
            min=MIN_FURTHER,
            max=10_000,
            help="with --sidecar: so many further seeds in simulation, whose prediction of the replays decides",
        ),
    ] = None


def certify(
    scheduler: options.Scheduler,
    declared: Declared,
    worlds: Worlds,
    draws: Draws,
    judging: Judging,
    learner: Learning,
    training: Training,
    sidecar: Sidecar,
    server: Server,
    trust: Trust,
    output: Output,
    log: MergeLog,
    backend: Backend,
    jobs: options.Jobs = 2,
) -> None:
    """Certify a scheduler: does it place merges at better moments than chance?

    Exit code 0 passed, 1 failed, 3 undecidable, 2 bad input or crash.
    """
    notes = Console(stderr=True, highlight=False)
    server.refuse_without(sidecar.sidecar, budget_minutes=sidecar.budget_minutes, predicted=sidecar.predicted)
    asked = Asked(
        log.spec(scheduler),
        worlds,
        draws,
        judging,
        learner,
        training,
        sidecar,
        server,
        output,
        jobs,
        None,
        trust.files,
        declared.variables,
        log.corridor is not None,
        backend,
    )
    judge(asked.request(trust, notes), trust, output, notes)


@dataclass(frozen=True)
class Asked:
    """A campaign as the command line asked for it."""

    scheduler: str
    worlds: Worlds
    draws: Draws
    judging: Judging
    learner: Learning
    training: Training
    sidecar: Sidecar
    server: Server
    output: Output
    jobs: int
    sweep: dict[str, Any] | None = None
    unseen: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    corridor_from_log: bool = False
    backend: Backend = Backend()

    @property
    def folder(self) -> Path:
        spec = self.scheduler.partition("?")[0] if is_log(self.scheduler) else self.scheduler
        return self.output.folder(Path(spec).name)

    def opener(self, log: Path | None) -> partial[Contender]:
        hidden = (*outputs(self.folder), *(self.worlds.trace or ()), *self.unseen)
        text, unseen = "" if log is None else os.path.realpath(log), tuple(map(os.path.realpath, hidden))
        return partial(contender_opener, self.scheduler, text, unseen, self.environment)

    @property
    def log(self) -> LogFit | None:
        """The merge log that is judged; None where a scheduler or planner is."""
        return fit_of(self.scheduler, self.corridor_from_log)

    def chosen(self, root_seed: int, n_seeds: int | None) -> Chosen:
        """Settings and descriptions; on a real server a shipped calibration is another server's."""
        w = self.worlds
        overrides = Overrides(
            n_seeds, tuple(self.judging.slo) if self.judging.slo else None, w.decision_steps,
            self.sidecar.calibration, self.learner.watched(), self.log,
        )  # fmt: skip
        settings, regimes = settings_for(w.regime or [], w.trace or [], w.reading, root_seed, overrides)
        if self.sidecar.sidecar is not None and self.sidecar.calibration is None:
            regimes = without_calibration(regimes)
        return settings, regimes

    def request(self, trust: Trust, notes: Console) -> Request:
        trainer = self.training.trainer()
        # Nothing of the output folder is made before the scheduler is known to load.
        contender = describe_contender(self.opener(None)())
        root = self.judging.root(str(contender.get("digest")), trust.preregistered)
        n_draws = self.draws.number(self.sidecar.sidecar is not None)
        chosen, server = self.chosen(root.seed, self.worlds.seeds), None
        for setting in chosen[0]:
            refuse_kind(contender["name"], contender["kind"], setting)
        if self.sidecar.sidecar is not None:
            server = real.reach(self.sidecar.sidecar, self.server, chosen, self.log)
            if self.sidecar.budget_minutes is not None:
                chosen, n_draws = self._afforded(root, chosen, notes)
        chosen = ([self._predicted(setting) for setting in chosen[0]], chosen[1])
        refuse_endless(chosen[0], n_draws)
        plan = Plan(
            self.opener(self.folder / "scheduler.log"), self.scheduler, root.seed, n_draws,
            sequential=self.draws.sequential, secret=root.secret, digest=contender.get("digest"),
        )  # fmt: skip
        head = self.head(plan, root.seed, chosen, root, server)
        if trainer is not None:
            head = trainer.entered(head)
        collect = partial(self._collect, head, plan, chosen, server, trainer)
        kept = "finished seeds" if server is None else "finished seeds and replays"
        return Request(head, self.folder, collect, calibrations_of(head.regimes, self.sidecar.calibration), kept)

    def _predicted(self, setting: Setting) -> Setting:
        """With the further seeds that predict its replays.  Raises BadInput where there can be none."""
        if self.sidecar.predicted is None:
            return setting
        if self.worlds.trace:
            raise BadInput("--predicted", "--trace beside it", "a --regime, whose further seeds it simulates")
        return replace(setting, further=self.sidecar.predicted)

    def _afforded(self, root: Root, chosen: Chosen, notes: Console) -> tuple[Chosen, int]:
        minutes = self.sidecar.budget_minutes
        if self.worlds.seeds is not None or self.worlds.trace or minutes is None:
            raise BadInput("--budget-minutes", "--seeds or --trace beside it", "a --regime, whose seeds it chooses")
        pilot = self.chosen(root.seed + 1, None)
        plan = Plan(self.opener(None), self.scheduler, root.seed, n_draws := 1)
        judging = real.Pilot(pilot[0][0], plan, self.judging.alpha, self.judging.min_effect, self.jobs)
        each_s, predicted = real.replay_s(chosen[0][0]), self.sidecar.predicted is not None
        with self.backend.started(self.jobs):
            n_seeds, n_draws = real.affordable(minutes, each_s, judging, predicted, notes)
        return self.chosen(root.seed, n_seeds), n_draws

    def head(
        self, plan: Plan, root_seed: int, chosen: Chosen, root: Root | None = None, server: real.Reached | None = None
    ) -> Head:
        """What was asked; `root` says where the seed comes from."""
        j = self.judging
        settings = {
            "back_end": "simulated" if server is None else "real",
            "root_seed": root_seed,
            "root": "given" if root is None else root.origin,
            **({} if root is None or root.nonce is None else {"nonce": root.nonce}),
            "alpha": j.alpha,
            "min_effect_pp": j.min_effect,
            "bounded": j.bounded,
            **({"unconfined": True} if j.unconfined else {}),
            "draws": plan.draws,
            "control_draws": plan.control_draws,
            "probes": plan.probes,
            "sequential": plan.sequential,
            **({} if server is None else {"idle": replaying.IDLE, "attempts": replaying.ATTEMPTS}),
            **({} if self.sidecar.predicted is None else {"predicted": self.sidecar.predicted}),
        }
        return Head.model_validate({
            "contender": describe_contender(self.opener(None)(), chosen[0]), "preregistration": None,
            "settings": settings, "versions": versions(),
            "regimes": [r.model_dump(mode="json", exclude_unset=True) for r in chosen[1]],
            **({} if server is None else {"server": server.described}),
            **({} if self.sweep is None else {"sweep": self.sweep}),
        })  # fmt: skip

    def _check_kept(self, plan: Plan, chosen: Chosen, finished: Mapping[Key, Evidence]) -> None:
        """Run one kept seed of each regime again: files of an unfinished run can be written by anybody.

        Raises BadInput where another evidence comes out.  Which seeds is nobody's to know, and changes no result.
        """
        for setting in chosen[0]:
            kept = sorted(seed for name, seed in finished if name == setting.name)
            if kept:
                seed = secrets.choice(kept)
                differs = same_seed(finished[setting.name, seed], run_seed(plan, setting, seed))
                if differs is not None:
                    found = f"a kept seed {seed} of {setting.name} that a fresh run does not bear out in its {differs}"
                    raise BadInput(str(self.folder / files.PARTIAL), found, "the files of an interrupted run")

    def _collect(
        self, head: Head, plan: Plan, chosen: Chosen, server: real.Reached | None, trainer: learning.Training | None,
        kept: Partial, notes: Console,
    ) -> list[Evidence]:  # fmt: skip
        finished = kept.finished()
        if finished:
            notes.print(f"going on: {len(finished)} seeds of the interrupted run are kept")
            self._check_kept(plan, chosen, finished)
        if server is not None:
            real.announce(server, chosen[0][0], plan.draws, head.settings.alpha, notes)
        training = () if trainer is None else (learning.TRAINED,)
        with self.backend.started(self.jobs), progress_bar(notes, *steps(plan), *training) as bar:

            def tell(step: str, done: int, total: int) -> None:
                bar(step=step, completed=done, total=total)

            found = run(plan, chosen[0], self.jobs, finished, kept.keep, tell)
            if trainer is not None:
                found = learning.train(trainer, head, found, self.jobs, tell)
        if server is None:
            return found
        return real.replay_all(server, head, chosen[0][0], found, kept, notes)
