"""The WA-DiLoCo artifact: self-made files with known answers, and the real ones to every printed digit."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wa_artifact import SEEDS, summary, write, write_steady

from adapters.published import parsing, wa_diloco
from adapters.published.registry import read
from adapters.published.wa_cells import mean_sd
from adapters.published.wa_schedules import offline_starts, random_starts
from protocol.audit.judge import audit
from protocol.errors import BadInput

ARMS = {
    "fixed_h_512": (8, 352.0, 5900, 650),
    "fixed_h_256": (14, 372.0, 5600, 1080),
    "random_matched": (8, 590.0, 6050, 390),
    "wa_diloco": (8, 540.0, 6100, 400),
}


def audited(folder: Path) -> dict[str, dict]:
    return {c.name: audit(c) for c in read([folder]).comparisons}


def arm(found: dict, name: str) -> dict:
    return next(a for a in found["arms"] if a["arm"] == name)


# Self-made files -------------------------------------------------------------------------------------------------


def test_repeated_schedules_give_arms_different_budgets(tmp_path: Path) -> None:
    """Logged alike (8), replayed unlike: 352 s repeated into 600 s is about 13 windows, 540 s about 8."""
    found = audited(write_steady(tmp_path, ARMS))["stage 11 sync"]
    fixed, wa = arm(found, "fixed_h_512"), arm(found, "wa_diloco")
    assert fixed["merges_logged"] == wa["merges_logged"] == [8]
    assert 12 <= fixed["windows_low"] <= fixed["windows"] <= fixed["windows_high"] <= 14.5
    assert 7 <= wa["windows_low"] <= wa["windows"] <= wa["windows_high"] <= 10
    claim = next(c for c in found["claims"] if c["versus"] == "fixed_h_512")
    assert claim["verdict"] == "not licensed"
    budget = next(c for c in claim["checks"] if c["name"] == "G0 budget")
    assert budget["status"] == "failed" and budget["interval"][0] > 0
    assert claim["pair"]["survives"]["verdict"] == "no"


def test_load_drift_is_a_failed_load_match_with_its_size(tmp_path: Path) -> None:
    found = audited(write_steady(tmp_path, ARMS))["stage 11 sync"]
    claim = next(c for c in found["claims"] if c["versus"] == "fixed_h_256")
    load = next(c for c in claim["checks"] if c["name"] == "G2 load match")
    expected = statistics.mean(100 * ((6100 + 8 * i) / (5600 + 8 * i) - 1) for i in range(5))
    assert load["status"] == "failed"
    assert load["statistic"] == pytest.approx(expected)
    assert f"{expected:+.2f} %" in load["reason"]


def test_one_load_under_five_seed_names_is_told(tmp_path: Path) -> None:
    found = audited(write_steady(tmp_path, ARMS))["stage 11 sync"]
    claim = next(c for c in found["claims"] if c["versus"] == "fixed_h_512")
    envelope = next(c for c in claim["checks"] if c["name"] == "G3 random envelope")
    assert envelope["status"] == "failed" and "share one load" in envelope["reason"]


def test_startup_is_bounded_by_the_token_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "wa_diloco-s23.json", summary(8, 540.0, startup_s=20.0))
    found = wa_diloco.run_summary(parsing.read_document(path))
    low, high = wa_diloco.startup_s(found)
    assert low <= 20.0 <= high and high - low <= 2.6 + 1e-9


def test_a_given_merge_log_is_counted_exactly(tmp_path: Path) -> None:
    """Starts at 60, 120, 180 of a 200 s schedule, 600 s, first request at 20 s: 9 windows, none in doubt."""
    log = tmp_path / "workspaces" / "none" / "events" / "coordinator.jsonl"
    events = [{"event": "coordinator_start", "ts_ms": 1000}]
    events += [{"event": "merged", "ts_ms": 1000 + 1000 * t} for t in (60, 120, 180)]
    events += [{"event": "coordinator_stop", "ts_ms": 1000 + 200_000}]
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(e) + "\n" for e in events))
    for seed in SEEDS:
        write(tmp_path / f"wa_diloco-s{seed}.json", summary(3, 200.0))
        write(
            tmp_path / f"random_matched-s{seed}.json", summary(3, 200.0, violations=500, sync_events_jsonl="x/y.jsonl")
        )
    found = audited(tmp_path)["stage 11 sync"]
    assert arm(found, "wa_diloco")["windows_low"] == arm(found, "wa_diloco")["windows_high"] == 9
    assert arm(found, "wa_diloco")["windows_exact"]
    assert not arm(found, "random_matched")["windows_exact"]


def test_a_log_that_contradicts_its_summary_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "workspaces" / "none" / "events" / "coordinator.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"event": "coordinator_start", "ts_ms": 0}\n{"event": "merged", "ts_ms": 9000}\n')
    write(tmp_path / "wa_diloco-s23.json", summary(8, 540.0))
    with pytest.raises(BadInput, match="1 merges.*8"):
        read([tmp_path])


def test_nan_in_a_published_rate_is_undecidable_and_never_zero(tmp_path: Path) -> None:
    write_steady(tmp_path, ARMS)
    broken = tmp_path / "sync" / "wa_diloco-s29" / "summary.json"
    value = json.loads(broken.read_text())
    value["real"]["slo_violation_rate"] = float("nan")
    write(broken, value)
    found = audited(tmp_path)["stage 11 sync"]
    for claim in found["claims"]:
        assert claim["pair"]["p_sign_flip"] is None
        assert claim["pair"]["raw_pp"]["mean"] is None
        assert claim["pair"]["survives"]["verdict"] == "undecidable"
        assert claim["verdict"] != "licensed"
    json.dumps(found, allow_nan=False)


def test_violations_that_merges_do_not_cause_are_not_shared_among_windows(tmp_path: Path) -> None:
    """Pressure-heavy stress: p95 is the same in and out of windows, so there is nothing to adjust by windows."""
    for name, (merges, schedule_s, requests, violations) in ARMS.items():
        for i, seed in enumerate(SEEDS):
            value = summary(merges, schedule_s + i, requests + i, violations + 8 * i, stress="pressure")
            value["real"]["sync_inactive_p95_ratio"] = 1.0 + 0.001 * i
            write(tmp_path / "pressure" / f"{name}-s{seed}" / "summary.json", value)
    found = audited(tmp_path)["stage 11 pressure"]
    assert arm(found, "wa_diloco")["per_window"]["mean"] is None
    assert all(c["pair"]["adjusted_pp"]["estimate"]["mean"] is None for c in found["claims"])


def test_random_draws_follow_the_published_rule() -> None:
    for draw in range(5):
        starts = random_starts(23, draw, 8, 600.0, 8.0)
        assert len(starts) == 8 and starts == random_starts(23, draw, 8, 600.0, 8.0)
        assert 0 <= starts[0] and starts[-1] <= 592 and min(np.diff(starts)) >= 17.999
    # Too many for the rule: the published script falls back to a grid.
    grid = random_starts(23, 0, 40, 600.0, 8.0)
    assert np.allclose(np.diff(grid), 592 / 39, atol=2e-3)


def test_labels_bound_the_windows_of_a_steady_closed_loop(tmp_path: Path) -> None:
    """400 of 8 at a time are 50 batches; 1.0 to 1.3 s each, they fill 6.25 to 8.125 windows of 8 s."""
    path = write(tmp_path / "wa_diloco-s23.json", summary(8, 540.0, violations=400))
    assert wa_diloco.label_windows(wa_diloco.run_summary(parsing.read_document(path))) == pytest.approx((6.25, 8.125))


def test_one_run_transfers_nothing(tmp_path: Path) -> None:
    rows = [{"run": "vllm-sync-heavy", "real_sync_ratio": 1.6, "real_high_low": 1.0, "sim_high_low": 1.7}]
    rows += [{"run": f"plain-{i}", "real_sync_ratio": 1 + i / 1000, "real_high_low": 1.0 + i / 900} for i in range(6)]
    path = write(tmp_path / "stage10.json", [{"real_requests": 100, **row} for row in rows])
    (found,) = audited(path).values()
    verdicts = {c["text"]: c["verdict"] for c in found["claims"]}
    assert verdicts["Sync-heavy stress transfers to p95 in merge windows"] == "undecidable"
    assert verdicts["Ordinary sidecars show no transfer of merge windows"] == "licensed"


def test_mean_and_sd_as_printed() -> None:
    assert mean_sd([1.0, 2.0, 4.0]) == "2.333 ± 1.528"
    assert mean_sd([5.0]) == "5.000 ± 0.000"
    assert mean_sd([1.0, float("nan")]) == mean_sd([1.0, None]) == mean_sd([]) == "–"


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "real", "requests", "stress_mode", "duration_sec", "slo_violation_rate", "policy", "seed", "regime",
        "sync_events",
        "run", "real_sync_ratio", "real_high_low", "n", "sync_excess_slo_pct", "nodes", "size_mib", "algbw_gbps",
    ]), inner, max_size=6),
    max_leaves=12,
))  # fmt: skip
def test_malformed_artifact_files_are_one_line(value: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "stage11-sync-wa_diloco-s23.json", value)
        try:
            for comparison in read([path]).comparisons:
                audit(comparison)
        except BadInput as error:
            assert "\n" not in str(error)


# The real artifact -----------------------------------------------------------------------------------------------

#: Stage 11 table of the artifact (results/stage11/policy-sidecar-summary.md), every printed digit of the columns
#: p95 ms, p99 ms, SLO violations %, high/low p95, sync p95 ratio, tokens/s.
STAGE_11 = {
    "pressure": """
fixed_h_256 1238.222 ± 88.376 1249.687 ± 82.359 36.674 ± 1.607 1.670 ± 0.143 1.000 ± 0.003 1119.592 ± 21.095
fixed_h_512 1212.372 ± 34.278 1246.443 ± 47.094 36.822 ± 0.574 1.690 ± 0.045 0.999 ± 0.011 1142.674 ± 13.488
pressure_gate 1228.062 ± 68.779 1253.473 ± 70.383 37.210 ± 1.352 1.666 ± 0.144 1.002 ± 0.002 1130.581 ± 19.927
pressure_gate_matched 1282.961 ± 66.329 1303.011 ± 55.031 35.909 ± 0.773 1.773 ± 0.071 0.994 ± 0.014 1125.418 ± 35.033
random_matched 1225.417 ± 56.268 1247.618 ± 63.460 36.614 ± 1.037 1.682 ± 0.088 0.999 ± 0.006 1135.148 ± 18.191
wa_diloco 1244.065 ± 77.214 1261.706 ± 76.783 37.065 ± 1.449 1.658 ± 0.122 1.005 ± 0.009 1115.043 ± 18.413
""",
    "sync": """
fixed_h_256 1245.872 ± 71.356 1256.264 ± 77.687 19.213 ± 1.731 1.000 ± 0.004 1.671 ± 0.135 1242.467 ± 13.675
fixed_h_512 1224.847 ± 81.717 1253.860 ± 71.926 11.035 ± 1.212 0.996 ± 0.005 1.683 ± 0.176 1301.299 ± 33.433
pressure_gate 1254.459 ± 66.897 1264.788 ± 73.045 13.725 ± 0.528 0.993 ± 0.012 1.719 ± 0.104 1280.826 ± 8.980
pressure_gate_matched 1224.464 ± 65.097 1270.161 ± 57.373 11.925 ± 3.364 0.992 ± 0.020 1.739 ± 0.085 1300.638 ± 23.875
random_matched 1173.342 ± 66.397 1257.114 ± 77.511 6.382 ± 0.713 1.139 ± 0.349 1.690 ± 0.158 1333.856 ± 27.396
wa_diloco 1241.496 ± 76.663 1283.342 ± 49.780 6.455 ± 0.350 0.868 ± 0.263 1.757 ± 0.075 1342.259 ± 19.174
""",
}
#: Stage 10: sync ratio and high/low p95 of each run (results/stage10/sidecar-summary.md), and the simulator's.
STAGE_10 = {
    "vllm-0p5b-baseline": ["1.0008", "1.0047", "1.7179"],
    "vllm-0p5b-highcon": ["1.0002", "1.0020", "1.7191"],
    "vllm-1p5b-highcon": ["1.0008", "1.0034", "1.7204"],
    "vllm-1p5b-medium": ["1.0006", "1.0031", "1.7175"],
    "vllm-1p5b-pressure-heavy": ["0.9998", "1.5461", "1.7093"],
    "vllm-1p5b-sync-heavy": ["1.5560", "1.0001", "1.7115"],
    "vllm-3b-highcon": ["1.0006", "1.0034", "1.7163"],
    "vllm-7b-high": ["1.0005", "1.0046", "1.7088"],
}


@pytest.fixture(scope="module")
def artifact(shared_data: Path) -> dict[str, dict]:
    return audited(shared_data / "published" / "wa_diloco")


def test_stage_10_to_every_printed_digit(artifact: dict) -> None:
    assert {row[0]: row[1:] for row in artifact["stage 10"]["table"]["rows"]} == STAGE_10


@pytest.mark.parametrize("regime", ["pressure", "sync"])
def test_stage_11_to_every_printed_digit(artifact: dict, regime: str) -> None:
    rows = [" ".join([row[0], *row[2:-1]]) for row in artifact[f"stage 11 {regime}"]["table"]["rows"]]
    assert rows == STAGE_11[regime].strip().splitlines()


def test_stage_13_to_every_printed_digit(artifact: dict) -> None:
    """Against the artifact's own Markdown: 7 arms by 7 columns, and three p-values."""
    printed = artifact["stage 13 bursty"]["printed"]
    assert len(printed) == 52 and [row for row in printed if row[1] != row[2]] == []
    assert [row[1:] for row in printed if row[0].endswith(", p")] == [["0.062"] * 2, ["0.344"] * 2, ["1.000"] * 2]
    pairs = {c["versus"]: c["pair"]["p_sign_flip"] for c in artifact["stage 13 bursty"]["claims"][1:4]}
    assert pairs == {"wa_diloco": 2 / 32, "random_matched": 11 / 32, "stage12_calibrated_replay": 1.0}


def test_stage_13_means_and_sds_from_values_by_seed(artifact: dict) -> None:
    """The online arm from its runs; two others from the online runs less the printed differences."""
    found = {a["arm"]: a["violation_pct"] for a in artifact["stage 13 bursty"]["arms"]}
    printed = {
        "online_calibrated_wa": (5.920, 1.478),
        "wa_diloco": (6.915, 1.869),
        "stage12_calibrated_replay": (4.445, 0.131),
    }
    for name, (mean, sd) in printed.items():
        assert round(found[name]["mean"], 3) == mean and round(found[name]["sd"], 3) == sd
    assert round(found["random_matched"]["mean"], 3) == 6.257


def test_steady_budgets_of_the_real_artifact(artifact: dict) -> None:
    """Labels of the requests (two seeds an arm) agree with the windows that the repeat rule gives."""
    found = artifact["stage 11 sync"]
    windows = {a["arm"]: a["windows"] for a in found["arms"]}
    assert windows["fixed_h_256"] == pytest.approx(22.0, abs=0.1)
    assert windows["fixed_h_512"] == pytest.approx(13.0, abs=0.1)
    assert windows["wa_diloco"] == pytest.approx(8.4, abs=0.1)
    assert 14 < windows["pressure_gate_matched"] < windows["pressure_gate"] < 16.5
    for a in found["arms"]:
        assert a["windows_by_labels"][0] <= a["windows_high"] and a["windows_by_labels"][1] >= a["windows_low"]
        assert 47 <= a["per_window"]["mean"] <= 51
    survives = {c["versus"]: c["pair"]["survives"]["verdict"] for c in found["claims"] if c["kind"] == "better"}
    assert survives == dict.fromkeys(("fixed_h_256", "fixed_h_512", "pressure_gate", "pressure_gate_matched"), "no")


def test_steady_p_against_random(artifact: dict) -> None:
    claim = next(c for c in artifact["stage 11 sync"]["claims"] if c["versus"] == "random_matched")
    assert claim["printed_p"] == f"{claim['pair']['p_sign_flip']:.2f}" == "0.56"
    assert claim["verdict"] == "licensed"


def test_bursty_findings(artifact: dict) -> None:
    found = artifact["stage 13 bursty"]
    notes = " ".join(found["notes"])
    assert "508.9 to 546.8 s" in notes and "One load under 5 seed names" in notes and "25 leave the corridor" in notes
    claim = found["claims"][0]
    assert claim["verdict"] == "not licensed"
    status = {c["name"]: c["status"] for c in claim["checks"]}
    assert status["G0 corridor"] == status["G3 random envelope"] == "failed"


def test_bursty_baselines_of_which_only_means_were_published(artifact: dict) -> None:
    """Their budgets differ for certain; whether a win is left cannot be told without their runs."""
    claims = {c["versus"]: c for c in artifact["stage 13 bursty"]["claims"] if "fewer violations" in c["text"]}
    assert set(claims) == {"fixed_h_256", "fixed_h_512", "pressure_gate"}
    for claim in claims.values():
        assert claim["verdict"] == "not licensed" and "cannot be told" in claim["reasons"][1]
    budget = next(c for c in claims["fixed_h_256"]["checks"] if c["name"] == "G0 budget")
    assert budget["status"] == "failed" and budget["interval"][0] > 10


def test_random_draws_made_again_expose_the_seeds_as_measured(artifact: dict) -> None:
    """Requests that the remade schedules would hit, by seed, order the seeds as the published rates do."""

    def hit(start: float) -> float:
        moments = start + np.linspace(0, 8, 161)
        busy = moments % 120 < 30
        return float(np.where(busy, 12, 4).mean())

    exposed = [
        sum(hit(t) for draw in range(5) for t in random_starts(seed, draw, 8, 600.0, 8.0) if t > 20) for seed in SEEDS
    ]
    claim = next(
        c for c in artifact["stage 13 bursty"]["claims"] if c["versus"] == "random_matched" and "Online" in c["text"]
    )
    own = json.dumps(claim["pair"]["raw_pp"]["by_seed"])
    online = [8.386, 4.566, 5.205, 6.058, 5.386]
    measured = [a - d for a, d in zip(online, json.loads(own), strict=True)]
    assert np.argsort(exposed).tolist() == np.argsort(measured).tolist()


def test_the_simulator_of_the_artifact_does_not_agree(artifact: dict) -> None:
    found = artifact["stage 11 sync"]["simulator"]
    assert found["n"] == 12 and found["ratio"] > 1.5 and found["p"] > 0.95


def test_the_offline_plan_keeps_out_of_the_bursts() -> None:
    """Bursts of 30 s every 120 s from 0: eight windows of 8 s, all outside, at least 18 s apart."""
    starts = offline_starts(8, 600.0, 8.0, (120.0, 30.0, 0.0))
    assert len(starts) == 8 and min(np.diff(starts)) >= 18
    assert all(30 <= t % 120 <= 112 for t in starts)
    # 37.5 s is the first even place and lies outside the burst, so it stays.
    assert starts[0] == 37.5
    assert offline_starts(40, 600.0, 8.0, (120.0, 30.0, 0.0)) == ()
