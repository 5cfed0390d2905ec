"""Every number of the page is one that is stored, or follows from raw rows by a count that is repeated here."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_certificate import REGIMES, build

from adapters.sidecars.agreement import replayed
from adapters.sidecars.simulated import shipped_calibrations
from protocol.evidence.model import OPTIMUM, Evidence
from protocol.replay.measurements import SERVED
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.workload.slo import Slo
from reports import charts, leaderboard, reading
from reports import format as fmt
from reports.html import write_report

TEMPLATES = Path(reading.__file__).parent / "templates"
NUMBER = re.compile(r"\d[\d\u2009]*(?:\.\d+)?(?:e[+\-−]?\d+)?")


def tokens(text: str) -> set[str]:
    return set(NUMBER.findall(text.replace("\u2009", "")))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        yield len(value)
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def shown(value: Any) -> set[str]:
    """Every way in which the page may show a stored value."""
    if isinstance(value, str):
        return tokens(value)
    if not fmt.known(value):
        return set()
    ways = [fmt.fixed(value, d) for d in (1, 2)] + [fmt.number(value), fmt.number(value, 3), fmt.p_value(value)]
    ways += [
        fmt.fraction(value),
        fmt.plain(value),
        fmt.brief(value),
        fmt.fixed(value / 1e9, 1),
        fmt.number(value / 1e9),
    ]
    return set().union(*(tokens(way) for way in ways))


def test_every_number_of_the_text_is_stored(tmp_path: Path) -> None:
    certificate, evidence = build(REGIMES[:2], ("e2e<=1s", "ttft<=200ms"), seeds=3, draws=9)
    write_report(certificate, evidence, tmp_path / "p.html", {}, charts.chart_data(certificate, evidence, {}))
    page = (tmp_path / "p.html").read_text("utf-8")
    body = re.sub(r"<(style|script|option)[^>]*>.*?</\1>", " ", page[page.index("<body>") :], flags=re.S)
    words = tokens(html.unescape(re.sub(r"<[^>]*>", " ", body)))
    stored = set().union(*map(shown, leaves(certificate)))
    stored |= set().union(*(shown(vars(p)["at_ns"]) for e in evidence for p in e.probes))
    stored |= {str(len(p)) for e in evidence for p in e.placed.values()} | {str(sum(len(e.probes) for e in evidence))}
    stored |= {str(sum(s["merges"] for s in r["seeds"])) for r in certificate["regimes"]}
    fixed = tokens("".join((TEMPLATES / name).read_text("utf-8") for name in ("report.html.j2", "parts.html.j2")))
    fixed |= tokens(json.dumps(reading.RECOMPUTE)) | {"95"}
    assert sorted(words - stored - fixed) == []
    assert len(words - fixed) > 100


def test_every_number_of_a_leaderboard_is_stored(tmp_path: Path) -> None:
    made = [build(REGIMES[:3], seeds=3, draws=9, name=name)[0] for name in ("a.py", "b.py", "c.py")]
    made[1]["claims"][0]["envelope"] |= {"gain_pp": -7.31, "interval_pp": [-9.08, -5.13]}
    entries = [leaderboard.Entry(f"run-{'xyz'[k]}", c, ["edited"] * (k == 2), "recomputed", ["who"]) for k, c in
               enumerate(made)]  # fmt: skip
    leaderboard.write_leaderboard(entries, "Board", tmp_path / "b.html")
    page = (tmp_path / "b.html").read_text("utf-8")
    body = re.sub(r"<(style)[^>]*>.*?</\1>", " ", page[page.index("<body>") :], flags=re.S)
    words = tokens(html.unescape(re.sub(r"<[^>]*>", " ", body)))
    stored = set().union(*map(shown, leaves(made[:2]))) | {"3"}  # entries in all
    boards = leaderboard.boards(entries)
    for board in boards:  # the scale holds every gain and limit, 4 % to spare at either end
        envelopes = [row["e"] for row in board["rows"]]
        ends = [0.0, *(v for e in envelopes for v in (e["gain_pp"], *(e["interval_pp"] or ())))]
        spare = 0.04 * (max(ends) - min(ends))
        assert board["axis"] == pytest.approx((min(ends) - spare, max(ends) + spare))
        stored |= shown(board["axis"][0]) | shown(board["axis"][1])
    assert "7.31" in words and "9.08" in words and len(boards) == 3
    assert sorted(words - stored - tokens((TEMPLATES / "leaderboard.html.j2").read_text("utf-8"))) == []


def test_a_number_that_is_not_stored_would_be_found() -> None:
    assert not tokens("a gain of 77.77 pp") & set().union(*map(shown, leaves({"gain": 77.76, "n": [1, 2]})))


def floats(value: Any) -> Iterator[float]:
    yield from (float(x) for x in leaves(value) if isinstance(x, int | float) and not isinstance(x, bool))


def test_every_number_of_the_charts_follows_from_the_raw_rows() -> None:
    certificate, evidence = build(REGIMES[:2], ("e2e<=1s", "ttft<=200ms"), seeds=3, draws=9)
    data = charts.chart_data(certificate, evidence, {})
    seeds = {(e.regime, e.seed): e for e in evidence}
    for index, claim in enumerate(data["claims"]):
        own = certificate["claims"][index]
        stored = set(floats(own)) | {float(own["tier"]["number"])}
        plain = {k: v for k, v in claim.items() if k not in ("seeds", "missed")}
        assert {v for v in floats(plain) if v not in stored and v not in {float(len(x)) for x in plain.values()
                if isinstance(x, list | tuple)}} <= {2.0}  # fmt: skip
        for row, kept in zip(claim["seeds"], own["envelope"]["per_seed"], strict=True):
            assert {k: row[k] for k in row if k != "draws"} == {k: kept[k] for k in row if k != "draws"}
            e, column = seeds[claim["key"], row["seed"]], index % 2
            idle = e.placed[NO_SYNC].violations[0, column]
            costs = sorted(100 * (v - idle) / e.n_requests for v in e.placed[UNIFORM].violations[:, column].tolist())
            assert row["draws"][0] == pytest.approx(costs[0], abs=1e-6)
            assert row["draws"][3] == pytest.approx(costs[4], abs=1e-6)
            assert row["draws"][-1] == pytest.approx(costs[-1], abs=1e-6)
        for seed, counts in claim["missed"].items():
            by_hand(seeds[claim["key"], int(seed)], data["regimes"][claim["key"]], counts, claim["slo"])
    for regime in certificate["regimes"]:
        for line in data["regimes"][regime["name"]]["seeds"]:
            merges(seeds[regime["name"], line["seed"]], line, regime["corridor"])


def by_hand(e: Evidence, world: dict[str, Any], counts: list[int], slo: str) -> None:
    line = next(s for s in world["seeds"] if s["seed"] == e.seed)
    rows, width_ns = e.simulated[POLICY].rows, line["bin_s"] * 1e9
    edges = np.arange(len(line["arrivals"]) + 1) * width_ns
    assert line["arrivals"] == np.histogram(rows.arrival_ns, edges)[0].tolist()
    assert counts == np.histogram(rows.arrival_ns[rows.violates(Slo.parse(slo))], edges)[0].tolist()
    for k, at in enumerate((edges[:-1] + edges[1:]) / 2):
        there = (rows.outcome == SERVED) & (rows.arrival_ns <= at) & (at < rows.arrival_ns + rows.e2e_ns)
        assert line["in_flight"][k] == there.sum()
    assert sum(line["arrivals"]) == len(rows)


def merges(e: Evidence, line: dict[str, Any], corridor: dict[str, int]) -> None:
    for arm in (POLICY, OPTIMUM, UNIFORM):
        at, length = 0, corridor["merge_ns"]
        for gap, (begin, end) in zip(e.placed[arm].rows()[0].tolist(), line["merges"][arm], strict=True):
            at += gap * corridor["decision_steps"] * corridor["step_ns"]
            assert (begin, end) == (pytest.approx(at / 1e9, abs=1e-3), pytest.approx((at + length) / 1e9, abs=1e-3))
            at += length


def test_latencies_around_merges_by_hand() -> None:
    certificate, evidence = build(seeds=2, draws=9)
    pairs = replayed(shipped_calibrations()["vllm-cpu"])
    found = charts.chart_data(certificate, evidence, {"vllm-cpu": pairs})["transfers"]
    assert [t["name"] for t in found] == ["vllm-cpu, moderate", "vllm-cpu, near the knee"]
    transfer = found[0]
    for side, rows_of in (("real", lambda p: p[0].measurements), ("simulated", lambda p: p[1])):
        for k in (0, 7, 15):
            low, high = (transfer["merge_s"] * (-0.5 + 2 * j / 16) for j in (k, k + 1))
            e2e = []
            for pair in pairs:
                m = rows_of(pair)
                if pair[0].kind != "on-off" or pair[0].load != "moderate":
                    continue
                for begin in pair[0].merges.start_ns.tolist():
                    after = (m.arrival_ns - begin) / 1e9
                    e2e += (m.e2e_ns[(after >= low) & (after < high)] / 1e6).tolist()
            cell = transfer["sides"][side][k]
            assert abs(cell["n"] - len(e2e)) <= 1  # the merge's own length is rounded to a millisecond
            assert cell["p50_ms"] == pytest.approx(np.quantile(e2e, 0.5, method="higher"), rel=0.05)
