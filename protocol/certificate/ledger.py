"""One line a run beside the output: what was begun, and what came of it.

Whoever tries a scheduler under many roots or limits and shows the best leaves the others here; `compare` reads them and
corrects for all.  A line can be deleted, and the documentation says so: this is a record for the honest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol import files
from protocol.certificate.model import Certificate, Head, RegimePart, plain
from protocol.files import canonical_json, write_text

LEDGER = "ledger.jsonl"
ABANDONED = "abandoned"


@dataclass(frozen=True)
class Entry:
    """One run.  claims : regimes times limits.  verdict : ABANDONED until it ended.  folder : where it wrote.

    root_seed is not there before the end: a scheduler that could read the line would know its future.
    """

    id: str
    began: str
    scheduler: str
    name: str
    folder: str
    claims: int
    settings: str
    verdict: str = ABANDONED
    root_seed: int | None = None
    registration: str | None = None


def begin(head: Head, folder: Path, mark: Path | None = None) -> Entry:
    """Write that a run begins.

    mark : a file beside the finished seeds that names the run.  Where it is there, that run goes on, and no line is
        written: whoever was interrupted has not tried twice.
    """
    going_on = _marked(mark, folder.parent / LEDGER)
    if going_on is not None:
        return going_on
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    entry = Entry(
        id=f"{now}-{os.getpid()}",
        began=now,
        scheduler=str(head.contender.described("digest")),
        name=head.contender.name,
        folder=folder.name,
        claims=sum(len(r.slos) for r in head.regimes),
        settings=_settings(head),
        registration=head.preregistration,
    )
    _append(folder.parent / LEDGER, vars(entry))
    if mark is not None:
        write_text(mark, entry.id)
    return entry


def _settings(head: Head) -> str:
    s = head.settings
    limits = "; ".join(f"{_world(r)}, {r.n_seeds} seeds: {' and '.join(r.slos)}" for r in head.regimes)
    gate = f"level {s.alpha:g}, minimum effect {s.min_effect_pp:g} pp{', bounded' if s.bounded else ''}"
    return f"{s.back_end}, root {s.root}, {s.draws} draws, {gate}; {limits}"


def _world(regime: RegimePart) -> str:
    """A regime by name and by what makes it another one: its file, its decision grid, its sidecar."""
    other = canonical_json({"corridor": plain(regime.corridor), "sidecar": plain(regime.sidecar)})
    return f"{regime.name} {regime.digest[:8]}-{hashlib.sha256(other.encode()).hexdigest()[:8]}"


def _marked(mark: Path | None, path: Path) -> Entry | None:
    if mark is None or not mark.exists():
        return None
    named = mark.read_text("utf-8", "replace")
    return next((e for e in entries(path) if e.id == named and e.verdict == ABANDONED), None)


def end(entry: Entry, certificate: Certificate, folder: Path) -> None:
    """Write what came of it."""
    done = {"id": entry.id, "verdict": certificate.verdict, "root_seed": certificate.settings.root_seed}
    _append(folder.parent / LEDGER, done)


def _append(path: Path, values: Mapping[str, Any]) -> None:
    line = json.dumps(values, sort_keys=True) + "\n"
    files.refuse_irregular(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def entries(path: Path) -> list[Entry]:
    """Every run that a ledger names, in the order in which they began; a line that is none is passed over."""
    found: dict[str, Entry] = {}
    for values in _lines(path):
        try:
            if "began" in values:
                found[values["id"]] = Entry(**values)
            elif values.get("id") in found:
                end_of = {key: values[key] for key in ("verdict", "root_seed")}
                found[values["id"]] = replace(found[values["id"]], **end_of)
        except (TypeError, KeyError):
            continue
    return list(found.values())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = files.read_bytes(path).decode()
    except (OSError, ValueError):
        return
    for line in text.splitlines():
        try:
            values = files.from_json(line)
        except ValueError:
            continue
        if isinstance(values, dict):
            yield values


def others(folders: Iterable[Path], digests: Iterable[str], shown_ones: Iterable[Certificate] = ()) -> list[Entry]:
    """Runs of the same schedulers, beside the given folders, that those folders do not show (the last one of each).

    What was only run again, to the same end, is not another run.  shown_ones : certificates of the folders, by which
    a run is known whose folder has another name by now.
    """
    wanted, shown = set(digests), {folder.resolve() for folder in folders}
    found = []
    for parent in sorted({folder.parent for folder in shown}):
        mine = [e for e in entries(parent / LEDGER) if e.scheduler in wanted]
        last = {e.folder: e for e in mine if (parent / e.folder).resolve() in shown}
        again = ({_same(e) for e in last.values()} | {_as_shown(c) for c in shown_ones}) - {None}
        found += [e for e in mine if e not in last.values() and _same(e) not in again]
    return found


def _as_shown(certificate: Certificate) -> tuple[str, ...] | None:
    head = certificate.head()
    return _run_of(str(head.contender.described("digest")), _settings(head), head.settings.root_seed)


def _same(entry: Entry) -> tuple[str, ...] | None:
    return _run_of(entry.scheduler, entry.settings, entry.root_seed)


def _run_of(scheduler: str, settings: str, root_seed: int | None) -> tuple[str, ...] | None:
    """What makes two runs one: a simulated run of the same settings and root can only give the same again."""
    if root_seed is None or not settings.startswith("simulated, "):
        return None
    return scheduler, settings, str(root_seed)
