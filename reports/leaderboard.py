"""A static page of certificates side by side, regime by regime: each verified, or said not to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.files import write_text
from reports import format as fmt
from reports.html import environment

#: By this the page of an earlier run is told from somebody else's file.
GENERATOR = "diloco-protocol leaderboard"
ROOTS = {
    "public": "public: whoever tunes a scheduler may have seen these traces",
    "given": "given by the author",
    "fresh": "fresh: drawn after the scheduler was fixed",
}


@dataclass(frozen=True)
class Entry:
    """One certificate below the folder.

    where : its folder.  certificate : its plain values, None where it cannot be read.  problems : what verification
    found, nothing where it verifies.  shown, not_shown : what verification covers, and what it leaves to trust.
    """

    where: str
    certificate: Mapping[str, Any] | None
    problems: Sequence[str] = ()
    shown: str = ""
    not_shown: Sequence[str] = field(default=())

    @property
    def verified(self) -> bool:
        return self.certificate is not None and not self.problems


def write_leaderboard(entries: Sequence[Entry], title: str, path: Path) -> None:
    """Write the page: verified claims in one table a regime and SLO, largest gain first, then what did not verify."""
    page = (
        environment()
        .get_template("leaderboard.html.j2")
        .render(
            title=title,
            entries=[{"id": f"entry-{k}", "name": _name(e), "entry": e} for k, e in enumerate(entries, 1)],
            boards=boards(entries),
            verified=sum(e.verified for e in entries),
            generator=GENERATOR,
            roots=ROOTS,
        )
    )
    write_text(path, page)


def boards(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A table for each regime and SLO: rows of claims that may stand side by side, of verified certificates alone.

    Regimes are the same where their digests are; those of one name with several digests are told apart by them.
    """
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for k, entry in enumerate(entries, 1):
        if not entry.verified or entry.certificate is None:
            continue
        digests = {regime["name"]: regime["digest"] for regime in entry.certificate["regimes"]}
        for claim in entry.certificate["claims"]:
            key = (claim["regime"], digests[claim["regime"]], claim["slo"])
            row = {"claim": claim, "e": claim["envelope"], "c": entry.certificate, "entry": f"entry-{k}"}
            found.setdefault(key, []).append(row)
    versions: dict[str, set[str]] = {}
    for name, digest, _ in found:
        versions.setdefault(name, set()).add(digest)
    made = []
    for (name, digest, slo), rows in found.items():
        named = f"{name} ({digest[:8]})" if len(versions[name]) > 1 else name
        rows.sort(key=lambda row: -row["e"]["gain_pp"] if fmt.known(row["e"]["gain_pp"]) else float("inf"))
        made.append({"regime": named, "slo": slo, "rows": _placed(rows), "axis": _axis(rows)})
    return made


def _name(entry: Entry) -> str:
    return str(entry.certificate["contender"]["name"]) if entry.certificate is not None else entry.where


def _axis(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Ends of a scale in pp that holds zero, every gain and every limit."""
    values = [0.0]
    for row in rows:
        values += [v for v in (row["e"]["gain_pp"], *(row["e"]["interval_pp"] or ())) if fmt.known(v)]
    low, high = min(values), max(values)
    margin = 0.04 * (high - low or 1.0)
    return low - margin, high + margin


def _placed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with places on a drawing that is 100 wide, to a tenth: of zero, of the gain and of its limits."""
    low, high = _axis(rows)

    def place(value: Any) -> float | None:
        return round(100 * (value - low) / (high - low), 1) if fmt.known(value) else None

    for row in rows:
        limits = row["e"]["interval_pp"] or (None, None)
        ends = [place(limits[0]), place(limits[1])]
        open_ends = [0.0 if ends[0] is None else ends[0], 100.0 if ends[1] is None else ends[1]]
        row["at"] = {
            "zero": place(0.0),
            "gain": place(row["e"]["gain_pp"]),
            "ends": open_ends if row["e"]["interval_pp"] else None,
        }
    return rows
