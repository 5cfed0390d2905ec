"""Requests running, waiting and answered on a server, from its Prometheus page.

Only samples of these gauges and counters are read (Prometheus text exposition format 0.0.4: one sample a line,
`name{labels} value [timestamp]`); the buckets of the page's histograms, most of it, are skipped unread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

#: Names of the gauges of running and waiting requests: vLLM, SGLang, llama.cpp, as their documentation has them.
GAUGES = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
#: Counters by what they count: vLLM's and SGLang's histograms have the same names.
_HISTOGRAMS = {
    "completed": "e2e_request_latency_seconds_count", "e2e_s": "e2e_request_latency_seconds_sum",
    "first": "time_to_first_token_seconds_count", "ttft_s": "time_to_first_token_seconds_sum",
    "prompt_tokens": "prompt_tokens_total",
}  # fmt: skip
TOTALS = {
    field: (f"vllm:{name}", f"sglang:{name}", *(("llamacpp:prompt_tokens_total",) if field == "prompt_tokens" else ()))
    for field, name in _HISTOGRAMS.items()
}
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")


@dataclass(frozen=True)
class Gauges:
    """Requests that the server is working on, and that wait to be admitted."""

    running: int
    waiting: int


@dataclass(frozen=True)
class Totals:
    """Since the server began: requests answered, their end-to-end seconds, requests with a first token and the seconds
    to it, prompt tokens.
    """

    completed: int = 0
    e2e_s: float = 0.0
    first: int = 0
    ttft_s: float = 0.0
    prompt_tokens: int = 0

    def answered(self, before: Totals) -> tuple[int, int]:
        """Requests, and prompt tokens, since an earlier look; of a server that began anew, since it did."""
        if self.completed < before.completed:
            return self.completed, self.prompt_tokens
        return self.completed - before.completed, max(self.prompt_tokens - before.prompt_tokens, 0)

    def means_s(self, before: Totals) -> tuple[float | None, float | None]:
        """Mean end-to-end latency and time to first token since an earlier look, seconds; None where nothing ended."""
        done, first = self.completed - before.completed, self.first - before.first
        e2e_s, ttft_s = self.e2e_s - before.e2e_s, self.ttft_s - before.ttft_s
        return (e2e_s / done if done > 0 else None), (ttft_s / first if first > 0 else None)


def read_gauges(page: str) -> Gauges | None:
    """The gauges of a page, summed over their labels (one a model and engine); None when a known pair is not there.

    >>> read_gauges('vllm:num_requests_running{engine="0"} 3.0\\nvllm:num_requests_waiting{engine="0"} 1.0\\n')
    Gauges(running=3, waiting=1)
    """
    found = _samples(page, {name for pair in GAUGES for name in pair})
    if found is None:
        return None
    for running, waiting in GAUGES:
        if running in found and waiting in found:
            return Gauges(round(found[running]), round(found[waiting]))
    return None


def read_totals(page: str) -> Totals:
    """The counters of a page, summed over their labels; 0 where there is none.

    >>> read_totals("vllm:e2e_request_latency_seconds_count 4\\nvllm:e2e_request_latency_seconds_sum 2.5\\n").e2e_s
    2.5
    """
    found = _samples(page, {name for names in TOTALS.values() for name in names}) or {}
    values = {field: sum(found.get(name, 0.0) for name in names) for field, names in TOTALS.items()}
    return Totals(
        round(values["completed"]), values["e2e_s"], round(values["first"]), values["ttft_s"],
        round(values["prompt_tokens"]),
    )  # fmt: skip


def _samples(page: str, wanted: Collection[str]) -> dict[str, float] | None:
    """Values of these names, summed over their labels; None where one of them is no count."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith(("vllm:", "sglang:", "llamacpp:")) or "_bucket{" in line:
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None or sample[1] not in wanted:
            continue
        try:
            value = float(sample[2])
        except ValueError:
            return None
        if not math.isfinite(value) or value < 0:
            return None
        found[sample[1]] = found.get(sample[1], 0.0) + value
    return found
