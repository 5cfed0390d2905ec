"""Figures of a comparison: one subfigure a regime and SLO, in each a line or a mark a scheduler.

Rows are those of `reports.comparison.detailed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports import figures
from reports import format as fmt
from reports.figures import DRAWS, INCHES, INK, MUTED, PAPER, POLICY_COLOUR, Width, label, lettered

Row = Mapping[str, Any]
#: Panels beside each other.
_ABREAST: dict[Width, int] = {"column": 1, "page": 3}
#: Inches: of a figure at most, so that it fits a page with its caption; beside its panels, and of a panel beside its
#: axes.
_MOST_IN, _ROUND_IN, _TITLE_IN = 7.0, 0.62, 0.4
_BUDGET_IN: dict[Width, float] = {"column": 0.87, "page": 1.4}
_MARKS = "osD^vPX*<>"


def comparison_figures(rows: Sequence[Row], settings: Mapping[str, Any], width: Width) -> dict[str, Figure]:
    """By the end of its name: gains, gains from following the load, seeds, and budgets; those of which something is
    known.  What a page has no room for goes on in `-2`.
    """
    wanted: dict[str, tuple[Callable[[Sequence[Row]], Figure], float]] = {
        "": (lambda some: gains(some, settings, width), _line_in(rows))
    }
    if any(fmt.known(row["load_gain_pp"]) for row in rows):
        wanted["-load"] = (lambda some: gains(some, settings, width, "load_"), _line_in(rows))
    if any(row.get("seed_gains_pp") for row in rows):
        wanted["-seeds"] = (lambda some: seeds(some, settings, width), _line_in(rows))
    if any(fmt.known(row.get("policy_excess_pp")) for row in rows):
        wanted["-budget"] = (lambda some: budgets(some, width), _BUDGET_IN[width])
    found = {}
    places = _places(rows)
    for name, (draw, height_in) in wanted.items():
        most = _ABREAST[width] * max(1, int((_MOST_IN - _ROUND_IN) / (_TITLE_IN + height_in) + 1e-6))
        for first in range(0, len(places), most):
            some = [row for row in rows if (row["regime"], row["slo"]) in places[first : first + most]]
            found[f"{name}-{first // most + 1}" if first else name] = draw(some)
    return found


def gains(rows: Sequence[Row], settings: Mapping[str, Any], width: Width = "page", of: str = "") -> Figure:
    """Gain (of="load_": from following the load) with its interval; beside the first the captured share."""
    level = fmt.level({"settings": settings})
    what = "from following the load" if of else "over matched random placement"

    def draw(axes: Axes, y: int, row: Row) -> None:
        figures.gain_mark(axes, y, row[f"{of}gain_pp"], row[f"{of}interval_pp"], row["verdict"])
        share = fmt.fraction(row["gain_captured"])
        if not of and share != fmt.UNKNOWN:
            axes.annotate(share, (1.01, y), xycoords=axes.get_yaxis_transform(), va="center", fontsize=7)

    captured = "" if of else "; %: of the optimum's gain"
    says = (
        f"gain {what} (pp), {level} interval{captured}" if width == "page" else f"gain (pp), {level} interval{captured}"
    )
    figure = _lines(rows, width, says, settings["min_effect_pp"], draw, f"{of}gain_pp")
    verdicts = {row["verdict"] for row in rows}
    figure.legend(handles=figures.verdict_handles(figure.axes[0], verdicts), loc="outside upper right", ncols=3,
                  fontsize=7.5)  # fmt: skip
    return figure


def seeds(rows: Sequence[Row], settings: Mapping[str, Any], width: Width = "page") -> Figure:
    """Every seed's gain over the mean of its own draws, and the mean over seeds."""

    def draw(axes: Axes, y: int, row: Row) -> None:
        own: list[float] = row.get("seed_gains_pp") or []
        axes.plot(own, [y] * len(own), "o", color=DRAWS, alpha=0.4, markersize=4, markeredgewidth=0, zorder=3)
        axes.plot(row["gain_pp"], y, "|", color=POLICY_COLOUR, markersize=11, markeredgewidth=2.2, zorder=4)

    figure = _lines(
        rows, width, "gain of each seed over its own draws (pp)", settings["min_effect_pp"], draw, "gain_pp"
    )
    handles = [
        Line2D([], [], linestyle="none", marker="o", color=DRAWS, alpha=0.4, markersize=4, label="seed"),
        Line2D(
            [], [], linestyle="none", marker="|", color=POLICY_COLOUR, markersize=9, markeredgewidth=2.2, label="mean"
        ),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=7.5)
    return figure


def budgets(rows: Sequence[Row], width: Width = "page") -> Figure:
    """Violations that the merges caused against how many there were: of each scheduler, and of its matched draws."""
    labelled = _labelled(rows)
    schedulers = list(dict.fromkeys(name for name, _ in labelled))
    looks = dict(
        zip(schedulers, zip(cycle(mpl.rcParams["axes.prop_cycle"].by_key()["color"]), cycle(_MARKS)), strict=False)
    )
    figure, panels = _panels(rows, width, _BUDGET_IN[width], sharey=False)
    for (regime, slo), axes in panels.items():
        for name, row in labelled:
            merges, own, drawn = (
                row.get(key, float("nan")) for key in ("merges_a_seed", "policy_excess_pp", "control_excess_pp")
            )
            if (row["regime"], row["slo"]) == (regime, slo) and fmt.known(own) and fmt.known(drawn):
                colour, mark = looks[name]
                axes.vlines(merges, *sorted((own, drawn)), color=colour, linewidth=1.0, zorder=2)
                axes.plot(merges, drawn, mark, color=colour, markerfacecolor=PAPER, markersize=5, zorder=3)
                axes.plot(merges, own, mark, color=colour, markersize=5, zorder=4)
        axes.axhline(0, color=INK, linewidth=0.9)
        axes.tick_params(labelsize=7.5)
        axes.margins(x=0.12)
    figure.supxlabel("merges a seed", fontsize=8)
    figure.supylabel("sync-excess violations (pp)", fontsize=8)
    longest = 26 if width == "page" else 20
    handles = [
        *(Line2D([], [], linestyle="none", marker=mark, color=colour, markersize=5, label=label(name, longest))
          for name, (colour, mark) in looks.items()),
        Line2D([], [], linestyle="none", marker="o", color=MUTED, markerfacecolor=PAPER, markersize=5,
               label="hollow: matched draws"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper left", ncols=3 if width == "page" else 2, fontsize=7,
                  columnspacing=1, handletextpad=0.2)  # fmt: skip
    return figure


def _lines(
    rows: Sequence[Row], width: Width, says: str, least: float, draw: Callable[[Axes, int, Row], None], value: str
) -> Figure:
    """A line a scheduler in every panel, drawn by `draw`; the zero, and the minimum effect dashed.

    value : key of a row without which nothing is drawn; its line says why it is empty.
    """
    labelled = _labelled(rows)
    schedulers = list(dict.fromkeys(name for name, _ in labelled))
    figure, panels = _panels(rows, width, _line_in(rows), sharey=True)
    for (regime, slo), axes in panels.items():
        axes.axvline(0, color=INK, linewidth=0.9)
        if least:
            axes.axvline(least, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        here = {name: row for name, row in labelled if (row["regime"], row["slo"]) == (regime, slo)}
        for y, name in enumerate(schedulers):
            if name in here and fmt.known(here[name][value]):
                draw(axes, y, here[name])
            else:
                why = "no result" if name in here else "not judged here"
                axes.annotate(why, (0.5, y), xycoords=axes.get_yaxis_transform(), ha="center", va="center",
                              fontsize=6.5, color=MUTED, style="italic")  # fmt: skip
        axes.set_yticks(range(len(schedulers)), [label(name, 22) for name in schedulers], fontsize=7.5)
        axes.set_ylim(len(schedulers) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=7.5, labelbottom=True)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
    figure.supxlabel(says, fontsize=8)
    return figure


def _panels(
    rows: Sequence[Row], width: Width, height_in: float, sharey: bool
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A subfigure for every regime and SLO, lettered where there are several."""
    places = _places(rows)
    abreast = min(_ABREAST[width], len(places))
    deep = -(-len(places) // abreast)
    figure = Figure(figsize=(INCHES[width], _ROUND_IN + deep * (_TITLE_IN + height_in)), layout="constrained")
    grid = figure.subplots(deep, abreast, sharex=True, sharey=sharey, squeeze=False)
    for k, (axes, (regime, slo)) in enumerate(zip(grid.flat, places, strict=False)):
        letter = f"{lettered(k)} " if len(places) > 1 else ""
        axes.set_title(f"{letter}{label(regime, 26)}\n{label(slo, 30)}", fontsize=7.5)
    for axes in grid.flat[len(places) :]:
        axes.set_axis_off()
    return figure, dict(zip(places, grid.flat, strict=False))


def _places(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["regime"], row["slo"]) for row in rows))


def _line_in(rows: Sequence[Row]) -> float:
    """Inches of a panel with a line a scheduler."""
    return 0.24 + 0.21 * len(dict.fromkeys(names(rows)))


def _labelled(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows with the scheduler's name; one that comes again with the same claim is another run, and gets a number."""
    return list(zip(names(rows), rows, strict=True))


def names(rows: Sequence[Row]) -> list[str]:
    """What each row's scheduler is called, unlike another run's of the same name."""
    seen: dict[tuple[str, str, str], int] = {}
    found = []
    for row in rows:
        key = (str(row["scheduler"]), str(row["regime"]), str(row["slo"]))
        seen[key] = seen.get(key, 0) + 1
        found.append(key[0] if seen[key] == 1 else f"{key[0]} ({seen[key]})")
    return found
