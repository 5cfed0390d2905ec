"""The load of a regime after a trace."""

from __future__ import annotations

import itertools
from pathlib import Path

import log_files as make
import numpy as np
import pytest

from adapters.traces.generators import arrivals_s, spells
from adapters.traces.proposing import _expected, propose, two_rates
from adapters.traces.readers import read_trace
from protocol.errors import BadInput
from protocol.regimes.regime import APERIODIC, STEADY, Arrivals


def save(path: Path, times: np.ndarray, prompt: list[int], output: list[int]) -> Path:
    rng = np.random.default_rng(3)
    rows = [f"{t:.6f},{rng.choice(prompt)},{rng.choice(output)}" for t in times]
    return make.save(path, "arrival_s,prompt_tokens,output_tokens", *rows)


def drawn(arrivals: Arrivals, end_s: float, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return arrivals_s(arrivals, spells(arrivals, end_s, rng), end_s, rng)


def test_expectations_equal_the_sum_over_all_paths() -> None:
    rng = np.random.default_rng(1)
    emit, step = rng.uniform(0.1, 1.0, (6, 2)), np.array([[0.8, 0.2], [0.4, 0.6]])
    share, moved, total = np.zeros((6, 2)), np.zeros((2, 2)), 0.0
    for path in itertools.product((0, 1), repeat=6):
        weight = 0.5 * emit[0, path[0]]
        for t in range(1, 6):
            weight *= step[path[t - 1], path[t]] * emit[t, path[t]]
        total += weight
        share[np.arange(6), path] += weight
        for a, b in itertools.pairwise(path):
            moved[a, b] += weight
    found = _expected(emit, step)
    np.testing.assert_allclose(found[0], share / total)
    np.testing.assert_allclose(found[1], moved / total)


def test_bursts_are_found_again(tmp_path: Path) -> None:
    true = Arrivals(process=APERIODIC, rate_per_s=1.0, busy_rate_per_s=5.0, busy_s=40.0, quiet_s=80.0)
    trace, report = read_trace(save(tmp_path / "t.csv", drawn(true, 20_000.0), [100, 400], [64]))
    found = propose(trace, report, np.random.default_rng(1))
    a = found.arrivals
    assert a.process == APERIODIC
    assert a.rate_per_s == pytest.approx(1.0, rel=0.1) and a.busy_rate_per_s == pytest.approx(5.0, rel=0.1)
    assert a.busy_s == pytest.approx(40.0, rel=0.25) and a.quiet_s == pytest.approx(80.0, rel=0.25)
    assert found.prompt is not None and found.prompt.values == (100, 400) and len(found.prompt.weights) == 2
    assert found.output is not None and found.output.values == (64,) and found.output.weights == ()
    at_60 = next(row for row in found.compared if "60 s" in row.name)
    assert at_60.trace is not None and at_60.proposal == pytest.approx(at_60.trace, rel=0.5)


def test_steady_arrivals_are_not_called_bursts(tmp_path: Path) -> None:
    true = Arrivals(process=STEADY, rate_per_s=3.0, cv=0.5)
    trace, report = read_trace(save(tmp_path / "t.csv", drawn(true, 2000.0), list(range(1, 400)), [5]))
    found = propose(trace, report, np.random.default_rng(1))
    assert found.arrivals.process == STEADY
    assert found.arrivals.rate_per_s == pytest.approx(3.0, rel=0.05) and found.arrivals.cv == pytest.approx(
        0.5, rel=0.1
    )
    assert found.prompt is not None and len(found.prompt.values) == 20 and found.prompt.most <= 399


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    whole = np.floor(drawn(Arrivals(process=STEADY, rate_per_s=3.0), 600.0))
    trace, report = read_trace(save(tmp_path / "t.csv", whole, [5], [5]))
    found = propose(trace, report, np.random.default_rng(1))
    assert found.arrivals.cv == 1.0 and "assumed, not read" in found.notes[0]
    log = make.save(tmp_path / "a.log", *(make.envoy(t * 1.5) for t in range(150)))
    found = propose(*read_trace(log, absent_ok=True), np.random.default_rng(1))
    assert found.prompt is None and "stay yours" in " ".join(found.notes)


def test_too_little_is_refused(tmp_path: Path) -> None:
    trace, report = read_trace(save(tmp_path / "t.csv", np.arange(20.0), [5], [5]))
    with pytest.raises(BadInput, match="20 requests over 19 s; expected at least 100"):
        propose(trace, report, np.random.default_rng(1))
    assert two_rates(np.full(50, 3)) is None and two_rates(np.array([1, 9] * 5)) is None
