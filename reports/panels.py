"""Figures that stand for the page's charts in print and without scripts, drawn from the same values.

Laid out by hand: an engine that measures every label would take longer than the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator

from reports import format as fmt
from reports.figures import (
    DRAWS,
    INCHES,
    INK,
    MUTED,
    OPTIMUM_COLOUR,
    PAPER,
    POLICY_COLOUR,
    Width,
    label,
    save,
    styled,
)

Values = Mapping[str, Any]


def write_panels(charts: Values, folder: Path, pdf: bool = False, width: Width = "page") -> dict[str, Path]:
    """Write NAME.svg, and NAME.pdf where asked, of every measured claim and every load with merges on a server.

    charts : of `reports.charts.chart_data`.  Names: `evidence-NN-REGIME`, `timeline-NN-REGIME` of the first seed,
    `transfer-NN-LOAD`.  Returns the SVG of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Figure] = {}
    with styled():
        for index, claim in enumerate(charts["claims"]):
            seeds = charts["regimes"][claim["key"]]["seeds"]
            if claim["seeds"]:
                drawn[fmt.figure_name(index, {"regime": claim["key"]}, "evidence")] = evidence_figure(
                    claim, charts["alpha"], width
                )
            if seeds:
                drawn[fmt.figure_name(index, {"regime": claim["key"]}, "timeline")] = timeline_strip(
                    charts["regimes"][claim["key"]], seeds[0], claim["missed"][str(seeds[0]["seed"])],
                    f"{claim['regime']}, {claim['slo']}", width,
                )  # fmt: skip
        for index, transfer in enumerate(charts["transfers"]):
            drawn[fmt.transfer_name(index, transfer)] = transfer_figure(transfer, width)
    formats = ("pdf", "svg") if pdf else ("svg",)
    return {name: save(figure, folder / name, formats) for name, figure in drawn.items()}


def evidence_figure(claim: Values, alpha: float, width: Width = "page") -> Figure:
    """Where a claim's gain comes from, its p-values against their floors, and its power curve where it is known.

    Beside each other on a page, below each other in a column.
    """
    curve = claim["power_curve"]
    several = 3 if curve else 2
    if width == "column":
        figure = Figure(figsize=(INCHES[width], 2.0 * several))
        stacked = figure.subplots(several)
        figure.subplots_adjust(left=0.04, right=0.96, top=1 - 0.12 / several, bottom=0.22 / several, hspace=0.5)
        _source(stacked[0], claim)
        _floors(stacked[1], claim, alpha)
        if curve:
            _power(stacked[2], claim, curve)
            place = stacked[2].get_position()
            stacked[2].set_position([0.12, place.y0, place.x1 - 0.12, place.height])
        return figure
    figure = Figure(figsize=(INCHES[width], 2.3))
    axes = figure.subplots(1, several)
    figure.subplots_adjust(left=0.02, right=0.99, top=0.88, bottom=0.2, wspace=0.12)
    for one in axes:
        one.title.set_size(8.5)
    _source(axes[0], claim)
    _floors(axes[1], claim, alpha)
    if curve:
        _power(axes[2], claim, curve)
        place = axes[2].get_position()
        axes[2].set_position([place.x0 + 0.03, place.y0, place.width - 0.03, place.height])
    return figure


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Rows from the top, each named above itself."""
    axes.set_ylim(len(names) + 0.4, 0.2)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    for place, name in enumerate(names, start=1):
        axes.text(0, place - 0.3, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=6.7)


def _source(axes: Axes, claim: Values) -> None:
    rows = [
        (name, claim[key], claim.get(ends) if ends else None, colour)
        for name, key, ends, colour in (
            ("over chance", "gain_pp", "interval_pp", POLICY_COLOUR),
            ("from following the load", "load_gain_pp", "load_interval_pp", DRAWS),
            ("without looking: a clock, gaps", "placebo_pp", None, MUTED),
            ("offline optimum, the ceiling", "optimum_gain_pp", None, OPTIMUM_COLOUR),
        )
        if fmt.known(claim[key])
    ]
    _rows(axes, [f"{name} {fmt.fixed(gain, sign=True)}" for name, gain, _, _ in rows])
    for place, (_, gain, ends, colour) in enumerate(rows, start=1):
        axes.barh(place, gain, 0.42, color=colour, alpha=0.75, linewidth=0)
        if ends and all(map(fmt.known, ends)):
            axes.hlines(place, *ends, color=INK, linewidth=1.1)
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.set_xlabel("gain (pp)")
    axes.set_title("Where the gain comes from")


def _floors(axes: Axes, claim: Values, alpha: float) -> None:
    last = {
        "name": "largest of all, Holm",
        "p": claim["p_holm"],
        "p_at_zero": None,
        "smallest_p": claim["attainable_p"],
    }
    rows = [*claim["tests"], last]
    _rows(axes, [row["name"] for row in rows])
    for place, row in enumerate(rows, start=1):
        floor, zero, p = (row.get(key) for key in ("smallest_p", "p_at_zero", "p"))
        if fmt.known(floor):
            axes.hlines(place, floor, 1, color=MUTED, linewidth=0.5)
            axes.plot(floor, place, "|", color=INK, markersize=7, markeredgewidth=1.4)
        if fmt.known(zero):
            axes.plot(zero, place, "o", color=DRAWS, markerfacecolor=PAPER, markersize=4.5)
        if fmt.known(p):
            axes.plot(p, place, "o", color=POLICY_COLOUR, markersize=4.5)
    axes.axvline(alpha, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    _decades(axes, [row.get(key) for row in rows for key in ("smallest_p", "p_at_zero", "p")])
    axes.set_xlabel(f"p (dashed: level {alpha:g})")
    axes.set_title("p-values against their floors")


def _decades(axes: Axes, values: Sequence[Any]) -> None:
    least = min([v for v in values if fmt.known(v)], default=0.01)
    low = max(1, math.ceil(-math.log10(max(least, 1e-300))))
    ticks = list(range(-low, 1, 1 if low < 4 else max(2, -(-low // 6))))
    axes.set_xlim(10.0**-low / 1.3, 1.4)
    axes.xaxis.set_major_locator(FixedLocator([10.0**k for k in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{10.0**k:g}" if k > -4 else f"1e{fmt.MINUS}{-k}" for k in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


def _power(axes: Axes, claim: Values, curve: Sequence[Sequence[float]]) -> None:
    axes.plot([g for g, _ in curve], [p for _, p in curve], "-o", color=DRAWS, markersize=2.2)
    axes.axvline(claim["min_effect_pp"], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    if fmt.known(claim["gain_pp"]):
        axes.axvline(claim["gain_pp"], color=POLICY_COLOUR, linewidth=1.4)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 0.9, 1], ["0", "0.5", "0.9", "1"])
    axes.set_xlabel("true gain (pp); line: this run")
    axes.set_title("Such runs that pass")


def timeline_strip(world: Values, seed: Values, missed: Sequence[int], title: str, width: Width = "page") -> Figure:
    """One seed: arrivals and violations, requests in flight, and merges of scheduler, optimum and one draw."""
    figure = Figure(figsize=(INCHES[width], 2.9))
    load, flight, lanes = figure.subplots(3, sharex=True, height_ratios=(1.2, 1, 0.9))
    figure.subplots_adjust(left=0.11 if width == "page" else 0.21, right=0.97, top=0.91, bottom=0.15, hspace=0.22)
    bin_s, n = seed["bin_s"], len(seed["arrivals"])
    edges = [k * bin_s for k in range(n + 1)]
    load.stairs([v / bin_s for v in seed["arrivals"]], edges, fill=True, color=MUTED, alpha=0.5, linewidth=0)
    load.stairs([v / bin_s for v in missed], edges, fill=True, color=POLICY_COLOUR, linewidth=0)
    load.set_ylabel("requests/s,\nviolations")
    flight.stairs(seed["in_flight"], edges, color=INK, linewidth=0.8)
    flight.set_ylabel("in flight")
    for place, (arm, colour) in enumerate(
        (("policy", POLICY_COLOUR), ("optimum", OPTIMUM_COLOUR), ("uniform", DRAWS)), start=1
    ):
        spans = [(begin, end - begin) for begin, end in seed["merges"][arm]]
        lanes.broken_barh(spans, (place - 0.35, 0.7), facecolor=colour, linewidth=0)
    lanes.set_yticks([1, 2, 3], ["scheduler", "optimum", "one draw"])
    lanes.set_ylim(3.6, 0.4)
    lanes.grid(visible=False)
    lanes.tick_params(axis="y", length=0)
    for axes in (load, flight):
        axes.set_ylim(bottom=0)
        spans = [(begin, end - begin) for begin, end in seed["merges"]["policy"]]
        axes.broken_barh(spans, (0, 1), transform=axes.get_xaxis_transform(), facecolor=POLICY_COLOUR, alpha=0.12,
                         linewidth=0, zorder=0)  # fmt: skip
    for axes in (load, flight, lanes):
        if world["horizon_s"] < edges[-1]:
            axes.axvline(world["horizon_s"], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    lanes.set_xlim(0, max(world["horizon_s"], edges[-1]))
    lanes.set_xlabel("time (s)")
    load.set_title(f"{label(title, 80 if width == 'page' else 38)}, seed {seed['seed']}",
                   fontsize=None if width == "page" else 8)  # fmt: skip
    return figure


def transfer_figure(transfer: Values, width: Width = "page") -> Figure:
    """Latency by arrival around merges, measured (solid) and simulated (dashed); p95 thick, p50 thin."""
    figure = Figure(figsize=(INCHES[width], 2.5))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.1 if width == "page" else 0.18, right=0.985, top=0.9, bottom=0.18)
    looks = {"real": ("measured", POLICY_COLOUR, "-"), "simulated": ("simulated", DRAWS, (0, (4, 2)))}
    for side, cells in transfer["sides"].items():
        name, colour, dashes = looks[side]
        for q, thick in ((95, 1.8), (50, 0.9)):
            ms = [float("nan") if cell[f"p{q}_ms"] is None else cell[f"p{q}_ms"] for cell in cells]
            axes.plot(transfer["at_s"], ms, color=colour, linestyle=dashes, linewidth=thick, label=f"{name}, p{q}")
    axes.axvspan(0, transfer["merge_s"], color=MUTED, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("arrival, s since a merge began (shaded: the merge)")
    axes.set_ylabel("end-to-end latency (ms)")
    axes.set_title(label(transfer["name"], 80 if width == "page" else 40))
    axes.legend(loc="best", ncols=2 if width == "page" else 1, fontsize=7)
    return figure
