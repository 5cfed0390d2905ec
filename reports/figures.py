"""Figures of stored results, SVG and PDF, the same bytes for the same results, as wide as a paper's column or page.

Colours are those of Okabe and Ito, told apart also by marker and shade.  PDF embeds its fonts, SVG draws text as paths,
so a figure looks the same everywhere; what the bundled font cannot draw becomes U+XXXX.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from protocol.evidence.model import OPTIMUM, Evidence
from protocol.files import atomic
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import SERVED, Measurements
from protocol.replay.replay import POLICY, UNIFORM
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace
from reports import format as fmt
from reports.charts import excess_pp, with_columns

#: Ink of lines and text, and one colour a role; an HTML page may swap them for its own (reports.html).
INK, MUTED, GRID = "#1a1d21", "#5b6168", "#d5d9de"
DRAWS, POLICY_COLOUR, OPTIMUM_COLOUR = "#0072b2", "#d55e00", "#009e73"
PAPER = "#ffffff"
#: What figures look like, for papers' own figures too.
STYLE = Path(__file__).parent / "protocol.mplstyle"
#: The fonts that it names first; what they lack is drawn from Matplotlib's own.
FONTS = tuple(Path(__file__).parent / "vendor" / f"ProtocolSans{weight}.ttf" for weight in ("", "-Bold"))
for _file in FONTS:
    fontManager.addfont(_file)
Width = Literal["column", "page"]
#: Inches: the least that a column and a page of the usual two-column classes have room for (article, letter paper).
INCHES: dict[Width, float] = {"column": 3.17, "page": 6.5}
#: Panels of a set of subfigures: beside each other, and in all.
_ABREAST: dict[Width, int] = {"column": 1, "page": 3}
_MOST_PANELS: dict[Width, int] = {"column": 5, "page": 9}
#: Labels below an axis of seeds, and the name of what is counted above it.
_LABELS: dict[Width, int] = {"column": 14, "page": 40}
_EXCESS: dict[Width, str] = {
    "column": "sync-excess violations (pp)",
    "page": "sync-excess violations (pp), lower is better",
}
#: Above this many points a scatter is stored as an image inside the figure.
_MOST_POINTS = 20_000
_VERDICT_LOOK = {"PASS": ("o", POLICY_COLOUR), "FAIL": ("X", INK), "INCONCLUSIVE": ("D", PAPER)}
#: Name, marker, colour and place in the row of either gain.
_GAINS = {
    "": ("gain over chance", "o", POLICY_COLOUR, -0.13),
    "load_": ("gain from following the load", "D", DRAWS, 0.16),
}


def write_figures(
    certificate: Mapping[str, Any], evidence: Sequence[Evidence], folder: Path, width: Width = "page"
) -> dict[str, Path]:
    """Write every figure as NAME.svg and NAME.pdf; returns the SVG of each name.

    Names: `gain-overview`, and `envelope-NN-REGIME` for every claim with seeds that are compared: it shows those;
    with a single draw a seed it shows pairs.  `envelopes` has those of several claims as subfigures, a long set goes on
    in `envelopes-2`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Figure] = {}
    shown: list[Shown] = []
    with styled():
        if any(known_gain(claim) for claim in certificate["claims"]):
            drawn[fmt.OVERVIEW] = gain_overview(certificate, width)
        for index, column, claim in with_columns(certificate["claims"]):
            envelope = claim["envelope"]
            compared = {row["seed"] for row in envelope["per_seed"]}
            mine = [e for e in evidence if e.regime == claim["regime"] and e.seed in compared]
            if envelope["per_seed"] and envelope["n_draws"] == 1:
                drawn[fmt.figure_name(index, claim)] = paired_blocks(claim, width)
            elif any(len(excess_pp(e, UNIFORM, column, claim["slo"])) for e in mine):
                shown.append((claim, mine, column))
                drawn[fmt.figure_name(index, claim)] = envelope_figure(claim, mine, column, width)
        most = _MOST_PANELS[width]
        for first in range(0, len(shown) if len(shown) > 1 else 0, most):
            name = f"envelopes-{first // most + 1}" if first else "envelopes"
            drawn[name] = envelope_set(shown[first : first + most], width, first)
    return {name: save(figure, folder / name) for name, figure in drawn.items()}


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("pdf", "svg")) -> Path:
    """Write STEM.svg, and STEM.pdf where asked, without dates or versions; returns the SVG."""
    metadata = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    with styled():
        for suffix in formats:
            # Laid out for the first format; the second takes the same places instead of computing them again.
            if suffix == "svg":
                figure.set_layout_engine("none")
            with atomic(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, format=suffix, metadata=metadata[suffix])
    return stem.with_name(f"{stem.name}.svg")


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's own defaults and this project's choices, whatever the user's configuration says."""
    with matplotlib.style.context(["default", STYLE], after_reset=True):
        yield


def known_gain(claim: Mapping[str, Any]) -> bool:
    return fmt.known(claim["envelope"]["gain_pp"])


# Envelope --------------------------------------------------------------------------------------------------------


#: A claim, the evidence of its seeds, and which SLO of the regime it is about: the second axis of
#: `Placements.violations`.
Shown = tuple[Mapping[str, Any], Sequence[Evidence], int]


def envelope_figure(
    claim: Mapping[str, Any], evidence: Sequence[Evidence], column: int, width: Width = "page"
) -> Figure:
    """Per seed: the matched draws as nested bands, the policy's point, the additive optimum.  column : see `Shown`."""
    figure = Figure(figsize=(INCHES[width], 3.3 if width == "page" else 2.9), layout="constrained")
    axes = figure.subplots()
    _envelope(axes, (claim, evidence, column), 6.5 if width == "page" else 4.5, _LABELS[width])
    axes.set_xlabel("seed (each with its own trace)")
    axes.set_ylabel(_EXCESS[width])
    axes.set_title(titled(claim["regime"], claim["slo"], width))
    _legend(figure, [claim], width)
    return figure


def envelope_set(shown: Sequence[Shown], width: Width = "page", first: int = 0) -> Figure:
    """The envelopes of several claims as subfigures (a), (b), ...; first : of the set, which began elsewhere."""
    abreast = min(_ABREAST[width], len(shown))
    deep = -(-len(shown) // abreast)
    figure = Figure(figsize=(INCHES[width], 0.75 + deep * (1.75 if width == "page" else 1.25)), layout="constrained")
    grid = figure.subplots(deep, abreast, squeeze=False)
    for k, (axes, one) in enumerate(zip(grid.flat, shown, strict=False)):
        _envelope(axes, one, 3.4, 10 if width == "page" else _LABELS[width])
        name, slo = label(one[0]["regime"], 26), label(one[0]["slo"], 30)
        axes.set_title(f"{lettered(first + k)} {name}\n{slo}", fontsize=7.5)
        axes.tick_params(labelsize=7)
        if k + abreast >= len(shown):
            axes.set_xlabel("seed", fontsize=8)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    figure.supylabel(_EXCESS["page" if deep > 1 else "column"], fontsize=8)
    _legend(figure, [claim for claim, _, _ in shown], width)
    return figure


def lettered(place: int) -> str:
    """`(a)` of the first subfigure, `(aa)` of the 27th."""
    letters = ""
    while place >= 0:
        letters = chr(ord("a") + place % 26) + letters
        place = place // 26 - 1
    return f"({letters})"


def titled(regime: object, slo: object, width: Width) -> str:
    """A title that the width has room for."""
    if width == "page":
        return f"{label(regime, 44)}, {label(slo, 36)}"
    return f"{label(regime, 40)}\n{label(slo, 40)}"


def _envelope(axes: Axes, shown: Shown, size: float, labels: int) -> None:
    """Bands, points and axis of one envelope.  size : of the policy's point.  labels : at most, below."""
    claim, evidence, column = shown
    _bands(axes, [excess_pp(e, UNIFORM, column, claim["slo"]) for e in evidence])
    x = np.arange(len(evidence))
    best = [_first(excess_pp(e, OPTIMUM, column, claim["slo"]), column) for e in evidence]
    policy = [_first(excess_pp(e, POLICY, column, claim["slo"])) for e in evidence]
    axes.plot(x, best, "_", color=OPTIMUM_COLOUR, markersize=1.7 * size, markeredgewidth=0.34 * size, zorder=4)
    axes.plot(x, policy, "o", color=POLICY_COLOUR, markeredgecolor=PAPER, markersize=size, zorder=5,
              markeredgewidth=min(1.0, 0.15 * size))  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.9)
    step = 1 + (len(evidence) - 1) // labels
    axes.set_xticks(x[::step], [str(e.seed) for e in evidence][::step])
    spare = max(0, 8 - len(evidence)) / 2  # so that one seed is no wall
    axes.set_xlim(-0.7 - spare, len(evidence) - 0.3 + spare)
    axes.tick_params(axis="x", length=0)


def _legend(figure: Figure, claims: Sequence[Mapping[str, Any]], width: Width) -> None:
    """Of what the envelopes of these claims hold: a real server has no optimum."""
    optimum = any(fmt.known(s["optimum"]) for claim in claims for s in claim["envelope"]["per_seed"])
    ncols = 5 if width == "page" else 2

    def mark(name: str, **look: Any) -> Line2D:
        return Line2D([], [], linestyle="none", label=name, **look)

    handles = [
        mark("scheduler", marker="o", color=POLICY_COLOUR, markersize=6.5),
        *(Patch(color=DRAWS, alpha=alpha, linewidth=0, label=label) for label, alpha, _ in _BANDS),
    ]
    if optimum:
        handles.append(mark("offline optimum", marker="_", color=OPTIMUM_COLOUR, markersize=11, markeredgewidth=2.2))
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, columnspacing=1.2, handletextpad=0.5)


#: Label, opacity and quantiles of the nested bands.
_BANDS = (
    ("middle half of draws", 0.55, (0.25, 0.75)),
    ("5 to 95 %", 0.28, (0.05, 0.95)),
    ("all draws", 0.13, (0.0, 1.0)),
)


def _bands(axes: Axes, draws: Sequence[NDArray[np.float64]]) -> None:
    """One collection a band: a patch for every seed would take seconds to lay out."""
    seen = [(x - 0.31, x + 0.31, values) for x, values in enumerate(draws) if len(values)]
    for _, alpha, (low, high) in reversed(_BANDS):
        ends = [(a, b, *np.quantile(values, [low, high])) for a, b, values in seen]
        boxes = [[(a, bottom), (b, bottom), (b, top), (a, top)] for a, b, bottom, top in ends]
        axes.add_collection(PolyCollection(boxes, facecolor=DRAWS, alpha=alpha, linewidth=0, zorder=2))
    axes.autoscale_view()
    medians = [float(np.median(values)) for _, _, values in seen]
    axes.hlines(medians, [a for a, *_ in seen], [b for _, b, _ in seen], color=DRAWS, linewidth=1.4, zorder=3)


def _first(values: NDArray[np.float64], at: int = 0) -> float:
    return float(values[at]) if len(values) > at else float("nan")


# Pairs: a policy and a single draw a seed -------------------------------------------------------------------------


def paired_blocks(claim: Mapping[str, Any], width: Width = "page") -> Figure:
    """Per block: the scheduler's sync-excess violations and its control's, joined by a line."""
    rows = claim["envelope"]["per_seed"]
    figure = Figure(figsize=(INCHES[width], 3.0), layout="constrained")
    axes = figure.subplots()
    x = np.arange(len(rows))
    policy, control = ([row[key] for row in rows] for key in ("policy", "draw_mean"))
    axes.vlines(x, np.minimum(policy, control), np.maximum(policy, control), color=MUTED, linewidth=1.0, zorder=2)
    axes.plot(x, control, "D", color=DRAWS, markersize=5.5, zorder=3, label="random control")
    axes.plot(x, policy, "o", color=POLICY_COLOUR, markeredgecolor=PAPER, markersize=6.5, zorder=4, label="scheduler")
    axes.axhline(0, color=INK, linewidth=0.9)
    step = 1 + (len(rows) - 1) // _LABELS[width]
    axes.set_xticks(x[::step], [str(row["seed"]) for row in rows][::step])
    axes.set_xlim(-0.7, len(rows) - 0.3)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("seed (same requests, as many merges in both arms)")
    axes.set_ylabel(_EXCESS[width])
    axes.set_title(titled(claim["regime"], claim["slo"], width))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


# Overview --------------------------------------------------------------------------------------------------------


def gain_overview(certificate: Mapping[str, Any], width: Width = "page") -> Figure:
    """A forest plot: both gains of every claim with their intervals, one row a claim; filled where it passed."""
    claims = certificate["claims"]
    figure = Figure(figsize=(INCHES[width], 1.3 + (0.42 if width == "page" else 0.56) * len(claims)),
                    layout="constrained")  # fmt: skip
    axes = figure.subplots()
    least = certificate["settings"]["min_effect_pp"]
    axes.axvline(0, color=INK, linewidth=0.9)
    if least:
        axes.axvline(least, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate("minimum effect", (least, 1), xycoords=axes.get_xaxis_transform(), xytext=(3, -2),
                      textcoords="offset points", va="top", color=MUTED, fontsize=7.5)  # fmt: skip
    for y, claim in enumerate(claims):
        for of, (_, marker, colour, dy) in _GAINS.items():
            gain, limits = (claim["envelope"][f"{of}{key}"] for key in ("gain_pp", "interval_pp"))
            if limits and all(map(fmt.known, limits)):
                axes.hlines(y + dy, *limits, color=colour, linewidth=1.6, zorder=3)
            if fmt.known(gain):
                face = colour if claim["verdict"] == "PASS" else PAPER
                axes.plot(gain, y + dy, marker, color=colour, markerfacecolor=face, markersize=6, zorder=4)
        _name_row(axes, y, claim, width)
    if width == "page":
        axes.set_yticks(range(len(claims)), [f"{label(c['regime'], 28)}\n{label(c['slo'], 32)}" for c in claims])
    else:
        axes.set_yticks([])
    axes.set_ylim(len(claims) - 0.4, -0.6 if width == "page" else -0.9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    axes.set_xlabel(f"gain in pp, {fmt.level(certificate)} intervals; filled: passed")
    handles = [axes.plot([], [], marker, color=colour, label=name, linestyle="none")[0]
               for name, marker, colour, _ in _GAINS.values()]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=2, columnspacing=1, handletextpad=0,
                  fontsize=8)  # fmt: skip
    return figure


def _name_row(axes: Axes, y: int, claim: Mapping[str, Any], width: Width) -> None:
    """What a row says beside its marks; in a column its name as well, both above them."""
    across = axes.get_yaxis_transform()
    if width == "page":
        axes.annotate(_row_text(claim), (1.01, y), xycoords=across, va="center", fontsize=7.5)
        return
    name = f"{label(claim['regime'], 24)}, {label(claim['slo'], 18)}"
    plain = {"boxstyle": "square,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}
    for text, x, side in ((name, 0, "left"), (claim["verdict"], 1, "right")):
        axes.annotate(text, (x, y - 0.3), xycoords=across, va="bottom", ha=side, fontsize=7.5, bbox=plain)


def gain_mark(axes: Axes, y: int, gain: Any, limits: Any, verdict: str) -> None:
    """A gain with its interval, on row `y`; what is not known is not drawn."""
    marker, colour = _VERDICT_LOOK[verdict]
    if limits and all(map(fmt.known, limits)):
        axes.hlines(y, *limits, color=INK, linewidth=1.6, zorder=3)
    if fmt.known(gain):
        edge = INK if colour == PAPER else colour
        axes.plot(gain, y, marker, color=colour, markeredgecolor=edge, markersize=7, zorder=4)


def verdict_handles(axes: Axes, verdicts: Collection[str]) -> list[Any]:
    """What a legend of the marks shows of the verdicts that occur."""
    return [
        axes.plot([], [], marker, color=colour, markeredgecolor=INK if colour == PAPER else colour, linestyle="none",
                  label=verdict)[0]
        for verdict, (marker, colour) in _VERDICT_LOOK.items()
        if verdict in verdicts
    ]  # fmt: skip


def _row_text(claim: Mapping[str, Any]) -> str:
    envelope = claim["envelope"]
    parts = [fmt.pp(envelope["gain_pp"], sign=True), fmt.interval(envelope["interval_pp"])]
    shown = "  ".join(part for part in parts if part != fmt.UNKNOWN) or "not measured"
    p_holm = envelope["p_holm"]
    return f"{shown}\n{claim['verdict']}, {fmt.p_text(p_holm, 'Holm p') if fmt.known(p_holm) else 'no p-value'}"


# Timeline --------------------------------------------------------------------------------------------------------


def timeline(trace: RequestTrace, schedule: Schedule, measurements: Measurements, slo: Slo, horizon_ns: int) -> Figure:
    """One replay over time: load with its violations, merges by island, and every request's latency.

    horizon_ns : the span in which merges may run; requests after it are shown, and the horizon marked.
    """
    with styled():
        last = int(trace.arrival_ns[-1]) if len(trace) else 0
        end_s = max(horizon_ns, last + 1) / NS_PER_S
        figure = Figure(figsize=(9.0, 5.2), layout="constrained")
        lanes = min(0.3 + 0.13 * schedule.n_islands, 1.6)
        load, merges, latency = figure.subplots(3, sharex=True, height_ratios=(1.1, lanes, 1.9))
        arrival_s = measurements.arrival_ns / NS_PER_S
        missed = measurements.violates(slo)
        _load(load, arrival_s, missed, end_s)
        _merge_lanes(merges, schedule)
        _latencies(latency, arrival_s, measurements, missed, slo)
        for axes in (load, latency):
            for begin, length in _any_merge_s(schedule):
                axes.axvspan(begin, begin + length, color=DRAWS, alpha=0.13, linewidth=0, zorder=0)
        if horizon_ns / NS_PER_S < end_s:
            for axes in (load, merges, latency):
                axes.axvline(horizon_ns / NS_PER_S, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        latency.set_xlim(0, end_s)
        latency.set_xlabel("time (s)")
        rate = f"{100 * missed.mean():.2f} %" if len(missed) else fmt.UNKNOWN
        load.set_title(
            f"{fmt.count(len(schedule))} merges, {fmt.count(len(measurements))} requests, "
            f"{fmt.count(int(missed.sum()))} miss {slo} ({rate})"
        )
    return figure


def _load(axes: Axes, arrival_s: NDArray[np.float64], missed: NDArray[np.bool_], end_s: float) -> None:
    """Requests per second by scheduled arrival, in steps of a round number of seconds, at most 700 of them."""
    width = next(w for w in _widths() if end_s / w <= 700)
    edges = np.arange(0, end_s + width, width)
    for chosen, colour, alpha, label in (
        (np.ones(len(missed), bool), MUTED, 0.45, "arrivals"),
        (missed, POLICY_COLOUR, 0.95, "of these, violations"),
    ):
        rate = np.histogram(arrival_s[chosen], edges)[0] / width
        axes.stairs(rate, edges, fill=True, color=colour, alpha=alpha, linewidth=0, label=label)
    axes.set_ylabel("requests/s" if width == 1 else f"requests/s\n(per {width:g} s)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


def _widths() -> Iterator[float]:
    scale = 1.0
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10


def _merge_lanes(axes: Axes, schedule: Schedule) -> None:
    for island in range(schedule.n_islands):
        begin, end = schedule.windows_ns(island)
        spans = np.column_stack([begin, end - begin]) / NS_PER_S
        axes.broken_barh([tuple(s) for s in spans], (island - 0.4, 0.8), facecolor=DRAWS, linewidth=0)
    axes.set_ylim(schedule.n_islands - 0.4, -0.6)
    axes.grid(visible=False)
    if schedule.n_islands == 1:
        axes.set_yticks([])
        axes.set_ylabel("merges", rotation=0, ha="right", va="center")
    else:
        axes.set_yticks(np.unique(np.linspace(0, schedule.n_islands - 1, min(schedule.n_islands, 8)).astype(int)))
        axes.set_ylabel("merging\nisland")
    axes.tick_params(axis="y", length=0)


def _any_merge_s(schedule: Schedule) -> list[tuple[float, float]]:
    """Start and length of every merge, by its longest participant, in seconds."""
    longest = schedule.busy_ns.max(axis=1) if len(schedule) else np.empty(0, np.int64)
    return [(s / NS_PER_S, b / NS_PER_S) for s, b in zip(schedule.start_ns, longest, strict=True)]


def _latencies(
    axes: Axes, arrival_s: NDArray[np.float64], m: Measurements, missed: NDArray[np.bool_], slo: Slo
) -> None:
    served = m.outcome == SERVED
    many = len(m) > _MOST_POINTS
    faint = float(np.clip(2_000 / max(len(m), 1), 0.12, 0.5))
    for chosen, look, colour, size, alpha, label in (
        (served & ~missed, "o", MUTED, 2.2, faint, "within the SLO"),
        (served & missed, "o", POLICY_COLOUR, 3.2, 0.9, "violation"),
    ):
        axes.plot(arrival_s[chosen], m.e2e_ns[chosen] / NS_PER_S, look, color=colour, markersize=size, alpha=alpha,
                  markeredgewidth=0, label=label, rasterized=many)  # fmt: skip
    if not served.all():
        axes.plot(arrival_s[~served], np.full((~served).sum(), 0.97), "x", color=POLICY_COLOUR, markersize=4,
                  transform=axes.get_xaxis_transform(), label="not served", rasterized=many)  # fmt: skip
    if slo.e2e_ns is not None:
        axes.axhline(
            slo.e2e_ns / NS_PER_S,
            color=INK,
            linewidth=1,
            linestyle=(0, (4, 3)),
            label=f"limit {slo.e2e_ns / NS_PER_S:g} s",
        )
    if served.any():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel("end-to-end latency (s)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2, markerscale=1.6)


# Text ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _font() -> Any:
    return get_font(findfont("DejaVu Sans"))


def label(text: object, width: int) -> str:
    """A name in at most `width` characters; what the bundled font has no glyph for is written as U+XXXX."""
    shown = "".join(c if _font().get_char_index(ord(c)) else f"U+{ord(c):04X}" for c in fmt.clean(text))
    return fmt.shortened(shown, width)
