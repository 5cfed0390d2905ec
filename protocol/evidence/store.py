"""Raw results of a campaign: everything that the gates read, and nothing that they compute.

`assess` works on these objects only, so a certificate can be recomputed from the files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.evidence import trained
from protocol.evidence.trained import Trained
from protocol.parquet import read_table, write_tables
from protocol.replay import replay as replays
from protocol.replay.measurements import Measurements
from protocol.replay.replay import Replayed
from protocol.workload.trace import whole

#: Arms whose requests are kept row by row.
POLICY, NO_SYNC = "policy", "no-sync"
#: Arms kept as placements and violation counts: controls of the envelope, sensitivity controls, the optimum.
UNIFORM, PERMUTED, SHIFTED, OPTIMUM, CROSSED = (
    "uniform",
    "own-gaps-permuted",
    "own-schedule-shifted",
    "optimum",
    "crossed",
)
#: Controls of peer schedules: the policy's own partners at other times, and other partners at its own times.
TIMING, PARTNERS = "own-partners-retimed", "own-times-repartnered"
#: The raw files of an output folder: what was asked, and what was measured.
ASKED = "asked.json"
TABLES = ("decisions.parquet", "placements.parquet", "requests.parquet", "seeds.parquet")
_NULLABLE = ("corridor_violation", "replay_difference")


@dataclass(frozen=True, eq=False)
class Placements:
    """Schedules of one arm on one trace, as gaps in decisions, with what each cost.

    lengths : int32, shape (n,), merges of each schedule.  gaps : int32, shape (sum of lengths,).
    violations : int64, shape (n, n_slos), requests that missed each SLO.
    sizes : int32, shape (sum of lengths,), participants of each merge; members : int32, shape (sum of sizes,), who
        they are.  None where all islands merge.  Gaps of peer schedules lie between the starts of successive merges.
    """

    lengths: NDArray[np.int32]
    gaps: NDArray[np.int32]
    violations: NDArray[np.int64]
    sizes: NDArray[np.int32] | None = None
    members: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        for column in ("lengths", "gaps"):
            object.__setattr__(self, column, whole("placements", column, getattr(self, column), "i4"))
        costs = np.asarray(self.violations)
        object.__setattr__(self, "violations", whole("placements", "violations", costs.ravel(), "i8"))
        object.__setattr__(self, "violations", self.violations.reshape(costs.shape))
        if self.lengths.sum() != len(self.gaps) or len(self.violations) != len(self.lengths):
            raise BadInput(
                "placements", f"{len(self.gaps)} gaps, {len(self.violations)} costs", "as many as the lengths say"
            )
        if self.sizes is not None and self.members is not None:
            for column in ("sizes", "members"):
                object.__setattr__(self, column, whole("placements", column, getattr(self, column), "i4"))
            if len(self.sizes) != len(self.gaps) or self.sizes.sum() != len(self.members):
                found = f"{len(self.sizes)} groups with {len(self.members)} members for {len(self.gaps)} merges"
                raise BadInput("placements", found, "one group a merge")

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, gaps: NDArray[np.int64], violations: NDArray[np.int64]) -> Placements:
        """From schedules of equal length: gaps of shape (n, K), violations of shape (n, n_slos)."""
        return cls(np.full(len(gaps), gaps.shape[1], np.int32), gaps.ravel().astype(np.int32), violations)

    def joined(self, more: Placements) -> Placements:
        """These schedules, then those."""
        parts = ("lengths", "gaps", "violations", *(("sizes", "members") if self.sizes is not None else ()))
        return Placements(*(np.concatenate([getattr(self, p), getattr(more, p)]) for p in parts))

    def rows(self) -> list[NDArray[np.int32]]:
        return np.split(self.gaps, np.cumsum(self.lengths)[:-1]) if len(self) else []


@dataclass(frozen=True)
class Probe:
    """One integrity re-run: where the world was changed (None: not at all) and what then differed (None: nothing)."""

    kind: str
    at_ns: int | None
    difference: str | None


@dataclass(frozen=True, eq=False)
class SeedEvidence:
    """One seed of one regime; `replays` are those on a real server, where there was one, `trained` (by arm) what
    models lost that were trained under the schedules, where any were."""

    regime: str
    seed: int
    trace_digest: str
    n_requests: int
    prompt_tokens: int
    output_tokens: int
    forced: int
    corridor_violation: str | None
    replay_difference: str | None
    probes: tuple[Probe, ...]
    decided_ns: NDArray[np.int64]
    merged: NDArray[np.bool_]
    requests: dict[str, Measurements]
    placed: dict[str, Placements] = field(default_factory=dict)
    replays: list[Replayed] = field(default_factory=list)
    trained: dict[str, Trained] = field(default_factory=dict)


def write(evidence: Sequence[SeedEvidence], folder: Path) -> list[str]:
    """Write the raw files into `folder`; returns their names.  Same evidence, same bytes."""
    peers = any(p.sizes is not None for e in evidence for p in e.placed.values())
    tables = {
        "seeds.parquet": _seeds_table(evidence),
        "decisions.parquet": pa.concat_tables(
            [_labelled(e, decided_ns=e.decided_ns, merged=e.merged) for e in evidence]
        ),
        "requests.parquet": pa.concat_tables(
            [_labelled(e, len(m), arm=arm, table=m.to_table()) for e in evidence for arm, m in e.requests.items()]
        ),
        "placements.parquet": pa.concat_tables(
            [_placement_table(e, arm, p, peers) for e in evidence for arm, p in e.placed.items()]
        ),
    }
    names = write_tables(tables, folder)
    made = [r for e in evidence for r in e.replays]
    runs = [t for e in evidence for t in e.trained.values()]
    more = [*(replays.write(made, folder) if made else []), *(trained.write(runs, folder) if runs else [])]
    return sorted(names + more)


def read(folder: Path) -> list[SeedEvidence]:
    """The evidence that `write` stored; an arm without rows is not there.

    Raises BadInput naming a file or column that is missing or broken.
    """
    tables = {name: read_table(folder / name, _NULLABLE) for name in TABLES}
    try:
        found = _rebuilt(tables)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        what = str(error).splitlines()[0] if str(error) else "no detail"
        raise BadInput(str(folder), f"broken raw files ({type(error).__name__}: {what})", "files as written") from None
    if (folder / replays.REPLAYS).exists():
        attach(found, replays.read(folder))
    if (folder / trained.TRAINED).exists():
        attach_trained(found, trained.read(folder))
    return found


def attach(evidence: Sequence[SeedEvidence], made: Sequence[Replayed]) -> None:
    """Give each seed its replays.  Raises BadInput on one of a seed that is not there."""
    seeds = {(e.regime, e.seed): e for e in evidence}
    for r in made:
        if (r.regime, r.seed) not in seeds:
            raise BadInput(replays.REPLAYS, f"{r.regime}, seed {r.seed}", "a seed of this campaign")
        seeds[r.regime, r.seed].replays.append(r)


def attach_trained(evidence: Sequence[SeedEvidence], runs: Sequence[Trained]) -> None:
    """Give each seed its training runs.  Raises BadInput on one of a seed that is not there, or on two of one arm."""
    seeds = {(e.regime, e.seed): e for e in evidence}
    for t in runs:
        e = seeds.get((t.regime, t.seed))
        if e is None or t.arm not in (POLICY, UNIFORM) or t.arm in e.trained:
            found = f"{t.regime}, seed {t.seed}, arm {t.arm}"
            raise BadInput(trained.TRAINED, found, f"{POLICY} and {UNIFORM} of a seed of this campaign, each once")
        e.trained[t.arm] = t


def _rebuilt(tables: Mapping[str, pa.Table]) -> list[SeedEvidence]:
    seeds = tables["seeds.parquet"].to_pylist()
    decisions = _by_seed(tables["decisions.parquet"], arms=False)
    requests = _by_seed(tables["requests.parquet"])
    placements = _by_seed(tables["placements.parquet"])
    found = []
    for row in seeds:
        key = (row["regime"], row["seed"])
        probes = tuple(Probe(**p) for p in json.loads(row.pop("probes")))
        asked = decisions.get(key, {}).get("")
        arms = {arm: Measurements.from_table(t) for arm, t in requests.get(key, {}).items()}
        placed = {
            arm: Placements(
                t["gaps"].combine_chunks().value_lengths().to_numpy(),
                t["gaps"].combine_chunks().flatten().to_numpy(),
                t["violations"].combine_chunks().flatten().to_numpy().reshape(len(t), -1),
                *_groups(t),
            )
            for arm, t in placements.get(key, {}).items()
        }
        found.append(
            SeedEvidence(
                **row,
                probes=probes,
                decided_ns=asked["decided_ns"].to_numpy() if asked is not None else np.empty(0, np.int64),
                merged=asked["merged"].to_numpy() if asked is not None else np.empty(0, bool),
                requests=arms,
                placed=placed,
            )
        )
    return found


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


def _labels(e: SeedEvidence, n: int) -> dict[str, pa.Array]:
    regime = pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [e.regime])
    return {"regime": regime.cast(pa.string()), "seed": pa.array(np.full(n, e.seed, np.int32))}


def _labelled(
    e: SeedEvidence,
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


def _placement_table(e: SeedEvidence, arm: str, p: Placements, peers: bool) -> pa.Table:
    """peers : some regime of the campaign names participants, so every row has the column for them."""
    offsets = np.concatenate([[0], np.cumsum(p.lengths)]).astype(np.int32)
    slos = p.violations.shape[1]
    costs = np.arange(0, len(p) * slos + 1, slos, dtype=np.int32)
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
    return pa.table(data)


def _seeds_table(evidence: Sequence[SeedEvidence]) -> pa.Table:
    plain = (
        "regime",
        "seed",
        "trace_digest",
        "n_requests",
        "prompt_tokens",
        "output_tokens",
        "forced",
        "corridor_violation",
        "replay_difference",
    )
    text = {"regime", "trace_digest", "corridor_violation", "replay_difference"}
    columns = {c: pa.array([getattr(e, c) for e in evidence], pa.string() if c in text else pa.int64()) for c in plain}
    columns["probes"] = pa.array([json.dumps([vars(p) for p in e.probes]) for e in evidence], pa.string())
    return pa.table(columns)


def _by_seed(table: pa.Table, arms: bool = True) -> dict[tuple[str, int], dict[str, pa.Table]]:
    """Consecutive runs of equal (regime, seed, arm); `write` stores each of them in one piece.  No arm is ""."""
    if not len(table):
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
