"""Service-level objectives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.errors import BadInput
from protocol.workload.trace import seconds_to_ns

METRICS = ("e2e", "itl", "tpot", "ttft")
#: Longer limits would overflow when multiplied by a request's tokens.
MOST_S = 50_000.0
_UNIT_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_TERM = re.compile(r"\s*([a-z0-9]+)\s*<=\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*")


@dataclass(frozen=True)
class Slo:
    """Upper limits that a request must meet, all of them; None means no limit.

    e2e_ns, ttft_ns, tpot_ns (mean time per output token after the first), itl_ns (the longest gap
    between two tokens of the request), nanoseconds from the scheduled arrival.
    """

    e2e_ns: int | None = None
    ttft_ns: int | None = None
    tpot_ns: int | None = None
    itl_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read `e2e<=1s` or `ttft<=200ms,itl<=50ms`.

        >>> Slo.parse("ttft<=200ms,e2e<=1s").ttft_ns
        200000000

        Raises BadInput on an unknown metric, unit, repetition or form.
        """
        limits: dict[str, int] = {}
        for term in text.split(","):
            match = _TERM.fullmatch(term)
            if match is None:
                raise BadInput("--slo", repr(term), "terms like e2e<=1s or ttft<=200ms, separated by commas")
            metric, number, unit = match.groups()
            if metric not in METRICS:
                raise BadInput("--slo", repr(metric), f"one of {', '.join(METRICS)}")
            if unit not in _UNIT_S:
                raise BadInput("--slo", f"unit {unit!r} in {term!r}", "s, ms or us")
            if metric in limits:
                raise BadInput("--slo", f"{metric} twice", "each metric once")
            limit_s = float(number) * _UNIT_S[unit]
            if not 1e-9 <= limit_s <= MOST_S:
                raise BadInput("--slo", repr(term), f"a limit above 0 and at most {MOST_S:g} s")
            limits[metric] = seconds_to_ns(limit_s)
        return cls(**{f"{metric}_ns": limit for metric, limit in limits.items()})

    def __str__(self) -> str:
        parts = [(m, getattr(self, f"{m}_ns")) for m in METRICS]
        return ",".join(f"{m}<={_milliseconds(ns)}ms" for m, ns in parts if ns is not None)


def _milliseconds(ns: int) -> str:
    """Exact, so that the text of an SLO parses to the same SLO."""
    return f"{ns // 1_000_000}.{ns % 1_000_000:06d}".rstrip("0").rstrip(".")
