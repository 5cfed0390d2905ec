"""A live session: segments in blocks, what each measured, and the files that hold it.

A block replays one trace four times: without merges, under the scheduler, under its matched control, without merges.
The scheduler's segment comes before its control's, for the control is given as many merges as the scheduler made;
what drifts meanwhile shows in the two segments without merges around them, and is taken out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.parquet import read_table, write_tables
from protocol.replay.measurements import Measurements, exposure_ns
from protocol.replay.replay import MERGE_WITHIN_NS
from protocol.scheduler import Observation
from protocol.workload.trace import frozen

BEFORE, POLICY, CONTROL, AFTER = "no-sync-before", "policy", "random", "no-sync-after"
#: The arms of a block in their order in time.
ARMS = (BEFORE, POLICY, CONTROL, AFTER)
TABLES = ("decisions.parquet", "merges.parquet", "requests.parquet", "scrapes.parquet", "segments.parquet")
#: What of an observation differs from one decision to the next; the rest follows from the regime and the trace.
SEEN = (
    "time_s", "steps_since_merge", "merges_so_far", "loss", "loss_reduction", "tokens", "staleness_s",
    "network_pressure", "serving_pressure", "checkpoint_pressure", "in_flight", "queued", "completed",
    "recent_e2e_s", "recent_ttft_s",
)  # fmt: skip
_WHOLE = {"steps_since_merge", "merges_so_far", "tokens", "in_flight", "queued", "completed"}


@dataclass(frozen=True)
class Decision:
    """One decision of the loop; times in nanoseconds since the segment began.

    due_ns : when it was due.  asked_ns, answered_ns : when the observation was handed over, and the answer there.
    merge : whether a merge followed.  said : what the scheduler answered; None where nobody was asked, because H_max
        imposed the merge or an earlier answer came after this decision was due.  seen : the observation behind `said`.
    """

    due_ns: int
    asked_ns: int
    answered_ns: int
    merge: bool
    said: bool | None = None
    seen: Observation | None = None


@dataclass(frozen=True)
class Scrape:
    """One look at the server's metrics; gauges are None when it failed, `client` is the client's own count."""

    at_ns: int
    running: int | None
    waiting: int | None
    client: int


@dataclass(frozen=True, eq=False)
class Served:
    """What one replay on the live server measured; times in nanoseconds since the segment began.

    planned_ns, ran_ns : int64, shape (K, 2), begin and end of each merge as decided and as executed.
    load_problem : why the executed merges are not the planned ones, or None.
    failures : failed requests by cause.
    """

    requests: Measurements
    planned_ns: NDArray[np.int64]
    ran_ns: NDArray[np.int64]
    load_problem: str | None
    failures: Mapping[str, int]
    decisions: tuple[Decision, ...] = ()
    scrapes: tuple[Scrape, ...] = ()

    def __post_init__(self) -> None:
        for name in ("planned_ns", "ran_ns"):
            object.__setattr__(self, name, frozen(np.reshape(getattr(self, name), (-1, 2)), "i8"))

    @property
    def n_merges(self) -> int:
        """Merges that really ran."""
        return len(self.ran_ns)

    @property
    def busy_ns(self) -> int:
        return int((self.ran_ns[:, 1] - self.ran_ns[:, 0]).sum())


@dataclass(frozen=True, eq=False)
class Segment:
    """One arm of one block.

    began_s : seconds since the session began.  budget : merges that the control was given, None for the other arms.
    replay_difference : of the policy, what a fresh scheduler answered otherwise to the logged observations.
    """

    block: int
    arm: str
    began_s: float
    trace_digest: str
    served: Served
    budget: int | None = None
    replay_difference: str | None = None


@dataclass(frozen=True, eq=False)
class Session:
    """What a live session measured.  ended_early : why not every planned block was run, or None."""

    segments: tuple[Segment, ...]
    ended_early: str | None = None

    def blocks(self) -> list[dict[str, Segment]]:
        """Whole blocks in order: those in which every arm was run."""
        found: dict[int, dict[str, Segment]] = {}
        for segment in self.segments:
            found.setdefault(segment.block, {})[segment.arm] = segment
        return [arms for _, arms in sorted(found.items()) if set(arms) == set(ARMS)]


# Files -----------------------------------------------------------------------------------------------------------

_SEGMENT = {
    "block": pa.int64(), "arm": pa.string(), "began_s": pa.float64(), "trace_digest": pa.string(),
    "load_problem": pa.string(), "budget": pa.int64(), "failures": pa.string(), "replay_difference": pa.string(),
    "ended_early": pa.string(),
}  # fmt: skip
_DECISION = {
    "due_ns": pa.int64(), "asked_ns": pa.int64(), "answered_ns": pa.int64(), "merge": pa.bool_(), "said": pa.bool_(),
    **{name: pa.int64() if name in _WHOLE else pa.float64() for name in SEEN},
}  # fmt: skip
_SCRAPE = {"at_ns": pa.int64(), "running": pa.int64(), "waiting": pa.int64(), "client": pa.int64()}
_MERGE = {"kind": pa.string(), "begin_ns": pa.int64(), "end_ns": pa.int64()}
#: Columns that may be empty cells.
_MAY_LACK = {"said", "load_problem", "budget", "replay_difference", "ended_early", "running", "waiting", *SEEN}


def write(session: Session, folder: Path) -> list[str]:
    """Write the raw files into `folder`; returns their names.  Same session, same bytes."""
    numbered = list(enumerate(session.segments))
    rows: dict[str, list[dict[str, Any]]] = {"decisions": [], "merges": [], "scrapes": [], "segments": []}
    for number, s in numbered:
        own = {name: getattr(s, name) for name in _SEGMENT if hasattr(s, name)}
        failures = json.dumps(dict(sorted(s.served.failures.items())))
        outcome = {"load_problem": s.served.load_problem, "failures": failures, "ended_early": session.ended_early}
        rows["segments"].append({**own, **outcome})
        for kind, windows in (("planned", s.served.planned_ns), ("ran", s.served.ran_ns)):
            rows["merges"] += [
                {"segment": number, "kind": kind, "begin_ns": b, "end_ns": e} for b, e in windows.tolist()
            ]
        for d in s.served.decisions:
            seen = {name: None if d.seen is None else getattr(d.seen, name) for name in SEEN}
            own = {name: getattr(d, name) for name in ("due_ns", "asked_ns", "answered_ns", "merge", "said")}
            rows["decisions"].append({"segment": number, **own, **seen})
        rows["scrapes"] += [{"segment": number, **vars(scrape)} for scrape in s.served.scrapes]
    schemas = {"decisions": _DECISION, "merges": _MERGE, "scrapes": _SCRAPE, "segments": _SEGMENT}
    tables = {}
    for name, schema in schemas.items():
        keyed = schema if name == "segments" else {"segment": pa.int64(), **schema}
        tables[f"{name}.parquet"] = pa.Table.from_pylist(rows[name], schema=pa.schema(list(keyed.items())))
    tables["requests.parquet"] = pa.concat_tables(
        [
            s.served.requests.to_table().add_column(
                0, "segment", pa.array(np.full(len(s.served.requests), number, np.int64))
            )
            for number, s in numbered
        ]
    )
    return write_tables(tables, folder)


def read(folder: Path) -> Session:
    """The session that `write` stored, less the observations: no gate reads them.

    Raises BadInput naming a file or column that is missing or broken.
    """
    tables = {name: read_table(folder / name, _MAY_LACK) for name in TABLES}
    try:
        return _rebuilt(tables)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        what = str(error).splitlines()[0] if str(error) else "no detail"
        raise BadInput(str(folder), f"broken raw files ({type(error).__name__}: {what})", "files as written") from None


def _rebuilt(tables: Mapping[str, pa.Table]) -> Session:
    requests, of_request = tables["requests.parquet"], tables["requests.parquet"]["segment"].to_numpy()
    grouped: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for name in ("decisions", "merges", "scrapes"):
        for row in tables[f"{name}.parquet"].to_pylist():
            grouped.setdefault(name, {}).setdefault(row.pop("segment"), []).append(row)
    segments, ended_early = [], None
    for number, row in enumerate(tables["segments.parquet"].to_pylist()):
        ended_early = row.pop("ended_early")
        merges = grouped.get("merges", {}).get(number, [])
        windows = {
            kind: np.array([(m["begin_ns"], m["end_ns"]) for m in merges if m["kind"] == kind], np.int64)
            for kind in ("planned", "ran")
        }
        decisions = grouped.get("decisions", {}).get(number, [])
        served = Served(
            requests=Measurements.from_table(requests.filter(pa.array(of_request == number))),
            planned_ns=windows["planned"],
            ran_ns=windows["ran"],
            load_problem=row.pop("load_problem"),
            failures=json.loads(row.pop("failures")),
            decisions=tuple(Decision(**{k: v for k, v in d.items() if k not in SEEN}) for d in decisions),
            scrapes=tuple(Scrape(**scrape) for scrape in grouped.get("scrapes", {}).get(number, [])),
        )
        segments.append(Segment(**row, served=served))
    return Session(tuple(segments), ended_early)


def contradictions(session: Session) -> Iterator[str]:
    """Raw rows that cannot all be true: exposure against the merges that ran, merges against the decisions behind them.

    What an observation showed the scheduler leaves no other trace, so only the files' digests speak for it.
    """
    for number, segment in enumerate(session.segments):
        served, where = segment.served, f"segment {number}, {segment.arm}"
        m, begin_ns = served.requests, served.ran_ns[:, 0]
        again = exposure_ns(m.offered(), m.e2e_ns, Schedule(begin_ns, (served.ran_ns[:, 1] - begin_ns)[:, None]))
        for row in np.flatnonzero(again != m.exposure_ns):
            yield f"{where}, request {row}: exposure {m.exposure_ns[row]} ns, by the merges that ran {again[row]} ns"
        for decision in served.decisions:
            if decision.merge and decision.said is False:
                yield f"{where}: a merge at {decision.due_ns} ns, which the scheduler had declined"
        decided = [d.answered_ns for d in served.decisions if d.merge]
        if segment.arm == POLICY and len(decided) != len(served.planned_ns):
            yield f"{where}: {len(served.planned_ns)} merges, {len(decided)} decisions to merge"
        elif segment.arm == POLICY:
            for at_ns, planned_ns in zip(decided, served.planned_ns[:, 0].tolist(), strict=True):
                if not at_ns <= planned_ns <= at_ns + MERGE_WITHIN_NS:
                    yield f"{where}: a merge at {planned_ns} ns, decided at {at_ns} ns"
