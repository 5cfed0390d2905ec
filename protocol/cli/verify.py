"""`protocol verify`: recompute a certificate offline, and on request run it again."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adapters.schedulers.log_fit import LogFit, fit_of
from adapters.schedulers.merge_logs import LogReading
from adapters.schedulers.recorded import is_log, spec_of
from adapters.sidecars.fitting import check_simulated
from adapters.traces.readers import Reading
from protocol import files
from protocol.calibration import store as calibration
from protocol.calibration.check import check
from protocol.campaign.plan import Plan, Setting
from protocol.campaign.run import run, steps
from protocol.certificate import signature, version_1
from protocol.certificate.model import Certificate, Head, RegimePart, plain, versions
from protocol.certificate.preregistration import fixed_part
from protocol.certificate.reading import CERTIFICATE, RAW, VERSION_1, read_certificate, read_json
from protocol.certificate.root import secret_of
from protocol.certificate.verify import differences, rejudged
from protocol.cli import learning, options
from protocol.cli.backend import Backend
from protocol.cli.pages import REPORT, differing_pages, draw_into, write_folder, write_pages
from protocol.cli.progress import progress_bar
from protocol.cli.remaking import contradicting, recomputed, unproven
from protocol.cli.settings import Overrides, contender_opener, describe_contender, outputs, settings_for
from protocol.errors import BadInput
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.evidence.partial import locked
from protocol.regimes.regime import Regime

_ASKED = "from the command line"


def register(app: typer.Typer) -> None:
    app.command("verify")(options.grouped(verify_command))


def verify_command(
    folder: Annotated[Path, typer.Argument(help="output folder of `protocol certify`, `live` or `calibrate`")],
    backend: Backend,
    rerun: Annotated[str | None, typer.Option(help="the scheduler, to run everything again as well")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="the real traces, where there were any")] = None,
    regime: Annotated[
        list[str] | None, typer.Option(help="with --rerun or --trace: regime files, where they were files")
    ] = None,
    learner: Annotated[str | None, typer.Option(help="with --rerun: --learner as it was, where there was one")] = None,
    key: Annotated[Path | None, typer.Option(help="Ed25519 public key (PEM) of the signature")] = None,
    rejudge: Annotated[Path | None, typer.Option(help="new folder for the same rows under today's rules")] = None,
    pages: Annotated[
        Path | None, typer.Option(help="new folder for report, tables and figures, drawn again (of today's version)")
    ] = None,
    every_price: Annotated[
        bool, typer.Option("--all", help="count the violations of every placement again, not of a sample drawn anew")
    ] = False,
    jobs: options.Jobs = 2,
    most: Annotated[int, typer.Option(min=1, help="differences to print")] = 20,
) -> None:
    """Recompute every gate from the raw files, and the raw files from root, regime and decisions.

    Draws every page again, prints what remains unproven, and exits with 1 when anything differs, each named.
    """
    if (folder / calibration.FILE).is_file():
        _say([*check(folder), *check_simulated(folder)], most)
        _tell(f"verified: calibration of {calibration.read(folder).server} recomputed from its raw rows")
        return
    stated = read_json(folder)
    today = (stated["schema"], stated["schema_version"]) not in VERSION_1
    if rejudge is not None and today:
        _rejudge(folder, rejudge, *rejudged(folder))
        return
    found = [*recomputed(folder), *_signature(folder, key)]
    if not today:
        if pages is not None:
            raise BadInput("--pages", "a certificate of version 1", "--rejudge NEW, which draws them")
        if rerun is not None:
            raise BadInput("--rerun", "a certificate of version 1", "--rejudge NEW first, and then that one")
        _old(folder, stated, found, most, rejudge, every_price)
        return
    certificate = read_certificate(folder)
    again = _Again(certificate, folder, rerun or "", regime or [], trace or [], jobs, learner, backend)
    if not found:
        found += contradicting(certificate, folder, again.on_trace, every_price)
    if not found:
        found += _pages(certificate, folder)
    if rerun is not None and certificate.settings.back_end != "simulated":
        raise BadInput("--rerun", "a certificate of a real server", "none of those: what happened cannot happen again")
    if found and certificate.versions.get("diloco-protocol") != versions()["diloco-protocol"]:
        then = certificate.versions.get("diloco-protocol", "an unknown version")
        hint = "with that version, what differs here may agree; --rejudge NEW judges the same rows by today's rules"
        _tell(f"made with diloco-protocol {then}; {hint}", err=True)
    if rerun is not None and not found:
        found += again.differences()
    _say(found, most)
    _verified(again, every_price, key)
    if pages is not None:
        draw_into(pages, certificate, store.read(folder / RAW), folder / RAW)
        _tell(f"report: {pages / REPORT}")


def _tell(text: str, err: bool = False) -> None:
    """Print one line, on a terminal as several that fit; what a certificate says may hold control characters."""
    text, terminal = files.clean(text), Console(stderr=err)
    if terminal.is_terminal:
        text = textwrap.fill(
            text, terminal.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    typer.echo(text, err=err)


def _verified(again: _Again, every_price: bool, key: Path | None) -> None:
    """What agreed, and what that leaves unproven."""
    certificate, folder, rerun = again.certificate, again.folder, bool(again.scheduler)
    how = "recomputed and run again" if rerun else "recomputed"
    _tell(f"verified: {certificate.verdict}, {len(certificate.claims)} claims {how} from {folder / RAW}")
    for line in (*unproven(certificate, folder, again.on_trace, every_price, rerun), *_unsigned(folder, key)):
        _tell(f"not shown: {line}")


def _signature(folder: Path, key: Path | None) -> Iterator[str]:
    wrong = None if key is None else signature.check(folder / CERTIFICATE, key)
    if wrong is not None:
        yield wrong


def _unsigned(folder: Path, key: Path | None) -> Iterator[str]:
    if key is None:
        there = (folder / signature.SIGNATURE).is_file()
        yield f"who made it: {'its signature was not checked, for want of --key' if there else 'it is not signed'}"


def _old(
    folder: Path, stated: dict[str, Any], found: list[str], most: int, rejudge: Path | None, every_price: bool
) -> None:
    """A certificate of version 1: its rows made again, and what today's rules make of them.

    A PASS that today's rules do not give differs: nobody can recompute the rules of then.
    """
    _say(found, most)
    head, evidence, now = version_1.rejudged(folder)
    _say(list(contradicting(now, folder, lambda regime: None, every_price)), most)
    _tell(f"rows of version 1: digests, budgets, violations and gains recomputed from {folder / RAW}")
    for line in unproven(now, folder, lambda regime: None, every_price, rerun=False):
        _tell(f"not shown: {line}")
    _tell("not shown: verdict, tier and sentence that it states, by rules of then; what follows are those of today")
    _tell(f"under the rules of version {now.schema_version}: {now.verdict}. {now.sentence}")
    if rejudge is not None:
        _rejudge(folder, rejudge, head, evidence, now)
    elif stated["verdict"] == "PASS" != now.verdict:
        _say([f"verdict: stated PASS, under the rules of version {now.schema_version} {now.verdict}"], most)


def _rejudge(folder: Path, new: Path, head: Head, evidence: list[Evidence], now: Certificate) -> None:
    carried = sorted((folder / RAW / calibration.CARRIED).glob("*"))
    with locked(new):
        write_folder(new, now, head, partial(store.write, evidence), evidence, carried)
    _tell(f"judged again: {now.verdict}, {new / CERTIFICATE}")


def _pages(certificate: Certificate, folder: Path) -> list[str]:
    """Pages that differ; what is not compared is said."""
    now, then = versions(), certificate.versions
    listed = certificate.pages or ()
    if any(now.get(name) != then.get(name) for name in ("jinja2", "matplotlib")):
        _tell("not shown: report, tables and figures, which were drawn with other versions")
        return []
    absent = [name for name in listed if not (folder / name).is_file()]
    if absent:
        which = "report, tables and figures" if len(absent) == len(listed) else ", ".join(absent)
        _tell(f"not shown: {which}, which are not there")
    if len(absent) == len(listed):
        return []
    draw = partial(write_pages, certificate, store.read(folder / RAW), raw=folder / RAW)
    return list(differing_pages(draw, folder, listed))


def _say(found: list[str], most: int) -> None:
    """Print what differs; exit with 1 when anything does."""
    for line in found[:most]:
        _tell(f"differs: {line}")
    if len(found) > most:
        _tell(f"and {len(found) - most} more differences")
    if found:
        raise typer.Exit(1)


class _Again:
    """A fresh run of everything that a certificate in simulation was asked."""

    def __init__(
        self, certificate: Certificate, folder: Path, scheduler: str, regimes: list[str], traces: list[Path], jobs: int,
        learner: str | None, backend: Backend,
    ) -> None:  # fmt: skip
        self.certificate, self.folder, self.scheduler = certificate, folder, _read_alike(scheduler, certificate)
        self.traces, self.jobs, self.learner, self.backend = traces, jobs, learner, backend
        self.given = {Path(r).stem: r for r in regimes} | {Regime.load(r).name: r for r in regimes}
        self.files = {t.name: t for t in traces}
        declared: dict[str, str] = certificate.contender.described("environment") or {}
        self.environment = tuple(sorted(declared.items()))

    def on_trace(self, old: RegimePart) -> tuple[Setting, RegimePart] | None:
        """The setting of a regime on a real trace; None where its file was not given."""
        return self._world(old) if (old.described("trace") or {}).get("file") in self.files else None

    def _world(self, old: RegimePart) -> tuple[Setting, RegimePart]:
        stated, real = old.sidecar.calibration, old.described("trace")
        overrides = Overrides(
            seeds=real.get("seeds_asked") if real else old.n_seeds,
            # A trace's limits follow from its system, or from the trace, where the command line named none.
            slos=None if real and not any(t.startswith("SLO") and _ASKED in t for t in real["taken"]) else old.slos,
            decision_steps=old.corridor.decision_steps,
            calibration=None if stated is None else self.folder / RAW / calibration.carried_as(stated["name"]),
            learner=_watched(old, self.learner),
            log=_taken_from_log(old),
        )
        if real and real["file"] not in self.files:
            raise BadInput("--trace", f"nothing for {old.name}", "the file that this certificate was made from")
        name = real.get("system") if real else self._without_log(old.name)
        names = [] if name is None else [self.given.get(name, name)]
        traces = [self.files[real["file"]]] if real else []
        reading = Reading.from_described(real.get("read_as", {})) if real else Reading()
        root = self.certificate.settings.root_seed
        # In generated load a log may have given fragments to the regime, or all of its corridor.
        logs = (
            [overrides.log] if name == old.name or real else [fit_of(self.scheduler, whole) for whole in (False, True)]
        )
        for log in logs:
            changed = replace(overrides, log=log)
            (setting,), (described,) = settings_for(names, traces, reading, root, changed)
            if described.digest == old.digest:
                break
        return setting, described

    def _without_log(self, name: str) -> str:
        """A regime's own name, where a merge log that is judged has changed it."""
        contender = self.certificate.contender
        return name.removesuffix(f" with {contender.name}") if contender.kind == "recorded" else name

    def differences(self) -> list[str]:
        """What differs between the stored raw files and those of a fresh run with the same settings."""
        asked = self.certificate.settings
        worlds = [self._world(regime) for regime in self.certificate.head().regimes]
        hidden = tuple(map(os.path.realpath, (*outputs(self.folder), *self.traces)))
        hidden += self._came_later(hidden)
        with tempfile.TemporaryDirectory() as temporary:
            log = str(Path(temporary) / "scheduler.log")
            plan = Plan(
                partial(contender_opener, self.scheduler, log, hidden, self.environment), self.scheduler,
                asked.root_seed, asked.draws, asked.control_draws, asked.probes, asked.sequential,
                secret_of(asked.nonce),
            )  # fmt: skip
            source = contender_opener(self.scheduler, "", hidden, self.environment)
            contender = describe_contender(source, [setting for setting, _ in worlds])
            head = self._head(contender, [described for _, described in worlds])
            trainer = None
            if asked.train is not None:
                factor = asked.train.described("steps_per_trained_step")
                trainer = learning.training(asked.train.seeds, asked.train.loss_margin, factor)
                head = trainer.entered(head)
            before, after = (
                {k: fixed_part(h)[k] for k in ("contender", "settings")} for h in (self.certificate.head(), head)
            )
            found = [f"asked: {line}" for line in differences(before, after)]
            training = () if trainer is None else (learning.TRAINED,)
            bars = progress_bar(Console(stderr=True), *steps(plan), *training)
            with self.backend.started(self.jobs), bars as bar:

                def tell(step: str, done: int, total: int) -> None:
                    bar(step=step, completed=done, total=total)

                fresh = run(plan, [setting for setting, _ in worlds], self.jobs, progress=tell)
                if trainer is not None:
                    fresh = learning.train(trainer, head, fresh, self.jobs, tell)
            again = Path(temporary) / RAW
            for name in store.write(fresh, again):
                if files.sha256(again / name) != files.sha256(self.folder / RAW / name):
                    found.append(f"{RAW}/{name}: a fresh run gives other contents")
        return found

    def _came_later(self, hidden: tuple[str, ...]) -> tuple[str, ...]:
        """Data beside the scheduler that the judged run could not see: a registration, a key, a later download."""
        stated = self.certificate.contender.described("files") or ()
        source = contender_opener(self.scheduler, "", hidden, self.environment)
        try:
            names = source.describe().get("files")
            named = zip(names if isinstance(names, list) else (), getattr(source, "files", ()), strict=True)
            return tuple(str(path) for name, path in named if path.suffix != ".py" and name not in stated)
        finally:
            source.close()

    def _head(self, contender: dict[str, Any], regimes: list[RegimePart]) -> Head:
        asked = self.certificate.head().plain()
        settings = {key: value for key, value in asked["settings"].items() if key != "train"}
        return Head.model_validate(
            {**asked, "contender": contender, "settings": settings, "regimes": [plain(r) for r in regimes]}
        )


def _read_alike(scheduler: str, certificate: Certificate) -> str:
    """A merge log, with how it was read where its certificate says so and nobody else does."""
    how = certificate.contender.described("reading")
    if not isinstance(how, dict) or not is_log(scheduler) or "?" in scheduler:
        return scheduler
    known = {field.name for field in fields(LogReading)}
    return spec_of(scheduler, LogReading(**{key: value for key, value in how.items() if key in known}))


def _taken_from_log(regime: RegimePart) -> LogFit | None:
    """What a merge log gave to pace and windows; None where no log was judged on a trace."""
    stated = (regime.described("trace") or {}).get("log")
    if stated is None:
        return None
    begins_ns = tuple(stated["begins_ns"])
    return LogFit(regime.name, stated=stated["pace"], begins_ns=begins_ns, stated_alike=stated["alike"])


def _watched(regime: RegimePart, text: str | None) -> learning.Attached | None:
    """The measured curve that a regime's scheduler saw, at its scale.  Raises BadInput when `text` is not that one."""
    stated = regime.described("learner") or {}
    if stated.get("kind") != "measured":
        return None
    curve = learning.attached(text, stated["steps_per_measured_step"]) if text is not None else None
    if curve is None or (curve.digest, curve.method) != (stated["curves_sha256"], stated["method"]):
        expected = f"the folder of {stated['method']} whose curves.csv has SHA-256 {stated['curves_sha256'][:16]}"
        raise BadInput("--learner", text or "nothing", expected)
    return curve
