"""Readers of request traces: published formats, and what must be refused."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from decimal import Decimal
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapters.traces import readers as module
from adapters.traces.readers import GENERIC, TraceReader, read_trace, readers
from adapters.traces.report import FAILED, ReadingReport, resolution_ns
from protocol import registry
from protocol.errors import BadInput, ProtocolError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GENERIC_HEADER = "arrival_s,prompt_tokens,output_tokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MS = 10**6


@pytest.fixture
def write(tmp_path):
    def one(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return one


def mooncake(rows, **extra):
    return "".join(
        json.dumps(
            {"timestamp": t, "input_length": p, "output_length": o, "hash_ids": list(range(-(-p // 512))), **extra}
        )
        + "\n"
        for t, p, o in rows
    )


def refused(path, **options):
    with pytest.raises(BadInput) as caught:
        read_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


# --- formats --------------------------------------------------------------------------------------


def test_azure_seven_digit_fractions_crlf_and_no_final_newline(write):
    rows = ["00.0010000", "00.0020000", "00.0090000", "00.0110000"]
    body = "\r\n".join([AZURE.strip(), *(f"2023-11-16 18:00:{r},100,10" for r in rows)])
    trace, report = read_trace(write(body))
    assert trace.arrival_ns.tolist() == [0, 1 * MS, 8 * MS, 10 * MS]
    assert (report.format, report.time_unit, report.resolution_ns) == ("azure", "date", MS)


def test_azure_whole_seconds_mean_seconds(write):
    stamps = ["2024-05-10 00:00:00", "2024-05-10 00:00:07", "2024-05-10 00:01:00"]
    trace, report = read_trace(write(AZURE + "".join(f"{s},1,1\n" for s in stamps)))
    assert trace.arrival_s.tolist() == [0, 7, 60]
    assert report.resolution_s == 1.0


@pytest.mark.parametrize(
    ("first", "second", "gap_ns"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.017335+00:00", 7405 * 1000),
        ("2024-05-10 00:00:00+00:00", "2024-05-10 00:00:00.5+00:00", 500 * MS),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:00.123456789Z", 123456789),
        ("2024-05-10 02:00:00+02:00", "2024-05-10 00:00:01-00:00", 10**9),
        ("2024-05-10 02:00:00+0200", "2024-05-09 19:30:01-0430", 10**9),
        ("2023-12-31 23:59:59.9999999", "2024-01-01 00:00:00", 100),
        ("2024-02-28 23:59:59", "2024-02-29 00:00:00", 10**9),
    ],
)
def test_azure_forms_of_a_date(write, first, second, gap_ns):
    trace, _ = read_trace(write(AZURE + f"{first},1,1\n{second},1,1\n"))
    assert trace.arrival_ns.tolist() == [0, gap_ns]


@pytest.mark.parametrize(
    "stamp",
    ["2023-02-30 00:00:00", "2023-11-16 24:00:00", "2023-11-16 23:59:60", "2023-11-16", "2023-11-16 18:00",
     "16/11/2023 18:00:00", "2023-11-16 18:00:00 PM", "2023-11-16 18:00:00+25:00", "1960-01-01 00:00:00",
     "2263-01-01 00:00:00", "18:00:00", "٢٠٢٣-11-16 18:00:00"],
)  # fmt: skip
def test_azure_refuses_what_is_no_date(write, stamp):
    assert "line 3, TIMESTAMP" in refused(write(AZURE + f"2023-11-16 18:00:00,1,1\n{stamp},1,1\n"))


def test_dates_with_and_without_offset_do_not_mix(write):
    body = AZURE + "2023-11-16 18:00:00+00:00,1,1\n2023-11-16 18:00:00,1,1\n"
    assert "line 3" in refused(write(body))


def test_burstgpt_reports_failures_and_does_not_serve_them(write):
    rows = ["862919,ChatGPT,100,20,120,Conversation log", "862919,ChatGPT,101,21,122,Conversation log",
            "862919,ChatGPT,0,0,0,API log", "862925,GPT-4,500,0,500,API log",
            "862931,GPT-4,50,9,59,API log"]  # fmt: skip
    trace, report = read_trace(write(BURSTGPT + "\n".join(rows)))
    assert trace.arrival_s.tolist() == [0, 0, 12]
    assert (report.rows_read, report.rows_kept, report.failures, report.dropped) == (5, 3, 2, {FAILED: 2})
    assert (report.ties, report.resolution_s, report.first) == (1, 1.0, "862919 s")
    assert any("1 s" in note for note in report.notes)


def test_burstgpt_names_the_renamed_column(write):
    body = BURSTGPT.replace("Timestamp", "Time") + "5,ChatGPT,472,18,490,Conversation log\n"
    assert "'Timestamp'" in refused(write(body))


def test_mooncake_is_in_ms_with_three_second_bins(write):
    rows = [(3000 * i + (i % 3 == 1) * -1, 10, 5) for i in range(8) for _ in range(4)]  # rounded ends of bins
    rows[4:8] = [(3000, 10, 5)] * 4
    trace, report = read_trace(write(mooncake(rows), "trace.jsonl"))
    assert (report.format, report.time_unit, report.resolution_s) == ("mooncake", "ms", 3.0)
    assert trace.arrival_ns[-1] == 20999 * MS + MS * (7 % 3 != 1)
    assert report.ties == 24
    assert "below" in (report.flaw_at(1.0) or "") and not report.resolves(1.0)
    assert report.flaw_at(8.0) and report.resolves(8.0)
    assert report.flaw_at(60.0) is None and report.flaw_at(9.0) is None


@pytest.mark.parametrize("extra", [{"session_id": "a"}, {"type": "text", "turn": 1}])
def test_keys_of_mooncake_and_more_need_a_unit(write, extra):
    path = write(mooncake([(0, 1, 1), (61, 1, 1)], **extra), "trace.jsonl")
    assert "--time-unit" in refused(path)
    assert "--time-unit" in refused(path, format="mooncake")
    trace, report = read_trace(path, time_unit="s")
    assert trace.arrival_s.tolist() == [0, 61] and report.time_unit == "s"


def test_extra_keys_on_a_later_row_count_too(write):
    body = mooncake([(0, 1, 1)]) + mooncake([(61, 1, 1)], chat_id=4)
    assert "chat_id" in refused(write(body, "trace.jsonl"))


def test_fractions_of_a_millisecond_are_another_unit(write):
    body = mooncake([(0.5, 1, 1), (61.6, 1, 1)])
    assert "--time-unit" in refused(write(body, "trace.jsonl"))


def test_qwen_keys_mean_seconds(write):
    body = mooncake([(0.5, 1, 1), (61.6, 1, 1)], chat_id=0, parent_chat_id=-1, turn=1, type="text")
    trace, report = read_trace(write(body, "trace.jsonl"))
    assert trace.arrival_ns.tolist() == [0, 61_100 * MS]
    assert report.time_unit == "s" and any("Qwen" in note for note in report.notes)


def test_vidur_and_azure_twins_agree(write):
    azure = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0781490,110,27\n"
    vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.098189,110,27\n"
    a, b = read_trace(write(azure, "a.csv"))[0], read_trace(write(vidur, "b.csv"))[0]
    assert a.digest == b.digest


def test_vidur_lengths_without_arrivals(write):
    assert "'arrived_at'" in refused(write("num_prefill_tokens,num_decode_tokens\n1,1\n"))


# --- the generic reader ---------------------------------------------------------------------------


def test_epoch_times_keep_every_nanosecond(write):
    body = GENERIC_HEADER.replace("_s", "_ns") + "1790000000000000001,1,1\n1790000000070000003,1,1\n"
    assert read_trace(write(body))[0].arrival_ns.tolist() == [0, 70_000_002]
    body = GENERIC_HEADER + "1790000000.000000001,1,1\n1790000000.070000003,1,1\n"
    assert read_trace(write(body))[0].arrival_ns.tolist() == [0, 70_000_002]
    line = '{"arrival_s": 1790000000.%s, "prompt_tokens": 1, "output_tokens": 1}\n'
    path = write(line % "000000001" + line % "070000003", "t.jsonl")
    assert read_trace(path)[0].arrival_ns.tolist() == [0, 70_000_002]


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_units_by_name_and_by_option(write, unit, per_s):
    rows = f"0,1,1\n{3 * per_s},1,1\n"
    assert read_trace(write(f"arrival_{unit},prompt_tokens,output_tokens\n" + rows))[0].arrival_s[-1] == 3
    bare = write("timestamp,input_tokens,completion_tokens\n" + rows)
    assert read_trace(bare, time_unit=unit)[0].arrival_s[-1] == 3
    assert "--time-unit" in refused(bare)


def test_bom_semicolons_and_decimal_comma(write):
    body = b"\xef\xbb\xbf" + b"arrival_s;prompt_tokens;output_tokens\n0,5;10;10\n1,75;10;10\n"
    trace, report = read_trace(write(body))
    assert trace.arrival_ns.tolist() == [0, 1250 * MS] and report.first == "0.5 s"


@pytest.mark.parametrize("value", ["1.234,5", "1,234,5", "1'000", "0x10", "1_000", "1 000", "--1", "1e", "."])
def test_numbers_that_could_be_misread_are_refused(write, value):
    body = f"arrival_s;prompt_tokens;output_tokens\n0;10;10\n{value};10;10\n"
    assert "line 3, arrival_s" in refused(write(body))


@pytest.mark.parametrize("value", ["1.5", "1.000", "1,000", "abc", "", "1e3", "True"])
def test_token_counts_are_whole_numbers(write, value):
    body = f"arrival_s;prompt_tokens;output_tokens\n0;10;10\n1;{value};10\n"
    assert "line 3, prompt_tokens" in refused(write(body))
    assert read_trace(write("arrival_s;prompt_tokens;output_tokens\n0;10.0;10\n"))[0].prompt_tokens[0] == 10


def test_dates_in_a_generic_file(write):
    body = "timestamp,prompt_tokens,output_tokens\n2024-01-01 00:00:00.25,1,1\n2024-01-01 00:00:01,1,1\n"
    trace, report = read_trace(write(body))
    assert trace.arrival_ns.tolist() == [0, 750 * MS] and report.time_unit == "date"
    assert "--time-unit" in str(pytest.raises(BadInput, read_trace, write(body), time_unit="s").value)


def test_unsorted_is_sorted_with_a_report(write):
    trace, report = read_trace(write(GENERIC_HEADER + "0,1,10\n5,2,20\n3,3,30\n"))
    assert trace.arrival_s.tolist() == [0, 3, 5] and trace.prompt_tokens.tolist() == [1, 3, 2]
    assert (report.backward_steps, report.largest_backward_ns) == (1, 2 * 10**9)
    assert any("backward" in note for note in report.notes)


def test_mixed_clocks_are_refused_even_when_bad_rows_may_go(write):
    path = write(GENERIC_HEADER + "1780000000.0,1,1\n23.0,1,1\n24.0,1,1\n")
    for drop in (False, True):
        assert "line 3: found 23 s" in refused(path, drop_bad_rows=drop)


def test_an_absurd_span_is_a_wrong_unit(write):
    assert "time unit" in refused(write(GENERIC_HEADER + "0,1,1\n90000000,1,1\n"))
    assert "unit right" in refused(write(GENERIC_HEADER + "1780000000000,1,1\n"))


def test_not_finite_times(write):
    path = write(GENERIC_HEADER + "0,10,10\nnan,10,10\ninf,10,10\n4,10,10\n")
    assert "line 3, arrival_s" in refused(path)
    trace, report = read_trace(path, drop_bad_rows=True)
    assert trace.arrival_s.tolist() == [0, 4] and report.dropped == {"time is not finite": 2}


def test_parquet_of_every_column_type(tmp_path):
    ns = np.array([1_790_000_000_000_000_001, 1_790_000_000_070_000_003])
    tokens = pa.array([1, 2], pa.int32())
    for name, column in {
        "arrival_ns": pa.array(ns),
        "arrival_s": pa.array([Decimal(int(v)).scaleb(-9) for v in ns], pa.decimal128(30, 9)),
        "timestamp": pa.array(ns, pa.timestamp("ns")),
        "time": pa.array(ns, pa.timestamp("ns", "UTC")),
        "arrival": pa.array(["2026-09-21 14:13:20.000000001", "2026-09-21 14:13:20.070000003"]),
    }.items():
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table({name: column, "prompt_tokens": tokens, "output_tokens": tokens}), path)
        trace, report = read_trace(path)
        assert trace.arrival_ns.tolist() == [0, 70_000_002], name
        assert report.first_ns == ns[0], name
    pq.write_table(pa.table({"arrival_s": [0.1, None, float("nan")], "prompt_tokens": [1, 1, 1],
                             "output_tokens": [1, 1, 1]}), path)  # fmt: skip
    assert "row 2, arrival_s" in refused(path)
    assert read_trace(path, drop_bad_rows=True)[1].rows_kept == 1


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        ("gzip", gzip.compress),
        ("bzip2", bz2.compress),
        ("xz", lzma.compress),
        ("Zstandard", lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
    ],
)
def test_packed_files(write, kind, pack):
    """The first bytes say how a file is packed, whatever it is called; what breaks off is refused."""
    path = write(pack((GENERIC_HEADER + "0,1,1\n1,1,1\n").encode()), "t.csv")
    assert len(read_trace(path)[0]) == 2
    assert f"a broken {kind} file" in refused(write(path.read_bytes()[:-9], "cut.csv"))


# --- refusals -------------------------------------------------------------------------------------


def test_blank_first_row_is_refused_or_dropped(write):
    body = AZURE + ",,\n2023-11-16 18:00:04.3000000,100,10\n2023-11-16 18:00:05.0000000,100,10\n"
    assert "line 2: found a blank row" in refused(write(body))
    trace, report = read_trace(write(body), drop_bad_rows=True)
    assert trace.arrival_ns.tolist() == [0, 700 * MS] and report.dropped == {"blank row": 1}


def test_negative_tokens_refused_and_zero_output_reported(write):
    body = AZURE + "2023-11-16 18:00:00,-5,10\n2023-11-16 18:00:01,100,0\n2023-11-16 18:00:02,100,10\n"
    assert "line 2, ContextTokens: found '-5'" in refused(write(body))
    trace, report = read_trace(write(body), drop_bad_rows=True)
    assert len(trace) == 1 and report.dropped == {"negative token count": 1, FAILED: 1} and report.failures == 1


def test_three_different_refusals_of_nearly_empty_files(write):
    messages = {
        refused(write(AZURE)).split("found")[1],
        refused(write("")).split("found")[1],
        refused(write("2023-11-16 18:00:00.0010000,100,10\n")).split("found")[1],
    }
    assert len(messages) == 3
    assert [sum(word in m for m in messages) for word in ("no rows", "an empty file", "no header")] == [1, 1, 1]


def test_truncated_json_line(write):
    path = write(mooncake([(0, 1, 1)]) + '{"timestamp": 3000, "input_len', "t.jsonl")
    assert "line 2" in refused(path)
    assert read_trace(path, drop_bad_rows=True)[1].dropped == {"not a JSON object": 1}


def test_ragged_rows_keep_the_line_numbers_right(write):
    body = GENERIC_HEADER + "0,1,1\n1,1\n2,1,1,1\n\n3,1,1\n4,x,1\n"
    assert "line 3: found 2 columns" in refused(write(body))
    _, report = read_trace(write(body), drop_bad_rows=True)
    assert report.dropped == {"wrong number of columns": 2, "blank row": 1, "token count is not a whole number": 1}
    assert (report.rows_read, report.rows_kept) == (6, 2)
    assert "line 5, prompt_tokens" in refused(write(GENERIC_HEADER + "0,1,1\n1,1,1\n2,1,1\n4,x,1\n"))


def test_bytes_that_are_not_utf8_matter_only_where_they_are_read(write, capfd):
    body = BURSTGPT.encode() + b"5,caf\xe9,4,1,5,c\n6,m,\xe9,1,5,c\n7,\xe9\n8,\xe9,4,1,5,c\n"
    assert "line 4: found 2 columns" in refused(write(body))  # rows that are none come first
    assert "line 3, Request tokens" in refused(write(body.replace(b"7,\xe9\n", b"")))
    _, report = read_trace(write(body), drop_bad_rows=True)
    assert report.rows_kept == 2 and report.dropped["wrong number of columns"] == 1
    assert "line 2: found 2 columns" in refused(write(BURSTGPT.encode() + b"7,\xe9\n"))
    utf8 = write(BURSTGPT.encode() + "5,café,4,1,5,c\n".encode())
    assert read_trace(utf8)[1].rows_kept == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ('{"id": "s", "requests": [{"t": 0.0, "in": 1, "out": 1, "think_time": 1}]}', "s.json", "closed-loop"),
        ('{\n "id": "s",\n "requests": [\n {"t": 0.0}]\n}', "s.json", "closed-loop"),
        ("0,1.3,8.5,Weibull,0.3,0.4\n600,0,0,,0,0\n1200,0.2,6.0,Gamma,0.4,3.3\n", "c.csv", "rates"),
        ('[{"a": 1}]', "a.json", "columns 'a'"),
        ('{"a": 1,\n"b": 2}', "a.json", "one JSON document"),
        ('{"a": 1}\n', "a.jsonl", "columns 'a'"),
        ('{"a": \n', "a.jsonl", "line 1"),
        ("[" * 100_000, "deep.json", "JSON document"),
        (b"\xff\xfea\x00,\x00", "u.csv", "UTF-16"),
        (bytes(range(256)), "b.bin", "binary"),
        (b"PAR1 and no more", "p.parquet", "Parquet"),
        ("just a sentence\nand another\n", "t.txt", "columns"),
        ("a" * 3_000_000, "t.txt", "no header that can be read"),
        (GENERIC_HEADER + "0,1,1\n1,1," + "9" * 20_000_000, "t.csv", "breaks off"),
        (GENERIC_HEADER + "0,1,1\n\xff\n", "t.csv", "line 3"),
        ("arrival_s,arrival_s,prompt_tokens,output_tokens\n0,0,1,1\n", "t.csv", "more than once"),
        ("arrival_s,arrival_ms,prompt_tokens,output_tokens\n0,0,1,1\n", "t.csv", "which is meant"),
        (GENERIC_HEADER + "-1,1,1\n", "t.csv", "0 or later"),
        (GENERIC_HEADER + "0,0,1\n", "t.csv", "at least 1 prompt token"),
        (GENERIC_HEADER + "0,3000000000,1\n", "t.csv", "at most"),
        (GENERIC_HEADER + "0,1,0\n", "t.csv", "no usable request"),
        ('{"arrival_s": true, "prompt_tokens": 1, "output_tokens": 1}\n', "t.jsonl", "line 1, arrival_s"),
        ('{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}\n', "t.jsonl", "line 1, arrival_s"),
        ('{"arrival_s": 0, "prompt_tokens": "\\ud800", "output_tokens": 1}\n', "t.jsonl", "line 1, prompt_tokens"),
        ("time,prompt_tokens,output_tokens\n3/1/2026 9:00,1,1\n", "t.csv", "--time-format, e.g. %d/%m/%Y"),
        ("time,prompt_tokens,output_tokens\n10:00:00,1,1\n", "t.csv", "--columns time=time"),
        ('{"data": [{"time_s": 0}], "total_pages": 3}', "t.json", "one of 3 pages of a log"),
        ('{"arrival_s": 0, "prompt_tokens": [1], "output_tokens": 1}\n', "t.jsonl", "line 1, prompt_tokens"),
        ('{"arrival_s": 0, "prompt_tokens": 1}\n{"arrival_s": 0}\n', "t.jsonl", "'output_tokens' as well"),
        (mooncake([(0, 1, 1)]) + '{"timestamp": 5, "input_length": 4}\n', "t.jsonl", "line 2, output_length"),
    ],
)
def test_refused(write, content, name, said):
    assert said in refused(write(content, name))


def test_what_is_no_file(tmp_path, monkeypatch):
    assert "no such file" in refused(tmp_path / "missing.csv")
    assert "a folder" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(tmp_path / "pipe")
    with pytest.raises(BadInput):
        read_trace("a\0b")
    with pytest.raises(BadInput):
        read_trace(tmp_path / ("a" * 5000))

    def denied(self):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.csv").write_text(GENERIC_HEADER)
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert "Permission denied" in refused(tmp_path / "secret.csv")


def test_options(write):
    path = write(GENERIC_HEADER + "0,1,1\n")
    with pytest.raises(BadInput, match="did you mean azure"):
        read_trace(path, format="azur")
    with pytest.raises(BadInput, match="one of s, ms, us, ns"):
        read_trace(path, time_unit="min")
    with pytest.raises(BadInput, match="column arrival_s is in s"):
        read_trace(path, time_unit="ms")
    assert "'TIMESTAMP', 'ContextTokens', 'GeneratedTokens'" in refused(path, format="azure")
    vidur = write("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n")
    with pytest.raises(BadInput, match="vidur files give times in s"):
        read_trace(vidur, time_unit="ms")


# --- registry and report --------------------------------------------------------------------------


def test_built_in_readers_are_registered_like_any_other():
    assert {"azure", "burstgpt", "mooncake", "vidur", "generic"} <= set(readers())
    assert all(isinstance(reader, TraceReader) for reader in readers().values())


def test_a_third_party_reader(write, monkeypatch):
    class Pipes:
        name, description = "pipes", "requests between pipes"

        def matches(self, sample):
            return sample.data.startswith(b"PIPES")

        def read(self, sample, *, time_unit, drop_bad_rows):
            return GENERIC.read(
                module.Sample(sample.path, b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n", "csv",
                              ("arrival_s", "prompt_tokens", "output_tokens"), ","),
                time_unit=time_unit, drop_bad_rows=drop_bad_rows,
            )  # fmt: skip

    known = {**readers(), "pipes": Pipes()}

    def points(group):
        return {name: SimpleNamespace(load=lambda name=name: known[name]) for name in known}

    monkeypatch.setattr(registry, "names", points)
    assert len(read_trace(write("PIPES|0|1"))[0]) == 1
    known["also"] = Pipes()
    assert "pipes and also" in refused(write("PIPES|0|1"))
    known["also"] = SimpleNamespace(name="also")
    with pytest.raises(ProtocolError, match="'also'"):
        read_trace(write("PIPES|0|1"))
    monkeypatch.setattr(registry, "names", lambda group: {"lost": EntryPoint("lost", "no_such_module:READER", group)})
    with pytest.raises(ProtocolError, match="'lost' cannot be loaded"):
        read_trace(write("PIPES|0|1"))


def test_rows_read_must_be_rows_kept_plus_dropped():
    with pytest.raises(BadInput, match="3 kept and 1 dropped"):
        ReadingReport("f", "x", "s", 5, 3, {"blank row": 1}, None, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("stamps", "resolution"),
    [
        ([], None), ([5], None), ([5, 5, 5], None),
        ([0, 12 * 10**9], 10**9),  # two stamps say nothing of 12 s
        ([0, 3, 6, 9, 12, 15], 3),
        ([0, 20, 50, 70, 100, 130], 10),  # no distance divides all others
        ([0, 2999, 6000, 9000, 11999, 18000, 21000], 3000),  # bins with rounded ends
        ([0, 7, 20, 33, 61, 100], 1),
    ],
)  # fmt: skip
def test_resolution(stamps, resolution):
    assert resolution_ns(np.array(stamps, np.int64)) == resolution
