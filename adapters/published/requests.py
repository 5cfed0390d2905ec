"""From foreign request rows to `Measurements`: rows are ordered by arrival and the clock starts at the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.errors import BadInput
from protocol.replay.measurements import FAILED, SERVED, Measurements

#: Latencies longer than this cannot be meant.
MOST_LATENCY_NS = 10**15


@dataclass(frozen=True)
class Row:
    """One request, times in integer nanoseconds on the file's own clock; -1 where a latency is unknown.

    A reply of several tokens whose first token came at its end was not streamed: its TTFT and gaps are unknown.

    arrival : when it was due (the start itself where the file has no schedule).  ttft, e2e : from `arrival`.
    """

    arrival: int
    sent: int
    ttft: int
    e2e: int
    max_itl: int
    prompt_tokens: int
    output_tokens: int
    failed: bool


def measurements(where: str, rows: Sequence[Row]) -> Measurements:
    """Sort by arrival, put the first arrival at 0.  Exposure is 0: no merge is known here.

    Raises BadInput without rows, or on a time that goes beyond 64 bits.
    """
    if not rows:
        raise BadInput(where, "no request", "at least one")
    ordered = sorted(rows, key=lambda row: row.arrival)
    origin = ordered[0].arrival
    if ordered[-1].arrival - origin > MOST_LATENCY_NS:
        span_s = (ordered[-1].arrival - origin) / 1e9
        raise BadInput(where, f"arrivals {span_s:.3g} s apart", "one clock for all requests")
    for row in ordered:
        if not row.failed and not 0 < row.e2e < MOST_LATENCY_NS:
            raise BadInput(where, f"a served request with a latency of {row.e2e / 1e9:g} s", "a positive latency")
        if not row.failed and row.ttft > row.e2e:
            late = f"a first token after {row.ttft / 1e9:g} s of {row.e2e / 1e9:g} s"
            raise BadInput(where, late, "it before the end")
        if abs(row.sent - row.arrival) > MOST_LATENCY_NS:
            raise BadInput(where, "a request sent far from its arrival", "one clock for both")
    whole = [row.failed or (row.output_tokens > 1 and row.ttft >= row.e2e) for row in ordered]
    return Measurements(
        arrival_ns=np.array([row.arrival - origin for row in ordered], np.int64),
        sent_ns=np.array([row.sent - origin for row in ordered], np.int64),
        ttft_ns=np.array([-1 if w else row.ttft for row, w in zip(ordered, whole, strict=True)], np.int64),
        e2e_ns=np.array([-1 if row.failed else row.e2e for row in ordered], np.int64),
        max_itl_ns=np.array([-1 if w else row.max_itl for row, w in zip(ordered, whole, strict=True)], np.int64),
        prompt_tokens=np.array([row.prompt_tokens for row in ordered], np.int32),
        output_tokens=np.array([row.output_tokens for row in ordered], np.int32),
        outcome=np.array([FAILED if row.failed else SERVED for row in ordered], np.int8),
        island=np.zeros(len(ordered), np.int16),
        exposure_ns=np.zeros(len(ordered), np.int64),
    )
