"""Tables for papers: LaTeX (booktabs), Markdown and CSV of one certificate.

LaTeX and Markdown round; CSV holds the certificate's own numbers, its headings their units.  What LaTeX shows of each
table is in `reports.paper`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.files import write_text
from protocol.workload.trace import NS_PER_S
from reports import format as fmt
from reports import paper

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A heading, how a row's value is shown, and the raw values behind it as {CSV heading: value}."""

    heading: str
    show: Callable[[Row], str]
    raw: Mapping[str, Callable[[Row], Any]]
    align: str = "r"


@dataclass(frozen=True)
class Table:
    """`name` is the file stem."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Row]


def write_tables(certificate: Mapping[str, Any], folder: Path, asked: paper.Asked | None = None) -> list[Path]:
    """Write claims, gates and per-seed tables as .tex, .md and .csv; returns the files, sorted.

    Where islands merge as peers, also what each island did.
    asked : how wide the LaTeX may be, its columns and decimals.  Raises BadInput when what was asked does not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    tables = [claims_table(certificate), gates_table(certificate), seeds_table(certificate)]
    if any("peer" in regime for regime in certificate["regimes"]):
        tables.append(islands_table(certificate))
    texts = paper.documents(certificate, asked or paper.Asked())
    for table in tables:
        for suffix, text in (("tex", texts[table.name]), ("md", to_markdown(table)), ("csv", to_csv(table))):
            path = folder / f"{table.name}.{suffix}"
            write_text(path, text)
            written.append(path)
    return sorted(written)


def claims_table(certificate: Mapping[str, Any]) -> Table:
    """One row a claim (regime x SLO)."""
    level = fmt.level(certificate)
    return Table(
        "claims",
        (
            _text("regime"),
            _text("slo", "SLO"),
            _text("verdict"),
            _column("Gain", "gain_pp", lambda v: fmt.pp(v, sign=True)),
            Column(
                f"{level} interval (pp)",
                lambda row: fmt.interval(row.get("interval_pp")),
                {"interval_low_pp": _end("interval_pp", 0), "interval_high_pp": _end("interval_pp", 1)},
            ),
            _column("From following the load", "load_gain_pp", lambda v: fmt.pp(v, sign=True)),
            Column(
                f"its {level} interval (pp)",
                lambda row: fmt.interval(row.get("load_interval_pp")),
                {
                    "load_interval_low_pp": _end("load_interval_pp", 0),
                    "load_interval_high_pp": _end("load_interval_pp", 1),
                },
            ),
            *(_column(f"p, {name}", f"p_{name.replace(' ', '_')}", fmt.p_value) for name in fmt.tests_of(certificate)),
            _column("p, Holm", "p_holm", fmt.p_value),
            _column("Gain captured", "gain_captured", fmt.fraction),
            _column("Requests saved", "requests_saved_per_sidecar_per_10_min", lambda v: fmt.fixed(v, 1)),
            _column("Detectable", "detectable_gain_pp", fmt.pp),
        ),
        [
            {
                **claim,
                **claim["envelope"],
                **{f"p_{t['name'].replace(' ', '_')}": t["p"] for t in claim["envelope"]["tests"]},
            }
            for claim in certificate["claims"]
        ],
    )


def gates_table(certificate: Mapping[str, Any]) -> Table:
    """One row a check of a gate of a claim."""
    return Table(
        "gates",
        (
            _text("regime"),
            _text("slo", "SLO"),
            _text("gate"),
            _text("check"),
            _text("status"),
            _column("Statistic", "statistic", fmt.number),
            _column("Threshold", "threshold", fmt.number),
            _column("n", "n", fmt.count),
            Column(
                "Interval",
                lambda row: fmt.interval_number(row.get("interval")),
                {"interval_low": _end("interval", 0), "interval_high": _end("interval", 1)},
            ),
            Column("Reason", lambda row: fmt.clean(row["reason"]), {"reason": lambda row: row["reason"]}, "l"),
        ),
        list(_checks(certificate)),
    )


def seeds_table(certificate: Mapping[str, Any]) -> Table:
    """One row a seed of a claim; sync-excess violations in percentage points."""
    return Table(
        "seeds",
        (
            _text("regime"),
            _text("slo", "SLO"),
            _column("Seed", "seed", fmt.count),
            _column("Merges", "merges", fmt.count),
            _column("Policy", "policy", fmt.fixed, "policy_pp"),
            _column("Mean of draws", "draw_mean", fmt.fixed, "draw_mean_pp"),
            _column("SD of draws", "draw_sd", fmt.fixed, "draw_sd_pp"),
            Column("Rank", lambda row: fmt.rank(row.get("rank"), row.get("of")), {k: _get(k) for k in ("rank", "of")}),
            _column("Optimum", "optimum", fmt.fixed, "optimum_pp"),
            _column("No sync, % violated", "no_sync_pct", fmt.fixed),
        ),
        [
            {"regime": claim["regime"], "slo": claim["slo"], **seed}
            for claim in certificate["claims"]
            for seed in claim["envelope"]["per_seed"]
        ],
    )


def islands_table(certificate: Mapping[str, Any]) -> Table:
    """One row a seed and island of the regimes whose islands merge as peers."""
    return Table(
        "islands",
        (
            _text("regime"),
            _column("Seed", "seed", fmt.count),
            _column("Island", "island", fmt.count),
            _column("Merges", "merges", fmt.count),
            _column("Busy (s)", "busy_s", lambda v: fmt.fixed(v, 1)),
            Column("Sent (GB)", lambda row: fmt.fixed(row["bytes"] / 1e9), {"bytes": _get("bytes")}),
            _column("Inner steps", "inner_steps", fmt.count),
        ),
        list(island_rows(certificate)),
    )


def island_rows(certificate: Mapping[str, Any]) -> Iterator[Row]:
    """One row a seed and island."""
    for r in certificate["regimes"]:
        for s in r["seeds"] if "peer" in r else ():
            for i in range(r["islands"]):
                own = {key: s["by_island"][key][i] for key in ("merges", "bytes", "inner_steps")}
                yield {"regime": r["name"], "seed": s["seed"], "island": i, **own,
                       "busy_s": s["by_island"]["busy_ns"][i] / NS_PER_S}  # fmt: skip


def _checks(certificate: Mapping[str, Any]) -> Iterator[Row]:
    for claim in certificate["claims"]:
        for gate in claim["gates"]:
            for check in gate["checks"]:
                where = {"regime": claim["regime"], "slo": claim["slo"], "gate": gate["gate"], "check": check["name"]}
                yield {**check, **where}


def _get(key: str) -> Callable[[Row], Any]:
    return lambda row: row.get(key)


def _end(key: str, which: int) -> Callable[[Row], Any]:
    return lambda row: row[key][which] if row.get(key) else None


def _text(key: str, heading: str | None = None) -> Column:
    return Column(heading or key.capitalize(), lambda row: fmt.clean(row[key]), {key: _get(key)}, "l")


def _column(heading: str, key: str, show: Callable[[Any], str], name: str | None = None) -> Column:
    return Column(heading, lambda row: show(row.get(key)), {name or key: _get(key)})


def frame(table: Table) -> pd.DataFrame:
    """The table as CSV has it, in pandas."""
    import pandas as pd  # half a second, which pages need not wait for

    raw = [(name, get) for column in table.columns for name, get in column.raw.items()]
    return pd.DataFrame({name: [get(row) for row in table.rows] for name, get in raw})


# Renderers -------------------------------------------------------------------------------------------------------


def to_markdown(table: Table) -> str:
    """A pipe table."""
    lines = [
        _piped(fmt.markdown(c.heading) for c in table.columns),
        _piped("---:" if c.align == "r" else ":---" for c in table.columns),
        *(_piped(fmt.markdown(c.show(row)) for c in table.columns) for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def _piped(cells: Iterator[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def to_csv(table: Table) -> str:
    """Unrounded; unknown is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    raw = [(name, get) for column in table.columns for name, get in column.raw.items()]
    writer.writerow([name for name, _ in raw])
    for row in table.rows:
        writer.writerow([_csv_cell(get(row)) for _, get in raw])
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    return fmt.csv_text(value) if isinstance(value, str) else "" if value is None else value
