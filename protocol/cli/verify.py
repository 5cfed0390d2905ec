"""`protocol verify`: recompute a certificate offline, and on request run it again."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adapters.sidecars.fitting import check_simulated
from protocol import files
from protocol.calibration import store as calibration
from protocol.campaign import arms as campaign
from protocol.certificate import signature
from protocol.certificate.assess import versions
from protocol.certificate.verify import CERTIFICATE, LIVE, RAW, STANDARD, differences, read_certificate, verify
from protocol.cli import learning
from protocol.cli.pages import differing_pages, write_live_pages, write_pages
from protocol.cli.settings import asked, outputs, settings_for
from protocol.errors import BadInput
from protocol.evidence import store as evidence


def register(app: typer.Typer) -> None:
    app.command("verify")(verify_command)


def verify_command(
    folder: Annotated[Path, typer.Argument(help="output folder of `protocol certify`, `live` or `calibrate`")],
    rerun: Annotated[str | None, typer.Option(help="the scheduler, to run everything again as well")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="with --rerun: the traces, where there were any")] = None,
    regime: Annotated[list[str] | None, typer.Option(help="with --rerun: regime files, where they were files")] = None,
    learner: Annotated[str | None, typer.Option(help="with --rerun: --learner as it was, where there was one")] = None,
    key: Annotated[Path | None, typer.Option(help="Ed25519 public key (PEM) of the signature")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes for --rerun")] = 2,
    most: Annotated[int, typer.Option(min=1, help="differences to print")] = 20,
) -> None:
    """Recompute every gate from the raw files and draw every page again; exit 1 with each difference named."""
    if (folder / calibration.FILE).is_file():
        _say([*calibration.check(folder), *check_simulated(folder)], most)
        typer.echo(f"verified: calibration of {calibration.read(folder)['server']} recomputed from its raw rows")
        return
    certificate = read_certificate(folder, (STANDARD, LIVE))
    is_live = certificate["schema"] == LIVE[0]
    if is_live and rerun is not None:
        raise BadInput("--rerun", "a live certificate", "none: what happened live cannot happen again")
    found = verify(folder)
    if not found:
        for carried in sorted((folder / RAW / calibration.CARRIED).glob("*")):
            found += check_simulated(carried)
    if key is not None:
        found += [wrong for wrong in [signature.check(folder / CERTIFICATE, key)] if wrong]
    if not found:
        now, then = versions(), certificate["versions"]
        if any(now.get(name) != then.get(name) for name in ("jinja2", "matplotlib")):
            typer.echo("report, tables and figures are not compared: they were drawn with other versions", err=True)
        else:
            found += differing_pages(partial(_draw, certificate, is_live, folder / RAW), folder)
    if rerun is not None and "real" in certificate["settings"]:
        raise BadInput("--rerun", "a certificate of replays on a real server", "none of those: verify without --rerun")
    if rerun is not None and not found:
        found += _run_again(certificate, folder, rerun, regime or [], trace or [], jobs, learner)
    _say(found, most)
    how = "recomputed and run again" if rerun else "recomputed"
    typer.echo(f"verified: {certificate['verdict']}, {len(certificate['claims'])} claims {how} from {folder / RAW}")


def _say(found: list[str], most: int) -> None:
    """Print what differs; exit with 1 when anything does."""
    for line in found[:most]:
        typer.echo(f"differs: {line}")
    if len(found) > most:
        typer.echo(f"and {len(found) - most} more differences")
    if found:
        raise typer.Exit(1)


def _draw(certificate: dict[str, Any], is_live: bool, raw: Path, folder: Path) -> None:
    if is_live:
        write_live_pages(certificate, folder)
    else:
        write_pages(certificate, evidence.read(raw), folder)


def _run_again(
    certificate: dict[str, Any],
    folder: Path,
    scheduler: str,
    regimes: list[str],
    traces: list[Path],
    jobs: int,
    learner: str | None,
) -> list[str]:
    """What differs between the stored raw files and those of a fresh run with the same settings."""
    stored, chosen = certificate["regimes"], certificate["settings"]
    given = {Path(r).stem: r for r in regimes} | {f"trace:{t.name}": str(t) for t in traces}
    found: list[str] = []
    settings, described = [], []
    for old in stored:
        name = old["name"]
        overrides = {
            "seeds": old["n_seeds"],
            "slos": tuple(old["slos"]),
            "decision_steps": old["corridor"]["decision_steps"],
            "learner": _watched(old, learner),
            "calibration": _carried(old, folder / RAW),
        }
        if name.startswith("trace:"):
            if name not in given:
                raise BadInput("--trace", f"nothing for {name}", "the file that this certificate was made from")
            overrides["seeds"] = None
            one, text = settings_for([], [Path(given[name])], None, None, chosen["root_seed"], overrides)
        else:
            one, text = settings_for([given.get(name, name)], [], None, None, chosen["root_seed"], overrides)
        settings += one
        described += text
    with tempfile.TemporaryDirectory() as temporary:
        request = asked(
            scheduler,
            Path(temporary) / "scheduler.log",
            (settings, described),
            root_seed=chosen["root_seed"],
            draws=chosen["draws"],
            sequential=chosen["sequential"],
            alpha=chosen["alpha"],
            min_effect_pp=chosen["min_effect_pp"],
            hidden=[*outputs(folder), *traces],
        )
        trainer = None
        if "train" in chosen:
            keys = ("seeds", "loss_margin", "steps_per_trained_step")
            trainer = learning.training(*(chosen["train"][key] for key in keys))
            trainer.enter(request.head)
        before = {k: v for k, v in certificate.items() if k in ("contender", "settings")}
        after = {k: request.head[k] for k in before}
        found += [f"asked: {line}" for line in differences(before, after)]
        with Console(stderr=True).status("running everything again"):
            fresh = campaign.run(request.plan, request.settings, jobs)
            if trainer is not None:
                learning.train(trainer, request.head, fresh, jobs)
        again = Path(temporary) / RAW
        for name in evidence.write(fresh, again):
            if files.sha256(again / name) != files.sha256(folder / RAW / name):
                found.append(f"{RAW}/{name}: a fresh run gives other contents")
    return found


def _carried(regime: dict[str, Any], raw: Path) -> Path | None:
    """The calibration that a regime's sidecar rests on, among the raw files."""
    stated = regime["sidecar"].get("calibration")
    return None if stated is None else raw / calibration.carried_as(stated["name"])


def _watched(regime: dict[str, Any], text: str | None) -> learning.Attached | None:
    """The measured curve that a regime's scheduler saw, at its scale.  Raises BadInput when `text` is not that one."""
    stated = regime.get("learner", {})
    if stated.get("kind") != "measured":
        return None
    curve = learning.attached(text, stated["steps_per_measured_step"]) if text is not None else None
    if curve is None or (curve.digest, curve.method) != (stated["curves_sha256"], stated["method"]):
        expected = f"the folder of {stated['method']} whose curves.csv has SHA-256 {stated['curves_sha256'][:16]}"
        raise BadInput("--learner", text or "nothing", expected)
    return curve
