"""Several certificates side by side: a table for papers and for the terminal, and a figure of schedulers by regimes.

Rows are those of `protocol.certificate.compare.Compared`, as mappings; nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.text import Text

from protocol.files import write_text
from reports import figures, tables
from reports import format as fmt
from reports.fitted import fitted
from reports.tables import Column, Row, Table

STEM = "comparison"
#: Panels beside each other in the figure.
_ABREAST = 3


def write(rows: Sequence[Row], settings: Mapping[str, Any], folder: Path) -> list[Path]:
    """comparison.tex, .md, .csv, .svg and .pdf; the same rows give the same bytes.

    settings : of the certificates, with `alpha` and `min_effect_pp`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = comparison_table(rows, settings)
    written = []
    for suffix, render in (("tex", to_latex), ("md", tables.to_markdown), ("csv", tables.to_csv)):
        path = folder / f"{STEM}.{suffix}"
        write_text(path, render(table))
        written.append(path)
    with figures.styled():
        drawn = comparison_figure(rows, settings)
    svg = figures.save(drawn, folder / STEM)
    return [*written, svg.with_suffix(".pdf"), svg]


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


def to_latex(table: Table) -> str:
    """Booktabs: schedulers under each regime and SLO, as wide as a page of two columns in \\footnotesize."""
    shown = [c for c in table.columns if c.heading not in _WIDE_ONLY]
    heads = " & ".join(rf"\shortstack[{c.align}]{{{_two_lines(c.heading)}}}" for c in shown)
    lines = [
        r"% needs \usepackage{booktabs}; in two columns: \begin{table*}\footnotesize",
        rf"\begin{{tabular}}{{{''.join(c.align for c in shown)}}}",
        rf"\toprule {heads} \\",
    ]
    for regime, slo in dict.fromkeys((row["regime"], row["slo"]) for row in table.rows):
        name = fmt.latex(f"{regime}, {slo}")
        lines.append(rf"\midrule \multicolumn{{{len(shown)}}}{{l}}{{\emph{{{name}}}}} \\")
        for row in table.rows:
            if (row["regime"], row["slo"]) == (regime, slo):
                cells = [fmt.shortened(c.show(row), _LONGEST_NAME) for c in shown]
                lines.append(" & ".join(map(fmt.latex, cells)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _two_lines(heading: str) -> str:
    """A heading of several words above itself."""
    first, _, last = heading.rpartition(" ")
    return r" \\ ".join(fmt.latex(part) for part in (first, last) if part)


#: Characters of a scheduler's name in LaTeX.
_LONGEST_NAME = 26
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


def comparison_figure(rows: Sequence[Row], settings: Mapping[str, Any]) -> Figure:
    """One panel a regime and SLO, one line a scheduler: gain, its interval, and beside it the captured share."""
    labelled = _labelled(rows)
    schedulers = list(dict.fromkeys(label for label, _ in labelled))
    panels = list(dict.fromkeys((row["regime"], row["slo"]) for row in rows))
    abreast = min(_ABREAST, len(panels))
    deep = math.ceil(len(panels) / abreast)
    figure = Figure(figsize=(7.2, 0.8 + deep * (0.75 + 0.3 * len(schedulers))), layout="constrained")
    grid = figure.subplots(deep, abreast, sharex=True, sharey=True, squeeze=False)
    for axes, (regime, slo) in zip(grid.flat, panels, strict=False):
        mine = [(label, row) for label, row in labelled if (row["regime"], row["slo"]) == (regime, slo)]
        _panel(axes, mine, schedulers, settings["min_effect_pp"])
        axes.set_title(f"{figures.label(regime, 30)}\n{figures.label(slo, 30)}", fontsize=7.5)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    level = fmt.level({"settings": settings})
    text = f"placement gain over matched random placement (pp), {level} interval; %: share of the optimum's gain"
    figure.supxlabel(text, fontsize=8)
    figure.legend(handles=figures.verdict_handles(grid.flat[0], {row["verdict"] for row in rows}),
                  loc="outside upper right", ncols=3, fontsize=7.5)  # fmt: skip
    return figure


def _panel(axes: Axes, mine: Sequence[tuple[str, Row]], schedulers: Sequence[str], least: float) -> None:
    axes.axvline(0, color=figures.INK, linewidth=0.9)
    if least:
        axes.axvline(least, color=figures.MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    for name, row in mine:
        y = schedulers.index(name)
        figures.gain_mark(axes, y, row["gain_pp"], row["interval_pp"], row["verdict"])
        share = fmt.fraction(row["gain_captured"])
        text = share if share != fmt.UNKNOWN else ""
        axes.annotate(text, (1.01, y), xycoords=axes.get_yaxis_transform(), va="center", fontsize=7)
    axes.set_yticks(range(len(schedulers)), [figures.label(name, 26) for name in schedulers], fontsize=7.5)
    axes.set_ylim(len(schedulers) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5, labelbottom=True)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")


def _labelled(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows with the scheduler's name; one that comes again with the same claim is another run, and gets a number."""
    seen: dict[tuple[str, str, str], int] = {}
    labelled = []
    for row in rows:
        key = (str(row["scheduler"]), str(row["regime"]), str(row["slo"]))
        seen[key] = seen.get(key, 0) + 1
        labelled.append((key[0] if seen[key] == 1 else f"{key[0]} ({seen[key]})", row))
    return labelled


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
