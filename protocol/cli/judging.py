"""The road from a request to a certificate; the same for every tier."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from protocol import files
from protocol.certificate import ledger, preregistration, signature
from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, Head, plain
from protocol.certificate.reading import CERTIFICATE
from protocol.cli.groups import Output, Trust
from protocol.cli.pages import REPORT, write_folder
from protocol.cli.progress import progress_bar
from protocol.cli.settings import told
from protocol.errors import Interrupted
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.evidence.partial import Partial, locked
from protocol.files import clean
from reports import terminal

EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}
#: What decides only what is made of the evidence, not the evidence itself.
_LATER = ("alpha", "min_effect_pp", "bounded", "train", "margin_pp")


@dataclass(frozen=True)
class Request:
    """A certificate as the command line asked for it.

    collect : brings the evidence that `Partial` does not hold yet; a back-end chosen once.
    calibrations : folders that G1 rests on.  kept : what an interrupted run leaves.
    """

    head: Head
    folder: Path
    collect: Callable[[Partial, Console], list[Evidence]]
    calibrations: list[Path]
    kept: str


def judge(request: Request, trust: Trust, output: Output, notes: Console) -> None:
    """Run what is missing, judge everything, write the folder, sign it, and exit with the verdict's code."""
    certificate = judged(request, trust, notes)
    if output.json:
        typer.echo(files.canonical_json(plain(certificate)), nl=False)
    else:
        terminal.print_certificate(plain(certificate), Console(highlight=False))
        for what, name in (("report", REPORT), ("certificate", CERTIFICATE)):
            notes.print(f"{what}: {request.folder / name}", soft_wrap=True)
    raise typer.Exit(EXIT[certificate.verdict])


def judged(request: Request, trust: Trust, notes: Console) -> Certificate:
    """Everything that `judge` does but print and exit; exits where there is only something to register."""
    if trust.sign is not None:
        signature.check_private_key(trust.sign)
    head = request.head
    if trust.preregister is not None:
        digest = preregistration.register(head, trust.preregister, trust.registration_note)
        notes.print(
            f"registered {digest[:16]}; certify with the same options and --preregistered {trust.preregister}",
            soft_wrap=True,
        )
        raise typer.Exit(0)
    if trust.preregistered is not None:
        head = head.model_copy(update={"preregistration": preregistration.honour(head, trust.preregistered)})
    _announce(head, notes)
    files.claim_folder(request.folder)  # before hours of work, not after
    with locked(request.folder):
        if (request.folder / CERTIFICATE).exists():
            notes.print(f"replacing the certificate in {request.folder}", soft_wrap=True)
        kept = _kept(head, request.folder)
        if kept.started_afresh:
            notes.print(f"starting afresh: {kept.started_afresh}")
        entry = ledger.begin(head, request.folder, kept.mark)
        try:
            certificate = _run(head, request, kept, notes)
        except KeyboardInterrupt:
            again = f" with --nonce {head.settings.nonce}" if head.settings.nonce else ""
            raise Interrupted(f"{request.kept} are kept, and the same command{again} goes on from there") from None
        ledger.end(entry, certificate, request.folder)
        if trust.sign is not None:
            signature.sign(request.folder / CERTIFICATE, trust.sign)
    return certificate


def _announce(head: Head, notes: Console) -> None:
    """What had to be decided about the input, before anything runs."""
    if head.settings.root == "fresh":
        notes.print(f"fresh root {head.settings.root_seed} from --nonce {head.settings.nonce}", soft_wrap=True)
    read_as = head.contender.described("read_as") or {}
    for line in dict.fromkeys(itertools.chain(*read_as.values())):
        notes.print(f"merge log: {line}", soft_wrap=True)
    for line in told(head.regimes):
        notes.print(clean(line), soft_wrap=not notes.is_terminal, markup=False)


def _kept(head: Head, folder: Path) -> Partial:
    asked = head.plain(dated=False)
    return Partial(
        folder,
        {
            **asked,
            "settings": {k: v for k, v in asked["settings"].items() if k not in _LATER},
            "versions": {k: v for k, v in asked["versions"].items() if k != "torch"},
        },
    )


def _run(head: Head, request: Request, kept: Partial, notes: Console) -> Certificate:
    evidence = request.collect(kept, notes)
    with progress_bar(notes, "judging and drawing", counted=False):
        certificate = write_folder(
            request.folder, assess(head, evidence), head, partial(store.write, evidence), evidence, request.calibrations
        )
    kept.remove()
    return certificate
