"""Numbers of the WA-DiLoCo artifact as its tables print them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adapters.published import parsing


def four(value: float | None) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def mean_sd(values: Sequence[float | None]) -> str:
    """`mean ± sd` to three decimals, as the artifact prints it; a dash when a value is missing or not a number."""
    known = [v for v in values if v is not None and v == v]
    if len(known) < len(values) or not known:
        return "–"
    return f"{statistics.mean(known):.3f} ± {statistics.stdev(known) if len(known) > 1 else 0.0:.3f}"


def stored(where: str, value: object) -> str:
    if value is None:
        return "–"
    pair = parsing.mapping(where, value)
    mean, sd = (parsing.maybe_number(where, pair.get(key)) for key in ("mean", "sd"))
    return "–" if mean is None or sd is None or mean + sd != mean + sd else f"{mean:.3f} ± {sd:.3f}"
