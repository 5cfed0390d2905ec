"""What `audit` takes from tables and reports beside the rates: replicates, warm-up, the client, the control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.published.registry import Reading, lacking, read
from protocol.audit.judge import audit
from protocol.errors import BadInput
from protocol.workload.slo import Slo


def table(path: Path, heading: str, *rows: str) -> Reading:
    path.write_text("\n".join([heading, *rows]) + "\n")
    return read([path])


def two_arms(path: Path, further: str, cells: str, n: int = 8, control: str = "random") -> dict[str, Any]:
    """A policy a point below its control on n seeds; `cells` of every row may use {seed}."""
    rows = [
        f"{arm},{seed},{5 + i + seed / 10}," + cells.format(seed=seed)
        for i, arm in enumerate(("mine", control))
        for seed in range(n)
    ]
    (found,) = table(path, f"arm,seed,violation_pct,{further}", *rows).comparisons
    return audit(found)


def gate(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in found["claims"][0]["checks"] if c["name"] == name)


# Tables ----------------------------------------------------------------------------------------------------------


def test_columns_that_were_not_read_are_named(tmp_path: Path) -> None:
    found = two_arms(tmp_path / "a.csv", "gpu,requests", "h100,1000")
    assert "columns that were not read: gpu" in found["notes"]


def test_warm_up_rows_are_left_out(tmp_path: Path) -> None:
    found = two_arms(tmp_path / "a.csv", "warmup", "0")
    rows = ["mine,0,90,true", *(f"{a},{s},{5 + i + s},no" for i, a in enumerate(("mine", "random")) for s in (1, 2, 3))]
    (comparison,) = table(tmp_path / "b.csv", "arm,seed,violation_pct,warmup", *rows).comparisons
    assert "1 warm-up rows were left out" in comparison.notes and len(comparison.runs) == 6
    assert not any("warm-up" in note for note in found["notes"])


def test_a_client_that_fell_short_fails_the_load_match(tmp_path: Path) -> None:
    found = two_arms(tmp_path / "a.csv", "offered_rate,achieved_rate", "10,8.5")
    load = gate(found, "G2 load match")
    assert load["status"] == "failed" and "achieved 85.0 % of the rate" in load["reason"]
    assert (
        gate(two_arms(tmp_path / "b.csv", "offered_rate,achieved_rate", "10,9.9"), "G2 load match")["status"]
        != "failed"
    )


def test_a_client_that_sent_late_fails_the_load_match(tmp_path: Path) -> None:
    load = gate(two_arms(tmp_path / "a.csv", "client_delay_ms", "12.5"), "G2 load match")
    assert load["status"] == "failed" and "by 12.5 ms (p99)" in load["reason"]
    assert gate(two_arms(tmp_path / "b.csv", "client_delay_ms", "2"), "G2 load match")["status"] == "undecidable"


@pytest.mark.parametrize("name", ["control", "random_matched", "Random-Deferral"])
def test_the_control_is_the_arm_called_so(tmp_path: Path, name: str) -> None:
    found = two_arms(tmp_path / "a.csv", "requests", "1000", control=name)
    assert found["random_arm"] == name and found["claims"][0]["policy"] == "mine"


def test_a_control_that_comes_first_is_not_the_policy(tmp_path: Path) -> None:
    rows = [f"{arm},{s},{5 + s}" for arm in ("random", "mine") for s in range(3)]
    (found,) = table(tmp_path / "a.csv", "arm,seed,violation_pct", *rows).comparisons
    assert (found.claims[0].policy, found.claims[0].versus, found.random_arm) == ("mine", "random", "random")


def test_no_control_or_several_is_asked_for(tmp_path: Path) -> None:
    found = two_arms(tmp_path / "a.csv", "requests", "1000", control="fixed")
    assert "--control NAME says which" in gate(found, "G3 random envelope")["reason"]
    rows = [f"{arm},{s},{5 + s}" for arm in ("mine", "random_30", "random_70") for s in range(3)]
    (comparison,) = table(tmp_path / "b.csv", "arm,seed,violation_pct", *rows).comparisons
    assert comparison.random_arm is None and "random_30 and random_70 are called controls" in comparison.control_reason
    (chosen,) = read([tmp_path / "b.csv"], random_arm="random_70").comparisons
    assert chosen.random_arm == "random_70"
    with pytest.raises(BadInput, match="another arm than --policy"):
        read([tmp_path / "b.csv"], policy="mine", random_arm="mine")


def test_seeds_are_named_as_the_file_names_them(tmp_path: Path) -> None:
    rows = [f"{arm},{s},{v}" for arm, v in (("mine", 1), ("random", 2)) for s in ("alpha", "beta")]
    (comparison,) = table(tmp_path / "a.csv", "arm,seed,violation_pct", *rows, "mine,7,nan", "random,7,2").comparisons
    found = audit(comparison)
    assert found["claims"][0]["pair"]["seeds"] == [7, "alpha", "beta"]
    assert "mine on seed 7" in found["claims"][0]["checks"][0]["reason"]


def test_the_shared_cases(shared_cases: Path) -> None:
    (pods,) = read([shared_cases / "round2" / "audit_pods_as_replicates.csv"]).comparisons
    claim = audit(pods)["claims"][0]
    assert claim["pair"]["p_floor"] == claim["pair"]["p_sign_flip"] == 0.25 and len(claim["pair"]["seeds"]) == 2
    assert "2 replicates" in pods.notes[0]
    (nan,) = read([shared_cases / "round2" / "audit_nan_in_seed_9.csv"]).comparisons
    assert "wa on seed 9" in audit(nan)["claims"][0]["reasons"][0]
    path = shared_cases / "round2" / "audit_not_streamed.json"
    (ttft,) = read([path], Slo.parse("ttft<=200ms")).comparisons
    assert ttft.runs[0].violation_pct is None and "20 of 20 served requests have no TTFT" in ttft.notes[0]
    (e2e,) = read([path], Slo.parse("e2e<=400ms")).comparisons
    assert e2e.runs[0].violation_pct == 100.0


# Requests --------------------------------------------------------------------------------------------------------


def request(start: float, end: float, stamps: list[float], tokens: int = 4) -> dict[str, Any]:
    info = {"input_tokens": 5, "output_tokens": tokens, "output_token_times": stamps}
    return {"start_time": start, "end_time": end, "request": "", "response": "", "info": info, "error": None}


def test_a_first_token_at_the_end_is_no_first_token(tmp_path: Path) -> None:
    rows = [request(0, 1, [0.2, 0.5, 1.0, 1.0]), request(1, 2, [2.0, 2.0, 2.0, 2.0]), request(2, 3, [3.0], tokens=1)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    log = read([path]).files[0].log
    assert log is not None
    assert log.ttft_ns.tolist() == [200_000_000, -1, 1_000_000_000]  # one token comes at the end, and is the first
    assert log.max_itl_ns.tolist() == [500_000_000, -1, 0]
    assert lacking(log, Slo.parse("e2e<=2s"), "a") == ""
    for limit in ("ttft<=1s", "tpot<=1s", "itl<=1s"):
        metric = limit.split("<")[0]
        assert f"1 of 3 served requests have no {metric.upper()}" in lacking(log, Slo.parse(limit), "a")


def test_an_slo_that_cannot_be_judged_gives_no_p(tmp_path: Path) -> None:
    for arm in ("mine", "random"):
        for seed in range(3):
            rows = [request(i, i + 1, [] if arm == "mine" else [i + 0.3, i + 0.5]) for i in range(5)]
            (tmp_path / f"{arm}-s{seed}.json").write_text(json.dumps(rows))
    (comparison,) = read([tmp_path], Slo.parse("ttft<=200ms")).comparisons
    (claim,) = audit(comparison)["claims"]
    assert claim["verdict"] == "undecidable" and "ttft cannot be judged" in claim["checks"][0]["reason"]


def test_a_rate_that_was_not_achieved_is_found_in_the_starts(tmp_path: Path) -> None:
    def result(rate: float) -> dict[str, Any]:
        n = 400
        return {
            "completed": n, "failed": 0, "duration": 50.0, "request_rate": rate, "request_throughput": 8.0,
            "start_times": [i / 8 for i in range(n)], "ttfts": [0.1] * n, "itls": [[0.1]] * n,
            "input_lens": [4] * n, "output_lens": [2] * n, "errors": [""] * n,
        }  # fmt: skip

    for rate, found in ((10.0, 0.8), (8.0, None), (8.2, None)):  # 8.2: within chance of 400 requests
        for arm in ("mine", "random"):
            (tmp_path / f"{arm}-s1.json").write_text(json.dumps(result(rate)))
        (comparison,) = read([tmp_path], Slo.parse("e2e<=1s")).comparisons
        assert [r.achieved for r in comparison.runs] == [pytest.approx(found) if found else None] * 2


# llm-d -----------------------------------------------------------------------------------------------------------

REPORT = {
    "version": "0.2.1",
    "run": {"uid": "u", "time": {"duration": "PT1M49.5S"}},
    "scenario": {"stack": [], "load": {"standardized": {"tool": "inference-perf", "rate_qps": 10.0}}},
    "results": {"request_performance": {"aggregate": {
        "requests": {"total": 500, "failures": 3},
        "latency": {"request_latency": {"units": "s", "mean": 1.5, "p95": 2.5},
                    "time_to_first_token": {"units": "ms", "p50": 36.0, "p99": 50.0},
                    "time_per_output_token": {"units": "s/token", "mean": 0.03}},
        "throughput": {"request_rate": {"units": "queries/s", "mean": 8.3}},
    }}},
}  # fmt: skip
OLDER = {
    "version": 0.1,
    "scenario": {"load": {"name": "inference-perf"}},
    "metrics": {"time": {"duration": 50.0}, "requests": {"total": 100, "failures": 0},
                "latency": {"request_latency": {"units": "ms", "p99": 900.0}},
                "throughput": {"requests_per_sec": 2.0}},
}  # fmt: skip


def test_llm_d_reports(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(REPORT, indent=1))
    (one,) = read([tmp_path / "a.json"]).files
    assert one.support.format == "llm-d benchmark report" and one.log is None
    assert {
        "requests": 500,
        "served": 497,
        "failed": 3,
        "e2e_p95_s": 2.5,
    }.items() <= one.facts.items()
    assert one.facts["ttft_p50_s"] == pytest.approx(0.036) and one.facts["duration_s"] == pytest.approx(109.5)
    assert one.facts["achieved_over_offered"] == pytest.approx(0.83)
    assert "only 83.0 % of the offered rate" in str(one.facts["flag"])
    (tmp_path / "b.json").write_text(json.dumps(OLDER))
    (older,) = read([tmp_path / "b.json"]).files
    assert older.facts["e2e_p99_s"] == pytest.approx(0.9) and older.facts["achieved_rate"] == 2.0
    assert "flag" not in older.facts and older.facts["duration_s"] == 50.0


def test_llm_d_reports_in_yaml(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(REPORT))
    (one,) = read([tmp_path]).files
    assert one.facts["served"] == 497
    (tmp_path / "b.yml").write_text("version: 0.2\nscenario: [\n")
    with pytest.raises(BadInput, match=r"b.yml, line 3: found broken YAML"):
        read([tmp_path / "b.yml"])


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("requests", "failures"), 501, "501 of 500"),
        (("requests",), {}, "no counts of requests"),
        (("latency", "request_latency", "units"), "fortnights", "request_latency, units"),
        (("latency", "request_latency", "p95"), -1, "request_latency, p95"),
        (("latency",), [1], "latency"),
    ],
)
def test_llm_d_refusals(tmp_path: Path, path: tuple[str, ...], value: object, told: str) -> None:
    report = json.loads(json.dumps(REPORT))
    at = report["results"]["request_performance"]["aggregate"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(report))
    with pytest.raises(BadInput, match=told) as caught:
        read([tmp_path / "a.json"])
    assert "\n" not in str(caught.value)
