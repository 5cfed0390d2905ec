"""Per-request and stage files of GuideLLM, AIPerf, inference-perf and LLMServingSim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.published import parsing
from adapters.published.llm_d import achieved
from adapters.published.requests import Row, measurements
from protocol.audit.imported import Imported, Support
from protocol.errors import BadInput

_NO_MERGES = {
    "G0": "no merge log", "G1": "no merge log, so no request is known to be exposed", "G3": "no merge log",
}  # fmt: skip
_NO_PLAN = {"G2": "only actual starts are in the file, so send delay and offered load cannot be checked"}
_SUMMARY = {gate: "a summary has no requests" for gate in ("G0", "G1", "G2", "G3")}


# GuideLLM --------------------------------------------------------------------------------------------------------

GUIDELLM = Support(
    "GuideLLM", "per-request", "Unix epoch seconds", "s; token times in ms", "scheduled",
    _NO_MERGES,
)  # fmt: skip
GUIDELLM_ACTUAL = Support(
    "GuideLLM without targeted starts", "per-request", "Unix epoch seconds", "s; token times in ms",
    "actual", _NO_MERGES | _NO_PLAN,
)  # fmt: skip


def is_guidellm(document: parsing.Document) -> bool:
    value = document.value
    return document.kind == "json" and isinstance(value, Mapping) and isinstance(value.get("benchmarks"), list)


def load_guidellm(document: parsing.Document) -> list[Imported]:
    """One entry a benchmark (a rate) of the file.  Requests that were incomplete at its end count as failed."""
    found = []
    for number, value in enumerate(parsing.sequence(document.where, document.value["benchmarks"]), 1):
        where = f"{document.where}, benchmark {number}"
        groups = parsing.mapping(f"{where}, requests", parsing.field(where, parsing.mapping(where, value), "requests"))
        rows, planned = [], True
        for group in ("successful", "errored", "incomplete"):
            for i, one in enumerate(parsing.sequence(f"{where}, {group}", groups.get(group) or []), 1):
                row, scheduled = _guidellm_row(f"{where}, {group} request {i}", one, group != "successful")
                rows.append(row)
                planned &= scheduled
        facts: dict[str, object] = {"benchmark": number, "benchmarks": len(document.value["benchmarks"])}
        log = measurements(where, rows)
        found.append(Imported(document.path, GUIDELLM if planned else GUIDELLM_ACTUAL, log=log, facts=facts))
    if not found:
        raise BadInput(f"{document.where}, benchmarks", "an empty list", "at least one benchmark")
    return found


def _guidellm_row(spot: str, value: object, failed: bool) -> tuple[Row, bool]:
    """Versions differ in where they keep the times: `info.timings`, `scheduler_info`, or the request itself."""
    one = parsing.mapping(spot, value)
    times: dict[str, Any] = {}
    for holder in (one.get("info"), one.get("scheduler_info")):
        if isinstance(holder, Mapping):
            for inner in ("timings", "scheduler_timings", "request_timings"):
                if isinstance(holder.get(inner), Mapping):
                    times |= {k: v for k, v in holder[inner].items() if v is not None}
            if holder.get("targeted_start_time") is not None:
                times["targeted_start"] = holder["targeted_start_time"]
    start = next(
        (v for v in (times.get("request_start"), one.get("request_start_time"), one.get("start_time"),
                     times.get("resolve_start"), times.get("targeted_start")) if v is not None), None
    )  # fmt: skip
    if start is None:
        raise BadInput(spot, "no start time", "request_start_time, start_time or info.timings.request_start")
    sent = parsing.nanoseconds(f"{spot}, start", start)
    target = times.get("targeted_start")
    arrival = sent if target is None else parsing.nanoseconds(f"{spot}, targeted_start", target)
    waited = sent - arrival
    tokens = parsing.whole(f"{spot}, output_tokens", one.get("output_tokens") or 0)
    row = Row(
        arrival, sent,
        ttft=-1, e2e=-1, max_itl=0 if tokens <= 1 else -1,
        prompt_tokens=parsing.whole(f"{spot}, prompt_tokens", one.get("prompt_tokens") or 0),
        output_tokens=tokens, failed=failed,
    )  # fmt: skip
    if failed:
        return row, target is not None
    latency = parsing.nanoseconds(f"{spot}, request_latency", parsing.field(spot, one, "request_latency"), 0)
    first = one.get("time_to_first_token_ms")
    ttft = -1 if first is None else parsing.nanoseconds(f"{spot}, ttft", parsing.number(spot, first, 0) / 1e3) + waited
    changed = Row(arrival, sent, ttft, latency + waited, row.max_itl, row.prompt_tokens, tokens, False)
    return changed, target is not None


# AIPerf ----------------------------------------------------------------------------------------------------------

AIPERF = Support(
    "AIPerf profile_export.jsonl", "per-request", "Unix epoch nanoseconds, exact integers",
    "data: each metric names its own", "actual", _NO_MERGES | _NO_PLAN,
)  # fmt: skip
AIPERF_CREDIT = Support(
    "AIPerf profile_export.jsonl with credits", "per-request", AIPERF.clock, AIPERF.units, "scheduled", _NO_MERGES
)
#: AIPerf's time units, in nanoseconds.
_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "sec": 10**9}


def is_aiperf(document: parsing.Document) -> bool:
    return (
        document.kind == "jsonl"
        and bool(document.value)
        and all(
            isinstance(row, Mapping)
            and isinstance(row.get("metadata"), Mapping)
            and "request_start_ns" in row["metadata"]
            for row in document.value
        )
    )


def load_aiperf(document: parsing.Document) -> list[Imported]:
    """Warm-up rows are left out and counted.  With credits on every row their issue is the scheduled arrival."""
    kept = [
        (number, row) for number, row in enumerate(document.value, 1)
        if row["metadata"].get("benchmark_phase") in (None, "profiling")
    ]  # fmt: skip
    planned = bool(kept) and all(row["metadata"].get("credit_issued_ns") is not None for _, row in kept)
    rows = [_aiperf_row(f"{document.where}, row {number}", row, planned) for number, row in kept]
    left_out = len(document.value) - len(kept)
    log = measurements(document.where, rows)
    return [Imported(document.path, AIPERF_CREDIT if planned else AIPERF, log=log, facts={"warmup_rows": left_out})]


def _aiperf_row(spot: str, row: Mapping[str, Any], planned: bool) -> Row:
    metadata = row["metadata"]
    start = _epoch(f"{spot}, request_start_ns", metadata["request_start_ns"])
    end = _epoch(f"{spot}, request_end_ns", parsing.field(spot, metadata, "request_end_ns"))
    arrival = _epoch(f"{spot}, credit_issued_ns", metadata["credit_issued_ns"]) if planned else start
    metrics = parsing.mapping(f"{spot}, metrics", row.get("metrics") or {})
    failed = row.get("error") is not None or bool(metadata.get("was_cancelled"))
    latency = _duration(spot, metrics, "request_latency")
    ttft = _duration(spot, metrics, "time_to_first_token")
    tokens = _count(spot, metrics, "output_sequence_length")
    if not failed and end < start:
        raise BadInput(f"{spot}, request_end_ns", f"{end}, before the start", f"at least {start}")
    waited = start - arrival
    return Row(
        arrival=arrival, sent=start,
        ttft=-1 if ttft is None else ttft + waited,
        e2e=(end - start if latency is None else latency) + waited,
        max_itl=0 if tokens <= 1 else -1,
        prompt_tokens=_count(spot, metrics, "input_sequence_length"), output_tokens=tokens, failed=failed,
    )  # fmt: skip


def _epoch(spot: str, value: object) -> int:
    # A float has lost the last hundreds of nanoseconds already.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < parsing.MOST_NS:
        raise BadInput(spot, parsing.shown(value), "whole nanoseconds since 1970")
    return value


def _metric(spot: str, metrics: Mapping[str, Any], name: str) -> tuple[object, object] | None:
    if metrics.get(name) is None:
        return None
    metric = parsing.mapping(f"{spot}, {name}", metrics[name])
    return parsing.field(f"{spot}, {name}", metric, "value"), metric.get("unit")


def _duration(spot: str, metrics: Mapping[str, Any], name: str) -> int | None:
    found = _metric(spot, metrics, name)
    if found is None:
        return None
    value, unit = found
    if not isinstance(unit, str) or unit not in _UNITS_NS:
        raise BadInput(f"{spot}, {name}, unit", parsing.shown(unit), f"one of {', '.join(_UNITS_NS)}")
    ns = parsing.number(f"{spot}, {name}", value, 0) * _UNITS_NS[unit]
    if not ns < parsing.MOST_NS:
        raise BadInput(f"{spot}, {name}", parsing.shown(value), "a duration that fits 64-bit nanoseconds")
    return round(ns)


def _count(spot: str, metrics: Mapping[str, Any], name: str) -> int:
    found = _metric(spot, metrics, name)
    return 0 if found is None else parsing.whole(f"{spot}, {name}", found[0])


# inference-perf --------------------------------------------------------------------------------------------------

INFERENCE_PERF = Support(
    "inference-perf per-request", "per-request", "seconds of the client's own clock", "s", "actual",
    _NO_MERGES | _NO_PLAN,
)  # fmt: skip
INFERENCE_PERF_STAGE = Support("inference-perf stage summary", "summary", "none", "s", "none", _SUMMARY)


def is_inference_perf(document: parsing.Document) -> bool:
    value = document.value
    return (
        document.kind == "json"
        and isinstance(value, list)
        and bool(value)
        and all(isinstance(row, Mapping) and {"start_time", "end_time", "info"} <= set(row) for row in value)
    )


def load_inference_perf(document: parsing.Document) -> list[Imported]:
    rows = []
    for number, row in enumerate(document.value, 1):
        spot = f"{document.where}, request {number}"
        start = parsing.nanoseconds(f"{spot}, start_time", row["start_time"])
        end = parsing.nanoseconds(f"{spot}, end_time", row["end_time"])
        failed = row.get("error") is not None
        info = parsing.mapping(f"{spot}, info", row["info"] or {})
        # Newer files keep the reply's numbers one level down.
        nested = info.get("response_metrics")
        reply = nested if isinstance(nested, Mapping) else info
        stamps = parsing.sequence(f"{spot}, output_token_times", reply.get("output_token_times") or [])
        times = [parsing.nanoseconds(f"{spot}, output_token_times", t) for t in stamps]
        gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
        if times and (times[0] < start or min(gaps, default=0) < 0):
            raise BadInput(f"{spot}, output_token_times", "a backward step", "rising times after the start")
        tokens = parsing.whole(f"{spot}, output_tokens", reply.get("output_tokens") or len(times))
        rows.append(
            Row(
                arrival=start,
                sent=start,
                ttft=times[0] - start if times else -1,
                e2e=end - start,
                max_itl=max(gaps, default=0) if times or tokens <= 1 else -1,
                prompt_tokens=parsing.whole(f"{spot}, input_tokens", info.get("input_tokens") or 0),
                output_tokens=tokens,
                failed=failed,
            )  # fmt: skip
        )
    return [Imported(document.path, INFERENCE_PERF, log=measurements(document.where, rows))]


def is_inference_perf_stage(document: parsing.Document) -> bool:
    value = document.value
    return document.kind == "json" and isinstance(value, Mapping) and {"load_summary", "successes"} <= set(value)


def load_inference_perf_stage(document: parsing.Document) -> list[Imported]:
    """Counts, offered and achieved rate, send delay and latency quantiles; no requests."""
    where = document.where
    load = parsing.mapping(f"{where}, load_summary", document.value["load_summary"])
    served = parsing.mapping(f"{where}, successes", document.value["successes"])
    failures = parsing.mapping(f"{where}, failures", document.value.get("failures") or {})
    sent = parsing.whole(f"{where}, load_summary, count", parsing.field(where, load, "count"))
    good = parsing.whole(f"{where}, successes, count", parsing.field(where, served, "count"))
    bad = parsing.whole(f"{where}, failures, count", failures.get("count") or 0)
    if sent != good + bad:
        raise BadInput(f"{where}, count", f"{good} served and {bad} failed of {sent}", "counts that add up")
    delay = parsing.mapping(f"{where}, schedule_delay", load.get("schedule_delay") or {})
    latency = parsing.mapping(f"{where}, latency", served.get("latency") or {})
    e2e = parsing.mapping(f"{where}, request_latency", latency.get("request_latency") or {})
    numbers = {
        "send_delay_p99_s": delay.get("p99"), "e2e_median_s": e2e.get("median"), "e2e_p95_s": e2e.get("p95"),
    }  # fmt: skip
    facts: dict[str, object] = {"requests": sent, "served": good, "failed": bad}
    for name, value in numbers.items():
        if value is not None:
            facts[name] = parsing.number(f"{where}, {name}", value)
    facts |= achieved(where, load.get("requested_rate"), load.get("achieved_rate"))
    return [Imported(document.path, INFERENCE_PERF_STAGE, facts=facts)]


# LLMServingSim ---------------------------------------------------------------------------------------------------

LLMSERVINGSIM = Support(
    "LLMServingSim requests.jsonl", "per-request",
    "two clocks: arrivals in Unix seconds, the server's stamps in monotonic seconds", "s", "actual",
    _NO_MERGES | {"G2": "arrivals and server stamps share no clock, so waiting before the server is not known"},
)  # fmt: skip
_STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def is_llmservingsim(document: parsing.Document) -> bool:
    return (
        document.kind == "jsonl"
        and bool(document.value)
        and all(
            isinstance(row, Mapping) and {"request_id", "arrival_time", *_STAMPS} <= set(row) for row in document.value
        )
    )


def load_llmservingsim(document: parsing.Document) -> list[Imported]:
    """The clocks' offset is taken as the least queued minus arrival, so every latency is a lower bound.

    The true latencies are all longer by the one unknown wait of the request that was queued fastest.
    """
    read = []
    for number, row in enumerate(document.value, 1):
        spot = f"{document.where}, row {number}"
        stamps = [parsing.nanoseconds(f"{spot}, {name}", row[name]) for name in _STAMPS]
        if sorted(stamps) != stamps:
            raise BadInput(f"{spot}, last_token_ts", "stamps out of order", f"{' <= '.join(_STAMPS)}")
        read.append((spot, parsing.nanoseconds(f"{spot}, arrival_time", row["arrival_time"]), stamps, row))
    offset = min(stamps[0] - arrival for _, arrival, stamps, _ in read)
    rows = [
        Row(
            arrival=arrival,
            sent=arrival,
            ttft=stamps[2] - offset - arrival,
            e2e=stamps[3] - offset - arrival,
            max_itl=0 if row.get("output_toks") == 1 else -1,
            prompt_tokens=parsing.whole(f"{spot}, input_toks", parsing.field(spot, row, "input_toks")),
            output_tokens=parsing.whole(f"{spot}, output_toks", parsing.field(spot, row, "output_toks")),
            failed=False,
        )  # fmt: skip
        for spot, arrival, stamps, row in read
    ]
    waits = sorted(stamps[0] - offset - arrival for _, arrival, stamps, _ in read)
    facts: dict[str, object] = {"longest_wait_before_server_s": waits[-1] / 1e9}
    return [Imported(document.path, LLMSERVINGSIM, log=measurements(document.where, rows), facts=facts)]
