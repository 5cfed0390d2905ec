"""Prometheus pages: the two gauges of every engine, and pages that do not have them."""

from __future__ import annotations

import pytest

from adapters.sidecars.metrics import Gauges, read_gauges

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} \\"c\\" 9"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a {b} \\"c\\" 9"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 12.0
"""


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (VLLM, Gauges(3, 2)),
        (VLLM.replace("\n", " 1700000000000\n"), Gauges(3, 2)),
        (VLLM + VLLM.replace('engine="0"', 'engine="1"'), Gauges(6, 4)),
        ('sglang:num_running_reqs{m="x"} 1\nsglang:num_queue_reqs{m="x"} 0\n', Gauges(1, 0)),
        ("llamacpp:requests_processing 2\nllamacpp:requests_deferred 1e1\n", Gauges(2, 10)),
        (VLLM.replace("3.0", "NaN"), None),
        (VLLM.replace("3.0", "+Inf"), None),
        (VLLM.replace("3.0", "-1"), None),
        (VLLM.replace("3.0", "three"), None),
        ("vllm:num_requests_running 3\n", None),
        ("process_cpu_seconds_total 5\n", None),
        ("<html>no metrics</html>", None),
        ("", None),
    ],
)
def test_gauges(page: str, found: Gauges | None) -> None:
    assert read_gauges(page) == found
