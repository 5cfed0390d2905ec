"""What a calibration saw: outside of it, its model is a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.replay.measurements import Measurements
from protocol.workload.trace import NS_PER_S

#: Rates are counted in windows of this length, so that a burst is seen and a single gap is not.
RATE_WINDOW_S = 10.0

Range = tuple[float, float]


@dataclass(frozen=True)
class Support:
    """Least and largest values in all runs of a calibration.

    rate_per_s : requests a second in windows of RATE_WINDOW_S.  in_flight : requests in flight at an arrival.
    prompt_tokens, output_tokens : of one request, as asked.  merge_s : seconds that a merge lasted.
    """

    rate_per_s: Range
    in_flight: Range
    prompt_tokens: Range
    output_tokens: Range
    merge_s: Range


def support_of(runs: Sequence[Measurements], merge_s: float) -> Support:
    """Ranges over all runs.

    Raises ValueError of no runs.
    """
    rates, flying = (np.concatenate([f(m) for m in runs]) for f in (windowed, in_flight))
    prompts, outputs = (np.concatenate([getattr(m, name) for m in runs]) for name in ("prompt_tokens", "asked_tokens"))

    def ends(values: NDArray[np.generic]) -> Range:
        return float(values.min()), float(values.max())

    return Support(ends(rates), ends(flying), ends(prompts), ends(outputs), (merge_s, merge_s))


def windowed(m: Measurements) -> NDArray[np.float64]:
    """Requests a second in successive whole windows of the rows' span; the whole span where it is shorter.

    A window without requests is passed over: it asks nothing of a server.
    """
    if not len(m):
        return np.empty(0)
    since = m.arrival_ns - m.arrival_ns.min()
    width = int(RATE_WINDOW_S * NS_PER_S)
    whole = int(since.max()) // width
    if not whole:
        return np.array([len(m) / RATE_WINDOW_S])
    counts = np.bincount((since // width).astype(np.int64), minlength=whole + 1)[:whole]
    return counts[counts > 0] / RATE_WINDOW_S


def in_flight(m: Measurements) -> NDArray[np.int64]:
    """Requests under way at each arrival, itself included, shape (n,); one that was not served has ended."""
    ended = np.sort(m.arrival_ns + np.maximum(m.e2e_ns, 0))
    begun = np.searchsorted(np.sort(m.arrival_ns), m.arrival_ns, side="right")
    return begun - np.searchsorted(ended, m.arrival_ns, side="left")
