"""vLLM `bench serve` result JSON, with the request lists of `--save-detailed` or without; also SGLang's bench JSONL,
which shares its shape.

Lists (seconds): ttfts, itls (a list a request), start_times (monotonic, taken when the client really sends),
input_lens, output_lens, errors ("" for a success); some builds add latencies and queue_times, the start less the
scheduled arrival.  `request_rate` may be the string "inf".  SGLang writes one object a run and a line, and no start
times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adapters.published import parsing
from adapters.published.requests import Row, measurements
from protocol.audit.imported import Imported, Support
from protocol.errors import BadInput

_BENCH = ("completed", "duration", "request_throughput")
_TEXTS = ("backend", "model_id", "request_rate")
_LISTS = ("start_times", "ttfts", "itls", "input_lens", "output_lens")
_PLAN = "the scheduled arrivals are not in the file, so send delay and offered load cannot be checked"
_BUDGET = "no merge log"
DETAILED = Support(
    "vLLM bench serve, detailed", "per-request", "monotonic seconds of the client", "s (summaries in ms)", "actual",
    {"G0": _BUDGET, "G1": "no merge log, so no request is known to be exposed", "G2": _PLAN, "G3": _BUDGET},
)  # fmt: skip
SCHEDULED = Support(
    "vLLM bench serve, detailed with queue times", "per-request", "monotonic seconds of the client",
    "s (summaries in ms)", "scheduled", {"G0": _BUDGET, "G1": DETAILED.undecidable["G1"], "G3": _BUDGET},
)  # fmt: skip
SUMMARY = Support(
    "vLLM bench serve, summary", "summary", "none", "ms", "none",
    {gate: "a summary has no requests (save with --save-detailed)" for gate in ("G0", "G1", "G2", "G3")},
)  # fmt: skip
SGLANG = Support(
    "SGLang bench_serving", "summary", "none (durations only)", "s in lists, ms in summaries", "none",
    {gate: "no start times, so requests cannot be put in time" for gate in ("G0", "G1", "G2", "G3")},
)  # fmt: skip


def is_vllm(document: parsing.Document) -> bool:
    rows = document.value if document.kind == "jsonl" else [document.value]
    return document.kind != "text" and bool(rows) and all(_is_run(row) and not _is_sglang_run(row) for row in rows)


def is_sglang(document: parsing.Document) -> bool:
    rows = document.value if document.kind == "jsonl" else [document.value]
    return document.kind != "text" and bool(rows) and all(_is_run(row) and _is_sglang_run(row) for row in rows)


def _is_run(row: object) -> bool:
    return isinstance(row, Mapping) and all(key in row for key in _BENCH[:2])


def _is_sglang_run(row: Mapping[str, Any]) -> bool:
    return "total_output_tokens_retokenized" in row or "sharegpt_output_len" in row


def load(document: parsing.Document) -> list[Imported]:
    """One entry a run of the file."""
    rows = document.value if document.kind == "jsonl" else [document.value]
    found = []
    for number, row in enumerate(rows, 1):
        where = document.where if len(rows) == 1 else f"{document.where}, line {number}"
        found.append(_run(document, where, parsing.mapping(where, row)))
    return found


def _run(document: parsing.Document, where: str, run: Mapping[str, Any]) -> Imported:
    facts = _facts(where, run)
    if _is_sglang_run(run) and "start_times" not in run:
        return Imported(document.path, SGLANG, facts=facts | _durations(where, run))
    if "start_times" not in run or "ttfts" not in run:
        return Imported(document.path, SUMMARY, facts=facts)
    columns = {name: _column(where, run, name) for name in _LISTS}
    n = len(columns["start_times"])
    optional = {name: _column(where, run, name) for name in ("errors", "latencies", "queue_times") if name in run}
    for name, values in (columns | optional).items():
        if len(values) != n:
            raise BadInput(f"{where}, {name}", f"{len(values)} values", f"{n}, as many as start_times")
    rows = [_row(where, i, columns, optional) for i in range(n)]
    log = measurements(where, rows)
    _agree(where, "completed", run.get("completed"), sum(not row.failed for row in rows))
    return Imported(document.path, SCHEDULED if "queue_times" in optional else DETAILED, log=log, facts=facts)


def _row(where: str, i: int, columns: Mapping[str, Any], optional: Mapping[str, Any]) -> Row:
    spot = f"{where}, request {i + 1}"
    start = parsing.nanoseconds(f"{spot}, start_times", columns["start_times"][i])
    queues = optional.get("queue_times")
    queued = 0 if queues is None else parsing.nanoseconds(f"{spot}, queue_times", queues[i], 0)
    itls = parsing.sequence(f"{spot}, itls", columns["itls"][i])
    gaps = [parsing.nanoseconds(f"{spot}, itls", gap, 0) for gap in itls]
    ttft = parsing.nanoseconds(f"{spot}, ttfts", columns["ttfts"][i], 0)
    tokens = parsing.whole(f"{spot}, output_lens", columns["output_lens"][i])
    error = optional["errors"][i] if "errors" in optional else ""
    if error is not None and not isinstance(error, str):
        raise BadInput(f"{spot}, errors", parsing.shown(error), "text, empty for a success")
    known = optional.get("latencies")
    served = parsing.nanoseconds(f"{spot}, latencies", known[i], 0) if known is not None else ttft + sum(gaps)
    # A request that failed early has neither error text in old builds nor any token.
    failed = bool(error) or served == 0 or (tokens == 0 and ttft == 0)
    return Row(
        arrival=start - queued,
        sent=start,
        # A non-streamed reply has no first-token time of its own: 0 means unknown.
        ttft=ttft + queued if ttft else -1,
        e2e=served + queued,
        max_itl=max(gaps) if gaps else (0 if tokens <= 1 else -1),
        prompt_tokens=parsing.whole(f"{spot}, input_lens", columns["input_lens"][i]),
        output_tokens=tokens,
        failed=failed,
    )


def _column(where: str, run: Mapping[str, Any], name: str) -> Any:
    return parsing.sequence(f"{where}, {name}", parsing.field(where, run, name))


def _agree(where: str, name: str, stated: object, counted: int) -> None:
    if stated is not None and parsing.whole(f"{where}, {name}", stated) != counted:
        raise BadInput(f"{where}, {name}", f"{stated}, but {counted} in the lists", "a summary that matches its lists")


def _facts(where: str, run: Mapping[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name in ("backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration",
                 "completed", "failed", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_e2e_latency_ms",
                 "p99_e2el_ms"):  # fmt: skip
        value = run.get(name)
        if value is not None and not (isinstance(value, str) and name in _TEXTS):
            value = parsing.maybe_number(f"{where}, {name}", value)
        if value is not None:
            facts[name] = value
    if isinstance(facts.get("request_rate"), float) and not math.isfinite(facts["request_rate"]):  # type: ignore[arg-type]
        facts["request_rate"] = "inf"
    return facts


def _durations(where: str, run: Mapping[str, Any]) -> dict[str, object]:
    """Requests counted in SGLang's lists, when they were saved (--output-details)."""
    if "ttfts" not in run:
        return {}
    ttfts, itls = _column(where, run, "ttfts"), _column(where, run, "itls")
    if len(ttfts) != len(itls):
        raise BadInput(f"{where}, itls", f"{len(itls)} values", f"{len(ttfts)}, as many as ttfts")
    total = [
        parsing.number(f"{where}, request {i + 1}, ttfts", t, 0)
        + sum(parsing.number(f"{where}, request {i + 1}, itls", g, 0) for g in parsing.sequence(where, itls[i]))
        for i, t in enumerate(ttfts)
    ]
    return {"requests_in_lists": len(total), "longest_s": max(total, default=0.0)}
