"""Tables for papers: LaTeX (booktabs), Markdown and CSV of one certificate.

LaTeX and Markdown round; CSV holds the certificate's own numbers, its headings their units.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.files import write_text
from protocol.workload.trace import NS_PER_S
from reports import format as fmt

Row = Mapping[str, Any]
#: Of a line of a heading in LaTeX.
_HEADING_CHARACTERS = 10


@dataclass(frozen=True)
class Column:
    """A heading, how a row's value is shown, and the raw values behind it as {CSV heading: value}."""

    heading: str
    show: Callable[[Row], str]
    raw: Mapping[str, Callable[[Row], Any]]
    align: str = "r"
    #: Width of a LaTeX paragraph column in cm; None for one as wide as its content.
    width_cm: float | None = None


@dataclass(frozen=True)
class Table:
    """`name` is the file stem; a `long` one may run over pages in LaTeX."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    long: bool = True


def write_tables(certificate: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write claims, gates and per-seed tables as .tex, .md and .csv; returns the files, sorted.

    Where islands merge as peers, also what each island did.

    The LaTeX needs the packages booktabs and longtable, and UTF-8 input.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    tables = [claims_table(certificate), gates_table(certificate), seeds_table(certificate)]
    if any("peer" in regime for regime in certificate["regimes"]):
        tables.append(islands_table(certificate))
    for table in tables:
        for suffix, render in (("tex", to_latex), ("md", to_markdown), ("csv", to_csv)):
            path = folder / f"{table.name}.{suffix}"
            write_text(path, render(table))
            written.append(path)
    return sorted(written)


def claims_table(certificate: Mapping[str, Any]) -> Table:
    """One row a claim (regime x SLO)."""
    level = fmt.level(certificate)
    return Table(
        "claims",
        f"Placement gain of {certificate['contender']['name']} over matched random placement.",
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
        long=False,
    )


def gates_table(certificate: Mapping[str, Any]) -> Table:
    """One row a check of a gate of a claim."""
    return Table(
        "gates",
        "Every gate and check, with its evidence.",
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
            Column("Reason", lambda row: fmt.clean(row["reason"]), {"reason": lambda row: row["reason"]}, "l", 6.0),
        ),
        list(_checks(certificate)),
    )


def seeds_table(certificate: Mapping[str, Any]) -> Table:
    """One row a seed of a claim; sync-excess violations in percentage points."""
    return Table(
        "seeds",
        "Sync-excess SLO violations by seed, in percentage points.",
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
        "What each island did: merges, time busy merging, bytes sent and inner steps.",
        (
            _text("regime"),
            _column("Seed", "seed", fmt.count),
            _column("Island", "island", fmt.count),
            _column("Merges", "merges", fmt.count),
            _column("Busy (s)", "busy_s", lambda v: fmt.fixed(v, 1)),
            Column("Sent (GB)", lambda row: fmt.fixed(row["bytes"] / 1e9), {"bytes": _get("bytes")}),
            _column("Inner steps", "inner_steps", fmt.count),
        ),
        [
            {"regime": r["name"], "seed": s["seed"], "island": i, "busy_s": s["by_island"]["busy_ns"][i] / NS_PER_S}
            | {key: s["by_island"][key][i] for key in ("merges", "bytes", "inner_steps")}
            for r in certificate["regimes"]
            if "peer" in r
            for s in r["seeds"]
            for i in range(r["islands"])
        ],
    )


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


# Renderers -------------------------------------------------------------------------------------------------------


def to_latex(table: Table) -> str:
    """Booktabs rules around a tabular, to be put into a float, or a longtable of its own."""
    align = "".join(c.align if c.width_cm is None else rf"p{{{c.width_cm:g}cm}}" for c in table.columns)
    head = " & ".join(map(_latex_heading, table.columns)) + r" \\"
    body = [" & ".join(fmt.latex(c.show(row)) for c in table.columns) + r" \\" for row in table.rows]
    if not table.long:
        rules = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", rf"\toprule {head} \midrule"]
        return "\n".join([*rules, *body, r"\bottomrule", r"\end{tabular}"]) + "\n"
    lines = [
        r"% needs \usepackage{booktabs,longtable}; column widths settle in the second run of LaTeX",
        rf"\begin{{longtable}}{{{align}}}",
        rf"\caption{{{fmt.latex(table.caption)}}}\\",
        rf"\toprule {head} \midrule \endfirsthead",
        rf"\toprule {head} \midrule \endhead",
        r"\bottomrule \endfoot",
        *body,
        r"\end{longtable}",
    ]
    return "\n".join(lines) + "\n"


def _latex_heading(column: Column) -> str:
    """A heading in short lines: fourteen long ones side by side would not fit a page."""
    lines = textwrap.wrap(column.heading, _HEADING_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    stacked = r" \\ ".join(map(fmt.latex, lines))
    return stacked if len(lines) == 1 else rf"\shortstack[{column.align}]{{{stacked}}}"


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
