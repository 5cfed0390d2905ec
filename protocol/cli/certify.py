"""`protocol certify`: a verdict on one scheduler, with everything needed to recompute it."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protocol import files
from protocol.campaign import arms as campaign
from protocol.certificate import preregistration, signature
from protocol.certificate.assess import assess
from protocol.certificate.verify import CERTIFICATE
from protocol.cli import learning, real
from protocol.cli.pages import write_folder, write_pages
from protocol.cli.settings import SLACK, Asked, asked, calibrations_of, contender_opener, outputs, settings_for
from protocol.errors import BadInput, Interrupted
from protocol.evidence import store as evidence
from protocol.evidence.partial import Partial, locked
from reports import terminal

#: Default draws a seed, and the most that `--draws auto` makes.
DRAWS = 999
#: Default root of every random stream.
ROOT = 20260601
EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}


def register(app: typer.Typer) -> None:
    app.command()(certify)


def certify(
    scheduler: Annotated[
        str, typer.Argument(help="FILE, FILE:Class, module:attr, cmd:COMMAND or a name of `protocol list`")
    ],
    regime: Annotated[
        list[str] | None, typer.Option(help="regime name or TOML file; repeatable (default: all five)")
    ] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="real request trace, cut into windows; repeatable")] = None,
    trace_format: Annotated[str | None, typer.Option(help="format of --trace where it cannot be detected")] = None,
    time_unit: Annotated[str | None, typer.Option(help="unit of the times in --trace where it is ambiguous")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="seeds a regime (default: the regime's, 20)")] = None,
    draws: Annotated[
        str | None,
        typer.Option(
            help="matched random draws a seed, each a full simulation; auto: fewer where the claim is lost "
            f"(default: {DRAWS}; with --sidecar {real.DRAWS})"
        ),
    ] = None,
    slo: Annotated[list[str] | None, typer.Option(help="e.g. e2e<=1s or ttft<=200ms,itl<=50ms; repeatable")] = None,
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.5, help="level of the certificate")] = 0.05,
    min_effect: Annotated[float, typer.Option(min=0.0, help="gain in pp that must be exceeded")] = 0.0,
    decision_steps: Annotated[
        int | None, typer.Option(min=1, help="inner steps between decisions (default: the regime's, 8; published: 128)")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="folder of `protocol calibrate`; its model serves every regime")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=f"root of every random stream (default: {ROOT})")] = None,
    fresh_seed: Annotated[
        bool, typer.Option("--fresh-seed", help="a root that nobody could know before, recorded in the certificate")
    ] = False,
    learner: Annotated[
        str | None, typer.Option(help="FOLDER[:METHOD] of `protocol train`: schedulers see its loss and tokens")
    ] = None,
    learner_scale: Annotated[
        int | None,
        typer.Option(min=1, help="inner steps that one step of --learner stands for (default: as many as fit)"),
    ] = None,
    train_seeds: Annotated[
        int | None,
        typer.Option(min=3, help="train small models under the schedules of this many seeds, for G4 (torch)"),
    ] = None,
    train_factor: Annotated[
        int | None,
        typer.Option(min=1, help=f"with --train-seeds: inner steps to one trained step (default: {learning.FACTOR})"),
    ] = None,
    loss_margin: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.5,
            help="with --train-seeds: nats by which the policy's final loss may exceed the control's "
            f"(default: {learning.LOSS_MARGIN})",
        ),
    ] = None,
    sidecar: Annotated[
        str | None, typer.Option(help="real server (http://HOST:PORT) on which every arm is replayed: tier 3")
    ] = None,
    model: Annotated[str | None, typer.Option(help="with --sidecar: model to ask for (default: its only one)")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="with --sidecar: chat completions, prompts as text")] = False,
    merge_load: Annotated[
        str, typer.Option(help="with --sidecar: what a merge does to the host, KIND:key=value,... or command:WORDS")
    ] = "host",
    budget_minutes: Annotated[
        float | None,
        typer.Option(min=0.01, max=10_000, help="with --sidecar: choose seeds and draws that fit this time"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="output folder (default: runs/NAME)")] = None,
    preregister: Annotated[
        Path | None, typer.Option(help="only write this file, which fixes everything that will be judged")
    ] = None,
    preregistered: Annotated[Path | None, typer.Option(help="keep to this registration, or refuse")] = None,
    sign: Annotated[Path | None, typer.Option(help="Ed25519 private key (PEM) to sign the certificate with")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes; the certificate does not depend on it")] = 2,
    json_: Annotated[bool, typer.Option("--json", help="print the certificate instead of the summary")] = False,
) -> None:
    """Certify a scheduler: does it place merges at better moments than chance?

    Exit code 0 passed, 1 failed, 3 undecidable, 2 bad input or crash.
    """
    notes = Console(stderr=True, highlight=False)
    if fresh_seed and seed is not None:
        raise BadInput("--fresh-seed", f"--seed {seed} beside it", "one of the two")
    root = secrets.randbits(48) if fresh_seed else ROOT if seed is None else seed
    if fresh_seed:
        notes.print(f"fresh root: --seed {root}")
    if not math.isfinite(alpha) or not math.isfinite(min_effect):
        raise BadInput("--alpha, --min-effect", f"{alpha} and {min_effect}", "numbers")
    folder = out or Path("runs") / _name(scheduler)
    watched = learning.attached(learner, learner_scale)
    if train_seeds is None and (train_factor is not None or loss_margin is not None):
        raise BadInput("--train-factor, --loss-margin", "no --train-seeds", "both only with it: nothing is trained")
    trainer = None
    if train_seeds is not None:
        margin = learning.LOSS_MARGIN if loss_margin is None else loss_margin
        trainer = learning.training(train_seeds, margin, train_factor or learning.FACTOR)

    def settings(n_seeds: int | None, root: int) -> real.Chosen:
        found = settings_for(regime or [], trace or [], trace_format, time_unit, root, {
            "seeds": n_seeds, "slos": tuple(slo) if slo else None, "decision_steps": decision_steps,
            "calibration": calibration, "learner": watched,
        })  # fmt: skip
        if sidecar is not None:
            real.drop_foreign(found, calibration)
        return found

    chosen, server = settings(seeds, root), None
    if sidecar is None:
        _only_with_sidecar(model=model, chat=chat, budget_minutes=budget_minutes)
    else:
        if draws == "auto":
            raise BadInput("--draws", "auto beside --sidecar", "a number: replays are planned before the first")
        server = real.reach(sidecar, model, chat, merge_load, chosen)
        draws = draws or str(real.DRAWS)
    if server is not None and budget_minutes is not None:
        if seeds is not None or trace:
            raise BadInput("--budget-minutes", "--seeds or --trace beside it", "a --regime, whose seeds it chooses")
        pilot = settings(None, root + 1)[0][0]
        opener = partial(contender_opener, scheduler, "", tuple(str(p.resolve()) for p in outputs(folder)))
        plan = campaign.Plan(opener, scheduler, root, real.DRAWS)
        n_seeds, n_draws = real.affordable(budget_minutes, real.replay_s(chosen[0][0]), plan, pilot, alpha, jobs, notes)
        chosen, draws = settings(n_seeds, root), str(n_draws)
    if sign is not None:
        signature.check_private_key(sign)
    request = asked(
        scheduler,
        folder / "scheduler.log",
        chosen,
        root_seed=root,
        draws=DRAWS if draws in (None, "auto") else _count(draws),
        sequential=draws == "auto",
        alpha=alpha,
        min_effect_pp=min_effect,
        hidden=trace or [],
    )
    if server is not None:
        request.head["settings"]["real"] = server.described
    if trainer is not None:
        trainer.enter(request.head)
    if preregister is not None:
        digest = preregistration.register(request.head, preregister)
        again = f"--preregistered {preregister}" + (f" --seed {root}" if fresh_seed else "")
        notes.print(f"registered {digest[:16]}; certify with the same options and {again}", soft_wrap=True)
        raise typer.Exit(0)
    request.head["preregistration"] = preregistration.honour(request.head, preregistered) if preregistered else None
    for line in dict.fromkeys(itertools.chain(*request.head["contender"].get("read_as", {}).values())):
        notes.print(f"merge log: {line}", soft_wrap=True)
    for described in request.head["regimes"]:
        if "trace" in described:
            limits = " and ".join(described["slos"])
            why = "" if slo else f" ({SLACK:g} times the p95 that the trace has without merges)"
            notes.print(f"{described['name']}: {described['trace']['windows']}; SLO {limits}{why}", soft_wrap=True)
    if server is not None:
        real.announce(server, request.settings[0], request.plan.draws, alpha, notes)
    with locked(folder):
        if (folder / CERTIFICATE).exists():
            notes.print(f"replacing the certificate in {folder}", soft_wrap=True)
        rests_on = calibrations_of(request.head["regimes"], calibration)
        try:
            certificate = _run(request, folder, jobs, notes, server, trainer, rests_on)
        except KeyboardInterrupt:
            what = "seeds" if server is None else "seeds and replays"
            raise Interrupted(f"finished {what} are kept, and the same command goes on from there") from None
        if sign is not None:
            signature.sign(folder / CERTIFICATE, sign)
    if json_:
        typer.echo(files.canonical_json(certificate), nl=False)
    else:
        terminal.print_certificate(certificate, Console(highlight=False))
        notes.print(f"report: {folder / 'report.html'}   certificate: {folder / CERTIFICATE}", soft_wrap=True)
    raise typer.Exit(EXIT[certificate["verdict"]])


def _name(scheduler: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(scheduler).name) or "scheduler"


def _only_with_sidecar(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise BadInput(f"--{name.replace('_', '-')}", f"{value} without --sidecar", "--sidecar URL beside it")


def _count(draws: str | None) -> int:
    if draws is None or not draws.isdigit() or int(draws) < 1:
        raise BadInput("--draws", repr(draws), "a whole number from 1 on, or auto")
    return int(draws)


def _run(
    request: Asked, folder: Path, jobs: int, notes: Console, server: real.Server | None,
    trainer: learning.Training | None, calibrations: Sequence[Path],
) -> dict[str, Any]:  # fmt: skip
    """Run what is missing, judge everything, write the folder; the certificate itself appears last."""
    head = request.head
    # What decides the evidence of a seed; alpha and the minimum effect only decide what is made of it.
    later = ("alpha", "min_effect_pp", "train")
    asked = {
        **head,
        "settings": {k: v for k, v in head["settings"].items() if k not in later},
        "versions": {k: v for k, v in head["versions"].items() if k != "torch"},
    }
    partial_results = Partial(folder, asked)
    if partial_results.started_afresh:
        notes.print(f"starting afresh: {partial_results.started_afresh}")
    finished = partial_results.finished()
    if finished:
        notes.print(f"going on: {len(finished)} seeds of the interrupted run are kept")
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=notes, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("replaying seeds")
        found = campaign.run(
            request.plan,
            request.settings,
            jobs,
            finished,
            partial_results.keep,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
        if trainer is not None:
            bar.update(task, description="training", completed=0)
            learning.train(
                trainer, head, found, jobs, lambda done, total: bar.update(task, completed=done, total=total)
            )
        if jobs > 1:
            campaign.dismiss_workers()
        bar.update(task, description="judging")
        certificate = assess(head, found) if server is None else {}
    if server is not None:
        evidence.attach(found, partial_results.replays())
        real.replay_all(
            server, request.settings[0], request.plan, found, head["contender"]["kind"], partial_results, notes
        )
        certificate = assess(head, found)
    write_folder(
        folder, certificate, head, partial(evidence.write, found), partial(write_pages, certificate, found),
        calibrations,
    )  # fmt: skip
    partial_results.remove()
    return certificate
