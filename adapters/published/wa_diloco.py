"""The public artifact of WA-DiLoCo (Not Every Sync Is Safe): reading its files.

Stage 10 effect transfer, 11 steady replay, 12 and 13 bursty replay, 14 collectives; coordinator logs of training runs.
Files are told apart by content; a run's arm and seed come from its name (`.../ARM-sSEED/summary.json`, or the same
flattened to `stage11-REGIME-ARM-sSEED.json`).  What the replay did with a schedule is in `protocol.audit.windows`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.published import parsing
from protocol.audit.imported import Support
from protocol.audit.windows import Replay
from protocol.errors import BadInput

_NO_LOG = "merge starts are not in the summaries (coordinator logs are)"
SUPPORT = Support(
    "WA-DiLoCo artifact",
    "per-run",
    "seconds since the replay process started, server start-up included",
    "ms, fractions",
    "actual",
    {
        "G0": _NO_LOG,
        "G2": "closed loop: no arrivals are scheduled, and counts follow the server's speed",
        "G4": "no inner steps, tokens or losses",
    },
)
_NAME = re.compile(r"(?P<arm>[a-z][a-z0-9_]*?)(?:_d(?P<draw>\d+))?-s(?P<seed>\d+)")
_PREFIX = re.compile(r"^(?:stage\d+-)?(?:(?:sync|pressure|bursty_sync)-)?")
#: Columns of the stage 11 table: field of a row, scale.
STAGE_11_COLUMNS = {
    "p95_ms": 1.0,
    "p99_ms": 1.0,
    "slo_violation_rate": 100.0,
    "high_low_p95_ratio": 1.0,
    "sync_ratio": 1.0,
    "tokens_per_sec": 1.0,
    "sync_events": 1.0,
}


@dataclass(frozen=True)
class RunSummary:
    """One replay's summary.json.  run_s, window_s, schedule_s in seconds; repeat None when an old file lacks it."""

    path: Path
    regime: str
    arm: str | None
    draw: int | None
    seed: int | None
    run_s: float
    window_s: float | None
    schedule_s: float | None
    merges: int | None
    repeat: bool
    log: str | None
    concurrency: int | None
    max_new_tokens: int | None
    offered: str
    bursts: tuple[float, float, float] | None
    period_s: float | None
    requests: int
    violation_pct: float | None
    output_tokens: float | None
    tokens_per_s: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    sync_ratio: float | None
    simulated_sync_ratio: float | None
    high_low: float | None
    simulated_high_low: float | None
    active: int | None
    violations: int | None
    active_p95_ms: float | None
    slo_ms: float | None


# Telling files apart ---------------------------------------------------------------------------------------------


def _rows_with(document: parsing.Document, *names: str) -> bool:
    value = document.value
    return (
        document.kind == "json"
        and isinstance(value, list)
        and bool(value)
        and all(isinstance(row, Mapping) and set(names) <= set(row) for row in value)
    )


def is_stage10(document: parsing.Document) -> bool:
    return _rows_with(document, "run", "real_sync_ratio", "real_high_low")


def is_stage11(document: parsing.Document) -> bool:
    return _rows_with(document, "regime", "policy", "seed", "slo_violation_rate", "sync_events")


def is_stage13(document: parsing.Document) -> bool:
    return _rows_with(document, "policy", "n", "sync_excess_slo_pct")


def is_stage14(document: parsing.Document) -> bool:
    return _rows_with(document, "run", "nodes", "size_mib", "algbw_gbps")


def is_run_summary(document: parsing.Document) -> bool:
    value = document.value
    return (
        document.kind == "json"
        and isinstance(value, Mapping)
        and isinstance(value.get("real"), Mapping)
        and "stress_mode" in value
        and "duration_sec" in value
    )


def is_coordinator_log(document: parsing.Document) -> bool:
    return (
        document.kind == "jsonl"
        and bool(document.value)
        and all(isinstance(row, Mapping) and isinstance(row.get("event"), str) for row in document.value)
        and any(row["event"].startswith("coordinator_") for row in document.value)
    )


def is_printed(document: parsing.Document) -> bool:
    return document.kind == "text" and document.path.suffix.lower() == ".md"


# Reading ---------------------------------------------------------------------------------------------------------


def run_summary(document: parsing.Document) -> RunSummary:
    where, value = document.where, document.value
    real = parsing.mapping(f"{where}, real", value["real"])
    simulated = parsing.mapping(f"{where}, simulator", value.get("simulator") or {})

    def of(row: Mapping[str, Any], name: str) -> float | None:
        return parsing.maybe_number(f"{where}, {name}", row.get(name))

    def count(row: Mapping[str, Any], name: str) -> int | None:
        return None if row.get(name) is None else parsing.whole(f"{where}, {name}", row[name])

    arm, draw, seed = named(document.path)
    rate = of(real, "slo_violation_rate")
    bursty = value.get("load_profile") == "bursty"
    return RunSummary(
        path=document.path,
        regime="bursty" if bursty else str(value["stress_mode"]),
        arm=arm,
        draw=draw,
        seed=seed,
        run_s=parsing.number(f"{where}, duration_sec", value["duration_sec"], 1e-3),
        window_s=of(value, "sync_window_sec"),
        schedule_s=of(value, "sync_trace_duration_sec"),
        merges=count(value, "sync_event_count"),
        repeat=bool(value.get("sync_events_repeat")),
        log=value.get("sync_events_jsonl") if isinstance(value.get("sync_events_jsonl"), str) else None,
        concurrency=count(value, "concurrency"),
        max_new_tokens=count(value, "max_new_tokens"),
        offered=_offered(where, value, bursty),
        bursts=_bursts(where, value) if bursty else None,
        period_s=of(value, "period_sec"),
        requests=parsing.whole(f"{where}, requests", parsing.field(where, real, "requests")),
        violation_pct=None if rate is None else 100 * rate,
        output_tokens=of(real, "output_tokens"),
        tokens_per_s=of(real, "tokens_per_sec"),
        p50_ms=of(real, "latency_p50_ms"),
        p95_ms=of(real, "latency_p95_ms"),
        p99_ms=of(real, "latency_p99_ms"),
        sync_ratio=of(real, "sync_inactive_p95_ratio"),
        simulated_sync_ratio=of(simulated, "sync_inactive_p95_ratio"),
        high_low=of(real, "high_low_p95_ratio"),
        simulated_high_low=of(simulated, "high_low_p95_ratio"),
        active=count(real, "sync_active_count"),
        violations=count(real, "slo_violation_count"),
        active_p95_ms=of(real, "sync_active_p95_ms"),
        slo_ms=of(real, "slo_ms"),
    )


def named(path: Path) -> tuple[str | None, int | None, int | None]:
    """Arm, draw and seed from a run's name; None where the name has none."""
    name = path.parent.name if path.stem == "summary" else path.stem
    found = _NAME.fullmatch(_PREFIX.sub("", name))
    if found is None:
        return None, None, None
    return found["arm"], None if found["draw"] is None else int(found["draw"]), int(found["seed"])


def _bursts(where: str, value: Mapping[str, Any]) -> tuple[float, float, float]:
    """Period, busy seconds and phase of the load."""
    period, busy_s, phase = (
        parsing.number(f"{where}, {name}", parsing.field(where, value, name), 0)
        for name in ("burst_period_sec", "burst_window_sec", "burst_phase_sec")
    )
    return max(period, 1.0), busy_s, phase


def _offered(where: str, value: Mapping[str, Any], bursty: bool) -> str:
    def told(name: str) -> str:
        return f"{parsing.number(f'{where}, {name}', parsing.field(where, value, name)):g}"

    if not bursty:
        return f"closed loop, {told('concurrency')} at a time, no seed"
    bursts = (
        f"{told('burst_window_sec')} s of every {told('burst_period_sec')} s from phase {told('burst_phase_sec')} s"
    )
    quiet = told("quiet_concurrency")
    return f"closed loop, {told('busy_concurrency')} at a time for {bursts}, else {quiet}, no seed"


def startup_s(summary: RunSummary) -> tuple[float, float]:
    """Least and greatest time from process start to the first request.

    The published token rate divides by the time from the first batch's start to the last's, which gives that time; the
    last batch started before the run's end, by no more than its own latency (taken as at most twice the p99).
    """
    if not summary.output_tokens or not summary.tokens_per_s or not summary.p99_ms:
        return 0.0, 0.0
    span = summary.output_tokens / summary.tokens_per_s
    latest = min(max(summary.run_s - span, 0.0), summary.run_s)
    return max(latest - 2 * summary.p99_ms / 1e3, 0.0), latest


def replay_of(summary: RunSummary, starts_s: tuple[float, ...] | None = None) -> Replay | None:
    """The replay that a summary describes; None where it lacks the schedule."""
    if summary.merges is None or summary.window_s is None or not summary.window_s > 0:
        return None
    if summary.schedule_s is None and starts_s is None and summary.merges > 0:
        return None
    return Replay(
        summary.merges,
        summary.schedule_s,
        summary.window_s,
        summary.run_s,
        summary.repeat,
        startup_s(summary),
        starts_s,
    )


def label_windows(summary: RunSummary) -> tuple[float, float] | None:
    """Windows that the requests' labels suggest, for a steady closed loop of whole batches.

    Batches follow each other without a pause, so those that began in a window fill it: their number times their
    latency over the window's length.  Nearly all of them missed the SLO, so their latency lies between it and the p95.
    """
    known = (summary.active, summary.concurrency, summary.slo_ms, summary.active_p95_ms, summary.window_s)
    if summary.regime == "bursty" or any(not value for value in known) or not summary.violations:
        return None
    active, batch, slo_ms, p95_ms, window_s = (float(value or 0) for value in known)
    if abs(summary.violations - active) > 0.1 * active or p95_ms < slo_ms:
        return None
    return active / batch * slo_ms / 1e3 / window_s, active / batch * p95_ms / 1e3 / window_s


@dataclass(frozen=True)
class MergeLog:
    """A coordinator log: merge starts and the span from start to last event, seconds."""

    path: Path
    starts_s: tuple[float, ...]
    span_s: float


def merge_log(document: parsing.Document) -> MergeLog:
    """Starts as the published replay took them: `elapsed_sec` where merges have it, else `ts_ms` since the start."""
    where, rows = document.where, document.value
    elapsed, stamps, merges, origin = [], [], [], None
    for number, row in enumerate(rows, 1):
        spot = f"{where}, line {number}"
        merged = row["event"] in ("merged", "sync")
        if row.get("elapsed_sec") is not None:
            elapsed.append((merged, parsing.number(f"{spot}, elapsed_sec", row["elapsed_sec"], 0)))
        if row.get("ts_ms") is not None:
            stamp = parsing.whole(f"{spot}, ts_ms", row["ts_ms"], 0, 2**62)
            stamps.append(stamp)
            merges += [stamp] if merged else []
            if row["event"] == "coordinator_start" and origin is None:
                origin = stamp
    starts = sorted(t for merged, t in elapsed if merged)
    if elapsed and (starts or not merges):
        return MergeLog(document.path, tuple(starts), max(t for _, t in elapsed))
    if not stamps:
        raise BadInput(where, "no elapsed_sec and no ts_ms", "a time for every event")
    origin = min(stamps) if origin is None else origin
    if min(merges, default=origin) < origin:
        raise BadInput(where, "a merge before coordinator_start", "merges after it")
    return MergeLog(document.path, tuple(sorted((t - origin) / 1e3 for t in merges)), (max(stamps) - origin) / 1e3)


def printed_tables(document: parsing.Document) -> tuple[dict[str, dict[str, str]], dict[str, tuple[str, list[float]]]]:
    """Cells of the printed Markdown tables by row name and column, and (p, differences) of each printed test."""
    rows: dict[str, dict[str, str]] = {}
    heading: list[str] = []
    tests: dict[str, tuple[str, list[float]]] = {}
    for line in document.value.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and not heading:
            heading = cells
        elif line.startswith("|") and len(cells) == len(heading) and not set(line) <= set("|-: "):
            key = " ".join(cells[: 2 if heading[0] == "regime" else 1])
            rows[key] = dict(zip(heading, cells, strict=True))
        found = re.search(r"- (\S+ vs \S+): .*p_less=([0-9.]+).*diffs=\[([^\]]*)\]", line)
        if found:
            try:
                tests[found[1]] = (found[2], [float(part) for part in found[3].split(",")])
            except ValueError:
                raise BadInput(document.where, parsing.shown(found[3]), "numbers between the brackets") from None
    return rows, tests
