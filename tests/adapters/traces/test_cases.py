"""Small inputs that broke other tools, and real traces; both lie outside the project."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.traces.inspection import statistics
from adapters.traces.readers import read_trace
from adapters.traces.windows import cut
from protocol.errors import BadInput

REFUSED = {
    "azure_blank_first_row.csv": "line 2: found a blank row",
    "azure_negative_and_zero_tokens.csv": "line 2, ContextTokens: found '-5'",
    "azure_header_only.csv": "a header and no rows",
    "empty.csv": "an empty file",
    "azure_no_header.csv": "no header",
    "burstgpt_renamed_timestamp.csv": "'Timestamp' as well",
    "generic_epoch_and_relative_mixed.csv": "line 3: found 23 s",
    "generic_nan_and_inf.csv": "line 3, arrival_s: found 'nan'",
    "truncated.jsonl": "line 2",
    "closed_loop_session.json": "closed-loop",
}
READ = {
    "azure_seven_digit_fractions.csv": ([0, 0.001, 0.008, 0.010], 0.001),
    "azure_whole_seconds.csv": ([0, 7, 60], 1.0),
    "burstgpt_failures_and_equal_seconds.csv": ([0, 0, 12], 1.0),
    "mooncake_three_second_bins.jsonl": ([0, 0, 0, 0, 3, 3, 3, 3], 3.0),
    "same_keys_as_mooncake_but_seconds.jsonl": ([0, 61.1, 122.2, 183.3], 0.1),
    "generic_unsorted.csv": ([0, 3, 5], 1.0),
    "generic_utf8_bom_semicolons.csv": ([0, 1], 1.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_cases(shared_cases, name):
    with pytest.raises(BadInput) as caught:
        read_trace(shared_cases / name)
    message = str(caught.value)
    assert REFUSED[name] in message and name in message and "\n" not in message


@pytest.mark.parametrize("name", READ)
def test_cases_that_are_read(shared_cases, name):
    arrivals, resolution = READ[name]
    trace, report = read_trace(shared_cases / name)
    assert trace.arrival_s[: len(arrivals)].tolist() == arrivals
    assert report.resolution_s == resolution


def test_details_of_the_cases(shared_cases):
    report = read_trace(shared_cases / "burstgpt_failures_and_equal_seconds.csv")[1]
    assert (report.rows_kept, report.failures, report.ties) == (3, 2, 1)
    trace, report = read_trace(shared_cases / "mooncake_three_second_bins.jsonl")
    assert report.time_unit == "ms" and not report.resolves(1.0)
    figures = {s.name: s for s in statistics(trace, report)}
    assert figures["index of dispersion at 1 s"].value is None
    assert "3 s" in (figures["index of dispersion at 1 s"].flaw or "")
    assert read_trace(shared_cases / "generic_unsorted.csv")[1].backward_steps == 1
    trace, report = read_trace(shared_cases / "azure_blank_first_row.csv", drop_bad_rows=True)
    assert trace.arrival_s.tolist() == [0, 0.7] and report.dropped == {"blank row": 1}
    trace, report = read_trace(shared_cases / "azure_negative_and_zero_tokens.csv", drop_bad_rows=True)
    assert len(trace) == 1 and report.failures == 1


def test_azure_and_vidur_twins(shared_data):
    azure = read_trace(shared_data / "traces" / "azure2023_code_00-30min.csv")[0]
    vidur = read_trace(shared_data / "traces" / "vidur_splitwise_code_00-30min.csv")[0]
    assert len(azure) == 5740
    assert np.abs(azure.arrival_ns - vidur.arrival_ns).max() <= 1000
    assert (azure.prompt_tokens == vidur.prompt_tokens).all() and (azure.output_tokens == vidur.output_tokens).all()


@pytest.mark.parametrize(
    ("name", "kept", "resolution", "failures"),
    [
        ("azure2023_conv_00-30min.csv", 10108, 1e-6, 0),
        ("azure2023_code_00-30min.csv", 5740, 1e-6, 0),
        ("mooncake_conversation_00-27min.jsonl", 5084, 3.0, 0),
        ("burstgpt1_head30_crosschecked.csv", 29, 1.0, 1),
    ],
)
def test_real_traces(shared_data, name, kept, resolution, failures):
    trace, report = read_trace(shared_data / "traces" / name)
    assert (len(trace), report.resolution_s, report.failures) == (kept, resolution, failures)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("weka_claudecode_trace_0507.json", "closed-loop"),
        ("servegen_language_m-large_chunk-0-trace.csv", "table of rates"),
        ("result_llmservingsim_vllm_rtx4090_llama31-8b.jsonl", "columns"),
        ("result_inferenceperf_stage0_eagle.json", "columns"),
    ],
)
def test_files_that_are_no_traces(shared_data, name, said):
    with pytest.raises(BadInput, match=said):
        read_trace(shared_data / "traces" / name)


def test_load_of_the_real_traces(shared_data):
    def figures(name):
        return {s.name: s.value for s in statistics(*read_trace(shared_data / "traces" / name))}

    code, conv = figures("azure2023_code_00-30min.csv"), figures("azure2023_conv_00-30min.csv")
    r2 = "EWMA one-step R2, 8-s bins, out of sample"
    assert code["most requests in 8-s bins"] == 349
    assert 50 < code["empty 8-s bins"] < 60 and conv["empty 8-s bins"] == 0
    assert abs(code[r2]) < 0.05 and 0.25 < conv[r2] < 0.45


def test_windows_of_a_real_trace(shared_data):
    trace = read_trace(shared_data / "traces" / "azure2023_conv_00-30min.csv")[0]
    found = cut(trace, 20, 100.0, 20.0)
    assert len(found.windows) == found.fitting == 15
    assert sum(map(len, found.windows)) == int((trace.arrival_ns < 15 * 120 * 10**9).sum())
    assert len({w.digest for w in found.windows}) == 15
