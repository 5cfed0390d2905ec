"""Whatever the bytes are: a trace or a refusal in one line, and the report adds up."""

from __future__ import annotations

import io
import json

import log_files as make
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.traces.inspection import statistics
from adapters.traces.readers import read_trace
from protocol.errors import ProtocolError


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [3, 4]}), out)
    return out.getvalue()


GOOD = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:00:00.0010000,100,10\r\n2023-11-16 18:00:01,90,9\r\n",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,4,1,5,c\n45,m,1,2,3,c\n46,m,1,0,1,c\n",
    b'{"timestamp": 0, "input_length": 7, "output_length": 5, "hash_ids": [0]}\n'
    b'{"timestamp": 3000, "input_length": 8, "output_length": 6, "hash_ids": [0]}\n',
    b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.052,3180,8\n",
    b"\xef\xbb\xbfarrival_s;prompt_tokens;output_tokens\n0,5;10;10\n1,5;10;10\n",
    _parquet(),
]
#: Two requests each, beside what is no load where the format has such rows.
LOGS = {
    "litellm": json.dumps([make.litellm(0.0), make.litellm(1.0, status="failure"), make.litellm(2.5)]).encode(),
    "otlp": json.dumps(
        make.otlp(
            make.span(1, 0.0),
            make.span(2, 1.0, None, None, attributes={"gen_ai.operation.name": None}),
            make.span(3, 2.0),
        )
    ).encode(),
    "envoy": "\n".join([make.envoy(0), make.envoy(1, code=503), make.envoy(2)]).encode(),
    "nginx": "\n".join([make.nginx(0), make.nginx(1, method="GET"), make.nginx(2, tail=" rt=0.5")]).encode(),
    "vllm-bench": json.dumps(make.vllm_bench([0.0, 1.0])).encode(),
    "guidellm": json.dumps(make.guidellm([0.0, 1.0])).encode(),
    "aiperf": "\n".join(json.dumps(make.aiperf(t)) for t in (0.0, 1.0)).encode(),
}
PIECES = [
    b"\n",
    b"\r",
    b",",
    b";",
    b'"',
    b"\0",
    b"-",
    b"nan",
    b"1e9",
    b"{",
    b"}",
    b"\xff",
    b"\xef\xbb\xbf",
    b"null",
    b" ",
]
OPTIONS = st.fixed_dictionaries(
    {
        "drop_bad_rows": st.booleans(),
        "time_unit": st.sampled_from([None, "s", "ns"]),
        "format": st.sampled_from([None, None, "azure", "burstgpt", "mooncake", "vidur", "generic", *LOGS]),
        "columns": st.sampled_from([(), (), (("time", "startTime"),), (("time", "a.b"), ("prompt_tokens", "x"))]),
        "tokens": st.sampled_from([None, None, (3, 4)]),
        "absent_ok": st.booleans(),
    }
)
FAST = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)


@st.composite
def mutated(draw):
    """A good file with a few bytes cut, replaced, doubled or put in."""
    data = draw(st.sampled_from([*GOOD, *LOGS.values()]))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 8)))
        piece = draw(st.sampled_from([b"", data[at:until] * 2, *PIECES]) | st.binary(max_size=3))
        data = data[:at] + piece + data[until:]
    return data


def check(path, data, options):
    path.write_bytes(data)
    try:
        trace, report = read_trace(path, **options)
    except ProtocolError as error:
        assert str(error)
        return
    assert report.rows_read == report.rows_kept + sum(report.dropped.values()) and report.rows_kept == len(trace) > 0
    assert trace.arrival_ns[0] == 0 and (np.diff(trace.arrival_ns) >= 0).all()
    assert options["drop_bad_rows"] or not {"no time", "blank row", "not a line of the log"} & set(report.dropped)
    statistics(trace, report)
    report.to_dict()


@FAST
@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode), options=OPTIONS)
@example(data=b"\x1f\x8b", options={"drop_bad_rows": False})
@example(data=b"PAR1", options={"drop_bad_rows": False})
def test_arbitrary_bytes(tmp_path, data, options):
    check(tmp_path / "f", data, options)


@FAST
@given(data=mutated(), options=OPTIONS)
def test_mutated_files(tmp_path, data, options):
    check(tmp_path / "f", data, options)


@pytest.mark.parametrize("data", GOOD, ids=["azure", "burstgpt", "mooncake", "vidur", "generic", "parquet"])
def test_the_files_that_are_mutated_are_good(tmp_path, data):
    (tmp_path / "f").write_bytes(data)
    assert len(read_trace(tmp_path / "f")[0]) == 2


@pytest.mark.parametrize("name", LOGS)
def test_so_are_the_logs(tmp_path, name):
    (tmp_path / "f").write_bytes(LOGS[name])
    trace, report = read_trace(tmp_path / "f", absent_ok=True)
    assert len(trace) == 2 and report.format == name


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**15), st.integers(1, 9999), st.integers(0, 9999)), min_size=1, max_size=20
    ),
    ends=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
)
def test_what_is_written_is_read(tmp_path, rows, ends, final):
    """The same requests as CSV, JSON lines and Parquet give the same trace, sorted and from 0."""
    served = sorted((row for row in rows if row[2]), key=lambda row: row[0])
    lines = ["arrival_ns,prompt_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "a.csv").write_bytes((ends.join(lines) + ends * final).encode())
    named = [dict(zip(("arrival_ns", "prompt_tokens", "output_tokens"), row, strict=True)) for row in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, named)))
    pq.write_table(pa.Table.from_pylist(named), tmp_path / "a.parquet")
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        if not served:
            with pytest.raises(ProtocolError):
                read_trace(tmp_path / name)
            continue
        trace, report = read_trace(tmp_path / name)
        assert trace.arrival_ns.tolist() == [row[0] - served[0][0] for row in served]
        assert trace.prompt_tokens.tolist() == [row[1] for row in served]
        assert report.failures == len(rows) - len(served)
