"""Logs that people have, each as load with its right values or as its one-line refusal."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import log_files as make
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapters.traces.readers import Reading, columns_of, read_trace, tokens_of
from adapters.traces.report import ABSENT, DECLARED, FAILED, IN_FILE
from protocol.errors import BadInput


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        read_trace(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# LiteLLM ---------------------------------------------------------------------------------------------------------


def test_litellm_as_the_api_gives_it(tmp_path: Path) -> None:
    rows = [
        make.litellm(0.0, 100, 20),
        make.litellm(2.5, 50, 0, status="failure"),  # its first token equals its end; it is no load
        make.litellm(1.25, 70, 8),
        make.litellm(3.0, 10, 0, call_type="aembedding"),
        make.litellm(3.5, 100, 20, cache_hit="True"),
        make.litellm(4.0, 5, 9, call_type="aresponses", cache_hit=""),
    ]
    trace, report = read_trace(make.save(tmp_path / "spend.json", *rows))
    assert report.format == "litellm" and report.tokens == IN_FILE
    assert trace.arrival_s.tolist() == [0.0, 1.25, 4.0]
    assert trace.prompt_tokens.tolist() == [100, 70, 5] and trace.output_tokens.tolist() == [20, 8, 9]
    assert report.dropped == {FAILED: 1, "no generation (aembedding)": 1, "answered from the gateway's cache": 1}
    assert report.rows_read == 6 and report.backward_steps == 0
    assert report.first == "2026-03-01 10:00:00 UTC"
    assert {"spend", "endTime", "metadata"} <= set(report.unread) and "status" not in report.unread


def test_litellm_as_a_page_of_its_console_gives_it(tmp_path: Path) -> None:
    rows = [make.litellm(0.0), make.litellm(1.25)]
    for indent in (None, 1):
        path = tmp_path / "page.json"
        path.write_text(json.dumps({"data": rows, "total": 2, "page": 1, "total_pages": 1}, indent=indent))
        assert read_trace(path)[0].arrival_s.tolist() == [0.0, 1.25]


def test_litellm_out_of_the_database(tmp_path: Path) -> None:
    """CSV of `COPY ... TO`: dates with a blank, no status column in old versions."""
    rows = [make.litellm(t, startTime=make.date(t, " ").removesuffix("Z")) for t in (0, 1, 5)]
    path = tmp_path / "spend.csv"
    with path.open("w", newline="") as file:
        names = [name for name in rows[0] if name not in ("status", "metadata")]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    trace, report = read_trace(path)
    assert report.format == "litellm" and trace.arrival_s.tolist() == [0, 1, 5]


def test_litellm_says_that_several_models_were_served(tmp_path: Path) -> None:
    rows = [make.litellm(t, model=m) for t, m in ((0, "a"), (1, "b"), (2, "a"))]
    notes = read_trace(make.save(tmp_path / "s.jsonl", *rows))[1].notes
    assert any("2 models (a 2, b 1)" in note for note in notes)


def test_litellm_refusals(tmp_path: Path) -> None:
    assert "row 2, startTime" in refused(
        make.save(tmp_path / "a.json", make.litellm(0), make.litellm(1, startTime="soon"))
    )
    assert "no usable request" in refused(
        make.save(tmp_path / "b.json", make.litellm(0, status="failure"), make.litellm(1, status="failure"))
    )
    assert "none: startTime holds dates" in refused(
        make.save(tmp_path / "c.json", make.litellm(0), make.litellm(1)), time_unit="s"
    )


# OTLP ------------------------------------------------------------------------------------------------------------


def test_otlp_document(tmp_path: Path) -> None:
    spans = [
        make.span(1, 0.0, 120, 30),
        make.span(2, 0.5, None, None, attributes={"gen_ai.operation.name": None}, name="GET /"),
        make.span(3, 0.75, 90, None, status={"code": 2}),
        make.span(4, 1.000000001, 80, 10),
        make.span(5, 2.0, 10, None, attributes={"gen_ai.operation.name": "embeddings"}),
        make.span(6, 3.0, 60, 5, attributes={"error.type": "timeout"}),
    ]
    trace, report = read_trace(make.save(tmp_path / "spans.json", make.otlp(*spans)))
    assert report.format == "otlp" and report.time_unit == "ns" and report.rows_read == 6
    assert trace.arrival_ns.tolist() == [0, 1_000_000_001]  # epoch nanoseconds keep every digit
    assert trace.prompt_tokens.tolist() == [120, 80] and trace.output_tokens.tolist() == [30, 10]
    assert report.dropped == {"no generation span": 2, FAILED: 2}


def test_otlp_counts_a_request_once(tmp_path: Path) -> None:
    """A client's span, a proxy's inside it, and the server's inside that: one request, due when the outermost began."""
    trace_id = "t" * 32
    client = make.span(1, 0.0, 100, 20, traceId=trace_id)
    proxy = make.span(2, 0.1, None, None, traceId=trace_id, parentSpanId=client["spanId"],
                      attributes={"gen_ai.operation.name": None})  # fmt: skip
    server = make.span(3, 0.2, None, None, traceId=trace_id, parentSpanId=proxy["spanId"], name="llm_request",
                       attributes={"gen_ai.operation.name": None, "gen_ai.usage.prompt_tokens": 100,
                                   "gen_ai.usage.completion_tokens": 20})  # fmt: skip
    other = make.span(4, 2.0, 7, 3)
    trace, report = read_trace(make.save(tmp_path / "s.json", make.otlp(server, proxy, client, other)))
    assert trace.arrival_s.tolist() == [0, 2] and trace.prompt_tokens.tolist() == [100, 7]
    assert report.dropped == {"inside another generation span": 1, "no generation span": 1}


def test_otlp_one_document_a_line_with_old_names(tmp_path: Path) -> None:
    """The collector's file exporter; vLLM's own spans have no operation and the older names of the counts."""
    old = {"gen_ai.operation.name": None, "gen_ai.usage.prompt_tokens": 64, "gen_ai.usage.completion_tokens": 32}
    lines = [make.otlp(make.span(i, i * 0.5, None, None, attributes=old)) for i in range(4)]
    trace, report = read_trace(make.save(tmp_path / "spans.jsonl", *lines))
    assert trace.arrival_s.tolist() == [0, 0.5, 1, 1.5] and set(trace.output_tokens) == {32}
    path = tmp_path / "cut.jsonl"
    path.write_text((tmp_path / "spans.jsonl").read_text() + '{"resourceSpans": [')
    assert "line 5: found no whole JSON object" in refused(path)
    assert read_trace(path, drop_bad_rows=True)[1].dropped == {"not a JSON object": 1}


def test_otlp_lines_may_be_longer_than_a_header(tmp_path: Path) -> None:
    """Spans carry whole prompts."""
    spans = [make.span(i, float(i), attributes={"gen_ai.prompt": "x" * 700_000}) for i in range(4)]
    path = make.save(tmp_path / "spans.jsonl", make.otlp(*spans[:2]), make.otlp(*spans[2:]))
    assert len(read_trace(path)[0]) == 4


def test_otlp_refusals(tmp_path: Path) -> None:
    none = make.span(1, 0.0, None, None, attributes={"gen_ai.operation.name": None})
    assert "1 spans and none of a call to a model" in refused(make.save(tmp_path / "a.json", make.otlp(none)))
    no_usage = make.save(tmp_path / "b.json", make.otlp(make.span(1, 0.0), make.span(2, 1.0, None, None)))
    assert "span 2, gen_ai.usage.input_tokens: found nothing" in refused(no_usage)
    assert "no span" in refused(make.save(tmp_path / "c.json", make.otlp()))
    broken = make.save(tmp_path / "d.json", make.otlp(make.span(1, 0.0, startTimeUnixNano="later")))
    assert "startTimeUnixNano" in refused(broken)
    loop = make.span(1, 0.0, parentSpanId=make.span(1, 0.0)["spanId"])
    assert len(read_trace(make.save(tmp_path / "e.json", make.otlp(loop, make.span(2, 1.0))))[0]) == 1


# Access logs -----------------------------------------------------------------------------------------------------

LOGS = {
    "envoy": ([make.envoy(0), make.envoy(0.125), make.envoy(1, method="GET", path="/health"), make.envoy(2, code=503),
               make.envoy(3, code=0), make.envoy(4, path="/v1/embeddings"), make.envoy(4.5)], [0, 0.125, 4.5]),
    "nginx": ([make.nginx(0), make.nginx(1), make.nginx(1, method="GET", path="/health"), make.nginx(2, code=503),
               make.nginx(3, code=499), make.nginx(4, path="/v1/embeddings"), make.nginx(5)], [0, 1, 5]),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_access_logs_have_arrivals_and_no_tokens(tmp_path: Path, name: str) -> None:
    lines, arrivals = LOGS[name]
    path = make.save(tmp_path / "access.log", *lines)
    trace, report = read_trace(path, absent_ok=True)
    assert report.format == name and report.tokens == ABSENT and trace.arrival_s.tolist() == arrivals
    assert report.rows_read == 7 and report.dropped == {
        "no POST, so no generation": 1, FAILED: 2, "an endpoint that generates nothing": 1
    }  # fmt: skip
    assert f"a log without token counts (format {name}); expected --tokens" in refused(path)
    trace, report = read_trace(path, tokens=(200, 128))
    assert set(trace.prompt_tokens) == {200} and set(trace.output_tokens) == {128} and report.tokens == DECLARED


def test_nginx_takes_off_how_long_a_request_took(tmp_path: Path) -> None:
    path = make.save(tmp_path / "a.log", make.nginx(10, tail=" rt=2.500"), make.nginx(11, tail=" rt=0.250"))
    trace, report = read_trace(path, tokens=(1, 1))
    assert trace.arrival_s.tolist() == [0, 3.25]  # 10 - 2.5 and 11 - 0.25
    assert any("was taken off" in note for note in report.notes)
    late = read_trace(make.save(tmp_path / "b.log", make.nginx(10), make.nginx(11)), tokens=(1, 1))[1]
    assert any("arrivals are late by that" in note for note in late.notes)


def test_access_log_refusals(tmp_path: Path) -> None:
    path = make.save(tmp_path / "a.log", make.envoy(0), "[2026-03-01T10:00:00.000Z] broken")
    assert "line 2: found '[2026-03-01T10:00:00.000Z] broken'" in refused(path, tokens=(1, 1))
    path = make.save(tmp_path / "b.log", make.nginx(0), make.nginx(1).replace("Mar", "Foo"))
    assert "line 2" in refused(path, tokens=(1, 1))
    assert "token counts in" in refused(make.save(tmp_path / "c.json", make.litellm(0), make.litellm(1)), tokens=(1, 2))


# Results of load generators --------------------------------------------------------------------------------------


def test_vllm_bench_as_load(tmp_path: Path) -> None:
    value = make.vllm_bench([0.5, 0.0, 2.0], errors=["", "", "refused"], output_lens=[3, 3, 0], ttfts=[0.1, 0.1, 0.0],
                            itls=[[0.01], [0.01], []], completed=2, failed=1)  # fmt: skip
    trace, report = read_trace(make.save(tmp_path / "r.json", value))
    assert report.format == "vllm-bench" and report.dropped == {FAILED: 1}
    assert trace.arrival_s.tolist() == [0, 0.5] and set(trace.prompt_tokens) == {30}
    assert any("when the client sent" in note for note in report.notes)


def test_guidellm_and_aiperf_as_load(tmp_path: Path) -> None:
    trace, report = read_trace(make.save(tmp_path / "g.json", make.guidellm([0, 0.5, 1.5, 2], failed=1)))
    assert report.format == "guidellm" and trace.arrival_s.tolist() == [0, 0.5, 1.5]  # targeted, not actual starts
    assert set(trace.output_tokens) == {6} and report.dropped == {FAILED: 1}
    rows = [make.aiperf(-5, "warmup"), make.aiperf(0), make.aiperf(1.25), make.aiperf(2, error={"code": 500})]
    trace, report = read_trace(make.save(tmp_path / "a.jsonl", *rows))
    assert report.format == "aiperf" and trace.arrival_s.tolist() == [0, 1.25] and report.dropped == {FAILED: 1}


def test_closed_loops_and_summaries_are_no_load(tmp_path: Path) -> None:
    closed = make.save(tmp_path / "a.json", make.vllm_bench([0, 1], max_concurrency=8, request_rate="inf"))
    assert "closed loop (max_concurrency 8" in refused(closed)
    assert "closed loop (strategy concurrent)" in refused(
        make.save(tmp_path / "b.json", make.guidellm([0, 1], "concurrent"))
    )
    summary = {k: v for k, v in make.vllm_bench([0]).items() if k not in ("start_times", "ttfts")}
    assert "without requests" in refused(make.save(tmp_path / "c.json", summary))
    two = make.guidellm([0, 1])
    two["benchmarks"] *= 2
    assert "2 runs" in refused(make.save(tmp_path / "d.json", two))


# Azure 2025 ------------------------------------------------------------------------------------------------------


def test_azure_multimodal_reports_its_images(tmp_path: Path) -> None:
    path = tmp_path / "mm.csv"
    path.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00.5,2,900,10\n"
        "2024-10-15 00:00:01,0,80,9\n2024-10-15 00:00:02,1,500,8\n"
    )
    trace, report = read_trace(path)
    assert report.format == "azure" and trace.prompt_tokens.tolist() == [900, 80, 500]
    assert "NumImages is ignored: 3 in 2 requests" in report.notes[0] and report.unread == ()


# Any table -------------------------------------------------------------------------------------------------------

MAP = columns_of("time=begun,prompt_tokens=in,output_tokens=out")


def test_columns_of_a_csv_with_a_time_format(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("id;begun;in;out;user\n1;31.12.2025 23:59:59,250;10;5;x\n2;01.01.2026 00:00:01,000;20;6;y\n")
    trace, report = read_trace(path, columns=MAP, time_format="%d.%m.%Y %H:%M:%S,%f")
    assert trace.arrival_s.tolist() == [0, 1.75] and trace.prompt_tokens.tolist() == [10, 20]
    assert report.unread == ("id", "user") and report.first == "2025-12-31 23:59:59.25 UTC"
    assert any("columns that were not read: id, user" in note for note in report.notes)
    assert "expected a pattern for such times: --time-format" in refused(path, columns=MAP)
    assert "line 2, begun: found '31.12.2025" in refused(path, columns=MAP, time_format="%Y/%m/%d %H:%M")


def test_columns_of_json_reach_inside(tmp_path: Path) -> None:
    rows = [{"ts": 1_772_359_200_000 + 250 * i, "usage": {"prompt": 5 + i, "completion": 2}} for i in range(3)]
    asked = columns_of("time=ts,prompt_tokens=usage.prompt,output_tokens=usage.completion")
    for name in ("a.json", "a.jsonl"):
        trace, report = read_trace(make.save(tmp_path / name, *rows), columns=asked, time_unit="ms")
        assert trace.arrival_s.tolist() == [0, 0.25, 0.5] and trace.prompt_tokens.tolist() == [5, 6, 7]
        assert report.unread == ()
        assert "numbers without a unit" in refused(tmp_path / name, columns=asked)


def test_columns_of_parquet_and_of_dates(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    begun = pa.array([1_772_359_200_000_000, 1_772_359_201_500_000], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"out": [1, 2], "begun": begun, "in": [3, 4]}), path)
    assert read_trace(path, columns=columns_of("output_tokens=out,prompt_tokens=in,time=begun"))[0].arrival_s[1] == 1.5
    assert "typed dates" in refused(path, columns=MAP, time_format="%Y")
    rows = [{"begun": make.date(t), "in": 1, "out": 1} for t in (0, 2)]
    assert read_trace(make.save(tmp_path / "b.jsonl", *rows), columns=MAP)[1].time_unit == "date"
    assert read_trace(
        make.save(tmp_path / "c.jsonl", *({"begun_ms": t, "in": 1, "out": 1} for t in (0, 1500))),
        columns=columns_of("time=begun_ms,prompt_tokens=in,output_tokens=out"),
    )[0].arrival_s.tolist() == [0, 1.5]  # fmt: skip


def test_columns_without_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("begun_s,who\n0,a\n1,b\n")
    only = columns_of("time=begun_s")
    assert "without token counts" in refused(path, columns=only)
    assert set(read_trace(path, columns=only, tokens=(9, 4))[0].prompt_tokens) == {9}
    path.write_text("begun_s,prompt_tokens\n0,5\n1,6\n")
    assert "no output_tokens" in refused(path, columns=only)
    path.write_text("begun_s,prompt_tokens,completion_tokens\n0,5,1\n1,6,2\n")
    assert read_trace(path, columns=only)[0].output_tokens.tolist() == [1, 2]  # generic names are found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("begun", "found 'begun'; expected ROLE=COLUMN"),
        ("time=", "ROLE=COLUMN"),
        ("when=a", "ROLE=COLUMN"),
        ("time=a,time=b", "time twice"),
        ("prompt_tokens=a", "time=COLUMN as well"),
    ],
)
def test_columns_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        columns_of(text)


@pytest.mark.parametrize("text", ["", "5", "5,", "5,6,7", "-1,2", "1.5,2", "x,y"])
def test_tokens_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--tokens"):
        tokens_of(text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": MAP, "format": "azure"}, "--format azure as well"),
        ({"time_format": "%Y"}, "--columns time=NAME as well"),
        ({"columns": MAP, "time_format": "%H:%M"}, "with the year"),
        ({"columns": MAP, "time_format": "%Y %Q"}, "--time-format"),
        ({"columns": MAP, "time_format": "%Y", "time_unit": "s"}, "--time-unit s as well"),
        ({"tokens": (0, 4)}, "--tokens"),
        ({"time_unit": "h"}, "--time-unit"),
    ],
)
def test_readings_that_contradict_themselves(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Reading(**given)


def test_a_reading_survives_being_written_down() -> None:
    for reading in (
        Reading(), Reading(format="azure", drop_bad_rows=True), Reading(tokens=(3, 4)),
        Reading(columns=MAP, time_format="%Y"), Reading(columns=MAP, time_unit="ms"),
    ):  # fmt: skip
        assert Reading.from_described(json.loads(json.dumps(reading.describe()))) == reading


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    assert "--columns, time: found 'begun', and" in refused(path, columns=MAP)


# Mooncake --------------------------------------------------------------------------------------------------------


def test_hash_blocks_of_another_size_are_another_producer(tmp_path: Path) -> None:
    def row(t: int, prompt: int, blocks: int) -> dict[str, Any]:
        return {"timestamp": t, "input_length": prompt, "output_length": 5, "hash_ids": list(range(blocks))}

    theirs = make.save(tmp_path / "m.jsonl", row(0, 1024, 2), row(3000, 1025, 3))
    assert read_trace(theirs)[1].time_unit == "ms"
    others = make.save(tmp_path / "o.jsonl", row(0, 1024, 64), row(3000, 1025, 65))  # 16 tokens a block
    assert "64 hash blocks for 1024 prompt tokens on line 1" in refused(others)
    assert read_trace(others, time_unit="s")[0].arrival_s.tolist() == [0, 3000]
