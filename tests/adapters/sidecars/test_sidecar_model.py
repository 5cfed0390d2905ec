"""Model files: what they hold, and what is refused."""

from __future__ import annotations

import doctest
import pickle
from pathlib import Path

import numpy as np
import pytest

from adapters.sidecars import simulated
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from protocol.calibration.model import Provenance
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.workload.trace import RequestTrace

TEXT = """
format = 1
name = "mine"
provenance = {server = "vLLM 0.32.0 on a laptop", date = "2026-11-29"}
a_s = 0.004
b_s = 1e-4
c_s = 3e-5
prefill_slowdown = 1.5
decode_slowdown = 2
max_num_seqs = 8
max_batched_tokens = 512
kv_tokens = 10000
overhead_s = 0.01
overhead_sigma = 0.2
"""


def read(tmp_path: Path, text: str) -> SidecarModel:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return SidecarModel.from_toml(path)


def test_a_model_file_gives_its_values(tmp_path: Path) -> None:
    got = read(tmp_path, TEXT)
    measured = Provenance(server="vLLM 0.32.0 on a laptop", date="2026-11-29")
    assert got == SidecarModel(
        a_s=0.004, b_s=1e-4, c_s=3e-5, prefill_slowdown=1.5, decode_slowdown=2.0, max_num_seqs=8,
        max_batched_tokens=512, kv_tokens=10_000, overhead_s=0.01, overhead_sigma=0.2, name="mine", provenance=measured,
    )  # fmt: skip
    assert got.calibrated and SimulatedSidecar(got).calibrated
    description = SimulatedSidecar(got).describe()
    assert description["digest"] == got.digest and description["provenance"] == {
        "server": measured.server,
        "date": measured.date,
    }


def test_the_digest_follows_values_and_provenance_but_not_the_name(tmp_path: Path) -> None:
    got = read(tmp_path, TEXT)
    assert got.named("other").digest == got.digest
    assert pickle.loads(pickle.dumps(got)).digest == got.digest
    others = [got.changed({key: getattr(got, key) * 1.25}) for key in ("a_s", "b_s", "c_s", "overhead_s")]
    others += [got.replace(provenance="uncalibrated"), got.changed({"max_num_seqs": 9})]
    assert len({m.digest for m in (got, *others)}) == 1 + len(others)


def test_a_changed_model_is_no_longer_calibrated(tmp_path: Path) -> None:
    got = read(tmp_path, TEXT)
    assert got.changed({}) is got
    assert not got.changed({"a_s": 0.005}).calibrated
    with pytest.raises(BadInput, match="sidecar model mine: found unknown key 'name'; expected a_s, "):
        got.changed({"name": 3.0})
    with pytest.raises(BadInput, match=r"unknown key 'b_ss'; .*did you mean b_s\?"):
        got.changed({"b_ss": 3.0})
    with pytest.raises(BadInput, match="model mine, max_num_seqs: found 8.0; expected a whole number from 1 to"):
        got.changed({"max_num_seqs": 8.0})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a_s = 0.004", "", "mine.toml: found no a_s; expected a value for a_s"),
        ("a_s = 0.004", "a_s = 0.004\nspeed = 3", "mine.toml: found unknown key 'speed'; expected a_s, "),
        ("a_s = 0.004", "a_ss = 0.004", "did you mean a_s?"),
        ("a_s = 0.004", "a_s = -0.004", "a_s: found -0.004; expected a number from 0 to 10"),
        ("a_s = 0.004", "a_s = nan", "found nan"),
        ("a_s = 0.004", "a_s = inf", "found inf"),
        ("a_s = 0.004", "a_s = 'fast'", "found 'fast'"),
        ("a_s = 0.004", "a_s = true", "found True"),
        ("decode_slowdown = 2", "decode_slowdown = 0.5", "expected a number from 1 to 1000"),
        ("max_num_seqs = 8", "max_num_seqs = 8.0", "found 8.0; expected a whole number"),
        ("max_num_seqs = 8", "max_num_seqs = 0", "found 0"),
        ("max_batched_tokens = 512", "max_batched_tokens = 7", "less than max_num_seqs; expected at least 8"),
        ("format = 1", "format = 2", "format: found 2; expected 1"),
        ('name = "mine"', "name = 3", "name: found 3; expected a text"),
        ('{server = "vLLM 0.32.0 on a laptop", date = "2026-11-29"}', '"measured"', "found 'measured'"),
        (', date = "2026-11-29"', "", "expected 'uncalibrated', or a server and a date"),
        ('{server = "vLLM 0.32.0 on a laptop", date = "2026-11-29"}', "3", "provenance"),
        ("a_s = 0.004", "a_s = ", "TOML"),
    ],
)
def test_a_bad_model_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(BadInput) as refusal:
        read(tmp_path, TEXT.replace(old, new))
    assert message in str(refusal.value) and "mine.toml" in str(refusal.value) and "\n" not in str(refusal.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        SidecarModel.from_toml(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="TOML"):
        SidecarModel.from_toml(tmp_path / "binary.toml")
    with pytest.raises(BadInput, match="one of reference"):
        SidecarModel.shipped("none")


def test_a_trace_beyond_the_clock_is_refused() -> None:
    model = SidecarModel.shipped().changed({"a_s": 10.0, "decode_slowdown": 1000.0})
    trace = RequestTrace(np.zeros(400), np.full(400, 1), np.full(400, 150_000))
    with pytest.raises(BadInput, match="a shorter trace"):
        SimulatedSidecar(model).load(trace, np.random.default_rng(0))


def test_the_reference_model_has_the_published_shape() -> None:
    """128 tokens: E2E 0.55 to 0.6 s with 4 in flight, about 0.75 s with 12, more than 1 s in a sync-heavy merge."""
    sidecar = SimulatedSidecar()
    assert not sidecar.calibrated
    for concurrency, lowest, highest in ((4, 0.55, 0.60), (12, 0.72, 0.78)):
        # Evenly spaced arrivals at the rate that keeps so many in flight (Little's law).
        spacing_s = (lowest + highest) / 2 / concurrency
        n = int(120 / spacing_s)
        prompt = np.random.default_rng(1).choice([12, 47, 223, 364], n)
        trace = RequestTrace(np.arange(n) * int(spacing_s * 1e9), prompt, np.full(n, 128))
        loaded = sidecar.load(trace, np.random.default_rng(0))
        quiet = loaded.replay(Schedule.empty())
        assert lowest < np.median(quiet.e2e_ns) / 1e9 < highest
        merged = loaded.replay(Schedule.all_islands(np.arange(20, 100, 20) * 10**9, 8 * 10**9))
        inside = (merged.exposure_ns > 0) & (merged.exposure_ns >= merged.e2e_ns)
        assert np.mean(merged.e2e_ns[inside] > 10**9) > 0.95


def test_the_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(simulated).failed == 0
    assert simulated.SimulatedSidecar.__doc__ is not None and ">>>" in simulated.SimulatedSidecar.__doc__
