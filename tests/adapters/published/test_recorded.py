"""The recorded sidecar: other people's requests as Measurements, and nothing that was not recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from adapters.sidecars.recorded import RecordedSidecar, as_trace, read_measurements, with_schedule
from protocol.errors import BadInput, SidecarError
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FULLY, NONE, PARTLY
from protocol.workload.slo import Slo


def _file(path: Path, starts: list[int], latency_ns: int = 1_000_000_000) -> Path:
    """An AIPerf file, built from the documented format: requests at `starts` nanoseconds."""
    base = 1_790_000_000_000_000_000
    rows = [
        {
            "metadata": {
                "request_start_ns": base + s,
                "request_end_ns": base + s + latency_ns,
                "credit_issued_ns": base + s,
            },
            "metrics": {"output_sequence_length": {"value": 4, "unit": "tokens"}},
            "error": None,
        }
        for s in starts
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_exposure_comes_from_the_schedule(tmp_path: Path) -> None:
    """Requests of 1 s at 0, 2.5 and 4 s; a merge from 3 to 6 s: outside, half inside, wholly inside."""
    log, support = read_measurements(_file(tmp_path / "a.jsonl", [0, 2_500_000_000, 4_000_000_000]))
    assert support.start == "scheduled" and log.exposure_ns.tolist() == [0, 0, 0]
    schedule = Schedule.all_islands(np.array([3_000_000_000]), 3_000_000_000)
    assert with_schedule(log, schedule).exposure.tolist() == [NONE, PARTLY, FULLY]


def test_a_record_answers_for_its_own_schedules_only(tmp_path: Path) -> None:
    idle = Schedule.empty()
    merge = Schedule.all_islands(np.array([1_000_000_000]), 1_000_000_000)
    files = {
        _file(tmp_path / "idle.jsonl", [0, 1_200_000_000]): idle,
        _file(tmp_path / "merge.jsonl", [0, 1_200_000_000], 2_000_000_000): merge,
    }
    sidecar = RecordedSidecar.from_files(files)
    log, _ = read_measurements(tmp_path / "idle.jsonl")
    loaded = sidecar.load(as_trace(log), np.random.default_rng(0))
    slo = Slo.parse("e2e<=1500ms")
    assert loaded.replay(idle).violates(slo).sum() == 0
    assert loaded.replay(merge).violates(slo).sum() == 2
    assert sidecar.describe()["runs"] == 2
    with pytest.raises(SidecarError, match="cannot be replayed"):
        loaded.replay(Schedule.all_islands(np.array([5]), 7))
    other, _ = read_measurements(_file(tmp_path / "other.jsonl", [0, 1_300_000_000]))
    with pytest.raises(SidecarError, match="arrivals"):
        sidecar.load(as_trace(other), np.random.default_rng(0))


def test_files_of_different_arrivals_are_not_one_sidecar(tmp_path: Path) -> None:
    files = {
        _file(tmp_path / "a.jsonl", [0, 5]): Schedule.empty(),
        _file(tmp_path / "b.jsonl", [0, 6]): Schedule.empty(),
    }
    with pytest.raises(BadInput, match="b.jsonl.*other arrivals"):
        RecordedSidecar.from_files(files)


def test_own_parquet_comes_back_as_it_was(tmp_path: Path) -> None:
    log, _ = read_measurements(_file(tmp_path / "a.jsonl", [0, 7]))
    pq.write_table(log.to_table(), tmp_path / "a.parquet")
    back, support = read_measurements(tmp_path / "a.parquet")
    assert back.to_table().equals(log.to_table()) and not support.undecidable


def test_refusals(tmp_path: Path) -> None:
    broken = tmp_path / "a.parquet"
    broken.write_bytes(b"PAR1 no")
    for path, told in ((broken, "not Parquet"), (tmp_path / "none.parquet", "no such file")):
        with pytest.raises(BadInput, match=told):
            read_measurements(path)
    table = tmp_path / "a.csv"
    table.write_text("arm,seed,violation_pct\na,1,2\n")
    with pytest.raises(BadInput, match="no per-request format"):
        read_measurements(table)
    summary = tmp_path / "s.json"
    summary.write_text('{"completed": 1, "duration": 2.0}')
    with pytest.raises(BadInput, match="without requests"):
        read_measurements(summary)


def test_llmservingsim_file_of_the_shared_data(shared_data: Path) -> None:
    """A real file: 300 requests of a measured vLLM."""
    log, _ = read_measurements(shared_data / "traces" / "result_llmservingsim_vllm_rtx4090_llama31-8b.jsonl")
    assert len(as_trace(log)) == 300
