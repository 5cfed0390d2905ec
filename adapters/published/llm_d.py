"""Benchmark reports of llm-d, versions 0.1 and 0.2, YAML or JSON: what was asked for, what was served, quantiles.

A report has no requests, so no gate can be decided from it; what it says of the client is flagged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.published import parsing
from protocol.audit.imported import Imported, Support
from protocol.errors import BadInput

REPORT = Support(
    "llm-d benchmark report", "summary", "none", "data: each metric names its own", "none",
    {gate: "a report has no requests" for gate in ("G0", "G1", "G2", "G3")},
)  # fmt: skip
#: Names of metrics in a report, and in the facts here.
_LATENCIES = {
    "request_latency": "e2e", "time_to_first_token": "ttft", "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
}  # fmt: skip
_QUANTILES = ("mean", "p50", "p95", "p99")
#: Seconds in each unit of a latency.
_UNITS = {"s": 1.0, "s/token": 1.0, "ms": 1e-3, "ms/token": 1e-3}
_DURATION = re.compile(r"PT(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?")
#: A client that achieves less of the rate than this offered another load than was asked for.
LEAST_ACHIEVED = 0.98


def is_report(document: parsing.Document) -> bool:
    value = document.value
    return (
        document.kind == "json"
        and isinstance(value, Mapping)
        and str(value.get("version", "")).startswith("0.")
        and "scenario" in value
        and ("results" in value or "metrics" in value)
    )


def load(document: parsing.Document) -> list[Imported]:
    where, value = document.where, document.value
    newer = "results" in value
    holder = _at(where, value, "results", "request_performance", "aggregate") if newer else _at(where, value, "metrics")
    requests = _at(where, holder, "requests")
    if not requests:
        raise BadInput(f"{where}, requests", "no counts of requests", "requests.total and requests.failures")
    total = parsing.whole(f"{where}, requests.total", parsing.field(f"{where}, requests", requests, "total"))
    failed = parsing.whole(f"{where}, requests.failures", requests.get("failures") or 0)
    if failed > total:
        raise BadInput(f"{where}, requests.failures", f"{failed} of {total}", "no more failures than requests")
    facts: dict[str, object] = {"version": str(value["version"]), "requests": total, "served": total - failed}
    facts |= {"failed": failed} | _latencies(where, _at(where, holder, "latency"))
    load_of = _at(where, value, "scenario", "load", "standardized")
    offered = load_of.get("rate_qps")
    throughput = _at(where, holder, "throughput")
    rate = _at(where, throughput, "request_rate").get("mean") if newer else throughput.get("requests_per_sec")
    seconds = _seconds(where, value, newer)
    if seconds is not None:
        facts["duration_s"] = seconds
    facts |= achieved(where, offered, rate)
    return [Imported(document.path, REPORT, facts=facts)]


def _at(where: str, value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The table at a path; an empty one where it is not there."""
    for key in path:
        where = f"{where}, {key}"
        value = parsing.mapping(where, value.get(key) or {})
    return value


def _latencies(where: str, latency: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, short in _LATENCIES.items():
        one = _at(where, latency, name)
        if not one:
            continue
        unit = one.get("units")
        if unit not in _UNITS:
            raise BadInput(f"{where}, {name}, units", parsing.shown(unit), f"one of {', '.join(_UNITS)}")
        for quantile in _QUANTILES:
            if one.get(quantile) is not None:
                seconds = parsing.number(f"{where}, {name}, {quantile}", one[quantile], 0) * _UNITS[unit]
                found[f"{short}_{quantile}_s"] = seconds
    return found


def _seconds(where: str, value: Mapping[str, Any], newer: bool) -> float | None:
    duration = _at(where, value, "run" if newer else "metrics", "time").get("duration")
    if duration is None or isinstance(duration, int | float):
        return None if duration is None else parsing.number(f"{where}, duration", duration, 0)
    match = _DURATION.fullmatch(str(duration))
    if match is None or not any(match.groups()):
        raise BadInput(f"{where}, run.time.duration", parsing.shown(duration), "a duration like PT49.9S")
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + rest


def achieved(where: str, offered: object, rate: object) -> dict[str, object]:
    """Offered and achieved rate as facts, with a flag where the client fell short of it."""
    wanted, got = (parsing.maybe_number(f"{where}, request rate", one) for one in (offered, rate))
    facts: dict[str, object] = {}
    if got is not None:
        facts["achieved_rate"] = got
    if wanted is None or wanted == float("inf"):
        return facts
    facts["requested_rate"] = wanted
    if got is not None and wanted > 0:
        facts["achieved_over_offered"] = got / wanted
        if got < LEAST_ACHIEVED * wanted:
            facts["flag"] = f"only {100 * got / wanted:.1f} % of the offered rate was achieved: G2 would fail"
    return facts
