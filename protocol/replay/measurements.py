"""What a replay measured: one row a request, in the order of the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace, whole

SERVED, FAILED, REFUSED = 0, 1, 2
#: Exposure classes: how much of a request's life overlaps a merge on its own sidecar.
NONE, PARTLY, FULLY = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Measurements:
    """Columns of equal length n, one row a request.

    arrival_ns : int64, scheduled arrival.  sent_ns : int64, when the client really sent it.
    ttft_ns, e2e_ns : int64, from the *scheduled* arrival; -1 where there is none (failed, refused).
    max_itl_ns : int64, longest gap between two tokens; 0 for one token, -1 where unknown.
    prompt_tokens, output_tokens : int32, tokens read and really produced.
    outcome : int8, SERVED, FAILED or REFUSED.  island : int16.
    exposure_ns : int64, overlap of [arrival, arrival + e2e] with merges on the request's own island.
    asked_tokens : int32, output tokens that were asked for; where nobody says, those produced, and at least one.
    """

    arrival_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    ttft_ns: NDArray[np.int64]
    e2e_ns: NDArray[np.int64]
    max_itl_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    outcome: NDArray[np.int8]
    island: NDArray[np.int16]
    exposure_ns: NDArray[np.int64]
    asked_tokens: NDArray[np.int32] = None  # type: ignore[assignment]  # filled in below

    _DTYPES = {"prompt_tokens": "i4", "output_tokens": "i4", "asked_tokens": "i4", "outcome": "i1", "island": "i2"}

    def __post_init__(self) -> None:
        if self.asked_tokens is None:
            object.__setattr__(self, "asked_tokens", np.maximum(self.output_tokens, 1))
        for column in fields(self):
            dtype = self._DTYPES.get(column.name, "i8")
            values = whole("measurements", column.name, getattr(self, column.name), dtype)
            if len(values) != len(self.arrival_ns):
                raise BadInput(f"measurements, {column.name}", f"{len(values)} rows", f"{len(self.arrival_ns)}")
            object.__setattr__(self, column.name, values)
        if np.any((self.outcome == SERVED) & (self.e2e_ns <= 0)):
            raise BadInput("measurements, e2e_ns", "a served request without latency", "a positive latency")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def tpot_ns(self) -> NDArray[np.float64]:
        """Mean time per output token after the first; 0 for a single token, NaN where not served or unknown."""
        gaps = np.maximum(self.output_tokens - 1, 1)
        mean = np.where(self.output_tokens > 1, (self.e2e_ns - self.ttft_ns) / gaps, 0.0)
        return np.where((self.outcome == SERVED) & (self.ttft_ns >= 0), mean, np.nan)

    @property
    def exposure(self) -> NDArray[np.int8]:
        """NONE, PARTLY or FULLY; a request without latency counts by its arrival moment alone."""
        fully = (self.exposure_ns > 0) & (self.exposure_ns >= self.e2e_ns)
        return np.where(fully, FULLY, np.where(self.exposure_ns > 0, PARTLY, NONE)).astype(np.int8)

    def offered(self, n_islands: int = 1, name: str = "trace") -> RequestTrace:
        """The requests as they arrived and asked.

        Raises BadInput when a value is out of a trace's range.
        """
        return RequestTrace(
            self.arrival_ns, self.prompt_tokens, np.maximum(self.asked_tokens, 1), self.island, n_islands, name
        )

    @property
    def span_ms(self) -> float:
        """Time in which the requests arrived, milliseconds."""
        return float(np.ptp(self.arrival_ns)) / 1e6 if len(self) else 0.0

    def violates(self, slo: Slo) -> NDArray[np.bool_]:
        """True where a request misses any limit of the SLO, was not served, or its latency is unknown."""
        missed = self.outcome != SERVED
        if slo.e2e_ns is not None:
            missed = missed | (self.e2e_ns > slo.e2e_ns)
        if slo.ttft_ns is not None:
            missed = missed | (self.ttft_ns < 0) | (self.ttft_ns > slo.ttft_ns)
        if slo.tpot_ns is not None:
            gaps = self.output_tokens.astype(np.int64) - 1
            missed = missed | (self.ttft_ns < 0) | ((gaps > 0) & (self.e2e_ns - self.ttft_ns > slo.tpot_ns * gaps))
        if slo.itl_ns is not None:
            missed = missed | (self.max_itl_ns < 0) | (self.max_itl_ns > slo.itl_ns)
        return missed

    @classmethod
    def pooled(cls, parts: Sequence[Measurements]) -> Measurements:
        """The rows of several replays as one, in their order.  Raises ValueError of none."""
        return cls(**{c.name: np.concatenate([getattr(m, c.name) for m in parts]) for c in fields(cls)})

    def chosen(self, rows: NDArray[np.bool_]) -> Measurements:
        """Some of the rows, in their order."""
        return Measurements(**{c.name: getattr(self, c.name)[rows] for c in fields(self)})

    def p95_ms(self, rows: NDArray[np.bool_], phase: str = "e2e") -> float:
        """95th percentile of a latency over some rows, milliseconds; the only definition of it.

        A request that was not served is infinitely late; quantile "higher", an order statistic.  NaN of no rows, and
        where one was served at a latency that nobody knows.
        phase : `e2e`, `ttft` or `max_itl`.
        """
        known = getattr(self, f"{phase}_ns")
        if not rows.any() or np.any(rows & (self.outcome == SERVED) & (known < 0)):
            return float("nan")
        latency = np.where(self.outcome == SERVED, known / 1e6, np.inf)
        return float(np.quantile(latency[rows], 0.95, method="higher"))

    def to_table(self) -> pa.Table:
        return pa.table({column.name: getattr(self, column.name) for column in fields(self)})

    @classmethod
    def from_table(cls, table: pa.Table) -> Measurements:
        """Raises BadInput naming a column that is missing."""
        # Files of version 1 do not say how many tokens were asked for.
        missing = [c.name for c in fields(cls) if c.name not in table.column_names and c.name != "asked_tokens"]
        if missing:
            raise BadInput("measurements", f"no column {missing[0]}", ", ".join(c.name for c in fields(cls)))
        return cls(**{c.name: table.column(c.name).to_numpy() for c in fields(cls) if c.name in table.column_names})


def not_streamed(rows: Measurements) -> int:
    """Served requests whose response came in one write: when their first token was there, nobody knows.

    Where there is one, objectives on TTFT, TPOT and ITL cannot be judged.
    """
    return int(np.count_nonzero((rows.outcome == SERVED) & (rows.ttft_ns < 0)))


def exposure_ns(trace: RequestTrace, e2e_ns: NDArray[np.int64], schedule: Schedule) -> NDArray[np.int64]:
    """Overlap of each request's life with the merges on its own island, shape (n,).

    A request without latency (e2e_ns < 0) is given a life of one nanosecond at its arrival.
    """
    exposed = np.zeros(len(trace), np.int64)
    for island in range(trace.n_islands):
        mine = trace.island == island
        begin, end = schedule.windows_ns(island)
        if not len(begin) or not mine.any():
            continue
        born = trace.arrival_ns[mine]
        died = born + np.maximum(e2e_ns[mine], 1)
        # Busy time up to t is the sum of whole windows before t plus the part of the one that holds t.
        done = np.concatenate([[0], np.cumsum(end - begin)])

        def busy_until(t: NDArray[np.int64]) -> NDArray[np.int64]:
            k = np.searchsorted(begin, t, side="right")  # noqa: B023  used within this iteration only
            inside = np.minimum(t, end[np.maximum(k - 1, 0)]) - begin[np.maximum(k - 1, 0)]  # noqa: B023
            return np.where(k > 0, done[np.maximum(k - 1, 0)] + inside, 0)  # noqa: B023

        exposed[mine] = busy_until(died) - busy_until(born)
    return exposed
