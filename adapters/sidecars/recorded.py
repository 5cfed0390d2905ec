"""The recorded sidecar: measurements that somebody already has, from this project's Parquet or another tool's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adapters.published import parsing
from adapters.published.registry import FORMATS, recognise
from protocol.audit.imported import Support
from protocol.errors import BadInput, SidecarError
from protocol.files import sha256
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements, exposure_ns
from protocol.workload.trace import RequestTrace

#: What this project's own files support: everything that the measurement had.
OWN = Support("this project's Parquet", "per-request", "nanoseconds since the trace began", "ns", "scheduled", {})


def read_measurements(path: Path) -> tuple[Measurements, Support]:
    """Requests of a file in any per-request format (several runs in one file: BadInput).

    Exposure is 0 throughout for foreign files, which know of no merges; `with_schedule` fills it in.
    """
    if path.suffix == ".parquet":
        if not path.is_file():
            raise BadInput(str(path), "no such file", "a Parquet file of measurements")
        try:
            return Measurements.from_table(pq.read_table(path)), OWN
        except (pa.ArrowException, OSError) as error:
            raise BadInput(str(path), f"not Parquet ({str(error).splitlines()[0][:80]})", "a Parquet file") from None
    document = parsing.read_document(path)
    known = recognise(document)
    if known is None or known.load is None:
        raise BadInput(str(path), "no per-request format", ", ".join(f.name for f in FORMATS if f.load is not None))
    found = known.load(document)
    if len(found) != 1 or found[0].log is None:
        what = f"{len(found)} runs" if len(found) != 1 else f"{found[0].support.format}, without requests"
        raise BadInput(str(path), what, "one run with its requests")
    return found[0].log, found[0].support


def as_trace(measurements: Measurements, name: str = "recorded") -> RequestTrace:
    """The requests as they arrived; tokens of 0 (failed, or not in the file) become 1."""
    known = dataclasses.replace(measurements, prompt_tokens=np.maximum(measurements.prompt_tokens, 1))
    return known.offered(int(measurements.island.max(initial=0)) + 1, name)


def with_schedule(measurements: Measurements, schedule: Schedule) -> Measurements:
    """The same requests with their exposure to the merges that ran.  Raises BadInput when islands do not agree."""
    trace = as_trace(measurements)
    if len(schedule) and schedule.n_islands != trace.n_islands:
        raise BadInput("schedule", f"{schedule.n_islands} islands", f"{trace.n_islands}, as many as in the requests")
    return dataclasses.replace(measurements, exposure_ns=exposure_ns(trace, measurements.e2e_ns, schedule))


@dataclass(frozen=True)
class RecordedSidecar:
    """Answers for exactly the schedules that were recorded, and refuses every other: a record cannot be replayed.

    runs : pairs of a schedule and the measurements under it, all of one trace.
    """

    runs: tuple[tuple[Schedule, Measurements], ...]
    source: str
    name: str = "recorded"
    calibrated: bool = True

    @classmethod
    def from_files(cls, files: Mapping[Path, Schedule]) -> RecordedSidecar:
        """Raises BadInput when the files' requests did not arrive alike."""
        runs = [(schedule, with_schedule(read_measurements(path)[0], schedule)) for path, schedule in files.items()]
        for path, (_, one) in zip(files, runs, strict=True):
            if not np.array_equal(one.arrival_ns, runs[0][1].arrival_ns):
                raise BadInput(str(path), "other arrivals than in the first file", "one trace in every file")
        return cls(tuple(runs), " ".join(sha256(path)[:16] for path in files))

    def load(self, trace: RequestTrace, rng: np.random.Generator) -> RecordedRuns:
        """Raises SidecarError when the trace is not the recorded one; `rng` is not used, nothing is random."""
        for _, one in self.runs:
            if not np.array_equal(one.arrival_ns, trace.arrival_ns):
                raise SidecarError(f"{trace.name} does not have the arrivals that were recorded")
        return RecordedRuns(trace, self.runs)

    def describe(self) -> Mapping[str, object]:
        return {"name": self.name, "runs": len(self.runs), "source": self.source}


@dataclass(frozen=True)
class RecordedRuns:
    """One trace's records.  It has no `session` and no `merge_cost`: nobody can decide anew on a record."""

    trace: RequestTrace
    runs: tuple[tuple[Schedule, Measurements], ...]

    def replay(self, schedule: Schedule) -> Measurements:
        for recorded, measurements in self.runs:
            if recorded.equals(schedule):
                return measurements
        raise SidecarError(f"no record of this schedule of {len(schedule)} merges; a record cannot be replayed")
