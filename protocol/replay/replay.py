"""Replays on a real server, as they are stored: every attempt, valid or not, row by row.

Whether an attempt counts is not stored but recomputed from its rows and merges, so that nobody can drop a valid one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.parquet import read_table, write_tables
from protocol.replay.measurements import Measurements

#: The second replay without merges, for the A/A comparison.
NO_SYNC_AGAIN = "no-sync-again"
#: A replay counts when this share of its requests was sent within this delay of schedule ...
SENT_SHARE, SENT_WITHIN_NS = 0.99, 5_000_000
#: ... and every merge began and ended within this time of schedule.
MERGE_WITHIN_NS = 50_000_000
REPLAYS, SERVED_ROWS = "replays.parquet", "served.parquet"


@dataclass(frozen=True, eq=False)
class Observed:
    """What one replay on a real server showed; times in ns since the trace began.

    planned_ns, ran_ns : int64, shape (K, 2), begin and end of each merge, as asked and as executed.
    may_end_early : the merge load does one thing a window, however long that takes.
    failures : requests that were not served, by cause.
    """

    measurements: Measurements
    planned_ns: NDArray[np.int64]
    ran_ns: NDArray[np.int64]
    may_end_early: bool
    failures: Mapping[str, int]

    @property
    def send_delay_ns(self) -> NDArray[np.int64]:
        """Sent minus scheduled, of the requests that were sent."""
        sent = self.measurements.sent_ns >= 0
        return (self.measurements.sent_ns - self.measurements.arrival_ns)[sent]

    @property
    def sent_share(self) -> float:
        """Share of requests that were sent within SENT_WITHIN_NS of schedule; one never sent counts as late."""
        total = len(self.measurements)
        return float(np.count_nonzero(self.send_delay_ns <= SENT_WITHIN_NS)) / total if total else 1.0

    @property
    def invalid(self) -> str | None:
        """Why this replay may not be judged, or None: a late client, or merges off their schedule."""
        if self.sent_share < SENT_SHARE:
            return (
                f"{100 * self.sent_share:.2f} % of requests were sent within {SENT_WITHIN_NS / 1e6:g} ms of schedule; "
                f"expected at least {100 * SENT_SHARE:g} %"
            )
        if len(self.ran_ns) != len(self.planned_ns):
            return f"{len(self.ran_ns)} of {len(self.planned_ns)} merges ran"
        off = self.ran_ns - self.planned_ns
        early = (off[:, 1] < -MERGE_WITHIN_NS) & (not self.may_end_early)
        for k in np.flatnonzero((np.abs(off[:, 0]) > MERGE_WITHIN_NS) | (off[:, 1] > MERGE_WITHIN_NS) | early)[:1]:
            began, ended = off[k] / 1e6
            return (
                f"merge {k + 1} began {began:+.0f} ms and ended {ended:+.0f} ms off its schedule; "
                f"expected within {MERGE_WITHIN_NS / 1e6:.0f} ms"
            )
        return None


@dataclass(frozen=True, eq=False)
class Replayed(Observed):
    """One attempt at one arm of one seed.

    draw : which of the arm's schedules.  position : its place in the seed's random order.  attempt : from 1 on.
    started : UTC, ISO 8601.  wall_s : seconds that it took.
    """

    regime: str
    seed: int
    arm: str
    draw: int
    position: int
    attempt: int
    started: str
    wall_s: float

    @property
    def what(self) -> str:
        return f"seed {self.seed}, {self.arm}" + (f" {self.draw}" if self.arm == "uniform" else "")


_PLAIN = {
    "regime": pa.string(), "seed": pa.int32(), "arm": pa.string(), "draw": pa.int32(), "position": pa.int32(),
    "attempt": pa.int32(), "started": pa.string(), "wall_s": pa.float64(), "may_end_early": pa.bool_(),
}  # fmt: skip


def write(replays: Sequence[Replayed], folder: Path) -> list[str]:
    """Write both tables; returns their names.  Row k of replays.parquet has the rows of the other with replay = k."""
    columns = {name: pa.array([getattr(r, name) for r in replays], kind) for name, kind in _PLAIN.items()}
    columns["requests"] = pa.array([len(r.measurements) for r in replays], pa.int64())
    for name in ("planned_ns", "ran_ns"):
        flat = [getattr(r, name).ravel().tolist() for r in replays]
        columns[name] = pa.array(flat, pa.list_(pa.int64()))
    columns["failures"] = pa.array([json.dumps(dict(sorted(r.failures.items()))) for r in replays], pa.string())
    rows = []
    for k, r in enumerate(replays):
        table = r.measurements.to_table()
        rows.append(table.add_column(0, "replay", pa.array(np.full(len(table), k, np.int32))))
    return write_tables({REPLAYS: pa.table(columns), SERVED_ROWS: pa.concat_tables(rows)}, folder)


def read(folder: Path) -> list[Replayed]:
    """The replays that `write` stored.  Raises BadInput naming what is missing or broken."""
    described, rows = read_table(folder / REPLAYS), read_table(folder / SERVED_ROWS)
    try:
        return _rebuilt(described, rows)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        what = str(error).splitlines()[0] if str(error) else "no detail"
        raise BadInput(str(folder), f"broken replays ({type(error).__name__}: {what})", "files as written") from None


def _rebuilt(described: pa.Table, rows: pa.Table) -> list[Replayed]:
    sizes = described["requests"].to_numpy()
    index = np.repeat(np.arange(len(sizes)), sizes)
    if not np.array_equal(rows["replay"].to_numpy(), index):
        raise BadInput(SERVED_ROWS, f"{len(rows)} rows", f"{len(index)}, as {REPLAYS} says, in its order")
    ends = np.cumsum(sizes)
    found = []
    for row, begin, end in zip(described.to_pylist(), ends - sizes, ends, strict=True):
        plain: dict[str, Any] = {name: row[name] for name in _PLAIN}
        found.append(
            Replayed(
                measurements=Measurements.from_table(rows.slice(begin, end - begin)),
                planned_ns=np.array(row["planned_ns"], np.int64).reshape(-1, 2),
                ran_ns=np.array(row["ran_ns"], np.int64).reshape(-1, 2),
                failures=json.loads(row["failures"]),
                **plain,
            )
        )
    return found
