"""Small files as gateways, proxies and load generators write them, made by hand from the documented formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: 2026-03-01 10:00:00 UTC in seconds since 1970.
START = 1_772_359_200


def date(offset_s: float, letter: str = "T") -> str:
    """ISO time `offset_s` after START, milliseconds, in UTC."""
    ms = round(offset_s * 1000)
    minutes, ms = divmod(ms, 60_000)
    return f"2026-03-01{letter}{10 + minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}.{ms % 1000:03d}Z"


def litellm(at_s: float, prompt: int = 100, output: int = 20, **changes: Any) -> dict[str, Any]:
    """One row of LiteLLM_SpendLogs, as `/spend/logs` gives it."""
    row = {
        "request_id": f"chatcmpl-{at_s}", "call_type": "acompletion", "api_key": "k", "spend": 0.001,
        "total_tokens": prompt + output, "prompt_tokens": prompt, "completion_tokens": output,
        "startTime": date(at_s), "endTime": date(at_s + 1.5), "completionStartTime": date(at_s + 0.2),
        "model": "llama", "cache_hit": "False", "status": "success", "metadata": {},
    }  # fmt: skip
    return row | changes


def span(number: int, at_s: float, prompt: int | None = 100, output: int | None = 20, **changes: Any) -> dict[str, Any]:
    """One OTLP span of a chat call; `attributes` are added to its own."""
    start = START * 10**9 + round(at_s * 10**9)
    attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "llama"}
    if prompt is not None:
        attributes["gen_ai.usage.input_tokens"] = prompt
    if output is not None:
        attributes["gen_ai.usage.output_tokens"] = output
    attributes |= changes.pop("attributes", {})
    values = [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in attributes.items()
        if value is not None
    ]
    found = {
        "traceId": f"{number:032x}", "spanId": f"{number:016x}", "name": "chat llama", "kind": 3,
        "startTimeUnixNano": str(start), "endTimeUnixNano": str(start + 10**9), "attributes": values, "status": {},
    }  # fmt: skip
    return found | changes


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    """An OTLP document with all spans in one scope."""
    scope = {"scope": {"name": "opentelemetry.instrumentation.openai_v2"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def envoy(at_s: float, code: int = 200, method: str = "POST", path: str = "/v1/chat/completions") -> str:
    return (
        f'[{date(at_s)}] "{method} {path} HTTP/1.1" {code} - 120 900 1500 1498 "-" "curl/8" "id" "host" "10.0.0.1:80"'
    )


def nginx(second: int, code: int = 200, method: str = "POST", path: str = "/v1/completions", tail: str = "") -> str:
    stamp = f"01/Mar/2026:{10 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d} +0000"
    return f'10.0.0.7 - - [{stamp}] "{method} {path} HTTP/1.1" {code} 900 "-" "curl/8"{tail}'


def vllm_bench(arrivals_s: list[float], **changes: Any) -> dict[str, Any]:
    """A detailed result of `vllm bench serve`, 30 prompt and 3 output tokens a request."""
    n = len(arrivals_s)
    found = {
        "backend": "vllm", "model_id": "m", "num_prompts": n, "request_rate": 2.0, "max_concurrency": None,
        "duration": 10.0, "completed": n, "failed": 0, "request_throughput": 1.0,
        "start_times": [100.0 + t for t in arrivals_s], "ttfts": [0.1] * n, "itls": [[0.01, 0.02]] * n,
        "input_lens": [30] * n, "output_lens": [3] * n, "errors": [""] * n,
    }  # fmt: skip
    return found | changes


def guidellm(arrivals_s: list[float], strategy: str = "poisson", failed: int = 0) -> dict[str, Any]:
    """A GuideLLM benchmarks.json of one rate; the last `failed` requests failed."""
    rows = [
        {
            "request_id": str(i), "info": {"timings": {"targeted_start": START + t, "request_start": START + t + 0.01}},
            "request_latency": 0.5, "time_to_first_token_ms": 100.0, "prompt_tokens": 40, "output_tokens": 6,
        }
        for i, t in enumerate(arrivals_s)
    ]  # fmt: skip
    good = len(rows) - failed
    requests = {"successful": rows[:good], "errored": rows[good:], "incomplete": []}
    return {"metadata": {"version": 2}, "benchmarks": [
        {"config": {"strategy": {"type_": strategy, "rate": 2.0}}, "requests": requests}
    ]}  # fmt: skip


def aiperf(at_s: float, phase: str = "profiling", error: object = None) -> dict[str, Any]:
    """One line of AIPerf's profile_export.jsonl: sent 1 ms after its credit."""
    due = START * 10**9 + round(at_s * 10**9)
    return {
        "metadata": {"request_start_ns": due + 10**6, "request_end_ns": due + 10**8, "credit_issued_ns": due,
                     "benchmark_phase": phase, "was_cancelled": False},
        "metrics": {"request_latency": {"value": 99.0, "unit": "ms"}, "time_to_first_token": {"value": 9, "unit": "ms"},
                    "input_sequence_length": {"value": 50, "unit": "tokens"},
                    "output_sequence_length": {"value": 7, "unit": "tokens"}},
        "error": error,
    }  # fmt: skip


def save(path: Path, *rows: Any) -> Path:
    """Texts as lines; objects one a line in .jsonl, else as JSON (a list when there are several)."""
    if all(isinstance(row, str) for row in rows):
        path.write_text("\n".join(rows) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows[0] if len(rows) == 1 else list(rows)))
    return path
