"""What benchmarks/ceiling.py, real_ceiling.py and real_traces.py compute; slow: what is promised of `quiet`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from adapters.traces.load_states import LoadStates
from adapters.traces.readers import Reading
from protocol.cli.settings import Overrides, settings_for
from protocol.placement.ceiling import causal_optimum
from protocol.regimes.regime import Regime
from protocol.workload.trace import RequestTrace

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
S = 10**9


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_differences_are_starred_after_holm(benchmark: Any) -> None:
    ceiling: ModuleType = benchmark("ceiling")
    low, near = [1.0, 1.1, 0.9, 1.1], [4.0, 5.5, 4.9, 4.0]
    gains = {
        "one": {"ours": [5.0, 5.1, 4.9, 5.0], "low": low, "near": near},
        "two": {"ours": [1.1, 1.3, 0.8, 1.2], "low": low, "near": near},
    }
    found = {key: {n: np.array([(v, 9.0, 20) for v in x]) for n, x in row.items()} for key, row in gains.items()}
    head, _, first, second = ceiling.differences(found, "ours")
    assert head == "| ours less | one | two |"
    # mean differences 3.975 and 0.075, 0.4 and -3.5; only the first is far above 0
    assert first.startswith("| `low` | +3.9") and first.index("*") < first.index("| +0.0")
    assert second.startswith("| `near` | +0.40 ±") and "*" not in second and "| -3.50 ±" in second


def trace(arrival_s: list[float], tokens: list[int]) -> RequestTrace:
    n = len(arrival_s)
    return RequestTrace(
        np.round(np.array(arrival_s) * S).astype(np.int64), np.array(tokens), np.full(n, 9), np.zeros(n, int), 1, "t"
    )  # fmt: skip


def test_features_are_sums_of_full_seconds_and_of_what_is_ahead(benchmark: Any) -> None:
    real: ModuleType = benchmark("real_ceiling")
    made = trace([0.5, 1.5, 1.6, 3.2, 4.9, 6.0], [10, 20, 30, 40, 50, 60])
    counts, tokens = real.per_second(made, 8)
    assert counts.tolist() == [1, 2, 0, 1, 1, 0, 1, 0] and tokens.tolist() == [10, 50, 0, 40, 50, 0, 60, 0]
    x = np.expm1(real.features(counts, tokens, np.array([4]), np.array([3])))[0]
    assert x[:3] == pytest.approx([1, 1, 4]) and x[3:8] == pytest.approx([4] * 5)  # the last 1, 2, 4, 8... seconds
    assert x[8:11] == pytest.approx([40, 40, 100]) and x[16:] == pytest.approx([3, 4])
    y = np.expm1(real.ahead(made, np.array([S]), 4 * S))[0]  # quarters of a second from 1 s on
    assert y == pytest.approx([2, 0, 1, 1, 50, 0, 40, 50])


def test_a_linear_forecast_is_ridge_regression(benchmark: Any) -> None:
    real: ModuleType = benchmark("real_ceiling")
    rng = np.random.default_rng(3)
    x = rng.normal(2.0, 3.0, (60, 4))
    y = x @ [1.0, -2.0, 0.0, 0.5] + rng.normal(size=60)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    beta = np.linalg.solve(z.T @ z + 5.0 * np.eye(4), z.T @ (y - y.mean()))
    found = real.Forecaster(x, y, None, 5.0)
    assert found(x) == pytest.approx(y.mean() + z @ beta)
    eigen = np.linalg.eigvalsh(z.T @ z)
    assert found.freedom == pytest.approx((eigen / (eigen + 5.0)).sum())
    rough = real.Forecaster(x, y, 0.01, 1e-9)  # narrow functions without a penalty go through every point
    assert rough(x) == pytest.approx(y, abs=1e-6) and rough.freedom == pytest.approx(60)


def test_the_promise_can_be_measured_on_a_small_world(benchmark: Any) -> None:
    ceiling: ModuleType = benchmark("ceiling")
    found = shares(ceiling, "bursty-periodic", seeds=2, training=6, root=909)
    assert found["causal ceiling"][:, 0].mean() > found["baselines/quiet.py"][:, 0].mean() - 4 > 0


def test_peers_are_measured_against_draws_of_their_own_merges(benchmark: Any) -> None:
    ceiling: ModuleType = benchmark("ceiling")
    (setting,), _ = settings_for(["islands-offset"], [], Reading(), 909, Overrides(seeds=2))
    makers = {"quiet-pairs": ceiling.maker("quiet-pairs"), "all-islands": ceiling.maker("all-islands")}
    found = ceiling.gains(setting, 909, makers, 4)
    assert found["quiet-pairs"][:, 2].tolist() == [112, 112] and found["all-islands"][:, 2].tolist() == [16, 16]
    assert found["quiet-pairs"][:, 0].mean() > 1.0 > abs(found["all-islands"][:, 0].mean())
    assert "| - | - |" in list(ceiling.lines(found, "quiet-pairs"))[2]  # no ceiling and no optimum


def shares(ceiling: ModuleType, regime: str, seeds: int, training: int, root: int) -> dict[str, Any]:
    """Gains of the ceiling and of `quiet` in a regime."""
    (setting,), _ = settings_for([regime], [], Reading(), root, Overrides(seeds=seeds))
    (other,), _ = settings_for([regime], [], Reading(), root + 1, Overrides())
    states = LoadStates.of(Regime.load(regime), setting.corridor.grid_ns / 1e9)
    chain = ceiling.counted(replace(setting, worlds=other.worlds), states, root + 1, training)
    best = causal_optimum(chain, setting.corridor)
    makers = {
        ceiling.ORACLE: lambda r, s: ceiling.Oracle(states, best, r, s),
        "baselines/quiet.py": ceiling.maker(str(BENCHMARKS.parent / "baselines" / "quiet.py")),
    }
    found: dict[str, Any] = ceiling.gains(setting, root, makers, 19)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["bursty-periodic", "bursty-aperiodic"])
def test_quiet_captures_four_fifths_of_the_causal_ceiling(benchmark: Any, regime: str) -> None:
    """On worlds of another root: the upper limit of its share is above 80 %, the estimate above 70 %."""
    ceiling: ModuleType = benchmark("ceiling")
    found = shares(ceiling, regime, seeds=16, training=30, root=77)
    ours, best = found["baselines/quiet.py"][:, 0], found[ceiling.ORACLE][:, 0]
    limits = ceiling.fieller(ours, best)
    assert limits is not None and limits[1] > 0.8 and ours.mean() > 0.7 * best.mean()


@pytest.mark.slow
def test_quiet_loses_nothing_in_steady_load(benchmark: Any) -> None:
    ceiling: ModuleType = benchmark("ceiling")
    for regime in ("ordinary", "high-pressure", "sync-heavy-steady"):
        (setting,), _ = settings_for([regime], [], Reading(), 77, Overrides(seeds=10))
        ours = ceiling.gains(setting, 77, {"q": ceiling.maker("quiet")}, 19)["q"][:, 0]
        assert ours.mean() + ceiling.half_width(ours) > 0 and ours.mean() > -0.25, regime


@pytest.mark.slow
def test_half_an_hour_of_azure_code_cannot_show_even_the_optimum(benchmark: Any, shared_data: Path) -> None:
    """Whatever the number of merges, a scheduler that captured all of it would pass less than 4 in 5 times."""
    real: ModuleType = benchmark("real_traces")
    path = shared_data / "traces" / "azure2023_code_00-30min.csv"
    (setting,), _ = settings_for([], [path], Reading(), 5, Overrides())
    found = list(real.bounds(replace(setting, slos=setting.slos[:1]), 5, 99))
    assert found and max(bound.power(1.0, 5) for bound in found) < real.POWER
