"""The published schedulers decide as their papers say, on observations made by hand."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from baselines.adaptive_load import AdaptiveLoad
from baselines.adaptive_tokens import AdaptiveTokens
from baselines.fixed_h import FixedH, FixedH256, FixedH512
from baselines.pressure_gate import PressureGate, PressureGateMatched
from baselines.random_deferral import RandomDeferral, RandomDeferral70
from baselines.wa_calibrated import WaCalibrated, WaCalibratedForecast
from baselines.wa_diloco import PUBLISHED, WaDiloco, score
from protocol import registry
from protocol.scheduler import Observation, Planner, Scheduler

Observe = Callable[..., Observation]


@pytest.mark.parametrize(
    ("scheduler", "h"), [(FixedH(), 512), (FixedH512(), 512), (FixedH256(), 256), (FixedH(300), 300)]
)
def test_fixed_h(observe: Observe, scheduler: FixedH, h: int) -> None:
    assert not scheduler.decide(observe(steps_since_merge=h - 1))
    assert scheduler.decide(observe(steps_since_merge=h))


def test_adaptive_tokens(observe: Observe) -> None:
    assert not AdaptiveTokens().decide(observe(tokens=999_999))
    assert AdaptiveTokens().decide(observe(tokens=1_000_000))


def test_adaptive_load(observe: Observe) -> None:
    # 0.5 * 0.3 + 0.75 * 0.4 + 0.25 * 0.5 = 0.575; with network 0.4 it is 0.625.
    quiet = {"serving_pressure": 0.4, "checkpoint_pressure": 0.5}
    assert AdaptiveLoad().decide(observe(network_pressure=0.3, **quiet))
    assert not AdaptiveLoad().decide(observe(network_pressure=0.4, **quiet))


@pytest.mark.parametrize("pressure", ["network_pressure", "serving_pressure", "checkpoint_pressure"])
@pytest.mark.parametrize(("gate", "threshold"), [(PressureGate(), 0.6), (PressureGateMatched(), 0.45)])
def test_pressure_gate_heeds_every_pressure(
    observe: Observe, gate: PressureGate, threshold: float, pressure: str
) -> None:
    assert gate.decide(observe(**{pressure: threshold}))
    assert not gate.decide(observe(**{pressure: threshold + 1e-9}))


@pytest.mark.parametrize(("kind", "deferred"), [(RandomDeferral, 0.5), (RandomDeferral70, 0.7)])
def test_random_deferral_defers_as_often_as_it_says(
    observe: Observe, kind: type[RandomDeferral], deferred: float
) -> None:
    scheduler = kind(np.random.default_rng(1))
    merges = [scheduler.decide(observe()) for _ in range(4000)]
    assert 1 - np.mean(merges) == pytest.approx(deferred, abs=4 * np.sqrt(0.25 / 4000))
    again = kind(np.random.default_rng(1))
    assert merges == [again.decide(observe(in_flight=50)) for _ in range(4000)]


def test_score_by_hand(observe: Observe) -> None:
    island = observe(
        loss_reduction=0.02, tokens=400_000, network_pressure=0.2, serving_pressure=0.1, checkpoint_pressure=0.4,
        staleness_s=180.0,
    ).islands[0]  # fmt: skip
    # .5 * .4 + .5 * .4 - .5 * .2 - .75 * .1 - .25 * .4 - .25 * .1
    assert score(island, PUBLISHED) == pytest.approx(0.1)
    calibrated = replace(PUBLISHED, sync_cost=1.0)
    assert score(island, calibrated, 0.3) == pytest.approx(-0.2)
    assert score(island, calibrated, 7.0) == pytest.approx(-0.9)  # the cost is clipped to 1
    assert score(island, calibrated, -7.0) == pytest.approx(0.1)  # and to 0


def test_score_terms_are_clipped(observe: Observe) -> None:
    island = observe(loss_reduction=1.0, tokens=10**9, staleness_s=1e6).islands[0]
    assert score(island, PUBLISHED) == pytest.approx(0.5 + 0.5 - 0.25)


def test_wa_merges_above_zero_and_not_at_it(observe: Observe) -> None:
    # tokens .5 * .5 = .25 against network .5 * .5 = .25: exactly 0.
    assert not WaDiloco().decide(observe(tokens=500_000, network_pressure=0.5))
    assert WaDiloco().decide(observe(tokens=500_001, network_pressure=0.5))


def test_wa_takes_the_mean_over_islands(observe: Observe) -> None:
    high, low = observe(tokens=800_000), observe(network_pressure=1.0)  # scores .4 and -.5
    pair = replace(high, islands=(high.islands[0], low.islands[0]))
    assert not WaDiloco().decide(pair)
    assert WaDiloco().decide(replace(high, islands=(*pair.islands, high.islands[0])))  # .3 / 3


def test_sync_cost_by_hand(observe: Observe) -> None:
    # 60 s at 2 a second, then 4 s at 10: usual rate 160 / 64 = 2.5; usually 2.5 * (8 + 0.8) = 22 exposed;
    # now 6 + 1 + 10 * 8 = 87 exposed.
    busy = observe(per_s=[2.0] * 60 + [10.0] * 4, in_flight=6, queued=1, recent_e2e_s=0.8)
    assert WaCalibrated().sync_cost(busy) == pytest.approx(87 / 22 - 1)
    steady = observe(per_s=[3.0] * 50, in_flight=3, recent_e2e_s=1.0)
    assert WaCalibrated().sync_cost(steady) == pytest.approx(0.0)
    assert WaCalibrated().sync_cost(observe(per_s=[])) == 0.0
    assert WaCalibrated().sync_cost(observe(per_s=[0.0] * 9)) == 0.0


def test_forecast_by_hand(observe: Observe) -> None:
    # 19 s: the first 3 fill no step; counts of two steps of 8 s, 8 and 24; level 8 + .5 * (24 - 8) = 16.
    seen = observe(per_s=[100.0] * 3 + [1.0] * 8 + [3.0] * 8)
    assert WaCalibratedForecast().expected_arrivals(seen) == pytest.approx(16.0)
    third = observe(per_s=[1.0] * 8 + [3.0] * 8 + [0.0] * 8)
    assert WaCalibratedForecast().expected_arrivals(third) == pytest.approx(8.0)
    assert WaCalibratedForecast().expected_arrivals(observe(per_s=[2.0] * 5)) == pytest.approx(16.0)


def test_calibrated_defers_in_a_burst_and_merges_after_it(observe: Observe) -> None:
    calm, burst = [4.0] * 100, [4.0] * 80 + [14.0] * 20
    for scheduler in (WaCalibrated(), WaCalibratedForecast()):
        assert scheduler.decide(observe(per_s=calm, tokens=500_000, in_flight=3))
        assert not scheduler.decide(observe(per_s=burst, tokens=500_000, in_flight=11))
        assert scheduler.decide(observe(per_s=burst + [4.0] * 32, tokens=500_000, in_flight=3))


def test_what_pyproject_names_is_installed() -> None:
    """Entry points are read when the project is installed: after a change, `pip install -e .` again."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for group, points in project["entry-points"].items():
        installed = {p.name: p.value for p in entry_points(group=group)}
        assert points.items() <= installed.items(), f"{group}: install again"


@pytest.mark.parametrize(
    "name", [p.name for p in entry_points(group="protocol.schedulers") if p.value.startswith("baselines.")]
)
def test_every_registered_baseline_is_a_scheduler_or_a_planner(name: str) -> None:
    kind = registry.load("protocol.schedulers", name)
    assert isinstance(kind, type)
    assert len(sys.modules[kind.__module__].__doc__ or "") > 80, "its module says what it does and where it comes from"
    assert isinstance(kind, Scheduler) != isinstance(kind, Planner)  # has exactly one of the two methods
