"""Every importer: from a real file of the shared data where there is one, else from a minimal file that was built here
from the documented format.  Each test says which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.published.parsing import read_document
from adapters.published.registry import FORMATS, read, recognise
from protocol.audit.imported import Imported
from protocol.errors import BadInput
from protocol.replay.measurements import FAILED, SERVED
from protocol.workload.slo import Slo


def one(path: Path) -> Imported:
    (found,) = read([path]).files
    return found


def save(path: Path, *rows: Any) -> Path:
    """JSON for one value, one object a line for .jsonl."""
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


# vLLM bench serve ------------------------------------------------------------------------------------------------

#: Built from the documented format (vllm/benchmarks/serve.py, `--save-detailed`).
VLLM = {
    "date": "20260101-000000", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": 3,
    "request_rate": 10.0, "burstiness": 1.0, "max_concurrency": None, "duration": 1.0, "completed": 2, "failed": 1,
    "total_input_tokens": 30, "total_output_tokens": 5, "request_throughput": 2.0, "request_goodput": None,
    "input_lens": [10, 11, 12], "output_lens": [3, 2, 0], "ttfts": [0.05, 0.06, 0.0],
    "itls": [[0.01, 0.03], [0.02], []], "start_times": [100.2, 100.0, 100.1], "generated_texts": ["", "", ""],
    "errors": ["", "", "Connection refused"], "mean_ttft_ms": 55.0, "p99_ttft_ms": 60.0,
}  # fmt: skip


def test_vllm_detailed(tmp_path: Path) -> None:
    """Minimal file built from the documented format."""
    found = one(save(tmp_path / "a.json", VLLM))
    log = found.log
    assert log is not None and found.support.start == "actual" and "G2" in found.support.undecidable
    assert log.arrival_ns.tolist() == pytest.approx([0, 100_000_000, 200_000_000], abs=2)
    assert log.e2e_ns.tolist() == [80_000_000, -1, 90_000_000]
    assert log.outcome.tolist() == [SERVED, FAILED, SERVED]
    assert log.max_itl_ns.tolist() == [20_000_000, -1, 30_000_000]
    assert log.prompt_tokens.tolist() == [11, 12, 10]


def test_vllm_with_queue_times(shared_cases: Path) -> None:
    """A small input of the shared cases: scheduled arrival is start less queue time; one request failed."""
    found = one(shared_cases / "vllm_bench_detailed_with_failure.json")
    log = found.log
    assert log is not None and found.support.start == "scheduled"
    assert found.facts["request_rate"] == "inf"
    assert log.arrival_ns.tolist() == [0, 80_000_000, 200_000_000]
    assert log.sent_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert log.ttft_ns.tolist() == [50_000_000, 80_000_000, -1]
    assert log.e2e_ns.tolist() == [70_000_000, 100_000_000, -1]
    assert log.outcome.tolist() == [SERVED, SERVED, FAILED]
    assert log.violates(Slo.parse("e2e<=80ms")).tolist() == [False, True, True]


def test_vllm_summary_has_no_requests(tmp_path: Path) -> None:
    """Minimal file built from the documented format, without --save-detailed."""
    lists = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
    found = one(save(tmp_path / "a.json", {k: v for k, v in VLLM.items() if k not in lists}))
    assert found.log is None and found.support.rows == "summary"
    assert set(found.support.undecidable) >= {"G0", "G1", "G2", "G3"}
    assert found.facts["p99_ttft_ms"] == 60.0


def test_vllm_appended_results_are_one_run_a_line(tmp_path: Path) -> None:
    """Minimal file built from the documented format: --append-result writes one object a line into a .json."""
    assert len(read([save(tmp_path / "a.json", VLLM, VLLM)]).files) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ttfts": [0.05]}, "1 values"),
        ({"itls": [[0.01], 3, []]}, "request 2, itls"),
        ({"ttfts": [float("nan"), 0.06, 0.0]}, "request 1, ttfts"),
        ({"start_times": [1e300, 0.0, 0.0]}, "64-bit"),
        ({"output_lens": [3.5, 2, 0]}, "request 1, output_lens"),
        ({"completed": 3}, "2 in the lists"),
        ({"errors": [1, "", ""]}, "errors"),
    ],
)
def test_vllm_refusals_name_the_request(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        read([save(tmp_path / "a.json", VLLM | change)])


# SGLang ----------------------------------------------------------------------------------------------------------


def test_sglang(tmp_path: Path) -> None:
    """Minimal file built from the documented format (bench_serving --output-file --output-details)."""
    row = {
        "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": None,
        "sharegpt_output_len": None, "random_input_len": 16, "random_output_len": 8, "random_range_ratio": 0.0,
        "duration": 2.0, "completed": 2, "total_input_tokens": 32, "total_output_tokens": 4,
        "total_output_tokens_retokenized": 4, "request_throughput": 1.0, "mean_e2e_latency_ms": 80.0,
        "input_lens": [16, 16], "output_lens": [2, 2], "ttfts": [0.05, 0.06], "itls": [[0.02], [0.03]],
        "generated_texts": ["a", "b"], "errors": ["", ""],
    }  # fmt: skip
    files = read([save(tmp_path / "online.jsonl", row, row | {"request_rate": float("inf")})]).files
    assert [f.log for f in files] == [None, None]
    assert "no start times" in files[0].support.undecidable["G3"]
    assert files[0].facts["requests_in_lists"] == 2 and files[0].facts["longest_s"] == pytest.approx(0.09)
    assert files[1].facts["request_rate"] == "inf"


# GuideLLM --------------------------------------------------------------------------------------------------------


def _guide(start: float, target: float | None, **more: Any) -> dict[str, Any]:
    timings = {"targeted_start": target, "request_start": start, "request_end": start + 0.5}
    return {
        "request_id": "r", "info": {"status": "completed", "timings": timings}, "request_start_time": start,
        "request_latency": 0.5, "time_to_first_token_ms": 100.0, "prompt_tokens": 20, "output_tokens": 5,
    } | more  # fmt: skip


def test_guidellm(tmp_path: Path) -> None:
    """Minimal file built from the documented format (schemas of GenerativeRequestStats and RequestTimings)."""
    benchmark = {"requests": {
        "successful": [_guide(1000.25, 1000.0), _guide(1001.0, 1001.0)],
        "errored": [_guide(1000.5, 1000.5, request_latency=None)],
        "incomplete": [],
    }}  # fmt: skip
    found = one(save(tmp_path / "a.json", {"metadata": {"version": 1}, "benchmarks": [benchmark]}))
    log = found.log
    assert log is not None and found.support.start == "scheduled"
    assert log.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000]
    # From the targeted start: a quarter second of waiting in the client counts.
    assert log.e2e_ns.tolist() == [750_000_000, -1, 500_000_000]
    assert log.ttft_ns.tolist() == [350_000_000, -1, 100_000_000]
    assert log.outcome.tolist() == [SERVED, FAILED, SERVED]


def test_guidellm_older_layout_has_actual_starts(tmp_path: Path) -> None:
    """Minimal file built from the older documented format: start_time on the request, no target."""
    request = {"start_time": 5.0, "end_time": 5.5, "request_latency": 0.5, "time_to_first_token_ms": None,
               "prompt_tokens": 3, "output_tokens": 1}  # fmt: skip
    benchmark = {"requests": {"successful": [request], "errored": [], "incomplete": []}}
    found = one(save(tmp_path / "a.json", {"benchmarks": [benchmark]}))
    assert found.support.start == "actual" and "G2" in found.support.undecidable
    assert found.log is not None and found.log.ttft_ns.tolist() == [-1]


# AIPerf ----------------------------------------------------------------------------------------------------------


def test_aiperf_keeps_integer_nanoseconds_and_reads_units(shared_cases: Path) -> None:
    """A small input of the shared cases: epoch nanoseconds that a float cannot hold; latency in s, TTFT in ms."""
    log = one(shared_cases / "aiperf_profile_export.jsonl").log
    assert log is not None
    assert log.arrival_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert log.e2e_ns.tolist() == [70_000_000] * 3 and log.ttft_ns.tolist() == [50_000_000] * 3
    assert log.output_tokens.tolist() == [3, 3, 3]


def _aiperf(start: int, **more: Any) -> dict[str, Any]:
    metadata = {
        "session_num": 0,
        "request_start_ns": start,
        "request_end_ns": start + 70,
        "benchmark_phase": "profiling",
    }
    return {"metadata": metadata | more, "metrics": {"request_latency": {"value": 70, "unit": "ns"}}, "error": None}


def test_aiperf_last_nanosecond_credit_warmup_and_cancellation(tmp_path: Path) -> None:
    """Minimal file built from the documented format (MetricRecordInfo, MetricRecordMetadata)."""
    at = 1_790_000_000_000_000_001
    rows = [_aiperf(at, credit_issued_ns=at), _aiperf(at + 3, credit_issued_ns=at + 1, was_cancelled=True)]
    rows += [_aiperf(at - 10, benchmark_phase="warmup")]
    found = one(save(tmp_path / "a.jsonl", *rows))
    assert found.log is not None and found.support.start == "scheduled" and found.facts["warmup_rows"] == 1
    assert found.log.arrival_ns.tolist() == [0, 1] and found.log.sent_ns.tolist() == [0, 3]
    assert found.log.outcome.tolist() == [SERVED, FAILED]


@pytest.mark.parametrize("value", [1.79e18, "1790000000000000001", True, -1, 2**70])
def test_aiperf_refuses_stamps_that_are_not_whole(tmp_path: Path, value: object) -> None:
    with pytest.raises(BadInput, match="row 1, request_start_ns.*whole nanoseconds"):
        read(
            [
                save(
                    tmp_path / "a.jsonl",
                    _aiperf(5) | {"metadata": _aiperf(5)["metadata"] | {"request_start_ns": value}},
                )
            ]
        )


def test_aiperf_refuses_an_unknown_unit(tmp_path: Path) -> None:
    row = _aiperf(5) | {"metrics": {"request_latency": {"value": 1, "unit": "fortnights"}}}
    with pytest.raises(BadInput, match="unit.*fortnights"):
        read([save(tmp_path / "a.jsonl", row)])


# inference-perf --------------------------------------------------------------------------------------------------


def test_inference_perf_stage(shared_data: Path) -> None:
    """The real stage file of the shared data."""
    found = one(shared_data / "traces" / "result_inferenceperf_stage0_eagle.json")
    assert found.log is None and found.support.rows == "summary"
    assert found.facts["requests"] == found.facts["served"] == 60 and found.facts["failed"] == 0
    assert found.facts["e2e_p95_s"] == 0.8022060505230911
    assert found.facts["send_delay_p99_s"] == 0.0012999961187597356


def test_inference_perf_stage_counts_must_add_up(tmp_path: Path) -> None:
    """Minimal file built from the documented format."""
    stage = {"load_summary": {"count": 60}, "successes": {"count": 58, "latency": {}}, "failures": {"count": 1}}
    with pytest.raises(BadInput, match="58 served and 1 failed of 60"):
        read([save(tmp_path / "stage_0.json", stage)])


@pytest.mark.parametrize("nested", [False, True])
def test_inference_perf_requests(tmp_path: Path, nested: bool) -> None:
    """Minimal files built from the documented format, before and after the reply's numbers moved one level down."""
    reply = {"output_tokens": 3, "output_token_times": [10.1, 10.15, 10.25]}
    info = {"input_tokens": 7} | ({"response_metrics": reply} if nested else reply)
    rows = [
        {"start_time": 10.0, "end_time": 10.3, "request": "", "response": "", "info": info, "error": None},
        {"start_time": 10.5, "end_time": 10.6, "request": "", "response": None, "info": {"input_tokens": 7},
         "error": {"error_type": "Timeout", "error_msg": "late"}},
    ]  # fmt: skip
    found = one(save(tmp_path / "per_request_lifecycle_metrics.json", rows))
    log = found.log
    assert log is not None and found.support.start == "actual"
    assert log.ttft_ns.tolist() == pytest.approx([100_000_000, -1], abs=2)
    assert log.e2e_ns.tolist() == pytest.approx([300_000_000, -1], abs=2)
    assert log.max_itl_ns.tolist() == pytest.approx([100_000_000, -1], abs=2)
    assert log.outcome.tolist() == [SERVED, FAILED]


# LLMServingSim ---------------------------------------------------------------------------------------------------


def test_llmservingsim(shared_data: Path) -> None:
    """The real measured file of the shared data: 300 requests, two clocks."""
    path = shared_data / "traces" / "result_llmservingsim_vllm_rtx4090_llama31-8b.jsonl"
    found = one(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    log = found.log
    assert log is not None and len(log) == 300 and "share no clock" in found.support.undecidable["G2"]
    served = np.array([r["last_token_ts"] - r["queued_ts"] for r in rows])
    order = np.argsort([r["arrival_time"] for r in rows], kind="stable")
    # Waiting before the server is at least 0, and 0 for the request that was queued fastest.
    waited = log.e2e_ns / 1e9 - served[order]
    assert waited.min() == pytest.approx(0, abs=1e-6) and found.facts["longest_wait_before_server_s"] > 0
    assert log.output_tokens.sum() == sum(r["output_toks"] for r in rows)


def test_llmservingsim_refuses_stamps_out_of_order(tmp_path: Path) -> None:
    """Minimal file built from the format of the real one."""
    row = {"request_id": "a", "input_toks": 1, "output_toks": 2, "arrival_time": 1.0, "queued_ts": 5.0,
           "scheduled_ts": 5.1, "first_token_ts": 5.0, "last_token_ts": 6.0}  # fmt: skip
    with pytest.raises(BadInput, match="row 1.*out of order"):
        read([save(tmp_path / "a.jsonl", row)])


# Per-seed table --------------------------------------------------------------------------------------------------


def test_table(tmp_path: Path) -> None:
    """Minimal file built here: this is the project's own format."""
    path = tmp_path / "mine.csv"
    path.write_text(
        "arm,seed,violations,requests,merges\na,1,10,100,8\na,2,20,100,8\nrandom,1,30,100,8\nrandom,2,5,50,8\n"
    )
    (comparison,) = read([path]).comparisons
    assert [(r.arm, r.seed, r.violation_pct, r.merges) for r in comparison.runs] == [
        ("a", 1, 10.0, 8.0), ("a", 2, 20.0, 8.0), ("random", 1, 30.0, 8.0), ("random", 2, 10.0, 8.0),
    ]  # fmt: skip
    assert comparison.random_arm == "random" and [c.versus for c in comparison.claims] == ["random"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("arm,seed\na,1\n", "violation_pct"),
        ("arm,seed,violation_pct\na,1,2,3\n", "line 2"),
        ("arm,seed,violation_pct\na,,2\n", "line 2, seed"),
        ("arm,seed,violation_pct\na,1.5,2\n", "line 2, seed"),
        ("arm,seed,violation_pct\na,-1,2\n", "line 2, seed"),
        ("arm,seed,violation_pct\n", "no row"),
        ("arm,seed,violation_pct,warmup\na,1,2,maybe\n", "line 2, warmup"),
        ("arm,seed,violation_pct,warmup\na,1,2,true\n", "all of the warm-up"),
        ("arm,seed,violation_pct,offered_rate\na,1,2,0\n", "line 2, offered_rate"),
        ("arm,seed,violation_pct\na,1,101\n", "line 2, violation_pct"),
        ("arm,seed,violations,requests\na,1,1,0\n", "line 2, requests"),
        ("arm,seed,violation_pct\n,1,2\n", "line 2, arm"),
        ('arm,seed,violation_pct\n"a,1,2\n', "line 2|CSV"),
    ],
)
def test_table_refusals(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=told):
        read([path])


# All of them -----------------------------------------------------------------------------------------------------


def test_every_format_says_what_it_cannot_decide() -> None:
    for known in FORMATS:
        for support in known.supports:
            assert support.rows in ("per-request", "per-run", "summary")
            assert support.start in ("scheduled", "actual", "none")
            assert support.clock and support.units
            assert support.undecidable and set(support.undecidable) <= {"G0", "G1", "G2", "G3", "G4"}


def test_no_document_has_two_formats(shared_data: Path, shared_cases: Path) -> None:
    for path in [*(shared_data / "published").rglob("*.json"), *shared_data.glob("traces/result_*"),
                 shared_cases / "aiperf_profile_export.jsonl"]:  # fmt: skip
        assert sum(f.sniff(read_document(path)) for f in FORMATS) == 1, path.name


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "", "empty"),
        ("a.json", "{", "line 1.*not JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": ', "line 2.*not JSON"),
        ("a.json", "{}", "no known format"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "9" * 5000, "number"),
        ("missing/a.json", None, "no such file"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=told):
        read([path])


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(BadInput, match="byte 8"):
        read([path])


def test_a_folder_leaves_out_what_it_does_not_know(tmp_path: Path) -> None:
    save(tmp_path / "a.json", VLLM)
    save(tmp_path / "b.json", {"something": "else"})
    reading = read([tmp_path])
    assert [p.name for p in reading.skipped] == ["b.json"] and len(reading.files) == 1


_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
_JSON = st.recursive(
    _LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3), max_leaves=6
)
_VALID = [
    ("a.json", [VLLM]),
    ("a.json", [{"benchmarks": [{"requests": {"successful": [_guide(2.0, 1.0)], "errored": [], "incomplete": []}}]}]),
    ("a.jsonl", [_aiperf(5, credit_issued_ns=4)]),
    ("a.json", [[{"start_time": 1.0, "end_time": 2.0, "info": {"input_tokens": 1, "output_token_times": [1.5]},
                  "error": None}]]),
    ("a.json", [{"load_summary": {"count": 1},
                 "successes": {"count": 1, "latency": {"request_latency": {"p95": 1.0}}}}]),
    ("a.jsonl", [{"request_id": "a", "input_toks": 1, "output_toks": 2, "arrival_time": 1.0, "queued_ts": 5.0,
                  "scheduled_ts": 5.1, "first_token_ts": 5.2, "last_token_ts": 6.0}]),
]  # fmt: skip


def _spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return [path] + [spot for key, one in inner for spot in _spots(one, (*path, key))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_broken_field_is_one_line_or_a_result(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any value anywhere in a valid file: either it is read, or one line says what is wrong; never a traceback."""
    name, rows = data.draw(st.sampled_from(_VALID))
    rows = json.loads(json.dumps(rows))
    spot = data.draw(st.sampled_from([s for s in _spots(rows) if s]))
    holder: Any = rows
    for key in spot[:-1]:
        holder = holder[key]
    if isinstance(holder, dict) and data.draw(st.booleans()):
        del holder[spot[-1]]
    else:
        holder[spot[-1]] = data.draw(_JSON)
    path = save(tmp_path_factory.mktemp("fuzz") / name, *rows)
    try:
        read([path], Slo.parse("e2e<=1s"))
    except BadInput as error:
        assert "\n" not in str(error)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["a.json", "a.jsonl", "a.csv", "a.md"]), st.text(max_size=60))
def test_any_text_is_one_line_or_a_result(tmp_path_factory: pytest.TempPathFactory, name: str, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read([path])
    except BadInput as error:
        assert "\n" not in str(error)


def test_recognise_is_none_for_the_unknown(tmp_path: Path) -> None:
    assert recognise(read_document(save(tmp_path / "a.json", {"x": 1}))) is None
