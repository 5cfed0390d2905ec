"""Requests running and waiting on a server, from its Prometheus page.

Only samples of these gauges are read (Prometheus text exposition format 0.0.4: one sample a line, `name{labels} value
[timestamp]`); the page's histograms, most of it, are skipped unread.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

#: Names of the gauges of running and waiting requests: vLLM, SGLang, llama.cpp, as their documentation has them.
GAUGES = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")


@dataclass(frozen=True)
class Gauges:
    """Requests that the server is working on, and that wait to be admitted."""

    running: int
    waiting: int


def read_gauges(page: str) -> Gauges | None:
    """The gauges of a page, summed over their labels (one a model and engine); None when a known pair is not there.

    >>> read_gauges('vllm:num_requests_running{engine="0"} 3.0\\nvllm:num_requests_waiting{engine="0"} 1.0\\n')
    Gauges(running=3, waiting=1)
    """
    wanted = {name for pair in GAUGES for name in pair}
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith(("vllm:num_", "sglang:num_", "llamacpp:requests_")):
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
    for running, waiting in GAUGES:
        if running in found and waiting in found:
            return Gauges(round(found[running]), round(found[waiting]))
    return None
