"""A real trace in a system of one's own: what comes from the file, what from the regime, and that it is said."""

from __future__ import annotations

from pathlib import Path

import log_files as make
import numpy as np
import pytest

from adapters.traces.readers import read_trace
from adapters.traces.systems import Placed, in_system
from protocol.errors import BadInput
from protocol.regimes.regime import Regime
from protocol.regimes.template import template

OWN = Regime.parse(template("mine", "own.toml"), "own.toml").replace(horizon_s=120.0, cooldown_s=10.0, seeds=4)


def placed(path: Path, system: Regime = OWN, **changes: object) -> Placed:
    trace, report = read_trace(path, absent_ok=True)
    return in_system(trace, report, system, 7, file=path.name, **changes)  # type: ignore[arg-type]


def said(found: Placed) -> dict[str, str]:
    return {one.part: str(one) for one in found.taken}


@pytest.fixture
def spend(tmp_path: Path) -> Path:
    """560 s of one request a second: four windows of 130 s."""
    return make.save(tmp_path / "spend.json", *(make.litellm(float(t), 50 + t % 7, 20) for t in range(560)))


def test_the_load_is_the_traces_and_the_rest_is_the_systems(spend: Path) -> None:
    found = placed(spend)
    regime = found.regime
    assert (regime.name, regime.seeds, regime.slo) == ("mine on spend.json", 4, OWN.slo)
    assert (regime.corridor(), regime.sidecar_overrides) == (OWN.corridor(), OWN.sidecar_overrides)
    assert [len(w) for w in found.worlds.windows] == [130] * 4
    first = found.worlds.workload(1).trace
    assert first.arrival_s.tolist() == list(range(130)) and first.prompt_tokens[0] == 50 + 130 % 7
    told = said(found)
    assert told["arrivals"] == "arrivals: 560 requests over 559 s (from spend.json)"
    assert told["SLO"] == f"SLO: {OWN.slo} (from mine)"
    assert told["window length"] == "window length: 120 s and 10 s to settle (from mine)"
    assert told["windows"].startswith("windows: 4 windows, all that fit; ")
    assert "0.25 s a step, 64 to 256 steps" in told["pace"]


def test_what_the_command_line_says_goes_first(spend: Path) -> None:
    told = said(placed(spend, OWN.replace(seeds=3), slos=["e2e<=9s"], sidecar="the calibration of my server"))
    assert told["SLO"] == "SLO: e2e<=9s (from the command line)"
    assert "3 of 4 windows used" in told["windows"]
    assert told["sidecar"] == "sidecar: the calibration of my server (from the command line)"


def test_fewer_windows_than_seeds_are_said(spend: Path) -> None:
    found = placed(spend, OWN.replace(seeds=9))
    assert found.regime.seeds == 4 and "9 were asked for" in said(found)["windows"]


def test_windows_that_begin_where_merges_end_are_shorter_until_as_many_fit(spend: Path) -> None:
    """Merges that end every 100 s from 20 s on leave room for three windows of 130 s (20, 220, 420), and no shorter
    ones are made; where they end every 140 s, four fit once a window is 140 s and no longer.
    """
    system = OWN.replace(seeds=5, horizon_s=150.0, h_max=64)
    found = placed(spend, system, begins_ns=[20_000_000_000 + k * 100_000_000_000 for k in range(6)])
    assert found.regime.horizon_s == 120.0 and found.regime.seeds == 3
    wide = [k * 140_000_000_000 for k in range(4)]
    found = placed(spend, OWN.replace(seeds=4, horizon_s=150.0, h_max=64), begins_ns=wide)
    assert found.regime.seeds == 4 and found.regime.horizon_s <= 130.0


def test_absent_tokens_are_drawn_from_the_system(tmp_path: Path) -> None:
    path = make.save(tmp_path / "access.log", *(make.envoy(float(t)) for t in range(560)))
    found, again = placed(path), placed(path)
    prompts = np.concatenate([w.prompt_tokens for w in found.worlds.windows])
    assert set(prompts) == {200, 800} and {o for w in found.worlds.windows for o in w.output_tokens} == {128}
    assert [w.digest for w in found.worlds.windows] == [w.digest for w in again.worlds.windows]
    assert said(found)["tokens"] == "tokens: drawn from [tokens] (from mine)"
    declared = in_system(*read_trace(path, tokens=(9, 4)), OWN, 7, file="access.log")
    assert said(declared)["tokens"] == "tokens: declared (from --tokens)"


def test_a_fleet_gets_the_requests_in_turn(spend: Path) -> None:
    found = placed(spend, OWN.replace(islands=4))
    assert np.bincount(found.worlds.windows[0].island).tolist() == [33, 33, 32, 32]
    assert "dealt in turn to 4 sidecars" in said(found)["arrivals"]


def test_declared_waves_stay_waves_and_bursts_cannot_be_followed(spend: Path) -> None:
    text = template("mine", "x").replace('follows = "constant"\nlow = 0.0\n\n[pressure.checkpoint]',
        'follows = "wave"\nlow = 0.2\nhigh = 0.8\nperiod_s = 60\n\n[pressure.checkpoint]')  # fmt: skip
    text = text.replace('[pressure.checkpoint]\nfollows = "constant"\nlow = 0.0',
                        '[pressure.checkpoint]\nfollows = "busy"\nlow = 0.1\nhigh = 0.9')  # fmt: skip
    found = placed(spend, Regime.parse(text, "x").replace(horizon_s=120.0, cooldown_s=10.0, seeds=4))
    one, two = found.worlds.workload(0), found.worlds.workload(1)
    assert 0.7 < one.network.values.max() <= 0.8 and 0.2 <= one.network.values.min() < 0.3
    assert one.network.values.tolist() != two.network.values.tolist()  # a phase of its own for each window
    assert one.checkpoint.values.tolist() == [0.1]
    assert "which a trace does not name" in said(found)["pressure"]


def test_a_budget_that_does_not_fit_is_replaced_and_said(spend: Path) -> None:
    budgets = OWN.corridor().feasible_budgets()
    assert OWN.planner_budget not in budgets
    found = placed(spend)
    assert found.regime.planner_budget in budgets
    assert "the middle of what the horizon allows" in said(found)["merges of an offline planner"]


def test_a_short_trace_is_cut_into_shorter_windows_and_says_so(spend: Path) -> None:
    """560 s in 900 s windows: none.  Two of the longest cycles are 2 (256 x 0.25 + 12) = 152 s: three windows."""
    found = placed(spend, OWN.replace(horizon_s=900.0))
    assert found.regime.horizon_s == 152 and len(found.worlds.windows) == 3
    assert said(found)["window length"] == (
        "window length: 152 s and 10 s to settle (from mine; too few of its 900 s fit the trace)"
    )


def test_refusals(spend: Path) -> None:
    with pytest.raises(BadInput, match="spend.json in mine: found 560.0 s, 1 non-empty windows of 383"):
        placed(spend, OWN.replace(horizon_s=900.0, step_s=0.7))
    with pytest.raises(BadInput, match="no merge that fits 20 s"):
        placed(spend, OWN.replace(horizon_s=20.0))
    with pytest.raises(BadInput, match="1 asked for"):
        placed(spend, OWN.replace(seeds=1))


def test_the_shared_system_reads_any_trace(shared_cases: Path, shared_data: Path) -> None:
    system = Regime.load(shared_cases / "round2" / "own_system.toml")
    trace, report = read_trace(shared_data / "traces" / "azure2023_conv_00-30min.csv")
    found = in_system(trace, report, system, 1, file="azure.csv")
    assert found.regime.name == "mycluster on azure.csv" and found.regime.slo == "ttft<=500ms,e2e<=4s"
    assert len(found.worlds.windows) == 9 and found.regime.horizon_s == 152
    assert found.regime.sidecar_overrides == {"decode_slowdown": 1.7} and found.regime.merge_s == 12
