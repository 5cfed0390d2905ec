"""A plain table of per-seed results: CSV with one row a run.

Columns: `arm` (or `policy`), `seed`, and one of `violation_pct`, `violation_rate` or `violations` (with `requests`);
optional: `requests`, `merges` (realised), `draw`, `regime`, `transfer` (p95 in windows over outside), `run` or
`cluster` (rows that share one are one replicate), `warmup` (such rows are left out), `offered_rate` with
`achieved_rate`, and `client_delay_ms` (how late the client sent, p99).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from adapters.published import parsing
from protocol.audit.imported import Claim, Comparison, Name, Run, Support
from protocol.audit.replicates import by_likeness, by_run
from protocol.errors import BadInput

SUPPORT = Support(
    "per-seed table", "per-run", "none", "percent or fraction by column name", "none",
    {"G1": "only with a transfer column", "G2": "counts only, no arrivals", "G4": "no inner steps, tokens or losses"},
)  # fmt: skip
_RATES = ("violation_pct", "violation_rate", "violations")
_ARMS, _CLUSTERS = ("arm", "policy"), ("run", "cluster")
_FURTHER = (
    "seed", "requests", "merges", "draw", "regime", "transfer", "warmup", "offered_rate", "achieved_rate",
    "client_delay_ms",
)  # fmt: skip
_YES, _NO = ("1", "true", "yes"), ("", "0", "false", "no")
#: Words of an arm's name that say it is the matched control.
_CONTROL = ("control", "random")


@dataclass(frozen=True)
class Table:
    """Runs of a table, and what the user should know of it."""

    runs: list[Run]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """One line: its cells by column, and where it stands."""

    spot: str
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise BadInput(f"{self.spot}, {name}", repr(text), "a number") from None

    def whole(self, name: str, low: int) -> int | None:
        value = self.number(name)
        return None if value is None else parsing.whole(f"{self.spot}, {name}", value, low)

    @property
    def warmup(self) -> bool:
        text = self.text("warmup").lower()
        if text not in _YES + _NO:
            raise BadInput(f"{self.spot}, warmup", repr(text), "true or false")
        return text in _YES

    @property
    def seed(self) -> Name:
        """As the file names it; a number where it is one."""
        text = self.text("seed")
        if not text:
            raise BadInput(f"{self.spot}, seed", "an empty cell", "the seed's number or name")
        if text.removesuffix(".0").isdecimal() and str(int(float(text))) == text.removesuffix(".0"):
            return int(text.removesuffix(".0"))
        if _is_number(text):
            raise BadInput(f"{self.spot}, seed", repr(text), "a whole number from 0, or a name")
        return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_table(document: parsing.Document) -> bool:
    return document.kind == "text" and document.path.suffix.lower() == ".csv"


def runs(document: parsing.Document) -> Table:
    """Every row but those of a warm-up.  Raises BadInput that names line and column."""
    where = document.where
    try:
        reader = csv.DictReader(io.StringIO(document.value), strict=True)
        rows = list(reader)
        heading = list(reader.fieldnames or ())
    except csv.Error as error:
        raise BadInput(where, f"text that is not CSV ({error})", "one row a run") from None
    arm, rate, cluster = (next((n for n in names if n in heading), None) for names in (_ARMS, _RATES, _CLUSTERS))
    lacking = (
        arm is None or rate is None or "seed" not in heading or (rate == "violations" and "requests" not in heading)
    )
    if lacking or not rows or arm is None or rate is None:
        found = f"columns {', '.join(sorted(map(str, heading))) or 'none'}" + ("" if rows else ", and no row")
        raise BadInput(where, found, f"arm, seed and one of {', '.join(_RATES)} (violations needs requests)")
    found_runs: list[Run] = []
    clusters: dict[int, str] = {}
    left_out = 0
    for number, cells in enumerate(rows, 2):
        row = _Row(f"{where}, line {number}", cells)
        if None in cells or None in cells.values():
            raise BadInput(row.spot, "more or fewer cells than the heading has", f"{len(heading)} cells")
        if row.warmup:
            left_out += 1
            continue
        if cluster is not None and row.text(cluster):
            clusters[len(found_runs)] = row.text(cluster)
        found_runs.append(_run(row, arm, rate))
    if not found_runs:
        raise BadInput(where, f"{left_out} rows, all of the warm-up", "rows that were measured")
    known = {arm, rate, *_FURTHER} | ({cluster} if cluster else set())
    unread = [name for name in heading if name not in known]
    return _replicates(found_runs, clusters, cluster, left_out, unread)


def _replicates(
    found: list[Run], clusters: dict[int, str], column: str | None, left_out: int, unread: list[str]
) -> Table:
    notes = [f"{left_out} warm-up rows were left out"] if left_out else []
    if column is not None:
        found = by_run(found, clusters)
        units = {run.unit for run in found}
        notes.append(f"replicates are the values of column {column}: {len(units)} of them, of {len(found)} rows")
    else:
        found, warning = by_likeness(found)
        notes += [warning] if warning else []
    if unread:
        notes.append(f"columns that were not read: {', '.join(sorted(unread))}")
    return Table(found, tuple(notes))


def _run(row: _Row, arm: str, rate: str) -> Run:
    requests = row.number("requests")
    offered, achieved = row.number("offered_rate"), row.number("achieved_rate")
    if offered is not None and not offered > 0:
        raise BadInput(f"{row.spot}, offered_rate", row.text("offered_rate"), "a positive number")
    return Run(
        regime=row.text("regime"),
        arm=row.text(arm) or _no_arm(row.spot),
        seed=row.seed,
        violation_pct=_percent(row.spot, rate, row.number(rate), requests),
        requests=row.whole("requests", 1),
        draw=row.whole("draw", 0),
        merges=row.number("merges"),
        transfer=row.number("transfer"),
        achieved=None if offered is None or achieved is None else achieved / offered,
        late_ms=row.number("client_delay_ms"),
    )


def _no_arm(spot: str) -> str:
    raise BadInput(f"{spot}, arm", "an empty cell", "a name")


def _percent(spot: str, column: str, value: float | None, requests: float | None) -> float | None:
    if value is None:
        return None
    scale = {"violation_pct": 1.0, "violation_rate": 100.0}.get(column)
    if scale is None:
        if not requests or not requests > 0:
            raise BadInput(f"{spot}, requests", parsing.shown(requests), "a positive number")
        scale = 100 / requests
    pct = value * scale
    if math.isfinite(pct) and not 0 <= pct <= 100:
        raise BadInput(f"{spot}, {column}", parsing.shown(value), "violations from none to all requests")
    return pct


def comparisons(
    found: list[Run], name: str, policy: str | None, random_arm: str | None, notes: tuple[str, ...] = ()
) -> list[Comparison]:
    """One comparison a regime: the policy (by default the first arm that is no control) against every other arm.

    Raises BadInput when `policy` or `random_arm` is no arm of the table, or both are one.
    """
    made = []
    for regime in dict.fromkeys(run.regime for run in found):
        mine = [run for run in found if run.regime == regime]
        arms = list(dict.fromkeys(run.arm for run in mine))
        for option, wanted in (("--policy", policy), ("--control", random_arm)):
            if wanted is not None and wanted not in arms:
                raise BadInput(option, repr(wanted), f"one of {', '.join(arms)}")
        if policy is not None and policy == random_arm:
            raise BadInput("--control", repr(random_arm), "another arm than --policy")
        control, reason = _control(arms, policy, random_arm)
        chosen = policy or next((arm for arm in arms if arm != control), arms[0])
        claims = tuple(Claim(f"{chosen} beats {arm}", "better", chosen, arm) for arm in arms if arm != chosen)
        title = f"{name}, {regime}" if regime else name
        compared = Comparison(title, title, tuple(mine), claims, random_arm=control, notes=notes)
        made.append(replace(compared, control_reason=reason))
    return made


def _control(arms: list[str], policy: str | None, asked: str | None) -> tuple[str | None, str]:
    """The matched control: the arm asked for, or the only one that is called so; else None and why."""
    if asked is not None:
        return asked, ""
    called = [arm for arm in arms if arm != policy and any(word in arm.lower() for word in _CONTROL)]
    if len(called) == 1:
        return called[0], ""
    if called:
        return None, f"{' and '.join(called)} are called controls; --control NAME says which is matched"
    return None, "no arm is called control or random; --control NAME says which is the matched control"
