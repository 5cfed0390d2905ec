"""Several certificates side by side: tables for papers and for the terminal, and figures of schedulers by regimes.

Rows are those of `protocol.certificate.compare.Compared`, as mappings; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from protocol.files import write_text
from reports import figures, latex, paper, tables
from reports import format as fmt
from reports.comparison_figures import comparison_figures, names
from reports.figures import Width
from reports.fitted import fitted
from reports.latex import Cell, Float
from reports.tables import Column, Row, Table

STEM = "comparison"
#: Columns of the LaTeX table that may be asked for, and those of either width where nobody asks.
COLUMNS = ("scheduler", "verdict", "gain", "load", "p", "alone", "captured", "saved", "merges")
_DEFAULT: dict[Width, tuple[str, ...]] = {
    "column": ("scheduler", "verdict", "gain", "load"),
    "page": ("scheduler", "verdict", "gain", "load", "p", "captured", "merges"),
}


class Asked(paper.Asked):
    """The same of a comparison's columns."""

    @staticmethod
    def known() -> Collection[str]:
        return COLUMNS


def detailed(rows: Sequence[Row], certificates: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with what their certificates hold beyond them; claims of the certificates in the rows' order."""
    claims = [(one, claim["envelope"]) for one in certificates for claim in one["claims"]]
    found = []
    for row, (one, e) in zip(rows, claims, strict=True):
        seeds = e["per_seed"]
        found.append({
            **row,
            "digest": one["contender"].get("digest"),
            "n_seeds": e["n_seeds"],
            "n_draws": e["n_draws"],
            "merges_a_seed": row["merges"] / len(seeds) if seeds else None,
            "policy_excess_pp": e["policy_excess_pp"],
            "control_excess_pp": e["control_excess_pp"],
            "requests_saved_per_sidecar_per_10_min": e["requests_saved_per_sidecar_per_10_min"],
            "seed_gains_pp": [s["draw_mean"] - s["policy"] for s in seeds],
        })  # fmt: skip
    return found


def write(
    rows: Sequence[Row], settings: Mapping[str, Any], tried: Sequence[Row], folder: Path, asked: Asked | None = None
) -> list[Path]:
    """Tables `comparison`, -gains and -runs (.tex, .md, .csv) and figures; the same rows give the same bytes.

    rows : of `detailed`.  settings : of the certificates, with `alpha` and `min_effect_pp`.
    tried : other runs that count, as the ledger has them.
    Raises BadInput when the columns that were asked for do not fit.
    """
    asked, written = asked or Asked(), []
    n_tried = len(rows) + sum(entry["claims"] for entry in tried)
    floats = {
        STEM: [_claims(rows, settings, n_tried, asked)],
        f"{STEM}-gains": _matrix(rows, settings, n_tried, asked),
        f"{STEM}-runs": [_runs(rows, tried)],
    }
    if asked.columns is not None:
        latex.check_room(floats[STEM][0].cells, rows, asked.width)
    folder.mkdir(parents=True, exist_ok=True)
    for table in (comparison_table(rows, settings), gains_table(rows), runs_table(rows, tried)):
        texts = {"tex": latex.document(floats[table.name], asked.width), "md": tables.to_markdown(table),
                 "csv": tables.to_csv(table)}  # fmt: skip
        for suffix, text in texts.items():
            written.append(folder / f"{table.name}.{suffix}")
            write_text(written[-1], text)
    with figures.styled():
        drawn = comparison_figures(rows, settings, asked.width)
    for name, figure in drawn.items():
        svg = figures.save(figure, folder / f"{STEM}{name}")
        written += [svg.with_suffix(".pdf"), svg]
    return written


# Tables as they are stored -----------------------------------------------------------------------------------------


def comparison_table(rows: Sequence[Row], settings: Mapping[str, Any]) -> Table:
    """One row a claim: both gains with their intervals, the captured share, and p among all that was tried."""
    level = fmt.level({"settings": settings})
    return Table(
        STEM,
        (
            _words("scheduler", "Scheduler"),
            _words("regime", "Regime"),
            _words("slo", "SLO"),
            _number("Gain (pp)", "gain_pp", lambda v: fmt.fixed(v, sign=True)),
            _limits(f"{level} interval", "interval"),
            _number("By load (pp)", "load_gain_pp", lambda v: fmt.fixed(v, sign=True)),
            _limits(f"its {level} interval", "load_interval"),
            _number("Gain captured", "gain_captured", fmt.fraction),
            _number("p alone", "p", fmt.p_value),
            _number("p in all", "p_overall", fmt.p_value),
            _words("verdict", "Verdict", "root_seed", "merges", "p_within"),
        ),
        rows,
    )


def gains_table(rows: Sequence[Row]) -> Table:
    """One row a scheduler, one column a regime and SLO: its gain over chance."""

    def show(place: str) -> Callable[[Row], str]:
        return lambda row: fmt.fixed(row[place]["gain_pp"], sign=True) + _stars(row[place]) if place in row else ""

    def raw(place: str) -> Callable[[Row], Any]:
        return lambda row: row[place]["gain_pp"] if place in row else None

    places = [fmt.clean(place) for place in dict.fromkeys(map(_claim, rows))]
    columns = [Column(place, show(place), {f"gain_pp, {place}": raw(place)}) for place in places]
    return Table(f"{STEM}-gains", (_words("scheduler", "Scheduler"), *columns), _by_scheduler(rows))


def runs_table(rows: Sequence[Row], tried: Sequence[Row]) -> Table:
    """One row a run that counts: those that are compared, and the others that the ledger has."""
    return Table(
        f"{STEM}-runs",
        (
            _words("scheduler", "Scheduler"),
            _words("digest", "Digest"),
            _number("Root", "root_seed", fmt.count),
            _number("Seeds", "n_seeds", fmt.count),
            _number("Draws", "n_draws", fmt.count),
            _number("Merges", "merges", fmt.count),
            _number("Claims", "claims", fmt.count),
            _number("Passed", "passed", fmt.count),
            _words("shown", "Shown"),
        ),
        _run_rows(rows, tried),
    )


def _by_scheduler(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row a scheduler, which holds the row of each of its claims by regime and SLO."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in zip(names(rows), rows, strict=True):
        found.setdefault(name, {"scheduler": name})[fmt.clean(_claim(row))] = row
    return list(found.values())


def _by_place(rows: Sequence[Row]) -> list[Row]:
    """The rows of each regime and SLO together."""
    places = list(dict.fromkeys(map(_claim, rows)))
    return sorted(rows, key=lambda row: places.index(_claim(row)))


def _run_rows(rows: Sequence[Row], tried: Sequence[Row]) -> list[dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for name, row in zip(names(rows), rows, strict=True):
        key = (name, row.get("digest"), row["root_seed"])
        one = found.setdefault(key, {**row, "scheduler": name, "merges": 0, "claims": 0, "passed": 0, "shown": "yes"})
        one["merges"] += row["merges"]
        one["claims"] += 1
        one["passed"] += row["verdict"] == "PASS"
    others = [
        {"scheduler": t["name"], "digest": t["scheduler"], "root_seed": t["root_seed"], "claims": t["claims"],
         "shown": f"no: {t['verdict']}", "where": f"{t['folder']}, {t['began'][:10]}" if "folder" in t else ""}
        for t in tried
    ]  # fmt: skip
    return [*found.values(), *others]


# Tables for papers ---------------------------------------------------------------------------------------------------


def _claims(rows: Sequence[Row], settings: Mapping[str, Any], n_tried: int, asked: Asked) -> Float:
    wanted = asked.columns or _DEFAULT[asked.width]
    cells = {cell.key: cell for cell in _cells(asked.decimals)}
    says = [
        "Placement gain over matched random placement, in percentage points of requests that violate the SLO",
        f"{_range(rows, 'n_seeds')} seeds, {_range(rows, 'n_draws')} draws each; in brackets "
        f"{fmt.level({'settings': settings})} intervals",
        *(["By load: the part that follows the load"] if "load" in wanted else []),
        *(["Captured: share of the offline optimum's gain"] if "captured" in wanted else []),
        *(["Saved: requests per sidecar in ten minutes"] if "saved" in wanted else []),
        *(["Merges: of all seeds"] if "merges" in wanted else []),
        _corrected(settings, n_tried),
    ]
    return Float(STEM, ". ".join(says) + ".", [cells[key] for key in wanted], _by_place(rows), _place)


def _cells(decimals: int) -> tuple[Cell, ...]:
    def gain(of: str) -> Callable[[Row], Sequence[str]]:
        def lines(row: Row) -> Sequence[str]:
            seen = fmt.fixed(row[f"{of}gain_pp"], decimals, sign=True) + ("" if of else _stars(row))
            limits = fmt.interval(row[f"{of}interval_pp"], decimals)
            return [seen] if limits == fmt.UNKNOWN else [seen, limits]

        return lines

    return (
        Cell("scheduler", ["Scheduler"], lambda row: [fmt.shortened(row["scheduler"], 60)], share=1),
        Cell("verdict", ["Verdict"], lambda row: [row["verdict"].capitalize()]),
        Cell("gain", ["Gain", "(pp)"], gain("")),
        Cell("load", ["By load", "(pp)"], gain("load_")),
        Cell("p", ["p"], lambda row: [fmt.p_value(row["p_overall"])]),
        Cell("alone", ["p of the", "claim"], lambda row: [fmt.p_value(row["p"])]),
        Cell("captured", ["Captured"], lambda row: [fmt.fraction(row["gain_captured"])]),
        Cell("saved", ["Saved"], lambda row: [fmt.fixed(row.get("requests_saved_per_sidecar_per_10_min"), 1)]),
        Cell("merges", ["Merges"], lambda row: [fmt.count(row["merges"])]),
    )


def _matrix(rows: Sequence[Row], settings: Mapping[str, Any], n_tried: int, asked: Asked) -> list[Float]:
    """Schedulers by regimes; those regimes that do not fit beside the others go on in a table below."""
    made, slos = _by_scheduler(rows), {row["slo"] for row in rows}
    first = Cell("scheduler", ["Scheduler"], lambda row: [fmt.shortened(row["scheduler"], 60)], share=1)
    one = f"SLO {fmt.shortened(next(iter(slos)), 40)}. " if len(slos) == 1 else ""
    caption = (
        f"Gain over matched random placement by scheduler and regime, in percentage points. {one}"
        f"{_corrected(settings, n_tried)}."
    )
    groups: list[list[Cell]] = [[]]
    for row in {fmt.clean(_claim(row)): row for row in rows}.values():
        cell = _gain_cell(row, len(slos) > 1, asked.decimals)
        if groups[-1] and latex.needed([first, *groups[-1], cell], made) > latex.ROOM_PT[asked.width]:
            groups.append([])
        groups[-1].append(cell)
    return [
        Float(f"{STEM}-gains" + (f"-{k}" if k > 1 else ""), caption if k == 1 else "Gains in further regimes.",
              [first, *cells], made)
        for k, cells in enumerate(groups, start=1)
    ]  # fmt: skip


def _gain_cell(of: Row, with_slo: bool, decimals: int) -> Cell:
    """The column of one regime and SLO, that of the row `of`."""
    place = fmt.clean(_claim(of))
    words = fmt.clean(of["regime"]).replace("-", "- ").split()
    lines: list[str] = []
    for word in words:  # a long name goes on below
        joined = f"{lines[-1]}{'' if lines[-1].endswith('-') else ' '}{word}" if lines else word
        lines[-1:] = [joined] if lines and len(joined) <= 12 else [*lines[-1:], fmt.shortened(word, 12)]
    heading = [*lines[:3], *(fmt.shortened(part, 14) for part in (of["slo"].split(",") if with_slo else ()))]

    def shown(row: Row) -> Sequence[str]:
        if place not in row:
            return [fmt.UNKNOWN]
        return [fmt.fixed(row[place]["gain_pp"], decimals, sign=True) + _stars(row[place])]

    return Cell(place, heading, shown)


def _runs(rows: Sequence[Row], tried: Sequence[Row]) -> Float:
    cells = [
        Cell(
            "scheduler",
            ["Scheduler"],
            lambda row: [fmt.shortened(text, 60) for text in (row["scheduler"], row.get("where")) if text],
            share=1,
        ),
        Cell("digest", ["Digest"], lambda row: [str(row.get("digest") or fmt.UNKNOWN)[:8]]),
        Cell("seeds", ["Seeds"], lambda row: [fmt.count(row.get("n_seeds"))]),
        Cell("draws", ["Draws"], lambda row: [fmt.count(row.get("n_draws"))]),
        Cell("merges", ["Merges"], lambda row: [fmt.count(row.get("merges"))]),
        Cell("passed", ["Passed"], lambda row: [_share(row)]),
    ]
    more = f" and {len(tried)} that are not shown" if tried else ""
    found = _run_rows(rows, tried)
    caption = (
        f"The {len(found) - len(tried)} runs that are compared{more}. Digest: of the scheduler's files, its first "
        "eight digits. Merges: of all seeds and regimes. Passed: claims of all claims, after one correction for all."
    )
    return Float(f"{STEM}-runs", caption, cells, found)


def _share(row: Row) -> str:
    return f"{row['passed']} of {row['claims']}" if "passed" in row else f"{fmt.UNKNOWN} of {row['claims']}"


def _stars(row: Row) -> str:
    return latex.stars(row["p_overall"])


def _corrected(settings: Mapping[str, Any], n_tried: int) -> str:
    return (
        f"p: largest of all tests at a minimum effect of {settings['min_effect_pp']:g} pp, Holm-corrected over the "
        f"{n_tried} claim{'s' if n_tried != 1 else ''} that were tried: {latex.MARKS}"
    )


def _range(rows: Sequence[Row], key: str) -> str:
    values = [row[key] for row in rows if fmt.known(row.get(key))]
    low, high = min(values, default=0), max(values, default=0)
    return fmt.count(low) if low == high else f"{fmt.count(low)} to {fmt.count(high)}"


def _claim(row: Row) -> str:
    return f"{row['regime']}, {row['slo']}"


def _place(row: Row) -> str:
    return f"{fmt.shortened(row['regime'], 60)}, {fmt.shortened(row['slo'], 40)}"


# Terminal ------------------------------------------------------------------------------------------------------------

#: Headings that a narrow terminal does without; the files have them.
_WIDE_ONLY = ("Regime", "SLO", "p alone")


def on_terminal(rows: Sequence[Row], settings: Mapping[str, Any], width: int) -> Text:
    """Schedulers under each regime and SLO; with further columns where the terminal is wide."""
    table = comparison_table(rows, settings)
    columns = [c for c in table.columns if c.heading not in ("Regime", "SLO")]
    few = [c for c in columns if c.heading not in _WIDE_ONLY and not c.heading.startswith("its")]
    cells = {
        c.heading: [c.show(row).replace(" ", "\u00a0") if c.align == "r" else c.show(row) for row in rows]
        for c in columns
    }
    for c in columns:  # equally wide under every regime
        if c.align == "r":
            widest = max(map(len, cells[c.heading]), default=0)
            cells[c.heading] = [text.rjust(widest, "\u00a0") for text in cells[c.heading]]
    natural = sum(max(map(len, [c.heading, *cells[c.heading]])) + 2 for c in columns)
    shown = columns if natural <= width else few
    right = [i for i, c in enumerate(shown) if c.align == "r"]
    groups = dict.fromkeys((row["regime"], row["slo"]) for row in rows)
    text = Text()
    for regime, slo in groups:
        mine = [i for i, row in enumerate(rows) if (row["regime"], row["slo"]) == (regime, slo)]
        body = [[cells[c.heading][i] for c in shown] for i in mine]
        text.append(f"{fmt.shortened(regime, width // 2)}, {fmt.shortened(slo, width // 2 - 3)}\n", "bold")
        text.append(fitted([c.heading for c in shown], body, width, names=(0,), right=right)).append("\n\n")
    text.right_crop(2)
    return text


# What columns are made of --------------------------------------------------------------------------------------------


def _get(key: str) -> Any:
    return lambda row: row.get(key)


def _words(key: str, heading: str, *also: str) -> Column:
    """A column of text.  also : further values that CSV has."""
    return Column(heading, lambda row: fmt.clean(row[key]), {name: _get(name) for name in (key, *also)}, "l")


def _number(heading: str, key: str, show: Any) -> Column:
    return Column(heading, lambda row: show(row.get(key)), {key: _get(key)})


def _limits(heading: str, stem: str) -> Column:
    key = f"{stem}_pp"

    def end(which: int) -> Any:
        return lambda row: row[key][which] if row.get(key) else None

    raw = {f"{stem}_low_pp": end(0), f"{stem}_high_pp": end(1)}
    return Column(heading, lambda row: fmt.interval(row.get(key)), raw)
