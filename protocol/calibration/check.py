"""What the rows of a calibration say, and whether it states that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.calibration.model import IDLE, ON_OFF, SCHEMA_VERSION, SWEEP, CalibrationRun, IdleRow, OnOffRow
from protocol.calibration.store import FILE, MERGES, REQUESTS, carried_as, read, read_runs
from protocol.errors import BadInput
from protocol.files import canonical_json, sha256
from protocol.replay.measurements import SERVED, Measurements
from protocol.replay.replay import MERGE_WITHIN_NS
from protocol.workload.trace import NS_PER_S


def summary(real: CalibrationRun, simulated: Measurements, version: int = SCHEMA_VERSION) -> dict[str, Any]:
    """What G1 reads of one on-off run, the fields of `OnOffRow` without `half`.

    version : the schema whose rule is asked for.
    """
    row: dict[str, Any] = {"run": real.label, "load": real.load, "rate_per_s": real.rate_per_s}
    for prefix, m in (("", real.measurements), ("simulated_", simulated)):
        failed = m.outcome != SERVED
        for name, group in ((f"{prefix}exposed", m.exposure_ns > 0), (f"{prefix}unexposed", m.exposure_ns == 0)):
            row[name] = int(np.count_nonzero(group & ~failed if version == 1 else group))
            if version > 1:
                row[f"{name}_failed"] = int(np.count_nonzero(group & failed))
            for phase, key in (("e2e", "p95_ms"), ("ttft", "ttft_p95_ms"), ("max_itl", "max_itl_p95_ms")):
                row[f"{name}_{key}"] = _p95(m, group, phase, version)
        if version == 1:
            row[f"{prefix}failed"] = int(np.count_nonzero(failed))
    return row


def rates(run: CalibrationRun, version: int = SCHEMA_VERSION) -> dict[str, Any]:
    """What a calibration states of a run without merges, the fields of `IdleRow`."""
    m = run.measurements
    served = m.outcome == SERVED
    last_s = float((m.arrival_ns + m.e2e_ns)[served].max()) / NS_PER_S if served.any() else None
    p50_ms = round(float(np.quantile(m.e2e_ns[served], 0.5)) / 1e6, 4) if served.any() else None
    every = np.ones(len(m), bool)
    return {
        "run": run.label,
        "load": run.load,
        "rate_per_s": run.rate_per_s,
        "requests": len(m),
        "served": int(served.sum()),
        "answered_per_s": round(float(served.sum()) / last_s, 4) if last_s else None,
        "p50_ms": p50_ms,
        "p95_ms": _p95(m, every, "e2e", version),
        "ttft_p95_ms": _p95(m, every, "ttft", version),
    }


def _p95(m: Measurements, group: NDArray[np.bool_], phase: str, version: int) -> float | None:
    """As it is stated; an infinite one as the time in which requests arrived, as G1 takes it of replays, too."""
    if version == 1:
        values = getattr(m, f"{phase}_ns")[group & (m.outcome == SERVED)]
        return round(float(np.quantile(values, 0.95)) / 1e6, 4) if len(values) else None
    found = m.p95_ms(group, phase)
    return None if np.isnan(found) else round(min(found, m.span_ms), 4)


def check(folder: Path) -> Iterator[str]:
    """Differences between what a calibration states and what its raw rows say: digests, merges, real percentiles.

    Who measured, where and when cannot be recomputed; the digest of a certificate covers it.
    Raises BadInput when the calibration is missing or broken.
    """
    stated = read(folder)
    if sorted(stated.files) != [MERGES, REQUESTS]:
        yield f"{FILE}, files: found {sorted(stated.files)}; expected {MERGES} and {REQUESTS}"
    for name, digest in stated.files.items():
        if not (folder / name).is_file():
            yield f"{name}: missing"
        elif sha256(folder / name) != digest:
            yield f"{name}: its SHA-256 is not the one in {FILE}"
    runs = read_runs(folder)
    origin, whose = stated.model.plain()["provenance"], {"server": stated.server, "date": stated.date}
    if origin != whose:
        yield f"model, provenance: stated {origin}, the calibration is of {whose}"
    if stated.merge_s != stated.plan.merge_s:
        yield f"merge_s: stated {stated.merge_s}, the plan says {stated.plan.merge_s}"
    for run in runs:
        begin, end = run.merges.windows_ns(0)
        if np.any(np.abs(end - begin - stated.merge_s * NS_PER_S) > 2 * MERGE_WITHIN_NS):
            yield f"{run.label}: its merges did not last {stated.merge_s:g} s"
    tables: tuple[tuple[str, str, tuple[IdleRow | OnOffRow, ...]], ...] = (
        ("runs", ON_OFF, stated.runs), ("sweep", SWEEP, stated.sweep), ("idle", IDLE, stated.idle),
    )  # fmt: skip
    for table, kind, rows in tables:
        mine = {run.label: run for run in runs if run.kind == kind}
        if [row.run for row in rows] != list(mine):
            yield f"{table}: stated {[row.run for row in rows]}, the rows are of {list(mine)}"
            continue
        for row in rows:
            yield from _differences(row, mine[row.run], stated.schema_version)


def _differences(row: IdleRow | OnOffRow, run: CalibrationRun, version: int) -> Iterator[str]:
    """What a row states of the real side, against the run's own rows."""
    again = rates(run, version) if isinstance(row, IdleRow) else summary(run, run.measurements, version)
    stated = row.plain()
    for key in sorted({*again, *stated} - {"half"}):
        if not key.startswith("simulated_") and stated.get(key) != again.get(key):
            yield f"{row.run}, {key}: stated {stated.get(key)}, its rows say {again.get(key)}"


def check_carried(stated: Mapping[str, Any], raw: Path) -> Iterator[str]:
    """Differences between what a certificate states of a calibration and the copy in its raw files.

    Raises BadInput when there is no such copy.
    """
    name = carried_as(stated["name"])
    yield from (f"{name}/{line}" for line in check(raw / name))
    again = read(raw / name).stated()
    for key in sorted({*stated, *again}):
        if canonical_json(stated.get(key)) != canonical_json(again.get(key)):
            yield f"{name}, {key}: the certificate states another"


def refuse_mismatch(stated: Mapping[str, Any], *, merge_s: float, server: str | None = None) -> None:
    """A calibration, here as a certificate states it, speaks only of its own merge length and engine version.

    Raises BadInput on another.
    """
    where = f"calibration of {stated['server']}"
    if abs(stated["merge_s"] - merge_s) > 1e-9:
        expected = f"{merge_s:g} s, as the regime's; calibrate with it, or change a parameter under [sidecar]"
        raise BadInput(where, f"merges of {stated['merge_s']:g} s", f"{expected}, which makes the model uncalibrated")
    if server is not None and stated["server"] != server:
        raise BadInput(where, stated["server"], f"{server}, which is what answers now: calibrate again")
