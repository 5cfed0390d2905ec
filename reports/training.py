"""Tables and figures of training runs: what `protocol train` writes.  May import: ``protocol``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protocol.training.curves import Curve, Estimate, estimate
from reports import figures
from reports import format as fmt

Row = dict[str, Any]
Key = tuple[str, int, int, tuple[str, ...]]
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f")
_MARKS = "osD^vP*Xh"


def grouped(curves: Iterable[Curve]) -> dict[Key, list[Curve]]:
    """Runs that differ only in their seed, by method, H, islands and networks."""
    found: dict[Key, list[Curve]] = {}
    for curve in curves:
        found.setdefault((curve.method, curve.h, curve.islands, tuple(curve.time_s)), []).append(curve)
    return {key: sorted(runs, key=lambda c: c.seed) for key, runs in found.items()}


def title(key: Key) -> str:
    """A method as tables call it; an adapted one with its network."""
    method, _, _, networks = key
    return method if len(networks) > 1 or "adapted" not in method else f"{method} ({networks[0]})"


def curve_rows(curves: Iterable[Curve]) -> list[Row]:
    """One row a point, unrounded where small, for CSV."""
    rows = []
    for c in curves:
        for k in range(len(c.step)):
            row: Row = {"method": c.method, "h": c.h, "islands": c.islands, "seed": c.seed}
            row |= {"step": int(c.step[k]), "tokens": int(c.tokens[k]), "sent_bytes": int(c.sent_bytes[k])}
            for name in ("loss", "train_loss", "consensus"):
                row[name] = f"{getattr(c, name)[k]:.6g}"
            row |= {f"time_s {name}": f"{values[k]:.6g}" for name, values in c.time_s.items()}
            rows.append(row)
    return rows


def summary_rows(groups: Mapping[Key, Sequence[Curve]]) -> list[Row]:
    """One row a method: losses, consensus, tokens, bytes and modelled time at the end."""
    rows = []
    for key, runs in groups.items():
        row: Row = {"method": title(key), "h": key[1], "islands": key[2], "seeds": len(runs)}
        row["diverged"] = sum(c.diverged for c in runs)
        row["loss"] = estimate([c.loss[-1] for c in runs])
        own = [c.island_loss for c in runs if c.island_loss is not None]
        row["island_loss"] = estimate(own) if len(own) == len(runs) else None
        worst = [c.worst_loss for c in runs if c.worst_loss is not None]
        row["worst_loss"] = max(worst) if len(worst) == len(runs) else None
        row["consensus"] = estimate([c.consensus[-1] for c in runs])
        row["tokens"] = float(np.mean([c.tokens[-1] for c in runs]))
        row["gigabytes"] = float(np.mean([c.sent_bytes[-1] for c in runs])) / 1e9 / key[2]
        for name in runs[0].time_s:
            row[f"time_s {name}"] = float(np.mean([c.time_s[name][-1] for c in runs]))
        rows.append(row)
    return rows


def shown(value: Any, digits: int = 3) -> str:
    """An estimate as mean [low, high], a number rounded, a text as it is."""
    if isinstance(value, Estimate):
        if value.low is None or value.high is None:
            return fmt.fixed(value.mean, digits)
        return f"{fmt.fixed(value.mean, digits)} [{fmt.fixed(value.low, digits)}, {fmt.fixed(value.high, digits)}]"
    if isinstance(value, float):
        return fmt.number(value, 4)
    return fmt.UNKNOWN if value is None else str(value)


def csv_rows(rows: Sequence[Row]) -> list[Row]:
    """Estimates as three columns."""
    flat = []
    for row in rows:
        one: Row = {}
        for name, value in row.items():
            if isinstance(value, Estimate):
                one |= {name: value.mean, f"{name} low": value.low, f"{name} high": value.high}
            else:
                one[name] = value
        flat.append(one)
    return flat


def markdown(rows: Sequence[Row], columns: Mapping[str, str], digits: int = 3) -> str:
    """A pipe table of the columns that any row has; `columns` maps keys to headings."""
    kept = [key for key in columns if any(row.get(key) is not None for row in rows)]
    lines = ["| " + " | ".join(columns[key] for key in kept) + " |", "|" + "---|" * len(kept)]
    lines += ["| " + " | ".join(fmt.markdown(shown(row.get(key), digits)) for key in kept) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# Figures ---------------------------------------------------------------------------------------------------------


def loss_figure(groups: Mapping[Key, Sequence[Curve]], networks: Sequence[str]) -> Figure:
    """Validation loss against steps, tokens, bytes, and modelled time on each network: mean and 95 % t interval.

    More methods than can be told apart are cut to the first nine; the tables have all of them.
    """
    groups = dict(list(groups.items())[: len(_COLOURS)])
    panels = ["step", "tokens", "sent_bytes", *networks]
    labels = {"step": "inner steps", "tokens": "tokens, all islands", "sent_bytes": "modelled GB sent an island"}
    across = 3
    down = -(-len(panels) // across)
    figure = Figure(figsize=(10.5, 0.7 + 2.9 * down), layout="constrained")
    axes: list[Axes] = list(figure.subplots(down, across, squeeze=False).ravel())
    with np.errstate(invalid="ignore"):
        for place, (key, runs) in enumerate(groups.items()):
            look = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKS[place % len(_MARKS)]}
            for axis, panel in zip(axes, panels, strict=False):
                _line(axis, panel, runs, key[2], title(key), look)
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_xlabel(labels.get(panel, f"modelled seconds, network {panel}"))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    _clip(axes[: len(panels)], groups)
    for axis in axes[::across]:
        axis.set_ylabel("validation loss (nats a byte)")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _line(axis: Axes, panel: str, runs: Sequence[Curve], n: int, label: str, look: Mapping[str, Any]) -> None:
    whole = [c for c in runs if not c.diverged]
    if not whole or (panel not in ("step", "tokens", "sent_bytes") and panel not in whole[0].time_s):
        axis.plot([], [], label=label, markersize=3, **look)
        return
    x = np.mean([c.time_s[panel] if panel in c.time_s else getattr(c, panel) for c in whole], axis=0)
    x = x / n / 1e9 if panel == "sent_bytes" else x
    points = [estimate(values) for values in np.stack([c.loss for c in whole], 1)]
    kept = [(at, p) for at, p in zip(x, points, strict=True) if p is not None]
    at = [a for a, _ in kept]
    axis.plot(at, [p.mean for _, p in kept], label=label, markersize=3, markevery=4, **look)
    if all(p.low is not None for _, p in kept):
        low, high = [p.low for _, p in kept], [p.high for _, p in kept]
        axis.fill_between(at, low, high, color=look["color"], alpha=0.15, linewidth=0)  # type: ignore[arg-type]


def _clip(axes: Sequence[Axes], groups: Mapping[Key, Sequence[Curve]]) -> None:
    """Show the last four fifths of the descent; the first rounds are the same for everybody."""
    ends = [c.loss[-1] for runs in groups.values() for c in runs if not c.diverged]
    starts = [c.loss[len(c.loss) // 5] for runs in groups.values() for c in runs if not c.diverged]
    if ends:
        for axis in axes:
            axis.set_ylim(min(ends) - 0.03, max(starts) + 0.05)


def mixing_figure(contraction: Sequence[Row], momentum: Sequence[Row]) -> Figure:
    """Left: expected contraction by islands, measured and by formula.  Right: disagreement a round by gamma."""
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, kind in enumerate(dict.fromkeys(row["topology"] for row in contraction)):
        mine = [row for row in contraction if row["topology"] == kind]
        n = [row["islands"] for row in mine]
        colour = _COLOURS[place]
        left.plot(n, [row["formula"] for row in mine], color=colour, label=f"{kind}, formula")
        error = [2 * row["standard_error"] for row in mine]
        left.errorbar(
            n, [row["measured"] for row in mine], error, fmt=_MARKS[place], color=colour, label=f"{kind}, measured"
        )
    left.set_xscale("log", base=2)
    sizes = sorted({row["islands"] for row in contraction})
    left.set_xticks(sizes, [str(n) for n in sizes])
    left.set_xlabel("islands")
    left.set_ylabel("E|Wx|² / |x|² off the mean")
    left.legend()
    series = dict.fromkeys((r["topology"], r["islands"], r["form"]) for r in momentum)
    for place, (kind, n_, form) in enumerate(series):
        mine = [r for r in momentum if (r["topology"], r["islands"], r["form"]) == (kind, n_, form)]
        gamma, colour = [r["gamma"] for r in mine], _COLOURS[place % len(_COLOURS)]
        right.plot(gamma, [r["predicted"] for r in mine], color=colour, label=f"{kind}, n={n_}, {form}")
        right.plot(gamma, [r["measured"] for r in mine], _MARKS[place % len(_MARKS)], color=colour, markersize=4)
    right.axhline(1.0, color=figures.INK, linewidth=0.8)
    right.set_xlabel("outer momentum γ")
    right.set_ylabel("disagreement, factor a round")
    right.legend(fontsize=7)
    return figure
