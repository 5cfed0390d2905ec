"""Calibrations: what a real server showed under randomised merges, and the simulator's parameters fitted to it.

A calibration is a folder: `calibration.json` and, beside it, the raw rows of every run (Parquet).  `summary` computes
from two replays of one run, the real one and the simulated one, what gate G1 reads; `check` recomputes it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.files import canonical_json, sha256, write_text
from protocol.merging.schedule import Schedule
from protocol.parquet import write_tables
from protocol.replay.measurements import SERVED, Measurements
from protocol.replay.replay import MERGE_WITHIN_NS
from protocol.workload.trace import NS_PER_S, RequestTrace

SCHEMA, SCHEMA_VERSION = "protocol-calibration", 1
FILE, REQUESTS, MERGES = "calibration.json", "requests.parquet", "merges.parquet"
#: Where a certificate's raw files hold the calibrations that it rests on.
CARRIED = "calibrations"
_KINDS: Mapping[str, Any] = {
    "server": str, "date": str, "merge_s": (int, float), "merge_load": str, "plan": dict, "model": dict, "halves": list,
    "intervals": dict, "residual": (int, float), "runs": list, "sweep": list, "idle": list, "files": dict,
}  # fmt: skip
#: Kinds of run: rates without merges, merges on and off at random, and the same trace without merges, repeated.
SWEEP, ON_OFF, IDLE = "sweep", "on-off", "idle"


@dataclass(frozen=True, eq=False)
class Observed:
    """One run on a real server.

    label : unique.  kind : SWEEP, ON_OFF or IDLE.  load : name of the offered load.  rate_per_s : offered.
    measurements : rows as the client saw them.  merges : windows that really ran.
    """

    label: str
    kind: str
    load: str
    rate_per_s: float
    measurements: Measurements
    merges: Schedule

    @cached_property
    def trace(self) -> RequestTrace:
        """What was offered."""
        return self.measurements.offered(name=self.label)


def p95_ms(values_ns: NDArray[np.int64]) -> float | None:
    """95th percentile in milliseconds; None of nothing."""
    return round(float(np.quantile(values_ns, 0.95)) / 1e6, 4) if len(values_ns) else None


def summary(real: Observed, simulated: Measurements) -> dict[str, Any]:
    """What G1 reads of one on-off run: p95 of exposed and unexposed requests, real and simulated, per phase.

    A failed request has no latency and takes part in no percentile; `failed` counts them.
    """
    row: dict[str, Any] = {"run": real.label, "load": real.load, "rate_per_s": real.rate_per_s}
    for prefix, m in (("", real.measurements), ("simulated_", simulated)):
        served = m.outcome == SERVED
        for name, group in (("exposed", m.exposure_ns > 0), ("unexposed", m.exposure_ns == 0)):
            rows = served & group
            row[f"{prefix}{name}"] = int(rows.sum())
            for phase, column in (("", m.e2e_ns), ("ttft_", m.ttft_ns), ("max_itl_", m.max_itl_ns)):
                row[f"{prefix}{name}_{phase}p95_ms"] = p95_ms(column[rows])
        row[f"{prefix}failed"] = int((~served).sum())
    return row


def rates(run: Observed) -> dict[str, Any]:
    """What a calibration states of a run without merges: requests, served, achieved rate, latencies."""
    m = run.measurements
    served = m.outcome == SERVED
    last_s = float((m.arrival_ns + m.e2e_ns)[served].max()) / NS_PER_S if served.any() else None
    return {
        "run": run.label,
        "load": run.load,
        "rate_per_s": run.rate_per_s,
        "requests": len(m),
        "served": int(served.sum()),
        "answered_per_s": round(float(served.sum()) / last_s, 4) if last_s else None,
        "p50_ms": round(float(np.quantile(m.e2e_ns[served], 0.5)) / 1e6, 4) if served.any() else None,
        "p95_ms": p95_ms(m.e2e_ns[served]),
        "ttft_p95_ms": p95_ms(m.ttft_ns[served]),
    }


def write(folder: Path, calibration: Mapping[str, Any], runs: Sequence[Observed]) -> None:
    """The raw rows, then the file that names them by digest."""
    requests, merges = [], []
    for run in runs:
        labels = {"run": run.label, "kind": run.kind, "load": run.load}
        table = run.measurements.to_table()
        for name, text in reversed(labels.items()):
            table = table.add_column(0, name, pa.array([text] * len(table), pa.string()))
        table = table.add_column(3, "rate_per_s", pa.array(np.full(len(table), run.rate_per_s)))
        requests.append(table)
        begin, end = run.merges.windows_ns(0)
        merges.append(
            pa.table({"run": pa.array([run.label] * len(begin), pa.string()), "begin_ns": begin, "end_ns": end})
        )
    names = write_tables({REQUESTS: pa.concat_tables(requests), MERGES: pa.concat_tables(merges)}, folder)
    digests = {name: sha256(folder / name) for name in names}
    write_text(folder / FILE, canonical_json({**calibration, "files": digests}))


def read(path: Path) -> dict[str, Any]:
    """The calibration in a folder, or its file.  Raises BadInput when it is missing, broken or of another schema."""
    file = path / FILE if path.is_dir() else path
    try:
        found = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadInput(str(file), error.strerror or "an error", "a calibration") from None
    except ValueError as error:
        raise BadInput(str(file), f"broken JSON ({error})", "a calibration") from None
    kind = (found.get("schema"), found.get("schema_version")) if isinstance(found, dict) else None
    if kind != (SCHEMA, SCHEMA_VERSION):
        raise BadInput(str(file), f"schema {kind}", f"{SCHEMA} version {SCHEMA_VERSION}")
    for key, kind in _KINDS.items():
        if not isinstance(found.get(key), kind) or isinstance(found.get(key), bool):
            what = f"{found[key]!r:.60}" if key in found else "nothing"
            raise BadInput(f"{file}, {key}", what, f"{kind.__name__ if isinstance(kind, type) else 'a number'}")
    for key in ("runs", "sweep", "idle", "halves"):
        if not all(isinstance(row, dict) for row in found[key]):
            raise BadInput(f"{file}, {key}", "a row that is no table", "a list of tables")
    return dict(found)


def stated(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """What a certificate repeats of a calibration: whose it is, what G1 reads, and the digest of the rest."""
    keys = ("server", "date", "merge_load", "merge_s", "runs", "files")
    digest = hashlib.sha256(canonical_json(calibration).encode()).hexdigest()
    return {"name": calibration["model"]["name"], **{key: calibration[key] for key in keys}, "digest": digest}


def carry(folder: Path, raw: Path) -> list[str]:
    """Copy a calibration into the raw files of a certificate; the copies' names within `raw`."""
    name = carried_as(read(folder)["model"]["name"])
    (raw / name).mkdir(parents=True)
    for part in (FILE, REQUESTS, MERGES):
        shutil.copyfile(folder / part, raw / name / part)
    return [f"{name}/{part}" for part in (FILE, REQUESTS, MERGES)]


def carried_as(name: str) -> str:
    """Folder within the raw files; a calibration may be named anything, its folder may not."""
    return f"{CARRIED}/{''.join(c if c.isalnum() or c in '-_' else '-' for c in str(name))}"


def check_carried(stated_: Mapping[str, Any], raw: Path) -> Iterator[str]:
    """Differences between what a certificate states of a calibration and the copy in its raw files.

    Raises BadInput when there is no such copy.
    """
    name = carried_as(stated_["name"])
    yield from (f"{name}/{line}" for line in check(raw / name))
    again = stated(read(raw / name))
    for key in sorted({*stated_, *again}):
        if canonical_json(stated_.get(key)) != canonical_json(again.get(key)):
            yield f"{name}, {key}: the certificate states another"


def read_runs(folder: Path) -> list[Observed]:
    """The runs behind a calibration, in the order in which they were written.

    Raises BadInput naming the file when one is missing or has other columns.
    """
    try:
        requests, merges = pq.read_table(folder / REQUESTS), pq.read_table(folder / MERGES)
        kept = {
            name: merges.filter(pa.compute.equal(merges["run"], name)) for name in merges["run"].unique().to_pylist()
        }
        runs = []
        for label in requests["run"].unique().to_pylist():
            rows = requests.filter(pa.compute.equal(requests["run"], label))
            windows = kept.get(label, merges.slice(0, 0))
            begin, end = windows["begin_ns"].to_numpy(), windows["end_ns"].to_numpy()
            runs.append(
                Observed(
                    label, rows["kind"][0].as_py(), rows["load"][0].as_py(), rows["rate_per_s"][0].as_py(),
                    Measurements.from_table(rows), Schedule(begin, (end - begin)[:, None]),
                )
            )  # fmt: skip
        return runs
    except FileNotFoundError as error:
        raise BadInput(str(error.filename or folder), "no such file", "the rows of a calibration") from None
    except (OSError, KeyError, pa.ArrowException) as error:
        raise BadInput(str(folder), f"broken raw files ({str(error).splitlines()[0]})", "files as written") from None
    except BadInput as error:
        raise BadInput(f"{folder}, {error.where}", error.found, error.expected) from None


def refuse_mismatch(calibration: Mapping[str, Any], *, merge_s: float, server: str | None = None) -> None:
    """A calibration speaks only of its own merge length and engine version.  Raises BadInput on another."""
    where = f"calibration of {calibration['server']}"
    if abs(calibration["merge_s"] - merge_s) > 1e-9:
        raise BadInput(where, f"merges of {calibration['merge_s']:g} s", f"{merge_s:g} s, as the regime's")
    if server is not None and calibration["server"] != server:
        raise BadInput(where, calibration["server"], f"{server}, which is what answers now: calibrate again")


def check(folder: Path) -> Iterator[str]:
    """Differences between what a calibration states and what its raw rows say: digests, merges, real percentiles.

    Who measured, where and when cannot be recomputed; the digest of a certificate covers it.
    """
    stated = read(folder)
    if sorted(stated["files"]) != [MERGES, REQUESTS]:
        yield f"{FILE}, files: found {sorted(stated['files'])}; expected {MERGES} and {REQUESTS}"
    for name, digest in stated["files"].items():
        if not (folder / name).is_file():
            yield f"{name}: missing"
        elif sha256(folder / name) != digest:
            yield f"{name}: its SHA-256 is not the one in {FILE}"
    runs = read_runs(folder)
    whose = {"server": stated["server"], "date": stated["date"]}
    if stated["model"].get("provenance") != whose:
        yield f"model, provenance: stated {stated['model'].get('provenance')}, the calibration is of {whose}"
    if stated["merge_s"] != stated["plan"].get("merge_s"):
        yield f"merge_s: stated {stated['merge_s']}, the plan says {stated['plan'].get('merge_s')}"
    for run in runs:
        begin, end = run.merges.windows_ns(0)
        if np.any(np.abs(end - begin - stated["merge_s"] * NS_PER_S) > 2 * MERGE_WITHIN_NS):
            yield f"{run.label}: its merges did not last {stated['merge_s']:g} s"
    for table, kind in (("runs", ON_OFF), ("sweep", SWEEP), ("idle", IDLE)):
        mine = {run.label: run for run in runs if run.kind == kind}
        if [row.get("run") for row in stated[table]] != list(mine):
            yield f"{table}: stated {[row.get('run') for row in stated[table]]}, the rows are of {list(mine)}"
            continue
        for row in stated[table]:
            run = mine[row["run"]]
            again = rates(run) if kind != ON_OFF else summary(run, run.measurements)
            for key, value in again.items():
                if not key.startswith("simulated_") and row.get(key) != value:
                    yield f"{row['run']}, {key}: stated {row.get(key)}, its rows say {value}"
