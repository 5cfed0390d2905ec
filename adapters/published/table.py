"""A plain table of per-seed results: CSV with one row a run.

Columns: `arm` (or `policy`), `seed`, and one of `violation_pct`, `violation_rate` or `violations` (with `requests`);
optional: `requests`, `merges` (realised), `draw`, `regime`, `transfer` (p95 in windows over outside).
"""

from __future__ import annotations

import csv
import io
import math

from adapters.published import parsing
from protocol.audit.imported import Claim, Comparison, Run, Support
from protocol.errors import BadInput

SUPPORT = Support(
    "per-seed table", "per-run", "none", "percent or fraction by column name", "none",
    {"G1": "only with a transfer column", "G2": "counts only, no arrivals", "G4": "no inner steps, tokens or losses"},
)  # fmt: skip
_RATES = ("violation_pct", "violation_rate", "violations")


def is_table(document: parsing.Document) -> bool:
    return document.kind == "text" and document.path.suffix.lower() == ".csv"


def runs(document: parsing.Document) -> list[Run]:
    where = document.where
    try:
        rows = list(csv.DictReader(io.StringIO(document.value), strict=True))
    except csv.Error as error:
        raise BadInput(where, f"text that is not CSV ({error})", "one row a run") from None
    heading = set(rows[0]) if rows else set()
    arm = next((name for name in ("arm", "policy") if name in heading), None)
    rate = next((name for name in _RATES if name in heading), None)
    if arm is None or rate is None or "seed" not in heading or (rate == "violations" and "requests" not in heading):
        found = f"columns {', '.join(sorted(map(str, heading))) or 'none'}"
        raise BadInput(where, found, f"arm, seed and one of {', '.join(_RATES)} (violations needs requests)")
    found_runs = []
    for number, row in enumerate(rows, 2):
        spot = f"{where}, line {number}"
        if None in row or None in row.values():
            raise BadInput(spot, "more or fewer cells than the heading has", f"{len(heading)} cells")

        def of(name: str, row: dict[str, str] = row, spot: str = spot) -> float | None:
            text = (row.get(name) or "").strip()
            if not text:
                return None
            try:
                return float(text)
            except ValueError:
                raise BadInput(f"{spot}, {name}", repr(text), "a number") from None

        requests = of("requests")
        seed, draw = of("seed"), of("draw")
        found_runs.append(
            Run(
                regime=(row.get("regime") or "").strip(),
                arm=row[arm].strip() or _no_arm(spot),
                seed=parsing.whole(f"{spot}, seed", seed, 0),
                violation_pct=_percent(spot, rate, of(rate), requests),
                requests=None if requests is None else parsing.whole(f"{spot}, requests", requests, 1),
                draw=None if draw is None else parsing.whole(f"{spot}, draw", draw, 0),
                merges=of("merges"),
                transfer=of("transfer"),
            )
        )
    return found_runs


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


def comparisons(found: list[Run], name: str, policy: str | None, random_arm: str | None) -> list[Comparison]:
    """One comparison a regime: the policy (the first arm by default) against every other arm.

    Raises BadInput when `policy` or `random_arm` is no arm of the table.
    """
    made = []
    for regime in dict.fromkeys(run.regime for run in found):
        mine = [run for run in found if run.regime == regime]
        arms = list(dict.fromkeys(run.arm for run in mine))
        for option, wanted in (("--policy", policy), ("--control", random_arm)):
            if wanted is not None and wanted not in arms:
                raise BadInput(option, repr(wanted), f"one of {', '.join(arms)}")
        chosen = policy or arms[0]
        guess = next((arm for arm in arms if "random" in arm and arm != chosen), None)
        claims = tuple(Claim(f"{chosen} beats {arm}", "better", chosen, arm) for arm in arms if arm != chosen)
        title = f"{name}, {regime}" if regime else name
        made.append(Comparison(title, title, tuple(mine), claims, random_arm=random_arm or guess))
    return made
