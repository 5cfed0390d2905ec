"""`protocol audit`: what published results license."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from adapters.published.registry import Reading, read
from protocol.audit.imported import Imported
from protocol.audit.judge import audit, finite, summary
from protocol.cli import options
from protocol.files import canonical_json, write_text
from protocol.replay.measurements import SERVED, Measurements
from protocol.workload.slo import Slo
from reports import audit as pages

#: Fewest served requests for which a p95 is shown: ten of them lie above it.
FEWEST_FOR_P95 = 200
LEGEND = (
    "Licensed: every gate that the claim needs passed.  Not licensed: a gate failed, and by how much.  Undecidable: "
    "what is missing.  A claim of caution (not shown to be better) needs no gate, only data that do not contradict it.",
    "Gates: G0 equal realised merges inside the corridor; G1 merges slow requests down, over at least five runs; G2 "
    "every arm met the same load; G3 better than matched random placement over at least eight independent loads; G4 "
    "equal training progress.  Intervals are 95 % t intervals over seeds unless another level is given.",
    "Windows that ran: the estimate for evenly spaced merges, and in brackets the bounds over every schedule that the "
    "known lengths and the corridor allow; a window that an end of the replay cuts counts as the share that ran.  At "
    "equal budget: the other arm's violations scaled to the policy's number of windows.  Where a closed loop served "
    "the arms unequal numbers, rates are first turned into the share of the server's time in which requests are late "
    "(rate and p95 ratio), which is what requests that do not wait for answers would meet; where no ratio is known, "
    "violations are taken over the policy's requests.  A win survives when both that difference and the violations per "
    "window stay below zero.",
)


def register(app: typer.Typer) -> None:
    app.command("audit")(audit_command)


def audit_command(
    paths: Annotated[list[Path], typer.Argument(help="result files, or folders that hold them")],
    out: options.Out = None,
    markdown: Annotated[Path | None, typer.Option(help="write the audit as Markdown to this file")] = None,
    slo: options.Slo = None,
    policy: Annotated[str | None, typer.Option(help="arm whose claims are judged (default: the first)")] = None,
    control: Annotated[str | None, typer.Option(help="matched random arm (default: the one named so)")] = None,
    json_: options.Json = False,
) -> None:
    """Recompute published comparisons and say which claims they license, by which gate not, or what is missing."""
    reading = read(paths, None if slo is None else Slo.parse(slo), policy, control)
    document = _document(reading, _command(paths, markdown, slo, policy, control))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        pages.write_page(document, out / "audit.html")
        write_text(out / "audit.json", canonical_json(document))
    if markdown is not None:
        write_text(markdown, pages.to_markdown(document))
    if json_:
        typer.echo(canonical_json(document), nl=False)
        return
    pages.to_terminal(document, Console(highlight=False))
    for written in (out and out / "audit.html", markdown):
        if written is not None:
            typer.echo(f"wrote {written}")


def _document(reading: Reading, command: str) -> dict[str, Any]:
    """Plain values of the whole audit, as written to audit.json."""
    formats: dict[str, dict[str, Any]] = {}
    for one in reading.files:
        row = formats.setdefault(one.support.format, {"files": 0, **vars(one.support)})
        row["files"] += 1
        row["undecidable"] = dict(one.support.undecidable)
    audited = [audit(comparison) for comparison in reading.comparisons]
    return dict(
        finite({
            "schema": "protocol-audit",
            "schema_version": 1,
            "command": command,
            "introduction": list(reading.introduction),
            "legend": list(LEGEND),
            "summary": summary(audited),
            "comparisons": audited,
            "formats": list(formats.values()),
            "files": [_file(one) for one in reading.files if one.log is not None or one.facts],
            "skipped": [path.name for path in reading.skipped],
        })
    )  # fmt: skip


def _file(one: Imported) -> dict[str, Any]:
    facts = dict(one.facts)
    if one.log is not None:
        facts |= _requests(one.log)
    return {"name": one.path.name, "format": one.support.format, "facts": facts}


def _requests(log: Measurements) -> dict[str, Any]:
    served = log.outcome == SERVED
    span_s = float(log.arrival_ns[-1] - log.arrival_ns[0]) / 1e9
    facts: dict[str, Any] = {
        "requests": len(log),
        "served": int(served.sum()),
        "failed_pct": 100 * float((~served).mean()),
        "span_s": span_s,
        "arrivals_per_s": (len(log) - 1) / span_s if span_s > 0 else None,
        "longest_send_delay_s": float((log.sent_ns - log.arrival_ns).max()) / 1e9,
    }
    if served.sum() >= FEWEST_FOR_P95:
        facts["e2e_p95_s"] = float(np.quantile(log.e2e_ns[served], 0.95)) / 1e9
    return facts


def _command(
    paths: Sequence[Path], markdown: Path | None, slo: str | None, policy: str | None, control: str | None
) -> str:
    """The command without this machine's folders: an absolute path is shown by its last part."""
    words = ["protocol", "audit", *map(_shown, paths)]
    for option, value in (("--slo", slo), ("--policy", policy), ("--control", control)):
        words += [option, value] if value is not None else []
    words += ["--markdown", _shown(markdown)] if markdown is not None else []
    return shlex.join(words)


def _shown(path: Path) -> str:
    return path.name if path.is_absolute() or os.pardir in path.parts else path.as_posix()
