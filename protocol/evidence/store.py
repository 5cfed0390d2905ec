"""The raw files of an output folder: evidence as Parquet, the same for every tier.

`assess` works on evidence only, so a certificate can be recomputed from the files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.evidence import trained, version_1
from protocol.evidence.model import Evidence, Probe, attached, attached_training
from protocol.files import from_json
from protocol.merging.placements import OF_MERGES, Placements
from protocol.merging.practice import Merges
from protocol.parquet import read_table, write_tables
from protocol.replay.measurements import Measurements
from protocol.replay.replay import LiveDecision, Replay, Scrape

_T = TypeVar("_T")

#: What was asked, beside what was measured.
ASKED = "asked.json"
SEEDS, DECISIONS, PLACEMENTS, REQUESTS = "seeds.parquet", "decisions.parquet", "placements.parquet", "requests.parquet"
#: Attempts on a real server, their rows, and what a live scheduler decided and was shown of the server's metrics.
REPLAYS, SERVED, ANSWERS, SCRAPES = "replays.parquet", "served.parquet", "answers.parquet", "scrapes.parquet"
_NULLABLE = ("corridor_violation", "replay_difference")

_SEED = {
    "regime": pa.string(), "seed": pa.int64(), "trace_digest": pa.string(), "n_requests": pa.int64(),
    "prompt_tokens": pa.int64(), "output_tokens": pa.int64(), "forced": pa.int64(), "corridor_violation": pa.string(),
    "replay_difference": pa.string(),
}  # fmt: skip
_REPLAY = {
    "regime": pa.string(), "seed": pa.int32(), "arm": pa.string(), "draw": pa.int32(), "position": pa.int32(),
    "attempt": pa.int32(), "started": pa.string(), "wall_s": pa.float64(), "may_end_early": pa.bool_(),
    "died": pa.string(),
}  # fmt: skip
#: What of an observation differs from one live decision to the next; the rest follows from the regime and the trace.
SEEN = (
    "time_s", "steps_since_merge", "merges_so_far", "loss", "loss_reduction", "tokens", "staleness_s",
    "network_pressure", "serving_pressure", "checkpoint_pressure", "in_flight", "queued", "completed",
    "recent_e2e_s", "recent_ttft_s", "telemetry_age_s",
)  # fmt: skip
_WHOLE = {"steps_since_merge", "merges_so_far", "tokens", "in_flight", "queued", "completed"}
_ANSWER = {
    "due_ns": pa.int64(), "asked_ns": pa.int64(), "answered_ns": pa.int64(), "merge": pa.bool_(), "said": pa.bool_(),
}  # fmt: skip
_SEEN = {name: pa.int64() if name in _WHOLE else pa.float64() for name in SEEN}
_SCRAPE = {"at_ns": pa.int64(), "running": pa.int64(), "waiting": pa.int64(), "client": pa.int64()}
#: Of each merge, where they are not all alike: OF_MERGES.
_OF_MERGE = (pa.int64(), pa.int16(), pa.bool_())
_MAY_LACK = {"said", "running", "waiting", "died", *SEEN}


# Writing ---------------------------------------------------------------------------------------------------------


def write(evidence: Sequence[Evidence], folder: Path) -> list[str]:
    """Write the raw files into `folder`; returns their names.  Same evidence, same bytes; no file without rows."""
    peers = any(p.sizes is not None for e in evidence for p in e.placed.values())
    kinds = any(p.merges is not None for e in evidence for p in e.placed.values())
    tables = {SEEDS: _seeds_table(evidence)}
    parts: dict[str, list[pa.Table]] = {
        DECISIONS: [_labelled(e, decided_ns=e.decided_ns, merged=e.merged) for e in evidence if e.simulated],
        REQUESTS: [
            _labelled(e, len(r.rows), arm=arm, table=r.rows.to_table())
            for e in evidence
            for arm, r in e.simulated.items()
        ],
        PLACEMENTS: [_placement_table(e, arm, p, peers, kinds) for e in evidence for arm, p in e.placed.items()],
    }
    tables |= {name: pa.concat_tables(found) for name, found in parts.items() if found}
    names = write_tables(tables, folder)
    made = [r for e in evidence for r in e.served]
    runs = [t for e in evidence for t in e.trained.values()]
    more = [*(write_replays(made, folder) if made else []), *(trained.write(runs, folder) if runs else [])]
    return sorted(names + more)


def write_replays(replays: Sequence[Replay], folder: Path) -> list[str]:
    """The tables of real replays; row k of the first has the rows of the others with replay = k."""
    columns = {name: pa.array([getattr(r, name) for r in replays], kind) for name, kind in _REPLAY.items()}
    columns["requests"] = pa.array([len(r.rows) for r in replays], pa.int64())
    for name in ("planned_ns", "ran_ns"):
        columns[name] = pa.array([getattr(r, name).ravel().tolist() for r in replays], pa.list_(pa.int64()))
    columns["failures"] = pa.array([json.dumps(dict(sorted(r.failures.items()))) for r in replays], pa.string())
    tables = {REPLAYS: pa.table(columns), SERVED: pa.concat_tables([_numbered(k, r) for k, r in enumerate(replays)])}
    if any(r.decisions or r.scrapes for r in replays):
        answers, scrapes = [], []
        for k, r in enumerate(replays):
            for d in r.decisions:
                seen = {name: None if d.seen is None else getattr(d.seen, name) for name in SEEN}
                answers.append({"replay": k, **{name: getattr(d, name) for name in _ANSWER}, **seen})
            scrapes += [{"replay": k, **vars(s)} for s in r.scrapes]
        for name, rows, schema in ((ANSWERS, answers, {**_ANSWER, **_SEEN}), (SCRAPES, scrapes, _SCRAPE)):
            kinds = pa.schema([("replay", pa.int32()), *schema.items()])
            tables[name] = pa.Table.from_pylist(rows, schema=kinds)
    return write_tables(tables, folder)


def _numbered(k: int, r: Replay) -> pa.Table:
    table = r.rows.to_table()
    return table.add_column(0, "replay", pa.array(np.full(len(table), k, np.int32)))


def _seeds_table(evidence: Sequence[Evidence]) -> pa.Table:
    columns = {name: pa.array([getattr(e, name) for e in evidence], kind) for name, kind in _SEED.items()}
    columns["probes"] = pa.array([json.dumps([vars(p) for p in e.probes]) for e in evidence], pa.string())
    columns["tables"] = pa.array([_tables_of(e) for e in evidence], pa.list_(pa.string()))
    return pa.table(columns)


def _tables_of(e: Evidence) -> list[str]:
    """The other tables that hold something of a seed, so that one that is gone is not taken for an empty one."""
    held = {DECISIONS: e.simulated, REQUESTS: e.simulated, PLACEMENTS: e.placed, REPLAYS: e.served,
            trained.TRAINED: e.trained}  # fmt: skip
    return [name for name, rows in held.items() if rows]


def _labels(e: Evidence, n: int) -> dict[str, pa.Array]:
    regime = pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [e.regime])
    return {"regime": regime.cast(pa.string()), "seed": pa.array(np.full(n, e.seed, np.int32))}


def _labelled(
    e: Evidence,
    n: int | None = None,
    arm: str | None = None,
    table: pa.Table | None = None,
    **columns: NDArray[np.generic],
) -> pa.Table:
    size = n if n is not None else len(next(iter(columns.values())))
    data = _labels(e, size)
    if arm is not None:
        data["arm"] = pa.DictionaryArray.from_arrays(np.zeros(size, np.int32), [arm]).cast(pa.string())
    data |= {name: pa.array(values) for name, values in columns.items()}
    if table is not None:
        data |= {name: table[name].combine_chunks() for name in table.column_names}
    return pa.table(data)


def _placement_table(e: Evidence, arm: str, p: Placements, peers: bool, kinds: bool) -> pa.Table:
    """peers, kinds : some regime of the campaign names participants, or has merges that are not all alike, so every
    row has the columns for them.
    """
    offsets = np.concatenate([[0], np.cumsum(p.lengths)]).astype(np.int32)
    slos = p.violations.shape[1]
    costs = np.arange(0, len(p) * slos + 1, slos, dtype=np.int32) if slos else np.zeros(len(p) + 1, np.int32)
    data = _labels(e, len(p))
    data["arm"] = pa.array([arm] * len(p), pa.string())
    data["draw"] = pa.array(np.arange(len(p), dtype=np.int32))
    data["gaps"] = pa.ListArray.from_arrays(offsets, pa.array(p.gaps))
    data["violations"] = pa.ListArray.from_arrays(costs, pa.array(p.violations.ravel()))
    if peers:
        sizes, members = (np.empty(0, np.int32) if x is None else x for x in (p.sizes, p.members))
        edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        merges = pa.ListArray.from_arrays(edges, pa.array(members.astype(np.int16)))
        data["groups"] = pa.ListArray.from_arrays(offsets if p.sizes is not None else offsets * 0, merges)
    if kinds:
        ends = offsets if p.merges is not None else offsets * 0
        for name, kind in zip(OF_MERGES, _OF_MERGE, strict=True):
            data[name] = pa.ListArray.from_arrays(ends, pa.array(p.column(name), kind))
        following = np.zeros(len(p), np.int64) if p.merges is None else [m.next_ns for m in p.merges]
        data["next_ns"] = pa.array(following, pa.int64())
    return pa.table(data)


# Reading ---------------------------------------------------------------------------------------------------------


def read(folder: Path) -> list[Evidence]:
    """The evidence that `write` stored, less what live observations showed: no gate reads it.

    Also reads the files of version 1.  Raises BadInput naming a file or column that is missing or broken.
    """
    if (folder / version_1.SEGMENTS).exists():
        return version_1.read_session(folder)
    found = _readable(folder, lambda: _seeds(folder))
    if (folder / REPLAYS).exists():
        found = attached(found, read_replays(folder))
    if (folder / trained.TRAINED).exists():
        found = attached_training(found, trained.read(folder))
    return found


def read_replays(folder: Path) -> list[Replay]:
    """The replays that `write_replays` stored.  Raises BadInput naming what is missing or broken."""
    return _readable(folder, lambda: _replays(folder))


def _readable(folder: Path, read_: Callable[[], list[_T]]) -> list[_T]:
    try:
        return read_()
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        what = str(error).splitlines()[0] if str(error) else "no detail"
        raise BadInput(str(folder), f"broken raw files ({type(error).__name__}: {what})", "files as written") from None


def _table(folder: Path, name: str, nullable: Iterable[str] = ()) -> pa.Table | None:
    return read_table(folder / name, tuple(nullable)) if (folder / name).exists() else None


def _seeds(folder: Path) -> list[Evidence]:
    seeds = read_table(folder / SEEDS, _NULLABLE).to_pylist()
    for name in sorted({name for row in seeds for name in row.pop("tables", (DECISIONS, REQUESTS, PLACEMENTS))}):
        if not (folder / name).exists():
            raise BadInput(str(folder / name), "no such file", f"one, as {SEEDS} says")
    decisions = _by_seed(_table(folder, DECISIONS), arms=False)
    requests = _by_seed(_table(folder, REQUESTS))
    placements = _by_seed(_table(folder, PLACEMENTS))
    found = []
    for row in seeds:
        key = (row["regime"], row["seed"])
        probes = tuple(Probe(**p) for p in from_json(row.pop("probes")))
        asked = decisions.get(key, {}).get("")
        found.append(
            Evidence(
                **row,
                probes=probes,
                decided_ns=asked["decided_ns"].to_numpy() if asked is not None else np.empty(0, np.int64),
                merged=asked["merged"].to_numpy() if asked is not None else np.empty(0, bool),
                placed={arm: _placed(t) for arm, t in placements.get(key, {}).items()},
                simulated={
                    arm: Replay(Measurements.from_table(t), regime=key[0], seed=key[1], arm=arm)
                    for arm, t in requests.get(key, {}).items()
                },
            )
        )
    return found


def _placed(table: pa.Table) -> Placements:
    gaps, costs = table["gaps"].combine_chunks(), table["violations"].combine_chunks().flatten().to_numpy()
    slos = len(costs) // len(table)
    return Placements(
        gaps.value_lengths().to_numpy(), gaps.flatten().to_numpy(), costs.reshape(len(table), slos), *_groups(table),
        merges=_merges(table),
    )  # fmt: skip


def _merges(table: pa.Table) -> tuple[Merges, ...] | None:
    """What the merges of each schedule are; None for a regime in which all are alike."""
    if "next_ns" not in table.column_names:
        return None
    following = table["next_ns"].to_pylist()
    if not any(following):
        return None
    columns = [table[name].combine_chunks() for name in OF_MERGES]
    edges = np.cumsum(columns[0].value_lengths().to_numpy())[:-1]
    split = [np.split(c.flatten().to_numpy(zero_copy_only=False), edges) for c in columns]
    return tuple(
        Merges(took, fragment, committed, n) for took, fragment, committed, n in zip(*split, following, strict=True)
    )


def _groups(table: pa.Table) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Sizes and members of the merges; None for a regime in which all islands merge."""
    if "groups" not in table.column_names:
        return None, None
    merges = table["groups"].combine_chunks()
    if len(merges.flatten()) == 0 and len(table["gaps"].combine_chunks().flatten()):
        return None, None
    if (merges.value_lengths().to_numpy() != table["gaps"].combine_chunks().value_lengths().to_numpy()).any():
        raise BadInput("placements", "a schedule with more or fewer groups than merges", "one group a merge")
    groups = merges.flatten()
    return groups.value_lengths().to_numpy(), groups.flatten().to_numpy()


def _replays(folder: Path) -> list[Replay]:
    described, rows = read_table(folder / REPLAYS, ("died",)), read_table(folder / SERVED)
    sizes = described["requests"].to_numpy()
    index = np.repeat(np.arange(len(sizes)), sizes)
    if not np.array_equal(rows["replay"].to_numpy(), index):
        raise BadInput(SERVED, f"{len(rows)} rows", f"{len(index)}, as {REPLAYS} says, in its order")
    answers = _by_replay(_table(folder, ANSWERS, _MAY_LACK), _ANSWER)
    scrapes = _by_replay(_table(folder, SCRAPES, _MAY_LACK), _SCRAPE)
    ends = np.cumsum(sizes)
    found = []
    for k, (row, begin, end) in enumerate(zip(described.to_pylist(), ends - sizes, ends, strict=True)):
        plain: dict[str, Any] = {name: row[name] for name in _REPLAY if name in row}
        plain["arm"], plain["draw"] = version_1.ARMS.get(plain["arm"], (plain["arm"], plain["draw"]))
        found.append(
            Replay(
                rows=Measurements.from_table(rows.slice(begin, end - begin)),
                planned_ns=np.array(row["planned_ns"], np.int64),
                ran_ns=np.array(row["ran_ns"], np.int64),
                failures=from_json(row["failures"]),
                decisions=tuple(LiveDecision(**d) for d in answers.get(k, ())),
                scrapes=tuple(Scrape(**s) for s in scrapes.get(k, ())),
                **plain,
            )
        )
    return found


def _by_replay(table: pa.Table | None, columns: Mapping[str, pa.DataType]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in table.select(["replay", *columns]).to_pylist() if table is not None else ():
        found.setdefault(row.pop("replay"), []).append(row)
    return found


def _by_seed(table: pa.Table | None, arms: bool = True) -> dict[tuple[str, int], dict[str, pa.Table]]:
    """Consecutive runs of equal (regime, seed, arm); `write` stores each of them in one piece.  No arm is ""."""
    if table is None or not len(table):
        return {}
    keys = [table[name].to_numpy() for name in ("regime", "seed", *(("arm",) if arms else ()))]
    change = np.zeros(len(table), bool)
    change[0] = True
    for values in keys:
        change[1:] |= values[1:] != values[:-1]
    begin = np.flatnonzero(change)
    end = np.append(begin[1:], len(table))
    found: dict[tuple[str, int], dict[str, pa.Table]] = {}
    for b, e in zip(begin, end, strict=True):
        arm = keys[2][b] if arms else ""
        group = found.setdefault((keys[0][b], int(keys[1][b])), {})
        if arm in group:
            raise BadInput("raw files", f"{keys[0][b]} seed {keys[1][b]} arm {arm} in two places", "one piece")
        group[arm] = table.slice(b, e - b)
    return found
